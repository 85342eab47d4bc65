"""`--values`: numbers in tensors that no training run leaves behind: NaN, infinite, absurdly large.

The highest byte of a little-endian IEEE 754 number holds its sign and the top of its exponent, so the byte alone tells
that a number is out of bounds; only those bytes are looked at, with `bytes.translate`, which runs at memory speed.
"""

from __future__ import annotations

from typing import NamedTuple

from rescue_tui.checkpoints.model import CheckpointFinding, Options, Proof, Reading, TensorEntry
from rescue_tui.checkpoints.source import EndOfBytes, UnreadableBytes
from rescue_tui.checkpoints.tree import Tree
from rescue_tui.core.finding import Severity


class _Layout(NamedTuple):
    """Bytes of an element, bytes between real numbers, and the least high byte (without its sign) that is absurd."""

    step: int
    least: int
    words: str


# float32 and bfloat16: 0x71 begins at 6e29; float64: 0x59 at 1e122; float16 has nothing between its largest number and
# infinity, 0x7c begins infinities and NaN.
_LAYOUTS = {
    "float32": _Layout(4, 0x71, "NaN, infinite or beyond 6e29"),
    "bfloat16": _Layout(2, 0x71, "NaN, infinite or beyond 6e29"),
    "float64": _Layout(8, 0x59, "NaN, infinite or beyond 1e122"), "float16": _Layout(2, 0x7C, "NaN or infinite"),
    "complex64": _Layout(4, 0x71, "NaN, infinite or beyond 6e29"),
    "complex128": _Layout(8, 0x59, "NaN, infinite or beyond 1e122"),
}
_FINDINGS = 256


def inspect_values(tree: Tree, options: Options, reading: Reading) -> tuple[CheckpointFinding, ...]:
    """A warning for each tensor with such numbers. Only what is stored as it is can be looked at."""
    if not options.values:
        return ()
    found: list[CheckpointFinding] = []
    for tensor in reading.tensors:
        layout = _LAYOUTS.get(tensor.dtype)
        if layout is None or tensor.proof is Proof.DAMAGED or any(
                block.codec or block.inline is not None for block in tensor.blocks):
            continue
        finding = _tensor(tree, tensor, layout)
        if finding is not None:
            found.append(finding)
            if len(found) >= _FINDINGS:
                break
    return tuple(found)


def _tensor(tree: Tree, tensor: TensorEntry, layout: _Layout) -> CheckpointFinding | None:
    keep = bytes(value for value in range(256) if value & 0x7F >= layout.least)
    drop = bytes(value for value in range(256) if value not in keep)
    count, first, file = 0, -1, ""
    for block in tensor.blocks:
        try:
            with tree.open(block.file) as source:
                at = block.offset
                for piece in source.chunks(block.offset, block.length):
                    # Chunks are a multiple of every element size from the block's beginning on.
                    high = piece[0 if tensor.big_endian else layout.step - 1 :: layout.step]
                    bad = high.translate(None, drop)
                    if bad and first < 0:
                        first = at + layout.step * min(high.find(bytes([value])) for value in set(bad))
                        file = block.file
                    count += len(bad)
                    at += len(piece)
        except (UnreadableBytes, EndOfBytes):
            return None  # the reader has told of it
    if not count:
        return None
    return CheckpointFinding(Severity.WARNING, "absurd-values", f"{count} numbers of {tensor.name} are {layout.words}.",
                             None, file, first, layout.step, (tensor.name,))
