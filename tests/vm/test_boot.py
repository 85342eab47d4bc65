"""The built image comes up to its TUI, by both ways of booting, and nobody writes to a disk on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from builder.qemu import BuiltImage
from builder.vm import DiskBoot, Drive, VmSpec

from tests.support.vm.deadline import Deadline
from tests.support.vm.machine import Machine

BOOT_SECONDS = 240
TITLE = "STASIS"


def test_kernel_and_initrd_boot_to_the_tui_on_the_serial_line(
    image: BuiltImage, boot: Callable[[VmSpec], Machine], blank: Callable[[str, int], Path],
) -> None:
    source = Drive(name="source", path=blank("source", 64), serial="SERIAL-NVME-1")
    machine = boot(VmSpec(image.kernel_boot(), drives=(source,)))
    machine.terminal.wait_for(TITLE, Deadline.after(BOOT_SECONDS))
    machine.terminal.wait_for("SERIAL-NVME-1", Deadline.after(60))
    assert len(machine.terminal.rows) == 24
    machine.assert_untouched()


def test_usb_disk_boots_under_uefi_to_the_tui_on_both_consoles(
    boot: Callable[[VmSpec], Machine], stick: Drive, blank: Callable[[str, int], Path],
) -> None:
    source = Drive(name="source", path=blank("source", 64), serial="SERIAL-NVME-1")
    machine = boot(VmSpec(DiskBoot(), drives=(stick, source)))
    machine.terminal.wait_for(TITLE, Deadline.after(BOOT_SECONDS))
    machine.terminal.wait_for("SERIAL-NVME-1", Deadline.after(60))
    picture = machine.screendump("tty1")
    assert picture.stat().st_size > 2000
    machine.assert_untouched()
