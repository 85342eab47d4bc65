"""Checkpoints in words: verdicts, findings, tensors, progress, what a copy has come to. Every text passes `Page`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from rescue_tui.checkpoints.model import Checkpoint, CheckpointFinding, Proof, TensorEntry, Verdict
from rescue_tui.checkpoints.names import run_of_path
from rescue_tui.checkpoints.scan import Run, Scan, salvageable
from rescue_tui.core.finding import Severity
from rescue_tui.core.text import human_bytes, human_seconds
from rescue_tui.jobs.extracting import ExtractAnswer
from rescue_tui.jobs.salvaging import SalvageAnswer
from rescue_tui.ui.background import Place, Work, WorkState
from rescue_tui.ui.describe import Page
from rescue_tui.ui.words import plural, rate_words

# What each verdict says, and what to do about it; docs/CHECKPOINTS.md has the long form.
MEANING = {
    Verdict.VERIFIED: ("whole, and a checksum that matched covers every byte", "Use it."),
    Verdict.INTACT: ("whole and well formed, but some bytes are covered by no checksum",
                     "Use it; compare it with a copy if there is one."),
    Verdict.UNCOMMITTED: ("the data is there, what is written last is missing, or its name is a temporary one",
                          "The weights can be used; the trainer will refuse them."),
    Verdict.INCONSISTENT: ("its parts come from different saves", "Use an older save."),
    Verdict.INCOMPLETE: ("bytes, records or members are missing", "Look on other disks; s salvages what is whole."),
    Verdict.CORRUPT: ("a checksum does not match, or the structure contradicts itself",
                      "s salvages what is still proven."),
    Verdict.EMPTY: ("no bytes, or nothing but zeros", "Use an older save."),
    Verdict.FOREIGN: ("it is called a checkpoint and is something else", "Get the real file."),
}
_STYLES = {Verdict.VERIFIED: "bold green", Verdict.INTACT: "bold green", Verdict.UNCOMMITTED: "bold yellow",
           Verdict.INCONSISTENT: "bold yellow"}
_PROOFS = {Proof.VERIFIED: "++ verified", Proof.UNVERIFIABLE: "+  no checksum", Proof.DAMAGED: "X  DAMAGED"}
_SHOWN = 200
_SHOWN_TENSORS = 6
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def verdict_words(verdict: Verdict) -> str:
    """Sign and word; capitals for what can't be trusted, so that it stands out without colour."""
    return f"{verdict.sign} {verdict.value if verdict.trusted else verdict.value.upper()}"


def verdict_style(verdict: Verdict) -> str:
    """A colour that repeats the words."""
    return _STYLES.get(verdict, "bold red")


def proof_words(proof: Proof) -> str:
    """Sign and words of a tensor."""
    return _PROOFS[proof]


def tensors_words(row: Checkpoint) -> str:
    """``10/12``: not damaged, of all."""
    tensors = row.reading.tensors
    damaged = sum(tensor.proof is Proof.DAMAGED for tensor in tensors)
    return f"{len(tensors) - damaged}/{len(tensors)}" if tensors else "-"


def step_words(row: Checkpoint) -> str:
    """The step, or a dash."""
    return "-" if row.reading.step is None else str(row.reading.step)


def saved_words(row: Checkpoint) -> str:
    """The time of the newest file, UTC."""
    if row.saved_at_ns is None:
        return "-"
    try:
        return f"{datetime.fromtimestamp(row.saved_at_ns / 1e9, UTC):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):  # a time stamp that is damaged as well
        return "-"


def shape_words(tensor: TensorEntry) -> str:
    """``768x50257``; ``scalar`` for no dimension."""
    return "x".join(str(size) for size in tensor.shape) or "scalar"


def stored_bytes_words(tensor: TensorEntry) -> str:
    """Its bytes as they are stored."""
    return human_bytes(sum(block.length for block in tensor.blocks))


