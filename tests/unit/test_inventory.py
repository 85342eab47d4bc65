"""The inventory over a recorded machine and a runner that plays the tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rescue_tui.core.command import Command, Completed
from rescue_tui.core.device import Disk
from rescue_tui.core.errors import SetupError
from rescue_tui.core.machine import Machine
from rescue_tui.core.namespaces import LIVE
from rescue_tui.system import inventory as module
from rescue_tui.system.inventory import Inventory, nvme_device
from rescue_tui.system.runner import Runner
from rescue_tui.system.tools import nvme, smartctl, wipefs
from tests.support.machines import machine

DATA = Path(__file__).parents[1] / "data"
BLANK = b'{"signatures": []}'
XFS = (DATA / "wipefs/xfs.json").read_bytes()
WAIT_SECONDS = 20


class Tools(Runner):
    """Plays tools: wipefs by node, others by the first two words. What is in ``hanging`` waits for its event."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, ...]] = []
        self.outputs: dict[str, bytes] = {}
        self.statuses: dict[str, int] = {}
        self.hanging: dict[str, asyncio.Event] = {}
        self.missing: set[str] = set()

    async def attempt(self, command: Command) -> Completed:
        """As Runner.attempt."""
        self.calls.append(command.argv)
        if command.argv[0] in self.missing:
            raise SetupError(f"The program {command.argv[0]} is not installed.", "Install it.")
        key = command.argv[-1] if command.argv[0] == "wipefs" else " ".join(command.argv[:2])
        if key in self.hanging:
            await self.hanging[key].wait()
        default = BLANK if command.argv[0] == "wipefs" else b"{}"
        return Completed(command, self.statuses.get(key, 0), self.outputs.get(key, default), b"it said no", 0.0)

    def read(self) -> list[str]:
        """Nodes that wipefs was asked about, in order; forgets them."""
        nodes = [argv[-1] for argv in self.calls if argv[0] == "wipefs"]
        self.calls.clear()
        return sorted(nodes)


class Bench:
    """An inventory whose machine can be changed."""

    def __init__(self, name: str) -> None:
        self.machine = machine(name)
        self.tools = Tools()
        self.inventory = Inventory(self.tools, lambda: self.machine, patience_seconds=0.05)

    def set(self, name: str, **attributes: str) -> None:
        """Change attributes of a node."""
        nodes = {path: replace(node, attrs={**node.attrs, **attributes}) if node.name == name else node
                 for path, node in self.machine.nodes.items()}
        self.machine = Machine(nodes, self.machine.majors)

    async def disk(self, node: str) -> Disk:
        """One disk of a fresh snapshot."""
        return {disk.node: disk for disk in (await self.inventory.snapshot()).disks}[node]


class Monitor:
    """Plays udev's monitor."""

    made: list[Monitor]

    def __init__(self, on_change: Callable[[frozenset[str]], None]) -> None:
        self.on_change = on_change
        self.closed = False
        self.made.append(self)

    def close(self) -> None:
        """As Settled.close."""
        self.closed = True


@pytest.fixture
def monitors(monkeypatch: pytest.MonkeyPatch) -> list[Monitor]:
    """The monitors that were made."""
    Monitor.made = []
    monkeypatch.setattr(module, "Settled", Monitor)
    return Monitor.made


@pytest.mark.parametrize(("command", "line"), [
    (wipefs.signatures_command("/dev/sda"),
     "wipefs --no-act --json --output UUID,LABEL,LENGTH,TYPE,OFFSET,USAGE,DEVICE -- /dev/sda"),
    (nvme.smart_log_command("/dev/nvme0"), "nvme smart-log /dev/nvme0 --output-format=json"),
    (nvme.error_log_command("/dev/nvme0"), "nvme error-log /dev/nvme0 --log-entries=256 --output-format=json"),
    (nvme.id_ctrl_command("/dev/nvme0"), "nvme id-ctrl /dev/nvme0 --output-format=json"),
    (nvme.id_ns_command("/dev/nvme0", 2), "nvme id-ns /dev/nvme0 --namespace-id=2 --output-format=json"),
    (smartctl.health_command("/dev/sda"), "smartctl --json=c --all /dev/sda"),
])
def test_golden_lines(command: Command, line: str) -> None:
    assert command.line == line
    assert command.grant is None


# signatures ----------------------------------------------------------------------------------------------------------
async def test_every_disk_and_partition_is_read_once() -> None:
    bench = Bench("single-nvme")
    bench.tools.outputs["/dev/nvme0n1p2"] = XFS
    disk = await bench.disk("/dev/nvme0n1")
    assert [sig.kind for sig in disk.partitions[1].signatures] == ["xfs"]
    assert bench.tools.read() == ["/dev/nvme0n1", "/dev/nvme0n1p1", "/dev/nvme0n1p2"]
    assert await bench.disk("/dev/nvme0n1") == disk
    assert bench.tools.read() == []


