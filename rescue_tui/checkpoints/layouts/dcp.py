"""torch.distributed.checkpoint: ``.metadata`` and ``__<rank>_<n>.distcp`` files of archives (filesystem.py).

``.metadata`` is the commit marker: it is written as ``.metadata.tmp`` after all data, then renamed. A save over an
older one leaves old metadata over new data when it dies between, which loads without a word.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rescue_tui.checkpoints import limits
from rescue_tui.checkpoints.desk import Desk, Gathered
from rescue_tui.checkpoints.layouts import integrity
from rescue_tui.checkpoints.layouts.dcp_metadata import Metadata, Slice, Stored, parse
from rescue_tui.checkpoints.layouts.dcp_slices import FileResult, SliceJob, SliceResult, judge_slices
from rescue_tui.checkpoints.layouts.tiling import box_fault, file_gaps
from rescue_tui.checkpoints.model import Block, CheckpointFinding, Proof, Reading, TensorEntry, Verdict
from rescue_tui.checkpoints.names import Promise, promise
from rescue_tui.checkpoints.source import Span
from rescue_tui.checkpoints.survey import Folder, Unit
from rescue_tui.checkpoints.tree import Entry, Kind, Tree, below, child
from rescue_tui.core.finding import Severity

NAME = "dcp"
METADATA = ".metadata"
TEMPORARY = ".metadata.tmp"
BACKUP = ".metadata.bck"
# Data files get their times when they are written, the metadata after all of them; copies by tar and rsync keep them.
STALE_NS = 2_000_000_000
_DATA = re.compile(r"__(?P<rank>\d+)_(?P<number>\d+)\.distcp$")
_RANK_METADATA = re.compile(r"__(?P<rank>\d+)\.metadata$")
_MAX_NAMED = 32


def claims(tree: Tree, folder: Folder) -> Sequence[Unit]:
    """A directory with data files, or with metadata."""
    del tree
    if {METADATA, TEMPORARY, BACKUP} & folder.files or ".distcp" in folder.text:
        return (Unit(NAME, folder.path, folder.path, whole=True),)
    return ()


def judge(desk: Desk, unit: Unit) -> Reading:
    """The whole save."""
    gathered = Gathered("torch-dcp")
    read_into(desk, unit.directory, gathered)
    return gathered.reading()


def read_into(desk: Desk, directory: str, gathered: Gathered) -> None:
    """Judge the save in a directory as a part of a larger one."""
    entries = {below(directory, entry.path): entry for entry in desk.files_below(directory)}
    data = {name: entry for name, entry in entries.items() if name.endswith(".distcp")}
    metadata, used = _metadata(desk, directory, entries, data, gathered)
    if metadata is None:
        _without_metadata(desk, directory, data, gathered)
    else:
        _with_metadata(desk, directory, metadata, data, gathered)
        _stale(entries, used, data, directory, gathered)
    gathered.members.extend(entry.path for entry in entries.values())
    others = [entry.path for name, entry in entries.items() if not name.endswith(".distcp")
              and not name.rpartition("/")[2].startswith(".metadata") and promise(entry.name) is Promise.STRONG]
    for path, reading in desk.readings(others).items():
        gathered.add(reading, f"{path.rpartition('/')[2].rpartition('.')[0]}.")
    integrity.check(desk, directory, gathered)


def _metadata(desk: Desk, directory: str, entries: Mapping[str, Entry], data: Mapping[str, Entry],
              gathered: Gathered) -> tuple[Metadata | None, str]:
    """The metadata that can be used, and the name of its file; findings on why it isn't the usual one."""
    faulty = False
    for name in (METADATA, TEMPORARY, BACKUP):
        if name not in entries:
            continue
        content = desk.bytes_of(child(directory, name), limits.PICKLE_BYTES)
        parsed = parse(content) if content is not None else Metadata(fault="it can't be read", cut=True)
        if not parsed.fault:
            if name != METADATA and not faulty:
                gathered.find(Severity.ERROR, "metadata-not-committed", f"There is no {METADATA}; the save ended "
                              f"before {name} was renamed, which is complete.", Verdict.UNCOMMITTED,
                              child(directory, name))
            return parsed, name
        if name == METADATA:
            faulty = True
            verdict = Verdict.INCOMPLETE if parsed.cut else Verdict.CORRUPT
            gathered.find(Severity.ERROR, "metadata-unusable", f"{METADATA} can't be used: {parsed.fault}.", verdict,
                          child(directory, name))
    if not faulty:
        words = f"{METADATA} is missing, the file that is written last"
        local = sorted(name for name in entries if _RANK_METADATA.search(name))
        if local:
            words += f"; {len(local)} ranks left metadata of their own"
        gathered.find(Severity.ERROR, "metadata-missing",
                      f"{words}. Names of tensors can't be told without it.", Verdict.UNCOMMITTED,
                      child(directory, METADATA))
    if not data:
        gathered.find(Severity.ERROR, "no-data", "There are no data files.", Verdict.INCOMPLETE, directory)
    return None, ""


