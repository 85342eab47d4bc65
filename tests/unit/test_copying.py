"""Progress of a copy from ddrescue's words and its mapfile, without ddrescue."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from rescue_tui.core.imaging import RESERVE_BYTES
from rescue_tui.core.tooltext.ddrescue import StatusBlock
from rescue_tui.jobs.copying import Copy, reserve_bytes
from rescue_tui.jobs.jobfiles import Wish
from rescue_tui.system.runner import Runner
from tests.support.imaging import GIB, a_plan

BLOCK = StatusBlock("copying", "Copying non-tried blocks", 2 * GIB, 2 * GIB, 512, 1, 3, 100, 90, 0)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """A copy that was not started, of a disk of 4 GiB."""
    return Copy(Runner(), a_plan(str(tmp_path)), tmp_path, lambda _: None, lambda: Wish.NONE)


def test_before_the_first_word(copy: Copy) -> None:
    progress = copy.progress(None)
    assert (progress.phase, progress.total_bytes, progress.done_bytes, progress.message) == (
        "copying", 4 * GIB, 0, "starting")


def test_figures_are_ddrescues(copy: Copy) -> None:
    progress = copy.progress(BLOCK)
    assert (progress.done_bytes, progress.bad_bytes, progress.bad_areas, progress.read_errors) == (2 * GIB, 512, 1, 3)
    assert (progress.current_rate, progress.average_rate, progress.last_good_read_seconds) == (100, 90, 0)
    assert progress.eta_low_seconds is None


def test_rounding_never_says_all(copy: Copy) -> None:
    progress = copy.progress(replace(BLOCK, rescued_bytes=4 * GIB + 12345))
    assert progress.done_bytes == 4 * GIB - 1
    assert progress.percent == 99.99


def test_no_estimate_outside_the_copying_phase(copy: Copy) -> None:
    for phase in ("trimming", "scraping", "retrying"):
        progress = copy.progress(replace(BLOCK, phase=phase))
        assert (progress.phase, progress.eta_low_seconds, progress.eta_high_seconds) == (phase, None, None)
    assert copy.progress(replace(BLOCK, phase="finished")).phase == "copying"


@pytest.mark.parametrize(("said", "least"), [(0, 300), (40, 340), (None, 300)])
def test_while_one_read_hangs_the_silence_counts(copy: Copy, tmp_path: Path, said: int | None, least: int) -> None:
    status = tmp_path / "ddrescue.status"
    status.write_text("x")
    now = status.stat().st_mtime
    os.utime(status, (now - 300, now - 300))
    age = copy.progress(replace(BLOCK, last_good_read_seconds=said)).last_good_read_seconds
    assert age is not None
    assert age >= least


def test_reserve_fits_small_disks_too() -> None:
    assert reserve_bytes(8 << 40) == RESERVE_BYTES
    assert reserve_bytes(GIB) == GIB // 50
    assert reserve_bytes(10 << 20) == 4 << 20
