"""A manifest that ``sha256sum -c`` checks, beside the files that it names."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from rescue_tui.system.durable import read_or_none, replace_file

NAME = "MANIFEST.sha256"
_LINE = re.compile(rb"^(?P<escaped>\\?)(?P<sum>[0-9a-f]{64}) [ *](?P<path>.+)$")
_ESCAPES = {b"\\": b"\\\\", b"\n": b"\\n", b"\r": b"\\r"}
# ``sha256sum -c`` passes over lines like this one.
_REMARK = re.compile(rb"^# (?P<words>(?:bad|unread) \d+\+\d+) {2}(?P<path>.+)$")
_MEANINGS = {b"\\\\": b"\\", b"\\n": b"\n", b"\\r": b"\r"}


def lines_of(sums: Mapping[str, str], remarks: Mapping[str, Sequence[str]] = MappingProxyType({})) -> bytes:
    """Sums by path in the format of coreutils; a backslash or a line end in a name is escaped, and the line marked.

    ``remarks`` on a path go before its line, as comments.
    """
    made = []
    for path, digest in sorted(sums.items(), key=lambda item: os.fsencode(item[0])):
        raw = os.fsencode(path)
        escaped = re.sub(rb"[\\\n\r]", lambda found: _ESCAPES[found[0]], raw)
        made += [b"# " + words.encode() + b"  " + escaped + b"\n" for words in remarks.get(path, ())]
        made.append((b"\\" if escaped != raw else b"") + digest.encode() + b"  " + escaped + b"\n")
    return b"".join(made)


def parse(content: bytes) -> dict[str, str] | None:
    """The sums by path; None when it is no manifest."""
    sums: dict[str, str] = {}
    for line in content.split(b"\n"):
        if not line or _REMARK.match(line):
            continue
        found = _LINE.match(line)
        if found is None:
            return None
        sums[_plain(found["path"]) if found["escaped"] else os.fsdecode(found["path"])] = found["sum"].decode()
    return sums


def remarks_of(content: bytes) -> dict[str, list[str]]:
    """The remarks by path. Every backslash in one is an escape."""
    remarks: dict[str, list[str]] = {}
    for line in content.split(b"\n"):
        found = _REMARK.match(line)
        if found is not None:
            remarks.setdefault(_plain(found["path"]), []).append(found["words"].decode())
    return remarks


def _plain(escaped: bytes) -> str:
    return os.fsdecode(re.sub(rb"\\[\\nr]", lambda one: _MEANINGS[one[0]], escaped))


def write(directory: Path, sums: Mapping[str, str], copied: Collection[str] = (),
          remarks: Mapping[str, Sequence[str]] = MappingProxyType({})) -> Path:
    """Add sums to the directory's manifest and return its path; lines of other files stay. Raises OSError.

    ``remarks`` by path (``bad 4096+512``: an offset and a length that were never read) go with its line.

    A file of that name that is no manifest, or is a copy itself, is left alone: the sums go to one with a number.
    """
    number = 1
    while True:
        path = directory / (NAME if number == 1 else f"MANIFEST-{number}.sha256")
        before = None if path.is_symlink() else read_or_none(path)
        known = None if path.name in copied else parse(before) if before is not None else {}
        if known is not None and not path.is_symlink():
            old = {one: words for one, words in remarks_of(before or b"").items() if one not in sums}
            replace_file(path, lines_of({**known, **sums}, {**old, **remarks}))
            return path
        number += 1
