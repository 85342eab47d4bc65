"""Which file system of a disk is meant, and what a path lies on. Pure."""

from __future__ import annotations

import hashlib
import re

from rescue_tui.core.access import is_member
from rescue_tui.core.device import Disk, Signature
from rescue_tui.core.errors import UsageError
from rescue_tui.core.ident import DeviceId
from rescue_tui.core.snapshot import Snapshot
from rescue_tui.core.text import printable
from rescue_tui.core.tooltext.mountinfo import MountEntry

_ESP = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"
_IN_RAM = frozenset({"tmpfs", "ramfs", "rootfs", "overlay", "devtmpfs", "proc", "sysfs", "squashfs", "erofs"})

_NAME_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_NAME_CHARACTERS = 24


def mount_name(serial: str, device_id: DeviceId, taken: frozenset[str]) -> str:
    """A short directory name for a destination, from its serial; not one of ``taken``, which other disks have.

    It is typed by people and only a name: who the disk is says its identity.
    """
    name = _NAME_UNSAFE.sub("-", serial)[-_NAME_CHARACTERS:].strip("-") or "disk"
    if name not in taken:
        return name
    return f"{name}-{hashlib.sha256(str(device_id).encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"


def where(snapshot: Snapshot, entry: MountEntry | None) -> str:
    """In words what a mount lies on."""
    if entry is None:
        return "it is nowhere"
    if entry.filesystem in _IN_RAM:
        return "it is in RAM, and lost at power-off"
    for disk in snapshot.disks:
        if any(mount.target == entry.target for mount in disk.all_mounts):
            return f"it is on {disk.node} ({printable(disk.serial) or disk.id}), which is not granted"
    return f"it is on {printable(entry.source)} ({printable(entry.filesystem)})"


def choose_filesystem(disk: Disk, partition: int | None) -> tuple[int | None, str]:
    """Which partition (None: the whole disk) to mount, and its file system in blkid's words.

    UsageError when there is nothing to choose, or more than one thing and ``partition`` does not say which.
    """
    places: list[tuple[int | None, tuple[Signature, ...]]]
    places = [(part.number, part.signatures) for part in disk.partitions]
    if not disk.partitions:
        places.append((None, disk.signatures))
    found = {number: kinds for number, signatures in places if (kinds := {
        sig.kind for sig in signatures if sig.usage == "filesystem" and not is_member(sig)})}
    if partition is not None:
        if partition not in found:
            raise UsageError(f"Partition {partition} of {disk.node} has no file system.", "Pick another one.")
        found = {partition: found[partition]}
    elif len(found) > 1:
        esp = {part.number for part in disk.partitions if part.type.lower() == _ESP}
        found = {number: kinds for number, kinds in found.items() if number not in esp}
    if not found:
        raise UsageError(f"{disk.node} has no file system.", "Format it first: stasis destination format.")
    if len(found) > 1:
        raise UsageError(f"{disk.node} has file systems on partitions {', '.join(map(str, sorted(found, key=str)))}.",
                         "Say which one.")
    (number, kinds), = found.items()
    if len(kinds) > 1:
        raise UsageError(f"{disk.node} shows several file systems at one place: {printable(', '.join(sorted(kinds)))}.",
                         "Use another disk.")
    return number, kinds.pop()
