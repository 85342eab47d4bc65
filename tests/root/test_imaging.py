"""Imaging on loop devices with the real ddrescue: whole copies, bad sectors, pauses, kills, full and pulled disks."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from rescue_tui.core.errors import ExitStatus, PolicyRefusal, SpaceError, UsageError
from rescue_tui.core.imaging import DestinationSpace, ImagingPlan
from rescue_tui.core.job import JobRecord, JobState
from rescue_tui.core.mapfile import Area, Mapfile, Status
from rescue_tui.jobs.casefolder import CaseFolder, SourceFolder
from rescue_tui.jobs.imaging import ImagingOptions, make_plan
from rescue_tui.jobs.manager import JobManager
from rescue_tui.jobs.reporting import rebuild_report
from rescue_tui.jobs.verification import verify_case
from rescue_tui.system.journal import Journal
from rescue_tui.system.runner import Runner
from rescue_tui.system.workspace import Workspace
from tests.support.jobs import copied, rested, until
from tests.support.loops import LoopDisk, loop_disk, run, snapshot

MIB = 1 << 20
SIZE = 160 * MIB


def fill(path: Path, size_bytes: int, seed: int) -> None:
    """Half noise, half zeros, the last sector noise: holes in the image must not move anything."""
    source = random.Random(seed)
    with path.open("wb") as file:
        for position in range(0, size_bytes, 8 * MIB):
            file.seek(position)
            file.write(source.randbytes(min(4 * MIB, size_bytes - position)))
        file.truncate(size_bytes)
        file.seek(size_bytes - 512)
        file.write(source.randbytes(512))


def same(one: Path, other: Path) -> bool:
    """Byte for byte the same."""
    with one.open("rb") as left, other.open("rb") as right:
        while True:
            first, second = left.read(MIB), right.read(MIB)
            if first != second:
                return False
            if not first:
                return True


@dataclass
class Bench:
    """A source, a destination with XFS, a job manager."""

    source: LoopDisk
    target: Path
    workspace: Workspace

    @property
    def manager(self) -> JobManager:
        """A new one each time: a process that starts later sees the same jobs."""
        return JobManager(Runner(), Journal(self.workspace.journal_path), self.workspace)

    def space(self) -> DestinationSpace:
        """What the destination offers now."""
        info = os.statvfs(self.target)
        return DestinationSpace(str(self.target), "xfs", info.f_bavail * info.f_frsize, True, True, True)

    def plan(self, options: ImagingOptions | None = None) -> ImagingPlan:
        """The plan for the source as it stands."""
        return make_plan(snapshot(self.source), self.source.disk(), self.target, self.space(), {},
                         options or ImagingOptions())

    async def start(self, *extra: str, options: ImagingOptions | None = None) -> JobRecord:
        """Start a copy; ``extra`` are more options for ddrescue (a rate limit, say)."""
        plan = self.plan(options)
        return await self.manager.start_image(replace(plan, command=(plan.command[0], *extra, *plan.command[1:])))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    """A mounted XFS of 600 MiB."""
    with loop_disk(tmp_path / "target", 600 * MIB) as disk:
        run("mkfs.xfs", "-q", "-f", disk.node)
        point = tmp_path / "dst"
        point.mkdir()
        run("mount", disk.node, str(point))
        yield point


@pytest.fixture
def bench(tmp_path: Path, target: Path) -> Iterator[Bench]:
    """A read-only source of 160 MiB beside it."""
    fill(tmp_path / "source", SIZE, 1)
    with loop_disk(tmp_path / "source", 0, "--direct-io=on") as source:
        run("blockdev", "--setro", source.node)
        yield Bench(source, target, Workspace(tmp_path / "state"))


def folder_of(record: JobRecord) -> SourceFolder:
    """Where the image of a job is."""
    return CaseFolder(Path(record.case)).sources()[0]


async def test_whole_copy_leaves_a_case_that_proves_itself(bench: Bench) -> None:
    started = await bench.start()
    record = await rested(bench.manager, started.id)
    assert (record.state, record.error, record.exit_status) == (JobState.DONE, "", 0)
    folder = folder_of(record)
    assert same(bench.source.file, folder.image)
    assert folder.image.stat().st_blocks * 512 < SIZE * 3 // 4
    assert not folder.partial_image.exists()
    result = json.loads(folder.file("result.json").read_bytes())
    assert result["sha256"] == run("sha256sum", str(bench.source.file)).split()[0]
    assert (result["rescued_bytes"], result["bad_bytes"], result["verdict"]) == (SIZE, 0, "complete")
    run("sh", "-c", f"cd '{record.case}' && sha256sum --check --strict MANIFEST.sha256")
    for name in ("identity.json", "binding.json", "health-before.json", "health-after.json", "kernel.log",
                 "ddrescue.log", "ddrescue-events.log", "ddrescue-rates.log", "partition-table.txt", "job.json"):
        assert folder.file(name).is_file(), name
    verdict = await verify_case(Runner(), Path(record.case))
    assert (verdict.good, verdict.findings, verdict.exit_status) == (True, (), ExitStatus.GOOD)
    assert verdict.checked_bytes > SIZE
    html = (Path(record.case) / "report.html").read_text()
    assert result["sha256"] in html
    assert "the image is complete" in html
    again = await rebuild_report(Runner(), Path(record.case))
    assert (await verify_case(Runner(), again.parent)).good


async def test_verify_finds_every_change(bench: Bench) -> None:
    record = await rested(bench.manager, (await bench.start()).id)
    case, folder = Path(record.case), folder_of(record)

    async def codes() -> list[str]:
        return [finding.code for finding in (await verify_case(Runner(), case)).findings]

    with folder.image.open("r+b") as image:
        image.seek(SIZE // 2)
        byte = image.read(1)
        image.seek(SIZE // 2)
        image.write(bytes((byte[0] ^ 1,)))
    assert await codes() == ["mismatch"]
    with folder.image.open("r+b") as image:
        image.seek(SIZE // 2)
        image.write(byte)
    assert await codes() == []
    kept = folder.file("kernel.log").read_bytes()
    folder.file("kernel.log").unlink()
    assert await codes() == ["missing"]
    folder.file("kernel.log").write_bytes(kept)
    (case / "planted").write_text("x")
    assert await codes() == ["extra-file"]
    (case / "planted").unlink()
    journal = (case / "journal.jsonl").read_text()
    (case / "journal.jsonl").write_text(journal.replace("512", "513", 1))
    assert "journal-chain" in await codes()
    lines = journal.splitlines(keepends=True)
    (case / "journal.jsonl").write_text("".join(lines[:-1]))
    assert await codes() == ["journal-cut"]
    (case / "journal.jsonl").write_text(journal)
    assert await codes() == []


async def test_bad_sectors_are_exactly_those(bench: Bench, tmp_path: Path) -> None:
    bad = [(0, 512), (5 * MIB, 512), (5 * MIB + 1024, 1024), (SIZE - 1024, 512)]
    areas, position = [], 0
    for start, size in bad:
        if start > position:
            areas.append(Area(position, start - position, Status.FINISHED))
        areas.append(Area(start, size, Status.BAD_SECTOR))
        position = start + size
    areas.append(Area(position, SIZE - position, Status.FINISHED))
    truth = tmp_path / "truth.map"
    truth.write_text(Mapfile(tuple(areas), 0, "+").to_text())
    started = await bench.start(f"--test-mode={truth}")
    record = await rested(bench.manager, started.id)
    assert (record.state, record.exit_status) == (JobState.DAMAGED, 1)
    folder = folder_of(record)
    found = folder.read_map()[0]
    assert [(area.start_bytes, area.size_bytes) for area in found.areas_with(Status.BAD_SECTOR)] == bad
    assert found.rescued_bytes == SIZE - 2560
    expected = bytearray(bench.source.file.read_bytes())
    for start, size in bad:
        expected[start:start + size] = bytes(size)
    assert folder.image.read_bytes() == expected
    assert record.result is not None
    assert record.result["bad_areas"] == [{"start_bytes": start, "size_bytes": size} for start, size in bad]
    verdict = await verify_case(Runner(), Path(record.case))
    assert (verdict.good, [finding.code for finding in verdict.findings]) == (True, ["bad-areas"])
    assert "could not be read" in (Path(record.case) / "report.html").read_text()


async def test_a_source_that_ends_early_is_no_whole_copy(bench: Bench, tmp_path: Path) -> None:
    truth = tmp_path / "truth.map"
    truth.write_text(Mapfile((Area(0, SIZE // 2, Status.FINISHED),), 0, "+").to_text())
    record = await rested(bench.manager, (await bench.start(f"--test-mode={truth}")).id)
    assert (record.state, record.exit_status) == (JobState.INTERRUPTED, 5)
    assert f"ended at byte {SIZE // 2}" in record.error


async def test_real_read_errors_end_as_damage(bench: Bench) -> None:
    os.truncate(bench.source.file, SIZE - MIB)
    record = await rested(bench.manager, (await bench.start()).id)
    assert record.state is JobState.DAMAGED
    found = folder_of(record).read_map()[0]
    assert found.areas_with(Status.BAD_SECTOR) == (Area(SIZE - MIB, MIB, Status.BAD_SECTOR),)
    assert folder_of(record).image.stat().st_size == SIZE


async def test_pause_and_resume(bench: Bench) -> None:
    started = await bench.start("--max-read-rate=20Mi")
    await copied(bench.manager, started.id, 8 * MIB)
    assert (await bench.manager.pause(started.id)).state in (JobState.PAUSING, JobState.PAUSED)
    paused = await rested(bench.manager, started.id)
    assert (paused.state, paused.error, paused.exit_status) == (JobState.PAUSED, "", 130)
    folder = folder_of(paused)
    assert folder.partial_image.exists()
    assert 0 < folder.read_map()[0].rescued_bytes < SIZE
    with pytest.raises(PolicyRefusal, match="--resume"):
        bench.plan(ImagingOptions(case_dir=Path(paused.case)))
    await bench.manager.resume(started.id, snapshot(bench.source))
    record = await rested(bench.manager, started.id)
    assert record.state is JobState.DONE
    assert same(bench.source.file, folder.image)
    assert folder.file("ddrescue-rates.1.log").exists()
    with pytest.raises(UsageError, match="can't be resumed"):
        await bench.manager.resume(started.id, snapshot(bench.source))


async def test_cancel_keeps_what_was_copied(bench: Bench) -> None:
    started = await bench.start("--max-read-rate=20Mi")
    await copied(bench.manager, started.id, 8 * MIB)
    await bench.manager.cancel(started.id)
    record = await rested(bench.manager, started.id)
    assert (record.state, record.exit_status) == (JobState.CANCELLED, 130)
    assert folder_of(record).partial_image.exists()
    verdict = await verify_case(Runner(), Path(record.case))
    assert {finding.code for finding in verdict.findings} == {"manifest-missing", "report-missing", "unfinished"}
    plan = bench.plan(ImagingOptions(resume=True))
    assert plan.case_dir == record.case


def alive(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ddrescues(image: Path) -> list[int]:
    """The ddrescue processes that write this image."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if words[0].endswith(b"ddrescue") and os.fsencode(image) in words:
            found.append(int(path.parent.name))
    return found


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


