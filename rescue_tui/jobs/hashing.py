"""SHA-256 of a file as it is on the disk: past the page cache, while the caller's loop stays free."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import mmap
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_BUFFER_BYTES = 8 << 20


class HashStoppedError(Exception):
    """The caller asked to stop; there is no hash."""


async def sha256_of(path: Path, tick: Callable[[int], None], stop: threading.Event | None = None) -> str:
    """The hash in hex. ``tick`` gets the bytes done so far, in the caller's thread, twice a second.

    The file is flushed first and read with O_DIRECT where that works, so a bad disk can't hide behind the page cache.
    Raises OSError, and HashStoppedError once ``stop`` is set.
    """
    wanted = stop or threading.Event()
    work = _Hashing(path, wanted)
    task = asyncio.create_task(asyncio.to_thread(work.run))
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=0.5)
            tick(work.done_bytes)
        return task.result()
    finally:
        if not task.done():
            wanted.set()


class _Hashing:
    def __init__(self, path: Path, stop: threading.Event) -> None:
        self._path = path
        self._stop = stop
        self.done_bytes = 0

    def run(self) -> str:
        """Read into one buffer while the other one is hashed; both release the interpreter lock."""
        digest = hashlib.sha256()
        handle = _open_past_cache(self._path)
        buffers = [mmap.mmap(-1, _BUFFER_BYTES) for _ in range(2)]
        try:
            with ThreadPoolExecutor(1) as reader:
                pending = reader.submit(_fill, handle, buffers[0], 0)
                turn = 0
                while count := pending.result():
                    if self._stop.is_set():
                        raise HashStoppedError
                    current, turn = buffers[turn], 1 - turn
                    pending = reader.submit(_fill, handle, buffers[turn], self.done_bytes + count)
                    with memoryview(current) as view:
                        digest.update(view[:count])
                    self.done_bytes += count
        finally:
            os.close(handle)
            for buffer in buffers:
                buffer.close()
        return digest.hexdigest()


def _open_past_cache(path: Path) -> int:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a read-only file system has nothing to flush
            os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            direct = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        except OSError:
            return handle  # tmpfs and some FUSE file systems have no direct reads
    except OSError:
        os.close(handle)
        raise
    os.close(handle)
    return direct


def _fill(handle: int, buffer: mmap.mmap, position: int) -> int:
    """Read until the buffer is full or the file ends; a direct read that ends short ended at the end of the file."""
    filled = 0
    with memoryview(buffer) as view:
        while filled < _BUFFER_BYTES:
            count = os.preadv(handle, [view[filled:]], position + filled)
            filled += count
            if count == 0 or filled % mmap.PAGESIZE:
                break
    return filled
