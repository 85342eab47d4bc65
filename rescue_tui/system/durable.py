"""Files that survive a power cut: written beside, flushed, renamed, the directory flushed. rename(2), fsync(2)."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Flush the names in a directory. File systems that can't (FAT on some kernels) are left alone."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(handle)


def replace_file(path: Path, content: bytes, *, sync: bool = True, mode: int = 0o644) -> None:
    """Give ``path`` this content, or leave it as it was; a reader never sees half of it. Raises OSError.

    ``sync=False`` is for files in RAM and for what is written twice a second.
    """
    beside = path.with_name(f".{path.name}.new")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(handle, view):]
        if sync:
            os.fsync(handle)
    except OSError:
        os.close(handle)
        beside.unlink(missing_ok=True)
        raise
    os.close(handle)
    beside.replace(path)
    if sync:
        sync_directory(path.parent)


def read_or_none(path: Path, limit_bytes: int = 64 << 20) -> bytes | None:
    """The content of a file of ours; None when there is none. Raises OSError when it can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(limit_bytes)
    except FileNotFoundError:
        return None


def tail_of(path: Path, limit_bytes: int) -> bytes:
    """The last bytes of a file; nothing when there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit_bytes))
            return file.read(limit_bytes)
    except FileNotFoundError:
        return b""


_CANNOT_SYNC = frozenset({errno.EINVAL, errno.EOPNOTSUPP})
