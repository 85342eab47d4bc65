"""What is noted beside an image: names of the health files, the kernel log of every run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rescue_tui.core.blockstat import WriteCounters
from rescue_tui.core.device import Disk, Health
from rescue_tui.core.errors import DeviceError, RescueError, SetupError
from rescue_tui.core.guardrecord import END, START, GuardRecord, NamedCounters
from rescue_tui.core.guardstate import LayerState
from rescue_tui.core.restore import restore
from rescue_tui.core.snapshot import Snapshot
from rescue_tui.jobs.casefolder import SourceFolder
from rescue_tui.jobs.collection import collect
from rescue_tui.jobs.evidence import GUARD_FILE, note_guard, note_health, note_kernel_log
from rescue_tui.system import blockdev
from rescue_tui.system.guardview import GuardState, ProtectedDevice
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


class Guard:
    """A guard that refuses more at each look."""

    def __init__(self, fail: RescueError | None = None) -> None:
        self.looks = 0
        self.fail = fail

    def state(self) -> GuardState:
        """One layer, and the disk."""
        if self.fail is not None:
            raise self.fail
        self.looks += 1
        device = ProtectedDevice(a_disk().node, "259:0", True, False, False, {"bio": self.looks, "open": 0}, 3)
        return GuardState((LayerState("bio", "armed", "", self.looks),), (device,), (), ())


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Counters of the disk; its path has none by itself. The names that were asked for."""
    asked: list[str] = []

    def counters(name: str, _sysfs: Path = blockdev.SYSFS) -> WriteCounters:
        asked.append(name)
        if name != "nvme0n1":
            raise DeviceError("It is gone.")
        return WriteCounters(len(asked), 8, 0, 0, 0, 0, 0)

    monkeypatch.setattr(blockdev, "write_counters", counters)
    return asked


def test_every_look_at_the_guard_is_kept(tmp_path: Path, counted: list[str]) -> None:
    guard = Guard()
    for when in (START, END):
        note_guard(guard, SourceFolder(tmp_path), a_disk(), when)
    record = restore(GuardRecord, json.loads((tmp_path / GUARD_FILE).read_bytes()))
    assert [(look.when, look.level, look.refused, look.flushes_kept_back) for look in record.looks] == [
        (START, "armed", 1, 3), (END, "armed", 2, 3)]
    assert record.looks[1].refused_on_source == {"bio": 2, "open": 0}
    assert record.looks[0].generation == a_disk().generation
    assert record.looks[0].boot_id == record.looks[1].boot_id != ""
    assert counted == ["nvme0n1", "nvme0c0n1"] * 2
    assert record.added_during() == (NamedCounters("nvme0n1", WriteCounters(2, 0, 0, 0, 0, 0, 0)),)


def test_a_guard_that_can_not_be_looked_at_is_noted_as_unknown(tmp_path: Path, counted: list[str]) -> None:
    (tmp_path / GUARD_FILE).write_text("{torn")
    look = note_guard(Guard(SetupError("It can't be read.", "Run as root.")), SourceFolder(tmp_path), a_disk(), START)
    assert (look.level, look.problem) == ("unknown", "It can't be read. Run as root.")
    assert [each.name for each in look.counters] == ["nvme0n1"]
    assert counted


def test_the_counters_come_from_sysfs(tmp_path: Path) -> None:
    (tmp_path / "block/sda").mkdir(parents=True)
    (tmp_path / "block/sda/stat").write_text(" ".join(str(number) for number in range(17)))
    assert blockdev.write_counters("sda", tmp_path).write_ios == 4
    with pytest.raises(DeviceError, match="sdb can't be read"):
        blockdev.write_counters("sdb", tmp_path)


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
