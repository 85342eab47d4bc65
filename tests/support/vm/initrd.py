"""Look into an initrd in cpio's newc format, and lay files over it: the kernel unpacks archives one after the other."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

_HEADER_BYTES = 110
_MAGIC = b"070701"
_TRAILER = "TRAILER!!!"


def _padded(size: int) -> int:
    return (size + 3) // 4 * 4


def _header(file: BinaryIO) -> bytes:
    """The next header; nothing at the end. Between two archives lie zeroes, in words of four bytes."""
    while (word := file.read(4)) == b"\0\0\0\0":
        pass
    return word + file.read(_HEADER_BYTES - 4) if word else b""


def _members(file: BinaryIO) -> Iterator[tuple[str, int]]:
    """Name and size of each member; the file stands at its first byte while the caller has it."""
    while header := _header(file):
        if not header.startswith(_MAGIC) or len(header) != _HEADER_BYTES:
            raise ValueError("not a cpio archive in newc format")
        size, name_size = int(header[54:62], 16), int(header[94:102], 16)
        name_area = _padded(_HEADER_BYTES + name_size) - _HEADER_BYTES
        name = file.read(name_area)[:name_size - 1].decode()
        if name == _TRAILER:
            continue
        start = file.tell()
        yield name.removeprefix("./"), size
        file.seek(start + _padded(size))


def member(initrd: Path, name: str) -> bytes:
    """The bytes of one file of an uncompressed initrd, as the kernel leaves it; KeyError when there is none."""
    data = None
    with initrd.open("rb") as file:
        for found, size in _members(file):
            if found == name:
                data = file.read(size)
    if data is None:
        raise KeyError(name)
    return data


def _entry(name: str, data: bytes, mode: int) -> bytes:
    raw = name.encode() + b"\0"
    numbers = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
    head = _MAGIC + b"".join(b"%08X" % number for number in numbers) + raw
    return head.ljust(_padded(len(head)), b"\0") + data.ljust(_padded(len(data)), b"\0")


def overlaid(initrd: Path, target: Path, files: Mapping[str, bytes]) -> Path:
    """A copy of an initrd in which ``files`` (path to content) take the place of those of the same name."""
    shutil.copyfile(initrd, target)
    with target.open("ab") as file:
        file.write(b"\0" * (_padded(file.tell()) - file.tell()))
        for name, data in files.items():
            file.write(_entry(name, data, 0o100755))
        file.write(_entry(_TRAILER, b"", 0))
    return target
