"""One save in full, and its tensors with a filter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Input

from rescue_tui.checkpoints.model import Checkpoint, Proof, TensorEntry
from rescue_tui.core.text import printable
from rescue_tui.ui.bridge import Bridge
from rescue_tui.ui.checkpoint_words import (
    proof_words,
    say_checkpoint,
    say_findings,
    shape_words,
    stored_bytes_words,
)
from rescue_tui.ui.describe import Page
from rescue_tui.ui.safe import Safe
from rescue_tui.ui.screens.base import ReadingPane, StasisScreen
from rescue_tui.ui.screens.dialogs import PlainInput
from rescue_tui.ui.widgets.table import Column, KeyedTable, Row
from rescue_tui.ui.words import plural

COLUMNS = (Column("State", 15), Column("Type", 10, 1), Column("Shape", 14, 1), Column("Size", 10),
           Column("Name", 31, 6, keeps_end=True))
SHOWN_TENSORS = 1000
_PANE_FINDINGS = 20
_PANE_BLOCKS = 20
_WORST_FIRST = (Proof.DAMAGED, Proof.UNVERIFIABLE, Proof.VERIFIED)


class CheckpointScreen(StasisScreen):
    """Verdict, findings, members of one save."""

    NAME = "Checkpoint"
    SHOWS_FIGURES = False
    HELP = """
Everything that is known of one save; nothing here changes it.

  t                      its tensors, with a filter
  Arrows, Page Up/Down   scroll

A finding names what was seen, the file, the byte, the length and the tensors
that it touches. "Salvageable" is what s on the screen before would save.
Values are what the save tells of itself: step, epoch, learning rate.
"""
    BINDINGS: ClassVar[list[BindingType]] = [Binding("t", "tensors", "Tensors")]

    def __init__(self, bridge: Bridge, safe: Safe, row: Checkpoint) -> None:
        super().__init__(bridge, safe)
        self.row = row

    def body(self) -> ComposeResult:
        """One page."""
        yield ReadingPane(id="checkpoint")

    def draw(self) -> None:
        """The page."""
        self.set_title(f"Checkpoint: {self.row.path}")
        page = Page(self.safe)
        say_checkpoint(page, self.row)
        self.query_one(ReadingPane).show(page.text())

    def next_words(self) -> str:
        """Where to go."""
        if not self.row.reading.tensors:
            return "No tensor of it is known. Esc goes back; e there extracts it, s salvages it."
        return "t lists its tensors. Esc goes back; e there extracts it, s salvages its good tensors."

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 (Textual's signature)
        """Tensors only where there are some."""
        return action != "tensors" or bool(self.row.reading.tensors)

    def action_tensors(self) -> None:
        """The tensors."""
        if self.row.reading.tensors:
            self.app.push_screen(TensorsScreen(self.bridge, self.safe, self.row))


class TensorsScreen(StasisScreen):
    """The tensors of one save, damaged ones first; a filter by name, type, shape or state."""

    NAME = "Tensors"
    SHOWS_FIGURES = False
    HELP = """
The tensors of one save, damaged ones first, then those without a checksum.

  /      find: a part of the name, type, shape or state (damaged, verified);
         several words must all be there. Enter keeps the filter, Esc shows all

++ verified      a checksum that matched covers every byte
+  no checksum   whole and where it should be; nothing can prove its bytes
X  DAMAGED       missing, cut, or its checksum does not match

