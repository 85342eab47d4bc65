"""A virtual machine as frozen values, and the QEMU command line that those values mean.

:func:`argv` is pure: it looks at no file and starts nothing, so that a golden test can hold it. `scripts/run_vm` and
the tests' harness both build their machines here. Source disks are attached writable on purpose: a read-only back end
would hide the write attempts that the tests look for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Kind = Literal["nvme", "usb", "virtio", "sata", "scsi"]
Property = str | int | bool

# Every command that a guest can send to a disk passes one of these trace points of QEMU 7.2 and later;
# bdrv_open_common tells which file a block node (a pointer in blk_co_pwritev) stands for.
TRACE_POINTS = (
    "pci_nvme_io_cmd", "pci_nvme_admin_cmd", "scsi_req_parsed", "ide_exec_cmd", "blk_co_pwritev",
    "bdrv_open_common",
)
SATA_PORTS = 6
ERRNO_EIO = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Backing:
    """A file behind a disk, and what lies between the two.

    ``bad_sectors`` are numbers of 512-byte sectors whose reads fail with EIO; ``write_log`` is a file that QEMU's
    blklogwrites driver fills; ``format`` is qcow2 for an overlay that protects the file below it.
    ``throttle_bytes_per_second`` slows reads and writes together (0: a limit can be set later, over QMP).
    ``read_only`` is for what several machines read at once and no test is about: QEMU opens the file for reading.
    """

    name: str
    path: Path
    format: Literal["raw", "qcow2"] = "raw"
    bad_sectors: tuple[int, ...] = ()
    throttle_bytes_per_second: int | None = None
    write_log: Path | None = None
    protected: bool = True
    read_only: bool = False
    logical_bytes: int = 512
    physical_bytes: int = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive(Backing):
    """A disk of its own. ``plugged`` False keeps it back for :meth:`device_add` later; NVMe and virtio disks that
    come or go while the machine runs need ``hotplug`` (a PCIe root port of their own)."""

    kind: Kind = "nvme"
    serial: str
    hotplug: bool = False
    plugged: bool = True
    removable: bool = False
    boot_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace(Backing):
    """An NVMe namespace of a subsystem. ``nguid`` needs QEMU 9; ``eui64`` 0 means none."""

    nsid: int
    eui64: int = 0
    uuid: str = ""
    nguid: str = ""
    shared: bool = True
    controller: str = ""


@dataclass(frozen=True, slots=True)
class Controller:
    """An NVMe controller of a subsystem."""

    name: str
    serial: str
    hotplug: bool = False


@dataclass(frozen=True, slots=True)
class Subsystem:
    """An NVMe subsystem: controllers that share namespaces (two controllers are two paths)."""

    name: str
    nqn: str
    controllers: tuple[Controller, ...]
    namespaces: tuple[Namespace, ...]


@dataclass(frozen=True, slots=True)
class KernelBoot:
    """Kernel and initrd handed over by QEMU itself, with the whole kernel command line."""

    kernel: Path
    initrd: Path
    cmdline: str


@dataclass(frozen=True, slots=True)
class UkiBoot:
    """A unified kernel image, started by the UEFI firmware straight from QEMU."""

    uki: Path


@dataclass(frozen=True, slots=True)
class DiskBoot:
    """The UEFI firmware boots the drive with the lowest ``boot_index``."""


@dataclass(frozen=True, slots=True)
class Firmware:
    """OVMF: its code, and the variable store of this one machine (a copy, it is written)."""

    code: Path
    variables: Path


@dataclass(frozen=True, slots=True)
class Ports:
    """Character device back ends in QEMU's own words (``socket,fd=5``; ``stdio,mux=on``); empty: no such port.

    With ``monitor_on_serial`` the human monitor shares ttyS0's back end, which then needs ``mux=on``.
    """

    ttys0: str = ""
    ttys1: str = ""
    hvc0: str = ""
    qmp: str = ""
    monitor_on_serial: bool = False


@dataclass(frozen=True, slots=True)
class VmSpec:
    """A whole machine. ``cmdline_extra`` is added to the kernel command line, however the kernel is started.

    ``network`` is the back end of a network card in QEMU's own words (``stream,server=on,...``); empty: no card.
    """

    boot: KernelBoot | UkiBoot | DiskBoot
    drives: tuple[Drive, ...] = ()
    subsystems: tuple[Subsystem, ...] = ()
    ports: Ports = field(default_factory=Ports)
    network: str = ""
    memory_mib: int = 2048
    cpus: int = 2
    accel: Literal["tcg", "kvm"] = "tcg"
    firmware: Firmware | None = None
    cmdline_extra: str = ""
    trace: Path | None = None
    more_trace_points: tuple[str, ...] = ()
    stay_after_poweroff: bool = False
    program: str = "qemu-system-x86_64"

    def backings(self) -> tuple[Backing, ...]:
        """Every file behind a disk: drives first, then the namespaces of the subsystems."""
        return (*self.drives, *(ns for subsystem in self.subsystems for ns in subsystem.namespaces))

    def drive(self, name: str) -> Drive:
        """The drive with this name; :class:`KeyError` when there is none."""
        for drive in self.drives:
            if drive.name == name:
                return drive
        raise KeyError(name)


def _comma(text: str | Path) -> str:
    """QEMU's option syntax writes a comma inside a value twice."""
    return str(text).replace(",", ",,")


