"""The device model out of a raw machine: a pure mapping, driven in tests by whole machines in JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rescue_tui.core.buses import Attachment, attach, kind_of, unescape_udev
from rescue_tui.core.device import SIGNATURES_UNREAD, DeviceKind, Disk, Mount, Partition, Signature
from rescue_tui.core.errors import FormatError
from rescue_tui.core.finding import Finding, Severity
from rescue_tui.core.ident import DeviceId, disk_id, partition_id, virtual_id
from rescue_tui.core.machine import Machine, SysNode
from rescue_tui.core.namespaces import FoldedNamespace, fold, lone_controllers
from rescue_tui.core.text import printable
from rescue_tui.core.tooltext.mountinfo import MountEntry, parse_mountinfo, parse_swaps

SYSFS_SECTOR_BYTES = 512  # sysfs counts size and start in sectors of 512 bytes, whatever the disk's own are
_NOTHING_WHEN_EMPTY = frozenset({
    DeviceKind.LOOP, DeviceKind.ZRAM, DeviceKind.RAM, DeviceKind.MD, DeviceKind.DM, DeviceKind.OTHER})
_PCI_STORAGE_CLASS = "0x01"
_PCI_RAID_CLASS = "0x0104"


@dataclass(frozen=True, slots=True)
class SignatureScan:
    """What a scan of one disk or partition found.

    ``problem`` is the sentence that says why it is not complete, ``evidence`` the command and what it printed.
    """

    signatures: tuple[Signature, ...] = ()
    problem: str = ""
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Mounts and swap of the machine, and how to find those of one node."""

    by_dev: Mapping[tuple[int, int], tuple[Mount, ...]]
    by_source: Mapping[str, tuple[Mount, ...]]

    def of(self, nodes: Iterable[SysNode]) -> tuple[Mount, ...]:
        """Mounts of any of these nodes: by device number, and by name where a file system has a number of its own."""
        found: dict[Mount, None] = {}
        for node in nodes:
            for mount in self.by_dev.get(node.dev, ()) if node.dev != (0, 0) else ():
                found[mount] = None
            for name in (node.node, *_raw_links(node), f"/dev/mapper/{node.attr('dm/name')}"):
                for mount in self.by_source.get(name, ()):
                    found[mount] = None
        return tuple(found)


def build_disks(machine: Machine, scans: Mapping[str, SignatureScan]) -> tuple[Disk, ...]:
    """Every disk, ordered by identity. ``scans`` are signature scans by sysfs path; one that is missing is empty."""
    usage = read_usage(machine)
    disks = [_namespace_disk(machine, item, scans, usage) for item in _namespaces(machine)]
    disks += [_other_disk(machine, block, scans, usage) for block in _other_blocks(machine)]
    return tuple(sorted(_with_siblings(_with_duplicates(disks)), key=lambda disk: (disk.id, disk.dev)))


def machine_findings(machine: Machine) -> tuple[Finding, ...]:
    """What is wrong with hardware that shows no disk at all."""
    undriven = (
        Finding(Severity.WARNING, "storage-without-driver", _undriven_summary(node))
        for node in machine.of("pci")
        if node.attr("class").startswith(_PCI_STORAGE_CLASS) and not node.driver)
    return (*lone_controllers(machine, _namespaces(machine)), *undriven)


def _undriven_summary(node: SysNode) -> str:
    text = f"No driver runs the PCI storage device {printable(node.name)} (class {printable(node.attr('class'))})"
    if node.attr("class").startswith(_PCI_RAID_CLASS):
        return f"{text}: it is in RAID mode and hides the disks behind it."
    return f"{text}: disks behind it can't be seen."


def scan_targets(machine: Machine) -> tuple[SysNode, ...]:
    """Nodes whose signatures are to be read: every shown disk and partition that has something to read."""
    wholes = [item.node for item in _namespaces(machine)] + list(_other_blocks(machine))
    found: list[SysNode] = []
    for whole in wholes:
        if kind_of(machine, whole) is DeviceKind.OPTICAL and whole.udev.get("ID_CDROM_MEDIA") != "1":
            continue
        found += [node for node in (whole, *machine.partitions(whole)) if node.number("size")]
    return tuple(found)


def read_usage(machine: Machine) -> Usage:
    """Mounts and active swap; a table that can't be parsed counts as empty only for the line that is wrong."""
    by_dev: dict[tuple[int, int], list[Mount]] = {}
    by_source: dict[str, list[Mount]] = {}
    for entry in _mount_entries(machine.mountinfo):
        mount = Mount(printable(entry.target), printable(entry.filesystem), tuple(map(printable, entry.options)))
        by_dev.setdefault(entry.dev, []).append(mount)
        if entry.dev[0] == 0:
            # btrfs and others give a mount a device number of their own; their source names the device.
            by_source.setdefault(entry.source, []).append(mount)
    for path in parse_swaps(machine.swaps):
        by_source.setdefault(path, []).append(Mount("[swap]", "swap", ("rw",)))
    return Usage({key: tuple(value) for key, value in by_dev.items()},
                 {key: tuple(value) for key, value in by_source.items()})


