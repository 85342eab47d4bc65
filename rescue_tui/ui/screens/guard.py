"""The write guard: its layers, what is open, what is granted."""

from __future__ import annotations

from textual.app import ComposeResult

from rescue_tui.ui.describe import Page
from rescue_tui.ui.guard_words import guard_words, refused_attempts
from rescue_tui.ui.screens.base import ReadingPane, StasisScreen


class GuardScreen(StasisScreen):
    """What keeps disks from being written, in full."""

    NAME = "Write guard"
    HELP = """
What keeps every disk but the destination from being written.

A layer is armed, partial (some device is not covered) or absent. An open
device is one that the kernel would let be written although it was not
granted: don't start anything that could write, and report it. In another
system than the Stasis image, no layer is armed.

Refused: write attempts that a layer stopped and counted; a dash says that
no layer counts.
"""

    def body(self) -> ComposeResult:
        """One page."""
        yield ReadingPane(id="guard")

    def draw(self) -> None:
        """Layers, open devices, grants."""
        guard, page = self.view.guard, Page(self.safe)
        if guard is None:
            page.say("Being read ...")
            self.query_one(ReadingPane).show(page.text())
            return
        page.pair("Guard", guard_words(guard), "bold")
        page.pair("Refused", refused_attempts(guard))
        page.pair("Read-only", f"{guard.protected} of {len(guard.devices)} disks and partitions")
        page.head("Layers")
        for layer in guard.layers:
            page.say(f"{layer.name}: {layer.state}. {layer.detail}")
        for finding in guard.findings:
            page.finding(finding)
        page.head("Granted")
        for grant in guard.grants:
            page.say(f"{grant.node}  serial {grant.serial}  since {grant.granted_at}")
        if not guard.grants:
            page.say("Nothing: no disk may be written.")
        exempt = [device.node for device in guard.devices if device.exempt and not device.read_only]
        if exempt:
            page.head("Never locked (RAM disks and the like)")
            page.say(", ".join(exempt))
        self.query_one(ReadingPane).show(page.text())

    def next_words(self) -> str:
        """Whether it is as it should be."""
        guard = self.view.guard
        if guard is None:
            return "The guard is being read."
        if guard.findings:
            return "An open device: the kernel would let it be written. Stasis does not; start nothing else that might."
        if not guard.armed:
            return "No layer is armed: this is not the Stasis image. Stasis itself writes only to granted disks."
        return "Every disk that was not granted is locked. Nothing is to be done here. Esc goes back."
