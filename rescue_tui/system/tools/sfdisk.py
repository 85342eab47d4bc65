"""Read the partition table of a disk or an image with sfdisk, which opens it read-only for these two verbs."""

from __future__ import annotations

from rescue_tui.core.command import Command, Completed
from rescue_tui.system.runner import Runner


async def dump_json(runner: Runner, node: str) -> Completed:
    """``sfdisk --json``; status 1 means that there is no table that sfdisk knows."""
    return await runner.attempt(Command(("sfdisk", "--json", node), deadline_seconds=30, ok_statuses=(0, 1)))


async def dump_text(runner: Runner, node: str) -> Completed:
    """``sfdisk --dump``, which a person can read and sfdisk can restore."""
    return await runner.attempt(Command(("sfdisk", "--dump", node), deadline_seconds=30, ok_statuses=(0, 1)))
