"""The process that does an imaging job: ``python -m rescue_tui __job DIR``. It outlives the TUI, which reads its files.

Journal first, then the job file. Everything that can be taken up again ends as paused or interrupted, never as failed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rescue_tui.core.command import Command
from rescue_tui.core.errors import DeviceError, ExitStatus, RescueError, SpaceError
from rescue_tui.core.guardrecord import END, START
from rescue_tui.core.imaging import Binding
from rescue_tui.core.job import JobState, Progress, check_transition
from rescue_tui.core.mapfile import Mapfile, Status
from rescue_tui.core.record import rfc3339
from rescue_tui.core.text import printable, printable_lines
from rescue_tui.core.tooltext.ddrescue import Ending
from rescue_tui.jobs import evidence
from rescue_tui.jobs.casefolder import SourceFolder, to_json
from rescue_tui.jobs.copying import (
    Caution,
    Copy,
    CopyEnd,
    CopyOutcome,
    with_shorter_clusters,
    without_direct_output,
)
from rescue_tui.jobs.hashing import HashStoppedError, sha256_of
from rescue_tui.jobs.imaging import with_command
from rescue_tui.jobs.jobfiles import JobFiles, Wish
from rescue_tui.jobs.reporting import rebuild_report
from rescue_tui.system.attachment import Attachment
from rescue_tui.system.durable import replace_file, sync_directory
from rescue_tui.system.guard import WriteGuard
from rescue_tui.system.inventory import Inventory
from rescue_tui.system.journal import Journal
from rescue_tui.system.runner import Runner
from rescue_tui.system.workspace import Workspace

_CASE_COPY_SECONDS = 10.0
_TRACEBACK_LINES = 40


def main(job_dir: Path) -> int:
    """Do the job in ``job_dir``; the exit status of the job."""
    runner, workspace = Runner(), Workspace(job_dir.parent.parent)
    worker = ImagingWorker(runner, Inventory(runner), WriteGuard(workspace), JobFiles(job_dir),
                           Journal(workspace.journal_path))
    return asyncio.run(worker.run())


class ImagingWorker:
    """One imaging job from its plan to its report."""

    def __init__(
        self, runner: Runner, health: evidence.HealthSource, guard: evidence.GuardSource, files: JobFiles,
        session: Journal,
    ) -> None:
        self._runner = runner
        self._health = health
        self._guard = guard
        self._files = files
        self._session = session
        self._plan = files.plan()
        self._record = replace(files.record(), pid=os.getpid(), error="", hint="", exit_status=None)
        self._folder = SourceFolder(Path(self._plan.image).parent)
        self._began = datetime.now(UTC)
        self._case_copied_at = 0.0
        self._terminated = False
        self._copy_seconds = 0.0
        self._hash_seconds = 0.0

    async def run(self) -> int:
        """Do the job; every end, good or bad, is in the job file before this returns."""
        with self._files.worker_lock():
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._terminate)
            try:
                await self._work()
            except (SpaceError, DeviceError) as error:
                self._interrupt(error.summary, error.hint, error.status)
            except RescueError as error:
                self._end(JobState.FAILED, error.summary, error.hint, error.status, evidence=error.evidence)
            except OSError as error:
                self._interrupt(*_words_for(error))
            except Exception as error:  # noqa: BLE001 - the one place: a mistake of ours must end the job, not hide it
                lines = traceback.format_exc().splitlines()[-_TRACEBACK_LINES:]
                self._end(JobState.FAILED, f"Stasis made a mistake: {type(error).__name__}.",
                          "What was copied is kept. Report the traceback in the journal.", ExitStatus.TOOL,
                          traceback="\n".join(printable_lines(line) for line in lines))
        return int(self._record.exit_status or 0)

    # the steps -----------------------------------------------------------------------------------------------------
    async def _work(self) -> None:
        plan = self._plan
        self._enter(JobState.RUNNING)
        self._check_source()
        with self._folder.exclusively():
            await self._begin()
            outcome = await self._copy()
            if outcome.end is not CopyEnd.FINISHED:
                # The destination may be what ended the copy: that is told in the words of the outcome, not in ours.
                with suppress(OSError, RescueError):
                    self._note_guard(END)
            if outcome.end is CopyEnd.FINISHED:
                self._name_complete()
                await self._finish(outcome, self._folder.image, complete=True)
            elif outcome.reason == Ending.DESTINATION_FULL.value and plan.accept_partial:
                self._note("image.partial", rescued_bytes=outcome.mapfile.rescued_bytes)
                await self._finish(outcome, self._folder.partial_image, complete=False)
            elif outcome.end is CopyEnd.STOPPED:
                self._note("image.stopped", reason=outcome.reason, summary=outcome.summary)
                await evidence.note_kernel_log(self._runner, self._folder, self._began)
                self._interrupt(outcome.summary, outcome.hint, outcome.exit_status, outcome.reason)
            else:
                self._obey(outcome.end)

    def _check_source(self) -> None:
        assert self._plan.disk is not None
        wrong = Attachment(self._plan.disk.dev, self._plan.generation, self._plan.size_bytes).what_is_wrong()
        if wrong:
            raise DeviceError(f"{self._plan.source_node} is not the disk of this plan any more. {wrong}",
                              "Plan it again: the disk is found by its identity.")

    async def _begin(self) -> None:
        plan, folder = self._plan, self._folder
        assert plan.disk is not None
        folder.case.note_source(plan.disk)
        self._note("image.begin", source=plan.source, node=plan.source_node, serial=plan.source_serial,
                   generation=plan.generation, size_bytes=plan.size_bytes, sector_bytes=plan.sector_bytes,
                   resume=plan.resume, image=plan.image)
        folder.write("binding.json", to_json(
            Binding(plan.source, plan.size_bytes, plan.sector_bytes, plan.source_serial)))
        folder.write("plan.json", to_json(plan))
        self._copy_record_to_case()
        self._note_guard(START)
        if plan.resume or folder.partial_image.exists():
            self._take_up()
        first_time = not folder.file("identity.json").exists()
        if first_time:
            await evidence.note_identity(self._runner, folder, plan.disk)
        if first_time or not folder.file("health-before.json").exists():
            await evidence.note_health(self._health, folder, plan.disk, "before")

    def _take_up(self) -> None:
        """Make what an earlier run left usable: image under its partial name, mapfile from .bak when it is torn."""
        folder = self._folder
        if folder.image.exists() and not folder.partial_image.exists():
            folder.image.rename(folder.partial_image)
        if folder.has_no_map():
            self._begin_anew()
            return
        mapfile, from_backup = folder.read_map()
        if from_backup:
            self._note("image.mapfile-from-backup", rescued_bytes=mapfile.rescued_bytes)
            torn = folder.mapfile
            if torn.exists():
                torn.rename(folder.file("image.map.torn"))
            replace_file(folder.mapfile, mapfile.to_text().encode("ascii", "replace"))

    def _begin_anew(self) -> None:
        """No mapfile reached the disk, so nothing is known of the image: all is copied again.

        Zeros are written too then (no ``-S``): what an earlier run left at their place must not shine through.
        """
        folder = self._folder
        for name in ("image.map", "image.map.bak"):
            folder.file(name).unlink(missing_ok=True)
        if folder.partial_image.exists():
            self._plan = with_command(replace(self._plan, sparse=False))
            self._files.write_plan(self._plan)
            self._note("image.begun-anew", summary="No mapfile had been saved; every sector is copied again.")

    async def _copy(self) -> CopyOutcome:
        plan = self._plan
        while True:
            line = Command(plan.command).line
            if line not in self._record.commands:
                self._record = replace(self._record, commands=(*self._record.commands, line))
            self._note("image.ddrescue", argv=plan.command)
            began = time.monotonic()
            outcome = await Copy(self._runner, plan, self._files.path, self._progress, self._wish).run()
            self._copy_seconds += time.monotonic() - began
            self._note("image.ddrescue-ended", end=outcome.end, reason=outcome.reason,
                       rescued_bytes=outcome.mapfile.rescued_bytes, bad_bytes=outcome.mapfile.bad_bytes)
            if outcome.reason == Ending.UNALIGNED_WRITE.value and plan.direct_output:
                self._note("image.without-direct-output",
                           summary="The destination refuses direct writes of this size.")
                plan = without_direct_output(plan)
            elif outcome.reason == Caution.SHORTER_CLUSTERS.value:
                self._note("image.shorter-clusters", summary="The source has read errors: smaller pieces from here on.")
                plan = with_shorter_clusters(plan)
            else:
                return outcome
            plan = self._plan = with_command(plan)
            self._files.write_plan(plan)

    def _name_complete(self) -> None:
        """Give the image its full size (a file system without holes wasn't extended yet) and its final name."""
        partial = self._folder.partial_image
        with partial.open("r+b") as file:
            if file.seek(0, os.SEEK_END) < self._plan.size_bytes:
                file.truncate(self._plan.size_bytes)
            os.fsync(file.fileno())
        partial.rename(self._folder.image)
        sync_directory(self._folder.path)

    async def _finish(self, outcome: CopyOutcome, image: Path, *, complete: bool) -> None:
        plan, folder = self._plan, self._folder
        assert plan.disk is not None
        digest = await self._hash(image, outcome)
        if digest is None:
            return
        self._note("image.hashed", sha256=digest, size_bytes=image.stat().st_size)
        self._progress(replace(self._record.progress, phase="collecting", message=""))
        await evidence.note_health(self._health, folder, plan.disk, "after")
        self._note_guard(END)
        await evidence.note_kernel_log(self._runner, folder, self._began)
        result = self._result(outcome, image, digest, complete=complete)
        result["tools"] = await evidence.versions(self._runner)
        folder.write("result.json", to_json({"schema": "stasis.image-result/1", **result}))
        damaged = outcome.mapfile.bad_bytes > 0 or not complete
        state = JobState.DAMAGED if damaged else JobState.DONE
        status = ExitStatus.DAMAGE if damaged else ExitStatus.GOOD
        self._note("image.done", verdict=result["verdict"], rescued_bytes=outcome.mapfile.rescued_bytes,
                   bad_bytes=outcome.mapfile.bad_bytes)
        final = replace(self._record, state=state, result=result, exit_status=int(status), pid=None,
                        progress=replace(self._record.progress, phase="reporting"))
        folder.write("job.json", to_json(final))
        folder.case.seal(folder.path, {image.relative_to(folder.path.parent).as_posix(): digest})
        await rebuild_report(self._runner, folder.path.parent)
        check_transition(self._record.state, state)
        self._record = self._files.write_record(final)

    async def _hash(self, image: Path, outcome: CopyOutcome) -> str | None:
        size = image.stat().st_size
        base = replace(self._record.progress, phase="hashing", total_bytes=size, current_rate=None, average_rate=None,
                       bad_bytes=outcome.mapfile.bad_bytes, eta_low_seconds=None, eta_high_seconds=None,
                       bad_areas=len(outcome.mapfile.areas_with(Status.BAD_SECTOR)),
                       message="reading the copy back from the destination")
        stop, began = threading.Event(), time.monotonic()

        def tick(done: int) -> None:
            rate = done / max(0.001, time.monotonic() - began)
            left = (size - done) / rate if rate else None
            self._progress(replace(
                base, done_bytes=done, average_rate=rate, eta_low_seconds=left, eta_high_seconds=left))
            if self._wish() is not Wish.NONE:
                stop.set()

        try:
            digest = await sha256_of(image, tick, stop)
            self._hash_seconds = time.monotonic() - began
            return digest
        except HashStoppedError:
            self._obey(CopyEnd.CANCELLED if self._wish() is Wish.CANCEL else CopyEnd.PAUSED)
            return None

    def _result(self, outcome: CopyOutcome, image: Path, digest: str, *, complete: bool) -> dict[str, object]:
        mapfile: Mapfile = outcome.mapfile
        verdict = "partial" if not complete else "damaged" if mapfile.bad_bytes else "complete"
        return {
            "verdict": verdict, "image": image.name, "sha256": digest, "size_bytes": self._plan.size_bytes,
            "image_bytes": image.stat().st_size, "rescued_bytes": mapfile.rescued_bytes, "bad_bytes": mapfile.bad_bytes,
            "bad_areas": [{"start_bytes": area.start_bytes, "size_bytes": area.size_bytes}
                          for area in mapfile.areas_with(Status.BAD_SECTOR)],
            "read_errors": outcome.read_errors, "sector_bytes": self._plan.sector_bytes,
            "began_at": rfc3339(self._began), "ended_at": rfc3339(datetime.now(UTC)),
            "copy_seconds": round(self._copy_seconds, 3), "hash_seconds": round(self._hash_seconds, 3),
            "commands": list(self._record.commands),
        }

    def _note_guard(self, when: str) -> None:
        assert self._plan.disk is not None
        look = evidence.note_guard(self._guard, self._folder, self._plan.disk, when)
        self._note("guard.look", when=when, level=look.level, refused=look.refused,
                   refused_on_source=sum(look.refused_on_source.values()),
                   writes_since_attached=max((each.counters.changing_ios for each in look.counters), default=None),
                   problem=look.problem)

    # the state -----------------------------------------------------------------------------------------------------
    def _wish(self) -> Wish:
        return Wish.PAUSE if self._terminated else self._files.wish()

    def _terminate(self) -> None:
        self._terminated = True

    def _obey(self, end: CopyEnd) -> None:
        """Paused, cancelled, or interrupted because the machine shuts down."""
        if self._terminated:
            self._interrupt("The machine was shutting down.", "Resume it after the next start.", ExitStatus.INTERRUPTED)
            return
        on_the_way, there = {
            CopyEnd.PAUSED: (JobState.PAUSING, JobState.PAUSED),
            CopyEnd.CANCELLED: (JobState.CANCELLING, JobState.CANCELLED),
        }[end]
        self._enter(on_the_way)
        self._end(there, "", "", ExitStatus.INTERRUPTED)

    def _enter(self, state: JobState) -> None:
        check_transition(self._record.state, state)
        self._record = self._files.write_record(replace(self._record, state=state))

    def _interrupt(self, summary: str, hint: str, status: ExitStatus, reason: str = "") -> None:
        self._record = replace(self._record, result={"reason": reason} if reason else None)
        self._end(JobState.INTERRUPTED, summary, hint, status)

    def _end(self, state: JobState, summary: str, hint: str, status: ExitStatus, **detail: str) -> None:
        """Note an end that isn't the good one; the destination may be gone, so the case's files are only tried."""
        check_transition(self._record.state, state)
        with suppress(OSError, RescueError):
            self._note(f"job.{state.value}", summary=summary, hint=hint, **detail)
        self._record = replace(self._record, state=state, error=summary, hint=hint, exit_status=int(status), pid=None)
        with suppress(OSError):
            self._copy_record_to_case()
        self._record = self._files.write_record(self._record)

    def _progress(self, progress: Progress) -> None:
        self._record = self._files.write_record(replace(self._record, progress=progress))
        if time.monotonic() - self._case_copied_at > _CASE_COPY_SECONDS:
            self._copy_record_to_case()

    def _copy_record_to_case(self) -> None:
        self._case_copied_at = time.monotonic()
        if self._folder.path.is_dir():
            self._folder.write("job.json", to_json(self._record))

    def _note(self, event: str, **detail: object) -> None:
        """Into the session's journal and, once the case folder exists, into the case's."""
        self._session.append(event, job=self._record.id, **detail)
        if not self._folder.path.parent.is_dir():
            return
        try:
            self._folder.case.journal.append(event, job=self._record.id, **detail)
        except RescueError as error:
            # The case's journal lies on the destination: that it can't be written is the destination's trouble, and
            # is told in its words whichever of our files meets it first.
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from error
            raise


def _words_for(error: OSError) -> tuple[str, str, ExitStatus, str]:
    """The worker itself writes to the destination only, so a failing write is the destination's."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ("The destination is full.", "Make room there, then resume.", ExitStatus.SPACE,
                Ending.DESTINATION_FULL.value)
    name = printable(str(error.filename)) if error.filename else "a file of the case"
    return (f"The destination failed: {name}: {error.strerror}.",
            "Plug it in again, grant and mount it (`stasis destination`), then resume.", ExitStatus.DEVICE,
            Ending.DESTINATION_FAILED.value)
