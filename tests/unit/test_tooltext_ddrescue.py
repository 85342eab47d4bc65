"""What ddrescue prints: recorded runs of two versions with bad sectors, and its last words."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescue_tui.core.tooltext.ddrescue import (
    Ending,
    asks_on_terminal,
    parse_size,
    parse_status,
    parse_time,
    read_ending,
)

DATA = Path(__file__).parents[1] / "data" / "ddrescue"


@pytest.mark.parametrize("version", ["1.27", "1.29"])
def test_last_block_of_a_recorded_run(version: str) -> None:
    block = parse_status((DATA / f"status-{version}.txt").read_bytes())
    assert block is not None
    assert (block.phase, block.rescued_bytes, block.bad_bytes) == ("finished", 67_107_000, 1536)
    assert (block.bad_areas, block.read_errors, block.position_bytes) == (1, 7, 16_778_000)
    assert block.last_good_read_seconds is None
    assert block.average_rate is not None


@pytest.mark.parametrize("version", ["1.27", "1.29"])
def test_every_moment_of_a_recorded_run(version: str) -> None:
    whole = (DATA / f"status-{version}.txt").read_bytes()
    phases: list[str] = []
    for end in range(0, len(whole), 7):
        block = parse_status(whole[max(0, end - 4096):end])
        if block is None:
            continue
        assert block.rescued_bytes is not None
        assert block.read_errors <= 7
        if not phases or phases[-1] != block.phase:
            phases.append(block.phase)
    assert phases == ["copying", "trimming", "scraping", "retrying", "finished"]


@given(st.binary(max_size=400))
def test_garbage_never_fails(text: bytes) -> None:
    assert parse_status(text) is None or b"ipos" in text


@pytest.mark.parametrize(("text", "size"), [
    ("0 B", 0), ("2139 MB", 2_139_000_000), ("864026 kB", 864_026_000), ("64 KiB", 65536), ("22325 kB/s", 22_325_000),
    ("1.5 GB", 1_500_000_000), ("n/a", None), ("", None), ("12", None)])
def test_sizes(text: str, size: int | None) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("0s", 0), ("1m 5s", 65), ("2h 3m", 7380), ("1d  4h", 100800), ("n/a", None)])
def test_times(text: str, seconds: int | None) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(("words", "ending"), [
    ("ddrescue: o: Write error: No space left on device", Ending.DESTINATION_FULL),
    ("ddrescue: o: Write error: Invalid argument", Ending.UNALIGNED_WRITE),
    ("ddrescue: o: Write error: File too large", Ending.FILE_TOO_LARGE),
    ("ddrescue: o: Write error: Input/output error", Ending.DESTINATION_FAILED),
    ("ddrescue: m: Error writing mapfile: No space left on device\nFix the problem and press ENTER to retry,",
     Ending.DESTINATION_FULL),
    ("ddrescue: m: Error writing mapfile: Read-only file system\nFix the problem", Ending.MAPFILE_FAILED),
    ("ddrescue: /dev/x: Input file disappeared: No such file or directory", Ending.SOURCE_GONE),
    ("ddrescue: /dev/x: Fatal error reading the input file: No such device or address", Ending.SOURCE_GONE),
    ("ddrescue: /dev/x: Fatal error reading the input file: Permission denied", Ending.SOURCE_FAILED),
    ("ddrescue: /dev/x: Can't open input file: No such file or directory", Ending.SOURCE_GONE),
    ("ddrescue: invalid option -- 'Q'", Ending.UNKNOWN),
    ("", Ending.UNKNOWN),
])
def test_last_words(words: str, ending: Ending) -> None:
    assert read_ending(words.encode()) is ending


def test_the_question_that_nobody_answers() -> None:
    assert asks_on_terminal(b"Fix the problem and press ENTER to retry,\n")
    assert not asks_on_terminal(b"ddrescue: o: Write error")
