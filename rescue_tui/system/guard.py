"""The only module that grants a write. Every other module gets a `WriteGrant` from here or can't write at all.

A grant is a set of files ``grants/<major>:<minor>.<diskseq>`` (the disk and each partition), so the TUI, the command
line and the jobs share it, and the udev rule leaves exactly those nodes writable. What enforces it is a list of layers;
today the kernel's read-only flag, and whatever implements `Layer` slots in beside it.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from rescue_tui.core.access import WriteGrant
from rescue_tui.core.device import Disk
from rescue_tui.core.errors import DeviceError, PolicyRefusal, RescueError, SetupError
from rescue_tui.core.finding import Finding, Severity
from rescue_tui.core.ident import DeviceId
from rescue_tui.core.record import rfc3339
from rescue_tui.core.text import printable
from rescue_tui.system import blockdev
from rescue_tui.system.blockdev import BlockNode
from rescue_tui.system.durable import replace_file
from rescue_tui.system.workspace import Workspace

RULE = Path("/usr/lib/udev/rules.d/00-stasis-readonly.rules")


@dataclass(frozen=True, slots=True)
class LayerState:
    """One layer of the guard: ``state`` is armed, partial (some device is not covered) or absent.

    ``refused`` counts the write attempts that the layer refused; None when it does not count, and ``detail`` says so.
    """

    name: str
    state: str
    detail: str
    refused: int | None = None


@dataclass(frozen=True, slots=True)
class ProtectedDevice:
    """A disk or partition and whether it can be written now; ``granted`` and ``exempt`` say why it may be."""

    node: str
    dev: str
    read_only: bool
    granted: bool
    exempt: bool


@dataclass(frozen=True, slots=True)
class GuardState:
    """What protects, what is protected, what is granted. ``refused`` is None while no layer counts attempts."""

    layers: tuple[LayerState, ...]
    devices: tuple[ProtectedDevice, ...]
    grants: tuple[WriteGrant, ...]
    findings: tuple[Finding, ...]

    @property
    def armed(self) -> bool:
        """True when at least one layer is armed and no device is left open."""
        return any(layer.state == "armed" for layer in self.layers) and not self.findings

    @property
    def protected(self) -> int:
        """How many disks and partitions are read-only now."""
        return sum(device.read_only for device in self.devices)

    @property
    def refused(self) -> int | None:
        """Refused write attempts, from every layer that counts them."""
        counts = [layer.refused for layer in self.layers if layer.refused is not None]
        return sum(counts) if counts else None

    def to_plain(self) -> dict[str, object]:
        """The fields and what follows from them."""
        return {"armed": self.armed, "layers": list(self.layers), "protected": self.protected, "refused": self.refused,
                "devices": list(self.devices), "grants": list(self.grants), "findings": list(self.findings)}


class Layer(Protocol):
    """One mechanism that refuses writes. Every call is idempotent; errors are RescueErrors."""

    def open(self, nodes: Sequence[BlockNode]) -> None:
        """Let these nodes, a disk and its partitions, be written."""

    def close(self, nodes: Sequence[BlockNode]) -> None:
        """Refuse writes to these nodes again."""

    def state(self, unprotected: Sequence[BlockNode]) -> LayerState:
        """How the layer stands; ``unprotected`` are nodes without grant or exemption whose flag is clear."""


class ReadOnlyFlag:
    """The kernel's read-only flag, set by udev at every add and change, cleared and set here for grants."""

    def __init__(self, rule: Path = RULE) -> None:
        self._rule = rule

    def open(self, nodes: Sequence[BlockNode]) -> None:
        """Clear the flag where it is set."""
        for node in nodes:
            if node.read_only:
                blockdev.set_read_only(node, False)

    def close(self, nodes: Sequence[BlockNode]) -> None:
        """Set the flag, the disk's first: it covers its partitions."""
        for node in nodes:
            blockdev.set_read_only(node, True)

    def state(self, unprotected: Sequence[BlockNode]) -> LayerState:
        """Armed when the udev rule is installed and no device is left open."""
        counting = "Refused attempts are not counted by this layer."
        if not self._rule.exists():
            return LayerState("read-only flag", "absent",
                              f"The udev rule {self._rule.name} is not installed: this is not the Stasis image.")
        if unprotected:
            return LayerState("read-only flag", "partial", f"{len(unprotected)} nodes are open. {counting}")
        return LayerState("read-only flag", "armed", f"Set by udev at every add and change. {counting}")


