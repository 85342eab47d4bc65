"""The kernel module ``stasis_guard`` as Stasis uses it: grants and revokes through /proc, the state read back.

``/proc/stasis_guard/control`` takes one command a write, ``/proc/stasis_guard/state`` tells everything; both belong to
root. Source: image/guard. What the module refuses it refuses whatever is done here; without it the other layers hold.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from rescue_tui.core.errors import DeviceError, RescueError, SetupError
from rescue_tui.core.guardstate import (
    ABSENT,
    ARMED,
    LAYER_WORDS,
    PARTIAL,
    UNKNOWN,
    KernelGuardState,
    KernelLayer,
    LayerState,
    parse_guard_state,
)
from rescue_tui.system.blockdev import BlockNode

KERNEL_LAYER = "kernel-guard"
DIRECTORY = Path("/proc/stasis_guard")
_NOT_LOADED = ("The kernel module stasis_guard is not loaded: raw commands and writers inside the kernel are not "
               "refused. What is armed holds.")


class KernelGuard:
    """Grants and revokes in the kernel. Every call is idempotent, and does nothing when the module is not loaded."""

    def __init__(self, directory: Path = DIRECTORY) -> None:
        self._directory = directory

    def look(self) -> KernelGuardState | None:
        """The state; None when the module is not loaded. SetupError when it can't be read, FormatError when strange."""
        try:
            text = (self._directory / "state").read_text(encoding="utf-8", errors="surrogateescape")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SetupError(f"The write guard's state can't be read: {error.strerror}.", "Run as root.") from error
        return parse_guard_state(text)

    def holds(self, dev: tuple[int, int], diskseq: int) -> bool:
        """Does the kernel let this attachment of a disk be written? True when there is no module to ask."""
        state = self.look()
        if state is None:
            return True
        disk = state.disk(dev, diskseq)
        return disk is not None and (disk.granted or not disk.protected)

    def open(self, disk: BlockNode) -> None:
        """Grant a whole disk, its partitions with it. DeviceError when it was plugged again, SetupError else."""
        if self.holds(disk.dev, disk.diskseq):
            return
        self._tell("grant", disk)
        if not self.holds(disk.dev, disk.diskseq):
            raise SetupError(f"The kernel's write guard took the grant of {disk.node} and does not show it.",
                             "Don't write to the disk. Restart the machine and report this.")

    def close(self, disk: BlockNode) -> None:
        """Flush the disk and refuse writes to it again; may take as long as the disk needs. Fine when it is gone."""
        state = self.look()
        known = state.disk(disk.dev, disk.diskseq) if state is not None else None
        if known is not None and known.granted:
            self._tell("revoke", disk)

    def _tell(self, verb: str, disk: BlockNode) -> None:
        command = f"{verb} {disk.dev_text} {disk.diskseq}"
        try:
            # One write, not buffered: the kernel reads one command a write and answers by errno.
            handle = os.open(self._directory / "control", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(handle, f"{command}\n".encode("ascii"))
            finally:
                os.close(handle)
        except OSError as error:
            if error.errno == errno.ENODEV and verb == "revoke":
                return  # gone, and its grant with it
            raise _refusal(error, verb, disk, command) from error


def _refusal(error: OSError, verb: str, disk: BlockNode, command: str) -> RescueError:
    evidence = f"{command}: {error.strerror}"
    if error.errno == errno.ENODEV:
        return DeviceError(f"{disk.node} was plugged again since it was chosen.",
                           "Look at the list of devices again; a grant ends when the disk is unplugged.", evidence)
    if error.errno == errno.EIO:
        return DeviceError(f"{disk.node} fails while the write guard closes it.", "Unplug the disk.", evidence)
    if error.errno == errno.EBUSY:
        return DeviceError(f"{disk.node} is in use, so the write guard can't {verb} it.",
                           "Unmount it, end what uses it, then try again.", evidence)
    return SetupError(f"The kernel's write guard did not {verb} {disk.node}: {error.strerror}.",
                      "Run as root, in the Stasis image.", evidence)


def kernel_layers(state: KernelGuardState | None, problem: str) -> tuple[LayerState, ...]:
    """The module as a whole, then each of its layers. ``problem`` says why the state could not be read."""
    if problem:
        return (LayerState(KERNEL_LAYER, UNKNOWN, problem),)
    if state is None:
        return (LayerState(KERNEL_LAYER, ABSENT, _NOT_LOADED),)
    gaps = [f"the hook in {name} is not in place" for name in state.loose_hooks]
    if not state.armed:
        gaps.append("it is not armed")
    if not state.sealed:
        gaps.append("modules from outside the image may still be loaded")
    whole = (LayerState(KERNEL_LAYER, PARTIAL if gaps else ARMED,
                        f"The module in kernel {state.kernel}: {'; '.join(gaps) or 'armed and sealed'}."),)
    return whole + tuple(_layer(layer) for layer in state.layers)


def _layer(layer: KernelLayer) -> LayerState:
    words = LAYER_WORDS.get(layer.name, "Part of the kernel module.")
    if not layer.armed:
        return LayerState(layer.name, ABSENT, f"Not armed. {words}", layer.refused)
    return LayerState(layer.name, ARMED, words, layer.refused)
