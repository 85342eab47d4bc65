"""Is the disk that a plan was made for still there? Only sysfs is read, never the medium: a dead disk can't block us.

Source: Documentation/ABI/stable/sysfs-block (diskseq, size), scsi and nvme ``state`` attributes.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SYS_DEV_BLOCK = Path("/sys/dev/block")
# A SCSI disk that the kernel gave up, or an NVMe controller that is dead, keeps its node: every read fails at once.
_GIVEN_UP = frozenset({"offline", "transport-offline", "dead", "deleting", "deleting (no IO)", "cancel"})


@dataclass(frozen=True, slots=True)
class Attachment:
    """One plugging-in of one disk: device number, diskseq, size in bytes."""

    dev: tuple[int, int]
    generation: int
    size_bytes: int

    def what_is_wrong(self, root: Path = SYS_DEV_BLOCK) -> str:
        """Why this attachment is no longer good, as a sentence; empty while it is."""
        major, minor = self.dev
        base = root / f"{major}:{minor}"
        size = _read(base / "size")
        if size is None:
            return "The disk is no longer there."
        sequence = _read(base / "diskseq")
        if sequence is not None and self.generation and sequence != str(self.generation):
            return "The disk was unplugged, and something else is at its place now."
        if size == "0":
            return "The disk reports a size of zero: its controller has given up."
        if size.isdigit() and int(size) * 512 != self.size_bytes:
            return f"The disk now has {int(size) * 512} bytes, it had {self.size_bytes}."
        states = _states(base / "device")
        if states and states <= _GIVEN_UP:
            return f"The kernel has given the disk up (state {', '.join(sorted(states))})."
        return ""


def _states(device: Path) -> frozenset[str]:
    """The states of every way to the disk: its own, else (NVMe with multipath) those of the subsystem's controllers."""
    own = _read(device / "state")
    if own is not None:
        return frozenset({own})
    return frozenset(state for path in device.glob("nvme*/state") if (state := _read(path)) is not None)


def _read(path: Path) -> str | None:
    with suppress(OSError):
        return path.read_text(encoding="ascii", errors="replace").strip()
    return None
