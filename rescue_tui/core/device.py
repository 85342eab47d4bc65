"""The device model: what is plugged in, as frozen values. Built by system.udev, read by everybody."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from rescue_tui.core.finding import Finding
from rescue_tui.core.ident import DeviceId

SIGNATURES_UNREAD = "signatures-unread"


class DeviceKind(StrEnum):
    """How the kernel reaches a disk, or what it is stacked on."""

    NVME = "nvme"
    ATA = "ata"
    SAS = "sas"
    SCSI = "scsi"
    USB = "usb"
    VIRTIO = "virtio"
    MMC = "mmc"
    LOOP = "loop"
    MD = "md"
    DM = "dm"
    ZRAM = "zram"
    RAM = "ram"
    OPTICAL = "optical"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class LbaFormat:
    """The LBA format in use: data bytes a logical block, metadata bytes beside it."""

    data_bytes: int
    metadata_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Controller:
    """An NVMe controller (``nvme0``): one way to a subsystem."""

    name: str
    transport: str
    address: str
    state: str
    controller_id: int | None = None
    pci_slot: str = ""
    removable: bool = False


@dataclass(frozen=True, slots=True)
class Subsystem:
    """An NVMe subsystem: what carries model, serial and firmware revision."""

    name: str
    nqn: str
    model: str
    serial: str
    firmware: str
    controllers: tuple[Controller, ...] = ()


@dataclass(frozen=True, slots=True)
class Namespace:
    """An NVMe namespace with every path to it (hidden multipath nodes are paths, not disks)."""

    nsid: int
    nguid: str
    eui64: str
    uuid: str
    lba_format: LbaFormat
    subsystem: Subsystem
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature found on a disk or partition; a place can hold several and all are listed.

    ``usage`` is filesystem, raid, crypto, partition-table or other (blkid's words).
    """

    kind: str
    usage: str
    offset_bytes: int
    label: str = ""
    uuid: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Mount:
    """Where something is mounted, from /proc/self/mountinfo."""

    target: str
    filesystem: str
    options: tuple[str, ...]

    @property
    def writable(self) -> bool:
        """True when the mount itself allows writes."""
        return "rw" in self.options


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a disk; ``number`` comes from the partition table, never from the node's name."""

    id: DeviceId
    node: str
    dev: tuple[int, int]
    number: int
    start_bytes: int
    size_bytes: int
    read_only: bool
    name: str = ""
    type: str = ""
    part_uuid: str = ""
    signatures: tuple[Signature, ...] = ()
    holders: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()


@dataclass(frozen=True, slots=True)
class Health:
    """SMART and error log in one shape; None stands for "the device did not say".

    ``ok`` is the device's own verdict; ``source`` names the tool; ``unavailable`` says in one sentence why nothing
    could be read. Counts are since the device was made, temperature is in degrees Celsius.
    """

    source: str = ""
    ok: bool | None = None
    critical_warning: int | None = None
    temperature_celsius: int | None = None
    available_spare_percent: int | None = None
    spare_threshold_percent: int | None = None
    percentage_used: int | None = None
    media_errors: int | None = None
    error_log_entries: int | None = None
    power_on_hours: int | None = None
    unsafe_shutdowns: int | None = None
    errors: tuple[ErrorLogEntry, ...] = ()
    findings: tuple[Finding, ...] = ()
    unavailable: str = ""


@dataclass(frozen=True, slots=True)
class ErrorLogEntry:
    """One entry of the NVMe error information log (log page 01h)."""

    error_count: int
    command_id: int
    status_field: int
    status_text: str
    lba: int
    nsid: int


@dataclass(frozen=True, slots=True)
class Disk:
    """A whole block device.

    ``generation`` is the kernel's diskseq: another number after each re-plug, so a grant or a plan made for one
    attachment never holds for the next. ``siblings`` are identities of disks that share this disk's hardware (other
    namespaces of its subsystem). ``slot`` is the PCI slot or USB port path. ``external`` is true for what hangs on USB,
    Thunderbolt or another port that firmware calls external, and for SD cards. ``partition_table`` is gpt, dos or
    another of blkid's names. ``model``, ``serial``, labels and names have been through `core.text.printable`.
    """

    id: DeviceId
    node: str
    dev: tuple[int, int]
    generation: int
    kind: DeviceKind
    model: str
    serial: str
    firmware: str
    size_bytes: int
    logical_sector_bytes: int
    physical_sector_bytes: int
    read_only: bool
    removable: bool = False
    external: bool = False
    rotational: bool = False
    wwn: str = ""
    transport: str = ""
    slot: str = ""
    sysfs_path: str = ""
    backing_file: str = ""
    namespace: Namespace | None = None
    signatures: tuple[Signature, ...] = ()
    partitions: tuple[Partition, ...] = ()
    holders: tuple[str, ...] = ()
    slaves: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    links: tuple[str, ...] = ()
    health: Health | None = field(default=None, compare=False)
    partition_table: str = ""
    siblings: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def all_signatures(self) -> tuple[Signature, ...]:
        """Signatures of the disk and of its partitions."""
        return self.signatures + tuple(sig for part in self.partitions for sig in part.signatures)

    @property
    def short_signatures(self) -> tuple[Signature, ...]:
        """The disk's own signatures for a short list: without the protective MBR that every GPT brings along."""
        gpt = any(signature.kind == "gpt" for signature in self.signatures)
        return tuple(sig for sig in self.signatures if not (gpt and sig.kind == "PMBR"))

    @property
    def all_mounts(self) -> tuple[Mount, ...]:
        """Mounts of the disk and of its partitions."""
        return self.mounts + tuple(mount for part in self.partitions for mount in part.mounts)

    @property
    def all_holders(self) -> tuple[str, ...]:
        """Holders (md, dm, bcache ...) of the disk and of its partitions."""
        return self.holders + tuple(name for part in self.partitions for name in part.holders)

    @property
    def signatures_complete(self) -> bool:
        """False when a signature scan failed or has not ended: what is listed may then lack something."""
        return all(finding.code != SIGNATURES_UNREAD for finding in self.findings)

    @property
    def is_blank(self) -> bool:
        """True when all was read and neither a partition nor any signature was found; says nothing about old data."""
        return self.signatures_complete and not self.partitions and not self.all_signatures
