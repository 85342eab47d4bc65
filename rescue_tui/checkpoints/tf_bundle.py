"""TensorFlow bundles V2: ``<prefix>.index`` and its data shards, every tensor against its crc32c.

Source: tensorflow/core/util/tensor_bundle/tensor_bundle.cc. Data files are renamed into place before the index is
written, so a shard without an index is a save that was interrupted; its parts' own indexes may still be there.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from rescue_tui.checkpoints.model import (
    Block,
    CheckpointFinding,
    Options,
    Proof,
    Reading,
    Scalar,
    TensorEntry,
    Verdict,
)
from rescue_tui.checkpoints.names import step_of_part
from rescue_tui.checkpoints.source import EndOfBytes, Source, UnreadableBytes
from rescue_tui.checkpoints.sstable import Table, read_table
from rescue_tui.checkpoints.tf_entries import (
    DTYPES,
    STRING,
    VARIANT,
    BundleEntry,
    Extent,
    Header,
    count,
    parse_entry,
    parse_header,
    slice_key,
)
from rescue_tui.checkpoints.tf_files import (
    NAME,
    PART,
    PARTS_DIRECTORY,
    Bundle,
    State,
    is_bundle,
    parse_state,
    prefixes,
)
from rescue_tui.checkpoints.tf_payload import payload_matches, strings_match, variants_match
from rescue_tui.checkpoints.tree import Tree
from rescue_tui.checkpoints.wire import WireError
from rescue_tui.core.finding import Severity
from rescue_tui.core.text import decode

__all__ = ["FORMAT", "Bundle", "State", "is_bundle", "parse_state", "prefixes", "read_bundle"]
FORMAT = "tf-bundle"
_ATTRIBUTE = "/.ATTRIBUTES/VARIABLE_VALUE"
_TOLD = 64  # findings of one kind before the rest is told in one
_SCALARS = 1000
_SCALAR_CODES = {"float32": "f", "float64": "d", "float16": "e", "int8": "b", "int16": "h", "int32": "i", "int64": "q",
                 "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q", "bool": "?"}


class _Piece(NamedTuple):
    """One run of payload: a tensor, or one slice of it."""

    owner: str
    origin: tuple[int, ...]
    shape: tuple[int, ...]
    entry: BundleEntry
    proven: bool


def read_bundle(tree: Tree, prefix: str, options: Options) -> Reading:
    """Judge the bundle of this prefix (a path, ``train/ckpt-1``). Never raises."""
    del options
    return _Bundle(tree, prefix).read()


class _Index(NamedTuple):
    """A table that was read; ``shard`` is the number that the data of an interrupted save's part stands for."""

    table: Table
    file: str
    shard: int | None = None


