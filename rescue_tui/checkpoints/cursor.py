"""Reading small fields one behind the other: buffered, bounded, and never beyond the end of the bytes."""

from __future__ import annotations

import struct

from rescue_tui.checkpoints.source import EndOfBytes, Source, UnreadableBytes

_BUFFER_BYTES = 64 << 10


class Cursor:
    """A position in a source. Every method raises `EndOfBytes` or `UnreadableBytes` and then has not moved."""

    def __init__(self, source: Source, offset: int = 0, end: int | None = None) -> None:
        self._source = source
        self._end = source.size_bytes if end is None else min(end, source.size_bytes)
        self._buffer = b""
        self._start = offset
        self._at = 0

    @property
    def offset(self) -> int:
        """Where the next byte is, from the beginning of the source."""
        return self._start + self._at

    @property
    def left(self) -> int:
        """Bytes between here and the end."""
        return self._end - self.offset

    def take(self, length: int) -> bytes:
        """The next bytes; the caller bounds ``length``, which is checked against what is left before it is read."""
        stop = self._at + length
        if stop > len(self._buffer):
            self._fill(length)
            stop = length
        piece = self._buffer[self._at : stop]
        self._at = stop
        return piece

    def unpack(self, layout: struct.Struct) -> tuple[int | float | bytes, ...]:
        """The next fields, as declared."""
        return layout.unpack(self.take(layout.size))

    def number(self, layout: struct.Struct) -> int:
        """The next field, a whole number."""
        at = self._at
        if at + layout.size > len(self._buffer):
            self._fill(layout.size)
            at = 0
        (value,) = layout.unpack_from(self._buffer, at)
        self._at = at + layout.size
        return int(value)

    def skip(self, length: int) -> None:
        """Pass over bytes without reading them."""
        if length < 0 or length > self.left:
            raise EndOfBytes(self.offset, length, self._end)
        if self._at + length <= len(self._buffer):
            self._at += length
        else:
            self._start, self._buffer, self._at = self.offset + length, b"", 0

    def _fill(self, length: int) -> None:
        if length < 0 or length > self.left:
            raise EndOfBytes(self.offset, length, self._end)
        try:
            held = self._source.read_at(self.offset, min(self.left, max(length, _BUFFER_BYTES)))
        except UnreadableBytes:
            held = self._source.read_at(self.offset, length)  # the bad place may be behind what was asked for
        self._start, self._buffer, self._at = self.offset, held, 0
