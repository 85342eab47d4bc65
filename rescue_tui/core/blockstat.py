"""The kernel's own counters of one disk: ``/sys/block/<disk>/stat``. Source: Documentation/block/stat.rst of Linux."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from rescue_tui.core.errors import FormatError
from rescue_tui.core.text import printable

# Linux 4.18 added discards, 5.5 flushes. Sectors are of 512 bytes, whatever the disk's are.
_FIELDS_WITH_FLUSHES = 17


@dataclass(frozen=True, slots=True)
class WriteCounters:
    """What the kernel sent to a disk since it was attached, as far as it may change it, and reads beside."""

    read_ios: int
    read_sectors: int
    write_ios: int
    write_sectors: int
    discard_ios: int
    discard_sectors: int
    flush_ios: int

    @property
    def changing_ios(self) -> int:
        """Writes and discards: what a source must never see. A flush changes nothing by itself."""
        return self.write_ios + self.discard_ios

    def since(self, earlier: WriteCounters) -> WriteCounters:
        """What was added after ``earlier``, a look at the same attachment."""
        return WriteCounters(*(now - then for now, then in zip(astuple(self), astuple(earlier), strict=True)))

    def plus(self, other: WriteCounters) -> WriteCounters:
        """Both together."""
        return WriteCounters(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))


def parse_stat(text: str) -> WriteCounters:
    """The counters; FormatError when these are not the fields of Linux 5.5 or newer (which may add some)."""
    words = text.split()
    if len(words) < _FIELDS_WITH_FLUSHES or not all(word.isascii() and word.isdecimal() for word in words):
        raise FormatError("The kernel's counters of a disk can't be read.", "Stasis needs Linux 5.5 or newer.",
                          printable(text))
    figures = [int(word) for word in words]
    return WriteCounters(read_ios=figures[0], read_sectors=figures[2], write_ios=figures[4], write_sectors=figures[6],
                         discard_ios=figures[11], discard_sectors=figures[13], flush_ios=figures[15])
