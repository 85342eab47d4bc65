"""A running virtual machine: QEMU, its ports, its monitor, and what it left behind.

Everything that a failed test needs lies in one directory: the serial lines as text, the command trace, QEMU's own
words, screen dumps, the command line.
"""

from __future__ import annotations

import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from builder.qemu import firmware_pair
from builder.vm import (
    Backing,
    Drive,
    Firmware,
    KernelBoot,
    Namespace,
    Ports,
    VmSpec,
    argv,
    device_of,
    throttle_group,
    throttle_limits,
)

from tests.support.vm import oracle
from tests.support.vm.console import Console
from tests.support.vm.deadline import Deadline, DeadlineError
from tests.support.vm.guest import Guest
from tests.support.vm.oracle import Counters, Watched
from tests.support.vm.pump import Pump
from tests.support.vm.qmp import Message, Qmp, QmpError
from tests.support.vm.terminal import Terminal

BUS = {"nvme": "nvme", "usb": "scsi", "scsi": "scsi", "sata": "ata", "virtio": "virtio"}
MONITOR_SECONDS = 30
STOP_SECONDS = 15
PORTS = ("ttyS0", "ttyS1", "hvc0", "qmp")
B = TypeVar("B", Drive, Namespace)


class MachineError(AssertionError):
    """QEMU did not do what the test needs: it did not start, or a disk was written that nobody may write."""


def bus_of(backing: Backing) -> str:
    """The bus under whose name the command trace shows this disk."""
    return BUS[backing.kind] if isinstance(backing, Drive) else "nvme"


def wired(spec: VmSpec, directory: Path) -> VmSpec:
    """``spec`` with its trace and write logs in ``directory``, and with UEFI firmware where the boot needs it."""

    def logged(backing: B) -> B:
        if not backing.protected or backing.write_log is not None:
            return backing
        return replace(backing, write_log=directory / f"{backing.name}.writes")

    firmware = spec.firmware
    if firmware is None and not isinstance(spec.boot, KernelBoot):
        firmware = Firmware(firmware_pair()[0], directory / "firmware-variables.fd")
    return replace(
        spec, firmware=firmware, trace=spec.trace or directory / "trace.log", stay_after_poweroff=True,
        drives=tuple(logged(drive) for drive in spec.drives),
        subsystems=tuple(
            replace(subsystem, namespaces=tuple(logged(space) for space in subsystem.namespaces))
            for subsystem in spec.subsystems
        ),
    )


