"""Destinations: from a disk that is a source like any other to one that is granted, formatted, mounted and proven.

Every step is journaled before it is done. The decisions are core.access's, the capability is the guard's.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from rescue_tui.core.access import GateDecision, Role, WriteGrant, assign_roles, confirm_serial, decide
from rescue_tui.core.command import Command
from rescue_tui.core.device import SIGNATURES_UNREAD, Disk
from rescue_tui.core.errors import (
    CommandError,
    DeviceError,
    PolicyRefusal,
    RescueError,
    SetupError,
    SpaceError,
    UsageError,
)
from rescue_tui.core.ident import DeviceId
from rescue_tui.core.imaging import DestinationSpace
from rescue_tui.core.mountplan import destination_plan, max_file_bytes
from rescue_tui.core.placement import choose_filesystem, where
from rescue_tui.core.snapshot import Snapshot
from rescue_tui.core.text import printable
from rescue_tui.core.tooltext.mountinfo import MountEntry
from rescue_tui.system import blockdev, testwrite
from rescue_tui.system.guard import WriteGuard
from rescue_tui.system.ledger import Ledger, MountedDestination
from rescue_tui.system.mounttable import is_writable, mount_of, mount_table, mounted_at
from rescue_tui.system.patience import Call, within
from rescue_tui.system.runner import Runner, failure
from rescue_tui.system.tools import mkfs
from rescue_tui.system.tools import mount as mount_tool
from rescue_tui.system.workspace import Workspace

_PATIENCE_SECONDS = 5.0
_CLOSE_SECONDS = 120.0
_GLANCE_SECONDS = 0.05
_VOID = "Its grant is void: the kernel's write guard does not know it. Release it, then grant it again."


class JournalSink(Protocol):
    """What is needed of the journal."""

    def append(self, event: str, **detail: object) -> object:
        """Add an entry and flush it."""


@dataclass(frozen=True, slots=True)
class DestinationState:
    """A granted disk as it stands. ``mount_point`` is empty and ``space`` None until it is mounted.

    ``present`` is False when it was pulled; ``problem`` says in a sentence what is wrong, empty when nothing is.
    """

    device_id: DeviceId
    serial: str
    node: str
    mount_point: str
    space: DestinationSpace | None
    granted_at: str = ""
    present: bool = True
    problem: str = ""


class Destinations:
    """The only way that a device becomes writable."""

    def __init__(self, runner: Runner, guard: WriteGuard, journal: JournalSink, workspace: Workspace) -> None:
        self._runner = runner
        self._guard = guard
        self._journal = journal
        self._workspace = workspace
        self._ledger = Ledger(workspace)
        self._glances: dict[str, Call[int]] = {}

    # roles -----------------------------------------------------------------------------------------------------------
    def _own_dirs(self) -> tuple[str, ...]:
        return (os.path.realpath(self._workspace.root),)

    def roles(self, snapshot: Snapshot) -> Mapping[DeviceId, Role]:
        """The role of every disk; see core.access."""
        return assign_roles(snapshot, self._guard.grants(), self._ledger.sources(), self._own_dirs())

    def gate(self, snapshot: Snapshot, disk: Disk, *, internal: bool = False) -> GateDecision:
        """May this disk become the destination? See core.access."""
        return decide(snapshot, disk, grants=self._guard.grants(), session_sources=self._ledger.sources(),
                      own_dirs=self._own_dirs(), internal=internal)

    def note_source(self, device_id: DeviceId) -> None:
        """Remember that this disk is imaged: it can't become a destination in this session any more."""
        if device_id in self._guard.grants():
            raise PolicyRefusal(f"{device_id} is granted as a destination, so it can't be a source.",
                                "Release it first.")
        self._journal.append("source.noted", device_id=device_id)
        self._ledger.add_source(device_id)

    # grant -----------------------------------------------------------------------------------------------------------
    async def grant(self, snapshot: Snapshot, disk: Disk, confirm: str, *, internal: bool = False) -> WriteGrant:
        """Open one disk for writing. PolicyRefusal with every reason of the gate, or for a wrong serial."""
        await self._forget_pulled()
        current = _current(snapshot, disk)
        decision = self.gate(snapshot, current, internal=internal)
        if not decision.allowed:
            codes = [finding.code for finding in decision.refusals]
            self._journal.append("destination.refused", device_id=current.id, reasons=codes)
            reasons = [f"{finding.summary} {finding.evidence}".strip() for finding in decision.refusals]
            more = f" ({len(reasons)} reasons)" if len(reasons) > 1 else ""
            raise PolicyRefusal(f"{decision.refusals[0].summary}{more}",
                                "Pick another disk; `stasis devices` shows the role of each.", "\n".join(reasons))
        self._confirm(current, confirm)
        self._journal.append("destination.granting", device_id=current.id, serial=printable(current.serial),
                             node=current.node, generation=current.generation, internal=internal,
                             warnings=[finding.code for finding in decision.warnings])
        grant = self._guard.grant(current)
        self._journal.append("destination.granted", grant=grant)
        return grant

    def _confirm(self, disk: Disk, typed: str) -> None:
        try:
            confirm_serial(disk, typed)
        except PolicyRefusal:
            self._journal.append("destination.refused", device_id=disk.id, reasons=["serial-not-confirmed"])
            raise

    def _grant_of(self, disk: Disk) -> WriteGrant:
        grant = self._guard.grants().get(disk.id)
        if grant is None or grant.generation != disk.generation:
            raise PolicyRefusal(f"{disk.node} is not granted.",
                                f"Grant it first: stasis destination grant {disk.id} --confirm SERIAL.")
        return grant

    # format ----------------------------------------------------------------------------------------------------------
    async def format(self, snapshot: Snapshot, disk: Disk, filesystem: str, confirm: str) -> None:
        """One GPT partition with a new file system on a granted, blank disk.

        PolicyRefusal when it is not granted, not blank, in use, or for a wrong serial; CommandError when a tool fails.
        """
        mkfs.check_filesystem(filesystem)
        current = _current(snapshot, disk)
        grant = self._grant_of(current)
        _check_read(current)
        if not current.is_blank:
            kinds = sorted({printable(sig.kind) for sig in current.all_signatures}) or ["partitions"]
            raise PolicyRefusal(f"{current.node} is not blank: it holds {', '.join(kinds)}.",
                                "Stasis erases nothing. Use it as it is, or use a blank disk.")
        if current.all_mounts or current.all_holders:
            raise PolicyRefusal(f"{current.node} is in use.", "Unmount it first.")
        self._confirm(current, confirm)
        self._journal.append("destination.formatting", device_id=current.id, filesystem=filesystem)
        await self._runner.run(mkfs.partition(current.node, filesystem, grant))
        await self._runner.run(mkfs.tell_kernel(current.node))
        await self._settle()
        parts = [node for node in self._guard.renew(grant) if node.partition is not None]
        if len(parts) != 1:
            raise CommandError(f"The new partition of {current.node} did not appear ({len(parts)} found).",
                               "Look at the kernel log; unplug the disk and try again.")
        await self._runner.run(mkfs.make(parts[0].node, filesystem, grant))
        if self._runner.has("udevadm"):
            for node in (current.node, parts[0].node):
                await self._runner.attempt(mkfs.announce(node))
        await self._settle()
        probe = await self._runner.run(mkfs.probe_type(parts[0].node))
        found = printable(probe.stdout.strip())
        if found != filesystem:
            raise CommandError(f"{parts[0].node} was formatted with {filesystem}, but holds {found or 'nothing'} now.",
                               "The disk may be failing, or lie about its size. Use another one.", probe.command.line)
        self._journal.append("destination.formatted", device_id=current.id, filesystem=filesystem, node=parts[0].node)

    async def _settle(self) -> None:
        if self._runner.has("udevadm"):
            await self._runner.attempt(mkfs.settle())

    # mount -----------------------------------------------------------------------------------------------------------
    async def mount(self, snapshot: Snapshot, disk: Disk, partition: int | None = None) -> DestinationSpace:
        """Mount the granted disk's file system for writing and prove it by a test write.

        UsageError when there is no, or more than one, file system to choose from; DeviceError when what is read back
        differs or the mount came out read-only; SpaceError when not even the test fits. It is unmounted then.
        """
        await self._forget_pulled()
        current = _current(snapshot, disk)
        grant = self._grant_of(current)
        record = self._ledger.destination(current.id)
        if record is not None and record.space is not None and mounted_at(record.mount_point) is not None:
            return await self._space(record)
        _check_read(current)
        number, kind = choose_filesystem(current, partition)
        plan = destination_plan(kind)
        node = next((node for node in self._guard.renew(grant) if node.partition == number), None)
        if node is None:
            raise DeviceError(f"Partition {number} of {current.node} is gone.", "Look at the list of devices again.")
        blockdev.check_node(node.node, node.dev)
        point = self._ledger.mount_point(current.id, current.serial)
        record = MountedDestination(current.id, current.generation, current.serial, node.node, point, kind)
        self._journal.append("destination.mounting", device_id=current.id, node=node.node, filesystem=kind,
                             options=list(plan.options), mount_point=point)
        self._ledger.put(record)
        command = mount_tool.mount(plan, node.node, point, grant)
        done = await self._runner.attempt(command)
        if not done.ok:
            self._ledger.drop(current.id)
            if b"unknown filesystem type" in done.stderr:
                raise SetupError(f"This kernel has no driver for {kind}.", "Use a destination with ext4 or XFS.",
                                 command.line)
            raise failure(done)
        try:
            entry = mounted_at(point)
            if entry is None or not is_writable(entry):
                raise DeviceError(f"{node.node} could be mounted for reading only.",
                                  "Its file system may have errors: check it on another machine, or use another disk.")
            space = await self._test_write(point, kind)
        except RescueError:
            await self._unmount(point, lazy=False)
            self._ledger.drop(current.id)
            raise
        self._ledger.put(replace(record, space=space))
        self._journal.append("destination.mounted", device_id=current.id, space=space)
        return space

    async def _test_write(self, point: str, kind: str) -> DestinationSpace:
        command = Command((sys.executable, "-I", os.path.abspath(testwrite.__file__), point), deadline_seconds=180)
        done = await self._runner.run(command)
        try:
            found = json.loads(done.stdout)
        except ValueError as error:
            raise failure(done) from error
        if not found["ok"]:
            words = printable(str(found["error"]))
            if found["errno"] == "ENOSPC":
                raise SpaceError("The destination is full: not even a test of 1 MiB fits.",
                                 "Free space on it, or use another.")
            raise DeviceError(f"The test write to the destination failed: {words}", "Use another disk.", command.line)
        return DestinationSpace(point, kind, int(found["free_bytes"]), bool(found["sparse"]),
                                bool(found["preallocate"]), bool(found["direct_io"]), max_file_bytes(kind))

    # release ---------------------------------------------------------------------------------------------------------
    async def release(self, snapshot: Snapshot, disk: Disk) -> None:
        """Unmount, flush, revoke. PolicyRefusal while something writes there; UsageError when nothing is granted."""
        grant = self._guard.grants().get(disk.id)
        record = self._ledger.destination(disk.id)
        if grant is None:
            await self._forget_pulled()
            if record is None:
                raise UsageError(f"{disk.node} is not a destination.", "`stasis destination list` shows which are.")
            return
        self._journal.append("destination.releasing", device_id=disk.id)
        if record is not None:
            await self._unmount_or_refuse(record.mount_point)
        dev = _current(snapshot, disk).dev
        nodes = blockdev.nodes_of(dev)
        others = [entry.target for entry in mount_table() if is_writable(entry) and _is_on(entry, nodes)]
        if others:
            raise PolicyRefusal(f"{disk.node} is also mounted at {printable(', '.join(others))}.",
                                "Unmount that first.")
        try:
            for node in nodes:
                await self._runner.run(mount_tool.flush(node.node))
        finally:
            # The kernel flushes once more before it closes the disk, which a failing one can make long.
            await within(_CLOSE_SECONDS, disk.node, lambda: self._guard.revoke(grant))
            self._ledger.drop(disk.id)
        still_open = [node.node for node in blockdev.nodes_of(dev) if not node.read_only]
        if still_open:
            raise DeviceError(f"{', '.join(still_open)} did not become read-only again.", "Unplug the disk.")
        self._journal.append("destination.released", device_id=disk.id)

    async def _unmount(self, point: str, *, lazy: bool) -> bool:
        if mounted_at(point) is not None:
            await self._runner.attempt(mount_tool.unmount(point, lazy=lazy))
        return mounted_at(point) is None

    async def _unmount_or_refuse(self, point: str) -> None:
        if not await self._unmount(point, lazy=False):
            holders = holders_of(point)
            raise PolicyRefusal(
                "The destination is in use, so it was not released.",
                "Pause or cancel the job that writes there, close every shell in it, then try again.",
                f"in use by: {', '.join(holders)}" if holders else point)

    async def _forget_pulled(self) -> None:
        """Take away the mounts of destinations that were unplugged; their data can't be written any more."""
        grants = self._guard.grants()
        for record in self._ledger.destinations():
            grant = grants.get(record.device_id)
            if grant is not None and grant.generation == record.generation:
                continue
            self._journal.append("destination.lost", device_id=record.device_id, mount_point=record.mount_point)
            if await self._unmount(record.mount_point, lazy=True):
                self._ledger.drop(record.device_id)

    # state -----------------------------------------------------------------------------------------------------------
    def states(self) -> tuple[DestinationState, ...]:
        """Granted disks, and pulled ones that were mounted. Waits for no disk longer than a blink, raises for none."""
        grants = self._guard.grants()
        records = {record.device_id: record for record in self._ledger.destinations()}
        void = self._guard.void()
        found = []
        for device_id, grant in grants.items():
            record = records.get(device_id)
            broken = _VOID if device_id in void else ""
            if record is None or record.generation != grant.generation or mounted_at(record.mount_point) is None:
                found.append(DestinationState(device_id, grant.serial, grant.node, "", None, grant.granted_at,
                                              problem=broken))
            else:
                space, problem = self._glance(record)
                problem = broken or problem
                found.append(DestinationState(device_id, grant.serial, record.node, record.mount_point, space,
                                              grant.granted_at, True, problem))
        found += [
            DestinationState(record.device_id, record.serial, record.node, record.mount_point, record.space, "", False,
                             "It was unplugged. Plug it in and grant it again; what was flushed to it is there.")
            for record in records.values()
            if record.device_id not in grants or grants[record.device_id].generation != record.generation]
        return tuple(found)

    def _glance(self, record: MountedDestination) -> tuple[DestinationSpace | None, str]:
        """The space now, or the last known and what is wrong. A call that hangs is only looked at again."""
        entry = mounted_at(record.mount_point)
        if entry is not None and not is_writable(entry):
            return record.space, "The kernel made it read-only after an error. Use another destination."
        call = self._glances.pop(record.mount_point, None) or Call(lambda: free_bytes(record.mount_point))
        if not call.wait(_GLANCE_SECONDS):
            self._glances[record.mount_point] = call
            return record.space, "It does not answer; it may be gone or very slow."
        try:
            free = call.result()
        except OSError as error:
            return record.space, f"Its file system fails: {error.strerror}."
        return (None if record.space is None else replace(record.space, free_bytes=free)), ""

    async def space_at(self, snapshot: Snapshot, path: Path) -> DestinationSpace:
        """The space where ``path`` lies; PolicyRefusal that says where that is when it is on no granted destination."""
        resolved = await within(_PATIENCE_SECONDS, str(path), lambda: os.path.realpath(path))
        entry = mount_of(resolved)
        grants = self._guard.grants()
        for record in self._ledger.destinations():
            if entry is None or record.mount_point != entry.target or record.space is None:
                continue
            grant = grants.get(record.device_id)
            if grant is None or grant.generation != record.generation:
                raise DeviceError("The destination was unplugged.", "Plug it in, grant and mount it again.")
            if not is_writable(entry):
                raise DeviceError("The kernel made the destination read-only after an error.", "Use another one.")
            return await self._space(record)
        raise PolicyRefusal(f"{printable(str(path))} is not on a granted destination: {where(snapshot, entry)}.",
                            "Name a directory below the destination's mount point; `stasis destination list` shows it.")

    async def _space(self, record: MountedDestination) -> DestinationSpace:
        assert record.space is not None
        try:
            free = await within(_PATIENCE_SECONDS, "The destination", lambda: free_bytes(record.mount_point))
        except OSError as error:
            raise DeviceError(f"The destination's file system fails: {error.strerror}.", "Use another one.") from error
        return replace(record.space, free_bytes=free)


