"""wipefs as a reader: lists every signature of a disk or partition and erases nothing. Source: wipefs(8)."""

from __future__ import annotations

from rescue_tui.core.command import Command
from rescue_tui.core.device import Signature
from rescue_tui.core.tooltext.wipefs import parse_wipefs
from rescue_tui.system.runner import Runner

DEADLINE_SECONDS = 30.0


def signatures_command(node: str) -> Command:
    """List the signatures of ``node``. With --no-act wipefs opens the device O_RDONLY (seen with strace, 2.38)."""
    columns = "UUID,LABEL,LENGTH,TYPE,OFFSET,USAGE,DEVICE"
    return Command(("wipefs", "--no-act", "--json", "--output", columns, "--", node), DEADLINE_SECONDS)


async def read_signatures(runner: Runner, node: str) -> tuple[Signature, ...]:
    """All signatures of ``node``; CommandError when it can't be read in time, FormatError for unknown output."""
    return parse_wipefs((await runner.run(signatures_command(node))).stdout)
