"""Records of a zip archive as PyTorch writes it: the central directory, and each local header compared with it.

Layouts: PKWARE APPNOTE 6.3.10, 4.3.7 (local header), 4.3.9 (descriptor), 4.3.12 (central directory), 4.3.14 to 4.3.16
(end records), 4.5.3 (zip64). What PyTorch makes of them: caffe2/serialize/inline_container.cc. Sizes and CRC are
zero in the local header and follow in a descriptor; payloads begin at multiples of 64 by an extra field "FB" of "Z"
bytes; the end is always in zip64 form, 98 bytes in all.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from rescue_tui.checkpoints.limits import NAME_BYTES, TENSORS
from rescue_tui.checkpoints.model import Verdict
from rescue_tui.checkpoints.source import CHUNK_BYTES, EndOfBytes, Source, UnreadableBytes

LOCAL_MAGIC = b"PK\x03\x04"
CENTRAL_MAGIC = b"PK\x01\x02"
DESCRIPTOR_MAGIC = b"PK\x07\x08"
END_MAGIC = b"PK\x05\x06"
_SIGNATURE = b"PK"
END64_MAGIC = b"PK\x06\x06"
_LOCATOR_MAGIC = b"PK\x06\x07"
LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
DESCRIPTOR = struct.Struct("<4s3I")
DESCRIPTOR64 = struct.Struct("<4sI2Q")
_EXTRA = struct.Struct("<2H")
_U64 = struct.Struct("<Q")
_ZIP64_ID, _PADDING_ID = 0x0001, 0x4246  # "FB"
_FULL32, _FULL16 = 0xFFFFFFFF, 0xFFFF
HAS_DESCRIPTOR = 0x0008
STORED, DEFLATED = 0, 8
ALIGNMENT = 64
END_AT = _END64.size + _LOCATOR.size  # of the classic end record within the tail
TAIL_BYTES = END_AT + _END.size
_SEARCH_BYTES = _END.size + 0xFFFF
_DIRECTORY_BYTES = 128 << 20


class LocalHeader(NamedTuple):
    """A local header; ``payload`` is where the stored bytes begin."""

    name: str
    flags: int
    method: int
    crc: int
    stored_bytes: int
    size_bytes: int
    payload: int
    padded: bool  # the padding is what PyTorch writes, or there is none


class Descriptor(NamedTuple):
    """What follows a payload; ``length`` is its own."""

    crc: int
    stored_bytes: int
    size_bytes: int
    length: int


class Trouble(NamedTuple):
    """A broken invariant of the container; ``records`` are the names of those it concerns."""

    code: str
    summary: str
    offset: int
    length: int
    records: tuple[str, ...] = ()
    verdict: Verdict | None = Verdict.CORRUPT


@dataclass(frozen=True, slots=True)
class Record:
    """One record. ``crc`` is None where none was found; ``present`` is how many of its stored bytes are there.

    ``end`` is behind the descriptor. ``clear`` is false where other records claim the same bytes.
    """

    name: str
    header: int
    payload: int
    stored_bytes: int
    size_bytes: int
    method: int
    crc: int | None
    present: int
    end: int
    clear: bool = True

    @property
    def whole(self) -> bool:
        """Whether all of its bytes are there."""
        return self.present == self.stored_bytes


class EndRecord(NamedTuple):
    """The end of an archive: where its directory lies in the source, where the archive begins, and its end.

    ``consistent``: its three parts (zip64 record, locator, classic record) tell the same.
    """

    entries: int
    directory: int
    directory_bytes: int
    begin: int
    end: int
    consistent: bool = True


@dataclass(frozen=True, slots=True)
class Archive:
    """The records of one archive in file order. ``directory`` tells whether a central directory lists them.

    ``begin`` may be negative: so many bytes are lost in front.
    """

    records: tuple[Record, ...]
    troubles: tuple[Trouble, ...]
    directory: bool
    begin: int
    end: int


def peek(source: Source, at: int, length: int) -> bytes:
    """Bytes that decide where to go on; empty where the file ends before, or the medium does not give them."""
    try:
        return source.read_at(at, length)
    except (EndOfBytes, UnreadableBytes):
        return b""


def local_header(source: Source, at: int) -> LocalHeader | None:
    """The local header at an offset, None if there is none, the file ends within or it can't be read."""
    fixed = peek(source, at, LOCAL.size)
    if not fixed:
        return None
    magic, _, flags, method, _, _, crc, stored, size, name_bytes, extra_bytes = LOCAL.unpack(fixed)
    if magic != LOCAL_MAGIC or not name_bytes or name_bytes > NAME_BYTES:
        return None
    rest = peek(source, at + LOCAL.size, name_bytes + extra_bytes)
    if not rest:
        return None
    padded = True
    for kind, value in _extras(rest[name_bytes:]):
        if kind == _ZIP64_ID:
            sizes = _u64s(value)
            if size == _FULL32 and sizes:
                size = sizes.pop(0)
            if stored == _FULL32 and sizes:
                stored = sizes.pop(0)
        elif kind == _PADDING_ID:
            padded = not value.strip(b"Z")
    return LocalHeader(_name(rest[:name_bytes]), flags, method, crc, stored, size, at + LOCAL.size + len(rest), padded)


