"""Payloads of zip records: proven by CRC-32 in one pass, inflated within bounds, pickles walked where they lie."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from rescue_tui.checkpoints.checksums import crc32, crc32_of
from rescue_tui.checkpoints.limits import PICKLE_BYTES
from rescue_tui.checkpoints.pickles import FaultKind, Walk, walk
from rescue_tui.checkpoints.source import EndOfBytes, Source, Span, UnreadableBytes
from rescue_tui.checkpoints.torch_objects import StorageRef, storage_of
from rescue_tui.checkpoints.zip_records import DEFLATED, STORED, Record

_FIRST_BYTES = 256 << 10
_GROWTH = 8
_PIECE_BYTES = 256 << 10


class Check(StrEnum):
    """What is known of the payload of a record."""

    MATCHED = "matched"
    MISMATCH = "mismatch"
    NO_CHECKSUM = "no-checksum"
    PLACEHOLDER = "placeholder"  # a storage that was never written (skip_data)
    PARTIAL = "partial"  # not all of it is there, or others claim its bytes
    UNREADABLE = "unreadable"


class Checked(NamedTuple):
    """A record and what its payload proved; ``trouble`` says more where there is more to say."""

    record: Record
    check: Check
    trouble: str = ""
    bad_offset: int | None = None
    bad_length: int | None = None


class _NotInflated(Exception):
    pass


def relative(name: str) -> str:
    """A record's name below the root of its archive."""
    return name.partition("/")[2] or name


def check_records(source: Source, records: Sequence[tuple[Record, bool]], crc_used: bool) -> list[Checked]:
    """Read records once, each given with whether it is a storage. ``crc_used``: other records of the archive carry a
    CRC, so 0 is one of an absent payload.
    """
    checked = [_unread(record, crc_used) for record, _ in records]
    plain = [index for index, (record, _) in enumerate(records)
             if checked[index] is None and record.method == STORED]
    sums = dict(zip(plain, crc32_of(source, [Span(records[index][0].payload, records[index][0].stored_bytes)
                                             for index in plain]), strict=True))
    return [known or (_judged(record, sums[index], is_storage) if index in sums
                      else _inflated_and_judged(source, record, is_storage))
            for index, (known, (record, is_storage)) in enumerate(zip(checked, records, strict=True))]


def _unread(record: Record, crc_used: bool) -> Checked | None:
    """What is said of a record that need not be read; None for one that must be."""
    if not record.whole or not record.clear:
        return Checked(record, Check.PARTIAL)
    if record.method not in (STORED, DEFLATED):
        return Checked(record, Check.NO_CHECKSUM, f"it is packed by method {record.method}")
    if record.method == STORED and record.size_bytes != record.stored_bytes:
        return Checked(record, Check.MISMATCH, "its two sizes differ although it is not packed")
    if record.crc is None or (record.crc == 0 and not crc_used and record.size_bytes):
        return Checked(record, Check.NO_CHECKSUM)
    return None


def _inflated_and_judged(source: Source, record: Record, is_storage: bool) -> Checked:
    try:
        return _judged(record, crc32(_inflated(source, record)), is_storage)
    except (UnreadableBytes, EndOfBytes) as trouble:
        return _judged(record, trouble, is_storage)
    except _NotInflated as trouble:
        return Checked(record, Check.MISMATCH, str(trouble))


def _judged(record: Record, actual: int | UnreadableBytes | EndOfBytes, is_storage: bool) -> Checked:
    if isinstance(actual, UnreadableBytes):
        return Checked(record, Check.UNREADABLE, actual.reason, actual.offset, actual.length)
    if isinstance(actual, EndOfBytes):
        return Checked(record, Check.MISMATCH, str(actual))
    if actual == record.crc:
        return Checked(record, Check.MATCHED)
    if record.crc == 0:
        return Checked(record, Check.PLACEHOLDER if is_storage else Check.NO_CHECKSUM)
    return Checked(record, Check.MISMATCH)


def decoded(source: Source, record: Record) -> Iterator[bytes]:
    """The bytes of a record in pieces, inflated if need be, never more than it declares."""
    if record.method == STORED:
        return source.chunks(record.payload, record.stored_bytes)
    return _inflated(source, record)


def _inflated(source: Source, record: Record) -> Iterator[bytes]:
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    left = record.size_bytes
    try:
        for chunk in source.chunks(record.payload, record.stored_bytes):
            pending = chunk
            while pending or stream.unconsumed_tail:
                piece = stream.decompress(pending, min(_PIECE_BYTES, left + 1))
                pending = stream.unconsumed_tail
                left -= len(piece)
                if left < 0:
                    raise _NotInflated("it unpacks to more than it declares")
                if piece:
                    yield piece
                elif not pending or stream.eof:
                    break
    except zlib.error:
        raise _NotInflated("it can't be unpacked") from None
    if left or not stream.eof:
        raise _NotInflated("it unpacks to less than it declares")


def record_bytes(source: Source, record: Record, most: int = PICKLE_BYTES) -> bytes | None:
    """All bytes of a small record, None if it is too large, not there or can't be unpacked."""
    if not record.whole or max(record.size_bytes, record.stored_bytes) > most or record.method not in (STORED,
                                                                                                    DEFLATED):
        return None
    try:
        return b"".join(decoded(source, record))
    except (EndOfBytes, UnreadableBytes, _NotInflated):
        return None


def pickle_at(source: Source, offset: int) -> Walk:
    """Walk the pickle that begins at an offset and ends who knows where. Offsets in the Walk begin at 0."""
    length = _FIRST_BYTES
    left = source.size_bytes - offset
    while True:
        length = min(length, left, PICKLE_BYTES)
        try:
            outcome = walk(source.read_at(offset, length))
        except UnreadableBytes:
            return walk(b"")
        if outcome.fault is None or outcome.fault.kind is not FaultKind.CUT or length >= min(left, PICKLE_BYTES):
            return outcome
        length *= _GROWTH


class PickleSizes:
    """How long records must be, told by pickles that were met on the way."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.storages: dict[str, StorageRef] = {}

    def size_of(self, name: str, payload: int) -> int | None:
        """Of a pickle: up to its STOP. Of a storage: what the pickle before it declared."""
        inner = relative(name)
        if inner in self.storages:
            return self.storages[inner].size_bytes
        if not inner.endswith(".pkl"):
            return None
        outcome = pickle_at(self.source, payload)
        if outcome.fault is not None:
            return None
        folder = "constants" if inner == "constants.pkl" else "data"
        for reference in outcome.persistent:
            storage = storage_of(reference)
            if storage is not None:
                self.storages[f"{folder}/{storage.key}"] = storage
        return outcome.end_offset