class WriteGuard:
    """Grants, redeems and revokes; see the module. ``sysfs`` and ``layers`` differ only in tests."""

    def __init__(
        self, workspace: Workspace, layers: Sequence[Layer] | None = None, sysfs: Path = blockdev.SYSFS,
    ) -> None:
        self._workspace = workspace
        self._layers: tuple[Layer, ...] = tuple(layers) if layers is not None else (ReadOnlyFlag(),)
        self._sysfs = sysfs

    # grants ----------------------------------------------------------------------------------------------------------
    def grant(self, disk: Disk) -> WriteGrant:
        """Open a disk and its partitions for writing. Only `Destinations` calls this, after the gate said yes.

        An existing grant of the same attachment is returned. DeviceError when the disk is not what it was,
        PolicyRefusal when the hardware keeps it read-only; then it is closed again.
        """
        if disk.generation <= 0:
            raise SetupError(f"The kernel tells no diskseq of {disk.node}, so a grant could outlive a re-plug.",
                             "Stasis needs Linux 5.15 or newer.")
        with self._locked():
            nodes = self._nodes(disk.dev, disk.generation)
            blockdev.check_node(disk.node, disk.dev)
            held = self._load().get(nodes[0].dev)
            if held is not None and held.device_id == disk.id:
                grant = held
            else:
                grant = WriteGrant(disk.id, disk.generation, disk.node, disk.serial, rfc3339(datetime.now(UTC)),
                                   secrets.token_hex(16))
            self._write(grant, nodes)
            try:
                self._open(nodes)
            except RescueError:
                self._close(disk.dev, disk.generation)
                raise
            return grant

    def _open(self, nodes: tuple[BlockNode, ...]) -> None:
        for layer in self._layers:
            layer.open(nodes)
        locked = [node.node for node in self._nodes(nodes[0].dev, nodes[0].diskseq) if node.read_only]
        if locked:
            raise PolicyRefusal(f"{', '.join(locked)} stays read-only: the hardware is write protected.",
                                "Look for a lock switch on the disk or its case, or use another disk.")

    def renew(self, grant: WriteGrant) -> tuple[BlockNode, ...]:
        """Extend a grant to partitions that appeared since; the disk and its partitions, all writable now."""
        with self._locked():
            nodes = self._nodes(self._dev_of(grant), grant.generation)
            self._write(grant, nodes)
            self._open(nodes)
            return self._nodes(nodes[0].dev, grant.generation)

    def redeem(self, grant: WriteGrant) -> None:
        """Called by the Runner before it starts a command that writes: PolicyRefusal or DeviceError when void."""
        with self._locked():
            dev = self._dev_of(grant)
        self._nodes(dev, grant.generation)
        blockdev.check_node(grant.node, dev)

    def revoke(self, grant: WriteGrant) -> None:
        """Close the disk and its partitions and forget the grant; fine when the disk is gone or was revoked."""
        with self._locked():
            for dev, held in self._load().items():
                if held.generation == grant.generation and held.device_id == grant.device_id:
                    self._close(dev, grant.generation)

    def _close(self, dev: tuple[int, int], generation: int) -> None:
        # The flag first: after a crash in between, a closed disk with a grant is harmless, an open one without is not.
        try:
            nodes = self._nodes(dev, generation)
        except DeviceError:
            nodes = ()
        for layer in self._layers if nodes else ():
            layer.close(nodes)
        self._forget(generation)

    def protect(self, disk: Disk) -> None:
        """Close a disk that has no grant and that the udev rule did not see. DeviceError when it changed."""
        with self._locked():
            if disk.dev in self._load():
                raise PolicyRefusal(f"{disk.node} is granted.", "Release the destination first.")
            nodes = self._nodes(disk.dev, disk.generation)
            for layer in self._layers:
                layer.close(nodes)

    def grants(self) -> Mapping[DeviceId, WriteGrant]:
        """Every grant in force; those whose disk was unplugged are dropped."""
        with self._locked():
            return {grant.device_id: grant for grant in self._load().values()}

    # state -----------------------------------------------------------------------------------------------------------
    def state(self) -> GuardState:
        """What every layer says, every device's actual flag, and a finding for each that is open without a grant."""
        with self._locked():
            grants = self._load()
            granted = {grant.generation for grant in grants.values()}
        nodes = blockdev.all_nodes(self._sysfs)
        devices = tuple(
            ProtectedDevice(node.node, node.dev_text, node.read_only, node.diskseq in granted, node.exempt)
            for node in nodes)
        unprotected = [node for node in nodes
                       if not node.read_only and not node.exempt and node.diskseq not in granted]
        findings = tuple(
            Finding(Severity.ERROR, "unprotected", f"{node.node} could be written: its read-only flag is clear.",
                    f"{node.dev_text}, diskseq {node.diskseq}") for node in unprotected)
        return GuardState(tuple(layer.state(unprotected) for layer in self._layers), devices,
                          tuple(grants.values()), findings)

    # files -----------------------------------------------------------------------------------------------------------
    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self._workspace.ensure() / "guard.lock"
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SetupError(f"{lock} can't be opened: {error.strerror}.",
                             "Run as root, or set STASIS_STATE.") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _nodes(self, dev: tuple[int, int], generation: int) -> tuple[BlockNode, ...]:
        nodes = blockdev.nodes_of(dev, self._sysfs)
        if nodes[0].diskseq != generation or nodes[0].partition is not None:
            raise DeviceError(f"{nodes[0].node} was plugged again since it was chosen.",
                              "Look at the list of devices again; a grant ends when the disk is unplugged.",
                              f"expected diskseq {generation}, is {nodes[0].diskseq}")
        return nodes

    def _dev_of(self, grant: WriteGrant) -> tuple[int, int]:
        for dev, held in self._load().items():
            if hmac.compare_digest(held.token, grant.token) and held == grant:
                return dev
        raise PolicyRefusal(f"The grant for {grant.device_id} is not in force.",
                            "Grant the destination again; a grant ends with release or when the disk is unplugged.")

    def _load(self) -> dict[tuple[int, int], WriteGrant]:
        """Grants by device number of the disk. Files of disks that are gone are removed on the way."""
        found: dict[tuple[int, int], WriteGrant] = {}
        for path in sorted(self._workspace.grants_dir.glob("*:*.*")):
            dev_text, _, generation = path.name.rpartition(".")
            major, _, minor = dev_text.partition(":")
            if not (major.isdecimal() and minor.isdecimal() and generation.isdecimal()):
                continue
            dev = int(major), int(minor)
            if not self._is_attached(dev, int(generation)):
                path.unlink(missing_ok=True)
                continue
            with suppress(ValueError, KeyError, OSError):
                value = json.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))
                if "token" in value:
                    found[dev] = WriteGrant(
                        DeviceId.parse(value["device_id"]), int(value["generation"]), value["node"], value["serial"],
                        value["granted_at"], value["token"])
        return found

    def _is_attached(self, dev: tuple[int, int], generation: int) -> bool:
        try:
            return blockdev.block_node(dev, self._sysfs).diskseq == generation
        except DeviceError:
            return False

    def _write(self, grant: WriteGrant, nodes: Sequence[BlockNode]) -> None:
        directory = self._workspace.ensure("grants")
        # The disk's file last: a grant exists when it does.
        for node in reversed(nodes):
            whole = {"device_id": str(grant.device_id), "generation": grant.generation, "node": grant.node,
                     "serial": grant.serial, "granted_at": grant.granted_at, "token": grant.token}
            value = whole if node.partition is None else {"partition": node.partition, "of": printable(grant.node)}
            _replace(directory / f"{node.dev_text}.{grant.generation}", json.dumps(value))

    def _forget(self, generation: int) -> None:
        for path in self._workspace.grants_dir.glob(f"*:*.{generation}"):
            path.unlink(missing_ok=True)


def _replace(path: Path, text: str) -> None:
    # Beside, then renamed: no reader sees half a file. These lie in RAM, so nothing has to be flushed.
    try:
        replace_file(path, text.encode("utf-8", "surrogateescape"), sync=False, mode=0o600)
    except OSError as error:
        raise SetupError(f"{path} can't be written: {error.strerror}.", "Is /run full? Free some memory.") from error
