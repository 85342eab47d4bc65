"""An HDF5 file as bytes by address: its superblock, and a bound on how much of it is followed.

Source: HDF5 File Format Specification 3.0, section II (superblock versions 0 to 3).
"""

from __future__ import annotations

from typing import NamedTuple

from rescue_tui.checkpoints.hdf5_wire import SIGNATURE, Fields, HdfError, checked
from rescue_tui.checkpoints.model import Verdict
from rescue_tui.checkpoints.source import EndOfBytes, Source, UnreadableBytes

# Every node, message and entry takes this many bytes and is met once: more means that places are met again.
LEAST_BYTES = 8
_SPARE = 1024
# No node, heap or header that a writer makes is larger; what is larger would only be held in memory.
STRUCTURE_BYTES = 1 << 24


class Superblock(NamedTuple):
    """``root`` and ``extension`` are from ``base`` like all other addresses, ``end`` from the beginning of the file."""

    version: int
    base: int
    end: int | None
    root: int
    flags: int
    address_bytes: int
    length_bytes: int
    extension: int | None = None


def find_superblock(source: Source) -> Superblock:
    """The superblock, at 0 or behind a user block (512 bytes times a power of two). Raises `HdfError`, `EndOfBytes`."""
    at = 0
    while at + len(SIGNATURE) <= source.size_bytes:
        if source.read_at(at, len(SIGNATURE)) == SIGNATURE:
            return _superblock(source, at)
        at = at * 2 or 512
    raise HdfError("there is no superblock")


def _superblock(source: Source, at: int) -> Superblock:
    # The longest one, or as much of it as there is.
    fields = Fields(source.read_at(at, min(128, source.size_bytes - at)), at)
    fields.take(len(SIGNATURE))
    try:
        version = fields.number(1)
        if version > 3:
            raise HdfError(f"a superblock of version {version} does not exist", at)
        if version >= 2:
            sizes = (fields.number(1), fields.number(1))
            flags = fields.number(1)  # of how consistent the file is
        else:
            fields.take(4)
            sizes = (fields.number(1), fields.number(1))
            fields.take(1 + 2 + 2)
            fields.take(4)
            flags = 0  # versions 0 and 1 keep none that tell an open file
            fields.take(4 if version == 1 else 0)
        if not set(sizes) <= {2, 4, 8}:
            raise HdfError(f"addresses of {sizes[0]} and lengths of {sizes[1]} bytes do not exist", at)
        fields.address_bytes, fields.length_bytes = sizes
        base = fields.address()
        extension = fields.address()  # of the free space in versions 0 and 1
        end = fields.address()
        if version >= 2:
            root = fields.address()
            length = fields.position + 4
            if at + length <= source.size_bytes:
                checked(source.read_at(at, length), at, "the superblock")
        else:
            fields.address()
            fields.take(sizes[0])
            root = fields.address()
    except HdfError as trouble:
        if trouble.checksum or fields.left > 64 or "exist" in trouble.summary:
            raise
        raise EndOfBytes(at, 96, source.size_bytes) from None
    if root is None or base is None:
        raise HdfError("the superblock has no root group", at)
    # 0 where a user block was put in front later and moved everything.
    if base not in {0, at}:
        raise HdfError(f"the superblock at {at} says that the file begins at {base}", at)
    return Superblock(version, at, None if end is None else end - base + at, root, flags, *sizes,
                      extension if version >= 2 else None)


class Later:
    """What breaks one part does not hide those beside it: the first trouble is kept, and raised behind the last one."""

    def __init__(self) -> None:
        self.trouble: HdfError | EndOfBytes | UnreadableBytes | None = None

    def __enter__(self) -> None:
        """A part begins."""

    def __exit__(self, kind: type[BaseException] | None, trouble: BaseException | None, trace: object) -> bool:
        """A part ends, perhaps early."""
        if not isinstance(trouble, (HdfError, EndOfBytes, UnreadableBytes)):
            return False
        self.trouble = self.trouble or trouble
        return True

    def close(self) -> None:
        """Behind the last part."""
        if self.trouble is not None:
            raise self.trouble


class HdfFile:
    """Reads fields by address. All methods raise `HdfError`, `EndOfBytes` and `UnreadableBytes`."""

    def __init__(self, source: Source, superblock: Superblock) -> None:
        self.source = source
        self.superblock = superblock
        self.budget = source.size_bytes // LEAST_BYTES + _SPARE

    def read(self, address: int, length: int) -> Fields:
        """Bytes at an address as fields."""
        at = self.superblock.base + address
        if length > STRUCTURE_BYTES:
            raise HdfError(f"a structure of {length} bytes is too large", at)
        return Fields(self.source.read_at(at, length), at, self.superblock.address_bytes, self.superblock.length_bytes)

    def read_checked(self, address: int, length: int, signature: bytes) -> Fields:
        """A structure whose signature and checksum fit, without both; charged for."""
        self.charge(length // LEAST_BYTES, self.superblock.base + address)
        raw = self.read(address, length)
        if raw.data[: len(signature)] != signature:
            raise HdfError(f"there is no {signature.decode('ascii')}", raw.at)
        what = f"the structure {signature.decode('ascii')}"
        block = Fields(checked(raw.data, raw.at, what), raw.at, raw.address_bytes, raw.length_bytes)
        block.take(len(signature))
        return block

    def gone(self) -> tuple[str, Verdict]:
        """Code and verdict for what lies beyond the end: cut off, or an address that never was one of this file."""
        end = self.superblock.end
        return (("cut", Verdict.INCOMPLETE) if end is None or self.source.size_bytes < end
                else ("address", Verdict.CORRUPT))

    def charge(self, count: int, at: int) -> None:
        """Count what is read, so that structures which lead to each other are not followed for ever."""
        self.budget -= count
        if self.budget < 0:
            raise HdfError("its structures lead to each other", at)
