"""How a blank destination is partitioned and formatted.

Sources: sfdisk(8), partx(8), mke2fs(8), mkfs.xfs(8), mkfs.exfat(8).

One GPT partition for every file system: Windows and macOS take no exFAT without one, and everybody reads GPT.
"""

from __future__ import annotations

from rescue_tui.core.access import OWN_PARTITION_NAME, WriteGrant
from rescue_tui.core.command import Command
from rescue_tui.core.errors import UsageError
from rescue_tui.core.text import printable

LABEL = "STASIS"
FILESYSTEMS = ("ext4", "xfs", "exfat")
_LINUX_DATA = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"
_BASIC_DATA = "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7"
# No discard: on a USB bridge it can take an hour or hang. Features that kernels of the last years can't write are off.
_MAKE: dict[str, tuple[str, ...]] = {
    "ext4": ("mkfs.ext4", "-q", "-m", "0", "-T", "largefile", "-E", "nodiscard",
             "-O", "^orphan_file,^metadata_csum_seed", "-L", LABEL),
    "xfs": ("mkfs.xfs", "-q", "-K", "-i", "nrext64=0", "-L", LABEL),
    "exfat": ("mkfs.exfat", "-L", LABEL),
}


def check_filesystem(filesystem: str) -> None:
    """UsageError for a file system that a destination is not formatted with."""
    if filesystem not in FILESYSTEMS:
        raise UsageError(f"A destination can't be formatted with {printable(filesystem)!r}.",
                         f"Choose one of {', '.join(FILESYSTEMS)}.")


def partition(node: str, filesystem: str, grant: WriteGrant) -> Command:
    """Write a GPT with one partition over the whole disk. The kernel is told by `tell_kernel`."""
    kind = _BASIC_DATA if filesystem == "exfat" else _LINUX_DATA
    return Command(
        ("sfdisk", "--quiet", "--no-reread", "--no-tell-kernel", "--wipe", "never", "--wipe-partitions", "never",
         "--label", "gpt", node),
        stdin=f'type={kind}, name="{OWN_PARTITION_NAME}"\n'.encode(), deadline_seconds=120, grant=grant)


def tell_kernel(node: str) -> Command:
    """Make the kernel take over the partition table (BLKPG; it works where the kernel reads no table, too)."""
    return Command(("partx", "--update", node), deadline_seconds=60)


def make(node: str, filesystem: str, grant: WriteGrant) -> Command:
    """Make the file system on a partition of the granted disk."""
    check_filesystem(filesystem)
    # Discards apart, making a file system writes little; a slow disk with write errors still takes minutes.
    return Command((*_MAKE[filesystem], node), deadline_seconds=900, grant=grant)


def probe_type(node: str) -> Command:
    """The type of the file system on a node, read from the medium and from no cache (blkid(8), low-level probing)."""
    return Command(("blkid", "-p", "-s", "TYPE", "-o", "value", node), deadline_seconds=60, ok_statuses=(0, 2, 8))


def settle() -> Command:
    """Wait until udev has worked through its queue; it exits at once when udev does not run."""
    return Command(("udevadm", "settle", "--timeout=30"), deadline_seconds=40, ok_statuses=(0, 1))


def announce(node: str) -> Command:
    """Let udev look at a node again; nothing watches it (see the read-only rule)."""
    return Command(("udevadm", "trigger", "--action=change", f"--name-match={node}"), ok_statuses=(0, 1))
