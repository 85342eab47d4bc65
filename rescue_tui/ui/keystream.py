"""From the bytes of a terminal to whole key sequences. Pure: the clock is an argument.

Textual's parser takes Escape and a key that follows within its time-out for Alt and that key: neither the Escape nor
the key works then. On a console or a serial line they are two keys, typed ahead or sent as a burst. And it gives up a
sequence that comes in two halves, which a serial-over-LAN console or a busy machine makes of an arrow key, and types
the halves as text. Sources: ECMA-48 5.4 (form of a control sequence), console_codes(4) (``ESC [ [ A`` is F1).
"""

from __future__ import annotations

ESCAPE = "\x1b"
# Longer than any key; what grows beyond it is noise on the line.
LONGEST = 64


class KeyStream:
    """Cuts text into ``ESCAPE`` alone (the key), whole sequences, and runs of plain text; order is kept."""

    def __init__(self, patience_seconds: float) -> None:
        """``patience_seconds``: how long after an Escape byte the rest of its sequence may be on its way."""
        self.patience_seconds = patience_seconds
        self._begun = ""
        self._since = 0.0

    def feed(self, text: str, now: float) -> list[str]:
        """The pieces that are certain after ``text``; ``now`` in seconds of a clock that never goes back."""
        pieces: list[str] = []
        plain = ""
        for char in text:
            if not self._begun and char != ESCAPE:
                plain += char
                continue
            if plain:
                pieces.append(plain)
                plain = ""
            pieces += self._begin_or_go_on(char)
            self._since = now
        return [*pieces, plain] if plain else pieces

    def wait_seconds(self, now: float) -> float | None:
        """How long until `expire` decides; None when nothing is open."""
        return max(0.0, self._since + self.patience_seconds - now) if self._begun else None

    def expire(self, now: float) -> list[str]:
        """An Escape byte that nothing followed in time was the key, and what came after it was typed."""
        if not self._begun or now - self._since < self.patience_seconds:
            return []
        return self._as_typed()

    def _begin_or_go_on(self, char: str) -> list[str]:
        begun, self._begun = self._begun, self._begun + char
        if not begun or (begun == ESCAPE and char in "[O") or (begun == "\x1b[" and char == "["):
            return []
        final = "\x40" <= char <= "\x7e"
        parameter = "\x20" <= char <= "\x3f" and begun != "\x1bO"
        if begun == ESCAPE or not (final or parameter) or len(begun) >= LONGEST:
            self._begun = begun
            pieces = self._as_typed()
            if char == ESCAPE:
                self._begun = ESCAPE
                return pieces
            return [*pieces, char]
        if final:
            whole, self._begun = self._begun, ""
            return [whole]
        return []

    def _as_typed(self) -> list[str]:
        begun, self._begun = self._begun, ""
        return [ESCAPE, begun[1:]] if len(begun) > 1 else [ESCAPE]
