"""Tensors of a pickle laid over the storages that a file really has: entries, and what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from rescue_tui.checkpoints.model import Block, CheckpointFinding, Proof, TensorEntry, Verdict
from rescue_tui.checkpoints.source import Source, Window
from rescue_tui.checkpoints.torch_objects import Inline, Objects, StorageRef, TensorRef, c_strides, some
from rescue_tui.core.finding import Severity


class StoragePlace(NamedTuple):
    """Where a storage lies: offset in the reported file, and how many of its decoded bytes are there.

    ``stored_bytes`` differs from ``length`` under a codec only. ``proof`` is that of the bytes that are there.
    """

    offset: int
    length: int
    proof: Proof
    codec: str = ""
    stored_bytes: int = 0


class PicklePlace(NamedTuple):
    """Where the pickle itself lies, and what is known of its bytes: arrays within it are as good as it is."""

    offset: int
    proof: Proof


def shift_of(source: Source) -> int:
    """What to add to an offset of this source to get one of the file that its name names."""
    shift = 0
    while isinstance(source, Window):
        shift += source.start
        source = source.outer
    return shift


class FindingSink:
    """Findings of one source in the making: names the file and turns its offsets into the file's."""

    def __init__(self, source: Source) -> None:
        self.file = source.name
        self.shift = shift_of(source)
        self.found: list[CheckpointFinding] = []

    def add(self, severity: Severity, code: str, summary: str, verdict: Verdict | None = None,
            offset: int | None = None, length: int | None = None, tensors: Iterable[str] = ()) -> None:
        """Note one observation; ``offset`` is the source's."""
        where = None if offset is None else offset + self.shift
        self.found.append(CheckpointFinding(severity, code, summary, verdict, self.file, where, length,
                                            tuple(tensors)))

    def error(self, code: str, verdict: Verdict, summary: str, offset: int | None = None, length: int | None = None,
              tensors: Iterable[str] = ()) -> None:
        """Note what forces a verdict."""
        self.add(Severity.ERROR, code, summary, verdict, offset, length, tensors)

    def take(self, findings: Iterable[CheckpointFinding]) -> None:
        """Findings that don't know their file yet."""
        self.found.extend(replace(finding, file=finding.file or self.file) for finding in findings)


def names_by_storage(objects: Objects) -> dict[str, tuple[str, ...]]:
    """The tensors that view each storage."""
    names: dict[str, list[str]] = {}
    for tensor in objects.tensors:
        if isinstance(tensor.storage, StorageRef):
            names.setdefault(tensor.storage.key, []).append(tensor.name)
    return {key: tuple(inside) for key, inside in names.items()}


def check_views(objects: Objects, sink: FindingSink) -> frozenset[str]:
    """Names of tensors that reach beyond their storage as the pickle declares it, after a finding on them."""
    beyond = tuple(tensor.name for tensor in objects.tensors if not _fits(tensor))
    if beyond:
        sink.error("tensor-outside-storage", Verdict.CORRUPT,
                   f"The pickle lets {some(beyond)} reach beyond the storage.", tensors=beyond)
    return frozenset(beyond)


def _fits(tensor: TensorRef) -> bool:
    if isinstance(tensor.storage, Inline) or tensor.kind.packed or not tensor.count:
        return True
    size = tensor.storage.size_bytes
    return size is None or (tensor.offset + tensor.reach) * tensor.kind.item_bytes <= size


def entries(objects: Objects, places: Mapping[str, StoragePlace], pickle: PicklePlace, file: str,
            bad: frozenset[str] = frozenset(), big_endian: bool = False) -> tuple[TensorEntry, ...]:
    """A `TensorEntry` for each tensor. ``bad`` names those that are damaged whatever their bytes say."""
    return tuple(_entries(objects, places, pickle, file, bad, big_endian))


def _entries(objects: Objects, places: Mapping[str, StoragePlace], pickle: PicklePlace, file: str,
             bad: frozenset[str], big_endian: bool) -> Iterator[TensorEntry]:
    for tensor in objects.tensors:
        word, shape = tensor.kind.word, tensor.shape
        if isinstance(tensor.storage, Inline):
            place: StoragePlace | None = StoragePlace(
                pickle.offset + tensor.storage.offset, len_of(tensor), pickle.proof, tensor.storage.codec,
                tensor.storage.length)
            big = tensor.kind.big_endian
        else:
            place = places.get(tensor.storage.key)
            big = big_endian
        if not tensor.count:
            proof = Proof.DAMAGED if tensor.name in bad else pickle.proof
            yield TensorEntry(tensor.name, word, shape, (), proof, big)
            continue
        if place is None:
            yield TensorEntry(tensor.name, word, shape, (), Proof.DAMAGED, big)
            continue
        block = _block(tensor, place, file)
        proof = weakest(place.proof, pickle.proof)
        if tensor.name in bad or _end(tensor, place) > place.length:
            proof = Proof.DAMAGED
        yield TensorEntry(tensor.name, word, shape, (replace(block, proof=proof),), proof, big)


def len_of(tensor: TensorRef) -> int:
    """Bytes of all elements."""
    return tensor.count * tensor.kind.item_bytes


def _end(tensor: TensorRef, place: StoragePlace) -> int:
    if tensor.kind.packed and isinstance(tensor.storage, StorageRef):
        return tensor.storage.size_bytes or place.length
    return (tensor.offset + tensor.reach) * tensor.kind.item_bytes


def _block(tensor: TensorRef, place: StoragePlace, file: str) -> Block:
    origin = (0,) * len(tensor.shape)
    dense = all(size == 1 or stride == step for size, stride, step
                in zip(tensor.shape, tensor.strides, c_strides(tensor.shape), strict=True))
    strides = None if dense else tensor.strides
    if place.codec:
        # Only the whole run can be decoded.
        return Block(file, place.offset, place.stored_bytes, origin, tensor.shape, place.proof, tensor.offset,
                     strides, place.codec)
    if tensor.kind.packed:
        return Block(file, place.offset, place.length, origin, tensor.shape, place.proof)
    item = tensor.kind.item_bytes
    return Block(file, place.offset + tensor.offset * item, tensor.reach * item, origin, tensor.shape, place.proof, 0,
                 strides)


_ORDER = {proof: index for index, proof in enumerate(Proof)}


def weakest(*proofs: Proof) -> Proof:
    """The least that is known."""
    return max(proofs, key=_ORDER.__getitem__)
