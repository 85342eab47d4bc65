"""The lines at the edges of every screen: title, status, what next, keys."""

from __future__ import annotations

from typing import Any

from rich.text import Text
from textual.screen import Screen
from textual.widgets import Static

from rescue_tui.core.text import human_bytes
from rescue_tui.ui.bridge import View
from rescue_tui.ui.guard_words import guard_style, guard_words, refused_attempts
from rescue_tui.ui.words import plural

_KEY_NAMES = {
    "enter": "Enter", "escape": "Esc", "space": "Space", "slash": "/", "question_mark": "?", "tab": "Tab",
    "pagedown": "PgDn", "left": "Left", "right": "Right", "ctrl+c": "^C",
}


class Line(Static):
    """Text of ours or text that `Safe` made; never markup."""

    def __init__(self, words: str | Text = "", *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(words, id=id, classes=classes, markup=False)

    @property
    def words(self) -> str:
        """What is shown, as plain text."""
        return str(self.content)

    def show(self, words: str | Text) -> None:
        """Show other words; nothing is redrawn when they are the same."""
        if str(words) != str(self.content):
            # Textual 8.2.8 keys its cache of sizes by this count and forgets to raise it when a layout is due already:
            # a second update before the first was laid out would keep the height of the first.
            self._layout_updates += 1
            self.update(words)


class TitleBar(Line):
    """The name of the screen, and what it is about."""

    def __init__(self, title: str) -> None:
        super().__init__(f" STASIS  {title}", id="title")


class StatusBar(Line):
    """Guard, refused attempts, running jobs, free space: on every screen, always."""

    def __init__(self) -> None:
        super().__init__(" Guard: being read", id="status")

    def show_view(self, view: View) -> None:
        """Draw from the view."""
        words = Text(f" {status_words(view)}", no_wrap=True)
        if view.guard is not None:
            words.stylize(guard_style(view.guard), 0, words.plain.index("|"))
        self.show(words)


def status_words(view: View) -> str:
    """The status bar's words; fit for 80 columns."""
    free = [state.space.free_bytes for state in view.destinations if state.space is not None and state.present]
    if any(state.problem for state in view.destinations):
        destination = "Dest: PROBLEM"
    elif free:
        destination = f"Dest: {human_bytes(sum(free))} free"
    elif view.destinations:
        destination = "Dest: not mounted"
    else:
        destination = "Dest: none"
    if view.guard is None:
        return f"Guard: being read | {plural(view.running_jobs, 'job')} running | {destination}"
    return (f"Guard: {guard_words(view.guard)} | {refused_attempts(view.guard)} refused | "
            f"{plural(view.running_jobs, 'job')} running | {destination}")


class NextLine(Line):
    """What is safe to do next, and which key does it."""

    def __init__(self) -> None:
        super().__init__("", id="next")


class KeyBar(Line):
    """The keys of the screen, from its bindings; wraps into a second line between two keys."""

    def __init__(self) -> None:
        super().__init__("", id="keys")

    def on_mount(self) -> None:
        """Follow the bindings of the screen."""
        self.screen.bindings_updated_signal.subscribe(self, lambda _: self.show_keys())
        self.show_keys()

    def on_resize(self) -> None:
        """Wrap anew."""
        self.show_keys()

    def show_keys(self) -> None:
        """Draw the keys that do something now."""
        self.show(wrapped_keys(shown_keys(self.screen), self.content_size.width or self.screen.size.width - 2))


# The keys of the screen come first, then those that are the same everywhere.
_LATE = {"show": 1, "help": 2, "back": 3, "leave": 4}


def shown_keys(screen: Screen[Any]) -> list[tuple[str, str]]:
    """``(Enter, Details), (/, Find)``: every shown binding whose action is enabled now."""
    found: list[tuple[int, str, str]] = []
    actions: set[str] = set()
    enter = str(getattr(screen, "enter_words", ""))
    if enter:
        found.append((0, "Enter", enter))
    for active in screen.active_bindings.values():
        binding = active.binding
        if binding.show and active.enabled and binding.action not in actions:
            actions.add(binding.action)
            rank = _LATE.get(binding.action.partition("(")[0].rpartition(".")[2], 0)
            found.append((rank, _KEY_NAMES.get(binding.key, binding.key), binding.description))
    return [(key, words) for _, key, words in sorted(found, key=lambda each: each[0])]


def wrapped_keys(keys: list[tuple[str, str]], width: int) -> Text:
    """``Enter Details  / Find``, in lines of ``width`` cells."""
    text, used = Text(), 0
    for key, words in keys:
        length = len(key) + 1 + len(words)
        if used and used + 2 + length > width:
            text.append("\n")
            used = 0
        elif used:
            text.append("  ")
            used += 2
        text.append(key, style="reverse").append(f" {words}")
        used += length
    return text
