"""The destination: which disk may be written, and why not; grant, format, mount, release."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from rescue_tui.core.access import GateDecision
from rescue_tui.core.device import Disk
from rescue_tui.core.errors import RescueError
from rescue_tui.core.finding import Severity
from rescue_tui.core.imaging import DestinationSpace
from rescue_tui.core.text import human_bytes, printable
from rescue_tui.ui.bridge import Bridge
from rescue_tui.ui.describe import Page
from rescue_tui.ui.safe import Safe
from rescue_tui.ui.screens.base import ReadingPane, StasisScreen
from rescue_tui.ui.screens.dialogs import ChoiceDialog, PromptDialog
from rescue_tui.ui.widgets.table import Column, KeyedTable, Row
from rescue_tui.ui.words import content_words, kinds, node_word, plural

COLUMNS = (Column("Node", 9, 1), Column("Model", 13, 2), Column("Serial", 17, 2, keeps_end=True), Column("Size", 10),
           Column("On it", 11, 2), Column("May it be written?", 20, 4))
FILESYSTEMS = (("1", "ext4", "ext4 (Linux; sparse files, no size limit that matters)"),
               ("2", "xfs", "XFS (Linux; fastest for large images)"),
               ("3", "exfat", "exFAT (Windows and macOS read it; no sparse files)"))


class DestinationScreen(StasisScreen):
    """Candidates with the gate's answer, and the steps from a locked disk to a mounted one."""

    NAME = "Destination"
    HELP = """
One disk is opened for writing at a time, by its serial, and only that one.

  Enter  grant: type the serial of the disk exactly as it is shown
  f      format a granted, blank disk (the serial is asked a second time)
  m      mount it and prove by a test write that it can be written
  u      release: unmount, flush, lock it again; then it may be unplugged
  o      allow internal disks, too (when no external disk is at hand)

Below the list stands every reason against the disk under the cursor. Sources,
their relatives, the boot medium and disks in use are never granted.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "format", "Format"),
        Binding("m", "mount", "Mount"),
        Binding("u", "release", "Release"),
        Binding("o", "internal", "Internal disks"),
    ]

    def __init__(self, bridge: Bridge, safe: Safe, start_key: str | None = None) -> None:
        super().__init__(bridge, safe)
        self.internal = False
        self._start_key = start_key
        self._decisions: dict[str, GateDecision] = {}
        self._asked: object = None
        self._mounted: dict[str, DestinationSpace] = {}

    @property
    def enter_words(self) -> str:
        """What Enter does now, for the key line."""
        return "Grant" if self.check_action("grant", ()) else ""

    def body(self) -> ComposeResult:
        """Candidates above, the gate's words below."""
        yield KeyedTable(self.safe, COLUMNS, id="table")
        yield ReadingPane(id="reasons")

    @property
    def table(self) -> KeyedTable:
        """The candidates."""
        return self.query_one("#table", KeyedTable)

    @staticmethod
    def _key(disk: Disk) -> str:
        return f"{disk.id}#{disk.generation}#{disk.node}"

    def draw(self) -> None:
        """Ask the gate when the disks changed, then draw."""
        asked = (self.view.snapshot, tuple(self.view.destinations), self.internal)
        if asked != self._asked:
            self._asked = asked
            self.ask(self._ask_gate(), self._take, group="gate", keys_wait=not self._decisions)
        self.set_title(f"Destination{' (internal disks allowed)' if self.internal else ''}")
        self.table.show_rows([self._row(disk) for disk in self.view.disks()])
        if self._start_key is not None and self.view.disks():
            self.table.go_to(self._start_key)
            self._start_key = None
        self._draw_reasons()

    async def _ask_gate(self) -> dict[str, GateDecision]:
        return {self._key(disk): await self.bridge.gate(disk, internal=self.internal) for disk in self.view.disks()}

    def _take(self, decisions: dict[str, GateDecision]) -> None:
        self._decisions = decisions
        self.redraw()

    def _answer(self, disk: Disk) -> str:
        state = self.view.destination(disk.id)
        if state is not None:
            return "MOUNTED" if state.mount_point else "GRANTED"
        decision = self._decisions.get(self._key(disk))
        if decision is None:
            return "..."
        if decision.allowed:
            count = sum(finding.severity is Severity.WARNING for finding in decision.warnings)
            return f"yes, {plural(count, 'warning')}" if count else "yes"
        return f"no: {decision.refusals[0].summary}"

    def _row(self, disk: Disk) -> Row:
        answer = self._answer(disk)
        return Row(self._key(disk), (node_word(disk.node), disk.model or "-", disk.serial or "-",
                                     human_bytes(disk.size_bytes), content_words(disk), answer),
                   ("", "", "", "", "", "" if answer.startswith("no") else "bold green"))

    def disk_under_cursor(self) -> Disk | None:
        """The candidate that the cursor is on."""
        key = self.table.cursor_key
        return next((disk for disk in self.view.disks() if self._key(disk) == key), None)

    def _draw_reasons(self) -> None:
        disk = self.disk_under_cursor()
        page = Page(self.safe)
        if disk is not None:
            page.say(f"{disk.node}  {disk.model}  serial {disk.serial or '(none)'}", "bold")
            state, decision = self.view.destination(disk.id), self._decisions.get(self._key(disk))
            if state is not None:
                self._say_state(page, disk)
            elif decision is None:
                page.say("The gate is being asked ...")
            else:
                page.say("It may be granted." if decision.allowed else "It can't be the destination:")
                for finding in (*decision.refusals, *decision.warnings):
                    page.finding(finding)
        self.query_one(ReadingPane).show(page.text())

    def _say_state(self, page: Page, disk: Disk) -> None:
        state = self.view.destination(disk.id)
        assert state is not None
        if state.problem:
            page.say(state.problem, "bold red")
        page.say("GRANTED: this disk may be written until it is released or unplugged.")
        if state.mount_point:
            space = self._mounted.get(self._key(disk))
            free = human_bytes(state.space.free_bytes) if state.space is not None else "unknown"
            page.say(f"MOUNTED at {state.mount_point}, {free} free.", "bold green")
            space = state.space or space
            if space is not None:
                limit = "none" if space.max_file_bytes is None else human_bytes(space.max_file_bytes)
                page.say(f"Test write passed. {space.filesystem}: sparse files {'yes' if space.sparse else 'no'}, "
                         f"direct I/O {'yes' if space.direct_io else 'no'}, file size limit {limit}.")
        elif disk.is_blank:
            page.say("It is blank. f makes a file system on it, m mounts it.")
        else:
            page.say(f"On it: {content_words(disk)}. m mounts it.")

    def next_words(self) -> str:
        """The next step of the disk under the cursor."""
        if self.busy:
            return f"Working: {self.busy}. Please wait, don't unplug the disk."
        disk = self.disk_under_cursor()
        if disk is None:
            return "No disk is attached. Plug in the disk that shall take the images."
        state = self.view.destination(disk.id)
        if state is None:
            decision = self._decisions.get(self._key(disk))
            if decision is not None and decision.allowed:
                return "This disk may become the destination. Enter asks for its serial; nothing is erased by that."
            return "Move to the disk that shall take the images. The reasons against each one stand below the list."
        if state.mount_point:
            return "The destination is ready. Esc, move to the disk to rescue, then i. u releases the destination."
        if disk.is_blank:
            return "Granted, blank. f formats it (asks for the serial again), then m mounts it. u locks it again."
        return "Granted. m mounts it and makes a test write. u locks it again."

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 (Textual's signature)
        """Only the steps that are possible now."""
        if action not in ("grant", "format", "mount", "release") or not self.is_mounted:
            return True
        disk = self.disk_under_cursor()
        state = self.view.destination(disk.id) if disk else None
        mounted = state is not None and bool(state.mount_point)
        return {"grant": disk is not None and state is None,
                "format": state is not None and not mounted and disk is not None and disk.is_blank,
                "mount": state is not None and not mounted,
                "release": state is not None}[action]

    # keys --------------------------------------------------------------------------------------------------------
    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Show the reasons of another disk."""
        event.stop()
        self._draw_reasons()
        self.tell_next()
        self.refresh_bindings()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter in the table."""
        event.stop()
        self.action_grant()

    def action_internal(self) -> None:
        """Ask the gate again, with or without internal disks."""
        self.internal = not self.internal
        self.redraw()

    def _typed(self, disk: Disk, typed: str) -> str:
        """The serial as the service wants it: a console that can't show a letter shows, and takes, its escape."""
        shown = printable(disk.serial)
        return shown if typed == self.safe.line(disk.serial) else typed

    def _serial_refusal(self, disk: Disk) -> str:
        return f"That is not the serial of {self.safe.line(disk.node)}. Type it exactly as shown, or Esc."

    def action_grant(self) -> None:
        """Ask for the serial, then grant."""
        disk = self.disk_under_cursor()
        if disk is None or self.view.destination(disk.id) is not None:
            return
        decision = self._decisions.get(self._key(disk))
        if decision is None:
            return
        if not decision.allowed:
            reasons = "\n".join(f"- {finding.summary}" for finding in decision.refusals)
            self.failed(RescueError(f"{disk.node} can't be the destination.", "Choose another disk.", reasons))
            return
        page = Page(self.safe)
        page.say(f"{disk.node}  {disk.model}  {human_bytes(disk.size_bytes)}  on it: {content_words(disk)}")
        page.pair("Its serial", disk.serial, "bold")
        page.say("Type the serial: it opens this one disk for writing. Nothing is erased by that.")
        for finding in decision.warnings:
            page.finding(finding)
        self._prompt("Grant: open this disk for writing", page.text(), disk, lambda typed: self._grant(disk, typed))

    def _prompt(self, title: str, words: Text, disk: Disk, then: Callable[[str], None]) -> None:
        def refusal(typed: str) -> str:
            return "" if self._typed(disk, typed) == printable(disk.serial) else self._serial_refusal(disk)

        def answered(typed: str | None) -> None:
            if typed is not None:
                then(self._typed(disk, typed))

        self.app.push_screen(PromptDialog(title, words, refusal=refusal), answered)

    def _grant(self, disk: Disk, typed: str) -> None:
        grant = self.bridge.services.grant(disk, typed, internal=self.internal)
        self.act(f"granting {disk.node}", self._then_look(grant), lambda _: self.redraw())

    async def _then_look(self, action: Awaitable[object]) -> None:
        """The disk has changed: look again without waiting for udev to say so."""
        await action
        await self.bridge.refresh_devices()

    def action_format(self) -> None:
        """Choose a file system, type the serial a second time, format."""
        disk = self.disk_under_cursor()
        if disk is None or self.view.destination(disk.id) is None:
            return

        def chosen(filesystem: str | None) -> None:
            if filesystem is None:
                return
            page = Page(self.safe)
            page.say(f"{disk.node}  {disk.model}  {human_bytes(disk.size_bytes)}")
            page.say(f"FORMAT with {filesystem}: whatever old data is on this disk is lost.", "bold red")
            page.pair("Its serial", disk.serial, "bold")
            page.say("Type the serial again:")
            self._prompt("Format the destination", page.text(), disk, lambda typed: self.act(
                f"formatting {disk.node}",
                self._then_look(self.bridge.services.format_destination(disk, filesystem, typed)),
                lambda _: self.redraw()))

        words = self.safe.text(f"Which file system shall {disk.node} get?")
        self.app.push_screen(ChoiceDialog("Format the destination", words, FILESYSTEMS), chosen)

    def action_mount(self) -> None:
        """Mount and test by a write."""
        disk = self.disk_under_cursor()
        if disk is None:
            return

        parts = disk.partitions[:9]
        if len(parts) < 2:
            self._mount(disk, None)
            return
        choices = tuple((str(number), str(part.number),
                         self.safe.line(f"{node_word(part.node)}  {human_bytes(part.size_bytes)}  "
                                        f"{kinds(part.signatures) or 'no signature'}  {part.name}", 100))
                        for number, part in enumerate(parts, start=1))

        def chosen(number: str | None) -> None:
            if number is not None:
                self._mount(disk, int(number))

        words = self.safe.text(f"Which partition of {disk.node} shall take the images?")
        self.app.push_screen(ChoiceDialog("Mount the destination", words, choices, must_be_seen=True), chosen)

    def _mount(self, disk: Disk, partition: int | None) -> None:
        def mounted(space: DestinationSpace) -> None:
            self._mounted[self._key(disk)] = space
            self.redraw()

        self.act(f"mounting {disk.node}", self.bridge.services.mount_destination(disk, partition), mounted)

    def action_release(self) -> None:
        """Unmount, flush, lock."""
        disk = self.disk_under_cursor()
        if disk is not None:
            self.act(f"releasing {disk.node}",
                     self._then_look(self.bridge.services.release_destination(disk)), lambda _: self.redraw())
