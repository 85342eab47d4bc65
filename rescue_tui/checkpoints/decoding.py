"""Stored runs of blocks as the bytes of elements, decoded piece by piece."""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Iterable, Iterator

from rescue_tui.checkpoints.frames import FrameError, Seen, inflate, uncrc32c, unzstd
from rescue_tui.checkpoints.limits import HELD_BYTES

# The readers decoded these runs before, within exact bounds: here no more is drawn than is asked for.
_MOST_BYTES = 1 << 62
_PIECE_BYTES = 1 << 20


class NotDecoded(Exception):
    """A run can't be decoded here, or makes fewer bytes than its elements need."""


def decoded(codec: str, stored: Iterable[bytes], needed_bytes: int) -> Iterator[bytes]:
    """The first ``needed_bytes`` of a run. Raises `NotDecoded`."""
    left = needed_bytes
    try:
        for piece in _stream(codec, stored):
            part = piece[:left]
            left -= len(part)
            if part:
                yield part
            if not left and codec:
                return
    except FrameError as error:
        raise NotDecoded(error.summary) from error
    except (zlib.error, UnicodeError) as error:
        raise NotDecoded(f"it can't be unpacked: {error}") from error
    if left:
        raise NotDecoded(f"it unpacks to {needed_bytes - left} bytes, its elements need {needed_bytes}")


def _stream(codec: str, stored: Iterable[bytes]) -> Iterable[bytes]:
    """The decoders of a chain, the last that was applied first."""
    stream = stored
    for word in reversed(codec.split("+")) if codec else ():
        if word == "deflate":
            stream = _inflated(stream)
        elif word in {"gzip", "zlib"}:
            stream = inflate(stream, _MOST_BYTES, Seen(), word == "gzip")
        elif word == "zstd":
            stream = unzstd(stream, _MOST_BYTES, Seen())
        elif word == "crc32c":
            stream = uncrc32c(stream, Seen())
        elif word.startswith("shuffle"):
            stream = _unshuffled(stream, int(word.removeprefix("shuffle")))
        elif word == "utf8-latin1":
            stream = _narrowed(stream)
        else:
            raise NotDecoded(f"{word} is not decoded here")
    return stream


def _inflated(stored: Iterable[bytes]) -> Iterator[bytes]:
    """A raw deflate stream as zip holds it (RFC 1951)."""
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    for chunk in stored:
        data = chunk
        while data:
            yield stream.decompress(data, _PIECE_BYTES)
            data = stream.unconsumed_tail
    while not stream.eof and (rest := stream.decompress(b"", _PIECE_BYTES)):
        yield rest


def _unshuffled(stored: Iterable[bytes], item_bytes: int) -> Iterator[bytes]:
    """HDF5's shuffle: first bytes of all items, then second bytes and so on; what is left over lies behind them."""
    held = bytearray()
    for chunk in stored:
        held += chunk
        if len(held) > HELD_BYTES // 2:
            raise NotDecoded("a shuffled chunk is too large to be held")
    count = len(held) // item_bytes if item_bytes else 0
    whole = bytearray(len(held))
    for index in range(item_bytes if count else 0):
        whole[index : count * item_bytes : item_bytes] = held[index * count : (index + 1) * count]
    whole[count * item_bytes :] = held[count * item_bytes :]
    yield bytes(whole)


def _narrowed(stored: Iterable[bytes]) -> Iterator[bytes]:
    """Bytes that a pickle of protocol 2 wrote as a text of as many characters."""
    reader = codecs.getincrementaldecoder("utf-8")()
    for chunk in stored:
        yield reader.decode(chunk).encode("latin-1")
    yield reader.decode(b"", final=True).encode("latin-1")
