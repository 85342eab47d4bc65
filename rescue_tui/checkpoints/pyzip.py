"""Zip archives as Python's zipfile writes them (.npz, .keras): the directory, the local headers, CRC-32 of each member.

Layout: PKWARE APPNOTE 6.3.10, sections 4.3.7 (local header), 4.3.12 (central directory), 4.3.14 to 4.3.16 (end
records), 4.5.3 (zip64 extra field).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from rescue_tui.checkpoints.checksums import crc32
from rescue_tui.checkpoints.limits import HELD_BYTES, NAME_BYTES, TENSORS
from rescue_tui.checkpoints.model import CheckpointFinding, Verdict
from rescue_tui.checkpoints.plain import error, unreadable, warning
from rescue_tui.checkpoints.source import CHUNK_BYTES, EndOfBytes, Source, UnreadableBytes
from rescue_tui.core.text import decode

LOCAL_MAGIC = b"PK\x03\x04"
_CENTRAL_MAGIC = b"PK\x01\x02"
END_MAGIC = b"PK\x05\x06"
_END64_MAGIC = b"PK\x06\x06"
_LOCATOR_MAGIC = b"PK\x06\x07"
# Each behind its magic. Version, flags, method, time, date, crc, stored size, size, name length, extra length.
_LOCAL = struct.Struct("<4s5H3I2H")
# The same with two versions, then comment length, disk, internal and external attributes, header offset.
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")  # disk, disk, entries here, entries, directory size, directory offset, comment length
_END64 = struct.Struct("<4sQ2H2I4Q")  # size of record, versions, disks, entries here, entries, size, offset
_LOCATOR = struct.Struct("<4sIQI")
_EXTRA = struct.Struct("<2H")
_U64 = struct.Struct("<Q")
_ZIP64_EXTRA = 1
_COMMENT_BYTES = 0xFFFF
_FULL32 = 0xFFFFFFFF
_ENCRYPTED, _DESCRIPTOR = 1, 8
_DESCRIPTOR_BYTES = 24
STORED, DEFLATED = 0, 8


class Member(NamedTuple):
    """One file in the archive; ``offset`` is where its stored bytes begin, ``header`` its local header."""

    name: str
    method: int
    flags: int
    crc: int
    stored_bytes: int
    size_bytes: int
    header: int
    offset: int

    @property
    def end(self) -> int:
        """The first offset behind the stored bytes."""
        return self.offset + self.stored_bytes


@dataclass(frozen=True, slots=True)
class Archive:
    """Members whose bytes can be looked for. ``whole`` is false where the directory was lost and the members walked."""

    members: tuple[Member, ...]
    findings: tuple[CheckpointFinding, ...]
    whole: bool


class BrokenMemberError(Exception):
    """The stored bytes of a member can't be decoded into what the directory says."""


class _Broken(Exception):
    def __init__(self, code: str, summary: str, offset: int, length: int) -> None:
        super().__init__(summary)
        self.code, self.summary, self.offset, self.length = code, summary, offset, length


class _End(NamedTuple):
    entries: int
    size: int
    offset: int
    base: int  # bytes before the archive, that its own offsets don't count
    end: int  # behind the last record


def open_archive(source: Source) -> Archive:
    """Read the directory and compare it with the local headers; without one, walk the members from the start.

    Raises `UnreadableBytes`. Findings: ``directory-lost``, ``directory`` (it contradicts itself or the local headers),
    ``overlap``, ``gap``, ``cut``, ``prefix-bytes``, ``trailing-bytes``, ``duplicate-name``.
    """
    end = _find_end(source)
    if end is None:
        return _walk(source)
    try:
        listed = _directory(source, end)
    except _Broken as trouble:
        walked = _walk(source)
        finding = error(source, trouble.code, Verdict.CORRUPT, trouble.summary, trouble.offset, trouble.length)
        return Archive(
            walked.members, (finding, *(item for item in walked.findings if item.code != "directory-lost")), False
        )
    return _compare(source, end, listed)


def check(source: Source, member: Member) -> CheckpointFinding | None:
    """Stream a member through its CRC-32; None when it matches. The findings leave tensors to the caller."""
    place = (member.offset, member.stored_bytes)
    if member.flags & _ENCRYPTED or member.method not in {STORED, DEFLATED}:
        return warning(
            source,
            "unsupported-member",
            f"{member.name} is encrypted or packed by method {member.method}; nothing is known of its content",
            *place,
        )
    try:
        if member.method == STORED and member.stored_bytes != member.size_bytes:
            raise BrokenMemberError("it is not packed, yet its two sizes differ")
        value = crc32(unpacked(source, member))
    except BrokenMemberError as trouble:
        return error(source, "bad-deflate", Verdict.CORRUPT, f"{member.name} can't be unpacked: {trouble}", *place)
    except EndOfBytes:
        return error(source, "cut", Verdict.INCOMPLETE, f"the file ends inside {member.name}", *place)
    except UnreadableBytes as trouble:
        return unreadable(source, trouble)
    if value != member.crc:
        return error(
            source,
            "crc-mismatch",
            Verdict.CORRUPT,
            f"{member.name} has CRC-32 {value:08x}, the archive says {member.crc:08x}",
            *place,
        )
    return None


