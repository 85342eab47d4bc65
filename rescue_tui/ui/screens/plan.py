"""The imaging plan: what will be copied where, by which exact commands, before anything starts."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from rescue_tui.core.device import Disk
from rescue_tui.core.errors import RescueError
from rescue_tui.core.imaging import ImagingPlan, cluster_words
from rescue_tui.core.job import JobRecord
from rescue_tui.core.text import human_bytes
from rescue_tui.jobs.imaging import ImagingOptions
from rescue_tui.system.destination import DestinationState
from rescue_tui.ui.bridge import Bridge
from rescue_tui.ui.describe import Page
from rescue_tui.ui.safe import Safe
from rescue_tui.ui.screens.base import ReadingPane, StasisScreen
from rescue_tui.ui.screens.dialogs import ConfirmDialog
from rescue_tui.ui.screens.job import JobScreen
from rescue_tui.ui.screens.jobs import JobsScreen
from rescue_tui.ui.words import plural


class PlanScreen(StasisScreen):
    """One plan a source; s starts them after a question."""

    NAME = "Imaging plan"
    HELP = """
What imaging will do. Nothing has started, and sources are only read.

  s      start (asks once more)
  p      accept a partial image, when the destination is too small
  c      continue an image of this disk that was begun there (power cut)
  t      another destination, when several are mounted
  Esc    back; nothing happens

