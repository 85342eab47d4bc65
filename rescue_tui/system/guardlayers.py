"""The layers of the write guard that lie beside the kernel module: the read-only flag by udev, and the boot policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rescue_tui.core.bootpolicy import policy_gaps
from rescue_tui.core.errors import RescueError
from rescue_tui.core.guardstate import ABSENT, ARMED, PARTIAL, UNKNOWN, LayerState
from rescue_tui.core.text import decode, printable
from rescue_tui.core.tooltext.mountinfo import parse_swaps
from rescue_tui.system import blockdev
from rescue_tui.system.blockdev import BlockNode

RULE = Path("/usr/lib/udev/rules.d/00-stasis-readonly.rules")
OS_RELEASE = Path("/etc/os-release")
PROC = Path("/proc")

FLAG_LAYER = "udev-flag"
POLICY_LAYER = "boot-policy"


class Layer(Protocol):
    """One mechanism beside the kernel module. Every call is idempotent; errors are RescueErrors."""

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
        if not self._rule.exists():
            return LayerState(FLAG_LAYER, ABSENT,
                              f"The udev rule {self._rule.name} is not installed: this is not the Stasis image.")
        if unprotected:
            return LayerState(FLAG_LAYER, PARTIAL, f"Without a read-only flag: {len(unprotected)}.")
        return LayerState(FLAG_LAYER, ARMED, "Sets the read-only flag at every add and change; it counts nothing.")


class BootPolicy:
    """Nothing assembles, mounts, swaps, resumes or checks by itself: the image's make-up and its command line."""

    def __init__(self, proc: Path = PROC, os_release: Path = OS_RELEASE) -> None:
        self._proc = proc
        self._os_release = os_release

    def open(self, nodes: Sequence[BlockNode]) -> None:
        """A grant changes no policy."""

    def close(self, nodes: Sequence[BlockNode]) -> None:
        """Nor does its end."""

    def state(self, unprotected: Sequence[BlockNode]) -> LayerState:  # noqa: ARG002 (the protocol's signature)
        """Armed in the Stasis image, started with its own command line, without swap on a disk."""
        try:
            if "IMAGE_ID=stasis" not in _content(self._os_release).replace('"', "").splitlines():
                return LayerState(POLICY_LAYER, ABSENT, "This is not the Stasis image: other programs may use disks.")
            gaps = policy_gaps(_content(self._proc / "cmdline"), parse_swaps(_content(self._proc / "swaps")))
        except OSError as error:
            return LayerState(POLICY_LAYER, UNKNOWN, f"It can't be read: {error.strerror}.")
        except RescueError as error:
            return LayerState(POLICY_LAYER, UNKNOWN, error.summary)
        if gaps:
            return LayerState(POLICY_LAYER, PARTIAL, f"{printable('; '.join(gaps))}.")
        return LayerState(POLICY_LAYER, ARMED, "Nothing assembles, mounts, swaps, resumes or checks by itself.")


def _content(path: Path) -> str:
    """The text of a small file; empty when there is none."""
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        return ""
