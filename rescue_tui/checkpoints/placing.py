"""A tensor out of its blocks: elements in C order, little endian, in bounded memory whatever the strides.

A block is cut into tiles small enough to hold, whose source bytes and result bytes are both bounded; within a tile,
elements are moved in strided runs along its longest axis, and written in as few runs as its place in the tensor allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Literal, NamedTuple, Protocol

from rescue_tui.checkpoints.decoding import NotDecoded, decoded
from rescue_tui.checkpoints.elements import ITEM_BYTES, swapped
from rescue_tui.checkpoints.model import Block, TensorEntry
from rescue_tui.checkpoints.source import CHUNK_BYTES, BytesSource, Source
from rescue_tui.checkpoints.tree import Tree

TILE_BYTES = 8 << 20
HELD_RUN_BYTES = 32 << 20
Write = Callable[[int, bytes | bytearray | memoryview], None]
_FORMATS: Mapping[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}


class Scratch(Protocol):
    """Room for a decoded run that is too large to hold."""

    def write(self, data: bytes) -> None:
        """Behind what was written before."""

    def source(self) -> Source:
        """What was written, to be read at any place."""


class _Axis(NamedTuple):
    """Size of a dimension and its steps in the source's run and in the tensor, in units."""

    size: int
    source: int
    target: int


class _Region(NamedTuple):
    """Elements to move. Offsets are in units of ``unit_bytes``."""

    source: int
    target: int
    axes: tuple[_Axis, ...]

    @property
    def reach(self) -> int:
        """Units of the source from the first to the last, both counted."""
        return sum((axis.size - 1) * axis.source for axis in self.axes) + 1

    @property
    def units(self) -> int:
        """Units in all."""
        total = 1
        for axis in self.axes:
            total *= axis.size
        return total


def fault_of(tensor: TensorEntry) -> str:
    """Why a tensor can't be put together from what its entry says; nothing where it can."""
    count = prod(tensor.shape)
    item = ITEM_BYTES.get(tensor.dtype)
    if not count:
        return ""
    if not tensor.blocks:
        return "no bytes of it have a place"
    if item is None:
        alone = tensor.blocks[0]
        return "" if len(tensor.blocks) == 1 and alone.strides is None and not alone.codec else (
            f"elements of {tensor.dtype or 'an unknown type'} can't be told apart")
    for block in tensor.blocks:
        if len(block.origin) != len(tensor.shape) or len(block.shape) != len(tensor.shape) or any(
                at < 0 or size < 0 or at + size > whole
                for at, size, whole in zip(block.origin, block.shape, tensor.shape, strict=True)):
            return "a part of it lies outside of its shape"
        if block.strides is not None and (len(block.strides) != len(block.shape) or min(block.strides, default=0) < 0):
            return "a part of it has strides that make no sense"
        if not block.codec and 0 not in block.shape and _needed(block, item) > block.length:
            return "a part of it has fewer bytes than elements"
    if sum(prod(block.shape) for block in tensor.blocks) < count:
        return "parts of it are stored nowhere: a writer may have left out what equals its fill value, or they are lost"
    return ""


def stored_bytes(tensor: TensorEntry) -> int:
    """How many bytes `place` makes of it."""
    item = ITEM_BYTES.get(tensor.dtype)
    return sum(block.length for block in tensor.blocks) if item is None else prod(tensor.shape) * item


def place(tree: Tree, tensor: TensorEntry, scratch: Callable[[], Scratch], write: Write) -> None:
    """Give ``write`` every byte of the tensor with its offset in it.

    ``tensor`` is one that `fault_of` has nothing against. Raises `NotDecoded`, `UnreadableBytes` and `EndOfBytes`.
    """
    item = ITEM_BYTES.get(tensor.dtype)
    for block in tensor.blocks:
        if not prod(block.shape) and item is not None:
            continue
        if block.inline is not None:
            _placed(BytesSource(block.inline, block.file), 0, len(block.inline), tensor, block, scratch, write)
            continue
        with tree.open(block.file) as source:
            _placed(source, block.offset, block.length, tensor, block, scratch, write)


