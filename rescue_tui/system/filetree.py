"""A directory of the machine as readers may see it: read-only, no link followed out of it, no device opened.

Every component of a path is opened relative to the directory before it and with O_NOFOLLOW (openat(2)), so that
neither a link nor a rename while we look leads out of the root.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from rescue_tui.checkpoints.source import CHUNK_BYTES, EndOfBytes, Found, Looked, Span, UnreadableBytes, look_in_turn
from rescue_tui.checkpoints.tree import Entry, Kind, child
from rescue_tui.core.damage import Extent, Loss
from rescue_tui.system.extents import Medium, extents_of, losses_of
from rescue_tui.system.lanes import Lanes, Reader

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MAX_LINKS = 8
MAX_DEPTH = 512
MAX_KEPT = 8
MAX_HOLES = 100_000
# A file of this size is read at once where more than its beginning is asked for: readers ask for many small parts.
SMALL_BYTES = 256 << 10
OnRead = Callable[[int], None]
Media = Mapping[int, Medium]
NO_MEDIA: Media = MappingProxyType({})


def _unheard(count: int) -> None:
    del count


class FileSource:
    """The bytes of one regular file (`rescue_tui.checkpoints.source.Source`). Closed when nobody holds it any more."""

    def __init__(self, descriptor: int, name: str, size_bytes: int, on_read: OnRead = _unheard,
                 lanes: Lanes | None = None) -> None:
        self._descriptor = descriptor
        self.name = name
        self.size_bytes = size_bytes
        self._on_read = on_read
        self._reader = Reader(descriptor, size_bytes, lanes or Lanes(1))
        self._whole: bytes | None = None
        self._reads = 0 if size_bytes <= SMALL_BYTES else -1
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptor back; reading afterwards raises UnreadableBytes."""
        if self._descriptor >= 0:
            self._reader.settle()
            self._whole, self._reads = None, -1
            os.close(self._descriptor)
            self._descriptor = -1

    def fileno(self) -> int:
        """The descriptor, for what asks the system about the file; it stays ours."""
        return self._descriptor

    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes. Raises EndOfBytes behind the end, UnreadableBytes when the medium can't."""
        if offset < 0 or length < 0 or offset + length > self.size_bytes:
            raise EndOfBytes(offset, length, self.size_bytes)
        if self._reads >= 0 and (whole := self._at_once()) is not None:
            self._on_read(length)
            return whole[offset : offset + length]
        pieces: list[bytes] = []
        done = 0
        while done < length:
            try:
                piece = os.pread(self._descriptor, length - done, offset + done)
            except OSError as error:
                raise UnreadableBytes(offset + done, length - done, os.strerror(error.errno or 0)) from error
            if not piece:  # it shrank since it was opened
                raise EndOfBytes(offset, length, offset + done)
            pieces.append(piece)
            done += len(piece)
        self._on_read(length)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _at_once(self) -> bytes | None:
        """All bytes of a small file from the second read on; None when they can't be had so: each read tells why."""
        if self._whole is None and self._reads:
            try:
                whole = os.pread(self._descriptor, self.size_bytes, 0)
            except OSError:
                whole = b""
            if len(whole) < self.size_bytes:
                self._reads = -1
                return None
            self._whole = whole
        self._reads = 1
        return self._whole

    def chunks(self, offset: int, length: int) -> Iterator[bytes]:
        """The same bytes in pieces of at most `CHUNK_BYTES`."""
        for start in range(offset, offset + length, CHUNK_BYTES):
            yield self.read_at(start, min(CHUNK_BYTES, offset + length - start))

    def look_at(self, runs: Sequence[Span], look: Callable[[memoryview], Found],
                onward: bool) -> Iterator[Looked[Found]]:
        """As `rescue_tui.checkpoints.source.look_at`, in as many threads as the tree was opened with."""
        if self._reads >= 0:
            yield from look_in_turn(self, runs, look, onward)
            return
        for found in self._reader.look_at(runs, look, onward):
            self._on_read(sum(piece.length for piece in found if piece.trouble is None))
            yield from found

    def holes(self, offset: int, length: int) -> tuple[Span, ...]:
        """Unallocated runs within (lseek(2), SEEK_HOLE); empty where the file system doesn't tell."""
        end = min(offset + length, self.size_bytes)
        found: list[Span] = []
        at = offset
        while at < end and len(found) < MAX_HOLES:
            try:
                hole = os.lseek(self._descriptor, at, os.SEEK_HOLE)
                if hole >= end:
                    break
                try:
                    data = os.lseek(self._descriptor, hole, os.SEEK_DATA)
                except OSError as error:
                    if error.errno != errno.ENXIO:  # ENXIO: nothing but hole from here on
                        raise
                    data = end
            except OSError:
                break
            at = max(min(data, end), hole + 1)
            found.append(Span(hole, at - hole))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Names:
    """What a directory holds, by name and kind alone: no file was touched."""

    directories: tuple[str, ...]
    files: tuple[str, ...]
    links: tuple[str, ...]


