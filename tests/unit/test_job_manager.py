"""The job manager without ddrescue: ids, dead workers, wishes, jobs found in case folders, how a worker is started."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rescue_tui.core.errors import DeviceError, FormatError, PolicyRefusal, SetupError, UsageError
from rescue_tui.core.job import JobRecord, JobState
from rescue_tui.jobs.casefolder import to_json
from rescue_tui.jobs.jobfiles import JobFiles, Wish
from rescue_tui.jobs.manager import JobManager
from rescue_tui.system.journal import Journal
from rescue_tui.system.runner import Runner
from rescue_tui.system.tools.systemd import in_charge, session_command, unit_command
from rescue_tui.system.workspace import Workspace
from tests.support.cases import finished_case
from tests.support.imaging import a_disk, a_plan


@pytest.fixture
def manager(tmp_path: Path) -> JobManager:
    """A manager over an empty workspace."""
    workspace = Workspace(tmp_path / "state")
    return JobManager(Runner(), Journal(workspace.journal_path), workspace)


def job(tmp_path: Path, job_id: str, state: JobState, case: str = "/nowhere") -> JobFiles:
    """A job as its worker left it."""
    files = JobFiles(Workspace(tmp_path / "state").ensure("jobs", job_id))
    files.write_plan(a_plan(case))
    files.write_record(JobRecord(job_id, "image", "t", state, f"2026-01-01T00:00:0{len(job_id)}Z", "", case=case))
    return files


def test_unique_prefix(manager: JobManager, tmp_path: Path) -> None:
    job(tmp_path, "0102-aa", JobState.DONE)
    job(tmp_path, "0102-ab", JobState.DONE)
    job(tmp_path, "0102", JobState.PAUSED)
    assert manager.record("0102").state is JobState.PAUSED
    assert manager.record("0102-aa").id == "0102-aa"
    with pytest.raises(UsageError, match="beginning of 2 jobs"):
        manager.record("0102-a")
    for unknown in ("9", "", "0102-aa/../0102-ab"):
        with pytest.raises(UsageError, match="no job"):
            manager.record(unknown)


def test_newest_first(manager: JobManager, tmp_path: Path) -> None:
    for job_id in ("a", "ccc", "bb"):
        job(tmp_path, job_id, JobState.DONE)
    assert [record.id for record in manager.records()] == ["ccc", "bb", "a"]


async def test_dead_worker_is_noticed_once(manager: JobManager, tmp_path: Path) -> None:
    files = job(tmp_path, "a", JobState.RUNNING)
    with files.worker_lock():
        assert manager.record("a").state is JobState.RUNNING
        assert (await manager.pause("a")).state is JobState.PAUSING
        assert (await manager.pause("a")).state is JobState.PAUSING
        assert (await manager.cancel("a")).state is JobState.CANCELLING
        assert files.wish() is Wish.CANCEL
    record = manager.record("a")
    assert (record.state, record.exit_status, record.hint) == (JobState.INTERRUPTED, 130, "`stasis jobs resume a`.")
    manager.records()
    events = [entry.event for entry in Journal(Workspace(tmp_path / "state").journal_path).tail(9)]
    assert events == ["job.pause", "job.cancel", "job.interrupted"]
    assert (await manager.cancel("a")).state is JobState.CANCELLED


def test_starting_is_not_dead(manager: JobManager, tmp_path: Path) -> None:
    job(tmp_path, "a", JobState.PENDING)
    assert manager.record("a").state is JobState.PENDING


async def test_what_is_over_stays_over(manager: JobManager, tmp_path: Path) -> None:
    job(tmp_path, "a", JobState.DONE)
    for act in (manager.pause, manager.cancel):
        with pytest.raises(UsageError, match="A done job"):
            await act("a")


def test_a_damaged_job_file_hides_no_other_job(manager: JobManager, tmp_path: Path) -> None:
    files = job(tmp_path, "a", JobState.DONE)
    job(tmp_path, "bb", JobState.DONE)
    (files.path / "job.json").write_bytes(b"{")
    assert [record.id for record in manager.records()] == ["bb"]
    with pytest.raises(FormatError, match="damaged"):
        manager.record("a")


async def test_resume_needs_source_and_destination(manager: JobManager, tmp_path: Path) -> None:
    from datetime import UTC, datetime

    from rescue_tui.core.snapshot import Snapshot

    job(tmp_path, "a", JobState.INTERRUPTED, str(tmp_path / "case"))
    empty = Snapshot(datetime.now(UTC), ())
    with pytest.raises(SetupError, match="isn't there"):
        await manager.resume("a", empty)
    (tmp_path / "case" / a_disk().id.slug()).mkdir(parents=True)
    with pytest.raises(DeviceError, match="No disk with the identity"):
        await manager.resume("a", empty)
    with pytest.raises(DeviceError, match="2 disks claim"):
        await manager.resume("a", Snapshot(datetime.now(UTC), (a_disk(), replace(a_disk(), node="/dev/x"))))


async def test_unfinished_jobs_are_found_in_cases(manager: JobManager, tmp_path: Path) -> None:
    folder = await finished_case(tmp_path / "dst")
    assert manager.discover(tmp_path / "dst") == ()
    case = str(folder.path.parent)
    folder.write("plan.json", to_json(a_plan("/somewhere/else/stasis-case-20260101T000000Z")))
    folder.write("job.json", to_json(replace(folder.record(), state=JobState.RUNNING)))
    found = manager.discover(tmp_path / "dst")
    assert [(record.id, record.state, record.case) for record in found] == [("job1", JobState.INTERRUPTED, case)]
    plan = JobFiles(Workspace(tmp_path / "state").jobs_dir / "job1").plan()
    assert plan.mapfile == str(folder.mapfile)
    assert not any("/somewhere/else" in word for word in plan.command)
    shutil.rmtree(folder.path)
    assert manager.discover(tmp_path / "dst") == ()
    assert manager.discover(tmp_path / "missing") == ()


async def test_a_paused_job_is_found_as_paused(manager: JobManager, tmp_path: Path) -> None:
    folder = await finished_case(tmp_path / "dst")
    folder.write("plan.json", to_json(a_plan()))
    folder.write("job.json", to_json(replace(folder.record(), state=JobState.PAUSED)))
    assert [(record.state, record.error) for record in manager.discover(tmp_path / "dst")] == [(JobState.PAUSED, "")]


async def test_one_job_a_place(manager: JobManager, tmp_path: Path) -> None:
    files = job(tmp_path, "a", JobState.RUNNING, str(tmp_path))
    with files.worker_lock(), pytest.raises(PolicyRefusal, match="already"):
        await manager.start_image(a_plan(str(tmp_path)))
    with pytest.raises(UsageError, match="which disk"):
        await manager.start_image(replace(a_plan(str(tmp_path)), disk=None))


def test_worker_commands(tmp_path: Path) -> None:
    unit = unit_command("stasis-job-1", ("env", "x"), readable_devices=("/dev/nvme0n1", "/dev/nvme0"), description="d",
                        output=Path("/run/x.log"))
    assert unit.argv[0] == "systemd-run"
    assert {"--property=DevicePolicy=closed", "--property=KillMode=mixed",
            "--property=StandardError=append:/run/x.log"} <= set(unit.argv)
    assert "--property=DeviceAllow=/dev/nvme0n1 r" in unit.argv
    assert not [word for word in unit.argv if word.startswith("--property=DeviceAllow=") and not word.endswith(" r")]
    assert unit.argv[-3:] == ("--", "env", "x")
    assert session_command(("env", "x")).argv == ("setsid", "--fork", "env", "x")
    assert in_charge(tmp_path)
    assert not in_charge(tmp_path / "none")
