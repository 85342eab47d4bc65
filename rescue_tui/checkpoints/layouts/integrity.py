"""``integrity.json`` beside a save: SHA-256 of its files, a proof that covers whole files (Megatron Core, 2026)."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from rescue_tui.checkpoints.desk import Desk, Gathered
from rescue_tui.checkpoints.model import Options, Proof, Verdict
from rescue_tui.checkpoints.source import EndOfBytes, UnreadableBytes
from rescue_tui.checkpoints.tree import Tree, child
from rescue_tui.core.finding import Severity

FILE = "integrity.json"
_DIGITS = 64


class Digest(NamedTuple):
    """The SHA-256 of a file, or why there is none."""

    hexadecimal: str
    trouble: str = ""


def sha256_of(tree: Tree, options: Options, path: str) -> Digest:
    """Read a whole file for its SHA-256."""
    del options
    digest = hashlib.sha256()
    try:
        with tree.open(path) as source:
            for piece in source.chunks(0, source.size_bytes):
                digest.update(piece)
    except (UnreadableBytes, EndOfBytes) as error:
        return Digest("", str(error))
    return Digest(digest.hexdigest())


def check(desk: Desk, directory: str, gathered: Gathered) -> None:
    """Compare every file that the manifest names. Where all members match, the whole save is covered."""
    entries = desk.listing(directory)
    if FILE not in entries:
        return
    wanted = _wanted(desk.json_of(child(directory, FILE)))
    if not wanted:
        gathered.find(Severity.WARNING, "integrity-unusable", f"{FILE} can't be used: it names no SHA-256 of any file.",
                      None, child(directory, FILE))
        return
    paths = {child(directory, name): value for name, value in wanted.items()}
    good: set[str] = set()
    for path, digest in zip(paths, desk.spread(sha256_of, list(paths)), strict=True):
        name = path[len(directory) + 1 if directory else 0 :]
        if digest.trouble:
            gathered.find(Severity.ERROR, "member-missing", f"{name} is in {FILE} and can't be read: {digest.trouble}.",
                          Verdict.INCOMPLETE, path)
        elif digest.hexadecimal != paths[path]:
            hit = [tensor.name for tensor in gathered.tensors if any(block.file == path for block in tensor.blocks)]
            gathered.find(Severity.ERROR, "sha256-mismatch", f"The SHA-256 of {name} is not the one in {FILE}.",
                          Verdict.CORRUPT, path, hit, 0)
        else:
            good.add(path)
    held = {block.file for tensor in gathered.tensors if tensor.proof is not Proof.DAMAGED for block in tensor.blocks}
    if held and held <= good:
        gathered.prove(good)


def _wanted(content: object) -> dict[str, str]:
    if not isinstance(content, dict) or str(content.get("algorithm", "sha256")).lower().replace("-", "") != "sha256":
        return {}
    files = content.get("files")
    found: dict[str, str] = {}
    for name, value in files.items() if isinstance(files, dict) else ():
        if isinstance(value, dict):
            value = value.get("sha256") or value.get("hash") or value.get("digest")  # noqa: PLW2901  the inner value
        if (isinstance(value, str) and len(value) == _DIGITS and not name.startswith("/")
                and ".." not in name.split("/")):
            found[name] = value.lower()
    return found
