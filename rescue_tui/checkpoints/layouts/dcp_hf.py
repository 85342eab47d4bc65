"""DCP's Hugging Face variant: each rank writes safetensors with its part of every tensor (hf_storage.py, _hf_utils.py).

``shard-<rank>-model-<k>-of-<n>.safetensors``, counted from 1; DCP_SHARDING_INFO in a header tells the offsets of each
part. No file tells the whole shape of a tensor: it is as large as the parts reach.
"""

from __future__ import annotations

import json
import re
import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rescue_tui.checkpoints.desk import Desk, Gathered
from rescue_tui.checkpoints.layouts.tiling import box_fault
from rescue_tui.checkpoints.limits import HEADER_BYTES
from rescue_tui.checkpoints.model import Proof, Reading, TensorEntry, Verdict
from rescue_tui.checkpoints.source import EndOfBytes, UnreadableBytes
from rescue_tui.checkpoints.tree import child
from rescue_tui.core.finding import Severity

SHARD = re.compile(r"^shard-(?P<rank>\d{5})-(?P<rest>.+)$")
_LENGTH = struct.Struct("<Q")
_MAX_RANKS = 1 << 16

Offsets = Mapping[str, tuple[int, ...]]


def merge(desk: Desk, directory: str, readings: Mapping[str, Reading], gathered: Gathered) -> None:
    """Put the parts of each tensor together, and say which ranks and parts are missing."""
    ranks = {int(match["rank"]): match["rest"] for name in readings if (match := SHARD.match(name))}
    if max(ranks, default=0) <= _MAX_RANKS:
        gathered.missing(directory, [f"shard-{rank:05d}-{ranks[max(ranks)]}" for rank in range(1, max(ranks, default=0))
                                     if rank not in ranks], "shards of later ranks are there")
    gathered.find(Severity.INFO, "shapes-not-told", "Shards that ranks wrote by themselves don't tell the whole shape "
                  "of a tensor: a lost last shard can't be noticed.", None, directory)
    parts: dict[str, list[tuple[tuple[int, ...], TensorEntry]]] = defaultdict(list)
    for name, reading in readings.items():
        offsets = _offsets(desk, child(directory, name))
        for tensor in reading.tensors:
            parts[tensor.name].append((offsets.get(tensor.name, (0,) * len(tensor.shape)), tensor))
    gathered.tensors = [_merged(name, found, directory, gathered) for name, found in parts.items()]


def _offsets(desk: Desk, path: str) -> Offsets:
    """Where the parts in one file begin, by tensor; empty where the header does not tell."""
    try:
        with desk.tree.open(path) as source:
            (length,) = _LENGTH.unpack(source.read_at(0, _LENGTH.size))
            if length > min(HEADER_BYTES, source.size_bytes):
                return {}
            header = json.loads(source.read_at(_LENGTH.size, length))
            told = json.loads(header["__metadata__"]["DCP_SHARDING_INFO"])
            return {str(name): tuple(int(number) for number in info["saved_offsets"]) for name, info in told.items()}
    except (UnreadableBytes, EndOfBytes, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def _merged(name: str, parts: Sequence[tuple[tuple[int, ...], TensorEntry]], directory: str,
            gathered: Gathered) -> TensorEntry:
    first = parts[0][1]
    if len(parts) == 1 and not any(parts[0][0]):
        return first
    boxes = [(offsets, tensor.shape) for offsets, tensor in parts]
    size = tuple(max(offsets[axis] + shape[axis] for offsets, shape in boxes)
                 for axis in range(min(min(len(offsets), len(shape)) for offsets, shape in boxes)))
    fault = box_fault(size, list(dict.fromkeys(boxes)))  # a replicated tensor is in every rank's file
    kinds = {tensor.dtype for _, tensor in parts}
    if len(kinds) > 1:
        fault = f"they are of {' and '.join(sorted(kinds))}"
    if fault:
        gathered.find(Severity.ERROR, "chunks-do-not-tile", f"The parts of {name} don't make it whole: {fault}.",
                      Verdict.INCOMPLETE if "cover" in fault else Verdict.INCONSISTENT, directory, (name,))
    proofs = [tensor.proof for _, tensor in parts]
    proof = next((word for word in (Proof.DAMAGED, Proof.UNVERIFIABLE) if word in proofs), Proof.VERIFIED)
    blocks = tuple(replace(block, origin=tuple(map(sum, zip(offsets, block.origin, strict=False))) or offsets)
                   for offsets, tensor in dict(parts).items() for block in tensor.blocks)
    return TensorEntry(name, first.dtype, size, blocks, Proof.DAMAGED if fault else proof, first.big_endian)
