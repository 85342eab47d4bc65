"""A sysfs made of files, with one disk to grant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rescue_tui.core.device import DeviceKind, Disk
from rescue_tui.core.ident import DeviceId

DISK = Disk(
    DeviceId("serial", "usb/m/s"), "/dev/sdq", (65, 0), 41, DeviceKind.USB, "m", "s", "", 1 << 30, 512, 512, True)


@dataclass
class Sysfs:
    """A sysfs below a temporary directory."""

    root: Path

    def add(self, name: str, dev: str, diskseq: int, *, ro: bool = True, parts: Sequence[tuple[int, str]] = ()) -> Path:
        """A disk and its partitions."""
        directory = self.root / "devices" / name
        self._node(directory, dev, ro)
        (directory / "diskseq").write_text(f"{diskseq}\n")
        for number, part_dev in parts:
            child = directory / f"{name}{number}"
            self._node(child, part_dev, ro)
            (child / "partition").write_text(f"{number}\n")
        return directory

    def _node(self, directory: Path, dev: str, ro: bool) -> None:
        directory.mkdir(parents=True)
        (directory / "dev").write_text(f"{dev}\n")
        (directory / "ro").write_text(f"{int(ro)}\n")
        (directory / "size").write_text("2048\n")
        for index in ("dev/block", "class/block"):
            (self.root / index).mkdir(parents=True, exist_ok=True)
        (self.root / "dev/block" / dev).symlink_to(directory)
        (self.root / "class/block" / directory.name).symlink_to(directory)


def files(tmp_path: Path) -> list[str]:
    """Grant files."""
    return sorted(path.name for path in (tmp_path / "state/grants").iterdir())
