"""Rows of a TensorFlow bundle's index: messages of tensor_bundle.proto, data types, and the keys of slices.

Sources: tensorflow/core/protobuf/tensor_bundle.proto, framework/types.proto, framework/tensor_shape.proto,
framework/tensor_slice.proto, util/saved_tensor_slice_util.cc, lib/strings/ordered_code.cc.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from rescue_tui.checkpoints.wire import WireError, fields, signed

STRING, RESOURCE, VARIANT = 7, 20, 21
MAX_RANK = 254  # TensorShape::MaxDimensions


class DType(NamedTuple):
    """A type's word and the bytes of one element; 0 where elements have sizes of their own."""

    word: str
    size_bytes: int


DTYPES = {
    1: DType("float32", 4), 2: DType("float64", 8), 3: DType("int32", 4), 4: DType("uint8", 1), 5: DType("int16", 2),
    6: DType("int8", 1), STRING: DType("string", 0), 8: DType("complex64", 8), 9: DType("int64", 8),
    10: DType("bool", 1), 11: DType("qint8", 1), 12: DType("quint8", 1), 13: DType("qint32", 4),
    14: DType("bfloat16", 2), 15: DType("qint16", 2), 16: DType("quint16", 2), 17: DType("uint16", 2),
    18: DType("complex128", 16), 19: DType("float16", 2), VARIANT: DType("variant", 0), 22: DType("uint32", 4),
    23: DType("uint64", 8), 24: DType("float8_e5m2", 1), 25: DType("float8_e4m3fn", 1),
    26: DType("float8_e4m3fnuz", 1), 27: DType("float8_e4m3b11fnuz", 1), 28: DType("float8_e5m2fnuz", 1),
    29: DType("int4", 1), 30: DType("uint4", 1), 31: DType("int2", 1), 32: DType("uint2", 1),
    33: DType("float4_e2m1fn", 1),
}


class Header(NamedTuple):
    """BundleHeaderProto."""

    shards: int
    big_endian: bool


class Extent(NamedTuple):
    """One dimension of a slice; ``length`` -1 means all of it."""

    start: int
    length: int


@dataclass(frozen=True, slots=True)
class BundleEntry:
    """BundleEntryProto. With ``slices`` it only describes the whole, and each slice has a row of its own."""

    dtype: int = 0
    shape: tuple[int, ...] = ()
    shard: int = 0
    offset: int = 0
    size: int = 0
    masked_crc: int | None = None
    slices: tuple[tuple[Extent, ...], ...] = ()

    @property
    def elements(self) -> int:
        """How many the shape makes."""
        return count(self.shape)

    @property
    def end(self) -> int:
        """The offset behind its payload."""
        return self.offset + self.size


def count(shape: tuple[int, ...]) -> int:
    """Elements of a shape."""
    total = 1
    for size in shape:
        total *= size
    return total


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise WireError("a message was expected")
    return value


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise WireError("a number was expected")
    return signed(value)


def parse_header(message: bytes) -> Header:
    """Raises `WireError`, also for a number of shards that can't be."""
    shards = endianness = 0
    for number, value in fields(message):
        if number == 1:
            shards = _number(value)
        elif number == 2:
            endianness = _number(value)
    if shards < 1 or shards > 1_000_000 or endianness not in {0, 1}:
        raise WireError(f"{shards} shards, endianness {endianness}")
    return Header(shards, endianness == 1)


def _shape(message: bytes) -> tuple[int, ...]:
    sizes: list[int] = []
    for number, value in fields(message):
        if number == 2:
            size = 0
            for inner, what in fields(_message(value)):
                if inner == 1:
                    size = _number(what)
            if size < 0 or len(sizes) >= MAX_RANK:
                raise WireError("a shape is impossible")
            sizes.append(size)
        elif number == 3 and value:
            raise WireError("a shape of unknown rank")
    return tuple(sizes)


def _slice(message: bytes) -> tuple[Extent, ...]:
    extents: list[Extent] = []
    for number, value in fields(message):
        if number != 1:
            continue
        start, length = 0, -1
        for inner, what in fields(_message(value)):
            if inner == 1:
                start = _number(what)
            elif inner == 2:
                length = _number(what)
        if start < 0 or length < -1 or len(extents) >= MAX_RANK:
            raise WireError("a slice is impossible")
        extents.append(Extent(start, length))
    return tuple(extents)


def parse_entry(message: bytes) -> BundleEntry:
    """Raises `WireError`."""
    dtype = shard = offset = size = 0
    shape: tuple[int, ...] = ()
    crc: int | None = None
    slices: list[tuple[Extent, ...]] = []
    for number, value in fields(message):
        if number == 1:
            dtype = _number(value)
        elif number == 2:
            shape = _shape(_message(value))
        elif number == 3:
            shard = _number(value)
        elif number == 4:
            offset = _number(value)
        elif number == 5:
            size = _number(value)
        elif number == 6:
            crc = _number(value) & 0xFFFFFFFF
        elif number == 7:
            slices.append(_slice(_message(value)))
    if offset < 0 or size < 0 or shard < 0:
        raise WireError("an offset or size is negative")
    if dtype not in DTYPES:
        raise WireError(f"data type {dtype} is unknown")
    return BundleEntry(dtype, shape, shard, offset, size, crc, tuple(slices))


# OrderedCode: numbers and strings written so that the bytes sort as the values do.
_SIGNED_BITS_PER_BYTE = 7
_SIGNED_MAX_BYTES = 10


def _unsigned_code(value: int) -> bytes:
    digits = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes((len(digits),)) + digits


def _string_code(value: bytes) -> bytes:
    return re.sub(rb"[\x00\xff]", lambda byte: byte[0] + bytes((byte[0][0] ^ 0xFF,)), value) + b"\x00\x01"


def _signed_code(value: int) -> bytes:
    """1 to 10 bytes, sign-extended; as many leading bits as bytes are flipped, over two bytes at most."""
    bits = (~value if value < 0 else value).bit_length()
    length = min(bits // _SIGNED_BITS_PER_BYTE + 1, _SIGNED_MAX_BYTES)
    header = (0xFFFF << (16 - length)) & 0xFFFF
    wide = value & ((1 << (8 * length)) - 1)
    return (wide ^ ((header << (8 * length)) >> 16)).to_bytes(length, "big")


def slice_key(name: bytes, extents: tuple[Extent, ...]) -> bytes:
    """The key of a slice's own row (EncodeTensorNameSlice)."""
    numbers = b"".join(_signed_code(one.start) + _signed_code(one.length) for one in extents)
    return _unsigned_code(0) + _string_code(name) + _unsigned_code(len(extents)) + numbers
