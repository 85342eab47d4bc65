"""OCDBT, the key-value store of TensorStore that Orbax writes: manifest, B+tree nodes, values in and out of line.

Source: google/tensorstore tensorstore/kvstore/ocdbt/index.rst (Storage format) and format/config_codec.h. Manifest and
nodes end with a crc32c; values outside of nodes have none. Only the newest version of a database is read.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from rescue_tui.checkpoints import limits
from rescue_tui.checkpoints.checksums import crc32c
from rescue_tui.checkpoints.frames import FrameError, zstd_body
from rescue_tui.checkpoints.source import EndOfBytes, UnreadableBytes
from rescue_tui.checkpoints.tree import Tree, child
from rescue_tui.checkpoints.wire import WireError, varint
from rescue_tui.core.text import decode

MANIFEST = "manifest.ocdbt"
_NUMBERED = re.compile(r"manifest\.([0-9a-f]{16})")
_MANIFEST_MAGIC, _BTREE_MAGIC = 0x0CDB3A2A, 0x0CDB20DE
_MAGIC = struct.Struct(">I")
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_LEVEL = struct.Struct("<i")
_TIME = struct.Struct("<Q")
_UUID_BYTES = 16
_RAW, _ZSTD = 0, 1
_SINGLE, _NUMBERED_KIND = 0, 1
_INLINE, _OUT_OF_LINE = 0, 1
# Keys and file ids compress well, but no node of a real database comes near this.
_NODE_RATIO = 256
_NODE_SLACK = 64 << 10
_NODES = 200_000
KEYS = 2 * limits.TENSORS
_DECODED_BYTES = 256 << 20


class Value(NamedTuple):
    """Bytes of one key: a run of a file, or ``inline``, and then the place is that of the node around them."""

    file: str
    offset: int
    length: int
    inline: bytes | None = None


class Fault(NamedTuple):
    """A broken invariant; ``cut`` tells bytes that are missing from bytes that are wrong."""

    code: str
    summary: str
    file: str
    offset: int
    length: int
    cut: bool = False


@dataclass(slots=True)
class Database:
    """What one manifest leads to. ``whole`` is false where a node was lost, so keys may be missing."""

    manifest: str
    values: dict[str, Value] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    whole: bool = True
    generation: int = 0
    files: set[str] = field(default_factory=set)


class _Bad(Exception):
    def __init__(self, code: str, summary: str, cut: bool = False) -> None:
        super().__init__(summary)
        self.code = code
        self.summary = summary
        self.cut = cut


class _Body:
    """A decoded body that is read from the front."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def varint(self) -> int:
        try:
            value, self.at = varint(self.data, self.at)
        except WireError as error:
            raise _Bad("bad-node", str(error)) from error
        return value

    def varints(self, count: int) -> list[int]:
        if count > len(self.data) - self.at:
            raise _Bad("bad-node", f"{count} numbers do not fit")
        return [self.varint() for _ in range(count)]

    def take(self, length: int) -> bytes:
        if length > len(self.data) - self.at:
            raise _Bad("bad-node", f"{length} bytes do not fit")
        self.at += length
        return self.data[self.at - length : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def end(self) -> None:
        if self.at != len(self.data):
            raise _Bad("bad-node", f"{len(self.data) - self.at} bytes are left over")


class _File(NamedTuple):
    base: bytes
    relative: bytes


class _Node(NamedTuple):
    file: str
    offset: int
    length: int
    height: int
    prefix: bytes
    base: bytes


def _envelope(data: bytes, magic: int) -> bytes:
    """The body between a node's header and its checksum, decompressed within bounds."""
    if len(data) < _MAGIC.size + _LENGTH.size + 2 + _CRC.size:
        raise _Bad("node-cut", f"only {len(data)} bytes are there", cut=True)
    if _MAGIC.unpack_from(data)[0] != magic:
        zeros = not data.strip(b"\0")
        raise _Bad("bad-magic", "it is all zeros" if zeros else "it does not begin with its magic number")
    (length,) = _LENGTH.unpack_from(data, _MAGIC.size)
    body = _Body(data[: len(data) - _CRC.size])
    if crc32c((body.data,)) != _CRC.unpack_from(data, len(data) - _CRC.size)[0]:
        if length > len(data):
            raise _Bad("node-cut", f"{length} bytes were written, {len(data)} are there", cut=True)
        raise _Bad("crc-mismatch", "it does not match its crc32c")
    if length != len(data):
        raise _Bad("bad-node", f"it declares {length} bytes and has {len(data)}")
    body.at = _MAGIC.size + _LENGTH.size
    version, compression = body.varint(), body.varint()
    if version != 0 or compression not in {_RAW, _ZSTD}:
        raise _Bad("bad-node", f"version {version}, compression {compression}")
    packed = body.data[body.at :]
    if compression == _RAW:
        return packed
    try:
        return zstd_body(packed, min(limits.HELD_BYTES, len(packed) * _NODE_RATIO + _NODE_SLACK))
    except FrameError as error:
        raise _Bad("bad-node", error.summary) from error


def _file_table(body: _Body) -> list[_File]:
    count = body.varint()
    if count > limits.TENSORS:
        raise _Bad("bad-node", f"{count} data files")
    shared = [0, *body.varints(count - 1)] if count else []
    suffixes, bases = body.varints(count), body.varints(count)
    files: list[_File] = []
    path = b""
    total = 0
    for index in range(count):
        if shared[index] > len(path) or bases[index] > shared[index] + suffixes[index]:
            raise _Bad("bad-node", "a data file's path is impossible")
        path = path[: shared[index]] + body.take(suffixes[index])
        total += len(path)
        if len(path) > limits.NAME_BYTES or total > limits.HELD_BYTES:
            raise _Bad("bad-node", "the paths of data files are absurdly long")
        files.append(_File(path[: bases[index]], path[bases[index] :]))
    return files


def _keys(body: _Body, count: int, interior: bool) -> tuple[list[bytes], list[int]]:
    shared = [0, *body.varints(count - 1)]
    suffixes = body.varints(count)
    common = body.varints(count) if interior else []
    keys: list[bytes] = []
    key = b""
    total = 0
    for index in range(count):
        if shared[index] > len(key):
            raise _Bad("bad-node", "a key shares more than there is")
        following = key[: shared[index]] + body.take(suffixes[index])
        if index and following <= key:
            raise _Bad("bad-node", "keys are out of order")
        key = following
        total += len(key)
        if len(key) > limits.NAME_BYTES or total > limits.HELD_BYTES:
            raise _Bad("bad-node", "keys are absurdly long")
        if interior and common[index] > len(key):
            raise _Bad("bad-node", "a subtree shares more than its key")
        keys.append(key)
    return keys, common


class _Reader:
    def __init__(self, tree: Tree, directory: str, manifest: str) -> None:
        self.tree = tree
        self.directory = directory
        self.database = Database(manifest)
        self.decoded = 0

    def fault(self, bad: _Bad, file: str, offset: int, length: int) -> None:
        self.database.whole = False
        if len(self.database.faults) < 100:
            self.database.faults.append(Fault(bad.code, bad.summary, file, offset, length, bad.cut))

    def read(self, file: str, offset: int, length: int) -> bytes:
        if length > limits.HELD_BYTES:
            raise _Bad("bad-node", f"{length} bytes are absurdly many")
        try:
            with self.tree.open(file) as source:
                return source.read_at(offset, length)
        except EndOfBytes as error:
            raise _Bad("node-cut", f"its file ends at {error.size_bytes}", cut=True) from error
        except UnreadableBytes as error:
            raise _Bad("unreadable", f"it can't be read: {error.reason}", cut=True) from error

    def manifest(self, path: str) -> bytes:
        try:
            with self.tree.open(path) as source:
                size = source.size_bytes
        except UnreadableBytes as error:
            raise _Bad("unreadable", f"it can't be read: {error.reason}", cut=True) from error
        body = _envelope(self.read(path, 0, min(size, limits.HELD_BYTES)), _MANIFEST_MAGIC)
        self.decoded += len(body)
        return body

    def root(self) -> _Node | None:
        """The newest version's root; None for a database without a key."""
        path = self.database.manifest
        body = _Body(self.manifest(path))
        if self.config(body) == _NUMBERED_KIND:
            found = [entry.path for entry in self.tree.listing(self.directory) if _NUMBERED.fullmatch(entry.name)]
            if not found:
                raise _Bad("manifest-missing", "none of its numbered manifests is there", cut=True)
            path = self.database.manifest = max(found)
            body = _Body(self.manifest(path))
            self.config(body)
        files = _file_table(body)
        count = body.varint()
        if count == 0:
            raise _Bad("bad-node", "no version is in it")
        generations = body.varints(count)
        heights = list(body.take(count))
        ids, offsets, lengths = body.varints(count), body.varints(count), body.varints(count)
        for _ in range(3):
            body.varints(count)
        body.take(_TIME.size * count)
        self.database.generation = generations[-1]
        if ids[-1] >= len(files):
            if lengths[-1] == 0 or offsets[-1] >> 63:
                return None
            raise _Bad("bad-node", "its root lies in a file that it does not name")
        if offsets[-1] >> 63:
            return None
        file = files[ids[-1]]
        return _Node(self.path(b"", file), offsets[-1], lengths[-1], heights[-1], b"", file.base)

    def config(self, body: _Body) -> int:
        body.take(_UUID_BYTES)
        kind = body.byte()
        if kind not in {_SINGLE, _NUMBERED_KIND}:
            raise _Bad("bad-node", f"manifest kind {kind} is unknown")
        body.varints(2)
        body.byte()
        method = body.varint()
        if method == _ZSTD:
            body.take(_LEVEL.size)
        elif method != _RAW:
            raise _Bad("bad-node", f"compression {method} is unknown")
        return kind

    def path(self, base: bytes, file: _File) -> str:
        relative = decode(base + file.base + file.relative)
        parts = relative.split("/")
        if relative.startswith("/") or ".." in parts or "\0" in relative:
            raise _Bad("path-escape", "a data file lies outside of the database")
        path = child(self.directory, "/".join(part for part in parts if part not in {"", "."}))
        self.database.files.add(path)
        return path

    def run(self) -> Database:
        try:
            root = self.root()
        except _Bad as bad:
            self.fault(bad, self.database.manifest, 0, 0)
            return self.database
        except UnreadableBytes as error:
            self.fault(_Bad("unreadable", error.reason, cut=True), self.database.manifest, 0, 0)
            return self.database
        pending = [] if root is None else [root]
        seen: set[_Node] = set()
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            if len(seen) > _NODES or len(self.database.values) > KEYS or self.decoded > _DECODED_BYTES:
                self.fault(_Bad("too-many", "the database has more nodes or keys than can be read"), node.file, 0, 0)
                break
            try:
                pending += reversed(self.node(node))
            except _Bad as bad:
                self.fault(bad, node.file, node.offset, node.length)
        return self.database

    def node(self, node: _Node) -> list[_Node]:
        """Take in the values of a leaf, or give back the children."""
        content = _envelope(self.read(node.file, node.offset, node.length), _BTREE_MAGIC)
        self.decoded += len(content)
        body = _Body(content)
        height = body.byte()
        if height != node.height:
            raise _Bad("bad-node", f"height {height} instead of {node.height}")
        files = _file_table(body)
        count = body.varint()
        if count == 0 or count > KEYS:
            raise _Bad("bad-node", f"{count} entries")
        keys, common = _keys(body, count, interior=height > 0)
        if height == 0:
            self.leaf(node, body, files, keys)
            return []
        ids, offsets, lengths = body.varints(count), body.varints(count), body.varints(count)
        for _ in range(3):
            body.varints(count)
        body.end()
        if max(ids) >= len(files):
            raise _Bad("bad-node", "a child lies in a file that it does not name")
        return [
            _Node(self.path(node.base, files[ids[index]]), offsets[index], lengths[index], height - 1,
                  node.prefix + keys[index][: common[index]], node.base + files[ids[index]].base)
            for index in range(count)]

    def leaf(self, node: _Node, body: _Body, files: list[_File], keys: list[bytes]) -> None:
        lengths, kinds = body.varints(len(keys)), body.varints(len(keys))
        outside = sum(kind == _OUT_OF_LINE for kind in kinds)
        ids, offsets = body.varints(outside), body.varints(outside)
        if any(kind not in {_INLINE, _OUT_OF_LINE} for kind in kinds) or (ids and max(ids) >= len(files)):
            raise _Bad("bad-node", "a value is neither inside nor in a file that is named")
        place = iter(zip(ids, offsets, strict=True))
        found: dict[str, Value] = {}
        for key, length, kind in zip(keys, lengths, kinds, strict=True):
            name = decode(node.prefix + key)
            if kind == _INLINE:
                found[name] = Value(node.file, node.offset, node.length, body.take(length))
            else:
                number, offset = next(place)
                found[name] = Value(self.path(node.base, files[number]), offset, length)
        body.end()
        self.database.values.update(found)


def read_database(tree: Tree, directory: str) -> Database:
    """The newest version of the database in a directory, as far as its nodes are whole. Never raises."""
    return _Reader(tree, directory, child(directory, MANIFEST)).run()