def _stale(entries: Mapping[str, Entry], used: str, data: Mapping[str, Entry], directory: str,
           gathered: Gathered) -> None:
    newer = sorted((entry.mtime_ns, name) for name, entry in data.items()
                   if entry.mtime_ns > entries[used].mtime_ns + STALE_NS)
    if newer:
        lead = (newer[-1][0] - entries[used].mtime_ns) // 1_000_000_000
        gathered.find(Severity.ERROR, "metadata-stale",
                      f"{len(newer)} of {len(data)} data files are newer than {used} (by up to {lead} s): a later save "
                      "wrote over this one and did not finish, so steps are mixed.", Verdict.INCONSISTENT,
                      child(directory, used))
    elif used == METADATA and TEMPORARY in entries:
        gathered.find(Severity.ERROR, "metadata-in-flight",
                      f"{TEMPORARY} lies beside {METADATA}: a later save had written its data over this one.",
                      Verdict.INCONSISTENT, child(directory, TEMPORARY))


def _with_metadata(desk: Desk, directory: str, metadata: Metadata, data: Mapping[str, Entry],
                   gathered: Gathered) -> None:
    by_file: dict[str, list[Slice]] = defaultdict(list)
    for part in metadata.slices:
        by_file[part.file].append(part)
    outside = [name for name in by_file if name.startswith("/") or ".." in name.split("/")]
    for name in outside:
        gathered.find(Severity.ERROR, "path-outside", f"The metadata names {name}, which is outside of this directory.",
                      Verdict.CORRUPT, child(directory, METADATA), [part.name for part in by_file.pop(name)])
    results: dict[tuple[str, tuple[int, ...] | None], SliceResult] = {}
    for name in sorted(set(by_file) - set(data)):
        lost = list(dict.fromkeys(part.name for part in by_file[name]))
        gathered.find(Severity.ERROR, "member-missing", f"{name} is missing; it holds parts of {len(lost)} items.",
                      Verdict.INCOMPLETE, child(directory, name), lost)
    present = [name for name in sorted(by_file) if name in data]
    plain = {name: [part for part in by_file[name] if not part.transforms] for name in present}
    jobs = [SliceJob(child(directory, name), tuple(Span(part.offset, part.length) for part in plain[name]))
            for name in present]
    for name, result in zip(present, desk.spread(judge_slices, jobs), strict=True):
        _file(desk, name, result, plain[name], gathered)
        gathered.findings.extend(result.trouble)
        for part, found in zip(plain[name], result.slices, strict=False):
            results[part.name, part.origin] = found
        for part in by_file[name]:
            if part.transforms:
                results[part.name, part.origin] = _untold(part)
                gathered.find(Severity.WARNING, "transformed", f"A part of {part.name} is stored as "
                              f"{part.transforms[0]}, which is not read.", None, result.path, (part.name,), part.offset,
                              part.length)
                gathered.covers(False)
        if not result.trouble:
            _gaps(name, result, by_file[name], gathered)
    for name in sorted(set(data) - set(by_file)):
        gathered.find(Severity.WARNING, "member-unknown", f"{name} is not in the metadata: it is left from another "
                      "save, or this one's metadata is not its own.", None, child(directory, name))
    for item in metadata.items:
        if item.dtype:
            gathered.tensors.append(_tensor(item, results, gathered, directory))
        else:
            _object(item, results, gathered, directory)


def _file(desk: Desk, name: str, result: FileResult, parts: Sequence[Slice], gathered: Gathered) -> None:
    """Is each part a good archive, and if not, is the file another save's?"""
    gathered.payload_bytes += sum(part.length for part in parts)
    bad = [found for found in result.slices if found.verdict.rank < Verdict.INTACT.rank]
    if bad and _other_save(desk, result):
        gathered.find(Severity.ERROR, "metadata-mismatch", f"{name} is whole by itself, and its parts do not lie where "
                      "the metadata says: the two are of different saves.", Verdict.INCONSISTENT, result.path,
                      list(dict.fromkeys(part.name for part in parts)))
    else:
        for part, found in zip(parts, result.slices, strict=False):
            gathered.findings.extend(_named(finding, part.name) for finding in found.findings)
    for found in result.slices:
        gathered.covers(found.covered)
    if not result.slices:
        gathered.covers(False)


def _untold(part: Slice) -> SliceResult:
    return SliceResult(Span(part.offset, part.length), Verdict.INTACT, (), proof=Proof.UNVERIFIABLE)


def _named(finding: CheckpointFinding, name: str) -> CheckpointFinding:
    """Tensors within an archive have no names of their own; the metadata's name is theirs."""
    return replace(finding, tensors=(name,))


def _other_save(desk: Desk, result: FileResult) -> bool:
    """True when the file is archives from end to end, whatever the metadata says of it."""
    alone = judge_slices(desk.tree, desk.options, SliceJob(result.path, ()))
    if alone.rest is not None or not alone.slices or any(
            found.verdict.rank < Verdict.INTACT.rank for found in alone.slices):
        return False
    return {found.span for found in alone.slices} != {found.span for found in result.slices}