def ordered(scan: Scan) -> list[tuple[Run, list[Checkpoint]]]:
    """Runs with their saves: the run of the newest good one first, in each the newest good one, then by age."""
    members: dict[str, list[Checkpoint]] = {run.path: [] for run in scan.runs}
    for row in scan.checkpoints:
        members[run_of_path(row.path)].append(row)
    best = {run.newest_good for run in scan.runs}
    for rows in members.values():
        rows.sort(key=lambda row: (row.path in best, _age(row)), reverse=True)
    runs = sorted(scan.runs, key=lambda run: (
        scan.newest_good is None or run.newest_good != scan.newest_good, run.newest_good is None, run.path))
    return [(run, members[run.path]) for run in runs]


def _age(row: Checkpoint) -> tuple[bool, int, int]:
    return row.reading.step is not None, row.reading.step or 0, row.saved_at_ns or 0


def name_in_run(row: Checkpoint, run: Run) -> str:
    """The path without the run's."""
    return row.path if run.path == "." else row.path.removeprefix(f"{run.path}/")


def slug(*names: str) -> str:
    """A directory name of ASCII letters, digits and ``._-`` made of names from a disk."""
    return (_UNSAFE.sub("-", "-".join(names)).strip("-.") or "checkpoints")[:80]


def newest_words(scan: Scan) -> str:
    """Which save to take; one line."""
    best = next((row for row in scan.checkpoints if row.path == scan.newest_good), None)
    if best is None:
        return "Newest good: NONE. No save here is verified or intact." if scan.checkpoints else (
            f"No checkpoints in {plural(scan.scanned_files, 'file')}.")
    step = "" if best.reading.step is None else f", step {best.reading.step}"
    return f"Newest good: {best.path}  {verdict_words(best.verdict)}{step}"


def place_words(place: Place) -> str:
    """``50 % of 2.0 GiB, 512.0 MiB/s, 2 s to go``."""
    if not place.total_bytes:
        return "looking at directories"
    words = f"{int(place.percent)} % of {human_bytes(place.total_bytes)}"
    if place.left_seconds is not None:
        words += f", {rate_words(place.rate)}, {human_seconds(place.left_seconds)} to go"
    return words


