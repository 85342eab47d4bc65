"""Zarr arrays, formats 2 and 3 with shards: what their metadata promises, and chunks checked against it.

Sources: zarr-specs v2.0 and v3.0 (regular grid; codecs bytes, transpose, zstd, gzip, crc32c, sharding_indexed).
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from rescue_tui.checkpoints import limits
from rescue_tui.checkpoints.checksums import crc32c
from rescue_tui.checkpoints.frames import FrameError, Seen, check_blosc, inflate, uncrc32c, unzstd
from rescue_tui.checkpoints.model import Proof
from rescue_tui.checkpoints.source import EndOfBytes, Source, UnreadableBytes

METADATA_2, METADATA_3 = ".zarray", "zarr.json"
METADATA_BYTES = 1 << 20
MAX_RANK = 64
_ITEM_BYTES = {
    "bool": 1, "int2": 1, "int4": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint2": 1, "uint4": 1,
    "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "complex64": 8, "complex128": 16,
}
_SMALL_FLOAT = re.compile(r"float[4-8]_e\dm\d\w{0,16}")  # one byte each in both formats
_NUMPY = re.compile(r"([<>|])([biufc])(\d{1,2})")
_KINDS = {"i": "int", "u": "uint", "f": "float", "c": "complex"}
_INDEX_ENTRY = struct.Struct("<QQ")
_ABSENT = 0xFFFFFFFFFFFFFFFF
_CRC = struct.Struct("<I")
_SCALAR_BYTES = 16


class ZarrError(Exception):
    """The metadata is no array's, or not one that can be."""


