"""Which files make a TensorFlow bundle: names of index and shards, unfinished saves, the pointer file ``checkpoint``.

Sources: tensorflow/core/util/tensor_bundle/{naming,tensor_bundle}.cc, python/checkpoint/checkpoint_management.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rescue_tui.checkpoints.source import EndOfBytes, UnreadableBytes
from rescue_tui.checkpoints.sstable import looks_like_table
from rescue_tui.checkpoints.tree import Entry, Kind, Tree
from rescue_tui.core.text import decode

NAME = re.compile(
    r"(?P<prefix>.+)\.(?:(?P<index>index)|data-(?P<shard>\d{5,9})-of-(?P<shards>\d{5,9}))(?P<temporary>\.tempstate\d+)?",
    re.DOTALL)
PARTS_DIRECTORY = re.compile(r"(?P<prefix>.+)_temp(?:_[0-9a-f]{8,64})?", re.DOTALL)
PART = re.compile(r"part-(?P<shard>\d{5,9})-of-(?P<shards>\d{5,9})")
_STATE_LINE = re.compile(
    rb'^\s*(model_checkpoint_path|all_model_checkpoint_paths)\s*:\s*"((?:[^"\\\n]|\\.)*)"', re.MULTILINE)
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_STATE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Bundle:
    """Files of one prefix in one directory. ``parts`` are directories of an unfinished save of the same prefix."""

    prefix: str
    index: Entry | None
    shards: tuple[Entry, ...]
    meta: Entry | None = None
    leftovers: tuple[Entry, ...] = ()
    parts: tuple[Entry, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        """Paths of the files that make it."""
        return tuple(entry.path for entry in (self.index, *self.shards, self.meta) if entry is not None)


@dataclass(frozen=True, slots=True)
class State:
    """The pointer file ``checkpoint``: the latest prefix, and all that were kept, as they are written there."""

    latest: str
    kept: tuple[str, ...]


def prefixes(entries: Iterable[Entry]) -> tuple[Bundle, ...]:
    """Bundles in one directory's listing, by prefix (a path). What only temporary files stand for is one as well.

    An index without data may belong to another program: ask `is_bundle`.
    """
    index: dict[str, Entry] = {}
    shards: dict[str, list[Entry]] = {}
    leftovers: dict[str, list[Entry]] = {}
    parts: dict[str, list[Entry]] = {}
    meta: dict[str, Entry] = {}
    for entry in entries:
        if entry.kind is Kind.DIRECTORY:
            found = PARTS_DIRECTORY.fullmatch(entry.path)
            if found:
                parts.setdefault(found["prefix"], []).append(entry)
            continue
        if entry.kind is Kind.OTHER:
            continue
        if entry.path.endswith(".meta"):
            meta[entry.path.removesuffix(".meta")] = entry
        found = NAME.fullmatch(entry.path)
        if not found:
            continue
        if found["temporary"]:
            leftovers.setdefault(found["prefix"], []).append(entry)
        elif found["index"]:
            index[found["prefix"]] = entry
        else:
            shards.setdefault(found["prefix"], []).append(entry)
    return tuple(
        Bundle(prefix, index.get(prefix), tuple(shards.get(prefix, ())), meta.get(prefix),
               tuple(leftovers.get(prefix, ())), tuple(parts.get(prefix, ())))
        for prefix in sorted({*index, *shards, *leftovers}))


def is_bundle(tree: Tree, bundle: Bundle) -> bool:
    """True unless it is only an index whose content is no table of a bundle (other programs have ``.index`` files)."""
    if bundle.shards or bundle.index is None:
        return bool(bundle.shards or bundle.leftovers)
    try:
        with tree.open(bundle.index.path) as source:
            size = source.size_bytes
            return looks_like_table(source.read_at(0, min(size, 64)), source.read_at(max(0, size - 64), min(size, 64)))
    except (EndOfBytes, UnreadableBytes):
        return False


def _unescaped(value: bytes) -> str:
    def one(found: re.Match[bytes]) -> bytes:
        what = found[1]
        if what[:1].isdigit():
            return bytes((int(what, 8) & 0xFF,))
        if what[:1] == b"x" and len(what) > 1:
            return bytes((int(what[1:], 16),))
        return _ESCAPES.get(what, what)

    return decode(_ESCAPE.sub(one, value))


def parse_state(content: bytes) -> State | None:
    """The text of a ``checkpoint`` file (CheckpointState); None where it is no such text."""
    latest, kept = "", []
    for name, value in _STATE_LINE.findall(content[:_STATE_BYTES]):
        if name == b"model_checkpoint_path":
            latest = _unescaped(value)
        else:
            kept.append(_unescaped(value))
    return State(latest, tuple(kept)) if latest else None
