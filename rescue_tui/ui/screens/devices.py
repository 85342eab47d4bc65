"""The list of disks: the screen that Stasis starts with."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Input

from rescue_tui.core.access import Access
from rescue_tui.core.device import Disk
from rescue_tui.core.job import RESUMABLE
from rescue_tui.core.text import human_bytes, printable
from rescue_tui.ui.bridge import Bridge
from rescue_tui.ui.safe import Safe
from rescue_tui.ui.screens.base import StasisScreen
from rescue_tui.ui.screens.case import CaseScreen
from rescue_tui.ui.screens.destination import DestinationScreen
from rescue_tui.ui.screens.device import DeviceScreen
from rescue_tui.ui.screens.dialogs import PlainInput
from rescue_tui.ui.screens.images import ImagesScreen
from rescue_tui.ui.screens.plan import PlanScreen
from rescue_tui.ui.widgets.bars import Line
from rescue_tui.ui.widgets.table import Column, KeyedTable, Row
from rescue_tui.ui.words import (
    content_words,
    health_style,
    health_word,
    kind_word,
    node_word,
    plural,
    role_style,
    role_word,
)

# At 80 columns the serial of an NVMe drive (20 characters) is shown whole: it tells two disks of one model apart,
# and what the operator types. The model needs a wider screen; the panel below always shows it.
NARROW = (
    Column("", 2), Column("Node", 9, 1), Column("Kind", 7, 1), Column("Serial", 21, 4, keeps_end=True),
    Column("Size", 10), Column("Role", 12), Column("Health", 8), Column("On it", 11, 6),
)
MODEL_AT = 3
WIDE = (*NARROW[:MODEL_AT], Column("Model", 16, 4), *NARROW[MODEL_AT:])
WIDE_COLUMNS = 100
_LAST = (Access.BOOT_MEDIUM, Access.OFF_LIMITS)

HIDDEN_ROWS = 2


def row_key(disk: Disk) -> str:
    """Identity and attachment: two disks that claim one identity are two rows."""
    return f"{disk.id}#{disk.generation}#{disk.node}"


class DevicesScreen(StasisScreen):
    """Every disk with its role, health and what is on it."""

    NAME = "Devices"
    SHOWS_FIGURES = False
    HELP = """
Every disk that is attached. New ones appear by themselves. All of them are
write-protected; only a disk that you grant as the destination can be written.

  Enter   all details of the disk      /   find by serial, model, node, label
  Space   mark for imaging (several)   i   image the marked disks, or this one
  g       make a disk the destination  v   verify a case folder
  c       look for checkpoints          r   look at the disks again

