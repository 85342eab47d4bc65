"""The report of a case: report.json for programs (schema ``stasis.report/1``), report.html for people, without scripts.

Everything in it is read from the case folder, so it can be written again on any workstation.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2

from rescue_tui import __version__
from rescue_tui.core.device import Disk, Health
from rescue_tui.core.errors import FormatError, RescueError, SetupError, UsageError
from rescue_tui.core.guardrecord import GuardRecord, guard_sentences
from rescue_tui.core.job import JobRecord
from rescue_tui.core.mapfile import WORST_FIRST, Mapfile, Status
from rescue_tui.core.record import Plain, to_plain
from rescue_tui.core.restore import restore
from rescue_tui.core.text import human_bytes, printable
from rescue_tui.jobs.casefolder import MANIFEST, CaseFolder, SourceFolder, read_json, small_hash, to_json
from rescue_tui.jobs.evidence import GUARD_FILE
from rescue_tui.system.durable import replace_file
from rescue_tui.system.journal import JournalEntry
from rescue_tui.system.runner import Runner

_MAP_CELLS = 200
_SHOWN_AREAS = 200
_SHOWN_ENTRIES = 500
_STATUS_WORDS = {
    Status.FINISHED: ("finished", "rescued"),
    Status.NON_TRIED: ("non-tried", "not tried"),
    Status.NON_TRIMMED: ("non-trimmed", "failed in one piece, not trimmed yet"),
    Status.NON_SCRAPED: ("non-scraped", "failed in one piece, not scraped yet"),
    Status.BAD_SECTOR: ("bad-sector", "bad sector"),
}


async def rebuild_report(runner: Runner, case: Path) -> Path:
    """Write report.json and report.html; the path of the HTML. UsageError when ``case`` is no case folder."""
    del runner
    folder = CaseFolder(case)
    if not (case / "case.json").is_file():
        raise UsageError(f"{printable(str(case))} is no case folder.", "A case folder has a case.json.")
    # Two jobs of one case may end together; each writes the whole report, one after the other.
    with folder.locked():
        report = build_report(folder)
        try:
            replace_file(case / "report.json", to_json(report))
            replace_file(case / "report.html", render(report).encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise SetupError(
                f"The report can't be written: {error.strerror}.", "Is the case on a read-only disk?") from error
    return case / "report.html"


def build_report(folder: CaseFolder) -> dict[str, Plain]:
    """The report as a plain value: what it is about, each source, the journal's last hash, the findings."""
    entries = folder.journal.tail(1 << 30)
    manifest = folder.path / MANIFEST
    sources = [_source(source) for source in folder.sources()]
    findings = [*folder.journal.verify()]
    plain = to_plain({
        "schema": "stasis.report/1",
        "written_at": datetime.now(UTC),
        "stasis": __version__,
        "host": {"name": printable(platform.node()), "kernel": printable(platform.release()),
                 "machine": platform.machine()},
        "case": {"folder": folder.path.name, **_object(folder.path / "case.json")},
        "sources": sources,
        "findings": findings,
        "timeline": [{"time": entry.time, "event": entry.event, "words": _words(entry)} for entry in
                     _without_noise(entries)][-_SHOWN_ENTRIES:],
        "journal": {"entries": len(entries), "head": folder.journal.head()},
        "manifest_sha256": small_hash(manifest) if manifest.is_file() else "",
    })
    assert isinstance(plain, dict)
    return plain


