"""A case folder: verify it against its manifest and journal, write its report again."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from rescue_tui.core.errors import RescueError
from rescue_tui.core.text import human_bytes
from rescue_tui.jobs.verification import CaseVerdict
from rescue_tui.ui.bridge import Bridge
from rescue_tui.ui.describe import Page
from rescue_tui.ui.safe import Safe
from rescue_tui.ui.screens.base import ReadingPane, StasisScreen
from rescue_tui.ui.screens.dialogs import PromptDialog
from rescue_tui.ui.screens.images import ImagesScreen
from rescue_tui.ui.words import plural


class CaseScreen(StasisScreen):
    """What a re-reading of a case folder says."""

    NAME = "Case folder"
    HELP = """
A case folder holds image, mapfile, hashes, logs and a journal.

  v      verify: read everything again and compare it with the manifest and
         the journal; large images take as long as their disk needs to read
  o      write report.json and report.html again (report.html opens in any
         browser, without Stasis)
  c      look for checkpoints in an image
  e      name another case folder

"verified" means that every byte is what it was when the copy ended.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "verify", "Verify"),
        Binding("o", "report", "Report"),
        Binding("c", "images", "Checkpoints"),
        Binding("e", "edit", "Other folder"),
    ]

    def __init__(self, bridge: Bridge, safe: Safe, case: str, *, at_once: bool = False, report: bool = False) -> None:
        super().__init__(bridge, safe)
        self.case = case
        self._at_once = at_once
        self._report_at_once = report
        self._verdict: CaseVerdict | None = None
        self._report = ""
        self._working = ""

    def body(self) -> ComposeResult:
        """One page."""
        yield ReadingPane(id="case")

    def on_mount(self) -> None:
        """Do what was asked for, or ask which folder."""
        super().on_mount()
        if not self.case:
            self.action_edit()
        elif self._at_once:
            self.action_verify()
        elif self._report_at_once:
            self.action_report()

    def draw(self) -> None:
        """Verdict and report."""
        page = Page(self.safe)
        page.pair("Case folder", self.case or "(none)")
        if self._working:
            page.say(f"{self._working} ...")
        if self._verdict is not None:
            verdict = self._verdict
            page.say("")
            if verdict.good:
                page.say("verified: everything matches its manifest and journal.", "bold green")
            else:
                page.say("NOT VERIFIED: something does not match.", "bold red")
            page.pair("Read again", f"{plural(verdict.checked_files, 'file')}, {human_bytes(verdict.checked_bytes)}")
            for finding in verdict.findings:
                page.finding(finding)
        if self._report:
            page.say("")
            page.pair("Report", self._report, "bold")
        self.query_one(ReadingPane).show(page.text())

    def next_words(self) -> str:
        """What can be done with the folder."""
        if self._working:
            return f"{self._working}. Nothing is changed in the images. Esc goes back and drops the answer."
        if not self.case:
            return "No case folder yet. e names one."
        if self._verdict is None:
            return "v reads everything again and compares it with the manifest. o writes the report again."
        if self._verdict.good:
            return "The case is verified. o writes its report. d, g, then u releases the disk that it lies on."
        return "Something does not match; keep the source. The findings say what. Esc goes back."

    # keys --------------------------------------------------------------------------------------------------------
    def action_verify(self) -> None:
        """Verify."""
        if not self.case or self._working:
            return
        self._working, self._verdict = "Verifying: reading every file again", None
        self.redraw()
        self.ask(self.bridge.services.verify(Path(self.case)), self._verified, group="case")

    def _verified(self, verdict: CaseVerdict) -> None:
        self._working, self._verdict = "", verdict
        self.redraw()

    def action_report(self) -> None:
        """Write the report."""
        if not self.case or self._working:
            return
        self._working = "Writing the report"
        self.redraw()
        self.ask(self.bridge.services.report(Path(self.case)), self._reported, group="case")

    def _reported(self, path: Path) -> None:
        self._working, self._report = "", str(path)
        self.redraw()

    def failed(self, error: RescueError) -> None:
        """An answer came, if a bad one."""
        self._working = ""
        self.redraw()
        super().failed(error)

    def action_images(self) -> None:
        """The images, which lead to their checkpoints."""
        self.app.push_screen(ImagesScreen(self.bridge, self.safe))

    def action_edit(self) -> None:
        """Name another folder."""
        def answered(path: str | None) -> None:
            if path:
                self.case, self._verdict, self._report = path, None, ""
                self.redraw()

        words = Text("The path of a case folder (stasis-case-...):")
        self.app.push_screen(PromptDialog("Case folder", words, value=self.case, refusal=_refusal), answered)


def _refusal(path: str) -> str:
    return "" if path.startswith("/") else "A path starts with /."
