"""The write guard in the kernel: armed before any disk, not to be disarmed, and no start without it.

The acts run as root in the guest (tests/data/guest/guard_acts.py); what reached the disks is told by the oracle.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from builder.qemu import BuiltImage
from builder.vm import Drive, VmSpec

from tests.support.vm.deadline import Deadline
from tests.support.vm.initrd import member, overlaid
from tests.support.vm.machine import Machine
from tests.vm.scenes import SHELL, power_off

ACTS = Path(__file__).parents[1] / "data/guest/guard_acts.py"
BOOT_SECONDS = 400
SECONDS = 180
MODULE = "modules/stasis_guard.ko"
REFUSED = {"EPERM", "EROFS", "EACCES"}
# What must not be sent to a disk that was not written: a flush, a stop, a standby.
FLUSHES = {"nvme": {"FLUSH"}, "ata": {"0xe7", "0xea", "0xe0", "0xe2", "0xe6"}, "scsi": {"0x35", "0x91", "0x1b"}}
Boot = Callable[[VmSpec], Machine]
Blank = Callable[[str, int], Path]


def acts(machine: Machine, group: str, *words: str) -> dict[str, str]:
    """How each act of a group ended in the guest."""
    if machine.guest.run("test -e /run/acts.py", Deadline.after(SECONDS)).status:
        machine.guest.put("/run/acts.py", ACTS.read_bytes(), Deadline.after(SECONDS))
    found = json.loads(machine.guest.check(["python3", "/run/acts.py", group, *words], Deadline.after(SECONDS)))
    assert found
    return {str(name): str(result) for name, result in found.items()}


def not_refused(results: dict[str, str]) -> dict[str, str]:
    return {name: result for name, result in results.items() if result not in REFUSED}


def failed(results: dict[str, str]) -> dict[str, str]:
    return {name: result for name, result in results.items() if result != "ok"}


def shell(machine: Machine, command: str) -> str:
    return machine.guest.check(command, Deadline.after(SECONDS)).strip()


def node(machine: Machine, serial: str) -> str:
    """The kernel's name of the disk with a serial; names are not the same at each boot."""
    return shell(machine, f"until lsblk -dno NAME,SERIAL | grep -w {serial}; do udevadm settle; done").split()[0]


def attachment(machine: Machine, name: str) -> str:
    """What the guard's control file calls a disk."""
    return " ".join(shell(machine, f"cat /sys/block/{name}/dev /sys/block/{name}/diskseq").split())


def control(machine: Machine, words: str) -> int:
    """The status of writing a command to the guard."""
    return machine.guest.run(f'echo "{words}" > /proc/stasis_guard/control', Deadline.after(SECONDS)).status


def state_of(machine: Machine, name: str) -> dict[str, str]:
    """The guard's line about a disk."""
    line = shell(machine, f"grep ' name={name} ' /proc/stasis_guard/state")
    return dict(re.findall(r"(\w+)=(\S+)", line))


def disks(blank: Blank, *, free: Drive) -> tuple[Drive, ...]:
    """One disk of each kind that may not be written, and one that may."""
    return (
        Drive(name="nvme", path=blank("nvme", 64), serial="GB-NVME", hotplug=True),
        Drive(name="sata", path=blank("sata", 64), serial="GB-SATA", kind="sata"),
        Drive(name="scsi", path=blank("scsi", 64), serial="GB-SCSI", kind="scsi"),
        Drive(name="virtio", path=blank("virtio", 64), serial="GB-VIRTIO", kind="virtio"),
        free,
    )


def assert_never_flushed(machine: Machine, *buses: str) -> None:
    """Neither a flush nor a stop reached a disk of these buses."""
    sent = [f"{seen.bus} {seen.name}" for seen in machine.trace()
            if seen.bus in buses and seen.name in FLUSHES[seen.bus]]
    assert sent == []


def assert_log_is_clean(machine: Machine) -> None:
    """The kernel has nothing to complain about; an oops or a warning under the guard is a defect of ours."""
    assert shell(machine, "dmesg | grep -E 'WARNING:|BUG:|Oops|Call Trace|RCU stall|blocked for more' || true") == ""