The commands are exactly those that will run. ddrescue copies what is readable
first and keeps its place in the mapfile, so a job can be paused, resumed and
taken up again after a power cut.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "start", "Start"),
        Binding("p", "partial", "Accept partial"),
        Binding("c", "continue", "Continue begun"),
        Binding("t", "target", "Other destination"),
    ]

    def __init__(self, bridge: Bridge, safe: Safe, sources: tuple[Disk, ...]) -> None:
        super().__init__(bridge, safe)
        self._sources = sources
        self._partial = False
        self._resume = False
        self._target = 0
        self._plans: tuple[ImagingPlan, ...] = ()
        self._refusal: RescueError | None = None
        self._asked: object = None

    def body(self) -> ComposeResult:
        """One page."""
        yield ReadingPane(id="plan")

    @property
    def targets(self) -> tuple[DestinationState, ...]:
        """Mounted destinations."""
        return tuple(state for state in self.view.destinations if state.mount_point and state.present)

    @property
    def target(self) -> DestinationState | None:
        """The one that was chosen."""
        targets = self.targets
        return targets[self._target % len(targets)] if targets else None

    def draw(self) -> None:
        """Ask for the plans when the wish changed, then draw."""
        target = self.target
        asked = (target.mount_point if target else "", self._partial, self._resume)
        if asked != self._asked:
            self._asked = asked
            self._plans, self._refusal = (), None
            if target is not None and target.mount_point:
                self.ask(self._make(Path(target.mount_point)), self._take, group="plan", keys_wait=True)
        self._draw_page()

    async def _make(self, to: Path) -> tuple[ImagingPlan, ...] | RescueError:
        options = ImagingOptions(accept_partial=self._partial, resume=self._resume)
        plans: list[ImagingPlan] = []
        try:
            for source in self._sources:
                plan = await self.bridge.services.plan_image(source, to, options)
                plans.append(plan)
                if not self._resume:
                    # Sources that are imaged together share one case folder.
                    options = replace(options, case_dir=Path(plan.case_dir))
        except RescueError as error:
            return error
        return tuple(plans)

    def _take(self, answer: tuple[ImagingPlan, ...] | RescueError) -> None:
        if isinstance(answer, RescueError):
            self._refusal = answer
        else:
            self._plans = answer
        self.redraw()

    def _draw_page(self) -> None:
        page, target = Page(self.safe), self.target
        needed = sum(source.size_bytes for source in self._sources)
        page.head("From")
        for source in self._sources:
            page.say(f"{source.node}  {source.model}  serial {source.serial or '(none)'}  "
                     f"{human_bytes(source.size_bytes)}")
        page.head("To")
        if target is None:
            page.say("No destination is mounted.", "bold")
        else:
            free = human_bytes(target.space.free_bytes) if target.space is not None else "unknown"
            page.say(f"{target.mount_point}  serial {target.serial}  free {free}, needed {human_bytes(needed)}")
        if self._partial:
            page.say("A partial image is accepted: the copy may end when the destination is full.", "bold yellow")
        if self._resume:
            page.say("The image that was begun there is continued where its mapfile ends.", "bold")
        if self._refusal is not None:
            page.head("This can't start")
            page.say(self._refusal.summary, "bold red")
            page.say(self._refusal.hint)
            if self._refusal.evidence:
                page.block(self._refusal.evidence)
        for plan in self._plans:
            self._say_plan(page, plan)
        if target is not None and not self._plans and self._refusal is None:
            page.head("Plan")
            page.say("Being made ...")
        self.query_one(ReadingPane).show(page.text())

    @staticmethod
    def _say_plan(page: Page, plan: ImagingPlan) -> None:
        page.head("Command that will run")
        page.say(f"$ {shlex.join(plan.command)}", "bold")
        page.head("What it does")
        page.pair("Source", f"{plan.source_node}  serial {plan.source_serial}  (only read)")
        page.pair("Image", plan.image)
        page.pair("Mapfile", f"{plan.mapfile}{' (goes on where it ends)' if plan.resume else ''}")
        page.pair("Reads", f"{cluster_words(plan)}, "
                           f"{plural(plan.retries, 'retry') if plan.retries == 1 else f'{plan.retries} retries'}")
        how = [word for word, on in (("direct", plan.direct_output), ("sparse", plan.sparse),
                                     ("preallocated", plan.preallocate)) if on]
        page.pair("Writes", ", ".join(how) or "plain")
        page.pair("Case folder", plan.case_dir)
        for finding in plan.warnings:
            page.finding(finding)

    def next_words(self) -> str:
        """What is missing, or how to start."""
        if self.busy:
            return f"Working: {self.busy}. Please wait."
        if self.target is None:
            return "A destination is missing. Esc, move to the disk that shall take the image, then g."
        if self._refusal is not None:
            return f"This can't start: {self._refusal.summary} Short of space? p accepts a partial image."
        if not self._plans:
            return "The plan is being made. Nothing has started."
        return "Read the command. s starts it; the source is only read. Esc goes back, nothing happens."

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 (Textual's signature)
        """Start only with a plan, switch only between several destinations."""
        if action == "start":
            return bool(self._plans)
        if action == "target":
            return len(self.targets) > 1
        return True

    def action_partial(self) -> None:
        """Accept a partial image, or not."""
        self._partial = not self._partial
        self.redraw()

    def action_continue(self) -> None:
        """Continue a begun image, or make a new one."""
        self._resume = not self._resume
        self.redraw()

    def action_target(self) -> None:
        """The next mounted destination."""
        self._target += 1
        self.redraw()

    def action_start(self) -> None:
        """Ask once, then start every plan."""
        plans = self._plans
        if not plans:
            return
        words = Text()
        for plan in plans:
            words.append_text(self.safe.text(f"{plan.source_node} serial {plan.source_serial}")).append("\n  to ")
            words.append_text(self.safe.text(plan.image)).append("\n")
        words.append("Start now? y starts, n goes back.")

        def answered(yes: bool | None) -> None:
            if yes:
                self.act("starting the copy", self._start(plans), self._started)

        self.app.push_screen(ConfirmDialog(f"Start imaging {plural(len(plans), 'disk')}?", words), answered)

    async def _start(self, plans: tuple[ImagingPlan, ...]) -> tuple[JobRecord, ...]:
        records = tuple([await self.bridge.services.start_image(plan) for plan in plans])
        await self.bridge.refresh_status()
        return records

    def _started(self, records: tuple[JobRecord, ...]) -> None:
        if len(records) == 1:
            self.app.switch_screen(JobScreen(self.bridge, self.safe, records[0]))
        else:
            self.app.switch_screen(JobsScreen(self.bridge, self.safe))
