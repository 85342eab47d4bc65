"""An extraction or a salvage: how far it is, cancel, and what it has come to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from rescue_tui.core.text import human_bytes
from rescue_tui.ui.background import Answer, Work, WorkState
from rescue_tui.ui.bridge import Bridge
from rescue_tui.ui.checkpoint_words import place_words, say_work
from rescue_tui.ui.describe import Page
from rescue_tui.ui.safe import Safe
from rescue_tui.ui.screens.base import ReadingPane, StasisScreen
from rescue_tui.ui.screens.dialogs import ConfirmDialog
from rescue_tui.ui.widgets.progress import bar

LOOK_SECONDS = 0.5


def start_work(screen: StasisScreen, work: Work, call: Awaitable[Answer],
               then: Callable[[Work], None] = lambda _: None) -> None:
    """Run it behind the screens. ``then`` is called at its end if ``screen`` is still there."""
    bridge = screen.bridge
    bridge.background.begin(work)

    def changed() -> None:
        bridge.changed()
        if screen.is_attached:
            then(work)

    worker = screen.app.run_worker(bridge.background.run(work, call, changed), group="checkpoints", exit_on_error=True)
    work.cancel = worker.cancel
    bridge.changed()


class WorkScreen(StasisScreen):
    """Progress, then the summary."""

    NAME = "Copy of checkpoints"
    SHOWS_FIGURES = False
    HELP = """
An extraction or a salvage. It goes on behind other screens, and ends with this
program: what was copied whole stays, the file under way stays as .partial.

  x      cancel (asks)

Every byte is written, then read back from the destination past its cache and
compared, so the bytes of this bar count twice. `sha256sum -c MANIFEST.sha256`
in the directory checks an extraction again on any machine. Extracting once
more into the same directory copies only what is missing.
"""
    BINDINGS: ClassVar[list[BindingType]] = [Binding("x", "cancel", "Cancel")]

    def __init__(self, bridge: Bridge, safe: Safe, work: Work) -> None:
        super().__init__(bridge, safe)
        self.work = work

    def body(self) -> ComposeResult:
        """One page."""
        yield ReadingPane(id="work")

    def on_mount(self) -> None:
        """Look how far it is, twice a second."""
        super().on_mount()
        self.set_interval(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        if self.work.active and self.app.screen is self:
            self.draw()

    def draw(self) -> None:
        """The page."""
        work, page = self.work, Page(self.safe)
        self.set_title(f"{work.kind.value.capitalize()}: {work.state.value}")
        page.say(work.title, "bold")
        page.pair("From", str(work.root))
        page.pair("To", str(work.to or ""))
        if work.active:
            place = work.place
            page.say(f"{work.state.value}  {place.phase or 'starting'}", "bold")
            page.say(f"{bar(place.percent, max(20, min(120, self.size.width - 14)))} {place.percent:.2f} %")
            page.say(place_words(place))
            if place.total_bytes:
                page.pair("Done", f"{human_bytes(place.done_bytes)} of {human_bytes(place.total_bytes)}")
            page.pair("Now", place.name)
        else:
            page.say("")
            say_work(page, work)
        self.query_one(ReadingPane).show(page.text())

    def next_words(self) -> str:
        """Wait, or go on."""
        work = self.work
        if work.state is WorkState.CANCELLING:
            return "CANCELLING. What is being copied comes to its end; wait."
        if work.active:
            return "RUNNING. Don't unplug anything, don't leave Stasis. x cancels. Esc goes back, the copy goes on."
        if work.state is WorkState.FAILED:
            return "FAILED. The lines above say why and what to do. Esc goes back."
        return "It has ended. Esc goes back. d, g, then u releases the destination, once the image is unmounted."

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 (Textual's signature)
        """Cancel only what runs."""
        return action != "cancel" or self.work.state is WorkState.RUNNING

    def action_cancel(self) -> None:
        """Cancel after a question."""
        def answered(yes: bool | None) -> None:
            if yes and self.bridge.background.active is self.work:
                self.bridge.background.stop()
                self.redraw()

        self.app.push_screen(ConfirmDialog(
            f"Cancel the {self.work.kind.value}?",
            "What was copied whole stays; the file under way stays as .partial.\ny cancels, n goes back."), answered)
