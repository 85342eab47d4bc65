"""Root tests need root, loop devices and mkfs; elsewhere they are skipped with the reason."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rescue_tui.core.text import printable
from rescue_tui.system.destination import Destinations
from rescue_tui.system.guard import WriteGuard
from rescue_tui.system.mounts import Mounts
from rescue_tui.system.runner import Runner
from rescue_tui.system.workspace import Workspace
from tests.support.loops import LoopDisk, loop_disk


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.root)
            if os.geteuid() != 0 or not Path("/dev/loop-control").exists():
                item.add_marker(pytest.mark.skip(reason="needs root and loop devices"))


@dataclass
class MemoryJournal:
    """Keeps what was journaled."""

    entries: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def append(self, event: str, **detail: object) -> None:
        """As Journal.append."""
        self.entries.append((event, detail))

    @property
    def events(self) -> list[str]:
        """The events in order."""
        return [event for event, _ in self.entries]


@dataclass
class Desk:
    """Guard, destinations and mounts over one workspace, wired as services does it."""

    workspace: Workspace
    journal: MemoryJournal
    guard: WriteGuard
    runner: Runner
    destinations: Destinations
    mounts: Mounts


def make_desk(workspace: Workspace) -> Desk:
    """A process of the session: several may share a workspace."""
    journal = MemoryJournal()
    guard = WriteGuard(workspace)
    runner = Runner(guard.redeem)
    return Desk(workspace, journal, guard, runner, Destinations(runner, guard, journal, workspace),
                Mounts(runner, journal, workspace))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """One process over a workspace of this test."""
    return make_desk(Workspace(tmp_path / "state"))


@pytest.fixture
def usb(tmp_path: Path) -> Iterator[LoopDisk]:
    """A blank disk of 400 MiB that is read-only, as udev leaves every disk. Its serial is ``Usb Serial-01``."""
    with loop_disk(tmp_path / "Usb Serial-01", 400 << 20) as disk:
        assert printable(disk.file.name) == disk.file.name
        from tests.support.loops import run

        run("blockdev", "--setro", disk.node)
        yield disk
