"""The real program on a pseudo-terminal, read by a terminal emulator: what a serial line or a console would show."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyte
import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60.0
CHILD = """
import sys
from tests.support.fake_services import FakeServices
from rescue_tui.ui.app import run
services = FakeServices()
if sys.argv[1:] == ["broken"]:
    services.errors["snapshot"] = ValueError("a mistake \\x1b[2J")
status = run(services)
print("events", [entry.event for entry in services.journal.entries], flush=True)
sys.exit(status)
"""
# What a VT220 and the Linux console know: cursor moves, erase, attributes and colours, cursor and wrap on and off.
KNOWN = re.compile(r"\x1b\[[0-9;]*[HJKm]|\x1b\[\?(?:25|7)[hl]|[\r\n\x07\x08]")


class Terminal:
    """A child on a pseudo-terminal and what its screen shows; every wait has an end."""

    def __init__(self, master: int, child: subprocess.Popen[bytes], columns: int, rows: int) -> None:
        self.child = child
        self.raw = b""
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self._master = master

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    def _feed(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], seconds)
        if not ready:
            return False
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)

    def see(self, words: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while words not in self.text:
            if time.monotonic() > deadline or (not self._feed(1.0) and self.child.poll() is not None):
                raise AssertionError(f"never came: {words}\n{self.text}\n{self.raw[-2000:]!r}")

    def type(self, keys: str) -> None:
        self.send(keys.encode())

    def send(self, data: bytes) -> None:
        os.write(self._master, data)

    def end(self) -> int:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.child.poll() is None and time.monotonic() < deadline:
            self._feed(0.2)
        while self._feed(0.2):
            pass
        assert self.child.returncode is not None, f"it never ended\n{self.text}"
        return self.child.returncode


@contextmanager
def tui(term: str, *arguments: str, columns: int = 80, rows: int = 24, size: bool = True) -> Iterator[Terminal]:
    """Run the TUI; ``size`` False leaves the line without a size, as a serial line is."""
    master, slave = pty.openpty()
    if size:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environ = {"TERM": term, "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT), "HOME": "/root"}
    child = subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdin=slave, stdout=slave, stderr=slave,
                             env=environ, cwd=ROOT, start_new_session=True)
    os.close(slave)
    try:
        yield Terminal(master, child, columns, rows)
    finally:
        child.kill()
        child.wait()
        os.close(master)


@pytest.mark.parametrize("size", [True, False])
def test_vt220_is_ascii_in_every_cell_and_gets_only_what_it_knows(size: bool) -> None:
    with tui("vt220", size=size) as terminal:
        terminal.see("Devices: 4 disks")
        terminal.see("Enter Details")
        for keys, words in (("?", "Help: Devices"), ("\x1b", "All disks are protected"), ("g", "It can't be the dest"),
                            ("\x1b[B\x1b[B", "This disk may become"), ("\r", "Type the serial"),
                            ("USB-0001\r", "GRANTED"), ("l", "session.start"), ("\x1bOP", "Help: Journal"),
                            ("q", "Journal: 1 entry"), ("dc", "No image is known."), ("?", "Help: Images"),
                            ("\x1b", "No image is known.")):
            terminal.type(keys)
            terminal.see(words)
            assert terminal.text.isascii(), terminal.text
        terminal.type("q")
        terminal.see("Leave Stasis?")
        terminal.type("y")
        assert terminal.end() == 0
    drawn = terminal.raw.decode("ascii")
    assert "\x1b" not in KNOWN.sub("", drawn)
    colours = {code for codes in re.findall(r"\x1b\[([0-9;]*)m", drawn) for code in codes.split(";") if code}
    assert colours <= {"0", "1", "4", "7"}


def test_linux_console_gets_sixteen_colours_and_ascii() -> None:
    with tui("linux") as terminal:
        terminal.see("good")
        terminal.type("\x1b[[A")
        terminal.see("Help: Devices")
        terminal.type("\x1b")
        terminal.see("Enter Details")
        terminal.type("q")
        terminal.see("Leave Stasis?")
        terminal.type("y")
        assert terminal.end() == 0
    drawn = terminal.raw.decode("ascii")
    assert "\x1b" not in KNOWN.sub("", drawn)
    assert not re.search(r"\x1b\[[0-9;]*[34]8;", drawn), "256 or true colours on a console of 16"
    assert re.search(r"\x1b\[(?:[0-9]+;)*32[;m]", drawn), "no green at all"


def test_a_modern_terminal_gets_light_box_drawing() -> None:
    with tui("xterm-256color") as terminal:
        terminal.see("good")
        terminal.type("q")
        terminal.see("Leave Stasis?")
        assert "┌" in terminal.text
        assert not set("╭━┃█▊▁") & set(terminal.text)
        terminal.type("y")
        assert terminal.end() == 0


def test_a_mistake_ends_with_a_traceback_in_the_journal_and_its_own_status() -> None:
    with tui("vt220", "broken") as terminal:
        assert terminal.end() == 70
    told = terminal.raw.decode("ascii")
    assert "the screen program has failed; jobs go on" in told
    assert "ValueError: a mistake \\x1b[2J" in told
    assert "events ['session.start', 'ui.crash']" in told


@pytest.mark.parametrize("term", ["vt220", "linux", "xterm-256color"])
def test_a_burst_on_the_line_loses_no_key_and_starts_nothing_unseen(term: str) -> None:
    with tui(term) as terminal:
        terminal.see("good")
        terminal.type("?\x1bl?\x1b\x1b/USB-0001\rg\rUSB-0001\rf1USB-0001\rm\x1b\x1b/S4EVNX1M\risyy")
        terminal.see("Start imaging 1 disk?")
        terminal.see("Start now?")
        terminal.type("y")
        terminal.see("RUNNING")
        terminal.type("\x1bqy")
        terminal.see("Leave Stasis?")
        terminal.type("y")
        assert terminal.end() == 0


def test_noise_and_keys_in_halves_on_the_line() -> None:
    with tui("vt220") as terminal:
        terminal.see("/dev/nvme0n1  ACME")
        terminal.send(b"\xff\xfe\x1b[99~\x1b[")
        terminal.send(b"B")
        terminal.see("/dev/nvme1n1  ACME")
        terminal.send(b"\xc3\r")
        terminal.see("Device: /dev/nvme1n1")
        terminal.type("\x1bq")
        terminal.see("Leave Stasis?")
        terminal.type("y")
        assert terminal.end() == 0
