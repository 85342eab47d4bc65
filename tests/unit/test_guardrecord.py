"""What a case keeps of the guard, and what it says of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rescue_tui.core.blockstat import WriteCounters
from rescue_tui.core.errors import FormatError
from rescue_tui.core.finding import Finding, Severity
from rescue_tui.core.guardrecord import END, START, GuardLook, GuardRecord, NamedCounters, guard_sentences
from rescue_tui.core.guardstate import LayerState, RefusedAttempt
from rescue_tui.core.record import to_plain
from rescue_tui.core.restore import restore
from tests.support.guard_looks import look


def test_a_record_comes_back_from_its_file() -> None:
    attempt = RefusedAttempt("2026-12-02T09:00:00.000Z", "/dev/nvme0n1", "bio", 1, 123, "dd")
    record = GuardRecord((look(START), replace(look(END), last_refused=(attempt,), findings=(
        Finding(Severity.ERROR, "unprotected", "Open."),))))
    assert restore(GuardRecord, json.loads(json.dumps(to_plain(record)))) == record


@pytest.mark.parametrize(("field", "value"), [("refused_on_source", {"bio": "many"}), ("refused", "1"), ("looks", {})])
def test_a_damaged_record_is_a_format_error(field: str, value: object) -> None:
    plain = json.loads(json.dumps(to_plain(GuardRecord((look(START),)))))
    (plain if field == "looks" else plain["looks"][0])[field] = value
    with pytest.raises(FormatError):
        restore(GuardRecord, plain)


def test_nothing_was_written() -> None:
    record = GuardRecord((look(START, reads=5), look(END, reads=900)))
    assert (record.armed, record.written) == (True, False)
    assert record.added_during() == (NamedCounters("nvme0n1", WriteCounters(895, 0, 0, 0, 0, 0, 0)),)
    assert guard_sentences(record) == (
        "The write guard was armed at the start and at the end.",
        "Attempts to write that were refused since the machine was started: 4, of these on this disk (bio 3): 3. "
        "Flushes kept back from this disk: 2.",
        "nvme0n1: while the job ran, the kernel sent 0 writes, 0 discards and 0 flushes to it.")


def test_a_write_before_the_job_is_not_one_of_the_job() -> None:
    assert not GuardRecord((look(START, writes=7), look(END, writes=7))).written
    assert GuardRecord((look(START, writes=7), look(END, writes=8))).written


def test_runs_are_added_and_nothing_is_counted_across_a_start_of_the_machine() -> None:
    runs = (look(START, writes=1), look(END, writes=2), replace(look(START, writes=9), boot_id="two"),
            replace(look(END, writes=10), boot_id="two"))
    assert GuardRecord(runs).added_during()[0].counters.write_ios == 2
    replugged = (look(START, writes=5), replace(look(END, writes=0), generation=99))
    assert GuardRecord(replugged).added_during() == ()


def test_what_was_missing_is_said() -> None:
    absent = replace(look(START), level="partial", layers=(LayerState("ioctl", "absent", ""),),
                     findings=(Finding(Severity.ERROR, "unprotected", "/dev/sda could be written"),))
    record = GuardRecord((absent, replace(look(END), level="unknown", refused=None, problem="It can't be read.")))
    assert not record.armed
    words = " ".join(guard_sentences(record))
    for part in ("not complete at the start", "ioctl absent; /dev/sda could be written", "at the end",
                 "It can't be read.", "were not counted"):
        assert part in words
    assert guard_sentences(GuardRecord(())) == ("The write guard was not looked at.",)
    assert not GuardRecord(()).armed


def test_looks_know_their_attachment() -> None:
    one: GuardLook = look(START)
    assert one.is_of_the_attachment_of(look(END))
    assert not one.is_of_the_attachment_of(replace(one, boot_id="two"))
