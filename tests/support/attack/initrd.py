"""Files put over those of an initrd, by a second cpio archive behind it: the kernel unpacks both, the later wins."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

ALIGN = 4
MAGIC = b"070701"
HEAD_BYTES = 110
REGULAR = 0o100000


def _member(name: str, data: bytes, mode: int, inode: int) -> bytes:
    """One entry of a newc archive (the kernel's Documentation/driver-api/early-userspace/buffer-format.rst)."""
    path = name.encode() + b"\0"
    fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
    head = MAGIC + b"".join(b"%08X" % value for value in fields) + path
    return head + bytes(-len(head) % ALIGN) + data + bytes(-len(data) % ALIGN)


def archive(files: Mapping[str, bytes]) -> bytes:
    """A newc archive of executable regular files by path."""
    members = [_member(name, data, REGULAR | 0o755, inode) for inode, (name, data) in enumerate(files.items(), start=1)]
    return b"".join(members) + _member("TRAILER!!!", b"", 0, 0)


def extract(initrd: Path, name: str) -> bytes:
    """A file of the first archive of an uncompressed initrd; KeyError when it is not in it."""
    data = initrd.read_bytes()
    at = 0
    while data[at:at + 6] == MAGIC:
        size, length = int(data[at + 54:at + 62], 16), int(data[at + 94:at + 102], 16)
        path = data[at + HEAD_BYTES:at + HEAD_BYTES + length - 1].decode()
        body = at + HEAD_BYTES + length + -(HEAD_BYTES + length) % ALIGN
        if path == name:
            return data[body:body + size]
        at = body + size + -size % ALIGN
    raise KeyError(name)


def with_files(initrd: Path, files: Mapping[str, bytes], target: Path) -> Path:
    """A copy of ``initrd`` in which ``files`` replace what it has at their paths."""
    shutil.copyfile(initrd, target)
    with target.open("ab") as file:
        file.write(bytes(-target.stat().st_size % ALIGN) + archive(files))
    return target
