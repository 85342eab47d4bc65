"""Bytes of a terminal become keys: Escape and what follows it, sequences in halves, noise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescue_tui.ui.keystream import KeyStream

ESC = "\x1b"


def pieces(*texts: str) -> list[str]:
    """Feed the texts at one moment, then let the patience pass."""
    stream = KeyStream(0.25)
    found = [piece for text in texts for piece in stream.feed(text, 10.0)]
    return found + stream.expire(10.25)


@pytest.mark.parametrize(("text", "wanted"), [
    ("abc", ["abc"]),
    (ESC, [ESC]),
    (f"{ESC}q", [ESC, "q"]),
    (f"{ESC}\r", [ESC, "\r"]),
    (f"{ESC}/USB-1\r", [ESC, "/", "USB-1\r"]),
    (f"{ESC}{ESC}d", [ESC, ESC, "d"]),
    (f"{ESC}{ESC}[A", [ESC, f"{ESC}[A"]),
    (f"a{ESC}[Bb", ["a", f"{ESC}[B", "b"]),
    (f"{ESC}[[A{ESC}OP", [f"{ESC}[[A", f"{ESC}OP"]),
    (f"{ESC}[24~{ESC}[1;5C", [f"{ESC}[24~", f"{ESC}[1;5C"]),
    (f"{ESC}[", [ESC, "["]),
    (f"{ESC}[{ESC}", [ESC, "[", ESC]),
    (f"{ESC}O1", [ESC, "O", "1"]),
    (f"{ESC}[1\r", [ESC, "[1", "\r"]),
    (f"{ESC}\u00e9", [ESC, "\u00e9"]),
])
def test_pieces(text: str, wanted: list[str]) -> None:
    assert pieces(text) == wanted
    assert "".join(pieces(*text)) == text


def test_a_sequence_in_two_halves_is_one_key_within_the_patience() -> None:
    stream = KeyStream(0.25)
    assert stream.feed(ESC, 1.0) == []
    assert stream.wait_seconds(1.0) == 0.25
    assert stream.expire(1.2) == []
    assert stream.feed("[", 1.2) == []
    assert stream.expire(1.4) == []
    assert stream.feed("B", 1.4) == [f"{ESC}[B"]
    assert stream.wait_seconds(1.4) is None


def test_escape_alone_is_the_key_when_the_patience_is_over() -> None:
    stream = KeyStream(0.25)
    assert stream.feed(ESC, 1.0) == []
    assert stream.expire(1.25) == [ESC]
    assert stream.expire(9.0) == []


@given(st.lists(st.text(alphabet=f"{ESC}[O1;~ABqy\r\u00e9\x7f", max_size=40), max_size=6))
def test_nothing_is_lost_or_moved_however_it_is_cut(texts: list[str]) -> None:
    assert "".join(pieces(*texts)) == "".join(texts)
    assert "".join(pieces("".join(texts))) == "".join(texts)
