"""Tensors that lie in a file as they are, in one run each and without a checksum: what a cut and zeros did to them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rescue_tui.checkpoints.model import Block, CheckpointFinding, Proof, TensorEntry, Verdict
from rescue_tui.checkpoints.source import Source, UnreadableBytes
from rescue_tui.checkpoints.zeros import PayloadSpan, inspect_zeros
from rescue_tui.core.finding import Severity


class PlainTensor(NamedTuple):
    """Where a tensor's bytes should be. ``strides`` (elements) where it is not in C order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int
    strides: tuple[int, ...] | None = None
    big_endian: bool = False

    @property
    def end(self) -> int:
        """The first offset behind it."""
        return self.offset + self.length

    def entry(self, file: str, proof: Proof, shift: int = 0) -> TensorEntry:
        """The tensor as it goes into a Reading; ``shift`` is added to its offset."""
        block = Block(
            file, self.offset + shift, self.length, (0,) * len(self.shape), self.shape, proof, strides=self.strides
        )
        return TensorEntry(self.name, self.dtype, self.shape, (block,) if self.length else (), proof, self.big_endian)


@dataclass(frozen=True, slots=True)
class PlainReport:
    """Entries in the order given, what was found, and the payload bytes that are there."""

    tensors: tuple[TensorEntry, ...]
    findings: tuple[CheckpointFinding, ...]
    payload_bytes: int


def error(
    source: Source,
    code: str,
    verdict: Verdict,
    summary: str,
    offset: int | None = None,
    length: int | None = None,
    tensors: tuple[str, ...] = (),
) -> CheckpointFinding:
    """A finding that forces a verdict."""
    return CheckpointFinding(Severity.ERROR, code, summary, verdict, source.name, offset, length, tensors)


def warning(
    source: Source,
    code: str,
    summary: str,
    offset: int | None = None,
    length: int | None = None,
    tensors: tuple[str, ...] = (),
) -> CheckpointFinding:
    """A finding that forces nothing."""
    return CheckpointFinding(Severity.WARNING, code, summary, None, source.name, offset, length, tensors)


def unreadable(source: Source, trouble: UnreadableBytes, shift: int = 0) -> CheckpointFinding:
    """The finding for structure that the medium did not give."""
    return error(source, "unreadable", Verdict.INCOMPLETE, str(trouble), trouble.offset + shift, trouble.length)


def cut_finding(source: Source, tensors: Sequence[PlainTensor], shift: int = 0) -> CheckpointFinding | None:
    """One ``cut`` finding for all tensors that end beyond the end of the file; None where all are inside."""
    size = source.size_bytes
    gone = sorted(
        (tensor for tensor in tensors if tensor.length and tensor.end > size), key=lambda tensor: tensor.offset
    )
    if not gone:
        return None
    end = max(tensor.end for tensor in gone)
    where = "inside" if gone[0].offset < size else "before"
    return error(
        source,
        "cut",
        Verdict.INCOMPLETE,
        f"the file ends {where} {gone[0].name}: {end - size} bytes of {len(gone)} tensors are missing",
        size + shift,
        end - size,
        tuple(tensor.name for tensor in gone),
    )


def judge_plain(
    source: Source,
    tensors: Sequence[PlainTensor],
    damaged: Collection[str] = (),
    shift: int = 0,
) -> PlainReport:
    """Check a file's tensors against its end, its holes and its zeros.

    ``damaged`` names those that the caller found to be wrong already. Nothing is read twice, nothing large is held.
    """
    findings = []
    bad = set(damaged)
    cut = cut_finding(source, tensors, shift)
    if cut is not None:
        findings.append(cut)
        bad.update(cut.tensors)
    zeros = inspect_zeros(
        source, [PayloadSpan(tensor.offset, tensor.length, (tensor.name,)) for tensor in tensors], shift
    )
    findings += zeros.findings
    bad |= zeros.damaged
    entries = tuple(
        tensor.entry(source.name, Proof.DAMAGED if tensor.name in bad else Proof.UNVERIFIABLE, shift)
        for tensor in tensors
    )
    present = sum(max(0, min(tensor.end, source.size_bytes) - tensor.offset) for tensor in tensors)
    return PlainReport(entries, tuple(findings), present)
