"""Copying one file out of a tree: holes, times and user attributes kept, hashed, and read back before it counts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rescue_tui.checkpoints.source import CHUNK_BYTES, EndOfBytes, Span, UnreadableBytes
from rescue_tui.system.filetree import FileSource, FileTree
from rescue_tui.system.freshfiles import FreshDirectory, FreshFile, NotStored, user_attributes

OnBytes = Callable[[int], None]
_ZEROS = bytes(CHUNK_BYTES)


class NotCopied(Exception):
    """A file of the source was not copied. ``code`` is that of a finding, ``words`` a sentence."""

    def __init__(self, code: str, words: str, offset: int | None = None, length: int | None = None) -> None:
        super().__init__(words)
        self.code = code
        self.words = words
        self.offset = offset
        self.length = length


@dataclass(frozen=True, slots=True)
class Copied:
    """A file at the destination, proven by reading it back. ``data_bytes`` leaves holes out.

    ``was_there``: an earlier call had copied it, and it is the same. ``undressed``: what of its metadata was not kept.
    """

    path: str
    size_bytes: int
    data_bytes: int
    sha256: str
    was_there: bool = False
    undressed: tuple[str, ...] = ()


def data_runs(source: FileSource) -> list[Span]:
    """The parts of a file that its file system allocated."""
    runs = []
    at = 0
    for hole in source.holes(0, source.size_bytes):
        if hole.offset > at:
            runs.append(Span(at, hole.offset - at))
        at = hole.end
    if at < source.size_bytes:
        runs.append(Span(at, source.size_bytes - at))
    return runs


def copy(tree: FileTree, path: str, mtime_ns: int | None, fresh: FreshDirectory, tick: OnBytes) -> Copied:
    """Copy one file to the same path below the destination. ``tick`` gets bytes as they are copied and as they are
    read back: twice the size in all.

    Raises NotCopied, and NotStored where the destination is the reason. What was written until then stays partial.
    """
    try:
        with tree.open(path) as source:
            there = fresh.open(path)
            if there is not None:
                with there:
                    return _compared(source, there, path, tick)
            with fresh.create(path) as file:
                return _copied(source, file, path, mtime_ns, tick)
    except UnreadableBytes as error:
        raise NotCopied("unreadable", f"{path} can't be read: {error.reason}.", error.offset or None,
                        error.length or None) from error
    except EndOfBytes as error:
        raise NotCopied("changed", f"{path} became shorter while it was copied.", error.offset) from error


def _copied(source: FileSource, file: FreshFile, path: str, mtime_ns: int | None, tick: OnBytes) -> Copied:
    runs = data_runs(source)
    digest = hashlib.sha256()
    file.resize(source.size_bytes)
    at = 0
    for run in runs:
        _hash_zeros(digest.update, run.offset - at, tick)
        shared = file.share(source, run.offset, run.length)
        position = run.offset
        for piece in source.chunks(run.offset, run.length):
            digest.update(piece)
            if not shared:
                file.write(position, piece)
            position += len(piece)
            tick(len(piece))
        at = run.end
    _hash_zeros(digest.update, source.size_bytes - at, tick)
    lost = file.dress(mtime_ns, user_attributes(source.fileno()))
    file.flush()
    again = hashlib.sha256()
    for part in file.chunks():
        again.update(part)
        tick(len(part))
    if again.digest() != digest.digest():
        raise NotCopied("read-back-differs", f"{path} reads back from the destination with other bytes: it stays under "
                        f"the name {file.partial}.")
    file.publish()
    return Copied(path, source.size_bytes, sum(run.length for run in runs), digest.hexdigest(), undressed=lost)


def _compared(source: FileSource, there: FileSource, path: str, tick: OnBytes) -> Copied:
    """A file of this name is there: as good as copied when it is the same, else left alone."""
    size = source.size_bytes
    digest = hashlib.sha256()
    same = there.size_bytes == size
    if same:
        for piece, other in zip(source.chunks(0, size), there.chunks(0, size), strict=True):
            digest.update(piece)
            if piece != other:
                same = False
                break
            tick(2 * len(piece))
    if not same:
        raise NotStored("exists", f"Another file is called {path} already: it is left as it is.")
    return Copied(path, size, sum(run.length for run in data_runs(source)), digest.hexdigest(), was_there=True)


def _hash_zeros(update: Callable[[bytes], None], length: int, tick: OnBytes) -> None:
    for piece in _zeros(length):
        update(piece)
        tick(len(piece))


def _zeros(length: int) -> Iterator[bytes]:
    for at in range(0, length, CHUNK_BYTES):
        yield _ZEROS[: min(CHUNK_BYTES, length - at)]
