"""Imaging as values: what will be copied, how, and the exact command. Pure; jobs.imaging plans, jobs.worker runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rescue_tui.core.device import DeviceKind, Disk
from rescue_tui.core.finding import Finding
from rescue_tui.core.ident import DeviceId

# ddrescue reads, then writes, one cluster at a time: a large cluster lets the kernel split it into many requests that
# are in flight at once. Measured in guests, best of several runs of 1 GiB: 11 s by ddrescue's default (64 KiB,
# buffered), 1.5 s with 4 MiB and direct output, 1.1 s with 16 MiB; 64 MiB gains nothing more.
CLUSTER_BYTES = 16 << 20
# A failed cluster is read again sector by sector, up to its whole length. So a disk that tells of errors is read in
# shorter ones, and a copy that meets its first error goes on with them.
CAREFUL_CLUSTER_BYTES = 4 << 20
# On a rotating disk each of those single sectors can cost a turn of the platter.
ROTATIONAL_CLUSTER_BYTES = 1 << 20
# The copy stops while so much is free: the mapfile, the logs and the report must still find room on the destination.
RESERVE_BYTES = 64 << 20
# What lies beside the image in a case folder: logs, mapfile, health, report.
SIDE_FILES_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class DestinationSpace:
    """What the file system of a destination can do. Free space and limits in bytes; None: no limit known.

    ``direct_align_bytes`` is the alignment that direct writes need there (the logical sector of its disk).
    """

    mount_point: str
    filesystem: str
    free_bytes: int
    sparse: bool
    preallocate: bool
    direct_io: bool
    max_file_bytes: int | None = None
    direct_align_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ImagingPlan:
    """One source to one image file, with the command that will run.

    ``cluster_sectors`` is ddrescue's ``-c`` in sectors of ``sector_bytes``, ``careful_cluster_sectors`` the same from
    the first read error on (0: no change). ``generation`` is the diskseq of the source when the plan was made: a plan
    for a disk that was plugged again is stale and refused. Paths are absolute; ``image`` is the final name, ddrescue
    writes to `partial_image`. ``disk`` is the source as it was seen.
    """

    source: DeviceId
    source_node: str
    source_serial: str
    generation: int
    size_bytes: int
    sector_bytes: int
    case_dir: str
    image: str
    mapfile: str
    cluster_sectors: int
    direct_output: bool
    sparse: bool
    preallocate: bool
    retries: int
    resume: bool
    command: tuple[str, ...]
    accept_partial: bool = False
    warnings: tuple[Finding, ...] = ()
    disk: Disk | None = None
    mount_point: str = ""
    careful_cluster_sectors: int = 0

    @property
    def partial_image(self) -> str:
        """The image's name until every sector was tried."""
        return self.image.removesuffix(".raw") + ".partial.raw"


@dataclass(frozen=True, slots=True)
class Binding:
    """What a mapfile belongs to: never used for another disk, or for one whose size or sector size differs."""

    source: DeviceId
    size_bytes: int
    sector_bytes: int
    serial: str = ""

    def difference(self, disk: Disk) -> str:
        """Why ``disk`` isn't the one of this binding, in words; empty when it is."""
        if disk.id != self.source:
            return f"it belongs to {self.source}, this disk is {disk.id}"
        if disk.size_bytes != self.size_bytes:
            return f"the disk had {self.size_bytes} bytes then and has {disk.size_bytes} now"
        if disk.logical_sector_bytes != self.sector_bytes:
            return f"the disk had sectors of {self.sector_bytes} bytes then and of {disk.logical_sector_bytes} now"
        return ""


def cluster_sectors(disk: Disk) -> int:
    """ddrescue's ``-c`` for a source, in its own sectors."""
    # Virtual disks call themselves rotating by default.
    spins = disk.rotational and disk.kind in (DeviceKind.ATA, DeviceKind.SAS, DeviceKind.SCSI, DeviceKind.USB)
    health = disk.health
    failing = health is not None and (health.ok is False or bool(health.media_errors) or bool(health.critical_warning))
    wanted = ROTATIONAL_CLUSTER_BYTES if spins else CAREFUL_CLUSTER_BYTES if failing else CLUSTER_BYTES
    return max(1, wanted // disk.logical_sector_bytes)


def careful_cluster_sectors(disk: Disk) -> int:
    """The same after a read error; never more than `cluster_sectors`."""
    return min(cluster_sectors(disk), max(1, CAREFUL_CLUSTER_BYTES // disk.logical_sector_bytes))


def cluster_words(plan: ImagingPlan) -> str:
    """How much is read at once, and what becomes of that at the first read error (``-c`` in the command is changed)."""
    words = f"{plan.cluster_sectors} sectors of {plan.sector_bytes} bytes at once"
    if 0 < plan.careful_cluster_sectors < plan.cluster_sectors:
        words += f", {plan.careful_cluster_sectors} from the first read error on"
    return words


@dataclass(frozen=True, slots=True)
class RateSample:
    """How many bytes were done at one moment (seconds of a monotonic clock)."""

    at_seconds: float
    done_bytes: int


def eta_range(
    samples: Sequence[RateSample], remaining_bytes: int, window_seconds: float = 10.0
) -> tuple[float, float] | None:
    """Seconds left as (low, high), from the fastest and the slowest recent window; None when nothing was read lately.

    A single number has fooled users of every other tool: the rate of a dying disk isn't constant.
    """
    if remaining_bytes <= 0:
        return (0.0, 0.0)
    rates: list[float] = []
    start = 0
    for sample in samples:
        while sample.at_seconds - samples[start].at_seconds > window_seconds:
            start += 1
        first = samples[start]
        span = sample.at_seconds - first.at_seconds
        if span >= window_seconds / 2:
            rates.append(max(0, sample.done_bytes - first.done_bytes) / span)
    moving = [rate for rate in rates if rate > 0]
    if not moving:
        return None
    return remaining_bytes / max(moving), remaining_bytes / min(moving)