@dataclass(frozen=True, slots=True)
class Array:
    """``codecs`` as a writer applies them to a chunk's bytes. ``inner``: shape of a shard's chunks, if it has shards.

    ``order``: axes as they are stored, slowest first. ``unknown`` names what this reader does not know how to decode.
    """

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    dtype: str
    item_bytes: int
    big_endian: bool
    codecs: tuple[str, ...]
    order: tuple[int, ...]
    prefix: str
    separator: str
    inner: tuple[int, ...] | None = None
    index_first: bool = False
    index_checked: bool = False
    unknown: str = ""

    @property
    def grid(self) -> tuple[int, ...]:
        """Chunks along each axis."""
        return tuple(-(-size // step) for size, step in zip(self.shape, self.chunk, strict=True))


class Part(NamedTuple):
    """Elements that one run of stored bytes holds; the fields are those of a `Block`."""

    offset: int
    length: int
    origin: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    codec: str
    proof: Proof


class ChunkFault(NamedTuple):
    """What is wrong with a chunk, or with a part of a shard; ``verdict_free`` where it may be right."""

    code: str
    summary: str
    offset: int
    length: int
    cut: bool = False
    unknown: bool = False


@dataclass(slots=True)
class ChunkCheck:
    """``absent``: chunks of a shard that were not stored. ``scalar``: the bytes of an array of rank 0."""

    parts: list[Part] = field(default_factory=list)
    faults: list[ChunkFault] = field(default_factory=list)
    absent: int = 0
    scalar: bytes = b""


def _sizes(value: object, least: int) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > MAX_RANK:
        raise ZarrError("a shape is no list of sizes")
    for size in value:
        if not isinstance(size, int) or isinstance(size, bool) or size < least or size >> 62:
            raise ZarrError("a shape holds what is no size")
    return tuple(value)


def _object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _document(content: bytes) -> dict[str, object]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ZarrError("the metadata is no JSON") from error
    if not isinstance(found, dict):
        raise ZarrError("the metadata is no JSON object")
    return found


def _dtype(word: object) -> tuple[str, int, bool]:
    """Word, bytes and byte order of a type; raises for what has no fixed size."""
    if not isinstance(word, str):
        raise ZarrError("structured types are not arrays of numbers")
    numpy = _NUMPY.fullmatch(word)
    big = False
    if numpy:
        order, kind, size = numpy[1], numpy[2], int(numpy[3])
        word = "bool" if kind == "b" else f"{_KINDS[kind]}{size * 8}"
        big = order == ">" and size > 1
    if _SMALL_FLOAT.fullmatch(word):
        return word, 1, False
    if word not in _ITEM_BYTES:
        raise ZarrError(f"data type {word[:40]} is unknown")
    return word, _ITEM_BYTES[word], big


def parse_v2(content: bytes) -> Array:
    """A ``.zarray``. Raises `ZarrError`."""
    found = _document(content)
    if found.get("zarr_format") != 2:
        raise ZarrError("it is not of zarr format 2")
    shape, chunk = _sizes(found.get("shape"), 0), _sizes(found.get("chunks"), 1)
    word, size, big = _dtype(found.get("dtype"))
    compressor = found.get("compressor")
    name = str(_object(compressor).get("id", "")) if compressor is not None else ""
    unknown = "filters" if found.get("filters") else ""
    if name not in {"", "zstd", "gzip", "zlib", "blosc"}:
        unknown = f"compressor {name[:40]}"
    axes = tuple(range(len(shape)))
    separator = found.get("dimension_separator", ".")
    return _checked(Array(shape, chunk, word, size, big, (name,) if name else (),
                          axes[::-1] if found.get("order") == "F" else axes, "", "/" if separator == "/" else ".",
                          unknown=unknown))


class _Codecs(NamedTuple):
    names: tuple[str, ...]
    order: tuple[int, ...]
    big_endian: bool
    shard: dict[str, object] | None
    unknown: str


def _codecs(value: object, rank: int) -> _Codecs:
    names: list[str] = []
    order = tuple(range(rank))
    big = False
    shard: dict[str, object] | None = None
    unknown = ""
    for one in value if isinstance(value, list) else ():
        name = str(one if isinstance(one, str) else _object(one).get("name", ""))
        options = _object(_object(one).get("configuration"))
        if name == "bytes":
            big = options.get("endian") == "big"
        elif name == "transpose":
            given = options.get("order")
            if given == "F":
                order = order[::-1]
            elif isinstance(given, list) and sorted(str(axis) for axis in given) == sorted(str(axis) for axis in order):
                order = tuple(order[int(axis)] for axis in given)
            elif given != "C":
                unknown = "transpose"
        elif name == "sharding_indexed" and shard is None and not names:
            shard = options
        elif name in {"zstd", "gzip", "zlib", "blosc", "crc32c"} and shard is None:
            names.append(name)
        else:
            unknown = f"codec {name[:40]}"
    return _Codecs(tuple(names), order, big, shard, unknown)


def parse_v3(content: bytes) -> Array:
    """A ``zarr.json``. Raises `ZarrError`."""
    found = _document(content)
    if found.get("zarr_format") != 3 or found.get("node_type") != "array":
        raise ZarrError("it is no array of zarr format 3")
    shape = _sizes(found.get("shape"), 0)
    chunk = _sizes(_object(_object(found.get("chunk_grid")).get("configuration")).get("chunk_shape"), 1)
    word, size, _ = _dtype(found.get("data_type"))
    encoding = _object(found.get("chunk_key_encoding"))
    by_name = encoding.get("name", "default") == "default"
    separator = _object(encoding.get("configuration")).get("separator", "/" if by_name else ".")
    codecs = _codecs(found.get("codecs"), len(shape))
    inner: tuple[int, ...] | None = None
    index_first = index_checked = False
    order, unknown = codecs.order, codecs.unknown
    if codecs.shard is not None:
        if order != tuple(range(len(shape))):
            unknown = "transposed shards"
        inner = _sizes(codecs.shard.get("chunk_shape"), 1)
        index_first = codecs.shard.get("index_location") == "start"
        index = _codecs(codecs.shard.get("index_codecs"), len(shape) + 1)
        index_checked = index.names == ("crc32c",)
        if index.names not in {(), ("crc32c",)} or index.big_endian or index.unknown or index.shard is not None:
            unknown = "index of shards"
        codecs = _codecs(codecs.shard.get("codecs"), len(shape))
        order, unknown = codecs.order, unknown or codecs.unknown
        if codecs.shard is not None:
            unknown = "shards in shards"
    return _checked(Array(shape, chunk, word, size, codecs.big_endian, codecs.names, order, "c" if by_name else "",
                          "." if separator == "." else "/", inner, index_first, index_checked, unknown))


def _checked(array: Array) -> Array:
    if len(array.shape) != len(array.chunk):
        raise ZarrError("shape and chunks differ in rank")
    if array.inner is not None and (len(array.inner) != len(array.chunk) or any(
            outer % step for outer, step in zip(array.chunk, array.inner, strict=True))):
        raise ZarrError("the chunks of a shard do not fill it")
    if prod(array.chunk) * array.item_bytes >> 62 or prod(array.grid) > limits.TENSORS * 16:
        raise ZarrError("it has absurdly many elements or chunks")
    return array


def chunk_index(array: Array, key: str) -> tuple[int, ...] | None:
    """The place in the grid that a key below the array names; None for what is no chunk of it."""
    rank = len(array.shape)
    parts = key.split(array.separator)
    if array.prefix:
        if parts[0] != array.prefix:
            return None
        parts = parts[1:]
    elif rank == 0:
        return () if parts == ["0"] else None
    if len(parts) != rank or not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
        return None
    index = tuple(int(part) for part in parts)
    return index if all(one < many for one, many in zip(index, array.grid, strict=True)) else None


def chunk_key(array: Array, index: tuple[int, ...]) -> str:
    """The key of a chunk below its array."""
    parts = [*((array.prefix,) if array.prefix else ()), *(str(one) for one in index)]
    return array.separator.join(parts) or "0"


def check_chunk(array: Array, index: tuple[int, ...], source: Source, offset: int, length: int) -> ChunkCheck:
    """Decode what is stored for a chunk and hold it against the array's shape and type. Never raises."""
    check = ChunkCheck()
    origin = tuple(one * step for one, step in zip(index, array.chunk, strict=True))
    if array.unknown:
        check.faults.append(ChunkFault("unknown-codec", f"{array.unknown} is not understood", offset, length,
                                       unknown=True))
        check.parts.append(Part(offset, length, origin, _clipped(array, origin, array.chunk), None, array.unknown,
                                Proof.UNVERIFIABLE))
    elif array.inner is None:
        _part(array, array.chunk, origin, source, offset, length, check)
    else:
        _shard(array, array.inner, origin, source, offset, length, check)
    return check


def _clipped(array: Array, origin: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(max(0, min(step, size - at)) for at, step, size in zip(origin, full, array.shape, strict=True))


def _strides(array: Array, full: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    if full == shape and array.order == tuple(range(len(full))):
        return None
    strides = [0] * len(full)
    step = 1
    for axis in reversed(array.order):
        strides[axis] = step
        step *= full[axis]
    return tuple(strides)


def _shard(array: Array, inner: tuple[int, ...], origin: tuple[int, ...], source: Source, offset: int, length: int,
           check: ChunkCheck) -> None:
    counts = tuple(outer // step for outer, step in zip(array.chunk, inner, strict=True))
    index_bytes = _INDEX_ENTRY.size * prod(counts) + (_CRC.size if array.index_checked else 0)
    damaged = Part(offset, length, origin, _clipped(array, origin, array.chunk), None, "shard", Proof.DAMAGED)
    if index_bytes > min(length, limits.HELD_BYTES):
        check.faults.append(ChunkFault("shard-index", f"the index of a shard needs {index_bytes} bytes, the shard has "
                                       f"{length}", offset, length, cut=index_bytes > length))
        check.parts.append(damaged)
        return
    at = offset if array.index_first else offset + length - index_bytes
    try:
        index = source.read_at(at, index_bytes)
    except (EndOfBytes, UnreadableBytes) as error:
        check.faults.append(_fault_of(error, at, index_bytes))
        check.parts.append(damaged)
        return
    if array.index_checked and crc32c((index[: -_CRC.size],)) != _CRC.unpack_from(index, index_bytes - _CRC.size)[0]:
        check.faults.append(ChunkFault("crc-mismatch", "the index of a shard does not match its crc32c", at,
                                       index_bytes))
        check.parts.append(damaged)
        return
    entries = _INDEX_ENTRY.iter_unpack(index[: _INDEX_ENTRY.size * prod(counts)])
    for place, (start, size) in zip(_places(counts), entries, strict=True):
        corner = tuple(base + one * step for base, one, step in zip(origin, place, inner, strict=True))
        if not all(one < many for one, many in zip(corner, array.shape, strict=True)):
            continue
        if start == _ABSENT and size == _ABSENT:
            check.absent += 1
        elif start + size > length:
            check.faults.append(ChunkFault("shard-index", "a chunk lies outside of its shard", at, index_bytes))
            check.parts.append(damaged._replace(origin=corner, shape=_clipped(array, corner, inner)))
        else:
            _part(array, inner, corner, source, offset + start, size, check)


def _places(counts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for number in range(prod(counts)):
        place = []
        for many in reversed(counts):
            number, one = divmod(number, many)  # noqa: PLW2901
            place.append(one)
        yield tuple(reversed(place))


def _fault_of(error: EndOfBytes | UnreadableBytes, offset: int, length: int) -> ChunkFault:
    if isinstance(error, UnreadableBytes):
        return ChunkFault("unreadable", f"it can't be read: {error.reason}", offset, length, cut=True)
    return ChunkFault("data-cut", f"its file ends at {error.size_bytes}", offset, length, cut=True)


def _part(array: Array, full: tuple[int, ...], origin: tuple[int, ...], source: Source, offset: int, length: int,
          check: ChunkCheck) -> None:
    shape = _clipped(array, origin, full)
    expected = prod(full) * array.item_bytes
    seen = Seen()
    proof = Proof.UNVERIFIABLE
    payload = length - _CRC.size if array.codecs[-1:] == ("crc32c",) else length
    codec = "+".join(array.codecs[:-1] if payload != length else array.codecs)
    try:
        # Bytes that nothing covers are not read here: only their number can be wrong.
        made = 0 if array.codecs or not array.shape else length
        for piece in () if made else _decoded(array.codecs, source.chunks(offset, length), length, expected, seen):
            made += len(piece)
            if not array.shape and made <= _SCALAR_BYTES:
                check.scalar += piece
        if made != expected and array.codecs != ("blosc",):
            raise FrameError("size-mismatch", f"it holds {made} bytes instead of {expected}")
        if seen.checked:
            proof = Proof.VERIFIED
    except FrameError as error:
        check.faults.append(ChunkFault(error.code, error.summary, offset, length, error.code == "frame-cut",
                                       error.unsupported))
        proof = proof if error.unsupported else Proof.DAMAGED
    except (EndOfBytes, UnreadableBytes) as error:
        check.faults.append(_fault_of(error, offset, length))
        proof = Proof.DAMAGED
    if proof is Proof.DAMAGED:
        check.scalar = b""
    check.parts.append(Part(offset, max(0, payload), origin, shape, _strides(array, full, shape), codec, proof))


def _decoded(codecs: tuple[str, ...], stored: Iterable[bytes], length: int, expected: int,
             seen: Seen) -> Iterable[bytes]:
    stream = stored
    limit = expected + _CRC.size * codecs.count("crc32c")
    for codec in reversed(codecs):
        if codec == "crc32c":
            stream = uncrc32c(stream, seen)
        elif codec == "zstd":
            stream = unzstd(stream, limit, seen)
        elif codec in {"gzip", "zlib"}:
            stream = inflate(stream, limit, seen, codec == "gzip")
        else:
            if codecs != ("blosc",):
                raise FrameError("unknown-codec", "blosc among other codecs is not understood", unsupported=True)
            check_blosc(stream, length, expected)
            return ()
    return stream
