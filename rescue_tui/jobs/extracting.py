"""Copying good checkpoints to a destination: what belongs to each, what can't be copied, and a manifest beside them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from rescue_tui.checkpoints.damage import BAD, DAMAGE_CODES, PROVEN, UNREAD
from rescue_tui.checkpoints.model import Checkpoint, CheckpointFinding, Options, Verdict
from rescue_tui.checkpoints.names import Promise, ending, promise
from rescue_tui.checkpoints.source import UnreadableBytes
from rescue_tui.checkpoints.tree import Entry, Kind, walk
from rescue_tui.core.damage import Loss, PlaceUnknown
from rescue_tui.core.errors import PolicyRefusal, SetupError, SpaceError
from rescue_tui.core.finding import Severity
from rescue_tui.core.text import human_bytes, printable
from rescue_tui.jobs import manifests
from rescue_tui.jobs.damage import AskedMap
from rescue_tui.jobs.scanning import ScanAnswer, ScanStopped, Tick, scan_paths, start_of
from rescue_tui.system.extraction import Copied, NotCopied, copy, data_runs
from rescue_tui.system.filetree import FileTree
from rescue_tui.system.freshfiles import FreshDirectory, NotStored

DEFAULT_VERDICTS = frozenset({Verdict.VERIFIED, Verdict.INTACT})
SIDE_FILE_BYTES = 64 << 20
# What is kept beside weights and is no checkpoint itself.
_SIDE_ENDINGS = frozenset({"json", "jsonl", "txt", "yaml", "yml", "toml", "md", "model", "jinja", "py", "tiktoken",
                           "vocab", "sha256"})
_SIDE_NAMES = frozenset({"checkpoint", "latest", "latest_checkpointed_iteration.txt", "zero_to_fp32.py"})


@dataclass(frozen=True, slots=True)
class ExtractedCheckpoint:
    """One chosen save: ``complete`` when every file of it is at the destination and proven."""

    row: Checkpoint
    files: tuple[str, ...]
    size_bytes: int
    complete: bool


@dataclass(frozen=True, slots=True)
class ExtractAnswer:
    """``root`` is what all paths are relative to, as in a scan. ``manifest`` is empty when nothing was copied.

    ``lost``: by path, what of a file that was copied was never read from its disk.
    """

    root: str
    to: str
    only: tuple[Verdict, ...]
    checkpoints: tuple[ExtractedCheckpoint, ...] = ()
    not_chosen: tuple[Checkpoint, ...] = ()
    files: tuple[Copied, ...] = ()
    findings: tuple[CheckpointFinding, ...] = ()
    manifest: str = ""
    lost: Mapping[str, Sequence[Loss]] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Everything that was asked for is there and proven."""
        return bool(self.checkpoints) and all(item.complete for item in self.checkpoints) and not any(
            finding.severity is Severity.ERROR for finding in self.findings)


@dataclass(slots=True)
class _Copying:
    """What was copied so far."""

    tree: FileTree
    fresh: FreshDirectory
    findings: list[CheckpointFinding]
    copied: dict[str, Copied] = field(default_factory=dict)
    folded: dict[str, str] = field(default_factory=dict)
    wanted: tuple[str, ...] = ()
    lost: dict[str, tuple[Loss, ...]] = field(default_factory=dict)

    def find(self, severity: Severity, code: str, words: str, path: str, offset: int | None = None,
             length: int | None = None) -> None:
        self.findings.append(CheckpointFinding(severity, code, words, None, path, offset, length))


