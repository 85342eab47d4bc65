"""A table whose rows have keys: an update changes cells in place and the cursor stays with its row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from rescue_tui.ui.safe import Safe


@dataclass(frozen=True, slots=True)
class Column:
    """``width`` in cells at 80 columns, with the blank after it; ``grows`` shares what a wider screen has to give.

    ``keeps_end``: what is too long is cut in its middle, since serials of one batch differ at their end.
    """

    name: str
    width: int
    grows: int = 0
    keeps_end: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One row: a stable key, a cell a column (raw text, escaped by the table), a style a cell or none."""

    key: str
    cells: tuple[str, ...]
    styles: tuple[str, ...] = ()


class KeyedTable(DataTable[Text]):
    """`DataTable` with a row cursor, columns that share the width, and `show_rows`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("home", "scroll_top", "First", show=False),
        Binding("end", "scroll_bottom", "Last", show=False),
    ]

    def __init__(self, safe: Safe, columns: Sequence[Column], *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, cursor_type="row", cell_padding=0, cursor_foreground_priority="css")
        self._safe = safe
        self._plan = tuple(columns)
        self._shown: tuple[Row, ...] = ()
        self._widths: tuple[int, ...] = ()

    @property
    def cursor_key(self) -> str | None:
        """The key of the row under the cursor."""
        if not self._shown or not 0 <= self.cursor_row < len(self._shown):
            return None
        return self._shown[self.cursor_row].key

    @property
    def rows_shown(self) -> tuple[Row, ...]:
        """What the table shows now."""
        return self._shown

    def on_mount(self) -> None:
        """Lay out the columns."""
        self._lay_out()

    def on_resize(self, event: events.Resize) -> None:
        """Share the new width out."""
        if event.size.width:
            self._lay_out()

    def _wanted_widths(self) -> tuple[int, ...]:
        spare = (self.size.width or 80) - sum(column.width for column in self._plan)
        shares = sum(column.grows for column in self._plan) or 1
        widths = [column.width + max(0, spare) * column.grows // shares for column in self._plan]
        # A scroll bar takes a cell: the last column gives it.
        widths[-1] = max(4, widths[-1] + min(0, spare))
        return tuple(widths)

    def _lay_out(self) -> None:
        widths = self._wanted_widths()
        if widths == self._widths:
            return
        self._widths = widths
        rows, key = self._shown, self.cursor_key
        self._shown = ()
        self.clear(columns=True)
        for number, (column, width) in enumerate(zip(self._plan, widths, strict=True)):
            self.add_column(Text(self._safe.clip(column.name, width - 1)), width=width, key=str(number))
        self.show_rows(rows)
        self.go_to(key)

    def show_rows(self, rows: Sequence[Row]) -> None:
        """Show these rows: cells that differ are changed, rows come and go by key, the cursor stays with its row."""
        new = tuple(rows)
        if not self._widths or new == self._shown:
            self._shown = new if self._widths else self._shown or new
            return
        key, at = self.cursor_key, self.cursor_row
        if [row.key for row in new] == [row.key for row in self._shown]:
            for old, row in zip(self._shown, new, strict=True):
                if old != row:
                    self._change(old, row)
            self._shown = new
            return
        self._reshape(new)
        if key is None or not self.go_to(key):
            self.move_cursor(row=min(at, max(0, len(new) - 1)))

    def _reshape(self, new: tuple[Row, ...]) -> None:
        wanted = {row.key: row for row in new}
        kept = [row for row in self._shown if row.key in wanted]
        for row in self._shown:
            if row.key not in wanted:
                self.remove_row(row.key)
        # Rows can be added at the end only: in any other order the table is filled again.
        if [row.key for row in kept] == [row.key for row in new[: len(kept)]]:
            for old, row in zip(kept, new, strict=False):
                if old != row:
                    self._change(old, row)
            added = new[len(kept):]
        else:
            self.clear()
            added = new
        for row in added:
            self.add_row(*self._cells(row), key=row.key)
        self._shown = new

    def _cells(self, row: Row) -> list[Text]:
        styles = row.styles or ("",) * len(row.cells)
        return [Text((self._safe.clip_middle if column.keeps_end else self._safe.clip)(cell, width - 1), style=style,
                     no_wrap=True)
                for cell, style, width, column in zip(row.cells, styles, self._widths, self._plan, strict=True)]

    def _change(self, old: Row, new: Row) -> None:
        before = self._cells(old)
        for number, cell in enumerate(self._cells(new)):
            if cell != before[number] or cell.style != before[number].style:
                self.update_cell(new.key, str(number), cell)

    def go_to(self, key: str | None) -> bool:
        """Put the cursor on the row of this key; False when there is none."""
        for number, row in enumerate(self._shown):
            if row.key == key:
                self.move_cursor(row=number)
                return True
        return False
