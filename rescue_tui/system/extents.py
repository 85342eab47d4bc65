"""Where the bytes of a file lie on the medium of its file system, as the kernel tells. Reads no payload.

Sources: Documentation/filesystems/fiemap.rst and include/uapi/linux/{fiemap,fs,fsmap}.h of the kernel;
ioctl_getfsmap(2).
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from rescue_tui.core.damage import Extent, Loss, LostMap, PlaceUnknown
from rescue_tui.core.ranges import Ranges, ranges_of

_FIBMAP = 0x1  # _IO(0x00, 1)
_FIGETBSZ = 0x2  # _IO(0x00, 2)
_FIEMAP = 0xC020660B  # _IOWR('f', 11, struct fiemap)
_GETFSMAP = 0xC0C0583B  # _IOWR('X', 59, struct fsmap_head), whose two keys count
_GETFLAGS = 0x80086601  # _IOR('f', 1, long), though the kernel gives an int
_NOCOW = 0x00800000  # FS_NOCOW_FL
_TO_END = (1 << 64) - 1
_BATCH = 256
MAX_EXTENTS = 1 << 20
MAX_RECORDS = 1 << 22
MAX_BLOCKS = 1 << 24

# File systems whose answer to FIEMAP is an offset on their one device, and those that know FIBMAP only.
_DIRECT = frozenset({"xfs", "ext2", "ext3", "ext4", "ntfs3", "f2fs", "nilfs2"})
_BLOCKWISE = frozenset({"vfat", "msdos", "exfat", "hfsplus", "iso9660"})
# Their addresses are their own, and every read of data is checked against a checksum.
_CHECKED = frozenset({"btrfs", "bcachefs", "zfs"})

_LAST, _UNKNOWN, _DELAYED, _ENCODED, _ENCRYPTED = 0x1, 0x2, 0x4, 0x8, 0x80
_INLINE, _TAIL, _UNWRITTEN = 0x200, 0x400, 0x800
_NOWHERE = _UNKNOWN | _DELAYED | _ENCODED | _ENCRYPTED | _TAIL
# Nobody may use these blocks, by the special owner of that number (FMR_OWNER_FREE).
_SPECIAL_OWNER, _FREE, _FSMAP_LAST = 0x10, 1, 0x20


class _Fiemap(NamedTuple):
    """struct fiemap."""

    start: int
    length: int
    flags: int
    mapped_extents: int
    extent_count: int
    reserved: int


class _FiemapExtent(NamedTuple):
    """struct fiemap_extent."""

    logical: int
    physical: int
    length: int
    reserved64_0: int
    reserved64_1: int
    flags: int
    reserved_0: int
    reserved_1: int
    reserved_2: int


class _FsmapHead(NamedTuple):
    """struct fsmap_head without its two keys."""

    iflags: int
    oflags: int
    capacity: int
    entries: int
    reserved_0: int
    reserved_1: int
    reserved_2: int
    reserved_3: int
    reserved_4: int
    reserved_5: int


class _Fsmap(NamedTuple):
    """struct fsmap."""

    device: int
    flags: int
    physical: int
    owner: int
    offset: int
    length: int
    reserved_0: int = 0
    reserved_1: int = 0
    reserved_2: int = 0


_FIEMAP_STRUCT = struct.Struct("=QQIIII")
_EXTENT_STRUCT = struct.Struct("=QQQQQIIII")
_HEAD_STRUCT = struct.Struct("=IIII6Q")
_FSMAP_STRUCT = struct.Struct("=IIQQQQ3Q")


@dataclass(frozen=True, slots=True)
class Medium:
    """A mounted file system, by the kernel's name of its kind, and what the image of its device lacks."""

    filesystem: str
    lost: LostMap


def losses_of(descriptor: int, size_bytes: int, medium: Medium) -> tuple[Loss, ...]:
    """The bytes of an open file that its medium's image lacks. Raises PlaceUnknown where that can't be told."""
    if not medium.lost:
        return ()
    return medium.lost.losses(extents_of(descriptor, size_bytes, medium.filesystem), size_bytes)


def extents_of(descriptor: int, size_bytes: int, filesystem: str) -> list[Extent]:
    """The extents of an open file on a file system of this kind; holes have none. Raises PlaceUnknown."""
    if filesystem in _CHECKED:
        if _is_unchecked(descriptor):
            raise PlaceUnknown(f"{filesystem} has addresses of its own, and keeps no checksums of this file")
        raise PlaceUnknown(f"{filesystem} has addresses of its own, and checks by itself what it reads", checked=True)
    try:
        if filesystem in _DIRECT:
            return list(_fiemap(descriptor))
        if filesystem in _BLOCKWISE:
            return list(fibmap(descriptor, size_bytes))
    except OSError as error:
        raise PlaceUnknown(f"the kernel does not say where it lies ({os.strerror(error.errno or 0)})") from error
    raise PlaceUnknown(f"{filesystem} is not known to tell where on the disk a file lies")


