"""JSON back to values."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescue_tui.core.device import Disk
from rescue_tui.core.errors import FormatError
from rescue_tui.core.finding import Finding, Severity
from rescue_tui.core.imaging import ImagingPlan
from rescue_tui.core.job import JobRecord, JobState, Progress
from rescue_tui.core.record import to_plain
from rescue_tui.core.restore import restore
from tests.support.imaging import a_disk, a_plan


def there_and_back(kind: type, value: object) -> object:
    """Through JSON, as the next process sees it."""
    return restore(kind, json.loads(json.dumps(to_plain(value))))


def test_disk_and_plan_survive() -> None:
    assert there_and_back(Disk, a_disk()) == a_disk()
    plan = replace(a_plan(), warnings=(Finding(Severity.WARNING, "x", "y"),))
    assert there_and_back(ImagingPlan, plan) == plan


@given(st.builds(Progress, done_bytes=st.integers(0), current_rate=st.one_of(st.none(), st.floats(0, 1e12))),
       st.sampled_from(JobState))
def test_record_survives(progress: Progress, state: JobState) -> None:
    record = JobRecord("a", "image", "t", state, "now", "now", commands=("x", "y"), progress=progress,
                       result={"bad": [1, {"z": None}]})
    assert there_and_back(JobRecord, record) == record


@pytest.mark.parametrize("plain", [
    None, [], {}, {"id": 1},
    {"id": "a", "kind": "image", "title": "t", "state": "flying", "created_at": "", "updated_at": ""},
    {"id": "a", "kind": "image", "title": "t", "state": "done", "created_at": "", "updated_at": "", "pid": "7"},
    {"id": "a", "kind": "image", "title": "t", "state": "done", "created_at": "", "updated_at": "", "commands": "x"},
])
def test_what_does_not_fit_is_refused(plain: object) -> None:
    with pytest.raises(FormatError, match="JobRecord"):
        restore(JobRecord, plain)


def test_unknown_fields_are_ignored() -> None:
    plain = {"severity": "info", "code": "a", "summary": "b", "new": 1}
    assert restore(Finding, plain) == Finding(Severity.INFO, "a", "b")
