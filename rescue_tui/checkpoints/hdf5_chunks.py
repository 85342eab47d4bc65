"""Datasets in chunks: that chunks tile the dataset, and the checksums that Fletcher-32 and deflate give them."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rescue_tui.checkpoints import hdf5_arrays, hdf5_btree2
from rescue_tui.checkpoints.hdf5_arrays import Slot
from rescue_tui.checkpoints.hdf5_file import LEAST_BYTES
from rescue_tui.checkpoints.hdf5_messages import (
    DEFLATE,
    FLETCHER,
    INDEX_BTREE1,
    INDEX_EXTENSIBLE,
    INDEX_FIXED,
    INDEX_IMPLICIT,
    INDEX_SINGLE,
    SHUFFLE,
    Filter,
    Layout,
)
from rescue_tui.checkpoints.hdf5_objects import Chunk, Hdf, Object
from rescue_tui.checkpoints.hdf5_wire import HdfError, NotFollowedError, fletcher32
from rescue_tui.checkpoints.limits import TENSORS
from rescue_tui.checkpoints.model import Block, CheckpointFinding, Proof, TensorEntry, Verdict
from rescue_tui.checkpoints.plain import error, unreadable, warning
from rescue_tui.checkpoints.source import CHUNK_BYTES, EndOfBytes, Source, UnreadableBytes
from rescue_tui.checkpoints.zeros import PayloadSpan

_SUM = struct.Struct("<I")
_SWAPPED = struct.Struct("<4B")
_FINDINGS = 64
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A chunk as it was found: ``length`` without a checksum behind it, ``extent`` the elements inside the dataset."""

    offset: int
    length: int
    origin: Shape
    extent: Shape
    codec: str
    proof: Proof


@dataclass(slots=True)
class ChunkedData:
    """A chunked dataset; ``spans`` are only those chunks that no checksum covers, ``payload_bytes`` those of all.

    ``covered``: every element is stored under a checksum that matched, and so is the index that says where.
    """

    name: str
    dtype: str
    shape: Shape
    big_endian: bool
    chunk: Shape
    item_bytes: int
    parts: list[Part] = field(default_factory=list)
    spans: list[PayloadSpan] = field(default_factory=list)
    findings: list[CheckpointFinding] = field(default_factory=list)
    payload_bytes: int = 0
    covered: bool = False
    followed: bool = True
    untold: int = 0

    @property
    def chunk_bytes(self) -> int:
        """Of a whole chunk, unpacked."""
        return math.prod(self.chunk) * self.item_bytes

    def find(self, finding: CheckpointFinding) -> None:
        """Keep a finding; of many chunks the first ones tell enough."""
        if len(self.findings) < _FINDINGS:
            self.findings.append(finding)
        else:
            self.untold += 1

    def entry(self, file: str, damaged: bool, proof: Proof, shift: int) -> TensorEntry:
        """The tensor; ``proof`` is what is known of chunks without a checksum of their own."""
        strides = tuple(math.prod(self.chunk[axis + 1 :]) for axis in range(len(self.chunk)))
        blocks = tuple(
            Block(file, part.offset + shift, part.length, part.origin, part.extent,
                  proof if part.proof is Proof.UNVERIFIABLE else part.proof, strides=strides, codec=part.codec)
            for part in self.parts
        )
        whole = bool(blocks) and all(block.proof is Proof.VERIFIED for block in blocks)
        bad = damaged or any(block.proof is Proof.DAMAGED for block in blocks)
        known = Proof.VERIFIED if whole else proof
        return TensorEntry(self.name, self.dtype, self.shape, blocks, Proof.DAMAGED if bad else known, self.big_endian)


