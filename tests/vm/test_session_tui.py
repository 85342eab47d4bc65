"""An operator's whole session by keys alone on the serial line, and the Linux console under UEFI."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from builder.qemu import BuiltImage
from builder.vm import DiskBoot, Drive, VmSpec

from tests.support.vm.deadline import Deadline
from tests.support.vm.machine import Machine
from tests.vm.scenes import (
    BOOT_SECONDS,
    COPY_SECONDS,
    SHELL,
    Keyboard,
    blank_usb,
    ext4_source,
    first_difference,
    misdrawn,
    noise_source,
    opened,
    power_off,
)

SOURCE, OTHER, USB = "S5GXNX0T700123", "S5GXNX0T700124", "AA00000000000485"
POINT = f"/run/stasis/destination/{USB}"


def test_whole_session_by_keys_on_the_serial_line(
    image: BuiltImage, boot_to_tui: Callable[[VmSpec], Machine], artifacts: Path,
) -> None:
    source, other = ext4_source(artifacts, "archive", SOURCE), noise_source(artifacts, "noise", OTHER)
    usb = blank_usb(artifacts, USB)
    machine = boot_to_tui(VmSpec(
        image.kernel_boot(), drives=(source, other, usb), cmdline_extra=SHELL, memory_mib=1024))
    keys = Keyboard(machine)
    keys.see(USB, BOOT_SECONDS)
    rows = keys.screen("Devices: 4 disks")
    assert all(any(serial in row for row in rows) for serial in (SOURCE, OTHER, USB)), "a serial is cut"
    keys.press("f1", "Help: Devices")
    keys.see("Esc Close")
    keys.terminal.press("escape")
    keys.terminal.wait_gone("Help: Devices", Deadline.after(60))
    keys.screen("Devices")

    _open_the_usb_disk(keys)
    keys.press("escape", "STASIS  Devices")
    keys.show_all(USB)
    keys.find(SOURCE)
    keys.press("i", "Command that will run")
    keys.see("$ ddrescue -d -r0")
    keys.screen("Imaging plan")
    keys.press("s", "Start now?")
    keys.press("y", "STASIS  Job ")
    keys.see("DONE", COPY_SECONDS)
    keys.see("complete")
    keys.screen("Job ")
    keys.press("v", "verified: everything matches", COPY_SECONDS)
    keys.screen("Case folder")
    keys.press("j", "All jobs have ended.")
    keys.see("100.00 %")
    keys.screen("Jobs")
    keys.press("l", "image.done")
    keys.terminal.press("pagedown")
    keys.see("destination.mounted")
    keys.screen("Journal")
    keys.press("w", "STASIS  Write guard")
    keys.screen("Write guard")
    keys.terminal.press("pagedown")
    keys.see(f"serial {USB}")
    keys.screen("Write guard")

    keys.press("d", "STASIS  Devices")
    keys.show_all(SOURCE)
    keys.find(USB)
    keys.press("g", "u Release")
    keys.press("u", "It may be granted.", 240)
    keys.see("Dest: none")
    keys.terminal.wait_gone("Working:", Deadline.after(120))
    keys.screen("Destination")
    _leave_and_come_back(keys)

    power_off(machine)
    machine.assert_untouched()
    with opened(usb.path, "ext4") as top:
        (copy,) = top.glob("stasis-case-*/*/image.raw")
        assert first_difference(copy, source.path) is None
        assert (copy.parent.parent / "report.html").stat().st_size > 1000


def _open_the_usb_disk(keys: Keyboard) -> None:
    """Find it, see why the others can't be it, grant with a wrong and the right serial, format, mount."""
    keys.find(SOURCE)
    keys.press("g", "It can't be the destination:")
    keys.screen("Destination")
    keys.press("escape", "STASIS  Devices")
    keys.show_all(SOURCE)
    keys.find(USB)
    keys.press("g", "It may be granted.")
    keys.screen("Destination")
    keys.press("enter", "Grant: open this disk for writing")
    keys.type("WRONG", "That is not the serial of /dev/sda.")
    keys.terminal.press(*["backspace"] * len("WRONG"))
    keys.terminal.type(USB)
    keys.press("enter", "Granted, blank.")
    keys.press("f", "Which file system shall /dev/sda get?")
    keys.press("1", "Type the serial again:")
    keys.terminal.type(USB)
    keys.press("enter", "Granted. m mounts it", 240)
    keys.press("m", "The destination is ready.", 240)
    keys.see(f"MOUNTED at {POINT}")
    keys.screen("Destination")


