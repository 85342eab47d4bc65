"""What torch.save wrote before 1.6, and still writes on request: five pickles, then the storages, no checksum at all.

Source: torch/serialization.py (``_legacy_save``). Behind the pickles follow, for each key of the fifth in order, the
number of elements (int64, little endian) and the raw elements, without padding; nothing marks the end.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from rescue_tui.checkpoints.model import Head, Options, Proof, Reading, Verdict
from rescue_tui.checkpoints.pickles import FaultKind, Walk, walk
from rescue_tui.checkpoints.source import EndOfBytes, Source, UnreadableBytes
from rescue_tui.checkpoints.torch_blocks import (
    FindingSink,
    PicklePlace,
    StoragePlace,
    check_views,
    entries,
    names_by_storage,
)
from rescue_tui.checkpoints.torch_objects import Objects, StorageRef, collect, some
from rescue_tui.checkpoints.torch_payload import pickle_at
from rescue_tui.checkpoints.zeros import PayloadSpan, inspect_zeros
from rescue_tui.core.finding import Severity

_FORMAT = "torch-legacy"
_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_COUNT = struct.Struct("<q")
_PICKLES = ("magic number", "protocol version", "system information", "object", "list of storages")
_OBJECT, _KEYS = 3, 4
_FIRST_BYTES = 64


class _Stored(NamedTuple):
    """A storage in the file: where its elements begin, how many bytes they should have, and how many are there."""

    offset: int
    length: int
    present: int


def matches(head: Head) -> bool:
    """A pickle of the magic number, whatever its protocol."""
    return walk(head.first[:_FIRST_BYTES]).root == _MAGIC


def read(source: Source, options: Options) -> Reading:
    """Judge a legacy file. It never proves more than that everything is there and well formed."""
    del options
    return _Judge(source).reading()


class _Judge:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.sink = FindingSink(source)
        self.objects = Objects()
        self.names: dict[str, tuple[str, ...]] = {}
        self.stored: dict[str, _Stored] = {}
        self.big_endian = False
        self.pickles_end = 0
        self.tree: object = None

    def reading(self) -> Reading:
        walks: list[Walk] = []
        begins: list[int] = []
        at = 0
        for part in _PICKLES:
            outcome = self._pickle(at, part)
            if outcome is None:
                break
            walks.append(outcome)
            begins.append(at)
            at += outcome.end_offset
        self._header(walks)
        if len(walks) > _OBJECT:
            outcome = walks[_OBJECT]
            self.objects = collect(outcome)
            self.tree = outcome.root
            self.names = names_by_storage(self.objects)
            self.sink.take(self.objects.findings)
            self.pickles_end = at
            if len(walks) == len(_PICKLES):
                self._storages(walks[_KEYS].root, at)
        return self._finish(begins[_OBJECT] if len(begins) > _OBJECT else 0)

    def _pickle(self, at: int, part: str) -> Walk | None:
        try:
            outcome = pickle_at(self.source, at)
        except EndOfBytes:
            outcome = walk(b"")
        fault = outcome.fault
        if fault is None:
            return outcome
        if fault.kind is FaultKind.CUT:
            self.sink.error("pickle-cut", Verdict.INCOMPLETE, f"The file ends within the pickle of the {part}.", at,
                            max(0, self.source.size_bytes - at))
        elif fault.kind is FaultKind.LIMIT:
            self.sink.error("pickle-limit", Verdict.INCOMPLETE, f"The pickle of the {part} can't be walked to its end: "
                            f"{fault.reason}.", at + fault.offset, 1)
        else:
            self.sink.error("pickle-malformed", Verdict.CORRUPT, f"The pickle of the {part} is none to its end: "
                            f"{fault.reason}.", at + fault.offset, 1)
        return None

    def _header(self, walks: list[Walk]) -> None:
        roots = [outcome.root for outcome in walks]
        if roots and roots[0] != _MAGIC:
            self.sink.error("magic", Verdict.CORRUPT, "The magic number is wrong.", 0, walks[0].end_offset)
        if len(roots) > 1 and roots[1] != _PROTOCOL:
            self.sink.error("protocol", Verdict.CORRUPT, f"The protocol is not {_PROTOCOL}.", walks[0].end_offset,
                            walks[1].end_offset)
        if len(roots) > 2:
            information = roots[2]
            little = information.get("little_endian") if isinstance(information, dict) else None
            if not isinstance(little, bool):
                self.sink.error("system-information", Verdict.CORRUPT, "The system information tells no byte order.")
            self.big_endian = little is False

    def _storages(self, keys: object, at: int) -> None:
        declared = self.objects.storages
        listed = [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else []
        if not isinstance(keys, list) or len(listed) != len(keys) or len(set(listed)) != len(listed):
            self.sink.error("storage-list", Verdict.CORRUPT, "The list of storages is none.", tensors=self._all())
            return
        absent = tuple(key for key in declared if key not in set(listed))
        if absent:
            hit = self._hit(absent)
            self.sink.error("storage-missing", Verdict.CORRUPT, f"{len(absent)} storages of the object are not in the "
                            f"list of storages: {some(hit)} lost.", tensors=hit)
        extra = tuple(key for key in listed if key not in declared)
        if extra:
            self.sink.error("storage-extra", Verdict.CORRUPT, f"{len(extra)} listed storages belong to no object.")
        for index, key in enumerate(listed):
            known = declared.get(key)
            if known is None or known.size_bytes is None:
                rest = self._hit(tuple(listed[index:]))
                self.sink.error("storage-unknown", Verdict.CORRUPT, "The size of a storage is unknown, so what follows "
                                f"can't be placed: {some(rest)}.", at, self.source.size_bytes - at, rest)
                return
            at = self._storage(known, at, tuple(listed[index:]))
            if at < 0:
                return
        left = self.source.size_bytes - at
        if left > 0:
            self.sink.error("trailing-bytes", Verdict.CORRUPT, f"{left} bytes follow the last storage.", at, left)

    def _storage(self, storage: StorageRef, at: int, following: tuple[str, ...]) -> int:
        """Place one storage; the offset behind it, or -1 where the file ends within."""
        length = storage.size_bytes or 0
        hit = self.names.get(storage.key, ())
        try:
            count = _COUNT.unpack(self.source.read_at(at, _COUNT.size))[0]
        except EndOfBytes:
            count = None
        except UnreadableBytes as error:
            self.sink.error("unreadable", Verdict.INCOMPLETE, f"The element count of {some(hit)} can't be read: "
                            f"{error.reason}.", at, _COUNT.size, hit)
            count = storage.count
        begin = at + _COUNT.size
        left = max(0, self.source.size_bytes - begin)
        if count is not None and count != storage.count:
            # The object's pickle tells where the next one is; a lone wrong count hits nothing else.
            self.sink.error("storage-count", Verdict.CORRUPT, f"The storage of {some(hit)} says that it has {count} "
                            f"elements, the object says {storage.count}.", at, _COUNT.size, hit)
        if left < length or count is None:
            self.stored[storage.key] = _Stored(begin, length, left)
            self.sink.error("storage-cut", Verdict.INCOMPLETE, f"The file ends inside the storage of {some(hit)}: "
                            f"{left} of {length} bytes are there.", begin, left, hit)
            rest = self._hit(following[1:])
            if rest:
                self.sink.error("storage-missing", Verdict.INCOMPLETE, f"The file ends before {some(rest)}.",
                                tensors=rest)
            return -1
        self.stored[storage.key] = _Stored(begin, length, length)
        return begin + length

    def _hit(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for key in keys for name in self.names.get(key, ()))

    def _all(self) -> tuple[str, ...]:
        return tuple(tensor.name for tensor in self.objects.tensors)

    def _finish(self, pickle_begin: int) -> Reading:
        counts_wrong = {name for finding in self.sink.found if finding.code in ("storage-count", "unreadable")
                        for name in finding.tensors}
        spans = [PayloadSpan(item.offset, item.present, self.names.get(key, (key,)))
                 for key, item in self.stored.items() if item.present]
        # The pickles count as payload: storages that are all zero between right counts are zero by right.
        spans.append(PayloadSpan(0, self.pickles_end, ("the pickled object",)))
        report = inspect_zeros(self.source, spans, self.sink.shift)
        self.sink.take(report.findings)
        bad = check_views(self.objects, self.sink) | report.damaged | counts_wrong
        places = {key: StoragePlace(item.offset + self.sink.shift, item.present, Proof.UNVERIFIABLE)
                  for key, item in self.stored.items()}
        tensors = entries(self.objects, places, PicklePlace(pickle_begin + self.sink.shift, Proof.UNVERIFIABLE),
                          self.source.name, bad, self.big_endian)
        if not any(finding.verdict for finding in self.sink.found):
            self.sink.add(Severity.INFO, "no-checksum", "The legacy format has no checksum: nothing proves its bytes.")
        return Reading(_FORMAT, tuple(self.sink.found), tensors, False, self.objects.values, self.objects.step,
                       (self.source.name,), sum(item.present for item in self.stored.values()), self.tree)
