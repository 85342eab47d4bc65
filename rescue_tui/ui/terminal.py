"""What the terminal can show, decided by TERM alone: nothing is asked of a serial line, since it may never answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rich.cells import cell_len
from rich.color import Color as RichColor
from rich.segment import Segment, Segments
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.scrollbar import ScrollBarRender


class Colours(StrEnum):
    """How many colours may be used; no screen relies on them."""

    NONE = "none"
    SIXTEEN = "16"
    MANY = "many"


@dataclass(frozen=True, slots=True)
class Terminal:
    """The abilities of one terminal.

    ``ascii_text`` says that text must be ASCII (what is not is escaped), ``box`` that light box drawing is there,
    ``modern`` that mouse, bracketed paste, focus and the alternate screen may be switched on.
    """

    name: str
    ascii_text: bool
    box: bool
    colours: Colours
    modern: bool

    @property
    def border(self) -> str:
        """The CSS class that chooses the borders."""
        return "box" if self.box else "ascii"


def detect(environ: Mapping[str, str], encoding: str = "utf-8") -> Terminal:
    """Decide by TERM; ``STASIS_GLYPHS=box`` or ``ascii`` overrides the borders when the console font is known."""
    name = environ.get("TERM", "") or "unknown"
    family = name.split("-", 1)[0].split(".", 1)[0].rstrip("0123456789")
    if family in ("vt", "dumb", "unknown"):
        terminal = Terminal(name, ascii_text=True, box=False, colours=Colours.NONE, modern=False)
    elif family in ("linux", "ansi", "cons", "sun"):
        terminal = Terminal(name, ascii_text=True, box=False, colours=Colours.SIXTEEN, modern=False)
    else:
        utf8 = encoding.lower().replace("-", "").replace("_", "") == "utf8"
        terminal = Terminal(name, ascii_text=not utf8, box=utf8, colours=Colours.MANY, modern=True)
    glyphs = environ.get("STASIS_GLYPHS", "")
    if glyphs in ("ascii", "box"):
        boxed = glyphs == "box"
        terminal = Terminal(name, terminal.ascii_text or not boxed, boxed, terminal.colours, terminal.modern)
    return terminal


_DEFAULT_COLOUR = RichColor.default()
BOX = "─│┌┐└┘├┤┬┴┼"
_ASCII_FOR = {
    "\u00a0": " ", "…": "~", "•": "*", "─": "-", "━": "-", "│": "|", "┃": "|", "█": "#", "▁": "_", "▔": "-",
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯", "+"),
}


class GlyphFilter(LineFilter):
    """The last net below every widget: a glyph that the terminal lacks becomes ASCII of the same width."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__(enabled=terminal.ascii_text or not terminal.box)
        self._kept = frozenset(BOX if terminal.box else "")
        self._ascii_text = terminal.ascii_text

    def replaced(self, text: str) -> str:
        """``text`` in the glyphs of this terminal, the same number of cells wide."""
        if text.isascii():
            return text
        return "".join(self._glyph(char) for char in text)

    def _glyph(self, char: str) -> str:
        if char.isascii() or char in self._kept:
            return char
        if char in _ASCII_FOR:
            return _ASCII_FOR[char]
        return "?" * cell_len(char) if self._ascii_text else char

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 (Textual's signature)
        """Replace in every segment."""
        return [
            segment if segment.text.isascii() else Segment(self.replaced(segment.text), segment.style, segment.control)
            for segment in segments
        ]


class AsciiScrollBar(ScrollBarRender):
    """A scroll bar of letters, since one of colours alone is not there on a terminal without them."""

    @classmethod
    def render_bar(
        cls, size: int = 25, virtual_size: float = 50, window_size: float = 20, position: float = 0, thickness: int = 1,
        vertical: bool = True, back_color: RichColor = _DEFAULT_COLOUR, bar_color: RichColor = _DEFAULT_COLOUR,  # noqa: ARG003
    ) -> Segments:
        """``|`` for the way, ``#`` for the part that shows."""
        start, end = 0, 0
        if window_size and size and virtual_size > window_size:
            length = max(1, round(size * window_size / virtual_size))
            start = round((size - length) * position / (virtual_size - window_size))
            end = start + length
        way = "|" if vertical else "-"
        letters = ["#" if start <= cell < end else way for cell in range(int(size))]
        if vertical:
            return Segments([Segment(letter * thickness) for letter in letters], new_lines=True)
        return Segments([Segment("".join(letters)), Segment.line()] * thickness, new_lines=False)


class PlainFilter(LineFilter):
    """Takes the colours away and leaves bold, underline and reverse, which every terminal since the VT220 has."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 (Textual's signature)
        """Strip the colours of every segment."""
        return [Segment(text, _attributes(style), control) for text, style, control in segments]


def _attributes(style: Style | None) -> Style | None:
    if style is None:
        return None
    return Style(bold=style.bold, underline=style.underline, reverse=style.reverse, meta=style.meta or None)
