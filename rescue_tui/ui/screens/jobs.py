"""All jobs, also those that a crash or a power cut interrupted."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from rescue_tui.core.job import ACTIVE, FINAL, JobRecord
from rescue_tui.core.text import human_bytes
from rescue_tui.ui.screens.base import StasisScreen
from rescue_tui.ui.screens.case import CaseScreen
from rescue_tui.ui.screens.job import JobScreen
from rescue_tui.ui.widgets.table import Column, KeyedTable, Row
from rescue_tui.ui.words import left_words, plural, rate_words, state_style, state_word

COLUMNS = (Column("State", 12), Column("Done", 9), Column("Bad", 10), Column("Rate", 13), Column("Left", 18, 1),
           Column("Job", 18, 4))


class JobsScreen(StasisScreen):
    """One row a job, newest first."""

    NAME = "Jobs"
    HELP = """
Every job of this session and every one found on a destination. Jobs run in
processes of their own: leaving this program does not stop them.

  Enter  details, pause, resume, cancel
  v      verify the case folder of the job under the cursor

RUNNING, PAUSED (place kept), INTERRUPTED (power cut or crash; can be resumed),
DONE (every sector read), DAMAGED (ended, some sectors unreadable), FAILED,
CANCELLED.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "case", "Verify"),
    ]

    @property
    def enter_words(self) -> str:
        """What Enter does now, for the key line."""
        return "Details" if self.job_under_cursor() else ""

    def body(self) -> ComposeResult:
        """The table."""
        yield KeyedTable(self.safe, COLUMNS, id="table")

    @property
    def table(self) -> KeyedTable:
        """The table of jobs."""
        return self.query_one("#table", KeyedTable)

    def draw(self) -> None:
        """Rows by job id."""
        self.set_title(f"Jobs: {plural(len(self.view.jobs), 'job')}, {self.view.running_jobs} running")
        self.table.show_rows([self._row(record) for record in self.view.jobs])

    @staticmethod
    def _row(record: JobRecord) -> Row:
        progress = record.progress
        active = record.state in ACTIVE
        return Row(record.id, (
            state_word(record.state), f"{progress.percent:.2f} %",
            human_bytes(progress.bad_bytes) if progress.bad_bytes else "-",
            rate_words(progress.current_rate) if active else "-",
            left_words(progress) if active else "-", record.title or record.id,
        ), (state_style(record.state), "", "bold red" if progress.bad_bytes else "", "", "", ""))

    def job_under_cursor(self) -> JobRecord | None:
        """The job that the cursor is on."""
        key = self.table.cursor_key
        return self.view.job(key) if key else None

    def next_words(self) -> str:
        """By the states."""
        jobs = self.view.jobs
        if not jobs:
            return "No jobs yet. d shows the disks; i there plans the imaging of one."
        if self.view.running_jobs:
            running = plural(self.view.running_jobs, "job")
            return f"{running} running. Enter shows one. You may leave with q, jobs go on."
        if any(record.state not in FINAL for record in jobs):
            return "A job is paused or interrupted. Enter opens it, r there goes on with it."
        return "All jobs have ended. v verifies the case folder of the job under the cursor. Enter shows its result."

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter in the table."""
        event.stop()
        self.action_details()

    def action_details(self) -> None:
        """Open the job."""
        record = self.job_under_cursor()
        if record is not None:
            self.app.push_screen(JobScreen(self.bridge, self.safe, record))

    def action_case(self) -> None:
        """Verify its case folder."""
        record = self.job_under_cursor()
        if record is not None and record.case:
            self.app.push_screen(CaseScreen(self.bridge, self.safe, record.case, at_once=True))
