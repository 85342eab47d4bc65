"""The figure that the guard's bench makes of its runs."""

from __future__ import annotations

import pytest

from tests.bench.guard import PATTERNS, figure


def test_the_ratio_is_the_median_of_neighbouring_runs_not_of_all() -> None:
    # The host became three times as slow after the first pair.
    found = figure(PATTERNS[0], [(300.0, 300.0), (99.0, 100.0), (99.0, 100.0)])
    assert found.ratio == pytest.approx(0.99)
    assert found.value == pytest.approx(99.0)
    assert (found.name, found.peer, found.met) == ("guard-read-sequential", "unguarded", True)


def test_a_slower_read_misses_the_target() -> None:
    assert figure(PATTERNS[1], [(97.0, 100.0)] * 3).met is False
