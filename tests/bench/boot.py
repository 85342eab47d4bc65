"""How big the image is, how long it takes to a drawn TUI, how much memory it then needs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from builder.vm import DiskBoot, Drive, KernelBoot, VmSpec

from tests.bench.figures import Figure
from tests.bench.machines import SHELL, image, running, scratch
from tests.support.vm.deadline import Deadline

UKI_TARGET_MB = 260
WAIT_SECONDS = 600
# What only the drawn screen shows, not the firmware's or the kernel's words before it.
DRAWN = "BENCH-SOURCE"


def _source(directory: Path) -> Drive:
    path = directory / "source.img"
    with path.open("wb") as file:
        file.truncate(64 << 20)
    return Drive(name="source", path=path, serial=DRAWN)


def size() -> Iterator[Figure]:
    """The size of the unified kernel image."""
    megabytes = image().uki.stat().st_size / 1e6
    yield Figure("uki-size", megabytes, "MB", "size of build/stasis.efi", target=f"<= {UKI_TARGET_MB} MB",
                 met=megabytes <= UKI_TARGET_MB)


def _seconds_to_tui(boot: KernelBoot | DiskBoot, drives: tuple[Drive, ...], directory: Path) -> tuple[float, int]:
    started = time.monotonic()
    spec = VmSpec(boot, drives=drives, memory_mib=1024, cmdline_extra=SHELL)
    with running(spec, directory / "machine") as machine:
        machine.terminal.wait_for(DRAWN, Deadline.after(WAIT_SECONDS))
        seconds = time.monotonic() - started
        machine.guest.wait_ready(Deadline.after(WAIT_SECONDS))
        used = machine.guest.check("free -m | awk '/^Mem:/ { print $2 - $7 }'", Deadline.after(WAIT_SECONDS))
        return seconds, int(used)


def boot_time() -> Iterator[Figure]:
    """From the start of QEMU to the drawn device list, by both ways of booting; 2 CPUs, 1 GiB."""
    with scratch("boot") as directory:
        source = _source(directory)
        direct, used = _seconds_to_tui(image().kernel_boot(), (source,), directory)
        yield Figure("boot-kernel-initrd", direct, "s",
                     "QEMU start to the first device drawn on ttyS0; -kernel/-initrd")
        yield Figure("memory-used", used, "MiB",
                     "MemTotal - MemAvailable with the TUI drawn, 1 GiB machine; the image itself lies in it",
                     target="<= 768 MiB", met=used <= 768)
        stick_path = directory / "stick.img"
        shutil.copyfile(image().usb, stick_path)
        stick = Drive(name="stick", path=stick_path, kind="usb", serial="STICK", removable=True, boot_index=0)
        usb, _ = _seconds_to_tui(DiskBoot(), (stick, source), directory / "usb")
        yield Figure("boot-usb-uefi", usb, "s", "QEMU start to the first device drawn on ttyS0; OVMF and a USB stick",
                     peer="boot-kernel-initrd", ratio=usb / direct)
