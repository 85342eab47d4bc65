"""Start, list, pause, resume and cancel long work. The jobs are processes of their own; their files are the truth."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import rescue_tui
from rescue_tui.core.command import Command
from rescue_tui.core.device import Disk
from rescue_tui.core.errors import (
    FormatError,
    PolicyRefusal,
    RescueError,
    SetupError,
    SpaceError,
    UsageError,
)
from rescue_tui.core.imaging import RESERVE_BYTES, SIDE_FILES_BYTES, ImagingPlan
from rescue_tui.core.job import ACTIVE, FINAL, RESUMABLE, JobRecord, JobState, check_transition
from rescue_tui.core.record import rfc3339
from rescue_tui.core.restore import restore
from rescue_tui.core.snapshot import Snapshot
from rescue_tui.core.text import human_bytes, printable
from rescue_tui.jobs.casefolder import SourceFolder, allocated_bytes, case_folders, read_json
from rescue_tui.jobs.imaging import for_attachment, moved_to
from rescue_tui.jobs.jobfiles import JobFiles, Wish
from rescue_tui.system.durable import tail_of
from rescue_tui.system.journal import Journal
from rescue_tui.system.runner import Runner
from rescue_tui.system.tools import systemd
from rescue_tui.system.workspace import Workspace

_START_DEADLINE_SECONDS = 90.0
_POLL_SECONDS = 0.05
# A job whose worker hasn't taken its lock yet is starting, not dead, for so long.
_STARTING_SECONDS = 90.0


class JobManager:
    """Every job of this boot, and those that are found in case folders."""

    def __init__(self, runner: Runner, journal: Journal, workspace: Workspace) -> None:
        self._runner = runner
        self._journal = journal
        self._workspace = workspace

    # look ----------------------------------------------------------------------------------------------------------
    def records(self) -> tuple[JobRecord, ...]:
        """Every job, newest first. One whose worker died without a word is noted as interrupted."""
        found: list[JobRecord] = []
        for files in self._all_files():
            with suppress(FormatError):  # a directory that another process is just making
                found.append(self._look_at(files))
        return tuple(sorted(found, key=lambda record: (record.created_at, record.id), reverse=True))

    def record(self, job_id: str) -> JobRecord:
        """The job with this id or unique beginning of an id; UsageError when there is none, or more than one."""
        return self._look_at(self._files(job_id))

    def discover(self, case_root: Path) -> tuple[JobRecord, ...]:
        """Take up the unfinished jobs of the case folders at ``case_root`` (a destination, or one case).

        After a power cut the session's own files are gone; those in the case folders are left. Jobs that this session
        knows already are not touched, unless their destination is mounted elsewhere now. Returns the unfinished jobs
        found there; those that don't run are ready for `resume`.
        """
        found: list[JobRecord] = []
        for case in case_folders(case_root):
            for folder in case.sources():
                with suppress(FormatError, OSError):
                    record = folder.record()
                    if record.state not in FINAL:
                        found += self._take_up(folder, record)
        return tuple(found)

    # act -----------------------------------------------------------------------------------------------------------
    async def start_image(self, plan: ImagingPlan) -> JobRecord:
        """Start a worker for the plan and return once it is at work.

        PolicyRefusal when a job is at work there already; SpaceError when the jobs of that destination together don't
        fit; SetupError when the worker can't be started. An interrupted job of the same place goes on under its id.
        """
        if plan.disk is None:
            raise UsageError("The plan doesn't say which disk it is for.", "Make it with `make_plan`.")
        if self._runner.has("ddrescue") is False:
            self._runner.path_of("ddrescue")
        earlier = self._job_at(Path(plan.image).parent)
        if earlier is not None and earlier.state in ACTIVE:
            raise PolicyRefusal(f"The job {earlier.id} is imaging this disk to that place already.",
                                f"`stasis jobs attach {earlier.id}` shows it.")
        self._check_shared_space(plan)
        job_id = earlier.id if earlier is not None and earlier.state in RESUMABLE else _new_id()
        now = rfc3339(datetime.now(UTC))
        name = " ".join(word for word in (plan.disk.model, plan.source_serial or str(plan.source)) if word)
        record = JobRecord(
            id=job_id, kind="image", title=printable(f"Image {name}", 120), state=JobState.PENDING, created_at=now,
            updated_at=now, source=str(plan.source), case=plan.case_dir, commands=(Command(plan.command).line,))
        return await self._start(record, plan)

    async def pause(self, job_id: str) -> JobRecord:
        """Ask the worker to stop in good order; the record returned says pausing (or what it is by now)."""
        return self._ask(job_id, Wish.PAUSE)

    async def cancel(self, job_id: str) -> JobRecord:
        """End a job. One that is at work is asked to; a paused or interrupted one is cancelled at once."""
        files = self._files(job_id)
        record = self._look_at(files)
        if record.state not in RESUMABLE:
            return self._ask(job_id, Wish.CANCEL)
        check_transition(record.state, JobState.CANCELLED)
        self._journal.append("job.cancelled", job=record.id)
        return files.write_record(replace(record, state=JobState.CANCELLED, exit_status=130))

    async def resume(self, job_id: str, snapshot: Snapshot) -> JobRecord:
        """Go on with a paused or interrupted job.

        The source is found by identity, under whatever name. DeviceError when it isn't plugged in, PolicyRefusal when
        the disk or the mapfile isn't the one of the job, SetupError when the destination isn't mounted.
        """
        files = self._files(job_id)
        record = self._look_at(files)
        if record.state not in RESUMABLE:
            raise UsageError(f"The job {record.id} is {record.state.value}; it can't be resumed.",
                             "`stasis image ... --resume` begins anew with what is there.")
        plan = files.plan()
        folder = SourceFolder(Path(plan.image).parent)
        if not folder.path.is_dir():
            raise SetupError(f"The case folder {printable(str(folder.path))} isn't there.",
                             "Plug in the destination, grant and mount it (`stasis destination`).")
        disk = snapshot.disk(plan.source)
        _refuse_writable_mounts(disk)
        fresh = for_attachment(plan, disk) if folder.mapfile.exists() else replace(
            plan, source_node=disk.node, generation=disk.generation, disk=disk)
        check_transition(record.state, JobState.PENDING)
        return await self._start(replace(
            record, state=JobState.PENDING, error="", hint="", result=None, exit_status=None), fresh)

    # the workers ---------------------------------------------------------------------------------------------------
    async def _start(self, record: JobRecord, plan: ImagingPlan) -> JobRecord:
        files = JobFiles(self._workspace.ensure("jobs", record.id))
        files.write_plan(plan)
        files.set_wish(Wish.NONE)
        files.output.unlink(missing_ok=True)
        files.write_record(record)
        self._journal.append("job.start", job=record.id, source=plan.source, command=Command(plan.command).line,
                             resume=plan.resume)
        command = self._spawn_command(record, plan, files)
        done = await systemd.start(self._runner, command, files.output)
        if done.status == 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(_START_DEADLINE_SECONDS):
                    # Another process takes the lock: there is no event to wait for, only a look at its file.
                    while files.record().state is JobState.PENDING and not files.worker_lives:  # noqa: ASYNC110
                        await asyncio.sleep(_POLL_SECONDS)
        current = files.record()
        if done.status != 0 or (current.state is JobState.PENDING and not files.worker_lives):
            tail = printable(tail_of(files.output, 2000), 2000)
            files.write_record(replace(current, state=JobState.FAILED, error="The worker could not be started.",
                                       hint=tail, exit_status=4))
            raise SetupError("The worker of the job could not be started.", "What it printed is below.", tail)
        return current

    def _spawn_command(self, record: JobRecord, plan: ImagingPlan, files: JobFiles) -> Command:
        # The Runner builds the environment anew, so what Python needs to find this package is said here.
        package_parent = str(Path(rescue_tui.__file__).resolve().parent.parent)
        argv = ("env", f"PYTHONPATH={package_parent}", "PYTHONDONTWRITEBYTECODE=1",
                f"STASIS_STATE={self._workspace.root}", sys.executable, "-m", "rescue_tui", "__job", str(files.path))
        if systemd.in_charge():
            # A unit's name must be new: a resumed job gets a counter of its own.
            unit = f"stasis-job-{record.id}-{secrets.token_hex(2)}"
            assert plan.disk is not None
            return systemd.unit_command(unit, argv, readable_devices=_devices_to_read(plan.disk),
                                        description=f"Stasis job {record.id}", output=files.output)
        return systemd.session_command(argv)

    def _ask(self, job_id: str, wish: Wish) -> JobRecord:
        files = self._files(job_id)
        record = self._look_at(files)
        wanted = JobState.PAUSING if wish is Wish.PAUSE else JobState.CANCELLING
        if record.state is not wanted:
            if record.state is not JobState.PENDING:
                check_transition(record.state, wanted)
            self._journal.append(f"job.{wish.value}", job=record.id)
            files.set_wish(wish)
        return files.record()

    def _look_at(self, files: JobFiles) -> JobRecord:
        record = files.record()
        if record.state not in ACTIVE or files.worker_lives:
            return record
        record = files.record()  # it may have ended between the two looks
        if record.state not in ACTIVE or (record.state is JobState.PENDING and _age_seconds(files) < _STARTING_SECONDS):
            return record
        self._journal.append("job.interrupted", job=record.id, summary="Its worker is gone.")
        return files.write_record(replace(
            record, state=JobState.INTERRUPTED, pid=None, exit_status=130,
            error="The worker of this job died (killed, or out of memory).", hint=f"`stasis jobs resume {record.id}`."))

    def _take_up(self, folder: SourceFolder, record: JobRecord) -> tuple[JobRecord, ...]:
        known = JobFiles(self._workspace.jobs_dir / record.id)
        if not (known.path / "job.json").is_file():
            return (self._adopt(folder, record),)
        current = self._look_at(known)
        if current.state in ACTIVE or Path(known.plan().image).parent == folder.path:
            return (current,) if current.state not in FINAL else ()
        return (self._adopt(folder, record),)

    def _adopt(self, folder: SourceFolder, record: JobRecord) -> JobRecord:
        """Note a job of a case folder as one of this session; where it lies now counts, not where it lay."""
        plan = moved_to(restore(ImagingPlan, read_json(folder.file("plan.json"))), folder)
        files = JobFiles(self._workspace.ensure("jobs", record.id))
        files.write_plan(plan)
        files.set_wish(Wish.NONE)
        known_reason = record.state in RESUMABLE and record.error
        self._journal.append("job.found", job=record.id, case=plan.case_dir, state=record.state)
        return files.write_record(replace(
            record, state=record.state if record.state in RESUMABLE else JobState.INTERRUPTED, case=plan.case_dir,
            pid=None, exit_status=130,
            error=record.error if known_reason else
            "The machine stopped while this job was at work." if record.state not in RESUMABLE else "",
            hint=f"`stasis jobs resume {record.id}`."))

    # the directories -----------------------------------------------------------------------------------------------
    def _all_files(self) -> list[JobFiles]:
        root = self._workspace.jobs_dir
        if not root.is_dir():
            return []
        return [JobFiles(path) for path in sorted(root.iterdir()) if (path / "job.json").is_file()]

    def _files(self, job_id: str) -> JobFiles:
        found = [files for files in self._all_files() if files.path.name == job_id]
        if not found and job_id:
            found = [files for files in self._all_files() if files.path.name.startswith(job_id)]
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(f"{printable(job_id)!r} is the beginning of {len(found)} jobs.", "Type more of the id.")
        raise UsageError(f"There is no job {printable(job_id)!r}.", "`stasis jobs list` shows them.")

    def _job_at(self, folder: Path) -> JobRecord | None:
        for files in self._all_files():
            with suppress(RescueError):
                record = self._look_at(files)
                if record.state not in FINAL and Path(files.plan().image).parent == folder:
                    return record
        return None

    def _check_shared_space(self, plan: ImagingPlan) -> None:
        """What the jobs at work on the same file system still need counts as taken."""
        place = _nearest_existing(Path(plan.case_dir))
        info = os.statvfs(place)
        free = info.f_bavail * info.f_frsize
        others = 0
        for files in self._all_files():
            with suppress(RescueError, OSError):
                if self._look_at(files).state in ACTIVE:
                    other = files.plan()
                    if os.stat(_nearest_existing(Path(other.case_dir))).st_dev == os.stat(place).st_dev:
                        others += max(0, other.size_bytes - allocated_bytes(SourceFolder(Path(other.image).parent)))
        mine = max(0, plan.size_bytes - allocated_bytes(SourceFolder(Path(plan.image).parent)))
        needed = mine + others + RESERVE_BYTES + SIDE_FILES_BYTES
        if others and needed > free and not plan.accept_partial:
            raise SpaceError(
                f"Together with the jobs at work there, {human_bytes(needed)} ({needed} bytes) are needed, "
                f"{human_bytes(free)} ({free} bytes) are free.",
                "Wait until they have ended, use another destination, or accept a partial image (--accept-partial).")


def _new_id() -> str:
    return f"{datetime.now(UTC):%H%M%S}-{secrets.token_hex(3)}"


def _age_seconds(files: JobFiles) -> float:
    return time.time() - (files.path / "plan.json").stat().st_mtime


def _nearest_existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _devices_to_read(disk: Disk) -> Sequence[str]:
    """What the worker's tools open: the disk, the controllers that tell its health, the kernel's log.

    The entries allow opening for reading only. An NVMe or SCSI command passed through such a handle is not stopped by
    them: against those stands the guard, not the device cgroup.
    """
    controllers = disk.namespace.subsystem.controllers if disk.namespace is not None else ()
    return (disk.node, *(f"/dev/{controller.name}" for controller in controllers), "/dev/kmsg")


def _refuse_writable_mounts(disk: Disk) -> None:
    writable = [mount.target for mount in disk.all_mounts if mount.writable]
    if writable:
        raise PolicyRefusal(f"{printable(disk.node)} is mounted read-write at {printable(', '.join(writable))}.",
                            "Unmount it: a copy of a file system that is being written is no good.")
