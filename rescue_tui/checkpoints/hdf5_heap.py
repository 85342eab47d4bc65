"""HDF5's fractal heaps, in which large groups keep their links and objects their many attributes.

Source: HDF5 File Format Specification 3.0, section III.G.
"""

from __future__ import annotations

import struct

from rescue_tui.checkpoints.hdf5_btree2 import bytes_for
from rescue_tui.checkpoints.hdf5_file import LEAST_BYTES, STRUCTURE_BYTES, HdfFile
from rescue_tui.checkpoints.hdf5_wire import Fields, HdfError, NotFollowedError, lookup3

_MANAGED, _HUGE, _TINY = 0, 1, 2
_CHECKSUM = struct.Struct("<I")
_WIDTH = 1024
_HEAP_BITS = 64


class FractalHeap:
    """Gives objects by their IDs. Raises `HdfError`, `NotFollowedError`, `EndOfBytes` and `UnreadableBytes`."""

    def __init__(self, file: HdfFile, address: int) -> None:
        self.file, self.address = file, address
        sizes = file.superblock
        length = 4 + 1 + 2 + 2 + 1 + 4 + 12 * sizes.length_bytes + 3 * sizes.address_bytes + 2 + 2 + 2 + 2 + 4
        start = file.read(address, min(length, 9)).data
        if start[:4] == b"FRHP" and any(start[7:9]):
            raise NotFollowedError("a heap is stored through filters", sizes.base + address)
        head = file.read_checked(address, length, b"FRHP")
        version = head.number(1)
        head.take(4)
        flags, most = head.number(1), head.number(4)
        head.take(sizes.length_bytes + sizes.address_bytes + sizes.length_bytes + sizes.address_bytes
                  + 8 * sizes.length_bytes)
        self.width, self.first, self.largest = head.number(2), head.length(), head.length()
        bits, _, root, self.rows = head.number(2), head.number(2), head.address(), head.number(2)
        self.checksummed = bool(flags & 2)
        powers = all(size and size & (size - 1) == 0 for size in (self.width, self.first, self.largest))
        if (version != 0 or not powers or self.width > _WIDTH or not self.first <= self.largest <= STRUCTURE_BYTES
                or bits > _HEAP_BITS):
            raise HdfError("a heap's header is not what it should be", head.at)
        self.root = root
        self.offset_bytes = -(-bits // 8)
        self.length_bytes = min(bytes_for(self.largest), bytes_for(most))
        # Rows whose blocks hold objects; those of the rows behind them hold rows of their own.
        self.direct_rows = self.largest.bit_length() - self.first.bit_length() + 2
        self.blocks: dict[int, bytes] = {}
        self.places: dict[int, tuple[int, int]] | None = None

    def object(self, identifier: bytes) -> Fields:
        """The object with an ID."""
        kind = identifier[0] >> 4 & 3 if identifier else _HUGE
        if kind == _TINY:
            body = identifier[1 : 2 + (identifier[0] & 0x0F)]
            return self._fields(body, self.address)
        if kind != _MANAGED:
            raise NotFollowedError("an object lies outside of its heap", self.file.superblock.base + self.address)
        field = Fields(identifier[1:], 0)
        offset, length = field.odd_number(self.offset_bytes), field.odd_number(self.length_bytes)
        if self.places is None:
            self.places = dict(self._found())
        start = self._block_of(offset)
        if start is None:
            raise HdfError("an object is outside of its heap", self.file.superblock.base + self.address)
        address, size = self.places[start]
        inside = offset - start
        if inside + length > size:
            raise HdfError("an object reaches beyond its block", self.file.superblock.base + address)
        return self._fields(self._block(start, address, size)[inside : inside + length], address + inside)

    def _fields(self, body: bytes, address: int) -> Fields:
        sizes = self.file.superblock
        return Fields(body, sizes.base + address, sizes.address_bytes, sizes.length_bytes)

    def _block_of(self, offset: int) -> int | None:
        assert self.places is not None
        # Blocks lie at multiples of their own sizes, which are powers of two.
        size = self.first
        while size <= self.largest:
            start = offset - offset % size
            if start in self.places and self.places[start][1] == size:
                return start
            size *= 2
        return None

    def _found(self) -> list[tuple[int, tuple[int, int]]]:
        if self.root is None:
            return []
        if not self.rows:
            return [(0, (self.root, self.first))]
        found: list[tuple[int, tuple[int, int]]] = []
        self._indirect(self.root, self.rows, 0, found)
        return found

    def _row_bytes(self, row: int) -> int:
        return self.first << max(0, row - 1)

    def _indirect(self, address: int, rows: int, start: int, found: list[tuple[int, tuple[int, int]]]) -> None:
        sizes = self.file.superblock
        if not 0 < rows <= _HEAP_BITS:
            raise HdfError(f"a block of a heap has {rows} rows", sizes.base + address)
        length = 4 + 1 + sizes.address_bytes + self.offset_bytes + rows * self.width * sizes.address_bytes
        block = self.file.read_checked(address, length + _CHECKSUM.size, b"FHIB")
        self._owner(block, start)
        for row in range(rows):
            size = self._row_bytes(row)
            for _ in range(self.width):
                child = block.address()
                if child is not None and row < self.direct_rows:
                    found.append((start, (child, size)))
                elif child is not None:
                    below = size.bit_length() - (self.first * self.width).bit_length() + 1
                    if not 0 < below < rows:
                        raise HdfError("a heap's blocks do not get smaller", block.at)
                    self._indirect(child, below, start, found)
                start += size

    def _owner(self, block: Fields, start: int) -> None:
        if block.number(1) != 0 or block.address() != self.address or block.odd_number(self.offset_bytes) != start:
            raise HdfError("a block is of another heap, or of another place in it", block.at)

    def _block(self, start: int, address: int, size: int) -> bytes:
        held = self.blocks.get(start)
        if held is not None:
            return held
        sizes = self.file.superblock
        self.file.charge(size // LEAST_BYTES, sizes.base + address)
        raw = self.file.read(address, size)
        block = Fields(raw.data, raw.at, sizes.address_bytes, sizes.length_bytes)
        block.expect(b"FHDB")
        if self.checksummed:
            at = 4 + 1 + sizes.address_bytes + self.offset_bytes
            (stored,) = _CHECKSUM.unpack(raw.data[at : at + _CHECKSUM.size].ljust(_CHECKSUM.size, b"\0"))
            found = lookup3(raw.data[:at] + bytes(_CHECKSUM.size) + raw.data[at + _CHECKSUM.size :])
            if found != stored:
                raise HdfError(f"a heap's block has the checksum {found:08x}, the file says {stored:08x}", raw.at, True)
        self._owner(block, start)
        self.blocks[start] = raw.data
        return raw.data
