"""Orbax steps: which directories are worth the question whether they are one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rescue_tui.checkpoints import orbax
from rescue_tui.checkpoints.desk import Desk
from rescue_tui.checkpoints.model import Reading
from rescue_tui.checkpoints.survey import Folder, Unit
from rescue_tui.checkpoints.tree import Tree

NAME = "orbax"
# What a step or an item holds; names alone, so that no other directory of a large tree is looked at twice.
_MARKS = frozenset({orbax.CHECKPOINT_METADATA, orbax.COMMIT_FILE, "_METADATA", "_sharding", "manifest.ocdbt",
                    "checkpoint"})
_MARK_DIRECTORIES = frozenset({"array_metadatas", orbax.DEFAULT_ITEM})
_PROCESS = re.compile(r"ocdbt\.process_")
_STEP = re.compile(r"(?:[^\d]*[-_])?\d+$")


def claims(tree: Tree, folder: Folder) -> Sequence[Unit]:
    """A step, or an item that was saved without one."""
    marked = bool(_MARKS & folder.files) or any(
        name in _MARK_DIRECTORIES or _PROCESS.match(name) for name in folder.directories)
    named = orbax.is_temporary(folder.name) or (bool(folder.directories) and bool(_STEP.match(folder.name)))
    if (marked or named) and orbax.claims(tree, folder.path):
        return (Unit(NAME, folder.path, folder.path, whole=True),)
    return ()


def judge(desk: Desk, unit: Unit) -> Reading:
    """The whole step."""
    return orbax.read_directory(desk.tree, unit.directory, desk.options)
