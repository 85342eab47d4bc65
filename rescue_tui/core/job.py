"""Long work as values: its states, what may follow what, its progress."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rescue_tui.core.errors import UsageError


class JobState(StrEnum):
    """The state of a job; the job file on disk is the single truth."""

    PENDING = "pending"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    DONE = "done"
    DAMAGED = "damaged"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


_NEXT: dict[JobState, frozenset[JobState]] = {
    JobState.PENDING: frozenset({JobState.RUNNING, JobState.CANCELLED, JobState.FAILED, JobState.INTERRUPTED}),
    JobState.RUNNING: frozenset({JobState.PAUSING, JobState.CANCELLING, JobState.DONE, JobState.DAMAGED,
                                 JobState.FAILED, JobState.INTERRUPTED}),
    JobState.PAUSING: frozenset({JobState.PAUSED, JobState.CANCELLING, JobState.DONE, JobState.DAMAGED,
                                 JobState.FAILED, JobState.INTERRUPTED}),
    JobState.PAUSED: frozenset({JobState.PENDING, JobState.RUNNING, JobState.CANCELLED, JobState.CANCELLING,
                                JobState.FAILED, JobState.INTERRUPTED}),
    JobState.CANCELLING: frozenset({JobState.CANCELLED, JobState.DONE, JobState.DAMAGED, JobState.FAILED,
                                    JobState.INTERRUPTED}),
    JobState.CANCELLED: frozenset(),
    JobState.DONE: frozenset(),
    JobState.DAMAGED: frozenset(),
    JobState.FAILED: frozenset(),
    # The worker died (power cut, SIGKILL), or source or destination went away or got full: a new worker can go on.
    JobState.INTERRUPTED: frozenset({JobState.PENDING, JobState.RUNNING, JobState.CANCELLED, JobState.FAILED}),
}
# Phases in which the source is read; afterwards only the destination is.
READING_PHASES = frozenset({"copying", "trimming", "scraping", "retrying"})
FINAL = frozenset({JobState.CANCELLED, JobState.DONE, JobState.DAMAGED, JobState.FAILED})
RESUMABLE = frozenset({JobState.PAUSED, JobState.INTERRUPTED})
ACTIVE = frozenset({JobState.PENDING, JobState.RUNNING, JobState.PAUSING, JobState.CANCELLING})


def check_transition(old: JobState, new: JobState) -> None:
    """Raise UsageError when a job in ``old`` can't go to ``new``."""
    if new not in _NEXT[old]:
        raise UsageError(
            f"A {old.value} job can't become {new.value}.", "`stasis jobs list` shows the state of each job.")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is. Rates in bytes a second, ages and times in seconds; None: not known (yet).

    ``phase`` is copying, trimming, scraping, retrying, hashing, collecting or reporting. ``eta_low_seconds`` and
    ``eta_high_seconds`` are a range from the slowest and fastest recent windows, never one number.
    """

    phase: str = ""
    total_bytes: int = 0
    done_bytes: int = 0
    bad_bytes: int = 0
    bad_areas: int = 0
    read_errors: int = 0
    current_rate: float | None = None
    average_rate: float | None = None
    last_good_read_seconds: float | None = None
    eta_low_seconds: float | None = None
    eta_high_seconds: float | None = None
    position_bytes: int | None = None
    destination_free_bytes: int | None = None
    message: str = ""

    @property
    def percent(self) -> float:
        """Done bytes in percent of the total, rounded down to 0.01 so that 100 means all."""
        if self.total_bytes <= 0:
            return 0.0
        return self.done_bytes * 10000 // self.total_bytes / 100


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as it stands in its job file.

    ``case`` is the case folder, ``source`` the identity of what is read. ``result`` is a plain mapping whose fields
    depend on ``kind`` (image: sha256, size_bytes, rescued_bytes, bad_bytes ...). ``error`` is the sentence and hint of
    a failed or interrupted one; ``pid`` is the worker's process. ``exit_status`` is what a command that waited for the
    job ends with: 0 done, 1 damage, 130 paused or cancelled, else the class of the error (5 device, 8 space ...).
    """

    id: str
    kind: str
    title: str
    state: JobState
    created_at: str
    updated_at: str
    source: str = ""
    case: str = ""
    commands: tuple[str, ...] = ()
    pid: int | None = None
    progress: Progress = Progress()
    error: str = ""
    hint: str = ""
    result: dict[str, object] | None = None
    exit_status: int | None = None