@pytest.mark.parametrize("attributes", [
    {"stat": "10 0 80 5 1 0 8 0 0 5 5 0 0 0 0 0 0"}, {"stat": "10 0 80 5 0 0 0 0 0 5 5 1 0 8 0 0 0"},
    {"diskseq": "77"}, {"size": "4096"}])
async def test_what_may_have_changed_is_read_again(attributes: dict[str, str]) -> None:
    bench = Bench("boot-one")
    await bench.inventory.snapshot()
    bench.tools.read()
    bench.set("vda", **attributes)
    await bench.inventory.snapshot()
    assert bench.tools.read() == ["/dev/vda"]


async def test_reads_do_not_count_as_changes() -> None:
    bench = Bench("boot-one")
    await bench.inventory.snapshot()
    bench.tools.read()
    bench.set("vda", stat="99 0 999 5 0 0 0 0 0 5 5 0 0 0 0 9 9")
    await bench.inventory.snapshot()
    assert bench.tools.read() == []


async def test_a_write_through_a_hidden_path_counts() -> None:
    bench = Bench("multipath")
    await bench.inventory.snapshot()
    bench.tools.read()
    bench.set("nvme0c1n2", stat="10 0 80 5 3 0 24 0 0 5 5 0 0 0 0 0 0")
    await bench.inventory.snapshot()
    assert bench.tools.read() == ["/dev/nvme0n2"]


async def test_a_disk_that_hangs_delays_one_snapshot_and_is_told_when_it_answers(monitors: list[Monitor]) -> None:
    bench = Bench("boot-one")
    answer = bench.tools.hanging["/dev/nvme1n1"] = asyncio.Event()
    bench.tools.outputs["/dev/nvme1n1"] = XFS
    changes = bench.inventory.changes()
    waiting = asyncio.ensure_future(anext(changes))
    hung = await bench.disk("/dev/nvme1n1")
    assert not hung.signatures_complete
    assert not hung.is_blank
    assert (await bench.disk("/dev/vda")).is_blank
    await bench.disk("/dev/nvme1n1")
    assert bench.tools.read().count("/dev/nvme1n1") == 1
    answer.set()
    await asyncio.wait_for(waiting, WAIT_SECONDS)
    done = await bench.disk("/dev/nvme1n1")
    assert [sig.kind for sig in done.signatures] == ["xfs"]
    assert done.signatures_complete
    await changes.aclose()  # type: ignore[attr-defined]


async def test_a_scan_that_fails_is_a_finding_with_the_command_and_is_not_tried_again() -> None:
    bench = Bench("boot-one")
    bench.tools.statuses["/dev/vda"] = 1
    disk = await bench.disk("/dev/vda")
    (finding,) = disk.findings
    assert finding.code == "signatures-unread"
    assert "it said no" in finding.evidence
    assert "$ wipefs --no-act" in finding.evidence
    bench.tools.read()
    assert not (await bench.disk("/dev/vda")).signatures_complete
    assert bench.tools.read() == []


async def test_a_missing_tool_leaves_the_disks_visible() -> None:
    bench = Bench("mixed")
    bench.tools.missing = {"wipefs"}
    snapshot = await bench.inventory.snapshot()
    assert len(snapshot.disks) == 14
    assert [finding.code for finding in snapshot.findings] == ["controller-without-namespace", "storage-without-driver"]


async def test_a_scan_that_died_with_its_event_loop_is_started_again() -> None:
    bench = Bench("boot-one")

    async def interrupted() -> None:
        bench.tools.hanging["/dev/vda"] = asyncio.Event()
        await bench.inventory.snapshot()

    await asyncio.to_thread(asyncio.run, interrupted())
    bench.tools.hanging.clear()
    bench.tools.read()
    disk = await bench.disk("/dev/vda")
    assert disk.signatures_complete
    assert bench.tools.read() == ["/dev/vda"]


# changes -------------------------------------------------------------------------------------------------------------
async def test_an_event_gives_an_item_and_makes_its_disk_be_read_again(monitors: list[Monitor]) -> None:
    bench = Bench("boot-one")
    await bench.inventory.snapshot()
    changes = bench.inventory.changes()
    waiting = asyncio.ensure_future(anext(changes))
    await bench.inventory.snapshot()
    bench.tools.read()
    disk = next(path for path in bench.machine.nodes if path.endswith("/nvme0n1"))
    monitors[0].on_change(frozenset({disk}))
    await asyncio.wait_for(waiting, WAIT_SECONDS)
    await bench.inventory.snapshot()
    assert bench.tools.read() == ["/dev/nvme0n1", "/dev/nvme0n1p1"]


