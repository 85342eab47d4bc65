"""The verbs `checkpoints extract` and `checkpoints salvage`: documents, tables and progress; the scan is elsewhere."""

from __future__ import annotations

import argparse

from rescue_tui import cli_checkpoints
from rescue_tui.checkpoints.model import Checkpoint, CheckpointFinding, Proof
from rescue_tui.cli_checkpoints import SIGNS, ScanProgress, asked_map, finding_fields
from rescue_tui.cli_documents import Document
from rescue_tui.cli_output import Output
from rescue_tui.core.errors import ExitStatus
from rescue_tui.core.finding import Severity
from rescue_tui.core.record import document
from rescue_tui.core.text import human_bytes
from rescue_tui.jobs.extracting import ExtractAnswer
from rescue_tui.jobs.salvaging import SalvageAnswer
from rescue_tui.services import Services

EXTRACT_HEADS = ("COPIED", "VERDICT", "FORMAT", "STEP", "FILES", "SIZE", "PATH")
_SHOWN_LOST = 20


async def run(services: Services, arguments: argparse.Namespace, output: Output) -> ExitStatus:
    """The verb's actions: `scan`, `extract`, `salvage`."""
    if arguments.action == "extract":
        return await _extract(services, arguments, output)
    if arguments.action == "salvage":
        return await _salvage(services, arguments, output)
    return await cli_checkpoints.run(services, arguments, output)


async def _extract(services: Services, arguments: argparse.Namespace, output: Output) -> ExitStatus:
    with ScanProgress(output) as progress:
        copying = False

        def copied(name: str, done_bytes: int, total_bytes: int) -> None:
            nonlocal copying
            if not copying:
                progress.restart()
            copying = True
            progress.tick(name, done_bytes, total_bytes)

        answer = await services.extract_checkpoints(arguments.paths, arguments.to.absolute(), arguments.only,
                                                    progress.tick, copied, mapfile=asked_map(arguments))
    status = ExitStatus.GOOD if answer.good else ExitStatus.DAMAGE
    output.document(extract_document(answer, status))
    output.table(EXTRACT_HEADS, [
        ("yes" if item.complete else "NOT WHOLE", *_cells(item.row), str(len(item.files)), human_bytes(item.size_bytes),
         item.row.path) for item in answer.checkpoints], right=("STEP", "FILES", "SIZE"))
    output.lines([_words(finding) for finding in answer.findings])
    output.lines([f"not copied: {row.path} is {row.verdict.value}" for row in answer.not_chosen])
    if answer.manifest:
        there = sum(copied.was_there for copied in answer.files)
        output.line(f"{len(answer.files)} files, {human_bytes(sum(copied.size_bytes for copied in answer.files))}, "
                    f"each read back and equal{f'; {there} were there already' if there else ''}. "
                    f"Manifest: {answer.manifest}")
    return status


def extract_document(answer: ExtractAnswer, status: ExitStatus) -> Document:
    """The document of the contract, ``stasis.checkpoints-extract/1``."""
    return document(
        "checkpoints-extract", root=answer.root, to=answer.to, only=answer.only, exit=status,
        bytes=sum(copied.size_bytes for copied in answer.files), manifest=answer.manifest or None,
        checkpoints=[{"path": item.row.path, "format": item.row.reading.format, "verdict": item.row.verdict,
                      "step": item.row.reading.step, "copied": item.complete, "files": list(item.files),
                      "bytes": item.size_bytes} for item in answer.checkpoints],
        files=[{"path": copied.path, "bytes": copied.size_bytes, "data_bytes": copied.data_bytes,
                "sha256": copied.sha256, "was_there": copied.was_there,
                "never_read": [{"offset": loss.offset, "length": loss.length, "bad": loss.bad}
                               for loss in answer.lost.get(copied.path, ())]} for copied in answer.files],
        not_chosen=[{"path": row.path, "verdict": row.verdict} for row in answer.not_chosen],
        findings=[finding_fields(finding) for finding in answer.findings])


async def _salvage(services: Services, arguments: argparse.Namespace, output: Output) -> ExitStatus:
    with ScanProgress(output) as progress:
        answer = await services.salvage_checkpoint(arguments.path, arguments.to.absolute(), progress.tick,
                                                   mapfile=asked_map(arguments))
    status = ExitStatus.GOOD if answer.whole else ExitStatus.DAMAGE
    output.document({**answer.fields, "exit": int(status)})
    output.lines(salvage_lines(answer))
    return status


def salvage_lines(answer: SalvageAnswer) -> list[str]:
    """What was saved, from where names were borrowed, and what is lost."""
    chosen = answer.chosen
    proven = sum(one.tensor.proof is Proof.VERIFIED for one in chosen.kept)
    total = len(chosen.kept) + len(chosen.lost)
    lines = [f"{answer.row.path}: {SIGNS.get(answer.row.verdict, 'X ')} {answer.row.verdict.value}, "
             f"{answer.row.reading.format}",
             f"{len(chosen.kept)} of {total} tensors saved: {proven} proven by checksums, {len(chosen.kept) - proven} "
             "whole but without a checksum that could prove them."]
    lines += [f"borrowed: {one.what} from {one.file} ({one.note})" for one in answer.borrowed]
    lines += [f"lost: {one.name}: {one.reason}" for one in chosen.lost[:_SHOWN_LOST]]
    if len(chosen.lost) > _SHOWN_LOST:
        lines.append(f"lost: {len(chosen.lost) - _SHOWN_LOST} more, see the JSON file")
    if not total:
        lines += [_words(finding) for finding in answer.row.reading.findings if finding.severity is Severity.ERROR]
    lines += [f"written: {answer.to}/{name}" for name in answer.files]
    return lines


def _cells(row: Checkpoint) -> tuple[str, str, str]:
    step = row.reading.step
    sign = SIGNS.get(row.verdict, "X ")
    return f"{sign} {row.verdict.value}", row.reading.format, "-" if step is None else str(step)


def _words(finding: CheckpointFinding) -> str:
    return f"{finding.severity.value}: {finding.summary}"
