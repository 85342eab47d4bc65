"""Machines for the attack matrix: the image with the attack kit beside it, with or without the guard."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from builder import attackkit
from builder.attackkit import Kit
from builder.qemu import BuiltImage
from builder.vm import Drive, KernelBoot, Subsystem, VmSpec

from tests.support.attack import fuzzing, initrd
from tests.support.attack.acts import CONTENT, PLAIN, TOOLS, Act
from tests.support.attack.acts_command import MACHINE, NVME, SCSI
from tests.support.attack.layouts import LAYOUTS, MARKER, MARKER_NSID, Layout, identity
from tests.support.attack.ledger import Cell, by_mark, parse_results
from tests.support.attack.racing import with_race
from tests.support.vm.deadline import Deadline
from tests.support.vm.machine import Machine
from tests.support.vm.oracle import parse_trace

HERE = Path(__file__).parent
GUEST = HERE / "guest"
BOOT_SECONDS = 300
PHASE_SECONDS = 600
CELL_SECONDS = 4
FUZZ_SEED = 20261202
IO_DOORS = tuple(door for door in fuzzing.DOORS if door not in fuzzing.ADMIN_DOORS)
ACTS: tuple[Act, ...] = (*CONTENT, *PLAIN, *NVME, *SCSI, *TOOLS, *MACHINE)
# What is tried on a disk that is granted, and again when it is released; in this order each has something to write.
# An array or a volume is not wiped by the next tool, so that one comes last.
GRANTED_ACTS = tuple(act for name in (
    "mkfs.ext4", "wipefs", "dd buffered", "dd direct", "mmap write", "io_uring write", "write by a node of mknod",
    "blkdiscard", "blkdiscard -z", "losetup, then dd", "dmsetup linear, then dd", "mkfs.xfs", "mkfs.btrfs", "sgdisk",
    "nvme write", "nvme write-zeroes", "nvme dsm --ad", "nvme io-passthru write",
    "NVME_IOCTL_IO_CMD on the generic node", "io_uring command write on the generic node",
    "mkswap", "pvcreate", "mdadm --create",
) for act in (*PLAIN, *TOOLS, *NVME) if act.name == name)
MODULES = (
    "dm_mod dm_mirror dm_snapshot dm_crypt dm_raid md_mod raid1 raid456 zfs btrfs xfs ext4 f2fs vfat exfat sg bcache "
    "loop nls_ascii nls_cp437"
)
STOP_UDEV = "systemctl stop systemd-udevd.service systemd-udevd-kernel.socket systemd-udevd-control.socket"
LVM_CONFIG = (
    "devices {\\n use_devicesfile=0\\n}\\nactivation {\\n udev_sync=0\\n udev_rules=0\\n monitoring=0\\n}\\n"
    "global {\\n use_lvmpolld=0\\n}\\n"
)
# The kit's root is entered with the machine's own devices.
ENTER = f"""
udevadm settle
@UDEV@
for module in {MODULES}; do modprobe -q $module || echo "no module $module"; done
disk() {{ lsblk -ndpo NAME,SERIAL | awk -v s=$1 '$2 == s {{print $1}}'; }}
set -e
mkdir -p /run/kit-tools /run/kit /run/acts /run/kit-layer
mount -t erofs -o ro $(disk ATTACK-KIT) /run/kit-tools
mount -t tmpfs tmpfs /run/kit-layer
mkdir /run/kit-layer/upper /run/kit-layer/work
mount -t overlay -o lowerdir=/run/kit-tools,upperdir=/run/kit-layer/upper,workdir=/run/kit-layer/work overlay /run/kit
tar -xf $(disk ATTACK-ACTS) -C /run/acts
for dir in dev proc sys run; do mount --bind /$dir /run/kit/$dir; done
mount --bind /usr/lib/modules /run/kit/usr/lib/modules
mount -t tmpfs tmpfs /run/kit/tmp
mount -t tmpfs tmpfs /run/kit/mnt
ln -sf /proc/self/mounts /run/kit/etc/mtab
printf '{LVM_CONFIG}' > /run/kit/etc/lvm/lvmlocal.conf
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """What every machine of the matrix is made of. ``drives`` hold the kit and our programs."""

    image: BuiltImage
    kit: Kit
    directory: Path

    def unguarded(self, *, raced: bool = False) -> KernelBoot:
        """The image's kernel and system with a first stage of the tests' own that arms no guard.

        With ``raced`` it starts the program that tries to write to every disk, and does.
        """
        init = (HERE / "unguarded-init").read_text()
        return self._with_init(with_race(init) if raced else init, "unguarded")

    def guarded_with(self, change: Callable[[str], str]) -> KernelBoot:
        """The image with its own first stage, changed."""
        init = initrd.extract(self.image.initrd, "init").decode()
        return self._with_init(change(init), "changed")

    def _with_init(self, init: str, name: str) -> KernelBoot:
        boot = self.image.kernel_boot()
        files = {"init": init.encode(), "race": self.kit.programs["race"].read_bytes()}
        return replace(boot, initrd=initrd.with_files(boot.initrd, files, self.directory / f"{name}.initrd"))

    def spec(self, boot: KernelBoot, drives: Iterable[Drive], subsystems: Iterable[Subsystem],
             files: Mapping[str, bytes]) -> VmSpec:
        """A machine with these disks; ``files`` are found below /run/acts, together with the programs."""
        programs = self.directory / "acts.tar"
        guest = {
            "driver.py": (GUEST / "driver.py").read_bytes(), "random": fuzzing.packed(FUZZ_SEED, 500, doors=IO_DOORS),
        }
        attackkit.bundle(programs, {**guest, **files}, self.kit.programs)
        own = (
            Drive(name="kit", path=self.kit.image, serial="ATTACK-KIT", kind="virtio", protected=False, read_only=True),
            Drive(name="acts", path=programs, serial="ATTACK-ACTS", kind="virtio", protected=False, read_only=True),
        )
        return VmSpec(boot, drives=(*drives, *own), subsystems=tuple(subsystems), memory_mib=3072,
                      cmdline_extra="stasis.debug-shell=hvc0", more_trace_points=("pci_nvme_read",))


