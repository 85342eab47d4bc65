"""Keras archives (.keras): Python's zip of metadata.json, config.json and the weights, each member with its CRC-32.

Source: keras.saving.saving_lib, ``_save_model_to_fileobj``. The tensors within the weights are not listed: what is
judged is every byte of every member.
"""

from __future__ import annotations

from dataclasses import replace

from rescue_tui.checkpoints.model import CheckpointFinding, Head, Options, Reading, Verdict
from rescue_tui.checkpoints.plain import error, unreadable
from rescue_tui.checkpoints.pyzip import END_MAGIC, LOCAL_MAGIC, check, first_name, open_archive
from rescue_tui.checkpoints.source import Source, UnreadableBytes
from rescue_tui.core.finding import Severity

FORMAT = "keras"
ENDING = ".keras"
DESCRIPTIONS = ("metadata.json", "config.json")
WEIGHTS = ("model.weights.h5", "model.weights.npz", "model.weights.json")


def matches(head: Head) -> bool:
    """A zip that begins with Keras' own first member; by name any zip, also one of which only the end is left."""
    named = head.name.lower().endswith(ENDING)
    if first_name(head.first) in DESCRIPTIONS and (named or b"keras" in head.first):
        return True
    return named and (head.first.startswith(LOCAL_MAGIC) or END_MAGIC in head.last)


def read(source: Source, options: Options) -> Reading:
    """Verified when the description and the weights are there and every member's CRC-32 matches."""
    del options
    try:
        archive = open_archive(source)
    except UnreadableBytes as broken:
        return Reading(FORMAT, (unreadable(source, broken),))
    findings: list[CheckpointFinding] = list(archive.findings)
    for member in archive.members:
        found = check(source, member)
        if found is not None:
            findings.append(replace(found, tensors=(member.name,)) if member.name in WEIGHTS else found)
    names = {member.name for member in archive.members}
    missing = [name for name in DESCRIPTIONS if name not in names]
    if not names.intersection(WEIGHTS):
        missing.append(WEIGHTS[0])
    findings += [error(source, "member-missing", Verdict.INCOMPLETE, f"{name} is missing from the archive")
                 for name in missing]
    listed = "The tensors within the weights are not listed one by one."
    findings.append(CheckpointFinding(Severity.INFO, "tensors-not-listed", listed, None, source.name))
    covered = archive.whole and all(finding.verdict is None for finding in findings)
    return Reading(FORMAT, tuple(findings), covered=covered,
                   payload_bytes=sum(member.size_bytes for member in archive.members))
