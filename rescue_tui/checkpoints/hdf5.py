"""HDF5 files with weights (Keras .h5 and .weights.h5, others by their names): what is whole, and what is cut.

Contiguous payloads, as Keras writes them, have no checksum, and old metadata has none: such a file is intact at best.
Chunks have one where Fletcher-32 or deflate (zlib's Adler-32) made it, metadata of version 2 has one. HDF5 that holds
measurements and no weights is no checkpoint.
"""

from __future__ import annotations

import struct
from dataclasses import replace

from rescue_tui.checkpoints.hdf5_file import Superblock, find_superblock
from rescue_tui.checkpoints.hdf5_objects import Hdf
from rescue_tui.checkpoints.hdf5_walk import OPEN_FLAGS, Survey, Walker
from rescue_tui.checkpoints.hdf5_wire import SIGNATURE, HdfError
from rescue_tui.checkpoints.model import CheckpointFinding, Head, Options, Proof, Reading, Scalar, Verdict
from rescue_tui.checkpoints.names import means_model
from rescue_tui.checkpoints.plain import cut_finding, error, unreadable, warning
from rescue_tui.checkpoints.source import CHUNK_BYTES, EndOfBytes, Source, UnreadableBytes
from rescue_tui.checkpoints.zeros import inspect_zeros

FORMAT = "hdf5"
_ENDINGS = (".h5", ".hdf5", ".keras.h5")
_APPENDED_BYTES = 512  # more than this is not a line that some tool left
_STEPS = ("step", "global_step", "iteration", "optimizer_weights.adam.iteration", "optimizer.vars.0")
_NUMBERS = {"int32": struct.Struct("<i"), "int64": struct.Struct("<q"), "uint64": struct.Struct("<Q")}


def matches(head: Head) -> bool:
    """The signature, also behind a user block; by name also where the start is zeros."""
    if any(head.first[at : at + len(SIGNATURE)] == SIGNATURE for at in (0, 512, 1024, 2048)):
        return True
    named = head.name.lower().endswith(_ENDINGS) and head.size_bytes > 0
    return named and (not head.first[:64].strip(b"\0") or SIGNATURE.startswith(head.first[: len(SIGNATURE)]))


def read(source: Source, options: Options) -> Reading | None:
    """Judge one file; None for HDF5 that holds no weights, which is no checkpoint."""
    del options
    reading, sign = examine(source)
    name = source.name.rpartition("/")[2]
    return reading if sign or means_model(name) else None


def examine(source: Source, shift: int = 0, proven: bool = False) -> tuple[Reading, bool]:
    """As `read`, and whether the content itself says that it holds weights.

    ``proven``: a checksum from outside covers the file (a member of a zip), so its zeros are right; ``shift`` is where
    ``source`` begins in the file that findings and blocks name.
    """
    survey = Survey()
    try:
        superblock = find_superblock(source)
    except HdfError as trouble:
        lost = "the start was overwritten: " if trouble.offset == 0 and not trouble.checksum else ""
        return _failed(source, "superblock", Verdict.CORRUPT, lost + trouble.summary, trouble.offset + shift)
    except EndOfBytes:
        return _failed(source, "cut", Verdict.INCOMPLETE, "the file ends inside the superblock",
                       source.size_bytes + shift)
    except UnreadableBytes as trouble:
        return Reading(FORMAT, (unreadable(source, trouble, shift),)), False
    _check_end(source, superblock, survey, shift)
    hdf = Hdf(source, superblock)
    Walker(hdf, survey, shift).walk()
    cut = cut_finding(source, survey.tensors, shift)
    if cut is not None:
        code, verdict = hdf.gone()
        survey.find(replace(cut, code=code, verdict=verdict))
    if not proven:
        zeros = inspect_zeros(source, survey.spans, shift)
        for finding in zeros.findings:
            survey.find(finding)
        survey.damaged |= zeros.damaged
    return _reading(source, survey, shift, proven), survey.sign


def _reading(source: Source, survey: Survey, shift: int, proven: bool) -> Reading:
    known = Proof.VERIFIED if proven else Proof.UNVERIFIABLE
    values = _values(source, survey)
    entries = []
    for tensor in survey.tensors:
        proof = Proof.VERIFIED if tensor.name in survey.sealed else known
        entries.append(tensor.entry(source.name, Proof.DAMAGED if tensor.name in survey.damaged else proof, shift))
    entries += [data.entry(source.name, data.name in survey.damaged, known, shift) for data in survey.chunked]
    payload = sum(tensor.length for tensor in survey.tensors) + sum(data.payload_bytes for data in survey.chunked)
    if survey.omitted:
        survey.findings.append(warning(source, "findings-omitted", f"{survey.omitted} more like these"))
    step = next((values[key] for key in _STEPS if key in values), None)
    return Reading(
        FORMAT, tuple(survey.findings), tuple(entries), survey.covered and not survey.spans and payload > 0, values,
        step if isinstance(step, int) and step >= 0 else None, payload_bytes=payload)


def _failed(source: Source, code: str, verdict: Verdict, summary: str, offset: int) -> tuple[Reading, bool]:
    return Reading(FORMAT, (error(source, code, verdict, summary, offset),)), False


def _check_end(source: Source, superblock: Superblock, survey: Survey, shift: int) -> None:
    end, size = superblock.end, source.size_bytes
    if end is None:
        survey.find(error(source, "not-closed", Verdict.UNCOMMITTED,
                          "the superblock has no end of file: the writer never closed it", shift))
    elif size < end:
        survey.find(error(source, "cut", Verdict.INCOMPLETE,
                          f"the file has {size} bytes, its superblock says {end}: {end - size} are missing",
                          size + shift, end - size))
    elif size > end:
        survey.find(_behind(source, end, shift))
    if superblock.flags & OPEN_FLAGS:
        survey.find(error(source, "not-closed", Verdict.UNCOMMITTED,
                          "the superblock is marked as open for writing: the writer never closed the file", shift))


def _behind(source: Source, end: int, shift: int) -> CheckpointFinding:
    """Bytes behind the stored end. The library cuts a file to its end when it closes it, and never pads it."""
    rest = source.size_bytes - end
    words = f"{rest} bytes follow the end that the superblock names"
    try:
        zeros = not source.read_at(end, min(rest, CHUNK_BYTES)).strip(b"\0")
    except UnreadableBytes:
        zeros = True
    if rest <= _APPENDED_BYTES or zeros:
        return warning(source, "trailing-bytes", f"{words}: they were appended", end + shift, rest)
    return error(source, "not-closed", Verdict.UNCOMMITTED,
                 f"{words}: the writer was interrupted after its last flush, what it wrote then is in no group",
                 end + shift, rest)


def _values(source: Source, survey: Survey) -> dict[str, Scalar]:
    """Whole numbers without dimensions: steps and counters."""
    values: dict[str, Scalar] = {}
    for tensor in survey.tensors:
        layout = _NUMBERS.get(tensor.dtype)
        if layout is None or tensor.shape or tensor.big_endian or tensor.length != layout.size:
            continue
        try:
            (number,) = layout.unpack(source.read_at(tensor.offset, tensor.length))
        except (EndOfBytes, UnreadableBytes):
            continue
        values[tensor.name] = int(number)
    return values
