"""Loop devices that play disks, and snapshots of just those: root tests need neither udev nor the inventory."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rescue_tui.core.device import DeviceKind, Disk, Mount, Partition, Signature
from rescue_tui.core.ident import DeviceId
from rescue_tui.core.snapshot import Snapshot
from rescue_tui.system import blockdev
from rescue_tui.system.mounttable import mount_table

_USAGES = {"gpt": "partition-table", "dos": "partition-table", "PMBR": "partition-table", "swap": "other",
           "linux_raid_member": "raid", "LVM2_member": "raid", "crypto_LUKS": "crypto"}


def run(*argv: str, stdin: str = "") -> str:
    """Run a tool to its good end and return what it printed."""
    return subprocess.run(argv, check=True, input=stdin, text=True, capture_output=True, timeout=120).stdout


def signatures(node: str) -> tuple[Signature, ...]:
    """Every signature that wipefs finds."""
    text = run("wipefs", "--no-act", "--json", node)
    return tuple(
        Signature(item["type"], _USAGES.get(item["type"], "filesystem"), int(item["offset"], 16), item["label"] or "",
                  item["uuid"] or "")
        for item in (json.loads(text)["signatures"] if text.strip() else ()))


def mounts_of(node: blockdev.BlockNode) -> tuple[Mount, ...]:
    """Where it is mounted."""
    return tuple(Mount(entry.target, entry.filesystem, entry.options) for entry in mount_table()
                 if entry.dev == node.dev or entry.source == node.node)


@dataclass(frozen=True)
class LoopDisk:
    """An attached loop device over a file; its serial is the file's name, as the inventory has it."""

    node: str
    file: Path

    @property
    def dev(self) -> tuple[int, int]:
        """Its device number."""
        status = os.stat(self.node)
        return os.major(status.st_rdev), os.minor(status.st_rdev)

    @property
    def id(self) -> DeviceId:
        """Its identity."""
        return DeviceId("loop", str(self.file))

    @property
    def read_only(self) -> bool:
        """The kernel's flag now."""
        return blockdev.block_node(self.dev).read_only

    def disk(self) -> Disk:
        """The disk as it stands now."""
        whole, *parts = blockdev.nodes_of(self.dev)
        return Disk(
            self.id, self.node, whole.dev, whole.diskseq, DeviceKind.LOOP, "loop", self.file.name, "", whole.size_bytes,
            512, 512, whole.read_only, external=True, backing_file=str(self.file), signatures=signatures(self.node),
            mounts=mounts_of(whole), partitions=tuple(self._partition(part) for part in parts))

    def _partition(self, part: blockdev.BlockNode) -> Partition:
        return Partition(
            DeviceId("loop", f"{self.file}#{part.partition}"), part.node, part.dev, part.partition or 0, 0,
            part.size_bytes, part.read_only, signatures=signatures(part.node), mounts=mounts_of(part))


def snapshot(*disks: LoopDisk) -> Snapshot:
    """A snapshot of these disks."""
    return Snapshot(datetime.now(UTC), tuple(disk.disk() for disk in disks))


@contextmanager
def loop_disk(file: Path, size_bytes: int = 0, *options: str) -> Iterator[LoopDisk]:
    """Attach a file, made sparse with ``size_bytes`` unless that is 0, and detach it at the end."""
    if size_bytes:
        with file.open("wb") as handle:
            handle.truncate(size_bytes)
    node = run("losetup", "--find", "--show", *options, str(file)).strip()
    # The flag is the loop number's, not the attachment's: whoever had the number before may have left it set.
    run("blockdev", "--setrw", node)
    try:
        yield LoopDisk(node, file)
    finally:
        for entry in mount_table():
            if entry.source == node or entry.source.startswith(f"{node}p"):
                run("umount", "--lazy", entry.target)
        subprocess.run(("partx", "--delete", node), check=False, capture_output=True, timeout=60)
        run("blockdev", "--setrw", node)
        run("losetup", "--detach", node)
