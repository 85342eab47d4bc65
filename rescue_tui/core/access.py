"""Who may be written: the roles of disks, and the one gate that a destination passes. Pure; see `decide`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rescue_tui.core.device import DeviceKind, Disk, Partition, Signature
from rescue_tui.core.errors import PolicyRefusal
from rescue_tui.core.finding import Finding, Severity
from rescue_tui.core.ident import DeviceId
from rescue_tui.core.mountplan import WRITABLE
from rescue_tui.core.snapshot import Snapshot
from rescue_tui.core.text import human_bytes, printable


class Access(StrEnum):
    """The role of a disk. Everything is a SOURCE until the gate makes it a DESTINATION."""

    SOURCE = "source"
    DESTINATION = "destination"
    BOOT_MEDIUM = "boot-medium"
    OFF_LIMITS = "off-limits"


@dataclass(frozen=True, slots=True)
class Role:
    """A role and the sentence that says why."""

    access: Access
    reason: str


@dataclass(frozen=True, slots=True)
class WriteGrant:
    """The capability to write to one attachment of one disk; only system.guard makes one.

    ``generation`` is the diskseq of the attachment: after a re-plug the grant is dead. ``token`` is what the guard
    knows it by; it is left out of every text and document.
    """

    device_id: DeviceId
    generation: int
    node: str
    serial: str
    granted_at: str
    token: str = field(repr=False)

    def to_plain(self) -> dict[str, str | int]:
        """What documents and journals show of a grant: everything but the token."""
        return {"device_id": str(self.device_id), "generation": self.generation, "node": self.node,
                "serial": printable(self.serial), "granted_at": self.granted_at}


@dataclass(frozen=True, slots=True)
class GateDecision:
    """What the gate says of one disk: every refusal (empty means: may be granted) and every warning."""

    device_id: DeviceId
    refusals: tuple[Finding, ...]
    warnings: tuple[Finding, ...]

    @property
    def allowed(self) -> bool:
        """True when nothing speaks against a grant."""
        return not self.refusals


Grants = Mapping[DeviceId, WriteGrant]

_RAM_KINDS = {DeviceKind.RAM: "a RAM disk", DeviceKind.ZRAM: "compressed RAM (zram)",
              DeviceKind.OPTICAL: "an optical drive"}
_STACKED_KINDS = frozenset({DeviceKind.MD, DeviceKind.DM})
# Mount points that only the running system itself has.
_SYSTEM_TARGETS = frozenset({"/", "/usr", "/boot", "/boot/efi", "/efi", "/sysroot", "/run/initramfs", "/live/medium"})
_MEMBER_USAGES = frozenset({"raid", "crypto"})
# blkid files some members under other usages (zfs_member is "filesystem"); each name here is only a part of something.
_MEMBER_KINDS = frozenset({"bcache", "ceph_bluestore", "drbd", "stratis", "jbd", "xfs_external_log", "xfs_log",
                           "DM_snapshot_cow", "DM_verity_hash", "DM_integrity", "BitLocker", "crypto_LUKS"})
# File systems whose UUID is 32 or 64 bits from a clock: two innocent disks can share one.
_SHORT_UUID_KINDS = frozenset({"vfat", "exfat", "ntfs", "iso9660", "udf", "dos"})
_LONG_UUID_LENGTH = 32
_ESP_TYPES = frozenset({"c12a7328-f81f-11d2-ba4b-00a0c93ec93b", "ef"})
_SWAP_TYPES = frozenset({"0657fd6d-a4ab-43c4-84e5-0933c84b4f4f", "82"})


# roles ---------------------------------------------------------------------------------------------------------------
def assign_roles(
    snapshot: Snapshot, grants: Grants, session_sources: Collection[DeviceId], own_dirs: Collection[str] = (),
) -> Mapping[DeviceId, Role]:
    """The role of every disk. ``own_dirs`` are directories of Stasis: a loop over a file in one of them is our own.

    Two disks with one identity are both sources, and so is a disk that was imaged, whatever grant there may be.
    """
    roles: dict[DeviceId, Role] = {}
    for disk in snapshot.disks:
        if disk.id in roles:
            roles[disk.id] = Role(Access.SOURCE, "Another disk has the same identity, so neither can be told apart.")
        else:
            roles[disk.id] = _role(snapshot, disk, grants.get(disk.id), session_sources, own_dirs)
    return roles


def _role(
    snapshot: Snapshot, disk: Disk, grant: WriteGrant | None, session_sources: Collection[DeviceId],
    own_dirs: Collection[str],
) -> Role:
    if reason := _boot_reason(snapshot, disk):
        return Role(Access.BOOT_MEDIUM, reason)
    if reason := _off_limits_reason(disk, own_dirs):
        return Role(Access.OFF_LIMITS, reason)
    if disk.id in session_sources:
        return Role(Access.SOURCE, "It was imaged in this session.")
    if grant is not None and grant.generation == disk.generation:
        return Role(Access.DESTINATION, f"Granted by its serial at {grant.granted_at}.")
    if grant is not None:
        return Role(Access.SOURCE, "It was plugged again since it was granted, so the grant is void.")
    if disk.slaves:
        return Role(Access.SOURCE, f"Stacked on {', '.join(map(printable, disk.slaves))}.")
    return Role(Access.SOURCE, "Every disk is a source until it is granted.")


def _boot_reason(snapshot: Snapshot, disk: Disk) -> str:
    boot = snapshot.boot_part_uuid.lower()
    for part in disk.partitions:
        if boot and part.part_uuid.lower() == boot:
            return f"The firmware loaded this system from its partition {part.number}."
    for mount in disk.all_mounts:
        if mount.target in _SYSTEM_TARGETS:
            return f"It holds the running system (mounted at {mount.target})."
    return ""


def _off_limits_reason(disk: Disk, own_dirs: Collection[str]) -> str:
    if disk.kind in _RAM_KINDS:
        return f"It is {_RAM_KINDS[disk.kind]}."
    if disk.kind is DeviceKind.LOOP:
        if not disk.backing_file:
            return "It is a loop device without a file behind it."
        if _is_within(disk.backing_file, ("/dev",)):
            return f"It is a view of {printable(disk.backing_file)}."
        if _is_within(disk.backing_file, own_dirs):
            return "It is a loop device of Stasis itself."
    return ""


def _is_within(path: str, directories: Collection[str]) -> bool:
    return any(path == base or path.startswith(base.rstrip("/") + "/") for base in directories)


# the gate ------------------------------------------------------------------------------------------------------------
def decide(
    snapshot: Snapshot, disk: Disk, *, grants: Grants | None = None, session_sources: Collection[DeviceId] = (),
    own_dirs: Collection[str] = (), internal: bool = False,
) -> GateDecision:
    """May ``disk`` become the destination? Every reason against it at once, then every warning.

    ``own_dirs`` are directories of Stasis (mount points and loops below them are ours). ``internal`` is the operator's
    word that an internal disk is meant. Whether the hardware is write protected shows only when the flag is cleared;
    system.guard refuses then.
    """
    known = grants or {}
    held = known.get(disk.id)
    granted = held is not None and held.generation == disk.generation
    refusals = [
        *_refuse_kind(snapshot, disk, own_dirs),
        *_refuse_identity(snapshot, disk),
        *_refuse_use(disk, session_sources, own_dirs),
        *_refuse_membership(snapshot, disk),
        *_refuse_subsystem(snapshot, disk, known),
        # What was blank when it was granted may hold our own file system by now.
        *(() if granted else (*_refuse_internal(disk, internal), *_refuse_content(disk))),
    ]
    return GateDecision(disk.id, tuple(refusals), tuple(_warnings(snapshot, disk)))


def _no(code: str, summary: str, evidence: str = "") -> Finding:
    return Finding(Severity.ERROR, code, summary, evidence)


def _refuse_kind(snapshot: Snapshot, disk: Disk, own_dirs: Collection[str]) -> Iterator[Finding]:
    if reason := _boot_reason(snapshot, disk):
        yield _no("boot-medium", f"{disk.node} is the boot medium. {reason}")
    if reason := _off_limits_reason(disk, own_dirs):
        yield _no("off-limits", f"{disk.node} is off limits. {reason}")
    if disk.kind in _STACKED_KINDS or disk.slaves:
        below = ", ".join(map(printable, disk.slaves)) or "other disks"
        yield _no("stacked", f"{disk.node} is stacked on {below}; only a plain disk can be the destination.")
    if disk.size_bytes <= 0:
        yield _no("no-medium", f"{disk.node} has no medium in it.")


def _refuse_identity(snapshot: Snapshot, disk: Disk) -> Iterator[Finding]:
    twins = [other.node for other in snapshot.disks if other.id == disk.id]
    if len(twins) > 1:
        yield _no("duplicate-identity", f"{len(twins)} disks claim the identity {disk.id}.", ", ".join(twins))
    if not any(other.id == disk.id and other.generation == disk.generation for other in snapshot.disks):
        yield _no("gone", f"{disk.node} was unplugged or plugged again since it was shown.")
    if not disk.serial.strip():
        word = "weak-identity" if disk.id.is_weak else "no-serial"
        yield _no(word, f"{disk.node} has no serial that could confirm that it is the one you mean.")


def _refuse_use(disk: Disk, session_sources: Collection[DeviceId], own_dirs: Collection[str]) -> Iterator[Finding]:
    if disk.id in session_sources:
        yield _no("session-source", f"{disk.node} is a source of this session.")
    foreign = [mount.target for mount in disk.all_mounts if not _is_within(mount.target, own_dirs)]
    if foreign:
        where = ", ".join(printable(target) for target in foreign)
        yield _no("mounted", f"{disk.node} is in use: mounted at {where}.")
    if disk.all_holders:
        yield _no("holders", f"{disk.node} is in use by {', '.join(map(printable, disk.all_holders))}.")


def is_member(signature: Signature) -> bool:
    """True for a signature of something that is only a part: array, pool, volume group, encrypted volume, journal."""
    kind = signature.kind
    return signature.usage in _MEMBER_USAGES or kind.lower().endswith("_member") or kind in _MEMBER_KINDS


def _refuse_membership(snapshot: Snapshot, disk: Disk) -> Iterator[Finding]:
    kinds = sorted({printable(sig.kind) for sig in disk.all_signatures if is_member(sig)})
    if kinds:
        yield _no("member", f"{disk.node} belongs to an array, pool, volume group or encrypted volume: "
                  f"{', '.join(kinds)}.")
    mine = _long_uuids(disk)
    for other in snapshot.disks:
        if other.node == disk.node or _is_view_of(other, disk):
            continue
        for uuid in sorted(mine & _long_uuids(other)):
            yield _no("shares-uuid", f"{disk.node} shares an array, a pool or a copied partition with the source "
                      f"{other.node}.", f"UUID {uuid}")


def _is_view_of(loop: Disk, disk: Disk) -> bool:
    nodes = {disk.node, *(part.node for part in disk.partitions)}
    return loop.backing_file in nodes


def _long_uuids(disk: Disk) -> frozenset[str]:
    of_content = {printable(sig.uuid).lower() for sig in disk.all_signatures
                  if sig.uuid and sig.kind not in _SHORT_UUID_KINDS}
    # A GPT's partition UUIDs are random as well; a DOS table's are short.
    return frozenset(of_content | {printable(part.part_uuid).lower() for part in disk.partitions
                                   if len(part.part_uuid) >= _LONG_UUID_LENGTH})


def _refuse_subsystem(snapshot: Snapshot, disk: Disk, grants: Grants) -> Iterator[Finding]:
    if disk.namespace is None:
        return
    mine = disk.namespace.subsystem
    for other in snapshot.disks:
        if other.id == disk.id or other.namespace is None:
            continue
        its = other.namespace.subsystem
        granted = other.id in grants and grants[other.id].generation == other.generation
        if not granted and ((mine.nqn and its.nqn == mine.nqn) or its.name == mine.name):
            yield _no("shares-subsystem", f"{disk.node} and the source {other.node} are namespaces of one NVMe drive.",
                      f"subsystem {printable(mine.nqn or mine.name)}")


def _refuse_internal(disk: Disk, internal: bool) -> Iterator[Finding]:
    if disk.external:
        return
    if disk.kind is DeviceKind.NVME:
        if not disk.is_blank and not (internal and _only_own_content(disk)):
            yield _no("internal-not-blank", f"{disk.node} is an internal NVMe namespace and is not blank.")
        if not internal:
            yield _no("internal", f"{disk.node} is an internal NVMe namespace; it takes --internal and a blank disk.")
    elif not internal and (why := _system_disk_reason(disk)):
        yield _no("system-disk", f"{disk.node} is internal and looks like a system disk: {why}; it takes --internal.")


def _only_own_content(disk: Disk) -> bool:
    """What `format` made: one partition that is named after us. The name alone never suffices without --internal."""
    return len(disk.partitions) == 1 and disk.partitions[0].name == OWN_PARTITION_NAME


OWN_PARTITION_NAME = "stasis-destination"


def _system_disk_reason(disk: Disk) -> str:
    types = [_type(part) for part in disk.partitions]
    if any(kind in _SWAP_TYPES for kind in types) or any(sig.kind == "swap" for sig in disk.all_signatures):
        return "it has swap space"
    if len(types) > 1 and any(kind in _ESP_TYPES for kind in types):
        return "it has an EFI system partition beside others"
    return ""


def _type(part: Partition) -> str:
    return part.type.lower().removeprefix("0x")


def _refuse_content(disk: Disk) -> Iterator[Finding]:
    if not disk.signatures_complete:
        yield _no("signatures-unread", f"What is on {disk.node} could not be read, so it may be a source.")
        return
    if disk.is_blank or any(is_member(sig) for sig in disk.all_signatures):
        return
    kinds = {sig.kind for sig in disk.all_signatures if sig.usage != "partition-table"}
    if not any(kind in WRITABLE for kind in kinds):
        what = ", ".join(sorted(map(printable, kinds))) or "a partition table without a file system"
        yield _no("no-usable-filesystem", f"{disk.node} is not blank and holds nothing that Stasis writes to: {what}.")


def _warnings(snapshot: Snapshot, disk: Disk) -> Iterator[Finding]:
    kinds = {sig.kind for sig in disk.all_signatures}
    if disk.is_blank:
        yield Finding(Severity.INFO, "needs-format",
                      f"{disk.node} ({human_bytes(disk.size_bytes)}) has no file system and must be formatted first.")
    if "vfat" in kinds:
        yield Finding(Severity.WARNING, "fat-file-limit", "FAT holds no file of 4 GiB or more: few images fit.")
    if kinds & {"vfat", "exfat"}:
        yield Finding(Severity.WARNING, "no-sparse-files",
                      "This file system has no sparse files: an image takes its full size, empty parts too.")
    if "ntfs" in kinds:
        yield Finding(Severity.WARNING, "ntfs", "NTFS that Windows did not shut down cleanly is refused by the kernel.")
    if not disk.external:
        yield Finding(Severity.WARNING, "internal-disk", f"{disk.node} is an internal disk: check its serial twice.")
    elif why := _system_disk_reason(disk):
        yield Finding(Severity.WARNING, "looks-like-a-system", f"{disk.node} looks like a system disk: {why}.")
    if disk.rotational:
        yield Finding(Severity.INFO, "rotational", "A spinning disk: it may be slower than an NVMe source.")
    if disk.removable and disk.rotational:
        yield Finding(Severity.WARNING, "removable-spinning", "Its medium can be taken out: leave it in.")
    if disk.id.is_weak:
        yield Finding(Severity.WARNING, "weak-identity", "It tells no identity; a grant holds for this slot only.")
    twins = [other.node for other in snapshot.disks if other.serial == disk.serial and other.id != disk.id]
    if disk.serial and twins:
        yield Finding(Severity.WARNING, "serial-not-unique", "Another disk shows the same serial.", ", ".join(twins))
    unread = [other.node for other in snapshot.disks if other.node != disk.node and not other.signatures_complete]
    if unread:
        yield Finding(Severity.WARNING, "others-unread", "Other disks could not be read, so it is unknown whether they "
                      "share an array or pool with it.", ", ".join(unread))
    shared = _short_uuids(disk)
    for other in snapshot.disks:
        if other.node != disk.node and shared & _short_uuids(other):
            yield Finding(Severity.WARNING, "same-volume-id", f"A file system on {other.node} has the same volume id.")


def _short_uuids(disk: Disk) -> frozenset[tuple[str, str]]:
    return frozenset(
        (sig.kind, sig.uuid.lower()) for sig in disk.all_signatures
        if sig.uuid and sig.kind in _SHORT_UUID_KINDS and sig.usage == "filesystem")


def confirm_serial(disk: Disk, typed: str) -> None:
    """PolicyRefusal unless ``typed`` is the serial as it is shown (after `printable`), to the letter.

    The refusal tells the form that is expected, never the serial: the operator must read it off the disk or the list.
    """
    shown = printable(disk.serial)
    if shown and typed == shown:
        return
    if not typed:
        how = "Nothing was typed."
    elif typed.strip() == shown:
        how = "There is a blank too many before or after it."
    elif typed.casefold() == shown.casefold():
        how = "Capital and small letters count."
    elif len(typed) != len(shown):
        how = f"It has {len(shown)} characters, {len(typed)} were typed."
    else:
        how = "At least one character differs."
    raise PolicyRefusal(f"That is not the serial of {disk.node}. {how}",
                        "Type the serial exactly as the list of devices shows it; nothing was changed.")
