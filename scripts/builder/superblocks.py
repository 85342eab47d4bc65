"""On-disk labels that no tool here writes without a kernel of its own: md superblocks and ZFS labels.

Layouts: include/uapi/linux/raid/md_p.h and drivers/md/md-bitmap.h (Linux); module/nvpair and include/sys/vdev_impl.h,
uberblock_impl.h (OpenZFS). Pure: bytes out, nothing read or written.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence

SECTOR_BYTES = 512
KIB = 1024

MD_MAGIC = 0xA92B4EFC
MD_SUPER_SECTOR = 8           # version 1.2: 4 KiB behind the start of the device
MD_BITMAP_SECTORS = 8         # the bitmap lies this far behind the superblock
MD_BITMAP_CHUNK_BYTES = 65536 * KIB
MD_DEVICES = 128
MD_DATA_SECTOR = 2048
MD_UNUSED = 0xFFFF
TIME = 1_750_000_000
MD_CLEAN = (1 << 64) - 1

ZFS_LABEL_BYTES = 256 * KIB
ZFS_NVLIST_BYTES = 112 * KIB
ZFS_CHECK_MAGIC = 0x0210DA7AB10C7A11
ZFS_UBERBLOCK_MAGIC = 0x00BAB10C
ZFS_VERSION = 5000


def md_checksum(block: bytes) -> int:
    """The checksum of a version 1 superblock whose checksum field is zero: 32-bit words added up, carry folded in."""
    total: int = sum(struct.unpack(f"<{len(block) // 4}I", block[:len(block) // 4 * 4]))
    return ((total & 0xFFFFFFFF) + (total >> 32)) & 0xFFFFFFFF


def md_superblock(
    *, set_uuid: bytes, device_uuid: bytes, name: str, number: int, devices: int, data_sectors: int,
) -> bytes:
    """The superblock (version 1.2, at sector 8) of member ``number`` of a clean RAID1 with an internal bitmap.

    ``data_sectors`` is the size of the array; the data starts at sector 2048 of each member.
    """
    roles = [role if role < devices else MD_UNUSED for role in range(MD_DEVICES)]
    fields = struct.pack(
        "<IIII16s32sQIIQIIiIQIIIIQQQQII16sBBHIQQQII32x",
        MD_MAGIC, 1, 1, 0, set_uuid, name.encode(), TIME, 1, 0, data_sectors, 0, devices, MD_BITMAP_SECTORS,
        0, 0, 0, 0, 0, 0, MD_DATA_SECTOR, data_sectors, MD_SUPER_SECTOR, 0, number, 0, device_uuid, 0, 0, 0, 0,
        TIME, 17, MD_CLEAN, 0, MD_DEVICES,
    )
    block = bytearray(fields + struct.pack(f"<{MD_DEVICES}H", *roles))
    struct.pack_into("<I", block, 216, md_checksum(bytes(block)))
    return bytes(block)


def md_bitmap(*, set_uuid: bytes, data_sectors: int) -> bytes:
    """The superblock of the internal write-intent bitmap, all of whose bits are clear."""
    return struct.pack(
        "<4sI16sQQQIIIIII64x", b"bitm", 4, set_uuid, 17, 17, data_sectors, 0, MD_BITMAP_CHUNK_BYTES, 5, 0, 0, 0,
    ).ljust(4096, b"\0")


Nv = int | str | Mapping[str, "Nv"] | Sequence[Mapping[str, "Nv"]]


def _xdr_string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">I", len(data)) + data + b"\0" * (-len(data) % 4)


def _nvpair(name: str, value: Nv) -> bytes:
    if isinstance(value, int):
        kind, count, data, native = 8, 1, struct.pack(">Q", value), 8
    elif isinstance(value, str):
        kind, count, data, native = 9, 1, _xdr_string(value), len(value) + 1
    elif isinstance(value, Mapping):
        kind, count, data, native = 19, 1, _nvlist(value), 24
    else:
        kind, count, data, native = 20, len(value), b"".join(_nvlist(item) for item in value), 32 * len(value)
    body = _xdr_string(name) + struct.pack(">II", kind, count) + data
    decoded = 16 + (len(name) + 1 + 7) // 8 * 8 + (native + 7) // 8 * 8
    return struct.pack(">II", len(body) + 8, decoded) + body


def _nvlist(pairs: Mapping[str, Nv]) -> bytes:
    body = b"".join(_nvpair(name, value) for name, value in pairs.items())
    return struct.pack(">II", 0, 1) + body + bytes(8)


def _checked(block: bytes, offset: int) -> bytes:
    """``block`` (whose last 40 bytes are free) with the embedded SHA-256 that ZFS verifies against its place."""
    front = block[:-40]
    digest = hashlib.sha256(front + struct.pack("<QQQQQ", ZFS_CHECK_MAGIC, offset, 0, 0, 0)).digest()
    return front + struct.pack("<Q", ZFS_CHECK_MAGIC) + struct.pack("<4Q", *struct.unpack(">4Q", digest))


def zfs_label(*, pool: str, pool_guid: int, device_guid: int, txg: int, size_bytes: int, offset: int) -> bytes:
    """A ZFS label for byte ``offset`` of a device with one file-less pool on it.

    Labels and uberblocks are well formed and checksummed, what the uberblocks point to is not there: tools recognise a
    member of a pool, and an import fails. For a pool that can be imported a guest must run ``zpool create``.
    """
    config: Mapping[str, Nv] = {
        "version": ZFS_VERSION, "name": pool, "state": 0, "txg": txg, "pool_guid": pool_guid, "hostid": 0x1234,
        "hostname": "storage7", "top_guid": device_guid, "guid": device_guid, "vdev_children": 1,
        "vdev_tree": {
            "type": "disk", "id": 0, "guid": device_guid, "path": "/dev/nvme0n1p1", "whole_disk": 0,
            "metaslab_array": 256, "metaslab_shift": 24, "ashift": 12, "asize": size_bytes - 4 * ZFS_LABEL_BYTES,
            "is_log": 0, "create_txg": 4,
        },
        "features_for_read": {},
    }
    packed = (b"\x01\x01\0\0" + _nvlist(config)).ljust(ZFS_NVLIST_BYTES, b"\0")
    label = bytes(16 * KIB) + _checked(packed, offset + 16 * KIB)
    slot_bytes = 4 * KIB
    for slot in range(128 * KIB // slot_bytes):
        uberblock = struct.pack("<QQQQQ", ZFS_UBERBLOCK_MAGIC, ZFS_VERSION, txg - 31 + slot, pool_guid, TIME)
        label += _checked(uberblock.ljust(slot_bytes, b"\0"), offset + len(label))
    return label
