"""The directory of one job: job.json, plan.json, the last wish, and the lock that tells whether its worker lives.

Only the worker writes job.json while it lives; everybody else writes a wish and reads. Source: flock(2), rename(2).
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from rescue_tui.core.errors import FormatError, SetupError
from rescue_tui.core.imaging import ImagingPlan
from rescue_tui.core.job import JobRecord, JobState
from rescue_tui.core.record import rfc3339, to_plain
from rescue_tui.core.restore import restore
from rescue_tui.core.text import printable
from rescue_tui.system.durable import read_or_none, replace_file


class Wish(StrEnum):
    """What somebody wants of the worker; the last one counts."""

    NONE = ""
    PAUSE = "pause"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class JobFiles:
    """One job's directory below the workspace (RAM)."""

    path: Path

    @property
    def output(self) -> Path:
        """Whatever the worker prints (tracebacks of a worker that couldn't even start)."""
        return self.path / "worker.log"

    def record(self) -> JobRecord:
        """The job as the worker last wrote it; a wish that is on its way shows as pausing or cancelling."""
        record = restore(JobRecord, self._json("job.json"))
        wish = self.wish()
        if record.state is JobState.RUNNING and wish is Wish.PAUSE:
            return replace(record, state=JobState.PAUSING)
        if record.state in (JobState.RUNNING, JobState.PAUSING) and wish is Wish.CANCEL:
            return replace(record, state=JobState.CANCELLING)
        return record

    def write_record(self, record: JobRecord) -> JobRecord:
        """Note the job as it stands now."""
        stamped = replace(record, updated_at=rfc3339(datetime.now(UTC)))
        self._write("job.json", stamped)
        return stamped

    def plan(self) -> ImagingPlan:
        """The plan of the job."""
        return restore(ImagingPlan, self._json("plan.json"))

    def write_plan(self, plan: ImagingPlan) -> None:
        """Note the plan; the worker reads it when it starts."""
        self._write("plan.json", plan)

    def wish(self) -> Wish:
        """What was last asked of the worker."""
        content = (read_or_none(self.path / "control") or b"").strip().decode("ascii", "replace")
        return Wish(content) if content in set(Wish) else Wish.NONE

    def set_wish(self, wish: Wish) -> None:
        """Ask the worker for something; it looks twice a second."""
        replace_file(self.path / "control", wish.value.encode("ascii"), sync=False)

    @property
    def worker_lives(self) -> bool:
        """True while a worker holds the lock: no pid that another process could have got since."""
        handle = self._open_lock()
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    @contextmanager
    def worker_lock(self) -> Iterator[None]:
        """Hold the lock; waits for the moment in which somebody may be looking at it."""
        handle = self._open_lock()
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _open_lock(self) -> int:
        return os.open(self.path / "worker.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _json(self, name: str) -> object:
        content = read_or_none(self.path / name)
        if content is None:
            raise FormatError(f"The job {printable(self.path.name)} has no {name}.", "It was never started.")
        try:
            return json.loads(content)
        except ValueError as error:
            raise FormatError(f"{name} of the job {printable(self.path.name)} is damaged.", "", str(error)) from error

    def _write(self, name: str, value: object) -> None:
        try:
            replace_file(self.path / name, json.dumps(to_plain(value)).encode("utf-8"), sync=False, mode=0o600)
        except OSError as error:
            raise SetupError(f"{printable(str(self.path / name))} can't be written: {error.strerror}.",
                             "Is the RAM full? `df /run` tells.") from error
