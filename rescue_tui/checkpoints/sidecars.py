"""Small JSON files beside the payload of a checkpoint."""

from __future__ import annotations

import json

from rescue_tui.checkpoints.model import Verdict
from rescue_tui.checkpoints.notes import Notes
from rescue_tui.checkpoints.source import EndOfBytes, UnreadableBytes
from rescue_tui.checkpoints.tree import Tree
from rescue_tui.core.finding import Severity

JSON_BYTES = 32 << 20


def read_json(tree: Tree, path: str, notes: Notes) -> object:
    """A small JSON file, or None with a finding that says why not."""
    try:
        with tree.open(path) as source:
            if source.size_bytes > JSON_BYTES:
                notes.add(Severity.ERROR, "too-large", "a JSON file is absurdly large", Verdict.CORRUPT, path)
                return None
            content = source.read_at(0, source.size_bytes)
    except (UnreadableBytes, EndOfBytes) as error:
        notes.add(Severity.ERROR, "unreadable", f"it can't be read: {error}", Verdict.INCOMPLETE, path)
        return None
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated") or not content.strip(b"\0")
        notes.add(Severity.ERROR, "bad-json", "a JSON file ends early" if cut else "a JSON file is damaged",
                  Verdict.INCOMPLETE if cut else Verdict.CORRUPT, path, min(error.pos, len(content)))
    except (ValueError, RecursionError):
        notes.add(Severity.ERROR, "bad-json", "a JSON file is damaged", Verdict.CORRUPT, path)
    return None
