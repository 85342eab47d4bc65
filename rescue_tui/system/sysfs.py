"""Reads a machine out of sysfs, /proc and the EFI variables into `core.machine.Machine`. Opens no device.

Every attribute here is answered by the kernel from memory; a disk that hangs can't hold up this module.
Source: Documentation/ABI/stable/sysfs-block, sysfs-class-nvme, sysfs-bus-pci; systemd's boot loader interface.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from rescue_tui.core.machine import Machine, SysNode
from rescue_tui.core.text import decode

UdevProperties = Callable[[str], Mapping[str, str]]

_BLOCK = (
    "dev", "size", "start", "partition", "diskseq", "ro", "removable", "hidden", "stat", "uevent", "serial", "wwid",
    "nsid", "nguid", "eui", "uuid", "metadata_bytes", "integrity/format", "queue/logical_block_size",
    "queue/physical_block_size", "queue/rotational", "queue/iostats", "loop/backing_file", "loop/offset",
    "loop/sizelimit", "dm/name", "dm/uuid", "md/level", "md/metadata_version", "md/uuid",
)
_ABOVE = (
    "vendor", "model", "rev", "type", "wwid", "vpd_pg80", "vpd_pg89", "serial", "firmware_rev", "cntlid", "cntrltype",
    "transport", "address", "state", "subsysnqn", "removable", "busnum", "manufacturer", "product", "name", "fwrev",
    "class",
)
# Directories named after a class hold one directory named after the device, with the class's own attributes.
_CLASSES: Mapping[str, tuple[str, ...]] = {
    "ata_port": ("port_no",), "sas_port": (), "sas_end_device": (), "sas_device": ("bay_identifier",), "sas_host": (),
    "fc_host": (), "fc_remote_ports": (), "iscsi_session": (),
}
_ATTRIBUTE_LIMIT_BYTES = 1 << 16
_PCI_STORAGE_CLASS = "0x01"
_LOADER_PARTITION = "firmware/efi/efivars/LoaderDevicePartUUID-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
_EFI_ATTRIBUTES_BYTES = 4


def no_udev(_path: str) -> Mapping[str, str]:
    """The udev database of a machine without one."""
    return {}


def read_machine(
    sys: Path = Path("/sys"), proc: Path = Path("/proc"), udev: UdevProperties = no_udev
) -> Machine:
    """The machine now. ``udev`` gives the udev database's properties of an absolute sysfs path.

    A device that goes away while it is read is left out or lacks attributes; nothing is raised for it.
    """
    nodes: dict[str, SysNode] = {}
    for directory in _members(sys, "class/block"):
        block = _block(sys, directory, udev)
        nodes[block.path] = block
    for directory in [*_members(sys, "class/nvme"), *_members(sys, "class/nvme-subsystem"), *_pci_storage(sys)]:
        _add_above(sys, nodes, directory)
    for path in list(nodes):
        _add_above(sys, nodes, (sys / path[1:]).parent)
    return Machine(
        nodes, _majors(_text(proc / "devices")), _text(proc / "self/mountinfo"), _text(proc / "swaps"),
        loader_partition(_bytes(sys / _LOADER_PARTITION)))


def loader_partition(variable: bytes) -> str:
    """LoaderDevicePartUUID in lower case: 4 bytes of attributes, then UTF-16LE text; empty when there is none."""
    text = variable[_EFI_ATTRIBUTES_BYTES:].decode("utf-16-le", "replace")
    return text.partition("\0")[0].strip().lower()


def _members(sys: Path, group: str) -> list[Path]:
    """The device directories of a class, in a fixed order."""
    try:
        names = sorted(os.listdir(sys / group))
    except OSError:
        return []
    return [(sys / group / name).resolve() for name in names]


def _pci_storage(sys: Path) -> list[Path]:
    """PCI functions of the storage class: one without a driver hides disks."""
    functions = _members(sys, "bus/pci/devices")
    return [found for found in functions if _text(found / "class").startswith(_PCI_STORAGE_CLASS)]


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_ATTRIBUTE_LIMIT_BYTES)
    except OSError:
        return b""


def _text(path: Path) -> str:
    """A file of /proc or sysfs as text, whatever its length."""
    try:
        return decode(path.read_bytes())
    except OSError:
        return ""


def _attributes(directory: Path, names: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        try:
            with (directory / name).open("rb") as file:
                found[name] = decode(file.read(_ATTRIBUTE_LIMIT_BYTES).removesuffix(b"\n"))
        except OSError:
            continue  # not every device has every attribute
    return found


def _link_name(path: Path) -> str:
    try:
        return Path(os.readlink(path)).name
    except OSError:
        return ""


def _entries(directory: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(directory)))
    except OSError:
        return ()


def _path_of(sys: Path, directory: Path) -> str:
    return "/" + str(directory.relative_to(sys.resolve()))


def _block(sys: Path, directory: Path, udev: UdevProperties) -> SysNode:
    return SysNode(
        path=_path_of(sys, directory), subsystem="block", driver="", attrs=_attributes(directory, _BLOCK),
        udev=udev(str(directory)), holders=_entries(directory / "holders"), slaves=_entries(directory / "slaves"))


def _add_above(sys: Path, nodes: dict[str, SysNode], directory: Path) -> None:
    """Add ``directory`` and what is above it, up to /sys/devices; directories that are no device are passed over."""
    top = sys.resolve() / "devices"
    while directory != top and top in directory.parents:
        path = _path_of(sys, directory)
        if path in nodes and nodes[path].subsystem != "block":
            return
        if path not in nodes and (directory / "uevent").exists():
            nodes[path] = _above(directory, path)
        directory = directory.parent


def _above(directory: Path, path: str) -> SysNode:
    attrs = _attributes(directory, _ABOVE)
    classes = tuple(name for name in _CLASSES if (directory / name).is_dir())
    for name in classes:
        for member in _entries(directory / name)[:1]:
            inner = _attributes(directory / name / member, _CLASSES[name])
            attrs.update({f"{name}/{key}": value for key, value in inner.items()})
    return SysNode(path, _link_name(directory / "subsystem"), _link_name(directory / "driver"), attrs, classes=classes)


def _majors(text: str) -> dict[int, str]:
    """Drivers of block devices by major number, from /proc/devices."""
    found: dict[int, str] = {}
    for line in text.partition("Block devices:")[2].split("\n"):
        number, _, name = line.strip().partition(" ")
        if number.isascii() and number.isdigit():
            found[int(number)] = name.strip()
    return found
