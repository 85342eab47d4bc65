"""What a layout has at hand while it judges a directory: the tree, small files, and readings of members in parallel."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from rescue_tui.checkpoints.model import CheckpointFinding, Options, Reading, TensorEntry, Verdict
from rescue_tui.checkpoints.registry import read_member
from rescue_tui.checkpoints.source import EndOfBytes, UnreadableBytes
from rescue_tui.checkpoints.stored_sum import MOOT, proven
from rescue_tui.checkpoints.survey import Unit
from rescue_tui.checkpoints.tree import Entry, Kind, Tree, child, walk
from rescue_tui.core.finding import Severity
from rescue_tui.core.text import decode

Item = TypeVar("Item")
Result = TypeVar("Result")
SMALL_BYTES = 64 << 20
_MAX_NAMED = 64
_NO_SAVE = frozenset({Verdict.FOREIGN, Verdict.EMPTY})


class Spread(Protocol):
    """Calls a function of a module for each item, in the order of the items, perhaps in several processes at once."""

    def __call__(
        self, function: Callable[[Tree, Options, Item], Result], items: Sequence[Item]) -> Iterable[Result]: ...


@dataclass(frozen=True, slots=True)
class InTurn:
    """One after the other, in this process."""

    tree: Tree
    options: Options

    def __call__(self, function: Callable[[Tree, Options, Item], Result], items: Sequence[Item]) -> Iterable[Result]:
        """The results as they come."""
        return (function(self.tree, self.options, item) for item in items)


@dataclass(frozen=True, slots=True)
class Desk:
    """The tree, what was asked, and the means to read members.

    ``judge_below`` judges every save below a directory, without the layouts named: for a trainer's directory, whose
    parts are files and layouts of other kinds.
    """

    tree: Tree
    options: Options
    spread: Spread
    judge_below: Callable[[Desk, str, frozenset[str]], Sequence[tuple[Unit, Reading]]]

    def listing(self, directory: str) -> dict[str, Entry]:
        """The entries of a directory by name; empty where it can't be read."""
        try:
            return {entry.name: entry for entry in self.tree.listing(directory)}
        except UnreadableBytes:
            return {}

    def files_below(self, directory: str) -> tuple[Entry, ...]:
        """Every regular file below a directory, and links to files (which the tree resolves, or refuses)."""
        try:
            entries = walk(self.tree, directory).entries
        except UnreadableBytes:
            return ()
        return tuple(entry for entry in entries if entry.kind in {Kind.FILE, Kind.SYMLINK})

    def bytes_of(self, path: str, limit_bytes: int = SMALL_BYTES) -> bytes | None:
        """A small file whole; None when there is none, it is larger than the limit, or it can't be read."""
        try:
            with self.tree.open(path) as source:
                return source.read_at(0, source.size_bytes) if source.size_bytes <= limit_bytes else None
        except (UnreadableBytes, EndOfBytes):
            return None

    def text_of(self, path: str, limit_bytes: int = 1 << 16) -> str | None:
        """A small text file without the white space around it."""
        data = self.bytes_of(path, limit_bytes)
        return None if data is None else decode(data).strip("\x00 \t\r\n")

    def json_of(self, path: str) -> object:
        """The content of a JSON file; None when it can't be read or is none."""
        data = self.bytes_of(path)
        if data is None:
            return None
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            return None

    def readings(self, paths: Sequence[str]) -> dict[str, Reading]:
        """What the readers say of each file. Every path gets a reading: one with findings where nothing can be read."""
        return dict(zip(paths, self.spread(read_member, paths), strict=True))


@dataclass(slots=True)
class Gathered:
    """The parts of a save as they are put together into one reading."""

    format: str
    findings: list[CheckpointFinding] = field(default_factory=list)
    tensors: list[TensorEntry] = field(default_factory=list)
    values: dict[str, bool | int | float | str] = field(default_factory=dict)
    members: list[str] = field(default_factory=list)
    payload_bytes: int = 0
    step: int | None = None
    _covered: list[bool] = field(default_factory=list)

    def add(self, reading: Reading, prefix: str = "", *, payload: bool = True, values: bool = True) -> None:
        """One part. ``prefix`` (with its dot) goes before its tensors' names and values.

        A part that is empty, or no checkpoint at all, leaves the save incomplete: the other parts are still there.
        """
        for finding in reading.findings:
            verdict = Verdict.INCOMPLETE if finding.verdict in _NO_SAVE else finding.verdict
            self.findings.append(replace(finding, verdict=verdict,
                                         tensors=tuple(prefix + name for name in finding.tensors)))
        self.tensors.extend(replace(tensor, name=prefix + tensor.name) if prefix else tensor
                            for tensor in reading.tensors)
        if values:
            for name, value in reading.values.items():
                self.values.setdefault(prefix + name, value)
        self.members.extend(member for member in reading.members if member not in self.members[-8:])
        self.payload_bytes += reading.payload_bytes
        if payload:
            self._covered.append(reading.covered)
        if reading.step is not None:
            self.step = reading.step if self.step is None else max(self.step, reading.step)

    def covers(self, covered: bool) -> None:
        """Note whether checksums cover a part of the payload that was not added as a reading."""
        self._covered.append(covered)

    def prove(self, files: Collection[str]) -> None:
        """A checksum over whole files matched, and they are all that tensors lie in: nothing is left unproven."""
        self.tensors = [proven(tensor) if all(block.file in files for block in tensor.blocks) else tensor
                        for tensor in self.tensors]
        self.findings = [finding for finding in self.findings if finding.code not in MOOT]
        self._covered = [True]

    def find(self, severity: Severity, code: str, summary: str, verdict: Verdict | None = None, file: str = "",
             tensors: Sequence[str] = (), offset: int | None = None, length: int | None = None) -> None:
        """One observation on the save as a whole."""
        self.findings.append(CheckpointFinding(severity, code, summary, verdict, file, offset, length, tuple(tensors)))

    def missing(self, directory: str, names: Iterable[str], why: str) -> None:
        """Files that must be there and are not."""
        every = list(names)
        for name in every[:_MAX_NAMED]:
            self.find(Severity.ERROR, "member-missing", f"{name} is missing: {why}.", Verdict.INCOMPLETE,
                      child(directory, name))
        if len(every) > _MAX_NAMED:
            self.find(Severity.ERROR, "member-missing", f"{len(every) - _MAX_NAMED} more files are missing: {why}.",
                      Verdict.INCOMPLETE, directory)

    def reading(self) -> Reading:
        """All of it; covered only when there is a payload and checksums cover every part of it."""
        return Reading(
            self.format, tuple(self.findings), tuple(self.tensors), bool(self._covered) and all(self._covered),
            self.values, self.step, tuple(sorted(dict.fromkeys(self.members))), self.payload_bytes)
