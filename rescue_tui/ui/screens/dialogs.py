"""Dialogs over a screen: help, an error, a question, a line to type."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Input

from rescue_tui.core.errors import RescueError
from rescue_tui.ui.safe import Safe
from rescue_tui.ui.widgets.bars import KeyBar, Line


class _PageDialog(ModalScreen[None]):
    """A page to read and close."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close"),
        Binding("enter", "close", "Close", show=False),
        Binding("q", "close", "Close", show=False),
        Binding("question_mark", "close", "Close", show=False),
        Binding("f1", "close", "Close", show=False),
    ]

    def __init__(self, title: str, page: str | Text) -> None:
        super().__init__()
        self._title = title
        self._page = page

    def compose(self) -> ComposeResult:
        """Title, page, keys."""
        with Vertical(classes="dialog tall"):
            yield Line(self._title, classes="dialog-title")
            with VerticalScroll(id="page"):
                yield Line(self._page)
            yield KeyBar()

    def action_close(self) -> None:
        """Close."""
        self.dismiss(None)


class HelpDialog(_PageDialog):
    """What a screen shows and what its keys do."""


class ErrorDialog(_PageDialog):
    """An error: what happened, what to do, and below what proves it, which scrolls.

    What was typed before it was seen meant another screen: it neither closes the error nor goes on behind it.
    """

    TYPED_AHEAD: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, safe: Safe, error: RescueError) -> None:
        page = Text()
        page.append_text(safe.text(error.summary, "bold", None))
        if error.hint:
            page.append("\n\nWhat to do: ").append_text(safe.text(error.hint, limit=None))
        if error.evidence:
            page.append("\n\nEvidence:\n").append_text(safe.block(error.evidence))
        super().__init__("That did not work", page)


class ConfirmDialog(ModalScreen[bool]):
    """A question that y answers with yes, n or Escape with no; a y from before it was seen answers nothing."""

    TYPED_AHEAD: ClassVar[frozenset[str]] = frozenset({"escape", "n"})

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n", "answer(False)", "No"),
        Binding("escape", "answer(False)", "No", show=False),
    ]

    def __init__(self, title: str, words: str | Text) -> None:
        super().__init__()
        self._title = title
        self._words = words

    def compose(self) -> ComposeResult:
        """Question and keys."""
        with Vertical(classes="dialog"):
            yield Line(self._title, classes="dialog-title")
            with VerticalScroll(id="page", classes="short"):
                yield Line(self._words)
            yield KeyBar()

    def action_answer(self, answer: bool) -> None:
        """Close with the answer."""
        self.dismiss(answer)


class ChoiceDialog(ModalScreen[str]):
    """A choice by letters: each choice is a key, its value and its words.

    ``must_be_seen``: the letters mean something else each time, so none counts that was typed before.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "Back")]

    def __init__(
        self, title: str, words: str | Text, choices: tuple[tuple[str, str, str], ...], *, must_be_seen: bool = False,
    ) -> None:
        super().__init__()
        self._title = title
        self._words = words
        self._choices = choices
        self.TYPED_AHEAD = frozenset({"escape"}) if must_be_seen else None
        for key, value, description in choices:
            self._bindings.bind(key, f"choose('{value}')", description, show=False)

    def compose(self) -> ComposeResult:
        """Question and keys."""
        with Vertical(classes="dialog"):
            yield Line(self._title, classes="dialog-title")
            with VerticalScroll(id="page", classes="short"):
                yield Line(self._words)
                yield Line("\n".join(f"  {key}  {description}" for key, _, description in self._choices))
            yield KeyBar()

    def action_choose(self, value: str) -> None:
        """Close with the value."""
        self.dismiss(value)

    def action_close(self) -> None:
        """Close without one."""
        self.dismiss(None)


class PromptDialog(ModalScreen[str]):
    """One line to type; Enter takes it when ``refusal`` has nothing against it, Escape gives up.

    ``must_be_seen``: the line is filled in already, so no Enter counts that was typed before it was seen.
    """

    enter_words = "OK"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pagedown", "scroll(1)", "More", priority=True),
        Binding("pageup", "scroll(-1)", "Less", show=False, priority=True),
        Binding("escape", "close", "Back"),
    ]

    def __init__(
        self, title: str, words: str | Text, *, value: str = "", refusal: Callable[[str], str] = lambda _: "",
        must_be_seen: bool = False,
    ) -> None:
        super().__init__()
        self.TYPED_AHEAD = frozenset({"escape"}) if must_be_seen else None
        self._title = title
        self._words = words
        self._value = value
        self._refusal = refusal

    def compose(self) -> ComposeResult:
        """What is asked, the line, what is wrong with it, keys."""
        with Vertical(classes="dialog"):
            yield Line(self._title, classes="dialog-title")
            with VerticalScroll(id="page", classes="short", can_focus=False):
                yield Line(self._words)
            yield PlainInput(self._value)
            yield Line("", id="refusal")
            yield KeyBar()

    def on_mount(self) -> None:
        """Whether there is more is known once it was laid out."""
        self.call_after_refresh(self.refresh_bindings)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the line, or say what is wrong with it."""
        event.stop()
        self.action_take()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 (Textual's signature)
        """More only where there is more."""
        return action != "scroll" or not self.is_mounted or self.query_one("#page").max_scroll_y > 0

    def action_scroll(self, pages: int) -> None:
        """Scroll what is asked, while the line keeps the keys."""
        self.query_one("#page", VerticalScroll).scroll_relative(y=pages * 4)

    def action_take(self) -> None:
        """Take the line, or say what is wrong with it."""
        value = self.query_one(PlainInput).value
        refusal = self._refusal(value)
        if refusal:
            self.query_one("#refusal", Line).show(Text(refusal, style="bold red"))
            return
        self.dismiss(value)

    def action_close(self) -> None:
        """Close without one."""
        self.dismiss(None)


_EDITING = {
    "backspace": "delete_left", "delete": "delete_right", "left": "cursor_left", "right": "cursor_right",
    "home": "home", "end": "end", "ctrl+a": "home", "ctrl+e": "end", "ctrl+u": "delete_left_all",
}


class PlainInput(Input):
    """One line without a border of blocks and without a blinking cursor, which would repaint a serial line for ever."""

    def __init__(self, value: str = "", *, placeholder: str = "", id: str | None = None) -> None:  # noqa: A002
        super().__init__(value, placeholder=placeholder, id=id, compact=True, select_on_focus=False)
        self.cursor_blink = False

    async def _on_key(self, event: Key) -> None:
        # As bindings, these would act a round trip after the letters that came at once with them: what is typed fast,
        # or over a slow line, would be edited in another order.
        action = _EDITING.get(event.key)
        if action is not None:
            event.stop()
            event.prevent_default()
            await self.run_action(action)
