"""Salvage: the good tensors of one checkpoint into a new safetensors file, and a document of what is saved and lost.

Every tensor is put together twice: once into the file, once to compare it with what the destination reads back.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

from rescue_tui.checkpoints.borrowing import borrowed, rebuilt_index, told_elsewhere
from rescue_tui.checkpoints.judge import desk_of, judge_unit
from rescue_tui.checkpoints.model import Checkpoint, CheckpointFinding, Options
from rescue_tui.checkpoints.safetensors_writer import HeaderTooLarge, Plan, plan
from rescue_tui.checkpoints.salvage import (
    Borrowed,
    Kept,
    Selection,
    copy_tensor,
    salvage_fields,
    select,
)
from rescue_tui.checkpoints.scan import row_of
from rescue_tui.checkpoints.source import UnreadableBytes
from rescue_tui.checkpoints.survey import FILE, Tally
from rescue_tui.core.damage import PlaceUnknown
from rescue_tui.core.errors import (
    CommandError,
    DeviceError,
    FormatError,
    PolicyRefusal,
    RescueError,
    SetupError,
    SpaceError,
    UsageError,
)
from rescue_tui.core.record import Plain, document
from rescue_tui.core.text import human_bytes, printable
from rescue_tui.jobs.damage import AskedMap, damage_map
from rescue_tui.jobs.extracting import refuse_inside
from rescue_tui.jobs.scanning import ScanStopped, Tick, units_of
from rescue_tui.system.filetree import FileTree, Media
from rescue_tui.system.freshfiles import FreshDirectory, FreshFile, NotStored

FILE_END, RAW_END = ".salvaged.safetensors", ".salvaged.bin"
TOLD_END, INDEX_END = ".salvage.json", ".rebuilt.index.json"
SCHEMA = "checkpoints-salvage"
# How far above a checkpoint its siblings may be: run/step_900/model/shard.
_LEVELS = 3
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class SalvageAnswer:
    """``files`` are what was written, by name in the directory ``to``; ``fields`` are those of the document."""

    path: str
    to: str
    row: Checkpoint
    chosen: Selection
    borrowed: tuple[Borrowed, ...]
    files: tuple[str, ...]
    fields: Mapping[str, Plain]

    @property
    def whole(self) -> bool:
        """Nothing of it is lost."""
        return bool(self.chosen.kept) and not self.chosen.lost


def salvage(path: Path, to: Path, tick: Tick | None = None, stop: Event | None = None, *,
            mapfile: AskedMap | None = None) -> SalvageAnswer:
    """Save what can be saved of the checkpoint at ``path`` into ``to``; ``mapfile`` is as for a scan.

    ``tick`` gets a tensor's name, bytes done and bytes in all (each counts twice: written and read back). Raises
    UsageError when ``path`` is none or several, FormatError, PolicyRefusal when ``to`` lies within it or the files are
    there already, SpaceError, SetupError, DeviceError, CommandError; ScanStopped once ``stop`` is set.
    """
    halt = stop or Event()
    # A TensorFlow bundle is named by its prefix.
    if not path.exists() and not any(other.name.startswith((f"{path.name}.index", f"{path.name}.data-"))
                                     for other in _beside(path)):
        raise UsageError(f"{printable(str(path))} is not there.", "Name a checkpoint: a file, a directory or a prefix.")
    refuse_inside(to, [path] if path.is_dir() else [])
    # Of where the checkpoint lies, which may be another file system than its siblings above.
    damage = damage_map(path if path.is_dir() else path.parent, mapfile)
    tree, inner = _tree_of(path, halt, damage.media)
    with closing(tree):
        return _salvaged(tree, inner, path, to, tick, halt, damage.findings)


def _salvaged(tree: FileTree, inner: str, path: Path, to: Path, tick: Tick | None, halt: Event,
              findings: tuple[CheckpointFinding, ...]) -> SalvageAnswer:
    row, loans = _judged(tree, inner, path)
    row = replace(row, reading=replace(row.reading, findings=(*row.reading.findings, *findings)))
    chosen = select(row)
    name = _name(path, row)
    try:
        fresh = FreshDirectory(to)
    except OSError as error:
        raise SetupError(f"{printable(str(to))} can't be written to: {error.strerror}.",
                         "Name a directory on a mounted destination.") from error
    with fresh:
        try:
            return _Salvage(tree, fresh, row, chosen, loans, name, path, to, tick, halt).run()
        except NotStored as error:
            raise _refused(error) from error


def _beside(path: Path) -> list[Path]:
    try:
        return list(path.parent.iterdir())
    except OSError:
        return []


def _refused(error: NotStored) -> RescueError:
    if error.full:
        return SpaceError(error.words, "Make room, or name another destination; partial files may be removed.")
    if error.code == "exists":
        return PolicyRefusal(error.words, "Nothing is overwritten: name another directory.")
    return CommandError(error.words, "Use another destination.")


def _tree_of(path: Path, stop: Event, media: Media) -> tuple[FileTree, str]:
    """A tree that shows the checkpoint's siblings too, and the checkpoint's path in it."""
    real = Path(os.path.realpath(path)) if path.is_dir() else Path(os.path.realpath(path.parent)) / path.name

    def heard(count: int) -> None:
        del count
        if stop.is_set():
            raise ScanStopped

    root = real.parents[min(_LEVELS, len(real.parents)) - 1] if real.parents else real
    return FileTree(root, heard, media=media), "" if root == real else str(real.relative_to(root))


def _judged(tree: FileTree, inner: str, path: Path) -> tuple[Checkpoint, tuple[Borrowed, ...]]:
    options = Options()
    desk = desk_of(tree, options)
    found = []
    units = units_of(tree, (inner,), Tally())
    if len(units) > _SHOWN:
        raise UsageError(f"There are {len(units)} checkpoints at {printable(str(path))}.", "Name one of them.")
    for unit in units:
        reading = judge_unit(desk, unit)
        if reading is not None:
            found.append((unit, reading))
    if not found:
        raise FormatError(f"{printable(str(path))} is no checkpoint in a format that is known.",
                          "`stasis checkpoints scan` shows what is one.")
    if len(found) > 1:
        names = ", ".join(printable(unit.path) for unit, _ in found)
        raise UsageError(f"There are {len(found)} checkpoints at {printable(str(path))}: {names}.", "Name one of them.")
    unit, reading = found[0]
    loan = borrowed(desk, unit.path if unit.layout == FILE or not unit.whole else unit.directory, reading)
    if loan is not None:
        reading = loan.reading
    row = row_of(tree, unit, reading, options)
    return row, tuple(_doubted(tree, one) for one in (
        *(loan.borrowed if loan is not None else ()), *told_elsewhere(reading)))


def _doubted(tree: FileTree, one: Borrowed) -> Borrowed:
    """A loan from a file of which parts were never read says so."""
    try:
        lost = tree.losses(one.file)
    except (PlaceUnknown, UnreadableBytes):
        return one
    if not lost:
        return one
    words = "parts of that file were never read from the disk"
    return replace(one, note=f"{one.note}; {words}" if one.note else words)


def _name(path: Path, row: Checkpoint) -> str:
    """What the new files are called after: the checkpoint's own name."""
    own = row.path.rpartition("/")[2]
    return own if own not in {"", "."} else Path(os.path.abspath(path)).name or "checkpoint"


