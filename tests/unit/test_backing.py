"""What lies beneath a mount, out of a made-up /sys."""

from __future__ import annotations

from pathlib import Path

from rescue_tui.core.tooltext.mountinfo import MountEntry
from rescue_tui.system.backing import Backing, backing_of


def device(sysfs: Path, path: str, dev: str, **attributes: str) -> None:
    """A block device; ``__`` stands for a slash."""
    directory = sysfs / path
    for name, text in attributes.items():
        file = directory / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    for link in (sysfs / "dev/block" / dev, sysfs / "class/block" / directory.name):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(directory)


def mount(dev: tuple[int, int], source: str) -> MountEntry:
    """A read-only mount."""
    return MountEntry(dev, "/", "/mnt", "xfs", source, ("ro",), False)


def test_a_loop_device_tells_its_file_and_offset(tmp_path: Path) -> None:
    device(tmp_path, "devices/virtual/block/loop7", "7:7", size="64", loop__backing_file="/case/disk one/image.raw",
           loop__offset="1048576")
    assert backing_of(mount((7, 7), "/dev/loop7"), tmp_path) == Backing(
        "/dev/loop7", 64 * 512, 1 << 20, "/case/disk one/image.raw")


def test_a_partition_of_a_loop_device_begins_further_on(tmp_path: Path) -> None:
    device(tmp_path, "devices/virtual/block/loop7", "7:7", size="9999", loop__backing_file="/a/image.raw",
           loop__offset="512")
    device(tmp_path, "devices/virtual/block/loop7/loop7p2", "259:1", size="100", start="2048", partition="2")
    assert backing_of(mount((259, 1), "/dev/loop7p2"), tmp_path) == Backing(
        "/dev/loop7p2", 100 * 512, 2048 * 512 + 512, "/a/image.raw")


def test_a_disk_has_no_image_and_a_mapper_no_place(tmp_path: Path) -> None:
    device(tmp_path, "devices/pci/nvme0n1", "259:0", size="9999")
    device(tmp_path, "devices/pci/nvme0n1/nvme0n1p1", "259:2", size="100", start="2048", partition="1")
    device(tmp_path, "devices/virtual/block/dm-0", "253:0", size="100", dm__name="data")
    assert backing_of(mount((259, 2), "/dev/nvme0n1p1"), tmp_path) == Backing("/dev/nvme0n1p1", 51200, 1 << 20)
    assert backing_of(mount((253, 0), "/dev/mapper/data"), tmp_path) == Backing("/dev/dm-0", 51200, None)


def test_a_file_system_with_numbers_of_its_own_is_found_by_its_source(tmp_path: Path) -> None:
    device(tmp_path, "devices/virtual/block/loop3", "7:3", size="8", loop__backing_file="/a/image.raw",
           loop__offset="0")
    assert backing_of(mount((0, 44), "/dev/loop3"), tmp_path) == Backing("/dev/loop3", 4096, 0, "/a/image.raw")
    assert backing_of(mount((0, 45), "tmpfs"), tmp_path) is None
    assert backing_of(mount((0, 46), ""), tmp_path) is None
