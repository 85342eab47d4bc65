"""HDF5's messages of an object header: dataspace, datatype, data layout, filter pipeline, attribute.

Source: HDF5 File Format Specification 3.0, section IV.A.2.
"""

from __future__ import annotations

from typing import NamedTuple

from rescue_tui.checkpoints.hdf5_wire import Fields, HdfError
from rescue_tui.checkpoints.limits import NAME_BYTES
from rescue_tui.core.text import decode

_RANK = 32
_COMPACT, _CONTIGUOUS, _CHUNKED = 0, 1, 2
_FIXED, _FLOAT, _TEXT, _COMPOUND, _REFERENCE, _ENUM, _VARIABLE, _COMPLEX = 0, 1, 3, 6, 7, 8, 9, 11
DEFLATE, SHUFFLE, FLETCHER = 1, 2, 3
# Indices of chunks: a B-tree of version 1 (layouts before version 4), and those of layouts of version 4 and 5.
INDEX_BTREE1, INDEX_SINGLE, INDEX_IMPLICIT, INDEX_FIXED, INDEX_EXTENSIBLE, INDEX_BTREE2 = range(6)
# What a layout says of an index beside its address; the index's own header says it again.
_PARAMETER_BYTES = {INDEX_FIXED: 1, INDEX_EXTENSIBLE: 5, INDEX_BTREE2: 6}
_FLOATS = {(2, 8): "bfloat16", (1, 4): "float8_e4m3fn", (1, 5): "float8_e5m2"}  # by size and bits of the exponent


class Datatype(NamedTuple):
    """``word`` names it as numpy does; ``variable`` data lies in heaps and is no tensor."""

    word: str
    size: int
    big_endian: bool = False
    variable: bool = False


class Space(NamedTuple):
    """Elements along each axis, and how many they may become (None without a limit). ``shape`` None: no element."""

    shape: tuple[int, ...] | None
    most: tuple[int | None, ...] = ()


class Filter(NamedTuple):
    """A step of a pipeline; ``item_bytes``: what shuffle takes apart."""

    kind: int
    item_bytes: int = 0


class Layout(NamedTuple):
    """Where a dataset's bytes are; ``offset`` from the beginning of the file, None where nothing was allocated.

    Compact and contiguous data is one run of ``length`` bytes (None: a layout before version 3 tells none); ``chunk``
    has the chunk's shape, ``index_kind`` says what lies at ``offset``. ``length`` and ``mask`` are a single filtered
    chunk's. ``bare_edges``: chunks that reach beyond the dataset are stored without filters.
    """

    kind: int
    offset: int | None
    length: int | None
    chunk: tuple[int, ...] = ()
    index_kind: int = 0
    mask: int = 0
    bare_edges: bool = False

    @property
    def compact(self) -> bool:
        """Stored in the object header itself."""
        return self.kind == _COMPACT

    @property
    def elsewhere(self) -> bool:
        """A view of datasets in other files."""
        return self.kind not in {_COMPACT, _CONTIGUOUS, _CHUNKED}

    @property
    def chunked(self) -> bool:
        """Stored in chunks."""
        return self.kind == _CHUNKED


def dataspace(body: Fields) -> Space:
    """Sizes, and the largest that they may become."""
    version, rank, flags = body.number(1), body.number(1), body.number(1)
    if version not in {1, 2} or rank > _RANK or flags > 3:
        raise HdfError("a dataspace is damaged", body.at)
    if version == 1:
        body.take(5)
    elif body.number(1) == 2:
        return Space(None)
    shape = tuple(body.length() for _ in range(rank))
    if not flags & 1:
        return Space(shape, shape)
    unlimited = (1 << 8 * body.length_bytes) - 1
    most = tuple(None if size == unlimited else size for size in (body.length() for _ in range(rank)))
    if any(limit is not None and limit < size for limit, size in zip(most, shape, strict=True)):
        raise HdfError("a dataspace is larger than its own limit", body.at)
    return Space(shape, most)


