"""One job: how far it is, the map of the disk, pause, resume, cancel, and the result."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from rescue_tui.core.errors import RescueError
from rescue_tui.core.job import ACTIVE, FINAL, READING_PHASES, RESUMABLE, JobRecord, JobState
from rescue_tui.core.mapfile import Mapfile
from rescue_tui.core.text import human_bytes
from rescue_tui.ui.bridge import Bridge
from rescue_tui.ui.describe import Page
from rescue_tui.ui.safe import Safe
from rescue_tui.ui.screens.base import ReadingPane, StasisScreen
from rescue_tui.ui.screens.case import CaseScreen
from rescue_tui.ui.screens.dialogs import ConfirmDialog
from rescue_tui.ui.widgets.progress import LEGEND, bar, disk_map
from rescue_tui.ui.words import job_words, last_read_words, left_words, plural, rate_words, state_style, state_word

_MAP_ROWS = 5


class JobScreen(StasisScreen):
    """Progress, map, result."""

    NAME = "Job"
    HELP = """
One job. It runs in a process of its own and goes on when you leave.

  p  pause (stops cleanly, keeps its place)   r  resume
  x  cancel (asks; what was copied stays)     v  verify the case folder
  o  write the report again                   Arrows scroll

"Last good read" tells a slow disk from a stuck one: while it grows, the disk
does not answer. The time left is a range from the slowest and the fastest
recent minutes. The map shows the whole disk, first byte at the top left:
  + finished   . non-tried   * non-trimmed   / non-scraped   B bad-sector
A cell shows the worst that lies in it, so one bad sector stays visible.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "Pause"),
        Binding("r", "resume", "Resume"),
        Binding("x", "cancel", "Cancel"),
        Binding("v", "case", "Verify"),
        Binding("o", "report", "Report"),
    ]

    def __init__(self, bridge: Bridge, safe: Safe, record: JobRecord) -> None:
        super().__init__(bridge, safe)
        self._last = record
        self._map: Mapfile | None = None
        self._map_of: object = None

    def body(self) -> ComposeResult:
        """One page."""
        yield ReadingPane(id="job")

    @property
    def record(self) -> JobRecord:
        """The job as it is now."""
        self._last = self.view.job(self._last.id) or self._last
        return self._last

    def draw(self) -> None:
        """The page; the map is asked for when the progress moved."""
        record = self.record
        self.set_title(f"Job {record.id}: {state_word(record.state)}")
        moved = (record.state, record.progress.done_bytes, record.progress.bad_bytes, record.progress.phase)
        if record.kind == "image" and moved != self._map_of:
            self._map_of = moved
            self.ask(self._read_map(record.id), self._take_map, group="map")
        self.query_one(ReadingPane).show(self._page(record))

    async def _read_map(self, job_id: str) -> Mapfile | None:
        try:
            return await self.bridge.job_map(job_id)
        except RescueError:
            # No map yet, or its disk is gone; the progress figures say what is known, and the old map stays.
            return None

    def _take_map(self, mapfile: Mapfile | None) -> None:
        if mapfile is not None:
            self._map = mapfile
            self.query_one(ReadingPane).show(self._page(self.record))

    def _page(self, record: JobRecord) -> Text:
        page, progress = Page(self.safe), record.progress
        width = max(20, min(120, self.size.width - 4))
        page.say(record.title, "bold")
        phase = f"  {progress.phase}" if record.state in ACTIVE and progress.phase else ""
        page.say(f"{state_word(record.state)}{phase}", state_style(record.state))
        page.say(f"{bar(progress.percent, width - 10)} {progress.percent:.2f} %")
        page.pair("Done", f"{human_bytes(progress.done_bytes)} of {human_bytes(progress.total_bytes)}"
                          f" ({progress.done_bytes} of {progress.total_bytes} bytes)")
        if record.state in ACTIVE:
            page.pair("Rate", f"{rate_words(progress.current_rate)} now, {rate_words(progress.average_rate)} average")
            if progress.phase in READING_PHASES:
                page.pair("Last good read", last_read_words(progress))
            page.pair("Time left", left_words(progress))
        page.pair("Errors", f"{plural(progress.read_errors, 'read error')}, {human_bytes(progress.bad_bytes)} bad in "
                            f"{plural(progress.bad_areas, 'area')}", "bold red" if progress.bad_bytes else "")
        if progress.destination_free_bytes is not None and record.state not in FINAL:
            page.pair("Free there", human_bytes(progress.destination_free_bytes))
        page.pair("Message", progress.message)
        if record.state in FINAL or record.error:
            self._say_result(page, record)
        if self._map is not None:
            page.add(disk_map(self._map, width, _MAP_ROWS))
            page.say(LEGEND)
        page.pair("Case folder", record.case)
        page.pair("Source", record.source)
        for command in record.commands:
            page.say(f"$ {command}")
        return page.text()

    @staticmethod
    def _say_result(page: Page, record: JobRecord) -> None:
        if record.error:
            page.say(record.error, "bold red")
            page.say(record.hint)
        result = record.result or {}
        for name, key in (("Verdict", "verdict"), ("SHA-256", "sha256")):
            page.pair(name, str(result.get(key) or ""), "bold")
        for name, key in (("Rescued", "rescued_bytes"), ("Bad", "bad_bytes")):
            value = result.get(key)
            if isinstance(value, int):
                page.pair(name, f"{human_bytes(value)} ({value} bytes)")

    def next_words(self) -> str:
        """By state; `job_words` has the sentences."""
        if self.busy:
            return f"Working: {self.busy}. Please wait."
        return job_words(self.record)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 (Textual's signature)
        """Only what the state allows."""
        state = self.record.state
        return {
            "pause": state is JobState.RUNNING,
            "resume": state in RESUMABLE,
            "cancel": state not in FINAL and state is not JobState.CANCELLING,
            "case": bool(self.record.case) and state not in ACTIVE,
            "report": bool(self.record.case) and state in FINAL,
        }.get(action, True)

    # keys --------------------------------------------------------------------------------------------------------
    def _ask_job(self, name: str, wish: Awaitable[JobRecord]) -> None:
        def taken(record: JobRecord) -> None:
            self._last = record
            self.redraw()

        self.act(f"{name} {self.record.id}", wish, taken)

    def action_pause(self) -> None:
        """Pause."""
        self._ask_job("pausing", self.bridge.services.pause_job(self.record.id))

    def action_resume(self) -> None:
        """Resume."""
        self._ask_job("resuming", self.bridge.services.resume_job(self.record.id))

    def action_cancel(self) -> None:
        """Cancel after a question."""
        def answered(yes: bool | None) -> None:
            if yes:
                self._ask_job("cancelling", self.bridge.services.cancel_job(self.record.id))

        words = Text("The copy ends here for good. What was copied stays in the case folder, named partial.\n"
                     "To go on later, pause it instead. Cancel the job? y cancels it, n goes back.")
        self.app.push_screen(ConfirmDialog("Cancel this job?", words), answered)

    def action_case(self) -> None:
        """Verify the case folder."""
        self.app.push_screen(CaseScreen(self.bridge, self.safe, self.record.case, at_once=True))

    def action_report(self) -> None:
        """The case screen, which writes the report."""
        self.app.push_screen(CaseScreen(self.bridge, self.safe, self.record.case, report=True))
