"""All details of one disk."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from rescue_tui.core.access import Access
from rescue_tui.core.device import Disk
from rescue_tui.ui.bridge import Bridge
from rescue_tui.ui.describe import disk_page
from rescue_tui.ui.safe import Safe
from rescue_tui.ui.screens.base import ReadingPane, StasisScreen
from rescue_tui.ui.screens.plan import PlanScreen


class DeviceScreen(StasisScreen):
    """Identity, paths, partitions, all signatures, health and error log, holders, mounts."""

    NAME = "Device"
    SHOWS_FIGURES = False
    HELP = """
Everything that is known of one disk. Nothing here writes to it.

  Arrows, Page Up/Down   scroll
  i                      plan the imaging of this disk (nothing starts yet)
  r                      read its health again

All signatures are listed, with the byte they were found at: a disk can carry
an old file system below a new one. "Writes: refused" means that the kernel
holds the disk read-only. A weak identity is bound to the slot: another disk
in the same slot would look the same.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("i", "image", "Image"),
        Binding("r", "reread", "Read health again"),
    ]

    def __init__(self, bridge: Bridge, safe: Safe, disk: Disk) -> None:
        super().__init__(bridge, safe)
        self._first = disk

    def body(self) -> ComposeResult:
        """One page."""
        yield ReadingPane(id="details")

    @property
    def disk(self) -> Disk:
        """The disk as it is now, or as it was last when it is gone."""
        same = [disk for disk in self.view.disks()
                if (disk.id, disk.generation, disk.node) == (self._first.id, self._first.generation, self._first.node)]
        if same:
            self._first = same[0]
        return self._first

    @property
    def is_gone(self) -> bool:
        """True after it was unplugged."""
        return self.disk not in self.view.disks()

    def draw(self) -> None:
        """The page of the disk."""
        disk = self.disk
        self.set_title(f"Device: {disk.node}{' (GONE)' if self.is_gone else ''}")
        self.query_one(ReadingPane).show(disk_page(self.safe, disk, self.view.role(disk), self.view.health(disk)))

    def next_words(self) -> str:
        """By role."""
        if self.is_gone:
            return "This disk was unplugged; this is what was known of it. Esc goes back."
        access = self.view.role(self.disk).access
        if access is Access.DESTINATION:
            return "This disk is the destination. Esc, then g, shows its space or releases it."
        if access is not Access.SOURCE:
            return "This disk is neither copied nor written. Esc goes back."
        locked = "This disk is protected." if self.disk.read_only else "Stasis does not write to it, the kernel would."
        return f"{locked} i plans its imaging, nothing starts yet. Esc goes back."

    def action_image(self) -> None:
        """Plan its imaging."""
        if not self.is_gone:
            self.app.push_screen(PlanScreen(self.bridge, self.safe, (self.disk,)))

    def action_reread(self) -> None:
        """Ask the disk for its health again."""
        self.view.healths.pop((self.disk.id, self.disk.generation), None)
        self.run_worker(self.bridge.read_healths(), group="health", exclusive=True)
        self.redraw()
