"""A snapshot of every disk at one moment, look-ups in it, and what changed between two."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from rescue_tui.core.device import Disk, Partition
from rescue_tui.core.errors import DeviceError, UsageError
from rescue_tui.core.finding import Finding
from rescue_tui.core.ident import DeviceId


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All disks at ``taken_at``, ordered by identity; ``boot_part_uuid`` is the partition that firmware booted from.

    ``findings`` are about hardware that shows no disk: a dead controller, a storage device without a driver.
    """

    taken_at: datetime
    disks: tuple[Disk, ...]
    boot_part_uuid: str = ""
    findings: tuple[Finding, ...] = ()

    def disk(self, device_id: DeviceId) -> Disk:
        """The disk with this identity; DeviceError when it is gone or when two disks claim it."""
        found = [disk for disk in self.disks if disk.id == device_id]
        if len(found) == 1:
            return found[0]
        if found:
            nodes = ", ".join(disk.node for disk in found)
            raise DeviceError(
                f"{len(found)} disks claim the identity {device_id}: {nodes}.",
                "Unplug all but one of them, then try again.",
            )
        raise DeviceError(f"No disk with the identity {device_id} is attached.", "Plug it in, or pick another one.")

    def find(self, text: str) -> Disk:
        """The one disk that ``text`` names: identity, node, /dev/disk/by-* link or serial.

        Raises UsageError when nothing or more than one disk matches.
        """
        disk, partition = self.find_any(text)
        if partition is not None:
            raise UsageError(f"{text} is partition {partition.number} of {disk.node}, a whole disk is needed.",
                             f"Name the disk: {disk.id}.")
        return disk

    def find_any(self, text: str) -> tuple[Disk, Partition | None]:
        """As `find`, partitions too (by node, identity, PARTUUID)."""
        found: list[tuple[Disk, Partition | None]] = []
        for disk in self.disks:
            if text in (disk.node, str(disk.id)) or text in disk.links or (disk.serial and text == disk.serial):
                found.append((disk, None))
            found.extend(
                (disk, part) for part in disk.partitions
                if text in (part.node, str(part.id)) or (part.part_uuid and text == part.part_uuid)
            )
        if len(found) == 1:
            return found[0]
        if not found:
            raise UsageError(f"No attached device is called {text!r}.", "`stasis devices` lists what is attached.")
        names = ", ".join(str(part.id if part else disk.id) for disk, part in found)
        raise UsageError(f"{text!r} names {len(found)} devices.", f"Use one of the identities: {names}.")


@dataclass(frozen=True, slots=True)
class SnapshotDiff:
    """What came, went and changed between two snapshots, by identity."""

    added: tuple[Disk, ...]
    removed: tuple[Disk, ...]
    changed: tuple[tuple[Disk, Disk], ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def diff(old: Snapshot, new: Snapshot) -> SnapshotDiff:
    """Compare by identity and attachment; a disk that was plugged again counts as removed and added."""
    before = {(disk.id, disk.generation): disk for disk in old.disks}
    after = {(disk.id, disk.generation): disk for disk in new.disks}
    return SnapshotDiff(
        added=tuple(disk for key, disk in after.items() if key not in before),
        removed=tuple(disk for key, disk in before.items() if key not in after),
        changed=tuple((before[key], disk) for key, disk in after.items() if key in before and before[key] != disk),
    )
