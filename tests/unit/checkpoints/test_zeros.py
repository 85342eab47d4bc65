"""Zeros that are damage, and zeros that are right."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescue_tui.checkpoints.model import Verdict, judge
from rescue_tui.checkpoints.source import BytesSource, Source, Span, UnreadableBytes
from rescue_tui.checkpoints.zeros import PAGE_BYTES, PayloadSpan, ZeroReport, inspect_zeros

HEADER = 200


def noise(length: int, seed: int = 1) -> bytes:
    """Bytes without a zero among them."""
    return bytes(random.Random(seed).choices(range(1, 256), k=length))


@dataclass(frozen=True, slots=True)
class HoleySource(BytesSource):
    """Bytes with chosen holes and places that the medium can't give."""

    gaps: tuple[Span, ...] = ()
    bad: tuple[Span, ...] = ()

    def holes(self, offset: int, length: int) -> tuple[Span, ...]:
        return tuple(gap for gap in self.gaps if gap.offset < offset + length and gap.end > offset)

    def read_at(self, offset: int, length: int) -> bytes:
        for span in self.bad:
            if span.offset < offset + length and span.end > offset:
                raise UnreadableBytes(span.offset, span.length, "EIO")
        return BytesSource.read_at(self, offset, length)


SPANS = [
    PayloadSpan(HEADER, 20000, ("a",)),
    PayloadSpan(HEADER + 20000, 30000, ("b",)),
    PayloadSpan(HEADER + 50000, 10000, ("c",)),
]
GOOD = noise(HEADER + 60000)


def zeroed(data: bytes, start: int, end: int) -> bytes:
    return data[:start] + bytes(end - start) + data[end:]


def look(data: bytes, *holes: tuple[int, int], spans: list[PayloadSpan] | None = None) -> ZeroReport:
    source = HoleySource(data, "m", tuple(Span(start, end - start) for start, end in holes))
    return inspect_zeros(source, SPANS if spans is None else spans)


def codes(report: ZeroReport) -> list[tuple[str, Verdict | None, tuple[str, ...]]]:
    return [(finding.code, finding.verdict, finding.tensors) for finding in report.findings]


def test_data_without_zeros_says_nothing() -> None:
    assert look(GOOD) == ZeroReport()


def test_a_tensor_that_is_wholly_zero_is_right() -> None:
    assert look(zeroed(GOOD, HEADER + 20000, HEADER + 50000)) == ZeroReport()
    assert look(zeroed(GOOD, HEADER + 50000, HEADER + 60000)) == ZeroReport()


def test_a_zeroed_block_is_a_warning_with_the_tensors_name() -> None:
    report = look(zeroed(GOOD, 24576, 28672))
    assert codes(report) == [("zero-run", None, ("b",))]
    assert (report.findings[0].offset, report.findings[0].length) == (24576, 4096)
    assert report.damaged == frozenset()


def test_a_zeroed_block_over_a_boundary_names_both_tensors() -> None:
    assert codes(look(zeroed(GOOD, 16384, 24576))) == [("zero-run", None, ("a", "b"))]


def test_rows_of_zeros_that_no_block_bounds_are_left_alone() -> None:
    assert look(zeroed(GOOD, 24000, 36000)) == ZeroReport()


@pytest.mark.parametrize("start", [24576, 24000, 40960, 47000])
def test_zeros_from_inside_a_tensor_to_the_end_are_incomplete(start: int) -> None:
    report = look(zeroed(GOOD, start, len(GOOD)))
    assert codes(report) == [("zero-tail", Verdict.INCOMPLETE, ("b", "c"))]
    assert report.damaged == {"b", "c"}


def test_a_lost_last_block_shorter_than_a_page_is_incomplete() -> None:
    start = len(GOOD) // PAGE_BYTES * PAGE_BYTES
    assert codes(look(zeroed(GOOD, start, len(GOOD)))) == [("zero-tail", Verdict.INCOMPLETE, ("c",))]


def test_last_values_of_zero_are_right() -> None:
    assert look(zeroed(GOOD, len(GOOD) - 32, len(GOOD))) == ZeroReport()


