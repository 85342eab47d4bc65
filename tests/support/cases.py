"""A finished case folder without a disk: what the worker leaves, made by the same parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rescue_tui.core.device import Disk, Health
from rescue_tui.core.guardrecord import GuardRecord
from rescue_tui.core.imaging import Binding
from rescue_tui.core.job import JobRecord, JobState
from rescue_tui.core.mapfile import Area, Mapfile, Status
from rescue_tui.jobs.casefolder import CaseFolder, SourceFolder, small_hash, to_json
from rescue_tui.jobs.evidence import GUARD_FILE
from rescue_tui.jobs.reporting import rebuild_report
from rescue_tui.system.runner import Runner
from tests.support.imaging import a_disk

IMAGE = bytes(range(256)) * 64


async def finished_case(root: Path, disk: Disk | None = None, *, bad_bytes: int = 0,
                        guard: GuardRecord | None = None) -> SourceFolder:
    """A case with one image of 16 KiB, the last ``bad_bytes`` of it bad, and what was noted of the guard."""
    source = replace(disk or a_disk(), size_bytes=len(IMAGE))
    case = CaseFolder(root / "stasis-case-20260101T000000Z")
    case.note_source(source)
    folder = case.source(source.id)
    folder.path.mkdir()
    case.journal.append("image.begin", source=source.id, serial=source.serial)
    folder.write("binding.json", to_json(Binding(source.id, source.size_bytes, 512, source.serial)))
    folder.write("identity.json", to_json(source))
    folder.image.write_bytes(IMAGE)
    good = len(IMAGE) - bad_bytes
    areas = [Area(0, good, Status.FINISHED)]
    if bad_bytes:
        areas.append(Area(good, bad_bytes, Status.BAD_SECTOR))
    folder.mapfile.write_text(Mapfile(tuple(areas), 0, "+").to_text())
    folder.write("health-before.json", to_json(Health(source="nvme", ok=True, temperature_celsius=41, media_errors=0)))
    folder.write("health-after.json", to_json(Health(unavailable="It is gone.")))
    result: dict[str, object] = {
        "verdict": "damaged" if bad_bytes else "complete", "image": folder.image.name,
        "sha256": small_hash(folder.image), "size_bytes": len(IMAGE), "rescued_bytes": good, "bad_bytes": bad_bytes,
        "bad_areas": [{"start_bytes": good, "size_bytes": bad_bytes}] if bad_bytes else [], "read_errors": 0,
        "began_at": "2026-01-01T00:00:00.000Z", "ended_at": "2026-01-01T00:01:00.000Z",
        "tools": {"stasis": "0", "ddrescue": "1.27"}}
    folder.write("result.json", to_json(result))
    folder.write("job.json", to_json(JobRecord(
        "job1", "image", "Image", JobState.DONE, "2026-01-01T00:00:00.000Z", "2026-01-01T00:01:00.000Z",
        source=str(source.id), case=str(case.path), commands=("ddrescue -d -r0",), result=result)))
    if guard is not None:
        folder.write(GUARD_FILE, to_json(guard))
    case.journal.append("image.done", verdict="complete")
    case.seal(folder.path, {f"{folder.path.name}/image.raw": small_hash(folder.image)})
    await rebuild_report(Runner(), case.path)
    return folder
