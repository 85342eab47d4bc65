"""The only module that starts processes.

The environment is built, not inherited; stdin is empty unless text is given; every command has a deadline and a process
group of its own, which is killed as a whole; every exit status is looked at. Source: subprocess, setpgid(2), kill(2).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from rescue_tui.core.access import WriteGrant
from rescue_tui.core.command import Command, Completed
from rescue_tui.core.errors import CommandError, SetupError
from rescue_tui.core.text import printable_lines

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "HOME": "/root",
}
_KILL_GRACE_SECONDS = 5.0
_CHUNK_BYTES = 1 << 16

Redeem = Callable[[WriteGrant], None]


def _refuse_every_grant(grant: WriteGrant) -> None:
    raise SetupError(f"Nothing here can redeem the grant for {grant.device_id}.",
                     "This is a mistake in Stasis: report it.")


class Running:
    """A command that goes on while we do other things. Made by `Runner.start`; end it with `wait`."""

    def __init__(self, command: Command, process: asyncio.subprocess.Process, started: float) -> None:
        self.command = command
        self._process = process
        self._started = started

    @property
    def pid(self) -> int:
        """Process id, also the process group."""
        return self._process.pid

    def signal(self, number: int) -> None:
        """Send a signal to the whole process group; nothing happens when it has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    async def wait(self) -> Completed:
        """Wait for the end and return the status; output went to the files given at the start."""
        status = await self._process.wait()
        return Completed(self.command, status, b"", b"", time.monotonic() - self._started)


class Runner:
    """Starts commands. ``redeem`` gets the grant of a command just before the spawn and refuses stale ones."""

    def __init__(self, redeem: Redeem = _refuse_every_grant) -> None:
        self._redeem = redeem

    def path_of(self, tool: str) -> str:
        """Where a tool is; SetupError that names it when it is not installed."""
        found = shutil.which(tool, path=ENVIRONMENT["PATH"])
        if found is None:
            raise SetupError(f"The program {tool} is not installed.",
                             "On Debian, `apt-file search` tells its package; the Stasis image has it.")
        return found

    def has(self, tool: str) -> bool:
        """True when the tool is installed."""
        return shutil.which(tool, path=ENVIRONMENT["PATH"]) is not None

    async def run(self, command: Command) -> Completed:
        """Run to the end and keep the output; a status outside ``ok_statuses`` raises CommandError.

        Raises SetupError when the tool is missing, CommandError with the copy-pasteable line, the status or signal
        and the tail of stderr when it fails or outlives its deadline.
        """
        done = await self.attempt(command)
        if not done.ok:
            raise failure(done)
        return done

    async def attempt(self, command: Command) -> Completed:
        """As `run`, but a failing status is returned; a deadline that passes still raises CommandError."""
        process, started = await self._spawn(command, asyncio.subprocess.PIPE, asyncio.subprocess.PIPE)
        try:
            stdout, stderr, status = await asyncio.wait_for(
                self._communicate(process, command), timeout=command.deadline_seconds)
        except TimeoutError:
            await _end(process)
            raise CommandError(
                f"{command.argv[0]} did not end within {command.deadline_seconds:g} seconds.",
                "The device may hang; look at the kernel log.", command.line) from None
        except asyncio.CancelledError:
            await _end(process)
            raise
        return Completed(command, status, stdout, stderr, time.monotonic() - started)

    async def start(self, command: Command, *, stdout: Path, stderr: Path) -> Running:
        """Start a command whose output is appended to files; it has no deadline, its owner watches it."""
        with ExitStack() as stack:
            out = stack.enter_context(stdout.open("ab"))
            err = stack.enter_context(stderr.open("ab"))
            process, started = await self._spawn(command, out.fileno(), err.fileno())
        return Running(command, process, started)

    async def _spawn(self, command: Command, stdout: int, stderr: int) -> tuple[asyncio.subprocess.Process, float]:
        path = self.path_of(command.argv[0])
        if command.grant is not None:
            self._redeem(command.grant)
        stdin = asyncio.subprocess.PIPE if command.stdin else asyncio.subprocess.DEVNULL
        started = time.monotonic()
        try:
            process = await asyncio.create_subprocess_exec(
                path, *command.argv[1:], stdin=stdin, stdout=stdout, stderr=stderr, env=ENVIRONMENT, cwd="/",
                process_group=0)
        except OSError as error:
            raise CommandError(
                f"{command.argv[0]} could not be started: {error.strerror}.", "", command.line) from error
        return process, started

    async def _communicate(self, process: asyncio.subprocess.Process, command: Command) -> tuple[bytes, bytes, int]:
        assert process.stdout is not None
        assert process.stderr is not None
        limit = command.output_limit_bytes
        stdout, stderr, _ = await asyncio.gather(
            _keep(process.stdout, limit), _keep(process.stderr, limit), _feed(process, command.stdin))
        return stdout, stderr, await process.wait()


async def _keep(stream: asyncio.StreamReader, limit_bytes: int) -> bytes:
    """Read to the end, keep at most ``limit_bytes``: a tool that prints without end can't fill the memory."""
    kept = bytearray()
    while chunk := await stream.read(_CHUNK_BYTES):
        kept += chunk[: max(0, limit_bytes - len(kept))]
    return bytes(kept)


async def _feed(process: asyncio.subprocess.Process, text: bytes) -> None:
    if process.stdin is None:
        return
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(text)
        await process.stdin.drain()
    process.stdin.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    """TERM, then KILL the group. A process stuck in the kernel (state D) is left behind, never waited for."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _KILL_GRACE_SECONDS)
            return


def failure(done: Completed) -> CommandError:
    """The error that tells of a failed command: what, how it ended, the last lines of its stderr."""
    tail = "\n".join(printable_lines(done.stderr).strip().splitlines()[-12:])
    return CommandError(
        f"{done.command.argv[0]} failed: {done.how_it_ended}.",
        "The command and what it printed are below.", f"$ {done.command.line}\n{tail}".rstrip())
