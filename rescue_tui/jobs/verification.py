"""Re-read a case folder and say what does not match. Works on any workstation; nothing in the case is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rescue_tui.core.errors import ExitStatus, FormatError, RescueError, UsageError
from rescue_tui.core.finding import Finding, Severity
from rescue_tui.core.guardrecord import GuardRecord
from rescue_tui.core.mapfile import Status
from rescue_tui.core.restore import restore
from rescue_tui.core.text import human_bytes, printable
from rescue_tui.jobs.casefolder import (
    MANIFEST,
    UNLISTED,
    CaseFolder,
    SourceFolder,
    files_below,
    read_json,
)
from rescue_tui.jobs.evidence import GUARD_FILE
from rescue_tui.jobs.hashing import sha256_of
from rescue_tui.system.journal import Journal
from rescue_tui.system.runner import Runner


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """What a check of a case folder found. ``good`` means: everything that is listed is there and as it was."""

    case: str
    good: bool
    findings: tuple[Finding, ...]
    checked_files: int = 0
    checked_bytes: int = 0

    @property
    def exit_status(self) -> ExitStatus:
        """0 when everything matches, else 1."""
        return ExitStatus.GOOD if self.good else ExitStatus.DAMAGE


Tick = Callable[[str, int, int], None]


def _quiet(_name: str, _done_bytes: int, _total_bytes: int) -> None:
    """Nobody watches."""


async def verify_case(runner: Runner, case: Path, tick: Tick = _quiet) -> CaseVerdict:
    """Check every file of the manifest, the journal's chain, the mapfiles and the report's figures.

    ``tick`` gets a file's name, the bytes done of all, and the total. UsageError when ``case`` is no case folder.
    Bad sectors of a source are no mismatch: they are an INFO finding. ``runner`` isn't needed, files are read here.
    """
    del runner
    folder = CaseFolder(case)
    if not case.is_dir() or not ((case / "case.json").is_file() or (case / MANIFEST).is_file()):
        raise UsageError(f"{printable(str(case))} is no case folder.",
                         "A case folder has a case.json; its name begins with stasis-case-.")
    findings: list[Finding] = []
    listed = _read_manifest(folder, findings)
    checked_bytes = await _check_files(folder, listed, findings, tick)
    findings += _extra_files(folder, listed)
    findings += folder.journal.verify()
    findings += _check_against_report(folder)
    for source in folder.sources():
        findings += _check_source(source)
    good = not any(finding.severity is Severity.ERROR for finding in findings)
    return CaseVerdict(str(case), good, tuple(findings), len(listed), checked_bytes)


def _error(code: str, summary: str) -> Finding:
    return Finding(Severity.ERROR, code, summary)


def _read_manifest(folder: CaseFolder, findings: list[Finding]) -> dict[str, str]:
    if not (folder.path / MANIFEST).is_file():
        findings.append(_error("manifest-missing", f"There is no {MANIFEST}: no image of this case was finished, "
                                                   "or the manifest was deleted."))
        return {}
    listed: dict[str, str] = {}
    for place in (folder.path, *folder.collected()):
        prefix = "" if place == folder.path else f"{place.name}/"
        try:
            listed |= {f"{prefix}{name}": digest for name, digest in CaseFolder(place).manifest().items()}
        except FormatError as error:
            findings.append(_error("manifest-damaged", f"{printable(prefix)}{error.summary}"))
    return listed


async def _check_files(folder: CaseFolder, listed: dict[str, str], findings: list[Finding], tick: Tick) -> int:
    sizes = {name: _size(folder.path / name) for name in listed}
    total = sum(size for size in sizes.values() if size is not None)
    done = 0
    for name, wanted in listed.items():
        path, size = folder.path / name, sizes[name]
        if size is None:
            findings.append(_error("missing", f"{printable(name)} is missing."))
            continue
        before = done

        def progress(read: int, name: str = name, before: int = before) -> None:
            tick(name, before + read, total)

        try:
            found = await sha256_of(path, progress)
        except OSError as error:
            findings.append(_error("unreadable", f"{printable(name)} can't be read: {error.strerror}."))
            continue
        done += size
        tick(name, done, total)
        if found != wanted:
            findings.append(Finding(Severity.ERROR, "mismatch", f"{printable(name)} was changed.",
                                    f"manifest {wanted}, found {found}"))
        await asyncio.sleep(0)  # a case of many small files must let others run
    return done


def _size(path: Path) -> int | None:
    """None for what is missing, and for a link or a directory in the place of a file."""
    return path.stat().st_size if path.is_file() and not path.is_symlink() else None


def _extra_files(folder: CaseFolder, listed: dict[str, str]) -> list[Finding]:
    found: list[Finding] = []
    unfinished = {source.path.name for source in folder.sources() if not source.file("result.json").is_file()}
    for name in sorted(unfinished):
        found.append(Finding(Severity.WARNING, "unfinished", f"The image in {printable(name)} was not finished."))
    if not listed:
        return found  # the manifest is missing or empty, which was said already
    collected = folder.collected()
    for path in files_below(folder.path):
        name = path.relative_to(folder.path).as_posix()
        of_a_collection = path.name == MANIFEST and path.parent.parent == folder.path and path.parent in collected
        if name not in listed and name not in UNLISTED and not of_a_collection and name.split("/")[0] not in unfinished:
            found.append(_error("extra-file", f"{printable(name)} is not in the manifest."))
    return found


def _check_against_report(folder: CaseFolder) -> list[Finding]:
    """The report notes the journal's last hash: entries cut off the end, which no chain can show, are found here."""
    if not (folder.path / "report.json").is_file():
        return [Finding(Severity.WARNING, "report-missing", "There is no report.json; `stasis report` writes it.")]
    try:
        report = read_json(folder.path / "report.json")
        head = report["journal"]["head"] if isinstance(report, dict) else None
    except (FormatError, KeyError, TypeError):
        return [_error("report-damaged", "report.json can't be read.")]
    journal = Journal(folder.path / "journal.jsonl")
    if isinstance(head, str) and journal.path.is_file() and head not in journal.hashes():
        return [_error("journal-cut", "The journal lacks entries that were there when the report was written.")]
    return []


