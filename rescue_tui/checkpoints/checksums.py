"""CRC-32 and CRC-32C by maintained bindings: ISA-L where it is installed, zlib where it is not."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import google_crc32c

from rescue_tui.checkpoints.source import EndOfBytes, Source, Span, UnreadableBytes, look_at

try:
    from isal import isal_zlib
except ImportError:  # no wheel for this machine
    _crc32, _combine = zlib.crc32, None
else:
    _crc32, _combine = isal_zlib.crc32, isal_zlib.crc32_combine


def crc32(chunks: Iterable[bytes]) -> int:
    """CRC-32 as in zip (ISO-HDLC) of all chunks together."""
    value = 0
    for chunk in chunks:
        value = _crc32(chunk, value)
    return value


def crc32_of(source: Source, runs: Sequence[Span]) -> list[int | UnreadableBytes | EndOfBytes]:
    """CRC-32 of each run of a source, or why it can't be told; several pieces at once where the source can."""
    if _combine is None:
        return [_crc32_in_turn(source, run) for run in runs]
    found: list[int | UnreadableBytes | EndOfBytes] = [0] * len(runs)
    for piece in look_at(source, runs, _crc32):
        value = found[piece.run]
        if piece.trouble is not None:
            found[piece.run] = piece.trouble
        elif isinstance(value, int) and piece.found is not None:
            found[piece.run] = _combine(value, piece.found, piece.length)
    return found


def _crc32_in_turn(source: Source, run: Span) -> int | UnreadableBytes | EndOfBytes:
    try:
        return crc32(source.chunks(run.offset, run.length))
    except (UnreadableBytes, EndOfBytes) as trouble:
        return trouble


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