def extract(paths: Sequence[Path], to: Path, only: Collection[Verdict], tick: Tick | None = None,
            stop: Event | None = None, copy_tick: Tick | None = None, *, root: Path | None = None,
            mapfile: AskedMap | None = None) -> ExtractAnswer:
    """Scan the paths, then copy the checkpoints with these verdicts below ``to``, keeping relative paths.

    ``root``: the paths are rows of a scan of this directory, and nothing but these rows is copied. What of a copied
    file was never read from its disk is told by a finding and by a remark in the manifest.

    ``tick`` hears of the scan, ``copy_tick`` of the copying (its bytes count twice: written and read back). ``stop``
    ends both with ScanStopped; what was copied until then is in the manifest. Raises UsageError, PolicyRefusal when
    ``to`` lies within what is read, SpaceError, SetupError, CommandError.
    """
    start = start_of(paths, root)
    refuse_inside(to, [path for path in paths if path.is_dir()] or [start.root])
    halt = stop or Event()
    answer = scan_paths(paths, Options(), tick, halt, root=root, mapfile=mapfile)
    asked = [row for row in answer.scan.checkpoints
             if root is None or ("" if row.path == "." else row.path) in start.below]
    chosen = [row for row in asked if row.verdict in only]
    others = tuple(row for row in asked if row.verdict not in only)
    order = tuple(verdict for verdict in Verdict if verdict in only)
    findings: list[CheckpointFinding] = list(answer.scan.findings)
    if not chosen:
        words = ", ".join(verdict.value for verdict in order)
        findings.append(CheckpointFinding(Severity.ERROR, "nothing-chosen", "None of "
                                          f"{len(answer.scan.checkpoints)} checkpoints is {words or 'chosen'}."))
        return ExtractAnswer(answer.root, str(to), order, (), others, (), tuple(findings))
    with closing(FileTree(start.root, media=answer.media)) as tree:
        return _copied(tree, answer, chosen, to, findings, copy_tick, halt, others, order)


def _copied(tree: FileTree, answer: ScanAnswer, chosen: Sequence[Checkpoint], to: Path,
            findings: list[CheckpointFinding], copy_tick: Tick | None, halt: Event, others: tuple[Checkpoint, ...],
            order: tuple[Verdict, ...]) -> ExtractAnswer:
    known = {(finding.file, finding.code) for row in chosen for finding in row.reading.findings}
    members = {row.path: files_of(tree, row, answer.scan.checkpoints, findings) for row in chosen}
    wanted = {entry.path: entry for entries in members.values() for entry in entries}
    try:
        fresh = FreshDirectory(to)
    except OSError as error:
        raise SetupError(f"{printable(str(to))} can't be written to: {error.strerror}.",
                         "Name a directory on a mounted destination.") from error
    with fresh:
        work = _Copying(tree, fresh, findings, wanted=tuple(wanted))
        sizes = _sizes(work, wanted)
        _need_room(fresh, sizes)
        _tell_losses(work, known)
        manifest = _copy_all(work, wanted, sizes, to, copy_tick, halt)
    items = tuple(ExtractedCheckpoint(
        row, tuple(entry.path for entry in members[row.path] if entry.path in work.copied),
        sum(work.copied[entry.path].size_bytes for entry in members[row.path] if entry.path in work.copied),
        all(entry.path in work.copied for entry in members[row.path])) for row in chosen)
    return ExtractAnswer(answer.root, str(to), order, items, others, tuple(work.copied.values()), tuple(findings),
                         str(manifest) if manifest else "", work.lost)


def refuse_inside(to: Path, roots: Sequence[Path]) -> None:
    """PolicyRefusal when a directory is, or would be, one of the roots or below it; by inode, not by name alone."""
    known = []
    for root in roots:
        try:
            known.append(os.stat(root))
        except OSError:
            continue
    here = Path(os.path.realpath(to))
    for place in (here, *here.parents):
        try:
            status = os.stat(place)
        except OSError:
            continue
        if any(os.path.samestat(status, other) for other in known):
            raise PolicyRefusal(f"{printable(str(to))} lies within what is read.",
                                "Name a directory elsewhere: nothing is written to where checkpoints are rescued from.")