def _mount_entries(text: str) -> list[MountEntry]:
    entries: list[MountEntry] = []
    for line in text.split("\n"):
        try:
            entries += parse_mountinfo(line)
        except FormatError:
            continue
    return entries


def _namespaces(machine: Machine) -> tuple[FoldedNamespace, ...]:
    return fold(machine, tuple(
        block for block in machine.whole_disks() if kind_of(machine, block) is DeviceKind.NVME))


def _other_blocks(machine: Machine) -> tuple[SysNode, ...]:
    return tuple(
        block for block in machine.whole_disks()
        if kind_of(machine, block) is not DeviceKind.NVME and block.attr("hidden").strip() != "1"
        and not _has_no_medium(machine, block))


def _has_no_medium(machine: Machine, block: SysNode) -> bool:
    """Unused loop devices, empty card readers and the like; a fixed disk of size 0 is broken, and is shown."""
    if block.number("size"):
        return False
    kind = kind_of(machine, block)
    if kind is DeviceKind.OPTICAL:
        return False
    return kind in _NOTHING_WHEN_EMPTY or block.attr("removable").strip() == "1"


def _raw_links(node: SysNode) -> tuple[str, ...]:
    return tuple(node.udev.get("DEVLINKS", "").split())


def _namespace_disk(
    machine: Machine, item: FoldedNamespace, scans: Mapping[str, SignatureScan], usage: Usage
) -> Disk:
    subsystem = item.namespace.subsystem
    base = _common(machine, item.node, item.id, scans, usage, item.also)
    transports = sorted({controller.transport for controller in subsystem.controllers if controller.transport})
    return replace(
        base, kind=DeviceKind.NVME, model=subsystem.model, serial=subsystem.serial, firmware=subsystem.firmware,
        wwn=item.wwid, transport=", ".join(transports), slot=item.slot, external=item.external,
        namespace=item.namespace, findings=(*base.findings, *item.findings))


def _other_disk(machine: Machine, block: SysNode, scans: Mapping[str, SignatureScan], usage: Usage) -> Disk:
    attached = attach(machine, block)
    base = _common(machine, block, _identity(machine, block, attached, scans), scans, usage, ())
    return replace(
        base, kind=attached.kind, model=printable(attached.model), serial=printable(attached.serial),
        firmware=printable(attached.firmware), wwn=printable(attached.wwn), transport=attached.transport,
        slot=printable(attached.slot), external=attached.external)


def _identity(machine: Machine, block: SysNode, attached: Attachment, scans: Mapping[str, SignatureScan]) -> DeviceId:
    if attached.kind is DeviceKind.LOOP:
        # The kernel never prints a path with two slashes in a row, so no file name can pose as an offset.
        offset = f"//offset={block.number('loop/offset')}" if block.number("loop/offset") else ""
        return virtual_id("loop", f"{block.attr('loop/backing_file')}{offset}")
    if attached.kind is DeviceKind.DM:
        name = block.attr("dm/uuid") or block.attr("dm/name")
        return virtual_id("dm", name)
    if attached.kind is DeviceKind.MD and (uuid := _md_uuid(machine, block, scans)):
        return virtual_id("md", uuid)
    above = machine.ancestors(block.path)
    place = attached.slot or (above[0].path if above else block.path)
    whole = next((node for node in above if node.subsystem == "block"), None)
    # The boot areas of an eMMC are disks below the disk: same card, same serial.
    area = f" {block.name.removeprefix(whole.name)}" if whole is not None else ""
    return disk_id(wwn=None if area else attached.wwn, bus=attached.kind.value, model=attached.model,
                   serial=f"{attached.serial}{area}" if attached.serial else "", path=f"{place}{area}")


def _md_uuid(machine: Machine, block: SysNode, scans: Mapping[str, SignatureScan]) -> str:
    if uuid := block.udev.get("MD_UUID") or block.attr("md/uuid").strip():
        return uuid
    members = (node for node in machine.of("block") if node.name in block.slaves)
    return next((sig.uuid for node in members for sig in scans.get(node.path, SignatureScan()).signatures
                 if sig.kind == "linux_raid_member" and sig.uuid), "")


