"""Disks, plans and spaces to test imaging with."""

from __future__ import annotations

from dataclasses import replace

from rescue_tui.core.device import (
    Controller,
    DeviceKind,
    Disk,
    LbaFormat,
    Namespace,
    Partition,
    Signature,
    Subsystem,
)
from rescue_tui.core.ident import DeviceId
from rescue_tui.core.imaging import DestinationSpace, ImagingPlan

GIB = 1 << 30


def a_disk(value: str = "0123456789abcdef", node: str = "/dev/nvme0n1", size_bytes: int = 4 * GIB) -> Disk:
    """An NVMe disk with a partition."""
    subsystem = Subsystem("nvme-subsys0", "nqn.x", "MODEL", "SERIAL [/x]", "FW1", (
        Controller("nvme0", "pcie", "0000:01:00.0", "live", 1, "0000:01:00.0"),))
    return Disk(
        DeviceId("nvme-eui64", value), node, (259, 0), 7, DeviceKind.NVME, "MODEL", "SERIAL [/x]", "FW1", size_bytes,
        512, 4096, True, namespace=Namespace(1, "", value, "", LbaFormat(512), subsystem, ("nvme0c0n1",)),
        signatures=(Signature("gpt", "partition-table", 512),),
        partitions=(Partition(DeviceId("nvme-eui64", f"{value}#1"), f"{node}p1", (259, 1), 1, 1 << 20, GIB, True,
                              name="data", signatures=(Signature("xfs", "filesystem", 0, "ckpt"),)),))


def a_space(free_bytes: int = 100 * GIB, mount_point: str = "/mnt/dst") -> DestinationSpace:
    """An XFS with everything."""
    return DestinationSpace(mount_point, "xfs", free_bytes, True, True, True)


def a_plan(case_dir: str = "/mnt/dst/stasis-case-1", disk: Disk | None = None) -> ImagingPlan:
    """A plan for `a_disk`, without its command."""
    source = disk or a_disk()
    folder = f"{case_dir}/{source.id.slug()}"
    return ImagingPlan(
        source.id, source.node, source.serial, source.generation, source.size_bytes, source.logical_sector_bytes,
        case_dir, f"{folder}/image.raw", f"{folder}/image.map", 8192, True, True, False, 0, False, ("ddrescue",),
        disk=source)


def replugged(disk: Disk, node: str) -> Disk:
    """The same disk after it was plugged in again elsewhere."""
    return replace(disk, node=node, dev=(259, 8), generation=disk.generation + 5)
