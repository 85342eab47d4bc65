"""A machine full of disks that other systems would assemble, replay, resume from or swap on, and nobody at the keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from builder import samples
from builder.qemu import BuiltImage
from builder.vm import DiskBoot, Drive, VmSpec

from tests.support.vm.deadline import Deadline
from tests.support.vm.grant import grant_script
from tests.support.vm.machine import Machine, MachineError
from tests.vm.scenes import power_off

BOOT_SECONDS = 240
MINUTE_SECONDS = 60


def _tree(artifacts: Path) -> Path:
    tree = artifacts / "tree"
    tree.mkdir()
    (tree / "run.log").write_bytes(b"step 1\n" * 5000)
    return tree


@pytest.fixture
def zoo(artifacts: Path) -> tuple[Drive, ...]:
    """One disk of every kind that acts by itself on a common system; half as NVMe, half as SATA and SCSI."""
    tree = _tree(artifacts)
    disks = {name: artifacts / f"{name}.img" for name in (
        "xfs", "ext4", "btrfs", "swap", "hibernated", "lvm", "md1", "md2", "zfs")}
    samples.xfs(disks["xfs"], 320, "dirtyxfs", tree)
    samples.crash(disks["xfs"], "xfs", "half.pt", b"torn" * 100_000)
    samples.dirty_ext4(disks["ext4"], 128, "dirtyext4", tree)
    samples.dirty_btrfs(disks["btrfs"], 256, "dirtybtrfs", tree)
    samples.swap(disks["swap"], 64)
    samples.swap(disks["hibernated"], 64, hibernated=True)
    samples.lvm(disks["lvm"], 128, "evidence")
    samples.ext4(artifacts / "payload.img", 48, "onraid", tree)
    samples.md_raid1((disks["md1"], disks["md2"]), 96, "old:0", artifacts / "payload.img")
    samples.zfs_member(disks["zfs"], 128, "tank")
    nvme = ("xfs", "ext4", "md1", "zfs")
    sata = ("btrfs", "lvm", "swap")
    return tuple(
        Drive(name=name, path=path, serial=f"ZOO-{name.upper()}",
              kind="nvme" if name in nvme else "sata" if name in sata else "scsi")
        for name, path in disks.items()
    )


def test_nothing_is_written_to_any_disk_of_a_machine_left_alone(
    boot: Callable[[VmSpec], Machine], stick: Drive, zoo: tuple[Drive, ...],
) -> None:
    machine = boot(VmSpec(DiskBoot(), drives=(stick, *zoo), cmdline_extra="stasis.debug-shell=hvc0"))
    machine.terminal.wait_for("ZOO-XFS", Deadline.after(BOOT_SECONDS))
    machine.guest.wait_ready(Deadline.after(60))
    machine.guest.check(f"sleep {MINUTE_SECONDS}", Deadline.after(MINUTE_SECONDS + 60))
    seen = machine.guest.check("stasis devices --json", Deadline.after(120))
    disks = json.loads(seen)["devices"]
    serials = {disk["serial"] for disk in disks}
    assert {drive.serial for drive in zoo} <= serials
    kinds = {sign["kind"] for disk in disks for place in (disk, *disk["partitions"]) for sign in place["signatures"]}
    assert kinds >= {"xfs", "ext4", "btrfs", "swap", "swsuspend", "LVM2_member", "linux_raid_member", "zfs_member"}
    flags = machine.guest.check(
        "for d in /sys/class/block/sd* /sys/class/block/nvme*; do echo \"${d##*/} $(cat $d/ro)\"; done",
        Deadline.after(30))
    assert len(flags.splitlines()) >= len(zoo) + 4
    assert [line for line in flags.splitlines() if not line.endswith(" 1")] == []
    # Nothing was assembled, activated, mounted or swapped on.
    assert machine.guest.check("ls /sys/class/block | grep -E '^(md|dm-|zd|bcache)' || true", Deadline.after(30)) == ""
    assert machine.guest.check("tail -n +2 /proc/swaps", Deadline.after(30)) == ""
    mounted = machine.guest.check("grep -E ' /dev/(sd|nvme|md|dm)' /proc/self/mountinfo || true", Deadline.after(30))
    assert mounted == ""
    power_off(machine)
    machine.assert_untouched()


def test_the_oracle_sees_what_root_writes_on_purpose(
    image: BuiltImage, boot: Callable[[VmSpec], Machine], blank: Callable[[str, int], Path],
) -> None:
    source = Drive(name="source", path=blank("source", 64), serial="CONTROL-1")
    machine = boot(VmSpec(image.kernel_boot(), drives=(source,), cmdline_extra="stasis.debug-shell=hvc0"))
    machine.guest.wait_ready(Deadline.after(BOOT_SECONDS))
    machine.assert_untouched()
    refused = machine.guest.run("dd if=/dev/urandom of=/dev/nvme0n1 bs=4096 count=1 oflag=direct", Deadline.after(60))
    assert refused.status != 0, "the read-only flag let a plain write through"
    machine.assert_untouched()
    machine.guest.check(
        f"{grant_script('/dev/nvme0n1')} && dd if=/dev/urandom of=/dev/nvme0n1 bs=4096 count=1 oflag=direct",
        Deadline.after(60))
    with pytest.raises(MachineError, match="source"):
        machine.assert_untouched()
