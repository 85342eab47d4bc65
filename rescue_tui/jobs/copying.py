"""Supervise one run of ddrescue: progress, wishes, a source or a destination that goes away, a disk that fills up.

ddrescue can't tell a pulled disk from a bad one: every read fails, and everything becomes a bad sector. So sysfs is
watched, a copy of the mapfile is kept from a moment when the source was surely there, and what was noted as bad after
that is undone (`core.mapfile.without_untrusted_errors`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from rescue_tui.core.command import Command, Completed
from rescue_tui.core.errors import CommandError, DeviceError, ExitStatus, FormatError
from rescue_tui.core.imaging import RESERVE_BYTES, ImagingPlan, RateSample, eta_range
from rescue_tui.core.job import Progress
from rescue_tui.core.mapfile import Mapfile, Status, blank, parse, without_untrusted_errors
from rescue_tui.core.record import rfc3339
from rescue_tui.core.text import printable_lines
from rescue_tui.core.tooltext.ddrescue import Ending, StatusBlock, asks_on_terminal, parse_status, read_ending
from rescue_tui.jobs.casefolder import SourceFolder
from rescue_tui.jobs.jobfiles import Wish
from rescue_tui.system.attachment import Attachment
from rescue_tui.system.durable import read_or_none, replace_file, tail_of
from rescue_tui.system.runner import Runner, Running


class Caution(StrEnum):
    """Why a copy is begun again in another way; nothing is lost by it."""

    SHORTER_CLUSTERS = "shorter-clusters"


TICK_SECONDS = 0.5
NEARLY_FULL_TICK_SECONDS = 0.05
# A map saved this long before the last look at a living source is trusted: reads fail a moment before sysfs tells.
TRUST_AFTER_SECONDS = 2.0
_STATUS_LIMIT_BYTES = 1 << 20
_SILENT_SECONDS = 2.5
_ETA_SAMPLES = 240
# ddrescue heeds a signal between two reads, and one read of a dying disk can take half a minute and more.
_GRACE_SECONDS = {Wish.PAUSE.value: 60.0, Wish.CANCEL.value: 60.0, Ending.DESTINATION_FULL.value: 20.0,
                  Caution.SHORTER_CLUSTERS.value: 60.0}
_SHORT_GRACE_SECONDS = 5.0
_GIVE_UP_SECONDS = 30.0
_FAILED = (Status.NON_TRIMMED, Status.NON_SCRAPED, Status.BAD_SECTOR)


class CopyEnd(StrEnum):
    """How the copy ended."""

    FINISHED = "finished"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class CopyOutcome:
    """The end of a copy. ``reason`` says why it stopped, ``summary`` and ``hint`` in words; all can be resumed."""

    end: CopyEnd
    mapfile: Mapfile
    reason: str = ""
    summary: str = ""
    hint: str = ""
    exit_status: ExitStatus = ExitStatus.GOOD
    read_errors: int = 0


_WORDS: dict[Ending, tuple[str, str, ExitStatus]] = {
    Ending.DESTINATION_FULL: (
        "The destination is full; the copy stopped in good order.",
        "Make room there, then resume; or take a larger destination and copy the case folder to it first.",
        ExitStatus.SPACE),
    Ending.FILE_TOO_LARGE: (
        "The destination's file system can't hold a file of this size.",
        "Use a destination with exFAT, ext4 or XFS.", ExitStatus.SPACE),
    Ending.DESTINATION_FAILED: (
        "The destination can't be written any more: it was unplugged, or it fails.",
        "Plug it in again, grant and mount it (`stasis destination`), then resume: nothing that was copied is lost.",
        ExitStatus.DEVICE),
    Ending.MAPFILE_FAILED: (
        "The mapfile on the destination can't be written any more: the destination was unplugged, or it fails.",
        "Plug it in again, grant and mount it (`stasis destination`), then resume.", ExitStatus.DEVICE),
    Ending.SOURCE_GONE: (
        "The source went away during the copy.",
        "Plug it in again (any slot will do), then resume: nothing that was copied is lost.", ExitStatus.DEVICE),
    Ending.SOURCE_FAILED: (
        "The source can't be read at all any more.",
        "Look at the kernel log; turn its power off and on, then resume.", ExitStatus.DEVICE),
}


class Copy:
    """One run of ddrescue for one plan. ``report`` gets each new Progress, ``wish`` tells what is wanted."""

    def __init__(
        self, runner: Runner, plan: ImagingPlan, scratch: Path, report: Callable[[Progress], None],
        wish: Callable[[], Wish],
    ) -> None:
        assert plan.disk is not None
        self._runner = runner
        self._plan = plan
        self._folder = SourceFolder(Path(plan.image).parent)
        self._attachment = Attachment(plan.disk.dev, plan.generation, plan.size_bytes)
        self._status_path = scratch / "ddrescue.status"
        # In RAM: when the destination goes away, its own log is the last place to learn it from.
        self._errors_path = scratch / "ddrescue.errors"
        self._report = report
        self._wish = wish
        self._running: Running | None = None
        self._map = blank(plan.size_bytes)
        self._trusted: Mapfile | None = None
        self._candidate: tuple[float, Mapfile] | None = None
        self._probe: asyncio.Future[bool] | None = None
        self._map_stamp = 0
        self._stop_reason = ""
        self._stop_words = ""
        self._stopped_at = 0.0
        self._killed = False
        self._read_errors = 0
        self._samples: deque[RateSample] = deque(maxlen=_ETA_SAMPLES)
        self._free_bytes: int | None = None

    async def run(self) -> CopyOutcome:
        """Copy until the end, a wish or a trouble. Raises CommandError when ddrescue fails for an unknown reason."""
        self._take_map(trusted=True)
        self._status_path.unlink(missing_ok=True)
        self._errors_path.unlink(missing_ok=True)
        self._keep_rates_log()
        # The death signal makes ddrescue end in good order when its supervisor is killed: nothing copies unwatched,
        # and the next worker finds the image free.
        command = Command(("setpriv", "--pdeathsig", "INT", *self._plan.command))
        self._running = await self._runner.start(command, stdout=self._status_path, stderr=self._errors_path)
        ended = asyncio.ensure_future(self._running.wait())
        try:
            while not ended.done():
                await asyncio.wait({ended}, timeout=self._tick_seconds())
                if not ended.done():
                    self._look()
                    self._press(ended)
        finally:
            if not ended.done():
                self._running.signal(signal.SIGKILL)
                ended.cancel()
            if self._probe is not None:
                self._probe.cancel()
        done = ended.result() if ended.done() and not ended.cancelled() else None
        self._keep_words(done)
        return await self._judge(done)

    # watching ------------------------------------------------------------------------------------------------------
    def _tick_seconds(self) -> float:
        near = self._free_bytes is not None and self._free_bytes < 8 * RESERVE_BYTES
        return NEARLY_FULL_TICK_SECONDS if near else TICK_SECONDS

    def _look(self) -> None:
        wrong = self._attachment.what_is_wrong()
        if wrong:
            self._stop(Ending.SOURCE_GONE, wrong)
        wish = self._wish()
        if wish is not Wish.NONE:
            self._stop(wish)
        self._watch_space()
        if asks_on_terminal(self._new_errors()):
            self._stop(read_ending(self._new_errors()))
            self._kill()
        self._take_map()
        self._promote()
        self._publish()
        if self._read_errors and 0 < self._plan.careful_cluster_sectors < self._plan.cluster_sectors:
            self._stop(Caution.SHORTER_CLUSTERS)

    def _watch_space(self) -> None:
        try:
            info = os.statvfs(self._folder.path)
        except OSError as error:
            self._stop(Ending.DESTINATION_FAILED, f"The destination can't be looked at: {error.strerror}.")
            return
        self._free_bytes = info.f_bavail * info.f_frsize
        if self._free_bytes < reserve_bytes(info.f_blocks * info.f_frsize) and not self._plan.preallocate:
            self._stop(Ending.DESTINATION_FULL)

    def _take_map(self, *, trusted: bool = False) -> None:
        """Read the mapfile when it is new; one that ddrescue is just writing is left for the next look."""
        with suppress(OSError):
            stamp = self._folder.mapfile.stat().st_mtime_ns
            if stamp == self._map_stamp:
                return
            content = read_or_none(self._folder.mapfile)
            with suppress(FormatError):
                found = parse(content or b"")
                if found.end_bytes == self._plan.size_bytes:
                    self._map, self._map_stamp = found, stamp
                    self._candidate = self._candidate or (time.monotonic(), found)
                    if trusted:
                        self._trusted, self._candidate = found, None

    def _promote(self) -> None:
        """Trust a map that was saved a while before now, when the source is (still) there and answers.

        A map with new failures is believed after a good read only; the read goes on beside, since a dying disk may
        take its time over it.
        """
        if self._candidate is None or self._stop_reason:
            return
        seen_at, found = self._candidate
        if self._probe is None:
            if time.monotonic() - seen_at < TRUST_AFTER_SECONDS:
                return
            if found.bytes_with(*_FAILED) > self._trusted_failures():
                self._probe = asyncio.ensure_future(self._answers(found))
                return
        elif not self._probe.done():
            return
        answers = self._probe is None or self._probe.result()
        self._candidate, self._probe = None, None
        if answers and not self._attachment.what_is_wrong():
            self._trusted = found
        elif not answers:
            self._stop(Ending.SOURCE_GONE, "The source no longer returns what it returned before.")

    def _trusted_failures(self) -> int:
        return self._trusted.bytes_with(*_FAILED) if self._trusted is not None else 0

    async def _answers(self, found: Mapfile) -> bool:
        """Read a sector again that was read well before; a disk that takes long over it gets the benefit of doubt."""
        good = found.areas_with(Status.FINISHED)
        if not good:
            return True
        sector = self._plan.sector_bytes
        try:
            done = await self._runner.attempt(Command(
                ("dd", f"if={self._plan.source_node}", "of=/dev/null", "iflag=direct", f"bs={sector}", "count=1",
                 f"skip={good[-1].start_bytes // sector}", "status=none"), deadline_seconds=20))
        except CommandError:
            return True
        return done.ok

    def _publish(self) -> None:
        block = parse_status(tail_of(self._status_path, 8192))
        if self._size(self._status_path) > _STATUS_LIMIT_BYTES:
            # Its writer appends, so it goes on at the new end; only the newest block is ever read.
            os.truncate(self._status_path, 0)
        self._report(self.progress(block))

    def progress(self, block: StatusBlock | None) -> Progress:
        """The progress from ddrescue's status (once a second) and its mapfile (exact, every few seconds)."""
        total = self._plan.size_bytes
        mapped = self._map.rescued_bytes
        if block is None:
            return Progress(phase="copying", total_bytes=total, done_bytes=mapped, bad_bytes=self._map.bad_bytes,
                            destination_free_bytes=self._free_bytes, message="starting")
        done = min(total, max(mapped, block.rescued_bytes or 0))
        if done == total and mapped < total:
            done -= 1  # rounded up by ddrescue: never say all before it is
        self._read_errors = block.read_errors
        now = time.monotonic()
        if not self._samples or now - self._samples[-1].at_seconds >= 1:
            self._samples.append(RateSample(now, done))
        left = eta_range(self._samples, total - done - (block.bad_bytes or 0)) if block.phase == "copying" else None
        phase = "copying" if block.phase == "finished" else block.phase
        return Progress(
            phase=phase, total_bytes=total, done_bytes=done, bad_bytes=block.bad_bytes or 0,
            bad_areas=block.bad_areas, read_errors=block.read_errors, current_rate=block.current_rate,
            average_rate=block.average_rate, last_good_read_seconds=self._last_good_read(block),
            eta_low_seconds=left[0] if left else None, eta_high_seconds=left[1] if left else None,
            position_bytes=block.position_bytes, destination_free_bytes=self._free_bytes, message=block.message)

    def _last_good_read(self, block: StatusBlock) -> float | None:
        """ddrescue prints between two reads only: while one read hangs, the age of its last words counts too."""
        with suppress(OSError):
            silent = time.time() - self._status_path.stat().st_mtime
            if silent > _SILENT_SECONDS:
                return (block.last_good_read_seconds or 0) + silent
        return block.last_good_read_seconds

    # stopping ------------------------------------------------------------------------------------------------------
    def _stop(self, reason: StrEnum, words: str = "") -> None:
        if self._stop_reason or self._running is None:
            return
        self._stop_reason, self._stop_words, self._stopped_at = reason.value, words, time.monotonic()
        self._running.signal(signal.SIGINT)

    def _kill(self) -> None:
        if self._running is not None and not self._killed:
            self._killed, self._stopped_at = True, time.monotonic()
            self._running.signal(signal.SIGKILL)

    def _press(self, ended: asyncio.Future[Completed]) -> None:
        """A ddrescue that doesn't heed the signal is killed; one that is stuck in the kernel is left behind."""
        if not self._stop_reason:
            return
        waited = time.monotonic() - self._stopped_at
        if not self._killed and waited > _GRACE_SECONDS.get(self._stop_reason, _SHORT_GRACE_SECONDS):
            self._kill()
        elif self._killed and waited > _GIVE_UP_SECONDS:
            ended.cancel()

    # the end -------------------------------------------------------------------------------------------------------
    async def _judge(self, done: Completed | None) -> CopyOutcome:
        errors = self._new_errors()
        ending = read_ending(errors)
        self._take_map()
        self._publish()
        new_failures = self._map.bytes_with(*_FAILED) > self._trusted_failures()
        if not self._stop_reason and new_failures:
            # The last failures are only as good as the source is alive after them.
            await asyncio.sleep(TRUST_AFTER_SECONDS)
            wrong = self._attachment.what_is_wrong()
            if wrong or not await self._answers(self._map):
                self._stop_reason = Ending.SOURCE_GONE.value
                self._stop_words = wrong or "The source no longer returns what it returned before."
        gone = Ending.SOURCE_GONE in (self._stop_reason, ending) or bool(self._attachment.what_is_wrong())
        if gone and not (done is not None and done.status == 0 and not new_failures and self._map.every_sector_tried):
            self._undo_untrusted()
            return self._stopped(Ending.SOURCE_GONE)
        self._mend_map()
        if self._stop_reason in (Wish.PAUSE.value, Wish.CANCEL.value) and not (done and done.status == 0):
            end = CopyEnd.PAUSED if self._stop_reason == Wish.PAUSE.value else CopyEnd.CANCELLED
            return CopyOutcome(end, self._map, self._stop_reason, read_errors=self._read_errors,
                               exit_status=ExitStatus.INTERRUPTED)
        if done is not None and done.status == 0 and self._map.every_sector_tried:
            if self._map.end_bytes != self._plan.size_bytes:
                # ddrescue takes an early end of file for the end of the source, and calls that finished.
                raise DeviceError(
                    f"The source ended at byte {self._map.end_bytes}, its size is {self._plan.size_bytes}.",
                    "Its size has changed, or the kernel has lost it: look at the kernel log, plug it in again.")
            return CopyOutcome(CopyEnd.FINISHED, self._map, read_errors=self._read_errors)
        if self._stop_reason in set(Ending):
            return self._stopped(Ending(self._stop_reason))
        if self._stop_reason == Caution.SHORTER_CLUSTERS.value:
            # What failed as a part of a long cluster is read once more as a part of a short one.
            self._map = without_untrusted_errors(self._map, None)
            self._write_map()
            return CopyOutcome(CopyEnd.STOPPED, self._map, self._stop_reason, read_errors=self._read_errors)
        if ending in _WORDS:
            return self._stopped(ending)
        if ending is Ending.UNALIGNED_WRITE:
            return CopyOutcome(CopyEnd.STOPPED, self._map, ending.value, read_errors=self._read_errors)
        raise CommandError(
            f"ddrescue failed: {done.how_it_ended if done else 'it hangs in the kernel'}.",
            "What it printed is below and in ddrescue.log; what was copied is kept and can be resumed.",
            f"$ {Command(self._plan.command).line}\n{printable_lines(errors[-2000:]).strip()}")

    def _stopped(self, ending: Ending) -> CopyOutcome:
        summary, hint, status = _WORDS.get(ending, _WORDS[Ending.DESTINATION_FAILED])
        return CopyOutcome(CopyEnd.STOPPED, self._map, ending.value, f"{summary} {self._stop_words}".rstrip(), hint,
                           status, self._read_errors)

    def _undo_untrusted(self) -> None:
        self._map = without_untrusted_errors(self._map, self._trusted)
        self._write_map()

    def _mend_map(self) -> None:
        """After a kill the mapfile may be cut off; then the newest whole one that we read takes its place."""
        try:
            found = parse(read_or_none(self._folder.mapfile) or b"")
            if found.end_bytes != self._plan.size_bytes and self._killed:
                raise FormatError("The mapfile was cut off at the end of a line.")
            self._map = found
        except FormatError:
            self._write_map()
        except OSError:
            return

    def _write_map(self) -> None:
        with suppress(OSError):  # the destination may be gone as well; ddrescue's .bak is there
            replace_file(self._folder.mapfile, self._map.to_text().encode("ascii", "replace"))

    # files ---------------------------------------------------------------------------------------------------------
    def _new_errors(self) -> bytes:
        return tail_of(self._errors_path, 1 << 16)

    def _keep_words(self, done: Completed | None) -> None:
        """Add the command, its last status and its error output to the case's ddrescue.log."""
        block = printable_lines(tail_of(self._status_path, 2000).rpartition(b"\x1b[A")[2]).strip()
        words = "\n".join((
            f"# {rfc3339(datetime.now(UTC))} {done.how_it_ended if done else 'stuck in the kernel'}",
            f"$ {Command(self._plan.command).line}", block, printable_lines(self._new_errors()).strip()))
        with suppress(OSError), self._folder.file("ddrescue.log").open("a", encoding="utf-8") as file:
            file.write(f"{words.rstrip()}\n\n")

    def _keep_rates_log(self) -> None:
        """ddrescue begins this log anew at each run; the old one gets a number."""
        path = self._folder.file("ddrescue-rates.log")
        if path.exists():
            taken = len(list(path.parent.glob("ddrescue-rates.*.log")))
            path.rename(path.with_name(f"ddrescue-rates.{taken + 1}.log"))

    @staticmethod
    def _size(path: Path) -> int:
        try:
            return path.stat().st_size
        except OSError:
            return 0


def reserve_bytes(filesystem_bytes: int) -> int:
    """The free space at which a copy stops; less on a small file system, which a test or a stick may have."""
    return min(RESERVE_BYTES, max(4 << 20, filesystem_bytes // 50))


def without_direct_output(plan: ImagingPlan) -> ImagingPlan:
    """The plan for a destination that turned out to refuse direct writes of this size."""
    return replace(plan, direct_output=False)


def with_shorter_clusters(plan: ImagingPlan) -> ImagingPlan:
    """The plan from the first read error on."""
    return replace(plan, cluster_sectors=plan.careful_cluster_sectors)