def unpacked(source: Source, member: Member) -> Iterator[bytes]:
    """The member's content in bounded pieces.

    Raises `BrokenMemberError` as soon as it can't be what the directory says, `EndOfBytes`, `UnreadableBytes`.
    """
    if member.method == STORED:
        yield from source.chunks(member.offset, member.stored_bytes)
        return
    engine = zlib.decompressobj(-zlib.MAX_WBITS)
    made = 0
    for chunk in source.chunks(member.offset, member.stored_bytes):
        rest = chunk
        while rest and not engine.eof:
            try:
                piece = engine.decompress(rest, CHUNK_BYTES)
            except zlib.error as trouble:
                raise BrokenMemberError(str(trouble)) from None
            rest = engine.unconsumed_tail
            made += len(piece)
            if made > member.size_bytes:
                raise BrokenMemberError("more comes out than its size says")
            if piece:
                yield piece
    while not engine.eof and made <= member.size_bytes:
        try:
            piece = engine.decompress(engine.unconsumed_tail, CHUNK_BYTES)
        except zlib.error as trouble:
            raise BrokenMemberError(str(trouble)) from None
        if not piece:
            break
        made += len(piece)
        yield piece
    if not engine.eof or made != member.size_bytes:
        raise BrokenMemberError(f"{made} of {member.size_bytes} bytes come out")


def beginning(source: Source, member: Member, length: int) -> bytes:
    """At most ``length`` first bytes of the content; fewer where it is shorter or breaks off."""
    held = b""
    try:
        for piece in unpacked(source, member):
            held += piece[: length - len(held)]
            if len(held) >= length:
                break
    except (BrokenMemberError, EndOfBytes, UnreadableBytes):
        pass
    return held


def first_name(first: bytes) -> str:
    """The name in the local header that a file begins with; nothing where it doesn't begin with one."""
    if len(first) < _LOCAL.size or not first.startswith(LOCAL_MAGIC):
        return ""
    length = _LOCAL.unpack_from(first)[9]
    return decode(first[_LOCAL.size : _LOCAL.size + length])


def _find_end(source: Source) -> _End | None:
    size = source.size_bytes
    length = min(size, _END.size + _COMMENT_BYTES)
    tail = source.read_at(size - length, length)
    at = tail.rfind(END_MAGIC)
    while at >= 0:
        if len(tail) - at >= _END.size:
            break
        at = tail.rfind(END_MAGIC, 0, at)
    if at < 0:
        return None
    _, _, _, _, entries, cd_size, cd_offset, comment = _END.unpack_from(tail, at)
    position = size - length + at
    end = position + _END.size + comment
    start_of_end = position
    if _FULL32 in {cd_size, cd_offset} or entries == 0xFFFF:
        found = _find_end64(source, position)
        if found is not None:
            entries, cd_size, cd_offset, start_of_end = found
    return _End(entries, cd_size, cd_offset, start_of_end - cd_size - cd_offset, end)


def _find_end64(source: Source, position: int) -> tuple[int, int, int, int] | None:
    if position < _LOCATOR.size + _END64.size:
        return None
    magic, _, _, _ = _LOCATOR.unpack(source.read_at(position - _LOCATOR.size, _LOCATOR.size))
    at = position - _LOCATOR.size - _END64.size
    record = _END64.unpack(source.read_at(at, _END64.size))
    if magic != _LOCATOR_MAGIC or record[0] != _END64_MAGIC:
        return None
    return record[7], record[8], record[9], at


def _directory(source: Source, end: _End) -> list[Member]:
    start = end.offset + end.base
    if start < 0 or end.base < 0 or end.size > source.size_bytes:
        raise _Broken(
            "directory", "the end record points outside the file: bytes before it are missing, or it is damaged", 0, 0
        )
    if end.size > HELD_BYTES or end.entries > TENSORS:
        raise _Broken("too-large", "the archive has more members than a checkpoint can have", start, end.size)
    raw = source.read_at(start, end.size)
    members: list[Member] = []
    at = 0
    for _ in range(end.entries):
        if len(raw) - at < _CENTRAL.size or raw[at : at + 4] != _CENTRAL_MAGIC:
            raise _Broken(
                "directory",
                f"entry {len(members)} of {end.entries} of the central directory is damaged",
                start + at,
                _CENTRAL.size,
            )
        (
            _,
            _,
            _,
            flags,
            method,
            _,
            _,
            crc,
            stored,
            size,
            name_length,
            extra_length,
            comment_length,
            _,
            _,
            _,
            header,
        ) = _CENTRAL.unpack_from(raw, at)
        at += _CENTRAL.size
        name = raw[at : at + name_length]
        extra = raw[at + name_length : at + name_length + extra_length]
        at += name_length + extra_length + comment_length
        if at > len(raw) or name_length > NAME_BYTES:
            raise _Broken("directory", "an entry reaches beyond the central directory", start, end.size)
        size, stored, header = _zip64(extra, size, stored, header)
        members.append(Member(decode(name), method, flags, crc, stored, size, header + end.base, 0))
    if at != len(raw):
        raise _Broken(
            "directory", f"{len(raw) - at} bytes of the central directory belong to no entry", start + at, len(raw) - at
        )
    return members