def _common(
    machine: Machine, block: SysNode, identity: DeviceId, scans: Mapping[str, SignatureScan], usage: Usage,
    also: tuple[SysNode, ...],
) -> Disk:
    """What every disk has. ``also`` are further visible nodes of the same namespace."""
    logical = block.number("queue/logical_block_size") or 512
    scan = scans.get(block.path, SignatureScan())
    parts = tuple(
        _partition(part, identity, scans, usage, _twins(machine, part, also)) for part in machine.partitions(block))
    every = [scan, *(scans[part.path] for part in machine.partitions(block) if part.path in scans)]
    findings = [Finding(Severity.WARNING, SIGNATURES_UNREAD, one.problem, one.evidence) for one in every if one.problem]
    if not block.number("size"):
        findings.append(Finding(Severity.ERROR, "no-capacity", f"{printable(block.node)} reports a size of 0 bytes."))
    return Disk(
        id=identity, node=printable(block.node), dev=block.dev, generation=block.number("diskseq"),
        kind=DeviceKind.OTHER, model="", serial="", firmware="",
        size_bytes=block.number("size") * SYSFS_SECTOR_BYTES, logical_sector_bytes=logical,
        physical_sector_bytes=block.number("queue/physical_block_size") or logical,
        read_only=block.attr("ro").strip() == "1", removable=block.attr("removable").strip() == "1",
        rotational=block.attr("queue/rotational").strip() == "1", sysfs_path=printable(block.path),
        backing_file=printable(block.attr("loop/backing_file"), None),
        signatures=scan.signatures, partitions=parts, holders=_names((block, *also), "holders"),
        slaves=_names((block,), "slaves"), mounts=usage.of((block, *also)),
        links=tuple(sorted({printable(link) for node in (block, *also) for link in _raw_links(node)})),
        partition_table=_table(block, scan), findings=tuple(findings))


def _names(nodes: tuple[SysNode, ...], field: str) -> tuple[str, ...]:
    return tuple(sorted({printable(name) for node in nodes for name in getattr(node, field)}))


def _twins(machine: Machine, part: SysNode, also: tuple[SysNode, ...]) -> tuple[SysNode, ...]:
    return tuple(
        twin for node in also for twin in machine.partitions(node)
        if (twin.attr("partition"), twin.attr("start")) == (part.attr("partition"), part.attr("start")))


def _table(block: SysNode, scan: SignatureScan) -> str:
    if table := block.udev.get("ID_PART_TABLE_TYPE"):
        return printable(table)
    kinds = [sig.kind for sig in scan.signatures if sig.usage == "partition-table" and sig.kind != "PMBR"]
    if any(sig.usage == "filesystem" for sig in scan.signatures):
        # The boot sector of exFAT and NTFS ends like an MBR does.
        kinds = [kind for kind in kinds if kind != "dos"]
    return "gpt" if "gpt" in kinds else next(iter(kinds), "")


def _partition(
    part: SysNode, disk: DeviceId, scans: Mapping[str, SignatureScan], usage: Usage, twins: tuple[SysNode, ...]
) -> Partition:
    kernel = part.kernel_properties
    name = part.udev.get("ID_PART_ENTRY_NAME", "")
    number = part.number("partition")
    return Partition(
        id=partition_id(disk, number), node=printable(part.node), dev=part.dev, number=number,
        start_bytes=part.number("start") * SYSFS_SECTOR_BYTES, size_bytes=part.number("size") * SYSFS_SECTOR_BYTES,
        read_only=part.attr("ro").strip() == "1",
        name=printable(unescape_udev(name) if name else kernel.get("PARTNAME", "")),
        type=printable(part.udev.get("ID_PART_ENTRY_TYPE", "").lower()),
        part_uuid=printable((part.udev.get("ID_PART_ENTRY_UUID") or kernel.get("PARTUUID", "")).lower()),
        signatures=scans.get(part.path, SignatureScan()).signatures, holders=_names((part, *twins), "holders"),
        mounts=usage.of((part, *twins)))


def _with_duplicates(disks: list[Disk]) -> list[Disk]:
    counts = Counter(disk.id for disk in disks)
    shared = {identity for identity, count in counts.items() if count > 1}

    def marked(disk: Disk) -> Disk:
        if disk.id not in shared:
            return disk
        nodes = ", ".join(sorted(other.node for other in disks if other.id == disk.id))
        finding = Finding(Severity.ERROR, "duplicate-identity",
                          f"{nodes} have one identity, {disk.id}: copies of each other, or two ways to one disk.")
        return replace(disk, findings=(*disk.findings, finding))

    return [marked(disk) for disk in disks]


def _with_siblings(disks: list[Disk]) -> list[Disk]:
    by_nqn: dict[str, list[str]] = {}
    for disk in disks:
        if disk.namespace is not None and disk.namespace.subsystem.nqn:
            by_nqn.setdefault(disk.namespace.subsystem.nqn, []).append(str(disk.id))
    return [
        replace(disk, siblings=tuple(sorted(name for name in by_nqn.get(disk.namespace.subsystem.nqn, ())
                                            if name != str(disk.id))))
        if disk.namespace is not None else disk
        for disk in disks
    ]