def say_findings(page: Page, findings: Sequence[CheckpointFinding], count: int = _SHOWN) -> None:
    """Findings, what forces the verdict first: severity in words, place and tensors below."""
    order = [Severity.ERROR, Severity.WARNING, Severity.INFO]
    known = sorted(findings, key=lambda each: (
        len(Verdict) if each.verdict is None else each.verdict.rank, order.index(each.severity)))
    for finding in known[:count]:
        page.say(f"{finding.severity.value.upper()}: {finding.summary}",
                 {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow"}.get(finding.severity, ""))
        place = [finding.file] * bool(finding.file)
        place += [f"at byte {finding.offset}"] * (finding.offset is not None)
        place += [f"{finding.length} bytes"] * (finding.length is not None)
        if place:
            page.say(f"    {', '.join(place)}")
        if finding.tensors:
            more = len(finding.tensors) - _SHOWN_TENSORS
            page.say(f"    tensors: {', '.join(finding.tensors[:_SHOWN_TENSORS])}{f' and {more} more' * (more > 0)}")
    if len(known) > count:
        page.say(f"and {len(known) - count} more findings: `stasis checkpoints scan --json` lists them")


def say_verdict(page: Page, row: Checkpoint) -> None:
    """The verdict, what it says and what to do."""
    says, advice = MEANING[row.verdict]
    page.say(f"{verdict_words(row.verdict)}: {says}. {advice}", verdict_style(row.verdict))


def say_checkpoint(page: Page, row: Checkpoint) -> None:
    """Everything that is known of a save but its tensors."""
    reading = row.reading
    page.say(row.path, "bold")
    say_verdict(page, row)
    page.pair("Format", reading.format)
    page.pair("Step", step_words(row))
    page.pair("Saved", f"{saved_words(row)} UTC")
    page.pair("Size", f"{human_bytes(row.size_bytes)} ({row.size_bytes} bytes)")
    proofs = [tensor.proof for tensor in reading.tensors]
    page.pair("Tensors", f"{len(proofs)}: {proofs.count(Proof.VERIFIED)} verified, "
                         f"{proofs.count(Proof.UNVERIFIABLE)} without checksum, {proofs.count(Proof.DAMAGED)} damaged")
    names, good_bytes = salvageable(reading)
    page.pair("Salvageable", f"{plural(len(names), 'tensor')}, {human_bytes(good_bytes)}")
    for name, value in list(reading.values.items())[:_SHOWN]:
        page.pair("Value", f"{name} = {value}")
    page.head("Findings")
    say_findings(page, reading.findings)
    if not reading.findings:
        page.say("None.")
    page.head(f"Members ({len(reading.members)})")
    for member in reading.members[:_SHOWN]:
        page.say(member)
    if len(reading.members) > _SHOWN:
        page.say(f"and {len(reading.members) - _SHOWN} more")


def say_run(page: Page, run: Run) -> None:
    """The newest good save of a run, and why each newer one is not."""
    page.say(f"Run {run.path}: newest good {run.newest_good or 'NONE'}", "bold")
    for newer in run.newer[:_SHOWN]:
        page.say(f"newer, {newer.verdict.sign} {newer.verdict.value.upper()}: {newer.path}: {newer.reason}")
    if not run.newer:
        page.say("No save of this run is newer." if run.newest_good else "")


def say_work(page: Page, work: Work) -> None:
    """The end of a piece of work: its summary, or why there is none."""
    if work.error is not None:
        page.say(f"{work.state.value}. {work.error.summary}", "bold red")
        page.say(work.error.hint)
        if work.error.evidence:
            page.block(work.error.evidence)
    elif work.state is WorkState.CANCELLED:
        page.say("CANCELLED. What was copied whole stays; the file under way stays too, named .partial.", "bold yellow")
    elif isinstance(work.answer, ExtractAnswer):
        _say_extracted(page, work.answer)
    elif isinstance(work.answer, SalvageAnswer):
        _say_salvaged(page, work.answer)


def _say_extracted(page: Page, answer: ExtractAnswer) -> None:
    if answer.good:
        page.say("EXTRACTED: every file is there, and was read back and found equal.", "bold green")
    else:
        page.say("NOT EVERYTHING was extracted; the lines below say what is missing.", "bold red")
    size = human_bytes(sum(copied.size_bytes for copied in answer.files))
    there = sum(copied.was_there for copied in answer.files)
    page.pair("Copied", f"{plural(len(answer.files), 'file')}, {size}{f'; {there} were there already' * bool(there)}")
    if answer.manifest:
        page.pair("Manifest", f"{answer.manifest.rpartition('/')[2]}; sha256sum -c checks the copy on any machine")
    for item in answer.checkpoints[:_SHOWN]:
        page.say(f"{'whole    ' if item.complete else 'NOT WHOLE'}  {verdict_words(item.row.verdict)}  {item.row.path}",
                 "" if item.complete else "bold red")
    for row in answer.not_chosen[:_SHOWN]:
        page.say(f"NOT COPIED: {row.path} is {row.verdict.value} now", "bold red")
    say_findings(page, answer.findings)


def _say_salvaged(page: Page, answer: SalvageAnswer) -> None:
    chosen = answer.chosen
    proven = sum(one.tensor.proof is Proof.VERIFIED for one in chosen.kept)
    total = len(chosen.kept) + len(chosen.lost)
    if chosen.kept:
        page.say(f"SALVAGED: {len(chosen.kept)} of {plural(total, 'tensor')}.",
                 "bold green" if answer.whole else "bold yellow")
    else:
        page.say("NOTHING could be saved.", "bold red")
    page.pair("Proven", f"{proven} by checksums; {len(chosen.kept) - proven} whole, without a checksum")
    for name in answer.files:
        page.pair("Written", name)
    for one in answer.borrowed:
        page.pair("Borrowed", f"{one.what} from {one.file}{f' ({one.note})' * bool(one.note)}")
    for lost in chosen.lost[:_SHOWN]:
        page.say(f"lost: {lost.name}: {lost.reason}")
    if len(chosen.lost) > _SHOWN:
        page.say(f"and {len(chosen.lost) - _SHOWN} more are lost: the JSON file lists them")
    if not total:
        say_findings(page, answer.row.reading.findings)
