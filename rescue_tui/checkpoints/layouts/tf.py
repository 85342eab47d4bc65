"""TensorFlow bundles in a directory: one unit for each prefix."""

from __future__ import annotations

from collections.abc import Sequence

from rescue_tui.checkpoints import tf_bundle
from rescue_tui.checkpoints.desk import Desk
from rescue_tui.checkpoints.model import Reading
from rescue_tui.checkpoints.survey import Folder, Unit
from rescue_tui.checkpoints.tree import Tree

NAME = "tf-bundle"
_MARKS = (".index", ".data-", ".tempstate")


def claims(tree: Tree, folder: Folder) -> Sequence[Unit]:
    """One unit for each prefix that has data shards or an index of the right kind."""
    if not any(mark in folder.text for mark in _MARKS):
        return ()
    units: list[Unit] = []
    for bundle in tf_bundle.prefixes(tree.listing(folder.path)):
        if tf_bundle.is_bundle(tree, bundle):
            parts = (*bundle.members, *(entry.path for entry in (*bundle.leftovers, *bundle.parts)))
            units.append(Unit(NAME, bundle.prefix, folder.path, tuple(dict.fromkeys(parts))))
    return units


def judge(desk: Desk, unit: Unit) -> Reading:
    """The bundle of the unit's prefix."""
    return tf_bundle.read_bundle(desk.tree, unit.path, desk.options)