class FileTree:
    """A directory as `rescue_tui.checkpoints.tree.Tree`. Paths are relative to it, ``/`` between parts, ``""`` itself.

    ``on_read`` is told the count of bytes after each read, always in the caller's thread; ``lanes`` is how many threads
    may read one large file. ``media``: by device number (st_dev), what the images of the mounted file systems lack.
    Raises OSError when ``root`` is no directory.
    """

    def __init__(self, root: Path, on_read: OnRead = _unheard, *, lanes: int = 1, media: Media = NO_MEDIA) -> None:
        self.root = root
        self.media = media
        self._on_read = on_read
        self._lanes = Lanes(lanes)
        # The root itself is what the operator named: a link is followed there and nowhere below.
        self._descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._near: dict[str, int] = {}

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptors back."""
        if hasattr(self, "_lanes"):
            self._lanes.close()
        near: dict[str, int] = getattr(self, "_near", {})
        while near:
            os.close(near.popitem()[1])
        descriptor = getattr(self, "_descriptor", -1)
        if descriptor >= 0:
            os.close(descriptor)
            self._descriptor = -1

    def names(self, path: str) -> Names:
        """Names by kind, without a look at any of them. Raises UnreadableBytes."""
        directories: list[str] = []
        files: list[str] = []
        links: list[str] = []
        with _trouble():
            descriptor = self._directory(path)
            try:
                if not os.fstatvfs(descriptor).f_blocks:  # proc, sysfs and their like: no disk, and opening has effects
                    return Names((), (), ())
                with os.scandir(descriptor) as entries:
                    for entry in entries:
                        if entry.is_file(follow_symlinks=False):
                            files.append(entry.name)
                        elif entry.is_dir(follow_symlinks=False):
                            directories.append(entry.name)
                        elif entry.is_symlink():
                            links.append(entry.name)
            finally:
                os.close(descriptor)
        return Names(tuple(directories), tuple(files), tuple(links))

    def sizes(self, directory: str, names: Sequence[str]) -> list[int]:
        """The sizes of some names of a directory, 0 for what can't be looked at. Raises UnreadableBytes."""
        found: list[int] = []
        with _trouble():
            descriptor = self._beside(directory)
            for name in names:
                try:
                    found.append(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_size)
                except OSError:
                    found.append(0)
        return found

    def listing(self, directory: str) -> tuple[Entry, ...]:
        """The names of one directory with sizes and times, sorted; empty where it is none. Raises UnreadableBytes."""
        found: list[Entry] = []
        with _trouble():
            try:
                descriptor = self._directory(directory)
            except (FileNotFoundError, NotADirectoryError):
                return ()
            try:
                for name in sorted(os.listdir(descriptor)):
                    with suppress(FileNotFoundError):  # removed since it was listed
                        found.append(_entry(directory, name, descriptor))
            finally:
                os.close(descriptor)
        return tuple(found)

    def entry(self, path: str) -> Entry | None:
        """One path, which is not followed when it is a link; None when there is none or it can't be looked at."""
        parent, _, name = path.rpartition("/")
        try:
            return _entry(parent, name or ".", self._beside(parent))
        except (OSError, ValueError, UnreadableBytes):
            return None

    def open(self, path: str) -> FileSource:
        """A regular file, also behind links that stay within the tree. Raises UnreadableBytes for anything else."""
        with _trouble():
            target = self.resolve(path)
            parent, _, name = target.rpartition("/")
            directory = self._beside(parent)
            # Looked at before it is opened: opening a device or a fifo may already have an effect.
            if not stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                raise UnreadableBytes(0, 0, "it is no regular file")
            descriptor = os.open(name, _FILE, dir_fd=directory)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                os.close(descriptor)
                raise UnreadableBytes(0, 0, "it is no regular file")
        return FileSource(descriptor, path, status.st_size, self._on_read, self._lanes)

    def losses(self, path: str) -> tuple[Loss, ...]:
        """The bytes of a file that its image lacks. Raises UnreadableBytes, and PlaceUnknown where nobody can tell."""
        if not self.media:
            return ()
        with self.open(path) as source, _trouble():
            medium = self.media.get(os.fstat(source.fileno()).st_dev)
            return () if medium is None else losses_of(source.fileno(), source.size_bytes, medium)

    def extents(self, path: str, medium: int) -> Sequence[Extent]:
        """Where a file lies on the medium of this device number; nothing when it is on another. Raises as `losses`."""
        with self.open(path) as source, _trouble():
            if os.fstat(source.fileno()).st_dev != medium:
                return ()
            return extents_of(source.fileno(), source.size_bytes, self.media[medium].filesystem)

    def resolve(self, path: str) -> str:
        """The path behind links in its last part; UnreadableBytes when one leads out of the tree or in a circle."""
        for _ in range(MAX_LINKS):
            parent, _, name = path.rpartition("/")
            directory = self._beside(parent)
            if not stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                return path
            path = _join(parent, os.readlink(name, dir_fd=directory))
        raise UnreadableBytes(0, 0, "too many links")

    def _beside(self, parent: str) -> int:
        """A descriptor of a directory, of which the last few are kept: most opens are of neighbours."""
        if not parent:
            return self._descriptor
        descriptor = self._near.get(parent)
        if descriptor is None:
            descriptor = self._opened(parent)
            while len(self._near) >= MAX_KEPT:
                os.close(self._near.pop(next(iter(self._near))))
            self._near[parent] = descriptor
        return descriptor

    def _directory(self, path: str) -> int:
        """A new descriptor of a directory below the root, with a position of its own."""
        parent, _, name = path.rpartition("/")
        if not name:
            return os.open(".", _DIRECTORY, dir_fd=self._descriptor)
        if name == "..":
            raise UnreadableBytes(0, 0, "the path leads out of the tree")
        return os.open(name, _DIRECTORY, dir_fd=self._beside(parent))

    def _opened(self, path: str) -> int:
        """As `_directory`, part after part."""
        parts = [part for part in path.split("/") if part]
        if len(parts) > MAX_DEPTH or ".." in parts:
            raise UnreadableBytes(0, 0, "the path is too deep, or leads out of the tree")
        descriptor = os.dup(self._descriptor)
        try:
            for part in parts:
                below = os.open(part, _DIRECTORY, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
        except OSError:
            os.close(descriptor)
            raise
        return descriptor


@contextmanager
def _trouble() -> Iterator[None]:
    """Turns what the system refuses into UnreadableBytes."""
    try:
        yield
    except OSError as error:
        raise UnreadableBytes(0, 0, os.strerror(error.errno or 0)) from error
    except ValueError as error:  # a name with a zero byte
        raise UnreadableBytes(0, 0, str(error)) from error


def _entry(parent: str, name: str, descriptor: int) -> Entry:
    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    kind, target = Kind.OTHER, ""
    if stat.S_ISREG(status.st_mode):
        kind = Kind.FILE
    elif stat.S_ISDIR(status.st_mode):
        kind = Kind.DIRECTORY
    elif stat.S_ISLNK(status.st_mode):
        kind, target = Kind.SYMLINK, os.readlink(name, dir_fd=descriptor)
    return Entry(child(parent, name), kind, status.st_size, status.st_mtime_ns, target)


def _join(parent: str, target: str) -> str:
    """A link's target seen from the root; UnreadableBytes when it is absolute or leaves the root."""
    if target.startswith("/"):
        raise UnreadableBytes(0, 0, "it is a link out of the tree")
    parts = [part for part in parent.split("/") if part]
    for part in target.split("/"):
        if part == "..":
            if not parts:
                raise UnreadableBytes(0, 0, "it is a link out of the tree")
            parts.pop()
        elif part not in {"", "."}:
            parts.append(part)
    if not parts:
        raise UnreadableBytes(0, 0, "it is a link to the tree itself")
    return "/".join(parts)
