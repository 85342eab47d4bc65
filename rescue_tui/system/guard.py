"""The only module that grants a write. Every other module gets a `WriteGrant` from here or can't write at all.

A grant is a set of files ``grants/<major>:<minor>.<diskseq>`` (the disk and each partition), so the TUI, the command
line and the jobs share it, and the udev rule leaves exactly those nodes writable. What enforces it is the kernel
module, which must know the grant too, and the layers beside it. To open a disk the kernel is told first, since it lets
the read-only flag of no other disk be cleared; to close one it is told last, so that what is under way can be flushed.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from rescue_tui.core.access import WriteGrant
from rescue_tui.core.device import Disk
from rescue_tui.core.errors import DeviceError, PolicyRefusal, RescueError, SetupError
from rescue_tui.core.guardstate import KernelGuardState
from rescue_tui.core.ident import DeviceId
from rescue_tui.core.record import rfc3339
from rescue_tui.core.text import printable
from rescue_tui.system import blockdev
from rescue_tui.system.blockdev import BlockNode
from rescue_tui.system.durable import replace_file
from rescue_tui.system.guardlayers import BootPolicy, Layer, ReadOnlyFlag
from rescue_tui.system.guardview import GuardState, in_force, picture, unprotected
from rescue_tui.system.kernelguard import KernelGuard
from rescue_tui.system.workspace import Workspace

Record = Callable[..., object]


class WriteGuard:
    """Grants, redeems and revokes; see the module. All arguments but the first differ only in tests and jobs.

    ``record`` journals what becomes of grants: an event's name and its details (`Journal.append`).
    """

    def __init__(
        self, workspace: Workspace, layers: Sequence[Layer] | None = None, sysfs: Path = blockdev.SYSFS, *,
        kernel: KernelGuard | None = None, record: Record | None = None,
    ) -> None:
        self._workspace = workspace
        self._kernel = kernel or KernelGuard()
        self._layers: tuple[Layer, ...] = tuple(layers) if layers is not None else (ReadOnlyFlag(), BootPolicy())
        self._sysfs = sysfs
        self._record = record

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
            if held is not None and held.device_id == disk.id and self._kernel.holds(disk.dev, disk.generation):
                grant = held
            else:
                grant = WriteGrant(disk.id, disk.generation, disk.node, disk.serial, rfc3339(datetime.now(UTC)),
                                   secrets.token_hex(16))
            self._write(grant, nodes)
            try:
                self._open(nodes)
            except RescueError:
                self._shut(nodes)
                self._kernel.close(nodes[0])
                self._forget(disk.generation)
                raise
            self._note("guard.granted", grant=grant, nodes=[node.node for node in nodes], kernel=self._kernel_word())
            return grant

    def _open(self, nodes: tuple[BlockNode, ...]) -> None:
        self._kernel.open(nodes[0])
        for layer in self._layers:
            layer.open(nodes)
        locked = [node.node for node in self._nodes(nodes[0].dev, nodes[0].diskseq) if node.read_only]
        if locked:
            raise PolicyRefusal(f"{', '.join(locked)} stays read-only: the hardware is write protected.",
                                "Look for a lock switch on the disk or its case, or use another disk.")

    def _shut(self, nodes: Sequence[BlockNode]) -> None:
        for layer in reversed(self._layers):
            layer.close(nodes)

    def renew(self, grant: WriteGrant) -> tuple[BlockNode, ...]:
        """Extend a grant to partitions that appeared since; the disk and its partitions, all writable now."""
        with self._locked():
            dev = self._dev_of(grant)
            nodes = self._nodes(dev, grant.generation)
            self._check_kernel(grant, dev)
            self._write(grant, nodes)
            self._open(nodes)
            return self._nodes(nodes[0].dev, grant.generation)

    def redeem(self, grant: WriteGrant) -> None:
        """Called by the Runner before it starts a command that writes: PolicyRefusal or DeviceError when void."""
        with self._locked():
            dev = self._dev_of(grant)
        self._nodes(dev, grant.generation)
        blockdev.check_node(grant.node, dev)
        self._check_kernel(grant, dev)

    def _check_kernel(self, grant: WriteGrant, dev: tuple[int, int]) -> None:
        """PolicyRefusal for a grant that lost its other half: it is not made good behind anybody's back."""
        if not self._kernel.holds(dev, grant.generation):
            self._note("guard.void", grant=grant)
            raise PolicyRefusal(f"The grant of {grant.node} is void: the kernel's write guard does not know it.",
                                "Release the destination, then grant it again.")

    def revoke(self, grant: WriteGrant) -> None:
        """Close the disk and its partitions and forget the grant; fine when the disk is gone or was revoked.

        May take as long as the disk needs to flush; the lock is free meanwhile, so a disk that hangs holds up no other.
        """
        with self._locked():
            held = [dev for dev, each in self._load().items()
                    if each.generation == grant.generation and each.device_id == grant.device_id]
            found = [self._attached(dev, grant.generation) for dev in held]
            # The flag first: after a crash in between, a closed disk with a grant is harmless, an open one without is
            # not.
            for nodes in found:
                self._shut(nodes)
        for nodes in found:
            if nodes:
                self._kernel.close(nodes[0])
        if held:
            with self._locked():
                self._forget(grant.generation)
            self._note("guard.revoked", grant=grant, kernel=self._kernel_word())

    def _attached(self, dev: tuple[int, int], generation: int) -> tuple[BlockNode, ...]:
        try:
            return self._nodes(dev, generation)
        except DeviceError:
            return ()

    def protect(self, disk: Disk) -> None:
        """Close a disk that has no grant and that the udev rule did not see. DeviceError when it changed."""
        with self._locked():
            if disk.dev in self._load():
                raise PolicyRefusal(f"{disk.node} is granted.", "Release the destination first.")
            nodes = self._nodes(disk.dev, disk.generation)
            self._shut(nodes)
            self._kernel.close(nodes[0])

    def grants(self) -> Mapping[DeviceId, WriteGrant]:
        """Every grant on file; those whose disk was unplugged are dropped. A void one is there until its release."""
        with self._locked():
            return {grant.device_id: grant for grant in self._load().values()}

    def void(self) -> frozenset[DeviceId]:
        """Disks whose grant is on file and not in force in the kernel: nothing more is written to them."""
        with self._locked():
            kernel, _problem = self._glance()
            return frozenset(grant.device_id for dev, grant in self._load().items()
                             if not in_force(kernel, dev, grant.generation))

    def _note(self, event: str, **detail: object) -> None:
        if self._record is not None:
            self._record(event, **detail)

    def _kernel_word(self) -> str:
        return "absent" if self._kernel.look() is None else "told"

    # state -----------------------------------------------------------------------------------------------------------
    def state(self) -> GuardState:
        """What every layer says, every device's actual flag, the kernel's counters, and a finding for what is wrong."""
        with self._locked():
            grants = self._load()
            # Within the lock: a grant that is being made is not half there.
            kernel, problem = self._glance()
        nodes = blockdev.all_nodes(self._sysfs)
        open_nodes = unprotected(nodes, {grant.generation for grant in grants.values()})
        others = [layer.state(open_nodes) for layer in self._layers]
        return picture(nodes, grants, kernel, problem, others, datetime.now(UTC))

    def _glance(self) -> tuple[KernelGuardState | None, str]:
        try:
            return self._kernel.look(), ""
        except RescueError as error:
            return None, str(error)

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
                self._drop(path)
                continue
            with suppress(ValueError, KeyError, OSError):
                value = json.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))
                if "token" in value:
                    found[dev] = WriteGrant(
                        DeviceId.parse(value["device_id"]), int(value["generation"]), value["node"], value["serial"],
                        value["granted_at"], value["token"])
        return found

    def _drop(self, path: Path) -> None:
        """Forget a file of a disk that is gone; the kernel's side of the grant died with the disk."""
        try:
            content = path.read_bytes()
            path.unlink()
        except FileNotFoundError:
            return  # another process was faster, and told it
        if b'"token"' in content:
            # A journal that can't be written must not keep anybody from seeing the guard.
            with suppress(RescueError):
                self._note("guard.ended", attachment=path.name, summary="The disk was unplugged, so its grant ended.")

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
