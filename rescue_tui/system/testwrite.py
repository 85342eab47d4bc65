"""A child process that proves a destination by writing to it: ``python -I testwrite.py DIRECTORY``.

It stands alone (standard library only), since it runs isolated, and apart, since a write to a failing disk can hang.
It prints one JSON object: ``ok``, ``error``, ``errno``, ``sparse``, ``preallocate``, ``direct_io``,
``verified_direct``, ``free_bytes``. Sources: open(2) O_DIRECT, fallocate(2), lseek(2), statvfs(3).
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import secrets
import sys
from contextlib import suppress

SIZE_BYTES = 1 << 20
HOLE_BYTES = 8 << 20
PREFIX = ".stasis-test-"


def pattern(seed: bytes) -> bytes:
    """One MiB in which every 16 bytes differ from all others, so that a block at the wrong place shows."""
    return b"".join(seed + index.to_bytes(8, "big") for index in range(SIZE_BYTES // 16))


def write_all(descriptor: int, content: bytes | mmap.mmap) -> None:
    """Write the whole content, or raise OSError."""
    view = memoryview(content)
    while view:
        written = os.write(descriptor, view)
        view = view[written:]


def write_and_read_back(path: str) -> tuple[bool, bool]:
    """Write the pattern, flush, read it back past the cache where that works. (equal, read with O_DIRECT)."""
    content = pattern(secrets.token_bytes(8))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, content)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    for flags in (os.O_DIRECT, 0):
        with suppress(OSError), mmap.mmap(-1, SIZE_BYTES) as buffer:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
            try:
                count = os.readv(descriptor, [buffer])
            finally:
                os.close(descriptor)
            if count == SIZE_BYTES:
                return buffer[:] == content, bool(flags)
    return False, False


def has_direct_io(path: str) -> bool:
    """True when a file can be written with O_DIRECT."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_DIRECT, 0o600)
    except OSError:
        return False
    try:
        with mmap.mmap(-1, SIZE_BYTES) as buffer:
            return os.write(descriptor, buffer) == SIZE_BYTES
    except OSError:
        return False
    finally:
        os.close(descriptor)


def is_sparse(path: str) -> bool:
    """True when a hole takes no space."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, b"\xa5" * 4096, HOLE_BYTES)
        os.fsync(descriptor)
        return os.fstat(descriptor).st_blocks * 512 < HOLE_BYTES // 2
    except OSError:
        return False
    finally:
        os.close(descriptor)


def can_preallocate(path: str) -> bool:
    """True for a real fallocate(2). posix_fallocate would not do: glibc writes zeros where it is missing."""
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate64
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        return int(fallocate(descriptor, 0, 0, SIZE_BYTES)) == 0
    finally:
        os.close(descriptor)


def remove_leftovers(directory: str) -> None:
    """Remove test files, also those of a run that a crash ended, and flush the names."""
    for name in os.listdir(directory):
        if name.startswith(PREFIX):
            os.unlink(os.path.join(directory, name))
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def examine(directory: str) -> dict[str, object]:
    """Run every step; the first failure of the write itself ends it."""
    found: dict[str, object] = {"ok": False, "error": "", "errno": "", "sparse": False, "preallocate": False,
                                "direct_io": False, "verified_direct": False, "free_bytes": 0}
    base = os.path.join(directory, f"{PREFIX}{secrets.token_hex(4)}")
    try:
        remove_leftovers(directory)
        equal, found["verified_direct"] = write_and_read_back(f"{base}.a")
        if equal:
            found["ok"] = True
            found["direct_io"] = has_direct_io(f"{base}.b")
            found["sparse"] = is_sparse(f"{base}.c")
            found["preallocate"] = can_preallocate(f"{base}.d")
        else:
            found["error"] = "What was read back is not what was written."
    except OSError as error:
        found.update(ok=False, error=error.strerror or str(error), errno=errno.errorcode.get(error.errno or 0, ""))
    try:
        remove_leftovers(directory)
        space = os.statvfs(directory)
        found["free_bytes"] = space.f_bavail * space.f_frsize
    except OSError as error:
        found.update(ok=False, error=error.strerror or str(error), errno=errno.errorcode.get(error.errno or 0, ""))
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(examine(sys.argv[1])) + "\n")
