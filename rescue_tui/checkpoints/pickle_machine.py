"""The stack machine under `pickles`: what each group of opcodes does to stack, marks and memo, all bounded."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from rescue_tui.checkpoints import limits
from rescue_tui.checkpoints.pickle_nodes import Call, FaultKind, Global, Key, PersistentId, Place

NODES = 2_000_000  # containers and calls that one pickle may make
MARKS = 5 * limits.NESTING
INT_BYTES = 1024
LINE_BYTES = 64 << 10
KEY_ITEMS = 8
RECENT_TEXTS = 4

_DICTS = frozenset({("collections", "OrderedDict"), ("collections", "defaultdict"), ("collections", "Counter")})
_ENCODE = ("_codecs", "encode")
_RECONSTRUCTORS = frozenset({("copyreg", "_reconstructor"), ("copy_reg", "_reconstructor")})


class Stopped(Exception):
    """The walk can go no further: the bytes end, mean nothing, or ask for more than a bound allows."""

    def __init__(self, kind: FaultKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


def malformed(reason: str) -> Stopped:
    """What is raised for bytes that no pickler writes."""
    return Stopped(FaultKind.MALFORMED, reason)


def _is_simple(key: object) -> bool:
    if key is None or isinstance(key, str | bytes | bool | Global | PersistentId | Call):
        return True
    return isinstance(key, int) and -(1 << 60) < key < 1 << 60


def plain_key(key: object) -> object:
    """A key of a dict that hashes without running anything of the pickle; others are wrapped."""
    if _is_simple(key):
        return key
    if isinstance(key, tuple) and len(key) <= KEY_ITEMS and all(_is_simple(part) for part in key):
        return key
    return Key(key)


@dataclass(slots=True)
class Machine:
    """The unpickler's stack and memo over bytes; one method per group of opcodes."""

    data: bytes
    at: int
    stack: list[object] = field(default_factory=list)
    marks: list[list[object]] = field(default_factory=list)
    memo: dict[int, object] = field(default_factory=dict)
    names: dict[tuple[str, str], Global] = field(default_factory=dict)
    nodes: int = 0
    encoded_bytes: int = 0
    persistent: list[PersistentId] = field(default_factory=list)
    places: dict[int, Place] = field(default_factory=dict)
    recent: list[tuple[str, int, int]] = field(default_factory=list)

    # Reading

    def take(self, length: int) -> bytes:
        """The next ``length`` bytes. Raises `Stopped` when fewer are left."""
        end = self.at + length
        if length < 0 or end > len(self.data):
            raise Stopped(FaultKind.CUT, f"{length} bytes are wanted, {len(self.data) - self.at} are left")
        value = self.data[self.at:end]
        self.at = end
        return value

    def number(self, layout: struct.Struct) -> int:
        """The next number of this layout."""
        end = self.at + layout.size
        if end > len(self.data):
            raise Stopped(FaultKind.CUT, "the bytes end within a number")
        value = layout.unpack_from(self.data, self.at)[0]
        self.at = end
        return int(value)

    def raw_line(self) -> bytes:
        """The bytes up to the next line feed, as protocol 0 ends its arguments."""
        end = self.data.find(b"\n", self.at, self.at + LINE_BYTES)
        if end < 0:
            if len(self.data) - self.at < LINE_BYTES:
                raise Stopped(FaultKind.CUT, "the bytes end within a line")
            raise malformed("a line without an end")
        value = self.data[self.at:end]
        self.at = end + 1
        return value.rstrip(b"\r")

    def line(self) -> str:
        """The same as text; bytes that are not UTF-8 become lone surrogates."""
        return self.raw_line().decode("utf-8", "surrogateescape")

    def escaped_line(self) -> str:
        """The same in Python's raw-unicode-escape."""
        try:
            return self.raw_line().decode("raw-unicode-escape")
        except UnicodeDecodeError:
            raise malformed("text with an escape that is none") from None

    def text(self, length: int) -> str:
        """Text of ``length`` bytes; where it lay is remembered for the next few opcodes."""
        offset = self.at
        raw = self.take(length)
        try:
            text = raw.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise malformed("text that is not UTF-8") from None
        self.recent.append((text, offset, length))
        if len(self.recent) > RECENT_TEXTS:
            del self.recent[0]
        return text

    def binary(self, length: int) -> bytes:
        """Bytes, and where they lie in the pickle."""
        value = self.take(length)
        self.places[id(value)] = Place(value, self.at - length, length)
        return value

    # Stack

    def pop(self) -> object:
        """Take the top of the stack."""
        if not self.stack:
            raise malformed("nothing is on the stack")
        return self.stack.pop()

    def top(self) -> object:
        """Look at the top of the stack."""
        if not self.stack:
            raise malformed("nothing is on the stack")
        return self.stack[-1]

    def mark(self) -> None:
        """Begin a new stack above a mark."""
        if len(self.marks) >= MARKS:
            raise Stopped(FaultKind.LIMIT, f"more than {MARKS} nested marks")
        self.marks.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[object]:
        """What lies above the last mark, which goes."""
        if not self.marks:
            raise malformed("no mark is on the stack")
        values, self.stack = self.stack, self.marks.pop()
        return values

    def node(self, value: object) -> None:
        """Put a container or an object on the stack, counted."""
        self.nodes += 1
        if self.nodes > NODES:
            raise Stopped(FaultKind.LIMIT, f"more than {NODES} containers and objects")
        self.stack.append(value)

    # Objects

    def named(self, module: str, name: str) -> Global:
        """A global by its name; it is never looked up."""
        if len(module) > limits.NAME_BYTES or len(name) > limits.NAME_BYTES:
            raise Stopped(FaultKind.LIMIT, "the name of a global is too long")
        known = self.names.get((module, name))
        if known is None:
            known = self.names[(module, name)] = Global(module, name)
        return known

    def call(self, function: object, args: object, kwargs: object = None) -> object:
        """Note a call as a node. Dicts of the standard library and encoded bytes become what they are."""
        if not isinstance(args, tuple):
            raise malformed("arguments that are no tuple")
        if isinstance(function, Global):
            key = (function.module, function.name)
            if key in _DICTS:
                return self.mapping(args)
            if key == _ENCODE and len(args) == 2 and isinstance(args[0], str) and args[1] in ("latin1", "latin-1"):
                return self.encoded(args[0])
            if key in _RECONSTRUCTORS and args:
                return Call(args[0])
        return Call(function, args, kwargs)

    def encoded(self, text: str) -> bytes:
        """The bytes of ``_codecs.encode(text, "latin1")``, as protocol 2 writes bytes."""
        # A text in the memo may be encoded over and over: no more bytes than the pickle itself has.
        self.encoded_bytes += len(text)
        if self.encoded_bytes > len(self.data):
            raise Stopped(FaultKind.LIMIT, "more encoded bytes than the pickle is long")
        try:
            value = text.encode("latin-1")
        except UnicodeEncodeError:
            raise malformed("text that is not latin-1") from None
        for known, offset, length in self.recent:
            if known is text:
                self.places[id(value)] = Place(value, offset, length, length != len(value))
        return value

    def refer(self, value: object) -> None:
        """Put a persistent id (for torch: a storage) on the stack."""
        reference = PersistentId(value)
        self.persistent.append(reference)
        self.node(reference)

    def mapping(self, args: tuple[object, ...]) -> dict[object, object]:
        """A dict from its constructor's pairs."""
        made: dict[object, object] = {}
        for arg in args:
            pairs = list(arg.items()) if isinstance(arg, dict) else arg if isinstance(arg, list) else []
            self.nodes += len(pairs)
            if self.nodes > NODES:
                raise Stopped(FaultKind.LIMIT, f"more than {NODES} containers and objects")
            for pair in pairs:
                if isinstance(pair, list | tuple) and len(pair) == 2:
                    made[plain_key(pair[0])] = pair[1]
        return made

    def set_items(self, target: object, pairs: list[object]) -> None:
        """Keys and values, by turns, for a dict or for an object that takes items."""
        if len(pairs) % 2:
            raise malformed("a key without a value")
        if isinstance(target, Call):
            if target.items is None:
                target.items = {}
            target = target.items
        if not isinstance(target, dict):
            raise malformed("items for what is no dict")
        for index in range(0, len(pairs), 2):
            target[plain_key(pairs[index])] = pairs[index + 1]

    def append(self, target: object, values: list[object]) -> None:
        """More values for a list or for an object that takes them."""
        if isinstance(target, Call):
            if target.appended is None:
                target.appended = []
            target = target.appended
        if not isinstance(target, list):
            raise malformed("appended to what is no list")
        target.extend(values)

    def build(self) -> None:
        """Give the top of the stack to the object below as its state."""
        state = self.pop()
        target = self.top()
        if isinstance(target, Call):
            target.state = state
        elif not isinstance(target, dict | list):
            raise malformed("state for what has none")

    def put(self, index: int) -> None:
        """Remember the top of the stack."""
        self.memo[index] = self.top()

    def get(self, index: int) -> None:
        """Bring back what was remembered."""
        if index not in self.memo:
            raise malformed(f"memo {index} was never filled")
        self.stack.append(self.memo[index])

    def long(self, length: int) -> None:
        """A number of ``length`` bytes, two's complement, little-endian."""
        if length > INT_BYTES or length < 0:
            raise Stopped(FaultKind.LIMIT, f"a number of {length} bytes")
        self.stack.append(int.from_bytes(self.take(length), "little", signed=True))

    def decimal(self, text: str) -> int:
        """A number that protocol 0 wrote in digits."""
        if len(text) > INT_BYTES:
            raise Stopped(FaultKind.LIMIT, "a number that is too long")
        try:
            return int(text.rstrip("L"), 0) if text.strip() else 0
        except ValueError:
            raise malformed("a number that is none") from None

    def old_string(self, raw: bytes) -> None:
        """A string of Python 2."""
        # A str of Python 2: names are ASCII, anything else is binary.
        self.stack.append(raw.decode("ascii") if raw.isascii() else raw)
