"""Imaging as values: what will be copied, how, and the exact commands; see jobs.imaging for who runs it."""

from __future__ import annotations

from dataclasses import dataclass

from rescue_tui.core.finding import Finding
from rescue_tui.core.ident import DeviceId


@dataclass(frozen=True, slots=True)
class DestinationSpace:
    """What the file system of a destination can do. Free space and limits in bytes; None: no limit known."""

    mount_point: str
    filesystem: str
    free_bytes: int
    sparse: bool
    preallocate: bool
    direct_io: bool
    max_file_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ImagingPlan:
    """One source to one image file, with the command that will run.

    ``cluster_sectors`` is ddrescue's ``-c`` in sectors of ``sector_bytes``. ``generation`` is the diskseq of the
    source when the plan was made: a plan for a disk that was plugged again is stale and refused. Paths are absolute.
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