def _leave_and_come_back(keys: Keyboard) -> None:
    """q leaves; the console's session says how to come back, and the next start knows the jobs."""
    keys.press("q", "Leave Stasis?")
    keys.press("y", "start Stasis again")
    keys.press("enter", "STASIS  Devices", 240)
    keys.press("j", "All jobs have ended.")
    keys.screen("Jobs")


# the Linux console ---------------------------------------------------------------------------------------------------
BOX = "─│┌┐└┘├┤┬┴┼"




def console_rows(cells: bytes, columns: int) -> tuple[str, ...]:
    """The text of a console from /dev/vcsu (4 bytes a cell, the code point in the machine's byte order)."""
    letters = "".join(chr(int.from_bytes(cells[at:at + 4], "little")) for at in range(0, len(cells), 4))
    return tuple(letters[at:at + columns] for at in range(0, len(letters), columns))


def test_the_linux_console_under_uefi_from_the_stick(
    boot_to_tui: Callable[[VmSpec], Machine], stick: Drive, artifacts: Path,
) -> None:
    source = noise_source(artifacts, "noise", SOURCE)
    machine = boot_to_tui(VmSpec(DiskBoot(), drives=(stick, source), cmdline_extra=SHELL, memory_mib=1024))
    machine.terminal.wait_for(SOURCE, Deadline.after(BOOT_SECONDS))
    machine.guest.wait_ready(Deadline.after(BOOT_SECONDS))
    rows = _settled(machine)
    columns = len(rows[0])
    assert columns >= 80
    assert len(rows) >= 24
    assert rows[0].startswith(" STASIS  Devices")
    assert rows[1].startswith(" Guard: armed")
    assert any(SOURCE in row for row in rows)
    strange = sorted({letter for row in rows for letter in row if not (" " <= letter <= "~" or letter in BOX)})
    assert not strange, f"glyphs that the kernel's console font lacks: {strange}"
    rules = [row for row in rows if row.count("─") > columns // 2]
    assert len(rules) >= 2
    assert all(set(row) == {"─"} for row in rules), rules
    assert "q Leave" in " ".join(rows[-4:])
    picture = machine.screendump("tty1-devices")
    assert picture.stat().st_size > 2000
    machine.press_on_tty1("f1")
    machine.guest.check("until grep -q 'Help: Devices' /dev/vcs1; do sleep 0.2; done", Deadline.after(60))
    rows = _settled(machine)
    _assert_one_whole_box(rows)
    machine.screendump("tty1-help")
    assert not [problem for problem in misdrawn(machine.terminal.rows) if "title" in problem]
    machine.assert_untouched()


def _assert_one_whole_box(rows: tuple[str, ...]) -> None:
    """One box, and each of its edges is whole."""
    shown = "\n".join(rows)
    (top,) = [number for number, row in enumerate(rows) if "┌" in row]
    (bottom,) = [number for number, row in enumerate(rows) if "└" in row]
    left, right = rows[top].index("┌"), rows[top].index("┐")
    for edge in (rows[top], rows[bottom]):
        assert set(edge[left + 1:right]) == {"─"}, shown
    assert (rows[bottom][left], rows[bottom][right]) == ("└", "┘"), shown
    assert all((row[left], row[right]) == ("│", "│") for row in rows[top + 1:bottom]), shown


def _settled(machine: Machine) -> tuple[str, ...]:
    """The rows of tty1 once two looks in a row show the same."""
    columns, before = 0, b""
    deadline = Deadline.after(120)
    while True:
        size = machine.guest.check("stty -F /dev/tty1 size", deadline).split()
        columns, now = int(size[1]), machine.guest.get("/dev/vcsu1", deadline)
        if now == before:
            return console_rows(now, columns)
        before = now
        machine.guest.check("sleep 1", deadline)
