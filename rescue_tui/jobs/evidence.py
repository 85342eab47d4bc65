"""What is noted about a source beside its image: identity, partition table, health, kernel log, versions."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import datetime
from pathlib import PurePath
from typing import Protocol

from rescue_tui import __version__
from rescue_tui.core.device import Disk, Health
from rescue_tui.core.errors import RescueError
from rescue_tui.core.record import rfc3339
from rescue_tui.core.text import printable, printable_lines
from rescue_tui.jobs.casefolder import SourceFolder, to_json
from rescue_tui.system.durable import read_or_none
from rescue_tui.system.runner import Runner
from rescue_tui.system.tools import ddrescue, dmesg, sfdisk


class HealthSource(Protocol):
    """Who reads SMART data and error logs (system.inventory)."""

    async def health(self, disk: Disk) -> Health:
        """Health in one shape; never raises for a disk that has none."""
        ...

    async def raw_health(self, disk: Disk) -> Mapping[str, bytes]:
        """The raw output of each tool, by file name (``smart.json``)."""
        ...


async def note_identity(runner: Runner, folder: SourceFolder, disk: Disk) -> None:
    """identity.json and the partition table, as JSON and as text."""
    folder.write("identity.json", to_json(disk))
    await note_partition_table(runner, folder, disk)


async def note_partition_table(runner: Runner, folder: SourceFolder, disk: Disk) -> None:
    """partition-table.json and .txt; where there is no table, or no sfdisk, the text says so."""
    try:
        as_json = await sfdisk.dump_json(runner, disk.node)
        as_text = await sfdisk.dump_text(runner, disk.node)
    except RescueError as error:
        folder.write("partition-table.txt", f"(not read: {printable(error.summary)})\n".encode())
        return
    if as_json.ok and as_json.stdout.strip():
        folder.write("partition-table.json", as_json.stdout)
    text = printable_lines(as_text.stdout)
    if not text.strip():
        text = f"({printable_lines(as_text.stderr).strip()})\n"
    folder.write("partition-table.txt", text.encode())


async def note_health(source: HealthSource, folder: SourceFolder, disk: Disk, when: str) -> Health:
    """health-before.json or health-after.json, and the raw tool output beside it."""
    health = await source.health(disk)
    folder.write(f"health-{when}.json", to_json(health))
    for name, content in (await source.raw_health(disk)).items():
        plain = PurePath(name)
        folder.write(f"{plain.stem}-{when}{plain.suffix}", content)
    return health


async def note_kernel_log(runner: Runner, folder: SourceFolder, since: datetime) -> None:
    """Add the kernel's messages since ``since`` to kernel.log; what an earlier run noted stays."""
    try:
        text = await dmesg.kernel_log(runner, since)
    except RescueError as error:
        text = f"(not read: {printable(error.summary)})\n"
    earlier = read_or_none(folder.file("kernel.log")) or b""
    folder.write("kernel.log", earlier + f"# since {rfc3339(since)}\n{text}".encode())


async def versions(runner: Runner) -> dict[str, str]:
    """Versions of what made the image, for the report."""
    return {"stasis": __version__, "ddrescue": await ddrescue.version(runner),
            "kernel": printable(platform.release()), "python": platform.python_version()}
