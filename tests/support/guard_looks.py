"""Looks at the guard for tests of case folders."""

from __future__ import annotations

from rescue_tui.core.blockstat import WriteCounters
from rescue_tui.core.guardrecord import GuardLook, NamedCounters
from rescue_tui.core.guardstate import LayerState


def look(when: str, *, reads: int = 0, writes: int = 0) -> GuardLook:
    """An armed guard that refused four attempts, three of them on the source."""
    return GuardLook(
        when, "2026-12-02T09:00:00.000Z", "one", 7, "armed", (LayerState("bio", "armed", "Refuses.", 4),), 4,
        {"bio": 4}, {"bio": 3, "open": 0}, 2, counters=(
            NamedCounters("nvme0n1", WriteCounters(reads, 0, writes, 0, 0, 0, 0)),))
