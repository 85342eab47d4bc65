"""The checkpoints of one directory: runs, steps, verdicts, which save to take, and taking it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from rescue_tui.checkpoints.model import Checkpoint, Options
from rescue_tui.checkpoints.scan import Run
from rescue_tui.core.errors import PolicyRefusal
from rescue_tui.core.text import human_bytes
from rescue_tui.jobs.scanning import ScanAnswer
from rescue_tui.system.destination import DestinationState
from rescue_tui.ui.background import Answer, Work, WorkKind, WorkState
from rescue_tui.ui.bridge import Bridge
from rescue_tui.ui.checkpoint_words import (
    name_in_run,
    newest_words,
    ordered,
    place_words,
    saved_words,
    say_findings,
    say_run,
    say_verdict,
    slug,
    step_words,
    tensors_words,
    verdict_style,
    verdict_words,
)
from rescue_tui.ui.describe import Page
from rescue_tui.ui.safe import Safe
from rescue_tui.ui.screens.base import ReadingPane, StasisScreen
from rescue_tui.ui.screens.checkpoint import CheckpointScreen, TensorsScreen
from rescue_tui.ui.screens.dialogs import ChoiceDialog, PromptDialog
from rescue_tui.ui.screens.work import LOOK_SECONDS, WorkScreen, start_work
from rescue_tui.ui.widgets.bars import Line
from rescue_tui.ui.widgets.progress import bar
from rescue_tui.ui.widgets.table import Column, KeyedTable, Row
from rescue_tui.ui.words import plural

NARROW = (Column("", 2), Column("Verdict", 16), Column("Step", 9), Column("Size", 10), Column("Tensors", 10),
          Column("Run and save", 33, 4, keeps_end=True))
WIDE = (*NARROW[:3], Column("Saved (UTC)", 17), Column("Format", 20), *NARROW[3:])
WIDE_COLUMNS = 120
# A table of more rows takes seconds to build; a directory of single arrays may hold a hundred thousand.
SHOWN_ROWS = 2000
_BAR_WIDTH = 30
_PANE_FINDINGS = 20


class CheckpointsScreen(StasisScreen):
    """Every save with its verdict; the newest good one stands first."""

    NAME = "Checkpoints"
    SHOWS_FIGURES = False
    HELP = """
Every checkpoint below a directory, judged from its bytes; none is executed.
In each run the newest good save stands first (*), then newest to oldest.

  Enter  all about a save   t  its tensors    Space  mark    r  scan again
  e   extract: copy the marked saves, or this one      n  scan for NaN, Inf too
  s   salvage: the good tensors of a damaged save      x  cancel the scan
  p   how far the copy is, or how it ended

