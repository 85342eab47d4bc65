"""From readings to the answer: one row for each save, its step, what it proves, and the newest good one of each run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rescue_tui.checkpoints import damage, lightning
from rescue_tui.checkpoints.judge import CLAIMS, desk_of, judge_unit
from rescue_tui.checkpoints.layouts.composite import step_of_values
from rescue_tui.checkpoints.model import Checkpoint, CheckpointFinding, Options, Proof, Reading, Verdict, judge
from rescue_tui.checkpoints.names import is_auxiliary, is_temporary, run_of_path, step_of_part, step_of_path
from rescue_tui.checkpoints.source import UnreadableBytes
from rescue_tui.checkpoints.stored_sum import entry_of
from rescue_tui.checkpoints.survey import FILE, Tally, Unit, survey
from rescue_tui.checkpoints.tree import Entry, Kind, Tree, walk
from rescue_tui.checkpoints.values import inspect_values
from rescue_tui.core.finding import Severity

UNFINISHED_END = "-unfinished"


@dataclass(frozen=True, slots=True)
class Newer:
    """A save that is newer than the newest good one, and why it can't be trusted."""

    path: str
    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class Run:
    """The saves of one run directory: the newest good one, and what is newer."""

    path: str
    newest_good: str | None
    newer: tuple[Newer, ...]


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scan found. ``unopened`` counts small files whose names say little, see `survey`."""

    checkpoints: tuple[Checkpoint, ...]
    newest_good: str | None
    runs: tuple[Run, ...]
    scanned_files: int
    scanned_bytes: int
    unopened: int = 0
    findings: tuple[CheckpointFinding, ...] = ()


def scan(tree: Tree, options: Options, root_name: str = "") -> Scan:
    """Everything in a tree, in this process. ``root_name`` is what the root is called, for steps in names."""
    desk = desk_of(tree, options)
    tally = Tally()
    rows = []
    for unit in survey(tree, "", CLAIMS, tally):
        reading = judge_unit(desk, unit)
        if reading is not None:
            rows.append(row_of(tree, unit, reading, options, root_name))
    return conclude(rows, tally)


def conclude(rows: Iterable[Checkpoint], tally: Tally) -> Scan:
    """The answer from its rows."""
    ordered = tuple(sorted(rows, key=lambda row: row.path))
    best = newest_good(ordered)
    lost = tuple(CheckpointFinding(Severity.WARNING, "unreadable", f"It can't be looked at: {reason}.", file=path)
                 for path, reason in tally.unreadable)
    return Scan(ordered, best.path if best else None, runs_of(ordered), tally.files,
                sum(row.size_bytes for row in ordered), tally.unopened, lost)


def row_of(tree: Tree, unit: Unit, reading: Reading, options: Options, root_name: str = "") -> Checkpoint:
    """The row of one unit: sizes, time and step, and what the names around it say of its completion."""
    entries = _members(tree, unit)
    path = unit.path or "."
    named = f"{root_name}/{unit.path}".strip("/")
    reading = lightning.checked(reading, path)
    step = reading.step if reading.step is not None else step_of_values(reading.values)
    if step is None:
        step = step_of_path(named)
    reading = damage.marked(tree, reading, (*unit.parts, *(entry.path for entry in entries)))
    findings = (*reading.findings, *_committed(tree, unit, named, reading), *inspect_values(tree, options, reading))
    members = tuple(sorted({*reading.members, *unit.parts, *(entry.path for entry in entries)}))
    reading = replace(reading, step=step, findings=findings, members=members, tree=None)
    return Checkpoint(path, reading, judge(findings, reading.covered), sum(entry.size_bytes for entry in entries),
                      max((entry.mtime_ns for entry in entries), default=None))


def _members(tree: Tree, unit: Unit) -> tuple[Entry, ...]:
    if unit.whole:
        try:
            entries: Sequence[Entry] = walk(tree, unit.directory).entries
        except UnreadableBytes:
            entries = ()
    else:
        entries = [entry for part in unit.parts if (entry := entry_of(tree, part)) is not None]
    return tuple(_behind(tree, entry) for entry in entries if entry.kind in {Kind.FILE, Kind.SYMLINK})


def _behind(tree: Tree, entry: Entry) -> Entry:
    """A link with the size of what it leads to, which is a blob of a cache."""
    if entry.kind is not Kind.SYMLINK:
        return entry
    try:
        with tree.open(entry.path) as source:
            return replace(entry, size_bytes=source.size_bytes)
    except UnreadableBytes:
        return replace(entry, size_bytes=0)


def _committed(tree: Tree, unit: Unit, named: str, reading: Reading) -> list[CheckpointFinding]:
    """Names that say that the save was not finished, unless the layout said so itself."""
    if any(finding.verdict is Verdict.UNCOMMITTED for finding in reading.findings):
        return []
    found: list[CheckpointFinding] = []
    parts = named.split("/")
    own = [parts[-1]] if unit.layout == FILE or unit.whole else []
    above = parts[:-1] if own else parts
    for part in [*own, *above[-2:]]:
        # A directory called tmp_something may be anybody's; one with a step in its name is a save.
        if is_temporary(part) and (part in own or step_of_part(part) is not None or part.endswith("-tmp")):
            found.append(CheckpointFinding(Severity.ERROR, "temporary-name", f"{part} is a temporary name: the writer "
                                           "never declared it complete.", Verdict.UNCOMMITTED, unit.path))
            break
    for path in _upwards(unit.path):
        if entry_of(tree, path + UNFINISHED_END) is not None:
            found.append(CheckpointFinding(
                Severity.ERROR, "marker-unfinished", f"{path.rpartition('/')[2]}{UNFINISHED_END} lies beside it: the "
                "writer never declared it complete.", Verdict.UNCOMMITTED, path + UNFINISHED_END))
            break
    return found


def _upwards(path: str) -> list[str]:
    """The path, and the directory that it is in."""
    return [part for part in (path, path.rpartition("/")[0]) if part]


def newest_good(rows: Iterable[Checkpoint]) -> Checkpoint | None:
    """The newest by step, else by time, that is verified or intact and is more than an optimizer or random states."""
    good = [row for row in rows if row.verdict.trusted and not is_auxiliary(row.path)]
    return max(good, key=_age) if good else None


def _age(row: Checkpoint) -> tuple[bool, int, int, str]:
    step = row.reading.step
    return step is not None, step or 0, row.saved_at_ns or 0, row.path


def runs_of(rows: Iterable[Checkpoint]) -> tuple[Run, ...]:
    """The rows by run directory."""
    groups: dict[str, list[Checkpoint]] = defaultdict(list)
    for row in rows:
        groups[run_of_path(row.path)].append(row)
    found = []
    for path, group in sorted(groups.items()):
        best = newest_good(group)
        newer = [row for row in sorted(group, key=_age, reverse=True)
                 if not row.verdict.trusted and (best is None or _is_newer(row, best))]
        found.append(Run(path, best.path if best else None,
                         tuple(Newer(row.path, row.verdict, reason_of(row)) for row in newer)))
    return tuple(found)


def _is_newer(row: Checkpoint, best: Checkpoint) -> bool:
    """By step where both have one, else by time."""
    if row.reading.step is not None and best.reading.step is not None:
        return row.reading.step > best.reading.step
    return (row.saved_at_ns or 0) > (best.saved_at_ns or 0)


def reason_of(row: Checkpoint) -> str:
    """The finding that forced the verdict, in one sentence."""
    forced = [finding for finding in row.reading.findings if finding.verdict is row.verdict]
    return forced[0].summary if forced else ""


def salvageable(reading: Reading) -> tuple[tuple[str, ...], int]:
    """The tensors that are proven or at least whole, and their bytes as stored."""
    good = [tensor for tensor in reading.tensors if tensor.proof is not Proof.DAMAGED]
    return tuple(tensor.name for tensor in good), sum(block.length for tensor in good for block in tensor.blocks)
