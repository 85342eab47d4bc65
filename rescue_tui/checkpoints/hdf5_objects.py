"""HDF5's objects: superblock, object headers, groups, datasets. Structure only, no payload is read.

Source: HDF5 File Format Specification 3.0, sections II (superblock), III.A (B-trees v1), III.B (symbol nodes), III.D
(local heap), IV.A.1 (object headers).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from rescue_tui.checkpoints.hdf5_messages import Datatype, Layout, attribute, dataspace, datatype, filters, layout
from rescue_tui.checkpoints.hdf5_wire import SIGNATURE, Fields, HdfError, checked
from rescue_tui.checkpoints.limits import NAME_BYTES
from rescue_tui.checkpoints.source import EndOfBytes, Source
from rescue_tui.core.text import decode

_HEADER_BYTES = 1 << 24
_HEAP_BYTES = 1 << 24
_MESSAGES = 65536
_LEAST_BYTES, _SPARE = 8, 1024
_DATASPACE, _LINK_INFO, _DATATYPE, _LINK, _LAYOUT, _FILTERS, _ATTRIBUTE, _CONTINUATION, _SYMBOLS = (
    0x01,
    0x02,
    0x03,
    0x06,
    0x08,
    0x0B,
    0x0C,
    0x10,
    0x11,
)
_SHARED = 2


class Superblock(NamedTuple):
    """Addresses are from the beginning of the file except ``root``, which is from ``base`` like all others."""

    version: int
    base: int
    end: int | None
    root: int
    flags: int
    address_bytes: int
    length_bytes: int


class Chunk(NamedTuple):
    """A stored chunk: first element, bytes in the file, filters that were left out (a bit for each)."""

    origin: tuple[int, ...]
    offset: int
    length: int
    mask: int


@dataclass(slots=True)
class Object:
    """One object header, as far as it matters here."""

    checksummed: bool = False
    shape: tuple[int, ...] | None = None
    datatype: Datatype | None = None
    layout: Layout | None = None
    filters: tuple[int, ...] = ()
    attributes: list[str] = field(default_factory=list)
    links: list[tuple[str, int]] = field(default_factory=list)  # names and addresses of headers
    symbols: tuple[int, int] | None = None
    dense_links: bool = False


def find_superblock(source: Source) -> Superblock:
    """The superblock, at 0 or behind a user block (512 bytes times a power of two). Raises `HdfError`, `EndOfBytes`."""
    at = 0
    while at + len(SIGNATURE) <= source.size_bytes:
        if source.read_at(at, len(SIGNATURE)) == SIGNATURE:
            return _superblock(source, at)
        at = at * 2 or 512
    raise HdfError("there is no superblock")


def _superblock(source: Source, at: int) -> Superblock:
    # The longest one, or as much of it as there is.
    fields = Fields(source.read_at(at, min(128, source.size_bytes - at)), at)
    fields.take(len(SIGNATURE))
    try:
        version = fields.number(1)
        if version > 3:
            raise HdfError(f"a superblock of version {version} does not exist", at)
        if version >= 2:
            sizes = (fields.number(1), fields.number(1))
            flags = fields.number(1)
        else:
            fields.take(4)
            sizes = (fields.number(1), fields.number(1))
            fields.take(1 + 2 + 2)
            flags = fields.number(4)
            fields.take(4 if version == 1 else 0)
        if not set(sizes) <= {2, 4, 8}:
            raise HdfError(f"addresses of {sizes[0]} and lengths of {sizes[1]} bytes do not exist", at)
        fields.address_bytes, fields.length_bytes = sizes
        base = fields.address()
        fields.address()
        end = fields.address()
        if version >= 2:
            root = fields.address()
            length = fields.position + 4
            if at + length <= source.size_bytes:
                checked(source.read_at(at, length), at, "the superblock")
        else:
            fields.address()
            fields.take(sizes[0])
            root = fields.address()
    except HdfError as trouble:
        if trouble.checksum or fields.left > 64 or "exist" in trouble.summary:
            raise
        raise EndOfBytes(at, 96, source.size_bytes) from None
    if root is None or base is None:
        raise HdfError("the superblock has no root group", at)
    return Superblock(version, base, end, root, flags, *sizes)


class Hdf:
    """An open file: gives objects by address. All methods raise `HdfError`, `EndOfBytes` and `UnreadableBytes`."""

    def __init__(self, source: Source, superblock: Superblock) -> None:
        self.source = source
        self.superblock = superblock
        # Every node, message and entry takes this many bytes and is met once: more means that places are met again.
        self.budget = source.size_bytes // _LEAST_BYTES + _SPARE

    def read(self, address: int, length: int) -> Fields:
        """Bytes at an address as fields."""
        at = self.superblock.base + address
        return Fields(self.source.read_at(at, length), at, self.superblock.address_bytes, self.superblock.length_bytes)

    def object(self, address: int) -> Object:
        """The object whose header is at an address."""
        made = Object()
        start = self.read(address, 16)
        if start.data.startswith(b"OHDR"):
            made.checksummed = True
            self._header2(address, made)
        else:
            self._header1(address, start, made)
        return made

    def children(self, parent: Object) -> Iterator[tuple[str, int]]:
        """Names and addresses of what hard links lead to."""
        yield from parent.links
        if parent.symbols is not None:
            tree, heap = parent.symbols
            names = self._heap(heap)
            yield from self._symbols(tree, names)

    def chunks(self, place: Layout, rank: int) -> Iterator[Chunk]:
        """The stored chunks of a dataset with a B-tree of version 1; the place's offset is its root."""
        if place.offset is not None:
            yield from self._chunk_node(place.offset - self.superblock.base, rank, None)

    def charge(self, count: int, at: int) -> None:
        """Count what is read, so that structures which lead to each other are not followed for ever."""
        self.budget -= count
        if self.budget < 0:
            raise HdfError("its structures lead to each other", at)

    def _header1(self, address: int, start: Fields, made: Object) -> None:
        version = start.number(1)
        if version != 1:
            raise HdfError("there is no object header", start.at)
        start.take(1)
        messages = start.number(2)
        start.take(4)
        size = start.number(4)
        blocks = [(address + 16, size)]
        seen = 0
        while blocks and seen < messages:
            where, length = blocks.pop(0)
            if length > _HEADER_BYTES:
                raise HdfError(f"an object header of {length} bytes is too large", start.at)
            self.charge(1, start.at)
            block = self.read(where, length)
            while block.left >= 8 and seen < messages:
                self.charge(1, block.offset)
                kind, length = block.number(2), block.number(2)
                flags = block.number(1)
                block.take(3)
                self._message(kind, flags, block.part(length), made, blocks)
                seen += 1
        if seen < messages:
            raise HdfError(f"{messages - seen} of {messages} messages of an object header are missing", start.at)

    def _header2(self, address: int, made: Object) -> None:
        start = self.read(address, min(64, self.source.size_bytes - self.superblock.base - address))
        start.expect(b"OHDR")
        if start.number(1) != 2:
            raise HdfError("an object header has an unknown version", start.at)
        flags = start.number(1)
        start.take((16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0))
        size = start.number(1 << (flags & 3))
        blocks: list[tuple[int, int]] = []
        self._block2(address, start.position, size + start.position + 4, flags, made, blocks)
        for _ in range(_MESSAGES):
            if not blocks:
                return
            where, length = blocks.pop(0)
            self._block2(where, 4, length, flags, made, blocks, b"OCHK")
        raise HdfError("an object header has too many parts", start.at)

    def _block2(
        self,
        address: int,
        skip: int,
        length: int,
        flags: int,
        made: Object,
        blocks: list[tuple[int, int]],
        signature: bytes = b"OHDR",
    ) -> None:
        if length > _HEADER_BYTES:
            raise HdfError(f"an object header of {length} bytes is too large", address)
        self.charge(length // _LEAST_BYTES, address)
        raw = self.read(address, length)
        block = Fields(checked(raw.data, raw.at, "an object header"), raw.at, raw.address_bytes, raw.length_bytes)
        block.expect(signature)
        block.take(skip - len(signature))
        head = 6 if flags & 4 else 4
        while block.left >= head:
            kind, size, message_flags = block.number(1), block.number(2), block.number(1)
            block.take(head - 4)
            self._message(kind, message_flags, block.part(size), made, blocks)

    def _message(self, kind: int, flags: int, body: Fields, made: Object, blocks: list[tuple[int, int]]) -> None:
        if kind == _CONTINUATION:
            address = body.address()
            if address is not None:
                blocks.append((address, body.length()))
        elif flags & _SHARED:
            if kind == _DATATYPE:
                made.datatype = Datatype("named-type", 0, variable=True)
        elif kind == _DATASPACE:
            made.shape = dataspace(body)
        elif kind == _DATATYPE:
            made.datatype = datatype(body)
        elif kind == _LAYOUT:
            made.layout = layout(body, self.superblock.base)
        elif kind == _FILTERS:
            made.filters = filters(body)
        elif kind == _SYMBOLS:
            tree, heap = body.address(), body.address()
            if tree is not None and heap is not None:
                made.symbols = (tree, heap)
        elif kind == _LINK:
            self._link(body, made)
        elif kind == _LINK_INFO:
            body.take(1)
            body.take(8 if body.number(1) & 1 else 0)
            made.dense_links = body.address() is not None
        elif kind == _ATTRIBUTE:
            made.attributes.append(attribute(body))

    def _link(self, body: Fields, made: Object) -> None:
        body.take(1)
        flags = body.number(1)
        kind = body.number(1) if flags & 8 else 0
        body.take((8 if flags & 4 else 0) + (1 if flags & 0x10 else 0))
        length = body.number(1 << (flags & 3))
        if length > NAME_BYTES:
            raise HdfError(f"a name of {length} bytes is too long", body.offset)
        name = decode(body.take(length))
        address = body.address() if kind == 0 else None
        if address is not None:
            made.links.append((name, address))

    def _heap(self, address: int) -> Fields:
        head = self.read(address, 8 + 2 * self.superblock.length_bytes + self.superblock.address_bytes)
        head.expect(b"HEAP")
        head.take(4)
        size = head.length()
        head.length()
        data = head.address()
        if data is None or size > _HEAP_BYTES:
            raise HdfError(f"a heap of {size} bytes for names is too large", head.at)
        self.charge(size // _LEAST_BYTES, head.at)
        return self.read(data, size)

    def _symbols(self, tree: int, names: Fields) -> Iterator[tuple[str, int]]:
        for node in self._group_nodes(tree, None):
            head = self.read(node, 8)
            head.expect(b"SNOD")
            head.take(2)
            count = head.number(2)
            self.charge(1 + count, head.at)
            width = 2 * self.superblock.address_bytes + 24
            body = self.read(node + 8, count * width)
            for _ in range(count):
                entry = body.part(width)
                name, address = entry.number(entry.address_bytes), entry.address()
                end = names.data.find(b"\0", name)
                if name >= len(names.data) or end < 0 or end - name > NAME_BYTES or end == name:
                    raise HdfError("a name is not in its heap", entry.at)
                if address is not None:
                    yield decode(names.data[name:end]), address

    def _node(self, address: int, kind: int, above: int | None) -> tuple[int, int]:
        """Level and entries of a B-tree's node; levels must fall, so that no loop is followed."""
        head = self.read(address, 8)
        head.expect(b"TREE")
        found, level, entries = head.number(1), head.number(1), head.number(2)
        self.charge(1 + entries, head.at)
        if found != kind or (above is not None and level != above - 1):
            raise HdfError("a node of a B-tree is not of the kind that its parent says", head.at)
        return level, entries

    def _group_nodes(self, address: int, above: int | None) -> Iterator[int]:
        level, entries = self._node(address, 0, above)
        skip = 8 + 2 * self.superblock.address_bytes
        body = self.read(address + skip, entries * (self.superblock.length_bytes + self.superblock.address_bytes))
        for _ in range(entries):
            body.length()
            child = body.address()
            if child is None:
                raise HdfError("a B-tree has a hole", body.offset)
            if level:
                yield from self._group_nodes(child, level)
            else:
                yield child

    def _chunk_node(self, address: int, rank: int, above: int | None) -> Iterator[Chunk]:
        level, entries = self._node(address, 1, above)
        skip = 8 + 2 * self.superblock.address_bytes
        width = 8 + 8 * (rank + 1) + self.superblock.address_bytes
        body = self.read(address + skip, entries * width)
        for _ in range(entries):
            length, mask = body.number(4), body.number(4)
            origin = tuple(body.number(8) for _ in range(rank + 1))[:-1]
            child = body.address()
            if child is None:
                raise HdfError("a B-tree of chunks has a hole", body.offset)
            if level:
                yield from self._chunk_node(child, rank, level)
            else:
                yield Chunk(origin, self.superblock.base + child, length, mask)
