"""Killed workers, power cuts, full and pulled disks, wrong disks, and mistakes of ours, with the real ddrescue."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from rescue_tui.core.device import Disk, Health
from rescue_tui.core.errors import PolicyRefusal, SetupError, SpaceError
from rescue_tui.core.job import JobRecord, JobState
from rescue_tui.core.mapfile import Area, Mapfile, Status
from rescue_tui.jobs import manager
from rescue_tui.jobs.casefolder import CaseFolder, to_json
from rescue_tui.jobs.imaging import ImagingOptions
from rescue_tui.jobs.jobfiles import JobFiles
from rescue_tui.jobs.verification import verify_case
from rescue_tui.jobs.worker import ImagingWorker
from rescue_tui.system.guard import WriteGuard
from rescue_tui.system.journal import Journal
from rescue_tui.system.runner import Runner
from rescue_tui.system.workspace import Workspace
from tests.support.imaging_bench import MIB, SIZE, Bench, ddrescues, fill, folder_of, same
from tests.support.jobs import copied, rested, until
from tests.support.loops import loop_disk, run, snapshot


async def test_killed_worker_leaves_no_ddrescue_and_can_be_resumed(bench: Bench) -> None:
    started = await bench.start("--max-read-rate=20Mi")
    running = await copied(bench.manager, started.id, 8 * MIB)
    folder = folder_of(running)
    assert running.pid is not None
    assert ddrescues(folder.partial_image)
    os.kill(running.pid, signal.SIGKILL)
    await until(lambda: ddrescues(folder.partial_image), lambda found: not found, 20, "the end of ddrescue")
    record = bench.manager.record(started.id[:8])
    assert (record.state, record.exit_status) == (JobState.INTERRUPTED, 130)
    assert folder.read_map()[0].rescued_bytes >= 4 * MIB
    await bench.manager.resume(started.id, snapshot(bench.source))
    assert (await rested(bench.manager, started.id)).state is JobState.DONE
    assert same(bench.source.file, folder.image)
    assert (await verify_case(Runner(), Path(record.case))).good


@pytest.mark.parametrize("left", [b"", None], ids=["empty", "missing"])
async def test_cut_off_before_the_first_mapfile_reached_the_disk(bench: Bench, left: bytes | None) -> None:
    started = await bench.start("--max-read-rate=20Mi")
    running = await copied(bench.manager, started.id, 4 * MIB)
    folder = folder_of(running)
    assert running.pid is not None
    os.kill(running.pid, signal.SIGKILL)
    for pid in ddrescues(folder.partial_image):
        os.kill(pid, signal.SIGKILL)
    await until(lambda: ddrescues(folder.partial_image), lambda found: not found, 20, "the end of ddrescue")
    for file in (folder.mapfile, folder.file("image.map.bak")):
        file.unlink(missing_ok=True)
    if left is not None:
        folder.mapfile.write_bytes(left)
    # What lies in the image can't be trusted without a map, not even where the source is zero.
    folder.partial_image.write_bytes(b"stale" * (SIZE // 5))
    await bench.manager.resume(started.id, snapshot(bench.source))
    record = await rested(bench.manager, started.id)
    assert (record.state, record.error) == (JobState.DONE, "")
    assert same(bench.source.file, folder.image)
    assert "image.begun-anew" in [entry.event for entry in CaseFolder(Path(record.case)).journal.tail(99)]


async def test_after_a_power_cut_the_job_is_found_in_the_case(bench: Bench, tmp_path: Path) -> None:
    started = await bench.start("--max-read-rate=20Mi")
    running = await copied(bench.manager, started.id, 8 * MIB)
    folder = folder_of(running)
    assert running.pid is not None
    os.kill(running.pid, signal.SIGKILL)
    for pid in ddrescues(folder.partial_image):
        os.kill(pid, signal.SIGKILL)
    await until(lambda: ddrescues(folder.partial_image), lambda found: not found, 20, "the end of ddrescue")
    # The power cut caught ddrescue in the middle of its mapfile; the synced copy is whole.
    whole = folder.mapfile.read_bytes()
    folder.file("image.map.bak").write_bytes(whole)
    folder.mapfile.write_bytes(whole[:len(whole) // 2])
    later = replace(bench, workspace=Workspace(tmp_path / "next-boot"))
    found = later.manager.discover(bench.target)
    assert [(record.id, record.state) for record in found] == [(started.id, JobState.INTERRUPTED)]
    assert later.manager.discover(bench.target) == found
    await later.manager.resume(started.id, snapshot(bench.source))
    record = await rested(later.manager, started.id)
    assert record.state is JobState.DONE
    assert same(bench.source.file, folder.image)
    assert "image.mapfile-from-backup" in [entry.event for entry in CaseFolder(Path(record.case)).journal.tail(99)]
    assert later.manager.discover(bench.target) == ()


async def test_full_destination_stops_in_good_order(bench: Bench) -> None:
    run("fallocate", "-l", "480M", str(bench.target / "ballast"))
    with pytest.raises(SpaceError, match=r"needs .* the destination has"):
        bench.plan()
    started = await bench.start(options=ImagingOptions(accept_partial=True))
    record = await rested(bench.manager, started.id)
    assert (record.state, record.exit_status) == (JobState.DAMAGED, 1)
    assert record.result is not None
    assert record.result["verdict"] == "partial"
    folder = folder_of(record)
    assert folder.partial_image.exists()
    assert not folder.image.exists()
    assert (await verify_case(Runner(), Path(record.case))).good
    (bench.target / "ballast").unlink()
    again = await bench.start(options=ImagingOptions(resume=True))
    record = await rested(bench.manager, again.id)
    assert record.state is JobState.DONE
    assert same(bench.source.file, folder.image)
    assert (await verify_case(Runner(), Path(record.case))).good


async def test_destination_that_others_fill_interrupts_and_resumes(bench: Bench) -> None:
    started = await bench.start("--max-read-rate=20Mi")
    await copied(bench.manager, started.id, 8 * MIB)
    info = os.statvfs(bench.target)
    free = info.f_bavail * info.f_frsize
    run("fallocate", "-l", str(free - 20 * MIB), str(bench.target / "ballast"))
    record = await rested(bench.manager, started.id)
    assert (record.state, record.exit_status) == (JobState.INTERRUPTED, 8)
    assert "full" in record.error
    assert folder_of(record).read_map()[0].rescued_bytes > 0
    (bench.target / "ballast").unlink()
    await bench.manager.resume(started.id, snapshot(bench.source))
    assert (await rested(bench.manager, started.id)).state is JobState.DONE
    assert same(bench.source.file, folder_of(record).image)


async def test_another_disk_is_refused(bench: Bench, tmp_path: Path) -> None:
    started = await bench.start("--max-read-rate=20Mi")
    await copied(bench.manager, started.id, 8 * MIB)
    await bench.manager.pause(started.id)
    paused = await rested(bench.manager, started.id)
    fill(tmp_path / "other", SIZE, 2)
    with loop_disk(tmp_path / "other") as other:
        wrong = replace(bench, source=other)
        with pytest.raises(PolicyRefusal, match="belongs to"):
            wrong.plan(ImagingOptions(resume=True))
        with pytest.raises(PolicyRefusal, match="belongs to"):
            wrong.plan(ImagingOptions(resume=True, case_dir=Path(paused.case)))
        # The right name on a mapfile of the wrong disk: the binding inside decides.
        folder = folder_of(paused)
        folder.path.rename(folder.path.with_name(other.id.slug()))
        with pytest.raises(PolicyRefusal, match="not for this disk"):
            wrong.plan(ImagingOptions(resume=True))


@pytest.mark.parametrize("kernel_knows", [False, True])
async def test_pulled_source_leaves_no_false_bad_sector(bench: Bench, kernel_knows: bool) -> None:
    """The backing file is cut to nothing: from then on every read fails, as on a pulled disk whose node lingers.

    With ``kernel_knows`` the size in sysfs becomes zero too, as with an NVMe controller that is given up.
    """
    started = await bench.start("--max-read-rate=40Mi")
    await copied(bench.manager, started.id, 16 * MIB)
    content = bench.source.file.read_bytes()
    os.truncate(bench.source.file, 0)
    if kernel_knows:
        run("losetup", "--set-capacity", bench.source.node)
    record = await rested(bench.manager, started.id)
    assert (record.state, record.exit_status) == (JobState.INTERRUPTED, 5)
    assert "source" in record.error.lower()
    found = folder_of(record).read_map()[0]
    assert found.bytes_with(Status.BAD_SECTOR, Status.NON_TRIMMED, Status.NON_SCRAPED) == 0
    assert found.rescued_bytes >= 8 * MIB
    # Plugged in again, under another name.
    bench.source.file.write_bytes(content)
    with loop_disk(bench.source.file) as again:
        back = replace(bench, source=again)
        await back.manager.resume(started.id, snapshot(again))
        finished = await rested(back.manager, started.id)
        assert finished.state is JobState.DONE
        assert again.node in finished.commands[-1]
    assert folder_of(record).image.read_bytes() == content


async def test_pulled_destination_interrupts_and_resumes(bench: Bench) -> None:
    started = await bench.start("--max-read-rate=40Mi")
    await copied(bench.manager, started.id, 16 * MIB)
    # Shut down without flushing the log: what the kernel does when a disk vanishes below XFS.
    run("xfs_io", "-x", "-c", "shutdown", str(bench.target))
    record = await rested(bench.manager, started.id)
    assert (record.state, record.exit_status) == (JobState.INTERRUPTED, 5)
    assert "destination" in record.error.lower()
    node = run("findmnt", "--noheadings", "--output", "SOURCE", str(bench.target)).strip()
    run("umount", str(bench.target))
    run("mount", node, str(bench.target))
    await bench.manager.resume(started.id, snapshot(bench.source))
    finished = await rested(bench.manager, started.id)
    assert finished.state is JobState.DONE
    assert same(bench.source.file, folder_of(finished).image)


async def test_a_ddrescue_that_asks_nobody_is_put_down(bench: Bench, tmp_path: Path) -> None:
    """Without room for its mapfile ddrescue asks on a terminal, heeds no signal, and leaves the mapfile cut off."""
    plan = bench.plan()
    whole = Mapfile((Area(0, MIB, Status.FINISHED), Area(MIB, SIZE - MIB, Status.NON_TRIED)), MIB, "?").to_text()
    stuck = tmp_path / "stuck"
    stuck.write_text(f"""#!/bin/bash
