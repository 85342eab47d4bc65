"""The oracle proves itself: each way of changing a disk from inside the guest must show, on each kind of disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from builder.qemu import BuiltImage
from builder.vm import Drive, VmSpec

from tests.support.vm.deadline import Deadline
from tests.support.vm.grant import grant_script
from tests.support.vm.machine import Machine, MachineError
from tests.support.vm.oracle import Class

BOOT_SECONDS = 240
WRITES = {
    "nvme": "dd if=/dev/zero of=$disk bs=4k count=1 seek=1 oflag=direct",
    "zeroes": "nvme write-zeroes $disk --namespace-id=1 --start-block=8 --block-count=7",
    "deallocate": "nvme dsm $disk --namespace-id=1 --ad --slbs=64 --blocks=8",
    "usb": "dd if=/dev/zero of=$disk bs=4k count=1 seek=1 oflag=direct",
    "virtio": "blkdiscard --offset 0 --length 1M $disk",
    # A queued write (NCQ) shows at the block layer only, not among the ATA commands; a discard is not queued.
    "sata": "dd if=/dev/zero of=$disk bs=4k count=1 seek=1 oflag=direct && blkdiscard --offset 0 --length 1M $disk",
    "scsi": "blkdiscard --offset 0 --length 1M $disk",
}


def test_every_kind_of_write_is_seen_and_reading_is_not(
    image: BuiltImage, boot: Callable[[VmSpec], Machine], blank: Callable[[str, int], Path],
) -> None:
    kinds = {name: "nvme" if name in {"zeroes", "deallocate"} else name for name in WRITES}
    drives = tuple(
        Drive(name=name, path=blank(name, 64), kind=kind, serial=f"ORACLE-{name}".upper())  # type: ignore[arg-type]
        for name, kind in kinds.items()
    )
    machine = boot(VmSpec(image.kernel_boot(), drives=drives, cmdline_extra="stasis.debug-shell=hvc0"))
    machine.guest.wait_ready(Deadline.after(BOOT_SECONDS))
    find = "udevadm settle; disk=$(lsblk --nodeps -npo NAME,SERIAL | awk -v s=%s '$2 == s {print $1}')"
    for drive in drives:
        finding = find % drive.serial
        machine.guest.check(f"{finding}; dd if=$disk of=/dev/null bs=1M count=8 iflag=direct", Deadline.after(120))
    machine.assert_untouched()
    for drive in drives:
        command = f"{find % drive.serial}; {grant_script('$disk')} && {WRITES[drive.name]}"
        machine.guest.check(command, Deadline.after(120))
        found = machine.violations()
        assert any(sentence.startswith(f"{drive.name}: ") for sentence in found), (drive.name, found)
    with pytest.raises(MachineError, match="protected disks were written"):
        machine.assert_untouched()
    seen = {command.bus for command in machine.trace() if command.kind is Class.WRITE}
    assert seen == {"nvme", "scsi", "ata", "block"}
