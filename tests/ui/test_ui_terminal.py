"""What is decided by TERM, what goes over the line, and what `Safe` lets through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.color import Color

from rescue_tui.ui.driver import for_console
from rescue_tui.ui.safe import Safe
from rescue_tui.ui.terminal import AsciiScrollBar, Colours, GlyphFilter, PlainFilter, detect
from rescue_tui.ui.widgets.bars import wrapped_keys
from rescue_tui.ui.widgets.progress import bar


@pytest.mark.parametrize(("term", "ascii_text", "box", "colours", "modern"), [
    ("vt220", True, False, Colours.NONE, False),
    ("vt102", True, False, Colours.NONE, False),
    ("dumb", True, False, Colours.NONE, False),
    ("", True, False, Colours.NONE, False),
    ("linux", True, False, Colours.SIXTEEN, False),
    ("linux-16color", True, False, Colours.SIXTEEN, False),
    ("ansi", True, False, Colours.SIXTEEN, False),
    ("xterm-256color", False, True, Colours.MANY, True),
    ("screen.xterm-256color", False, True, Colours.MANY, True),
    ("tmux-256color", False, True, Colours.MANY, True),
])
def test_terminal_by_term(term: str, ascii_text: bool, box: bool, colours: Colours, modern: bool) -> None:
    found = detect({"TERM": term} if term else {})
    assert (found.ascii_text, found.box, found.colours, found.modern) == (ascii_text, box, colours, modern)


def test_glyphs_can_be_said_and_a_latin_locale_gets_ascii() -> None:
    assert detect({"TERM": "linux", "STASIS_GLYPHS": "box"}).border == "box"
    assert detect({"TERM": "linux", "STASIS_GLYPHS": "box"}).ascii_text
    assert detect({"TERM": "xterm", "STASIS_GLYPHS": "ascii"}).border == "ascii"
    assert detect({"TERM": "xterm"}, "iso8859-1").ascii_text


def test_console_gets_no_private_modes_but_the_cursor_and_the_wrap() -> None:
    sent = ("\x1b[?1049h\x1b[?1000h\x1b[?1003h\x1b[?1006h\x1b[?25l\x1b[?1004h\x1b[>25u\x1b[?2026$p\x1b[?2048$p"
            "\x1b[?2004h\x1b[?7l\x1b]22;default\x07\x1b]0;title\x1b\\")
    assert for_console(sent) == "\x1b[0m\x1b[2J\x1b[H\x1b[?25l\x1b[?7l"
    assert for_console("\x1b[<u\x1b[?1049l\x1b[?25hplain\x1b[7mreverse\x1b[0m") == (
        "\x1b[0m\x1b[2J\x1b[H\x1b[?25hplain\x1b[7mreverse\x1b[0m")


@given(st.text())
def test_safe_line_is_one_harmless_line(text: str) -> None:
    shown = Safe(ascii_text=True).line(text)
    assert shown.isascii()
    assert shown.isprintable()


@given(st.text(), st.integers(0, 40), st.booleans())
def test_clip_never_exceeds_its_width(text: str, width: int, ascii_text: bool) -> None:
    assert cell_len(Safe(ascii_text).clip(text, width)) <= width


@given(st.text(alphabet=st.characters(exclude_categories=("Cs", "Cc"))))
def test_glyph_filter_keeps_the_width(text: str) -> None:
    replaced = GlyphFilter(detect({"TERM": "vt220"})).replaced(text)
    assert replaced.isascii()
    assert cell_len(replaced) == sum(cell_len(char) for char in text)


def test_box_drawing_stays_where_the_font_has_it() -> None:
    console = GlyphFilter(detect({"TERM": "linux", "STASIS_GLYPHS": "box"}))
    assert console.replaced("┌─┐│é▁…") == "┌─┐│?_~"
    assert GlyphFilter(detect({"TERM": "vt220"})).replaced("┌─┐│") == "+-+|"
    assert not GlyphFilter(detect({"TERM": "xterm"})).enabled


def test_plain_filter_leaves_bold_underline_and_reverse() -> None:
    style = Style(color="red", bgcolor="blue", bold=True, reverse=True, italic=True)
    [segment] = PlainFilter().apply([Segment("x", style)], Color(0, 0, 0))
    assert segment.style == Style(bold=True, reverse=True)


def test_scroll_bar_of_letters() -> None:
    segments = AsciiScrollBar.render_bar(size=10, virtual_size=20, window_size=10, position=10).segments
    assert "".join(segment.text for segment in segments) == "|||||#####"
    whole = AsciiScrollBar.render_bar(size=4, virtual_size=4, window_size=4).segments
    assert "".join(segment.text for segment in whole) == "||||"


@pytest.mark.parametrize(("percent", "drawn"), [(0.0, "[----------]"), (50.0, "[#####-----]"), (99.99, "[#########-]"),
                                                (100.0, "[##########]")])
def test_bar_is_full_only_at_the_end(percent: float, drawn: str) -> None:
    assert bar(percent, 12) == drawn


def test_keys_wrap_between_two_keys() -> None:
    keys = [("Enter", "Details"), ("/", "Find"), ("q", "Leave")]
    assert str(wrapped_keys(keys, 22)) == "Enter Details  / Find\nq Leave"
    assert str(wrapped_keys(keys, 80)) == "Enter Details  / Find  q Leave"
