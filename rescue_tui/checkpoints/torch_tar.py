"""What torch.save wrote up to 0.1.9: a tar of sys_info, pickle, storages and tensors. It has no checksum of payloads.

Source: torch/serialization.py (``legacy_load``). ``storages``: a pickle of their number, then for each a pickle of
(key, location, class), an int64 count and the elements. ``tensors``: a pickle of their number, then for each a pickle
of (key, storage key, class), int32 dimensions, 4 bytes, int64 sizes, int64 strides, int64 offset. In ``pickle`` a
persistent id is such a tensor key. tar: POSIX.1-1988 ustar.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from rescue_tui.checkpoints.limits import TENSORS
from rescue_tui.checkpoints.model import Head, Options, Proof, Reading, Verdict
from rescue_tui.checkpoints.pickles import FaultKind, Global, PersistentId, Walk, paths
from rescue_tui.checkpoints.source import EndOfBytes, Source, UnreadableBytes, Window
from rescue_tui.checkpoints.torch_blocks import (
    FindingSink,
    PicklePlace,
    StoragePlace,
    check_views,
    entries,
    names_by_storage,
)
from rescue_tui.checkpoints.torch_dtypes import storage_type
from rescue_tui.checkpoints.torch_objects import (
    Objects,
    StorageRef,
    TensorRef,
    collect,
    dotted_name,
    inside,
    most_paths,
    some,
)
from rescue_tui.checkpoints.torch_payload import pickle_at
from rescue_tui.checkpoints.zeros import PayloadSpan, inspect_zeros
from rescue_tui.core.finding import Severity

_FORMAT = "torch-legacy"
_BLOCK = 512
# POSIX ustar: name, mode, uid, gid, size, mtime, checksum, type, and what we don't look at.
_HEADER = struct.Struct("<100s8s8s8s12s12s8sc355s")
_CHECKSUM_AT, _CHECKSUM_BYTES = 148, 8
_MEMBERS = ("sys_info", "pickle", "storages", "tensors")
_COUNT = struct.Struct("<q")
_DIMENSIONS = struct.Struct("<i4x")
_MOST_MEMBERS = 64
_MOST_DIMENSIONS = 64


class _Member(NamedTuple):
    name: str
    offset: int
    length: int


class _Broken(Exception):
    def __init__(self, verdict: Verdict, summary: str, offset: int) -> None:
        super().__init__(summary)
        self.verdict = verdict
        self.summary = summary
        self.offset = offset


def _member(block: bytes, at: int) -> _Member | None:
    if len(block) != _BLOCK:
        return None
    name, _, _, _, size, _, checksum, _, _ = _HEADER.unpack(block)
    blank = block[:_CHECKSUM_AT] + b" " * _CHECKSUM_BYTES + block[_CHECKSUM_AT + _CHECKSUM_BYTES:]
    told, length = _octal(checksum), _octal(size)
    if told is None or length is None or told != sum(blank):
        return None
    path = name.partition(b"\x00")[0].decode("utf-8", "surrogateescape").removeprefix("./")
    return _Member(path, at + _BLOCK, length)


def _key(value: object) -> str:
    """Keys are numbers, or numbers as text; anything else is one key that nothing refers to."""
    if isinstance(value, int) and abs(value) < 1 << 64:
        return str(value)
    return value if isinstance(value, str) else ""


def _octal(raw: bytes) -> int | None:
    digits = raw.strip(b" \x00")
    return int(digits, 8) if digits and all(0x30 <= digit <= 0x37 for digit in digits) else None


def matches(head: Head) -> bool:
    """A tar whose first member is one of the four."""
    first = _member(head.first[:_BLOCK], 0)
    return first is not None and first.name in _MEMBERS


def read(source: Source, options: Options) -> Reading:
    """Judge a file of the tar era."""
    del options
    return _Judge(source).reading()


class _Judge:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.sink = FindingSink(source)
        self.members: dict[str, _Member] = {}
        self.storages: dict[str, StorageRef] = {}
        self.places: dict[str, StoragePlace] = {}
        self.spans: dict[str, tuple[int, int]] = {}
        self.views: dict[str, TensorRef] = {}
        self.parts: dict[str, tuple[str, int]] = {}  # a storage that is a part of another: that one, first element
        self.lost: list[str] = []

    def reading(self) -> Reading:
        self._list()
        for name, step in (("storages", self._read_storages), ("tensors", self._read_tensors)):
            if name in self.members:
                try:
                    step(self.members[name])
                except _Broken as broken:
                    self.sink.error(f"{name}-broken", broken.verdict, broken.summary, broken.offset)
        root = self._walk("pickle")
        objects = self._objects(root) if root is not None and root.fault is None else Objects()
        names = names_by_storage(objects)
        for key, place in self.places.items():
            offset, length = self.spans[key]
            if place.length < length:
                hit = names.get(key, ())
                self.sink.error("storage-cut", Verdict.INCOMPLETE, f"The file ends inside the storage of {some(hit)}.",
                                offset, place.length, hit)
        if self.lost:
            self.sink.error("tensor-missing", Verdict.INCOMPLETE, f"{some(tuple(self.lost))} are described nowhere.",
                            tensors=self.lost)
        report = inspect_zeros(self.source, [PayloadSpan(self.spans[key][0], place.length, names.get(key, (key,)))
                                             for key, place in self.places.items()], self.sink.shift)
        self.sink.take(report.findings)
        bad = check_views(objects, self.sink) | report.damaged
        information = self._walk("sys_info")
        little = information.root.get("little_endian") if information and isinstance(information.root, dict) else True
        begin = self.members["pickle"].offset if "pickle" in self.members else 0
        tensors = entries(objects, self.places, PicklePlace(begin + self.sink.shift, Proof.UNVERIFIABLE),
                          self.source.name, bad, little is False)
        if not any(finding.verdict for finding in self.sink.found):
            self.sink.add(Severity.INFO, "no-checksum", "This old format has no checksum: nothing proves its bytes.")
        return Reading(_FORMAT, tuple(self.sink.found), tensors, False, objects.values, objects.step,
                       (self.source.name,), sum(place.length for place in self.places.values()),
                       root.root if root is not None else None)

    def _list(self) -> None:
        at = 0
        ended = False
        while at + _BLOCK <= self.source.size_bytes and len(self.members) < _MOST_MEMBERS:
            try:
                block = self.source.read_at(at, _BLOCK)
            except (UnreadableBytes, EndOfBytes) as error:
                self.sink.error("unreadable", Verdict.INCOMPLETE, f"A header can't be read: {error}.", at, _BLOCK)
                return
            if not block.strip(b"\x00"):
                ended = True
                break
            member = _member(block, at)
            if member is None:
                self.sink.error("tar-header", Verdict.CORRUPT, "A header of the tar is damaged.", at, _BLOCK)
                return
            self.members.setdefault(member.name, member)
            at = member.offset + -(-member.length // _BLOCK) * _BLOCK
        missing = tuple(name for name in _MEMBERS if name not in self.members)
        if missing:
            self.sink.error("member-missing", Verdict.INCOMPLETE, f"{some(missing)} is missing.")
        if not ended:
            self.sink.error("tar-cut", Verdict.INCOMPLETE, "The tar ends without its end blocks.",
                            min(at, self.source.size_bytes), max(0, self.source.size_bytes - at))

    def _window(self, member: _Member) -> Window:
        return Window(self.source, member.offset,
                      max(0, min(member.length, self.source.size_bytes - member.offset)))

    def _walk(self, name: str) -> Walk | None:
        member = self.members.get(name)
        if member is None:
            return None
        outcome = pickle_at(self._window(member), 0)
        if outcome.fault is not None:
            cut = member.offset + member.length > self.source.size_bytes
            self.sink.error("pickle-malformed", Verdict.INCOMPLETE if cut else Verdict.CORRUPT,
                            f"The pickle in {name} is none to its end: {outcome.fault.reason}.",
                            member.offset + outcome.fault.offset, 1)
        return outcome

    def _pickle(self, window: Window, at: int, what: str) -> tuple[object, int]:
        outcome = pickle_at(window, at) if at <= window.size_bytes else None
        if outcome is None or outcome.fault is not None:
            cut = outcome is None or (outcome.fault is not None and outcome.fault.kind is FaultKind.CUT)
            raise _Broken(Verdict.INCOMPLETE if cut else Verdict.CORRUPT,
                          f"The {what} end at a pickle that is none.", window.start + at)
        return outcome.root, at + outcome.end_offset

    def _number(self, window: Window, at: int, layout: struct.Struct, what: str) -> int:
        try:
            return int(layout.unpack(window.read_at(at, layout.size))[0])
        except (EndOfBytes, UnreadableBytes):
            raise _Broken(Verdict.INCOMPLETE, f"The {what} end within a number.", window.start + at) from None

    def _total(self, window: Window, what: str) -> tuple[int, int]:
        count, at = self._pickle(window, 0, what)
        if not isinstance(count, int) or not 0 <= count <= TENSORS:
            raise _Broken(Verdict.CORRUPT, f"The number of {what} is none.", window.start)
        return count, at

    def _read_storages(self, member: _Member) -> None:
        window = self._window(member)
        count, at = self._total(window, "storages")
        for _ in range(count):
            described, at = self._pickle(window, at, "storages")
            if not isinstance(described, tuple) or len(described) != 3:
                raise _Broken(Verdict.CORRUPT, "A storage is not described as one.", window.start + at)
            key, location, kind = described
            elements = self._number(window, at, _COUNT, "storages")
            at += _COUNT.size
            element = storage_type(kind)
            if element is None or elements < 0:
                raise _Broken(Verdict.CORRUPT, "A storage has no known type or a negative size.", window.start + at)
            length = elements * element.item_bytes
            name = _key(key)
            self.storages[name] = StorageRef(name, element, elements, location if isinstance(location, str) else "")
            present = max(0, min(length, window.size_bytes - at))
            self.spans[name] = (window.start + at, length)
            self.places[name] = StoragePlace(window.start + at + self.sink.shift, present, Proof.UNVERIFIABLE)
            at += length
            if present < length:
                return
        views, _ = self._pickle(window, at, "storages")
        for view in views if isinstance(views, list) else ():
            if isinstance(view, tuple) and len(view) == 4 and isinstance(view[2], int) and view[2] >= 0:
                self.parts[_key(view[0])] = (_key(view[1]), view[2])

    def _read_tensors(self, member: _Member) -> None:
        window = self._window(member)
        count, at = self._total(window, "tensors")
        for _ in range(count):
            described, at = self._pickle(window, at, "tensors")
            if not isinstance(described, tuple) or len(described) != 3 or not isinstance(described[2], Global):
                raise _Broken(Verdict.CORRUPT, "A tensor is not described as one.", window.start + at)
            key, storage_key, _ = described
            dimensions = self._number(window, at, _DIMENSIONS, "tensors")
            at += _DIMENSIONS.size
            if not 0 <= dimensions <= _MOST_DIMENSIONS:
                raise _Broken(Verdict.CORRUPT, f"A tensor of {dimensions} dimensions.", window.start + at)
            numbers = []
            for _ in range(2 * dimensions + 1):
                numbers.append(self._number(window, at, _COUNT, "tensors"))
                at += _COUNT.size
            outer, first = self.parts.get(_key(storage_key), (_key(storage_key), 0))
            storage = self.storages.get(outer)
            if min(numbers) < 0:
                raise _Broken(Verdict.CORRUPT, "A tensor with negative sizes.", window.start + at)
            if storage is not None and storage.kind is not None:
                self.views[_key(key)] = TensorRef(
                    "", storage.kind, tuple(numbers[:dimensions]), tuple(numbers[dimensions:-1]), numbers[-1] + first,
                    storage)

    def _whole(self, storage: StorageRef | None) -> TensorRef | None:
        if storage is None or storage.kind is None:
            return None
        return TensorRef("", storage.kind, (storage.count,), (1,), 0, storage)

    def _objects(self, root: Walk) -> Objects:
        tensors: list[TensorRef] = []
        for path, node in paths(root.root, most=most_paths(root), inside=inside):
            if isinstance(node, PersistentId) and isinstance(node.value, str | int):
                name = dotted_name(path)
                view = self.views.get(_key(node.value)) or self._whole(self.storages.get(_key(node.value)))
                if view is None:
                    self.lost.append(name)
                else:
                    tensors.append(TensorRef(name, view.kind, view.shape, view.strides, view.offset, view.storage))
        found = collect(root)
        return Objects(tuple(tensors), self.storages, found.values, found.step, found.findings)
