"""A bounded run over all readers, and that the run would notice what it looks for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rescue_tui.checkpoints import registry, safetensors
from rescue_tui.checkpoints.model import Options, Reading
from rescue_tui.checkpoints.source import Source
from tests.fuzz import driver
from tests.fuzz.driver import Fuzzer, describe, keep, merged
from tests.fuzz.seeds import seeds

EXECUTIONS = 4000


def test_no_reader_crashes_hangs_or_grows(tmp_path: Path) -> None:
    outcome = Fuzzer(1, tmp_path / "sprung").run(EXECUTIONS)
    assert [(failure.seed, failure.kind, failure.told) for failure in outcome.failures] == []
    assert outcome.executions == EXECUTIONS
    assert outcome.slowest_seconds < driver.SECONDS
    assert outcome.largest_bytes < driver.MEMORY_BYTES
    assert not outcome.trap_sprung
    assert {form.name for form in registry.FORMATS} <= outcome.formats.keys(), describe(outcome.formats)


def test_every_verdict_is_met(tmp_path: Path) -> None:
    outcome = Fuzzer(2, tmp_path / "sprung").run(len(seeds(tmp_path)) + 200)
    assert {"verified", "intact", "incomplete", "corrupt", "uncommitted", "foreign", "empty"} <= outcome.verdicts.keys()


def _mistaken(source: Source, options: Options) -> Reading | None:
    raise ZeroDivisionError


def _spinning(source: Source, options: Options) -> Reading | None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        pass
    return None


def _growing(source: Source, options: Options) -> Reading | None:
    assert len(bytearray(b"\x01") * (100 << 20)) == 100 << 20
    return Reading(safetensors.FORMAT)


@pytest.mark.parametrize(("kind", "reader"), [
    ("mistake", _mistaken), ("KeyError", None), ("hang", _spinning), ("memory", _growing)])
def test_what_goes_wrong_is_a_failure_that_can_be_kept(
        kind: str, reader: Callable[[Source, Options], Reading | None] | None, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "SECONDS", 0.2)
    if reader is None:
        def scan(*_: object) -> None:
            raise KeyError("x")

        monkeypatch.setattr(driver, "scan", scan)
    else:
        forms = [form._replace(read=reader) if form.name == "safetensors" else form for form in registry.FORMATS]
        monkeypatch.setattr(registry, "FORMATS", tuple(forms))
    outcome = merged([Fuzzer(1, tmp_path / "sprung", "built/safetensors").run(1)])
    (failure,) = outcome.failures
    assert failure.kind == kind
    place = keep(failure, tmp_path / "kept")
    assert (place / "model.safetensors").read_bytes() == failure.files["model.safetensors"]


def test_the_same_number_gives_the_same_inputs(tmp_path: Path) -> None:
    first, second = (Fuzzer(5, tmp_path / "sprung").run(600) for _ in range(2))
    assert (first.verdicts, first.formats) == (second.verdicts, second.formats)
    assert first.verdicts != Fuzzer(6, tmp_path / "sprung").run(600).verdicts


def test_a_trap_that_springs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trap = tmp_path / "sprung"

    def run(source: Source, options: Options) -> None:
        trap.touch()

    monkeypatch.setattr(registry, "FORMATS", tuple(form._replace(read=run) for form in registry.FORMATS))
    assert Fuzzer(1, trap, "trap/call").run(2).trap_sprung
