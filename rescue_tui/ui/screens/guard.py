"""The write guard: its layers, what was refused, what is open, what is granted."""

from __future__ import annotations

from collections.abc import Mapping

from textual.app import ComposeResult

from rescue_tui.core.guardstate import LayerState
from rescue_tui.system.guardview import GuardState
from rescue_tui.ui.describe import Page
from rescue_tui.ui.guard_words import guard_style, guard_words, refused_attempts
from rescue_tui.ui.screens.base import ReadingPane, StasisScreen

_DATE = slice(11, 19)
_BAD = "bold red"


class GuardScreen(StasisScreen):
    """What keeps disks from being written, in full."""

    NAME = "Write guard"
    HELP = """
What keeps every disk but the destination from being written. The page is
looked at anew every second.

A layer is armed, PARTIAL (something is not covered), ABSENT or UNKNOWN:
  kernel-guard    the kernel module as a whole; without it, raw commands and
                  writers inside the kernel are not refused
  bio             writes, discards, zone operations of the block layer
  nvme-command    every NVMe command, by its opcode
  passthrough     raw SCSI, ATA and other commands
  open            opening a disk for writing
  ioctl           ioctls and raw commands of programs
  lockdown        /dev/mem, raw ports, kexec, hibernation
  modules         kernel modules from outside the running image
  read-only-flag  the flag, set before anybody can open the disk
  udev-flag       the same flag, set again at every add and change
  boot-policy     nothing assembles, mounts, swaps, resumes or checks by itself

Refused: attempts to write that a layer stopped and counted; a dash says that
no layer counts. "Last refused" names the process that tried.

An open device is one whose read-only flag is clear although it was not
granted; a void grant is one that the kernel does not know. Start nothing that
could write, and report it. In another system than the Stasis image, no layer
is there.
"""

    def body(self) -> ComposeResult:
        """One page."""
        yield ReadingPane(id="guard")

    def draw(self) -> None:
        """What is wrong first, then attempts, layers, grants, devices."""
        guard, page = self.view.guard, Page(self.safe)
        if guard is None:
            page.say("Being read ...")
            self.query_one(ReadingPane).show(page.text())
            return
        page.pair("Guard", guard_words(guard), guard_style(guard) or "bold")
        page.pair("Refused", f"{refused_attempts(guard)}{_kinds(guard.refused_by_kind, '; attached disks: ')}")
        page.pair("Read-only", f"{guard.protected} of {len(guard.devices)} disks and partitions")
        for finding in guard.findings:
            page.finding(finding)
        self._attempts(page, guard)
        page.head("Layers")
        width = max((len(layer.name) for layer in guard.layers), default=0)
        for layer in guard.layers:
            page.say(_layer(layer, width), "" if layer.armed else _BAD)
        page.head("Granted")
        for grant in guard.grants:
            void = grant.device_id in guard.void
            page.say(f"{grant.node}  serial {grant.serial}  since {grant.granted_at}{'  VOID' if void else ''}",
                     _BAD if void else "")
        if not guard.grants:
            page.say("Nothing: no disk may be written.")
        self._devices(page, guard)
        self.query_one(ReadingPane).show(page.text())

    def _attempts(self, page: Page, guard: GuardState) -> None:
        if guard.last:
            page.head("Last refused on each device, newest first")
        for each in guard.last:
            page.say(f"{each.at[_DATE]}  {each.device}  {each.what} 0x{each.opcode:02x} by {each.process} "
                     f"(process {each.pid})")

    def _devices(self, page: Page, guard: GuardState) -> None:
        page.head("Devices")
        for device in guard.devices:
            if device.exempt and not device.read_only:
                continue
            state = "GRANTED" if device.granted else "read-only" if device.read_only else "OPEN"
            kept = f"; {device.flush_kept} flushes kept back" if device.flush_kept else ""
            page.say(f"{device.node}  {state}{_kinds(device.refused, '  refused ')}{kept}",
                     _BAD if state == "OPEN" else "")
        exempt = [device.node for device in guard.devices if device.exempt and not device.read_only]
        if exempt:
            page.head("Never locked (RAM disks and the like)")
            page.say(", ".join(exempt))

    def next_words(self) -> str:
        """Whether it is as it should be."""
        guard = self.view.guard
        if guard is None:
            return "The guard is being read."
        if guard.armed:
            return "Every disk that was not granted is locked. Nothing is to be done here. Esc goes back."
        if any(finding.code == "unprotected" for finding in guard.findings):
            return "An open device: its read-only flag is clear. Stasis does not write to it; start nothing that might."
        if guard.nowhere:
            return "No layer is armed: this is not the Stasis image. Stasis itself writes only to granted disks."
        if guard.void:
            return "A grant is void: nothing more is written there. g shows it; release it, then grant it again."
        return "The guard is not complete: red lines say what is missing. Start nothing that could write to a source."


def _layer(layer: LayerState, width: int) -> str:
    """An armed layer in half a line; what is wrong with another one in full."""
    counted = "" if layer.refused is None else f"refused {layer.refused}"
    if layer.armed:
        return f"{layer.name:<{width}}  armed  {counted}".rstrip()
    return f"{layer.name:<{width}}  {layer.state.upper()}  {counted and f'{counted}. '}{layer.detail}"


def _kinds(counts: Mapping[str, int], before: str) -> str:
    words = ", ".join(f"{kind} {count}" for kind, count in counts.items() if count)
    return f"{before}{words}" if words else ""
