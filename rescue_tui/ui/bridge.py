"""Between the screens and the services: what the screens may call, and one picture of the machine that they all show.

Every call leaves the event loop: what services offer as coroutines is awaited, what they offer as plain calls runs in a
daemon thread, since even a statvfs on a dying destination can hang for minutes and must not freeze the screen.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

from rescue_tui.checkpoints.model import Options, Verdict
from rescue_tui.core.access import GateDecision, Role, WriteGrant
from rescue_tui.core.device import Disk, Health
from rescue_tui.core.errors import DeviceError, RescueError
from rescue_tui.core.ident import DeviceId
from rescue_tui.core.imaging import DestinationSpace, ImagingPlan
from rescue_tui.core.job import ACTIVE, JobRecord
from rescue_tui.core.mapfile import Mapfile
from rescue_tui.core.snapshot import Snapshot
from rescue_tui.jobs.extracting import ExtractAnswer
from rescue_tui.jobs.imaging import ImagingOptions
from rescue_tui.jobs.salvaging import SalvageAnswer
from rescue_tui.jobs.scanning import ScanAnswer
from rescue_tui.jobs.verification import CaseVerdict
from rescue_tui.system.destination import DestinationState
from rescue_tui.system.guardview import GuardState
from rescue_tui.system.journal import JournalEntry
from rescue_tui.system.mounts import MountedImage
from rescue_tui.ui.background import Background, Tick
from rescue_tui.ui.holds import Holds
from rescue_tui.ui.words import UNKNOWN_ROLE

T = TypeVar("T")
CRASH_EVENT = "ui.crash"


class JournalWriter(Protocol):
    """What the crash screen needs of the journal."""

    def append(self, event: str, **detail: object) -> JournalEntry: ...


class UiServices(Protocol):
    """The part of `rescue_tui.services.Services` that the screens use; a fake of it drives the tests."""

    @property
    def journal(self) -> JournalWriter: ...

    async def snapshot(self) -> Snapshot: ...
    async def health(self, disk: Disk) -> Health: ...
    def changes(self) -> AsyncIterator[None]: ...
    def roles(self, snapshot: Snapshot) -> Mapping[DeviceId, Role]: ...
    def guard_state(self) -> GuardState: ...
    def gate(self, snapshot: Snapshot, disk: Disk, *, internal: bool = False) -> GateDecision: ...
    async def grant(self, disk: Disk, confirm: str, *, internal: bool = False) -> WriteGrant: ...
    async def format_destination(self, disk: Disk, filesystem: str, confirm: str) -> None: ...
    async def mount_destination(self, disk: Disk, partition: int | None = None) -> DestinationSpace: ...
    async def release_destination(self, disk: Disk) -> None: ...
    def destination_states(self) -> tuple[DestinationState, ...]: ...
    async def plan_image(self, source: Disk, to: Path, options: ImagingOptions | None = None) -> ImagingPlan: ...
    async def start_image(self, plan: ImagingPlan) -> JobRecord: ...
    def job_records(self) -> tuple[JobRecord, ...]: ...
    async def pause_job(self, job_id: str) -> JobRecord: ...
    async def resume_job(self, job_id: str) -> JobRecord: ...
    async def cancel_job(self, job_id: str) -> JobRecord: ...
    def job_map(self, job_id: str) -> Mapfile: ...
    async def verify(self, case: Path) -> CaseVerdict: ...
    async def report(self, case: Path) -> Path: ...
    async def scan_checkpoints(self, paths: Sequence[Path], options: Options,
                               tick: Tick | None = None) -> ScanAnswer: ...
    async def extract_checkpoints(self, paths: Sequence[Path], to: Path, only: Collection[Verdict],
                                  tick: Tick | None = None, copy_tick: Tick | None = None,
                                  *, root: Path | None = None) -> ExtractAnswer: ...
    async def salvage_checkpoint(self, path: Path, to: Path, tick: Tick | None = None) -> SalvageAnswer: ...
    async def destination_space(self, to: Path) -> DestinationSpace: ...
    async def mount_view(self, target: str, *, part: int | None = None) -> MountedImage: ...
    async def unmount(self, at: Path) -> None: ...
    def mounted(self) -> tuple[MountedImage, ...]: ...
    def images(self) -> tuple[Path, ...]: ...
    def journal_tail(self, count: int = 200) -> tuple[JournalEntry, ...]: ...


async def off_loop(call: Callable[[], T]) -> T:
    """Run a plain call in a daemon thread of its own; one that never comes back delays neither a key nor the exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def body() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 (handed to the caller as it is)
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, result, failure)

    threading.Thread(target=body, daemon=True, name="stasis-call").start()
    return await future


