"""A fake of `rescue_tui.services.Services` for the screens: a machine as values, every call noted, no I/O.

`FakeServices` follows the contract that the screens see (grant needs the exact serial, states of jobs follow the table
of core.job), so that a test can drive a whole session. `unplug`, `plug`, `set_progress` and `finish` play the machine.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rescue_tui.checkpoints.model import Options, Verdict
from rescue_tui.core.access import Access, GateDecision, Role, WriteGrant
from rescue_tui.core.device import (
    Controller,
    DeviceKind,
    Disk,
    ErrorLogEntry,
    Health,
    LbaFormat,
    Mount,
    Namespace,
    Partition,
    Signature,
    Subsystem,
)
from rescue_tui.core.errors import FormatError, PolicyRefusal, RescueError, SpaceError
from rescue_tui.core.finding import Finding, Severity
from rescue_tui.core.guardstate import LayerState, parse_guard_state
from rescue_tui.core.ident import DeviceId
from rescue_tui.core.imaging import DestinationSpace, ImagingPlan
from rescue_tui.core.job import JobRecord, JobState, Progress, check_transition
from rescue_tui.core.mapfile import Area, Mapfile, Status
from rescue_tui.core.snapshot import Snapshot
from rescue_tui.core.text import printable
from rescue_tui.jobs.extracting import ExtractAnswer
from rescue_tui.jobs.imaging import ImagingOptions
from rescue_tui.jobs.salvaging import SalvageAnswer
from rescue_tui.jobs.scanning import ScanAnswer, Tick
from rescue_tui.jobs.verification import CaseVerdict
from rescue_tui.system.blockdev import BlockNode
from rescue_tui.system.destination import DestinationState
from rescue_tui.system.guardview import GuardState, ProtectedDevice, picture
from rescue_tui.system.journal import JournalEntry
from rescue_tui.system.mounts import MountedImage, PartitionNeeded
from tests.support import fake_checkpoints

GIB = 1 << 30
MOMENT = "2026-12-02T09:00:00.000Z"


def nvme_disk(number: int, serial: str, *, model: str = "ACME NVMe 3840", label: str = "ckpt") -> Disk:
    """An NVMe namespace with a GPT and one XFS partition."""
    node = f"/dev/nvme{number}n1"
    nguid = f"{number:032x}"
    subsystem = Subsystem(f"nvme-subsys{number}", f"nqn.2014-08.org.nvmexpress:{number}", model, serial, "1.0.2",
                          (Controller(f"nvme{number}", "pcie", "0000:01:00.0", "live", 1, "0000:01:00.0"),))
    xfs = Signature("xfs", "filesystem", 0, label, "11111111-2222-3333-4444-555555555555")
    part = Partition(DeviceId("part", f"{nguid}/1"), f"{node}p1", (259, number * 2 + 1), 1, 1 << 20, 3 * GIB, True,
                     "checkpoints", "0fc63daf-8483-4772-8e79-3d69d8477de4", "aaaa-bbbb", (xfs,))
    return Disk(
        DeviceId("nvme-nguid", nguid), node, (259, number * 2), number + 1, DeviceKind.NVME, model, serial, "1.0.2",
        4 * GIB, 512, 4096, True, transport="pcie", slot="0000:01:00.0",
        namespace=Namespace(1, nguid, "", "", LbaFormat(512), subsystem, (f"nvme{number}c0n1", f"nvme{number}c1n1")),
        signatures=(Signature("gpt", "partition-table", 512),), partitions=(part,),
        links=(f"/dev/disk/by-id/nvme-{serial}",))


def usb_disk(serial: str = "USB-0001", *, size_bytes: int = 8 * GIB, blank: bool = True) -> Disk:
    """An external disk."""
    signatures = () if blank else (Signature("ext4", "filesystem", 1080, "rescue"),)
    return Disk(DeviceId("serial", f"usb/Portable/{serial}"), "/dev/sda", (8, 0), 50, DeviceKind.USB, "Portable SSD",
                serial, "7", size_bytes, 512, 512, True, removable=True, external=True, transport="usb", slot="1-2",
                signatures=signatures)


def boot_disk() -> Disk:
    """The stick that Stasis was booted from."""
    return Disk(DeviceId("serial", "usb/Boot/B1"), "/dev/sdb", (8, 16), 51, DeviceKind.USB, "Boot Stick", "B1", "1",
                2 * GIB, 512, 512, True, removable=True, external=True, transport="usb",
                signatures=(Signature("gpt", "partition-table", 512),),
                mounts=(Mount("/run/boot", "vfat", ("ro",)),))


GOOD = Health("nvme-cli", True, 0, 38, 100, 10, 2, 0, 0, 812, 3)
BAD = Health("nvme-cli", False, 4, 71, 3, 10, 104, 17, 2, 40_123, 9,
             (ErrorLogEntry(2, 9, 0x281, "Unrecovered Read Error", 123456, 1),),
             (Finding(Severity.ERROR, "media-errors", "The disk has 17 media errors.", "media_errors: 17"),))


class FakeJournal:
    """Keeps what is appended."""

    def __init__(self) -> None:
        self.entries: list[JournalEntry] = []

    def append(self, event: str, **detail: object) -> JournalEntry:
        """Keep it."""
        entry = JournalEntry(len(self.entries) + 1, MOMENT, event, {name: str(value) for name, value in detail.items()},
                             "0" * 64, f"{len(self.entries) + 1:064x}")
        self.entries.append(entry)
        return entry


class FakeServices:
    """See the module. ``calls`` is the list of verbs with their arguments in words; ``errors`` fails a verb once."""

    def __init__(self, *disks: Disk) -> None:
        self.disks = disks or (nvme_disk(0, "S4EVNX0M"), nvme_disk(1, "S4EVNX1M"), usb_disk(), boot_disk())
        self.healths: dict[str, Health] = {}
        self.calls: list[str] = []
        self.errors: dict[str, RescueError] = {}
        self.granted: dict[DeviceId, WriteGrant] = {}
        self.spaces: dict[DeviceId, DestinationSpace] = {}
        self.jobs: dict[str, JobRecord] = {}
        self.maps: dict[str, Mapfile] = {}
        self.verdict: CaseVerdict | None = None
        self.journal = FakeJournal()
        self.journal.append("session.start", version="0.1")
        self.refused = 0
        self.status_error: RescueError | None = None
        self.gate_warnings: tuple[Finding, ...] = ()
        self.hidden: tuple[Finding, ...] = ()
        self.open_findings: tuple[Finding, ...] = ()
        self.stuck = threading.Event()
        self.stuck.set()
        self.guard_text = ""
        self.void: tuple[DeviceId, ...] = ()
        self.extra_layers: tuple[LayerState, ...] = ()
        self._changes: asyncio.Queue[None] = asyncio.Queue()
        self.gate_refusals: dict[str, tuple[Finding, ...]] = {}
        self.hold: dict[str, asyncio.Event] = {}
        self.views: tuple[MountedImage, ...] = ()
        self.image_paths: tuple[Path, ...] = ()
        self.parts: tuple[tuple[int, int, str], ...] = ()
        self.checkpoint_text = ""
        self.ticks: dict[str, tuple[str, int, int]] = {}

    # playing the machine -------------------------------------------------------------------------------------------
    def plug(self, disk: Disk) -> None:
        """A disk appears."""
        self.disks = (*self.disks, disk)
        self._changes.put_nowait(None)

    def unplug(self, disk: Disk) -> None:
        """A disk goes."""
        self.disks = tuple(each for each in self.disks if each.id != disk.id)
        self._changes.put_nowait(None)

    def set_job(self, record: JobRecord) -> None:
        """The worker wrote its job file."""
        self.jobs[record.id] = record

    def set_progress(self, job_id: str, progress: Progress) -> None:
        """The worker moved on."""
        self.jobs[job_id] = replace(self.jobs[job_id], progress=progress)

    def finish(self, job_id: str, state: JobState = JobState.DONE) -> None:
        """The worker ended."""
        record = self.jobs[job_id]
        total = record.progress.total_bytes
        bad = 4096 if state is JobState.DAMAGED else 0
        self.jobs[job_id] = replace(
            record, state=state,
            progress=replace(record.progress, done_bytes=total, bad_bytes=bad, bad_areas=1 if bad else 0),
            result={"sha256": "ab" * 32, "size_bytes": total, "rescued_bytes": total - bad, "bad_bytes": bad,
                    "verdict": "complete" if not bad else "damaged"})
        middle = Status.BAD_SECTOR if bad else Status.FINISHED
        areas = [Area(0, total - 8192, Status.FINISHED), Area(total - 8192, 4096, middle),
                 Area(total - 4096, 4096, Status.FINISHED)]
        self.maps[job_id] = Mapfile(tuple(areas), current_status="+")

    async def _called(self, verb: str, *words: object) -> None:
        self.calls.append(" ".join([verb, *(str(word) for word in words)]))
        if verb in self.hold:
            await self.hold[verb].wait()
        if verb in self.errors:
            raise self.errors.pop(verb)

    # devices -------------------------------------------------------------------------------------------------------
    async def snapshot(self) -> Snapshot:
        await self._called("snapshot")
        return Snapshot(datetime(2026, 12, 2, 9, tzinfo=UTC), self.disks, findings=self.hidden)

    async def health(self, disk: Disk) -> Health:
        await self._called("health", disk.node)
        return self.healths.get(disk.serial, GOOD if disk.kind is DeviceKind.NVME else
                                Health(unavailable="The USB bridge does not pass SMART through."))

    async def changes(self) -> AsyncIterator[None]:
        while True:
            await self._changes.get()
            yield None

    def roles(self, snapshot: Snapshot) -> Mapping[DeviceId, Role]:
        roles: dict[DeviceId, Role] = {}
        for disk in snapshot.disks:
            if disk.id in self.granted:
                roles[disk.id] = Role(Access.DESTINATION, "The operator granted it.")
            elif disk.model == "Boot Stick":
                roles[disk.id] = Role(Access.BOOT_MEDIUM, "The firmware loaded Stasis from it.")
            else:
                roles[disk.id] = Role(Access.SOURCE, "Every disk is a source until it is granted.")
        return roles

    def guard_state(self) -> GuardState:
        # A hung file system: the thread waits, and only the thread.
        self.stuck.wait()
        if self.status_error is not None:
            raise self.status_error
        devices = tuple(ProtectedDevice(disk.node, f"{disk.dev[0]}:{disk.dev[1]}", disk.id not in self.granted,
                                        disk.id in self.granted, False) for disk in self.disks)
        if self.guard_text:
            nodes = tuple(BlockNode(disk.node.removeprefix("/dev/"), disk.dev, disk.generation,
                                    disk.id not in self.granted, disk.size_bytes) for disk in self.disks)
            granted = {disk.dev: self.granted[disk.id] for disk in self.disks if disk.id in self.granted}
            return picture(nodes, granted, parse_guard_state(self.guard_text), "", self.extra_layers,
                           datetime(2026, 12, 2, 9, tzinfo=UTC))
        layers = (LayerState("udev-flag", "armed", "Set by udev.", self.refused), *self.extra_layers)
        return GuardState(layers, devices, tuple(self.granted.values()), self.open_findings, void=self.void)

    # destination ---------------------------------------------------------------------------------------------------
    def gate(self, snapshot: Snapshot, disk: Disk, *, internal: bool = False) -> GateDecision:
        refusals = list(self.gate_refusals.get(disk.serial, ()))
        if disk.model == "Boot Stick":
            refusals.append(Finding(Severity.ERROR, "boot-medium", "Stasis was booted from this disk."))
        elif not disk.external and not internal:
            refusals.append(Finding(Severity.ERROR, "internal", "This is an internal disk."))
        warnings = list(self.gate_warnings)
        if not disk.is_blank:
            warnings.append(Finding(Severity.WARNING, "not-blank", "There are data on this disk."))
        return GateDecision(disk.id, tuple(refusals), tuple(warnings))

    async def grant(self, disk: Disk, confirm: str, *, internal: bool = False) -> WriteGrant:
        await self._called("grant", disk.node, confirm, *(["internal"] if internal else []))
        if confirm != printable(disk.serial):
            raise PolicyRefusal("The serial that was typed is not the serial of the disk.", "Type it as it is shown.")
        grant = WriteGrant(disk.id, disk.generation, disk.node, disk.serial, MOMENT, "token")
        self.granted[disk.id] = grant
        self._changes.put_nowait(None)
        return grant

    async def format_destination(self, disk: Disk, filesystem: str, confirm: str) -> None:
        await self._called("format", disk.node, filesystem, confirm)
        made = (Signature(filesystem, "filesystem", 0, "stasis"),)
        self.disks = tuple(replace(each, signatures=made) if each.id == disk.id else each for each in self.disks)

    async def mount_destination(self, disk: Disk, partition: int | None = None) -> DestinationSpace:
        await self._called("mount", disk.node, *([partition] if partition is not None else []))
        kind = disk.signatures[0].kind if disk.signatures else "none"
        space = DestinationSpace("/run/stasis/destination/usb", kind, disk.size_bytes - GIB, True, True, True)
        self.spaces[disk.id] = space
        return space

    async def release_destination(self, disk: Disk) -> None:
        await self._called("release", disk.node)
        self.spaces.pop(disk.id, None)
        self.granted.pop(disk.id, None)
        self._changes.put_nowait(None)

    def destination_states(self) -> tuple[DestinationState, ...]:
        states = []
        for grant in self.granted.values():
            space = self.spaces.get(grant.device_id)
            states.append(DestinationState(
                grant.device_id, grant.serial, grant.node, space.mount_point if space else "", space))
        return tuple(states)

    # imaging -------------------------------------------------------------------------------------------------------
    async def plan_image(self, source: Disk, to: Path, options: ImagingOptions | None = None) -> ImagingPlan:
        options = options or ImagingOptions()
        words = [name for name, on in (("partial", options.accept_partial), ("resume", options.resume)) if on]
        await self._called("plan", source.node, to, *words)
        space = next(iter(self.spaces.values()))
        if source.size_bytes > space.free_bytes and not options.accept_partial:
            raise SpaceError("The image needs more than the destination has free.", "Use a larger destination.")
        case = options.case_dir or to / "stasis-case-20261202T090000Z"
        folder = case / source.id.slug()
        image, mapfile = folder / "image.raw", folder / "image.map"
        return ImagingPlan(
            source.id, source.node, source.serial, source.generation, source.size_bytes, 512, str(case), str(image),
            str(mapfile), 8192, True, True, False, 0, options.resume,
            ("ddrescue", "-d", "-r0", "-b512", "-c8192", source.node, str(folder / "image.partial.raw"), str(mapfile)),
            options.accept_partial, (Finding(Severity.WARNING, "sparse", "Holes are not preallocated."),))

    async def start_image(self, plan: ImagingPlan) -> JobRecord:
        await self._called("start", plan.source_node)
        job_id = f"job-{len(self.jobs) + 1}"
        record = JobRecord(job_id, "image", f"Image ACME {plan.source_serial}", JobState.RUNNING, MOMENT, MOMENT,
                           str(plan.source), plan.case_dir, (" ".join(plan.command),), 4711,
                           Progress("copying", plan.size_bytes))
        self.jobs[job_id] = record
        self.maps[job_id] = Mapfile((Area(0, plan.size_bytes, Status.NON_TRIED),))
        return record

    # jobs ----------------------------------------------------------------------------------------------------------
    def job_records(self) -> tuple[JobRecord, ...]:
        return tuple(reversed(self.jobs.values()))

    def _become(self, job_id: str, state: JobState) -> JobRecord:
        check_transition(self.jobs[job_id].state, state)
        self.jobs[job_id] = replace(self.jobs[job_id], state=state)
        return self.jobs[job_id]

    async def pause_job(self, job_id: str) -> JobRecord:
        await self._called("pause", job_id)
        return self._become(job_id, JobState.PAUSING)

    async def resume_job(self, job_id: str) -> JobRecord:
        await self._called("resume", job_id)
        return self._become(job_id, JobState.RUNNING)

    async def cancel_job(self, job_id: str) -> JobRecord:
        await self._called("cancel", job_id)
        return self._become(job_id, JobState.CANCELLING)

    def job_map(self, job_id: str) -> Mapfile:
        if job_id not in self.maps:
            raise FormatError("There is no mapfile.", "")
        return self.maps[job_id]

    # case folder ---------------------------------------------------------------------------------------------------
    async def verify(self, case: Path) -> CaseVerdict:
        await self._called("verify", case)
        return self.verdict or CaseVerdict(str(case), True, ())

    async def report(self, case: Path) -> Path:
        await self._called("report", case)
        return case / "report.html"

    # checkpoints ---------------------------------------------------------------------------------------------------
    def mounted(self) -> tuple[MountedImage, ...]:
        return self.views

    def images(self) -> tuple[Path, ...]:
        self.stuck.wait()
        return self.image_paths

    async def mount_view(self, target: str, *, part: int | None = None) -> MountedImage:
        await self._called("view", target, *([part] if part is not None else []))
        if self.parts and part is None:
            raise PartitionNeeded(self.parts)
        image = MountedImage(target, f"/views/{len(self.views)}", "xfs", ("ro", "norecovery"), "/dev/loop0", part,
                             "The log is not replayed.")
        self.views = (*self.views, image)
        return image

    async def unmount(self, at: Path) -> None:
        await self._called("unmount", at)
        self.views = tuple(image for image in self.views if image.at != str(at))

    async def destination_space(self, to: Path) -> DestinationSpace:
        await self._called("space", to)
        for space in self.spaces.values():
            if to.is_relative_to(space.mount_point):
                return space
        raise PolicyRefusal(f"{printable(str(to))} is not on a granted destination.", "Name a directory below one.")

    def _tick(self, verb: str, tick: Tick | None) -> None:
        if tick is not None and verb in self.ticks:
            tick(*self.ticks[verb])

    async def scan_checkpoints(self, paths: Sequence[Path], options: Options, tick: Tick | None = None) -> ScanAnswer:
        self._tick("scan", tick)
        await self._called("scan", *paths, *(["values"] if options.values else []))
        return fake_checkpoints.scan_answer(paths[0], self.checkpoint_text)

    async def extract_checkpoints(self, paths: Sequence[Path], to: Path, only: Collection[Verdict],
                                  tick: Tick | None = None, copy_tick: Tick | None = None,
                                  *, root: Path | None = None) -> ExtractAnswer:
        assert root is not None
        self._tick("extract", copy_tick)
        names = [str(path.relative_to(root)) for path in paths]
        await self._called("extract", *names, to, *sorted(only))
        rows = [row for row in fake_checkpoints.scan(self.checkpoint_text).checkpoints if row.path in names]
        return fake_checkpoints.extract_answer(root, to, rows, self.checkpoint_text)

    async def salvage_checkpoint(self, path: Path, to: Path, tick: Tick | None = None) -> SalvageAnswer:
        self._tick("salvage", tick)
        await self._called("salvage", path, to)
        row = next(row for row in fake_checkpoints.scan(self.checkpoint_text).checkpoints
                   if str(path).endswith(row.path))
        return fake_checkpoints.salvage_answer(path, to, row, self.checkpoint_text)

    def journal_tail(self, count: int = 200) -> tuple[JournalEntry, ...]:
        return tuple(self.journal.entries[-count:])
