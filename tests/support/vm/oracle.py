"""The oracle for "untouched". It stands outside the guest and reads what QEMU counted, traced and logged.

No single source is enough (measured on QEMU 7.2): query-blockstats does not count write-zeroes, DSM and flush of an
NVMe device; a hash misses a write of what was there already; the command trace of NVMe and SCSI does not tell which
disk of that kind was meant; a virtio disk's discards are in the block log and the counters only.
Commands are judged by lists of what only reads: what is on no list counts as a write.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1 << 20
WRITE_LOG_MAGIC = 0x6A736677736872
WRITE_LOG_BYTES = 1 << 30
UNKNOWN = "?"


class Class(Enum):
    """What a command does to a disk. CONTROL changes state of the device, not the medium: flush, features, queues."""

    READ = "read"
    CONTROL = "control"
    WRITE = "write"


NVME_READ = frozenset({"READ", "COMPARE", "VERIFY", "ZONE_MGMT_RECV", "MGMT_RECV"})
NVME_CONTROL = frozenset({"FLUSH"})
NVME_ADMIN_READ = frozenset({"IDENTIFY", "GET_LOG_PAGE", "GET_FEATURES"})
# Those that QEMU knows no name for: reservation report, I/O management receive; NVMe-MI receive, security receive, get
# LBA status. Directive receive (0x1a) is not among them, since it can allocate streams.
NVME_READ_OPCODES = frozenset({"0xe", "0x12"})
NVME_ADMIN_READ_OPCODES = frozenset({"0x1e", "0x82", "0x86"})
NVME_ADMIN_CONTROL = frozenset({
    "CREATE_SQ", "DELETE_SQ", "CREATE_CQ", "DELETE_CQ", "ABORT", "SET_FEATURES", "ASYNC_EV_REQ", "DBBUF_CONFIG",
})
# SPC-5 and SBC-4: test unit ready, request sense, read(6/10/12/16), inquiry, mode sense(6/10), receive diagnostic
# results, read format capacities, read capacity(10), verify(10/16), read defect data(10/12), read buffer, read TOC, get
# configuration, get event status, log sense, read disc information, persistent reserve in, read attribute, service
# action in(16), report luns, security protocol in, maintenance in.
SCSI_READ = frozenset({
    0x00, 0x03, 0x08, 0x12, 0x1A, 0x1C, 0x23, 0x25, 0x28, 0x2F, 0x37, 0x3C, 0x43, 0x46, 0x4A, 0x4D, 0x51, 0x5A, 0x5E,
    0x88, 0x8C, 0x8F, 0x9E, 0xA0, 0xA2, 0xA3, 0xA8, 0xB7,
})
# ATA pass-through (12/16): smartctl and udev's ata_id ask with it. What it carries is not traced: only what fetches
# data counts as a read.
SCSI_PASS_THROUGH = frozenset({0x85, 0xA1})
FROM_DEVICE = 1
# start stop unit, prevent medium removal, synchronize cache(10/16)
SCSI_CONTROL = frozenset({0x1B, 0x1E, 0x35, 0x91})
# ACS-4: read sectors/DMA/multiple with and without EXT, read FPDMA, read log, read verify, identify, SMART (its reads;
# the write log subcommand also shows in the feature register, which the trace lacks), check power mode, native max.
ATA_READ = frozenset({
    0x20, 0x21, 0x24, 0x25, 0x29, 0x2F, 0x40, 0x41, 0x42, 0x47, 0x60, 0xA1, 0xB0, 0xC4, 0xC8, 0xC9, 0xE5, 0xEC, 0x27,
    0xF8,
})
# device reset, recalibrate, initialise parameters, set multiple, standby and idle, flush cache (EXT), set features
ATA_CONTROL = frozenset({0x08, 0x10, 0x91, 0xC6, 0xE0, 0xE1, 0xE2, 0xE3, 0xE6, 0xE7, 0xEA, 0xEF})

_NVME = re.compile(
    r"pci_nvme_(io|admin)_cmd .*?opc (0x[0-9a-f]+)(?: opname '(?:NVME_(?:NVM|ADM|ZNS|ZONED)_CMD_)?(\w*)')?")
_SCSI = re.compile(r"scsi_req_parsed .*?command (\d+) dir (-?\d+)")
_ATA = re.compile(r"ide_exec_cmd .*?cmd (0x[0-9a-f]+)")
_MARK = re.compile(r"pci_nvme_read cid \d+ nsid (\d+) nlb 1 .*lba (0x[0-9a-f]+)")
_OPEN = re.compile(r"bdrv_open_common bs (0x[0-9a-f]+) filename \"(.*)\" flags ")
_PWRITEV = re.compile(r"blk_co_pwritev blk \S+ bs (0x[0-9a-f]+) offset (\d+) bytes (\d+)")


@dataclass(frozen=True, slots=True)
class Traced:
    """A command from QEMU's trace. ``bus`` is nvme, scsi, ata or block; ``path`` is known for block only.

    The bus ``marker`` is a read by which the guest left a number in the trace, which is its ``name``.
    """

    bus: str
    name: str
    kind: Class
    path: str = ""


def _classify(name: object, reads: frozenset[Any], control: frozenset[Any]) -> Class:
    if name in reads:
        return Class.READ
    return Class.CONTROL if name in control else Class.WRITE


def parse_trace(lines: Iterable[str], *, marker_nsid: int | None = None) -> Iterator[Traced]:
    """The disk commands in a trace log; lines of other trace points are skipped.

    Reads of one block of the NVMe namespace ``marker_nsid`` are marks, if QEMU was told to trace ``pci_nvme_read``.
    """
    files: dict[str, str] = {}
    for line in lines:
        if found := _PWRITEV.search(line):
            path = files.get(found[1], UNKNOWN)
            yield Traced("block", f"write of {found[3]} bytes at {found[2]}", Class.WRITE, path)
        elif found := _NVME.search(line):
            name = found[2] if found[3] in {None, "UNKNOWN"} else found[3]
            lists = (
                (NVME_READ | NVME_READ_OPCODES, NVME_CONTROL) if found[1] == "io"
                else (NVME_ADMIN_READ | NVME_ADMIN_READ_OPCODES, NVME_ADMIN_CONTROL)
            )
            yield Traced("nvme", f"{found[1]} {name}", _classify(name, *lists))
        elif found := _SCSI.search(line):
            opcode = int(found[1])
            reads = SCSI_READ | SCSI_PASS_THROUGH if int(found[2]) == FROM_DEVICE else SCSI_READ
            yield Traced("scsi", f"{opcode:#04x}", _classify(opcode, reads, SCSI_CONTROL))
        elif found := _ATA.search(line):
            yield Traced("ata", f"{int(found[1], 16):#04x}", _classify(int(found[1], 16), ATA_READ, ATA_CONTROL))
        elif marker_nsid is not None and (found := _MARK.search(line)):
            if int(found[1]) == marker_nsid:
                yield Traced("marker", str(int(found[2], 16)), Class.READ)
        elif found := _OPEN.search(line):
            # A node above blkdebug is described by a JSON text that names the file at the bottom.
            inner = re.search(r'"filename": "([^"]*)"', found[2])
            files[found[1]] = inner[1] if inner else found[2]


@dataclass(frozen=True, slots=True)
class Counters:
    """What QEMU counted on one disk, in operations. ``discards`` were done by the file driver at the very bottom."""

    writes: int = 0
    unmaps: int = 0
    zone_appends: int = 0
    flushes: int = 0
    reads: int = 0
    failed_reads: int = 0
    discards: int = 0

    @property
    def changes(self) -> int:
        """Operations that change the medium."""
        return self.writes + self.unmaps + self.zone_appends + self.discards

    def plus(self, other: Counters) -> Counters:
        """The sum of both: a disk that was taken out and put in again starts from zero."""
        return Counters(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


def _file_discards(node: Mapping[str, Any]) -> int:
    specific = node.get("driver-specific", {})
    if specific.get("driver") == "file":
        return int(specific.get("discard-nb-ok", 0)) + int(specific.get("discard-nb-failed", 0))
    below = node.get("parent")
    return _file_discards(below) if below is not None else 0


def parse_blockstats(answer: Iterable[Mapping[str, Any]]) -> dict[str, Counters]:
    """The counters by name of the disk's top block node, from the answer to ``query-blockstats``."""
    counters = {}
    for disk in answer:
        stats = disk["stats"]
        counters[str(disk.get("node-name", ""))] = Counters(
            writes=stats["wr_operations"] + stats["failed_wr_operations"] + stats["invalid_wr_operations"],
            unmaps=stats["unmap_operations"] + stats["failed_unmap_operations"] + stats["invalid_unmap_operations"],
            zone_appends=sum(stats.get(f"{prefix}zone_append_operations", 0) for prefix in ("", "failed_", "invalid_")),
            flushes=stats["flush_operations"],
            reads=stats["rd_operations"],
            failed_reads=stats["failed_rd_operations"],
            discards=_file_discards(disk),
        )
    return counters


