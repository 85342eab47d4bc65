"""Datasets in chunks: that chunks tile the dataset, and the checksums that Fletcher-32 and deflate give them."""

from __future__ import annotations

import itertools
import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from rescue_tui.checkpoints.hdf5_messages import DEFLATE, FLETCHER, SHUFFLE, Layout
from rescue_tui.checkpoints.hdf5_objects import Chunk, Hdf, Object
from rescue_tui.checkpoints.hdf5_wire import HdfError, fletcher32
from rescue_tui.checkpoints.limits import TENSORS
from rescue_tui.checkpoints.model import Block, CheckpointFinding, Proof, TensorEntry, Verdict
from rescue_tui.checkpoints.plain import error, unreadable, warning
from rescue_tui.checkpoints.source import CHUNK_BYTES, EndOfBytes, Source, UnreadableBytes
from rescue_tui.checkpoints.zeros import PayloadSpan

_SUM = struct.Struct("<I")
_SWAPPED = struct.Struct("<4B")
_SINGLE, _IMPLICIT = 1, 2
_WORDS = {DEFLATE: "zlib", SHUFFLE: "shuffle", FLETCHER: "fletcher32"}


@dataclass(slots=True)
class ChunkedData:
    """A chunked dataset as it was found; ``spans`` are only those chunks that no checksum covers."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    big_endian: bool
    blocks: list[tuple[Chunk, Proof, tuple[int, ...]]] = field(default_factory=list)
    chunk: tuple[int, ...] = ()
    codec: str = ""
    spans: list[PayloadSpan] = field(default_factory=list)
    findings: list[CheckpointFinding] = field(default_factory=list)

    def entry(self, file: str, damaged: bool, proof: Proof, shift: int) -> TensorEntry:
        """The tensor; ``proof`` is what is known of chunks without a checksum of their own."""
        strides = tuple(math.prod(self.chunk[axis + 1 :]) for axis in range(len(self.chunk)))
        blocks = tuple(
            Block(
                file,
                chunk.offset + shift,
                chunk.length,
                chunk.origin,
                extent,
                proof if found is Proof.UNVERIFIABLE else found,
                strides=strides,
                codec=self.codec,
            )
            for chunk, found, extent in self.blocks
        )
        whole = all(block.proof is Proof.VERIFIED for block in blocks) and bool(blocks)
        known = Proof.VERIFIED if whole else proof
        bad = damaged or any(block.proof is Proof.DAMAGED for block in blocks)
        return TensorEntry(self.name, self.dtype, self.shape, blocks, Proof.DAMAGED if bad else known, self.big_endian)


def read_chunks(hdf: Hdf, name: str, found: Object, shift: int) -> ChunkedData:
    """Find and check every chunk. Raises `HdfError` where the dataset's own description is damaged."""
    layout, datatype, shape = found.layout, found.datatype, found.shape
    assert layout is not None
    assert datatype is not None
    assert shape is not None
    chunk = layout.chunk
    if len(chunk) != len(shape) or 0 in chunk or math.prod(chunk) * datatype.size >= 1 << 62:
        raise HdfError(f"{name} has chunks of another rank or an impossible size")
    source = hdf.source
    data = ChunkedData(
        name,
        datatype.word,
        shape,
        datatype.big_endian,
        chunk=chunk,
        codec="+".join(_WORDS.get(kind, f"filter-{kind}") for kind in found.filters),
    )
    size = math.prod(chunk) * datatype.size
    expected = math.prod(-(-extent // step) for extent, step in zip(shape, chunk, strict=True))
    chunks = _listed(hdf, data, layout, size, expected, bool(found.filters), shift)
    if chunks is None:
        return data
    chunks.sort(key=lambda item: item.offset)
    end = -1
    places = set()
    for item in chunks:
        extent = tuple(min(step, whole - first) for step, whole, first in zip(chunk, shape, item.origin, strict=True))
        if any(
            first % step or size_here <= 0 for first, step, size_here in zip(item.origin, chunk, extent, strict=True)
        ):
            continue  # left over from a dataset that was larger
        if item.offset < end or item.origin in places:
            data.findings.append(
                error(
                    source,
                    "overlap",
                    Verdict.CORRUPT,
                    f"chunks of {name} share bytes or places",
                    item.offset + shift,
                    item.length,
                    (name,),
                )
            )
            return data
        end = item.offset + item.length
        places.add(item.origin)
        hdf.charge(item.length // 8, item.offset)
        _check(source, data, item, found.filters, size, extent, shift)
    if len(places) < expected and places:
        data.findings.append(
            warning(
                source,
                "never-written",
                f"{expected - len(places)} of {expected} chunks of {name} were "
                "never stored: they read as the fill value",
                None,
                None,
                (name,),
            )
        )
    elif not places and expected:
        data.findings.append(
            warning(
                source,
                "never-written",
                f"no chunk of {name} was ever stored: it reads as its fill value",
                None,
                None,
                (name,),
            )
        )
    return data


def _listed(
    hdf: Hdf,
    data: ChunkedData,
    layout: Layout,
    size: int,
    expected: int,
    filtered: bool,
    shift: int,
) -> list[Chunk] | None:
    rank = len(data.shape)
    chunks: list[Chunk] = []
    try:
        if layout.offset is None:
            return chunks
        if layout.index_kind == 0:
            chunks.extend(itertools.islice(hdf.chunks(layout, rank), TENSORS))
        elif layout.index_kind == _SINGLE:
            chunks.append(Chunk((0,) * rank, layout.offset, layout.length if filtered else size, layout.mask))
        elif layout.index_kind == _IMPLICIT and expected <= TENSORS:
            origins = _origins(data.shape, data.chunk)
            fitting = max(0, hdf.source.size_bytes - layout.offset) // size + 1  # one beyond the end tells the cut
            chunks = [
                Chunk(origin, layout.offset + number * size, size, 0)
                for number, origin in enumerate(itertools.islice(origins, fitting))
            ]
        else:
            data.findings.append(
                warning(
                    hdf.source,
                    "not-followed",
                    f"the index of {data.name}'s chunks is of a kind that is not followed: they were not checked",
                    layout.offset + shift,
                    None,
                    (data.name,),
                )
            )
            return None
    except EndOfBytes:
        data.findings.append(
            error(
                hdf.source,
                "cut",
                Verdict.INCOMPLETE,
                f"the index of {data.name}'s chunks lies beyond the end of the file",
                hdf.source.size_bytes + shift,
                None,
                (data.name,),
            )
        )
    return chunks


def _origins(shape: tuple[int, ...], chunk: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """First elements of all chunks in C order, one at a time."""
    counts = [-(-extent // step) for extent, step in zip(shape, chunk, strict=True)]
    for number in range(math.prod(counts)):
        origin, rest = [], number
        for count, step in zip(reversed(counts), reversed(chunk), strict=True):
            origin.append(rest % count * step)
            rest //= count
        yield tuple(reversed(origin))


def _check(
    source: Source,
    data: ChunkedData,
    chunk: Chunk,
    filters: tuple[int, ...],
    size: int,
    extent: tuple[int, ...],
    shift: int,
) -> None:
    proof = Proof.UNVERIFIABLE
    place = (chunk.offset + shift, chunk.length, (data.name,))
    used = [kind for index, kind in enumerate(filters) if not chunk.mask >> index & 1]
    try:
        if chunk.offset + chunk.length > source.size_bytes:
            raise EndOfBytes(chunk.offset, chunk.length, source.size_bytes)
        if _sums(source, chunk, used, size):
            proof = Proof.VERIFIED
        else:
            data.spans.append(PayloadSpan(chunk.offset, chunk.length, (data.name,)))
            if not used and chunk.length != size:
                raise HdfError(f"a chunk of {data.name} has {chunk.length} bytes, {size} are needed")
    except EndOfBytes:
        proof = Proof.DAMAGED
        data.findings.append(
            error(source, "cut", Verdict.INCOMPLETE, f"the file ends inside or before a chunk of {data.name}", *place)
        )
    except UnreadableBytes as trouble:
        proof = Proof.DAMAGED
        data.findings.append(unreadable(source, trouble, shift))
    except HdfError as trouble:
        proof = Proof.DAMAGED
        data.findings.append(
            error(
                source,
                "checksum-mismatch" if trouble.checksum else "structure",
                Verdict.CORRUPT,
                f"{data.name}: {trouble.summary}",
                *place,
            )
        )
    data.blocks.append((chunk, proof, extent))


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
    return False


def _inflated(chunks: Iterator[bytes]) -> Iterator[bytes]:
    engine = zlib.decompressobj()
    try:
        for chunk in chunks:
            rest = chunk
            while rest and not engine.eof:
                yield engine.decompress(rest, CHUNK_BYTES)
                rest = engine.unconsumed_tail
        while not engine.eof:
            piece = engine.decompress(engine.unconsumed_tail, CHUNK_BYTES)
            if not piece:
                break
            yield piece
    except zlib.error as trouble:
        raise HdfError(f"a chunk can't be unpacked: {trouble}", 0, True) from None
    if not engine.eof:
        raise HdfError("a chunk ends before its packed data does", 0, True)
