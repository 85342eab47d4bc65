"""A figure and the file that they are written to."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value; ``ratio`` is ours to the peer's in the same run, ``target`` what ``ratio`` (or, without a
    peer, ``value``) is held against and ``met`` whether it holds. None: there is none.
    """

    name: str
    value: float
    unit: str
    how: str
    peer: str | None = None
    ratio: float | None = None
    target: str | None = None
    met: bool | None = None

    @property
    def line(self) -> str:
        """The figure for people."""
        against = f", {self.ratio:.2f} of {self.peer}" if self.ratio is not None else ""
        held = f" (target {self.target}: {'met' if self.met else 'MISSED'})" if self.target else ""
        return f"{self.name}: {self.value:.3f} {self.unit}{against}{held}"


def write(figures: Iterable[Figure], path: Path) -> None:
    """Write the figures, replacing those of the same name and keeping the others."""
    new = {figure.name: asdict(figure) for figure in figures}
    old = json.loads(path.read_text()) if path.exists() else []
    kept = [entry for entry in old if entry["name"] not in new]
    path.write_text(json.dumps([*kept, *new.values()], indent=1) + "\n")