def _word(value: Property) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return _comma(str(value))


def _blockdev(node: Mapping[str, object]) -> list[str]:
    return ["-blockdev", json.dumps(node, separators=(",", ":"))]


def throttle_group(backing: Backing) -> str:
    """The id of the QEMU object that holds the speed limit of a backing."""
    return f"throttle-{backing.name}"


def throttle_limits(bytes_per_second: int) -> dict[str, int]:
    """The limits of a throttle group; 0 is none."""
    return {"bps-total": bytes_per_second}


def _throttle(backing: Backing) -> Iterator[str]:
    if backing.throttle_bytes_per_second is not None:
        group = {
            "qom-type": "throttle-group", "id": throttle_group(backing),
            "limits": throttle_limits(backing.throttle_bytes_per_second),
        }
        yield from ("-object", json.dumps(group, separators=(",", ":")))


def block_nodes(backing: Backing) -> tuple[dict[str, object], ...]:
    """The block nodes of a backing, lowest first; the last one carries the backing's name.

    ``discard=unmap`` on every node: without it a guest's discard ends in the top node and leaves no trace below.
    """
    common: dict[str, object] = {"discard": "unmap", "read-only": backing.read_only}
    layers: list[dict[str, object]] = [
        {"driver": "file", "filename": str(backing.path), **common},
        {"driver": backing.format, **common},
    ]
    if backing.bad_sectors:
        layers.append({
            "driver": "blkdebug",
            "inject-error": [
                {"event": "none", "iotype": "read", "errno": ERRNO_EIO, "sector": sector, "once": False}
                for sector in backing.bad_sectors
            ],
            **common,
        })
    if backing.throttle_bytes_per_second is not None:
        layers.append({"driver": "throttle", "throttle-group": throttle_group(backing), **common})
    if backing.write_log is not None:
        layers.append({
            "driver": "blklogwrites", "log": {"driver": "file", "filename": str(backing.write_log)},
            "log-sector-size": 512, "log-super-update-interval": 1, **common,
        })
    names = [f"{backing.name}-{layer['driver']}" for layer in layers]
    names[-1] = backing.name
    nodes = []
    below = ""
    for layer, name in zip(layers, names, strict=True):
        link = {"image" if layer["driver"] == "blkdebug" else "file": below} if below else {}
        nodes.append({**layer, "node-name": name, **link})
        below = name
    return tuple(nodes)


def device_of(spec: VmSpec, drive: Drive) -> dict[str, Property]:
    """The device of a drive as properties, for the command line as well as for QMP ``device_add``."""
    driver = {"nvme": "nvme", "usb": "usb-storage", "virtio": "virtio-blk-pci", "sata": "ide-hd", "scsi": "scsi-hd"}
    device: dict[str, Property] = {"driver": driver[drive.kind], "id": f"dev-{drive.name}"}
    if drive.kind == "usb":
        device["bus"] = "xhci.0"
        device["removable"] = drive.removable
    elif drive.kind == "scsi":
        device["bus"] = "scsi.0"
    elif drive.kind == "sata":
        port = [other.name for other in spec.drives if other.kind == "sata"].index(drive.name)
        if port >= SATA_PORTS:
            raise ValueError(f"the machine has {SATA_PORTS} SATA ports, {drive.name} would be number {port + 1}")
        device["bus"] = f"ide.{port}"
    elif drive.hotplug:
        device["bus"] = f"port-{drive.name}"
    device |= {
        "drive": drive.name, "serial": drive.serial,
        "logical_block_size": drive.logical_bytes,
        "physical_block_size": max(drive.physical_bytes, drive.logical_bytes),
    }
    if drive.boot_index is not None:
        device["bootindex"] = drive.boot_index
    return device


def _device(properties: Mapping[str, Property]) -> list[str]:
    words = [_comma(str(properties["driver"]))]
    words += [f"{key}={_word(value)}" for key, value in properties.items() if key != "driver"]
    return ["-device", ",".join(words)]


def _root_ports(spec: VmSpec) -> Iterator[str]:
    names = [drive.name for drive in spec.drives if drive.hotplug and drive.kind in {"nvme", "virtio"}]
    names += [control.name for subsystem in spec.subsystems for control in subsystem.controllers if control.hotplug]
    for number, name in enumerate(names, start=1):
        yield from _device({"driver": "pcie-root-port", "id": f"port-{name}", "chassis": number, "slot": number})


