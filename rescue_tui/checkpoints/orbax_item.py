"""One item of an Orbax checkpoint: a tree of arrays in an OCDBT database, or in one directory per array.

Sources: google/orbax checkpoint/_src/metadata/tree.py, _src/serialization/{ocdbt_utils,tensorstore_utils}.py. A process
writes a database of its own (``ocdbt.process_N``); the item's manifest refers to their data and is written last.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import prod

from rescue_tui.checkpoints import limits
from rescue_tui.checkpoints.model import Block, CheckpointFinding, Proof, Scalar, TensorEntry, Verdict
from rescue_tui.checkpoints.notes import TOLD, Notes
from rescue_tui.checkpoints.ocdbt import MANIFEST, Database, Value, read_database
from rescue_tui.checkpoints.sidecars import read_json
from rescue_tui.checkpoints.source import BytesSource, EndOfBytes, Source, UnreadableBytes
from rescue_tui.checkpoints.tree import Entry, Kind, Tree, below, child, walk
from rescue_tui.checkpoints.zarr import (
    METADATA_2,
    METADATA_3,
    METADATA_BYTES,
    Array,
    ChunkCheck,
    ZarrError,
    check_chunk,
    chunk_index,
    chunk_key,
    parse_v2,
    parse_v3,
)
from rescue_tui.checkpoints.zeros import PayloadSpan, inspect_zeros
from rescue_tui.core.finding import Severity

TREE_METADATA = "_METADATA"
ARRAY_METADATA = "array_metadatas"
SHARDING = "_sharding"
STRINGS = "_strings.json"
JSON_ITEM = "metadata"
PROCESS = re.compile(r"ocdbt\.process_(\d{1,9})")
_PROCESS_FILE = re.compile(r"process_(\d{1,9})")
_ARRAY_TYPES = frozenset({"jax.Array", "np.ndarray", "scalar"})
_SCALAR_CODES = {"float16": "e", "float32": "f", "float64": "d", "bool": "?", "int8": "b", "int16": "h", "int32": "i",
                 "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q"}


def marks_item(entries: Iterable[Entry]) -> bool:
    """True for the names that make a directory an item of arrays."""
    names = {entry.name for entry in entries}
    return bool(names & {MANIFEST, ARRAY_METADATA}) or {TREE_METADATA, SHARDING} <= names or any(
        PROCESS.fullmatch(name) for name in names)


@dataclass(slots=True)
class _Piece:
    """A chunk to be checked, and what was found."""

    array: str
    index: tuple[int, ...]
    value: Value
    check: ChunkCheck | None = None


@dataclass(slots=True)
class Item:
    """What one item came to; names of tensors are without the item's."""

    tensors: list[TensorEntry] = field(default_factory=list)
    findings: list[CheckpointFinding] = field(default_factory=list)
    values: dict[str, Scalar] = field(default_factory=dict)
    payload_bytes: int = 0
    whole: bool = True  # nothing but a commit marker can be missing
    bare: bool = False  # strings lie in a file without checksum


def read_item(tree: Tree, directory: str, temporary: bool) -> Item:
    """Judge the arrays of one item; ``temporary``: of a save that was not committed. Never raises."""
    return _ItemReader(tree, directory, temporary).read()


