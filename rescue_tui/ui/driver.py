"""The terminal drivers: what is sent to a console or a serial line, and how keys are read from any terminal.

Textual switches on mouse tracking, focus events, bracketed paste, the kitty keyboard, and asks for synchronised output
and in-band resize. A console that does not know them may print their tails as garbage, and one that does would send
reports into the login that follows. Source: console_codes(4), DEC VT220 programmer reference (EK-VT220-RM).
"""

from __future__ import annotations

import codecs
import os
import re
import select
import time
from typing import ClassVar

from textual import events
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

from rescue_tui.ui.keystream import ESCAPE, KeyStream

_ALTERNATE_SCREEN = re.compile(r"\x1b\[\?1049[hl]")
_UNKNOWN_TO_CONSOLES = re.compile(
    r"\x1b\[\?(?:1000|1002|1003|1004|1006|1015|1016|2004|2026|2048)[hl]"  # mouse, focus, paste, sync, in-band resize
    r"|\x1b\[\?\d+\$p"  # a question of which modes there are
    r"|\x1b\[[<>=]\d*u"  # the kitty keyboard
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, pointer shapes and other commands to an operating system
)
# Keys of consoles end with 34 (F20). What is above Textual reads as letters of the kitty keyboard, which no console is
# told to send: noise on the line would press keys.
_NO_CONSOLE_KEY = re.compile(r"\x1b\[(?:3[5-9]|[4-9]\d|\d{3,})(?:;\d+)*[~u]")
_CLEAR = "\x1b[0m\x1b[2J\x1b[H"
_LOOK_SECONDS = 0.1
_READ_BYTES = 4096


def for_console(data: str) -> str:
    """``data`` without what a console does not know; the alternate screen becomes a cleared one."""
    return _UNKNOWN_TO_CONSOLES.sub("", _ALTERNATE_SCREEN.sub(_CLEAR, data))


class KeyDriver(LinuxDriver):
    """Textual's driver with `KeyStream` between the line and its parser."""

    PATIENCE_SECONDS: ClassVar[float] = 0.1
    # A modern terminal answers questions and pastes, which one parser must see whole.
    FRESH_PARSER: ClassVar[bool] = False

    def run_input_thread(self) -> None:
        """Read keys until the driver is stopped."""
        # Noise on a serial line is no UTF-8; it must not end the program.
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        stream = KeyStream(self.PATIENCE_SECONDS)
        parser = XTermParser()
        while not self.exit_event.is_set():
            wait = stream.wait_seconds(time.monotonic())
            ready, _, _ = select.select([self.fileno], [], [], _LOOK_SECONDS if wait is None else wait)
            text = ""
            if ready:
                data = os.read(self.fileno, _READ_BYTES)
                if not data:
                    # The end of a pipe; a terminal that hangs up sends a signal.
                    self.exit_event.wait(_LOOK_SECONDS)
                text = decoder.decode(data)
            now = time.monotonic()
            # What has come while this thread did not run is not late.
            pieces = stream.feed(text, now) if text else stream.expire(now)
            for piece in pieces:
                parser = self._pass_on(parser, piece)
            for message in parser.tick():
                self.process_message(message)

    def _pass_on(self, parser: XTermParser, piece: str) -> XTermParser:
        """Give one piece to the app; the parser for the next one."""
        if piece == ESCAPE:
            self.process_message(events.Key("escape", ESCAPE))
            return parser
        if self.FRESH_PARSER and _NO_CONSOLE_KEY.fullmatch(piece):
            return parser
        known = False
        for message in parser.feed(piece):
            known = True
            self.process_message(message)
        # A key that the parser does not know would swallow what is typed next, then be typed as text with it.
        return parser if known or not self.FRESH_PARSER else XTermParser()


class ConsoleDriver(KeyDriver):
    """For consoles and serial lines, with `for_console` between Textual and the line."""

    # Serial over LAN and busy machines cut sequences in two; the Escape key itself should not feel slow.
    PATIENCE_SECONDS: ClassVar[float] = 0.25
    FRESH_PARSER: ClassVar[bool] = True

    def write(self, data: str) -> None:
        """Write what the console understands."""
        known = for_console(data)
        if known:
            super().write(known)
