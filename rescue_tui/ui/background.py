"""Reading and copying checkpoints behind the screens: one piece of work at a time, which goes on while screens change.

It belongs to the app: it ends when the program ends, unlike a job, which has a process of its own. The work itself runs
in a thread and in processes (`Services.scan_checkpoints`), so no key waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from rescue_tui.core.errors import DeviceError, RescueError
from rescue_tui.jobs.extracting import ExtractAnswer
from rescue_tui.jobs.salvaging import SalvageAnswer
from rescue_tui.jobs.scanning import ScanAnswer

Answer = ScanAnswer | ExtractAnswer | SalvageAnswer
_SURE_SECONDS = 0.5
Tick = Callable[[str, int, int], None]


class WorkKind(StrEnum):
    """What is done; the word stands in sentences."""

    SCAN = "scan"
    EXTRACT = "extraction"
    SALVAGE = "salvage"


class WorkState(StrEnum):
    """How far it is."""

    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    DONE = "ENDED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Place:
    """How far a phase is: the file or tensor under way, bytes done and in all.

    ``seconds`` and ``early_bytes``: since when we look, and what was done by then.
    """

    phase: str = ""
    name: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    seconds: float = 0.0
    early_bytes: int = 0

    @property
    def rate(self) -> float | None:
        """Bytes a second in this phase; None: not known yet."""
        done = self.done_bytes - self.early_bytes
        return done / self.seconds if self.seconds >= _SURE_SECONDS and done > 0 else None

    @property
    def percent(self) -> float:
        """Of this phase."""
        return self.done_bytes * 100 / self.total_bytes if self.total_bytes else 0.0

    @property
    def left_seconds(self) -> float | None:
        """At the rate so far."""
        return (self.total_bytes - self.done_bytes) / self.rate if self.rate else None


@dataclass(slots=True)
class Work:
    """One scan, extraction or salvage. ``root`` is the directory that is read, ``to`` where it writes to."""

    kind: WorkKind
    root: Path
    title: str
    to: Path | None = None
    state: WorkState = WorkState.RUNNING
    place: Place = Place()
    answer: Answer | None = None
    error: RescueError | None = None
    cancel: Callable[[], None] = lambda: None
    _began: dict[str, tuple[float, int]] = field(default_factory=dict)

    @property
    def active(self) -> bool:
        """Not ended yet."""
        return self.state in {WorkState.RUNNING, WorkState.CANCELLING}

    def ticker(self, phase: str) -> Tick:
        """What the work calls, from whatever thread, to tell how far this phase is."""
        def tick(name: str, done_bytes: int, total_bytes: int) -> None:
            now = time.monotonic()
            began, early_bytes = self._began.setdefault(phase, (now, done_bytes))
            # One assignment, so that the screen never sees half of it.
            self.place = Place(phase, name, done_bytes, total_bytes, now - began, early_bytes)
        return tick


class Background:
    """The work under way, the last copy, and the last scan of each directory. ``changed`` is called when one ends."""

    def __init__(self) -> None:
        self.work: Work | None = None
        self.copied: Work | None = None
        self.scans: dict[Path, ScanAnswer] = {}

    @property
    def active(self) -> Work | None:
        """What is under way now."""
        return self.work if self.work is not None and self.work.active else None

    def begin(self, work: Work) -> None:
        """It is under way from now on; nothing else may be."""
        assert self.active is None
        self.work = work
        if work.kind is not WorkKind.SCAN:
            self.copied = work

    async def run(self, work: Work, call: Awaitable[Answer], changed: Callable[[], None]) -> None:
        """Await the work to its end, and note how it ended."""
        try:
            work.answer = await call
        except RescueError as error:
            work.state, work.error = WorkState.FAILED, error
        except OSError as error:
            work.state = WorkState.FAILED
            work.error = DeviceError(f"{work.root} can't be read: {error.strerror or error}.",
                                     "Is it still mounted? Is its disk still plugged in?")
        except asyncio.CancelledError:
            work.state = WorkState.CANCELLED
            changed()
            raise
        else:
            work.state = WorkState.DONE
            if isinstance(work.answer, ScanAnswer):
                self.scans[work.root] = work.answer
        changed()

    def stop(self) -> None:
        """Ask the work under way to end."""
        if self.active is not None and self.active.state is WorkState.RUNNING:
            self.active.state = WorkState.CANCELLING
            self.active.cancel()
