"""Random NVMe passthrough commands from a seed, as the table that the program ``fuzz`` in the guest works through.

Half of the opcodes are those that change a disk or its controller, the others are any; fields are drawn so that many of
the commands are ones that a disk would carry out, not only ones that it would turn down.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass

ENTRY = struct.Struct("<4B5I6II3I")
# How fuzz.c names them: I/O by the block node, by the generic node, in the 64-bit form, by NVME_IOCTL_SUBMIT_IO; admin
# by the controller node in both forms; io_uring on the generic, the controller and the block node.
DOORS = (
    "io-block", "io-generic", "io64-generic", "submit", "admin", "admin64", "uring-io", "uring-admin", "uring-block",
)
ADMIN_DOORS = frozenset({"admin", "admin64", "uring-admin"})
# flush, write, write uncorrectable, write zeroes, dataset management, reservation register, acquire and release, I/O
# management send, copy, zone management send, zone append
IO_CHANGES = (0x00, 0x01, 0x04, 0x08, 0x09, 0x0D, 0x11, 0x15, 0x1D, 0x19, 0x79, 0x7D)
# delete and create queues, set features, namespace management, firmware commit and download, device self-test,
# namespace attachment, directive send, virtualization management, NVMe-MI send, capacity management, lockdown, doorbell
# buffer, format, security send, sanitize, set LBA status, vendor commands
ADMIN_CHANGES = (0x00, 0x01, 0x04, 0x05, 0x09, 0x0D, 0x10, 0x11, 0x14, 0x15, 0x19, 0x1C, 0x1D, 0x20, 0x24, 0x7C, 0x80,
                 0x81, 0x84, 0x88, 0xC0, 0xC1, 0xD1, 0xFF)
RARELY = 0.1
DATA_BYTES = (0, 0, 4, 16, 512, 512, 4096, 4096, 8192, 65536)


@dataclass(frozen=True, slots=True)
class Command:
    """A passthrough command. ``data_bytes`` of the byte ``fill`` go along, towards the disk if the opcode says so."""

    door: str
    opcode: int
    flags: int
    nsid: int
    cdw2: int
    cdw3: int
    metadata_bytes: int
    data_bytes: int
    cdw: tuple[int, int, int, int, int, int]
    fill: int

    def packed(self) -> bytes:
        """The 64 bytes that fuzz.c reads."""
        return ENTRY.pack(DOORS.index(self.door), self.opcode, self.flags, 0, self.nsid, self.cdw2, self.cdw3,
                          self.metadata_bytes, self.data_bytes, *self.cdw, self.fill, 0, 0, 0)


def commands(seed: int, count: int, *, nsid: int = 1, doors: tuple[str, ...] = DOORS) -> Iterator[Command]:
    """``count`` commands, the same ones for the same seed. ``nsid`` is that of the disk that is attacked."""
    numbers = random.Random(seed)

    def dword() -> int:
        small = (0, 0, 0, 1, 2, 7, 8, 64)
        return numbers.choice((*small, *(numbers.getrandbits(bits) for bits in (8, 16, 32))))

    def rarely(value: int) -> int:
        return value if numbers.random() < RARELY else 0

    for _ in range(count):
        door = numbers.choice(doors)
        changes = ADMIN_CHANGES if door in ADMIN_DOORS else IO_CHANGES
        opcode = numbers.choice(changes) if numbers.random() < 0.5 else numbers.getrandbits(8)
        data_bytes = numbers.choice(DATA_BYTES)
        yield Command(
            # The driver turns down flags, other namespaces and metadata by itself: mostly none, to get past it.
            door=door, opcode=opcode, flags=rarely(numbers.choice((1, 2, 0x40, 0x80, numbers.getrandbits(8)))),
            nsid=nsid ^ rarely(numbers.choice((nsid, nsid ^ 0xFFFFFFFF, numbers.getrandbits(32)))),
            cdw2=dword(), cdw3=dword(), metadata_bytes=rarely(numbers.choice((8, 64))), data_bytes=data_bytes,
            cdw=(dword(), rarely(dword()), numbers.choice((0, max(data_bytes // 512, 1) - 1, dword())),
                 dword(), dword(), dword()),
            fill=numbers.getrandbits(8),
        )


def packed(seed: int, count: int, *, nsid: int = 1, doors: tuple[str, ...] = DOORS) -> bytes:
    """The table for the guest."""
    return b"".join(command.packed() for command in commands(seed, count, nsid=nsid, doors=doors))
