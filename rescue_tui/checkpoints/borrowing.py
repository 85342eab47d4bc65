"""Names and shapes that a damaged save no longer tells, taken from a save of the same run, and only where all fits.

Bytes are never borrowed: what is proven of them is proven by their own checksums. That the names are another save's is
said with every tensor's file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from rescue_tui.checkpoints import safetensors, torch_zip
from rescue_tui.checkpoints.desk import Desk
from rescue_tui.checkpoints.layouts.dcp_metadata import Metadata, parse
from rescue_tui.checkpoints.layouts.dcp_slices import SliceJob, SliceResult, judge_slices
from rescue_tui.checkpoints.layouts.tiling import box_fault
from rescue_tui.checkpoints.limits import HEADER_BYTES, PICKLE_BYTES
from rescue_tui.checkpoints.model import Proof, Reading, TensorEntry
from rescue_tui.checkpoints.names import step_of_part
from rescue_tui.checkpoints.plain import PlainTensor, judge_plain
from rescue_tui.checkpoints.registry import MISTAKES
from rescue_tui.checkpoints.salvage import Borrowed
from rescue_tui.checkpoints.source import CHUNK_BYTES, EndOfBytes, Source, UnreadableBytes
from rescue_tui.checkpoints.torch_blocks import weakest
from rescue_tui.checkpoints.tree import Entry, Kind, Tree, child

MAX_SIBLINGS = 64
_FAR = 2
_DIGITS = re.compile(r"\d+")
_METADATA, _TEMPORARY = ".metadata", ".metadata.tmp"
_SECTOR_BYTES = 512
_NO_HEADER = frozenset({"header-lost", "header-length", "header-syntax"})


class Loan(NamedTuple):
    """A reading whose tensors have borrowed names, and from where."""

    reading: Reading
    borrowed: tuple[Borrowed, ...]


def borrowed(desk: Desk, path: str, reading: Reading) -> Loan | None:
    """What a sibling adds to a reading that has not one good tensor; None where nothing fits, or nothing is needed."""
    if any(tensor.proof is not Proof.DAMAGED and tensor.blocks and not _nameless(tensor.name)
           for tensor in reading.tensors):
        return None
    try:
        if reading.format == "torch-dcp":
            return _dcp(desk, path, reading)
        if reading.format in {"torch-zip", "torchscript"}:
            return _torch(desk, path, reading)
        if reading.format == "safetensors":
            return _safetensors(desk, path, reading)
    except (UnreadableBytes, EndOfBytes, *MISTAKES):
        return None  # the reading stands as it is
    return None


def told_elsewhere(reading: Reading) -> tuple[Borrowed, ...]:
    """What the readers themselves took from a place that is not the usual one."""
    words = {"metadata-not-committed": "names, shapes and places of tensors",
             "manifest-missing": "places of arrays", "manifest-replaced": "places of arrays"}
    return tuple(Borrowed(words[finding.code], finding.file, finding.summary)
                 for finding in reading.findings if finding.code in words)


def rebuilt_index(reading: Reading) -> bytes | None:
    """The index of a sharded model that lost it, made again from the shards; None where none is missing."""
    if not reading.format.endswith("-sharded") or not any(
            finding.code in {"index-missing", "index-unusable"} for finding in reading.findings):
        return None
    where = {tensor.name: tensor.blocks[0].file.rpartition("/")[2] for tensor in reading.tensors if tensor.blocks}
    total = sum(block.length for tensor in reading.tensors for block in tensor.blocks)
    return json.dumps({"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}, indent=2).encode()


def _nameless(name: str) -> bool:
    """The label of a slice that no metadata names."""
    return bool(re.fullmatch(r".*\.distcp\[\d+\]", name))


# Siblings -------------------------------------------------------------------------------------------------------------
def siblings(tree: Tree, path: str) -> Iterator[Entry]:
    """Files or directories of the same part in other saves of the run, the nearest step first.

    First those beside it, then the same name in directories beside its own; beside the one above only where the names
    differ by numbers alone, since others are other runs.
    """
    parts = path.split("/")
    count = 0
    for level in range(min(3, len(parts))):
        where, own, tail = "/".join(parts[: len(parts) - level - 1]), parts[-1 - level], parts[len(parts) - level :]
        beside = [entry for entry in _listing(tree, where)
                  if entry.name != own and (level < _FAR or not _distance(entry.name, own)[0])]
        beside.sort(key=lambda entry: _distance(entry.name, own))
        for entry in beside:
            found = entry if not tail else _entry(tree, child(entry.path, "/".join(tail))) if (
                entry.kind is Kind.DIRECTORY) else None
            if found is not None:
                count += 1
                yield found
                if count >= MAX_SIBLINGS:
                    return


def _distance(name: str, own: str) -> tuple[bool, int, str]:
    """Names that differ by numbers only come first, then by how far their steps are apart."""
    alike = _DIGITS.sub("0", name) == _DIGITS.sub("0", own)
    mine, other = step_of_part(own), step_of_part(name)
    return not alike, abs(mine.number - other.number) if mine and other else 1 << 62, name


def _listing(tree: Tree, directory: str) -> tuple[Entry, ...]:
    try:
        return tree.listing(directory)
    except UnreadableBytes:
        return ()


def _entry(tree: Tree, path: str) -> Entry | None:
    return next((entry for entry in _listing(tree, path.rpartition("/")[0]) if entry.path == path), None)


# Lone files -----------------------------------------------------------------------------------------------------------
def _torch(desk: Desk, path: str, reading: Reading) -> Loan | None:
    with desk.tree.open(path) as source:
        for entry in siblings(desk.tree, path):
            if entry.kind is not Kind.FILE or not entry.size_bytes:
                continue
            try:
                with desk.tree.open(entry.path) as other:
                    tensors = torch_zip.borrow(source, other)
            except (UnreadableBytes, EndOfBytes, *MISTAKES):
                continue
            if any(tensor.proof is not Proof.DAMAGED for tensor in tensors):
                return Loan(replace(reading, tensors=tensors), (Borrowed(
                    "names, shapes and places of tensors", entry.path,
                    "data.pkl is lost; this one lists storages of the same keys and sizes"),))
    return None


def _safetensors(desk: Desk, path: str, reading: Reading) -> Loan | None:
    if not any(finding.code in _NO_HEADER for finding in reading.findings):
        return None
    with desk.tree.open(path) as source:
        for entry in siblings(desk.tree, path):
            if entry.kind is not Kind.FILE or entry.size_bytes != source.size_bytes:
                continue
            try:
                with desk.tree.open(entry.path) as other:
                    header = safetensors.read_header(other)
                    begin = min((tensor.offset for tensor in header.tensors), default=0)
            except (UnreadableBytes, EndOfBytes, *MISTAKES):
                continue
            if not header.parsed or header.findings or header.end != source.size_bytes or not _same_length(
                    source, begin):
                continue
            bad = _overwritten(source, begin, header.tensors)
            report = judge_plain(source, header.tensors, bad)
            return Loan(replace(reading, tensors=report.tensors, findings=(*reading.findings, *report.findings)), (
                Borrowed("names, shapes and places of tensors", entry.path,
                         "the header is lost; this file has the same size, and no checksum proves that it has the same "
                         "layout"),))
    return None


def _same_length(source: Source, begin: int) -> bool:
    """Our own length of the header is lost as well, or says the same."""
    (length,) = safetensors.HEADER_LENGTH.unpack(source.read_at(0, safetensors.HEADER_LENGTH.size))
    return not 0 < length <= HEADER_BYTES or length + safetensors.HEADER_LENGTH.size == begin


def _overwritten(source: Source, begin: int, tensors: tuple[PlainTensor, ...]) -> frozenset[str]:
    """Tensors that what zeroed the header reaches into: it did so in whole sectors."""
    end = 0
    for piece in source.chunks(0, source.size_bytes):
        rest = piece.lstrip(b"\x00")
        end += len(piece) - len(rest)
        if rest or end > begin + CHUNK_BYTES:
            break
    end = end // _SECTOR_BYTES * _SECTOR_BYTES
    return frozenset(tensor.name for tensor in tensors if tensor.length and begin <= tensor.offset < end)


# torch.distributed.checkpoint -----------------------------------------------------------------------------------------
def _dcp(desk: Desk, path: str, reading: Reading) -> Loan | None:
    directory = "" if path == "." else path
    files = {entry.name: entry for entry in desk.files_below(directory) if entry.name.endswith(".distcp")}
    own = {name: judge_slices(desk.tree, desk.options, SliceJob(entry.path, ())).slices
           for name, entry in files.items()}
    for entry in siblings(desk.tree, directory):
        if entry.kind is not Kind.DIRECTORY:
            continue
        for name in (_METADATA, _TEMPORARY):
            content = desk.bytes_of(child(entry.path, name), PICKLE_BYTES)
            metadata = parse(content) if content else None
            if metadata is None or metadata.fault:
                continue
            tensors = _named(metadata, own)
            if tensors:
                findings = tuple(replace(finding, tensors=tuple(
                    label for label in finding.tensors if not _nameless(label))) for finding in reading.findings)
                return Loan(replace(reading, tensors=tensors, findings=findings), (Borrowed(
                    "names, shapes and places of tensors", child(entry.path, name),
                    "the metadata is lost; this one lists parts of the same types and shapes in the same order"),))
    return None


def _named(metadata: Metadata, own: Mapping[str, tuple[SliceResult, ...]]) -> tuple[TensorEntry, ...]:
    """Our slices under the names of another save's metadata; nothing where any of them does not fit."""
    kinds = {item.name: item for item in metadata.items}
    sizes = {(item.name, chunk.offsets): chunk.sizes for item in metadata.items for chunk in item.chunks}
    found: dict[tuple[str, tuple[int, ...]], SliceResult] = {}
    for file, slices in own.items():
        listed = sorted((part for part in metadata.slices if part.file == file), key=lambda part: part.offset)
        if len(slices) > len(listed):
            return ()
        for part, result in zip(listed, slices, strict=False):
            item = kinds.get(part.name)
            if item is None or part.transforms or bool(item.dtype) != bool(result.blocks or result.dtype):
                return ()
            if not item.dtype:
                continue
            origin = part.origin if part.origin is not None else (0,) * len(item.size)
            if result.dtype != item.dtype or result.shape != sizes.get((part.name, origin)):
                return ()
            found[part.name, origin] = result
    tensors = []
    for item in metadata.items:
        if not item.dtype:
            continue
        results = [(chunk, found.get((item.name, chunk.offsets))) for chunk in item.chunks]
        there = [(chunk, result) for chunk, result in results if result is not None]
        whole = len(there) == len(results) and not box_fault(
            item.size, [(chunk.offsets, chunk.sizes) for chunk in item.chunks])
        proof = weakest(Proof.VERIFIED if whole else Proof.DAMAGED, *(result.proof for _, result in there))
        blocks = tuple(replace(block, origin=tuple(
            a + b for a, b in zip(chunk.offsets, block.origin, strict=True)))
            for chunk, result in there for block in result.blocks if len(block.origin) == len(chunk.offsets))
        tensors.append(TensorEntry(item.name, item.dtype, item.size, blocks, proof,
                                   any(result.big_endian for _, result in there)))
    return tuple(tensors)
