"""A mapfile laid over a file system and its files, against counting byte by byte."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from rescue_tui.core.damage import Extent, Loss, LostMap, lost_map
from rescue_tui.core.mapfile import Area, Mapfile, Status, joined
from rescue_tui.core.ranges import ranges_of

pieces = st.lists(st.tuples(st.integers(1, 12), st.sampled_from(Status)), min_size=1, max_size=12)


def mapfile(runs: list[tuple[int, Status]], start: int = 0) -> Mapfile:
    """A map of these sizes and statuses in turn."""
    areas, at = [], start
    for size, status in runs:
        areas.append(Area(at, size, status))
        at += size
    return Mapfile(joined(areas))


@st.composite
def files(draw: st.DrawFn) -> tuple[list[Extent], int]:
    """Extents of one file, in any order on the medium, with holes between; and its size."""
    found, at = [], 0
    for hole, length, where, written in draw(st.lists(st.tuples(
            st.integers(0, 4), st.integers(1, 9), st.integers(0, 70), st.booleans()), max_size=8)):
        at += hole
        found.append(Extent(at, where, length, written))
        at += length
    return found, draw(st.integers(0, at + 3))


@given(pieces, st.integers(0, 5), st.integers(0, 40), st.integers(0, 60), files())
def test_each_byte_of_a_file_is_there_or_lost_as_the_map_says(
        runs: list[tuple[int, Status]], start: int, offset: int, size: int, file: tuple[list[Extent], int]) -> None:
    known = mapfile(runs, start)
    medium = lost_map(known, offset, size)
    extents, size_bytes = file
    wanted: dict[int, bool] = {}
    for extent in extents:
        for step in range(extent.length):
            at, where = extent.offset + step, extent.medium_offset + step
            status = known.status_at(where + offset)
            if extent.written and at < size_bytes and where < size and status is not Status.FINISHED:
                wanted[at] = status is Status.BAD_SECTOR
    losses = medium.losses(extents, size_bytes)
    assert {at: loss.bad for loss in losses for at in range(loss.offset, loss.end)} == wanted
    assert sum(loss.length for loss in losses) == len(wanted)
    assert list(losses) == sorted(losses)
    assert bool(medium) == any(known.status_at(offset + at) is not Status.FINISHED for at in range(size))
    assert medium.all.total_bytes == medium.bad.total_bytes + medium.unread.total_bytes


def test_every_area_that_is_not_finished_is_lost() -> None:
    known = mapfile([(512, status) for status in (
        Status.FINISHED, Status.NON_TRIED, Status.NON_TRIMMED, Status.NON_SCRAPED, Status.BAD_SECTOR)])
    assert lost_map(known, 0, 5 * 512) == LostMap(ranges_of([(2048, 2560)]), ranges_of([(512, 2048)]))
    # What lies behind the end of the map was not read either.
    assert lost_map(known, 2560, 512) == LostMap(unread=ranges_of([(0, 512)]))


def test_bytes_that_two_extents_claim_are_told_once() -> None:
    medium = LostMap(ranges_of([(0, 10)]), ranges_of([(100, 110)]))
    assert medium.losses([Extent(0, 0, 10), Extent(5, 100, 10)], 100) == (Loss(0, 10, True), Loss(10, 5, False))


def test_it_goes_to_other_processes() -> None:
    medium = LostMap(ranges_of([(0, 10)]), ranges_of([(100, 110)]))
    assert pickle.loads(pickle.dumps(medium)) == medium
