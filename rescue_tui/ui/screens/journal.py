"""The journal of the session: every step, hash chained."""

from __future__ import annotations

import json
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from rescue_tui.core.record import Plain
from rescue_tui.system.journal import JournalEntry
from rescue_tui.ui.bridge import Bridge
from rescue_tui.ui.describe import Page
from rescue_tui.ui.safe import Safe
from rescue_tui.ui.screens.base import ReadingPane, StasisScreen
from rescue_tui.ui.widgets.table import Column, KeyedTable, Row
from rescue_tui.ui.words import plural

COLUMNS = (Column("No", 6), Column("Time (UTC)", 13), Column("Event", 22, 1), Column("Detail", 38, 4))
_COUNT = 500


class JournalScreen(StasisScreen):
    """The last entries, newest first; the one under the cursor in full below."""

    NAME = "Journal"
    SHOWS_FIGURES = False
    HELP = """
Every step of this session, newest first. Each entry carries the hash of the
one before, so a change or a gap shows. A case folder holds a journal of its
own, which "verify" checks.

  Arrows  choose an entry; all of it stands below the list
  r       read it again (it is also read again once a second)
"""
    BINDINGS: ClassVar[list[BindingType]] = [Binding("r", "reread", "Read again")]

    def __init__(self, bridge: Bridge, safe: Safe) -> None:
        super().__init__(bridge, safe)
        self._entries: dict[str, JournalEntry] = {}

    def body(self) -> ComposeResult:
        """List and entry."""
        yield KeyedTable(self.safe, COLUMNS, id="table")
        yield ReadingPane(id="entry")

    def on_mount(self) -> None:
        """Read now, and once a second: other processes write to it."""
        super().on_mount()
        self.set_interval(1.0, self.action_reread)
        self.action_reread()

    def action_reread(self) -> None:
        """Read the tail."""
        if self.is_current:
            self.ask(self.bridge.journal(_COUNT), self._take, group="journal")

    def _take(self, entries: tuple[JournalEntry, ...]) -> None:
        self._entries = {str(entry.seq): entry for entry in reversed(entries)}
        table = self.query_one(KeyedTable)
        table.show_rows([Row(key, (key, entry.time[11:23], entry.event, _detail(entry)))
                         for key, entry in self._entries.items()])
        self.set_title(f"Journal: {plural(len(entries), 'entry') if len(entries) == 1 else f'{len(entries)} entries'}")
        self._show_entry()
        self.tell_next()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Show another entry."""
        event.stop()
        self._show_entry()

    def _show_entry(self) -> None:
        entry = self._entries.get(self.query_one(KeyedTable).cursor_key or "")
        page = Page(self.safe)
        if entry is not None:
            page.pair("Event", entry.event, "bold")
            page.pair("Time", entry.time)
            for name, value in entry.detail.items():
                page.pair(self.safe.clip(name, 14), _plain(value))
            page.pair("Hash", entry.hash)
        self.query_one(ReadingPane).show(page.text())

    def next_words(self) -> str:
        """Nothing can go wrong here."""
        return "What Stasis did, newest first. Arrows choose an entry. Nothing is changed here. Esc goes back."


def _detail(entry: JournalEntry) -> str:
    return "  ".join(f"{name}: {_plain(value)}" for name, value in entry.detail.items())


def _plain(value: Plain) -> str:
    # Not `canonical`: a journal that was edited by hand may hold what has no UTF-8 form.
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
