"""A serial line as lines of text: kept on disk without escape sequences, searched by pattern."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from tests.support.vm.deadline import Deadline
from tests.support.vm.pump import Port

# ECMA-48: CSI with parameters, OSC and other strings up to their terminator, charset designations, two-byte escapes.
_ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\)|\x1b[ -/]+[0-~]|\x1b[0-Z\\^-~]", re.DOTALL,
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
LONGEST_ESCAPE = 512
PANIC = "Kernel panic - not syncing"
_OOPS = re.compile(r"Oops: \w+|BUG: [\w ]+")


class AnsiStripper:
    """Takes bytes as they come, gives text without escape sequences, also when one is cut in two."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._pending = ""

    def feed(self, data: bytes) -> str:
        """The printable text of ``data``; an unfinished escape sequence is held back."""
        text = self._pending + self._decoder.decode(data)
        self._pending = ""
        text = _ESCAPE.sub("", text)
        at = text.find("\x1b")
        if at >= 0 and len(text) - at < LONGEST_ESCAPE:
            text, self._pending = text[:at], text[at:]
        return _CONTROL.sub("", text)


class Console:
    """The text that a port has shown since the start. Waits look only at what no earlier wait has consumed."""

    def __init__(self, port: Port, log: Path) -> None:
        self.port = port
        self.log = log
        self.text = ""
        self._read_to = 0
        self._stripper = AnsiStripper()
        log.write_bytes(b"")
        port.sinks.append(self._take)

    def _take(self, data: bytes) -> None:
        text = self._stripper.feed(data)
        self.text += text
        if not self.port.panic and PANIC in self.text[-len(text) - len(PANIC):]:
            self.port.panic = " ".join(_OOPS.findall(self.text)) or PANIC
        with self.log.open("a", encoding="utf-8") as file:
            file.write(text)

    def wait_for(self, pattern: str, deadline: Deadline) -> re.Match[str]:
        """The first match of the regular expression (multi-line) behind the last one that was waited for."""
        compiled = re.compile(pattern, re.MULTILINE)
        match = self.port.wait_for(f"/{pattern}/", lambda: compiled.search(self.text, self._read_to), deadline)
        self._read_to = match.end()
        return match

    def send_line(self, line: str, deadline: Deadline) -> None:
        """Type a line and Return."""
        self.port.send(f"{line}\r".encode(), deadline)

    def tail(self, lines: int = 40) -> str:
        """The last lines, for a failure message."""
        return "\n".join(self.text.splitlines()[-lines:])
