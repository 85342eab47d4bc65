"""Arrays that Flax stores in flat chunks, as blocks of the whole array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from rescue_tui.checkpoints.model import Block, Proof, TensorEntry


def join_chunks(name: str, shape: tuple[int, ...], parts: Sequence[TensorEntry]) -> TensorEntry:
    """One tensor out of its chunks, which follow each other in C order; damaged where one of them is."""
    blocks: list[Block] = []
    done, elements = 0, math.prod(shape)
    for part in parts:
        for block in part.blocks:
            count = math.prod(block.shape)
            if done + count <= elements:
                blocks += rectangles(block, shape, done)
            done += count
    whole = done == elements and all(part.proof is not Proof.DAMAGED for part in parts)
    return TensorEntry(
        name, parts[0].dtype if parts else "", shape, tuple(blocks), Proof.UNVERIFIABLE if whole else Proof.DAMAGED
    )


def rectangles(block: Block, shape: tuple[int, ...], start: int) -> list[Block]:
    """A run of elements in C order, cut into rectangles of the array: at most two for each dimension.

    ``start`` is the run's first element; the run must end within the array.
    """
    count = math.prod(block.shape)
    item = block.length // count if count else 0
    inner = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    made: list[Block] = []
    position, end = start, start + count
    while position < end:
        origin = []
        rest = position
        for size in inner:
            origin.append(rest // size)
            rest %= size
        # Outwards as long as whole rows begin here and fit.
        axis = max(len(shape) - 1, 0)
        while axis > 0 and not any(origin[axis:]) and end - position >= inner[axis - 1]:
            axis -= 1
        extent: tuple[int, ...] = ()
        if shape:
            rows = min((end - position) // inner[axis], shape[axis] - origin[axis])
            extent = (1,) * axis + (rows,) + shape[axis + 1 :]
        size = math.prod(extent)
        made.append(
            replace(
                block,
                offset=block.offset + (position - start) * item,
                length=size * item,
                origin=tuple(origin),
                shape=extent,
            )
        )
        position += size
    return made