def test_a_hole_from_inside_a_tensor_is_damage() -> None:
    report = look(zeroed(GOOD, 24576, 28672), (24576, 28672))
    assert codes(report) == [("data-in-hole", Verdict.INCOMPLETE, ("b",))]
    report = look(zeroed(GOOD, 24576, len(GOOD)), (24576, len(GOOD)))
    assert codes(report) == [("data-in-hole", Verdict.INCOMPLETE, ("b", "c"))]


def test_a_sparse_copy_of_a_zero_tensor_is_only_a_warning() -> None:
    report = look(zeroed(GOOD, HEADER + 20000, HEADER + 50000), (20480, 49152))
    assert codes(report) == [("data-in-hole", None, ("b",))]
    report = look(zeroed(GOOD, HEADER + 50000, HEADER + 60000), (53248, len(GOOD)))
    assert codes(report) == [("data-in-hole", None, ("c",))]


def test_a_payload_of_nothing_but_zeros() -> None:
    data = zeroed(GOOD, HEADER, len(GOOD))
    assert codes(look(data)) == [("zero-payload", Verdict.INCOMPLETE, ("a", "b", "c"))]
    assert codes(look(data, (4096, len(data)))) == [("data-in-hole", Verdict.INCOMPLETE, ("a", "b", "c"))]
    only = [PayloadSpan(HEADER, 60000, ("a",))]
    assert codes(look(data, spans=only)) == [("zero-payload", None, ("a",))]
    assert codes(look(data, (4096, len(data)), spans=only)) == [("data-in-hole", Verdict.INCOMPLETE, ("a",))]


def test_holes_are_not_read() -> None:
    @dataclass(frozen=True, slots=True)
    class Huge(HoleySource):
        @property
        def size_bytes(self) -> int:
            return 1 << 62

        def read_at(self, offset: int, length: int) -> bytes:
            assert length <= 1 << 20
            return (self.data + bytes(1 << 20))[offset : offset + length] if offset < 1 << 20 else bytes(length)

    source: Source = Huge(GOOD[:8192], "m", (Span(8192, (1 << 62) - 8192),))
    report = inspect_zeros(source, [PayloadSpan(HEADER, (1 << 62) - HEADER, ("a",))])
    assert codes(report) == [("data-in-hole", Verdict.INCOMPLETE, ("a",))]


def test_unreadable_bytes_are_told_and_the_rest_is_read() -> None:
    data = zeroed(GOOD, 40960, 45056)
    report = inspect_zeros(HoleySource(data, "m", (), (Span(8192, 4096), Span(12288, 10))), SPANS, shift=7)
    assert codes(report) == [("zero-run", None, ("b",)), ("unreadable", Verdict.INCOMPLETE, ("a",))]
    assert (report.findings[1].offset, report.findings[1].length) == (8199, 8192)
    assert report.damaged == {"a"}


def test_spans_far_apart_are_read_without_what_lies_between() -> None:
    data = noise(4096) + bytes(1 << 20) + noise(4096)
    spans = [PayloadSpan(0, 4096, ("a",)), PayloadSpan((1 << 20) + 4096, 4096, ("b",))]
    assert look(data, spans=spans) == ZeroReport()


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(-5, 70000), st.integers(-5, 70000)), max_size=8),
    st.lists(st.tuples(st.integers(0, 70000), st.integers(0, 70000)), max_size=6),
    st.booleans(),
)
def test_any_spans_over_any_zeros_end_in_a_report(
    places: list[tuple[int, int]],
    zeros: list[tuple[int, int]],
    sparse: bool,
) -> None:
    data = GOOD
    for start, length in zeros:
        end = min(start + length, len(data))
        data = zeroed(data, start, end) if start < end else data
    holes = tuple(Span(0, 4096 * index) for index in range(3)) if sparse else ()
    spans = [PayloadSpan(offset, length, (f"t{index}",)) for index, (offset, length) in enumerate(places)]
    report = inspect_zeros(HoleySource(data, "m", holes), spans)
    assert judge(report.findings, False) in {Verdict.INTACT, Verdict.INCOMPLETE}
    assert report.damaged <= {name for span in spans for name in span.tensors}
