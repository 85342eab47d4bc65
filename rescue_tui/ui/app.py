"""The application: theme and glyphs by TERM, the general keys, a fresh picture of the machine, the crash screen."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from rich.console import RenderableType
from textual import events
from textual.app import App
from textual.binding import Binding, BindingType
from textual.filter import LineFilter
from textual.screen import Screen
from textual.scrollbar import ScrollBar
from textual.theme import Theme
from textual.worker import WorkerFailed

from rescue_tui.core.errors import RescueError
from rescue_tui.core.text import printable_lines
from rescue_tui.ui.background import WorkKind
from rescue_tui.ui.bridge import CRASH_EVENT, Bridge, UiServices
from rescue_tui.ui.driver import ConsoleDriver, KeyDriver
from rescue_tui.ui.keys import KeyGate
from rescue_tui.ui.safe import Safe
from rescue_tui.ui.screens.base import StasisScreen
from rescue_tui.ui.screens.devices import DevicesScreen
from rescue_tui.ui.screens.dialogs import ConfirmDialog
from rescue_tui.ui.screens.guard import GuardScreen
from rescue_tui.ui.screens.jobs import JobsScreen
from rescue_tui.ui.screens.journal import JournalScreen
from rescue_tui.ui.terminal import AsciiScrollBar, Colours, GlyphFilter, PlainFilter, Terminal, detect
from rescue_tui.ui.words import plural

# EX_SOFTWARE of sysexits.h: a mistake in Stasis, no outcome of a rescue. The console's session starts the TUI again.
CRASHED = 70
_STATUS_SECONDS = 1.0

_CONSOLE_THEME = Theme(
    name="stasis-console", ansi=True, dark=True, primary="ansi_cyan", secondary="ansi_cyan", warning="ansi_yellow",
    error="ansi_red", success="ansi_green", accent="ansi_cyan", foreground="ansi_default", background="ansi_default",
    surface="ansi_default", panel="ansi_default", boost="ansi_default", variables={
        # What Textual's own style sheets ask of an ANSI theme.
        "ansi-background": "ansi_black", "ansi-foreground": "ansi_white", "border-blurred": "ansi_default",
        "block-cursor-foreground": "ansi_default", "block-cursor-background": "ansi_default",
        "input-cursor-background": "ansi_default", "input-cursor-foreground": "ansi_default",
        "input-selection-background": "ansi_default", "input-selection-foreground": "ansi_default",
        "screen-selection-background": "ansi_default", "screen-selection-foreground": "ansi_default"})
_COLOUR_THEME = Theme(
    name="stasis", dark=True, primary="#5fafd7", secondary="#87afaf", warning="#d7af5f", error="#d75f5f",
    success="#87af5f", accent="#5fafd7", foreground="#d0d0d0", background="#1c1c1c", surface="#1c1c1c",
    panel="#262626", boost="#303030")


class StasisApp(App[int]):
    """Shows the machine and asks the services; decides nothing."""

    TITLE = "Stasis"
    CSS_PATH = Path("styles") / "stasis.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "show('devices')", "Devices"),
        Binding("j", "show('jobs')", "Jobs"),
        Binding("l", "show('journal')", "Journal"),
        Binding("w", "show('guard')", "Guard"),
        Binding("q", "leave", "Leave"),
        Binding("ctrl+q", "leave", "Leave", show=False, priority=True),
        Binding("ctrl+c", "leave", "Leave", show=False, priority=True),
    ]

    def __init__(self, services: UiServices, terminal: Terminal) -> None:
        self.bridge = Bridge(services)
        self.terminal = terminal
        self.safe = Safe(terminal.ascii_text)
        self.crash = ""
        self._own_filters: list[LineFilter] = [GlyphFilter(terminal)]
        if terminal.colours is Colours.NONE:
            self._own_filters.append(PlainFilter())
        ScrollBar.renderer = AsciiScrollBar
        super().__init__(driver_class=KeyDriver if terminal.modern else ConsoleDriver)
        self._gate = KeyGate(self, self.bridge.holds)
        self.animation_level = "none"
        self.add_class(terminal.border)
        self.register_theme(_CONSOLE_THEME)
        self.register_theme(_COLOUR_THEME)
        self.theme = "stasis" if terminal.colours is Colours.MANY else "stasis-console"

    def get_default_screen(self) -> Screen[Any]:
        """The devices lie below every other screen."""
        return DevicesScreen(self.bridge, self.safe)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Ours come last: they see what every widget drew."""
        return [*super().get_line_filters(), *(each for each in self._own_filters if each.enabled)]

    def on_mount(self) -> None:
        """Start to look."""
        self.bridge.changed = self.view_changed
        self.bridge.moved = self.figures_moved
        self.run_worker(self._gate.run(), group="keys", exit_on_error=True)
        self.run_worker(self.bridge.watch(), group="watch", exit_on_error=True)
        self.set_interval(_STATUS_SECONDS, self.refresh_status)
        self.refresh_status()

    def refresh_status(self) -> None:
        """Guard, jobs, destinations; an answer that is still out is not asked for twice."""
        self.run_worker(self.bridge.refresh_status(), group="status", exit_on_error=True)

    def view_changed(self) -> None:
        """Draw the screen on top; the others catch up when they come up. Read the health of disks that are new."""
        self.call_later(self._draw_top)

    def figures_moved(self) -> None:
        """Draw the figures of the screen on top. They move each second of a copy, which needs the processor more."""
        self.call_later(self._draw_top, figures_only=True)

    def _draw_top(self, *, figures_only: bool = False) -> None:
        for screen in reversed(self.screen_stack):
            if isinstance(screen, StasisScreen):
                if figures_only:
                    screen.redraw_figures()
                else:
                    screen.redraw()
                break
        if any(self.bridge.view.health(disk) is None for disk in self.bridge.view.disks()):
            self.run_worker(self.bridge.read_healths(), group="health", exit_on_error=True)

    # keys ------------------------------------------------------------------------------------------------------------
    async def on_event(self, event: events.Event) -> None:
        """Keys of the terminal go through the gate; a forwarded one has been there."""
        if isinstance(event, events.Key | events.Paste) and not event.is_forwarded and not self._gate.passes(event):
            return
        await super().on_event(event)

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        if renderable is not None and not self._batch_count:
            self._gate.drawing(screen)
        super()._display(screen, renderable)

    def action_show(self, name: str) -> None:
        """Go to one of the main screens, over the devices."""
        while len(self.screen_stack) > 1:
            self.pop_screen()
        if name == "jobs":
            self.push_screen(JobsScreen(self.bridge, self.safe))
        elif name == "journal":
            self.push_screen(JournalScreen(self.bridge, self.safe))
        elif name == "guard":
            self.push_screen(GuardScreen(self.bridge, self.safe))

    def action_leave(self) -> None:
        """Ask, say that jobs go on, leave."""
        if isinstance(self.screen, ConfirmDialog):
            return
        if self.bridge.actions:
            self.screen_failed(RescueError(f"Not yet: {', '.join(sorted(self.bridge.actions))}.",
                                           "Wait until that has ended, then leave."))
            return
        self.push_screen(ConfirmDialog("Leave Stasis?", "\n".join(self._leave_lines())),
                         lambda yes: self.exit(0) if yes else None)

    def _leave_lines(self) -> list[str]:
        running, work = self.bridge.view.running_jobs, self.bridge.background.active
        lines = [f"{plural(running, 'job')} will go on without this program." if running else "No job is running."]
        if work is not None:
            kept = "" if work.kind is WorkKind.SCAN else " What was copied whole stays."
            lines.append(f"The {work.kind.value} of checkpoints ENDS HERE.{kept}")
        if self.bridge.view.destinations:
            lines.append("Granted disks stay granted.")
        return [*lines, "y leaves, n stays."]

    def screen_failed(self, error: RescueError) -> None:
        """Show an error over whatever is on top."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, StasisScreen):
                screen.failed(error)
                return

    # crash -----------------------------------------------------------------------------------------------------------
    def _handle_exception(self, error: Exception) -> None:
        # Textual would print the local variables of every frame, with raw text of disks among them.
        if not self.crash:
            cause = error.error if isinstance(error, WorkerFailed) else error
            self.crash = "".join(traceback.format_exception(cause))
        if self.is_headless:
            super()._handle_exception(error)
        else:
            self._close_messages_no_wait()


def run(services: UiServices) -> int:
    """Run the TUI until it is left; the exit status. After a crash the traceback is in the journal and on stderr."""
    terminal = detect(os.environ, sys.stdout.encoding or "ascii")
    app = StasisApp(services, terminal)
    status = app.run(mouse=terminal.modern)
    if not app.crash:
        return status or 0
    sys.stderr.write(f"stasis: the screen program has failed; jobs go on. It can be started again.\n"
                     f"{printable_lines(app.crash)}\n")
    try:
        services.journal.append(CRASH_EVENT, traceback=app.crash[-16_000:])
    except RescueError as error:
        sys.stderr.write(f"stasis: {printable_lines(str(error))}\n")
    return CRASHED
