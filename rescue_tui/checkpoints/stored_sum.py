"""Checksums that content-addressed stores give as names: Hugging Face cache blobs (SHA-256, or git's), LFS objects.

Such a name is a proof over the whole file, which formats without checksums don't have.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import NamedTuple, Protocol, cast

from rescue_tui.checkpoints.model import CheckpointFinding, Proof, Reading, TensorEntry, Verdict
from rescue_tui.checkpoints.source import EndOfBytes, Source, UnreadableBytes
from rescue_tui.checkpoints.tree import Entry, Kind, Tree
from rescue_tui.core.finding import Severity

_SHA256 = re.compile(r"[0-9a-f]{64}$")
_GIT_SHA1 = re.compile(r"[0-9a-f]{40}$")


# Doubts that a matching checksum over the whole file settles.
MOOT = frozenset({"zero-run", "zero-payload", "no-checksum"})


def proven(tensor: TensorEntry) -> TensorEntry:
    """The same tensor, whose bytes a checksum from outside the format covers."""
    if tensor.proof is not Proof.UNVERIFIABLE:
        return tensor
    return replace(tensor, proof=Proof.VERIFIED,
                   blocks=tuple(replace(block, proof=Proof.VERIFIED) for block in tensor.blocks))


class StoredSum(NamedTuple):
    """What a name promises: the algorithm (``sha256``, ``git-sha1``) and the digits."""

    algorithm: str
    hexadecimal: str


class LookupTree(Protocol):
    """A tree that can look at one path without listing its neighbours."""

    def entry(self, path: str) -> Entry | None: ...


def entry_of(tree: Tree, path: str) -> Entry | None:
    """One entry of a tree, not followed when it is a link; None when there is none."""
    if hasattr(tree, "entry"):
        return cast("LookupTree", tree).entry(path)
    try:
        return next((entry for entry in tree.listing(path.rpartition("/")[0]) if entry.path == path), None)
    except UnreadableBytes:
        return None


def sum_of_name(tree: Tree, path: str) -> StoredSum | None:
    """The checksum in the name of a file, or of the file that a link of this name leads to."""
    parent, _, name = path.rpartition("/")
    if not _SHA256.match(name) and ("snapshots/" in f"{parent}/" or "blobs" in parent):
        entry = entry_of(tree, path)
        if entry is not None and entry.kind is Kind.SYMLINK:
            parent, _, name = entry.target.rpartition("/")
    if _SHA256.match(name):
        return StoredSum("sha256", name)
    if _GIT_SHA1.match(name) and parent.rpartition("/")[2] == "blobs":
        return StoredSum("git-sha1", name)
    return None


def check(source: Source, stored: StoredSum, reading: Reading) -> Reading:
    """The reading of a file with what its name proves, for or against it."""
    digest = hashlib.sha256() if stored.algorithm == "sha256" else hashlib.sha1(usedforsecurity=False)
    if stored.algorithm == "git-sha1":
        digest.update(b"blob %d\x00" % source.size_bytes)
    try:
        for piece in source.chunks(0, source.size_bytes):
            digest.update(piece)
    except (UnreadableBytes, EndOfBytes) as error:
        return replace(reading, covered=False, findings=(*reading.findings, CheckpointFinding(
            Severity.ERROR, "unreadable", f"It can't be read as a whole: {error}.", Verdict.INCOMPLETE, source.name)))
    word = "SHA-256" if stored.algorithm == "sha256" else "git SHA-1"
    if digest.hexdigest() != stored.hexadecimal:
        return replace(reading, covered=False, findings=(*reading.findings, CheckpointFinding(
            Severity.ERROR, f"{stored.algorithm}-mismatch", f"The {word} of the content is not the one that is its "
            "name.", Verdict.CORRUPT, source.name, 0, source.size_bytes,
            tuple(tensor.name for tensor in reading.tensors))))
    findings = tuple(finding for finding in reading.findings if finding.code not in MOOT)
    return replace(reading, covered=True, tensors=tuple(proven(tensor) for tensor in reading.tensors),
                   findings=(*findings, CheckpointFinding(
                       Severity.INFO, f"{stored.algorithm}-matches", f"The {word} that is its name matches.",
                       file=source.name)))