def test_nothing_is_written_and_nothing_disarms_the_guard(image: BuiltImage, boot: Boot, blank: Blank) -> None:
    """Every kind of disk, every kind of act, root; then a disk is granted, and the others stay closed."""
    free = Drive(name="free", path=blank("free", 64), serial="GB-FREE", kind="usb", protected=False)
    machine = boot(VmSpec(image.kernel_boot(), memory_mib=1536, cmdline_extra=SHELL, drives=disks(blank, free=free)))
    machine.guest.wait_ready(Deadline.after(BOOT_SECONDS))
    names = {kind: node(machine, f"GB-{kind}") for kind in ("NVME", "SATA", "SCSI", "VIRTIO", "FREE")}
    nvme, sata, scsi, virtio, usb = (f"/dev/{names[kind]}" for kind in ("NVME", "SATA", "SCSI", "VIRTIO", "FREE"))
    controller, generic = nvme.removesuffix("n1"), nvme.replace("/nvme", "/ng")
    sg = "/dev/" + shell(machine, f"ls /sys/block/{names['SCSI']}/device/scsi_generic")
    bsg = "/dev/bsg/" + shell(machine, f"ls /sys/block/{names['SCSI']}/device/bsg")

    # Armed and sealed before a storage driver was there; nothing that udev and the image do is refused.
    state = shell(machine, "cat /proc/stasis_guard/state")
    assert re.match(r"guard version=1 armed=1 sealed=1 kernel=6\.", state)
    assert "armed=0" not in state
    assert re.findall(r"^last .*", state, re.MULTILINE) == []
    log = shell(machine, "dmesg | grep -F -e 'stasis_guard: armed' -e 'nvme nvme0:' -e 'scsi host0:' -e '[vda]'")
    first_disk = min(log.index(word) for word in ("nvme nvme0:", "scsi host0:", "[vda]"))
    assert log.index("stasis_guard: armed") < first_disk
    for name in names.values():
        told = state_of(machine, name)
        assert (told["protected"], told["granted"], told["read_only"]) == ("1", "0", "1"), name

    # Nothing is written.
    assert not_refused(acts(machine, "block", nvme, sata, scsi, virtio, usb)) == {}
    assert not_refused(acts(machine, "raw", controller, nvme, generic, sata, scsi, sg, bsg, usb)) == {}
    assert failed(acts(machine, "read", controller, nvme, generic, sata, scsi, sg)) == {}
    assert failed(acts(machine, "flush", nvme, sata, scsi, virtio)) == {}
    for name in names.values():
        told = state_of(machine, name)
        assert int(told["open"]) > 0
        assert int(told["ioctl"]) > 0
    assert all(int(state_of(machine, names[kind])["flush_kept"]) > 0 for kind in ("NVME", "SATA", "SCSI", "VIRTIO"))
    machine.assert_untouched()

    # Nothing disarms it.
    bar = shell(machine, f"readlink -f /sys/block/{names['NVME']}/device/device/resource0")
    other = shell(machine, "modinfo -n dummy")
    around = acts(machine, "around", bar, other, "/run/acts.py")
    assert around.pop("ftrace off") == "EBUSY"
    assert around.pop("nonsense") == "EINVAL"
    assert around.pop("grant of nothing") == "ENODEV"
    assert not_refused(around) == {}
    assert machine.guest.run("rmmod stasis_guard", Deadline.after(SECONDS)).status != 0
    again = machine.guest.run("insmod $(modinfo -n stasis_guard)", Deadline.after(SECONDS))
    assert (again.status, b"File exists" in again.stderr) == (1, True)
    shell(machine, "modprobe dummy && modprobe zfs")
    assert "armed=0" not in shell(machine, "cat /proc/stasis_guard/state")

    # A granted disk is written, its neighbours are not, also not where the door has to leave it to the wall.
    assert control(machine, f"grant {attachment(machine, names['FREE'])}") == 0
    granted = acts(machine, "block", usb)
    assert {name.split()[1] for name in failed(granted)} <= {"BLKSECDISCARD", "BLKDISCARD"}
    assert failed(acts(machine, "raw_granted", usb)) == {}
    before = int(state_of(machine, names["NVME"])["command"])
    assert set(acts(machine, "behind_the_door", generic, sg).values()) <= {"EIO", "EREMOTEIO"}
    assert int(state_of(machine, names["NVME"])["command"]) >= before + 3
    assert int(state_of(machine, names["SCSI"])["command"]) >= 2
    assert not_refused(acts(machine, "block", nvme, sata, scsi, virtio)) == {}
    late = acts(machine, "late", usb, "/proc/stasis_guard/control", f"revoke {attachment(machine, names['FREE'])}")
    assert (late["pwrite"], late["msync"]) == ("EPERM", "EIO")
    assert int(state_of(machine, names["FREE"])["bio"]) > 0
    assert not_refused(acts(machine, "block", usb)) == {}
    content = free.path.read_bytes()[:8192]
    assert content.startswith(b"good")
    assert b"late" not in content
    assert_log_is_clean(machine)
    power_off(machine)
    machine.assert_untouched()
    assert_never_flushed(machine, "nvme", "ata")


