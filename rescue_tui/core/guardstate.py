"""What the kernel's write guard tells: ``/proc/stasis_guard/state`` into frozen values. Source: image/guard.

A line is ``word key=value ...``; text is percent-escaped by the kernel. Words and keys that are not known here are
passed over, so that a newer module can say more; what is needed and missing is a FormatError, since a guard whose state
can't be read must not be taken for one that is armed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rescue_tui.core.errors import FormatError
from rescue_tui.core.text import printable

ARMED, PARTIAL, ABSENT, UNKNOWN = "armed", "partial", "absent", "unknown"
# The kinds of refused attempts that are counted for each disk, in the order in which they are shown.
DISK_KINDS = ("bio", "discard", "command", "open", "ioctl")
# What the layers of the module do, by their names there, in one sentence each.
LAYER_WORDS: Mapping[str, str] = {
    "bio": "Refuses writes, discards and zone operations of the block layer, whoever sends them.",
    "nvme-command": "Judges every NVMe command of every transport by its opcode.",
    "passthrough": "Judges raw SCSI, ATA and other commands before they are queued.",
    "open": "Refuses to open a protected disk for writing.",
    "ioctl": "Refuses ioctls and raw commands of programs that are not known to be harmless.",
    "lockdown": "Keeps /dev/mem, raw ports, kexec and hibernation closed.",
    "modules": "Loads modules from the running image only.",
    "read-only-flag": "Sets the read-only flag of a disk before anybody can open it.",
}
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_DEV = re.compile(r"([0-9]{1,10}):([0-9]{1,10})")
_NUMBER = re.compile(r"[0-9]{1,20}")
_OPCODE = re.compile(r"0x[0-9A-Fa-f]{1,16}")
_HINT = "The kernel module and Stasis are of different versions: take both from one image."


@dataclass(frozen=True, slots=True)
class LayerState:
    """One layer of the guard: ``state`` is armed, partial (something is not covered), absent or unknown.

    ``refused`` counts the attempts that the layer refused; None when it does not count.
    """

    name: str
    state: str
    detail: str
    refused: int | None = None

    @property
    def armed(self) -> bool:
        """True when nothing is missing."""
        return self.state == ARMED


@dataclass(frozen=True, slots=True)
class RefusedAttempt:
    """The last attempt that the kernel refused on a device: when, what, and which process made it."""

    at: str
    device: str
    what: str
    opcode: int
    pid: int
    process: str


@dataclass(frozen=True, slots=True)
class KernelLayer:
    """One layer of the module and how many attempts it refused since it was loaded."""

    name: str
    armed: bool
    refused: int


@dataclass(frozen=True, slots=True)
class KernelHook:
    """A function of the kernel that the module has a hook in."""

    name: str
    armed: bool


@dataclass(frozen=True, slots=True)
class KernelDisk:
    """A disk as the module knows it. ``refused`` counts by kind (see DISK_KINDS), for this attachment.

    ``flush_kept``: flushes that were answered without being sent, since nothing had been written.
    """

    dev: tuple[int, int]
    diskseq: int
    name: str
    protected: bool
    granted: bool
    read_only: bool
    refused: Mapping[str, int]
    flush_kept: int = 0

    @property
    def refused_total(self) -> int:
        """All kinds together."""
        return sum(self.refused.values())


@dataclass(frozen=True, slots=True)
class LastRefusal:
    """A refused attempt with the process that made it; ``comm`` is printable. ``diskseq`` is 0 for no disk."""

    dev: tuple[int, int]
    diskseq: int
    what: str
    opcode: int
    pid: int
    comm: str
    age_ms: int


@dataclass(frozen=True, slots=True)
class KernelGuardState:
    """The whole file. ``admin`` counts refused admin commands that belong to no disk, by controller."""

    version: int
    armed: bool
    sealed: bool
    kernel: str
    layers: tuple[KernelLayer, ...]
    hooks: tuple[KernelHook, ...]
    disks: tuple[KernelDisk, ...]
    last: tuple[LastRefusal, ...] = ()
    admin: Mapping[str, int] = field(default_factory=dict)
    other: Mapping[str, int] = field(default_factory=dict)

    def disk(self, dev: tuple[int, int], diskseq: int) -> KernelDisk | None:
        """The entry of one attachment."""
        return next((disk for disk in self.disks if (disk.dev, disk.diskseq) == (dev, diskseq)), None)

    @property
    def loose_hooks(self) -> tuple[str, ...]:
        """Hooks that are not in place."""
        return tuple(hook.name for hook in self.hooks if not hook.armed)

    def refused_by_kind(self) -> Mapping[str, int]:
        """Every kind that is counted, the disks that are attached now together; admin commands are commands."""
        total = {kind: sum(disk.refused.get(kind, 0) for disk in self.disks) for kind in DISK_KINDS}
        total["command"] += sum(self.admin.values())
        return {**total, **self.other}


def parse_guard_state(text: str) -> KernelGuardState:
    """The state from the file's text. FormatError says which line lacks what."""
    heads: list[_Line] = []
    layers: list[KernelLayer] = []
    hooks: list[KernelHook] = []
    disks: list[KernelDisk] = []
    last: list[LastRefusal] = []
    admin: dict[str, int] = {}
    other: dict[str, int] = {}
    for line in _lines(text):
        match line.word:
            case "guard":
                heads.append(line)
            case "layer":
                layers.append(KernelLayer(line.text("name"), line.flag("armed"), line.number("refused")))
            case "hook":
                hooks.append(KernelHook(line.text("name"), line.flag("armed")))
            case "disk":
                disks.append(_disk(line))
            case "last":
                last.append(_last(line))
            case "admin":
                name = line.text("name")
                admin[name] = admin.get(name, 0) + line.number("command")
            case "other":
                other.update(line.numbers())
    if len(heads) != 1:
        raise FormatError("The write guard's state has no line that says what it is.", _HINT, printable(text))
    head = heads[0]
    if not layers:
        raise FormatError("The write guard names no layer.", _HINT, printable(text))
    return KernelGuardState(head.number("version"), head.flag("armed"), head.flag("sealed"), head.text("kernel"),
                            tuple(layers), tuple(hooks), tuple(disks), tuple(last), admin, other)


