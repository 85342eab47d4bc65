"""HDF5's B-trees of version 2: every record, every node's checksum checked.

Source: HDF5 File Format Specification 3.0, section III.A.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rescue_tui.checkpoints.hdf5_file import HdfFile, Later
from rescue_tui.checkpoints.hdf5_wire import Fields, HdfError

LINKS, ATTRIBUTES, CHUNKS, FILTERED_CHUNKS = 5, 8, 10, 11
_PREFIX_BYTES = 10  # signature, version, type and checksum of a node
_DEPTH = 32


def bytes_for(number: int) -> int:
    """How many bytes the format takes for numbers up to this one."""
    return max(0, number.bit_length() - 1) // 8 + 1


@dataclass(frozen=True, slots=True)
class _Shape:
    """Sizes that all nodes share. ``count_bytes``: a child's records; ``total_bytes``: those of a level's subtrees."""

    kind: int
    node_bytes: int
    record_bytes: int
    count_bytes: int
    total_bytes: tuple[int, ...]


def records(file: HdfFile, address: int, kind: int) -> Iterator[Fields]:
    """Every record of the tree whose header is at an address. Raises `HdfError` also when their number is wrong."""
    sizes = file.superblock
    head = file.read_checked(address, 4 + 2 + 4 + 2 + 2 + 2 + sizes.address_bytes + 2 + sizes.length_bytes + 4, b"BTHD")
    version, found = head.number(1), head.number(1)
    node_bytes, record_bytes, depth = head.number(4), head.number(2), head.number(2)
    head.take(2)
    root, count, total = head.address(), head.number(2), head.length()
    if version != 0 or found != kind or not record_bytes or depth > _DEPTH or node_bytes <= _PREFIX_BYTES:
        raise HdfError("a B-tree's header is not what it should be", head.at)
    if root is None:
        if total:
            raise HdfError(f"a B-tree of {total} records has no root", head.at)
        return
    shape = _shape(head, sizes.address_bytes, kind, node_bytes, record_bytes, depth)
    met = 0
    for record in _node(file, shape, root, count, depth):
        met += 1
        yield record
    if met != total:
        raise HdfError(f"a B-tree has {met} records, its header says {total}", head.at)


def _shape(head: Fields, address_bytes: int, kind: int, node_bytes: int, record_bytes: int, depth: int) -> _Shape:
    most = (node_bytes - _PREFIX_BYTES) // record_bytes
    count_bytes = bytes_for(most)
    below, totals = most, [0]
    for _ in range(depth):
        pointer = address_bytes + count_bytes + totals[-1]
        here = (node_bytes - _PREFIX_BYTES - pointer) // (record_bytes + pointer)
        if here < 1:
            raise HdfError("a B-tree's nodes are too small", head.at)
        below = (here + 1) * below + here
        totals.append(bytes_for(below))
    return _Shape(kind, node_bytes, record_bytes, count_bytes, tuple(totals))


def _node(file: HdfFile, shape: _Shape, address: int, count: int, depth: int) -> Iterator[Fields]:
    size = _PREFIX_BYTES + count * shape.record_bytes
    if depth:
        size += (count + 1) * (file.superblock.address_bytes + shape.count_bytes + shape.total_bytes[depth - 1])
    if size > shape.node_bytes:
        raise HdfError(f"{count} records do not fit into a node of a B-tree", file.superblock.base + address)
    node = file.read_checked(address, size, b"BTIN" if depth else b"BTLF")
    if node.number(1) != 0 or node.number(1) != shape.kind:
        raise HdfError("a node of a B-tree is of another kind", node.at)
    held = [node.part(shape.record_bytes) for _ in range(count)]
    if not depth:
        yield from held
        return
    later = Later()
    for index in range(count + 1):
        child, below = node.address(), node.odd_number(shape.count_bytes)
        node.take(shape.total_bytes[depth - 1])
        with later:
            if child is None:
                raise HdfError("a B-tree has a hole", node.at)
            yield from _node(file, shape, child, below, depth - 1)
        if index < count:
            yield held[index]
    later.close()
