"""A real ZFS pool that nobody exported. No host here has ZFS, so the image's own makes it, in a guest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from builder import samples
from builder.vm import Drive, VmSpec

from tests.support.vm.deadline import Deadline
from tests.support.vm.grant import grant_script
from tests.support.vm.machine import Machine

BOOT_SECONDS = 240
POOL_MIB = 256


def make_zfs_pool(path: Path, boot: Callable[[VmSpec], Machine], spec: VmSpec) -> None:
    """A pool of one disk, made by the ZFS of the image itself in a guest that then loses its power.

    ``spec`` is a machine without disks whose kernel command line asks for the shell on hvc0.
    """
    samples.gpt(path, POOL_MIB, "zoo")
    drive = Drive(name="pool", path=path, serial="ZOO-POOL", protected=False)
    machine = boot(VmSpec(spec.boot, drives=(drive,), cmdline_extra=spec.cmdline_extra))
    machine.guest.wait_ready(Deadline.after(BOOT_SECONDS))
    soon = Deadline.after(120)
    # Without udev the rule that sets each disk read-only again at every change stays away.
    machine.guest.check(
        "udevadm settle && "
        "systemctl stop systemd-udevd.service systemd-udevd-kernel.socket systemd-udevd-control.socket && "
        f"{grant_script('/dev/nvme0n1')} && modprobe zfs", soon,
    )
    machine.guest.check(
        "zpool create -f -O compression=off -O mountpoint=/tmp/zoo zoo /dev/nvme0n1p1 && "
        "dd if=/dev/urandom of=/tmp/zoo/model.bin bs=1M count=16 && zpool sync zoo && "
        "dd if=/dev/urandom of=/tmp/zoo/part.bin bs=64k count=4 conv=fsync", soon,
    )
    machine.power_cut()