++ verified      whole, and checksums that matched cover every byte
+  intact        whole and well formed, some bytes have no checksum
?  UNCOMMITTED   the data is there, the writer never said it was complete
!  INCONSISTENT  parts of different saves
X  INCOMPLETE, CORRUPT, EMPTY, FOREIGN (something else by that name)
Copies go to the granted destination only, and end with this program.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "tensors", "Tensors"),
        Binding("space", "mark", "Mark"),
        Binding("e", "extract", "Extract"),
        Binding("s", "salvage", "Salvage"),
        Binding("p", "work", "Copy"),
        Binding("r", "scan(False)", "Scan again"),
        Binding("n", "scan(True)", "Scan values", show=False),
        Binding("x", "cancel", "Cancel"),
    ]

    def __init__(self, bridge: Bridge, safe: Safe, root: Path, label: str) -> None:
        super().__init__(bridge, safe)
        self.root = root
        self.label = label
        self.marked: set[str] = set()
        self._wide = False
        self._problem: Work | None = None
        self._drawn: object = None
        self._cursor_for: ScanAnswer | None = None
        self._runs: dict[str, Run] = {}
        self._rows: dict[str, Checkpoint] = {}

    @property
    def enter_words(self) -> str:
        """What Enter does now, for the key line."""
        return "Details" if self.save_under_cursor() else ""

    @property
    def answer(self) -> ScanAnswer | None:
        """The last scan of this directory that came to its end."""
        return self.bridge.background.scans.get(self.root)

    @property
    def scanning(self) -> Work | None:
        """The scan of this directory, if it is under way."""
        work = self.bridge.background.active
        return work if work is not None and work.kind is WorkKind.SCAN and work.root == self.root else None

    def body(self) -> ComposeResult:
        """Progress or the newest good save, the table, findings of the save under the cursor."""
        self._wide = self.app.size.width >= WIDE_COLUMNS
        yield Line("", id="newest")
        yield KeyedTable(self.safe, WIDE if self._wide else NARROW, id="table")
        yield ReadingPane(id="reasons")

    def on_mount(self) -> None:
        """Scan at once, unless it was scanned before."""
        super().on_mount()
        self.set_interval(LOOK_SECONDS, self._look)
        if self.answer is None and self.bridge.background.active is None:
            self.action_scan(False)

    def _look(self) -> None:
        """Progress moves without any change of the view."""
        if self.bridge.background.active is not None and self.app.screen is self:
            self._draw_newest()

    @property
    def table(self) -> KeyedTable:
        """The table of runs and saves."""
        return self.query_one("#table", KeyedTable)

    # drawing -----------------------------------------------------------------------------------------------------
    def draw(self) -> None:
        """Rows when the scan or the marks changed."""
        answer = self.answer
        wanted = (answer, frozenset(self.marked))
        if wanted != self._drawn:
            self._drawn = wanted
            self._runs.clear()
            self._rows.clear()
            self.table.show_rows(self._all_rows(answer) if answer is not None else [])
            if answer is not None and answer is not self._cursor_for:
                self._cursor_for = answer
                self.table.go_to(f"save {answer.scan.newest_good}")
        count = "" if answer is None else (f"{plural(len(answer.scan.checkpoints), 'save')} in "
                                           f"{plural(len(answer.scan.runs), 'run')}, ")
        self.set_title(f"Checkpoints: {count}{self.label}")
        self._draw_newest()
        self._draw_chosen()

    def _draw_newest(self) -> None:
        width = max(20, self.size.width - 2)
        scanning, answer = self.scanning, self.answer
        if scanning is not None:
            place = scanning.place
            lines = [f"{bar(place.percent, _BAR_WIDTH)} {place_words(place)}", f"now: {place.name or '...'}"]
        elif answer is not None:
            lines = [newest_words(answer.scan)]
            if self._problem is not None and self._problem.answer is not answer and not self._problem.active:
                lines.append("The scan after that did not come to its end; this is the one before.")
            hidden = len(answer.scan.checkpoints) - SHOWN_ROWS
            lines += [f"{hidden} more saves are not shown: `stasis checkpoints scan` lists them"] * (hidden > 0)
            if answer.scan.findings:
                lines.append(f"{plural(len(answer.scan.findings), 'place')} can't be looked at, as "
                             f"{answer.scan.findings[0].file or '.'}")
        elif self._problem is not None and self._problem.state is WorkState.CANCELLED:
            lines = ["The scan was cancelled."]
        else:
            lines = ["Not scanned."]
        self.query_one("#newest", Line).show(
            Text("\n".join(self.safe.clip_middle(line, width) for line in lines), no_wrap=True))

    def _all_rows(self, answer: ScanAnswer) -> list[Row]:
        rows: list[Row] = []
        for run, members in ordered(answer.scan):
            key = f"run {run.path}"
            self._runs[key] = run
            cells = ["", "RUN", "", "", "", run.path if run.path != "." else "(top directory)"]
            rows.append(Row(key, self._fitted(cells, ["", ""]), ("bold",) * len(WIDE if self._wide else NARROW)))
            for row in members:
                if len(self._rows) >= SHOWN_ROWS:
                    return rows
                key = f"save {row.path}"
                self._rows[key] = row
                rows.append(self._row(key, row, run))
        return rows

    def _row(self, key: str, row: Checkpoint, run: Run) -> Row:
        newest = "* " if row.path == run.newest_good else ""
        cells = ["#" if row.path in self.marked else "", verdict_words(row.verdict), step_words(row),
                 human_bytes(row.size_bytes), tensors_words(row), f"{newest}{name_in_run(row, run)}"]
        fitted = self._fitted(cells, [saved_words(row), row.reading.format])
        return Row(key, fitted, ("bold", verdict_style(row.verdict), *("",) * (len(fitted) - 2)))

    def _fitted(self, cells: list[str], more: list[str]) -> tuple[str, ...]:
        return (*cells[:3], *more, *cells[3:]) if self._wide else tuple(cells)

    def save_under_cursor(self) -> Checkpoint | None:
        """The save that the cursor is on."""
        key = self.table.cursor_key if self.is_mounted else None
        return self._rows.get(key or "")

    def _draw_chosen(self) -> None:
        page, key = Page(self.safe), self.table.cursor_key or ""
        if key in self._rows:
            row = self._rows[key]
            page.say(row.path, "bold")
            say_verdict(page, row)
            say_findings(page, row.reading.findings, _PANE_FINDINGS)
        elif key in self._runs:
            say_run(page, self._runs[key])
        self.query_one(ReadingPane).show(page.text())

    def next_words(self) -> str:
        """Scan, choose, copy."""
        active = self.bridge.background.active
        if self.scanning is not None:
            if self.scanning.state is WorkState.CANCELLING:
                return "CANCELLING. What is being read comes to its end; wait."
            return "Scanning: nothing is written or executed. x cancels. Esc leaves it running."
        if active is not None:
            return f"The {active.kind.value} is RUNNING. p shows how far it is. Stay in Stasis until it has ended."
        answer = self.answer
        if answer is None:
            return "r scans this directory: nothing is written or executed."
        if self.marked:
            return f"{plural(len(self.marked), 'save')} marked. e copies them to the destination. Space unmarks."
        row = self.save_under_cursor()
        if row is None:
            return "Move to a save: Enter shows all of it, e extracts it, s salvages what is good of a damaged one."
        if row.verdict.trusted:
            newest = "the newest good save" if row.path == answer.scan.newest_good else "good"
            return f"This one is {newest}. e copies it to the destination. Enter shows all of it, t its tensors."
        return "This one is NOT GOOD; the lines above say why. s salvages its good tensors, Enter shows all of it."

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 (Textual's signature)
        """Only what is possible now."""
        if not self.is_mounted:
            return True
        background = self.bridge.background
        idle, row = background.active is None, self.save_under_cursor()
        return {"scan": idle, "cancel": self.scanning is not None, "work": background.copied is not None,
                "extract": idle and (row is not None or bool(self.marked)), "salvage": idle and row is not None,
                "tensors": row is not None and bool(row.reading.tensors),
                "mark": row is not None}.get(action, True)

    # keys --------------------------------------------------------------------------------------------------------
    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Tell of another save."""
        event.stop()
        self._draw_chosen()
        self.tell_next()
        self.refresh_bindings()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter in the table."""
        event.stop()
        row = self.save_under_cursor()
        if row is not None:
            self.app.push_screen(CheckpointScreen(self.bridge, self.safe, row))

    def action_tensors(self) -> None:
        """The tensors of the save."""
        row = self.save_under_cursor()
        if row is not None:
            self.app.push_screen(TensorsScreen(self.bridge, self.safe, row))

    def action_mark(self) -> None:
        """Mark or unmark."""
        row = self.save_under_cursor()
        if row is not None:
            self.marked ^= {row.path}
            self.redraw()

    def action_scan(self, values: bool) -> None:
        """Scan, with the values or without."""
        work = Work(WorkKind.SCAN, self.root, f"Scan of {self.label}")
        self._problem = work
        self.marked.clear()
        start_work(self, work, self.bridge.services.scan_checkpoints(
            [self.root], Options(values=values), work.ticker("scanning")), self._scanned)

    def _scanned(self, work: Work) -> None:
        if work.error is not None:
            self.failed(work.error)

    def action_cancel(self) -> None:
        """End the scan."""
        if self.scanning is not None:
            self.bridge.background.stop()
            self.redraw()

    def action_work(self) -> None:
        """How far the copy is, or how it ended."""
        if self.bridge.background.copied is not None:
            self.app.push_screen(WorkScreen(self.bridge, self.safe, self.bridge.background.copied))

    # copying -----------------------------------------------------------------------------------------------------
    def _with_destination(self, then: Callable[[DestinationState], None]) -> None:
        """Go on with the mounted destination, or say in words that there is none."""
        targets = [state for state in self.view.destinations if state.mount_point and state.present]
        if not targets:
            granted = bool(self.view.destinations)
            self.failed(PolicyRefusal(
                "The destination is granted, but not mounted." if granted else "No destination is granted.",
                "d shows the disks; move to the one that shall take the copy, g there grants and mounts it. "
                "The scan is kept: c leads back here."))
            return
        if len(targets) == 1:
            then(targets[0])
            return
        choices = tuple((str(number), str(number), self.safe.line(f"{state.mount_point}  serial {state.serial}", 60))
                        for number, state in enumerate(targets[:9], start=1))
        self.app.push_screen(ChoiceDialog("Destination", "Which destination?", choices, must_be_seen=True),
                             lambda number: then(targets[int(number) - 1]) if number else None)

    def _ask_directory(self, title: str, page: Page, state: DestinationState, value: str,
                       then: Callable[[Path], None]) -> None:
        free = f"{human_bytes(state.space.free_bytes)} free" if state.space is not None else "free space unknown"
        page.pair("Destination", f"{state.mount_point}  ({free})")
        page.say("Directory below it; Enter starts, Esc goes back and nothing happens:")
        self.app.push_screen(
            PromptDialog(title, page.text(), value=value, refusal=_refusal, must_be_seen=True),
            lambda typed: then(Path(state.mount_point) / typed) if typed else None)

    def action_extract(self) -> None:
        """Copy the marked saves, or this one."""
        answer, row = self.answer, self.save_under_cursor()
        if answer is None or self.bridge.background.active is not None:
            return
        rows = [each for each in answer.scan.checkpoints if each.path in self.marked] or ([row] if row else [])
        if not rows:
            return

        def placed(state: DestinationState) -> None:
            page = Page(self.safe)
            page.say(f"{plural(len(rows), 'save')}, {human_bytes(sum(each.size_bytes for each in rows))}:", "bold")
            for each in rows:
                page.say(f"{verdict_words(each.verdict)}  {each.path}", verdict_style(each.verdict))
            if not all(each.verdict.trusted for each in rows):
                page.say("NOT ALL OF THEM ARE GOOD: the copy will be as damaged as what is here.", "bold red")
            self._ask_directory("Extract: copy to the destination", page, state, f"checkpoints/{slug(self.label)}",
                                lambda to: self._extract(rows, to))

        self._with_destination(placed)

    def _extract(self, rows: list[Checkpoint], to: Path) -> None:
        work = Work(WorkKind.EXTRACT, self.root, f"Extract {plural(len(rows), 'save')} of {self.label}", to)
        services = self.bridge.services

        async def gated() -> Answer:
            await services.destination_space(to)
            return await services.extract_checkpoints(
                [self._path(row) for row in rows], to, {row.verdict for row in rows}, work.ticker("judging again"),
                work.ticker("copying"), root=self.root)

        self.marked.clear()
        start_work(self, work, gated())
        self.app.push_screen(WorkScreen(self.bridge, self.safe, work))

    def action_salvage(self) -> None:
        """Copy the good tensors of this save."""
        row = self.save_under_cursor()
        if row is None or self.bridge.background.active is not None:
            return

        def placed(state: DestinationState) -> None:
            page = Page(self.safe)
            page.say(row.path, "bold")
            say_verdict(page, row)
            page.say("Every tensor that is proven, or at least whole, goes into a new safetensors file.")
            self._ask_directory("Salvage: good tensors to the destination", page, state,
                                f"salvaged/{slug(self.label)}/{slug(row.path)}", lambda to: self._salvage(row, to))

        self._with_destination(placed)

    def _salvage(self, row: Checkpoint, to: Path) -> None:
        work = Work(WorkKind.SALVAGE, self.root, f"Salvage {row.path} of {self.label}", to)
        services = self.bridge.services

        async def gated() -> Answer:
            await services.destination_space(to)
            return await services.salvage_checkpoint(self._path(row), to, work.ticker("copying and comparing"))

        start_work(self, work, gated())
        self.app.push_screen(WorkScreen(self.bridge, self.safe, work))

    def _path(self, row: Checkpoint) -> Path:
        return self.root if row.path == "." else self.root / row.path


def _refusal(typed: str) -> str:
    parts = typed.split("/")
    if not typed or typed.startswith("/") or any(part in {"", ".", ".."} for part in parts):
        return "Name a directory below the destination, such as checkpoints/node7."
    return ""


