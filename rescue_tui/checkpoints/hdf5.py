"""HDF5 files with weights (Keras .h5 and .weights.h5, others by their names): what is whole, and what is cut.

Payloads have a checksum only where a chunk was stored with Fletcher-32 or deflate (zlib's Adler-32); metadata of old
headers has none, so at best a file is intact. HDF5 that holds measurements and no weights is no checkpoint.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass, field
from itertools import pairwise

from rescue_tui.checkpoints.hdf5_chunks import ChunkedData, read_chunks
from rescue_tui.checkpoints.hdf5_objects import Hdf, Object, Superblock, find_superblock
from rescue_tui.checkpoints.hdf5_wire import SIGNATURE, HdfError
from rescue_tui.checkpoints.limits import NESTING, TENSORS
from rescue_tui.checkpoints.model import CheckpointFinding, Head, Options, Proof, Reading, Scalar, TensorEntry, Verdict
from rescue_tui.checkpoints.names import means_model
from rescue_tui.checkpoints.plain import PlainTensor, cut_finding, error, unreadable, warning
from rescue_tui.checkpoints.source import EndOfBytes, Source, UnreadableBytes
from rescue_tui.checkpoints.zeros import PayloadSpan, inspect_zeros

FORMAT = "hdf5"
_ENDINGS = (".h5", ".hdf5", ".keras.h5")
_OPEN_FLAGS = 1 | 4  # open for writing, and for single-writer-multiple-reader access
# What only files with weights have: attributes, and parts of the paths of groups and datasets.
_ATTRIBUTES = frozenset({"keras_version", "model_config", "layer_names", "weight_names", "training_config"})
_PARTS = frozenset(
    {
        "model_weights",
        "optimizer_weights",
        "top_level_model_weights",
        "_layer_checkpoint_dependencies",
        "state_dict",
        "model_state_dict",
        "optimizer_state",
        "kernel",
        "kernel:0",
        "weight",
        "gamma:0",
        "moving_mean",
        "moving_variance",
        "embeddings:0",
        "recurrent_kernel",
        "weights",
        "running_mean",
    }
)
_VARS = re.compile(r"(?:^|\.)vars\.\d+$")
_STEPS = ("step", "global_step", "iteration", "optimizer_weights.adam.iteration", "optimizer.vars.0")
_NUMBERS = {"int32": struct.Struct("<i"), "int64": struct.Struct("<q"), "uint64": struct.Struct("<Q")}
_FINDINGS = 200


@dataclass(slots=True)
class Survey:
    """What was met in a file. ``lost``: paths whose headers or data could not be read."""

    tensors: list[PlainTensor] = field(default_factory=list)
    entries: list[TensorEntry] = field(default_factory=list)
    spans: list[PayloadSpan] = field(default_factory=list)
    findings: list[CheckpointFinding] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)
    sign: bool = False
    seen: int = 0
    chunked: list[ChunkedData] = field(default_factory=list)

    def find(self, finding: CheckpointFinding) -> None:
        """Keep a finding, if there are not too many."""
        if len(self.findings) < _FINDINGS:
            self.findings.append(finding)
        self.damaged.update(finding.tensors if finding.verdict is not None else ())


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
    verdict = Proof.VERIFIED if proven else Proof.UNVERIFIABLE
    try:
        superblock = find_superblock(source)
    except HdfError as trouble:
        lost = "the start was overwritten: " if trouble.offset == 0 and not trouble.checksum else ""
        return _failed(source, "superblock", Verdict.CORRUPT, lost + trouble.summary, trouble.offset + shift)
    except EndOfBytes:
        return _failed(
            source, "cut", Verdict.INCOMPLETE, "the file ends inside the superblock", source.size_bytes + shift
        )
    except UnreadableBytes as trouble:
        return Reading(FORMAT, (unreadable(source, trouble, shift),)), False
    _check_end(source, superblock, survey, shift)
    _Walker(Hdf(source, superblock), survey, shift).walk()
    cut = cut_finding(source, survey.tensors, shift)
    for finding in (cut, _overlap(source, survey, shift)):
        if finding is not None:
            survey.find(finding)
    if not proven:
        zeros = inspect_zeros(source, survey.spans, shift)
        survey.findings += zeros.findings
        survey.damaged |= zeros.damaged
    values = _values(source, survey)
    entries = [
        tensor.entry(source.name, Proof.DAMAGED if tensor.name in survey.damaged else verdict, shift)
        for tensor in survey.tensors
    ]
    entries += [data.entry(source.name, data.name in survey.damaged, verdict, shift) for data in survey.chunked]
    payload = sum(span.length for span in survey.spans)
    step = next((values[key] for key in _STEPS if key in values), None)
    return Reading(
        FORMAT,
        tuple(survey.findings),
        tuple(entries),
        values=values,
        step=step if isinstance(step, int) and step >= 0 else None,
        payload_bytes=payload,
    ), survey.sign


def _failed(source: Source, code: str, verdict: Verdict, summary: str, offset: int) -> tuple[Reading, bool]:
    return Reading(FORMAT, (error(source, code, verdict, summary, offset),)), False


def _check_end(source: Source, superblock: Superblock, survey: Survey, shift: int) -> None:
    end, size = superblock.end, source.size_bytes
    if end is None:
        survey.find(
            error(
                source,
                "not-closed",
                Verdict.UNCOMMITTED,
                "the superblock has no end of file: the writer never closed it",
                shift,
            )
        )
    elif size < end:
        survey.find(
            error(
                source,
                "cut",
                Verdict.INCOMPLETE,
                f"the file has {size} bytes, its superblock says {end}: {end - size} are missing",
                size + shift,
                end - size,
            )
        )
    elif size > end:
        survey.find(
            warning(
                source,
                "trailing-bytes",
                f"{size - end} bytes follow the end that the superblock names: they "
                "were appended, or the file was never closed",
                end + shift,
                size - end,
            )
        )
    if superblock.version >= 3 and superblock.flags & _OPEN_FLAGS:
        survey.find(
            error(
                source,
                "not-closed",
                Verdict.UNCOMMITTED,
                "the superblock is marked as open for writing: the writer never closed the file",
                shift,
            )
        )


class _Walker:
    """Follows hard links from the root group; what one object breaks does not hide its siblings."""

    def __init__(self, hdf: Hdf, survey: Survey, shift: int) -> None:
        self.hdf, self.survey, self.shift = hdf, survey, shift
        self.visited: set[int] = set()

    def walk(self) -> None:
        """Everything below the root group."""
        self._visit("", self.hdf.superblock.root, 0)
        lost, source = self.survey.lost, self.hdf.source
        if lost:
            shown = ", ".join(lost[:5])
            self.survey.find(
                error(
                    source,
                    "lost-objects",
                    Verdict.INCOMPLETE,
                    f"{len(lost)} objects lie beyond the end of the file: {shown}",
                    source.size_bytes + self.shift,
                    None,
                    tuple(lost),
                )
            )

    def _visit(self, path: str, address: int, depth: int) -> None:
        if address in self.visited:
            return
        self.visited.add(address)
        where = self.shift + self.hdf.superblock.base + address
        names = (path,) if path else ()
        survey, source = self.survey, self.hdf.source
        if depth > NESTING or len(self.visited) > TENSORS:
            survey.find(
                error(
                    source,
                    "too-large",
                    Verdict.CORRUPT,
                    "it has more objects, or deeper ones, than weights have",
                    where,
                )
            )
            return
        try:
            found = self.hdf.object(address)
            survey.sign = survey.sign or not _ATTRIBUTES.isdisjoint(found.attributes)
            if found.layout is not None:
                self._dataset(path, found)
                return
            if found.dense_links:
                survey.find(
                    warning(
                        source,
                        "not-followed",
                        f"the links of {path or 'the root group'} are stored in a way "
                        "that is not followed: what is in it was not checked",
                        where,
                    )
                )
            for name, child in self.hdf.children(found):
                below = f"{path}.{name}" if path else name
                survey.sign = survey.sign or name in _PARTS
                self._visit(below, child, depth + 1)
        except EndOfBytes:
            survey.lost.append(path or "the root group")
        except UnreadableBytes as trouble:
            survey.find(unreadable(source, trouble, self.shift))
        except HdfError as trouble:
            code = "checksum-mismatch" if trouble.checksum else "structure"
            survey.find(
                error(
                    source,
                    code,
                    Verdict.CORRUPT,
                    f"{path or 'the root group'}: {trouble.summary}",
                    trouble.offset + self.shift,
                    None,
                    names,
                )
            )

    def _dataset(self, path: str, found: Object) -> None:
        survey, source = self.survey, self.hdf.source
        layout, datatype, shape = found.layout, found.datatype, found.shape
        assert layout is not None
        survey.sign = survey.sign or bool(_VARS.search(path))
        if datatype is None or datatype.variable or shape is None:
            return  # texts of any length and empty spaces: no tensor
        size = math.prod(shape) * datatype.size
        if size >= 1 << 62 or datatype.size == 0:
            raise HdfError(f"a shape of {shape[:4]} can't be", 0)
        if layout.chunked:
            data = read_chunks(self.hdf, path, found, self.shift)
            survey.chunked.append(data)
            survey.spans += data.spans
            for finding in data.findings:
                survey.find(finding)
            return
        if layout.offset is None:
            survey.tensors.append(PlainTensor(path, datatype.word, shape, 0, 0))
            if size:
                survey.find(
                    warning(
                        source,
                        "never-written",
                        f"no byte of {path} was ever stored: it reads as its fill value",
                        None,
                        None,
                        (path,),
                    )
                )
            return
        tensor = PlainTensor(path, datatype.word, shape, layout.offset, size, None, datatype.big_endian)
        survey.tensors.append(tensor)
        if size:
            survey.spans.append(PayloadSpan(tensor.offset, size, (path,)))
        if layout.length != size:
            survey.find(
                error(
                    source,
                    "tensor-size",
                    Verdict.CORRUPT,
                    f"{path} has {layout.length} bytes, its shape and datatype need {size}",
                    layout.offset + self.shift,
                    layout.length,
                    (path,),
                )
            )


def _overlap(source: Source, survey: Survey, shift: int) -> CheckpointFinding | None:
    ordered = sorted(survey.spans)
    for before, after in pairwise(ordered):
        if after.offset < before.end:
            return error(
                source,
                "overlap",
                Verdict.CORRUPT,
                "datasets share bytes",
                after.offset + shift,
                before.end - after.offset,
                (*before.tensors, *after.tensors),
            )
    return None


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
