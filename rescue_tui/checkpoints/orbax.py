"""Orbax checkpoints: commit rules, items, and what each item's arrays came to.

Source: google/orbax checkpoint/_src/path/{atomicity,atomicity_types,step}.py, _src/metadata/checkpoint.py. A save is
written under a temporary name and renamed; ``_CHECKPOINT_METADATA`` gets its commit time just before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from rescue_tui.checkpoints.model import Options, Proof, Reading, Scalar, TensorEntry, Verdict
from rescue_tui.checkpoints.names import step_of_part
from rescue_tui.checkpoints.notes import Notes
from rescue_tui.checkpoints.orbax_item import JSON_ITEM, PROCESS, Item, marks_item, read_item
from rescue_tui.checkpoints.sidecars import read_json
from rescue_tui.checkpoints.source import UnreadableBytes
from rescue_tui.checkpoints.tree import Entry, Kind, Tree, child, walk
from rescue_tui.checkpoints.zarr import METADATA_2, METADATA_3
from rescue_tui.core.finding import Severity

FORMAT = "orbax"
CHECKPOINT_METADATA = "_CHECKPOINT_METADATA"
COMMIT_FILE = "commit_success.txt"
DEFAULT_ITEM = "default"
_TEMPORARY = re.compile(r"\.orbax-checkpoint-tmp(?:-\d+)?$")
_IN_FLIGHT = re.compile(r"(?:\.partial_save(?:\.orbax-checkpoint-tmp(?:-\d+)?)?|__lock)$")
_STEP = re.compile(r"(?:[^\d]*[-_])?\d+$")
_MEMBERS = 100_000


def is_temporary(name: str) -> bool:
    """True for the name of a directory that Orbax had not committed."""
    return bool(_TEMPORARY.search(name) or _IN_FLIGHT.search(name))


def final_name(name: str) -> str:
    """The name that a temporary directory was to get."""
    return _TEMPORARY.sub("", name)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _listing(tree: Tree, directory: str) -> tuple[Entry, ...]:
    try:
        return tree.listing(directory)
    except UnreadableBytes:
        return ()


def _items(tree: Tree, entries: tuple[Entry, ...]) -> dict[str, Entry]:
    """Directories of arrays one level down, by the name that they have or were to get; final ones win."""
    found: dict[str, Entry] = {}
    for entry in entries:
        mine = entry.kind is Kind.DIRECTORY and not PROCESS.fullmatch(entry.name)
        if mine and marks_item(_listing(tree, entry.path)):
            name = final_name(entry.name)
            if name not in found or name == entry.name:
                found[name] = entry
    return found


def claims(tree: Tree, directory: str) -> bool:
    """True for the directory of one save: a step with its items, or an item that was saved alone.

    Ask from the top down: below a claimed directory nothing is a save of its own.
    """
    entries = _listing(tree, directory)
    if not entries:
        return False
    if any(entry.name == CHECKPOINT_METADATA and entry.kind is Kind.FILE for entry in entries) or marks_item(entries):
        return True
    name = _name(directory)
    if not (is_temporary(name) or _STEP.fullmatch(name) or any(entry.name == COMMIT_FILE for entry in entries)):
        return False
    if is_temporary(name):
        return any(entry.kind is not Kind.OTHER for entry in entries)
    items = _items(tree, entries)
    if items:
        # Steps that were saved without a layer of items lie in a directory that may well end with a number.
        return not any(_STEP.fullmatch(item) for item in items)
    return any(_is_array(tree, entry) for entry in entries) and any(entry.name == "checkpoint" for entry in entries)


def _is_array(tree: Tree, entry: Entry) -> bool:
    return entry.kind is Kind.DIRECTORY and any(
        one.name in {METADATA_2, METADATA_3} for one in _listing(tree, entry.path))


def read_directory(tree: Tree, directory: str, options: Options) -> Reading:
    """Judge the save in this directory. Never raises."""
    del options
    return _Step(tree, directory).read()


class _Step:
    def __init__(self, tree: Tree, directory: str) -> None:
        self.tree = tree
        self.directory = directory
        self.notes = Notes()
        self.tensors: list[TensorEntry] = []
        self.values: dict[str, Scalar] = {}
        self.payload_bytes = 0
        self.bare = False  # payload beside the arrays, which nothing covers
        self.handlers: dict[str, str] = {}

    def read(self) -> Reading:
        try:
            entries = self.tree.listing(self.directory)
        except UnreadableBytes as error:
            self.notes.add(Severity.ERROR, "unreadable", f"the directory can't be read: {error.reason}",
                           Verdict.INCOMPLETE, self.directory)
            entries = ()
        names = {entry.name: entry for entry in entries}
        temporary = self.committed(names)
        items = _items(self.tree, entries)
        alone = marks_item(entries) or any(_is_array(self.tree, entry) for entry in entries)
        if alone and not items:
            self.add("", read_item(self.tree, self.directory, temporary))
        for name, entry in items.items():
            waits = temporary
            if entry.name != name:
                waits = True
                self.notes.add(Severity.WARNING, "temporary-name", f"the item {name} was not committed",
                               Verdict.UNCOMMITTED, entry.path)
            self.add(name if len(items) > 1 else "", read_item(self.tree, entry.path, waits))
        self.others(names, items)
        if not self.tensors and not self.handlers:
            self.notes.add(Severity.ERROR, "no-arrays", "no array is in it", Verdict.INCOMPLETE, self.directory)
        return self.reading()

    def committed(self, names: Mapping[str, Entry]) -> bool:
        """Findings on the commit; True where the save was not committed."""
        name = _name(self.directory)
        temporary = is_temporary(name)
        if temporary:
            self.notes.add(Severity.WARNING, "temporary-name", "the directory still has a temporary name: it was to "
                           f"be called {final_name(name)}", Verdict.UNCOMMITTED, self.directory)
        for entry in names.values():
            if _IN_FLIGHT.search(entry.name):
                self.notes.add(Severity.WARNING, "in-flight", f"{entry.name} was left by a save that did not end", None,
                               entry.path)
        if CHECKPOINT_METADATA not in names:
            if COMMIT_FILE not in names and not temporary:
                self.notes.add(Severity.INFO, "no-commit-time", f"no {CHECKPOINT_METADATA} tells when it was "
                               "committed; older versions wrote none", None, self.directory)
            return temporary
        found = read_json(self.tree, child(self.directory, CHECKPOINT_METADATA), self.notes)
        if not isinstance(found, dict):
            return temporary
        handlers = found.get("item_handlers")
        if isinstance(handlers, dict):
            self.handlers = {str(key): str(value) for key, value in handlers.items() if value}
        if found.get("commit_timestamp_nsecs") is None and "init_timestamp_nsecs" in found:
            marked = COMMIT_FILE in names and not temporary
            self.notes.add(Severity.WARNING, "not-committed", "it has no time of commit: the save did not come to its "
                           "end" + (f", yet {COMMIT_FILE} is there" if marked else ""),
                           None if marked else Verdict.UNCOMMITTED, child(self.directory, CHECKPOINT_METADATA))
            return not marked
        return temporary

    def add(self, name: str, item: Item) -> None:
        """Take an item in; names of tensors begin with the item's where there are several."""
        def full(tensor: str) -> str:
            return f"{name}.{tensor}" if name else tensor

        self.tensors += [replace(tensor, name=full(tensor.name)) for tensor in item.tensors] if name else item.tensors
        self.notes.findings += [replace(finding, tensors=tuple(map(full, finding.tensors))) for finding in item.findings
                                ] if name else item.findings
        self.values.update({full(key): value for key, value in item.values.items()})
        self.payload_bytes += item.payload_bytes
        self.bare = self.bare or item.bare

    def others(self, names: Mapping[str, Entry], items: Mapping[str, Entry]) -> None:
        """Items that are no arrays: JSON is read, the rest has to be there."""
        finals = {final_name(name): entry for name, entry in names.items() if entry.kind is Kind.DIRECTORY}
        for name, handler in self.handlers.items():
            if name in items:
                continue
            self.bare = True
            entry = finals.get(name)
            inside = _listing(self.tree, entry.path) if entry is not None else ()
            if entry is None or not inside:
                self.notes.add(Severity.ERROR, "item-missing", f"the item {name} is missing" if entry is None else
                               f"the item {name} is empty", Verdict.INCOMPLETE, child(self.directory, name))
                continue
            if entry.name != name:
                self.notes.add(Severity.WARNING, "temporary-name", f"the item {name} was not committed",
                               Verdict.UNCOMMITTED, entry.path)
            if "Json" in handler:
                self.json_item(name, entry, {one.name for one in inside})

    def json_item(self, name: str, entry: Entry, inside: set[str]) -> None:
        path = child(entry.path, JSON_ITEM)
        if JSON_ITEM not in inside:
            self.notes.add(Severity.ERROR, "item-missing", f"the item {name} has no content", Verdict.INCOMPLETE, path)
            return
        found = read_json(self.tree, path, self.notes)
        if isinstance(found, dict):
            self.values.update({f"{name}.{key}": value for key, value in found.items()
                                if isinstance(value, bool | int | float | str)})

    def reading(self) -> Reading:
        members: list[str] = []
        try:
            members = [entry.path for entry in walk(self.tree, self.directory, _MEMBERS).entries
                       if entry.kind is not Kind.DIRECTORY]
        except UnreadableBytes as error:
            self.notes.add(Severity.ERROR, "unreadable", f"a directory can't be read: {error.reason}",
                           Verdict.INCOMPLETE, self.directory)
        findings = tuple(self.notes.all())
        proofs = {tensor.proof for tensor in self.tensors}
        covered = not self.bare and proofs == {Proof.VERIFIED}
        if not covered and not any(finding.verdict is not None for finding in findings):
            others = ", nor items that are no arrays" if self.bare else ""
            bare = tuple(tensor.name for tensor in self.tensors if tensor.proof is not Proof.VERIFIED)
            self.notes.add(Severity.INFO, "no-checksum", f"no checksum covers the values of {len(bare)} arrays"
                           f"{others}: what can be decoded is whole, wrong values would not show", None, self.directory,
                           tensors=bare)
            findings = tuple(self.notes.all())
        step = step_of_part(_name(self.directory))
        number = None if step is None else step.number
        if number is None and isinstance(self.values.get("step"), int):
            number = int(self.values["step"])
        return Reading(FORMAT, findings, tuple(self.tensors), covered, self.values, number, tuple(members),
                       self.payload_bytes)