trap '' INT
dd if={bench.source.node} of='{plan.partial_image}' bs=1M count=1 status=none
printf '%s' '{whole}' >'{plan.mapfile}'
until grep -q {MIB} '{bench.workspace.jobs_dir}'/*/job.json; do :; done
printf '0x0 ? 1\\n0x0 0x' >'{plan.mapfile}'
echo "ddrescue: {plan.mapfile}: Error writing mapfile: No space left on device" >&2
echo "Fix the problem and press ENTER to retry," >&2
while :; do :; done
""")
    stuck.chmod(0o755)
    started = await bench.manager.start_image(replace(plan, command=(str(stuck),)))
    record = await rested(bench.manager, started.id)
    assert (record.state, record.exit_status) == (JobState.INTERRUPTED, 8)
    assert "full" in record.error
    assert folder_of(record).read_map()[0].rescued_bytes == MIB
    await bench.manager.resume(started.id, snapshot(bench.source))
    finished = await rested(bench.manager, started.id)
    assert (finished.state, finished.error) == (JobState.DONE, "")
    assert same(bench.source.file, folder_of(finished).image)


class BrokenHealth:
    """A mistake of ours, in the middle of a job."""

    async def health(self, disk: Disk) -> Health:
        """Fails as code with a mistake does."""
        raise ZeroDivisionError("secret \x1b[2J detail")

    async def raw_health(self, disk: Disk) -> Mapping[str, bytes]:
        """Nothing."""
        return {}


async def test_a_mistake_of_ours_ends_the_job_with_its_traceback_in_the_journal(bench: Bench) -> None:
    plan = bench.plan()
    files = JobFiles(bench.workspace.ensure("jobs", "x"))
    files.write_plan(plan)
    files.write_record(JobRecord("x", "image", "t", JobState.PENDING, "2026-01-01T00:00:00Z", "", case=plan.case_dir))
    journal = Journal(bench.workspace.journal_path)
    assert await ImagingWorker(Runner(), BrokenHealth(), WriteGuard(bench.workspace), files, journal).run() == 6
    record = bench.manager.record("x")
    assert (record.state, record.error) == (JobState.FAILED, "Stasis made a mistake: ZeroDivisionError.")
    last = journal.tail(1)[0]
    assert last.event == "job.failed"
    assert "secret \\x1b[2J detail" in str(last.detail["traceback"])
    assert CaseFolder(Path(plan.case_dir)).journal.tail(1)[0].event == "job.failed"


async def test_a_stale_plan_touches_nothing(bench: Bench) -> None:
    plan = replace(bench.plan(), generation=1)
    record = await rested(bench.manager, (await bench.manager.start_image(plan)).id)
    assert (record.state, record.exit_status) == (JobState.INTERRUPTED, 5)
    assert "not the disk of this plan any more" in record.error
    assert not Path(plan.case_dir).exists()


async def test_a_worker_that_cannot_start_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    monkeypatch.setattr(manager, "_START_DEADLINE_SECONDS", 1.0)
    with pytest.raises(SetupError, match="could not be started") as caught:
        await bench.manager.start_image(bench.plan())
    assert "/nonexistent/python" in caught.value.evidence
    assert [record.state for record in bench.manager.records()] == [JobState.FAILED]


async def test_shutdown_interrupts_in_good_order(bench: Bench) -> None:
    started = await bench.start("--max-read-rate=20Mi")
    running = await copied(bench.manager, started.id, 8 * MIB)
    assert running.pid is not None
    os.kill(running.pid, signal.SIGTERM)
    record = await rested(bench.manager, started.id)
    assert (record.state, record.exit_status) == (JobState.INTERRUPTED, 130)
    assert "shutting down" in record.error
    assert not ddrescues(folder_of(record).partial_image)


async def test_power_cut_after_the_copy_and_before_the_report(bench: Bench, tmp_path: Path) -> None:
    record = await rested(bench.manager, (await bench.start()).id)
    folder = folder_of(record)
    for name in ("MANIFEST.sha256", "report.json", "report.html"):
        (folder.path.parent / name).unlink()
    folder.file("result.json").unlink()
    folder.write("job.json", to_json(replace(record, state=JobState.RUNNING)))
    later = replace(bench, workspace=Workspace(tmp_path / "next-boot"))
    assert [found.state for found in later.manager.discover(bench.target)] == [JobState.INTERRUPTED]
    await later.manager.resume(record.id, snapshot(bench.source))
    finished = await rested(later.manager, record.id)
    assert (finished.state, finished.error) == (JobState.DONE, "")
    assert same(bench.source.file, folder.image)
    assert (await verify_case(Runner(), folder.path.parent)).findings == ()


async def test_destination_mounted_elsewhere(bench: Bench, tmp_path: Path) -> None:
    started = await bench.start("--max-read-rate=20Mi")
    await copied(bench.manager, started.id, 8 * MIB)
    await bench.manager.pause(started.id)
    await rested(bench.manager, started.id)
    node = run("findmnt", "--noheadings", "--output", "SOURCE", str(bench.target)).strip()
    run("umount", str(bench.target))
    with pytest.raises(SetupError, match="isn't there"):
        await bench.manager.resume(started.id, snapshot(bench.source))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run("mount", node, str(elsewhere))
    assert [record.state for record in bench.manager.discover(elsewhere)] == [JobState.PAUSED]
    await bench.manager.resume(started.id, snapshot(bench.source))
    finished = await rested(bench.manager, started.id)
    assert finished.state is JobState.DONE
    assert finished.case.startswith(str(elsewhere))
    assert same(bench.source.file, folder_of(finished).image)
    run("umount", str(elsewhere))


STARTER = """
import asyncio, pathlib, sys
from rescue_tui.core.imaging import ImagingPlan
from rescue_tui.core.restore import restore
from rescue_tui.jobs.casefolder import read_json
from rescue_tui.jobs.manager import JobManager
from rescue_tui.system.journal import Journal
from rescue_tui.system.runner import Runner
from rescue_tui.system.workspace import Workspace
async def main():
    workspace = Workspace(pathlib.Path(sys.argv[1]))
    manager = JobManager(Runner(), Journal(workspace.journal_path), workspace)
    record = await manager.start_image(restore(ImagingPlan, read_json(pathlib.Path(sys.argv[2]))))
    print(record.id, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_killed_starter_and_lost_terminal_end_no_job(bench: Bench, tmp_path: Path) -> None:
    plan = bench.plan()
    slow = replace(plan, command=(plan.command[0], "--max-read-rate=30Mi", *plan.command[1:]))
    (tmp_path / "plan.json").write_bytes(to_json(slow))
    starter = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STARTER, str(bench.workspace.root), str(tmp_path / "plan.json"),
        stdout=asyncio.subprocess.PIPE, start_new_session=True, cwd=Path(__file__).parents[3])
    assert starter.stdout is not None
    job_id = (await asyncio.wait_for(starter.stdout.readline(), 60)).decode().strip()
    os.killpg(starter.pid, signal.SIGHUP)
    await starter.wait()
    record = await rested(bench.manager, job_id)
    assert record.state is JobState.DONE
    assert same(bench.source.file, folder_of(record).image)