def test_a_disk_that_comes_back_is_protected_again(image: BuiltImage, boot: Boot, blank: Blank) -> None:
    """A grant belongs to one attachment; raw commands work on a granted NVMe disk, on the rest never."""
    free = Drive(name="free", path=blank("free", 64), serial="GB-FREE", hotplug=True, protected=False)
    machine = boot(VmSpec(image.kernel_boot(), memory_mib=1536, cmdline_extra=SHELL, drives=disks(blank, free=free)))
    machine.guest.wait_ready(Deadline.after(BOOT_SECONDS))
    name = node(machine, "GB-FREE")
    first = attachment(machine, name)
    number, sequence = first.split()
    assert control(machine, f"grant {first}") == 0
    assert failed(acts(machine, "nvme_granted", f"/dev/{name}")) == {}
    assert not_refused(acts(machine, "block", f"/dev/{node(machine, 'GB-NVME')}")) == {}

    machine.unplug("free", Deadline.after(SECONDS))
    shell(machine, f"until ! test -e /sys/block/{name}; do udevadm settle; done")
    assert f"diskseq={sequence} " not in shell(machine, "cat /proc/stasis_guard/state")
    machine.plug("free")
    name = node(machine, "GB-FREE")
    told = state_of(machine, name)
    assert (told["protected"], told["granted"], told["read_only"]) == ("1", "0", "1")
    assert told["diskseq"] != sequence
    assert control(machine, f"grant {attachment(machine, name).split()[0]} {sequence}") != 0
    assert control(machine, f"grant {number} {sequence}") != 0
    assert not_refused(acts(machine, "block", f"/dev/{name}")) == {}

    # A protected disk is taken out and put in: it comes back as it went.
    scsi = node(machine, "GB-SCSI")
    host = shell(machine, f"readlink -f /sys/block/{scsi}/device | grep -o 'host[0-9]*' | head -n 1")
    shell(machine, f"echo 1 > /sys/block/{scsi}/device/delete; echo '- - -' > /sys/class/scsi_host/{host}/scan")
    scsi = node(machine, "GB-SCSI")
    assert state_of(machine, scsi)["read_only"] == "1"
    assert not_refused(acts(machine, "block", f"/dev/{scsi}")) == {}
    assert_log_is_clean(machine)
    power_off(machine)
    machine.assert_untouched()
    assert_never_flushed(machine, "scsi", "ata")


def without_module(initrd: Path) -> dict[str, bytes]:
    del initrd
    return {"modules/guard-order": b""}


def damaged_module(initrd: Path) -> dict[str, bytes]:
    return {MODULE: member(initrd, MODULE)[:-4096]}


def module_of_another_kernel(initrd: Path) -> dict[str, bytes]:
    module = member(initrd, MODULE)
    found = re.search(rb"vermagic=(\S+)", module)
    assert found is not None
    return {MODULE: module.replace(found[1], found[1].replace(b"6.", b"7.", 1))}


def hook_missing(initrd: Path) -> dict[str, bytes]:
    module = member(initrd, MODULE)
    assert module.count(b"\0bdev_open\0") == 1
    return {MODULE: module.replace(b"\0bdev_open\0", b"\0bdev_0pen\0")}


def silent_module(initrd: Path) -> dict[str, bytes]:
    """The last module of the list is not the guard: nothing says that it is armed."""
    order = member(initrd, "modules/guard-order").decode().split()
    return {"modules/guard-order": "".join(f"{name}\n" for name in order[:-1]).encode()}


@pytest.mark.parametrize(("change", "words"), [
    (without_module, "this initrd does not bring it"),
    (damaged_module, "can't insert"),
    (module_of_another_kernel, "it was made for kernel 7."),
    (hook_missing, "this kernel has no function bdev_0pen to hook"),
    (silent_module, "does not say that it is armed"),
], ids=["missing", "damaged", "another-kernel", "hook-missing", "silent"])
def test_without_the_guard_no_storage_driver_is_loaded(
    image: BuiltImage, boot: Boot, blank: Blank, artifacts: Path,
    change: Callable[[Path], dict[str, bytes]], words: str,
) -> None:
    """The first stage stops, says why and what to do, and leaves a shell from which no disk can be reached."""
    plain = image.kernel_boot()
    initrd = overlaid(plain.initrd, artifacts / "changed.initrd", change(plain.initrd))
    spec = VmSpec(replace(plain, initrd=initrd), memory_mib=1024, drives=(
        Drive(name="nvme", path=blank("nvme", 64), serial="GB-NVME"),
        Drive(name="sata", path=blank("sata", 64), serial="GB-SATA", kind="sata")))
    machine = boot(spec)
    console = machine.console
    console.wait_for("Stasis can not start: the write guard could not be armed", Deadline.after(BOOT_SECONDS))
    console.wait_for("No storage driver was loaded", Deadline.after(SECONDS))
    assert words in " ".join(console.text.split())
    console.wait_for("A shell follows", Deadline.after(SECONDS))
    console.send_line("busybox insmod /modules/loop.ko; echo rc=$?", Deadline.after(SECONDS))
    console.wait_for("Operation not permitted", Deadline.after(SECONDS))
    console.send_line("echo disks=$(busybox ls /sys/block | busybox wc -l)= drivers=$(busybox grep -cE '^(nvme|ahci) ' "
                      "/proc/modules)=", Deadline.after(SECONDS))
    console.wait_for(r"^disks=0= drivers=0=", Deadline.after(SECONDS))
    machine.assert_untouched()
    initrd.unlink()
