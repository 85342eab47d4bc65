"""The built image comes up to its TUI, by both ways of booting, and nobody writes to a disk on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from builder.qemu import BuiltImage
from builder.vm import DiskBoot, Drive, VmSpec

from tests.support.vm.deadline import Deadline
from tests.support.vm.machine import Machine


def test_kernel_and_initrd_boot_to_the_tui_on_the_serial_line(
    image: BuiltImage, boot_to_tui: Callable[[VmSpec], Machine], blank: Callable[[str, int], Path],
) -> None:
    source = Drive(name="source", path=blank("source", 64), serial="SERIAL-NVME-1")
    machine = boot_to_tui(VmSpec(image.kernel_boot(), drives=(source,)))
    machine.terminal.wait_for("SERIAL-NVME-1", Deadline.after(120))
    assert len(machine.terminal.rows) == 24
    machine.assert_untouched()


def test_usb_disk_boots_under_uefi_to_the_tui_on_both_consoles(
    boot_to_tui: Callable[[VmSpec], Machine], stick: Drive, blank: Callable[[str, int], Path],
) -> None:
    source = Drive(name="source", path=blank("source", 64), serial="SERIAL-NVME-1")
    machine = boot_to_tui(VmSpec(DiskBoot(), drives=(stick, source)))
    machine.terminal.wait_for("SERIAL-NVME-1", Deadline.after(120))
    picture = machine.screendump("tty1")
    assert picture.stat().st_size > 2000
    machine.assert_untouched()
