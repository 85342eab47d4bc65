"""The journal: one JSON line an entry, flushed before anything else happens, each sealed by the hash of the one before.

The hash is SHA-256 over the canonical JSON of the entry without its ``hash``. Several processes may append (flock).
A line that a power cut left unfinished stays where it is; the next entry says how long it is and what it hashes to.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rescue_tui.core.errors import DeviceError, RescueError, SetupError, SpaceError
from rescue_tui.core.finding import Finding, Severity
from rescue_tui.core.record import Plain, canonical, rfc3339, to_plain
from rescue_tui.core.text import decode, printable

GENESIS = "0" * 64
TORN = "journal.torn-line"
_TAIL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One step. ``prev`` is the hash of the entry before, `GENESIS` for the first."""

    seq: int
    time: str
    event: str
    detail: dict[str, Plain] = field(default_factory=dict)
    prev: str = GENESIS
    hash: str = ""

    def sealed_hash(self) -> str:
        """What `hash` must be."""
        return hashlib.sha256(canonical({
            "seq": self.seq, "time": self.time, "event": self.event, "detail": self.detail, "prev": self.prev,
        })).hexdigest()

    def to_line(self) -> bytes:
        """The entry as it stands in the file."""
        plain: Plain = {"seq": self.seq, "time": self.time, "event": self.event, "detail": self.detail,
                        "prev": self.prev, "hash": self.hash}
        return json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode("utf-8") + b"\n"


class Journal:
    """The journal in one file, which is made by the first entry."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, event: str, **detail: object) -> JournalEntry:
        """Add an entry and flush it to the disk before returning.

        SpaceError when the disk is full (nothing half-written stays), DeviceError or SetupError when it can't be
        written.
        """
        plain = to_plain(detail)
        assert isinstance(plain, dict)
        try:
            with self._locked() as handle:
                last = self._close_torn_line(handle)
                return self._write(handle, last, event, plain)
        except OSError as error:
            raise self._failure(error) from error

    def tail(self, count: int) -> tuple[JournalEntry, ...]:
        """The last ``count`` readable entries, oldest first."""
        if count <= 0:
            return ()
        found = [entry for _, entry in self._lines() if entry is not None]
        return tuple(found[-count:])

    def head(self) -> str:
        """The hash of the last entry: whoever keeps it elsewhere can prove the whole journal later."""
        last = self.tail(1)
        return last[0].hash if last else GENESIS

    def hashes(self) -> frozenset[str]:
        """The hashes of all entries."""
        return frozenset(entry.hash for _, entry in self._lines() if entry is not None)

    def verify(self) -> tuple[Finding, ...]:
        """Check every line and the chain. An ERROR says that something was changed, added or removed."""
        if not self.path.is_file():
            return (Finding(Severity.ERROR, "journal-missing", f"There is no journal at {printable(str(self.path))}."),)
        findings: list[Finding] = []
        prev, seq, torn = GENESIS, 0, b""
        for number, (line, entry) in enumerate(self._lines(), start=1):
            if entry is None:
                if torn:
                    findings.append(_broken(number - 1, "is no journal entry"))
                torn = line
                continue
            if torn:
                findings.append(_judge_torn(number - 1, torn, entry))
                torn = b""
            if entry.hash != entry.sealed_hash():
                findings.append(_broken(number, "was changed: its hash does not match"))
            elif entry.prev != prev:
                findings.append(_broken(number, "does not follow the line before it: something was changed or removed"))
            elif entry.seq != seq + 1:
                findings.append(_broken(number, f"has the number {entry.seq} instead of {seq + 1}"))
            prev, seq = entry.hash, entry.seq
        if torn:
            findings.append(Finding(Severity.WARNING, "journal-torn", "The last line of the journal was cut off.",
                                    printable(torn, 120)))
        return tuple(findings)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield handle
        finally:
            os.close(handle)

    def _close_torn_line(self, handle: int) -> JournalEntry | None:
        """The last good entry; an unfinished last line is ended and told about first."""
        last, torn = _last_entry(handle)
        if torn is None:
            return last
        os.write(handle, b"\n")
        whole = _parse(torn)
        if whole is not None and whole.hash == whole.sealed_hash():
            return whole  # only its line feed was missing
        told = {"bytes": len(torn), "sha256": hashlib.sha256(torn).hexdigest(),
                "summary": "The line before this one was cut off, most likely by a power cut."}
        return self._write(handle, last, TORN, to_plain(told))

    def _write(self, handle: int, last: JournalEntry | None, event: str, detail: Plain) -> JournalEntry:
        assert isinstance(detail, dict)
        unsealed = JournalEntry(
            (last.seq if last else 0) + 1, rfc3339(datetime.now(UTC)), event, detail, last.hash if last else GENESIS)
        entry = JournalEntry(unsealed.seq, unsealed.time, event, detail, unsealed.prev, unsealed.sealed_hash())
        line = entry.to_line()
        before = os.fstat(handle).st_size
        try:
            written = os.write(handle, line)
            if written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, before)
            raise
        return entry

    def _lines(self) -> Iterator[tuple[bytes, JournalEntry | None]]:
        try:
            with self.path.open("rb") as file:
                for line in file:
                    yield line.rstrip(b"\n"), _parse(line.rstrip(b"\n"))
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> RescueError:
        name = printable(str(self.path))
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return SpaceError(f"No space is left for the journal {name}.", "Make room there, then resume.")
        kind = SetupError if error.errno in (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR) else DeviceError
        return kind(f"The journal {name} can't be used: {error.strerror}.",
                    "Is its disk still plugged in and writable?")


def _parse(line: bytes) -> JournalEntry | None:
    try:
        plain = json.loads(line)
        entry = JournalEntry(plain["seq"], plain["time"], plain["event"], plain["detail"], plain["prev"], plain["hash"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    fits = isinstance(entry.seq, int) and isinstance(entry.detail, dict) and all(
        isinstance(word, str) for word in (entry.time, entry.event, entry.prev, entry.hash))
    return entry if fits else None


def _last_entry(handle: int) -> tuple[JournalEntry | None, bytes | None]:
    """The last readable entry, and the unfinished line after it (None: the file ends as it should)."""
    size = os.fstat(handle).st_size
    length = _TAIL_BYTES
    while True:
        start = max(0, size - length)
        lines = os.pread(handle, size - start, start).split(b"\n")
        whole, rest = (lines[:-1] if start == 0 else lines[1:-1]), lines[-1]
        for line in reversed(whole):
            entry = _parse(line)
            if entry is not None:
                return entry, rest or None
        if start == 0:
            return None, rest or None
        length *= 8


def _broken(number: int, what: str) -> Finding:
    return Finding(Severity.ERROR, "journal-chain", f"Line {number} of the journal {what}.")


def _judge_torn(number: int, line: bytes, following: JournalEntry) -> Finding:
    told = following.event == TORN and following.detail.get("sha256") == hashlib.sha256(line).hexdigest()
    if told:
        return Finding(Severity.INFO, "journal-torn", f"Line {number} of the journal was cut off by a power cut.",
                       printable(decode(line), 120))
    return _broken(number, "is no journal entry")
