"""Payload of one entry of a TensorFlow bundle against its crc32c: plain bytes, string tensors, variants.

Source: tensorflow/core/util/tensor_bundle/tensor_bundle.cc (WriteTensor, WriteStringTensor, WriteVariantTensor).
"""

from __future__ import annotations

from typing import Literal

import google_crc32c

from rescue_tui.checkpoints.checksums import crc32c, unmask_crc32c
from rescue_tui.checkpoints.source import Source
from rescue_tui.checkpoints.wire import VARINT_BYTES, WireError, varint

_CHECKSUM_BYTES = 4
_UINT32_MAX = 0xFFFFFFFF
_READ_BYTES = 64 << 10


def payload_matches(source: Source, offset: int, size: int, masked: int) -> bool:
    """True when the bytes match. Raises `EndOfBytes` and `UnreadableBytes`."""
    return crc32c(source.chunks(offset, size)) == unmask_crc32c(masked)


class _Lengths:
    """Varints from a run of bytes, read as they are needed."""

    def __init__(self, source: Source, offset: int, size: int) -> None:
        self._source = source
        self._next = offset
        self._end = offset + size
        self._buffer = b""
        self._at = 0

    @property
    def offset(self) -> int:
        return self._next - len(self._buffer) + self._at

    def read(self) -> int:
        if len(self._buffer) - self._at < VARINT_BYTES and self._next < self._end:
            piece = self._source.read_at(self._next, min(_READ_BYTES, self._end - self._next))
            self._buffer = self._buffer[self._at :] + piece
            self._at = 0
            self._next += len(piece)
        value, self._at = varint(self._buffer, self._at)
        return value


def strings_match(source: Source, offset: int, size: int, masked: int, elements: int, big_endian: bool) -> str:
    """What is wrong with a string tensor, "" when its lengths and its bytes match their checksums.

    Laid out as a varint length per element, the masked crc32c of the lengths, the strings. The checksums see a length
    as 4 bytes (8 above 2**32) in the writer's order. Raises `EndOfBytes` and `UnreadableBytes`.
    """
    if elements > size:
        return f"{elements} strings can't lie in {size} bytes"
    endian: Literal["big", "little"] = "big" if big_endian else "little"
    lengths = _Lengths(source, offset, size)
    total = value = 0
    batch = bytearray()
    try:
        for _ in range(elements):
            length = lengths.read()
            total += length
            batch += length.to_bytes(_CHECKSUM_BYTES if length <= _UINT32_MAX else 2 * _CHECKSUM_BYTES, endian)
            if len(batch) >= _READ_BYTES:
                value = google_crc32c.extend(value, bytes(batch))
                batch.clear()
    except WireError:
        return "the lengths of its strings do not end"
    value = google_crc32c.extend(value, bytes(batch))
    here = lengths.offset
    rest = offset + size - here
    if rest != total + _CHECKSUM_BYTES:
        return f"its strings need {total} bytes, {max(0, rest - _CHECKSUM_BYTES)} are there"
    stored = source.read_at(here, _CHECKSUM_BYTES)
    if unmask_crc32c(int.from_bytes(stored, endian)) != value:
        return "the lengths of its strings do not match their crc32c"
    value = google_crc32c.extend(value, stored)
    for chunk in source.chunks(here + _CHECKSUM_BYTES, total):
        value = google_crc32c.extend(value, chunk)
    return "" if value == unmask_crc32c(masked) else "its strings do not match their crc32c"


def variants_match(source: Source, offset: int, size: int, masked: int, elements: int, big_endian: bool) -> str:
    """As `strings_match`, for variants: per element a varint length, a message, the masked crc32c of all so far.

    The checksum sees a length as 8 bytes in the writer's order.
    """
    endian: Literal["big", "little"] = "big" if big_endian else "little"
    at, end = offset, offset + size
    value = 0
    for _ in range(min(elements, size + 1)):
        try:
            length, used = varint(source.read_at(at, min(VARINT_BYTES, end - at)), 0)
        except WireError:
            return "the length of a variant does not end"
        at += used
        if length + _CHECKSUM_BYTES > end - at:
            return "a variant is longer than its entry"
        value = google_crc32c.extend(value, length.to_bytes(2 * _CHECKSUM_BYTES, endian))
        for chunk in source.chunks(at, length):
            value = google_crc32c.extend(value, chunk)
        stored = source.read_at(at + length, _CHECKSUM_BYTES)
        at += length + _CHECKSUM_BYTES
        if unmask_crc32c(int.from_bytes(stored, endian)) != value:
            return "a variant does not match its crc32c"
        value = google_crc32c.extend(value, stored)
    if at != end:
        return f"{end - at} bytes follow its variants"
    return "" if value == unmask_crc32c(masked) else "its variants do not match their crc32c"
