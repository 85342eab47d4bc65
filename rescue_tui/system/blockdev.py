"""Block devices by device number: facts from sysfs, the read-only flag by ioctl.

Nothing here reads a medium. Sources: sysfs-block(5) (Documentation/ABI/stable/sysfs-block), include/uapi/linux/fs.h.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rescue_tui.core.blockstat import WriteCounters, parse_stat
from rescue_tui.core.errors import DeviceError, SetupError

SYSFS = Path("/sys")
_BLKROSET = 0x125D  # _IO(0x12, 93)
# Named by their drivers, not by us: memory, views of files and optical drives, which the udev rule leaves alone too.
_EXEMPT = re.compile(r"^(?:loop|ram|zram|sr)\d")


@dataclass(frozen=True, slots=True)
class BlockNode:
    """A disk or partition as sysfs shows it. ``diskseq`` is its disk's; 0 when the kernel tells none."""

    name: str
    dev: tuple[int, int]
    diskseq: int
    read_only: bool
    size_bytes: int
    partition: int | None = None
    disk_name: str = ""

    @property
    def node(self) -> str:
        """The device node that devtmpfs makes."""
        return f"/dev/{self.name.replace('!', '/')}"

    @property
    def dev_text(self) -> str:
        """``8:1``."""
        return f"{self.dev[0]}:{self.dev[1]}"

    @property
    def exempt(self) -> bool:
        """True for loop, ram, zram and optical devices, which carry no read-only flag of ours."""
        return _EXEMPT.match(self.disk_name or self.name) is not None


def _word(path: Path) -> str:
    """The content of a sysfs attribute; empty when it, or its device, is gone."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _word(path)
    return int(text) if text.isdecimal() else None


def _read(directory: Path, disk: Path) -> BlockNode | None:
    major, colon, minor = _word(directory / "dev").partition(":")
    if not colon or not major.isdecimal() or not minor.isdecimal():
        return None
    return BlockNode(
        name=directory.name,
        dev=(int(major), int(minor)),
        diskseq=_number(disk / "diskseq") or 0,
        read_only=_word(directory / "ro") == "1",
        size_bytes=(_number(directory / "size") or 0) * 512,
        partition=_number(directory / "partition"),
        disk_name=disk.name,
    )


def block_node(dev: tuple[int, int], sysfs: Path = SYSFS) -> BlockNode:
    """The disk or partition with this device number; DeviceError when there is none (any more)."""
    link = sysfs / "dev/block" / f"{dev[0]}:{dev[1]}"
    directory = Path(os.path.realpath(link))
    found = _read(directory, directory.parent if (directory / "partition").exists() else directory)
    if found is None or found.dev != dev:
        raise DeviceError(f"There is no block device {dev[0]}:{dev[1]} any more.",
                          "Plug it in, or look at the list of devices again.")
    return found


def nodes_of(dev: tuple[int, int], sysfs: Path = SYSFS) -> tuple[BlockNode, ...]:
    """The disk with this device number, then its partitions by number. DeviceError when it is gone."""
    disk = block_node(dev, sysfs)
    directory = Path(os.path.realpath(sysfs / "dev/block" / disk.dev_text))
    return (disk, *sorted(_partitions(directory), key=lambda part: part.partition or 0))


def _partitions(directory: Path) -> Iterator[BlockNode]:
    with suppress(OSError):
        for child in directory.iterdir():
            if (child / "partition").exists():
                found = _read(child, directory)
                if found is not None:
                    yield found


def all_nodes(sysfs: Path = SYSFS) -> tuple[BlockNode, ...]:
    """Every visible disk and partition that has a size, by name. Hidden NVMe paths have no node and are left out."""
    found: list[BlockNode] = []
    with suppress(OSError):
        for link in (sysfs / "class/block").iterdir():
            directory = Path(os.path.realpath(link))
            disk = directory.parent if (directory / "partition").exists() else directory
            node = _read(directory, disk)
            if node is not None and node.size_bytes > 0:
                found.append(node)
    return tuple(sorted(found, key=lambda node: node.name))


def write_counters(name: str, sysfs: Path = SYSFS) -> WriteCounters:
    """The kernel's counters of a disk, or of a hidden NVMe path, by its name in sysfs.

    DeviceError when it is gone, FormatError when this kernel counts otherwise. Reads no medium.
    """
    try:
        text = (sysfs / "block" / name / "stat").read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise DeviceError(f"The kernel's counters of {name} can't be read: {error.strerror}.",
                          "The disk may be gone.") from error
    return parse_stat(text)


def check_node(node: str, dev: tuple[int, int]) -> None:
    """DeviceError unless the path ``node`` is the block device ``dev`` now."""
    try:
        status = os.stat(node)
    except OSError as error:
        raise DeviceError(f"{node} is gone: {error.strerror}.", "Look at the list of devices again.") from error
    is_now = (os.major(status.st_rdev), os.minor(status.st_rdev))
    if not stat.S_ISBLK(status.st_mode) or is_now != dev:
        raise DeviceError(f"{node} is another device now.", "Look at the list of devices again.",
                          f"expected {dev[0]}:{dev[1]}, is {is_now[0]}:{is_now[1]}")


def set_read_only(node: BlockNode, read_only: bool) -> None:
    """Set or clear the kernel's read-only flag (BLKROSET) of one disk or partition.

    Opens the node for reading only. DeviceError when it is gone or another device, SetupError without the privilege,
    or when the kernel's write guard refuses to clear the flag of a disk that is not granted.
    """
    check_node(node.node, node.dev)
    try:
        descriptor = os.open(node.node, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except PermissionError as error:
        raise SetupError(f"{node.node} can't be opened: {error.strerror}.", "Run as root.") from error
    except OSError as error:
        raise DeviceError(f"{node.node} can't be opened: {error.strerror}.",
                          "The device may be failing or gone.") from error
    try:
        opened = os.fstat(descriptor)
        if (os.major(opened.st_rdev), os.minor(opened.st_rdev)) != node.dev:
            raise DeviceError(f"{node.node} is another device now.", "Look at the list of devices again.")
        fcntl.ioctl(descriptor, _BLKROSET, struct.pack("i", int(read_only)))
    except PermissionError as error:
        raise SetupError(f"The read-only flag of {node.node} can't be changed: {error.strerror}.",
                         "Run as root; the kernel's write guard lets it be cleared on a granted disk only.") from error
    except OSError as error:
        raise DeviceError(f"The read-only flag of {node.node} can't be changed: {error.strerror}.",
                          "The device may be failing or gone.") from error
    finally:
        os.close(descriptor)
