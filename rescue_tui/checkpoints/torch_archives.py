"""The archives in one file: one as a rule, several where saves went into one handle, parts of one after a crash."""

from __future__ import annotations

from typing import NamedTuple

from rescue_tui.checkpoints.model import Verdict
from rescue_tui.checkpoints.source import Source, UnreadableBytes, Window
from rescue_tui.checkpoints.torch_payload import PickleSizes
from rescue_tui.checkpoints.zip_records import (
    END64_MAGIC,
    END_AT,
    END_MAGIC,
    LOCAL_MAGIC,
    TAIL_BYTES,
    Archive,
    BrokenDirectory,
    EndRecord,
    Trouble,
    end_behind,
    find_end,
    peek,
    read_directory,
)
from rescue_tui.checkpoints.zip_walk import walk_records

_MOST_ARCHIVES = 64


class Archives(NamedTuple):
    """Archives in file order, the newest last, and what is wrong around them."""

    parts: tuple[Archive, ...]
    troubles: tuple[Trouble, ...]


def split(source: Source) -> Archives:
    """Find every archive. Raises `UnreadableBytes` where the bytes that hold the structure can't be read."""
    troubles: list[Trouble] = []
    end = find_end(source, source.size_bytes)
    if end is None:
        parts = _forward(source, 0, troubles)
        return Archives(tuple(parts), tuple(troubles))
    parts = [_listed(source, end)]
    parts.extend(_behind(source, end.end, troubles))
    if end.begin < 0:
        troubles.append(Trouble("front-lost", f"{-end.begin} bytes are lost in front of the archive.", 0, 0))
    before = _before(source, end.begin, troubles)
    return Archives((*before, *parts), tuple(troubles))


def _listed(source: Source, end: EndRecord) -> Archive:
    try:
        return read_directory(source, end)
    except BrokenDirectory as broken:
        trouble = Trouble("directory", broken.summary, broken.offset, end.end - broken.offset)
    except UnreadableBytes as error:
        trouble = Trouble("unreadable", f"The central directory can't be read: {error.reason}.", error.offset,
                          error.length, (), Verdict.INCOMPLETE)
    walked = walk_records(source, max(end.begin, 0), PickleSizes(source)).archive
    return Archive(walked.records, (trouble, *walked.troubles), False, end.begin, end.end)


def _before(source: Source, begin: int, troubles: list[Trouble]) -> list[Archive]:
    parts: list[Archive] = []
    while begin > 0 and len(parts) < _MOST_ARCHIVES:
        window = Window(source, 0, begin)
        end = find_end(window, begin, exact=True)
        if end is None:
            if peek(source, 0, len(LOCAL_MAGIC)) == LOCAL_MAGIC:
                parts.insert(0, walk_records(window, 0, PickleSizes(window)).archive)
            else:
                troubles.append(Trouble("prefix-bytes", f"{begin} bytes lie in front of the archive.", 0, begin))
            break
        parts.insert(0, _listed(window, end))
        begin = end.begin
    return parts


def _forward(source: Source, begin: int, troubles: list[Trouble]) -> list[Archive]:
    parts: list[Archive] = []
    at = begin
    while len(parts) < _MOST_ARCHIVES:
        walked = walk_records(source, at, PickleSizes(source))
        end = end_behind(source, walked.directory) if walked.directory is not None else None
        if end is None or end.begin not in (at, 0):
            parts.append(_without_end(source, walked.archive, walked.directory))
            return parts
        parts.append(_listed(source, end))
        at = end.end
        if peek(source, at, len(LOCAL_MAGIC)) != LOCAL_MAGIC:
            _trailing(source, at, troubles)
            return parts
    return parts


def _behind(source: Source, at: int, troubles: list[Trouble]) -> list[Archive]:
    if at < source.size_bytes and peek(source, at, len(LOCAL_MAGIC)) == LOCAL_MAGIC:
        return _forward(source, at, troubles)
    _trailing(source, at, troubles)
    return []


def _trailing(source: Source, at: int, troubles: list[Trouble]) -> None:
    if at < source.size_bytes:
        length = source.size_bytes - at
        troubles.append(Trouble("trailing-bytes", f"{length} bytes follow the end of the archive.", at, length))


def _without_end(source: Source, archive: Archive, directory: int | None) -> Archive:
    if directory is None:
        trouble = Trouble("directory-lost", "The file ends without a central directory.", archive.end,
                          max(0, source.size_bytes - archive.end), (), Verdict.INCOMPLETE)
    else:
        trouble = Trouble("directory-cut", "The central directory, or the end record behind it, is cut or destroyed: "
                          f"only {source.size_bytes - directory} bytes of it are there.", directory,
                          source.size_bytes - directory, (),
                          Verdict.CORRUPT if _has_end(source, directory) else Verdict.INCOMPLETE)
    return Archive(archive.records, (trouble, *archive.troubles), False, archive.begin, archive.end)


def _has_end(source: Source, directory: int) -> bool:
    """Whether an end record closes the file although it does not lead to the directory: damage, not a cut."""
    length = min(TAIL_BYTES, source.size_bytes - directory)
    tail = peek(source, source.size_bytes - length, length)
    return len(tail) == TAIL_BYTES and (tail.startswith(END64_MAGIC) or tail.rfind(END_MAGIC) == END_AT)
