"""Records of a zip archive without its directory: from local header to local header, as far as the file goes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from rescue_tui.checkpoints.limits import TENSORS
from rescue_tui.checkpoints.model import Verdict
from rescue_tui.checkpoints.source import CHUNK_BYTES, Source
from rescue_tui.checkpoints.zip_records import (
    CENTRAL_MAGIC,
    DESCRIPTOR,
    HAS_DESCRIPTOR,
    LOCAL_MAGIC,
    Archive,
    Descriptor,
    LocalHeader,
    Record,
    Trouble,
    descriptor,
    local_header,
    peek,
)

_MAGICS = re.compile(rb"PK(?:\x07\x08|\x03\x04)")
_SECTOR_BYTES = 4096


class Sizes(Protocol):
    """What knows how long a record must be when its header does not say."""

    def size_of(self, name: str, payload: int) -> int | None:
        """Stored bytes of a record whose payload begins there; None if that can't be told."""


class _Found(NamedTuple):
    """The next thing that ends a record: its own descriptor, or the header of another one."""

    offset: int
    told: Descriptor | None


class WalkedArchive(NamedTuple):
    """The archive as far as it was walked; ``directory`` is where a central directory begins, None if none does."""

    archive: Archive
    directory: int | None


def walk_records(source: Source, begin: int, sizes: Sizes) -> WalkedArchive:
    """Walk the records from ``begin`` to the central directory or to the end of the bytes.

    Where the chain is torn, it goes on at the next header of the same archive.
    """
    records: list[Record] = []
    troubles: list[Trouble] = []
    root = ""
    at = begin
    directory = None
    while at < source.size_bytes and len(records) <= TENSORS:
        local = local_header(source, at)
        if local is None:
            if peek(source, at, len(CENTRAL_MAGIC)) == CENTRAL_MAGIC:
                directory = at
                break
            following = _next_header(source, at, root)
            if following is None:
                if records:
                    troubles.append(Trouble("torn", "What follows the last record is no record.", at,
                                            source.size_bytes - at, (), Verdict.INCOMPLETE))
                break
            troubles.append(Trouble("torn", f"{following - at} bytes are no record.", at, following - at))
            at = following
            continue
        root = root or local.name.partition("/")[0] + "/"
        record = _walked(source, at, local, root, sizes, troubles)
        records.append(record)
        if not record.whole:
            break
        at = record.end
    return WalkedArchive(Archive(tuple(records), tuple(troubles), False, begin, min(at, source.size_bytes)), directory)


def _walked(source: Source, at: int, local: LocalHeader, root: str, sizes: Sizes, troubles: list[Trouble]) -> Record:
    payload, left = local.payload, source.size_bytes - local.payload
    if not local.flags & HAS_DESCRIPTOR:
        stored = local.stored_bytes
        return Record(local.name, at, payload, stored, local.size_bytes, local.method, local.crc, min(stored, left),
                      payload + stored)
    expected = sizes.size_of(local.name, payload) if not local.method else None
    if expected is not None:
        if expected > left:
            return Record(local.name, at, payload, expected, expected, local.method, None, left, source.size_bytes)
        told = descriptor(source, payload + expected, expected)
        if told is not None:
            return Record(local.name, at, payload, expected, told.size_bytes, local.method, told.crc, expected,
                          payload + expected + told.length)
    found = _search(source, payload, root)
    if found is not None and found.told is not None:
        told, stored = found.told, found.told.stored_bytes
        return Record(local.name, at, payload, stored, told.size_bytes, local.method, told.crc, stored,
                      payload + stored + told.length)
    if found is not None:
        stored = expected if expected is not None else max(0, found.offset - payload - DESCRIPTOR.size)
        troubles.append(Trouble("descriptor", f"No descriptor ends {local.name}.", payload, found.offset - payload,
                                (local.name,)))
        return Record(local.name, at, payload, stored, stored, local.method, None, stored, found.offset)
    # Nothing ends it: zeros or other bytes follow to the end of the file. Only a size from elsewhere makes it whole.
    troubles.append(Trouble("no-descriptor", f"Nothing ends {local.name} before the end of the file.", payload, left,
                            (local.name,), Verdict.INCOMPLETE))
    stored = expected if expected is not None else left + 1
    return Record(local.name, at, payload, stored, stored, local.method, None, min(left, stored - 1),
                  source.size_bytes)


def _search(source: Source, payload: int, root: str) -> _Found | None:
    """The first descriptor that tells the distance from ``payload``, or the first header of this archive."""
    for at, magic in _magics(source, payload):
        if magic == LOCAL_MAGIC:
            if _plausible(local_header(source, at), root):
                return _Found(at, None)
        else:
            told = descriptor(source, at, at - payload)
            if told is not None:
                return _Found(at, told)
    return None


def _next_header(source: Source, start: int, root: str) -> int | None:
    for at, magic in _magics(source, start):
        if magic == LOCAL_MAGIC and _plausible(local_header(source, at), root):
            return at
    return None


def _plausible(local: LocalHeader | None, root: str) -> bool:
    return local is not None and local.name.startswith(root) and "/" in local.name and local.method in (0, 8)


def _in_parts(source: Source, at: int, length: int) -> bytes:
    """The bytes around what can't be read, zeros in its place."""
    return b"".join(peek(source, part, min(_SECTOR_BYTES, at + length - part)).ljust(
        min(_SECTOR_BYTES, at + length - part), b"\x00") for part in range(at, at + length, _SECTOR_BYTES))


def _magics(source: Source, start: int) -> Iterator[tuple[int, bytes]]:
    """Every magic of a descriptor or a local header from ``start`` on; bytes that can't be read hold none."""
    at = start
    while at < source.size_bytes:
        length = min(CHUNK_BYTES, source.size_bytes - at)
        piece = peek(source, at, length) or _in_parts(source, at, length)
        for match in _MAGICS.finditer(piece):
            yield at + match.start(), match.group()
        if at + length >= source.size_bytes:
            return
        at += length - (len(LOCAL_MAGIC) - 1)
