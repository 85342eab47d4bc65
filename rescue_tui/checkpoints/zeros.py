"""Zeros where data should be: file-system holes, zero tails and zeroed blocks under payloads that no checksum covers.

Zero tensors are legitimate (fresh biases, padding, the state of an optimizer at step 0), and a sparse copy turns them
into holes. What tells damage from them is where a run of zeros begins and ends: damage comes in blocks of the file
system and so begins or ends inside a tensor that holds other bytes as well, or takes the whole payload.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rescue_tui.checkpoints.model import CheckpointFinding, Verdict
from rescue_tui.checkpoints.source import EndOfBytes, Source, Span, UnreadableBytes, look_at
from rescue_tui.core.finding import Severity

PAGE_BYTES = 4096
# Gaps between spans that are cheaper to read through than to seek over.
_JOIN_BYTES = 64 << 10
# A run that begins within so few bytes before a page boundary begins at it: small integers and round floats end in
# zero bytes of their own.
_SLACK_BYTES = 16
# Fewer zero bytes than this of a tensor prove nothing about it.
_TOUCH_BYTES = 64
_FINDINGS = 256
_ZERO_PAGE = bytes(PAGE_BYTES)


class PayloadSpan(NamedTuple):
    """A run of payload bytes and the tensors that are stored in it (several where they share a storage)."""

    offset: int
    length: int
    tensors: tuple[str, ...]

    @property
    def end(self) -> int:
        """The first offset behind it."""
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class ZeroReport:
    """``findings`` as they go into a Reading; ``damaged``: names of the tensors that can't be trusted."""

    findings: tuple[CheckpointFinding, ...] = ()
    damaged: frozenset[str] = frozenset()


class _Run(NamedTuple):
    """Whole zero pages from ``offset`` to ``end``; ``first`` and ``last`` widen them to every zero byte around."""

    offset: int
    end: int
    hole: bool
    first: int
    last: int


def inspect_zeros(source: Source, spans: Iterable[PayloadSpan], shift: int = 0) -> ZeroReport:
    """Read every span once and judge the zeros in them. Pass only spans that no matching checksum covers.

    Offsets of spans are those of ``source``; ``shift`` (bytes) is added to reported ones (a `Window`'s start). Spans
    may come in any order and may leave gaps; where they overlap the first keeps the bytes; what lies beyond the end
    of the source is left out (the caller reports a cut). Holes are never read, so a sparse file of any size is quick.
    Findings:

    * ``data-in-hole``: unallocated bytes. Incomplete where a tensor is only partly in the hole, where the whole
      payload is, or where several tensors are to the end of the file; a warning where whole tensors are, since a
      sparse copy of zero tensors looks like that.
    * ``zero-tail``: allocated zeros from inside a tensor to the end of the file: incomplete.
    * ``zero-payload``: all tensors are zero: incomplete; only a warning where there is just one.
    * ``zero-run``: whole 4 KiB pages of zeros inside a tensor that has other bytes beside them: a warning.
    * ``unreadable``: the medium gave no bytes: incomplete.
    """
    size = source.size_bytes
    ordered: list[PayloadSpan] = []
    reach = 0
    for span in sorted(span for span in spans if span.length > 0 and 0 <= span.offset < size):
        start, end = max(span.offset, reach), min(span.end, size)
        if start < end:
            ordered.append(PayloadSpan(start, end - start, span.tensors))
            reach = end
    if not ordered:
        return ZeroReport()
    return _Inspection(source, ordered, shift).report()


