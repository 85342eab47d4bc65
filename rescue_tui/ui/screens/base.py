"""What every screen shares: the bars at its edges, the general keys, and how it asks for slow things."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar, TypeVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen

from rescue_tui.core.errors import RescueError
from rescue_tui.ui.bridge import Bridge, View
from rescue_tui.ui.safe import Safe
from rescue_tui.ui.screens.dialogs import ErrorDialog, HelpDialog
from rescue_tui.ui.widgets.bars import KeyBar, Line, NextLine, StatusBar, TitleBar

T = TypeVar("T")
# How long keys that were typed ahead wait for an answer that they need, and for something that changes the machine.
ASK_HOLD_SECONDS = 3.0
ACT_HOLD_SECONDS = 10.0

GENERAL_HELP = """
On every screen
  Arrows, Page Up/Down   move           Enter   the main action
  Tab                    next field     Esc     back
  ? or F1                this help      q       leave Stasis (jobs go on)
  d  devices    j  jobs    l  journal    w  write guard

The line above the keys says what is safe to do next. The second line from the
top always shows the write guard, how many write attempts it refused, running
jobs, and the free space of the destination.
"""


class ReadingPane(VerticalScroll):
    """A page of text that scrolls by arrows and page keys."""

    can_focus = True

    def __init__(self, *, id: str) -> None:  # noqa: A002 (Textual's word)
        super().__init__(id=id)
        self._page = Line("")

    def compose(self) -> ComposeResult:
        """The text."""
        yield self._page

    def show(self, words: str | Text) -> None:
        """Show a page; the place in it is kept."""
        self._page.show(words)

    @property
    def words(self) -> str:
        """The page as plain text."""
        return self._page.words


class StasisScreen(Screen[None]):
    """Title, status, body, what next, keys. Subclasses give `body`, `draw` and `next_words`."""

    NAME: ClassVar[str] = ""
    HELP: ClassVar[str] = ""
    # Whether the body shows free space or the progress of jobs.
    SHOWS_FIGURES: ClassVar[bool] = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back"),
        Binding("question_mark", "help", "Help"),
        Binding("f1", "help", "Help", show=False),
    ]

    def __init__(self, bridge: Bridge, safe: Safe) -> None:
        super().__init__()
        # Textual's name: the class that the style sheet goes by on fewer than 20 lines.
        self.VERTICAL_BREAKPOINTS = [(0, "-short"), (20, "-tall")]
        self.bridge = bridge
        self.safe = safe

    @property
    def view(self) -> View:
        """What is known now."""
        return self.bridge.view

    def compose(self) -> ComposeResult:
        """The frame around `body`."""
        yield TitleBar(self.NAME)
        yield StatusBar()
        yield from self.body()
        yield NextLine()
        yield KeyBar()

    def body(self) -> ComposeResult:
        """The widgets between the bars."""
        yield from ()

    def draw(self) -> None:
        """Bring the body up to date with the view."""

    def next_words(self) -> str:
        """What the state is, what is safe to do next, which key does it."""
        return ""

    def on_mount(self) -> None:
        """Draw for the first time."""
        self.redraw()

    def on_screen_resume(self) -> None:
        """Catch up with what happened while another screen was on top."""
        self.redraw()

    @property
    def _is_whole(self) -> bool:
        """False for a screen that is half built, or half taken down: what still comes in would not find its parts."""
        return self.is_mounted and self.is_attached and bool(self.display) and self.app.is_running

    def redraw(self) -> None:
        """Draw everything from the view; called after each change of it."""
        if not self._is_whole:
            return
        self.query_one(StatusBar).show_view(self.view)
        self.draw()
        self.tell_next()
        self.refresh_bindings()
        self.query_one(KeyBar).show_keys()

    def redraw_figures(self) -> None:
        """Draw what moves all the time: the status bar, and the whole of a screen that shows such figures."""
        if self.SHOWS_FIGURES:
            self.redraw()
        elif self._is_whole:
            self.query_one(StatusBar).show_view(self.view)

    def tell_next(self) -> None:
        """Draw the line that says what next; a problem with looking at the machine comes first."""
        problem = self.view.problem
        words = f"PROBLEM: {problem.summary} {problem.hint}" if problem else self.next_words()
        self.query_one(NextLine).show(Text(self.safe.line(words, None)))

    def set_title(self, words: str) -> None:
        """Say after the screen's name what it is about."""
        self.query_one(TitleBar).show(Text(f" STASIS  {self.safe.line(words)}", no_wrap=True))

    def action_back(self) -> None:
        """One screen back."""
        if len(self.app.screen_stack) > 1:
            self.app.pop_screen()

    def action_help(self) -> None:
        """Explain this screen."""
        self.app.push_screen(HelpDialog(f"Help: {self.NAME}", f"{self.HELP.strip()}\n{GENERAL_HELP}"))

    # asking ----------------------------------------------------------------------------------------------------------
    def ask(
        self, answer: Awaitable[T], then: Callable[[T], None], group: str = "ask", *, keys_wait: bool = False,
    ) -> None:
        """Await a question to the machine. A newer one of the group replaces it; a closed screen drops the answer.

        ``keys_wait``: the next key needs the answer, so what was typed ahead waits for it.
        """
        hold = self.bridge.holds.begin(ASK_HOLD_SECONDS if keys_wait else 0.0)

        async def body() -> None:
            try:
                try:
                    result = await answer
                except RescueError as error:
                    self.failed(error)
                    return
                if self.is_attached:
                    then(result)
            finally:
                self.bridge.holds.end(hold)

        self.run_worker(body(), group=group, exclusive=True, exit_on_error=True)

    def act(self, name: str, action: Awaitable[T], then: Callable[[T], None]) -> None:
        """Await something that changes the machine. It belongs to the app: a closed screen does not break it off."""
        actions = self.bridge.actions
        if name in actions:
            return
        actions.add(name)
        hold = self.bridge.holds.begin(ACT_HOLD_SECONDS)

        async def body() -> None:
            try:
                try:
                    result = await action
                except RescueError as error:
                    actions.discard(name)
                    self.failed(error)
                else:
                    actions.discard(name)
                    if self.is_attached:
                        then(result)
                await self.bridge.refresh_status(ACT_HOLD_SECONDS)
                self.bridge.changed()
            finally:
                self.bridge.holds.end(hold)

        self.app.run_worker(body(), group="actions", exit_on_error=True)
        self.tell_next()

    @property
    def busy(self) -> str:
        """What is being done to the machine now, for the what-next line."""
        return ", ".join(sorted(self.bridge.actions))

    def failed(self, error: RescueError) -> None:
        """Show an error as a sentence, what to do, and what proves it."""
        self.app.push_screen(ErrorDialog(self.safe, error))
