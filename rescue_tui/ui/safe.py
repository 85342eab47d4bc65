"""The only way from a string of a device or a tool to a widget: no markup, no control bytes, no glyph that breaks.

Widgets get `rich.text.Text` made here, or `str` where Textual is told ``markup=False``.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from rescue_tui.core.text import DEFAULT_LIMIT, printable, printable_lines


def _escaped(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


@dataclass(frozen=True, slots=True)
class Safe:
    """Makes text fit for one terminal; ``ascii_text`` escapes what is not ASCII as ``\\xNN`` or ``\\uNNNN``."""

    ascii_text: bool = False

    def _glyphs(self, shown: str) -> str:
        if shown.isascii():
            return shown
        # Combining characters pile up on their neighbour and take no cell: two serials could look alike.
        return "".join(
            char if char.isascii() or not (self.ascii_text or unicodedata.category(char) in ("Mn", "Me", "Mc")
                                           or cell_len(char) == 0)
            else _escaped(char)
            for char in shown
        )

    def line(self, value: bytes | str | None, limit: int | None = DEFAULT_LIMIT) -> str:
        """One line of plain text."""
        return self._glyphs(printable(value, limit))

    def clip(self, value: bytes | str | None, width: int) -> str:
        """One line of at most ``width`` cells; a ``~`` at its end says that more was there."""
        shown = self.line(value)
        if cell_len(shown) <= width:
            return shown
        return set_cell_size(shown, max(0, width - 1)).rstrip() + "~" if width > 0 else ""

    def clip_middle(self, value: bytes | str | None, width: int) -> str:
        """As `clip`, but the ``~`` stands in the middle and the end is kept."""
        shown = self.line(value, None)
        if cell_len(shown) <= width or width < 3:
            return self.clip(value, width)
        tail = ""
        for char in reversed(shown):
            if cell_len(char + tail) > (width - 1) // 2:
                break
            tail = char + tail
        return set_cell_size(shown, width - 1 - cell_len(tail)) + "~" + tail

    def text(self, value: bytes | str | None, style: str = "", limit: int | None = DEFAULT_LIMIT) -> Text:
        """One line as `Text`; markup is not read."""
        return Text(self.line(value, limit), style=style)

    def block(self, value: bytes | str, style: str = "") -> Text:
        """Text of several lines as `Text`."""
        return Text("\n".join(self._glyphs(line) for line in printable_lines(value).split("\n")), style=style)