Below stand the full name, where its bytes lie, and the findings on it.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "find", "Find"),
    ]

    def __init__(self, bridge: Bridge, safe: Safe, row: Checkpoint) -> None:
        super().__init__(bridge, safe)
        self.row = row
        self.wanted = ""
        self._drawn: str | None = None
        self._sorted = sorted(enumerate(row.reading.tensors), key=lambda each: (
            _WORST_FIRST.index(each[1].proof), each[0]))
        self._matching = 0
        self._texts: list[str] = []

    def body(self) -> ComposeResult:
        """Table, find line, the tensor under the cursor."""
        yield KeyedTable(self.safe, COLUMNS, id="table")
        yield PlainInput(id="find", placeholder="name, type, shape, state; Enter keeps, Esc shows all")
        yield ReadingPane(id="reasons")

    def on_mount(self) -> None:
        """Start with the find line hidden."""
        self.query_one("#find", PlainInput).display = False
        super().on_mount()

    @property
    def table(self) -> KeyedTable:
        """The table of tensors."""
        return self.query_one("#table", KeyedTable)

    def draw(self) -> None:
        """Rows when the filter changed."""
        if self.wanted != self._drawn:
            self._drawn = self.wanted
            found = self._found()
            self._matching = len(found)
            self.table.show_rows([_row(number, tensor) for number, tensor in found[:SHOWN_TENSORS]])
        count = len(self._sorted)
        shown = f", {self._matching} that match {self.wanted}" if self.wanted else ""
        first = f", first {SHOWN_TENSORS} shown" if self._matching > SHOWN_TENSORS else ""
        self.set_title(f"Tensors: {count}{shown}{first}, {self.row.path}")
        self._draw_chosen()

    def _found(self) -> Sequence[tuple[int, TensorEntry]]:
        words = self.wanted.casefold().split()
        if not words:
            return self._sorted
        if not self._texts:
            self._texts = [self._text(tensor) for _, tensor in self._sorted]
        return [each for each, text in zip(self._sorted, self._texts, strict=True)
                if all(word in text for word in words)]

    def _text(self, tensor: TensorEntry) -> str:
        """What is searched: as it is shown here, and as other terminals and the command line show it."""
        return "\n".join((printable(tensor.name, None), self.safe.line(tensor.name, None), tensor.dtype,
                          shape_words(tensor), proof_words(tensor.proof))).casefold()

    def tensor_under_cursor(self) -> TensorEntry | None:
        """The tensor that the cursor is on."""
        key = self.table.cursor_key
        return None if key is None else self.row.reading.tensors[int(key)]

    def _draw_chosen(self) -> None:
        page, tensor = Page(self.safe), self.tensor_under_cursor()
        if tensor is not None:
            page.say(tensor.name, "bold")
            page.say(f"{proof_words(tensor.proof)}  {tensor.dtype}  {shape_words(tensor)}")
            for block in tensor.blocks[:_PANE_BLOCKS]:
                page.say(f"{block.length} bytes at byte {block.offset} of {block.file}"
                         f"{f', {block.codec}' * bool(block.codec)}  {proof_words(block.proof)}")
            if len(tensor.blocks) > _PANE_BLOCKS:
                page.say(f"and {len(tensor.blocks) - _PANE_BLOCKS} more parts")
            say_findings(page, [finding for finding in self.row.reading.findings if tensor.name in finding.tensors],
                         _PANE_FINDINGS)
        self.query_one(ReadingPane).show(page.text())

    def next_words(self) -> str:
        """How to find one."""
        damaged = sum(tensor.proof is Proof.DAMAGED for tensor in self.row.reading.tensors)
        words = f"{plural(damaged, 'tensor')} damaged, they stand first." if damaged else "No tensor is damaged."
        back = "Esc shows all again." if self.wanted else "Esc goes back."
        return f"{words} / finds by name, type, shape or state. {back}"

    # keys --------------------------------------------------------------------------------------------------------
    def action_find(self) -> None:
        """Open the find line."""
        find = self.query_one("#find", PlainInput)
        find.display = True
        find.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while typing."""
        event.stop()
        self.wanted = event.value.strip()
        self.redraw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter and go to the table."""
        event.stop()
        event.input.display = False
        self.table.focus()
        self.redraw()

    def action_back(self) -> None:
        """Show all again; without a filter, one screen back."""
        find = self.query_one("#find", PlainInput)
        if not (self.wanted or find.display):
            super().action_back()
            return
        find.value = ""
        find.display = False
        self.wanted = ""
        self.table.focus()
        self.redraw()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Tell of another tensor."""
        event.stop()
        self._draw_chosen()


def _row(number: int, tensor: TensorEntry) -> Row:
    damaged = "bold red" if tensor.proof is Proof.DAMAGED else ""
    return Row(str(number), (proof_words(tensor.proof), tensor.dtype, shape_words(tensor), stored_bytes_words(tensor),
                             tensor.name), (damaged, "", "", "", ""))
