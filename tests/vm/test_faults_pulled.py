"""Somebody pulls the destination, then the source, then the stick that the machine was started from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from builder.qemu import BuiltImage
from builder.vm import DiskBoot, Drive, VmSpec

from tests.support.vm.deadline import Deadline
from tests.support.vm.machine import Machine
from tests.vm.fault_scenes import BOOT_SECONDS, MIB, SHELL, Operator, destination, noise_disk

UNPLUG_SECONDS = 120
SIZE_MIB = 160
SPEED = 2 * MIB
# Programs, libraries and drivers that nothing has touched before: read from the root, which must be in RAM as a whole.
NEVER_RUN = (
    "xfs_repair -V", "xfs_logprint -V", "btrfs --version", "e2fsck -V", "debugfs -V", "mkfs.exfat -V || true", "lspci",
    "lsusb -V", "modprobe f2fs", "modprobe mlx5_core", "modprobe zfs", "zpool version", "python3 -c 'import sqlite3'",
    "find /usr -xdev -type f -exec cat '{}' + >/dev/null",
)


def test_a_pulled_destination_and_a_pulled_source_are_taken_up_again(
    image: BuiltImage, boot_to_tui: Callable[[VmSpec], Machine], artifacts: Path, blank: Callable[[str, int], Path],
) -> None:
    source = Drive(name="source", path=noise_disk(artifacts / "source.img", SIZE_MIB, 7, blank_mib=112),
                   serial="NVME-1", hotplug=True, throttle_bytes_per_second=0)
    other = Drive(name="other", path=blank("other", 16), serial="OTHER-1", hotplug=True, plugged=False)
    target = destination(artifacts, 320)
    machine = boot_to_tui(VmSpec(
        image.kernel_boot(), drives=(source, other, target), cmdline_extra=SHELL, memory_mib=1024))
    operator = Operator(machine)
    to = operator.open_destination()
    machine.throttle("source", SPEED)
    job_id = operator.begin("NVME-1", to)
    operator.copied(job_id, 12)

    machine.unplug(target.name, Deadline.after(UNPLUG_SECONDS))
    record = operator.rested(job_id)
    assert (record["state"], record["exit_status"]) == ("interrupted", 5)
    words = operator.listed()
    assert "destination" in record["error"]
    assert record["error"] in words
    assert "Plug it in again, grant and mount it" in words
    operator.press("j", "INTERRUPTED")
    operator.press("enter", "Plug it in again, grant and mount it")
    assert "unplugged" in operator.shell("stasis destination list")

    machine.plug(target.name)
    operator.shell("until ls /dev/disk/by-id/usb-*DEST-1* >/dev/null 2>&1; do sleep 0.3; done; udevadm settle")
    to = operator.open_destination()
    before = operator.node("NVME-1")
    operator.good("jobs", "resume", job_id)
    operator.copied(job_id, 28)

    machine.unplug("source", Deadline.after(UNPLUG_SECONDS))
    record = operator.rested(job_id)
    assert (record["state"], record["exit_status"]) == ("interrupted", 5)
    words = operator.listed()
    assert "The source went away during the copy." in words
    assert "Plug it in again (any slot will do), then resume" in words
    operator.sees("The source went away during the copy.")
    folder = operator.folder(record["case"], "NVME-1")
    areas = operator.map_of(folder)
    assert {status for _, _, status in areas} == {"+", "?"}
    assert sum(size for _, size, status in areas if status == "+") >= 20 * MIB
    refused = operator.verb("jobs", "resume", job_id)
    assert refused.status == 5

    machine.plug("other")
    operator.shell("until [ -e /dev/disk/by-id/nvme-*OTHER-1 ]; do sleep 0.3; done")
    machine.plug("source")
    operator.shell("until [ -e /dev/disk/by-id/nvme-*NVME-1 ]; do sleep 0.3; done; udevadm settle")
    assert operator.node("OTHER-1") == before
    assert operator.node("NVME-1") != before
    machine.throttle("source", 0)
    operator.good("jobs", "resume", job_id)
    record = operator.rested(job_id)
    assert (record["state"], record["exit_status"]) == ("done", 0)
    operator.sees("Every sector was read.")
    operator.assert_rescued(record["case"], source)
    machine.assert_untouched()


def test_the_system_goes_on_without_its_stick(
    boot_to_tui: Callable[[VmSpec], Machine], stick: Drive, blank: Callable[[str, int], Path],
) -> None:
    source = Drive(name="source", path=blank("source", 64), serial="NVME-1")
    machine = boot_to_tui(VmSpec(DiskBoot(), drives=(stick, source), cmdline_extra=SHELL, memory_mib=1024))
    operator = Operator(machine)
    machine.terminal.wait_for("STASIS-BOOT", Deadline.after(BOOT_SECONDS))
    roles = {disk["serial"]: disk["role"] for disk in operator.good("devices", "--no-health")["devices"]}
    assert roles["STASIS-BOOT"] == "boot-medium"
    machine.unplug("stick", Deadline.after(UNPLUG_SECONDS))
    machine.terminal.wait_gone("STASIS-BOOT", Deadline.after(BOOT_SECONDS))
    operator.shell("echo 3 >/proc/sys/vm/drop_caches")
    for command in NEVER_RUN:
        operator.shell(command)
    disks = json.loads(operator.shell("stasis devices --json"))["devices"]
    assert "STASIS-BOOT" not in {disk["serial"] for disk in disks}
    assert "NVME-1" in {disk["serial"] for disk in disks}
    operator.press("w", "Write guard")
    operator.press("l", "Journal")
    assert operator.shell("systemctl --failed --no-legend --plain") == ""
    machine.assert_untouched()
