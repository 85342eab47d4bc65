"""Drive the TUI in a test: what the screen shows as lines, waiting for a state, snapshots of 24 lines a file.

``STASIS_UPDATE_SNAPSHOTS=1 pytest tests/ui`` writes the snapshots anew; look at the difference before it is kept.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from textual._xterm_parser import XTermParser
from textual.events import Key
from textual.pilot import Pilot

from rescue_tui.ui.app import StasisApp
from rescue_tui.ui.keystream import ESCAPE, KeyStream
from rescue_tui.ui.terminal import detect
from tests.support.fake_services import FakeServices

SNAPSHOTS = Path(__file__).parent / "snapshots"
_PATIENCE_SECONDS = 10.0

Keys = dict[str, str]
_NAMES: Keys = {" ": "space", "/": "slash", "-": "minus", "?": "question_mark"}


class Session:
    """A running app with a fake machine behind it."""

    def __init__(self, app: StasisApp, pilot: Pilot[int], services: FakeServices) -> None:
        self.app = app
        self.pilot = pilot
        self.services = services

    @property
    def lines(self) -> list[str]:
        """What the terminal shows, a string a row, dialogs over the screens below them."""
        strips = self.app.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip).rstrip() for strip in strips]

    @property
    def text(self) -> str:
        """The rows as one text."""
        return "\n".join(self.lines)

    async def press(self, *keys: str) -> None:
        """Press keys by Textual's names."""
        await self.pilot.press(*keys)

    async def type(self, text: str) -> None:
        """Type text."""
        await self.pilot.press(*(_NAMES.get(char, char) for char in text))

    def burst(self, data: str) -> None:
        """Everything at once, as a line delivers it that was read late: the app has dealt with none of it."""
        parser, stream = XTermParser(), KeyStream(0.0)
        for piece in [*stream.feed(data, 0.0), *stream.expire(0.0)]:
            for event in [Key("escape", ESCAPE)] if piece == ESCAPE else parser.feed(piece):
                self.app.post_message(event)

    async def until(self, condition: Callable[[], object], what: str = "") -> None:
        """Let the app work until ``condition`` holds; the screen is in the error when it never does."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"never came: {what or condition}\ncalls: {self.services.calls}\n{self.text}")
            await self.pilot.pause()

    async def see(self, words: str) -> None:
        """Wait until the screen shows ``words``."""
        await self.until(lambda: words in self.text, words)

    async def see_not(self, words: str) -> None:
        """Wait until the screen does not show ``words``."""
        await self.until(lambda: words not in self.text, f"without {words}")

    async def on_screen(self, name: str) -> None:
        """Wait until the screen of this class is on top."""
        await self.until(lambda: type(self.app.screen).__name__ == name, name)

    async def rows(self, count: int) -> None:
        """Wait until the screen has ``count`` rows."""
        await self.until(lambda: len(self.lines) == count, f"{count} rows")

    async def status(self) -> None:
        """Look at guard and jobs now, as the app does once a second."""
        await self.app.bridge.refresh_status()
        await self.pilot.pause()


@asynccontextmanager
async def session(
    services: FakeServices | None = None, *, term: str = "vt220", size: tuple[int, int] = (80, 24), ready: str = "good",
) -> AsyncIterator[Session]:
    """The app on a headless terminal; entered when ``ready`` is on the screen."""
    fake = services or FakeServices()
    app = StasisApp(fake, detect({"TERM": term}))
    async with app.run_test(size=size) as pilot:
        found = Session(app, pilot, fake)
        if ready:
            await found.see(ready)
        yield found


def check_snapshot(name: str, lines: list[str]) -> None:
    """Compare with ``snapshots/<name>.txt``, or write it when STASIS_UPDATE_SNAPSHOTS is set."""
    path = SNAPSHOTS / f"{name}.txt"
    shown = "\n".join(lines) + "\n"
    if os.environ.get("STASIS_UPDATE_SNAPSHOTS"):
        path.write_text(shown, encoding="utf-8")
    assert path.exists(), f"{path.name} is missing: set STASIS_UPDATE_SNAPSHOTS=1 to write it"
    assert shown == path.read_text(encoding="utf-8")