def _disks(spec: VmSpec) -> Iterator[str]:
    for backing in spec.backings():
        yield from _throttle(backing)
        for node in block_nodes(backing):
            yield from _blockdev(node)
    yield from _root_ports(spec)
    if any(drive.kind == "scsi" for drive in spec.drives):
        yield from _device({"driver": "virtio-scsi-pci", "id": "scsi"})
    for drive in spec.drives:
        if drive.plugged:
            yield from _device(device_of(spec, drive))
    for subsystem in spec.subsystems:
        yield from _device({"driver": "nvme-subsys", "id": subsystem.name, "nqn": subsystem.nqn})
        for control in subsystem.controllers:
            bus: dict[str, Property] = {"bus": f"port-{control.name}"} if control.hotplug else {}
            yield from _device({
                "driver": "nvme", "id": control.name, "serial": control.serial, "subsys": subsystem.name, **bus,
            })
        for space in subsystem.namespaces:
            yield from _device(_namespace(space, subsystem))


def _namespace(space: Namespace, subsystem: Subsystem) -> dict[str, Property]:
    device: dict[str, Property] = {
        "driver": "nvme-ns", "id": f"dev-{space.name}", "bus": space.controller or subsystem.controllers[0].name,
        "drive": space.name, "nsid": space.nsid, "shared": space.shared,
        "logical_block_size": space.logical_bytes,
        "physical_block_size": max(space.physical_bytes, space.logical_bytes),
    }
    if space.eui64:
        device["eui64"] = space.eui64
    if space.uuid:
        device["uuid"] = space.uuid
    if space.nguid:
        device["nguid"] = space.nguid
    return device


def _ports(ports: Ports) -> Iterator[str]:
    serial = {"ttys0": ports.ttys0, "ttys1": ports.ttys1}
    for name, backend in serial.items():
        if backend:
            kind, _, rest = backend.partition(",")
            yield from ("-chardev", f"{kind},id={name}{',' if rest else ''}{rest}", "-serial", f"chardev:{name}")
        elif any(list(serial.values())[list(serial).index(name):]):
            yield from ("-serial", "none")
    if ports.monitor_on_serial:
        yield from ("-mon", "chardev=ttys0,mode=readline")
    if ports.hvc0:
        kind, _, rest = ports.hvc0.partition(",")
        yield from ("-chardev", f"{kind},id=hvc0{',' if rest else ''}{rest}")
        yield from (*_device({"driver": "virtio-serial-pci"}), *_device({"driver": "virtconsole", "chardev": "hvc0"}))
    if ports.qmp:
        kind, _, rest = ports.qmp.partition(",")
        yield from ("-chardev", f"{kind},id=qmp{',' if rest else ''}{rest}", "-mon", "chardev=qmp,mode=control")


def _boot(spec: VmSpec) -> Iterator[str]:
    if isinstance(spec.boot, KernelBoot):
        cmdline = f"{spec.boot.cmdline} {spec.cmdline_extra}".strip()
        yield from ("-kernel", str(spec.boot.kernel), "-initrd", str(spec.boot.initrd), "-append", cmdline)
        return
    if isinstance(spec.boot, UkiBoot):
        yield from ("-kernel", str(spec.boot.uki))
    if spec.cmdline_extra:
        # Read by systemd-stub, unless Secure Boot is on.
        yield from ("-smbios", f"type=11,value=io.systemd.stub.kernel-cmdline-extra={_comma(spec.cmdline_extra)}")


def argv(spec: VmSpec) -> list[str]:
    """The QEMU command line of ``spec``.

    Raises :class:`ValueError` for a machine that can't be: UEFI without firmware, too many SATA disks, names twice.
    """
    names = [backing.name for backing in spec.backings()]
    if len(set(names)) != len(names):
        raise ValueError(f"two disks with one name: {names}")
    uefi = not isinstance(spec.boot, KernelBoot)
    if uefi and spec.firmware is None:
        raise ValueError("booting a UKI or a disk needs UEFI firmware")
    accel = "tcg,thread=multi" if spec.accel == "tcg" else "kvm"
    pflash = ",pflash0=code,pflash1=variables" if spec.firmware is not None else ""
    words = [
        spec.program, "-nodefaults", "-no-user-config", "-machine", f"q35{pflash}", "-accel", accel,
        "-cpu", "max" if spec.accel == "tcg" else "host", "-smp", str(spec.cpus), "-m", str(spec.memory_mib),
        "-vga", "std", "-display", "none", "-device", "virtio-rng-pci", "-device", "qemu-xhci,id=xhci,p2=8,p3=8",
    ]
    if spec.firmware is not None:
        code, variables = str(spec.firmware.code), str(spec.firmware.variables)
        words += _blockdev({"driver": "file", "filename": code, "node-name": "code", "read-only": True})
        words += _blockdev({"driver": "file", "filename": variables, "node-name": "variables"})
    words += _ports(spec.ports)
    if spec.network:
        kind, _, rest = spec.network.partition(",")
        words += ["-netdev", f"{kind},id=network{',' if rest else ''}{rest}"]
        words += _device({"driver": "virtio-net-pci", "netdev": "network"})
    words += _disks(spec)
    words += _boot(spec)
    if spec.trace is not None:
        words += ["-D", str(spec.trace)]
        for point in (*TRACE_POINTS, *spec.more_trace_points):
            words += ["-trace", point]
    if spec.stay_after_poweroff:
        words.append("-no-shutdown")
    return words
