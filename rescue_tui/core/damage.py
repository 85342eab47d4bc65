"""What an image lacks, seen from its file systems and files: a mapfile laid over extents. Pure.

Offsets on "the medium" are those of the device that the file system was mounted from, which begins somewhere in the
image. All in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from rescue_tui.core.mapfile import Mapfile, Status
from rescue_tui.core.ranges import Ranges, ranges_of


@dataclass(frozen=True, slots=True)
class Extent:
    """A part of a file and where its bytes lie on the medium.

    ``written`` is false for space that was set aside only: it reads as zeros whatever the sectors hold.
    """

    offset: int
    medium_offset: int
    length: int
    written: bool = True


class Loss(NamedTuple):
    """Bytes of a file that the image never got. ``bad``: the disk refused them; else nobody has read them yet."""

    offset: int
    length: int
    bad: bool

    @property
    def end(self) -> int:
        """The first offset behind it."""
        return self.offset + self.length


class PlaceUnknown(Exception):
    """Where the bytes of a file lie on the medium can't be told. ``checked``: the file system proves what it reads."""

    def __init__(self, reason: str, checked: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.checked = checked


@dataclass(frozen=True, slots=True)
class LostMap:
    """The bytes of one medium that the image lacks: bad sectors, and what was not read (yet)."""

    bad: Ranges = field(default_factory=Ranges)
    unread: Ranges = field(default_factory=Ranges)

    def __bool__(self) -> bool:
        """Is anything missing at all?"""
        return bool(len(self.bad) or len(self.unread))

    @property
    def all(self) -> Ranges:
        """Both kinds."""
        return self.bad.and_also(self.unread)

    def losses(self, extents: Iterable[Extent], size_bytes: int) -> tuple[Loss, ...]:
        """What of a file's first ``size_bytes`` (its size) is missing, in order; no two overlap."""
        written = [extent for extent in extents if extent.written]
        bad = _in_file(self.bad, written, size_bytes)
        # Extents of one file may share bytes of the medium, never bytes of the file; a damaged inode may say otherwise.
        unread = _in_file(self.unread, written, size_bytes).without(bad)
        return tuple(sorted([Loss(start, end - start, True) for start, end in bad]
                            + [Loss(start, end - start, False) for start, end in unread]))


def _in_file(lost: Ranges, extents: Iterable[Extent], size_bytes: int) -> Ranges:
    found: list[tuple[int, int]] = []
    for extent in extents:
        shift = extent.offset - extent.medium_offset
        for start, end in lost.within(extent.medium_offset, extent.medium_offset + extent.length):
            found.append((start + shift, min(end + shift, size_bytes)))
    return ranges_of(found)


def lost_map(mapfile: Mapfile, offset_bytes: int, size_bytes: int) -> LostMap:
    """What is missing of the medium of ``size_bytes`` that begins ``offset_bytes`` into the image.

    Everything that is not finished is missing, and so is what lies outside of the map.
    """
    end = offset_bytes + size_bytes
    bad = _areas(mapfile, Status.BAD_SECTOR)
    known = _areas(mapfile, Status.BAD_SECTOR, Status.FINISHED)
    unread = ranges_of([(offset_bytes, end)]).without(known)
    return LostMap(bad.within(offset_bytes, end).moved(-offset_bytes), unread.moved(-offset_bytes))


def _areas(mapfile: Mapfile, *statuses: Status) -> Ranges:
    return ranges_of((area.start_bytes, area.end_bytes) for area in mapfile.areas_with(*statuses))
