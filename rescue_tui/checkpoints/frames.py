"""Compressed and checksummed runs of bytes, decoded piece by piece so that no declared size is believed."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import google_crc32c
import zstandard

WINDOW_BYTES = 32 << 20  # more than zstd's level 20 asks for
# A run-length block makes 128 KiB out of four bytes; pieces this small bound what one call can give.
_PIECE_BYTES = 2048
_CRC = struct.Struct("<I")
_FRAME_HEADER_BYTES = 18
_BLOSC = struct.Struct("<4BIII")  # version, version of the codec, flags, typesize, decoded, block, stored
_BLOSC_VERSIONS = frozenset({1, 2, 3, 4, 5})
_GZIP_WINDOW, _ZLIB_WINDOW = 31, 15


class FrameError(Exception):
    """What is stored can't be decoded; ``unsupported`` where it may be right and is only not understood here."""

    def __init__(self, code: str, summary: str, unsupported: bool = False) -> None:
        super().__init__(summary)
        self.code = code
        self.summary = summary
        self.unsupported = unsupported


@dataclass(slots=True)
class Seen:
    """What a decoding met: ``checked`` once a checksum over all of the payload matched."""

    checked: bool = False


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        for at in range(0, len(chunk), _PIECE_BYTES):
            yield chunk[at : at + _PIECE_BYTES]


def unzstd(chunks: Iterable[bytes], limit: int, seen: Seen) -> Iterator[bytes]:
    """Exactly one zstd frame (RFC 8878) of at most ``limit`` decoded bytes. Raises `FrameError`."""
    decoder = None
    made = 0
    head = b""
    checksum = False
    for piece in _pieces(chunks):
        data = piece
        if decoder is None:
            head += piece
            if len(head) < _FRAME_HEADER_BYTES and len(piece) == _PIECE_BYTES:
                continue
            checksum = _frame_checksum(head, limit)
            decoder = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES).decompressobj()
            data = head
        if decoder.eof:
            raise FrameError("bad-frame", "bytes follow the end of a zstd frame")
        try:
            out = decoder.decompress(data)
        except zstandard.ZstdError as error:
            raise FrameError("bad-frame", f"a zstd frame can't be decoded after {made} bytes: {error}") from error
        made += len(out)
        if made > limit:
            raise FrameError("bad-frame", f"a zstd frame makes more than the {limit} bytes that it should")
        if out:
            yield out
    if decoder is None or not decoder.eof:
        raise FrameError("frame-cut", f"a zstd frame ends early, after {made} decoded bytes")
    if decoder.unused_data:
        raise FrameError("bad-frame", "bytes follow the end of a zstd frame")
    seen.checked = seen.checked or checksum


def _frame_checksum(head: bytes, limit: int) -> bool:
    """Whether a content checksum ends the frame; refuses what its header already shows to be wrong."""
    try:
        frame = zstandard.get_frame_parameters(head)
    except zstandard.ZstdError as error:
        raise FrameError("bad-frame", "no zstd frame begins here") from error
    unknown = frame.content_size in {zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR}
    if not unknown and frame.content_size > limit:
        raise FrameError("bad-frame", f"a zstd frame declares {frame.content_size} bytes instead of {limit}")
    if frame.window_size > WINDOW_BYTES:
        raise FrameError("frame-window", f"a zstd frame needs a window of {frame.window_size} bytes", unsupported=True)
    return bool(frame.has_checksum)


def inflate(chunks: Iterable[bytes], limit: int, seen: Seen, gzip: bool) -> Iterator[bytes]:
    """One gzip (RFC 1952) or zlib (RFC 1950) stream; both end with a checksum. Raises `FrameError`."""
    decoder = zlib.decompressobj(_GZIP_WINDOW if gzip else _ZLIB_WINDOW)
    made = 0
    for chunk in chunks:
        data = chunk
        while data:
            if decoder.eof:
                raise FrameError("bad-frame", "bytes follow the end of a deflate stream")
            try:
                out = decoder.decompress(data, 1 << 20)
            except zlib.error as error:
                raise FrameError("bad-frame", f"a deflate stream breaks after {made} bytes: {error}") from error
            data = decoder.unconsumed_tail or decoder.unused_data
            made += len(out)
            if made > limit:
                raise FrameError("bad-frame", f"a deflate stream makes more than the {limit} bytes that it should")
            if out:
                yield out
    if not decoder.eof:
        raise FrameError("frame-cut", f"a deflate stream ends early, after {made} decoded bytes")
    seen.checked = True


def uncrc32c(chunks: Iterable[bytes], seen: Seen) -> Iterator[bytes]:
    """Bytes that their crc32c follows (zarr's ``crc32c`` codec). Raises `FrameError` at the end."""
    held = b""
    value = 0
    for chunk in chunks:
        data = held + chunk
        held = data[-_CRC.size :]
        data = data[: -_CRC.size]
        if data:
            value = google_crc32c.extend(value, data)
            yield data
    if len(held) < _CRC.size:
        raise FrameError("frame-cut", "no room for a crc32c")
    if _CRC.unpack(held)[0] != value:
        raise FrameError("crc-mismatch", "bytes do not match the crc32c behind them")
    seen.checked = True


def check_blosc(chunks: Iterable[bytes], length: int, expected: int) -> None:
    """The header of a blosc buffer against the sizes that it must have; its content stays unread."""
    head = b""
    for chunk in chunks:
        head += chunk[: _BLOSC.size - len(head)] if len(head) < _BLOSC.size else b""
    if len(head) < _BLOSC.size:
        raise FrameError("frame-cut", "a blosc buffer ends inside its header")
    version, _, _, _, decoded, _, stored = _BLOSC.unpack(head)
    if version not in _BLOSC_VERSIONS or decoded != expected:
        raise FrameError("bad-frame", f"a blosc buffer declares {decoded} bytes instead of {expected}")
    if stored != length:
        raise FrameError("frame-cut" if stored > length else "bad-frame",
                         f"a blosc buffer of {length} bytes declares {stored}")


def zstd_body(body: bytes, limit: int) -> bytes:
    """One small frame at once, of at most ``limit`` decoded bytes. Raises `FrameError`."""
    return b"".join(unzstd((body,), limit, Seen()))
