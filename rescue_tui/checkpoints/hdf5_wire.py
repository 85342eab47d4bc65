"""HDF5's small parts: fields of the file's own sizes, and its two checksums.

Sources: HDF5 File Format Specification 3.0; src/H5checksum.c for the checksums (lookup3 by Bob Jenkins, Fletcher-32).
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_U8, _U16, _U32, _U64 = (struct.Struct(f"<{word}") for word in "BHIQ")
_WORDS = {1: _U8, 2: _U16, 4: _U32, 8: _U64}
_MASK = 0xFFFFFFFF
_LOOKUP_SEED = 0xDEADBEEF
_THREE = struct.Struct("<3I")
_BASE = 65535


class HdfError(Exception):
    """A structure is not what its signature, version or checksum says."""

    def __init__(self, summary: str, offset: int = 0, checksum: bool = False) -> None:
        super().__init__(summary)
        self.summary, self.offset, self.checksum = summary, offset, checksum


class NotFollowedError(HdfError):
    """A structure may be right and is of a kind that is not followed here."""


class Fields:
    """Fields one behind the other in bytes that were read; ``at`` is where the bytes begin in the file.

    ``address_bytes`` and ``length_bytes`` are the sizes that the superblock declares. Raises `HdfError` at the end.
    """

    def __init__(self, data: bytes, at: int, address_bytes: int = 8, length_bytes: int = 8) -> None:
        self.data, self.at = data, at
        self.address_bytes, self.length_bytes = address_bytes, length_bytes
        self.position = 0

    @property
    def offset(self) -> int:
        """Where the next field is in the file."""
        return self.at + self.position

    @property
    def left(self) -> int:
        """Bytes that are left."""
        return len(self.data) - self.position

    def take(self, length: int) -> bytes:
        """The next bytes."""
        if length < 0 or length > self.left:
            raise HdfError(f"a field of {length} bytes reaches beyond its structure", self.offset)
        piece = self.data[self.position : self.position + length]
        self.position += length
        return piece

    def number(self, size: int) -> int:
        """A whole number of 1, 2, 4 or 8 bytes."""
        (value,) = _WORDS[size].unpack(self.take(size))
        return int(value)

    def odd_number(self, size: int) -> int:
        """A whole number of any size."""
        return int.from_bytes(self.take(size), "little")

    def address(self) -> int | None:
        """An address from the base address; None where it is undefined (all bits set)."""
        value = self.number(self.address_bytes)
        return None if value == (1 << 8 * self.address_bytes) - 1 else value

    def length(self) -> int:
        """A length."""
        return self.number(self.length_bytes)

    def expect(self, signature: bytes) -> None:
        """The signature that a structure begins with."""
        at = self.offset
        if self.take(len(signature)) != signature:
            raise HdfError(f"there is no {signature.decode('ascii')}", at)

    def part(self, length: int) -> Fields:
        """The next bytes as fields of their own."""
        at = self.offset
        return Fields(self.take(length), at, self.address_bytes, self.length_bytes)


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def lookup3(data: bytes) -> int:
    """The checksum of metadata: Jenkins' hashlittle with the initial value 0."""
    a: int = (_LOOKUP_SEED + len(data)) & _MASK
    b: int = a
    c: int = a
    position = 0
    while len(data) - position > _THREE.size:
        x, y, z = _THREE.unpack_from(data, position)
        a, b, c = (a + x) & _MASK, (b + y) & _MASK, (c + z) & _MASK
        a = ((a - c) & _MASK) ^ _rotated(c, 4)
        c = (c + b) & _MASK
        b = ((b - a) & _MASK) ^ _rotated(a, 6)
        a = (a + c) & _MASK
        c = ((c - b) & _MASK) ^ _rotated(b, 8)
        b = (b + a) & _MASK
        a = ((a - c) & _MASK) ^ _rotated(c, 16)
        c = (c + b) & _MASK
        b = ((b - a) & _MASK) ^ _rotated(a, 19)
        a = (a + c) & _MASK
        c = ((c - b) & _MASK) ^ _rotated(b, 4)
        b = (b + a) & _MASK
        position += _THREE.size
    rest = data[position:]
    if not rest:
        return c
    x, y, z = _THREE.unpack(rest + bytes(_THREE.size - len(rest)))
    a, b, c = (a + x) & _MASK, (b + y) & _MASK, (c + z) & _MASK
    c = ((c ^ b) - _rotated(b, 14)) & _MASK
    a = ((a ^ c) - _rotated(c, 11)) & _MASK
    b = ((b ^ a) - _rotated(a, 25)) & _MASK
    c = ((c ^ b) - _rotated(b, 16)) & _MASK
    a = ((a ^ c) - _rotated(c, 4)) & _MASK
    b = ((b ^ a) - _rotated(a, 14)) & _MASK
    return ((c ^ b) - _rotated(b, 24)) & _MASK


def checked(data: bytes, at: int, what: str) -> bytes:
    """The bytes without the checksum that they end with; raises `HdfError` when it does not match."""
    if len(data) < _U32.size:
        raise HdfError(f"{what} is too short", at)
    (stored,) = _U32.unpack(data[-_U32.size :])
    found = lookup3(data[: -_U32.size])
    if found != stored:
        raise HdfError(f"{what} has the checksum {found:08x}, the file says {stored:08x}", at, True)
    return data[: -_U32.size]


def fletcher32(chunks: Iterable[bytes]) -> int:
    """The checksum of a chunk of data. Every piece but the last must have an even length.

    Two sums of big-endian 16-bit words modulo 65535, the second of all prefixes of the first. Read as one number N in
    base 65536 the words give both at once: 65536**k is 1 + 65535 * k modulo 65535**2.
    """
    first = second = words = 0
    for chunk in chunks:
        piece = chunk + b"\0" if len(chunk) % 2 else chunk
        count = len(piece) // 2
        values = array("H", piece)
        if sys.byteorder == "little":
            values.byteswap()
        total = int(sum(values))
        weighted = (int.from_bytes(piece, "big") - total) % (_BASE * _BASE) // _BASE
        second = (second + first * count + weighted + total) % _BASE
        first = (first + total) % _BASE
        words = words or total
    # The library folds carries, which never turns a sum of something into 0.
    return ((second or (_BASE if words else 0)) << 16) | (first or (_BASE if words else 0))
