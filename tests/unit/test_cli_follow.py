"""Waiting for jobs in the foreground."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace

import pytest

from rescue_tui.cli_follow import exit_status, follow
from rescue_tui.cli_output import Output
from rescue_tui.core.job import JobRecord, JobState
from tests.support.cli_services import HOSTILE, CliServices, job


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        """A terminal."""
        return True


def _output(stderr: io.StringIO | None = None) -> tuple[Output, io.StringIO]:
    errors = stderr or io.StringIO()
    return Output(io.StringIO(), errors, as_json=False), errors


async def _no_wait(_seconds: float) -> None:
    await asyncio.sleep(0)


async def test_it_waits_until_the_job_rests() -> None:
    services = CliServices(jobs=(job(done=0), job(done=50), job(JobState.DONE, done=100)))
    output, errors = _output()
    ended, interrupted = await follow(services.job, (job(),), output, _no_wait)
    assert [record.state for record in ended] == [JobState.DONE]
    assert interrupted is False
    lines = errors.getvalue().splitlines()
    assert [line.split(": ")[1] for line in lines] == ["20261202-a1"] * 3
    assert "100.00 %" in lines[-1]


async def test_plain_lines_come_only_with_news() -> None:
    services = CliServices(jobs=(*[job(done=50)] * 50, *[job(done=51)] * 50, job(JobState.DONE, done=100)))
    output, errors = _output()
    await follow(services.job, (job(),), output, _no_wait)
    assert len(errors.getvalue().splitlines()) == 2


async def test_a_frozen_job_still_gives_a_line_now_and_then() -> None:
    services = CliServices(jobs=(*[job(done=50)] * 300, job(JobState.DONE, done=100)))
    output, errors = _output()
    await follow(services.job, (job(),), output, _no_wait)
    assert len(errors.getvalue().splitlines()) == 4


async def test_a_terminal_gets_a_bar_and_no_raw_control_bytes_of_a_device() -> None:
    hostile = replace(job(done=50), progress=replace(job().progress, message=HOSTILE))
    services = CliServices(jobs=(hostile, job(JobState.DONE, done=100)))
    output, errors = _output(_Terminal())
    await follow(services.job, (job(),), output, _no_wait)
    assert "50.00 %" in errors.getvalue()
    assert "[2J[/bold]" in errors.getvalue()
    assert "\x1b[2J[/bold]" not in errors.getvalue()


async def test_ctrl_c_ends_the_waiting_and_keeps_the_job() -> None:
    services = CliServices(jobs=(job(),))
    output, _errors = _output()

    async def interrupted_wait(_seconds: float) -> None:
        raise asyncio.CancelledError

    ended, interrupted = await follow(services.job, (job(),), output, interrupted_wait)
    assert interrupted is True
    assert ended[0].state is JobState.RUNNING
    assert all(call[0] == "job" for call in services.calls)


@pytest.mark.parametrize(("records", "status"), [
    ((job(JobState.DONE),), 0),
    ((job(JobState.DONE), job(JobState.DAMAGED)), 1),
    ((job(JobState.DAMAGED), job(JobState.PAUSED)), 130),
    ((job(JobState.CANCELLED),), 130),
    ((job(JobState.INTERRUPTED),), 130),
    ((job(JobState.INTERRUPTED, exit_status=8),), 8),
    ((job(JobState.FAILED),), 6),
    ((job(JobState.DONE), job(JobState.FAILED, exit_status=5), job(JobState.DAMAGED)), 5),
])
def test_the_worst_end_counts(records: tuple[JobRecord, ...], status: int) -> None:
    assert int(exit_status(records)) == status