class _ItemReader:
    def __init__(self, tree: Tree, directory: str, temporary: bool) -> None:
        self.tree = tree
        self.directory = directory
        self.temporary = temporary
        self.unmerged = ""
        self.notes = Notes()
        self.item = Item()
        self.store: dict[str, Value] = {}
        self.arrays: dict[str, Array] = {}
        self.pieces: list[_Piece] = []
        self.expected: dict[str, str] | None = None  # array: type of the leaf
        self.fills = False  # chunks equal to the fill value were stored
        self.damaged: set[str] = set()

    def read(self) -> Item:
        try:
            entries = self.tree.listing(self.directory)
        except UnreadableBytes as error:
            self.lost("unreadable", f"the directory can't be read: {error.reason}", self.directory)
            entries = ()
        names = {entry.name: entry for entry in entries}
        self.metadata(names)
        processes = sorted(int(found[1]) for found in map(PROCESS.fullmatch, names) if found)
        if MANIFEST in names or processes:
            self.databases(MANIFEST in names, processes)
        else:
            self.files(names)
        self.place()
        self.check()
        self.finish()
        if self.unmerged:
            # Until the commit a process's own database is all that there should be.
            waits = self.temporary and self.item.whole and self.expected is not None
            self.notes.add(Severity.ERROR, "manifest-missing", self.unmerged, None if waits else Verdict.INCOMPLETE,
                           child(self.directory, MANIFEST))
        self.item.findings = self.notes.all()
        return self.item

    def lost(self, code: str, summary: str, file: str, tensors: Sequence[str] = (),
             verdict: Verdict = Verdict.INCOMPLETE, offset: int | None = None, length: int | None = None) -> None:
        self.item.whole = False
        self.notes.add(Severity.ERROR, code, summary, verdict, file, offset, length, tensors)

    def metadata(self, names: dict[str, Entry]) -> None:
        if TREE_METADATA in names:
            found = read_json(self.tree, child(self.directory, TREE_METADATA), self.notes)
            leaves = found.get("tree_metadata") if isinstance(found, dict) else None
            if isinstance(found, dict) and isinstance(leaves, dict):
                self.fills = found.get("store_array_data_equal_to_fill_value") is True
                self.expected = dict(filter(None, map(_leaf, leaves.values())))
            elif found is not None:
                self.lost("bad-json", "the metadata names no tree", child(self.directory, TREE_METADATA),
                          verdict=Verdict.CORRUPT)
        elif SHARDING in names or ARRAY_METADATA in names:
            self.lost("metadata-missing", f"{TREE_METADATA} is missing: it lists the arrays that were saved",
                      child(self.directory, TREE_METADATA))
        self.item.bare = STRINGS in names
        for name in (SHARDING, STRINGS):
            if name in names:
                read_json(self.tree, child(self.directory, name), self.notes)
        if ARRAY_METADATA in names:
            self.array_metadatas(names)

    def array_metadatas(self, names: dict[str, Entry]) -> None:
        where = child(self.directory, ARRAY_METADATA)
        try:
            files = {entry.name for entry in self.tree.listing(where)}
        except UnreadableBytes as error:
            self.lost("unreadable", f"the directory can't be read: {error.reason}", where)
            return
        there = {int(found[1]) for found in map(_PROCESS_FILE.fullmatch, files) if found}
        wrote = {int(found[1]) for found in map(PROCESS.fullmatch, names) if found}
        for number in sorted(there)[:limits.NAME_BYTES]:
            read_json(self.tree, child(where, f"process_{number}"), self.notes)
        for number in sorted(wrote - there)[:TOLD] if there else [0]:
            self.lost("process-missing", f"process {number} left no {ARRAY_METADATA}/process_{number}", where)

    def take(self, database: Database) -> None:
        for fault in database.faults:
            self.lost(fault.code, f"OCDBT: {fault.summary}", fault.file,
                      (), Verdict.INCOMPLETE if fault.cut else Verdict.CORRUPT, fault.offset, fault.length)

    def databases(self, merged: bool, processes: list[int]) -> None:
        """The merged database; what it lacks is looked for in those of the processes."""
        whole = False
        if merged:
            database = read_database(self.tree, self.directory)
            self.take(database)
            self.store, whole = database.values, database.whole
        if whole:
            return
        broken = []
        for number in processes:
            database = read_database(self.tree, child(self.directory, f"ocdbt.process_{number}"))
            if not database.whole:
                broken.append(number)
            for key, value in database.values.items():
                self.store.setdefault(key, value)
        note = f"the arrays are read from the databases of {len(processes)} processes instead" if processes else (
            "no process left a database of its own")
        if broken:
            note += f"; damaged as well: process {', '.join(map(str, broken[:8]))}"
        if not merged:
            self.unmerged = f"{MANIFEST} is missing; {note}"
            self.item.whole = self.item.whole and not broken and bool(processes)
        else:
            self.notes.add(Severity.WARNING, "manifest-replaced", note, None, child(self.directory, MANIFEST))

    def files(self, names: dict[str, Entry]) -> None:
        """Arrays that have a directory each."""
        for entry in names.values():
            if entry.kind is not Kind.DIRECTORY or entry.name == ARRAY_METADATA:
                continue
            try:
                found = walk(self.tree, entry.path, limits.TENSORS)
            except UnreadableBytes as error:
                self.lost("unreadable", f"a directory can't be read: {error.reason}", entry.path)
                continue
            for one in found.entries:
                if one.kind in {Kind.FILE, Kind.SYMLINK}:
                    self.store[below(self.directory, one.path)] = Value(one.path, 0, one.size_bytes)
            if found.cut or len(self.store) > limits.TENSORS:
                self.lost("too-many", "it has more files than can be read", entry.path)
                return

    def place(self) -> None:
        """Arrays from their metadata, chunks to their arrays."""
        for key, value in self.store.items():
            name, _, last = key.rpartition("/")
            if last not in {METADATA_2, METADATA_3}:
                continue
            try:
                content = self.content(value)
                self.arrays[name] = parse_v2(content) if last == METADATA_2 else parse_v3(content)
            except (EndOfBytes, UnreadableBytes) as error:
                self.damaged.add(name)
                self.lost("array-metadata", f"the metadata of {name} can't be read: {error}", value.file, (name,))
            except ZarrError as error:
                self.damaged.add(name)
                self.lost("array-metadata", f"{name}: {error}", value.file, (name,), Verdict.CORRUPT, value.offset,
                          value.length)
        for key, value in self.store.items():
            name = key
            while name and name not in self.arrays:
                name = name.rpartition("/")[0]
            if not name:
                continue
            index = chunk_index(self.arrays[name], key[len(name) + 1 :])
            if index is not None:
                self.pieces.append(_Piece(name, index, value))
        if self.expected is None:
            return
        missing = [name for name in self.expected if name not in self.arrays and name not in self.damaged]
        if missing:
            self.damaged.update(missing)
            self.lost("array-missing", f"{len(missing)} of {len(self.expected)} arrays that were saved are missing",
                      self.directory, missing)
        extra = len(self.arrays.keys() - self.expected.keys())
        if extra:
            self.notes.add(Severity.INFO, "array-extra", f"{extra} arrays are not in {TREE_METADATA}", None,
                           self.directory)

    def content(self, value: Value) -> bytes:
        if value.inline is not None:
            return value.inline
        with self.tree.open(value.file) as source:
            length = source.size_bytes - value.offset if value.length == 0 else value.length
            if length > METADATA_BYTES:
                raise ZarrError("the metadata is absurdly long")
            return source.read_at(value.offset, max(0, length))

    def check(self) -> None:
        by_file: dict[str, list[_Piece]] = {}
        for piece in self.pieces:
            array = self.arrays[piece.array]
            if piece.value.inline is None:
                by_file.setdefault(piece.value.file, []).append(piece)
            else:
                inline = BytesSource(piece.value.inline)
                piece.check = check_chunk(array, piece.index, inline, 0, inline.size_bytes)
                self.tell(piece)
        for file, pieces in sorted(by_file.items()):
            names = tuple(dict.fromkeys(piece.array for piece in pieces))
            try:
                with self.tree.open(file) as source:
                    self.check_file(source, sorted(pieces, key=lambda piece: piece.value.offset))
            except UnreadableBytes as error:
                self.damaged.update(names)
                self.lost("file-missing" if error.length == 0 else "unreadable",
                          f"a file of values can't be read: {error.reason}", file, names)

    def check_file(self, source: Source, pieces: list[_Piece]) -> None:
        size = source.size_bytes
        beyond = [piece for piece in pieces if piece.value.offset + piece.value.length > size]
        if beyond:
            names = tuple(dict.fromkeys(piece.array for piece in beyond))
            self.damaged.update(names)
            end = max(piece.value.offset + piece.value.length for piece in beyond)
            self.lost("data-cut", f"values reach to {end}, the file ends at {size}", source.name, names, offset=size,
                      length=end - size)
        bare: list[PayloadSpan] = []
        packed: list[PayloadSpan] = []
        for piece in pieces:
            value = piece.value
            if value.offset + value.length > size:
                continue
            array = self.arrays[piece.array]
            piece.check = check_chunk(array, piece.index, source, value.offset, value.length)
            self.tell(piece)
            for part in piece.check.parts:
                if part.proof is Proof.UNVERIFIABLE:
                    (packed if part.codec else bare).append(PayloadSpan(part.offset, part.length, (piece.array,)))
        report = inspect_zeros(source, bare)
        self.damaged.update(report.damaged)
        self.notes.findings.extend(report.findings)
        for finding in inspect_zeros(source, packed).findings:
            # No compressor writes whole pages of zeros: what decodes nevertheless lay in the stream as it was.
            self.damaged.update(finding.tensors)
            verdict = finding.verdict or Verdict.CORRUPT
            self.notes.findings.append(replace(finding, severity=Severity.ERROR, verdict=verdict))

    def tell(self, piece: _Piece) -> None:
        """Findings on a chunk, in words of its array."""
        if piece.check is None:
            return
        where = f"{piece.array}/{chunk_key(self.arrays[piece.array], piece.index)}"
        value = piece.value
        for fault in piece.check.faults:
            inline = value.inline is not None
            place = (value.offset, value.length) if inline else (fault.offset, fault.length)
            if fault.unknown:
                self.notes.add(Severity.INFO, fault.code, f"{where}: {fault.summary}; it was not decoded", None,
                               value.file, *place, (piece.array,))
            else:
                self.lost(fault.code, f"{where}: {fault.summary}", value.file, (piece.array,),
                          Verdict.INCOMPLETE if fault.cut else Verdict.CORRUPT, *place)
        if piece.check.absent:
            self.absent(piece.array, piece.check.absent, where, value.file)

    def absent(self, name: str, many: int, where: str, file: str) -> None:
        """Chunks that are not there: lost where the writer stored all of them, else the fill value may be meant."""
        if self.fills:
            self.damaged.add(name)
            self.lost("chunk-missing", f"{name}: {many} chunks are missing, the first is {where}", file, (name,))
        else:
            self.notes.add(Severity.WARNING, "chunk-absent", f"{name}: {many} chunks are not stored ({where}) and read "
                           "as the fill value; they were equal to it, or are lost", None, file, tensors=(name,))

    def finish(self) -> None:
        pieces: dict[str, list[_Piece]] = {}
        for piece in self.pieces:
            pieces.setdefault(piece.array, []).append(piece)
        for name, array in sorted(self.arrays.items()):
            mine = pieces.get(name, [])
            wanted = prod(array.grid)
            if len(mine) < wanted:
                there = {piece.index for piece in mine}
                first = next(index for index in _indexes(array.grid) if index not in there)
                self.absent(name, wanted - len(mine), chunk_key(array, first), self.directory)
            blocks = tuple(block for piece in mine for block in _blocks(piece, array))
            proofs = {block.proof for block in blocks}
            whole = sum(prod(block.shape) for block in blocks) >= prod(array.shape)
            proof = Proof.VERIFIED if whole else Proof.UNVERIFIABLE
            if name in self.damaged or Proof.DAMAGED in proofs:
                proof = Proof.DAMAGED
            elif Proof.UNVERIFIABLE in proofs:
                proof = Proof.UNVERIFIABLE
            self.item.tensors.append(TensorEntry(name, array.dtype, array.shape, blocks, proof, array.big_endian))
            self.item.payload_bytes += sum(_stored_bytes(piece.value) for piece in mine)
            if not array.shape and proof is not Proof.DAMAGED and mine and mine[0].check is not None:
                self.scalar(name, array, mine[0].check.scalar)
        self.item.tensors.extend(
            TensorEntry(name, "", (), (), Proof.DAMAGED) for name in sorted(self.damaged - self.arrays.keys()))

    def scalar(self, name: str, array: Array, content: bytes) -> None:
        code = _SCALAR_CODES.get(array.dtype)
        if code is not None:
            with suppress(struct.error):
                (self.item.values[name],) = struct.unpack((">" if array.big_endian else "<") + code, content)


