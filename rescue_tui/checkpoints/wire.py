"""Protocol buffers on the wire: as much as the readers need (protobuf.dev, Encoding), every length checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

VARINT_BYTES = 10  # the longest encoding of 64 bits
_MASK64 = (1 << 64) - 1
_WIRE_VARINT, _WIRE_I64, _WIRE_LEN, _WIRE_I32 = 0, 1, 2, 5
_FIXED = {_WIRE_I64: 8, _WIRE_I32: 4}
_FIELD_BITS = 3


class WireError(Exception):
    """The bytes are no well-formed message."""


class Field(NamedTuple):
    """One field as it stands: ``value`` is an int for varint and fixed fields, else the bytes."""

    number: int
    value: int | bytes


def varint(data: bytes | memoryview, at: int, end: int | None = None) -> tuple[int, int]:
    """An unsigned 64-bit varint and the offset behind it. Raises `WireError`."""
    value = shift = 0
    stop = min(len(data) if end is None else end, at + VARINT_BYTES)
    while at < stop:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK64, at
        shift += 7
    raise WireError("a varint does not end")


def signed(value: int) -> int:
    """An int32 or int64 field: two's complement in 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def fields(message: bytes) -> Iterator[Field]:
    """Every field of a message in order. Raises `WireError` where it stops being one."""
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        number, kind = tag >> _FIELD_BITS, tag & ((1 << _FIELD_BITS) - 1)
        if number == 0:
            raise WireError("a field has number 0")
        if kind == _WIRE_VARINT:
            value, at = varint(message, at)
            yield Field(number, value)
            continue
        if kind == _WIRE_LEN:
            length, at = varint(message, at)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise WireError(f"wire type {kind} is not used")
        if length > len(message) - at:
            raise WireError("a field is longer than its message")
        piece = message[at : at + length]
        at += length
        yield Field(number, piece if kind == _WIRE_LEN else int.from_bytes(piece, "little"))
