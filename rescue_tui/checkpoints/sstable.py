"""LevelDB's sorted table (google/leveldb doc/table_format.md) as TensorFlow writes it: footer, index, blocks, crc32c.

What a damaged table still holds is read as well: rows of a block whose checksum fails or is lost are returned as
unproven, and without a footer the blocks are found again from the front.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import cramjam

from rescue_tui.checkpoints import limits
from rescue_tui.checkpoints.checksums import crc32c, unmask_crc32c
from rescue_tui.checkpoints.source import EndOfBytes, Source, UnreadableBytes
from rescue_tui.checkpoints.wire import WireError, varint

MAGIC = bytes.fromhex("57fb808b247547db")
_FOOTER = struct.Struct("<40s8s")  # two handles padded with zeros, magic
_TRAILER = struct.Struct("<BI")  # type of the block, masked crc32c over block and type
_U32 = struct.Struct("<I")
_RAW, _SNAPPY = 0, 1
_SNAPPY_RATIO = 32  # the format can't reach 22
_RESTART_INTERVAL = 16
_HEADER_AT = 3  # behind the first row's three lengths
_HEADER_BYTES = 64
BLOCK_BYTES = 4 << 20  # TensorFlow closes a block at 256 KiB
_FIRST_LOOK_BYTES = 512 << 10
ROWS = 2 * limits.TENSORS


class Handle(NamedTuple):
    """Where a block lies, without its trailer."""

    offset: int
    size: int


class Row(NamedTuple):
    """``proven``: the checksum of the block that holds this row matched."""

    key: bytes
    value: bytes
    proven: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """A broken invariant; ``cut`` tells bytes that are missing from bytes that are wrong."""

    code: str
    summary: str
    offset: int
    length: int
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """``whole``: every block of rows was found, whether proven or not."""

    rows: tuple[Row, ...]
    faults: tuple[Fault, ...]
    whole: bool


class _BadBlock(Exception):
    pass


def looks_like_table(first: bytes, last: bytes) -> bool:
    """A footer at the end, or a first row with the empty key that TensorFlow's tables begin with."""
    header = len(first) > _HEADER_AT and first[:2] == b"\0\0" and first[_HEADER_AT : _HEADER_AT + 1] == b"\x08"
    return last.endswith(MAGIC) or (header and 0 < first[2] < _HEADER_BYTES)


