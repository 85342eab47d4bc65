"""The terminal driver for consoles and serial lines: it sends only what a VT220 and the Linux console understand.

Textual switches on mouse tracking, focus events, bracketed paste, the kitty keyboard, and asks for synchronised output
and in-band resize. A console that does not know them may print their tails as garbage, and one that does would send
reports into the login that follows. Source: console_codes(4), DEC VT220 programmer reference (EK-VT220-RM).
"""

from __future__ import annotations

import re

from textual.drivers.linux_driver import LinuxDriver

_ALTERNATE_SCREEN = re.compile(r"\x1b\[\?1049[hl]")
_UNKNOWN_TO_CONSOLES = re.compile(
    r"\x1b\[\?(?:1000|1002|1003|1004|1006|1015|1016|2004|2026|2048)[hl]"  # mouse, focus, paste, sync, in-band resize
    r"|\x1b\[\?\d+\$p"  # a question of which modes there are
    r"|\x1b\[[<>=]\d*u"  # the kitty keyboard
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, pointer shapes and other commands to an operating system
)
_CLEAR = "\x1b[0m\x1b[2J\x1b[H"


def for_console(data: str) -> str:
    """``data`` without what a console does not know; the alternate screen becomes a cleared one."""
    return _UNKNOWN_TO_CONSOLES.sub("", _ALTERNATE_SCREEN.sub(_CLEAR, data))


class ConsoleDriver(LinuxDriver):
    """Textual's driver with `for_console` between it and the line."""

    def write(self, data: str) -> None:
        """Write what the console understands."""
        known = for_console(data)
        if known:
            super().write(known)
