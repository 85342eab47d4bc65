"""The grammar of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from rescue_tui.cli_args import parse, verb_of, wants_json
from rescue_tui.core.errors import UsageError


@pytest.mark.parametrize("argv", [
    ["--json", "devices"], ["devices", "--json"], ["--json", "jobs", "list"], ["jobs", "--json", "list"],
    ["jobs", "list", "--json"], ["image", "--json", "x", "--to", "d"],
])
def test_json_may_stand_before_or_after_the_verb(argv: list[str]) -> None:
    assert parse(argv).json is True
    assert wants_json(argv)


@pytest.mark.parametrize("argv", [["devices"], ["jobs", "list"], []])
def test_text_is_the_default(argv: list[str]) -> None:
    assert parse(argv).json is False
    assert not wants_json(argv)


@pytest.mark.parametrize("argv", [
    ["probe", "x"], ["checkpoints", "scan"], ["checkpoints"], ["objects", "verify"], ["nonsense"], ["__job", "x", "y"],
    ["image"], ["image", "x"], ["image", "--to", "d"], ["verify"], ["collect"], ["mount", "x"], ["unmount"],
    ["jobs"], ["jobs", "start"], ["jobs", "pause"], ["destination"], ["destination", "grant", "x"],
    ["destination", "format", "x"], ["destination", "format", "x", "--confirm", "s", "--filesystem", "vfat"],
    ["--json"], ["devices", "--jso"], ["devices", "a", "b"], ["image", "x", "--to"],
])
def test_what_makes_no_sense_is_a_usage_error(argv: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse(argv)
    assert caught.value.summary.endswith(".")
    assert "--help" in caught.value.hint


@pytest.mark.parametrize("number", ["-1", "1.5", "1_0", "0x2", "", " 1", "1e3", "1001", "9" * 30, "\u0661", "nan"])
def test_nonsense_numbers_are_refused(number: str) -> None:
    with pytest.raises(UsageError, match="retries"):
        parse(["image", "x", "--to", "d", f"--retries={number}"])


@pytest.mark.parametrize("number", ["0", "-1", "65537"])
def test_partition_numbers_start_at_one(number: str) -> None:
    with pytest.raises(UsageError, match="part"):
        parse(["mount", "x", "--at", "d", f"--part={number}"])


def test_image_has_every_option() -> None:
    found = parse(["image", "a", "b", "--to", "d", "--resume", "--retries", "3", "--dry-run", "--accept-partial",
                   "--detach"])
    assert found.sources == ["a", "b"]
    assert found.to == Path("d")
    assert found.retries == 3
    assert all((found.resume, found.dry_run, found.accept_partial, found.detach))


def test_nothing_is_retried_by_default() -> None:
    assert parse(["image", "a", "--to", "d"]).retries == 0


@pytest.mark.parametrize(("argv", "verb"), [
    (["devices"], "devices"), (["--json", "image", "--nonsense"], "image"), (["nonsense"], "error"), ([], "error"),
    (["--json"], "error"),
])
def test_the_verb_is_known_even_when_the_rest_is_wrong(argv: list[str], verb: str) -> None:
    assert verb_of(argv) == verb


def test_json_after_two_dashes_is_a_name() -> None:
    assert not wants_json(["verify", "--", "--json"])
    assert parse(["verify", "--", "--json"]).case == Path("--json")


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["image", "--help"], ["destination", "grant", "--help"]])
def test_help_ends_well_and_hides_what_is_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(argv)
    assert not caught.value.code
    assert "stasis" in capsys.readouterr().out


def test_help_fits_eighty_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        parse(["--help"])
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "__job" not in text
