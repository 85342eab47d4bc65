"""What the running image is: read-only, in RAM, closed, and with the drivers that a storage node needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builder.qemu import BuiltImage
from builder.vm import Drive, VmSpec

from tests.support.vm.deadline import Deadline
from tests.support.vm.machine import Machine

BOOT_SECONDS = 240
MEGABYTE = 1_000_000
# One driver for each way to a disk or an Ethernet port that the README and docs name.
DRIVERS = (
    "nvme nvme_tcp nvme_rdma nvme_fc vmd ahci mpt3sas megaraid_sas smartpqi hpsa aacraid arcmsr qla2xxx lpfc mptsas "
    "usb_storage uas xhci_pci thunderbolt virtio_blk virtio_scsi virtio_net sd_mod sg sr_mod mmc_block "
    "mlx5_core mlx4_en ixgbe i40e ice igb igc e1000e bnxt_en tg3 bnx2x qede cxgb4 ena gve mana r8169 atlantic "
    "xfs ext4 btrfs exfat ntfs3 vfat f2fs zfs hid_generic usbhid ast mgag200 ipmi_si"
)
TOOLS = (
    "ddrescue nvme smartctl xfs_db xfs_logprint xfs_repair dumpe2fs debugfs e2fsck btrfs zpool zdb blkid wipefs "
    "sfdisk lsblk mkfs.ext4 mkfs.xfs mkfs.exfat losetup dmesg journalctl lspci lsusb python3 stasis"
)


@pytest.fixture
def machine(
    image: BuiltImage, boot: Callable[[VmSpec], Machine], blank: Callable[[str, int], Path],
) -> Iterator[Machine]:
    """The image in 1 GiB of RAM with one disk and a network card, and a shell."""
    source = Drive(name="source", path=blank("source", 64), serial="PLAIN-1")
    running = boot(VmSpec(
        image.kernel_boot(), drives=(source,), cmdline_extra="stasis.debug-shell=hvc0", memory_mib=1024))
    running.guest.wait_ready(Deadline.after(BOOT_SECONDS))
    running.terminal.wait_for("PLAIN-1", Deadline.after(120))
    yield running
    running.assert_untouched()


def test_the_running_image(machine: Machine) -> None:
    """One boot, many looks: each ``check`` is a command in the guest that must succeed."""

    def run(command: str) -> str:
        return machine.guest.check(command, Deadline.after(120))

    # Read-only for real, and in RAM.
    for path in ("/", "/usr", "/usr/bin", "/usr/local/lib"):
        assert machine.guest.run(f"touch {path}/x", Deadline.after(30)).status != 0, path
        assert "Read-only file system" in run(f"touch {path}/x 2>&1 || true")
    assert run("mount -o remount,rw / 2>&1; touch /usr/x 2>&1 || true") != ""
    assert machine.guest.run("test -e /usr/x", Deadline.after(30)).status != 0
    for path in ("/etc", "/var", "/run", "/tmp", "/root", "/mnt"):
        run(f"echo x > {path}/x && rm {path}/x")
    kinds = run(
        "findmnt -rno FSTYPE,SOURCE | grep -vE '^(proc|sysfs|tmpfs|devtmpfs|devpts|overlay|cgroup2|securityfs|pstore|"
        "bpf|hugetlbfs|tracefs|mqueue|debugfs|fusectl|configfs|ramfs|efivarfs|autofs) ' || true")
    assert kinds == "erofs /dev/loop0"
    assert run("cat /sys/block/loop0/ro") == "1"
    # Closed: no port, no network, no password, nothing on a timer.
    assert run("ss -Hlntu") == ""
    assert run("ip -br addr show scope global") == ""
    assert run("awk -F: '$2 !~ /^[!*]/ { print $1 }' /etc/shadow") == ""
    assert run("systemctl list-timers --all --no-legend | grep -v systemd-tmpfiles-clean || true") == ""
    assert run("systemctl --failed --no-legend --plain") == ""
    assert run("tail -n +2 /proc/swaps") == ""
    assert machine.guest.run("test -e /etc/fstab", Deadline.after(30)).status != 0
    # Kernel messages stay off the consoles.
    assert run("cut -f1 /proc/sys/kernel/printk") == "1"
    # Tools and drivers.
    missing = run(f"for t in {TOOLS}; do command -v $t >/dev/null || echo $t; done")
    assert missing == ""
    lost = run(f"for d in {DRIVERS}; do modinfo $d >/dev/null 2>&1 || echo $d; done")
    assert lost == ""
    run("modprobe zfs")
    tools_version = run("zfs version | head -n 1").removeprefix("zfs-").split("-")[0]
    assert run("cat /sys/module/zfs/version").split("-")[0] == tools_version
    assert run("zpool import 2>&1 || true") == "no pools available to import"
    # Nobody clears the flag of a protected disk.
    assert machine.guest.run("blockdev --setrw /dev/nvme0n1", Deadline.after(30)).status != 0
    assert run("cat /sys/block/nvme0n1/ro") == "1"
    # The hardware clock is read, never set: nothing that sets it is there or enabled.
    assert run("systemctl is-active systemd-timesyncd chrony ntpd 2>/dev/null | grep -x active || true") == ""


def test_the_image_is_small_and_names_what_is_in_it(image: BuiltImage) -> None:
    assert image.uki.stat().st_size <= 260 * MEGABYTE
    manifest = image.uki.with_name("stasis.manifest").read_text()
    assert all(f'"name": "{name}"' in manifest
               for name in ("gddrescue", "zfsutils-linux", "nvme-cli", "smartmontools", "xfsprogs"))
