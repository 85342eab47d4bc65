"""Errors that a person can act on, and the exit status that each stands for (see docs/DESIGN.md)."""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """Exit status of every verb of the command line."""

    GOOD = 0
    DAMAGE = 1
    USAGE = 2
    REFUSED = 3
    SETUP = 4
    DEVICE = 5
    TOOL = 6
    FORMAT = 7
    SPACE = 8
    INTERRUPTED = 130


class RescueError(Exception):
    """A broken promise, said in one sentence (``summary``) with one sentence on what to do next (``hint``).

    ``evidence`` holds what proves it: a command line, the tail of an error output. All three may hold text from a
    disk; who prints them passes them through :func:`rescue_tui.core.text.printable`.
    """

    status: ExitStatus = ExitStatus.TOOL

    def __init__(self, summary: str, hint: str = "", evidence: str = "") -> None:
        super().__init__(summary)
        self.summary = summary
        self.hint = hint
        self.evidence = evidence

    def __str__(self) -> str:
        return f"{self.summary} {self.hint}".rstrip()


class UsageError(RescueError):
    """The caller asked for something that makes no sense; exit status 2."""

    status = ExitStatus.USAGE


class PolicyRefusal(RescueError):
    """Stasis could do it and will not, since it might harm a source; exit status 3."""

    status = ExitStatus.REFUSED


class SetupError(RescueError):
    """A tool, a kernel feature or a privilege is missing; exit status 4."""

    status = ExitStatus.SETUP


class DeviceError(RescueError):
    """A device is gone, or fails; exit status 5."""

    status = ExitStatus.DEVICE


class CommandError(RescueError):
    """A tool failed; exit status 6."""

    status = ExitStatus.TOOL


class FormatError(RescueError):
    """A file or a tool's output is not what its format says; exit status 7."""

    status = ExitStatus.FORMAT


class SpaceError(RescueError):
    """The destination is full, or too small; exit status 8."""

    status = ExitStatus.SPACE
