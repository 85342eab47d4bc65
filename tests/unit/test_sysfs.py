"""Reading a made-up /sys and /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from rescue_tui.core.device import DeviceKind
from rescue_tui.core.disks import build_disks
from rescue_tui.core.machine import Machine
from rescue_tui.core.text import decode
from rescue_tui.system.sysfs import loader_partition, read_machine

PCI = "devices/pci0000:00/0000:00:06.0"
EFI_VARIABLE = "firmware/efi/efivars/LoaderDevicePartUUID-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"


class Tree:
    """A directory that plays /sys."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def device(self, path: str, **attributes: bytes | str) -> Path:
        """A device directory with attributes; ``__`` stands for a slash."""
        directory = self.root / path
        for name, text in {"uevent": "", **attributes}.items():
            file = directory / name.replace("__", "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())
        return directory

    def link(self, path: str, target: str) -> None:
        """A symbolic link; the target need not exist."""
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(self.root / target)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """An NVMe disk with a partition, a disk with a hostile serial, and no PCI driver for a third device."""
    tree = Tree(tmp_path / "sys")
    tree.device(PCI, **{"class": "0x010802"})
    tree.link(f"{PCI}/subsystem", "bus/pci")
    tree.link(f"{PCI}/driver", "bus/pci/drivers/nvme")
    tree.link("bus/pci/devices/0000:00:06.0", PCI)
    tree.device(f"{PCI}/nvme/nvme0", model="M  ", serial=b"se\x1b\xffrial\n", state="live", subsysnqn="nqn.x")
    tree.link(f"{PCI}/nvme/nvme0/subsystem", "class/nvme")
    tree.link("class/nvme/nvme0", f"{PCI}/nvme/nvme0")
    disk = f"{PCI}/nvme/nvme0/nvme0n1"
    tree.device(disk, dev="259:0", size="2048", nsid="1", queue__logical_block_size="4096")
    (tree.root / disk / "holders").mkdir()
    (tree.root / disk / "holders/md0").touch()
    tree.device(f"{disk}/nvme0n1p1", dev="259:1", size="8", start="8", partition="1")
    tree.link("class/block/nvme0n1", disk)
    tree.link("class/block/nvme0n1p1", f"{disk}/nvme0n1p1")
    ata = "devices/pci0000:00/0000:00:17.0/ata1"
    tree.device("devices/pci0000:00/0000:00:17.0", **{"class": "0x010601"})
    tree.link("devices/pci0000:00/0000:00:17.0/subsystem", "bus/pci")
    tree.link("bus/pci/devices/0000:00:17.0", "devices/pci0000:00/0000:00:17.0")
    tree.device(ata, ata_port__ata1__port_no="1")
    return tree


def read(tree: Tree, proc: Path) -> Machine:
    (proc / "self").mkdir(parents=True)
    (proc / "devices").write_text("Character devices:\n  1 mem\n\nBlock devices:\n  7 loop\n259 blkext\n")
    (proc / "self/mountinfo").write_bytes(b"1 2 259:1 / /mnt/\xff ro - xfs /dev/nvme0n1p1 ro\n")
    return read_machine(tree.root, proc, lambda path: {"DEVPATH": path})


def test_a_disk_with_all_that_is_above_it(tree: Tree, tmp_path: Path) -> None:
    seen = read(tree, tmp_path / "proc")
    assert seen.majors == {7: "loop", 259: "blkext"}
    block = seen.nodes[f"/{PCI}/nvme/nvme0/nvme0n1"]
    assert block.holders == ("md0",)
    assert block.udev["DEVPATH"] == str(tree.root / PCI / "nvme/nvme0/nvme0n1")
    assert [(node.subsystem, node.driver) for node in seen.ancestors(block.path)] == [("nvme", ""), ("pci", "nvme")]
    (disk,) = build_disks(seen, {})
    assert (disk.kind, disk.slot, disk.serial, disk.holders) == (
        DeviceKind.NVME, "0000:00:06.0", r"se\x1b\xffrial", ("md0",))
    assert disk.partitions[0].mounts[0].target == r"/mnt/\xff"


def test_raw_bytes_are_kept(tree: Tree, tmp_path: Path) -> None:
    seen = read(tree, tmp_path / "proc")
    assert seen.nodes[f"/{PCI}/nvme/nvme0"].attr("serial") == decode(b"se\x1b\xffrial")


def test_storage_without_a_driver_is_in_the_machine(tree: Tree, tmp_path: Path) -> None:
    seen = read(tree, tmp_path / "proc")
    assert [node.name for node in seen.of("pci") if not node.driver] == ["0000:00:17.0"]


def test_class_directories_bring_their_attributes(tree: Tree, tmp_path: Path) -> None:
    ata = "devices/pci0000:00/0000:00:17.0/ata1"
    tree.device(f"{ata}/host0/target0:0:0/0:0:0:0/block/sda", dev="8:0", size="8")
    tree.link("class/block/sda", f"{ata}/host0/target0:0:0/0:0:0:0/block/sda")
    seen = read(tree, tmp_path / "proc")
    assert seen.nodes[f"/{ata}"].classes == ("ata_port",)
    assert seen.nodes[f"/{ata}"].attr("ata_port/port_no") == "1"


def test_a_device_that_goes_away_meanwhile_lacks_attributes_only(tree: Tree, tmp_path: Path) -> None:
    tree.link("class/block/gone", "devices/virtual/block/gone")
    seen = read(tree, tmp_path / "proc")
    assert seen.nodes["/devices/virtual/block/gone"].attrs == {}
    assert [disk.node for disk in build_disks(seen, {})] == ["/dev/nvme0n1"]


def test_a_machine_without_sysfs_has_nothing(tmp_path: Path) -> None:
    assert read_machine(tmp_path / "no", tmp_path / "no") == Machine({})


def test_the_boot_partition_from_the_efi_variable(tree: Tree, tmp_path: Path) -> None:
    variable = tree.root / EFI_VARIABLE
    variable.parent.mkdir(parents=True)
    variable.write_bytes(b"\x06\0\0\0" + "6F0F5C3A-9D5E-4C43-9D1B-1B1C8B5A0001\0".encode("utf-16-le"))
    assert read(tree, tmp_path / "proc").boot_part_uuid == "6f0f5c3a-9d5e-4c43-9d1b-1b1c8b5a0001"


@pytest.mark.parametrize("variable", [b"", b"\x06\0\0\0", b"\x06\0\0\0\0\0", b"\x06\0"])
def test_no_boot_partition(variable: bytes) -> None:
    assert loader_partition(variable) == ""