class Machine:
    """A context manager around one QEMU process.

    ``terminal`` and ``console`` share ttyS0; ``ttys1`` is a plain console; ``guest`` speaks to the shell on hvc0, if
    the kernel command line asks for one. When the guest powers off, QEMU stays, so that its counters can still be read.
    """

    def __init__(self, spec: VmSpec, directory: Path, *, columns: int = 80, lines: int = 24) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.spec = wired(spec, directory)
        self._watched: tuple[Watched, ...] = ()
        self._kept: dict[str, Counters] = {}
        self._shots = 0
        self._exit = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._ours, self._theirs = zip(*(socket.socketpair() for _ in PORTS), strict=True)
        self._pump = Pump()
        self._pump.report = self.report
        ttys0, ttys1, hvc0 = (self._pump.port(name, line) for name, line in zip(PORTS[:3], self._ours[:3], strict=True))
        self.console = Console(ttys0, directory / "ttyS0.log")
        self.terminal = Terminal(ttys0, columns, lines)
        self.ttys1 = Console(ttys1, directory / "ttyS1.log")
        self.guest = Guest(hvc0)
        self.qmp = Qmp(self._ours[3], self.report)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        if error is not None and self.alive:
            # The picture of tty1 at the moment of the failure; QEMU may be beyond answering.
            with suppress(QmpError, DeadlineError):
                error.add_note(f"tty1 at that time: {self.screendump('failed')}")
        self._exit.close()

    def _start(self) -> None:
        self._exit.enter_context(self._pump)
        self._exit.callback(self._ours[3].close)
        for backing in self.spec.backings():
            if backing.write_log is not None:
                oracle.prepare_write_log(backing.write_log)
        if self.spec.firmware is not None and not self.spec.firmware.variables.exists():
            shutil.copyfile(firmware_pair()[1], self.spec.firmware.variables)
        self._watched = tuple(
            Watched(backing.name, backing.path, bus_of(backing), oracle.content_digest(backing.path), backing.write_log)
            for backing in self.spec.backings() if backing.protected
        )
        fds = [line.fileno() for line in self._theirs]
        ttys0, ttys1, hvc0, qmp = (f"socket,fd={fd}" for fd in fds)
        words = argv(replace(self.spec, ports=Ports(ttys0=ttys0, ttys1=ttys1, hvc0=hvc0, qmp=qmp)))
        (self.directory / "command").write_text(f"{shlex.join(words)}\n", errors="surrogateescape")
        with (self.directory / "qemu.log").open("wb") as said:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, pass_fds=fds,
            )
        self._exit.callback(self._stop)
        for line in self._theirs:
            line.close()
        self.qmp.connect(Deadline.after(MONITOR_SECONDS))

    def _stop(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(STOP_SECONDS)

    @property
    def alive(self) -> bool:
        """Whether QEMU runs (the guest may have powered off)."""
        return self._process is not None and self._process.poll() is None

    def report(self) -> str:
        """The state of the machine for a failure message: the last 40 console lines, the screen, where to look."""
        said = self.directory / "qemu.log"
        words = said.read_text(errors="backslashreplace").strip()[-2000:] if said.exists() else ""
        return (
            f"--- last lines of ttyS0\n{self.console.tail()}\n--- screen of ttyS0\n{self.terminal.text.rstrip()}\n"
            f"--- QEMU {'runs' if self.alive else 'is gone'}; it said: {words}\n--- more in {self.directory}"
        )

    def screendump(self, name: str = "") -> Path:
        """A picture (PNG) of the graphical console, where tty1 is."""
        self._shots += 1
        path = self.directory / f"{name or f'screen-{self._shots}'}.png"
        self._call("screendump", {"filename": str(path), "format": "png"})
        return path

    def press_on_tty1(self, *keys: str) -> None:
        """Press keys on the graphical console's keyboard, by QEMU's names (``ret``, ``down``, ``f1``, ``a``)."""
        for key in keys:
            codes = [{"type": "qcode", "data": part} for part in key.split("+")]
            self._call("send-key", {"keys": codes})

    def unplug(self, name: str, deadline: Deadline) -> None:
        """Take a disk out; returns when the guest has let it go (surprise removal: the guest is only told)."""
        self._kept[name] = self.counters()[name]
        self._call("device_del", {"id": f"dev-{name}"})
        self.qmp.wait_event("DEVICE_DELETED", deadline, lambda event: event.get("device") == f"dev-{name}")

    def plug(self, name: str) -> None:
        """Put a disk of the machine in that was kept back or taken out."""
        self._call("device_add", device_of(self.spec, self.spec.drive(name)))

    def throttle(self, name: str, bytes_per_second: int) -> None:
        """Change the speed of a disk that has a speed limit in the machine's description; 0 takes the limit off."""
        (backing,) = (backing for backing in self.spec.backings() if backing.name == name)
        self._call("qom-set", {
            "path": f"/objects/{throttle_group(backing)}", "property": "limits",
            "value": throttle_limits(bytes_per_second),
        })

    def wait_poweroff(self, deadline: Deadline) -> None:
        """Wait until the guest has powered itself off."""
        self.qmp.wait_event("SHUTDOWN", deadline, lambda event: bool(event.get("guest")))

    def wait_reset(self, deadline: Deadline) -> None:
        """Wait until the guest has reset itself."""
        self.qmp.wait_event("RESET", deadline, lambda event: bool(event.get("guest")))

    def power_cut(self) -> None:
        """Pull the plug: QEMU is killed, whatever the guest was doing. The counters of just before are kept."""
        self._kept = self.counters()
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_SECONDS)

    def counters(self) -> dict[str, Counters]:
        """What QEMU has counted on each disk so far, by name; for a disk that was taken out, until then."""
        if not self.alive:
            return dict(self._kept)
        # Block nodes show up again as a disk of their own when their device has gone: those counters are not meant.
        names = {backing.name for backing in self.spec.backings()}
        answer: Iterable[Message] = self._call("query-blockstats")
        now = oracle.parse_blockstats(disk for disk in answer if disk.get("qdev") and disk.get("node-name") in names)
        known = names - {drive.name for drive in self.spec.drives if drive.plugged} | now.keys() | self._kept.keys()
        return {name: now.get(name, Counters()).plus(self._kept.get(name, Counters())) for name in known}

    def trace(self) -> tuple[oracle.Traced, ...]:
        """The disk commands that QEMU has traced so far."""
        assert self.spec.trace is not None
        with self.spec.trace.open(errors="backslashreplace") as lines:
            return tuple(oracle.parse_trace(lines))

    def violations(self) -> tuple[str, ...]:
        """What speaks against "no protected disk was written"; see :func:`oracle.violations`."""
        open_buses = frozenset(bus_of(backing) for backing in self.spec.backings() if not backing.protected)
        return oracle.violations(self._watched, self.counters(), self.trace(), open_buses)

    def assert_untouched(self) -> None:
        """Raise :class:`MachineError` that lists every sign of a write to a protected disk."""
        found = self.violations()
        if found:
            raise MachineError("protected disks were written:\n" + "\n".join(found[:50]) + f"\n{self.report()}")

    def _call(self, command: str, arguments: Message | None = None) -> Iterable[Message]:
        answer: Iterable[Message] = self.qmp.call(command, arguments, deadline=Deadline.after(MONITOR_SECONDS))
        return answer
