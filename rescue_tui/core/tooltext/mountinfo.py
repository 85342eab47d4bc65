"""What is mounted and what is swapped to: /proc/self/mountinfo and /proc/swaps. Source: proc(5)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rescue_tui.core.errors import FormatError

_OCTAL = re.compile(r"\\([0-3][0-7]{2})")
_DEV = re.compile(r"([0-9]{1,10}):([0-9]{1,10})")
_HINT = "This kernel writes another format; report it."


@dataclass(frozen=True, slots=True)
class MountEntry:
    """One mount. ``options`` are the mount's own and then those of the super block, without its ``ro``/``rw``.

    ``superblock_writable`` is false when the file system as a whole is read-only; a read-only mount of a writable
    super block still lets the file system write to the device (its journal, for one).
    """

    dev: tuple[int, int]
    root: str
    target: str
    filesystem: str
    source: str
    options: tuple[str, ...]
    superblock_writable: bool


def unescape(field: str) -> str:
    r"""A field with its ``\040``-style escapes resolved (blank, tab, line feed, backslash, hash)."""
    pieces = _OCTAL.split(field)
    raw = b"".join(
        bytes([int(piece, 8)]) if at % 2 else piece.encode("utf-8", "surrogateescape")
        for at, piece in enumerate(pieces)
    )
    return raw.decode("utf-8", "surrogateescape")


def parse_mountinfo(text: str) -> tuple[MountEntry, ...]:
    """Every mount, in the kernel's order. FormatError for a line that is none."""
    try:
        return tuple(_entry(line) for line in text.split("\n") if line)
    except UnicodeEncodeError as error:
        raise FormatError("A mount table holds a text that stands for no bytes.", _HINT) from error


def _entry(line: str) -> MountEntry:
    fields = line.split(" ")
    try:
        dash = fields.index("-", 6)
        device = _DEV.fullmatch(fields[2])
        filesystem, source, super_options = fields[dash + 1:dash + 4]
    except (ValueError, IndexError) as error:
        raise FormatError("A line of the mount table has too few fields.", _HINT, line) from error
    if device is None:
        raise FormatError("A line of the mount table has no device number.", _HINT, line)
    own = fields[5].split(",")
    whole = super_options.split(",")
    options = dict.fromkeys([*own, *(option for option in whole if option not in ("ro", "rw"))])
    return MountEntry(
        (int(device[1]), int(device[2])), unescape(fields[3]), unescape(fields[4]), unescape(filesystem),
        unescape(source), tuple(unescape(option) for option in options if option), "rw" in whole)


def parse_swaps(text: str) -> tuple[str, ...]:
    """Paths of the swap areas in use, partitions and files. Lines that are none are left out."""
    found: list[str] = []
    for line in text.split("\n")[1:]:
        fields = line.split()
        if len(fields) >= 5 and fields[0].startswith("/"):
            found.append(unescape(fields[0]))
    return tuple(found)
