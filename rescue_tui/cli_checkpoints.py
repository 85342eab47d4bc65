"""The verb `checkpoints`: documents, tables and progress of a scan."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rescue_tui.checkpoints.model import Checkpoint, CheckpointFinding, Options, Proof, Verdict
from rescue_tui.checkpoints.scan import Run, salvageable
from rescue_tui.cli_documents import Document
from rescue_tui.cli_output import Output
from rescue_tui.core.errors import ExitStatus, UsageError
from rescue_tui.core.finding import Severity
from rescue_tui.core.record import Plain, document, to_plain
from rescue_tui.core.text import human_bytes, human_seconds, printable
from rescue_tui.jobs.damage import AskedMap, KnownMap
from rescue_tui.jobs.scanning import ScanAnswer
from rescue_tui.services import Services

HEADS = ("VERDICT", "FORMAT", "STEP", "SAVED", "SIZE", "TENSORS", "PATH")
# The words say it as well: these are for the eye that runs down the column.
SIGNS = {verdict: verdict.sign for verdict in Verdict}
_BAR_CELLS = 30
_DRAW_SECONDS = 0.2
_LINE_SECONDS = 10.0
_SHOWN_FINDINGS = 8
_SHOWN_TENSORS = 4


async def run(services: Services, arguments: argparse.Namespace, output: Output) -> ExitStatus:
    """`checkpoints scan`: judge, print, and end with 1 when anything is not good."""
    with ScanProgress(output) as progress:
        answer = await services.scan_checkpoints(arguments.paths, Options(values=arguments.values), progress.tick,
                                                 mapfile=asked_map(arguments))
    status = status_of(answer)
    output.document(scan_document(answer))
    _print(answer, output)
    return status


def asked_map(arguments: argparse.Namespace) -> AskedMap | None:
    """The mapfile that was named. UsageError for an offset without one."""
    if arguments.mapfile is None:
        if arguments.map_offset is not None:
            raise UsageError("--map-offset says nothing without --mapfile.", "Name the mapfile as well.")
        return None
    return AskedMap(arguments.mapfile.absolute(), arguments.map_offset)


def status_of(answer: ScanAnswer) -> ExitStatus:
    """Damage when a save is not trusted, or a part of the tree could not be looked at."""
    good = all(row.verdict.trusted for row in answer.scan.checkpoints) and not answer.scan.findings
    return ExitStatus.GOOD if good else ExitStatus.DAMAGE


def scan_document(answer: ScanAnswer) -> Document:
    """The document of the contract, ``stasis.checkpoints/1``."""
    scan = answer.scan
    return document(
        "checkpoints", root=answer.root, scanned_files=scan.scanned_files, scanned_bytes=scan.scanned_bytes,
        newest_good=scan.newest_good, checkpoints=[checkpoint_fields(row) for row in scan.checkpoints],
        runs=[_run_fields(found) for found in scan.runs], unopened_files=scan.unopened,
        findings=[finding_fields(finding) for finding in scan.findings],
        damage_maps=[_map_fields(known) for known in answer.maps])


def _map_fields(known: KnownMap) -> dict[str, object]:
    """A mapfile that was laid over the files; sizes in bytes, null where nobody can tell."""
    return {"mount": known.mount, "mapfile": known.mapfile, "image": known.image or None,
            "offset_bytes": known.offset_bytes, "size_bytes": known.size_bytes, "filesystem": known.filesystem,
            "bad_bytes": known.lost.bad.total_bytes, "unread_bytes": known.lost.unread.total_bytes,
            "in_files_bytes": known.in_files_bytes, "in_free_space_bytes": known.free_bytes,
            "elsewhere_bytes": known.elsewhere_bytes}


def map_line(known: KnownMap) -> str:
    """What was never read of a mounted image, in one line."""
    lost = known.lost
    if not lost:
        return f"{known.mount}: its mapfile says that every sector was read."
    return (f"{known.mount}: {human_bytes(lost.bad.total_bytes)} on bad sectors and "
            f"{human_bytes(lost.unread.total_bytes)} not read yet, says {known.mapfile}.")


def checkpoint_fields(row: Checkpoint) -> dict[str, Plain]:
    """One row."""
    reading = row.reading
    proofs = [tensor.proof for tensor in reading.tensors]
    names, good_bytes = salvageable(reading)
    told: dict[str, object] = {
        "path": row.path, "format": reading.format, "verdict": row.verdict, "step": reading.step,
        "saved_at": _moment(row.saved_at_ns), "size_bytes": row.size_bytes,
        "tensors": {"total": len(proofs), **{proof.value: proofs.count(proof) for proof in Proof}},
        "members": list(reading.members), "findings": [finding_fields(finding) for finding in reading.findings],
        "salvageable": {"tensors": list(names), "bytes": good_bytes},
    }
    fields = to_plain(told)
    assert isinstance(fields, dict)
    return fields


def _moment(nanoseconds: int | None) -> datetime | None:
    try:
        return None if nanoseconds is None else datetime.fromtimestamp(nanoseconds / 1e9, UTC)
    except (ValueError, OverflowError, OSError):  # a time stamp that is damaged as well
        return None


def finding_fields(finding: CheckpointFinding) -> dict[str, Plain]:
    """One finding; ``verdict`` is the one that it forces by itself."""
    fields = to_plain({
        "severity": finding.severity, "code": finding.code, "summary": finding.summary,
        "tensors": list(finding.tensors), "file": finding.file, "offset": finding.offset, "length": finding.length,
        "verdict": finding.verdict,
    })
    assert isinstance(fields, dict)
    return fields


def _run_fields(found: Run) -> dict[str, object]:
    return {"path": found.path, "newest_good": found.newest_good, "newer": [
        {"path": newer.path, "verdict": newer.verdict, "reason": newer.reason} for newer in found.newer]}


def _print(answer: ScanAnswer, output: Output) -> None:
    scan = answer.scan
    output.table(HEADS, [row_cells(row) for row in scan.checkpoints], right=("STEP", "SIZE"))
    for row in scan.checkpoints:
        lines = finding_lines(row)
        if lines:
            output.line()
            output.line(f"{row.path}: {row.verdict.value}")
            output.lines(lines)
    output.lines([map_line(known) for known in answer.maps])
    output.lines([f"{finding.file or '.'}: {finding.summary}" for finding in scan.findings])
    if not scan.checkpoints:
        output.line(f"No checkpoints in {scan.scanned_files} files.")
        return
    output.line()
    output.lines(newest_lines(answer))


def row_cells(row: Checkpoint) -> tuple[str, ...]:
    """One row below HEADS."""
    reading = row.reading
    moment = _moment(row.saved_at_ns)
    damaged = sum(tensor.proof is Proof.DAMAGED for tensor in reading.tensors)
    tensors = f"{len(reading.tensors) - damaged}/{len(reading.tensors)}" if reading.tensors else "-"
    return (f"{SIGNS.get(row.verdict, 'X ')} {row.verdict.value}", reading.format,
            "-" if reading.step is None else str(reading.step),
            "-" if moment is None else moment.strftime("%Y-%m-%d %H:%M"), human_bytes(row.size_bytes), tensors,
            row.path)


def finding_lines(row: Checkpoint) -> list[str]:
    """The findings of a row that ask for attention, the worst first."""
    findings = [finding for finding in row.reading.findings if finding.severity is not Severity.INFO]
    findings.sort(key=lambda finding: (len(Verdict) if finding.verdict is None else finding.verdict.rank))
    lines = []
    for finding in findings[:_SHOWN_FINDINGS]:
        names = ", ".join(finding.tensors[:_SHOWN_TENSORS])
        more = f" and {len(finding.tensors) - _SHOWN_TENSORS} more" if len(finding.tensors) > _SHOWN_TENSORS else ""
        place = f" (at {finding.offset})" if finding.offset else ""
        lines.append(f"  {finding.severity.value}: {finding.summary}{place}{f' [{names}{more}]' if names else ''}")
    if len(findings) > _SHOWN_FINDINGS:
        lines.append(f"  and {len(findings) - _SHOWN_FINDINGS} more findings, see --json")
    return lines


def newest_lines(answer: ScanAnswer) -> list[str]:
    """Which save to take, and for each newer one why not."""
    scan = answer.scan
    lines = [f"Newest good: {scan.newest_good}" if scan.newest_good is not None else "Newest good: none"]
    for found in scan.runs:
        if len(scan.runs) > 1 and found.newest_good is not None:
            lines.append(f"  in {found.path}: {found.newest_good}")
        lines.extend(f"  newer, not good: {newer.path} is {newer.verdict.value}: {newer.reason}"
                     for newer in found.newer)
    return lines


class ScanProgress:
    """A bar on a terminal, else a line now and then: bytes, rate, time to go. To stderr."""

    def __init__(self, output: Output, clock: Callable[[], float] = time.monotonic) -> None:
        self._output = output
        self._clock = clock
        self._on_terminal = output.stderr.isatty()
        self._bar = Live(console=Console(file=output.stderr, highlight=False), auto_refresh=False, transient=True)
        self._began = self._last = clock()

    def __enter__(self) -> Self:
        if self._on_terminal:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._on_terminal:
            self._bar.stop()

    def restart(self) -> None:
        """Another part of the work begins: its rate is its own."""
        self._began = self._last = self._clock()

    def tick(self, name: str, done_bytes: int, total_bytes: int) -> None:
        """Draw again if it is time to."""
        now = self._clock()
        if now - self._last < (_DRAW_SECONDS if self._on_terminal else _LINE_SECONDS):
            return
        self._last = now
        words = progress_words(done_bytes, total_bytes, now - self._began)
        if not self._on_terminal:
            self._output.say(words)
            return
        filled = done_bytes * _BAR_CELLS // max(1, total_bytes)
        self._bar.update(Text(f"[{'#' * filled}{'.' * (_BAR_CELLS - filled)}] {words}, {printable(name)}",
                              no_wrap=True), refresh=True)


def progress_words(done_bytes: int, total_bytes: int, seconds: float) -> str:
    """``50 % of 2.0 GiB, 512.0 MiB/s, 2 s to go``."""
    words = f"{done_bytes * 100 // max(1, total_bytes)} % of {human_bytes(total_bytes)}"
    if seconds > 0 and done_bytes:
        rate = done_bytes / seconds
        words += f", {human_bytes(round(rate))}/s, {human_seconds((total_bytes - done_bytes) / rate)} to go"
    return words
