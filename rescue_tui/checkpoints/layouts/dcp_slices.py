"""Judging the slices of one ``.distcp`` file: each is a whole torch.save archive, one behind the other."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from rescue_tui.checkpoints import torch_zip
from rescue_tui.checkpoints.model import Block, CheckpointFinding, Options, Proof, Reading, Scalar, Verdict
from rescue_tui.checkpoints.registry import MISTAKES, unreadable_reading
from rescue_tui.checkpoints.source import CHUNK_BYTES, EndOfBytes, Source, Span, UnreadableBytes, Window
from rescue_tui.checkpoints.tree import Tree
from rescue_tui.core.finding import Severity

MAX_SLICES = 1_000_000
# APPNOTE.TXT 6.3.10, 4.3.14 and 4.3.16: what miniz writes behind each archive, and PyTorch always in zip64 form.
_EOCD_MAGIC = b"PK\x05\x06"
_EOCD64 = struct.Struct("<4sQHHIIQQQQ")
_EOCD64_MAGIC = b"PK\x06\x06"
_LOCATOR_BYTES = 20
_EOCD_BYTES = 22
_TAIL_BYTES = _EOCD64.size + _LOCATOR_BYTES


class SliceJob(NamedTuple):
    """One file and the runs of it to judge; none: find them by walking archive after archive."""

    path: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class SliceResult:
    """What one slice holds. ``blocks`` are those of its tensor, in offsets of the file."""

    span: Span
    verdict: Verdict
    findings: tuple[CheckpointFinding, ...]
    dtype: str = ""
    shape: tuple[int, ...] = ()
    blocks: tuple[Block, ...] = ()
    proof: Proof = Proof.DAMAGED
    covered: bool = False
    scalar: Scalar | None = None
    big_endian: bool = False


@dataclass(frozen=True, slots=True)
class FileResult:
    """The slices of one file; ``trouble`` when the file itself can't be read, ``rest`` what no archive explains."""

    path: str
    size_bytes: int
    slices: tuple[SliceResult, ...] = ()
    trouble: tuple[CheckpointFinding, ...] = ()
    rest: Span | None = None


def judge_slices(tree: Tree, options: Options, job: SliceJob) -> FileResult:
    """Judge each run of one file as an archive of its own."""
    try:
        with tree.open(job.path) as source:
            if job.spans:
                return FileResult(job.path, source.size_bytes,
                                  tuple(_slice(source, span, options) for span in job.spans))
            spans = tuple(archives(source))
            end = spans[-1].end if spans else 0
            rest = Span(end, source.size_bytes - end) if end < source.size_bytes else None
            return FileResult(job.path, source.size_bytes, tuple(_slice(source, span, options) for span in spans),
                              rest=rest)
    except UnreadableBytes as error:
        return FileResult(job.path, 0, trouble=unreadable_reading(job.path, error.reason).findings)


def archives(source: Source) -> Iterator[Span]:
    """The archives that follow each other from the beginning on, each proven by the places that its end names."""
    start = 0
    count = 0
    for end in _ends(source):
        if end - start < _TAIL_BYTES + _EOCD_BYTES:
            continue
        try:
            magic, *_, size, offset = _EOCD64.unpack(
                source.read_at(end - _EOCD_BYTES - _TAIL_BYTES, _EOCD64.size))
        except (EndOfBytes, UnreadableBytes):
            return
        if magic == _EOCD64_MAGIC and start + offset + size == end - _EOCD_BYTES - _TAIL_BYTES:
            yield Span(start, end - start)
            start = end
            count += 1
            if count >= MAX_SLICES:
                return


def _ends(source: Source) -> Iterator[int]:
    """Behind every end record's magic, in order; a magic within data is told apart by who asks."""
    carry = b""
    at = 0
    while at < source.size_bytes:
        try:
            piece = carry + source.read_at(at, min(CHUNK_BYTES, source.size_bytes - at))
        except (EndOfBytes, UnreadableBytes):
            return
        base = at - len(carry)
        found = piece.find(_EOCD_MAGIC)
        while found >= 0:
            end = base + found + _EOCD_BYTES
            if end <= source.size_bytes:
                yield end
            found = piece.find(_EOCD_MAGIC, found + 1)
        carry = piece[-3:]
        at = base + len(piece)


def _slice(source: Source, span: Span, options: Options) -> SliceResult:
    if span.end > source.size_bytes:
        left = max(0, source.size_bytes - span.offset)
        return _bad(source, span, "slice-cut", Verdict.INCOMPLETE,
                    f"The file ends {span.length - left} bytes before this part does.")
    try:
        reading = torch_zip.read(Window(source, span.offset, span.length), options)
    except UnreadableBytes as error:
        return _bad(source, span, "unreadable", Verdict.INCOMPLETE, f"It can't be read: {error.reason}.")
    except EndOfBytes as error:
        return _bad(source, span, "slice-cut", Verdict.INCOMPLETE, f"It ends too early: {error}.")
    except MISTAKES as error:
        return _bad(source, span, "reader-failed", Verdict.CORRUPT,
                    f"The reader could not make sense of it ({type(error).__name__}).")
    return _result(reading, span)


def _result(reading: Reading, span: Span) -> SliceResult:
    # The reader sees through its window: offsets are the file's already.
    tensor = reading.tensors[0] if len(reading.tensors) == 1 else None
    scalar = reading.tree if isinstance(reading.tree, bool | int | float | str) else None
    if tensor is None:
        return SliceResult(span, reading.verdict, reading.findings, covered=reading.covered, scalar=scalar,
                           proof=Proof.VERIFIED if reading.covered else Proof.UNVERIFIABLE)
    return SliceResult(span, reading.verdict, reading.findings, tensor.dtype, tensor.shape, tensor.blocks, tensor.proof,
                       reading.covered, scalar, tensor.big_endian)


def _bad(source: Source, span: Span, code: str, verdict: Verdict, words: str) -> SliceResult:
    return SliceResult(span, verdict, (CheckpointFinding(
        Severity.ERROR, code, words, verdict, source.name, span.offset, span.length),))