@dataclass(slots=True)
class View:
    """What is known now; every screen draws from it and none keeps a copy."""

    snapshot: Snapshot | None = None
    roles: Mapping[DeviceId, Role] = field(default_factory=dict)
    healths: dict[tuple[DeviceId, int], Health] = field(default_factory=dict)
    guard: GuardState | None = None
    destinations: tuple[DestinationState, ...] = ()
    jobs: tuple[JobRecord, ...] = ()
    devices_problem: RescueError | None = None
    status_problem: RescueError | None = None
    notice: str = ""

    @property
    def problem(self) -> RescueError | None:
        """What keeps the picture from being fresh."""
        return self.devices_problem or self.status_problem

    @property
    def running_jobs(self) -> int:
        """Jobs that a worker works at."""
        return sum(record.state in ACTIVE for record in self.jobs)

    def disks(self) -> tuple[Disk, ...]:
        """All disks, none before the first look."""
        return self.snapshot.disks if self.snapshot else ()

    def disk(self, device_id: DeviceId) -> Disk | None:
        """The disk of this identity, if it is attached and is one."""
        found = [disk for disk in self.disks() if disk.id == device_id]
        return found[0] if len(found) == 1 else None

    def role(self, disk: Disk) -> Role:
        """The role of a disk."""
        return self.roles.get(disk.id, UNKNOWN_ROLE)

    def health(self, disk: Disk) -> Health | None:
        """The health of this attachment; None while it is being read."""
        return disk.health or self.healths.get((disk.id, disk.generation))

    def destination(self, device_id: DeviceId) -> DestinationState | None:
        """The state of a granted disk."""
        return next((state for state in self.destinations if state.device_id == device_id), None)

    def job(self, job_id: str) -> JobRecord | None:
        """One job by its id."""
        return next((record for record in self.jobs if record.id == job_id), None)


