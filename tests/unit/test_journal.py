"""The journal: the chain, several writers, a power cut, and what verification sees."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from rescue_tui.core.errors import DeviceError, SetupError
from rescue_tui.core.finding import Severity
from rescue_tui.system.journal import GENESIS, TORN, Journal


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """A journal with three entries."""
    made = Journal(tmp_path / "sub" / "journal.jsonl")
    for number in range(3):
        made.append("step", number=number, text="é [/foo]")
    return made


def test_entries_are_chained(journal: Journal) -> None:
    first, second, third = journal.tail(10)
    assert (first.seq, first.prev, first.detail) == (1, GENESIS, {"number": 0, "text": "é [/foo]"})
    assert (second.prev, third.prev) == (first.hash, second.hash)
    assert journal.verify() == ()
    assert journal.head() == third.hash
    assert journal.tail(1) == (third,)
    assert journal.tail(0) == ()


def test_control_characters_are_escaped(journal: Journal) -> None:
    assert journal.append("x", text="a\x1b[2Jb\nc").detail == {"text": "a\\x1b[2Jb\\x0ac"}


def _lines(journal: Journal) -> list[bytes]:
    return journal.path.read_bytes().splitlines(keepends=True)


def test_a_changed_line_is_found(journal: Journal) -> None:
    lines = _lines(journal)
    plain = json.loads(lines[1])
    plain["detail"]["number"] = 7
    journal.path.write_bytes(lines[0] + json.dumps(plain).encode() + b"\n" + lines[2])
    assert [finding.code for finding in journal.verify()] == ["journal-chain"]
    assert "Line 2" in journal.verify()[0].summary


@pytest.mark.parametrize("keep", [(0, 2), (1, 2), (0, 2, 1), (0, 1, 1, 2)])
def test_a_removed_moved_or_repeated_line_is_found(journal: Journal, keep: tuple[int, ...]) -> None:
    lines = _lines(journal)
    journal.path.write_bytes(b"".join(lines[at] for at in keep))
    findings = journal.verify()
    assert findings
    assert all(finding.severity is Severity.ERROR for finding in findings)


def test_an_inserted_line_of_something_else_is_found(journal: Journal) -> None:
    lines = _lines(journal)
    journal.path.write_bytes(lines[0] + b"hello\n" + lines[1] + lines[2])
    assert [finding.severity for finding in journal.verify()] == [Severity.ERROR]


@pytest.mark.parametrize("cut", [1, 5, 40, 100])
def test_a_torn_line_is_closed_and_told_about(journal: Journal, cut: int) -> None:
    whole = journal.path.read_bytes()
    torn = whole[:-cut] if cut > 1 else whole[:-2]
    journal.path.write_bytes(torn)
    assert [finding.severity for finding in journal.verify()] == [Severity.WARNING]
    journal.append("after")
    assert [entry.event for entry in journal.tail(9)] == ["step", "step", TORN, "after"]
    assert journal.path.read_bytes().startswith(torn + b"\n")
    assert [(finding.code, finding.severity) for finding in journal.verify()] == [("journal-torn", Severity.INFO)]


def test_a_line_that_lacks_only_its_end_still_counts(journal: Journal) -> None:
    journal.path.write_bytes(journal.path.read_bytes()[:-1])
    journal.append("after")
    assert [entry.event for entry in journal.tail(9)] == ["step", "step", "step", "after"]
    assert journal.verify() == ()


def test_zeros_after_a_power_cut_are_kept(journal: Journal) -> None:
    with journal.path.open("ab") as file:
        file.write(b"\0" * 4096)
    journal.append("after")
    assert [entry.event for entry in journal.tail(2)] == [TORN, "after"]
    assert not [finding for finding in journal.verify() if finding.severity is Severity.ERROR]


def test_a_very_long_torn_tail_does_not_hide_the_last_entry(journal: Journal) -> None:
    with journal.path.open("ab") as file:
        file.write(b"x" * 300_000)
    assert journal.append("after").seq == 5


def _append_many(path: str, name: str) -> None:
    for number in range(40):
        Journal(Path(path)).append(name, number=number)


def test_several_processes_append_to_one_chain(journal: Journal) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append_many, args=(str(journal.path), name)) for name in ("a", "b")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert journal.verify() == ()
    assert len(journal.tail(1000)) == 83


def test_missing_and_unusable(tmp_path: Path) -> None:
    missing = Journal(tmp_path / "none.jsonl")
    assert [finding.code for finding in missing.verify()] == ["journal-missing"]
    assert missing.tail(5) == ()
    assert missing.head() == GENESIS
    with pytest.raises((SetupError, DeviceError)):
        Journal(tmp_path).append("x")