def descriptor(source: Source, at: int, stored_bytes: int) -> Descriptor | None:
    """The descriptor at an offset, in 32 or 64 bits, if it tells this stored size."""
    for layout, other in ((DESCRIPTOR, DESCRIPTOR64), (DESCRIPTOR64, DESCRIPTOR)):
        raw = peek(source, at, layout.size)
        if not raw:
            continue
        magic, crc, stored, size = layout.unpack(raw)
        if magic != DESCRIPTOR_MAGIC:
            return None
        # The lower halves of 64 bits look like 32 bits whose second size is 0. What follows decides for no bytes.
        if stored == stored_bytes and (size or (not stored and peek(source, at + other.size, 2) != _SIGNATURE)):
            return Descriptor(crc, stored, size, layout.size)
    return None


def _name(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _extras(raw: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _EXTRA.size <= len(raw):
        kind, length = _EXTRA.unpack_from(raw, at)
        at += _EXTRA.size
        yield kind, raw[at:at + length]
        at += length


def _u64s(value: bytes) -> list[int]:
    return [number for (number,) in _U64.iter_unpack(value[:len(value) // _U64.size * _U64.size])]


def find_end(source: Source, limit: int, exact: bool = False) -> EndRecord | None:
    """The end record before ``limit``, at most 64 KiB before it, or just there if ``exact``.

    Only one that leads to something that can be a directory counts, so its magic within data does not.
    """
    for reach in (TAIL_BYTES, _SEARCH_BYTES):  # the wider one may meet bad sectors that are no concern of the tail
        length = min(limit, reach)
        tail = peek(source, limit - length, length)
        found = tail.rfind(END_MAGIC)
        while found >= 0:
            if not exact or found + _END.size == len(tail):
                end = _end_at(source, limit - length + found)
                if end is not None:
                    return end
            found = tail.rfind(END_MAGIC, 0, found)
        if exact:
            break
    return None


def end_behind(source: Source, directory: int) -> EndRecord | None:
    """The end record of the directory that begins there, wherever it ends."""
    at = directory
    while at < source.size_bytes and at - directory <= _DIRECTORY_BYTES:
        piece = peek(source, at, min(CHUNK_BYTES, source.size_bytes - at))
        found = piece.find(END_MAGIC)
        while found >= 0:
            end = _end_at(source, at + found)
            if end is not None and end.directory == directory:
                return end
            found = piece.find(END_MAGIC, found + 1)
        if not piece or at + len(piece) >= source.size_bytes:
            return None
        at += len(piece) - (len(END_MAGIC) - 1)
    return None


def _end_at(source: Source, at: int) -> EndRecord | None:
    classic = peek(source, at, _END.size)
    if not classic:
        return None
    _, disk, start_disk, here, entries, size, offset, comment = _END.unpack(classic)
    directory_end = at
    short = (entries, size, offset)
    consistent = disk == start_disk == 0 and here == entries
    record = at - _LOCATOR.size - _END64.size
    wide = peek(source, record, _END64.size + _LOCATOR.size) if record >= 0 else b""
    if wide.startswith(END64_MAGIC):
        directory_end = record
        _, _, _, _, disk, start_disk, here, entries, size, offset = _END64.unpack_from(wide)
        locator, _, located, _ = _LOCATOR.unpack_from(wide, _END64.size)
        full = (_FULL16, _FULL32, _FULL32)
        consistent = (consistent and here == entries and disk == start_disk == 0 and locator == _LOCATOR_MAGIC
                      and located == offset + size
                      and all(told in (value, most) for told, value, most
                              in zip(short, (entries, size, offset), full, strict=True)))
    elif _FULL32 in (size, offset) or entries == _FULL16:
        return None
    start = directory_end - size
    if start < 0 or (entries and peek(source, start, len(CENTRAL_MAGIC)) != CENTRAL_MAGIC):
        return None
    end = at + _END.size + comment
    return EndRecord(entries, start, size, start - offset, min(end, source.size_bytes),
                     consistent and end <= source.size_bytes)


class BrokenDirectory(Exception):
    """The directory contradicts itself; ``offset`` is where."""

    def __init__(self, summary: str, offset: int) -> None:
        super().__init__(summary)
        self.summary = summary
        self.offset = offset


class _Listed(NamedTuple):
    name: str
    flags: int
    method: int
    crc: int
    stored_bytes: int
    size_bytes: int
    header: int


def read_directory(source: Source, end: EndRecord) -> Archive:
    """Every record that the directory lists, compared with what lies at its place. Raises `BrokenDirectory`."""
    listed = sorted(_listed(source, end), key=lambda entry: entry.header)
    records: list[Record] = []
    troubles: list[Trouble] = []
    if not end.consistent:
        troubles.append(Trouble("end-record", "The records at the end contradict each other.",
                                end.directory + end.directory_bytes, end.end - end.directory - end.directory_bytes))
    seen: set[str] = set()
    for index, entry in enumerate(listed):
        if entry.name in seen:
            troubles.append(Trouble("duplicate-record", f"{entry.name} is listed twice.", entry.header, 0,
                                    (entry.name,)))
        seen.add(entry.name)
        following = listed[index + 1].header if index + 1 < len(listed) else end.directory
        records.append(_record(source, entry, following, end, troubles))
    return Archive(tuple(_placed(records, end, troubles)), tuple(troubles), True, end.begin, end.end)


def _listed(source: Source, end: EndRecord) -> Iterator[_Listed]:
    if end.directory_bytes > _DIRECTORY_BYTES or end.entries > TENSORS + ALIGNMENT:
        raise BrokenDirectory(f"The central directory is too large ({end.entries} records).", end.directory)
    if end.entries * _CENTRAL.size > end.directory_bytes:
        raise BrokenDirectory("The central directory is shorter than its number of records.", end.directory)
    raw = source.read_at(end.directory, end.directory_bytes)
    at = 0
    for _ in range(end.entries):
        if at + _CENTRAL.size > len(raw):
            raise BrokenDirectory("The central directory ends within a record.", end.directory + at)
        (magic, _, _, flags, method, _, _, crc, stored, size, name_bytes, extra_bytes, comment_bytes, _, _, _,
         header) = _CENTRAL.unpack_from(raw, at)
        name_at = at + _CENTRAL.size
        after = name_at + name_bytes + extra_bytes + comment_bytes
        if magic != CENTRAL_MAGIC or after > len(raw) or not name_bytes or name_bytes > NAME_BYTES:
            raise BrokenDirectory("The central directory holds what is no record.", end.directory + at)
        for kind, value in _extras(raw[name_at + name_bytes:name_at + name_bytes + extra_bytes]):
            if kind == _ZIP64_ID:
                numbers = _u64s(value)
                if size == _FULL32 and numbers:
                    size = numbers.pop(0)
                if stored == _FULL32 and numbers:
                    stored = numbers.pop(0)
                if header == _FULL32 and numbers:
                    header = numbers.pop(0)
        yield _Listed(_name(raw[name_at:name_at + name_bytes]), flags, method, crc, stored, size, end.begin + header)
        at = after
    if at != len(raw):
        raise BrokenDirectory("The central directory is longer than its records.", end.directory + at)


def _record(source: Source, entry: _Listed, following: int, end: EndRecord, troubles: list[Trouble]) -> Record:
    local = local_header(source, entry.header) if entry.header >= 0 else None
    name = entry.name
    if local is None or local.name != name:
        troubles.append(_unusable("local-header", f"The local header of {name} is destroyed", source,
                                  max(entry.header, 0), LOCAL.size, name))
        payload, after = _payload_before(source, entry, following, end)
    else:
        payload = local.payload
        told = (local.crc, local.stored_bytes, local.size_bytes)
        listed = (entry.crc, entry.stored_bytes, entry.size_bytes)
        if local.method != entry.method or local.flags != entry.flags or told not in ((0, 0, 0), listed):
            troubles.append(Trouble("local-header", f"The local header of {name} contradicts the directory.",
                                    entry.header, LOCAL.size, (name,)))
        if not local.padded:
            troubles.append(Trouble("padding", f"The padding before {name} is not what PyTorch writes.", entry.header,
                                    payload - entry.header, (name,), None))
        after = payload + entry.stored_bytes
        if entry.flags & HAS_DESCRIPTOR:
            told_after = descriptor(source, after, entry.stored_bytes)
            if told_after is None or (told_after.crc, told_after.size_bytes) != (entry.crc, entry.size_bytes):
                troubles.append(_unusable("descriptor", f"The descriptor behind {name} contradicts the directory",
                                          source, after, DESCRIPTOR.size, name))
                after = following
            else:
                after += told_after.length
    present = max(0, min(entry.stored_bytes, source.size_bytes - payload))
    return Record(name, entry.header, payload, entry.stored_bytes, entry.size_bytes, entry.method, entry.crc, present,
                  after)


def _unusable(code: str, summary: str, source: Source, at: int, length: int, name: str) -> Trouble:
    if at + length <= source.size_bytes and not peek(source, at, length):
        return Trouble("unreadable", f"{summary}: it can't be read.", at, length, (name,), Verdict.INCOMPLETE)
    return Trouble(code, f"{summary}.", at, length, (name,))


def _payload_before(source: Source, entry: _Listed, following: int, end: EndRecord) -> tuple[int, int]:
    """Where a record without a usable local header has its payload: right before its descriptor."""
    if entry.flags & HAS_DESCRIPTOR:
        for length in (DESCRIPTOR.size, DESCRIPTOR64.size):
            payload = following - length - entry.stored_bytes
            if payload >= 0 and descriptor(source, payload + entry.stored_bytes, entry.stored_bytes) is not None:
                return payload, following
    smallest = entry.header - end.begin + LOCAL.size + len(entry.name.encode("utf-8", "surrogateescape"))
    aligned = end.begin + -(-smallest // ALIGNMENT) * ALIGNMENT
    return max(aligned, 0), following


def _placed(records: list[Record], end: EndRecord, troubles: list[Trouble]) -> Iterator[Record]:
    """The records, with what lies between them and what overlaps noted."""
    expected = max(end.begin, 0)
    reach = expected
    for index, record in enumerate(records):
        clash = record.header < reach and index > 0
        if clash:
            troubles.append(Trouble("overlap", f"{record.name} lies over {records[index - 1].name}.",
                                    record.header, reach - record.header, (records[index - 1].name, record.name)))
        elif record.header > expected:
            troubles.append(Trouble("gap", f"{record.header - expected} bytes before {record.name} are no record's.",
                                    expected, record.header - expected, (record.name,)))
        outside = record.payload + record.stored_bytes > end.directory
        if outside and not clash:
            troubles.append(Trouble("overlap", f"{record.name} reaches into the central directory.", record.payload,
                                    record.stored_bytes, (record.name,)))
        before_next = index + 1 < len(records) and record.end > records[index + 1].header
        reach = max(reach, record.end)
        expected = reach
        yield replace(record, clear=False) if clash or outside or before_next else record
    if records and expected < end.directory:
        troubles.append(Trouble("gap", f"{end.directory - expected} bytes before the central directory belong to no "
                                "record.", expected, end.directory - expected))
