"""What a plan decides: command, refusals, space, warnings; and the estimate of the time left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescue_tui.core.access import Access, Role
from rescue_tui.core.device import DeviceKind, Disk, Health, Mount
from rescue_tui.core.errors import FormatError, PolicyRefusal, SpaceError, UsageError
from rescue_tui.core.ident import DeviceId
from rescue_tui.core.imaging import Binding, DestinationSpace, ImagingPlan, RateSample, cluster_sectors, eta_range
from rescue_tui.core.job import FINAL, JobState, Progress, check_transition
from rescue_tui.core.mapfile import blank
from rescue_tui.core.snapshot import Snapshot
from rescue_tui.jobs.casefolder import CaseFolder, to_json
from rescue_tui.jobs.imaging import ImagingOptions, for_attachment, make_plan, moved_to
from tests.support.imaging import GIB, a_disk, a_space, replugged

NO_ROLES: Mapping[DeviceId, Role] = {}


def plan(
    to: Path, disk: Disk | None = None, space: DestinationSpace | None = None, *others: Disk,
    roles: Mapping[DeviceId, Role] = NO_ROLES, **options: Any,
) -> ImagingPlan:
    """A plan with everything else as usual."""
    source = disk or a_disk()
    return make_plan(Snapshot(datetime.now(UTC), (source, *others)), source, to, space or a_space(), roles,
                     ImagingOptions(**options))


def test_command_of_an_nvme_disk(tmp_path: Path) -> None:
    made = plan(tmp_path, case_dir=tmp_path / "case")
    folder = tmp_path / "case" / "nvme-eui64-0123456789abcdef"
    assert made.command == (
        "ddrescue", "-d", "-r0", "-b", "512", "-c", "32768", "-D", "-S", "-x", str(4 * GIB),
        f"--log-events={folder}/ddrescue-events.log", f"--log-rates={folder}/ddrescue-rates.log",
        "--mapfile-interval=5,5", "/dev/nvme0n1", f"{folder}/image.partial.raw", f"{folder}/image.map")
    assert made.warnings == ()
    assert not any(tmp_path.iterdir()), "a plan writes nothing"
    assert plan(tmp_path).case_dir.startswith(f"{tmp_path}/stasis-case-20")


def test_cluster_follows_the_disk() -> None:
    disk = a_disk()
    assert cluster_sectors(disk) * 512 == 16 << 20
    assert cluster_sectors(replace(disk, logical_sector_bytes=4096)) * 4096 == 16 << 20
    assert cluster_sectors(replace(disk, rotational=True, kind=DeviceKind.SAS)) * 512 == 1 << 20
    assert cluster_sectors(replace(disk, rotational=True, kind=DeviceKind.VIRTIO)) * 512 == 16 << 20
    assert cluster_sectors(replace(disk, health=Health(ok=True, media_errors=0, critical_warning=0))) * 512 == 16 << 20


@pytest.mark.parametrize("health", [Health(ok=False), Health(media_errors=1), Health(ok=True, critical_warning=4)])
def test_cluster_of_a_disk_that_tells_of_errors_is_shorter(health: Health) -> None:
    assert cluster_sectors(replace(a_disk(), health=health)) * 512 == 4 << 20


def test_output_without_direct_writes(tmp_path: Path) -> None:
    made = plan(tmp_path, space=replace(a_space(), direct_io=False))
    assert "-D" not in made.command
    assert "--mapfile-interval=30,30" in made.command
    assert [finding.code for finding in made.warnings] == ["buffered"]


@pytest.mark.parametrize(
    ("align", "source_sector", "direct"), [(512, 512, True), (4096, 512, False), (4096, 4096, True)])
def test_single_sectors_must_be_legal_direct_writes(
    tmp_path: Path, align: int, source_sector: int, direct: bool
) -> None:
    disk = replace(a_disk(), logical_sector_bytes=source_sector)
    assert plan(tmp_path, disk, replace(a_space(), direct_align_bytes=align)).direct_output is direct
    target = replace(a_disk("ff", "/dev/sdb"), logical_sector_bytes=align, mounts=(Mount("/mnt/dst", "xfs", ("rw",)),))
    assert plan(tmp_path, disk, a_space(), target).direct_output is direct


def test_without_holes_the_space_is_preallocated_if_it_can_be(tmp_path: Path) -> None:
    made = plan(tmp_path, space=replace(a_space(), sparse=False))
    assert "-p" in made.command
    assert not {"-S", "-x"} & set(made.command)
    assert [finding.code for finding in made.warnings] == ["not-sparse"]
    exfat = replace(a_space(), sparse=False, preallocate=False)
    assert not {"-p", "-S"} & set(plan(tmp_path, space=exfat).command)
    assert "-p" not in plan(tmp_path, space=replace(a_space(GIB), sparse=False), accept_partial=True).command


@pytest.mark.parametrize("access", [Access.DESTINATION, Access.BOOT_MEDIUM, Access.OFF_LIMITS])
def test_only_sources_are_imaged(tmp_path: Path, access: Access) -> None:
    with pytest.raises(PolicyRefusal, match=access.value):
        plan(tmp_path, roles={a_disk().id: Role(access, "because")})
    assert plan(tmp_path, roles={a_disk().id: Role(Access.SOURCE, "")}).source == a_disk().id


def test_a_disk_that_is_being_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyRefusal, match="mounted read-write at /data"):
        plan(tmp_path, replace(a_disk(), mounts=(Mount("/data", "ext4", ("rw",)),)))
    read_only = plan(tmp_path, replace(a_disk(), mounts=(Mount("/data", "ext4", ("ro",)),), holders=("md0",)))
    assert [finding.code for finding in read_only.warnings] == ["holders", "mounted"]
    with pytest.raises(PolicyRefusal, match="size of zero"):
        plan(tmp_path, replace(a_disk(), size_bytes=0))


def test_a_destination_on_the_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyRefusal, match="on the source itself"):
        plan(tmp_path, replace(a_disk(), mounts=(Mount("/mnt/dst", "xfs", ("ro",)),)))
    md = replace(a_disk("dd", "/dev/md0"), slaves=("nvme0n1",), mounts=(Mount("/mnt/dst", "xfs", ("rw",)),))
    with pytest.raises(PolicyRefusal, match="on the source itself"):
        plan(tmp_path, None, None, md)


def test_too_little_space_names_both_figures(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match=rf"needs .*GiB.* has 1.0 GiB \({GIB} bytes\)"):
        plan(tmp_path, space=a_space(GIB))
    made = plan(tmp_path, space=a_space(GIB), accept_partial=True)
    assert [finding.code for finding in made.warnings] == ["partial"]
    with pytest.raises(SpaceError):
        plan(tmp_path, space=a_space(4 * GIB))


def test_fat_is_refused_even_partial(tmp_path: Path) -> None:
    fat = replace(a_space(), filesystem="vfat", max_file_bytes=4 * GIB - 1)
    with pytest.raises(SpaceError, match="vfat holds at most"):
        plan(tmp_path, space=fat, accept_partial=True)
    assert plan(tmp_path, a_disk(size_bytes=3 * GIB), fat).size_bytes == 3 * GIB


def test_options_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="negative"):
        plan(tmp_path, retries=-2)
    with pytest.raises(UsageError, match="multiple of 512"):
        plan(tmp_path, cluster_bytes=1000)
    assert plan(tmp_path, cluster_bytes=1 << 20, retries=3).command[2:7] == ("-r3", "-b", "512", "-c", "2048")


def begun(case: Path, disk: Disk, *, image: bool = True) -> None:
    """A folder as an interrupted job leaves it."""
    folder = CaseFolder(case).source(disk.id)
    folder.path.mkdir(parents=True)
    (case / "case.json").write_bytes(to_json({"schema": "stasis.case/1"}))
    folder.write("binding.json", to_json(Binding(disk.id, disk.size_bytes, disk.logical_sector_bytes)))
    folder.mapfile.write_text(blank(disk.size_bytes).to_text().replace("?\n", "+\n") if image else
                              blank(disk.size_bytes).to_text())
    if image:
        folder.partial_image.write_bytes(b"x")


def test_resume_finds_the_begun_image_by_identity(tmp_path: Path) -> None:
    disk = a_disk()
    begun(tmp_path / "stasis-case-1", disk)
    begun(tmp_path / "stasis-case-2", a_disk("ff"))
    made = plan(tmp_path, replugged(disk, "/dev/nvme7n1"), resume=True)
    assert made.case_dir == str(tmp_path / "stasis-case-1")
    assert "/dev/nvme7n1" in made.command
    with pytest.raises(PolicyRefusal, match="--resume"):
        plan(tmp_path, disk, case_dir=tmp_path / "stasis-case-1")


def test_resume_refuses_what_does_not_belong(tmp_path: Path) -> None:
    disk = a_disk()
    with pytest.raises(PolicyRefusal, match="No image of"):
        plan(tmp_path, disk, resume=True)
    begun(tmp_path / "stasis-case-1", disk)
    with pytest.raises(PolicyRefusal, match="belongs to nvme-eui64:0123456789abcdef"):
        plan(tmp_path, a_disk("ff"), resume=True)
    with pytest.raises(PolicyRefusal, match="bytes then and has"):
        plan(tmp_path, replace(disk, size_bytes=GIB), resume=True)
    with pytest.raises(PolicyRefusal, match="sectors of 512 bytes then"):
        plan(tmp_path, replace(disk, logical_sector_bytes=4096), resume=True)


def test_resume_refuses_a_mapfile_of_another_size_or_without_image(tmp_path: Path) -> None:
    disk = a_disk()
    begun(tmp_path / "stasis-case-1", disk)
    folder = CaseFolder(tmp_path / "stasis-case-1").source(disk.id)
    folder.partial_image.unlink()
    with pytest.raises(FormatError, match="no image"):
        plan(tmp_path, disk, resume=True)
    folder.mapfile.write_text(blank(GIB).to_text())
    with pytest.raises(PolicyRefusal, match="mapfile covers"):
        plan(tmp_path, disk, resume=True)
    folder.mapfile.write_bytes(b"0x0 ? 1\n0x0")
    with pytest.raises(FormatError, match="Neither"):
        plan(tmp_path, disk, resume=True)


def test_a_plan_moves_with_its_disk_and_its_destination(tmp_path: Path) -> None:
    disk = a_disk()
    begun(tmp_path / "a" / "stasis-case-1", disk)
    made = plan(tmp_path / "a", disk, resume=True)
    back = for_attachment(made, replugged(disk, "/dev/sdz"))
    assert (back.source_node, back.generation, "/dev/sdz" in back.command) == ("/dev/sdz", 12, True)
    moved = moved_to(made, CaseFolder(tmp_path / "b" / "stasis-case-1").source(disk.id))
    assert moved.mapfile.startswith(str(tmp_path / "b"))
    assert not any(str(tmp_path / "a") in word for word in moved.command)


def test_time_left_is_a_range_of_recent_windows() -> None:
    steady = [RateSample(float(second), second * 100) for second in range(30)]
    assert eta_range(steady, 1000) == (10.0, 10.0)
    slower = [*steady, *(RateSample(30.0 + second, 2910 + second * 10) for second in range(30))]
    low, high = eta_range(slower, 1000) or (0, 0)
    assert (low, high) == (10.0, 100.0)
    assert eta_range(steady, 0) == (0.0, 0.0)
    assert eta_range(steady[:3], 1000) is None
    assert eta_range([RateSample(float(second), 5) for second in range(30)], 1000) is None


@given(st.lists(st.tuples(st.floats(0.1, 20), st.integers(0, 1 << 40)), max_size=50), st.integers(1, 1 << 50))
def test_time_left_is_never_negative(steps: list[tuple[float, int]], remaining: int) -> None:
    at, done, samples = 0.0, 0, []
    for seconds, count in steps:
        at, done = at + seconds, done + count
        samples.append(RateSample(at, done))
    left = eta_range(samples, remaining)
    assert left is None or 0 < left[0] <= left[1]


def test_no_way_leads_out_of_a_final_state() -> None:
    for state in FINAL:
        for target in JobState:
            with pytest.raises(UsageError, match=f"A {state.value} job"):
                check_transition(state, target)
    check_transition(JobState.INTERRUPTED, JobState.PENDING)


def test_hundred_percent_means_all() -> None:
    assert Progress(total_bytes=1 << 60, done_bytes=(1 << 60) - 1).percent == 99.99
    assert Progress(total_bytes=5, done_bytes=5).percent == 100
    assert Progress().percent == 0
