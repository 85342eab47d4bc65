"""Collect what the machine tells of itself: kernel log, journal, disks' health, partition tables, inventories."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from rescue_tui.core.command import Command
from rescue_tui.core.device import Disk
from rescue_tui.core.errors import DeviceError, RescueError, SpaceError
from rescue_tui.core.record import document
from rescue_tui.core.snapshot import Snapshot
from rescue_tui.core.text import printable, printable_lines
from rescue_tui.jobs.casefolder import COLLECTED_PREFIX, MANIFEST, format_manifest, small_hash, to_json
from rescue_tui.jobs.evidence import HealthSource
from rescue_tui.system.durable import replace_file
from rescue_tui.system.runner import Runner
from rescue_tui.system.tools import dmesg, sfdisk

_INVENTORIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("lsblk.json", ("lsblk", "--json", "--bytes", "--output-all")),
    ("lspci.txt", ("lspci", "-nnvv")),
    ("lsusb.txt", ("lsusb", "-v")),
    ("nvme-list.json", ("nvme", "list", "-v", "-o", "json")),
    ("mounts.json", ("findmnt", "--output-all", "--json")),
    ("modules.txt", ("lsmod",)),
    ("journal.txt", ("journalctl", "--boot", "--no-pager", "--output=short-iso-precise", "--quiet", "--utc")),
)


async def collect(runner: Runner, inventory: HealthSource, snapshot: Snapshot, to: Path) -> tuple[Path, ...]:
    """Write everything into a new folder ``stasis-collected-<time>`` in ``to``; the files written, its manifest last.

    What a tool can't tell becomes a line in ``not-collected.txt``, never an error. SpaceError when the disk is full,
    DeviceError when it fails.
    """
    folder = to / f"{COLLECTED_PREFIX}{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    try:
        return await _Collection(runner, inventory, snapshot, folder).run()
    except OSError as error:
        kind = SpaceError if error.errno in (errno.ENOSPC, errno.EDQUOT) else DeviceError
        raise kind(f"{printable(str(folder))} can't be written: {error.strerror}.",
                   "Is the destination full, or gone?") from error


class _Collection:
    def __init__(self, runner: Runner, inventory: HealthSource, snapshot: Snapshot, folder: Path) -> None:
        self._runner = runner
        self._inventory = inventory
        self._snapshot = snapshot
        self._folder = folder
        self._written: list[Path] = []
        self._missing: list[str] = []

    async def run(self) -> tuple[Path, ...]:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._write("devices.json", to_json(document("devices", taken_at=self._snapshot.taken_at,
                                                     devices=self._snapshot.disks)))
        await self._try("kernel.log", self._kernel_log)
        for name, argv in _INVENTORIES:
            await self._tool(name, argv)
        for disk in self._snapshot.disks:
            await self._disk(disk)
        if self._missing:
            self._write("not-collected.txt", "".join(f"{line}\n" for line in self._missing).encode())
        entries = {path.relative_to(self._folder).as_posix(): small_hash(path) for path in self._written}
        self._write(MANIFEST, format_manifest(entries))
        return tuple(self._written)

    def _write(self, name: str, content: bytes) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
        self._written.append(path)

    async def _try(self, what: str, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except RescueError as error:
            self._missing.append(f"{what}: {printable(error.summary)}")

    async def _kernel_log(self) -> None:
        self._write("kernel.log", (await dmesg.kernel_log(self._runner)).encode("utf-8"))

    async def _tool(self, name: str, argv: tuple[str, ...]) -> None:
        if not self._runner.has(argv[0]):
            self._missing.append(f"{name}: {argv[0]} is not installed")
            return

        async def step() -> None:
            done = await self._runner.attempt(Command(argv, deadline_seconds=60))
            if not done.stdout:
                self._missing.append(f"{name}: {argv[0]} printed nothing ({done.how_it_ended})")
                return
            self._write(name, printable_lines(done.stdout, None).encode("utf-8"))

        await self._try(name, step)

    async def _disk(self, disk: Disk) -> None:
        base = f"disks/{disk.id.slug()}"

        async def health() -> None:
            self._write(f"{base}/health.json", to_json(await self._inventory.health(disk)))
            for name, content in (await self._inventory.raw_health(disk)).items():
                self._write(f"{base}/{name}", content)

        async def table() -> None:
            done = await sfdisk.dump_json(self._runner, disk.node)
            if done.stdout.strip():
                self._write(f"{base}/partition-table.json", done.stdout)

        self._write(f"{base}/identity.json", to_json(disk))
        await self._try(f"{base}/health.json", health)
        await self._try(f"{base}/partition-table.json", table)
