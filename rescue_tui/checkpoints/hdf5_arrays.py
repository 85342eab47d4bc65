"""HDF5's arrays of chunks: fixed and extensible ones. Every block's checksum is checked.

Source: HDF5 File Format Specification 3.0, sections VII.C (fixed array) and VII.D (extensible array).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from rescue_tui.checkpoints.hdf5_file import HdfFile, Later
from rescue_tui.checkpoints.hdf5_wire import Fields, HdfError, NotFollowedError
from rescue_tui.checkpoints.limits import TENSORS

_CHECKSUM_BYTES, _MASK_BYTES = 4, 4
_ELEMENT_BYTES = 64
_BITS = 64


class Slot(NamedTuple):
    """The stored chunk with this number; ``length`` None where the index says none: the chunk is not filtered."""

    number: int
    address: int
    length: int | None
    mask: int


@dataclass(frozen=True, slots=True)
class _Array:
    file: HdfFile
    address: int
    client: int
    element_bytes: int
    offset_bytes: int = 0  # of a block's place in the array, which only extensible arrays store

    def slots(self, fields: Fields, first: int, count: int) -> Iterator[Slot]:
        """Those of ``count`` elements that are chunks."""
        for number in range(first, first + count):
            element = fields.part(self.element_bytes)
            address = element.address()
            if address is not None and self.client:
                length = element.odd_number(element.left - _MASK_BYTES)
                yield Slot(number, address, length, element.number(_MASK_BYTES))
            elif address is not None:
                yield Slot(number, address, None, 0)

    def prefix_bytes(self) -> int:
        """Signature, version, client, header's address and offset of a block."""
        return 4 + 1 + 1 + self.file.superblock.address_bytes + self.offset_bytes

    def block(self, address: int, length: int, signature: bytes, *places: int) -> Fields:
        """A block behind its prefix; ``length`` is that of what follows it. ``places``: offsets that it may name."""
        block = self.file.read_checked(address, self.prefix_bytes() + length + _CHECKSUM_BYTES, signature)
        if block.number(1) != 0 or block.number(1) != self.client or block.address() != self.address:
            raise HdfError("a block is of another array", block.at)
        if places and block.odd_number(self.offset_bytes) not in places:
            raise HdfError("a block is of another place in its array", block.at)
        return block

    def page(self, address: int, first: int, count: int) -> Iterator[Slot]:
        """The elements of a page, which has no prefix."""
        yield from self.slots(
            self.file.read_checked(address, count * self.element_bytes + _CHECKSUM_BYTES, b""), first, count)


def _element_bytes(head: Fields, client: int, size: int) -> None:
    least = head.address_bytes + (_MASK_BYTES + 1 if client else 0)
    if client > 1 or not least <= size <= _ELEMENT_BYTES or (not client and size != least):
        raise HdfError("an array's header is not what it should be", head.at)