# What belongs to a checkpoint -----------------------------------------------------------------------------------------
def files_of(tree: FileTree, row: Checkpoint, rows: Sequence[Checkpoint],
             findings: list[CheckpointFinding]) -> list[Entry]:
    """The files to copy for one save, sorted: its members, and what lies beside them and belongs to no other save.

    What can't be copied becomes a finding.
    """
    found: dict[str, Entry] = {}
    for member in row.reading.members:
        if not _safe(member):
            findings.append(_finding(Severity.ERROR, "path-escape", f"{member} leads out of the tree: it is not "
                                     "followed.", member))
            continue
        entry = tree.entry(member)
        if entry is None:
            findings.append(_finding(Severity.ERROR, "member-missing", f"{member} is not there.", member))
        elif entry.kind is Kind.DIRECTORY:
            continue
        elif entry.kind is Kind.SYMLINK:
            linked = _behind(tree, entry, findings)
            if linked is not None:
                found[member] = linked
        elif entry.kind is Kind.FILE:
            found[member] = entry
    claimed = {member for other in rows for member in other.reading.members}
    for directory in sorted({member.rpartition("/")[0] for member in row.reading.members if _safe(member)}):
        for entry in _beside(tree, row, directory):
            if entry.kind is Kind.OTHER:
                findings.append(_finding(Severity.WARNING, "special-file", f"{entry.path} is a device, a socket or a "
                                         "pipe: it is neither opened nor copied.", entry.path))
            elif entry.kind is Kind.FILE and entry.path not in claimed and _is_side_file(entry, row):
                found[entry.path] = entry
    return [found[path] for path in sorted(found)]


def _finding(severity: Severity, code: str, words: str, path: str) -> CheckpointFinding:
    return CheckpointFinding(severity, code, words, None, path)


def _safe(path: str) -> bool:
    return bool(path) and not path.startswith("/") and "\x00" not in path and not (
        {"", ".", ".."} & set(path.split("/")))


def _behind(tree: FileTree, entry: Entry, findings: list[CheckpointFinding]) -> Entry | None:
    """What a link leads to, if that is a file of the tree; it is copied as a file."""
    try:
        behind = tree.entry(tree.resolve(entry.path))
    except (UnreadableBytes, OSError) as error:
        why = error.reason if isinstance(error, UnreadableBytes) else str(error.strerror)
        findings.append(_finding(Severity.ERROR, "link-not-followed", f"{entry.path} is a link to {entry.target}: "
                                 f"{why}; it is not followed.", entry.path))
        return None
    if behind is None or behind.kind is Kind.OTHER:
        findings.append(_finding(Severity.ERROR, "link-not-followed", f"{entry.path} is a link to {entry.target}, "
                                 "which is no file.", entry.path))
        return None
    if behind.kind is Kind.DIRECTORY:
        findings.append(_finding(Severity.WARNING, "link-to-directory", f"{entry.path} is a link to the directory "
                                 f"{entry.target}: it is not copied.", entry.path))
        return None
    return Entry(entry.path, Kind.FILE, behind.size_bytes, behind.mtime_ns)


def _beside(tree: FileTree, row: Checkpoint, directory: str) -> Sequence[Entry]:
    try:
        if directory == ("" if row.path == "." else row.path):
            return walk(tree, directory).entries
        return tree.listing(directory)
    except UnreadableBytes:
        return ()


def _is_side_file(entry: Entry, row: Checkpoint) -> bool:
    """Configuration and tokenizers; for a lone file also what has its name and more."""
    if entry.size_bytes > SIDE_FILE_BYTES:
        return False
    own = row.path.rpartition("/")[2]
    if entry.name.startswith(f"{own}.") and promise(entry.name) is Promise.NOTHING:
        return True
    return entry.name in _SIDE_NAMES or ending(entry.name) in _SIDE_ENDINGS


# Copying --------------------------------------------------------------------------------------------------------------
def _sizes(work: _Copying, wanted: dict[str, Entry]) -> dict[str, tuple[int, int]]:
    """Size and allocated bytes of each file; those that can't be opened are left for the copy to tell of."""
    found = {}
    for path in wanted:
        try:
            with work.tree.open(path) as source:
                found[path] = source.size_bytes, sum(run.length for run in data_runs(source))
        except UnreadableBytes:
            found[path] = 0, 0
    return found


