"""The machine's wiring and its failures, with a small program in place of QEMU."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from builder.vm import Controller, DiskBoot, Drive, Firmware, KernelBoot, Namespace, Subsystem, VmSpec

from tests.support.vm.deadline import Deadline, DeadlineError
from tests.support.vm.machine import Machine, MachineError, wired
from tests.support.vm.pump import LineClosedError
from tests.support.vm.qmp import QmpError

KERNEL = KernelBoot(Path("/b/vmlinuz"), Path("/b/initrd"), "")

FAKE = """#!{python}
import json, os, sys
fds = {{}}
for word in sys.argv:
    if word.startswith("socket,id="):
        name, _, fd = word.removeprefix("socket,id=").partition(",fd=")
        fds[name] = int(fd)
def say(message):
    os.write(fds["qmp"], json.dumps(message).encode() + b"\\n")
say({{"QMP": {{"version": {{"qemu": {{"major": 7, "minor": 2, "micro": 0}}}}, "capabilities": []}}}})
os.write(fds["ttys0"], b"\\x1b[2J\\x1b[HSTASIS\\r\\nsecond line")
zero = {{p + o + "_operations": 0 for p in ("", "failed_", "invalid_") for o in ("rd", "wr", "unmap", "flush")}}
writes = 0
present = True
while True:
    for line in os.read(fds["qmp"], 65536).splitlines() or sys.exit(0):
        request = json.loads(line)
        answer = {{}}
        if request["execute"] == "query-blockstats" and present:
            stats = {{**zero, "wr_operations": writes}}
            answer = [{{"node-name": "d", "qdev": "/machine/peripheral/dev-d", "stats": stats}}]
        elif request["execute"] == "query-blockstats":
            answer = []
        elif request["execute"] == "screendump":
            open(request["arguments"]["filename"], "wb").write(b"PNG")
        elif request["execute"] == "device_del":
            present = False
        elif request["execute"] == "device_add":
            present = True
        elif request["execute"] == "qom-set":
            open(sys.argv[0] + ".set", "w").write(json.dumps(request["arguments"]))
        elif request["execute"] == "send-key":
            writes += 1
        say({{"return": answer, "id": request["id"]}})
        if request["execute"] == "device_del":
            say({{"event": "DEVICE_DELETED", "data": {{"path": "/x"}}}})
            say({{"event": "DEVICE_DELETED", "data": {{"device": request["arguments"]["id"], "path": "/x"}}}})
"""


def soon() -> Deadline:
    return Deadline.after(20)


@pytest.fixture
def spec(tmp_path: Path) -> VmSpec:
    program = tmp_path / "fake-qemu"
    program.write_text(FAKE.format(python=sys.executable))
    program.chmod(0o755)
    disk = tmp_path / "d.img"
    disk.write_bytes(b"evidence".ljust(4096, b"\0"))
    (tmp_path / "trace.log").touch()
    return VmSpec(
        KERNEL, drives=(Drive(name="d", path=disk, serial="S", hotplug=True),), program=str(program),
        trace=tmp_path / "trace.log",
    )


def test_protected_disks_get_a_write_log_and_uefi_gets_its_own_variables(tmp_path: Path) -> None:
    space = Namespace(name="n", path=tmp_path / "n", nsid=1)
    spec = VmSpec(
        DiskBoot(), firmware=Firmware(Path("/code"), Path("/vars")),
        drives=(
            Drive(name="source", path=tmp_path / "s", serial="S"),
            Drive(name="target", path=tmp_path / "t", serial="T", protected=False),
        ),
        subsystems=(Subsystem("sub", "nqn", (Controller("c", "S"),), (space,)),),
    )
    ready = wired(spec, tmp_path)
    assert [drive.write_log for drive in ready.drives] == [tmp_path / "source.writes", None]
    assert ready.subsystems[0].namespaces[0].write_log == tmp_path / "n.writes"
    assert (ready.trace, ready.stay_after_poweroff) == (tmp_path / "trace.log", True)
    assert ready.firmware == Firmware(Path("/code"), Path("/vars"))


def test_a_machine_shows_its_screen_and_ends_with_its_context(spec: VmSpec, tmp_path: Path) -> None:
    with Machine(spec, tmp_path / "m") as machine:
        assert machine.qmp.version == "7.2.0"
        assert machine.terminal.wait_for("second line", soon()).splitlines()[:2] == ["STASIS", "second line"]
        machine.console.wait_for("STASIS", soon())
        assert machine.screendump("tty1").read_bytes() == b"PNG"
        machine.assert_untouched()
        assert machine.alive
    assert not machine.alive
    assert "fake-qemu" in (tmp_path / "m/command").read_text()


def test_a_program_that_ends_at_once_is_noticed_and_quoted(spec: VmSpec, tmp_path: Path) -> None:
    Path(spec.program).write_text("#!/bin/sh\necho no such machine >&2\nexit 1\n")
    with pytest.raises(QmpError, match=r"(?s)QEMU is gone.*no such machine"), Machine(spec, tmp_path / "m"):
        raise AssertionError("it was entered")


def test_a_timeout_tells_console_screen_and_where_to_look(spec: VmSpec, tmp_path: Path) -> None:
    def run() -> None:
        with Machine(spec, tmp_path / "m") as machine:
            machine.terminal.wait_for("second line", soon())
            machine.terminal.wait_for("Devices", Deadline.after(0))

    with pytest.raises(DeadlineError) as caught:
        run()
    text = str(caught.value)
    for part in ("no 'Devices' on ttyS0", "--- last lines of ttyS0\nSTASIS\nsecond line", "--- screen", "/m"):
        assert part in text
    assert caught.value.__notes__ == [f"tty1 at that time: {tmp_path / 'm/failed.png'}"]


def test_the_speed_limit_of_a_disk_is_changed_while_the_machine_runs(spec: VmSpec, tmp_path: Path) -> None:
    slow = replace(spec, drives=(replace(spec.drives[0], throttle_bytes_per_second=4096),))
    with Machine(slow, tmp_path / "m") as machine:
        machine.throttle("d", 0)
    assert json.loads(Path(f"{spec.program}.set").read_text()) == {
        "path": "/objects/throttle-d", "property": "limits", "value": {"bps-total": 0},
    }


def test_counters_outlive_the_disk_and_the_machine(spec: VmSpec, tmp_path: Path) -> None:
    with Machine(spec, tmp_path / "m") as machine:
        machine.press_on_tty1("a")
        machine.unplug("d", soon())
        assert machine.counters()["d"].writes == 1
        machine.plug("d")
        machine.press_on_tty1("a")
        assert machine.counters()["d"].writes == 3
        machine.power_cut()
        assert machine.counters()["d"].writes == 3
        with pytest.raises(MachineError, match="protected disks were written"):
            machine.assert_untouched()
        with pytest.raises(LineClosedError):
            machine.console.wait_for("never", Deadline.after(3600))
