"""The mount table of this process. Reading /proc/self/mountinfo touches no file system. Source: proc(5)."""

from __future__ import annotations

from pathlib import Path

from rescue_tui.core.errors import SetupError
from rescue_tui.core.text import decode
from rescue_tui.core.tooltext.mountinfo import MountEntry, parse_mountinfo

MOUNTINFO = Path("/proc/self/mountinfo")


def mount_table(path: Path = MOUNTINFO) -> tuple[MountEntry, ...]:
    """All mounts now; SetupError when /proc is not there."""
    try:
        return parse_mountinfo(decode(path.read_bytes()))
    except OSError as error:
        raise SetupError(f"The mount table can't be read: {error.strerror}.", "Is /proc mounted?") from error


def is_writable(entry: MountEntry) -> bool:
    """True when both the mount and its file system allow writes."""
    return entry.superblock_writable and "rw" in entry.options


def mounted_at(target: str, path: Path = MOUNTINFO) -> MountEntry | None:
    """The mount whose target is exactly this path, the topmost one."""
    found = [entry for entry in mount_table(path) if entry.target == target]
    return found[-1] if found else None


def mount_of(place: str, path: Path = MOUNTINFO) -> MountEntry | None:
    """The mount that an absolute, resolved path lies on."""
    best: MountEntry | None = None
    for entry in mount_table(path):
        base = entry.target.rstrip("/")
        # A later mount on the same target hides the earlier one.
        if (place == entry.target or place.startswith(base + "/")) and (
                best is None or len(entry.target) >= len(best.target)):
            best = entry
    return best
