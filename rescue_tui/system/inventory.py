"""What is plugged in: snapshots, health, and the news that something changed.

Media is read by child processes only (wipefs, nvme, smartctl), each with a deadline. A disk that hangs delays the first
snapshot by `PATIENCE_SECONDS` and no later one: its scan goes on beside, and `Inventory.changes` tells when it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from rescue_tui.core.command import Command
from rescue_tui.core.device import DeviceKind, Disk, ErrorLogEntry, Health
from rescue_tui.core.disks import SignatureScan, build_disks, machine_findings, scan_targets
from rescue_tui.core.errors import FormatError, RescueError
from rescue_tui.core.machine import Machine, SysNode
from rescue_tui.core.namespaces import LIVE
from rescue_tui.core.snapshot import Snapshot
from rescue_tui.core.text import printable
from rescue_tui.core.tooltext.nvme import (
    TemperatureLimits,
    findings_of,
    parse_error_log,
    parse_smart_log,
    parse_temperature_limits,
)
from rescue_tui.core.tooltext.smartctl import parse_smartctl
from rescue_tui.system.runner import Runner
from rescue_tui.system.sysfs import read_machine
from rescue_tui.system.tools import nvme, smartctl
from rescue_tui.system.tools.wipefs import read_signatures
from rescue_tui.system.udev import Settled, database

PATIENCE_SECONDS = 3.0
_SCANS_AT_ONCE = 16
_NO_HEALTH: Mapping[DeviceKind, str] = {
    DeviceKind.VIRTIO: "A virtio disk has no health data: ask the host.",
    DeviceKind.MMC: "Nothing here reads the health of MMC and SD cards.",
    DeviceKind.LOOP: "A loop device has no health data: look at the disk that holds its file.",
    DeviceKind.MD: "An md array has no health data: look at its members.",
    DeviceKind.DM: "A device-mapper volume has no health data: look at the disks below it.",
    DeviceKind.ZRAM: "A RAM disk has no health data.",
    DeviceKind.RAM: "A RAM disk has no health data.",
    DeviceKind.OPTICAL: "An optical drive has no health data.",
}


@dataclass(frozen=True, slots=True)
class _ScanKey:
    """What must be the same for a finished scan to hold: the attachment, the place, and that nothing was written."""

    path: str
    generation: int
    start: int
    size: int
    written: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Scan:
    task: asyncio.Task[SignatureScan]
    started: float


def machine_now() -> Machine:
    """This machine, with the udev database."""
    return read_machine(udev=database())


class Inventory:
    """The disks of this machine. ``read`` gives the raw machine; tests hand in a recorded one."""

    def __init__(
        self, runner: Runner, read: Callable[[], Machine] = machine_now, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._runner = runner
        self._read = read
        self.patience_seconds = patience_seconds
        self._scans: dict[_ScanKey, _Scan] = {}
        self._slots: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        self._listeners: set[Callable[[], None]] = set()
        self._seen: frozenset[tuple[str, str, str]] | None = None

    # snapshots -----------------------------------------------------------------------------------------------------
    async def snapshot(self) -> Snapshot:
        """Every disk now, ordered by identity, with all signatures that could be read so far.

        A scan that failed or still runs is a ``signatures-unread`` finding of its disk (`Disk.signatures_complete`).
        """
        machine = await asyncio.to_thread(self._read)
        self._seen = _fingerprint(machine)
        scans = await self._signatures(machine)
        return Snapshot(datetime.now(UTC), build_disks(machine, scans), machine.boot_part_uuid,
                        machine_findings(machine))

    async def _signatures(self, machine: Machine) -> dict[str, SignatureScan]:
        loop = asyncio.get_running_loop()
        wanted = _scan_keys(machine)
        for key in [key for key in self._scans if key not in wanted]:
            self._scans.pop(key).task.cancel()
        for key, node in wanted.items():
            known = self._scans.get(key)
            # A scan that an earlier event loop took down with it is as good as none.
            if known is None or known.task.cancelled():
                task = loop.create_task(self._scan(node.node), name=f"signatures of {node.path}")
                self._scans[key] = _Scan(task, loop.time())
        running = {scan.task: scan for key in wanted if not (scan := self._scans[key]).task.done()}
        if running:
            until = max(scan.started for scan in running.values()) + self.patience_seconds
            await asyncio.wait(running, timeout=max(0.0, until - loop.time()))
        return {node.path: self._result(key, node) for key, node in wanted.items()}

    def _result(self, key: _ScanKey, node: SysNode) -> SignatureScan:
        scan = self._scans.get(key)
        if scan is not None and scan.task.done() and not scan.task.cancelled():
            return scan.task.result()
        if scan is not None:
            scan.task.add_done_callback(self._scan_ended)
        return SignatureScan(problem=f"The signatures of {printable(node.node)} are still being read.")

    def _scan_ended(self, _task: asyncio.Task[SignatureScan]) -> None:
        for tell in tuple(self._listeners):
            tell()

    async def _scan(self, node: str) -> SignatureScan:
        loop = asyncio.get_running_loop()
        if self._slots is None or self._slots[0] is not loop:
            self._slots = (loop, asyncio.Semaphore(_SCANS_AT_ONCE))
        try:
            async with self._slots[1]:
                return SignatureScan(await read_signatures(self._runner, node))
        except RescueError as error:
            problem = f"The signatures of {printable(node)} can't be read: {error.summary}"
            return SignatureScan(problem=problem, evidence=error.evidence)

    # changes -------------------------------------------------------------------------------------------------------
    async def changes(self) -> AsyncIterator[None]:
        """One item whenever udev has settled after a change, and when a slow scan has ended; ends by cancellation.

        What changed between the last snapshot and the first item is not lost: it gives an item at once.
        """
        wake = asyncio.Event()

        def settled(paths: frozenset[str]) -> None:
            self._forget(paths)
            wake.set()

        monitor = Settled(settled)
        self._listeners.add(wake.set)
        try:
            if self._seen is not None and self._seen != _fingerprint(await asyncio.to_thread(self._read)):
                wake.set()
            while True:
                await wake.wait()
                wake.clear()
                yield None
        finally:
            self._listeners.discard(wake.set)
            monitor.close()

    def _forget(self, paths: frozenset[str]) -> None:
        """Read again what an event was about. A scan that still runs stays: a hung disk must not collect readers."""
        for key, scan in tuple(self._scans.items()):
            if scan.task.done() and any(f"{key.path}/".startswith(f"{path.rstrip('/')}/") for path in paths):
                del self._scans[key]

    # health --------------------------------------------------------------------------------------------------------
    async def health(self, disk: Disk) -> Health:
        """SMART and error log. Never raises: ``unavailable`` says why a disk tells nothing."""
        if disk.kind is DeviceKind.NVME:
            return await self._nvme_health(disk)
        if disk.kind in _NO_HEALTH:
            return Health(unavailable=_NO_HEALTH[disk.kind])
        try:
            done = await self._runner.run(smartctl.health_command(disk.node))
            return parse_smartctl(done.stdout)
        except RescueError as error:
            return Health(source="smartctl", unavailable=str(error))

    async def raw_health(self, disk: Disk) -> dict[str, bytes]:
        """What the tools print about the health of a disk, for the case folder.

        Keys are file names: smart.json, error-log.json, id-ctrl.json, id-ns.json; what can't be read is left out.
        """
        if disk.kind is DeviceKind.NVME:
            device = nvme_device(disk)
            commands = {"smart.json": nvme.smart_log_command(device), "error-log.json": nvme.error_log_command(device),
                        "id-ctrl.json": nvme.id_ctrl_command(device)}
            if disk.namespace is not None and disk.namespace.nsid:
                commands["id-ns.json"] = nvme.id_ns_command(device, disk.namespace.nsid)
        elif disk.kind in _NO_HEALTH:
            commands = {}
        else:
            commands = {"smart.json": smartctl.health_command(disk.node)}
        outputs = await asyncio.gather(*(self._output(command) for command in commands.values()))
        return {name: output for name, output in zip(commands, outputs, strict=True) if output}

    async def _output(self, command: Command) -> bytes:
        try:
            return (await self._runner.run(command)).stdout
        except RescueError:
            return b""  # the health values say why; a folder of raw outputs just lacks the file

    async def _nvme_health(self, disk: Disk) -> Health:
        device = nvme_device(disk)
        smart, errors, limits = await asyncio.gather(
            self._smart(device), self._errors(device), self._limits(device))
        if smart.unavailable:
            return smart
        health = replace(smart, errors=errors)
        return replace(health, findings=findings_of(health, limits))

    async def _smart(self, device: str) -> Health:
        try:
            return parse_smart_log((await self._runner.run(nvme.smart_log_command(device))).stdout)
        except RescueError as error:
            return Health(source="nvme", unavailable=str(error))

    async def _errors(self, device: str) -> tuple[ErrorLogEntry, ...]:
        try:
            return parse_error_log(await self._output(nvme.error_log_command(device)))
        except FormatError:
            return ()  # optional beside the SMART log

    async def _limits(self, device: str) -> TemperatureLimits:
        try:
            return parse_temperature_limits(await self._output(nvme.id_ctrl_command(device)))
        except FormatError:
            return TemperatureLimits()


def nvme_device(disk: Disk) -> str:
    """The character device to ask about an NVMe disk: a live controller, since the namespace itself may hang."""
    controllers = disk.namespace.subsystem.controllers if disk.namespace is not None else ()
    best = sorted(controllers, key=lambda controller: (controller.state != LIVE, controller.name))
    return f"/dev/{best[0].name}" if best else disk.node


def _fingerprint(machine: Machine) -> frozenset[tuple[str, str, str]]:
    return frozenset((node.path, node.attr("diskseq"), node.attr("size")) for node in machine.of("block"))


def _scan_keys(machine: Machine) -> dict[_ScanKey, SysNode]:
    hidden: dict[str, list[SysNode]] = {}
    for node in machine.whole_disks():
        if node.attr("hidden").strip() == "1" and node.attr("wwid"):
            hidden.setdefault(node.attr("wwid"), []).append(node)
    return {_scan_key(machine, node, hidden): node for node in scan_targets(machine)}


def _scan_key(machine: Machine, node: SysNode, hidden: Mapping[str, list[SysNode]]) -> _ScanKey:
    above = machine.ancestors(node.path)
    whole = next((item for item in above if item.subsystem == "block"), node) if "partition" in node.attrs else node
    return _ScanKey(node.path, whole.number("diskseq"), node.number("start"), node.number("size"),
                    _written((whole, *hidden.get(whole.attr("wwid"), ()))))


def _written(nodes: tuple[SysNode, ...]) -> tuple[str, ...]:
    """Counters of completed writes and discards of a disk (Documentation/block/stat.rst), of each NVMe path too.

    As long as they stand still nobody has changed a signature, whether or not an event told of it.
    """
    counters: list[str] = []
    for node in nodes:
        fields = node.attr("stat").split()
        counters += [fields[at] for at in (4, 6, 11) if at < len(fields)]
    return tuple(counters)
