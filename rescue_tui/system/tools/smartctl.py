"""smartctl as a reader. Source: smartctl(8)."""

from __future__ import annotations

from rescue_tui.core.command import Command

DEADLINE_SECONDS = 40.0
# The exit status is a bit mask; all of it is decoded from the JSON, which is there even when the disk fails.
EVERY_STATUS = tuple(range(256))


def health_command(node: str) -> Command:
    """All SMART data of ``node`` as compact JSON; starts no test and changes no setting."""
    return Command(("smartctl", "--json=c", "--all", node), DEADLINE_SECONDS, ok_statuses=EVERY_STATUS)
