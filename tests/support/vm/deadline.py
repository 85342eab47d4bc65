"""Every wait of the harness takes one of these: a moment by which something must have happened."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass


class DeadlineError(AssertionError):
    """What was waited for did not happen in time. An AssertionError, so that pytest reports a failure, not an error."""


def _factor() -> float:
    """``STASIS_DEADLINE_FACTOR`` stretches every deadline on a slow machine."""
    return float(os.environ.get("STASIS_DEADLINE_FACTOR", "1"))


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock, and how many seconds away it was when it was set."""

    at: float
    seconds: float
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> Deadline:
        """The moment ``seconds`` (stretched by ``STASIS_DEADLINE_FACTOR``) from now."""
        stretched = seconds * _factor()
        return cls(clock() + stretched, stretched, clock)

    def remaining(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self.at - self.clock())

    @property
    def expired(self) -> bool:
        """Whether the moment has passed."""
        return self.clock() >= self.at
