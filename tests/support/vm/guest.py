"""Commands in the guest, over a root shell without a prompt on a console of its own.

Each answer line carries a token of its call, and the payload is base64 with its length: a kernel message or an echo
in between is noise, not data.
"""

from __future__ import annotations

import base64
import binascii
import re
import shlex
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.vm.deadline import Deadline, DeadlineError
from tests.support.vm.pump import Port

# A line discipline in canonical mode takes 4095 bytes a line, and drops the rest without a word.
LINE_BYTES = 1000


class GuestError(AssertionError):
    """A command in the guest failed that was to succeed, or its answer arrived damaged."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command in the guest left: exit status, standard output and standard error."""

    command: str
    status: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Standard output as text, stripped."""
        return self.stdout.decode(errors="backslashreplace").strip()


def script_lines(script: str, token: str) -> list[str]:
    """The lines to type so that the shell runs ``script`` and frames its answer with ``token``.

    The token is never typed in one piece, so that an echo can't be taken for an answer.
    """
    base = f"${{TMPDIR:-/tmp}}/.h-{token}"
    encoded = base64.b64encode(script.encode()).decode()
    lines = [f": >{base}.b"]
    lines += [
        f"printf %s {encoded[start:start + LINE_BYTES]} >>{base}.b" for start in range(0, len(encoded), LINE_BYTES)
    ]
    front, back = token[:4], token[4:]
    lines.append(f"base64 -d <{base}.b >{base}.s; sh {base}.s >{base}.o 2>{base}.e </dev/null; h=$?")
    lines.append(f"t={front}; t=${{t}}{back}")
    lines += [f"base64 <{base}.{stream} | sed \"s/.*/<$t:{stream}:&>/\"" for stream in "oe"]
    # The files go before the last line comes: who has seen it may end the shell at once.
    lines.append(f"o=$(wc -c <{base}.o | tr -d ' '); e=$(wc -c <{base}.e | tr -d ' '); rm -f {base}.*")
    lines.append('echo "<$t:x:$h:$o:$e>"')
    return lines


def parse_answer(text: str, token: str, command: str) -> Outcome | None:
    """The outcome framed by ``token`` in ``text``, or None while it is not complete.

    Raises :class:`GuestError` when noise has cut a payload line.
    """
    end = re.search(rf"<{token}:x:(\d+):(\d+):(\d+)>", text)
    if end is None:
        return None
    streams: dict[str, bytes] = {}
    for stream, length in (("o", int(end[2])), ("e", int(end[3]))):
        pieces = re.findall(rf"<{token}:{stream}:([A-Za-z0-9+/=]*)>", text[:end.start()])
        try:
            streams[stream] = base64.b64decode("".join(pieces), validate=True)
        except binascii.Error as error:
            raise GuestError(f"damaged answer of the guest to `{command}`: {error}") from error
        if len(streams[stream]) != length:
            raise GuestError(
                f"damaged answer of the guest to `{command}`: {len(streams[stream])} of {length} bytes arrived"
            )
    return Outcome(command, int(end[1]), streams["o"], streams["e"])


class Guest:
    """The shell behind ``port``."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self._text = ""
        port.sinks.append(self._take)

    def _take(self, data: bytes) -> None:
        self._text += data.decode("ascii", errors="replace").replace("\r", "")

    def wait_ready(self, deadline: Deadline) -> None:
        """Wait until the shell answers. What is typed before it listens may be lost, so it is asked again and again."""
        token = uuid.uuid4().hex
        while not deadline.expired:
            question = f"\nstty -echo 2>/dev/null; t={token[:4]}; echo \"<${{t}}{token[4:]}>\"\n"
            self.port.send(question.encode(), deadline)
            try:
                self.port.wait_for("shell", lambda: f"<{token}>" in self._text or None, _soon(deadline))
            except DeadlineError:
                continue
            return
        self.port.wait_for("shell", lambda: None, deadline)

    def run(self, command: str | Sequence[str], deadline: Deadline) -> Outcome:
        """Run a shell script (a string) or one program (a sequence) to its end; its status is not looked at.

        After a :class:`DeadlineError` the shell is still busy with it; :meth:`interrupt` takes it back.
        """
        script = command if isinstance(command, str) else shlex.join(command)
        token = uuid.uuid4().hex[:12]
        with self.port.lock:
            self._text = ""
        self.port.send("".join(f"{line}\n" for line in script_lines(script, token)).encode(), deadline)
        return self.port.wait_for(
            f"end of `{script}` in the guest", lambda: parse_answer(self._text, token, script), deadline,
        )

    def check(self, command: str | Sequence[str], deadline: Deadline) -> str:
        """Like :meth:`run`, but a status other than 0 is a :class:`GuestError`; standard output as text."""
        outcome = self.run(command, deadline)
        if outcome.status:
            raise GuestError(
                f"`{outcome.command}` in the guest: status {outcome.status}\n"
                f"{outcome.stdout.decode(errors='backslashreplace')}{outcome.stderr.decode(errors='backslashreplace')}"
            )
        return outcome.text

    def put(self, path: str, data: bytes, deadline: Deadline) -> None:
        """Write a (small) file in the guest."""
        encoded = base64.b64encode(data).decode()
        self.check(f"printf %s {encoded} | base64 -d >{shlex.quote(path)}", deadline)

    def get(self, path: str, deadline: Deadline) -> bytes:
        """The content of a (small) file in the guest."""
        outcome = self.run(["cat", path], deadline)
        if outcome.status:
            raise GuestError(f"{path} in the guest can't be read: {outcome.stderr.decode(errors='backslashreplace')}")
        return outcome.stdout

    def interrupt(self, deadline: Deadline) -> None:
        """Send Ctrl-C to what runs and wait until the shell answers again."""
        self.port.send(b"\x03", deadline)
        self.wait_ready(deadline)


ASK_AGAIN_SECONDS = 2.0


def _soon(deadline: Deadline) -> Deadline:
    now = deadline.clock()
    return Deadline(min(deadline.at, now + ASK_AGAIN_SECONDS), ASK_AGAIN_SECONDS, deadline.clock)
