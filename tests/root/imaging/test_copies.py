"""Whole copies, bad sectors, pauses, several jobs, and the case folder that is left, with the real ddrescue."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from rescue_tui.core.errors import ExitStatus, PolicyRefusal, SpaceError, UsageError
from rescue_tui.core.job import JobState
from rescue_tui.core.mapfile import Area, Mapfile, Status
from rescue_tui.jobs.casefolder import CaseFolder
from rescue_tui.jobs.collection import collect
from rescue_tui.jobs.imaging import ImagingOptions, make_plan
from rescue_tui.jobs.reporting import rebuild_report
from rescue_tui.jobs.verification import verify_case
from rescue_tui.system.inventory import Inventory
from rescue_tui.system.runner import Runner
from tests.support.imaging_bench import MIB, SIZE, Bench, bench_plan, fill, folder_of, same
from tests.support.jobs import copied, rested
from tests.support.loops import loop_disk, run, snapshot


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
    for name in ("identity.json", "binding.json", "guard.json", "health-before.json", "health-after.json", "kernel.log",
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


async def test_the_first_read_error_makes_the_pieces_shorter_and_is_tried_again(bench: Bench, tmp_path: Path) -> None:
    truth = tmp_path / "truth.map"
    areas = (Area(0, 512, Status.BAD_SECTOR), Area(512, SIZE - 512, Status.FINISHED))
    truth.write_text(Mapfile(areas, 0, "+").to_text())
    # The second command comes from the plan alone, without the simulated bad sector.
    started = await bench.start(f"--test-mode={truth}", "--max-read-rate=20Mi", careful=True)
    record = await rested(bench.manager, started.id)
    assert record.state is JobState.DONE
    assert [line.split(" -c ")[1].split()[0] for line in record.commands] == ["32768", "8192"]
    assert "image.shorter-clusters" in (Path(record.case) / "journal.jsonl").read_text()
    assert same(bench.source.file, folder_of(record).image)


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


async def test_two_jobs_at_once_share_a_case(bench: Bench, tmp_path: Path) -> None:
    fill(tmp_path / "second", 64 * MIB, 3)
    with loop_disk(tmp_path / "second") as second:
        first_job = await bench.start("--max-read-rate=20Mi")
        case = Path(first_job.case)
        other = replace(bench, source=second)
        second_job = await other.start(options=ImagingOptions(case_dir=case))
        with pytest.raises(PolicyRefusal, match="already"):
            await bench.manager.start_image(bench_plan(bench, first_job.id))
        with loop_disk(tmp_path / "third", 330 * MIB) as third:
            too_much = replace(bench, source=third)
            with pytest.raises(SpaceError, match="Together with the jobs"):
                await too_much.start()
        records = [await rested(bench.manager, job.id) for job in (first_job, second_job)]
        assert [record.state for record in records] == [JobState.DONE, JobState.DONE]
        assert {record.id for record in bench.manager.records()} == {first_job.id, second_job.id}
        assert len(CaseFolder(case).sources()) == 2
        verdict = await verify_case(Runner(), case)
        assert (verdict.good, verdict.findings) == (True, ())


async def test_a_destination_with_large_sectors_gets_buffered_writes(bench: Bench, tmp_path: Path) -> None:
    truth = tmp_path / "truth.map"
    truth.write_text(Mapfile((
        Area(0, 512, Status.FINISHED), Area(512, 512, Status.BAD_SECTOR), Area(1024, SIZE - 1024, Status.FINISHED),
    ), 0, "+").to_text())
    with loop_disk(tmp_path / "large", 400 * MIB, "--sector-size=4096", "--direct-io=on") as disk:
        run("mkfs.xfs", "-q", "-f", disk.node)
        point = tmp_path / "large-dst"
        point.mkdir()
        run("mount", disk.node, str(point))
        record = await rested(bench.manager, (await replace(bench, target=point).start(f"--test-mode={truth}")).id)
        events = [entry.event for entry in CaseFolder(Path(record.case)).journal.tail(99)]
        assert "image.without-direct-output" in events
        assert "-D" not in record.commands[-1].split()
        # The second command comes from the plan alone, without the test's simulated bad sector.
        assert record.state is JobState.DONE
        assert same(bench.source.file, folder_of(record).image)


@pytest.mark.parametrize("preallocate", [False, True])
async def test_without_holes_the_image_still_gets_its_full_size(bench: Bench, preallocate: bool) -> None:
    """The end of the source can't be read, so nothing is ever written there."""
    os.truncate(bench.source.file, SIZE - MIB)
    space = replace(bench.space(), sparse=False, preallocate=preallocate)
    plan = make_plan(snapshot(bench.source), bench.source.disk(), bench.target, space, {}, ImagingOptions())
    assert ("-p" in plan.command) is preallocate
    record = await rested(bench.manager, (await bench.manager.start_image(plan)).id)
    assert record.state is JobState.DAMAGED
    image = folder_of(record).image
    assert image.stat().st_size == SIZE
    assert image.read_bytes() == bench.source.file.read_bytes() + bytes(MIB)


async def test_image_on_exfat(bench: Bench, tmp_path: Path) -> None:
    with loop_disk(tmp_path / "exfat", 400 * MIB) as disk:
        run("mkfs.exfat", disk.node)
        point = tmp_path / "exfat-dst"
        point.mkdir()
        try:
            run("mount", "-t", "exfat", disk.node, str(point))
        except subprocess.CalledProcessError:
            pytest.skip("this kernel has no exFAT")
        there = replace(bench, target=point)
        plan = make_plan(snapshot(bench.source), bench.source.disk(), point,
                         replace(there.space(), filesystem="exfat", sparse=False, preallocate=False), {},
                         ImagingOptions())
        record = await rested(bench.manager, (await bench.manager.start_image(plan)).id)
        assert record.state is JobState.DONE
        assert same(bench.source.file, folder_of(record).image)


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


async def test_collect(bench: Bench, tmp_path: Path) -> None:
    runner = Runner()
    files = await collect(runner, Inventory(runner), snapshot(bench.source), tmp_path)
    folder = files[-1].parent
    names = {path.relative_to(folder).as_posix() for path in files}
    disk = f"disks/{bench.source.id.slug()}"
    assert {"devices.json", "kernel.log", "lsblk.json", f"{disk}/identity.json", f"{disk}/health.json",
            "MANIFEST.sha256"} <= names
    run("sh", "-c", f"cd '{folder}' && sha256sum --check --strict MANIFEST.sha256")
    assert json.loads((folder / "devices.json").read_bytes())["schema"] == "stasis.devices/1"
