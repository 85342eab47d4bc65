"""The mount table of this process. Reading /proc/self/mountinfo touches no file system. Source: proc(5)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rescue_tui.core.errors import SetupError

MOUNTINFO = Path("/proc/self/mountinfo")
_OCTAL = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class MountEntry:
    """One mount. ``dev`` is anonymous (0:n) for btrfs and for what has no device; ``options`` are the mount's own."""

    dev: tuple[int, int]
    root: str
    target: str
    options: tuple[str, ...]
    filesystem: str
    source: str
    super_options: tuple[str, ...]

    @property
    def writable(self) -> bool:
        """True when both the mount and the file system allow writes."""
        return "rw" in self.options and "rw" in self.super_options


def _text(field: bytes) -> str:
    return _OCTAL.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), field).decode("utf-8", "surrogateescape")


def parse(content: bytes) -> tuple[MountEntry, ...]:
    """Every well-formed line of a mountinfo file, in order (a later mount on the same target hides the earlier)."""
    found = []
    for line in content.splitlines():
        fields = line.split(b" ")
        if len(fields) < 10 or b"-" not in fields[6:]:
            continue
        dash = fields.index(b"-", 6)
        major, _, minor = fields[2].partition(b":")
        if len(fields) < dash + 4 or not major.isdigit() or not minor.isdigit():
            continue
        found.append(MountEntry(
            (int(major), int(minor)), _text(fields[3]), _text(fields[4]), tuple(_text(fields[5]).split(",")),
            _text(fields[dash + 1]), _text(fields[dash + 2]), tuple(_text(fields[dash + 3]).split(","))))
    return tuple(found)


def mount_table(path: Path = MOUNTINFO) -> tuple[MountEntry, ...]:
    """All mounts now; SetupError when /proc is not there."""
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise SetupError(f"The mount table can't be read: {error.strerror}.", "Is /proc mounted?") from error


def mounted_at(target: str) -> MountEntry | None:
    """The mount whose target is exactly this path, the topmost one."""
    found = [entry for entry in mount_table() if entry.target == target]
    return found[-1] if found else None


def mount_of(path: str) -> MountEntry | None:
    """The mount that an absolute, resolved path lies on."""
    best: MountEntry | None = None
    for entry in mount_table():
        base = entry.target.rstrip("/")
        if (path == entry.target or path.startswith(base + "/")) and (
                best is None or len(entry.target) >= len(best.target)):
            best = entry
    return best
