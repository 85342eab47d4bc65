"""What a key has started and what ends by itself: keys that were typed ahead wait for it."""

from __future__ import annotations

import time

# A key that comes this long after its cause was not typed ahead: whoever types it looks at the screen.
AHEAD_SECONDS = 1.0


class Holds:
    """Each hold has a deadline, since a dying disk must not keep the keys that lead away from it."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[float, float]] = {}
        self._last = 0

    def begin(self, seconds: float) -> int:
        """Hold keys for at most ``seconds``; the number to `end` it by."""
        self._last += 1
        now = time.monotonic()
        self._held[self._last] = (now, now + seconds)
        return self._last

    def end(self, number: int) -> None:
        """It has come to an end."""
        self._held.pop(number, None)

    def holds(self, typed_at: float) -> bool:
        """Does a key that was typed then wait? ``typed_at`` in seconds of the monotonic clock."""
        now = time.monotonic()
        self._held = {number: span for number, span in self._held.items() if now < span[1]}
        return any(typed_at < since + AHEAD_SECONDS for since, _ in self._held.values())
