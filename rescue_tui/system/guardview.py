"""The write guard as one picture: layers, devices, grants, refused attempts, and what is wrong. Values only.

The files of the grants and the kernel's own view are compared here: each must say what the other says.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rescue_tui.core.access import WriteGrant
from rescue_tui.core.finding import Finding, Severity
from rescue_tui.core.guardstate import (
    ABSENT,
    ARMED,
    PARTIAL,
    UNKNOWN,
    KernelDisk,
    KernelGuardState,
    LastRefusal,
    LayerState,
    RefusedAttempt,
)
from rescue_tui.core.ident import DeviceId
from rescue_tui.core.record import rfc3339
from rescue_tui.system.blockdev import BlockNode
from rescue_tui.system.kernelguard import KERNEL_LAYER, kernel_layers

Dev = tuple[int, int]
# Drivers whose disks keep nothing by themselves: their writes end on a real disk, or in memory.
_ENDS_ELSEWHERE = re.compile(r"^(?:loop|ram|zram|dm-|md|zd)\d")
# A path of an NVMe multipath disk has no device number: it can't be opened, and is judged by the disk it leads to.
_HIDDEN = (0, 0)
# What these refuse is no attempt to write to a disk.
_NO_WRITES = frozenset({"lockdown", "modules"})


@dataclass(frozen=True, slots=True)
class ProtectedDevice:
    """A disk or partition and whether it can be written now; ``granted`` and ``exempt`` say why it may be.

    ``refused`` counts what the kernel refused since the disk was attached, by kind; empty for partitions, and without
    the kernel module. ``flush_kept`` counts flushes that were answered and not sent.
    """

    node: str
    dev: str
    read_only: bool
    granted: bool
    exempt: bool
    refused: Mapping[str, int] = field(default_factory=dict)
    flush_kept: int = 0


@dataclass(frozen=True, slots=True)
class GuardState:
    """What protects, what is protected, what is granted. ``kernel`` is None without the kernel module.

    ``void`` are disks whose grant is on file and not in force in the kernel.
    """

    layers: tuple[LayerState, ...]
    devices: tuple[ProtectedDevice, ...]
    grants: tuple[WriteGrant, ...]
    findings: tuple[Finding, ...]
    kernel: KernelGuardState | None = None
    last: tuple[RefusedAttempt, ...] = ()
    void: tuple[DeviceId, ...] = ()

    @property
    def armed(self) -> bool:
        """True when every layer is armed and nothing is wrong with any device."""
        return self.level == ARMED

    @property
    def level(self) -> str:
        """armed; absent when the kernel module or every layer is missing; else partial."""
        states = {layer.name: layer.state for layer in self.layers}
        if states.get(KERNEL_LAYER, ARMED) in (ABSENT, UNKNOWN) or all(state == ABSENT for state in states.values()):
            return ABSENT
        wrong = any(finding.severity is Severity.ERROR for finding in self.findings)
        return PARTIAL if wrong or any(state != ARMED for state in states.values()) else ARMED

    @property
    def nowhere(self) -> bool:
        """True when no layer at all is there: another system than the Stasis image."""
        return all(layer.state == ABSENT for layer in self.layers)

    @property
    def protected(self) -> int:
        """How many disks and partitions are read-only now."""
        return sum(device.read_only for device in self.devices)

    @property
    def refused(self) -> int | None:
        """Refused attempts to write, or to be able to, from every layer that counts them; None when none counts."""
        counts = [layer.refused for layer in self.layers if layer.refused is not None and layer.name not in _NO_WRITES]
        return sum(counts) if counts else None

    @property
    def refused_by_kind(self) -> Mapping[str, int]:
        """By kind, the attached disks together; empty without the kernel module."""
        return self.kernel.refused_by_kind() if self.kernel is not None else {}

    def to_plain(self) -> dict[str, object]:
        """The fields and what follows from them."""
        kernel = None if self.kernel is None else {
            "version": self.kernel.version, "release": self.kernel.kernel, "armed": self.kernel.armed,
            "sealed": self.kernel.sealed, "hooks": list(self.kernel.hooks), "admin_refused": self.kernel.admin}
        return {"armed": self.armed, "level": self.level, "layers": list(self.layers), "protected": self.protected,
                "refused": self.refused, "refused_by_kind": self.refused_by_kind, "devices": list(self.devices),
                "grants": list(self.grants), "void_grants": list(self.void), "last_refused": list(self.last),
                "kernel": kernel, "findings": list(self.findings)}


def picture(
    nodes: Sequence[BlockNode], grants: Mapping[Dev, WriteGrant], kernel: KernelGuardState | None, problem: str,
    others: Sequence[LayerState], now: datetime,
) -> GuardState:
    """Put the picture together. ``grants`` are those on file, by the disk; ``problem`` as in `kernel_layers`."""
    granted = {grant.generation for grant in grants.values()}
    devices = tuple(_device(node, granted, kernel) for node in nodes)
    void = tuple(grant.device_id for dev, grant in grants.items() if not in_force(kernel, dev, grant.generation))
    findings = [*_open_nodes(nodes, granted, kernel), *_differences(nodes, grants, kernel)]
    last = () if kernel is None else tuple(
        _attempt(each, kernel, now) for each in sorted(kernel.last, key=lambda refusal: refusal.age_ms))
    return GuardState((*kernel_layers(kernel, problem), *others), devices, tuple(grants.values()), tuple(findings),
                      kernel, last, void)


def unprotected(nodes: Sequence[BlockNode], granted: Collection[int]) -> tuple[BlockNode, ...]:
    """Nodes whose read-only flag is clear without a grant or an exemption."""
    return tuple(node for node in nodes
                 if not node.read_only and not node.exempt and node.diskseq not in granted)


def _device(node: BlockNode, granted: Collection[int], kernel: KernelGuardState | None) -> ProtectedDevice:
    known = kernel.disk(node.dev, node.diskseq) if kernel is not None and node.partition is None else None
    return ProtectedDevice(node.node, node.dev_text, node.read_only, node.diskseq in granted, node.exempt,
                           known.refused if known is not None else {}, known.flush_kept if known is not None else 0)


def in_force(kernel: KernelGuardState | None, dev: Dev, diskseq: int) -> bool:
    """Does the kernel let this attachment be written? True without a module to ask."""
    if kernel is None:
        return True
    disk = kernel.disk(dev, diskseq)
    return disk is not None and (disk.granted or not disk.protected)


def _open_nodes(
    nodes: Sequence[BlockNode], granted: Collection[int], kernel: KernelGuardState | None,
) -> Iterator[Finding]:
    behind = " The kernel module still refuses writes." if kernel is not None and kernel.armed else ""
    for node in unprotected(nodes, granted):
        yield Finding(Severity.ERROR, "unprotected",
                      f"{node.node} could be written: its read-only flag is clear.{behind}",
                      f"{node.dev_text}, diskseq {node.diskseq}")


def _differences(
    nodes: Sequence[BlockNode], grants: Mapping[Dev, WriteGrant], kernel: KernelGuardState | None,
) -> Iterator[Finding]:
    """Where the kernel's view and ours part."""
    if kernel is None:
        return
    for dev, grant in grants.items():
        if not in_force(kernel, dev, grant.generation):
            yield Finding(Severity.ERROR, "grant-void",
                          f"The grant of {grant.node} is void: the kernel module does not know it. Release the disk.",
                          f"{dev[0]}:{dev[1]}, diskseq {grant.generation}")
    on_file = {(dev, grant.generation) for dev, grant in grants.items()}
    for disk in kernel.disks:
        if disk.dev == _HIDDEN:
            continue
        if disk.granted and (disk.dev, disk.diskseq) not in on_file:
            yield Finding(Severity.ERROR, "grant-unknown",
                          f"/dev/{disk.name} may be written and Stasis did not grant it. Unplug it, or restart.",
                          _place(disk))
        if not disk.protected and not disk.granted and _ENDS_ELSEWHERE.match(disk.name) is None:
            yield Finding(Severity.ERROR, "unguarded", f"The kernel module does not protect /dev/{disk.name}.",
                          _place(disk))
    listed = {(disk.dev, disk.diskseq) for disk in kernel.disks}
    for node in nodes:
        if node.partition is None and (node.dev, node.diskseq) not in listed \
                and _ENDS_ELSEWHERE.match(node.name) is None:
            yield Finding(Severity.WARNING, "uncounted", f"The kernel module does not count for {node.node}.",
                          f"{node.dev_text}, diskseq {node.diskseq}")


def _place(disk: KernelDisk) -> str:
    return f"{disk.dev[0]}:{disk.dev[1]}, diskseq {disk.diskseq}"


def _attempt(refusal: LastRefusal, kernel: KernelGuardState, now: datetime) -> RefusedAttempt:
    disk = kernel.disk(refusal.dev, refusal.diskseq)
    dev = f"{refusal.dev[0]}:{refusal.dev[1]}"
    device = f"/dev/{disk.name}" if disk is not None else f"{dev} (gone)" if refusal.diskseq else "no disk"
    # To the second: the age is counted in the kernel, and two looks must not differ by a rounding.
    at = (now - timedelta(milliseconds=refusal.age_ms)).replace(microsecond=0)
    return RefusedAttempt(rfc3339(at), device, refusal.what, refusal.opcode, refusal.pid, refusal.comm)
