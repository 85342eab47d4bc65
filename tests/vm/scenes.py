"""What the tests of an operator's session share: disks as they are met, their images afterwards, keys on a screen."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from builder import samples
from builder.vm import Drive

from tests.support.vm.deadline import Deadline, DeadlineError
from tests.support.vm.machine import Machine

SHELL = "stasis.debug-shell=hvc0"
BOOT_SECONDS = 300
KEY_SECONDS = 120
COPY_SECONDS = 600
CHUNK_BYTES = 1 << 20


def tree(directory: Path, size_mib: int, seed: int = 3) -> Path:
    """A directory with a run: a log, and a checkpoint of ``size_mib`` of random bytes."""
    run = directory / "run-7"
    run.mkdir(parents=True)
    (run / "train.log").write_text("".join(f"step {at} loss {4.2 / (1 + at / 200):.4f}\n" for at in range(0, 900, 10)))
    samples.noise(run / "model.safetensors", size_mib, seed)
    return directory


def ext4_source(artifacts: Path, name: str, serial: str, size_mib: int = 96) -> Drive:
    """An NVMe disk with a GPT and an ext4 that is half full."""
    path = artifacts / f"{name}.img"
    samples.ext4(path, size_mib, name, tree(artifacts / f"{name}.tree", size_mib // 2))
    return Drive(name=name, path=path, serial=serial)


def xfs_source(artifacts: Path, name: str, serial: str, size_mib: int = 320) -> Drive:
    """An NVMe disk with a GPT and an XFS; smaller ones mkfs.xfs does not make."""
    path = artifacts / f"{name}.img"
    samples.xfs(path, size_mib, name, tree(artifacts / f"{name}.tree", 40))
    return Drive(name=name, path=path, serial=serial)


def noise_source(artifacts: Path, name: str, serial: str, size_mib: int = 32, seed: int = 11) -> Drive:
    """An NVMe disk full of random bytes, without any signature."""
    path = artifacts / f"{name}.img"
    samples.noise(path, size_mib, seed)
    return Drive(name=name, path=path, serial=serial)


def blank_usb(artifacts: Path, serial: str = "AA00000000000485", size_mib: int = 1024, name: str = "usb") -> Drive:
    """An empty USB disk, which may be written."""
    path = artifacts / f"{name}.img"
    samples.blank(path, size_mib)
    return Drive(name=name, path=path, serial=serial, kind="usb", removable=True, protected=False)


@contextmanager
def opened(image: Path, kind: str) -> Iterator[Path]:
    """The file system on the first partition of a destination's backing file, mounted read-only on the host."""
    size_bytes = image.stat().st_size - samples.FIRST_PARTITION_BYTES
    with (
        samples.loop(image, offset_bytes=samples.FIRST_PARTITION_BYTES, size_bytes=size_bytes) as attached,
        tempfile.TemporaryDirectory(prefix="stasis-mount-") as where,
    ):
        subprocess.run(["mount", "-t", kind, "-o", "ro", attached.device, where], check=True)
        try:
            yield Path(where)
        finally:
            subprocess.run(["umount", where], check=True)


def first_difference(one: Path, other: Path) -> int | None:
    """The offset of the first megabyte in which two files differ, or where one ends; None when they are the same."""
    at = 0
    with one.open("rb") as left, other.open("rb") as right:
        while True:
            a, b = left.read(CHUNK_BYTES), right.read(CHUNK_BYTES)
            if a != b:
                return at
            if not a:
                return None
            at += len(a)


def power_off(machine: Machine) -> None:
    """Power the guest off in good order; QEMU stays, with its counters."""
    # A moment later, so that the shell has answered before it is ended.
    machine.guest.check("(sleep 1; systemctl poweroff) >/dev/null 2>&1 &", Deadline.after(120))
    machine.wait_poweroff(Deadline.after(240))


class Keyboard:
    """An operator who looks at the screen of ttyS0 before the next key."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.terminal = machine.terminal

    def see(self, text: str, seconds: float = KEY_SECONDS) -> str:
        """Wait until the screen shows ``text``."""
        return self.terminal.wait_for(text, Deadline.after(seconds))

    def press(self, key: str, text: str, seconds: float = KEY_SECONDS) -> str:
        """Press a key and wait for what it brings to the screen."""
        self.terminal.press(key)
        return self.see(text, seconds)

    def type(self, text: str, then: str, seconds: float = KEY_SECONDS) -> str:
        """Type a line and Enter; wait for what it brings to the screen."""
        self.terminal.type(text)
        self.see(text)
        return self.press("enter", then, seconds)

    def lines(self) -> tuple[str, ...]:
        """The rows without what surrounds their text."""
        return tuple(row.strip() for row in self.terminal.rows)

    def find(self, serial: str) -> None:
        """On the screen of devices, show only the disks with this in their serial."""
        self.press("/", "Esc shows all")
        self.terminal.type(serial)
        self.see(f"match {serial}")
        # The line that is typed into goes when the table has the keys again.
        self._wait_for_line(serial, there=True)
        self.terminal.press("enter")
        self._wait_for_line(serial, there=False)

    def _wait_for_line(self, text: str, *, there: bool) -> None:
        self.terminal.port.wait_for(
            f"{'' if there else 'end of '}the line {text!r}",
            lambda: True if (text in self.lines()) == there else None, Deadline.after(KEY_SECONDS))

    def show_all(self, serial: str) -> None:
        """End what :meth:`find` began."""
        self.terminal.press("escape")
        self.terminal.wait_gone(f"match {serial}", Deadline.after(KEY_SECONDS))

    def screen(self, name: str) -> tuple[str, ...]:
        """The rows of the screen ``name`` once they are whole, see :func:`misdrawn`; a frame arrives in pieces."""
        self.see(f" STASIS  {name}")
        wrong: list[str] = []

        def whole() -> tuple[str, ...] | None:
            rows = self.terminal.rows
            wrong[:] = misdrawn(rows)
            return None if wrong else rows

        try:
            return self.terminal.port.wait_for(f"whole screen {name}", whole, Deadline.after(KEY_SECONDS))
        except DeadlineError as error:
            error.add_note("; ".join(wrong))
            raise


def misdrawn(rows: tuple[str, ...]) -> list[str]:
    """What is wrong with a whole screen of 80x24, in sentences: nothing may have run over an edge or moved a row."""
    wrong = []
    if (len(rows), {len(row) for row in rows}) != (24, {80}):
        wrong.append(f"the screen is {len(rows)} rows of {sorted({len(row) for row in rows})}")
    if not rows[0].startswith(" STASIS  "):
        wrong.append("the title is not in the first row")
    if not rows[1].startswith(" Guard: "):
        wrong.append("the status is not in the second row")
    if [number for number, row in enumerate(rows) if " STASIS  " in row] != [0]:
        wrong.append("the title is there twice, or not at all")
    strange = sorted({letter for row in rows for letter in row if not " " <= letter <= "~"})
    if strange:
        wrong.append(f"not ASCII: {strange}")
    rules = [number for number, row in enumerate(rows) if row.count("-") > 40 and set(row) - set("- |+#")]
    if rules:
        wrong.append(f"broken lines in rows {rules}")
    if "q Leave" not in " ".join(rows[-3:]):
        wrong.append("the keys are not in the last rows")
    return wrong
