"""A command line as a value, and what became of it. Only system.runner starts one."""

from __future__ import annotations

import shlex
import signal
from dataclasses import dataclass

from rescue_tui.core.access import WriteGrant

SIGNALS = {number.value: number.name for number in signal.Signals}


@dataclass(frozen=True, slots=True)
class Command:
    """An argv list with a deadline; never a shell string.

    ``grant`` is the capability that a command which opens a device for writing must carry; the Runner redeems it just
    before the spawn. ``ok_statuses`` are the exit statuses that are no failure. ``stdin`` is text for the tool, else
    it reads /dev/null. ``output_limit_bytes`` bounds what is kept of each stream.
    """

    argv: tuple[str, ...]
    deadline_seconds: float = 60.0
    ok_statuses: tuple[int, ...] = (0,)
    grant: WriteGrant | None = None
    stdin: bytes = b""
    output_limit_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        if not self.argv or not all(isinstance(word, str) for word in self.argv):
            raise TypeError("argv must be a non-empty tuple of str")

    @property
    def line(self) -> str:
        """The command as one line that can be pasted into a shell."""
        return shlex.join(self.argv)


@dataclass(frozen=True, slots=True)
class Completed:
    """What a command printed and how it ended; ``status`` is negative for a signal, as in subprocess."""

    command: Command
    status: int
    stdout: bytes
    stderr: bytes
    seconds: float

    @property
    def ok(self) -> bool:
        """True when the status is one that the command allows."""
        return self.status in self.command.ok_statuses

    @property
    def how_it_ended(self) -> str:
        """``exit status 1`` or ``killed by SIGKILL``."""
        if self.status < 0:
            return f"killed by {SIGNALS.get(-self.status, f'signal {-self.status}')}"
        return f"exit status {self.status}"