def _gaps(name: str, result: FileResult, parts: Sequence[Slice], gathered: Gathered) -> None:
    for gap in file_gaps([Span(part.offset, part.length) for part in parts], result.size_bytes)[:_MAX_NAMED]:
        hit = [part.name for part in parts
               if part.offset < gap.span.end and part.offset + part.length > gap.span.offset]
        if gap.overlap:
            gathered.find(Severity.ERROR, "slices-overlap", f"Parts of {name} overlap.", Verdict.CORRUPT, result.path,
                          hit, gap.span.offset, gap.span.length)
        elif gap.span.end == result.size_bytes:
            gathered.find(Severity.WARNING, "trailing-bytes", f"{gap.span.length} bytes at the end of {name} belong to "
                          "no part.", None, result.path, (), gap.span.offset, gap.span.length)
        else:
            gathered.find(Severity.WARNING, "slices-gap", f"{gap.span.length} bytes within {name} belong to no part.",
                          None, result.path, (), gap.span.offset, gap.span.length)


Results = Mapping[tuple[str, tuple[int, ...] | None], SliceResult]


def _tensor(item: Stored, results: Results, gathered: Gathered, directory: str) -> TensorEntry:
    blocks: list[Block] = []
    proofs: list[Proof] = []
    big_endian = False
    fault = box_fault(item.size, [(chunk.offsets, chunk.sizes) for chunk in item.chunks])
    if fault:
        gathered.find(Severity.ERROR, "chunks-do-not-tile", f"The parts of {item.name} don't make it whole: {fault}.",
                      Verdict.CORRUPT, child(directory, METADATA), (item.name,))
        proofs.append(Proof.DAMAGED)
    unplaced = 0
    for chunk in item.chunks:
        found = results.get((item.name, chunk.offsets))
        if found is None and len(item.chunks) == 1:
            found = results.get((item.name, None))  # an index without an offset: a tensor in one piece
        if found is None or found.proof is Proof.DAMAGED:
            unplaced += found is None
            proofs.append(Proof.DAMAGED)
            continue
        if found.blocks and (found.dtype != item.dtype or found.shape != chunk.sizes):
            gathered.find(Severity.ERROR, "slice-of-another-kind",
                          f"The metadata has {item.dtype}{list(chunk.sizes)} for a part of {item.name}, the data file "
                          f"{found.dtype}{list(found.shape)}.", Verdict.INCONSISTENT, found.blocks[0].file,
                          (item.name,), found.span.offset, found.span.length)
            proofs.append(Proof.DAMAGED)
            continue
        proofs.append(found.proof)
        big_endian = big_endian or found.big_endian
        blocks.extend(replace(block, origin=tuple(map(sum, zip(chunk.offsets, block.origin, strict=False)))
                              or chunk.offsets) for block in found.blocks)
    if unplaced and not any(finding.code == "member-missing" for finding in gathered.findings):
        gathered.find(Severity.ERROR, "chunk-missing", f"{unplaced} parts of {item.name} lie nowhere.",
                      Verdict.INCOMPLETE, directory, (item.name,))
    proof = Proof.VERIFIED
    for word in (Proof.UNVERIFIABLE, Proof.DAMAGED):
        if word in proofs:
            proof = word
    return TensorEntry(item.name, item.dtype, item.size, tuple(blocks), proof, big_endian)


def _object(item: Stored, results: Results, gathered: Gathered, directory: str) -> None:
    found = results.get((item.name, None))
    if found is None:
        if not any(finding.code == "member-missing" for finding in gathered.findings):
            gathered.find(Severity.ERROR, "chunk-missing", f"{item.name} lies nowhere.", Verdict.INCOMPLETE, directory,
                          (item.name,))
    elif found.scalar is not None:
        gathered.values.setdefault(item.name, found.scalar)


def _without_metadata(desk: Desk, directory: str, data: Mapping[str, Entry], gathered: Gathered) -> None:
    """Archives can be walked and checked; only their names are lost."""
    names = sorted(name for name, entry in data.items() if entry.kind is Kind.FILE)
    jobs = [SliceJob(child(directory, name), ()) for name in names]
    for name, result in zip(names, desk.spread(judge_slices, jobs), strict=True):
        gathered.findings.extend(result.trouble)
        gathered.payload_bytes += result.size_bytes
        if result.rest is not None or not result.size_bytes:
            rest = result.rest or Span(0, 0)
            gathered.find(Severity.ERROR, "slice-cut", f"{name} ends within an archive, or holds something else from "
                          "there on.", Verdict.INCOMPLETE, result.path, (), rest.offset, rest.length)
        for index, found in enumerate(result.slices):
            label = f"{name}[{index}]"
            gathered.findings.extend(_named(finding, label) for finding in found.findings)
            gathered.covers(found.covered)
            if found.blocks:
                gathered.tensors.append(TensorEntry(label, found.dtype, found.shape, found.blocks, found.proof,
                                                    found.big_endian))
    ranks = {int(match["rank"]) for match in map(_DATA.search, names) if match}
    if ranks:
        lost = sorted(set(range(max(ranks) + 1)) - ranks)
        gathered.missing(directory, [f"__{rank}_0.distcp" for rank in lost], "files of later ranks are there")
