"""The Hugging Face cache: ``snapshots/<revision>/name`` are links to ``blobs/<checksum>``.

What a snapshot links to is judged under the snapshot's name; only blobs that nothing links to get rows of their own.
"""

from __future__ import annotations

from rescue_tui.checkpoints.source import UnreadableBytes
from rescue_tui.checkpoints.tree import Kind, Tree, child, walk

_MAX_ENTRIES = 50_000


def is_snapshot(path: str) -> bool:
    """True for a directory within ``snapshots/<revision>``."""
    parts = path.split("/")
    return len(parts) >= 2 and "snapshots" in parts[:-1]


def linked_blobs(tree: Tree, directory: str) -> frozenset[str]:
    """Names in a ``blobs`` directory that a snapshot beside it links to; none for any other directory."""
    parent, _, name = directory.rpartition("/")
    if name != "blobs":
        return frozenset()
    try:
        entries = walk(tree, child(parent, "snapshots"), _MAX_ENTRIES).entries
    except UnreadableBytes:
        return frozenset()
    return frozenset(entry.target.rpartition("/")[2] for entry in entries
                     if entry.kind is Kind.SYMLINK and "blobs/" in entry.target)