def fixed(file: HdfFile, address: int) -> Iterator[Slot]:
    """The chunks of a fixed array by the address of its header."""
    sizes = file.superblock
    head = file.read_checked(address, 4 + 4 + sizes.length_bytes + sizes.address_bytes + _CHECKSUM_BYTES, b"FAHD")
    version, client, element_bytes, page_bits = (head.number(1) for _ in range(4))
    count, data = head.length(), head.address()
    _element_bytes(head, client, element_bytes)
    if version != 0 or page_bits > _BITS:
        raise HdfError("an array's header is not what it should be", head.at)
    if count > TENSORS:
        raise NotFollowedError(f"an array of {count} chunks is larger than those of weights", head.at)
    if data is None:
        return
    array = _Array(file, address, client, element_bytes)
    page = 1 << page_bits
    if count <= page:
        yield from array.slots(array.block(data, count * element_bytes, b"FADB"), 0, count)
        return
    pages = -(-count // page)
    bitmap = array.block(data, -(-pages // 8), b"FADB").take(-(-pages // 8))
    at = data + array.prefix_bytes() + len(bitmap) + _CHECKSUM_BYTES
    later = Later()
    for number in range(pages):
        here = min(page, count - number * page)
        if _bit(bitmap, number):
            with later:
                yield from array.page(at, number * page, here)
        at += here * element_bytes + _CHECKSUM_BYTES
    later.close()


def _bit(bitmap: bytes, number: int) -> bool:
    return bool(bitmap[number // 8] & 0x80 >> number % 8)


class _Growth(NamedTuple):
    """How an extensible array grows: its parameters, as its header has them."""

    direct: int  # elements in the index block
    smallest: int  # elements of the first data block
    pointers: int  # the fewest data blocks that a super block of its own is made for
    page: int  # elements of a page


def extensible(file: HdfFile, address: int) -> Iterator[Slot]:
    """The chunks of an extensible array by the address of its header."""
    sizes = file.superblock
    head = file.read_checked(address, 4 + 8 + 6 * sizes.length_bytes + sizes.address_bytes + _CHECKSUM_BYTES, b"EAHD")
    version, client, element_bytes, bits, direct, smallest, pointers, page_bits = (head.number(1) for _ in range(8))
    head.take(4 * sizes.length_bytes)
    used = head.length()
    head.take(sizes.length_bytes)
    index = head.address()
    _element_bytes(head, client, element_bytes)
    powers = all(size and size & (size - 1) == 0 for size in (smallest, pointers))
    if version != 0 or not powers or bits > _BITS or page_bits > bits or smallest.bit_length() > bits or pointers < 2:
        raise HdfError("an array's header is not what it should be", head.at)
    if used > TENSORS:
        raise NotFollowedError(f"an array of {used} chunks is larger than those of weights", head.at)
    if index is None:
        return
    array = _Array(file, address, client, element_bytes, -(-bits // 8))
    yield from _index_block(array, _Growth(direct, smallest, pointers, 1 << page_bits), index, bits, used)


def _index_block(array: _Array, growth: _Growth, address: int, bits: int, used: int) -> Iterator[Slot]:
    """Elements, then addresses of data blocks, then those of super blocks, which hold more such addresses."""
    supers = 2 + bits - growth.smallest.bit_length()
    without = min(supers, 2 * (growth.pointers.bit_length() - 1))  # super blocks whose addresses lie here instead
    here = 2 * (growth.pointers - 1)
    width = array.file.superblock.address_bytes
    size = growth.direct * array.element_bytes + (here + supers - without) * width
    # The index block has no place in the array: its prefix lacks it.
    block = _Array(array.file, array.address, array.client, array.element_bytes).block(address, size, b"EAIB")
    yield from array.slots(block, 0, growth.direct)
    first, met, later = growth.direct, 0, Later()
    for number in range(supers):
        blocks, elements = 1 << number // 2, growth.smallest << (number + 1) // 2
        if first >= used and number >= without:
            break
        if number < without:
            start = first
            for _ in range(blocks):
                data = block.address()
                if data is not None:
                    # The library counts these blocks from the index block's first one, not from the super block's.
                    named = start - growth.direct + met * elements
                    with later:
                        yield from _data_block(array, growth, data, first, elements, None, named)
                first, met = first + elements, met + 1
            continue
        above = block.address()
        if above is not None:
            with later:
                yield from _super_block(array, growth, above, first, blocks, elements)
        first += blocks * elements
    later.close()


def _super_block(array: _Array, growth: _Growth, address: int, first: int, blocks: int,
                 elements: int) -> Iterator[Slot]:
    pages = elements // growth.page if elements > growth.page else 0
    map_bytes = -(-pages // 8)
    block = array.block(address, blocks * (map_bytes + array.file.superblock.address_bytes), b"EASB",
                        first - growth.direct)
    bitmap = block.take(blocks * map_bytes)
    later = Later()
    for number in range(blocks):
        data = block.address()
        if data is not None:
            there = [_bit(bitmap, number * pages + page) for page in range(pages)] if pages else None
            with later:
                yield from _data_block(array, growth, data, first, elements, there)
        first += elements
    later.close()


def _data_block(array: _Array, growth: _Growth, address: int, first: int, elements: int,
                pages: list[bool] | None, *named: int) -> Iterator[Slot]:
    if pages is None:
        block = array.block(address, elements * array.element_bytes, b"EADB", first - growth.direct, *named)
        yield from array.slots(block, first, elements)
        return
    array.block(address, 0, b"EADB", first - growth.direct)
    at = address + array.prefix_bytes() + _CHECKSUM_BYTES
    for there in pages:
        if there:
            yield from array.page(at, first, growth.page)
        at += growth.page * array.element_bytes + _CHECKSUM_BYTES
        first += growth.page
