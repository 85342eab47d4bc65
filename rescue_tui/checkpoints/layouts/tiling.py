"""Do boxes tile a larger box, and runs a file, without gap or overlap?"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from rescue_tui.checkpoints.source import Span

MAX_PAIRS = 4_000_000


class Gap(NamedTuple):
    """A place where a tiling fails."""

    span: Span
    overlap: bool


def file_gaps(spans: Sequence[Span], size_bytes: int) -> list[Gap]:
    """Where runs leave a gap or overlap each other in a file, its end included."""
    found: list[Gap] = []
    reach = 0
    for span in sorted(spans):
        if span.offset > reach:
            found.append(Gap(Span(reach, span.offset - reach), False))
        elif span.offset < reach and span.length:
            found.append(Gap(Span(span.offset, min(reach, span.end) - span.offset), True))
        reach = max(reach, span.end)
    if reach < size_bytes:
        found.append(Gap(Span(reach, size_bytes - reach), False))
    return found


def box_fault(size: Sequence[int], boxes: Sequence[tuple[Sequence[int], Sequence[int]]]) -> str:
    """Why boxes (offsets, sizes; in elements) don't tile ``size`` exactly; nothing when they do."""
    for offsets, sizes in boxes:
        if len(offsets) != len(size) or len(sizes) != len(size):
            return "a chunk has another count of dimensions"
        if any(offset < 0 or length < 0 or offset + length > limit
               for offset, length, limit in zip(offsets, sizes, size, strict=True)):
            return "a chunk reaches beyond the tensor"
    whole = prod(size)
    covered = sum(prod(sizes) for _, sizes in boxes)
    filled = sorted((tuple(offsets), tuple(sizes)) for offsets, sizes in boxes if prod(sizes))
    if _overlap(filled):
        return "chunks overlap"
    if covered < whole:
        return f"chunks cover {covered} of {whole} elements"
    return "" if covered == whole else f"chunks hold {covered} elements, the tensor has {whole}"


def _overlap(boxes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> bool:
    """Sorted by the first offset, so that only neighbours in the first dimension are compared."""
    compared = 0
    active: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for offsets, sizes in boxes:
        active = [other for other in active if not offsets or other[0][0] + other[1][0] > offsets[0]]
        for start, lengths in active:
            compared += 1
            if all(start[axis] < offsets[axis] + sizes[axis] and offsets[axis] < start[axis] + lengths[axis]
                   for axis in range(len(offsets))):
                return True
        if compared > MAX_PAIRS:  # a count that does not add up is found without this
            return False
        active.append((offsets, sizes))
    return False
