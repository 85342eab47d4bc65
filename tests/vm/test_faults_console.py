"""The screen program dies and the terminal is hung up while a copy runs: the copy does not care."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from builder.qemu import BuiltImage
from builder.vm import Drive, VmSpec

from tests.support.vm.deadline import Deadline, DeadlineError
from tests.support.vm.machine import Machine
from tests.vm.fault_scenes import SHELL, SLOW, TUI_SECONDS, Operator, destination, noise_disk

# The TUI is the Python process whose input is the line; what it starts has /dev/null there.
TUI_PID = (
    "for p in /proc/[0-9]*; do if [ \"$(readlink $p/fd/0)\" = /dev/ttyS0 ]; then "
    "case $(readlink $p/exe) in */python3*) echo ${p#/proc/};; esac; fi; done"
)
# tty_ioctl(4): what happens to a session whose line is cut; only root can ask for it.
HANG_UP = (
    "python3 -c 'import fcntl, os; "
    "fcntl.ioctl(os.open(\"/dev/ttyS0\", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK), 0x5437)'"
)


def _start_by_keys(operator: Operator, serial: str) -> str:
    """Start to image a disk on the screen; the id of the job."""
    terminal = operator.machine.terminal
    operator.sees(serial)
    operator.press("/", "Esc shows all")
    terminal.type(serial)
    operator.press("enter", f"that match {serial}")
    operator.press("i", "s starts it")
    operator.press("s", "Start imaging 1 disk?")
    operator.press("y", "RUNNING")
    return operator.shell("ls /run/stasis/jobs")


def _new_tui(operator: Operator, old_pid: str) -> str:
    """Wait until another process draws the screen; its id."""
    deadline = Deadline.after(TUI_SECONDS)
    while True:
        pid = operator.shell(TUI_PID)
        if pid and pid != old_pid:
            return pid
        if deadline.expired:
            raise DeadlineError(f"no new TUI\n{operator.machine.report()}")
        operator.shell("sleep 0.5")


def test_a_copy_outlives_its_screen_and_its_terminal(
    image: BuiltImage, boot_to_tui: Callable[[VmSpec], Machine], artifacts: Path,
) -> None:
    source = Drive(name="source", path=noise_disk(artifacts / "source.img", 160, 3, blank_mib=128), serial="NVME-1",
                   throttle_bytes_per_second=0)
    machine = boot_to_tui(VmSpec(
        image.kernel_boot(), drives=(source, destination(artifacts, 320)), cmdline_extra=SHELL, memory_mib=1024))
    operator = Operator(machine)
    operator.open_destination()
    machine.throttle("source", SLOW)
    job_id = _start_by_keys(operator, "NVME-1")
    worker = operator.copied(job_id, 4)["pid"]

    pid = operator.shell(TUI_PID)
    operator.shell(f"kill -KILL {pid}")
    operator.sees("Stasis ended unexpectedly (status 137). Running copies go on.")
    machine.terminal.press("enter")
    pid = _new_tui(operator, pid)
    operator.sees("1 job running")
    operator.press("j", "RUNNING")

    operator.shell(HANG_UP)
    _new_tui(operator, pid)
    operator.sees("STASIS Devices: 3 disks")
    operator.press("j", "RUNNING")
    record = operator.record(job_id)
    assert (record["state"], record["pid"]) == ("running", worker)

    machine.throttle("source", 0)
    record = operator.rested(job_id)
    assert (record["state"], record["exit_status"], record["pid"]) == ("done", 0, None)
    operator.sees("DONE")
    operator.press("enter", "Every sector was read.")
    operator.assert_rescued(record["case"], source)
    machine.assert_untouched()