async def test_lost_events_make_everything_be_read_again(monitors: list[Monitor]) -> None:
    bench = Bench("boot-one")
    changes = bench.inventory.changes()
    waiting = asyncio.ensure_future(anext(changes))
    await bench.inventory.snapshot()
    first = bench.tools.read()
    monitors[0].on_change(frozenset({"/"}))
    await asyncio.wait_for(waiting, WAIT_SECONDS)
    await bench.inventory.snapshot()
    assert bench.tools.read() == first


async def test_what_came_between_the_snapshot_and_the_listening_is_not_lost(monitors: list[Monitor]) -> None:
    bench = Bench("boot-one")
    await bench.inventory.snapshot()
    bench.set("vda", diskseq="99")
    await asyncio.wait_for(anext(bench.inventory.changes()), WAIT_SECONDS)
    assert len(monitors) == 1  # and it told of nothing


async def test_the_monitor_is_closed_when_the_listener_is_cancelled(monitors: list[Monitor]) -> None:
    bench = Bench("boot-one")

    async def listen(changes: AsyncIterator[None]) -> None:
        async for _ in changes:
            continue

    listener = asyncio.ensure_future(listen(bench.inventory.changes()))
    await bench.inventory.snapshot()
    listener.cancel()
    await asyncio.wait([listener])
    assert listener.cancelled()
    assert [monitor.closed for monitor in monitors] == [True]


# health --------------------------------------------------------------------------------------------------------------
async def test_the_health_of_an_nvme_disk() -> None:
    bench = Bench("single-nvme")
    bench.tools.outputs = {
        "nvme smart-log": (DATA / "nvme/smart-log-2.3-dying.json").read_bytes(),
        "nvme error-log": (DATA / "nvme/error-log-2.3.json").read_bytes(),
        "nvme id-ctrl": (DATA / "nvme/id-ctrl-2.3.json").read_bytes()}
    health = await bench.inventory.health(await bench.disk("/dev/nvme0n1"))
    assert health.ok is False
    assert len(health.errors) == 3
    assert {"temperature-critical", "read-errors-logged"} <= {finding.code for finding in health.findings}


async def test_health_does_without_what_can_be_missing() -> None:
    bench = Bench("single-nvme")
    bench.tools.outputs = {"nvme smart-log": (DATA / "nvme/smart-log-2.3-healthy.json").read_bytes()}
    bench.tools.statuses = {"nvme error-log": 1, "nvme id-ctrl": -9}
    health = await bench.inventory.health(await bench.disk("/dev/nvme0n1"))
    assert (health.ok, health.errors, health.findings) == (True, (), ())


@pytest.mark.parametrize(("machine_name", "node", "statuses", "words"), [
    ("single-nvme", "/dev/nvme0n1", {"nvme smart-log": 1}, "nvme failed: exit status 1"),
    ("single-nvme", "/dev/nvme0n1", {}, "no critical warning field"),
    ("mixed", "/dev/sda", {}, "without its exit status"),
    ("mixed", "/dev/vda", {}, "ask the host"),
    ("mixed", "/dev/md127", {}, "look at its members"),
])
async def test_health_that_can_not_be_read_says_why(
    machine_name: str, node: str, statuses: dict[str, int], words: str
) -> None:
    bench = Bench(machine_name)
    bench.tools.statuses = statuses
    health = await bench.inventory.health(await bench.disk(node))
    assert words in health.unavailable
    assert health.ok is None


async def test_health_without_the_tool() -> None:
    bench = Bench("mixed")
    bench.tools.missing = {"smartctl"}
    assert "smartctl is not installed" in (await bench.inventory.health(await bench.disk("/dev/sdb"))).unavailable


async def test_the_health_of_other_disks_comes_from_smartctl() -> None:
    bench = Bench("mixed")
    bench.tools.outputs["smartctl --json=c"] = (DATA / "smartctl/sas.json").read_bytes()
    bench.tools.statuses["smartctl --json=c"] = 0x58
    health = await bench.inventory.health(await bench.disk("/dev/sdb"))
    assert (health.source, health.media_errors) == ("smartctl", 4)


async def test_raw_outputs_for_the_case_folder() -> None:
    bench = Bench("mixed")
    bench.tools.statuses = {"nvme error-log": 1}
    assert set(await bench.inventory.raw_health(await bench.disk("/dev/nvme0n1"))) == {
        "smart.json", "id-ctrl.json", "id-ns.json"}
    assert set(await bench.inventory.raw_health(await bench.disk("/dev/sda"))) == {"smart.json"}
    assert await bench.inventory.raw_health(await bench.disk("/dev/loop0")) == {}


async def test_a_live_controller_is_asked() -> None:
    bench = Bench("multipath")
    assert nvme_device(await bench.disk("/dev/nvme0n1")) == "/dev/nvme0"
    bench.set("nvme0", state="dead")
    disk = await bench.disk("/dev/nvme0n1")
    assert disk.namespace is not None
    assert [controller.state for controller in disk.namespace.subsystem.controllers] == ["dead", LIVE]
    assert nvme_device(disk) == "/dev/nvme1"