def unescape(value: str) -> str:
    """Resolve ``%XX`` and make what comes out printable; a percent sign that escapes nothing stays."""
    raw = value.encode("utf-8", "surrogatepass")
    return printable(_ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), raw))


@dataclass(frozen=True, slots=True)
class _Line:
    word: str
    values: Mapping[str, str]
    whole: str

    def text(self, key: str) -> str:
        return unescape(self._value(key))

    def number(self, key: str) -> int:
        return self._matched(key, _NUMBER, 10)

    def opcode(self, key: str) -> int:
        return self._matched(key, _OPCODE, 16)

    def flag(self, key: str) -> bool:
        value = self._value(key)
        if value not in ("0", "1"):
            raise self._wrong(key)
        return value == "1"

    def dev(self) -> tuple[int, int]:
        found = _DEV.fullmatch(self._value("dev"))
        if found is None:
            raise self._wrong("dev")
        return int(found[1]), int(found[2])

    def numbers(self) -> dict[str, int]:
        """Every value that is a number, by its key."""
        return {unescape(key): int(value) for key, value in self.values.items() if _NUMBER.fullmatch(value)}

    def _value(self, key: str) -> str:
        value = self.values.get(key)
        if value is None:
            raise self._wrong(key)
        return value

    def _matched(self, key: str, pattern: re.Pattern[str], base: int) -> int:
        value = self._value(key)
        if pattern.fullmatch(value) is None:
            raise self._wrong(key)
        return int(value, base)

    def _wrong(self, key: str) -> FormatError:
        return FormatError(f"A line of the write guard's state has no {key} that can be read: {self.word}.", _HINT,
                           printable(self.whole))


def _lines(text: str) -> Iterator[_Line]:
    for whole in text.split("\n"):
        word, *pairs = whole.split(" ")
        values: dict[str, str] = {}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if equals:
                values.setdefault(key, value)
        if word:
            yield _Line(word, values, whole)


def _disk(line: _Line) -> KernelDisk:
    return KernelDisk(
        line.dev(), line.number("diskseq"), line.text("name"), line.flag("protected"), line.flag("granted"),
        line.flag("read_only"), {kind: line.number(kind) for kind in DISK_KINDS}, line.number("flush_kept"))


def _last(line: _Line) -> LastRefusal:
    return LastRefusal(line.dev(), line.number("diskseq"), line.text("what"), line.opcode("opcode"), line.number("pid"),
                       line.text("comm"), line.number("age_ms"))