class _Bundle:
    def __init__(self, tree: Tree, prefix: str) -> None:
        self.tree = tree
        self.prefix = prefix
        self.findings: list[CheckpointFinding] = []
        self.told: Counter[str] = Counter()
        self.untold: dict[str, list[str]] = {}
        self.header: Header | None = None
        self.paths: dict[int, str] = {}
        self.wholes: dict[str, tuple[BundleEntry, bool]] = {}
        self.slices: dict[bytes, tuple[BundleEntry, bool]] = {}
        self.pieces: list[_Piece] = []
        self.proofs: dict[int, Proof] = {}
        self.incomplete: set[str] = set()
        self.values: dict[str, Scalar] = {}

    def add(self, severity: Severity, code: str, summary: str, verdict: Verdict | None = None, file: str = "",
            offset: int | None = None, length: int | None = None, tensors: Sequence[str] = ()) -> None:
        self.told[code] += 1
        if self.told[code] <= _TOLD:
            self.findings.append(
                CheckpointFinding(severity, code, summary, verdict, file, offset, length, tuple(tensors)))
        else:
            self.untold.setdefault(code, []).extend(tensors)

    def read(self) -> Reading:
        bundle = self.files()
        if bundle is not None:
            self.choose(bundle)
            for index in self.indexes(bundle):
                self.rows(index)
            self.choose(bundle)
            self.place()
            self.payload()
        tensors = self.tensors()
        self.findings.extend(
            CheckpointFinding(Severity.ERROR, code, f"{self.told[code] - _TOLD} more findings like those above",
                              tensors=tuple(names)) for code, names in self.untold.items())
        step = step_of_part(self.prefix.rpartition("/")[2])
        return Reading(
            FORMAT, tuple(self.findings), tensors,
            covered=bool(tensors) and all(tensor.proof is Proof.VERIFIED for tensor in tensors),
            values=self.values, step=self.step_value() if step is None else step.number,
            members=() if bundle is None else bundle.members,
            payload_bytes=sum(piece.entry.size for piece in self.pieces))

    def files(self) -> Bundle | None:
        directory = self.prefix.rpartition("/")[0]
        try:
            found = [bundle for bundle in prefixes(self.tree.listing(directory)) if bundle.prefix == self.prefix]
        except UnreadableBytes as error:
            self.add(Severity.ERROR, "unreadable", f"the directory can't be read: {error.reason}", Verdict.INCOMPLETE)
            return None
        if not found:
            self.add(Severity.ERROR, "missing", "no file of this bundle is there", Verdict.INCOMPLETE)
            return None
        bundle = found[0]
        inner = directory.rpartition("/")[2]
        if PARTS_DIRECTORY.fullmatch(inner) and PART.fullmatch(self.prefix.rpartition("/")[2]):
            self.add(Severity.WARNING, "temporary-name", f"a part of a save that was not merged: {inner}",
                     Verdict.UNCOMMITTED, directory)
        if bundle.leftovers:
            whole = bundle.index is not None and bool(bundle.shards)
            self.add(Severity.INFO if whole else Severity.WARNING, "temporary-name",
                     "files of an interrupted save are beside it" if whole else "only under temporary names",
                     None if whole else Verdict.UNCOMMITTED, bundle.leftovers[0].path)
        if bundle.index is None and bundle.meta is not None and not bundle.shards:
            self.add(Severity.ERROR, "missing", "only the graph (.meta) is there", Verdict.INCOMPLETE, bundle.meta.path)
        return bundle

    def choose(self, bundle: Bundle) -> None:
        """The data file of each shard; where two saves of different widths lie together, the index decides."""
        others: list[str] = []
        for entry in bundle.shards or bundle.leftovers:
            found = NAME.fullmatch(entry.path)
            if found is None or not found["shard"]:
                continue
            if self.header is not None and int(found["shards"]) != self.header.shards:
                others.append(entry.path)
            else:
                self.paths[int(found["shard"])] = entry.path
        if others and self.header is not None:
            for shard, path in list(self.paths.items()):
                if path in others:
                    del self.paths[shard]
            self.add(Severity.WARNING, "stray-shard", f"{len(others)} data shards are of a save of another width",
                     None, others[0])

    def indexes(self, bundle: Bundle) -> list[_Index]:
        if bundle.index is not None:
            return self.table(bundle.index.path)
        for entry in bundle.leftovers:
            found = NAME.fullmatch(entry.path)
            if found and found["index"]:
                return self.table(entry.path)
        parts = self.part_indexes(bundle)
        if parts:
            self.add(Severity.WARNING, "index-missing", f"{self.prefix}.index was not written; the indexes of "
                     f"{len(parts)} parts of the interrupted save tell what is in the data", Verdict.UNCOMMITTED,
                     f"{self.prefix}.index")
            return parts
        self.add(Severity.ERROR, "index-missing", f"{self.prefix}.index is missing: names, shapes and checksums of the "
                 "tensors are in it; the index of another save of the run may fit", Verdict.INCOMPLETE,
                 f"{self.prefix}.index")
        return []

    def table(self, path: str, shard: int | None = None) -> list[_Index]:
        try:
            with self.tree.open(path) as source:
                if source.size_bytes == 0:
                    empty = not any(self.size_of(one) for one in self.paths.values())
                    self.add(Severity.ERROR, "empty", "the index is empty", Verdict.EMPTY if empty else
                             Verdict.INCOMPLETE, path, 0, 0)
                    return []
                table = read_table(source)
        except UnreadableBytes as error:
            self.add(Severity.ERROR, "unreadable", f"the index can't be read: {error.reason}", Verdict.INCOMPLETE, path)
            return []
        for fault in table.faults:
            self.add(Severity.ERROR, fault.code, f"index: {fault.summary}",
                     Verdict.INCOMPLETE if fault.cut else Verdict.CORRUPT, path, fault.offset, fault.length)
        return [_Index(table, path, shard)]

    def size_of(self, path: str) -> int:
        try:
            with self.tree.open(path) as source:
                return source.size_bytes
        except UnreadableBytes:
            return 0

    def part_indexes(self, bundle: Bundle) -> list[_Index]:
        """Tables of the parts that a sharded save writes first, and where the data of each is by now."""
        found: list[_Index] = []
        for directory in bundle.parts:
            try:
                parts = prefixes(self.tree.listing(directory.path))
            except UnreadableBytes:
                continue
            for part in parts:
                number = PART.fullmatch(part.prefix.rpartition("/")[2])
                if number is None or part.index is None:
                    continue
                shard = int(number["shard"])
                if part.shards:
                    self.paths.setdefault(shard, part.shards[0].path)
                found += self.table(part.index.path, shard)
        return found

    def rows(self, index: _Index) -> None:
        for row in index.table.rows:
            try:
                if not row.key:
                    header = parse_header(row.value)
                    shards = header.shards if index.shard is None else max(index.shard + 1, *self.paths, 1)
                    self.header = header._replace(shards=shards)
                    continue
                entry = parse_entry(row.value)
            except WireError as error:
                if row.proven:
                    self.add(Severity.ERROR, "bad-entry", f"an entry of the index makes no sense: {error}",
                             Verdict.CORRUPT, index.file, tensors=(decode(row.key),))
                continue
            if index.shard is not None:
                entry = replace(entry, shard=index.shard)
            if row.key[:1] == b"\0":
                self.slices[row.key] = (entry, row.proven)
            else:
                self.wholes[decode(row.key)] = (entry, row.proven)
        guessed = sum(not row.proven for row in index.table.rows)
        if guessed:
            self.add(Severity.WARNING, "names-unproven", f"{guessed} entries are from a part of the index that no "
                     "matching checksum covers: their bytes may match, their names are not proven", None, index.file)
        elif self.header is None and index.table.rows:
            self.add(Severity.ERROR, "bad-entry", "the index does not begin with a header", Verdict.CORRUPT, index.file)

    def place(self) -> None:
        """Pieces of payload: tensors as they are, partitioned ones slice by slice."""
        owned: set[bytes] = set()
        for name, (entry, proven) in self.wholes.items():
            if not entry.slices:
                self.pieces.append(_Piece(name, (0,) * len(entry.shape), entry.shape, entry, proven))
                continue
            covered = 0
            for extents in entry.slices:
                key = slice_key(name.encode("utf-8", "surrogateescape"), extents)
                owned.add(key)
                shape = _slice_shape(entry.shape, extents)
                if shape is None:
                    self.add(Severity.ERROR, "bad-slice", "a slice lies outside its tensor", Verdict.CORRUPT,
                             tensors=(name,))
                    self.incomplete.add(name)
                elif key in self.slices:
                    part, part_proven = self.slices[key]
                    origin = tuple(extent.start for extent in extents)
                    self.pieces.append(_Piece(name, origin, shape, part, proven and part_proven))
                    covered += count(shape)
            if covered < entry.elements:
                self.add(Severity.ERROR, "slice-missing", f"slices hold {covered} of {entry.elements} elements",
                         Verdict.INCOMPLETE, tensors=(name,))
                self.incomplete.add(name)
        strays = len(self.slices.keys() - owned)
        if strays:
            self.add(Severity.WARNING, "slice-unnamed", f"{strays} slices belong to no tensor of the index",
                     Verdict.INCOMPLETE)

    def payload(self) -> None:
        by_shard: dict[int, list[int]] = {}
        for number, piece in enumerate(self.pieces):
            by_shard.setdefault(piece.entry.shard, []).append(number)
        shards = self.header.shards if self.header is not None else max((*by_shard, *self.paths), default=-1) + 1
        for shard in sorted({*range(min(shards, len(by_shard) + len(self.paths) + 1)), *by_shard}):
            numbers = by_shard.get(shard, [])
            names = self.names(numbers)
            path = self.paths.get(shard)
            if path is None:
                if numbers or self.header is not None:
                    missing = f"{self.prefix}.data-{shard:05d}-of-{shards:05d}"
                    self.add(Severity.ERROR, "shard-missing", f"the data shard {shard} of {shards} is missing",
                             Verdict.INCOMPLETE, missing, tensors=names)
                continue
            try:
                with self.tree.open(path) as source:
                    self.shard(source, path, sorted(numbers, key=lambda number: self.pieces[number].entry.offset))
            except UnreadableBytes as error:
                self.add(Severity.ERROR, "unreadable", f"the data shard can't be opened: {error.reason}",
                         Verdict.INCOMPLETE, path, tensors=names)

    def names(self, numbers: Iterable[int]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.pieces[number].owner for number in numbers))

    def shard(self, source: Source, path: str, numbers: list[int]) -> None:
        reach = 0
        beyond = [one for one in numbers if self.pieces[one].entry.end > source.size_bytes]
        if beyond:
            end = max(self.pieces[one].entry.end for one in beyond)
            names = self.names(beyond)
            self.add(Severity.ERROR, "data-cut", f"the data ends at {source.size_bytes}, {end} bytes were written: "
                     f"{names[0]} and what lies behind it ({len(names)} tensors) is cut off", Verdict.INCOMPLETE, path,
                     source.size_bytes, end - source.size_bytes, names)
        lost = set(beyond)
        for number in numbers:
            entry, owner = self.pieces[number].entry, self.pieces[number].owner
            if entry.offset < reach:
                self.add(Severity.ERROR, "overlap", "two entries lie over each other", Verdict.CORRUPT, path,
                         entry.offset, reach - entry.offset, (owner,))
            reach = max(reach, entry.end)
            if number not in lost:
                self.proofs[number] = self.check(source, path, self.pieces[number])
        if numbers and source.size_bytes > reach:
            self.add(Severity.INFO, "trailing-bytes", "bytes behind the last entry belong to no tensor", None, path,
                     reach, source.size_bytes - reach)

    def check(self, source: Source, path: str, piece: _Piece) -> Proof:
        entry = piece.entry
        dtype = DTYPES[entry.dtype]
        at = (path, entry.offset, entry.size, (piece.owner,))
        if dtype.size_bytes and count(piece.shape) * dtype.size_bytes != entry.size:
            self.add(Severity.ERROR, "size-mismatch", f"{piece.owner}: {entry.size} bytes for {dtype.word} "
                     f"{list(piece.shape)[:8]}", Verdict.CORRUPT, *at)
            return Proof.DAMAGED
        if entry.masked_crc is None and entry.size:
            self.add(Severity.WARNING, "no-checksum", f"{piece.owner} has no checksum in the index", None, *at)
            return Proof.UNVERIFIABLE
        try:
            if entry.dtype in {STRING, VARIANT}:
                match = strings_match if entry.dtype == STRING else variants_match
                wrong = match(source, entry.offset, entry.size, entry.masked_crc or 0, entry.elements,
                              self.header is not None and self.header.big_endian)
            elif entry.size == 0 or payload_matches(source, entry.offset, entry.size, entry.masked_crc or 0):
                wrong = ""
            else:
                wrong = "its bytes do not match their crc32c"
        except UnreadableBytes as error:
            self.add(Severity.ERROR, "unreadable", f"{piece.owner} can't be read: {error.reason}",
                     Verdict.INCOMPLETE, *at)
            return Proof.DAMAGED
        except EndOfBytes:
            self.add(Severity.ERROR, "data-cut", f"the data ends inside {piece.owner}", Verdict.INCOMPLETE, *at)
            return Proof.DAMAGED
        if wrong:
            holes = sum(hole.length for hole in source.holes(entry.offset, entry.size))
            wrong += f" ({holes} of them in a hole of the file system)" if holes else ""
            self.add(Severity.ERROR, "crc-mismatch", f"{piece.owner}: {wrong}", Verdict.CORRUPT, *at)
            return Proof.DAMAGED
        self.scalar(source, piece)
        return Proof.VERIFIED if piece.proven else Proof.UNVERIFIABLE

    def scalar(self, source: Source, piece: _Piece) -> None:
        code = _SCALAR_CODES.get(DTYPES[piece.entry.dtype].word)
        if piece.shape or code is None or not piece.proven or len(self.values) >= _SCALARS:
            return
        order = ">" if self.header is not None and self.header.big_endian else "<"
        (value,) = struct.unpack(order + code, source.read_at(piece.entry.offset, piece.entry.size))
        self.values[piece.owner.removesuffix(_ATTRIBUTE).replace("/", ".")] = value

    def step_value(self) -> int | None:
        for name in ("global_step", "step", "save_counter"):
            value = self.values.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        return None

    def tensors(self) -> tuple[TensorEntry, ...]:
        blocks: dict[str, list[Block]] = {}
        for number, piece in enumerate(self.pieces):
            path = self.paths.get(piece.entry.shard, f"{self.prefix}.data-{piece.entry.shard:05d}")
            blocks.setdefault(piece.owner, []).append(Block(
                path, piece.entry.offset, piece.entry.size, piece.origin, piece.shape,
                self.proofs.get(number, Proof.DAMAGED)))
        big_endian = self.header is not None and self.header.big_endian
        found = []
        for name, (entry, _) in self.wholes.items():
            of_blocks = {block.proof for block in blocks.get(name, ())}
            proof = Proof.VERIFIED
            if name in self.incomplete or not of_blocks or Proof.DAMAGED in of_blocks:
                proof = Proof.DAMAGED
            elif Proof.UNVERIFIABLE in of_blocks:
                proof = Proof.UNVERIFIABLE
            found.append(TensorEntry(name, DTYPES[entry.dtype].word, entry.shape, tuple(blocks.get(name, ())), proof,
                                     big_endian))
        return tuple(found)


def _slice_shape(shape: tuple[int, ...], extents: tuple[Extent, ...]) -> tuple[int, ...] | None:
    if len(shape) != len(extents):
        return None
    sizes = []
    for size, extent in zip(shape, extents, strict=True):
        length = size if extent.length < 0 else extent.length
        if extent.start + length > size:
            return None
        sizes.append(length)
    return tuple(sizes)