def _leaf(entry: object) -> tuple[str, str] | None:
    """Name and type of a leaf that is stored as an array."""
    if not isinstance(entry, dict):
        return None
    keys, value = entry.get("key_metadata"), entry.get("value_metadata")
    if not isinstance(keys, list) or not isinstance(value, dict):
        return None
    kind = value.get("value_type")
    if kind not in _ARRAY_TYPES or value.get("skip_deserialize") is True:
        return None
    return ".".join(str(key.get("key", "")) for key in keys if isinstance(key, dict)), str(kind)


def _indexes(grid: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for number in range(prod(grid)):
        rest, place = number, []
        for many in reversed(grid):
            rest, one = divmod(rest, many)
            place.append(one)
        yield tuple(reversed(place))


def _stored_bytes(value: Value) -> int:
    return value.length if value.inline is None else len(value.inline)


def _blocks(piece: _Piece, array: Array) -> list[Block]:
    value = piece.value
    if piece.check is None:
        origin = tuple(one * step for one, step in zip(piece.index, array.chunk, strict=True))
        shape = tuple(min(step, size - at) for at, step, size in zip(origin, array.chunk, array.shape, strict=True))
        codec = "+".join(array.codecs)
        return [Block(value.file, value.offset, value.length, origin, shape, Proof.DAMAGED, codec=codec)]
    blocks = []
    for part in piece.check.parts:
        if value.inline is None:
            blocks.append(Block(value.file, part.offset, part.length, part.origin, part.shape, part.proof, 0,
                                part.strides, part.codec))
        else:
            # A node's own checksum covers what is stored in it.
            proof = Proof.DAMAGED if part.proof is Proof.DAMAGED else Proof.VERIFIED
            blocks.append(Block(value.file, value.offset, value.length, part.origin, part.shape, proof, 0, part.strides,
                                part.codec, value.inline[part.offset : part.offset + part.length]))
    return blocks
