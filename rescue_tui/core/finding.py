"""Expected outcomes are values: a finding says what was seen, how bad it is and what proves it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad a finding is; INFO needs no action."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One observation. ``code`` is stable and hyphenated (``media-errors``); ``summary`` is one sentence."""

    severity: Severity
    code: str
    summary: str
    evidence: str = ""