class _Salvage:
    def __init__(self, tree: FileTree, fresh: FreshDirectory, row: Checkpoint, chosen: Selection,
                 loans: tuple[Borrowed, ...], name: str, path: Path, to: Path, tick: Tick | None, stop: Event) -> None:
        self.tree = tree
        self.fresh = fresh
        self.row = row
        self.chosen = chosen
        self.loans = loans
        self.name = name
        self.path = path
        self.to = to
        self.tick = tick
        self.stop = stop
        self.done = 0
        self.total = 2 * sum(kept.size_bytes for kept in chosen.kept)
        self.files: list[dict[str, object]] = []

    def run(self) -> SalvageAnswer:
        for end in (FILE_END, RAW_END, TOLD_END, INDEX_END):
            there = self.fresh.open(self.name + end)
            if there is not None:
                there.close()
                raise NotStored("exists", f"{self.name + end} is there already: it is left as it is.")
        if self.total // 2 > self.fresh.free_bytes:
            raise SpaceError(f"The tensors need {human_bytes(self.total // 2)}, {printable(str(self.to))} has "
                             f"{human_bytes(self.fresh.free_bytes)} free.", "Make room, or name another destination.")
        places: dict[str, tuple[str, int]] = {}
        while True:
            named = [kept for kept in self.chosen.kept if kept.word]
            failed = self._file(self.name + FILE_END, named, self._plan(named), places) if named else {}
            if not failed:
                break
            # What could not be copied after all has no place in the header: once more without it.
            self.chosen = self.chosen.without(failed)
            self.done = 0
        raw = [kept for kept in self.chosen.kept if not kept.word]
        if raw:
            self.chosen = self.chosen.without(self._file(self.name + RAW_END, raw, _in_turn(raw), places))
        index = rebuilt_index(self.row.reading)
        if index is not None:
            self._small(self.name + INDEX_END, index)
        fields = document(SCHEMA, source=str(self.path), root=str(self.tree.root), to=str(self.to),
                          files=self.files,
                          **salvage_fields(self.row, self.chosen, places, self.loans))
        self._small(self.name + TOLD_END, json.dumps(fields, indent=1).encode("ascii"))
        return SalvageAnswer(str(self.path), str(self.to), self.row, self.chosen, self.loans,
                             tuple(str(file["name"]) for file in self.files), fields)

    def _plan(self, kept: list[Kept]) -> Plan:
        told = {"format": "pt", "salvaged_from": printable(self.row.path, None),
                "salvage_verdict": self.row.verdict.value}
        if self.row.reading.step is not None:
            told["step"] = str(self.row.reading.step)
        try:
            return plan([one.slot for one in kept], told)
        except HeaderTooLarge as error:
            raise FormatError(f"{len(kept)} names are more than the header of a safetensors file holds.",
                              "Salvage the save's files one by one.") from error

    def _file(self, name: str, kept: list[Kept], where: Plan, places: dict[str, tuple[str, int]]) -> dict[str, str]:
        """Write tensors to a new file; those that could not be copied, with reasons: then there is no file.

        Raises NotStored, and DeviceError when the destination reads back other bytes.
        """
        failed: dict[str, str] = {}
        with self.fresh.create(name) as file:
            file.resize(where.size_bytes)
            file.write(0, where.head)
            for one in kept:
                reason = copy_tensor(self.tree, one.tensor, self.fresh.scratch, self._writer(
                    one, where.places[one.name], file.write))
                if reason:
                    failed[one.name] = reason
            if failed and where.head:
                file.discard()
                return failed
            file.flush()
            for one in kept:
                if one.name not in failed:
                    self._compare(file, one, where.places[one.name])
            digest = hashlib.sha256()
            for part in file.chunks():
                digest.update(part)
            file.publish()
        places |= {one.name: (name, where.places[one.name]) for one in kept if one.name not in failed}
        self.files.append({"name": name, "size_bytes": where.size_bytes, "sha256": digest.hexdigest()})
        return failed

    def _writer(self, one: Kept, begin: int, write: Callable[[int, bytes | bytearray | memoryview], None]) -> Callable[
            [int, bytes | bytearray | memoryview], None]:
        def passed_on(offset: int, data: bytes | bytearray | memoryview) -> None:
            write(begin + offset, data)
            self.done += len(data)
            if self.stop.is_set():
                raise ScanStopped
            if self.tick is not None:
                self.tick(one.tensor.name, min(self.done, self.total), self.total)
        return passed_on

    def _compare(self, file: FreshFile, one: Kept, begin: int) -> None:
        same = True

        def compared(offset: int, data: bytes | bytearray | memoryview) -> None:
            nonlocal same
            same = same and file.read(offset, len(data)) == data

        reason = copy_tensor(self.tree, one.tensor, self.fresh.scratch, self._writer(one, begin, compared))
        if not same or reason:
            raise DeviceError(f"{printable(one.tensor.name)} reads back with other bytes than it was written with.",
                              f"The file stays under the name {file.partial}. Check the destination, or the source: "
                              "one of them does not give the same bytes twice.", reason)

    def _small(self, name: str, content: bytes) -> None:
        with self.fresh.create(name) as file:
            file.write(0, content)
            file.flush()
            if b"".join(bytes(part) for part in file.chunks()) != content:
                raise DeviceError(f"{name} reads back with other bytes than it was written with.",
                                  "Use another destination.")
            file.publish()
        self.files.append({"name": name, "size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})


def _in_turn(kept: list[Kept]) -> Plan:
    """Raw tensors one behind the other, without a header."""
    places: dict[str, int] = {}
    at = 0
    for one in kept:
        places[one.name] = at
        at += one.size_bytes
    return Plan(b"", places, at)

