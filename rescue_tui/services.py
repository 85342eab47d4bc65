"""The composition root: builds every part once and offers the verbs that both front ends call.

Nothing here decides and nothing here touches the machine by itself; it wires core, system and jobs together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TypeVar

from rescue_tui.checkpoints.model import Options, Verdict
from rescue_tui.core.access import GateDecision, Role, WriteGrant
from rescue_tui.core.device import Disk, Health
from rescue_tui.core.errors import DeviceError, PolicyRefusal
from rescue_tui.core.ident import DeviceId
from rescue_tui.core.imaging import DestinationSpace, ImagingPlan
from rescue_tui.core.job import JobRecord
from rescue_tui.core.mapfile import Mapfile
from rescue_tui.core.snapshot import Snapshot
from rescue_tui.jobs.casefolder import CaseFolder, images_in
from rescue_tui.jobs.collection import collect
from rescue_tui.jobs.damage import AskedMap
from rescue_tui.jobs.extracting import ExtractAnswer, extract
from rescue_tui.jobs.imaging import ImagingOptions, make_plan
from rescue_tui.jobs.manager import JobManager
from rescue_tui.jobs.reporting import rebuild_report
from rescue_tui.jobs.salvaging import SalvageAnswer, salvage
from rescue_tui.jobs.scanning import ScanAnswer, ScanStopped, scan_paths
from rescue_tui.jobs.scanning import Tick as ScanTick
from rescue_tui.jobs.verification import CaseVerdict, Tick, verify_case
from rescue_tui.system.destination import Destinations, DestinationState
from rescue_tui.system.guard import WriteGuard
from rescue_tui.system.guardview import GuardState
from rescue_tui.system.inventory import PATIENCE_SECONDS, Inventory
from rescue_tui.system.journal import Journal, JournalEntry
from rescue_tui.system.mounts import MountedImage, Mounts
from rescue_tui.system.runner import Runner
from rescue_tui.system.workspace import Workspace

Result = TypeVar("Result")
ONE_SHOT_PATIENCE_SECONDS = 30.0


class Services:
    """Every verb of Stasis, for the command line and the TUI alike. Errors are RescueErrors."""

    def __init__(self, workspace: Workspace | None = None) -> None:
        """Patient by default: a verb that runs once waits for slow disks; see `be_prompt`."""
        self.workspace = workspace or Workspace.default()
        self.journal = Journal(self.workspace.journal_path)
        self.guard = WriteGuard(self.workspace, record=self.journal.append)
        self.runner = Runner(self.guard.redeem)
        self.inventory = Inventory(self.runner, patience_seconds=ONE_SHOT_PATIENCE_SECONDS)
        self.destinations = Destinations(self.runner, self.guard, self.journal, self.workspace)
        self.jobs = JobManager(self.runner, self.journal, self.workspace)
        self.mounts = Mounts(self.runner, self.journal, self.workspace)

    def be_prompt(self) -> None:
        """For a screen: a snapshot shows what is known after a few seconds, `changes` tells when the rest is."""
        self.inventory.patience_seconds = PATIENCE_SECONDS

    # devices -------------------------------------------------------------------------------------------------------
    async def snapshot(self) -> Snapshot:
        """Every disk now, with all signatures; reads media only through child processes with a deadline."""
        return await self.inventory.snapshot()

    async def health(self, disk: Disk) -> Health:
        """SMART and error log of a disk; never raises for a disk that has none, `Health.unavailable` says why."""
        return await self.inventory.health(disk)

    def changes(self) -> AsyncIterator[None]:
        """One item whenever udev has settled after a change of the block or nvme subsystems."""
        return self.inventory.changes()

    def roles(self, snapshot: Snapshot) -> Mapping[DeviceId, Role]:
        """The role of every disk and the reason for it."""
        return self.destinations.roles(snapshot)

    def guard_state(self) -> GuardState:
        """The guard's layers, protected devices, grants and refused attempts."""
        return self.guard.state()

    # destination ---------------------------------------------------------------------------------------------------
    def gate(self, snapshot: Snapshot, disk: Disk, *, internal: bool = False) -> GateDecision:
        """May this disk become the destination? Every reason against it, and every warning."""
        return self.destinations.gate(snapshot, disk, internal=internal)

    async def grant(self, disk: Disk, confirm: str, *, internal: bool = False) -> WriteGrant:
        """Open one disk for writing. ``confirm`` is the serial as the operator typed it; PolicyRefusal otherwise."""
        return await self.destinations.grant(await self.snapshot(), disk, confirm, internal=internal)

    async def format_destination(self, disk: Disk, filesystem: str, confirm: str) -> None:
        """Make ext4, xfs or exfat on a granted, blank disk. ``confirm`` is the serial, typed a second time."""
        await self.destinations.format(await self.snapshot(), disk, filesystem, confirm)

    async def mount_destination(self, disk: Disk, partition: int | None = None) -> DestinationSpace:
        """Mount the granted disk (or its only, or the named, partition) read-write and prove it by a test write.

        Jobs that a power cut ended and whose case folders lie there show up as interrupted and can be resumed.
        """
        space = await self.destinations.mount(await self.snapshot(), disk, partition)
        self.jobs.discover(Path(space.mount_point))
        return space

    async def release_destination(self, disk: Disk) -> None:
        """Unmount, flush, revoke the grant; afterwards the disk is read-only again and may be unplugged.

        PolicyRefusal while images on it are mounted, or something writes there.
        """
        await asyncio.to_thread(self._refuse_mounted_images, disk)
        await self.destinations.release(await self.snapshot(), disk)

    def _refuse_mounted_images(self, disk: Disk) -> None:
        points = [state.mount_point for state in self.destinations.states()
                  if state.device_id == disk.id and state.mount_point]
        used = [image.at for image in self.mounts.mounted()
                if any(Path(image.target).is_relative_to(point) for point in points)]
        if used:
            raise PolicyRefusal("An image on the destination is mounted, so it was not released.",
                                "Unmount it first: c on the devices screen, then u; or `stasis unmount DIR`.",
                                "\n".join(used))

    async def destination_space(self, to: Path) -> DestinationSpace:
        """The space where ``to`` will lie; PolicyRefusal when that is on no granted and mounted destination."""
        return await self.destinations.space_at(await self.snapshot(), to)

    def destination_states(self) -> tuple[DestinationState, ...]:
        """Granted disks with mount point and free space."""
        return self.destinations.states()

    # imaging -------------------------------------------------------------------------------------------------------
    async def plan_image(self, source: Disk, to: Path, options: ImagingOptions | None = None) -> ImagingPlan:
        """What imaging ``source`` into ``to`` will do, with the exact command. Refusals and space errors come here."""
        return (await self.plan_images((source,), to, options))[0]

    async def plan_images(
        self, sources: Sequence[Disk], to: Path, options: ImagingOptions | None = None
    ) -> tuple[ImagingPlan, ...]:
        """As `plan_image` for several sources, which share one new case folder and the free space."""
        snapshot = await self.snapshot()
        space = await self.destinations.space_at(snapshot, to)
        roles = self.roles(snapshot)
        chosen = options or ImagingOptions()
        plans: list[ImagingPlan] = []
        for source in sources:
            plan = make_plan(snapshot, source, to, space, roles, chosen)
            plans.append(plan)
            if not chosen.resume:  # what was begun lies in folders of its own and has most of its space already
                space = replace(space, free_bytes=max(0, space.free_bytes - plan.size_bytes))
                chosen = replace(chosen, case_dir=Path(plan.case_dir))
        return tuple(plans)

    async def start_image(self, plan: ImagingPlan) -> JobRecord:
        """Start the job in a process of its own, which outlives us."""
        self.destinations.note_source(plan.source)
        return await self.jobs.start_image(plan)

    # jobs ----------------------------------------------------------------------------------------------------------
    def job_records(self) -> tuple[JobRecord, ...]:
        """Every job, newest first; also those that a crash or a power cut interrupted."""
        return self.jobs.records()

    def job(self, job_id: str) -> JobRecord:
        """One job; UsageError when there is none of that id (a unique prefix is enough)."""
        return self.jobs.record(job_id)

    def job_map(self, job_id: str) -> Mapfile:
        """The rescue map of an imaging job as it lies on the destination; FormatError when there is none yet."""
        record = self.jobs.record(job_id)
        try:
            return CaseFolder(Path(record.case)).source(DeviceId.parse(record.source)).read_map()[0]
        except OSError as error:
            raise DeviceError(f"The mapfile can't be read: {error.strerror}.",
                              "Plug in the destination and mount it.") from error

    async def pause_job(self, job_id: str) -> JobRecord:
        """Ask the worker to stop cleanly and keep its place; returns at once with state pausing."""
        return await self.jobs.pause(job_id)

    async def resume_job(self, job_id: str) -> JobRecord:
        """Go on with a paused or interrupted job, if the same source is there (under whatever name)."""
        return await self.jobs.resume(job_id, await self.snapshot())

    async def cancel_job(self, job_id: str) -> JobRecord:
        """End the job; what was copied stays, named partial."""
        return await self.jobs.cancel(job_id)

    # case folder ---------------------------------------------------------------------------------------------------
    async def verify(self, case: Path, tick: Tick | None = None) -> CaseVerdict:
        """Re-read a case folder against its manifest and journal; ``tick`` gets file, bytes done and bytes in all."""
        return await (verify_case(self.runner, case) if tick is None else verify_case(self.runner, case, tick))

    async def report(self, case: Path) -> Path:
        """Write report.json and report.html of a case again; the path of the HTML."""
        return await rebuild_report(self.runner, case)

    async def collect(self, to: Path) -> tuple[Path, ...]:
        """Kernel log, journal, health logs, partition tables and inventories into ``to``; the files written."""
        snapshot = await self.snapshot()
        await self.destinations.space_at(snapshot, to)
        return await collect(self.runner, self.inventory, snapshot, to)

    # checkpoints ---------------------------------------------------------------------------------------------------
    async def scan_checkpoints(self, paths: Sequence[Path], options: Options,
                               tick: ScanTick | None = None, *, mapfile: AskedMap | None = None) -> ScanAnswer:
        """Judge every checkpoint at the paths, reading only; ``tick`` gets what is read, bytes read and bytes in all.

        The mapfile of a case's mounted image is laid over its files by itself, ``mapfile`` names another. Cancelling it
        ends the reading.
        """
        return await self._stoppable(lambda stop: scan_paths(paths, options, tick, stop, mapfile=mapfile))

    async def extract_checkpoints(self, paths: Sequence[Path], to: Path, only: Collection[Verdict],
                                  tick: ScanTick | None = None, copy_tick: ScanTick | None = None,
                                  *, root: Path | None = None, mapfile: AskedMap | None = None) -> ExtractAnswer:
        """Scan, then copy the checkpoints with these verdicts below ``to``; cancelling it leaves partial files.

        ``root``: the paths are rows of a scan of this directory, and only these rows are copied.
        """
        return await self._stoppable(
            lambda stop: extract(paths, to, only, tick, stop, copy_tick, root=root, mapfile=mapfile))

    async def salvage_checkpoint(self, path: Path, to: Path, tick: ScanTick | None = None,
                                 *, mapfile: AskedMap | None = None) -> SalvageAnswer:
        """Copy the good tensors of one checkpoint into a new file in ``to``; cancelling it leaves a partial file."""
        return await self._stoppable(lambda stop: salvage(path, to, tick, stop, mapfile=mapfile))

    @staticmethod
    async def _stoppable(call: Callable[[Event], Result]) -> Result:
        """A long call in a thread, which is asked to stop when we are cancelled."""
        stop = Event()
        work = asyncio.create_task(asyncio.to_thread(call, stop))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            stop.set()
            with suppress(ScanStopped):
                await work
            raise

    # mounts --------------------------------------------------------------------------------------------------------
    async def mount(self, target: str, at: Path, *, part: int | None = None) -> MountedImage:
        """Mount an image file (or a device) read-only with the right options for its file system."""
        return await self.mounts.mount(await self.snapshot(), target, at, part=part)

    async def mount_view(self, target: str, *, part: int | None = None) -> MountedImage:
        """As `mount`, at a directory of the session's own; what is mounted there already is returned as it is."""
        at = self.workspace.view_dir(target, part)
        self.workspace.ensure("views")
        there = next((image for image in self.mounts.mounted() if image.at == str(at)), None)
        return there or await self.mount(target, at, part=part)

    async def unmount(self, at: Path) -> None:
        """Unmount what `mount` mounted and detach its loop device."""
        await self.mounts.unmount(at)

    def mounted(self) -> tuple[MountedImage, ...]:
        """What `mount` mounted."""
        return self.mounts.mounted()

    def images(self) -> tuple[Path, ...]:
        """Images, complete and partial, of all jobs and of every case folder on a mounted destination."""
        cases = [Path(record.case) for record in self.jobs.records() if record.case]
        return images_in(cases, [Path(state.mount_point) for state in self.destinations.states() if state.mount_point])

    # journal -------------------------------------------------------------------------------------------------------
    def journal_tail(self, count: int = 200) -> tuple[JournalEntry, ...]:
        """The last entries of the session's journal, oldest first."""
        return self.journal.tail(count)
