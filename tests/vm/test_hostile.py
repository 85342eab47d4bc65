"""Serials, labels and partition names that try to draw, to break markup or to be no text, on the real serial line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

from builder import samples
from builder.host import output_of
from builder.qemu import BuiltImage
from builder.vm import Drive, VmSpec

from tests.support.vm.deadline import Deadline
from tests.support.vm.machine import Machine
from tests.vm.scenes import BOOT_SECONDS, COPY_SECONDS, SHELL, Keyboard, blank_usb, first_difference, opened, power_off

# At most 20 bytes each. No NUL, which ends a word of a command line.
NVME = b"\x1b[2J[/foo]\x9b7m\xff=,1".decode(errors="surrogateescape")
VIRTIO = b"\x1b]0;x\x07[/]\xfe\r\n-2".decode(errors="surrogateescape")
USB = "[bold]\x1b[31mX\x07-3"
SHOWN_NVME = r"\x1b[2J[/foo]\x9b7m\xff=,1"
FORBIDDEN = frozenset(range(32)) - {ord("\n")} | {0x7F}


def _labelled(path: Path, size_mib: int, partition_name: str, make: list[str | Path]) -> None:
    """A GPT disk whose partition has this name (in sfdisk's own escapes) and the file system that ``make`` makes."""
    size_bytes = samples.gpt(path, size_mib, partition_name)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.truncate(size_bytes)
    output_of([*make, part])
    samples.place_file(path, samples.FIRST_PARTITION_BYTES, part)
    part.unlink()


def _text(value: bytes) -> str:
    return value.decode(errors="surrogateescape")


def _disks(artifacts: Path) -> tuple[Drive, ...]:
    names = ("ext4", "xfs", "bare")
    ext4, xfs, bare = (artifacts / f"{name}.img" for name in names)
    _labelled(ext4, 32, r"\x1b[2J\x1b[H[/foo]\x07", [
        "mkfs.ext4", "-q", "-L", _text(b"[/x]\x1b[2J\xff\xfe\x1b[7m")])
    _labelled(xfs, 320, r"[bold red]\x0d\x0a\xc2\x9b2J", ["mkfs.xfs", "-q", "-L", _text(b"[/]\x1b[2J\xff")])
    samples.noise(bare, 8)
    return (
        Drive(name="ext4", path=ext4, serial=NVME), Drive(name="xfs", path=xfs, kind="sata", serial="[/sata]\x1b[7m"),
        Drive(name="bare", path=bare, kind="virtio", serial=VIRTIO),
    )


def _clean(output: bytes) -> str:
    """Output as text, after the check that a terminal would only print it."""
    text = output.decode()
    assert not FORBIDDEN & set(text.encode()), "control bytes in the output"
    assert not any(0x80 <= ord(letter) < 0xA0 for letter in text), "C1 controls in the output"
    return text


def test_hostile_strings_are_drawn_escaped_on_every_screen(
    image: BuiltImage, boot: Callable[[VmSpec], Machine], artifacts: Path,
) -> None:
    sources = _disks(artifacts)
    usb = blank_usb(artifacts, USB, 320)
    machine = boot(VmSpec(image.kernel_boot(), drives=(*sources, usb), cmdline_extra=SHELL, memory_mib=1024))
    machine.guest.wait_ready(Deadline.after(BOOT_SECONDS))

    text = machine.guest.run("stasis devices", Deadline.after(240))
    told = machine.guest.run("stasis devices --json", Deadline.after(240))
    assert (text.status, told.status) == (0, 0)
    assert SHOWN_NVME in _clean(text.stdout)
    disks = {disk["kind"]: disk for disk in json.loads(_clean(told.stdout))["devices"]}
    assert disks["nvme"]["serial"] == SHOWN_NVME
    for kind in ("nvme", "ata"):
        (part,) = disks[kind]["partitions"]
        assert r"\x1b[2J" in part["signatures"][0]["label"]
        assert "[" in part["name"]
    one = machine.guest.run(["stasis", "devices", disks["nvme"]["identity"]], Deadline.after(120))
    assert one.status == 0, one
    assert r"\x1b[2J" in _clean(one.stdout)
    listed = machine.guest.run("stasis destination list", Deadline.after(120))
    assert SHOWN_NVME in _clean(listed.stdout)

    keys = Keyboard(machine)
    keys.see("STASIS  Devices", BOOT_SECONDS)
    keys.screen("Devices")
    shown = str(disks["usb"]["serial"])
    keys.find("[/foo]")
    keys.see(SHOWN_NVME)
    keys.screen("Devices")
    keys.press("enter", "STASIS  Device: /dev/nvme0n1")
    keys.screen("Device:")
    for _ in range(4):
        keys.terminal.press("pagedown")
    keys.see("Esc Back")
    keys.screen("Device:")
    keys.press("escape", "STASIS  Devices")
    keys.show_all("[/foo]")
    _grant_by_the_serial_as_shown(keys, shown)
    keys.press("escape", "STASIS  Devices")
    keys.show_all("-3")
    keys.find("[/foo]")
    keys.press("i", "Command that will run")
    keys.screen("Imaging plan")
    keys.press("s", "Start now?")
    keys.press("y", "STASIS  Job ")
    keys.see("DONE", COPY_SECONDS)
    keys.screen("Job ")
    keys.press("v", "verified: everything matches", COPY_SECONDS)
    keys.screen("Case folder")
    keys.press("j", "STASIS  Jobs")
    keys.screen("Jobs")
    keys.press("l", "STASIS  Journal")
    keys.see("image.done")
    keys.screen("Journal")
    keys.terminal.press("pagedown")
    keys.see("destination.mounted")
    keys.screen("Journal")
    keys.press("w", "STASIS  Write guard")
    keys.screen("Write guard")

    done = machine.guest.run("stasis jobs list", Deadline.after(120))
    assert r"\x1b[2J" in _clean(done.stdout)
    report = machine.guest.check("cat /run/stasis/destination/*/stasis-case-*/report.html", Deadline.after(60))
    assert "\x1b" not in report
    image_at = machine.guest.check("ls /run/stasis/destination/*/stasis-case-*/*/image.raw", Deadline.after(60))
    released = machine.guest.run(["stasis", "destination", "release", disks["usb"]["identity"]], Deadline.after(120))
    assert released.status == 0, released
    power_off(machine)
    machine.assert_untouched()
    with opened(usb.path, "ext4") as top:
        inside = Path(shlex.split(image_at)[0]).relative_to("/run/stasis/destination").parts[1:]
        assert first_difference(top.joinpath(*inside), sources[0].path) is None


def _grant_by_the_serial_as_shown(keys: Keyboard, shown: str) -> None:
    keys.find("-3")
    keys.press("g", "This disk may become the destination.")
    keys.screen("Destination")
    keys.press("enter", "Grant: open this disk for writing")
    keys.type("nonsense", "That is not the serial")
    keys.terminal.press(*["backspace"] * len("nonsense"))
    keys.terminal.type(shown)
    keys.press("enter", "Granted, blank.")
    keys.press("f", "Which file system")
    keys.press("1", "Type the serial again:")
    keys.terminal.type(shown)
    keys.press("enter", "Granted. m mounts it")
    keys.press("m", "The destination is ready.")
    keys.screen("Destination")