def free_bytes(directory: str) -> int:
    """Free bytes for root's files. May hang on a dead file system."""
    space = os.statvfs(directory)
    return space.f_bavail * space.f_frsize


def holders_of(point: str) -> tuple[str, ...]:
    """Processes with a file or their working directory below a mount point, from /proc; touches no file system."""
    found = []
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        with suppress(OSError):
            links = [process / "cwd", process / "root", *(process / "fd").iterdir()]
            if any(_points_below(link, point) for link in links):
                name = (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
                found.append(f"{printable(name)} ({process.name})")
    return tuple(found)


def _points_below(link: Path, point: str) -> bool:
    try:
        target = os.readlink(link)
    except OSError:
        return False
    return target == point or target.startswith(point + "/")


def _is_on(entry: MountEntry, nodes: tuple[blockdev.BlockNode, ...]) -> bool:
    return any(entry.dev == node.dev or entry.source == node.node for node in nodes)


def _check_read(disk: Disk) -> None:
    """DeviceError while it is unknown what is on the disk: nothing is said or done about its content then."""
    if not disk.signatures_complete:
        why = next((finding.summary for finding in disk.findings if finding.code == SIGNATURES_UNREAD), "")
        raise DeviceError(f"What is on {disk.node} could not be read yet.",
                          "Try again in a moment, or use another disk.", why)


def _current(snapshot: Snapshot, disk: Disk) -> Disk:
    """The disk as the snapshot has it; DeviceError when it was plugged again since."""
    current = snapshot.disk(disk.id)
    if current.generation != disk.generation:
        raise DeviceError(f"{disk.node} was plugged again since it was chosen.", "Look at the list of devices again.")
    return current