def read_chunks(hdf: Hdf, name: str, found: Object, shift: int) -> ChunkedData:
    """Find and check every chunk. Raises `HdfError` where the dataset's own description is damaged."""
    layout, datatype, space = found.layout, found.datatype, found.space
    assert layout is not None
    assert datatype is not None
    assert space is not None
    assert space.shape is not None
    chunk = layout.chunk
    data = ChunkedData(name, datatype.word, space.shape, datatype.big_endian, chunk, datatype.size)
    if len(chunk) != len(space.shape) or 0 in chunk or data.chunk_bytes >= 1 << 62:
        raise HdfError(f"{name} has chunks of another rank or an impossible size")
    expected = math.prod(-(-extent // step) for extent, step in zip(space.shape, chunk, strict=True))
    chunks = _listed(hdf, data, layout, space.most, bool(found.filters), shift)
    if chunks is None:
        data.followed = False
        return data
    places = _checked(hdf, data, chunks, found.filters, layout.bare_edges, shift)
    missing = expected - len(places)
    if missing and not data.findings:
        what = f"{missing} of {expected} chunks of {name} were" if places else f"no chunk of {name} was ever"
        data.find(warning(hdf.source, "never-written", f"{what} stored: they read as the fill value" if places
                          else f"{what} stored: it reads as its fill value", None, None, (name,)))
    if data.untold:
        data.findings.append(warning(hdf.source, "findings-omitted", f"{data.untold} more like these", None, None,
                                     (name,)))
    data.covered = (not missing and not data.findings and found.checksummed and layout.index_kind != INDEX_BTREE1
                    and all(part.proof is Proof.VERIFIED for part in data.parts))
    return data


def _checked(hdf: Hdf, data: ChunkedData, chunks: list[Chunk], filters: tuple[Filter, ...], bare_edges: bool,
             shift: int) -> set[Shape]:
    source = hdf.source
    chunks.sort(key=lambda item: item.offset)
    end = -1
    places: set[Shape] = set()
    for item in chunks:
        axes = tuple(zip(item.origin, data.chunk, data.shape, strict=True))
        extent = tuple(min(step, whole - first) for first, step, whole in axes)
        if any(first % step or size <= 0 for (first, step, _), size in zip(axes, extent, strict=True)):
            continue  # left over from a dataset that was larger
        if item.offset < end or item.origin in places:
            data.find(error(source, "overlap", Verdict.CORRUPT, f"chunks of {data.name} share bytes or places",
                            item.offset + shift, item.length, (data.name,)))
            break
        end = item.offset + item.length
        places.add(item.origin)
        data.payload_bytes += item.length
        inside = max(0, min(item.length, source.size_bytes - item.offset))
        hdf.charge(inside // LEAST_BYTES, item.offset)
        bare = bare_edges and extent != data.chunk
        used = () if bare else tuple(one for index, one in enumerate(filters) if not item.mask >> index & 1)
        data.parts.append(_part(hdf, data, item, used, extent, shift))
    return places


def _listed(hdf: Hdf, data: ChunkedData, layout: Layout, most: Sequence[int | None], filtered: bool,
            shift: int) -> list[Chunk] | None:
    """The chunks that the index names; None where it is not followed."""
    chunks: list[Chunk] = []
    if layout.offset is None:
        return chunks
    name, source = data.name, hdf.source
    try:
        for item in _indexed(hdf, data, layout, most, filtered):
            if len(chunks) >= TENSORS:
                raise NotFollowedError(f"there are more than {TENSORS} of them")
            chunks.append(item)
    except NotFollowedError as trouble:
        data.find(warning(source, "not-followed", f"the chunks of {name} were not checked: {trouble.summary}",
                          layout.offset + shift, None, (name,)))
        return None
    except EndOfBytes:
        data.find(error(source, *hdf.gone(), f"the index of {name}'s chunks lies beyond the end of the file",
                        source.size_bytes + shift, None, (name,)))
    except UnreadableBytes as trouble:
        data.find(replace(unreadable(source, trouble, shift), tensors=(name,)))
    except HdfError as trouble:
        data.find(error(source, "checksum-mismatch" if trouble.checksum else "structure", Verdict.CORRUPT,
                        f"the index of {name}'s chunks: {trouble.summary}", trouble.offset + shift, None, (name,)))
    return chunks


def _indexed(hdf: Hdf, data: ChunkedData, layout: Layout, most: Sequence[int | None],
             filtered: bool) -> Iterator[Chunk]:
    rank, size = len(data.shape), data.chunk_bytes
    at = layout.offset
    assert at is not None
    address = at - hdf.superblock.base
    if layout.index_kind == INDEX_BTREE1:
        yield from hdf.chunks(layout, rank)
    elif layout.index_kind == INDEX_SINGLE:
        yield Chunk((0,) * rank, at, layout.length or 0 if filtered else size, layout.mask)
    elif layout.index_kind == INDEX_IMPLICIT:
        counts = _counts(data.chunk, most)
        fitting = max(0, hdf.source.size_bytes - at) // size + 1  # one beyond the end tells the cut
        for number in range(min(fitting, math.prod(counts))):
            yield Chunk(_origin(number, counts, data.chunk), at + number * size, size, 0)
    elif layout.index_kind == INDEX_FIXED:
        yield from _placed(hdf, data, hdf5_arrays.fixed(hdf, address), most, 0)
    elif layout.index_kind == INDEX_EXTENSIBLE:
        if list(most).count(None) != 1:
            raise HdfError(f"the index of {data.name}'s chunks needs one axis without a limit", at)
        yield from _placed(hdf, data, hdf5_arrays.extensible(hdf, address), most, list(most).index(None))
    else:
        yield from _from_tree(hdf, data, address, filtered)


def _placed(hdf: Hdf, data: ChunkedData, slots: Iterable[Slot], most: Sequence[int | None],
            slowest: int) -> Iterator[Chunk]:
    """Numbers as places: in C order, but for the axis without a limit, which comes first."""
    order = [slowest, *(axis for axis in range(len(most)) if axis != slowest)] if most else []
    chunk = tuple(data.chunk[axis] for axis in order)
    counts = _counts(chunk, [most[axis] for axis in order])
    for slot in slots:
        turned = _origin(slot.number, counts, chunk)
        origin = tuple(turned[order.index(axis)] for axis in range(len(order)))
        length = data.chunk_bytes if slot.length is None else slot.length
        yield Chunk(origin, hdf.superblock.base + slot.address, length, slot.mask)


def _from_tree(hdf: Hdf, data: ChunkedData, address: int, filtered: bool) -> Iterator[Chunk]:
    rank = len(data.shape)
    kind = hdf5_btree2.FILTERED_CHUNKS if filtered else hdf5_btree2.CHUNKS
    for record in hdf5_btree2.records(hdf, address, kind):
        child = record.address()
        length, mask = data.chunk_bytes, 0
        if filtered:
            length = record.odd_number(record.left - 4 - 8 * rank)
            mask = record.number(4)
        origin = tuple(record.number(8) * step for step in data.chunk)
        if child is not None:
            yield Chunk(origin, hdf.superblock.base + child, length, mask)


def _counts(chunk: Sequence[int], most: Sequence[int | None]) -> tuple[int, ...]:
    """Chunks along each axis, at the largest size; 0 for an axis without a limit, which must be the slowest."""
    return tuple(0 if limit is None else -(-limit // step) for step, limit in zip(chunk, most, strict=True))


def _origin(number: int, counts: Sequence[int], chunk: Sequence[int]) -> Shape:
    origin, rest = [], number
    for axis in range(len(chunk) - 1, -1, -1):
        count = counts[axis]
        origin.append((rest % count if count and axis else rest) * chunk[axis])
        rest = rest // count if count else 0
    return tuple(reversed(origin))


def _part(hdf: Hdf, data: ChunkedData, chunk: Chunk, used: tuple[Filter, ...], extent: Shape,
          shift: int) -> Part:
    source, proof = hdf.source, Proof.UNVERIFIABLE
    name = (data.name,)
    place = (chunk.offset + shift, chunk.length, name)
    summed = bool(used) and used[-1].kind == FLETCHER
    length = max(0, chunk.length - _SUM.size) if summed else chunk.length
    try:
        if chunk.offset + chunk.length > source.size_bytes:
            raise EndOfBytes(chunk.offset, chunk.length, source.size_bytes)
        kinds = {one.kind for one in used}
        if kinds <= {SHUFFLE, FLETCHER} and chunk.length != data.chunk_bytes + _SUM.size * (FLETCHER in kinds):
            raise HdfError(f"a chunk has {chunk.length} bytes, its shape needs {data.chunk_bytes}")
        if _sums(source, chunk, [one.kind for one in used], data.chunk_bytes):
            proof = Proof.VERIFIED
        else:
            data.spans.append(PayloadSpan(chunk.offset, chunk.length, name))
    except EndOfBytes:
        proof = Proof.DAMAGED
        code, verdict = hdf.gone()
        data.find(error(source, code, verdict, f"the file ends inside or before a chunk of {data.name}", *place))
    except UnreadableBytes as trouble:
        proof = Proof.DAMAGED
        data.find(replace(unreadable(source, trouble, shift), tensors=name))
    except HdfError as trouble:
        proof = Proof.DAMAGED
        data.find(error(source, "checksum-mismatch" if trouble.checksum else "structure", Verdict.CORRUPT,
                        f"{data.name}: {trouble.summary}", *place))
    steps = used[:-1] if summed else used
    return Part(chunk.offset, length, chunk.origin, extent, "+".join(_word(one) for one in steps), proof)


def _word(step: Filter) -> str:
    """What a block's codec calls a filter."""
    if step.kind == SHUFFLE:
        return f"shuffle{step.item_bytes}"
    return {DEFLATE: "zlib", FLETCHER: "fletcher32"}.get(step.kind, f"filter-{step.kind}")


def _sums(source: Source, chunk: Chunk, used: list[int], size: int) -> bool:
    """True when a checksum covers the chunk and matched, False where it has none. Raises `HdfError` otherwise."""
    length = chunk.length
    if used and used[-1] == FLETCHER:
        if length < _SUM.size:
            raise HdfError("a chunk is shorter than its checksum", chunk.offset, True)
        length -= _SUM.size
        raw = source.read_at(chunk.offset + length, _SUM.size)
        value = fletcher32(source.chunks(chunk.offset, length))
        first, second, third, fourth = _SWAPPED.unpack(_SUM.pack(value))
        # Libraries before 1.6.3 stored the two halves with their bytes swapped.
        if raw not in {_SUM.pack(value), _SWAPPED.pack(second, first, fourth, third)}:
            raise HdfError("the Fletcher-32 checksum of a chunk does not match", chunk.offset, True)
        used = used[:-1]
        if DEFLATE not in used:
            return True
    if used and used[-1] == DEFLATE:
        # Filters before it may change the size; more than this much never comes out of one that adds a checksum.
        exact = all(kind in {SHUFFLE, DEFLATE} for kind in used)
        made = 0
        for piece in _inflated(source.chunks(chunk.offset, length)):
            made += len(piece)
            if made > size + CHUNK_BYTES:
                raise HdfError("a chunk unpacks to more than its shape holds", chunk.offset)
        if exact and made != size:
            raise HdfError(f"a chunk unpacks to {made} bytes, its shape holds {size}", chunk.offset)
        return True
    return length != chunk.length


def _inflated(chunks: Iterable[bytes]) -> Iterator[bytes]:
    engine = zlib.decompressobj()
    try:
        for chunk in chunks:
            rest = chunk
            while rest and not engine.eof:
                yield engine.decompress(rest, CHUNK_BYTES)
                rest = engine.unconsumed_tail
            if engine.eof:
                break
        while not engine.eof:
            piece = engine.decompress(engine.unconsumed_tail, CHUNK_BYTES)
            if not piece:
                break
            yield piece
    except zlib.error as trouble:
        raise HdfError(f"a chunk can't be unpacked: {trouble}", 0, True) from None
    if not engine.eof:
        raise HdfError("a chunk ends before its packed data does", 0, True)