def _is_unchecked(descriptor: int) -> bool:
    """Files that are written in place (chattr +C) have no checksums on btrfs."""
    try:
        (flags,) = struct.unpack("=I", fcntl.ioctl(descriptor, _GETFLAGS, struct.pack("=I", 0)))
    except OSError:
        return True
    return bool(flags & _NOCOW)


def _fiemap(descriptor: int) -> Iterator[Extent]:
    """No FIEMAP_FLAG_SYNC: that would have the kernel write what is not written yet."""
    at = count = 0
    while count < MAX_EXTENTS:
        asked = _Fiemap(at, _TO_END - at, 0, 0, _BATCH, 0)
        buffer = bytearray(_FIEMAP_STRUCT.pack(*asked) + bytes(_BATCH * _EXTENT_STRUCT.size))
        fcntl.ioctl(descriptor, _FIEMAP, buffer, True)
        told = _Fiemap._make(_FIEMAP_STRUCT.unpack_from(buffer))
        if not told.mapped_extents:
            return
        for index in range(min(told.mapped_extents, _BATCH)):
            extent = _FiemapExtent._make(_EXTENT_STRUCT.unpack_from(
                buffer, _FIEMAP_STRUCT.size + index * _EXTENT_STRUCT.size))
            if extent.flags & _NOWHERE:
                raise PlaceUnknown("an extent is packed, encrypted or not placed yet")
            if extent.flags & _INLINE and not extent.physical:
                raise PlaceUnknown("it lies in the file system's own tables")
            yield Extent(extent.logical, extent.physical, extent.length, not extent.flags & _UNWRITTEN)
            if extent.flags & _LAST:
                return
            if extent.logical + extent.length <= at:
                raise PlaceUnknown("its extents are out of order")
            at = extent.logical + extent.length
            count += 1
    raise PlaceUnknown("it has too many extents")


def fibmap(descriptor: int, size_bytes: int) -> Iterator[Extent]:
    """Block for block, for file systems without FIEMAP; block 0 stands for a hole. Needs CAP_SYS_RAWIO."""
    (block_bytes,) = struct.unpack("=i", fcntl.ioctl(descriptor, _FIGETBSZ, struct.pack("=i", 0)))
    count = -(-size_bytes // block_bytes)
    if count > MAX_BLOCKS:
        raise PlaceUnknown("it has too many blocks to ask for each")
    first = run = length = 0
    for number in range(count):
        (block,) = struct.unpack("=I", fcntl.ioctl(descriptor, _FIBMAP, struct.pack("=I", number)))
        if length and block == run + length:
            length += 1
            continue
        if length:
            yield Extent(first * block_bytes, run * block_bytes, length * block_bytes)
        first, run, length = number, block, 1 if block else 0
    if length:
        yield Extent(first * block_bytes, run * block_bytes, length * block_bytes)


def free_space(descriptor: int, dev: int) -> Ranges:
    """The free bytes of the file system that an open directory is on, as it tells itself (XFS, ext4).

    ``dev`` is its device number. Empty where it doesn't tell, or we may not ask (CAP_SYS_ADMIN).
    """
    found: list[tuple[int, int]] = []
    low = _Fsmap(0, 0, 0, 0, 0, 0)
    high = _Fsmap((1 << 32) - 1, (1 << 32) - 1, _TO_END, _TO_END, _TO_END, 0)
    header = _HEAD_STRUCT.size + 2 * _FSMAP_STRUCT.size
    seen = 0
    while seen < MAX_RECORDS:
        head = _FsmapHead(0, 0, _BATCH, 0, 0, 0, 0, 0, 0, 0)
        buffer = bytearray(_HEAD_STRUCT.pack(*head) + _FSMAP_STRUCT.pack(*low) + _FSMAP_STRUCT.pack(*high)
                           + bytes(_BATCH * _FSMAP_STRUCT.size))
        try:
            fcntl.ioctl(descriptor, _GETFSMAP, buffer, True)
        except OSError as error:
            # Metadata that is damaged: what was told until then is not to be trusted either.
            if error.errno in {errno.EOPNOTSUPP, errno.ENOTTY, errno.EPERM, errno.EINVAL, errno.EIO, errno.EUCLEAN,
                               errno.EBADMSG, errno.EBADF}:
                return Ranges()
            raise
        told = _FsmapHead._make(_HEAD_STRUCT.unpack_from(buffer))
        record = None
        for index in range(min(told.entries, _BATCH)):
            record = _Fsmap._make(_FSMAP_STRUCT.unpack_from(buffer, header + index * _FSMAP_STRUCT.size))
            if record.device == _encoded(dev) and record.flags & _SPECIAL_OWNER and record.owner & 0xFFFFFFFF == _FREE:
                found.append((record.physical, record.physical + record.length))
        if record is None or record.flags & _FSMAP_LAST:
            return ranges_of(found)
        low = record
        seen += told.entries
    return Ranges()


def _encoded(dev: int) -> int:
    """A device number in the 32 bits of new_encode_dev (kdev_t.h)."""
    major, minor = os.major(dev), os.minor(dev)
    return (minor & 0xFF) | (major << 8) | ((minor & ~0xFF) << 12)
