"""A source and a destination on loop devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rescue_tui.system.workspace import Workspace
from tests.support.imaging_bench import MIB, SIZE, Bench, fill
from tests.support.loops import loop_disk, run


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