@dataclass(frozen=True, slots=True)
class Logged:
    """An entry of a blklogwrites log, in sectors of 512 bytes."""

    kind: str
    sector: int
    sectors: int


def prepare_write_log(path: Path) -> None:
    """Make the file for QEMU's blklogwrites: it must be there and not be empty. Takes no space until it is written."""
    with path.open("wb") as file:
        file.truncate(WRITE_LOG_BYTES)


def parse_write_log(path: Path) -> tuple[Logged, ...]:
    """The entries of a log that QEMU's blklogwrites wrote; empty when nothing ever reached the disk.

    Layout: include/linux/device-mapper's log-writes, as in QEMU's block/blklogwrites.c.
    """
    entries: list[Logged] = []
    with path.open("rb") as file:
        magic, version, count, sector_bytes = struct.unpack("<QQQI", file.read(28))
        if magic == 0:
            return ()
        if (magic, version) != (WRITE_LOG_MAGIC, 1):
            raise ValueError(f"{path} is no write log: magic {magic:#x}, version {version}")
        offset = sector_bytes
        for _ in range(count):
            file.seek(offset)
            sector, sectors, flags, _ = struct.unpack("<QQQQ", file.read(32))
            kind = "discard" if flags & 4 else "flush" if sectors == 0 else "write"
            entries.append(Logged(kind, sector, sectors))
            offset += sector_bytes * (1 + (0 if kind == "discard" else sectors))
    return tuple(entries)


