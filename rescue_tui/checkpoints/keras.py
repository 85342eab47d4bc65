"""Keras 3 models: a zip of metadata.json, config.json and the weights, each with its CRC-32.

Verified means: every member's CRC-32 matches, none is missing, both descriptions are JSON, the weights are whole HDF5.

Layout: keras-team/keras keras/src/saving/saving_lib.py. The HDF5 inside adds no checksum of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from rescue_tui.checkpoints import hdf5, npz
from rescue_tui.checkpoints.limits import HELD_BYTES
from rescue_tui.checkpoints.model import CheckpointFinding, Head, Options, Proof, Reading, TensorEntry, Verdict
from rescue_tui.checkpoints.plain import error, unreadable, warning
from rescue_tui.checkpoints.pyzip import (
    END_MAGIC,
    LOCAL_MAGIC,
    STORED,
    Archive,
    Member,
    beginning,
    check,
    first_name,
    open_archive,
)
from rescue_tui.checkpoints.source import BytesSource, Source, UnreadableBytes, Window

FORMAT = "keras"
ENDING = ".keras"
_METADATA, _CONFIG = "metadata.json", "config.json"
_HDF5, _NPZ = "model.weights.h5", "model.weights.npz"
_WEIGHTS = (_HDF5, _NPZ)
_DESCRIPTION_BYTES = 64 << 20  # configurations hold no arrays; a larger one is not parsed
_SIGN = b"keras_version"


def matches(head: Head) -> bool:
    """A zip whose first or last member is a Keras model's; by name any zip, also one of which only the end is left."""
    name = first_name(head.first)
    if name in _WEIGHTS or (name in {_METADATA, _CONFIG} and _SIGN in head.first):
        return True
    if END_MAGIC not in head.last and not name:
        return False
    last = any(weights.encode() in head.last for weights in _WEIGHTS) and END_MAGIC in head.last
    return last or (
        head.name.lower().endswith(ENDING) and (head.first.startswith(LOCAL_MAGIC) or END_MAGIC in head.last)
    )


def read(source: Source, options: Options) -> Reading:
    """Check the CRC-32 of every member and look into the weights; verified when all match and none is missing."""
    del options
    try:
        archive = open_archive(source)
    except UnreadableBytes as trouble:
        return Reading(FORMAT, (unreadable(source, trouble),))
    findings = list(archive.findings)
    tensors: list[TensorEntry] = []
    payload = 0
    step = None
    covered = archive.whole and bool(archive.members)
    for member in archive.members:
        found = check(source, member)
        inner = _weights(source, member, found is None)
        covered = covered and found is None
        doubt = _description(source, member) if found is None else None
        if doubt is not None:
            findings.append(doubt)
        if found is None and member.name in _WEIGHTS and inner is None:
            findings.append(warning(source, "not-followed", f"{member.name} is packed and was not looked into",
                                    member.offset, member.stored_bytes))
        if inner is not None:
            findings += inner.findings
            tensors += inner.tensors
            payload += member.size_bytes
            step = inner.step if step is None else step
        if found is not None:
            names = tuple(tensor.name for tensor in inner.tensors) if inner is not None else ()
            findings.append(replace(found, tensors=names))
    findings += _missing(source, archive)
    covered = covered and all(finding.verdict is None for finding in findings)
    return Reading(FORMAT, tuple(findings), tuple(tensors), covered, step=step, payload_bytes=payload)


def _missing(source: Source, archive: Archive) -> Sequence[CheckpointFinding]:
    names = {member.name for member in archive.members}
    if not archive.whole or any(finding.code == "local-header" for finding in archive.findings):
        return ()  # that members were lost is told already
    lost = [name for name in (_METADATA, _CONFIG) if name not in names]
    lost += [] if names.intersection(_WEIGHTS) else [_HDF5]
    return [error(source, "member-missing", Verdict.INCOMPLETE, f"the archive has no {name}") for name in lost]


def _description(source: Source, member: Member) -> CheckpointFinding | None:
    """What is wrong with a description whose bytes are what was written: without it the model can't be built."""
    if member.name not in {_METADATA, _CONFIG}:
        return None
    place = (member.offset, member.stored_bytes)
    if member.size_bytes > _DESCRIPTION_BYTES:
        return warning(source, "not-followed", f"{member.name} of {member.size_bytes} bytes was not parsed", *place)
    try:
        found = json.loads(beginning(source, member, member.size_bytes))
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return None
    return error(source, "description", Verdict.CORRUPT, f"{member.name} is not the JSON object that it should be",
                 *place)


def _unpacked(source: Source, member: Member) -> Reading | None:
    """The reading of packed weights, of which no tensor has a place in the file; None where they are too large."""
    if member.size_bytes > HELD_BYTES or not member.name.endswith(".h5"):
        return None
    held = beginning(source, member, member.size_bytes)
    reading, _ = hdf5.examine(BytesSource(held, source.name), 0, True)
    return replace(reading,
                   findings=tuple(replace(finding, offset=member.offset, length=member.stored_bytes)
                                  for finding in reading.findings),
                   tensors=tuple(replace(tensor, blocks=()) for tensor in reading.tensors))


def _weights(source: Source, member: Member, proven: bool) -> Reading | None:
    """The reading of a member with weights; None for others."""
    if member.end > source.size_bytes:
        return None
    if member.method != STORED:
        return _unpacked(source, member) if proven else None
    window = Window(source, member.offset, member.stored_bytes)
    if member.name.endswith(".h5"):
        reading, _ = hdf5.examine(window, member.offset, proven)
    elif member.name == _NPZ:
        reading = npz.read_arrays(window, FORMAT)
        reading = replace(
            reading,
            findings=tuple(
                replace(finding, offset=None if finding.offset is None else finding.offset + member.offset)
                for finding in reading.findings
            ),
            tensors=tuple(_moved(tensor, member.offset, tensor.proof) for tensor in reading.tensors),
        )
    else:
        return None
    if proven:
        return reading
    # One sum covers the whole member: where in it the damage is can't be told.
    return replace(reading, tensors=tuple(_moved(tensor, 0, Proof.DAMAGED) for tensor in reading.tensors))


def _moved(tensor: TensorEntry, shift: int, proof: Proof) -> TensorEntry:
    return replace(
        tensor,
        proof=proof,
        blocks=tuple(replace(block, offset=block.offset + shift, proof=proof) for block in tensor.blocks),
    )
