"""New files below one directory: written under a partial name, read back past the page cache, renamed at the end.

Every component is made and opened relative to the one before and with O_NOFOLLOW (openat(2)), so that no link that
lies in the directory leads a write out of it. Nothing that is there is overwritten.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from rescue_tui.checkpoints.source import CHUNK_BYTES, BytesSource, Source
from rescue_tui.system.filetree import FileSource

PARTIAL = ".partial"
NAME_BYTES = 255
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
# What file systems answer to a name that they have no way to store.
_BAD_NAME = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.ENOENT})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_PROBE_BYTES = 1 << 20


class NotStored(Exception):
    """A file can't be made here. ``code`` is that of a finding, ``words`` a sentence; ``full``: no room is left."""

    def __init__(self, code: str, words: str, *, full: bool = False) -> None:
        super().__init__(words)
        self.code = code
        self.words = words
        self.full = full


@contextmanager
def _told(what: str, *, naming: bool = False) -> Iterator[None]:
    """What the destination refuses, as NotStored."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise NotStored("no-space", "The destination is full.", full=True) from error
        if error.errno == errno.EFBIG:
            raise NotStored("file-too-large", f"The destination can't store a file as large as {what}.") from error
        if naming and error.errno in _BAD_NAME:
            raise NotStored("name-not-storable", f"The destination can't store the name {what}: "
                            f"{os.strerror(error.errno or 0)}.") from error
        if naming and error.errno in {errno.ENOTDIR, errno.ELOOP, errno.EEXIST}:
            raise NotStored("exists", f"Something else is called {what} already: it is left as it is.") from error
        raise NotStored("write-failed", f"{what} can't be written: {os.strerror(error.errno or 0)}.") from error


class FreshDirectory:
    """A directory to write to, made when it is not there. Raises OSError when it can't be."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.keeps_holes, self.folds_case = self._probe()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def free_bytes(self) -> int:
        """What may still be written by us."""
        space = os.fstatvfs(self._descriptor)
        return space.f_bavail * space.f_frsize

    def _probe(self) -> tuple[bool, bool]:
        """Whether holes stay holes here, and whether names that differ by case only are one."""
        with tempfile.NamedTemporaryFile(prefix="stasis-Probe-", dir=self.path) as probe:
            os.ftruncate(probe.fileno(), _PROBE_BYTES)
            os.fsync(probe.fileno())
            holes = os.fstat(probe.fileno()).st_blocks * 512 < _PROBE_BYTES
            name = Path(probe.name)
            folded = name.with_name(name.name.swapcase())
            return holes, folded.exists() and os.path.samestat(folded.stat(), os.fstat(probe.fileno()))

    def _parent(self, path: str) -> int:
        """A descriptor of the directory that a file goes to; directories on the way are made."""
        descriptor = os.dup(self._descriptor)
        try:
            for part in path.split("/")[:-1]:
                with _told(part, naming=True):
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o777, dir_fd=descriptor)
                    below = os.open(part, _DIRECTORY, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
        except NotStored:
            os.close(descriptor)
            raise
        return descriptor

    def open(self, path: str) -> FileSource | None:
        """A regular file that is there already; None when there is nothing of that name. Raises NotStored."""
        parent = self._parent(path)
        name = path.rpartition("/")[2]
        try:
            try:
                status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise NotStored("name-not-storable", f"The destination can't store the name {name}: "
                                f"{os.strerror(error.errno or 0)}.") from error
            if not stat.S_ISREG(status.st_mode):
                raise NotStored("exists", f"Something else is called {name} already: it is left as it is.")
            with _told(path):
                return FileSource(os.open(name, _READ, dir_fd=parent), path, status.st_size)
        finally:
            os.close(parent)

    def create(self, path: str) -> FreshFile:
        """A new file, under its partial name for now; one that an interrupted call left there goes. NotStored."""
        parent = self._parent(path)
        name = path.rpartition("/")[2]
        partial = name + PARTIAL
        if len(os.fsencode(partial)) > NAME_BYTES >= len(os.fsencode(name)):
            partial = hashlib.sha256(os.fsencode(name)).hexdigest()[:32] + PARTIAL
        try:
            with _told(name, naming=True):
                with suppress(FileNotFoundError):
                    if stat.S_ISREG(os.stat(partial, dir_fd=parent, follow_symlinks=False).st_mode):
                        os.unlink(partial, dir_fd=parent)
                descriptor = os.open(partial, _NEW, 0o666, dir_fd=parent)
        except NotStored:
            os.close(parent)
            raise
        return FreshFile(parent, descriptor, path, partial)

    def scratch(self) -> SpooledRun:
        """Room for bytes that nobody sees; it goes when it is closed."""
        return SpooledRun(self.path)


class FreshFile:
    """A file in the making. Closed without `publish` it stays under its partial name."""

    def __init__(self, parent: int, descriptor: int, path: str, partial: str) -> None:
        self._parent = parent
        self._descriptor = descriptor
        self.path = path
        self.partial = partial

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptors back."""
        for descriptor in (self._descriptor, self._parent):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._parent = -1

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Put bytes at an offset. Raises NotStored."""
        view = memoryview(data)
        with _told(self.path):
            while view:
                count = os.pwrite(self._descriptor, view, offset)
                view, offset = view[count:], offset + count

    def share(self, source: FileSource, offset: int, length: int) -> bool:
        """Let the file system copy a run by itself, as a reflink where it can (copy_file_range(2)); False: it did not.
        """
        try:
            if os.fstat(source.fileno()).st_dev != os.fstat(self._descriptor).st_dev:
                return False
            while length:
                count = os.copy_file_range(source.fileno(), self._descriptor, length, offset, offset)
                if not count:
                    return False
                offset, length = offset + count, length - count
        except OSError:
            return False
        return True

    def resize(self, size_bytes: int) -> None:
        """Give the file its length; what is not written reads as zeros. Raises NotStored."""
        with _told(self.path):
            os.ftruncate(self._descriptor, size_bytes)

    def dress(self, mtime_ns: int | None, attributes: Mapping[str, bytes]) -> tuple[str, ...]:
        """Give it a time and user attributes; the names of what the destination would not keep."""
        lost = []
        for name, value in attributes.items():
            try:
                os.setxattr(self._descriptor, name, value)
            except OSError:
                lost.append(name)
        if mtime_ns is not None:
            try:
                os.utime(self._descriptor, ns=(mtime_ns, mtime_ns))
            except (OSError, OverflowError):
                lost.append("mtime")
        return tuple(lost)

    def flush(self) -> None:
        """Everything to the disk and out of the page cache, so that what is read next comes from there. NotStored."""
        with _told(self.path):
            os.fsync(self._descriptor)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def chunks(self) -> Iterator[memoryview]:
        """What the disk gives back, past the page cache where that works. Call `flush` before. Raises NotStored."""
        with _told(self.path):
            try:
                descriptor = os.open(self.partial, _READ | os.O_DIRECT, dir_fd=self._parent)
            except OSError:  # tmpfs and some FUSE file systems have no direct reads
                descriptor = os.open(self.partial, _READ, dir_fd=self._parent)
        try:
            with mmap.mmap(-1, CHUNK_BYTES) as buffer:
                at = 0
                while True:
                    with _told(self.path):
                        count = os.preadv(descriptor, [buffer], at)
                    if not count:
                        return
                    at += count
                    with memoryview(buffer) as view, view[:count] as part:
                        yield part
                    if count % mmap.PAGESIZE:
                        return  # a direct read that ends short ended at the end of the file
        finally:
            os.close(descriptor)

    def read(self, offset: int, length: int) -> bytes:
        """Bytes that were written. Raises NotStored."""
        pieces = []
        with _told(self.path):
            while length:
                piece = os.pread(self._descriptor, length, offset)
                if not piece:
                    break
                pieces.append(piece)
                offset, length = offset + len(piece), length - len(piece)
        return b"".join(pieces)

    def discard(self) -> None:
        """Take the partial file away again."""
        with suppress(OSError):
            os.unlink(self.partial, dir_fd=self._parent)

    def publish(self) -> None:
        """Give the file its name. Raises NotStored when something has that name by now."""
        name = self.path.rpartition("/")[2]
        try:
            os.stat(name, dir_fd=self._parent, follow_symlinks=False)
        except FileNotFoundError:
            with _told(name, naming=True):
                os.rename(self.partial, name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
                with suppress(OSError):  # FAT on some kernels can't
                    os.fsync(self._parent)
            if name[-1] in ". " and name not in os.listdir(self._parent):
                raise NotStored("name-not-storable", f"The destination stores {name} under another name.") from None
            return
        except OSError as error:
            raise NotStored("write-failed", f"{name} can't be renamed: {os.strerror(error.errno or 0)}.") from error
        raise NotStored("exists", f"Something is called {name} already: it is left as it is.")


class SpooledRun:
    """A decoded run too large to hold: in memory at first, then in a file without a name."""

    def __init__(self, directory: Path) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  closed with us
        self._size = 0

    def __del__(self) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        """Behind what was written before. Raises NotStored."""
        with _told("a decoded run"):
            self._file.write(data)
        self._size += len(data)

    def source(self) -> Source:
        """What was written; closes the file for writing."""
        if not self._size:
            return BytesSource(b"", "decoded")
        with _told("a decoded run"):
            self._file.flush()
        descriptor = os.dup(self._file.fileno())
        self._file.close()
        return FileSource(descriptor, "decoded", self._size)


def user_attributes(descriptor: int) -> dict[str, bytes]:
    """The extended attributes in the user's name space (xattr(7)); none where the file system has none."""
    found: dict[str, bytes] = {}
    try:
        names: Sequence[str] = os.listxattr(descriptor)
    except OSError:
        return found
    for name in names:
        if name.startswith("user."):
            with suppress(OSError):
                found[name] = os.getxattr(descriptor, name)
    return found
