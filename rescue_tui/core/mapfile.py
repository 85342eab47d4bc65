"""The mapfile of GNU ddrescue: parse, write, check, sum up, draw, and repair after a pulled source.

Source: GNU ddrescue manual, "Mapfile structure"; mapfile.cc of 1.27 and 1.29. All positions and sizes in bytes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from rescue_tui.core.errors import FormatError
from rescue_tui.core.text import decode, printable


class Status(StrEnum):
    """What became of an area: the letters of the mapfile."""

    NON_TRIED = "?"
    NON_TRIMMED = "*"
    NON_SCRAPED = "/"
    BAD_SECTOR = "-"
    FINISHED = "+"


# For drawing: the first one that occurs in a cell is what the cell shows.
WORST_FIRST = (Status.BAD_SECTOR, Status.NON_SCRAPED, Status.NON_TRIMMED, Status.NON_TRIED, Status.FINISHED)
CURRENT_STATUSES = {
    "?": "copying", "*": "trimming", "/": "scraping", "-": "retrying",
    "F": "filling", "G": "generating", "+": "finished",
}
_HEX_OR_DECIMAL = re.compile(r"^(0[xX][0-9a-fA-F]+|[0-9]+)$")


@dataclass(frozen=True, slots=True)
class Area:
    """A run of bytes with one status."""

    start_bytes: int
    size_bytes: int
    status: Status

    @property
    def end_bytes(self) -> int:
        """The first byte after the area."""
        return self.start_bytes + self.size_bytes


@dataclass(frozen=True, slots=True)
class Mapfile:
    """Areas that lie end to end without a gap or an overlap, and where ddrescue stood.

    ``current_status`` is one letter of `CURRENT_STATUSES`; ``comments`` are the lines before the status line.
    """

    areas: tuple[Area, ...]
    current_position_bytes: int = 0
    current_status: str = "?"
    current_pass: int = 1
    comments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        position = self.areas[0].start_bytes if self.areas else 0
        for area in self.areas:
            if area.size_bytes <= 0 or area.start_bytes < 0:
                raise FormatError(f"A mapfile area at {area.start_bytes} has the size {area.size_bytes}.",
                                  "The mapfile is damaged; its copy beside it ends in .bak.")
            if area.start_bytes != position:
                what = "overlap" if area.start_bytes < position else "leave a gap"
                raise FormatError(f"The areas of the mapfile {what} at byte {area.start_bytes}.",
                                  "The mapfile is damaged; its copy beside it ends in .bak.")
            position = area.end_bytes

    @property
    def start_bytes(self) -> int:
        """Where the first area begins (0 for a whole disk)."""
        return self.areas[0].start_bytes if self.areas else 0

    @property
    def end_bytes(self) -> int:
        """Where the last area ends: the size of the source, for a whole disk."""
        return self.areas[-1].end_bytes if self.areas else 0

    @property
    def activity(self) -> str:
        """copying, trimming, scraping, retrying or finished."""
        return CURRENT_STATUSES[self.current_status]

    def bytes_with(self, *statuses: Status) -> int:
        """Bytes whose status is one of those given."""
        return sum(area.size_bytes for area in self.areas if area.status in statuses)

    @property
    def rescued_bytes(self) -> int:
        """Bytes that were read well."""
        return self.bytes_with(Status.FINISHED)

    @property
    def bad_bytes(self) -> int:
        """Bytes of bad sectors: tried one by one, and unreadable."""
        return self.bytes_with(Status.BAD_SECTOR)

    @property
    def every_sector_tried(self) -> bool:
        """True when each sector is either rescued or known to be bad."""
        return bool(self.areas) and all(area.status in (Status.FINISHED, Status.BAD_SECTOR) for area in self.areas)

    def areas_with(self, *statuses: Status) -> tuple[Area, ...]:
        """The areas of these statuses, in order of position."""
        return tuple(area for area in self.areas if area.status in statuses)

    def status_at(self, position_bytes: int) -> Status:
        """The status of one byte; non-tried outside the map."""
        index = bisect_right([area.start_bytes for area in self.areas], position_bytes) - 1
        if index < 0 or position_bytes >= self.areas[index].end_bytes:
            return Status.NON_TRIED
        return self.areas[index].status

    def render(self, width: int) -> list[Status]:
        """The map as ``width`` cells of (nearly) equal size; the worst status in a cell wins.

        One bad sector of a large disk stays visible. A map of fewer bytes than cells repeats them.
        """
        total = self.end_bytes - self.start_bytes
        if width <= 0 or total <= 0:
            return [Status.NON_TRIED] * max(0, width)
        rank = {status: number for number, status in enumerate(WORST_FIRST)}
        worst = [len(WORST_FIRST)] * width
        for area in self.areas:
            first = (area.start_bytes - self.start_bytes) * width // total
            last = (area.end_bytes - self.start_bytes) * width
            stop = min(width, max(first + 1, -(-last // total)))
            for cell in range(first, stop):
                worst[cell] = min(worst[cell], rank[area.status])
        return [WORST_FIRST[number] for number in worst]

    def to_text(self) -> str:
        """The mapfile as ddrescue writes it; `parse` gives the same value back."""
        lines = list(self.comments)
        lines += ["# current_pos  current_status  current_pass",
                  f"0x{self.current_position_bytes:08X}     {self.current_status}               {self.current_pass}",
                  "#      pos        size  status"]
        lines += [f"0x{area.start_bytes:08X}  0x{area.size_bytes:08X}  {area.status.value}" for area in self.areas]
        return "\n".join(lines) + "\n"


def blank(size_bytes: int) -> Mapfile:
    """The map of a source of which nothing was read yet."""
    return Mapfile((Area(0, size_bytes, Status.NON_TRIED),))


def joined(areas: Iterable[Area]) -> tuple[Area, ...]:
    """The same areas, neighbours of one status as one."""
    done: list[Area] = []
    for area in areas:
        if done and done[-1].status is area.status and done[-1].end_bytes == area.start_bytes:
            done[-1] = Area(done[-1].start_bytes, done[-1].size_bytes + area.size_bytes, area.status)
        else:
            done.append(area)
    return tuple(done)


def parse(content: bytes | str) -> Mapfile:
    """Read a mapfile. FormatError names the line that is wrong; a file cut off by a power cut is such a one."""
    text = decode(content) if isinstance(content, bytes) else content
    comments: list[str] = []
    status_line: tuple[int, str, int] | None = None
    areas: list[Area] = []
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.partition("#")[0].split()
        if not words:
            if status_line is None and line.startswith("#") and not line.startswith("# current_pos"):
                comments.append(line.rstrip("\r"))
            continue
        if status_line is None:
            status_line = _status_line(words, number)
            continue
        if len(words) != 3 or words[2] not in set(Status):
            raise _bad_line(number, line)
        areas.append(Area(_number(words[0], number), _number(words[1], number), Status(words[2])))
    if status_line is None:
        raise FormatError("The mapfile has no status line.", "It was cut off or is no mapfile; its copy ends in .bak.")
    if text and not text.endswith("\n"):
        raise FormatError("The last line of the mapfile is cut off.", "Its copy beside it ends in .bak.")
    return Mapfile(joined(areas), *status_line, tuple(comments))


def _status_line(words: list[str], number: int) -> tuple[int, str, int]:
    if len(words) not in (2, 3) or words[1] not in CURRENT_STATUSES:
        raise _bad_line(number, " ".join(words))
    current_pass = _number(words[2], number) if len(words) == 3 else 1
    return _number(words[0], number), words[1], current_pass


def _number(word: str, line: int) -> int:
    if not _HEX_OR_DECIMAL.match(word):
        raise _bad_line(line, word)
    return int(word, 16) if word[:2].lower() == "0x" else int(word)


def _bad_line(number: int, line: str) -> FormatError:
    return FormatError(f"Line {number} of the mapfile is not what ddrescue writes.",
                       "The mapfile is damaged; its copy beside it ends in .bak.", printable(line, 120))


def parse_either(main: bytes | None, backup: bytes | None) -> tuple[Mapfile, bool]:
    """The mapfile, else its ``.bak`` (ddrescue keeps the last synced one there); True when it is the backup.

    None or empty stands for a file that isn't there. FormatError when neither can be read.
    """
    first_error: FormatError | None = None
    for content, is_backup in ((main, False), (backup, True)):
        if not content:
            continue
        try:
            found = parse(content)
        except FormatError as error:
            first_error = first_error or error
            continue
        if found.areas:
            return found, is_backup
    if first_error is not None:
        raise FormatError("Neither the mapfile nor its .bak copy can be read.",
                          "Start the image again without --resume, in another folder.", first_error.summary)
    raise FormatError("There is no mapfile.", "Start the image without --resume.")


def without_untrusted_errors(current: Mapfile, trusted: Mapfile | None) -> Mapfile:
    """Undo what ddrescue noted after its source had gone.

    What was read well stays (a read that succeeded did read the disk). Every other area gets the status it had in
    ``trusted``, a map saved while the source was known to be there; without one it becomes non-tried. So sectors that
    only "failed" because nobody answered are tried again.
    """
    edges = {edge for area in current.areas for edge in (area.start_bytes, area.end_bytes)}
    if trusted is not None:
        edges |= {edge for area in trusted.areas for edge in (area.start_bytes, area.end_bytes)
                  if current.start_bytes < edge < current.end_bytes}
    cuts = sorted(edges)
    now = _walk(current, cuts)
    before = _walk(trusted, cuts) if trusted is not None else [Status.NON_TRIED] * len(now)
    areas = [
        Area(start, end - start, was if is_now is not Status.FINISHED else is_now)
        for start, end, is_now, was in zip(cuts, cuts[1:], now, before, strict=False)
    ]
    base = trusted or current
    start_over = trusted is None
    return Mapfile(joined(areas), 0 if start_over else base.current_position_bytes,
                   "?" if start_over else base.current_status, 1 if start_over else base.current_pass,
                   current.comments)


def _walk(mapfile: Mapfile, cuts: list[int]) -> list[Status]:
    """The status of each piece between two neighbouring cuts (no area border lies inside a piece)."""
    statuses: list[Status] = []
    index = 0
    for start in cuts[:-1]:
        while index < len(mapfile.areas) and mapfile.areas[index].end_bytes <= start:
            index += 1
        inside = index < len(mapfile.areas) and mapfile.areas[index].start_bytes <= start
        statuses.append(mapfile.areas[index].status if inside else Status.NON_TRIED)
    return statuses
