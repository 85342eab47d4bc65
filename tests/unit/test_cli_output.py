"""Streams: what goes where, and what never goes anywhere."""

from __future__ import annotations

import io
import json

import pytest

from rescue_tui.cli_output import Output
from rescue_tui.core.errors import PolicyRefusal
from rescue_tui.core.record import document
from tests.support.cli_services import HOSTILE


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        """A terminal."""
        return True


def _pair(*, as_json: bool, terminal: bool = False) -> tuple[Output, io.StringIO, io.StringIO]:
    out, err = _Terminal() if terminal else io.StringIO(), io.StringIO()
    return Output(out, err, as_json=as_json), out, err


def test_json_mode_prints_only_the_document() -> None:
    output, out, err = _pair(as_json=True)
    output.line("text")
    output.table(("A",), [("b",)])
    output.say("message")
    output.document(document("devices", devices=[]))
    assert json.loads(out.getvalue()) == {"schema": "stasis.devices/1", "devices": []}
    assert out.getvalue().count("\n") == 1
    assert err.getvalue() == "stasis: message\n"


def test_text_mode_prints_no_document() -> None:
    output, out, _err = _pair(as_json=False)
    output.document(document("devices", devices=[]))
    assert out.getvalue() == ""


@pytest.mark.parametrize("name", ["FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"])
def test_a_pipe_gets_no_colour_no_wrapping_no_trailing_blanks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "40")
    output, out, _err = _pair(as_json=False)
    long = "x" * 300
    output.table(("A", "SIZE", "B"), [(long, "1", "y"), ("z", "22", "")], right=("SIZE",))
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[1].split() == [long, "1", "y"]
    assert all(line == line.rstrip() for line in lines)
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize(("terminal", "no_colour", "red"), [(True, "", True), (True, "1", False), (False, "", False)])
def test_what_alarms_is_red_on_terminals_only(
    terminal: bool, no_colour: str, red: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", no_colour)
    output, out, _err = _pair(as_json=False, terminal=terminal)
    output.marked([("fine", False), (f"ABSENT {HOSTILE}", True)])
    first, second = out.getvalue().splitlines()
    assert first == "fine"
    assert ("\x1b[1;31m" in second) == red
    assert "\\x1b[2J[/bold]\\xff" in second


def test_a_terminal_of_eighty_columns_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "vt220")
    output, out, _err = _pair(as_json=False, terminal=True)
    output.table(("A", "B", "C"), [("a" * 30, "b" * 60, "c" * 30)])
    text = out.getvalue()
    assert (text.count("a"), text.count("b"), text.count("c")) == (30, 60, 30)


@pytest.mark.parametrize("terminal", [True, False])
def test_text_of_a_device_is_escaped_everywhere(terminal: bool) -> None:
    output, out, err = _pair(as_json=False, terminal=terminal)
    output.line(HOSTILE)
    output.say(HOSTILE)
    output.table(("A",), [(HOSTILE,)])
    output.error("devices", PolicyRefusal(HOSTILE, HOSTILE, f"one\n{HOSTILE}"))
    for text in (out.getvalue(), err.getvalue()):
        assert "\x1b[2J" not in text
        assert "\udcff" not in text
        assert "[/bold]" in text


def test_an_error_is_a_sentence_a_hint_and_evidence() -> None:
    output, out, err = _pair(as_json=False)
    output.error("devices", PolicyRefusal("It is a source.", "Take another.", "$ cmd\nfailed"))
    assert out.getvalue() == ""
    assert err.getvalue() == "stasis: It is a source. Take another.\n  $ cmd\n  failed\n"


def test_an_error_in_json_mode_is_the_document() -> None:
    output, out, err = _pair(as_json=True)
    output.error("image", PolicyRefusal("It is a source.", "Take another."))
    assert json.loads(out.getvalue())["error"]["exit"] == 3
    assert err.getvalue() == ""