def plan(layouts: Sequence[Layout], cells: Sequence[tuple[Act, Layout]], *, restore: bool) -> bytes:
    """The plan that the driver in the guest works on."""
    return json.dumps({
        "marker": identity(MARKER), "restore": restore,
        "layouts": [{
            "name": layout.name, "disks": [identity(disk) for disk in layout.disks], "part": layout.part,
            "make": layout.make, "release": layout.release,
        } for layout in layouts],
        "cells": [{"act": act.name, "layout": layout.name, "command": act.command, "seconds": act.seconds}
                  for act, layout in cells],
    }).encode()


def all_cells(layouts: Sequence[Layout] = LAYOUTS, acts: Sequence[Act] = ACTS) -> tuple[tuple[Act, Layout], ...]:
    """Every act on every layout that it means something for; what spoils a disk comes last."""
    found = [(act, layout) for layout in layouts for act in acts if act.on in layout.tags]
    return tuple(sorted(found, key=lambda cell: cell[0].spoils))


def control_cells(layouts: Sequence[Layout] = LAYOUTS, acts: Sequence[Act] = ACTS) -> tuple[tuple[Act, Layout], ...]:
    """Each act on the layout on which it is to be seen writing."""
    named = {layout.name: layout for layout in layouts}
    found = [(act, named[act.control]) for act in acts if act.control in named]
    return tuple(sorted(found, key=lambda cell: cell[0].spoils))


def enter(machine: Machine, *, udev: bool = False) -> str:
    """Make the attack kit ready in a machine that has booted; what it had to say of missing modules.

    Without ``udev`` nothing but the acts themselves acts, and no rule sets a disk read-only again.
    """
    machine.guest.wait_ready(Deadline.after(BOOT_SECONDS))
    return machine.guest.check(ENTER.replace("@UDEV@", "" if udev else STOP_UDEV), Deadline.after(PHASE_SECONDS))


def in_kit(machine: Machine, command: str, seconds: float = PHASE_SECONDS) -> str:
    """Run a line for sh in the kit's root; GuestError when it fails."""
    return machine.guest.check(["chroot", "/run/kit", "sh", "-c", command], Deadline.after(seconds))


def require_guard(machine: Machine) -> None:
    """Raise GuestError when the guard is not armed in this machine."""
    machine.guest.check("grep '^guard .*armed=1' /proc/stasis_guard/state", Deadline.after(60))


def phase(machine: Machine, name: str, plan_name: str = "plan.json", seconds: float = PHASE_SECONDS) -> str:
    """Let the driver do one phase of a plan; what it said."""
    return in_kit(machine, f"cd /run/acts && python3 driver.py {plan_name} {name} {name}.results", seconds)


def run_cells(machine: Machine, count: int, plan_name: str = "plan.json") -> tuple[Cell, ...]:
    """Run the ``count`` cells of a plan; each as the guest saw it, and as QEMU did."""
    assert machine.spec.trace is not None
    start = machine.spec.trace.stat().st_size
    phase(machine, "run", plan_name, BOOT_SECONDS + CELL_SECONDS * count)
    text = machine.guest.get("/run/acts/run.results", Deadline.after(PHASE_SECONDS)).decode()
    (machine.directory / f"{plan_name}.results").write_text(text)
    tried = parse_results(text)
    with machine.spec.trace.open(errors="backslashreplace") as lines:
        lines.seek(start)
        reached, _ = by_mark(parse_trace(lines, marker_nsid=MARKER_NSID), len(tried))
    return tuple(Cell(one, other) for one, other in zip(tried, reached, strict=True))
