"""A bar of progress and a map of a disk, drawn with ASCII letters on every terminal."""

from __future__ import annotations

from rich.text import Text

from rescue_tui.core.mapfile import Mapfile, Status

_LETTERS: dict[Status, tuple[str, str, str]] = {
    Status.FINISHED: ("+", "finished", "green"),
    Status.NON_TRIED: (".", "non-tried", ""),
    Status.NON_TRIMMED: ("*", "non-trimmed", "yellow"),
    Status.NON_SCRAPED: ("/", "non-scraped", "yellow"),
    Status.BAD_SECTOR: ("B", "bad-sector", "bold red"),
}
LEGEND = "  ".join(f"{letter} {name}" for letter, name, _ in _LETTERS.values())


def bar(percent: float, width: int) -> str:
    """``[####------]``, ``width`` cells with the brackets; full only at 100 percent."""
    inner = max(1, width - 2)
    filled = min(inner, int(inner * percent / 100))
    return f"[{'#' * filled}{'-' * (inner - filled)}]"


def disk_map(mapfile: Mapfile, width: int, height: int) -> Text:
    """The whole disk as ``width`` times ``height`` letters, first byte at the top left; the worst of a cell shows."""
    cells = mapfile.render(max(1, width) * max(1, height))
    text = Text()
    for number, status in enumerate(cells):
        if number and number % width == 0:
            text.append("\n")
        letter, _, style = _LETTERS[status]
        text.append(letter, style=style)
    return text
