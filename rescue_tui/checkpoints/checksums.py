"""CRC-32 and CRC-32C by maintained bindings: ISA-L where it is installed, zlib where it is not."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import google_crc32c

try:
    from isal import isal_zlib

    _crc32 = isal_zlib.crc32
except ImportError:  # no wheel for this machine
    _crc32 = zlib.crc32


def crc32(chunks: Iterable[bytes]) -> int:
    """CRC-32 as in zip (ISO-HDLC) of all chunks together."""
    value = 0
    for chunk in chunks:
        value = _crc32(chunk, value)
    return value


def extend_crc32(value: int, chunk: bytes | bytearray | memoryview) -> int:
    """CRC-32 of some bytes behind those that ``value`` is the CRC-32 of."""
    return int(_crc32(chunk, value))


def crc32c(chunks: Iterable[bytes]) -> int:
    """CRC-32C (Castagnoli, RFC 3720 appendix B.4) of all chunks together."""
    value = 0
    for chunk in chunks:
        value = google_crc32c.extend(value, chunk)
    return int(value)


def unmask_crc32c(masked: int) -> int:
    """The CRC-32C behind LevelDB's mask (doc/log_format.md: rotated right by 15, plus 0xa282ead8)."""
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF
