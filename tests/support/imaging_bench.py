"""A source, a destination and a job manager on loop devices, for imaging with the real ddrescue."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace
from pathlib import Path

from rescue_tui.core.imaging import DestinationSpace, ImagingPlan
from rescue_tui.core.job import JobRecord
from rescue_tui.jobs.casefolder import CaseFolder, SourceFolder
from rescue_tui.jobs.imaging import ImagingOptions, make_plan
from rescue_tui.jobs.jobfiles import JobFiles
from rescue_tui.jobs.manager import JobManager
from rescue_tui.system.journal import Journal
from rescue_tui.system.runner import Runner
from rescue_tui.system.workspace import Workspace
from tests.support.loops import LoopDisk, snapshot

MIB = 1 << 20
SIZE = 160 * MIB


def fill(path: Path, size_bytes: int, seed: int) -> None:
    """Half noise, half zeros, the last sector noise: holes in the image must not move anything."""
    source = random.Random(seed)
    with path.open("wb") as file:
        for position in range(0, size_bytes, 32 * MIB):
            file.seek(position)
            file.write(source.randbytes(min(16 * MIB, size_bytes - position)))
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

    async def start(self, *extra: str, options: ImagingOptions | None = None, careful: bool = False) -> JobRecord:
        """Start a copy; ``extra`` are more options for ddrescue (a rate limit, say).

        A command that is made anew after the first read error lacks them, so that is done only if ``careful``.
        """
        plan = self.plan(options)
        if extra and not careful:
            plan = replace(plan, careful_cluster_sectors=0)
        return await self.manager.start_image(replace(plan, command=(plan.command[0], *extra, *plan.command[1:])))


def folder_of(record: JobRecord) -> SourceFolder:
    """Where the image of a job is."""
    return CaseFolder(Path(record.case)).sources()[0]


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


def bench_plan(bench: Bench, job_id: str) -> ImagingPlan:
    """The plan of a job as it lies in the workspace."""
    return JobFiles(bench.workspace.jobs_dir / job_id).plan()
