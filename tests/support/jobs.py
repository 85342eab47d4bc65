"""Wait for jobs: each wait has a deadline, and says what it last saw."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from rescue_tui.core.job import ACTIVE, JobRecord
from rescue_tui.jobs.manager import JobManager
from tests.support.vm.deadline import Deadline, DeadlineError

T = TypeVar("T")
_LOOK_EVERY_SECONDS = 0.05


async def until(look: Callable[[], T], good: Callable[[T], bool], seconds: float, what: str) -> T:
    """Look until it is good; DeadlineError with what was seen last. The files of another process give no event."""
    deadline, never = Deadline.after(seconds), asyncio.Event()
    seen = look()
    while not good(seen):
        if deadline.expired:
            raise DeadlineError(f"{what} did not happen within {deadline.seconds:g} s; last seen: {seen}")
        with suppress(TimeoutError):
            await asyncio.wait_for(never.wait(), _LOOK_EVERY_SECONDS)
        seen = look()
    return seen


async def rested(manager: JobManager, job_id: str, seconds: float = 90) -> JobRecord:
    """The job once it is neither at work nor on its way to an end."""
    return await until(lambda: manager.record(job_id), lambda record: record.state not in ACTIVE, seconds,
                       f"the end of {job_id}")


async def copied(manager: JobManager, job_id: str, at_least_bytes: int, seconds: float = 60) -> JobRecord:
    """The job once it has copied so much."""
    return await until(lambda: manager.record(job_id),
                       lambda record: record.state not in ACTIVE or record.progress.done_bytes >= at_least_bytes,
                       seconds, f"{at_least_bytes} copied bytes of {job_id}")
