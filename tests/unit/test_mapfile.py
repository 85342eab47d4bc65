"""The mapfile: round trips, checks, drawing, and the repair after a pulled source."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescue_tui.core.errors import FormatError
from rescue_tui.core.mapfile import (
    WORST_FIRST,
    Area,
    Mapfile,
    Status,
    blank,
    joined,
    parse,
    parse_either,
    without_untrusted_errors,
)

WRITTEN = """# Mapfile. Created by GNU ddrescue version 1.27
# Command line: ddrescue -d -r0 /dev/loop1 t.out t.map
# current_pos  current_status  current_pass
0x03FFFC00     +               1
#      pos        size  status
0x00000000  0x02000000  +
0x02000000  0x00000200  -
0x02000200  0x01FFFE00  +
"""

sizes = st.lists(st.tuples(st.integers(1, 1 << 40), st.sampled_from(Status)), min_size=1, max_size=40)


def build(pieces: list[tuple[int, Status]]) -> Mapfile:
    """A map of these runs, one after the other."""
    areas, position = [], 0
    for size, status in pieces:
        areas.append(Area(position, size, status))
        position += size
    return Mapfile(joined(areas))


maps = sizes.map(build)


def test_reads_what_ddrescue_writes() -> None:
    found = parse(WRITTEN)
    assert found.end_bytes == 0x04000000
    assert found.bad_bytes == 512
    assert found.activity == "finished"
    assert found.every_sector_tried
    assert found.areas_with(Status.BAD_SECTOR) == (Area(0x02000000, 512, Status.BAD_SECTOR),)
    assert found.to_text() == WRITTEN


@given(maps, st.integers(0, 1 << 50), st.sampled_from("?*/-+"), st.integers(1, 5))
def test_round_trip(found: Mapfile, position: int, status: str, number: int) -> None:
    value = Mapfile(found.areas, position, status, number, ("# a comment",))
    assert parse(value.to_text()) == value


@given(maps)
def test_totals_add_up(found: Mapfile) -> None:
    assert sum(found.bytes_with(status) for status in Status) == found.end_bytes


@pytest.mark.parametrize(("text", "words"), [
    ("", "no status line"),
    ("# only a comment\n", "no status line"),
    ("0x0 + 1\n0x0 0x200 +\n0x400 0x200 +\n", "leave a gap"),
    ("0x0 + 1\n0x0 0x400 +\n0x200 0x200 +\n", "overlap"),
    ("0x0 + 1\n0x0 0x0 +\n", "size 0"),
    ("0x0 X 1\n", "Line 1"),
    ("0x0 + 1\n0x0 0x200 =\n", "Line 2"),
    ("0x0 + 1\n0x0 -0x200 +\n", "Line 2"),
    ("0x0 + 1\n0x0 0x200 +\n0x200 0x2", "Line 3"),
    ("0x0 + 1\n0x0 0x200 +", "cut off"),
    ("0x0 + 1\n\x00\x00\x00\n", "Line 2"),
])
def test_refuses_what_is_no_mapfile(text: str, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        parse(text)


@given(maps, st.integers(0, 10_000))
def test_a_map_that_was_cut_off_is_never_taken_for_a_whole_one(found: Mapfile, cut: int) -> None:
    text = Mapfile(found.areas, 1, "?", 1).to_text()
    part = text[: min(cut, len(text) - 1)]
    try:
        read = parse(part)
    except FormatError:
        return
    assert read.end_bytes < found.end_bytes


def test_backup_is_taken_when_the_mapfile_is_torn() -> None:
    torn = WRITTEN[:-7].encode()
    assert parse_either(torn, WRITTEN.encode()) == (parse(WRITTEN), True)
    assert parse_either(None, WRITTEN.encode()) == (parse(WRITTEN), True)
    assert parse_either(WRITTEN.encode(), torn) == (parse(WRITTEN), False)
    with pytest.raises(FormatError, match="Neither"):
        parse_either(torn, b"\x00" * 40)
    with pytest.raises(FormatError, match="no mapfile"):
        parse_either(None, b"")


@given(maps, st.integers(1, 300))
def test_every_status_that_occurs_is_drawn_when_it_is_the_worst(found: Mapfile, width: int) -> None:
    cells = found.render(width)
    assert len(cells) == width
    present = {area.status for area in found.areas}
    assert set(cells) <= present
    worst = next(status for status in WORST_FIRST if status in present)
    assert worst in cells


@given(sizes.map(lambda pieces: build([(size % 50 + 1, status) for size, status in pieces])), st.integers(1, 60))
def test_each_cell_shows_the_worst_of_its_bytes(found: Mapfile, width: int) -> None:
    total = found.end_bytes
    for cell, shown in enumerate(found.render(width)):
        first, last = cell * total // width, -(-(cell + 1) * total // width)
        inside = [found.status_at(byte) for byte in range(first, max(last, first + 1))]
        assert shown == min(inside, key=WORST_FIRST.index)


def test_one_bad_sector_of_a_large_disk_is_drawn() -> None:
    size = 8 << 40
    found = build([(size // 2, Status.FINISHED), (512, Status.BAD_SECTOR), (size // 2, Status.FINISHED)])
    assert found.render(60).count(Status.BAD_SECTOR) in (1, 2)
    assert blank(0x200).render(0) == []


@given(maps, st.one_of(st.none(), maps))
def test_repair_keeps_good_reads_and_believes_no_later_error(current: Mapfile, trusted: Mapfile | None) -> None:
    mended = without_untrusted_errors(current, trusted)
    assert mended.end_bytes == current.end_bytes
    for area in mended.areas:
        for byte in (area.start_bytes, area.end_bytes - 1):
            now = current.status_at(byte)
            before = trusted.status_at(byte) if trusted is not None else Status.NON_TRIED
            assert mended.status_at(byte) is (Status.FINISHED if now is Status.FINISHED else before)


def test_errors_of_a_pulled_disk_become_non_tried() -> None:
    trusted = build([(1000, Status.FINISHED), (10, Status.BAD_SECTOR), (990, Status.NON_TRIED)])
    current = build([(1000, Status.FINISHED), (10, Status.BAD_SECTOR), (90, Status.FINISHED), (900, Status.BAD_SECTOR)])
    assert without_untrusted_errors(current, trusted).areas == (
        Area(0, 1000, Status.FINISHED), Area(1000, 10, Status.BAD_SECTOR), Area(1010, 90, Status.FINISHED),
        Area(1100, 900, Status.NON_TRIED))