def _check_guard(source: SourceFolder, name: str) -> list[Finding]:
    """What the kernel counted while the source was copied; cases from before the guard have no such file."""
    if not source.file(GUARD_FILE).is_file():
        return []
    try:
        record = restore(GuardRecord, read_json(source.file(GUARD_FILE)))
    except FormatError as error:
        return [_error("guard-record-damaged", f"{name}: {error.summary}")]
    if not record.written:
        return []
    sums = ", ".join(f"{each.name}: {each.counters.write_ios} writes, {each.counters.discard_ios} discards"
                     for each in record.added_during() if each.counters.changing_ios)
    return [Finding(Severity.WARNING, "source-written",
                    f"{name}: the kernel counted writes to the source while it was copied.", printable(sums))]


def _check_source(source: SourceFolder) -> list[Finding]:
    name = printable(source.path.name)
    try:
        result = read_json(source.file("result.json"))
        mapfile, _ = source.read_map()
        if not isinstance(result, dict):
            return [_error("result-damaged", f"result.json of {name} is no result.")]
    except FormatError as error:
        finished = source.file("result.json").is_file()
        return [_error("mapfile-damaged", f"{name}: {error.summary}")] if finished else []
    except (OSError, RescueError) as error:
        return [_error("unreadable", f"{name}: {error}")]
    found: list[Finding] = _check_guard(source, name)
    if (result.get("rescued_bytes"), result.get("bad_bytes")) != (mapfile.rescued_bytes, mapfile.bad_bytes):
        found.append(_error("figures-differ", f"The figures in result.json of {name} are not those of its mapfile."))
    bad = mapfile.areas_with(Status.BAD_SECTOR)
    if bad:
        found.append(Finding(
            Severity.INFO, "bad-areas",
            f"{name}: {len(bad)} bad areas, {human_bytes(mapfile.bad_bytes)}, could not be read from the source.",
            "; ".join(f"{area.start_bytes}+{area.size_bytes}" for area in bad[:50])))
    left = mapfile.end_bytes - mapfile.rescued_bytes - mapfile.bad_bytes
    if left:
        found.append(Finding(Severity.WARNING, "partial", f"{name}: {human_bytes(left)} were never tried."))
    return found
