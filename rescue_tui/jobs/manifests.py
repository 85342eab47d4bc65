"""A manifest that ``sha256sum -c`` checks, beside the files that it names."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from rescue_tui.system.durable import read_or_none, replace_file

NAME = "MANIFEST.sha256"
_LINE = re.compile(rb"^(?P<escaped>\\?)(?P<sum>[0-9a-f]{64}) [ *](?P<path>.+)$")
_ESCAPES = {b"\\": b"\\\\", b"\n": b"\\n", b"\r": b"\\r"}
_MEANINGS = {b"\\\\": b"\\", b"\\n": b"\n", b"\\r": b"\r"}


def lines_of(sums: Mapping[str, str]) -> bytes:
    """Sums by path in the format of coreutils; a backslash or a line end in a name is escaped, and the line marked."""
    made = []
    for path, digest in sorted(sums.items(), key=lambda item: os.fsencode(item[0])):
        raw = os.fsencode(path)
        escaped = re.sub(rb"[\\\n\r]", lambda found: _ESCAPES[found[0]], raw)
        made.append((b"\\" if escaped != raw else b"") + digest.encode() + b"  " + escaped + b"\n")
    return b"".join(made)


def parse(content: bytes) -> dict[str, str] | None:
    """The sums by path; None when it is no manifest."""
    sums: dict[str, str] = {}
    for line in content.split(b"\n"):
        if not line:
            continue
        found = _LINE.match(line)
        if found is None:
            return None
        path = found["path"]
        if found["escaped"]:
            path = re.sub(rb"\\[\\nr]", lambda one: _MEANINGS[one[0]], path)
        sums[os.fsdecode(path)] = found["sum"].decode()
    return sums


def write(directory: Path, sums: Mapping[str, str], copied: Collection[str] = ()) -> Path:
    """Add sums to the directory's manifest and return its path; lines of other files stay. Raises OSError.

    A file of that name that is no manifest, or is a copy itself, is left alone: the sums go to one with a number.
    """
    number = 1
    while True:
        path = directory / (NAME if number == 1 else f"MANIFEST-{number}.sha256")
        before = None if path.is_symlink() else read_or_none(path)
        known = None if path.name in copied else parse(before) if before is not None else {}
        if known is not None and not path.is_symlink():
            replace_file(path, lines_of({**known, **sums}))
            return path
        number += 1
