"""A directory as readers see it: names and bytes, never a path of the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from rescue_tui.checkpoints.source import BytesSource, Source, UnreadableBytes


class Kind(StrEnum):
    """What a name in a directory stands for."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"  # device node, socket, FIFO: never opened


@dataclass(frozen=True, slots=True)
class Entry:
    """One name below the root. ``path`` is relative to it, ``/`` between parts; ``target`` is a symlink's text."""

    path: str
    kind: Kind
    size_bytes: int = 0
    mtime_ns: int = 0
    target: str = ""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


class Tree(Protocol):
    """A directory and what lies below it, read-only. "" is the root."""

    def listing(self, directory: str) -> tuple[Entry, ...]:
        """The names of one directory, sorted; empty where it is none. Raises `UnreadableBytes`."""

    def open(self, path: str) -> AbstractContextManager[Source]:
        """The bytes of one file. Raises `UnreadableBytes` for what can't be opened or is no file."""


@dataclass(frozen=True, slots=True)
class Walk:
    """Every entry below a directory, and whether a bound cut the walk short."""

    entries: tuple[Entry, ...]
    cut: bool = False


WALK_ENTRIES = 200_000
WALK_DEPTH = 32


def child(directory: str, name: str) -> str:
    """The path of a name within a directory."""
    return f"{directory}/{name}" if directory else name


def below(directory: str, path: str) -> str:
    """``path`` as seen from ``directory``, which it lies in."""
    return path[len(directory) + 1 :] if directory else path


def walk(tree: Tree, directory: str, max_entries: int = WALK_ENTRIES, max_depth: int = WALK_DEPTH) -> Walk:
    """Everything below a directory, parents before children, names in order; symlinks are named, not followed.

    Raises `UnreadableBytes` from a listing.
    """
    entries: list[Entry] = []
    pending = [(directory, 1)]
    cut = False
    while pending:
        where, depth = pending.pop()
        inner: list[tuple[str, int]] = []
        for entry in tree.listing(where):
            if len(entries) >= max_entries:
                return Walk(tuple(entries), True)
            entries.append(entry)
            if entry.kind is Kind.DIRECTORY:
                if depth >= max_depth:
                    cut = True
                else:
                    inner.append((entry.path, depth + 1))
        pending.extend(reversed(inner))
    return Walk(tuple(entries), cut)


def iter_files(entries: tuple[Entry, ...]) -> Iterator[Entry]:
    """The plain files among them."""
    return (entry for entry in entries if entry.kind is Kind.FILE)


@dataclass(frozen=True, slots=True)
class MemoryTree:
    """A tree over bytes in memory, for tests: ``{"a/b": b"..."}``. ``mtimes_ns`` gives times to some of them.

    ``sources`` answers some paths with sources of another kind (one with holes, one with bad sectors).
    """

    files: Mapping[str, bytes]
    mtimes_ns: Mapping[str, int] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)

    def listing(self, directory: str) -> tuple[Entry, ...]:
        """The names of one directory, sorted."""
        prefix = f"{directory}/" if directory else ""
        found: dict[str, Entry] = {}
        for path in (*self.files, *self.links, *self.sources):
            if not path.startswith(prefix):
                continue
            name, _, rest = path[len(prefix) :].partition("/")
            where = prefix + name
            time = self.mtimes_ns.get(where, 0)
            if rest or path.endswith("/"):
                found[name] = Entry(where, Kind.DIRECTORY, 0, time)
            elif path in self.links:
                found[name] = Entry(where, Kind.SYMLINK, 0, time, self.links[path])
            elif path in self.sources:
                found[name] = Entry(where, Kind.FILE, self.sources[path].size_bytes, time)
            else:
                found[name] = Entry(where, Kind.FILE, len(self.files[path]), time)
        return tuple(found[name] for name in sorted(found) if name)

    def open(self, path: str) -> AbstractContextManager[Source]:
        """The bytes of one file."""
        if path in self.sources:
            return nullcontext(self.sources[path])
        if path not in self.files:
            raise UnreadableBytes(0, 0, "no such file")
        return nullcontext(BytesSource(self.files[path], path))
