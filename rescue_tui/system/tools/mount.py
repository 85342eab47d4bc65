"""mount, umount and flush as commands. Source: mount(8), umount(8), blockdev(8)."""

from __future__ import annotations

from rescue_tui.core.access import WriteGrant
from rescue_tui.core.command import Command
from rescue_tui.core.mountplan import MountPlan

# umount(8), mount(8): 32 is "mount failure", busy among others; the caller looks at stderr and at the mount table.
FAILED = 32


def mount(plan: MountPlan, node: str, at: str, grant: WriteGrant | None = None) -> Command:
    """Mount ``node`` as the plan says. Without a grant the plan must be a read-only one."""
    if grant is None and "ro" not in plan.options:
        raise ValueError("a mount without a grant must be read-only")
    return Command(("mount", "-t", plan.filesystem, "-o", ",".join(plan.options), "--", node, at),
                   deadline_seconds=300, grant=grant)


def unmount(at: str, *, lazy: bool = False) -> Command:
    """Unmount; ``lazy`` only for what lies on a disk that is gone. Writing back a slow disk's cache takes its time."""
    words = ("--lazy",) if lazy else ()
    return Command(("umount", *words, "--", at), deadline_seconds=1800, ok_statuses=(0, FAILED))


def flush(node: str) -> Command:
    """Write back and drop the cache of a device (BLKFLSBUF)."""
    return Command(("blockdev", "--flushbufs", node), deadline_seconds=600)