def _rows(block: bytes, end: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Rows from the front of a block, each with the offset behind it. Raises `_BadBlock` where they make no sense."""
    at, key = 0, b""
    first = True
    while at < end:
        try:
            shared, at = varint(block, at, end)
            unshared, at = varint(block, at, end)
            length, at = varint(block, at, end)
        except WireError as error:
            raise _BadBlock(str(error)) from error
        if shared > len(key) or unshared + length > end - at:
            raise _BadBlock("a row is longer than its block")
        if shared + unshared > limits.NAME_BYTES * 4:
            raise _BadBlock("a key is absurdly long")
        key = key[:shared] + block[at : at + unshared]
        at += unshared
        yield at + length, key, block[at : at + length]
        at += length
        first = False
    if first and end:
        raise _BadBlock("a block holds nothing")


def _parse(block: bytes) -> list[tuple[bytes, bytes]]:
    """All rows of a block that ends with its restart points."""
    if len(block) < _U32.size:
        raise _BadBlock("a block is too short for its restart points")
    (restarts,) = _U32.unpack_from(block, len(block) - _U32.size)
    end = len(block) - _U32.size * (restarts + 1)
    if restarts == 0 or end < 0:
        raise _BadBlock("a block's restart points do not fit into it")
    found = [(key, value) for _, key, value in _rows(block, end)]
    if any(one[0] >= two[0] for one, two in pairwise(found)):
        raise _BadBlock("keys of a block are out of order")
    return found


def _salvaged(block: bytes) -> list[tuple[bytes, bytes]]:
    """The rows up to the first that makes no sense."""
    found: list[tuple[bytes, bytes]] = []
    try:
        for _, key, value in _rows(block, len(block)):
            if found and key <= found[-1][0]:
                break
            found.append((key, value))
    except _BadBlock:
        pass
    return found


def _decoded(stored: bytes, kind: int) -> bytes:
    if kind == _RAW:
        return stored
    if kind != _SNAPPY:
        raise _BadBlock(f"block type {kind} is unknown")
    try:
        declared, _ = varint(stored, 0)
    except WireError as error:
        raise _BadBlock("a snappy block has no length") from error
    if declared > min(BLOCK_BYTES, len(stored) * _SNAPPY_RATIO):
        raise _BadBlock(f"a snappy block of {len(stored)} bytes declares {declared}")
    try:
        return bytes(cramjam.snappy.decompress_raw(stored))
    except cramjam.DecompressionError as error:
        raise _BadBlock("a snappy block can't be decompressed") from error


class _Reader:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.rows: list[Row] = []
        self.faults: list[Fault] = []
        self.whole = True

    def fault(self, code: str, summary: str, offset: int, length: int, cut: bool = False) -> None:
        if len(self.faults) < 100:
            self.faults.append(Fault(code, summary, offset, length, cut))

    def block(self, handle: Handle, what: str) -> tuple[bytes, bool]:
        """A block's content and whether it is proven; empty where it can't be had, which is a fault already told."""
        length = handle.size + _TRAILER.size
        try:
            data = self.source.read_at(handle.offset, length)
        except UnreadableBytes as error:
            self.fault("unreadable", f"{what} can't be read: {error.reason}", handle.offset, length, cut=True)
            return b"", False
        stored = data[: handle.size]
        kind, masked = _TRAILER.unpack_from(data, handle.size)
        proven = unmask_crc32c(masked) == crc32c((data[: handle.size + 1],))
        if not proven:
            self.fault("crc-mismatch", f"{what} does not match its crc32c", handle.offset, length)
        try:
            return _decoded(stored, kind), proven
        except _BadBlock as error:
            if proven:
                self.fault("bad-block", f"{what}: {error}", handle.offset, length)
            return b"", False

    def handle(self, data: bytes, at: int, limit: int) -> tuple[Handle, int]:
        offset, at = varint(data, at)
        size, at = varint(data, at)
        if offset + size + _TRAILER.size > limit or size > BLOCK_BYTES:
            raise WireError("a block lies outside the table")
        return Handle(offset, size), at

    def by_index(self, footer: bytes, limit: int) -> bool:
        """Read through the index block; False where that leads nowhere."""
        try:
            meta, at = self.handle(footer, 0, limit)
            index, _ = self.handle(footer, at, limit)
        except WireError as error:
            self.fault("bad-footer", f"the footer points nowhere: {error}", limit, _FOOTER.size)
            return False
        self.block(meta, "the metaindex block")
        content, proven = self.block(index, "the index block")
        try:
            handles = [self.handle(value, 0, limit)[0] for _, value in _parse(content)] if proven else None
        except (_BadBlock, WireError) as error:
            self.fault("bad-block", f"the index block: {error}", index.offset, index.size)
            return False
        if handles is None:
            return False
        reach = 0
        for number, one in enumerate(handles):
            if one.offset != reach:
                self.fault("bad-block", f"block {number} does not follow the one before it", one.offset, one.size)
            reach = one.offset + one.size + _TRAILER.size
            self.take(one, f"block {number}")
        return True

    def take(self, handle: Handle, what: str) -> None:
        content, proven = self.block(handle, what)
        if proven:
            try:
                self.add(_parse(content), True)
                return
            except _BadBlock as error:
                self.fault("bad-block", f"{what}: {error}", handle.offset, handle.size)
        self.whole = False
        self.add(_salvaged(content), False)

    def add(self, pairs: list[tuple[bytes, bytes]], proven: bool) -> None:
        for key, value in pairs:
            if len(self.rows) >= ROWS:
                self.fault("too-many", f"more than {ROWS} rows", 0, 0)
                return
            if self.rows and key <= self.rows[-1].key:
                if proven:
                    self.fault("bad-block", "keys are out of order between blocks", 0, 0)
                return
            self.rows.append(Row(key, value, proven))

    def from_front(self) -> int:
        """Find blocks one after the other; the offset behind the last whole one (at best the metaindex)."""
        at, size = 0, self.source.size_bytes
        self.whole = False
        while at < size and len(self.rows) < ROWS:
            look = _FIRST_LOOK_BYTES
            try:
                data = self.source.read_at(at, min(look, size - at))
                while (end := _block_end(data)) is None and len(data) == look < BLOCK_BYTES:
                    look = min(2 * look, BLOCK_BYTES)
                    data = self.source.read_at(at, min(look, size - at))
            except UnreadableBytes:
                return at
            if end is None:
                self.add(_salvaged(data), False)
                return at
            try:
                pairs = _parse(_decoded(data[: end - _TRAILER.size], _RAW))
            except _BadBlock:
                return at
            at += end
            if not pairs:
                self.whole = True
                return at
            self.add(pairs, True)
        return at


def _block_end(data: bytes) -> int | None:
    """The offset behind the trailer of the block at the front, known by its checksum."""
    count = at = 0
    last = b""
    rows = _rows(data, len(data))
    while True:
        # An empty block has one restart point; others one for every 16 rows.
        restarts = -(-count // _RESTART_INTERVAL) or 1
        tail = at + _U32.size * restarts
        end = tail + _U32.size + _TRAILER.size
        if end <= len(data) and _U32.unpack_from(data, tail)[0] == restarts:
            kind, masked = _TRAILER.unpack_from(data, tail + _U32.size)
            if kind == _RAW and unmask_crc32c(masked) == crc32c((data[: end - _U32.size],)):
                return end
        try:
            at, key, _ = next(rows)
        except (StopIteration, _BadBlock):
            return None
        if count and key <= last:
            return None
        last = key
        count += 1


def read_table(source: Source) -> Table:
    """Every row that can be had, and every broken invariant. Never raises."""
    reader = _Reader(source)
    size = source.size_bytes
    try:
        if size < _FOOTER.size:
            reader.fault("too-short", f"{size} bytes are too short for a sorted table", size, 0, cut=True)
            reader.from_front()
        else:
            limit = size - _FOOTER.size
            handles, magic = _FOOTER.unpack(source.read_at(limit, _FOOTER.size))
            if magic != MAGIC or not reader.by_index(handles, limit):
                _without_index(reader, magic, limit)
    except EndOfBytes as error:
        reader.fault("too-short", f"the file ended while it was read: {error}", error.offset, error.length, cut=True)
    except UnreadableBytes as error:
        reader.fault("unreadable", f"the footer can't be read: {error.reason}", error.offset, error.length, cut=True)
        reader.from_front()
    return Table(tuple(reader.rows), tuple(reader.faults), reader.whole)


def _without_index(reader: _Reader, magic: bytes, limit: int) -> None:
    if magic == MAGIC:
        reader.from_front()
        return
    size = limit + _FOOTER.size
    reached = reader.from_front()
    # A whole table is followed by its index block and the footer; a cut one ends before.
    tail = reader.source.read_at(limit, _FOOTER.size)
    zeros = not tail.strip(b"\0")
    near = sum(one == two for one, two in zip(magic, MAGIC, strict=True)) >= len(MAGIC) - 2
    cut = zeros or not near
    reader.fault("bad-footer", "the footer of the table is missing" if cut else "the footer's magic number is damaged",
                 min(reached, size), size - min(reached, size), cut)
