"""What is noted beside an image: names of the health files, the kernel log of every run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from rescue_tui.core.device import Disk, Health
from rescue_tui.core.snapshot import Snapshot
from rescue_tui.jobs.casefolder import SourceFolder
from rescue_tui.jobs.collection import collect
from rescue_tui.jobs.evidence import note_health, note_kernel_log
from rescue_tui.system.runner import Runner
from tests.support.imaging import a_disk


class Told:
    """A disk that tells two things."""

    async def health(self, disk: Disk) -> Health:
        """Good."""
        return Health(source="nvme", ok=True)

    async def raw_health(self, disk: Disk) -> Mapping[str, bytes]:
        """By file name, as the inventory has it."""
        return {"smart.json": b"{}", "error-log.json": b"[]"}


async def test_health_files_say_when(tmp_path: Path) -> None:
    for when in ("before", "after"):
        assert (await note_health(Told(), SourceFolder(tmp_path), a_disk(), when)).ok
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "error-log-after.json", "error-log-before.json", "health-after.json", "health-before.json",
        "smart-after.json", "smart-before.json"]


async def test_kernel_log_of_an_earlier_run_stays(tmp_path: Path) -> None:
    for year in (2025, 2026):
        await note_kernel_log(Runner(), SourceFolder(tmp_path), datetime(year, 1, 1, tzinfo=UTC))
    lines = (tmp_path / "kernel.log").read_text().splitlines()
    assert [line for line in lines if line.startswith("# since ")] == [
        "# since 2025-01-01T00:00:00.000Z", "# since 2026-01-01T00:00:00.000Z"]


async def test_collection_names_the_raw_files(tmp_path: Path) -> None:
    files = await collect(Runner(), Told(), Snapshot(datetime.now(UTC), (a_disk(),)), tmp_path)
    names = {path.name for path in files if path.parent.name == a_disk().id.slug()}
    assert {"smart.json", "error-log.json", "health.json", "identity.json"} <= names
