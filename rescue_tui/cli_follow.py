"""Waiting for jobs in the foreground: a bar on a terminal, plain lines otherwise, Ctrl-C lets the jobs go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from rescue_tui.cli_output import Output
from rescue_tui.cli_text import progress_words
from rescue_tui.core.errors import ExitStatus
from rescue_tui.core.job import FINAL, JobRecord, JobState
from rescue_tui.core.text import human_bytes, printable

# Nothing moves a job on from these but somebody else, so nobody waits in them.
RESTING = FINAL | {JobState.PAUSED, JobState.INTERRUPTED}
POLL_SECONDS = 0.5
_LINE_EVERY_POLLS = 120
_STEP_PERCENT = 5
_BAR_CELLS = 30

Pause = Callable[[float], Awaitable[None]]


class Display(Protocol):
    """What shows the progress of jobs."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None: ...

    def show(self, record: JobRecord) -> None:
        """Show where a job is now; called for each poll."""


class Bars:
    """Two lines a job on a terminal: a bar, and the words below it. ASCII, since it may be a serial line."""

    def __init__(self, output: Output) -> None:
        self._live = Live(console=Console(file=output.stderr, highlight=False), auto_refresh=False, transient=True)
        self._blocks: dict[str, Text] = {}

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._live.stop()

    def show(self, record: JobRecord) -> None:
        """Draw the two lines of a job again; those of a job that isn't known yet are added."""
        filled = int(record.progress.percent) * _BAR_CELLS // 100
        bar = f"[{'#' * filled}{'.' * (_BAR_CELLS - filled)}]"
        head = printable(f"{record.id} {bar} {record.state.value}")
        self._blocks[record.id] = Text(f"{head}\n  {printable(progress_words(record.progress))}", overflow="fold")
        self._live.update(Group(*self._blocks.values()), refresh=True)


class Lines:
    """A line whenever the phase, the state, the bad areas or five percent changed, and one a minute."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._last: dict[str, tuple[object, ...]] = {}
        self._polls: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        return None

    def show(self, record: JobRecord) -> None:
        """Write a line if there is news of a job."""
        progress = record.progress
        step = int(progress.percent) // _STEP_PERCENT
        news = (record.state, progress.phase, progress.bad_areas, progress.message, step)
        polls = self._polls.get(record.id, 0) + 1
        if news == self._last.get(record.id) and polls < _LINE_EVERY_POLLS:
            self._polls[record.id] = polls
            return
        self._last[record.id] = news
        self._polls[record.id] = 0
        self._output.say(f"{record.id}: {_state_words(record)}{progress_words(progress)}")


def _state_words(record: JobRecord) -> str:
    return "" if record.state is JobState.RUNNING else f"{record.state.value}, "


class Reading:
    """How far the reading of a case is: called with a file's name, the bytes done and the bytes in all."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._bar = Live(console=Console(file=output.stderr, highlight=False), auto_refresh=False, transient=True)
        self._on_terminal = output.stderr.isatty()
        self._last = -1

    def __enter__(self) -> Self:
        if self._on_terminal:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._on_terminal:
            self._bar.stop()

    def tick(self, name: str, done_bytes: int, total_bytes: int) -> None:
        """Draw the bar again at each percent; a line at each tenth where there is no terminal."""
        percent = done_bytes * 100 // total_bytes if total_bytes else 100
        step = percent if self._on_terminal else percent // 10
        if step == self._last:
            return
        self._last = step
        if not self._on_terminal:
            self._output.say(f"read {percent} % of {human_bytes(total_bytes)}")
            return
        filled = percent * _BAR_CELLS // 100
        self._bar.update(Text(f"[{'#' * filled}{'.' * (_BAR_CELLS - filled)}] {percent} % of "
                              f"{human_bytes(total_bytes)}, {printable(name)}", no_wrap=True), refresh=True)


async def follow(
    look: Callable[[str], JobRecord], records: Sequence[JobRecord], output: Output, pause: Pause = asyncio.sleep
) -> tuple[tuple[JobRecord, ...], bool]:
    """Wait until every job rests; the last records, and True when Ctrl-C ended the waiting (the jobs go on).

    ``look`` gives the present record of a job by id; ``pause`` waits between two looks (seconds).
    """
    display: Display = Bars(output) if output.stderr.isatty() else Lines(output)
    latest = {record.id: record for record in records}
    interrupted = False
    with display:
        try:
            while True:
                latest = {job_id: look(job_id) for job_id in latest}
                for record in latest.values():
                    display.show(record)
                if all(record.state in RESTING for record in latest.values()):
                    break
                await pause(POLL_SECONDS)
        except asyncio.CancelledError:
            # asyncio turns the first Ctrl-C into this. Swallowed on purpose: the call ends with an answer.
            interrupted = True
    return tuple(latest.values()), interrupted


def exit_status(records: Sequence[JobRecord]) -> ExitStatus:
    """The worst end of several jobs: stopped by an error, then not ended (state kept), then damaged, then good."""
    stopped = [record for record in records if record.state in {JobState.FAILED, JobState.INTERRUPTED}
               and (record.state is JobState.FAILED or record.exit_status is not None)]
    if stopped:
        return _stopped_status(stopped[0])
    if any(record.state not in {JobState.DONE, JobState.DAMAGED} for record in records):
        return ExitStatus.INTERRUPTED
    if any(record.state is JobState.DAMAGED for record in records):
        return ExitStatus.DAMAGE
    return ExitStatus.GOOD


def _stopped_status(record: JobRecord) -> ExitStatus:
    """The class of the error that the worker noted; a tool's failure when it noted none."""
    return ExitStatus.TOOL if record.exit_status is None else ExitStatus(record.exit_status)