def content_digest(path: Path) -> str:
    """SHA-256 of a (sparse) file's size and of each megabyte that is not all zero, with its place.

    Equal exactly for equal content, and it does not read holes.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(size.to_bytes(8, "little"))
        at = 0
        while at < size:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA) // CHUNK_BYTES * CHUNK_BYTES
            except OSError:
                break  # ENXIO: only a hole is left
            data = os.pread(file.fileno(), CHUNK_BYTES, at)
            if data.strip(b"\0"):
                digest.update(at.to_bytes(8, "little") + hashlib.sha256(data).digest())
            at += CHUNK_BYTES
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Watched:
    """A disk that nobody may write to, and its digest from before the start."""

    name: str
    path: Path
    bus: str
    digest: str
    write_log: Path | None = None


def violations(
    watched: Iterable[Watched], counters: Mapping[str, Counters], trace: Iterable[Traced], shared_buses: frozenset[str],
) -> tuple[str, ...]:
    """What speaks against "untouched", one sentence each; empty when nothing does.

    ``shared_buses`` are those with a disk that may be written to: their command trace can't be told apart by disk, so
    there only the block layer's own record of a file counts.
    """
    disks = tuple(watched)
    found: list[str] = []
    for disk in disks:
        counted = counters.get(disk.name)
        if counted is None:
            found.append(f"{disk.name}: QEMU has no counters for it")
        elif counted.changes:
            found.append(f"{disk.name}: {counted}")
        if content_digest(disk.path) != disk.digest:
            found.append(f"{disk.name}: the content of {disk.path} has changed")
        if disk.write_log is not None:
            changes = [entry for entry in parse_write_log(disk.write_log) if entry.kind != "flush"]
            if changes:
                found.append(f"{disk.name}: {len(changes)} entries in its write log, first {changes[0]}")
    files = {str(disk.path): disk.name for disk in disks}
    buses = {disk.bus for disk in disks} - shared_buses
    for command in trace:
        # A block node that the trace never saw opened may be anybody's.
        if command.kind is Class.WRITE and (command.bus in buses or command.path in files or command.path == UNKNOWN):
            found.append(f"{files.get(command.path, command.bus)}: {command.name}")
    return tuple(found)
