"""Sorted tables and bundles made by hand: blocks of any size, snappy, any entry."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import cramjam

from rescue_tui.checkpoints.checksums import crc32c
from rescue_tui.checkpoints.sstable import MAGIC


def varint(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: int | bytes) -> bytes:
    """A field of a message: varint or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def masked(value: int) -> int:
    """LevelDB's mask over a CRC."""
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def block(rows: Sequence[tuple[bytes, bytes]], interval: int = 16) -> bytes:
    """Rows with shared prefixes and restart points."""
    out, restarts, last = bytearray(), [], b""
    for number, (key, value) in enumerate(rows):
        shared = 0
        if number % interval == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    restarts = restarts or [0]
    return bytes(out) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def table(rows: Sequence[tuple[bytes, bytes]], per_block: int = 1000, snappy: bool = False) -> bytes:
    """A whole table."""
    out = bytearray()

    def put(content: bytes, packed: bool) -> bytes:
        stored = bytes(cramjam.snappy.compress_raw(content)) if packed else content
        handle = varint(len(out)) + varint(len(stored))
        kind = bytes((1 if packed else 0,))
        out.extend(stored + kind + struct.pack("<I", masked(crc32c((stored, kind)))))
        return handle

    handles = [(rows[at : at + per_block][-1][0], put(block(rows[at : at + per_block]), snappy))
               for at in range(0, len(rows), per_block)]
    meta = put(block([]), False)
    index = put(block(handles, 1), False)
    return bytes(out) + (meta + index).ljust(40, b"\0") + MAGIC


def header(shards: int = 1, endianness: int = 0) -> bytes:
    """BundleHeaderProto."""
    return field(1, shards) + (field(2, endianness) if endianness else b"") + field(3, field(1, 1))


def entry(dtype: int, shape: Sequence[int], offset: int, content: bytes, shard: int = 0) -> bytes:
    """BundleEntryProto over these bytes."""
    sizes = b"".join(field(2, field(1, size)) for size in shape)
    checksum = b"\x35" + struct.pack("<I", masked(crc32c((content,))))
    return (field(1, dtype) + field(2, sizes) + field(3, shard) + field(4, offset) + field(5, len(content)) + checksum)
