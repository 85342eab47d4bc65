"""Sets of bytes as runs of offsets: which of them meet, and what is left of one without the other. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ranges:
    """Runs ``[start, end)`` in bytes: sorted, none empty, none touching another. Build them with `ranges_of`."""

    starts: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Every run as start and end."""
        return zip(self.starts, self.ends, strict=True)

    def __len__(self) -> int:
        """How many runs there are."""
        return len(self.starts)

    @property
    def total_bytes(self) -> int:
        """Bytes in all runs."""
        return sum(self.ends) - sum(self.starts)

    def within(self, start: int, end: int) -> Ranges:
        """What lies between two offsets; runs that cross one are cut there."""
        first = bisect_right(self.ends, start)
        stop = bisect_left(self.starts, end)
        if first >= stop or start >= end:
            return Ranges()
        starts, ends = list(self.starts[first:stop]), list(self.ends[first:stop])
        starts[0], ends[-1] = max(starts[0], start), min(ends[-1], end)
        return Ranges(tuple(starts), tuple(ends))

    def meets(self, start: int, end: int) -> bool:
        """Is any byte between these offsets one of these?"""
        at = bisect_right(self.ends, start)
        return start < end and at < len(self.starts) and self.starts[at] < end

    def moved(self, by: int) -> Ranges:
        """The same, all offsets shifted."""
        return Ranges(tuple(start + by for start in self.starts), tuple(end + by for end in self.ends))

    def and_also(self, other: Ranges) -> Ranges:
        """The bytes of either."""
        return ranges_of([*self, *other])

    def without(self, other: Ranges) -> Ranges:
        """The bytes of this that the other lacks."""
        left: list[tuple[int, int]] = []
        for start, end in self:
            at = start
            for cut_start, cut_end in other.within(start, end):
                if cut_start > at:
                    left.append((at, cut_start))
                at = cut_end
            if at < end:
                left.append((at, end))
        return ranges_of(left)


def ranges_of(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """Runs of start and end in any order, which may overlap or be empty, as a set."""
    starts: list[int] = []
    ends: list[int] = []
    for start, end in sorted(pair for pair in pairs if pair[0] < pair[1]):
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return Ranges(tuple(starts), tuple(ends))
