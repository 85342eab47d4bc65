"""Services for tests of the command line: values in, no device touched, every call remembered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rescue_tui.core.access import Access, GateDecision, Role, WriteGrant
from rescue_tui.core.device import (
    Controller,
    DeviceKind,
    Disk,
    Health,
    LbaFormat,
    Namespace,
    Partition,
    Signature,
    Subsystem,
)
from rescue_tui.core.errors import PolicyRefusal, RescueError
from rescue_tui.core.finding import Finding, Severity
from rescue_tui.core.guardstate import LayerState, RefusedAttempt
from rescue_tui.core.ident import DeviceId
from rescue_tui.core.imaging import DestinationSpace, ImagingPlan
from rescue_tui.core.job import JobRecord, JobState, Progress
from rescue_tui.core.snapshot import Snapshot
from rescue_tui.jobs.imaging import ImagingOptions
from rescue_tui.jobs.verification import CaseVerdict, Tick
from rescue_tui.services import Services
from rescue_tui.system.destination import DestinationState
from rescue_tui.system.guardview import GuardState, ProtectedDevice

MOMENT = datetime(2026, 12, 2, 9, 0, tzinfo=UTC)
HOSTILE = "S4EV\x1b[2J[/bold]\udcff"


def nvme_disk(*, serial: str = "S4EVNX0M123456", node: str = "/dev/nvme0n1", digit: str = "a") -> Disk:
    """An internal NVMe namespace with an XFS on its one partition; ``digit`` makes its identity."""
    subsystem = Subsystem("nvme-subsys0", "nqn.2014.08.org.example:x", "SAMSUNG MZQL2960", serial, "GDC5602Q",
                          (Controller("nvme0", "pcie", "0000:01:00.0", "live", 4, "0000:01:00"),))
    space = Namespace(1, digit * 32, "", "", LbaFormat(512), subsystem, ("nvme0c0n1",))
    part = Partition(DeviceId("nvme-nguid", f"{digit * 32}-part1"), f"{node}p1", (259, 1), 1, 1 << 20, 1 << 30, True,
                     signatures=(Signature("xfs", "filesystem", 0, "data", "11-22"),))
    return Disk(
        DeviceId("nvme-nguid", digit * 32), node, (259, 0), 7, DeviceKind.NVME, "SAMSUNG MZQL2960", serial, "GDC5602Q",
        960197124096, 512, 4096, True, transport="pcie", slot="0000:01:00", namespace=space,
        signatures=(Signature("gpt", "partition-table", 512),), partitions=(part,), links=("/dev/disk/by-id/x",))


def usb_disk() -> Disk:
    """A blank external disk."""
    return Disk(DeviceId("serial", "usb/Portable/USB0001"), "/dev/sdb", (8, 16), 9, DeviceKind.USB, "Portable",
                "USB0001", "1.0", 2000398934016, 512, 512, True, external=True, removable=True)


def job(state: JobState = JobState.RUNNING, *, job_id: str = "20261202-a1", done: int = 50, bad: int = 0,
        exit_status: int | None = None) -> JobRecord:
    """An imaging job of 100 bytes."""
    areas = 1 if bad else 0
    progress = Progress("copying", 100, done, bad, areas, areas, 1048576.0, 1048576.0, 0.0, 60.0, 90.0)
    return JobRecord(job_id, "image", "Image of S4EVNX0M123456", state, "2026-12-02T09:00:00.000Z",
                     "2026-12-02T09:01:00.000Z", case="/mnt/d/stasis-case-1", progress=progress,
                     exit_status=exit_status)


class CliServices(Services):
    """A stand-in for `Services`; ``calls`` holds what was asked, ``jobs_seen`` the records that looks at jobs give."""

    def __init__(self, *disks: Disk, jobs: tuple[JobRecord, ...] = (), fail: RescueError | None = None,
                 findings: tuple[Finding, ...] = ()) -> None:
        self.disks = disks or (nvme_disk(), usb_disk())
        self.findings = findings
        self.calls: list[tuple[object, ...]] = []
        self.jobs_seen = list(jobs)
        self.fail = fail
        self.layers: tuple[LayerState, ...] = (LayerState("udev-flag", "armed", "Set by udev.", None),)
        self.last: tuple[RefusedAttempt, ...] = ()

    def _note(self, *call: object) -> None:
        self.calls.append(call)
        if self.fail is not None:
            raise self.fail

    async def snapshot(self) -> Snapshot:
        """The given disks."""
        return Snapshot(MOMENT, self.disks, "boot-uuid", self.findings)

    async def health(self, disk: Disk) -> Health:
        """Good for NVMe, unavailable for the rest."""
        self._note("health", disk.node)
        if disk.kind is DeviceKind.NVME:
            return Health("nvme", True, 0, 40, 100, 10, 1, 3, 2, 1000, 4)
        return Health(unavailable="The bridge passes no SMART.")

    async def _changes(self) -> AsyncIterator[None]:
        yield None
        self.disks = self.disks[:1]
        yield None

    def changes(self) -> AsyncIterator[None]:
        """Two changes; a disk is gone at the second."""
        return self._changes()

    def roles(self, snapshot: Snapshot) -> Mapping[DeviceId, Role]:
        """Everything is a source, USB disks are destinations."""
        return {disk.id: Role(Access.DESTINATION, "It was granted.") if disk.external
                else Role(Access.SOURCE, "Every disk is a source until it is granted.") for disk in snapshot.disks}

    def guard_state(self) -> GuardState:
        """One armed layer; the USB disk is granted."""
        devices = tuple(ProtectedDevice(disk.node, "1:1", not disk.external, disk.external, False)
                        for disk in self.disks)
        grant = WriteGrant(usb_disk().id, 9, "/dev/sdb", "USB0001", "2026-12-02T09:00:00.000Z", "secret-token")
        return GuardState(self.layers, devices, (grant,), (), last=self.last)

    def gate(self, snapshot: Snapshot, disk: Disk, *, internal: bool = False) -> GateDecision:
        """External disks may be granted."""
        refusals = () if disk.external else (
            Finding(Severity.ERROR, "internal", "It is inside this machine."),
            Finding(Severity.ERROR, "table", "Not blank."))
        return GateDecision(disk.id, refusals, ())

    async def grant(self, disk: Disk, confirm: str, *, internal: bool = False) -> WriteGrant:
        """PolicyRefusal unless the serial is right."""
        self._note("grant", disk.node, confirm, internal)
        if confirm != disk.serial:
            raise PolicyRefusal("The serial does not match.", "Type it as shown.")
        return WriteGrant(disk.id, disk.generation, disk.node, disk.serial, "2026-12-02T09:00:00.000Z", "secret-token")

    async def format_destination(self, disk: Disk, filesystem: str, confirm: str) -> None:
        """Only remembered."""
        self._note("format", disk.node, filesystem, confirm)

    async def mount_destination(self, disk: Disk, partition: int | None = None) -> DestinationSpace:
        """An ext4 with a tebibyte free."""
        self._note("mount_destination", disk.node, partition)
        return DestinationSpace("/run/stasis/destination/x", "ext4", 1 << 40, True, True, True)

    async def release_destination(self, disk: Disk) -> None:
        """Only remembered."""
        self._note("release", disk.node)

    def destination_states(self) -> tuple[DestinationState, ...]:
        """None."""
        return ()

    async def plan_images(
        self, sources: Sequence[Disk], to: Path, options: ImagingOptions | None = None
    ) -> tuple[ImagingPlan, ...]:
        """Plans with plausible commands."""
        return tuple(self._plan(source, to, options) for source in sources)

    def _plan(self, source: Disk, to: Path, options: ImagingOptions | None) -> ImagingPlan:
        self._note("plan", source.node, to, options)
        folder = f"{to}/stasis-case-1"
        image, mapfile = f"{folder}/x/image.raw", f"{folder}/x/image.map"
        return ImagingPlan(
            source.id, source.node, source.serial, source.generation, source.size_bytes, 512, folder, image, mapfile,
            8192, True, True, False, options.retries if options else 0, bool(options and options.resume),
            ("ddrescue", "-d", "-r0", source.node, image, mapfile), disk=source)

    async def start_image(self, plan: ImagingPlan) -> JobRecord:
        """A pending job."""
        self._note("start", plan.source_node)
        return replace(job(JobState.PENDING, done=0), id=f"job-{plan.source_node[5:]}")

    def job_records(self) -> tuple[JobRecord, ...]:
        """What the test gave."""
        return tuple(self.jobs_seen)

    def job(self, job_id: str) -> JobRecord:
        """The next record that the test gave; the last one again when they are used up."""
        self._note("job", job_id)
        record = self.jobs_seen.pop(0) if len(self.jobs_seen) > 1 else self.jobs_seen[0]
        return replace(record, id=job_id)

    async def pause_job(self, job_id: str) -> JobRecord:
        """A pausing job."""
        self._note("pause", job_id)
        return job(JobState.PAUSING)

    async def resume_job(self, job_id: str) -> JobRecord:
        """A pending job."""
        self._note("resume", job_id)
        return job(JobState.PENDING)

    async def cancel_job(self, job_id: str) -> JobRecord:
        """A cancelling job."""
        self._note("cancel", job_id)
        return job(JobState.CANCELLING)

    async def verify(self, case: Path, tick: Tick | None = None) -> CaseVerdict:
        """Good, unless the name says otherwise."""
        self._note("verify", case)
        if tick is not None:
            for done in range(101):
                tick("image.raw", done, 100)
        bad = Finding(Severity.ERROR, "mismatch", "x/image.raw was changed.")
        return CaseVerdict(str(case), "bad" not in case.name, (bad,) if "bad" in case.name else (), 3, 100)

    async def report(self, case: Path) -> Path:
        """The path of the page."""
        self._note("report", case)
        return case / "report.html"

    async def collect(self, to: Path) -> tuple[Path, ...]:
        """Two files."""
        self._note("collect", to)
        return to / "kernel.log", to / "journal.jsonl"

    async def unmount(self, at: Path) -> None:
        """Only remembered."""
        self._note("unmount", at)