class _Inspection:
    def __init__(self, source: Source, spans: Sequence[PayloadSpan], shift: int) -> None:
        self.source = source
        self.spans = spans
        self.shift = shift
        self.starts = [span.offset for span in spans]
        self.payload_end = spans[-1].end
        self.findings: list[CheckpointFinding] = []
        self.damaged: set[str] = set()
        self.runs_of: dict[tuple[str, ...], tuple[int, int, int]] = {}  # tensors: first offset, bytes, runs
        self.lost: list[Span] = []
        self.omitted = 0

    def report(self) -> ZeroReport:
        for segment in self._segments():
            for run in self._merged(segment):
                self._judge(run)
        for tensors, (offset, length, count) in self.runs_of.items():
            places = "a run" if count == 1 else f"{count} runs"
            self._add(
                Severity.WARNING,
                "zero-run",
                None,
                offset,
                length,
                tensors,
                f"{length} zero bytes in {places} of whole 4 KiB blocks lie between other values; "
                "they can be right, or lost blocks",
            )
        for span in self.lost:
            names = _names(self._touched(span.offset, span.end, 1))
            self.damaged.update(names)
            self._add(
                Severity.ERROR,
                "unreadable",
                Verdict.INCOMPLETE,
                span.offset,
                span.length,
                names,
                f"{span.length} bytes can't be read from the medium",
            )
        if self.omitted:
            self._append(
                CheckpointFinding(
                    Severity.WARNING, "findings-omitted", f"{self.omitted} more like these", file=self.source.name
                )
            )
        return ZeroReport(tuple(self.findings), frozenset(self.damaged))

    def _segments(self) -> Iterator[Span]:
        start, end = self.spans[0].offset, self.spans[0].end
        for span in self.spans[1:]:
            if span.offset - end > _JOIN_BYTES:
                yield Span(start, end - start)
                start, end = span.offset, span.end
            end = span.end
        yield Span(start, end - start)

    def _merged(self, segment: Span) -> Iterator[_Run]:
        """Maximal runs, with holes and allocated zero pages that touch joined in one."""
        start = end = -1
        hole = False
        for offset, stop, in_hole in self._zero_parts(segment):
            if offset == end:
                end, hole = stop, hole or in_hole
                continue
            if end > start:
                yield self._widened(segment, start, end, hole)
            start, end, hole = offset, stop, in_hole
        if end > start:
            yield self._widened(segment, start, end, hole)

    def _zero_parts(self, segment: Span) -> Iterator[tuple[int, int, bool]]:
        position = segment.offset
        for hole in self.source.holes(segment.offset, segment.length):
            start, end = max(hole.offset, position), min(hole.end, segment.end)
            if end <= start:
                continue
            yield from self._zero_pages(position, start, segment.end)
            yield start, end, True
            position = end
        yield from self._zero_pages(position, segment.end, segment.end)

    def _zero_pages(self, start: int, end: int, segment_end: int) -> Iterator[tuple[int, int, bool]]:
        """Zero pages between two offsets; the last page of a segment may be a part of one."""
        position = -(-start // PAGE_BYTES) * PAGE_BYTES
        if position >= end:
            return
        for piece in look_at(self.source, [Span(position, end - position)], _zero_pages_of, onward=True):
            if piece.trouble is not None:
                yield from self._page_by_page(piece.offset, piece.offset + piece.length)
            for at, length in piece.found or ():
                stop = piece.offset + at + length
                if length == PAGE_BYTES or stop == segment_end:
                    yield piece.offset + at, stop, False

    def _page_by_page(self, start: int, end: int) -> Iterator[tuple[int, int, bool]]:
        for offset in range(start, end, PAGE_BYTES):
            length = min(PAGE_BYTES, end - offset)
            try:
                piece = self.source.read_at(offset, length)
            except (UnreadableBytes, EndOfBytes):
                if self.lost and self.lost[-1].end == offset:
                    self.lost[-1] = Span(self.lost[-1].offset, self.lost[-1].length + length)
                else:
                    self.lost.append(Span(offset, length))
                continue
            if length == PAGE_BYTES and _is_zero(piece):
                yield offset, offset + length, False

    def _widened(self, segment: Span, start: int, end: int, hole: bool) -> _Run:
        before = self._bytes(max(segment.offset, start - PAGE_BYTES), start)
        behind = self._bytes(end, min(segment.end, end + PAGE_BYTES))
        first = start - (len(before) - len(before.rstrip(b"\0")))
        last = end + (len(behind) - len(behind.lstrip(b"\0")))
        return _Run(start, end, hole, first, last)

    def _bytes(self, start: int, end: int) -> bytes:
        try:
            return self.source.read_at(start, end - start) if end > start else b""
        except (UnreadableBytes, EndOfBytes):
            return b""  # what can't be read is told by the pass itself

    def _touched(self, start: int, end: int, least: int) -> list[PayloadSpan]:
        """Spans with at least ``least`` bytes, or all they have, between two offsets."""
        index = bisect_right(self.starts, end - 1) - 1
        touched = []
        while index >= 0 and self.spans[index].end > start:
            span = self.spans[index]
            if min(span.end, end) - max(span.offset, start) >= min(least, span.length):
                touched.append(span)
            index -= 1
        return touched[::-1]

    def _at_end(self, run: _Run) -> bool:
        rest = self.source.size_bytes - self.payload_end
        return (
            run.last >= self.payload_end
            and rest <= PAGE_BYTES
            and _is_zero(self._bytes(self.payload_end, self.source.size_bytes))
        )

    def _judge(self, run: _Run) -> None:
        touched = self._touched(run.first, run.last, _TOUCH_BYTES)
        if not touched or not self._touched(run.offset, run.end, 1):
            return
        length = run.end - run.offset
        at_end = self._at_end(run)
        partial = any(span.offset < run.first or span.end > run.last for span in touched)
        names = _names(touched)
        from_page = run.offset - run.first < _SLACK_BYTES
        if run.first <= self.spans[0].offset and run.last >= self.payload_end and length >= PAGE_BYTES:
            self._all_zero(run, names, len(self.spans))
        elif run.hole:
            on_edge = at_end and len(touched) > 1 and touched[0].offset == run.offset
            if partial or on_edge:
                where = "to the end of the file " if at_end else ""
                self._damage(
                    "data-in-hole",
                    run,
                    names,
                    f"{length} bytes {where}were never written: a hole of the file system lies under these tensors",
                )
            else:
                self._add(
                    Severity.WARNING,
                    "data-in-hole",
                    None,
                    run.offset,
                    length,
                    names,
                    f"{length} bytes lie in a hole of the file system that takes whole tensors; a sparse copy "
                    "of zero tensors looks like that",
                )
        elif partial and at_end:
            if run.last - run.first >= PAGE_BYTES or (from_page and length >= _TOUCH_BYTES):
                self._damage("zero-tail", run, names, f"the last {length} bytes are zeros that begin inside a tensor")
        elif partial and length >= PAGE_BYTES and (from_page or run.last - run.end < _SLACK_BYTES):
            offset, total, count = self.runs_of.get(names, (run.offset, 0, 0))
            if names in self.runs_of or len(self.runs_of) < _FINDINGS:
                self.runs_of[names] = (offset, total + length, count + 1)
            else:
                self.omitted += 1

    def _all_zero(self, run: _Run, names: tuple[str, ...], count: int) -> None:
        length = run.end - run.offset
        if run.hole:
            self._damage(
                "data-in-hole",
                run,
                names,
                f"the whole payload of {length} bytes was never written: it lies in a hole of the file system",
            )
        elif count > 1:
            self._damage("zero-payload", run, names, f"all {count} tensors are nothing but zeros")
        else:
            self._add(
                Severity.WARNING,
                "zero-payload",
                None,
                run.offset,
                length,
                names,
                "the only tensor is nothing but zeros",
            )

    def _damage(self, code: str, run: _Run, names: tuple[str, ...], summary: str) -> None:
        self.damaged.update(names)
        self._add(Severity.ERROR, code, Verdict.INCOMPLETE, run.offset, run.end - run.offset, names, summary)

    def _add(
        self,
        severity: Severity,
        code: str,
        verdict: Verdict | None,
        offset: int,
        length: int,
        names: tuple[str, ...],
        summary: str,
    ) -> None:
        self._append(
            CheckpointFinding(severity, code, summary, verdict, self.source.name, offset + self.shift, length, names)
        )

    def _append(self, finding: CheckpointFinding) -> None:
        if len(self.findings) < 4 * _FINDINGS:
            self.findings.append(finding)
        else:
            self.omitted += 1


def _names(spans: Iterable[PayloadSpan]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for span in spans for name in span.tensors))


def _zero_pages_of(view: memoryview) -> list[tuple[int, int]]:
    """Offset and length of the pages of a piece that are zero; the last may be a part of one."""
    # The first bytes of all pages in one slice: only where one is zero is a page looked at.
    heads = bytes(view[::PAGE_BYTES])
    found: list[tuple[int, int]] = []
    page = heads.find(0)
    while page >= 0:
        at = page * PAGE_BYTES
        piece = bytes(view[at : at + PAGE_BYTES])
        if _is_zero(piece):
            found.append((at, len(piece)))
        page = heads.find(0, page + 1)
    return found


def _is_zero(piece: bytes) -> bool:
    return piece == _ZERO_PAGE if len(piece) == PAGE_BYTES else piece == bytes(len(piece))
