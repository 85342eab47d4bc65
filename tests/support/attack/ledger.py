"""What became of each act: from the guest's own words and from QEMU's trace, judged apart and put in one table."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.support.vm.oracle import Class, Traced

ERRORS = ("EPERM", "EROFS", "EACCES", "EIO", "EBUSY", "EINVAL", "ENOTTY", "EOPNOTSUPP", "ENODEV", "ENXIO", "ENOENT",
          "ENOMEM", "EBADF", "EUCLEAN", "ETIMEDOUT")
# Block numbers that nobody looks at by himself (partition tables and superblocks lie elsewhere).
FIRST_MARK = 1 << 14
MARK_EVERY = 2
FLUSH = frozenset({"io FLUSH", "0x35", "0x91", "0xe7", "0xea"})


@dataclass(frozen=True, slots=True)
class Tried:
    """What the guest says of an act on a layout: status of the command, the end of its output, what it left in use, and
    how many refusals each layer of the guard counted meanwhile."""

    act: str
    layout: str
    status: int
    said: str
    left: tuple[str, ...]
    seconds: float
    refused: Mapping[str, int]


def parse_results(text: str) -> tuple[Tried, ...]:
    """The lines that the driver wrote; a last line that is cut is left out."""
    found = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            break
        found.append(Tried(entry["act"], entry["layout"], entry["status"], entry["said"], tuple(entry["left"]),
                           entry["seconds"], entry["refused"]))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Reached:
    """What reached disks between the marks of an act, by QEMU's trace, in the order of arrival."""

    commands: tuple[Traced, ...] = ()

    def of(self, kind: Class) -> tuple[str, ...]:
        """The names of the commands of a class."""
        return tuple(f"{command.bus} {command.name}" for command in self.commands if command.kind is kind)

    @property
    def changes(self) -> tuple[str, ...]:
        """Everything that is no read and no flush: what an act shows when it is let through."""
        return tuple(f"{command.bus} {command.name}" for command in self.commands
                     if command.kind is not Class.READ and command.name not in FLUSH)


def by_mark(trace: Iterable[Traced], count: int) -> tuple[tuple[Reached, ...], Reached]:
    """The commands of each of ``count`` acts, and those outside of all acts.

    Act N lies between the marks 2N+1 and 2N+2. Raises :class:`ValueError` when a mark is missing or out of order: then
    nothing can be said of any act.
    """
    acts: list[list[Traced]] = [[] for _ in range(count)]
    outside: list[Traced] = []
    last = 0
    for command in trace:
        if command.bus == "marker":
            number = int(command.name) - FIRST_MARK
            if number < 0:
                continue  # the kernel looks for partitions
            if number != last + 1:
                raise ValueError(f"mark {number} comes after mark {last}")
            last = number
        elif command.kind is Class.READ:
            continue
        elif last % MARK_EVERY:
            acts[last // MARK_EVERY].append(command)
        else:
            outside.append(command)
    if last != MARK_EVERY * count:
        raise ValueError(f"the last mark is {last}, not {MARK_EVERY * count}")
    return tuple(Reached(tuple(commands)) for commands in acts), Reached(tuple(outside))


def errors_in(said: str) -> tuple[str, ...]:
    """The errnos that a tool's words name, by their names or by the C library's texts, in the order of ERRORS."""
    numbers = {errno.errorcode.get(int(number), "") for number in re.findall(r"[Ee]rrno is (\d+)", said)}
    texts = {name: os.strerror(getattr(errno, name)) for name in ERRORS}
    return tuple(name for name in ERRORS if name in numbers or re.search(rf"\b{name}\b", said)
                 or texts[name].lower() in said.lower())


@dataclass(frozen=True, slots=True)
class Cell:
    """An act on a layout, as both sides saw it."""

    tried: Tried
    reached: Reached

    @property
    def how(self) -> str:
        """How the act ended, for the table: the errno, the layer that counted it, or that the tool itself gave up.

        What reached a disk comes before all that the guest says.
        """
        if self.reached.commands:
            return f"**WRITES** {self.reached.commands[0].bus} {self.reached.commands[0].name}"
        layers = "+".join(name for name in self.tried.refused if self.tried.refused[name])
        errors = errors_in(self.tried.said)
        words = errors[0] if errors else "done, nothing sent" if self.tried.status == 0 else "refused"
        if self.tried.status == 124:
            words = "hung"
        return f"{words} ({layers})" if layers else words


def leaks(cells: Sequence[Cell]) -> list[str]:
    """The acts during which a disk got anything but reads."""
    return [f"{cell.tried.act} on {cell.tried.layout}: {[command.name for command in cell.reached.commands[:5]]}; "
            f"status {cell.tried.status}: {cell.tried.said[-200:]}" for cell in cells if cell.reached.commands]


def silent(cells: Sequence[Cell]) -> list[str]:
    """The acts during which no disk got anything but reads and flushes."""
    return [f"{cell.tried.act} on {cell.tried.layout}: {cell.tried.said}" for cell in cells if not cell.reached.changes]


def table(cells: Sequence[Cell], acts: Sequence[str], layouts: Sequence[tuple[str, str]]) -> str:
    """A Markdown table, acts down and layouts (name, title) across; an act that a layout has no use for has a dash."""
    by_place = {(cell.tried.act, cell.tried.layout): cell for cell in cells}
    lines = ["| act | " + " | ".join(title for _, title in layouts) + " |", "|---" * (len(layouts) + 1) + "|"]
    for act in acts:
        words = []
        for name, _ in layouts:
            cell = by_place.get((act, name))
            words.append("-" if cell is None else cell.how)
        lines.append(f"| {act} | " + " | ".join(words) + " |")
    return "\n".join(lines) + "\n"
