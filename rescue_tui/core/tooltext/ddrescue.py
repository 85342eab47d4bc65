"""What GNU ddrescue 1.27 and 1.29 print while they run: the status block, and the last words on stderr. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from rescue_tui.core.text import decode, printable

_SIZE = re.compile(r"^([0-9]+(?:\.[0-9]+)?) ?([kKMGTPEZY]?i?)B(?:/s)?$")
_POWER = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6, "Z": 7, "Y": 8}
_TIME = re.compile(r"([0-9]+)([dhms])")
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_FIELD = re.compile(
    r"(ipos|opos|non-tried|non-trimmed|non-scraped|bad-sector|rescued|bad areas|read errors|slow reads|current rate"
    r"|average rate|error rate|run time|remaining time|pct rescued|time since last successful read):\s*([^,\n\r]*)")
_PHASES = {"Copying": "copying", "Trimming": "trimming", "Scraping": "scraping", "Retrying": "retrying",
           "Finished": "finished"}
_PHASE = re.compile(r"\r(Copying|Trimming|Scraping|Retrying) [A-Za-z -]+|\n(Finished)\b")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def parse_size(text: str) -> int | None:
    """``2139 MB``, ``864026 kB``, ``0 B``, ``64 KiB``: bytes; None when it is something else (``n/a``)."""
    match = _SIZE.match(text.strip())
    if match is None:
        return None
    number, unit = match.groups()
    base = 1024 if unit.endswith("i") else 1000
    return round(float(number) * float(base) ** _POWER[unit.removesuffix("i")])


def parse_time(text: str) -> int | None:
    """``1h 2m``, ``48s``: whole seconds; None for ``n/a``."""
    parts = _TIME.findall(text)
    return sum(int(number) * _SECONDS[unit] for number, unit in parts) if parts else None


@dataclass(frozen=True, slots=True)
class StatusBlock:
    """The newest status block. Rounded by ddrescue to six figures; exact figures are in the mapfile."""

    phase: str
    message: str
    position_bytes: int | None
    rescued_bytes: int | None
    bad_bytes: int | None
    bad_areas: int
    read_errors: int
    current_rate: int | None
    average_rate: int | None
    last_good_read_seconds: int | None


def parse_status(tail: bytes) -> StatusBlock | None:
    """The last complete block in the tail of ddrescue's stdout; None before the first one."""
    text = _ESCAPES.sub("", decode(tail))
    end = text.rfind("time since last successful read:")
    newline = text.find("\n", end)
    start = text.rfind("ipos:", 0, max(end, 0))
    if end < 0 or newline < 0 or start < 0:
        return None
    fields = {name: value.strip() for name, value in _FIELD.findall(text[start:newline + 1])}
    phases = list(_PHASE.finditer(text))
    message = phases[-1].group(0).strip() if phases else ""
    return StatusBlock(
        phase=_PHASES.get(message.split(" ")[0], "copying"),
        message=printable(message, 120),
        position_bytes=parse_size(fields.get("ipos", "")),
        rescued_bytes=parse_size(fields.get("rescued", "")),
        bad_bytes=parse_size(fields.get("bad-sector", "")),
        bad_areas=_count(fields.get("bad areas", "")),
        read_errors=_count(fields.get("read errors", "")),
        current_rate=parse_size(fields.get("current rate", "")),
        average_rate=parse_size(fields.get("average rate", "")),
        last_good_read_seconds=parse_time(fields.get("time since last successful read", "")),
    )


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


class Ending(StrEnum):
    """Why ddrescue ended (or hangs), as far as its stderr tells."""

    UNKNOWN = "unknown"
    DESTINATION_FULL = "destination-full"
    DESTINATION_FAILED = "destination-failed"
    MAPFILE_FAILED = "mapfile-failed"
    UNALIGNED_WRITE = "unaligned-write"
    FILE_TOO_LARGE = "file-too-large"
    SOURCE_GONE = "source-gone"
    SOURCE_FAILED = "source-failed"


# ddrescue's own phrase (lower case), then the C library's words for the errno behind it; first match wins.
_ENDINGS: tuple[tuple[str, str, Ending], ...] = (
    ("write error", "no space left on device", Ending.DESTINATION_FULL),
    ("write error", "disk quota exceeded", Ending.DESTINATION_FULL),
    ("write error", "invalid argument", Ending.UNALIGNED_WRITE),
    ("write error", "file too large", Ending.FILE_TOO_LARGE),
    ("write error", "", Ending.DESTINATION_FAILED),
    ("can't preallocate output file", "no space left on device", Ending.DESTINATION_FULL),
    ("can't preallocate output file", "", Ending.DESTINATION_FAILED),
    ("can't open output file", "no space left on device", Ending.DESTINATION_FULL),
    ("can't open output file", "", Ending.DESTINATION_FAILED),
    ("error extending output file size", "", Ending.DESTINATION_FULL),
    ("input file disappeared", "", Ending.SOURCE_GONE),
    ("fatal error reading the input file", "no such device", Ending.SOURCE_GONE),
    ("fatal error reading the input file", "no such file", Ending.SOURCE_GONE),
    ("fatal error reading the input file", "", Ending.SOURCE_FAILED),
    ("unaligned read error", "", Ending.SOURCE_FAILED),
    ("can't open input file", "", Ending.SOURCE_GONE),
    ("error writing mapfile", "no space left on device", Ending.DESTINATION_FULL),
    ("can't create mapfile", "no space left on device", Ending.DESTINATION_FULL),
    ("error writing mapfile", "", Ending.MAPFILE_FAILED),
    ("can't create mapfile", "", Ending.MAPFILE_FAILED),
)


def read_ending(stderr: bytes) -> Ending:
    """Classify the error output of one run."""
    text = decode(stderr).lower()
    for phrase, reason, ending in _ENDINGS:
        if phrase in text and reason in text:
            return ending
    return Ending.UNKNOWN


def asks_on_terminal(stderr: bytes) -> bool:
    """True when ddrescue couldn't write its mapfile and now waits for an answer that never comes.

    With stdin at its end it spins for ever (mapbook.cc, update_mapfile): its owner must kill it.
    """
    return b"press ENTER to retry" in stderr