def datatype(body: Fields) -> Datatype:
    """A datatype message, in the words of numpy where it has one."""
    first, bits = body.number(1), body.odd_number(3)
    size = body.number(4)
    kind, version = first & 0x0F, first >> 4
    if not 1 <= version <= 5:
        raise HdfError("a datatype is damaged", body.at)
    big = bool(bits & 1)
    if kind == _FIXED:
        return Datatype(f"{'int' if bits & 8 else 'uint'}{8 * size}", size, big)
    if kind == _FLOAT:
        body.take(4 + 1)
        exponent = body.number(1)
        return Datatype(_FLOATS.get((size, exponent), f"float{8 * size}"), size, big)
    if kind == _ENUM:
        if body.left and body.data[body.position] & 0x0F != _FIXED:
            raise HdfError("an enumeration is not of whole numbers", body.at)
        base = datatype(body)
        return Datatype("bool" if base.size == 1 and bits & 0xFFFF == 2 else base.word, size, base.big_endian)
    if kind == _COMPOUND:
        words = {8: "complex64", 16: "complex128"}
        return Datatype(words.get(size, "compound") if bits & 0xFFFF == 2 else "compound", size)
    if kind == _COMPLEX:
        return Datatype(f"complex{8 * size}", size, big)
    if kind == _TEXT:
        return Datatype(f"S{size}", size)
    return Datatype(f"hdf5-class-{kind}", size, variable=kind in {_VARIABLE, _REFERENCE})


def filters(body: Fields) -> tuple[Filter, ...]:
    """A pipeline's filters, in the order in which the writer applied them."""
    version, count = body.number(1), body.number(1)
    if version not in {1, 2} or count > 32:
        raise HdfError("a filter pipeline is damaged", body.at)
    if version == 1:
        body.take(6)
    steps = []
    for _ in range(count):
        kind = body.number(2)
        name = body.number(2) if version == 1 or kind >= 256 else 0
        body.take(2)
        values = body.number(2)
        body.take(-(-name // 8) * 8 if version == 1 else name)
        data = body.part(4 * values + (4 if version == 1 and values % 2 else 0))
        steps.append(Filter(kind, data.number(4) if kind == SHUFFLE and values else 0))
    return tuple(steps)


def attribute(body: Fields) -> str:
    """The name of an attribute."""
    version = body.number(1)
    body.take(1)
    length = body.number(2)
    body.take(4 if version < 3 else 5)
    return decode(body.take(min(length, NAME_BYTES)).rstrip(b"\0"))


def layout(body: Fields, base: int) -> Layout:
    """A data layout message, of all versions; ``base`` is the file's base address."""
    version = body.number(1)
    if version in {1, 2}:
        return _old_layout(body, base)
    if version not in {3, 4, 5}:
        raise HdfError(f"a data layout of version {version} does not exist", body.at)
    kind = body.number(1)
    if kind == _COMPACT:
        length = body.number(2)
        at = body.offset
        body.take(length)
        return Layout(kind, at, length)
    if kind == _CONTIGUOUS:
        return Layout(kind, _place(body.address(), base), body.length())
    if kind != _CHUNKED:
        return Layout(kind, None, 0)  # virtual: the bytes are in other files
    return _chunked3(body, base) if version == 3 else _chunked4(body, base)


def _place(address: int | None, base: int) -> int | None:
    return None if address is None else base + address


def _old_layout(body: Fields, base: int) -> Layout:
    rank, kind = body.number(1), body.number(1)
    body.take(5)
    address = body.address() if kind != _COMPACT else None
    sizes = tuple(body.number(4) for _ in range(rank))
    if kind == _CHUNKED:
        return Layout(kind, _place(address, base), 0, sizes[:-1])
    if kind == _CONTIGUOUS:
        return Layout(kind, _place(address, base), None)
    length = body.number(4)
    at = body.offset
    body.take(length)
    return Layout(kind, at, length)


def _chunked3(body: Fields, base: int) -> Layout:
    rank = body.number(1)
    address = body.address()
    sizes = tuple(body.number(4) for _ in range(rank))
    return Layout(_CHUNKED, _place(address, base), 0, sizes[:-1])


def _chunked4(body: Fields, base: int) -> Layout:
    flags, rank, width = body.number(1), body.number(1), body.number(1)
    sizes = tuple(body.odd_number(width) for _ in range(rank))
    index = body.number(1)
    length = mask = 0
    if not INDEX_SINGLE <= index <= INDEX_BTREE2:
        raise HdfError(f"an index of chunks of kind {index} does not exist", body.at)
    if index == INDEX_SINGLE and flags & 2:
        length, mask = body.length(), body.number(4)
    else:
        body.take(_PARAMETER_BYTES.get(index, 0))
    return Layout(_CHUNKED, _place(body.address(), base), length, sizes[:-1], index, mask, bool(flags & 1))
