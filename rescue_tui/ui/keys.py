"""Type-ahead: a key acts on the screen that the keys before it have led to, in order, and none is lost.

Textual hands a key to whatever has the focus when it arrives, though the key before it may be about to open a screen.
On a slow line, from a console that sends a burst, or on a busy machine the beginning of a typed serial would go to the
list below the dialog that asks for it. So keys wait here until the key before was dealt with to the end, the screen on
top is built and was drawn once, and what a key has started (`Holds`) has come to an end.

What was typed before a question could be seen does not answer it: a screen that has ``TYPED_AHEAD`` takes only these
keys from before its first drawing; the others are dropped.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any
from weakref import WeakKeyDictionary

from textual import events
from textual.app import App
from textual.screen import Screen

from rescue_tui.ui.holds import Holds

# A burst longer than this is no operator's; its end is dropped, so that what is kept is what was sent, in order.
QUEUE_KEYS = 1024
# Rounds of the event loop without a message under way after which a key is dealt with.
_CALM_ROUNDS = 8
_SETTLE_SECONDS = 2.0
_LOOK_SECONDS = 0.01
# A screen that can't be built would otherwise keep the keys that leave it.
_BUILD_SECONDS = 30.0


class KeyGate:
    """The queue of keys. `passes` says whether the app may deal with a key now; `run` lets the others through later."""

    def __init__(self, app: App[Any], holds: Holds) -> None:
        self._app = app
        self._holds = holds
        self._queue: deque[events.Key | events.Paste] = deque()
        self._drawn: WeakKeyDictionary[Screen[Any], float] = WeakKeyDictionary()
        self._through: events.Event | None = None
        self._under_way = False
        self._wake = asyncio.Event()

    def drawing(self, screen: Screen[Any]) -> None:
        """A screen is about to be drawn; called before anything of it is on the line."""
        if screen.is_mounted:
            self._drawn.setdefault(screen, time.monotonic())

    def passes(self, event: events.Key | events.Paste) -> bool:
        """True when the app may deal with the key now; it is queued otherwise."""
        if event is self._through:
            self._through = None
            return True
        if not self._under_way and not self._queue and self._is_ready(event):
            self._under_way = True
            self._wake.set()
            return not self._is_stale(event)
        if len(self._queue) < QUEUE_KEYS:
            self._queue.append(event)
            self._wake.set()
        return False

    async def run(self) -> None:
        """Let queued keys through, one after the other; ends only when it is cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._under_way = True
            await self._settle()
            while self._queue:
                await self._until_ready(self._queue[0])
                event = self._queue.popleft()
                if self._is_stale(event):
                    continue
                self._through = event
                self._app.post_message(event)
                await self._settle()
            self._under_way = False

    @property
    def _top(self) -> Screen[Any] | None:
        stack = self._app.screen_stack
        return stack[-1] if stack else None

    def _is_ready(self, event: events.Event) -> bool:
        top = self._top
        return top is not None and top in self._drawn and not self._holds.holds(event.time)

    def _is_stale(self, event: events.Event) -> bool:
        top = self._top
        allowed: frozenset[str] | None = getattr(top, "TYPED_AHEAD", None)
        if top is None or allowed is None or event.time >= self._drawn.get(top, float("inf")):
            return False
        return not (isinstance(event, events.Key) and event.key in allowed)

    async def _until_ready(self, event: events.Event) -> None:
        deadline = time.monotonic() + _BUILD_SECONDS
        while not self._is_ready(event) and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._is_ready(event):
                # What made it ready may have more to say, a screen to open for one.
                await self._settle()

    async def _settle(self) -> None:
        """Wait until no message is under way: the key bubbled up, its action ran, the answers to it were given."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        calm = 0
        while calm < _CALM_ROUNDS and time.monotonic() < deadline:
            await asyncio.sleep(0)
            calm = 0 if self._is_busy() else calm + 1

    def _is_busy(self) -> bool:
        return bool(self._app.message_queue_size) or any(
            node.message_queue_size for screen in self._app.screen_stack
            for node in screen.walk_children(with_self=True))
