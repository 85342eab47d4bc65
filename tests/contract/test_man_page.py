"""The man page and the grammar of the command line say the same."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import pytest

from rescue_tui import cli_args
from rescue_tui.core.errors import ExitStatus
from tests.support.source_rules import ROOT

PAGE = (ROOT / "docs/stasis.8.md").read_text(encoding="utf-8")
SYNOPSIS = PAGE.split("## SYNOPSIS")[1].split("## ")[0]


def _commands(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every call that does something: ``devices``, ``destination grant`` ..."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield " ".join(words), parser
    for action in below:
        for name, child in action.choices.items():
            yield from _commands(child, (*words, name))


COMMANDS = dict(_commands(cli_args._parser(), ()))


def _options(parser: argparse.ArgumentParser) -> set[str]:
    return {name for action in parser._actions if action.help != argparse.SUPPRESS
            for name in action.option_strings if name not in {"-h", "--help", "--json"}}


def _synopsis_of(command: str) -> str:
    words = command.split(" ")
    for line in SYNOPSIS.splitlines():
        shown = line.split(" ")
        if shown[:1] == ["stasis"] and len(shown) > len(words) and all(
                word in shown[index + 1].split("|") for index, word in enumerate(words)):
            return line
    return ""


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_is_in_the_synopsis_with_all_its_options(command: str) -> None:
    line = _synopsis_of(command)
    assert line, f"stasis {command} is not in the synopsis"
    assert set(re.findall(r"--[a-z-]+", line)) == _options(COMMANDS[command])


def test_every_line_of_the_synopsis_is_a_command() -> None:
    lines = [line for line in SYNOPSIS.splitlines() if line.startswith("stasis ")]
    covered = {_synopsis_of(command) for command in COMMANDS}
    assert len(lines) >= len(cli_args.VERBS)
    assert set(lines) == covered


def test_every_verb_is_described_and_every_status_listed() -> None:
    assert {command.split(" ")[0] for command in COMMANDS} == set(cli_args.VERBS)
    for verb in cli_args.VERBS:
        assert re.search(rf"^\*\*{verb}( list)?\*\*|\*\*{verb}\*\*", PAGE, re.MULTILINE), verb
    for status in ExitStatus:
        assert f"| {int(status)} |" in PAGE
