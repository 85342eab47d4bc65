"""What can be looked into for checkpoints: images of cases, what is mounted already, and any directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from rescue_tui.core.errors import RescueError
from rescue_tui.core.text import human_bytes
from rescue_tui.system.mounts import MountedImage, PartitionNeeded
from rescue_tui.ui.bridge import Bridge, off_loop
from rescue_tui.ui.describe import Page
from rescue_tui.ui.safe import Safe
from rescue_tui.ui.screens.base import ReadingPane, StasisScreen
from rescue_tui.ui.screens.checkpoints import CheckpointsScreen
from rescue_tui.ui.screens.dialogs import ChoiceDialog, PromptDialog
from rescue_tui.ui.widgets.table import Column, KeyedTable, Row

COLUMNS = (Column("State", 12), Column("File system", 12), Column("Part", 5), Column("Image or device", 51, 4,
                                                                                   keeps_end=True))
_CHOICES = "123456789"


@dataclass(frozen=True, slots=True)
class Target:
    """An image or a device, and where it is mounted, if it is."""

    target: str
    mounted: MountedImage | None = None

    @property
    def key(self) -> str:
        """Stable over mounting."""
        return f"{self.mounted.at if self.mounted else ''}\0{self.target}"

    @property
    def label(self) -> str:
        """Its name in titles and in directories at the destination: image.raw alone says nothing."""
        part = f"-part{self.mounted.part}" if self.mounted is not None and self.mounted.part is not None else ""
        return "-".join(Path(self.target).parts[-2:]) + part


class ImagesScreen(StasisScreen):
    """Images to look into; Enter mounts one read-only and looks for checkpoints."""

    NAME = "Images"
    SHOWS_FIGURES = False
    HELP = """
Images that were made in this session or lie in case folders of a mounted
destination, and what is mounted read-only already (`stasis mount`).

  Enter  mount the image read-only, if it is not yet, and look for checkpoints
  e      name an image file, a device, or a directory to look into
  u      unmount
  r      look for images again

