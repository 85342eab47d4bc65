"""Findings as a reader gathers them: bounded in number, never in what they force or name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rescue_tui.checkpoints.model import CheckpointFinding, Verdict
from rescue_tui.core.finding import Severity

TOLD = 64


class Notes:
    """Findings, of each kind only as many as anyone reads; the names of the rest go into one."""

    def __init__(self) -> None:
        self.findings: list[CheckpointFinding] = []
        self._told: Counter[str] = Counter()
        self._untold: dict[str, list[str]] = {}
        self._worst: dict[str, Verdict] = {}

    def add(self, severity: Severity, code: str, summary: str, verdict: Verdict | None = None, file: str = "",
            offset: int | None = None, length: int | None = None, tensors: Sequence[str] = ()) -> None:
        """Take a finding in."""
        self._told[code] += 1
        if self._told[code] <= TOLD:
            self.findings.append(
                CheckpointFinding(severity, code, summary, verdict, file, offset, length, tuple(tensors)))
            return
        self._untold.setdefault(code, []).extend(tensors)
        if verdict is not None:
            self._worst[code] = min(verdict, self._worst.get(code, verdict), key=lambda one: one.rank)

    def all(self) -> list[CheckpointFinding]:
        """Everything that was told."""
        return [*self.findings, *(
            CheckpointFinding(Severity.ERROR, code, f"{self._told[code] - TOLD} more findings like those above",
                              self._worst.get(code), tensors=tuple(dict.fromkeys(names)))
            for code, names in self._untold.items())]
