"""Answers of scans, extractions and salvages as values; ``text`` goes wherever a disk can say something."""

from __future__ import annotations

from pathlib import Path

from rescue_tui.checkpoints.model import Block, Checkpoint, CheckpointFinding, Proof, Reading, TensorEntry, Verdict
from rescue_tui.checkpoints.salvage import Borrowed, Kept, Lost, Selection
from rescue_tui.checkpoints.scan import Scan, conclude
from rescue_tui.checkpoints.survey import Tally
from rescue_tui.core.finding import Severity
from rescue_tui.jobs.extracting import ExtractAnswer, ExtractedCheckpoint
from rescue_tui.jobs.salvaging import SalvageAnswer
from rescue_tui.jobs.scanning import ScanAnswer
from rescue_tui.system.extraction import Copied

SAVED_NS = 1_764_600_000_000_000_000
MIB = 1 << 20


def tensor(name: str, proof: Proof, number: int, file: str) -> TensorEntry:
    """A float32 matrix of 1 MiB."""
    return TensorEntry(name, "float32", (512, 512), (
        Block(file, 4096 + number * MIB, MIB, (0, 0), (512, 512), proof),), proof)


def save(path: str, step: int, *findings: CheckpointFinding, covered: bool = True, text: str = "") -> Checkpoint:
    """A torch zip of four tensors; those that a finding names are damaged."""
    damaged = {name for finding in findings for name in finding.tensors}
    whole = Proof.VERIFIED if covered else Proof.UNVERIFIABLE
    names = [f"model.layers.{number}.weight{text}" for number in range(4)]
    tensors = tuple(tensor(name, Proof.DAMAGED if name in damaged else whole, number, path)
                    for number, name in enumerate(names))
    reading = Reading("torch-zip", findings, tensors, covered and not findings,
                      {f"lr{text}": 0.001, "epoch": 3}, step, (path, f"{path}.json"), 4 * MIB)
    return Checkpoint(path, reading, reading.verdict, 4 * MIB + 4096, SAVED_NS + step * 60_000_000_000)


def flipped(path: str, text: str = "") -> CheckpointFinding:
    """A record whose CRC does not match."""
    return CheckpointFinding(Severity.ERROR, "crc-mismatch", text or "The CRC-32 of data/1 does not match.",
                             Verdict.CORRUPT, path, 4096 + MIB, MIB, (f"model.layers.1.weight{text}",))


def scan(text: str = "") -> Scan:
    """Two runs: in the first the newest save is corrupt and the one before verified, the other has none that is good.
    """
    first, second = f"run-a{text}", f"run-b{text}"
    cut = CheckpointFinding(Severity.ERROR, "cut", text or "The file ends inside data/2.", Verdict.INCOMPLETE,
                            f"{second}/step_50/model.pt", 2 * MIB, None, (f"model.layers.3.weight{text}",))
    bare = CheckpointFinding(Severity.INFO, "crc-off", text or "It was saved without checksums.")
    rows = [
        save(f"{first}/step_100/model.pt", 100, covered=True, text=text),
        save(f"{first}/step_200/model.pt", 200, covered=True, text=text),
        save(f"{first}/step_150/model.pt", 150, bare, covered=False, text=text),
        save(f"{first}/step_300/model.pt", 300, flipped(f"{first}/step_300/model.pt", text), text=text),
        save(f"{second}/step_50/model.pt", 50, cut, text=text),
    ]
    return conclude(rows, Tally(files=12, unreadable=[(f"lost{text}", text or "Input/output error")] if text else []))


def scan_answer(root: Path, text: str = "") -> ScanAnswer:
    """As `scan`, of a directory."""
    return ScanAnswer(str(root), scan(text))


def extract_answer(root: Path, to: Path, rows: list[Checkpoint], text: str = "") -> ExtractAnswer:
    """All rows copied whole; with a text, the last one not."""
    files = tuple(Copied(row.path, row.size_bytes, row.size_bytes, "ab" * 32) for row in rows)
    items = tuple(ExtractedCheckpoint(row, (row.path,), row.size_bytes, not text) for row in rows)
    findings = (CheckpointFinding(Severity.ERROR, "unreadable", text, None, text, 0, 4096),) if text else ()
    return ExtractAnswer(str(root), str(to), tuple({row.verdict for row in rows}), items, (), files, findings,
                         f"{to}/MANIFEST.sha256")


def salvage_answer(path: Path, to: Path, row: Checkpoint, text: str = "") -> SalvageAnswer:
    """Three of four tensors."""
    kept = tuple(Kept(each, each.name, "F32", MIB) for each in row.reading.tensors if each.proof is not Proof.DAMAGED)
    lost = tuple(Lost(each.name, each.dtype, each.shape, "crc-mismatch", text or "The CRC-32 does not match.")
                 for each in row.reading.tensors if each.proof is Proof.DAMAGED)
    borrowed = (Borrowed("names" + text, f"step_200/model.pt{text}", "the same run" + text),)
    return SalvageAnswer(str(path), str(to), row, Selection(kept, lost), borrowed,
                         (f"model.pt{text}.salvaged.safetensors", f"model.pt{text}.salvage.json"), {})
