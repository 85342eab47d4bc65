"""What is noted about a source beside its image: identity, partition table, health, guard, kernel log."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Protocol

from rescue_tui import __version__
from rescue_tui.core.device import Disk, Health
from rescue_tui.core.errors import FormatError, RescueError
from rescue_tui.core.guardrecord import GuardLook, GuardRecord, NamedCounters
from rescue_tui.core.guardstate import UNKNOWN
from rescue_tui.core.record import rfc3339
from rescue_tui.core.restore import restore
from rescue_tui.core.text import printable, printable_lines
from rescue_tui.jobs.casefolder import SourceFolder, read_json, to_json
from rescue_tui.system import blockdev
from rescue_tui.system.durable import read_or_none
from rescue_tui.system.guardview import GuardState
from rescue_tui.system.runner import Runner
from rescue_tui.system.tools import ddrescue, dmesg, sfdisk

GUARD_FILE = "guard.json"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# The kernel makes a buffer as large as what is asked for, and refuses a huge one.
_BOOT_ID_BYTES = 64


class HealthSource(Protocol):
    """Who reads SMART data and error logs (system.inventory)."""

    async def health(self, disk: Disk) -> Health:
        """Health in one shape; never raises for a disk that has none."""
        ...

    async def raw_health(self, disk: Disk) -> Mapping[str, bytes]:
        """The raw output of each tool, by file name (``smart.json``)."""
        ...


class GuardSource(Protocol):
    """Who knows the write guard (system.guard)."""

    def state(self) -> GuardState:
        """The guard now."""
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


def note_guard(source: GuardSource, folder: SourceFolder, disk: Disk, when: str) -> GuardLook:
    """Add a look at the write guard, and at the kernel's counters of the source, to guard.json. Reads no medium."""
    look = look_at_guard(source, disk, when)
    try:
        earlier = restore(GuardRecord, read_json(folder.file(GUARD_FILE))).looks
    except FormatError:  # the first look, or a file that a power cut tore
        earlier = ()
    folder.write(GUARD_FILE, to_json(GuardRecord((*earlier, look))))
    return look


def look_at_guard(source: GuardSource, disk: Disk, when: str) -> GuardLook:
    """The guard now, as far as it can be read."""
    boot_id = (read_or_none(BOOT_ID, _BOOT_ID_BYTES) or b"").decode("ascii", "replace").strip()
    first = GuardLook(when, rfc3339(datetime.now(UTC)), boot_id, disk.generation, UNKNOWN,
                      counters=tuple(_counters(disk)))
    try:
        state = source.state()
    except RescueError as error:
        return replace(first, problem=str(error))
    mine = next((device for device in state.devices if device.node == disk.node), None)
    return replace(
        first, level=state.level, layers=state.layers, refused=state.refused, refused_by_kind=state.refused_by_kind,
        refused_on_source=mine.refused if mine is not None else {},
        flushes_kept_back=mine.flush_kept if mine is not None else 0, last_refused=state.last,
        findings=state.findings)


def _counters(disk: Disk) -> Iterator[NamedCounters]:
    paths = disk.namespace.paths if disk.namespace is not None else ()
    for name in (disk.node.removeprefix("/dev/").replace("/", "!"), *paths):
        # Not every kernel shows a hidden path by itself; the disk as a whole counts for all of them.
        with suppress(RescueError):
            yield NamedCounters(name, blockdev.write_counters(name))


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