def _tell_losses(work: _Copying, known: Collection[tuple[str, str]]) -> None:
    """Note what was never read; a file whose verdict tells nothing of it, such as a configuration, gets a finding."""
    for path in work.wanted:
        try:
            losses = work.tree.losses(path)
        except (PlaceUnknown, UnreadableBytes):
            continue  # the verdict tells of it, or the copy will
        damaged = any((path, code) in known for code in DAMAGE_CODES)
        if not losses or ((path, PROVEN) in known and not damaged):
            continue
        work.lost[path] = losses
        if not damaged:
            work.find(Severity.ERROR, BAD if losses[0].bad else UNREAD,
                      f"{sum(loss.length for loss in losses)} bytes of {path} were never read from the disk.", path,
                      losses[0].offset, losses[-1].end - losses[0].offset)


def _need_room(fresh: FreshDirectory, sizes: dict[str, tuple[int, int]]) -> None:
    needed = 0
    for path, (size, data) in sizes.items():
        try:
            there = fresh.path.joinpath(path).lstat().st_size == size
        except (OSError, ValueError):
            there = False
        needed += 0 if there else data if fresh.keeps_holes else size
    free = fresh.free_bytes
    if needed > free:
        raise SpaceError(f"The copies need {human_bytes(needed)}, {printable(str(fresh.path))} has "
                         f"{human_bytes(free)} free.", "Choose fewer checkpoints, or another destination.")


def _copy_all(work: _Copying, wanted: dict[str, Entry], sizes: dict[str, tuple[int, int]], to: Path,
              tick: Tick | None, stop: Event) -> Path | None:
    total = 2 * sum(size for size, _ in sizes.values())
    done = 0
    full: SpaceError | None = None
    bare: list[str] = []
    try:
        for path in sorted(wanted):
            clash = _clash(work, path)
            if clash:
                work.find(Severity.ERROR, "case-clash", f"{path} and {clash} are one name at the destination: only the "
                          "latter is copied.", path)
                continue

            def heard(count: int, path: str = path) -> None:
                nonlocal done
                done += count
                if stop.is_set():
                    raise ScanStopped
                if tick is not None and total:
                    tick(path, min(done, total), total)

            try:
                copied = copy(work.tree, path, wanted[path].mtime_ns, work.fresh, heard)
            except NotCopied as error:
                work.find(Severity.ERROR, error.code, error.words, path, error.offset, error.length)
            except NotStored as error:
                work.find(Severity.ERROR, error.code, error.words, path)
                if error.full:
                    full = SpaceError(f"The destination became full at {printable(path)}.",
                                      "Make room or choose fewer checkpoints, then repeat the call: what is there and "
                                      "the same is not copied again.")
                    break
            else:
                work.copied[path] = copied
                bare += [path] if copied.undressed else []
    finally:
        sums = {path: copied.sha256 for path, copied in work.copied.items()}
        manifest = _manifest(to, sums, wanted, work.lost) if sums else None
    if full is not None:
        raise full
    if bare:
        work.find(Severity.WARNING, "metadata-not-kept", f"The destination did not keep times or user attributes of "
                  f"{len(bare)} files.", bare[0])
    return manifest


def _manifest(to: Path, sums: dict[str, str], copied: Collection[str],
              lost: Mapping[str, Sequence[Loss]]) -> Path:
    remarks = {path: [f"{'bad' if loss.bad else 'unread'} {loss.offset}+{loss.length}" for loss in losses]
               for path, losses in lost.items() if path in sums}
    try:
        return manifests.write(to, sums, copied, remarks)
    except OSError as error:
        raise SpaceError(f"The manifest can't be written: {error.strerror}.",
                         "Make room, then repeat the call: what is there and the same is not copied again.") from error


def _clash(work: _Copying, path: str) -> str:
    """The path, or a directory of one, that this one can't be told from where names are stored without case."""
    if not work.fresh.folds_case:
        return ""
    parts = path.split("/")
    for count in range(1, len(parts) + 1):
        part = "/".join(parts[:count])
        other = work.folded.setdefault(part.casefold(), part)
        if other != part:
            return other
    return ""
