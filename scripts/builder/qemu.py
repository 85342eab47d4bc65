"""What the host offers for running the built image: QEMU, UEFI firmware, an accelerator that works, the image."""

from __future__ import annotations

import functools
import os
import select
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from builder.host import BUILD, BuildError
from builder.vm import KernelBoot

PROGRAM = "qemu-system-x86_64"
# Debian, Fedora, Arch. Code and variables must be of one size.
FIRMWARE = (
    ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"),
    ("/usr/share/edk2/ovmf/OVMF_CODE.fd", "/usr/share/edk2/ovmf/OVMF_VARS.fd"),
    ("/usr/share/edk2/x64/OVMF_CODE.4m.fd", "/usr/share/edk2/x64/OVMF_VARS.4m.fd"),
    ("/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_VARS.fd"),
)
KVM_TRIAL_SECONDS = 8.0
KERNEL_ANSWER = b"Linux version"


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """The outputs of the build."""

    uki: Path
    kernel: Path
    initrd: Path
    usb: Path
    cmdline: Path

    def kernel_boot(self) -> KernelBoot:
        """Boot kernel and initrd with the image's own kernel command line."""
        return KernelBoot(self.kernel, self.initrd, self.cmdline.read_text().strip())


def built_image(build: Path = BUILD) -> BuiltImage:
    """The built image below ``build``; :class:`BuildError` when a part of it is missing."""
    image = BuiltImage(
        build / "stasis.efi", build / "stasis.vmlinuz", build / "stasis.initrd", build / "stasis.usb.raw",
        build / "stasis.cmdline",
    )
    for path in (image.uki, image.kernel, image.initrd, image.usb, image.cmdline):
        if not path.is_file():
            raise BuildError(f"the image is not built: {path} is missing. Build it with `make image`.")
    return image


def require_qemu() -> None:
    """Raise :class:`BuildError` when QEMU is not installed."""
    if shutil.which(PROGRAM) is None:
        raise BuildError(f"{PROGRAM} is not installed. `scripts/setup` installs it (package qemu-system-x86).")


def firmware_pair() -> tuple[Path, Path]:
    """OVMF's code and the template of its variable store; :class:`BuildError` when there is none."""
    for code, variables in FIRMWARE:
        if Path(code).is_file() and Path(variables).is_file():
            return Path(code), Path(variables)
    raise BuildError("no UEFI firmware for QEMU found. `scripts/setup` installs it (package ovmf).")


def _kernel_starts_under_kvm(kernel: Path) -> bool:
    """Whether ``kernel`` gets far enough under KVM to print its version.

    On some cloud machines /dev/kvm opens and SeaBIOS runs to its end, but no kernel ever starts; on others QEMU aborts.
    """
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = subprocess.Popen(
                [PROGRAM, "-nodefaults", "-no-user-config", "-machine", "q35", "-accel", "kvm", "-cpu", "host",
                 "-m", "512", "-display", "none", "-chardev", f"socket,id=serial,fd={theirs.fileno()}",
                 "-serial", "chardev:serial", "-kernel", str(kernel), "-append", "earlyprintk=ttyS0 console=ttyS0"],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        try:
            return _says(ours, KERNEL_ANSWER, KVM_TRIAL_SECONDS)
        finally:
            process.kill()
            process.wait()


def _says(line: socket.socket, answer: bytes, seconds: float) -> bool:
    """Whether ``answer`` arrives on ``line`` within ``seconds`` and before its end."""
    end = time.monotonic() + seconds
    heard = b""
    while answer not in heard:
        left = end - time.monotonic()
        if left <= 0 or not select.select([line], [], [], left)[0]:
            return False
        try:
            data = line.recv(4096)
        except ConnectionResetError:
            return False
        if not data:
            return False
        heard += data
    return True


@functools.cache
def working_accel(kernel: Path) -> Literal["kvm", "tcg"]:
    """``kvm`` when ``kernel`` really starts under it here, else ``tcg``.

    Found out by trying, which takes seconds where it fails; the answer is kept beside the kernel until the next boot of
    this machine.
    """
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    note = kernel.with_name(f"{kernel.name}.accel")
    if note.is_file() and note.read_text().startswith(boot):
        return "kvm" if note.read_text().endswith("kvm\n") else "tcg"
    accel: Literal["kvm", "tcg"] = "kvm" if _kernel_starts_under_kvm(kernel) else "tcg"
    with suppress(PermissionError):
        note.write_text(f"{boot} {accel}\n")
    return accel
