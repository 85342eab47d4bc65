"""What lies beneath a mounted file system: a file behind a loop device, and where in it the file system begins.

Every fact is from the kernel's memory. Source: Documentation/ABI/stable/sysfs-block; loop(4), /sys/block/loopN/loop.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rescue_tui.core.text import decode
from rescue_tui.core.tooltext.mountinfo import MountEntry
from rescue_tui.system.blockdev import SYSFS

_UNIT_BYTES = 512  # of sysfs, whatever the disk's sectors


@dataclass(frozen=True, slots=True)
class Backing:
    """The device of a mounted file system.

    ``image``: the file behind it, empty where it is no loop device. ``offset_bytes``: where it begins in the image, or
    on its disk; None where a mapper lies between, which may put its blocks anywhere.
    """

    node: str
    size_bytes: int
    offset_bytes: int | None
    image: str = ""


def backing_of(mount: MountEntry, sysfs: Path = SYSFS) -> Backing | None:
    """What the file system of a mount lies on; None where that is no block device, or no longer there."""
    directory = _directory(mount, sysfs)
    size = None if directory is None else _number(directory / "size")
    if directory is None or size is None:
        return None
    node, offset, disk = f"/dev/{directory.name.replace('!', '/')}", 0, directory
    if (directory / "partition").exists():
        offset = (_number(directory / "start") or 0) * _UNIT_BYTES
        disk = directory.parent
    if (disk / "dm").exists() or (disk / "md").exists():
        return Backing(node, size * _UNIT_BYTES, None)
    image = _text(disk / "loop/backing_file")
    if image:
        offset += _number(disk / "loop/offset") or 0
    return Backing(node, size * _UNIT_BYTES, offset, image)


def _directory(mount: MountEntry, sysfs: Path) -> Path | None:
    """By the mount's device number, else by the node that was mounted (btrfs has numbers of its own)."""
    name = mount.source.removeprefix("/dev/").replace("/", "!")
    for link in (sysfs / "dev/block" / f"{mount.dev[0]}:{mount.dev[1]}", sysfs / "class/block" / name):
        if name and (link / "size").exists():
            return Path(os.path.realpath(link))
    return None


def _text(path: Path) -> str:
    try:
        return decode(path.read_bytes().removesuffix(b"\n"))
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdecimal() else None
