"""The terminal at the end of a serial line: a pyte screen that shows what an operator would see, and a keyboard."""

from __future__ import annotations

from typing import Final

import pyte

from tests.support.vm.deadline import Deadline
from tests.support.vm.pump import Port

# What a vt220 and an xterm send. F1 to F4 are the PF keys of the VT100 in both.
KEYS: Final = {
    "enter": "\r", "tab": "\t", "shift+tab": "\x1b[Z", "escape": "\x1b", "backspace": "\x7f", "space": " ",
    "up": "\x1b[A", "down": "\x1b[B", "right": "\x1b[C", "left": "\x1b[D",
    "home": "\x1b[1~", "end": "\x1b[4~", "insert": "\x1b[2~", "delete": "\x1b[3~",
    "pageup": "\x1b[5~", "pagedown": "\x1b[6~",
    "f1": "\x1bOP", "f2": "\x1bOQ", "f3": "\x1bOR", "f4": "\x1bOS", "f5": "\x1b[15~", "f6": "\x1b[17~",
    "f7": "\x1b[18~", "f8": "\x1b[19~", "f9": "\x1b[20~", "f10": "\x1b[21~", "f11": "\x1b[23~", "f12": "\x1b[24~",
}
KEY_DEADLINE_SECONDS = 30


def key_bytes(key: str) -> bytes:
    """What the terminal sends for ``down``, ``f1``, ``ctrl+c`` or a single character; ValueError for anything else."""
    if key in KEYS:
        return KEYS[key].encode()
    if key.startswith("ctrl+") and len(key) == len("ctrl+") + 1:
        return bytes([ord(key[-1].upper()) & 0x1F])
    if len(key) == 1:
        return key.encode()
    raise ValueError(f"no such key: {key!r}")


class _Screen(pyte.Screen):
    """pyte's screen, whose answers to queries (device attributes, cursor position) go back over the line."""

    def __init__(self, columns: int, lines: int) -> None:
        super().__init__(columns, lines)
        self.answers: list[bytes] = []

    def write_process_input(self, data: str) -> None:
        self.answers.append(data.encode())


class Terminal:
    """A screen of ``columns`` by ``lines`` fed by a port. It may share the port with a :class:`Console`."""

    def __init__(self, port: Port, columns: int = 80, lines: int = 24) -> None:
        self.port = port
        self._screen = _Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        port.sinks.append(self._take)

    def _take(self, data: bytes) -> None:
        self._stream.feed(data)
        while self._screen.answers:
            # A few bytes: the line always has room for them, and if the guest is gone the wait will say so.
            self.port.send(self._screen.answers.pop(0), Deadline.after(KEY_DEADLINE_SECONDS))

    @property
    def rows(self) -> tuple[str, ...]:
        """The screen's lines, padded to its width."""
        with self.port.lock:
            return tuple(self._screen.display)

    @property
    def text(self) -> str:
        """The screen as text, without trailing spaces."""
        return "\n".join(row.rstrip() for row in self.rows)

    def highlighted(self) -> tuple[str, ...]:
        """The pieces of the screen that stand out by reverse video or a background colour, in reading order."""
        pieces: list[str] = []
        with self.port.lock:
            for number in range(self._screen.lines):
                row = self._screen.buffer[number]
                before = False
                for column in range(self._screen.columns):
                    cell = row[column]
                    now = bool(cell.reverse) or cell.bg != "default"
                    if now:
                        pieces.append(cell.data) if not before else pieces.append(pieces.pop() + cell.data)
                    before = now
        return tuple(piece.strip() for piece in pieces if piece.strip())

    def wait_for(self, text: str, deadline: Deadline) -> str:
        """Wait until the screen shows ``text``; the screen as it was then."""
        return self.port.wait_for(f"{text!r}", lambda: self.text if text in self.text else None, deadline)

    def wait_gone(self, text: str, deadline: Deadline) -> str:
        """Wait until the screen does not show ``text`` any more; the screen as it was then."""
        return self.port.wait_for(f"end of {text!r}", lambda: self.text if text not in self.text else None, deadline)

    def press(self, *keys: str) -> None:
        """Press keys by name (see :func:`key_bytes`), one after the other."""
        for key in keys:
            self.port.send(key_bytes(key), Deadline.after(KEY_DEADLINE_SECONDS))

    def type(self, text: str) -> None:
        """Type text as it stands."""
        self.port.send(text.encode(), Deadline.after(KEY_DEADLINE_SECONDS))