A mount is read-only in three ways: a read-only loop device, options that
neither replay nor clear a log, and the write guard. "partial" in the name:
the copy has not ended; what is not copied yet reads as zeros.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "edit", "Other"),
        Binding("u", "unmount", "Unmount"),
        Binding("r", "reread", "Reread", show=False),
    ]

    def __init__(self, bridge: Bridge, safe: Safe) -> None:
        super().__init__(bridge, safe)
        self._targets: tuple[Target, ...] | None = None

    @property
    def enter_words(self) -> str:
        """What Enter does now, for the key line."""
        chosen = self.under_cursor()
        return "" if chosen is None else "Checkpoints" if chosen.mounted else "Mount and look"

    def body(self) -> ComposeResult:
        """Table, what is under the cursor."""
        yield KeyedTable(self.safe, COLUMNS, id="table")
        yield ReadingPane(id="reasons")

    def on_screen_resume(self) -> None:
        """Look again: something may have been mounted meanwhile."""
        super().on_screen_resume()
        self.action_reread()

    @property
    def table(self) -> KeyedTable:
        """The table of images."""
        return self.query_one("#table", KeyedTable)

    def action_reread(self) -> None:
        """Ask what is there."""
        self.ask(off_loop(self._look), self._take, group="images", keys_wait=self._targets is None)

    def _look(self) -> tuple[Target, ...]:
        services = self.bridge.services
        mounted = [Target(image.target, image) for image in services.mounted()]
        known = {each.target for each in mounted}
        return (*mounted, *(Target(str(path)) for path in services.images() if os.path.realpath(path) not in known))

    def _take(self, targets: tuple[Target, ...]) -> None:
        self._targets = targets
        self.redraw()

    def under_cursor(self) -> Target | None:
        """What the cursor is on."""
        key = self.table.cursor_key if self.is_mounted else None
        return next((each for each in self._targets or () if each.key == key), None)

    def draw(self) -> None:
        """Rows, and all of the one under the cursor."""
        targets = self._targets or ()
        self.set_title("Images: looking ..." if self._targets is None else
                       f"Images: {len(targets)}, {sum(each.mounted is not None for each in targets)} mounted")
        self.table.show_rows([Row(each.key, (
            "mounted" if each.mounted else "not mounted", each.mounted.filesystem if each.mounted else "-",
            str(each.mounted.part or "-") if each.mounted else "-", each.target)) for each in targets])
        self._draw_chosen()

    def _draw_chosen(self) -> None:
        page, chosen = Page(self.safe), self.under_cursor()
        if chosen is not None:
            page.say(chosen.target, "bold")
            if chosen.mounted is None:
                page.say("Not mounted. Enter mounts it read-only.")
            else:
                page.pair("Mounted at", chosen.mounted.at)
                page.pair("Options", ",".join(chosen.mounted.options))
                page.pair("Note", chosen.mounted.note)
        self.query_one(ReadingPane).show(page.text())

    def next_words(self) -> str:
        """What Enter will do."""
        if self.busy:
            return f"Working: {self.busy}. Please wait."
        if self._targets is None:
            return "Looking for images in case folders. Please wait."
        chosen = self.under_cursor()
        if chosen is None:
            return "No image is known. d, then i images a disk; e names an image file, a device or a directory."
        if chosen.mounted is None:
            return "Enter mounts the image read-only and looks for checkpoints. Nothing is written to it."
        return "Enter looks for checkpoints in it. u unmounts it; its destination can be released only after that."

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 (Textual's signature)
        """Unmount only what is mounted."""
        if action == "unmount":
            chosen = self.under_cursor()
            return chosen is not None and chosen.mounted is not None
        return True

    # keys --------------------------------------------------------------------------------------------------------
    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Show another one."""
        event.stop()
        self._draw_chosen()
        self.tell_next()
        self.refresh_bindings()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter in the table."""
        event.stop()
        chosen = self.under_cursor()
        if chosen is None:
            return
        if chosen.mounted is not None:
            self._open(chosen)
        else:
            self._mount(chosen.target, None)

    def _open(self, target: Target) -> None:
        assert target.mounted is not None
        self.app.push_screen(CheckpointsScreen(self.bridge, self.safe, Path(target.mounted.at), target.label))

    def _mount(self, target: str, part: int | None) -> None:
        async def tried() -> MountedImage | PartitionNeeded:
            try:
                return await self.bridge.services.mount_view(target, part=part)
            except PartitionNeeded as needed:
                return needed

        def mounted(answer: MountedImage | PartitionNeeded) -> None:
            if isinstance(answer, PartitionNeeded):
                self._choose_part(target, answer)
            else:
                self._open(Target(answer.target, answer))

        self.act(f"mounting {target}", tried(), mounted)

    def _choose_part(self, target: str, needed: PartitionNeeded) -> None:
        choices = tuple((key, str(number), self.safe.line(f"partition {number}  {human_bytes(size_bytes)}  {kind}", 60))
                        for key, (number, size_bytes, kind) in zip(_CHOICES, needed.parts, strict=False))

        def chosen(number: str | None) -> None:
            if number is not None:
                self._mount(target, int(number))

        more = len(needed.parts) - len(choices)
        words = self.safe.text(f"Which partition of {target} shall be looked into?"
                               f"{f' {more} more: `stasis mount --part N`.' * (more > 0)}", limit=None)
        self.app.push_screen(ChoiceDialog("Mount an image", words, choices, must_be_seen=True), chosen)

    def action_edit(self) -> None:
        """Name something else."""
        def answered(path: str | None) -> None:
            if path:
                self.ask(off_loop(lambda: os.path.isdir(path)), lambda is_dir: self._named(path, is_dir=is_dir),
                         group="named", keys_wait=True)

        words = Text("The path of an image file, a device, or a directory that is mounted already:")
        self.app.push_screen(PromptDialog("Look into", words, refusal=_refusal), answered)

    def _named(self, path: str, *, is_dir: bool) -> None:
        if is_dir:
            self.app.push_screen(CheckpointsScreen(self.bridge, self.safe, Path(os.path.abspath(path)),
                                                   Path(path).name or "root"))
        else:
            self._mount(path, None)

    def action_unmount(self) -> None:
        """Unmount."""
        chosen = self.under_cursor()
        if chosen is None or chosen.mounted is None:
            return
        active = self.bridge.background.active
        at = Path(chosen.mounted.at)
        if active is not None and active.root == at:
            self.failed(RescueError(f"The {active.kind.value} of this image is under way.",
                                    "Wait for its end, or cancel it."))
            return

        def unmounted(_: None) -> None:
            self.bridge.background.scans.pop(at, None)
            self.action_reread()

        self.act(f"unmounting {at}", self.bridge.services.unmount(at), unmounted)


def _refusal(path: str) -> str:
    return "" if path.startswith("/") else "A path starts with /."