class Bridge:
    """Keeps the `View` fresh. ``changed`` is called on the event loop after each change, ``moved`` instead when nothing
    but figures moved: free space, progress of jobs.
    """

    def __init__(self, services: UiServices) -> None:
        self.services = services
        self.view = View()
        self.changed: Callable[[], None] = lambda: None
        self.moved: Callable[[], None] = lambda: None
        self._busy: set[str] = set()
        self.actions: set[str] = set()
        self.holds = Holds()
        self.background = Background()
        self._status_ended = asyncio.Event()
        self._status_ended.set()

    async def watch(self) -> None:
        """Look at the disks now and again after every change that udev has settled; ends only when it is cancelled."""
        await self._recall()
        await self.refresh_devices()
        try:
            async for _ in self.services.changes():
                await self.refresh_devices()
        except RescueError as error:
            self._devices_problem(error)

    async def _recall(self) -> None:
        """After a crash of the screens, say so once: the console's session has started them again."""
        try:
            last = await self.journal(1)
        except RescueError as error:
            self.view.status_problem = error
            return
        if last and last[-1].event == CRASH_EVENT:
            self.view.notice = "The screens failed and were started again; jobs went on. l shows the journal."

    async def refresh_devices(self) -> None:
        """A fresh snapshot, then roles; one look at a time, a second wish during one is followed by another look."""
        if "devices" in self._busy:
            self._busy.add("devices again")
            return
        self._busy.add("devices")
        try:
            while True:
                self._busy.discard("devices again")
                await self._look()
                if "devices again" not in self._busy:
                    return
        finally:
            self._busy.discard("devices")

    async def _look(self) -> None:
        try:
            snapshot = await self.services.snapshot()
            roles = await off_loop(lambda: self.services.roles(snapshot))
        except RescueError as error:
            self._devices_problem(error)
            return
        self.view.snapshot, self.view.roles, self.view.devices_problem = snapshot, roles, None
        attached = {(disk.id, disk.generation) for disk in snapshot.disks}
        self.view.healths = {key: health for key, health in self.view.healths.items() if key in attached}
        self.changed()

    async def read_healths(self) -> None:
        """Ask each disk that was not asked yet, one after the other; one that hangs holds up only those behind it."""
        if "health" in self._busy:
            return
        self._busy.add("health")
        try:
            while waiting := [disk for disk in self.view.disks() if self.view.health(disk) is None]:
                disk = waiting[0]
                try:
                    health = await self.services.health(disk)
                except RescueError as error:
                    health = Health(unavailable=str(error))
                self.view.healths[disk.id, disk.generation] = health
                self.changed()
        finally:
            self._busy.discard("health")

    async def refresh_status(self, wait_seconds: float = 0.0) -> None:
        """Guard, destinations and jobs. Skipped while the last look has not come back (a destination may hang).

        ``wait_seconds``: how long to wait for that one; whoever has changed something needs a look from after it.
        """
        if "status" in self._busy and wait_seconds:
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._status_ended.wait()
            except TimeoutError:
                return
        if "status" in self._busy:
            return
        self._busy.add("status")
        self._status_ended.clear()
        services = self.services
        try:
            guard, destinations, jobs = await off_loop(
                lambda: (services.guard_state(), services.destination_states(), services.job_records()))
        except RescueError as error:
            if str(error) != str(self.view.status_problem):
                self.view.status_problem = error
                self.changed()
            return
        finally:
            self._busy.discard("status")
            self._status_ended.set()
        old = (self.view.guard, self.view.destinations, self.view.jobs, self.view.status_problem)
        if (guard, destinations, jobs, None) != old:
            only_figures = (old[3] is None and guard == old[0]
                            and _without_figures(destinations, jobs) == _without_figures(old[1], old[2]))
            self.view.guard, self.view.destinations, self.view.jobs = guard, destinations, jobs
            self.view.status_problem = None
            (self.moved if only_figures else self.changed)()

    async def gate(self, disk: Disk, *, internal: bool) -> GateDecision:
        """What speaks against a disk as the destination."""
        snapshot = self.view.snapshot
        if snapshot is None:
            raise DeviceError("The disks were not looked at yet.", "Wait for the list of devices.")
        return await off_loop(lambda: self.services.gate(snapshot, disk, internal=internal))

    async def job_map(self, job_id: str) -> Mapfile | None:
        """The rescue map of an imaging job as it is on the destination now; None while an earlier look hangs."""
        if "map" in self._busy:
            return None
        self._busy.add("map")

        def read() -> Mapfile:
            try:
                return self.services.job_map(job_id)
            finally:
                self._busy.discard("map")

        return await off_loop(read)

    async def journal(self, count: int) -> tuple[JournalEntry, ...]:
        """The last entries of the session's journal, oldest first."""
        return await off_loop(lambda: self.services.journal_tail(count))

    def _devices_problem(self, error: RescueError) -> None:
        self.view.devices_problem = error
        self.changed()


def _without_figures(destinations: Sequence[DestinationState], jobs: Sequence[JobRecord]) -> tuple[object, ...]:
    """What is left of the status when the figures that move all the time are taken away."""
    return (
        tuple(replace(state, space=replace(state.space, free_bytes=0) if state.space else None)
              for state in destinations),
        tuple((record.id, record.state, record.error) for record in jobs))