def render(report: dict[str, Plain]) -> str:
    """The report as one HTML page; every text is escaped by jinja2."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rescue_tui"), autoescape=True,
        undefined=jinja2.ChainableUndefined,  # a report is written of whatever is left of a case
        trim_blocks=True, lstrip_blocks=True)
    environment.filters["bytes"] = _size_words
    environment.filters["text"] = lambda value: printable(str(value), 4000)
    return environment.get_template("report.html.j2").render(
        report=report, words={status.value: words for status, words in _STATUS_WORDS.items()})


def _object(path: Path) -> dict[str, Any]:
    try:
        value = read_json(path)
    except (FormatError, OSError):
        return {}
    return value if isinstance(value, dict) else {}


def _source(folder: SourceFolder) -> dict[str, object]:
    job = _restored(JobRecord, folder.file("job.json"))
    disk = _restored(Disk, folder.file("identity.json"))
    binding = _object(folder.file("binding.json"))
    mapfile = _mapfile(folder)
    result = _object(folder.file("result.json"))
    return {
        "folder": folder.path.name,
        "identity": str(binding.get("source", "")),
        "disk": _disk(disk),
        "state": job.state if job is not None else "unknown",
        "error": job.error if job is not None else "",
        "hint": job.hint if job is not None else "",
        "commands": list(job.commands) if job is not None else [],
        "result": result,
        "verdict_words": verdict_words(result),
        "health": {when: _health(_restored(Health, folder.file(f"health-{when}.json")))
                   for when in ("before", "after")},
        "guard": _guard(_restored(GuardRecord, folder.file(GUARD_FILE))),
        "map": _map(mapfile) if mapfile is not None else None,
        "partition_table": "partition-table.json" if folder.file("partition-table.json").is_file() else "",
    }


def _restored(kind: Any, path: Path) -> Any:
    """A value of the case, or None: a report is written of whatever is left."""
    try:
        return restore(kind, read_json(path))
    except (RescueError, OSError):
        return None


def _mapfile(folder: SourceFolder) -> Mapfile | None:
    try:
        return folder.read_map()[0]
    except (RescueError, OSError):
        return None


def _disk(disk: Disk | None) -> dict[str, object]:
    if disk is None:
        return {}
    return {
        "model": disk.model, "serial": disk.serial, "firmware": disk.firmware, "wwn": disk.wwn, "kind": disk.kind,
        "node_then": disk.node, "slot": disk.slot, "transport": disk.transport, "size_bytes": disk.size_bytes,
        "logical_sector_bytes": disk.logical_sector_bytes, "physical_sector_bytes": disk.physical_sector_bytes,
        "partitions": [
            {"number": part.number, "start_bytes": part.start_bytes, "size_bytes": part.size_bytes, "name": part.name,
             "signatures": [f"{sig.kind} {sig.label}".strip() for sig in part.signatures]} for part in disk.partitions],
        "signatures": [f"{sig.kind} {sig.label}".strip() for sig in disk.signatures],
    }


def _health(health: Health | None) -> dict[str, object]:
    """The values, and the same in words."""
    if health is None:
        return {"words": ["Not read."], "values": {}, "findings": []}
    if health.unavailable:
        return {"words": [health.unavailable], "values": {}, "findings": []}
    words = [f"The disk says of itself: {'good' if health.ok else 'FAILING'}."] if health.ok is not None else []
    facts: tuple[tuple[str, object, str], ...] = (
        ("Temperature", health.temperature_celsius, " °C"), ("Media errors", health.media_errors, ""),
        ("Error log entries", health.error_log_entries, ""), ("Spare", health.available_spare_percent, " %"),
        ("Used", health.percentage_used, " %"), ("Power-on hours", health.power_on_hours, ""),
        ("Unsafe shutdowns", health.unsafe_shutdowns, ""))
    words += [f"{name}: {value}{unit}" for name, value, unit in facts if value is not None]
    values = to_plain(health)
    assert isinstance(values, dict)
    return {"words": words,
            "values": {name: value for name, value in values.items() if name not in ("findings", "errors")},
            "findings": [finding.summary for finding in health.findings]}


def _guard(record: GuardRecord | None) -> dict[str, object]:
    """The guard at the first and the last look, what the kernel counted between, and the same in words."""
    if record is None or not record.looks:
        return {"words": ["The write guard was not noted."], "start": None, "end": None, "added": []}
    return {"words": list(guard_sentences(record)), "armed": record.armed, "written": record.written,
            "looks": len(record.looks), "start": record.looks[0], "end": record.looks[-1],
            "added": list(record.added_during())}


def _map(mapfile: Mapfile) -> dict[str, object]:
    bad = mapfile.areas_with(Status.BAD_SECTOR)
    return {
        "cells": "".join(status.value for status in mapfile.render(_MAP_CELLS)),
        "totals": {_STATUS_WORDS[status][0]: mapfile.bytes_with(status) for status in reversed(WORST_FIRST)},
        "size_bytes": mapfile.end_bytes,
        "bad_area_count": len(bad),
        "bad_areas": [{"start_bytes": area.start_bytes, "size_bytes": area.size_bytes} for area in bad[:_SHOWN_AREAS]],
    }


def _without_noise(entries: tuple[JournalEntry, ...]) -> Iterator[JournalEntry]:
    yield from (entry for entry in entries if entry.event != "image.ddrescue")


def _words(entry: JournalEntry) -> str:
    """The detail of an entry in one line."""
    parts = [f"{name.replace('_', ' ')}: {_short(value)}" for name, value in entry.detail.items()
             if value not in ("", None) and name not in ("traceback", "image")]
    return printable("; ".join(parts), 400)


def _short(value: Plain) -> str:
    return str(value) if not isinstance(value, dict | list) else f"{len(value)} items"


def _size_words(value: object) -> str:
    return human_bytes(value) if isinstance(value, int) else "?"


def verdict_words(result: dict[str, Any]) -> str:
    """What a result means to the person who takes the case away."""
    match result.get("verdict"):
        case "complete":
            return "Every sector was read; the image is complete."
        case "damaged":
            bad = _size_words(result.get("bad_bytes"))
            areas = result.get("bad_areas")
            count = len(areas) if isinstance(areas, list) else 0
            return (f"{bad} in {count} area{'' if count == 1 else 's'} could not be read; everything else is in the "
                    "image, the bad areas are zeros.")
        case "partial":
            return "The copy is partial: the destination was full."
    return "The image was not finished."