Role: source (never written), DESTINATION (granted), boot medium, off limits.
Health: good, WARNING, FAILING, unknown (the disk does not tell).
On it: every signature that was found; blank means none.
A warning below the list is about hardware that should show a disk.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "find", "Find"),
        Binding("space", "mark", "Mark"),
        Binding("g", "destination", "Destination"),
        Binding("i", "image", "Image"),
        Binding("v", "case", "Verify"),
        Binding("c", "images", "Checkpoints"),
        Binding("r", "reread", "Reread", show=False),
        Binding("escape", "clear", "Show all", show=False),
    ]

    def __init__(self, bridge: Bridge, safe: Safe) -> None:
        super().__init__(bridge, safe)
        self.wanted = ""
        self._wide = False
        self.marked: set[str] = set()

    @property
    def enter_words(self) -> str:
        """What Enter does now, for the key line."""
        return "Details" if self.disk_under_cursor() else ""

    def body(self) -> ComposeResult:
        """Table, find line, hardware that shows no disk, the disk under the cursor."""
        self._wide = self.app.size.width >= WIDE_COLUMNS
        yield KeyedTable(self.safe, WIDE if self._wide else NARROW, id="table")
        yield PlainInput(id="find", placeholder="serial, model, node, label; Enter keeps, Esc shows all")
        yield Line("", id="hidden")
        yield Line("", id="about")

    def on_mount(self) -> None:
        """Start with the find line hidden."""
        self.query_one("#find", PlainInput).display = False
        super().on_mount()

    def on_screen_suspend(self) -> None:
        """Whoever goes on has read the notice."""
        self.view.notice = ""

    @property
    def table(self) -> KeyedTable:
        """The table of disks."""
        return self.query_one("#table", KeyedTable)

    def draw(self) -> None:
        """Rows by key; marks of disks that went are dropped."""
        disks = self.view.disks()
        self.marked &= {row_key(disk) for disk in disks}
        # What can be neither rescued nor written comes last; otherwise the order of the snapshot, by identity.
        shown = sorted((disk for disk in disks if self._matches(disk)),
                       key=lambda disk: self.view.role(disk).access in _LAST)
        self.table.show_rows([self._row(disk) for disk in shown])
        if self.view.snapshot is None:
            self.set_title("Devices: looking at the disks ...")
        else:
            found = f", showing {len(shown)} that match {self.wanted}" if self.wanted else ""
            self.set_title(f"Devices: {plural(len(disks), 'disk')}{found}")
        self._draw_hidden()
        self._draw_about()

    def _draw_hidden(self) -> None:
        findings = self.view.snapshot.findings if self.view.snapshot is not None else ()
        more = [f"and {len(findings) - HIDDEN_ROWS} more: `stasis devices` lists them"] * (len(findings) > HIDDEN_ROWS)
        words = [f"{finding.severity.value.upper()}: {finding.summary}" for finding in findings[:HIDDEN_ROWS]]
        width = max(20, self.size.width - 2)
        line = self.query_one("#hidden", Line)
        line.display = bool(findings)
        line.show(Text("\n".join(self.safe.clip(each, width) for each in [*words, *more]), no_wrap=True))

    def _row(self, disk: Disk) -> Row:
        role, health = self.view.role(disk), self.view.health(disk)
        cells = ["*" if row_key(disk) in self.marked else "", node_word(disk.node), kind_word(disk),
                 disk.serial or "-", human_bytes(disk.size_bytes), role_word(role), health_word(health),
                 content_words(disk)]
        styles = ["bold", "", "", "", "", role_style(role), health_style(health), ""]
        if self._wide:
            cells.insert(MODEL_AT, disk.model or "-")
            styles.insert(MODEL_AT, "")
        return Row(row_key(disk), tuple(cells), tuple(styles))

    def _matches(self, disk: Disk) -> bool:
        if not self.wanted:
            return True
        texts = [disk.node, disk.serial, disk.model, str(disk.id), disk.slot]
        texts += [signature.label for signature in disk.all_signatures] + [part.name for part in disk.partitions]
        wanted = self.wanted.casefold()
        return any(wanted in printable(text, None).casefold() or wanted in self.safe.line(text, None).casefold()
                   for text in texts)

    def _draw_about(self) -> None:
        disk = self.disk_under_cursor()
        if disk is None:
            self.query_one("#about", Line).show("")
            return
        safe, role = self.safe, self.view.role(disk)
        lines = (
            f"{disk.node}  {disk.model}  serial {disk.serial or '(none)'}  slot {disk.slot or '-'}",
            f"{disk.id}",
            f"{role_word(role)}: {role.reason}",
            f"on it: {content_words(disk)}",
        )
        width = max(20, self.size.width - 2)
        self.query_one("#about", Line).show(Text("\n".join(safe.clip(line, width) for line in lines), no_wrap=True))

    def disk_under_cursor(self) -> Disk | None:
        """The disk that the cursor is on."""
        key = self.table.cursor_key
        return next((disk for disk in self.view.disks() if row_key(disk) == key), None)

    def next_words(self) -> str:
        """Guide from nothing to the running job."""
        view = self.view
        if view.notice:
            return view.notice
        if view.snapshot is None:
            return "Reading which disks are attached. Nothing is written. Please wait."
        if view.running_jobs:
            is_are, them = ("is", "it") if view.running_jobs == 1 else ("are", "them")
            return f"{plural(view.running_jobs, 'job')} {is_are} running. j shows {them}."
        if not view.snapshot.disks:
            return "No disk is attached. Plug one in; it appears here by itself."
        waiting = [record for record in view.jobs if record.state in RESUMABLE]
        if waiting:
            return f"{plural(len(waiting), 'job')} can be resumed. j shows them."
        if self.marked:
            return f"{plural(len(self.marked), 'disk')} marked. i plans the imaging, nothing starts yet. Space unmarks."
        if not any(role.access is Access.DESTINATION for role in view.roles.values()) and not view.destinations:
            guarded = view.guard is None or view.guard.armed
            return (f"{'All disks are protected.' if guarded else 'The write guard is not complete, w shows why.'} "
                    "Plug in an external disk, move to it, g makes it the destination.")
        if not any(state.mount_point for state in view.destinations):
            return "The destination is granted but not mounted. g goes on with it."
        return "The destination is ready. Move to the disk to rescue (/ finds a serial), i shows the imaging plan."

    # keys --------------------------------------------------------------------------------------------------------
    def action_find(self) -> None:
        """Open the find line."""
        find = self.query_one("#find", PlainInput)
        find.display = True
        find.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while typing."""
        self.wanted = event.value.strip()
        self.redraw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter and go to the table."""
        event.input.display = False
        self.table.focus()
        self.redraw()

    def action_clear(self) -> None:
        """Show all disks again."""
        find = self.query_one("#find", PlainInput)
        find.value = ""
        find.display = False
        self.wanted = ""
        self.table.focus()
        self.redraw()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Tell of the disk under the cursor."""
        event.stop()
        self._draw_about()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter in the table."""
        event.stop()
        self.action_details()

    def action_details(self) -> None:
        """Open the detail screen."""
        disk = self.disk_under_cursor()
        if disk is not None:
            self.app.push_screen(DeviceScreen(self.bridge, self.safe, disk))

    def action_mark(self) -> None:
        """Mark or unmark."""
        key = self.table.cursor_key
        if key is not None:
            self.marked ^= {key}
            self.redraw()

    def action_destination(self) -> None:
        """The destination screen, with the cursor on this disk."""
        disk = self.disk_under_cursor()
        self.app.push_screen(DestinationScreen(self.bridge, self.safe, row_key(disk) if disk else None))

    def action_image(self) -> None:
        """Plan the imaging of the marked disks, or of the one under the cursor."""
        disk = self.disk_under_cursor()
        chosen = [each for each in self.view.disks() if row_key(each) in self.marked] or ([disk] if disk else [])
        if chosen:
            self.app.push_screen(PlanScreen(self.bridge, self.safe, tuple(chosen)))

    def action_case(self) -> None:
        """Verify a case folder."""
        cases = [record.case for record in self.view.jobs if record.case]
        self.app.push_screen(CaseScreen(self.bridge, self.safe, cases[0] if cases else ""))

    def action_images(self) -> None:
        """The images, which lead to their checkpoints."""
        self.app.push_screen(ImagesScreen(self.bridge, self.safe))

    def action_reread(self) -> None:
        """Look at the disks again, their health too."""
        self.view.healths.clear()
        self.run_worker(self.bridge.refresh_devices(), group="reread", exclusive=True)
        self.run_worker(self.bridge.read_healths(), group="health", exclusive=True)
