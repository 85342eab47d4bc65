"""Decide how a source is imaged: refusals, warnings, cluster size, output mode, and the exact command.

Only the destination's folder is looked at (what was begun there); the source itself isn't touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rescue_tui.core.access import Access, Role
from rescue_tui.core.device import Disk
from rescue_tui.core.errors import FormatError, PolicyRefusal, SpaceError, UsageError
from rescue_tui.core.finding import Finding, Severity
from rescue_tui.core.ident import DeviceId
from rescue_tui.core.imaging import (
    RESERVE_BYTES,
    SIDE_FILES_BYTES,
    DestinationSpace,
    ImagingPlan,
    careful_cluster_sectors,
    cluster_sectors,
)
from rescue_tui.core.snapshot import Snapshot
from rescue_tui.core.text import human_bytes, printable
from rescue_tui.jobs.casefolder import CaseFolder, SourceFolder, allocated_bytes, locate_begun, new_case_path
from rescue_tui.system.tools import ddrescue


@dataclass(frozen=True, slots=True)
class ImagingOptions:
    """What the operator may choose.

    ``retries``: more passes over bad sectors (ddrescue's -r). ``accept_partial``: start although the whole source
    doesn't fit. ``resume``: go on with what was begun at the destination. ``case_dir``: the case folder to use, so that
    several sources share one. ``cluster_bytes``: another cluster size than ours.
    """

    retries: int = 0
    accept_partial: bool = False
    resume: bool = False
    case_dir: Path | None = None
    cluster_bytes: int | None = None


def make_plan(
    snapshot: Snapshot, source: Disk, to: Path, space: DestinationSpace, roles: Mapping[DeviceId, Role],
    options: ImagingOptions,
) -> ImagingPlan:
    """The plan for one source. Nothing is written.

    PolicyRefusal: the disk is no source, is mounted read-write, or holds the destination; what was begun there belongs
    to another disk. SpaceError: it doesn't fit (both figures are named). UsageError: options that make no sense.
    """
    _check_options(source, options)
    _check_source(source, roles)
    target = _disk_mounted_at(snapshot, space.mount_point)
    _check_not_on_itself(snapshot, source, target)
    if options.resume:
        folder = locate_begun(options.case_dir or to, source)
        _check_can_go_on(folder, source)
    else:
        folder = CaseFolder(options.case_dir or new_case_path(to, datetime.now(UTC))).source(source.id)
        if folder.file("binding.json").exists():
            raise PolicyRefusal(f"An image of this disk was begun in {printable(str(folder.path))}.",
                                "Add --resume to go on with it, or choose another destination folder.")
    _check_space(source, space, folder, options)
    plan = ImagingPlan(
        source=source.id, source_node=source.node, source_serial=source.serial, generation=source.generation,
        size_bytes=source.size_bytes, sector_bytes=source.logical_sector_bytes, case_dir=str(folder.path.parent),
        image=str(folder.image), mapfile=str(folder.mapfile),
        cluster_sectors=_cluster(source, options),
        careful_cluster_sectors=0 if options.cluster_bytes is not None else careful_cluster_sectors(source),
        direct_output=_direct(source, space, target),
        # Sparse with a live watch of the free space, rather than preallocation, wherever the file system has holes:
        # a disk that is mostly empty takes little space and little time, several images can share a destination whose
        # size fits the data but not the sum of the disks, and each write into preallocated space would have to
        # convert an unwritten extent. What preallocation would give, the certainty that space doesn't run out in the
        # middle, the watch gives back: the copy stops in good order before the disk is full, and can be resumed.
        sparse=space.sparse, preallocate=space.preallocate and not space.sparse and not options.accept_partial,
        retries=options.retries, resume=options.resume, command=(), accept_partial=options.accept_partial,
        warnings=tuple(_warnings(source, space, target, options)), disk=source, mount_point=space.mount_point)
    return with_command(plan)


def with_command(plan: ImagingPlan) -> ImagingPlan:
    """The same plan with the command that its fields ask for."""
    folder = SourceFolder(Path(plan.image).parent)
    return replace(plan, command=ddrescue.arguments(
        source=plan.source_node, image=plan.partial_image, mapfile=plan.mapfile,
        events_log=str(folder.file("ddrescue-events.log")), rates_log=str(folder.file("ddrescue-rates.log")),
        size_bytes=plan.size_bytes, sector_bytes=plan.sector_bytes, cluster_sectors=plan.cluster_sectors,
        direct_output=plan.direct_output, sparse=plan.sparse, preallocate=plan.preallocate, retries=plan.retries))


def moved_to(plan: ImagingPlan, folder: SourceFolder) -> ImagingPlan:
    """The plan after its destination was mounted elsewhere."""
    return with_command(replace(plan, case_dir=str(folder.path.parent), image=str(folder.image),
                                mapfile=str(folder.mapfile)))


def for_attachment(plan: ImagingPlan, disk: Disk) -> ImagingPlan:
    """The plan to go on with, after the source was plugged in again under whatever name.

    PolicyRefusal when the disk isn't the one of the plan any more.
    """
    folder = SourceFolder(Path(plan.image).parent)
    folder.check_belongs(disk)
    _check_can_go_on(folder, disk)
    return with_command(replace(plan, source_node=disk.node, generation=disk.generation, disk=disk, resume=True))


def _check_options(source: Disk, options: ImagingOptions) -> None:
    if options.retries < -1:
        raise UsageError("The number of retry passes can't be negative.", "0 is none, -1 is without end.")
    if options.cluster_bytes is not None and (
            options.cluster_bytes < source.logical_sector_bytes
            or options.cluster_bytes % source.logical_sector_bytes or options.cluster_bytes > 256 << 20):
        raise UsageError(
            f"A cluster must be a multiple of {source.logical_sector_bytes} bytes and at most 256 MiB.",
            "Leave it out: Stasis chooses one.")


def _check_source(source: Disk, roles: Mapping[DeviceId, Role]) -> None:
    role = roles.get(source.id)
    if role is not None and role.access is not Access.SOURCE:
        raise PolicyRefusal(f"{printable(source.node)} is no source but {role.access.value}: {printable(role.reason)}",
                            "`stasis devices` shows the role of every disk.")
    if source.size_bytes <= 0:
        raise PolicyRefusal(f"{printable(source.node)} reports a size of zero.",
                            "Its controller may have given up: plug it in again, or restart the machine.")
    writable = [mount.target for mount in source.all_mounts if mount.writable]
    if writable:
        raise PolicyRefusal(
            f"{printable(source.node)} is mounted read-write at {printable(', '.join(writable))}.",
            "Unmount it: a copy of a file system that is being written is no good.")


def _disk_mounted_at(snapshot: Snapshot, mount_point: str) -> Disk | None:
    found = [disk for disk in snapshot.disks if any(mount.target == mount_point for mount in disk.all_mounts)]
    return found[-1] if found else None


def _check_not_on_itself(snapshot: Snapshot, source: Disk, target: Disk | None) -> None:
    """Refuse a destination that lies on the source, also through md, dm or a loop device on top of it."""
    names = {disk.node.rpartition("/")[2]: disk for disk in snapshot.disks}
    seen: set[DeviceId] = set()
    below = [target] if target is not None else []
    while below:
        disk = below.pop()
        if disk.id == source.id:
            raise PolicyRefusal("The destination is on the source itself.", "Name a folder on another disk.")
        if disk.id not in seen:
            seen.add(disk.id)
            below += [names[name] for name in disk.slaves if name in names]


def _check_can_go_on(folder: SourceFolder, source: Disk) -> None:
    if folder.has_no_map():
        return  # Pulled or cut off in the first seconds: the copy begins anew, see the worker.
    mapfile, _ = folder.read_map()
    if mapfile.end_bytes != source.size_bytes:
        raise PolicyRefusal(
            f"The mapfile covers {mapfile.end_bytes} bytes, the disk has {source.size_bytes}.",
            "It belongs to another disk, or the disk's size has changed; start a new image without --resume.")
    if mapfile.rescued_bytes and not folder.image.exists() and not folder.partial_image.exists():
        raise FormatError(f"There is a mapfile in {printable(str(folder.path))}, but no image.",
                          "The image was moved or deleted; start a new one without --resume.")


def _check_space(source: Disk, space: DestinationSpace, folder: SourceFolder, options: ImagingOptions) -> None:
    """The apparent size must fit, holes or not: how much of the source is zeros isn't known before it was read."""
    if space.max_file_bytes is not None and source.size_bytes > space.max_file_bytes:
        raise SpaceError(
            f"A file on {space.filesystem} holds at most {human_bytes(space.max_file_bytes)}, "
            f"the image needs {human_bytes(source.size_bytes)}.",
            "Use a destination with exFAT, ext4 or XFS; `stasis destination` can format an empty disk.")
    needed = max(0, source.size_bytes - allocated_bytes(folder)) + RESERVE_BYTES + SIDE_FILES_BYTES
    if needed > space.free_bytes and not options.accept_partial:
        raise SpaceError(
            f"The image needs {human_bytes(needed)} ({needed} bytes), the destination has "
            f"{human_bytes(space.free_bytes)} ({space.free_bytes} bytes) free.",
            "Use a larger destination, or accept a partial image (--accept-partial): what fits is copied.")


def _cluster(source: Disk, options: ImagingOptions) -> int:
    if options.cluster_bytes is not None:
        return options.cluster_bytes // source.logical_sector_bytes
    # A hole in the image is a cluster of zeros: where space is short, short ones leave more room.
    return careful_cluster_sectors(source) if options.accept_partial else cluster_sectors(source)


def _direct(source: Disk, space: DestinationSpace, target: Disk | None) -> bool:
    """Direct output, unless a single source sector is no legal direct write there.

    While trimming and scraping ddrescue writes single sectors: 512 bytes to a 4Kn destination end with EINVAL.
    """
    align = space.direct_align_bytes or (target.logical_sector_bytes if target is not None else 512)
    return space.direct_io and source.logical_sector_bytes % align == 0 and source.size_bytes % align == 0


def _warnings(source: Disk, space: DestinationSpace, target: Disk | None, options: ImagingOptions) -> list[Finding]:
    found: list[Finding] = []

    def warn(code: str, summary: str) -> None:
        found.append(Finding(Severity.WARNING, code, summary))

    if options.accept_partial and space.free_bytes < source.size_bytes + RESERVE_BYTES:
        warn("partial", f"Only {human_bytes(space.free_bytes)} are free: the image may end partial.")
    if not space.sparse:
        warn("not-sparse", f"{space.filesystem} has no sparse files: the image takes {human_bytes(source.size_bytes)}.")
    if not _direct(source, space, target):
        warn("buffered", "The destination takes no direct writes of the source's sector size: the copy is slower.")
    if source.all_holders:
        warn("holders", f"The source is in use by {printable(', '.join(source.all_holders))}: release it if you can.")
    if source.all_mounts:
        warn("mounted", "The source is mounted read-only.")
    if source.id.is_weak:
        warn("weak-identity", "The source tells no identity: a resume can't prove that it is the same disk.")
    if source.namespace is not None and source.namespace.lba_format.metadata_bytes:
        warn("metadata", "The namespace carries metadata beside each block; the image holds the data only.")
    return found
