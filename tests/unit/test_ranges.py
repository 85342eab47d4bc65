"""Runs of bytes against plain sets of numbers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rescue_tui.core.ranges import Ranges, ranges_of

edges = st.integers(0, 60)
pairs = st.lists(st.tuples(edges, edges), max_size=12)


def members(ranges: Ranges) -> set[int]:
    """Every byte."""
    return {at for start, end in ranges for at in range(start, end)}


def plain(runs: list[tuple[int, int]]) -> set[int]:
    """The same from what they were made of."""
    return {at for start, end in runs for at in range(start, end)}


def is_normal(ranges: Ranges) -> bool:
    """Sorted, none empty, none touching the next."""
    listed = list(ranges)
    return all(start < end for start, end in listed) and all(
        one[1] < other[0] for one, other in pairwise(listed))


@given(pairs)
def test_they_are_the_bytes_that_they_were_made_of(runs: list[tuple[int, int]]) -> None:
    made = ranges_of(runs)
    assert is_normal(made)
    assert members(made) == plain(runs)
    assert made.total_bytes == len(plain(runs))
    assert len(made) == len(list(made))
    assert ranges_of(reversed(runs)) == made


@given(pairs, edges, edges)
def test_what_lies_within(runs: list[tuple[int, int]], start: int, end: int) -> None:
    found = ranges_of(runs).within(start, end)
    assert is_normal(found)
    assert members(found) == {at for at in plain(runs) if start <= at < end}
    assert ranges_of(runs).meets(start, end) == bool(len(found))


@given(pairs, pairs)
def test_without_and_with(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    left, right = ranges_of(one), ranges_of(other)
    assert is_normal(left.without(right))
    assert members(left.without(right)) == plain(one) - plain(other)
    assert members(left.and_also(right)) == plain(one) | plain(other)


@given(pairs, st.integers(-100, 100))
def test_moved_there_and_back(runs: list[tuple[int, int]], by: int) -> None:
    made = ranges_of(runs)
    assert members(made.moved(by)) == {at + by for at in plain(runs)}
    assert made.moved(by).moved(-by) == made