async def test_pulled_source_leaves_no_false_bad_sector(bench: Bench, tmp_path: Path) -> None:
    """The backing file is cut to nothing: from then on every read fails, as on a pulled disk whose node lingers."""
    started = await bench.start("--max-read-rate=40Mi")
    await copied(bench.manager, started.id, 16 * MIB)
    content = bench.source.file.read_bytes()
    os.truncate(bench.source.file, 0)
    record = await rested(bench.manager, started.id)
    assert (record.state, record.exit_status) == (JobState.INTERRUPTED, 5)
    assert "source" in record.error.lower()
    found = folder_of(record).read_map()[0]
    assert found.bytes_with(Status.BAD_SECTOR, Status.NON_TRIMMED, Status.NON_SCRAPED) == 0
    assert found.rescued_bytes >= 8 * MIB
    # Plugged in again, under another name.
    (tmp_path / "aside").mkdir()
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


async def test_two_jobs_at_once_share_a_case(bench: Bench, tmp_path: Path) -> None:
    fill(tmp_path / "second", 64 * MIB, 3)
    with loop_disk(tmp_path / "second") as second:
        first_job = await bench.start("--max-read-rate=60Mi")
        case = Path(first_job.case)
        other = replace(bench, source=second)
        second_job = await other.start(options=ImagingOptions(case_dir=case))
        with pytest.raises(PolicyRefusal, match="already"):
            await bench.manager.start_image(bench_plan(bench, first_job.id))
        records = [await rested(bench.manager, job.id) for job in (first_job, second_job)]
        assert [record.state for record in records] == [JobState.DONE, JobState.DONE]
        assert {record.id for record in bench.manager.records()} == {first_job.id, second_job.id}
        assert len(CaseFolder(case).sources()) == 2
        verdict = await verify_case(Runner(), case)
        assert (verdict.good, verdict.findings) == (True, ())


def bench_plan(bench: Bench, job_id: str) -> ImagingPlan:
    """The plan of a job as it lies in the workspace."""
    from rescue_tui.jobs.jobfiles import JobFiles

    return JobFiles(bench.workspace.jobs_dir / job_id).plan()
