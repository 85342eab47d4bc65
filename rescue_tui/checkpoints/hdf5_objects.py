"""HDF5's objects: superblock, object headers, groups, datasets. Structure only, no payload is read.

Source: HDF5 File Format Specification 3.0, sections II (superblock), III.A (B-trees v1), III.B (symbol nodes), III.D
(local heap), IV.A.1 (object headers).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from rescue_tui.checkpoints import hdf5_btree2
from rescue_tui.checkpoints.hdf5_file import LEAST_BYTES, STRUCTURE_BYTES, HdfFile, Later
from rescue_tui.checkpoints.hdf5_heap import FractalHeap
from rescue_tui.checkpoints.hdf5_messages import (
    Datatype,
    Filter,
    Layout,
    Space,
    attribute,
    dataspace,
    datatype,
    filters,
    layout,
)
from rescue_tui.checkpoints.hdf5_wire import Fields, HdfError, NotFollowedError, checked
from rescue_tui.checkpoints.limits import NAME_BYTES
from rescue_tui.core.text import decode

_MESSAGES = 65536
_DATASPACE, _LINK_INFO, _DATATYPE, _LINK, _EXTERNAL, _LAYOUT, _FILTERS, _ATTRIBUTE = 1, 2, 3, 6, 7, 8, 11, 12
_CONTINUATION, _SYMBOLS, _ATTRIBUTE_INFO = 0x10, 0x11, 0x15
_SHARED = 2
_IN_HEADER = 2  # a shared message that lies in another object's header; versions before 3 know no other


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
    space: Space | None = None
    datatype: Datatype | None = None
    layout: Layout | None = None
    filters: tuple[Filter, ...] = ()
    external: bool = False
    unfollowed: bool = False  # a message that matters is shared in a way that is not followed
    attributes: list[str] = field(default_factory=list)
    links: list[tuple[str, int]] = field(default_factory=list)  # names and addresses of headers
    symbols: tuple[int, int] | None = None
    dense_links: tuple[int, int] | None = None  # a heap and a B-tree over it
    more_attributes: tuple[int, int] | None = None


class Hdf(HdfFile):
    """An open file: gives objects by address. All methods raise `HdfError`, `EndOfBytes` and `UnreadableBytes`."""

    resolving = False

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
            tree, names = parent.symbols
            yield from self._symbols(tree, self._heap(names))
        if parent.dense_links is not None:
            address, tree = parent.dense_links
            heap = FractalHeap(self, address)
            parent.checksummed = parent.checksummed and heap.checksummed
            later = Later()
            with later:
                for record in hdf5_btree2.records(self, tree, hdf5_btree2.LINKS):
                    record.take(4)  # the name's hash
                    link = None
                    with later:
                        link = self._link(heap.object(record.take(record.left)))
                    if link is not None:
                        yield link
            later.close()

    def dense_attributes(self, parent: Object) -> Iterator[str]:
        """Names of attributes that are too many for the header."""
        if parent.more_attributes is not None:
            address, tree = parent.more_attributes
            heap = FractalHeap(self, address)
            for record in hdf5_btree2.records(self, tree, hdf5_btree2.ATTRIBUTES):
                identifier, flags = record.take(8), record.number(1)
                if flags & _SHARED:
                    continue
                try:
                    yield attribute(heap.object(identifier))
                except NotFollowedError:
                    continue  # a large one, outside of the heap: texts, not weights

    def chunks(self, place: Layout, rank: int) -> Iterator[Chunk]:
        """The stored chunks of a dataset with a B-tree of version 1; the place's offset is its root."""
        if place.offset is not None:
            yield from self._chunk_node(place.offset - self.superblock.base, rank, None)

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
        self.charge(length // LEAST_BYTES, address)
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
        elif flags & _SHARED and kind in {_DATASPACE, _DATATYPE, _FILTERS, _LAYOUT}:
            self._shared(kind, body, made)
        elif kind == _DATASPACE:
            made.space = dataspace(body)
        elif kind == _DATATYPE:
            made.datatype = datatype(body)
        elif kind == _EXTERNAL:
            made.external = True
        elif kind == _LAYOUT:
            made.layout = layout(body, self.superblock.base)
        elif kind == _FILTERS:
            made.filters = filters(body)
        elif kind == _SYMBOLS:
            made.symbols = _pair(body)
        elif kind == _LINK:
            link = self._link(body)
            if link is not None:
                made.links.append(link)
        elif kind == _LINK_INFO:
            body.take(1)
            body.take(8 if body.number(1) & 1 else 0)
            made.dense_links = _pair(body)
        elif kind == _ATTRIBUTE_INFO:
            body.take(1)
            body.take(2 if body.number(1) & 1 else 0)
            made.more_attributes = _pair(body)
        elif kind == _ATTRIBUTE:
            made.attributes.append(attribute(body))

    def _shared(self, kind: int, body: Fields, made: Object) -> None:
        """A message that another object's header holds: a named datatype."""
        version, place = body.number(1), body.number(1)
        body.take(6 if version == 1 else 0)
        address = body.address() if version < 3 or place == _IN_HEADER else None
        if kind != _DATATYPE or address is None:
            made.unfollowed = True
            return
        if self.resolving:
            raise HdfError("a named datatype is named by another", body.at)
        self.resolving = True
        try:
            named = self.object(address)
        finally:
            self.resolving = False
        if named.datatype is None:
            raise HdfError("a named datatype has no datatype", body.at)
        made.datatype = named.datatype
        made.checksummed = made.checksummed and named.checksummed

    def _link(self, body: Fields) -> tuple[str, int] | None:
        """A link's name and where it leads; None for soft and external ones."""
        body.take(1)
        flags = body.number(1)
        kind = body.number(1) if flags & 8 else 0
        body.take((8 if flags & 4 else 0) + (1 if flags & 0x10 else 0))
        length = body.number(1 << (flags & 3))
        if length > NAME_BYTES:
            raise HdfError(f"a name of {length} bytes is too long", body.offset)
        name = decode(body.take(length))
        address = body.address() if kind == 0 else None
        return None if address is None else (name, address)

    def _heap(self, address: int) -> Fields:
        head = self.read(address, 8 + 2 * self.superblock.length_bytes + self.superblock.address_bytes)
        head.expect(b"HEAP")
        head.take(4)
        size = head.length()
        head.length()
        data = head.address()
        if data is None or size > STRUCTURE_BYTES:
            raise HdfError(f"a heap of {size} bytes for names is too large", head.at)
        self.charge(size // LEAST_BYTES, head.at)
        return self.read(data, size)

    def _symbols(self, tree: int, names: Fields) -> Iterator[tuple[str, int]]:
        later = Later()
        with later:
            for node in self._group_nodes(tree, None):
                with later:
                    yield from self._symbol_node(node, names)
        later.close()

    def _symbol_node(self, node: int, names: Fields) -> Iterator[tuple[str, int]]:
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
        later = Later()
        for _ in range(entries):
            body.length()
            child = body.address()
            with later:
                if child is None:
                    raise HdfError("a B-tree has a hole", body.offset)
                if level:
                    yield from self._group_nodes(child, level)
                else:
                    yield child
        later.close()

    def _chunk_node(self, address: int, rank: int, above: int | None) -> Iterator[Chunk]:
        level, entries = self._node(address, 1, above)
        skip = 8 + 2 * self.superblock.address_bytes
        width = 8 + 8 * (rank + 1) + self.superblock.address_bytes
        body = self.read(address + skip, entries * width)
        later = Later()
        for _ in range(entries):
            length, mask = body.number(4), body.number(4)
            origin = tuple(body.number(8) for _ in range(rank + 1))[:-1]
            child = body.address()
            with later:
                if child is None:
                    raise HdfError("a B-tree of chunks has a hole", body.offset)
                if level:
                    yield from self._chunk_node(child, rank, level)
                else:
                    yield Chunk(origin, self.superblock.base + child, length, mask)
        later.close()


def _pair(body: Fields) -> tuple[int, int] | None:
    """Addresses of a heap and of a B-tree (or the other way round); None where nothing was allocated."""
    first, second = body.address(), body.address()
    return None if first is None or second is None else (first, second)