def _placed(source: Source, offset: int, length: int, tensor: TensorEntry, block: Block,
            scratch: Callable[[], Scratch], write: Write) -> None:
    item = ITEM_BYTES.get(tensor.dtype)
    if item is None:
        at = 0
        for piece in source.chunks(offset, length):
            write(at, piece)
            at += len(piece)
        return
    run, start = source, offset
    if block.codec:
        run, start = _held(source, offset, length, block, _needed(block, item), scratch), 0
    swap = tensor.big_endian and ITEM_BYTES[tensor.dtype] > 1
    for region, unit in _regions(tensor, block, item):
        if len(region.axes) == 1 and region.axes[0].source == region.axes[0].target == 1:
            _run(run, start + region.source * unit, region.units * unit, region.target * unit,
                 tensor.dtype if swap else "", write)
        else:
            for tile in _tiles(region, max(1, TILE_BYTES // unit)):
                _tile(run, start, tile, unit, tensor.dtype if swap else "", write)


def _needed(block: Block, item: int) -> int:
    """Bytes of the decoded run up to the last element that is picked."""
    strides = _c_strides(block.shape) if block.strides is None else block.strides
    reach = sum((size - 1) * stride for size, stride in zip(block.shape, strides, strict=True)) + 1
    return (block.start + reach) * item


def _held(source: Source, offset: int, length: int, block: Block, needed: int,
          scratch: Callable[[], Scratch]) -> Source:
    pieces = decoded(block.codec, source.chunks(offset, length), needed)
    if needed <= HELD_RUN_BYTES:
        return BytesSource(b"".join(pieces), block.file)
    room = scratch()
    for piece in pieces:
        room.write(piece)
    return room.source()


def _regions(tensor: TensorEntry, block: Block, item: int) -> Iterator[tuple[_Region, int]]:
    """A block as a region with the fewest axes, in units that a memory view can move."""
    strides = _c_strides(block.shape) if block.strides is None else block.strides
    whole = _c_strides(tensor.shape)
    axes = [_Axis(size, source, target) for size, source, target in zip(block.shape, strides, whole, strict=True)
            if size != 1]
    target = sum(at * step for at, step in zip(block.origin, whole, strict=True))
    source, unit = block.start, item
    if item not in _FORMATS:  # complex128: in halves
        unit = 8
        parts = item // unit
        axes = [_Axis(axis.size, axis.source * parts, axis.target * parts) for axis in axes]
        axes.append(_Axis(parts, 1, 1))
        source, target = source * parts, target * parts
    merged: list[_Axis] = []
    for axis in reversed(axes):
        inner = merged[-1] if merged else None
        if inner and axis.source == inner.source * inner.size and axis.target == inner.target * inner.size:
            merged[-1] = _Axis(axis.size * inner.size, inner.source, inner.target)
        else:
            merged.append(axis)
    yield _Region(source, target, tuple(reversed(merged)) or (_Axis(1, 1, 1),)), unit


def _run(run: Source, offset: int, length: int, target: int, dtype: str, write: Write) -> None:
    """A run that is one in the tensor too."""
    for at in range(0, length, CHUNK_BYTES):
        piece = run.read_at(offset + at, min(CHUNK_BYTES, length - at))
        write(target + at, swapped(piece, dtype) if dtype else piece)


def _tiles(region: _Region, units: int) -> Iterator[_Region]:
    """Regions that hold, and reach over, at most so many units each."""
    pending = [region]
    while pending:
        one = pending.pop()
        if one.reach <= units and one.units <= units:
            yield one
            continue
        # What reaches farthest in the source is cut first; where elements repeat, what counts most.
        if one.reach > units:
            index = max(range(len(one.axes)), key=lambda at: (one.axes[at].size - 1) * one.axes[at].source)
        else:
            index = max(range(len(one.axes)), key=lambda at: one.axes[at].size)
        axis = one.axes[index]
        half = axis.size // 2
        first = (*one.axes[:index], axis._replace(size=half), *one.axes[index + 1 :])
        second = (*one.axes[:index], axis._replace(size=axis.size - half), *one.axes[index + 1 :])
        pending.append(_Region(one.source + half * axis.source, one.target + half * axis.target, second))
        pending.append(_Region(one.source, one.target, first))


def _tile(run: Source, start: int, tile: _Region, unit: int, dtype: str, write: Write) -> None:
    sizes = [axis.size for axis in tile.axes]
    steps = _c_strides(tuple(sizes))
    raw = run.read_at(start + tile.source * unit, tile.reach * unit)
    buffer = bytearray(tile.units * unit)
    with memoryview(raw).cast(_FORMATS[unit]) as source, memoryview(buffer).cast(_FORMATS[unit]) as target:
        along = max(range(len(sizes)), key=sizes.__getitem__)
        axis = tile.axes[along]
        others = [index for index in range(len(sizes)) if index != along]
        for place_ in _places([sizes[index] for index in others]):
            begin = sum(at * tile.axes[index].source for at, index in zip(place_, others, strict=True))
            into = sum(at * steps[index] for at, index in zip(place_, others, strict=True))
            window = target[into : into + (axis.size - 1) * steps[along] + 1 : steps[along]]
            if axis.source:
                window[:] = source[begin : begin + (axis.size - 1) * axis.source + 1 : axis.source]
            else:  # one element for all of the axis (an expanded tensor)
                for at in range(axis.size):
                    window[at] = source[begin]
    _written(tile, swapped(buffer, dtype) if dtype else buffer, unit, write)


def _written(tile: _Region, content: bytes | bytearray, unit: int, write: Write) -> None:
    """The tile's elements in runs as long as they are in the tensor."""
    run = 1
    outer = len(tile.axes)
    while outer and tile.axes[outer - 1].target == run:
        outer -= 1
        run *= tile.axes[outer].size
    view = memoryview(content)
    for number, place_ in enumerate(_places([axis.size for axis in tile.axes[:outer]])):
        into = tile.target + sum(at * axis.target for at, axis in zip(place_, tile.axes[:outer], strict=True))
        write(into * unit, view[number * run * unit : (number + 1) * run * unit])


def _places(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every index in C order."""
    place_ = [0] * len(sizes)
    for _ in range(prod(sizes)):
        yield tuple(place_)
        for index in range(len(sizes) - 1, -1, -1):
            place_[index] += 1
            if place_[index] < sizes[index]:
                break
            place_[index] = 0


def _c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for index in range(len(shape) - 2, -1, -1):
        strides[index] = strides[index + 1] * shape[index + 1]
    return tuple(strides)


__all__ = ["HELD_RUN_BYTES", "TILE_BYTES", "NotDecoded", "Scratch", "Write", "fault_of", "place", "stored_bytes"]