def _zip64(extra: bytes, size: int, stored: int, header: int) -> tuple[int, int, int]:
    at = 0
    while at + _EXTRA.size <= len(extra):
        kind, length = _EXTRA.unpack_from(extra, at)
        at += _EXTRA.size
        if kind == _ZIP64_EXTRA:
            body = extra[at : at + length]
            values = [number for (number,) in _U64.iter_unpack(body[: len(body) // _U64.size * _U64.size])]
            if size == _FULL32 and values:
                size = values.pop(0)
            if stored == _FULL32 and values:
                stored = values.pop(0)
            if header == _FULL32 and values:
                header = values.pop(0)
        at += length
    return size, stored, header


def _local(source: Source, at: int) -> Member | None:
    """The member whose local header is at an offset; None where there is none."""
    if at + _LOCAL.size > source.size_bytes:
        return None
    raw = source.read_at(at, _LOCAL.size)
    magic, _, flags, method, _, _, crc, stored, size, name_length, extra_length = _LOCAL.unpack(raw)
    begin = at + _LOCAL.size
    if magic != LOCAL_MAGIC or begin + name_length + extra_length > source.size_bytes:
        return None
    names = source.read_at(begin, name_length + extra_length)
    size, stored, _ = _zip64(names[name_length:], size, stored, 0)
    return Member(decode(names[:name_length]), method, flags, crc, stored, size, at, begin + len(names))


def _compare(source: Source, end: _End, listed: list[Member]) -> Archive:
    findings = []
    members = []
    if end.base:
        findings.append(warning(source, "prefix-bytes", f"{end.base} bytes precede the archive", 0, end.base))
    if end.end < source.size_bytes:
        findings.append(
            warning(
                source,
                "trailing-bytes",
                f"{source.size_bytes - end.end} bytes follow the archive",
                end.end,
                source.size_bytes - end.end,
            )
        )
    elif end.end > source.size_bytes:
        findings.append(
            error(
                source,
                "cut",
                Verdict.INCOMPLETE,
                "the file ends inside the archive's comment",
                source.size_bytes,
                end.end - source.size_bytes,
            )
        )
    names = set()
    for member in listed:
        local = _local(source, member.header)
        if local is None:
            findings.append(
                error(
                    source,
                    "local-header",
                    Verdict.CORRUPT,
                    f"the local header of {member.name} is damaged",
                    member.header,
                    _LOCAL.size,
                    (member.name,),
                )
            )
            continue
        same = (local.name, local.method) == (member.name, member.method)
        if not member.flags & _DESCRIPTOR:
            same = same and local[3:6] == member[3:6]
        if not same:
            findings.append(
                error(
                    source,
                    "directory",
                    Verdict.CORRUPT,
                    f"the local header of {local.name} and the directory's entry {member.name} contradict each other",
                    member.header,
                    _LOCAL.size,
                    (member.name,),
                )
            )
        if member.name in names:
            findings.append(warning(source, "duplicate-name", f"{member.name} is in the archive twice", member.header))
        names.add(member.name)
        members.append(member._replace(offset=local.offset))
    kept = _tiled(source, end, members, findings)
    return Archive(tuple(kept), tuple(findings), True)


def _tiled(source: Source, end: _End, members: list[Member], findings: list[CheckpointFinding]) -> list[Member]:
    """The members that share no byte with others, so that a small file can't be unpacked a thousand times over."""
    position = end.base
    kept = []
    for member in sorted(members, key=lambda item: item.header):
        if member.header < position:
            findings.append(
                error(
                    source,
                    "overlap",
                    Verdict.CORRUPT,
                    f"{member.name} overlaps the member before it",
                    member.header,
                    position - member.header,
                    (member.name,),
                )
            )
            continue
        if member.header > position + _DESCRIPTOR_BYTES:
            findings.append(
                warning(
                    source,
                    "gap",
                    f"{member.header - position} bytes before {member.name} belong to no member",
                    position,
                    member.header - position,
                )
            )
        position = max(member.end, position)
        kept.append(member)
    start = end.offset + end.base
    if position > start:
        findings.append(
            error(
                source,
                "overlap",
                Verdict.CORRUPT,
                "a member reaches into the central directory",
                start,
                position - start,
            )
        )
    return kept


def _walk(source: Source) -> Archive:
    """Members one behind the other from the start: local headers that zipfile wrote hold sizes and CRC."""
    members: list[Member] = []
    at = 0
    while len(members) < TENSORS:
        member = _local(source, at)
        if member is None:
            break
        members.append(member)
        if member.flags & _DESCRIPTOR and not member.stored_bytes:
            break
        at = member.end
    finding = error(
        source,
        "directory-lost",
        Verdict.INCOMPLETE,
        "the central directory at the end of the archive is "
        f"missing; {len(members)} members were found by their local headers",
        at,
    )
    return Archive(tuple(members), (finding,), False)
