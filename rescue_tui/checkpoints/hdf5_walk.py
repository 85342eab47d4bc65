"""What lies in an HDF5 file: every object that hard links lead to, every dataset against its bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from rescue_tui.checkpoints.hdf5_chunks import ChunkedData, read_chunks
from rescue_tui.checkpoints.hdf5_messages import Datatype
from rescue_tui.checkpoints.hdf5_objects import Hdf, Object
from rescue_tui.checkpoints.hdf5_wire import HdfError, NotFollowedError
from rescue_tui.checkpoints.limits import NESTING, TENSORS
from rescue_tui.checkpoints.model import CheckpointFinding, Verdict
from rescue_tui.checkpoints.plain import PlainTensor, error, unreadable, warning
from rescue_tui.checkpoints.source import EndOfBytes, Source, UnreadableBytes
from rescue_tui.checkpoints.zeros import PayloadSpan

OPEN_FLAGS = 1 | 4  # of the superblock: open for writing, and for single-writer-multiple-reader access
# What only files with weights have: attributes, and parts of the paths of groups and datasets.
_ATTRIBUTES = frozenset({"keras_version", "model_config", "layer_names", "weight_names", "training_config"})
_PARTS = frozenset({
    "model_weights", "optimizer_weights", "top_level_model_weights", "_layer_checkpoint_dependencies", "state_dict",
    "model_state_dict", "optimizer_state", "kernel", "kernel:0", "bias:0", "weight", "weights", "gamma:0",
    "moving_mean", "moving_variance", "running_mean", "embeddings:0", "recurrent_kernel",
})
_VARS = re.compile(r"(?:^|\.)vars\.\d+$")
_FINDINGS = 200
_HEADER_BYTES = 16
_ROOT = "the root group"


@dataclass(slots=True)
class Survey:
    """What was met in a file.

    ``spans``: payload that no checksum covers; ``sealed``: tensors that lie under the checksum of their own header;
    ``lost``: paths whose headers or links could not be read; ``sign``: the content itself says that it holds weights;
    ``covered``: a checksum that matched covers every structure and, but for ``spans``, every element.
    """

    tensors: list[PlainTensor] = field(default_factory=list)
    chunked: list[ChunkedData] = field(default_factory=list)
    spans: list[PayloadSpan] = field(default_factory=list)
    findings: list[CheckpointFinding] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)
    sealed: set[str] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)
    sign: bool = False
    covered: bool = True
    omitted: int = 0

    def find(self, finding: CheckpointFinding) -> None:
        """Keep a finding, if there are not too many of those that force nothing."""
        self.covered = False
        if finding.verdict is not None:
            self.damaged.update(finding.tensors)
        if len(self.findings) < _FINDINGS or finding.verdict not in {None, *(one.verdict for one in self.findings)}:
            self.findings.append(finding)
        else:
            self.omitted += 1


class Walker:
    """Follows hard links from the root group; what one object breaks does not hide its siblings."""

    def __init__(self, hdf: Hdf, survey: Survey, shift: int) -> None:
        self.hdf, self.survey, self.shift = hdf, survey, shift
        self.visited: set[int] = set()

    def walk(self) -> None:
        """Everything below the root group, and the superblock's extension."""
        superblock = self.hdf.superblock
        self.survey.covered = superblock.version >= 2
        self._visit("", superblock.root, 0)
        if superblock.extension is not None:
            self._visit("the superblock's extension", superblock.extension, 0)
        if self.survey.lost:
            self._tell_lost(self.survey.lost)
        for finding in overlaps(self.hdf.source, self._extents(), self.shift):
            self.survey.find(finding)

    def _tell_lost(self, lost: list[str]) -> None:
        names = ", ".join(lost[:5])
        size = self.hdf.source.size_bytes
        code, verdict = self.hdf.gone()
        self.survey.find(error(
            self.hdf.source, "lost-objects" if code == "cut" else code, verdict,
            f"{len(lost)} objects lie beyond the end of the file: {names}", size + self.shift, None, tuple(lost)))

    def _extents(self) -> Iterable[PayloadSpan]:
        yield from (PayloadSpan(one.offset, one.length, (one.name,)) for one in self.survey.tensors if one.length)
        for data in self.survey.chunked:
            yield from (PayloadSpan(part.offset, part.length, (data.name,)) for part in data.parts if part.length)

    def _visit(self, path: str, address: int, depth: int) -> None:
        if address in self.visited:
            return
        self.visited.add(address)
        survey, source = self.survey, self.hdf.source
        where = self.shift + self.hdf.superblock.base + address
        if depth > NESTING or len(self.visited) > TENSORS:
            survey.find(error(source, "too-large", Verdict.CORRUPT,
                              "it has more objects, or deeper ones, than weights have", where))
            return
        try:
            self._object(path, address, depth)
        except EndOfBytes:
            survey.lost.append(path or _ROOT)
        except UnreadableBytes as trouble:
            survey.find(unreadable(source, trouble, self.shift))
        except NotFollowedError as trouble:
            survey.find(warning(source, "not-followed", f"{path or _ROOT} was not looked into: {trouble.summary}",
                                where, None, (path,) if path else ()))
        except HdfError as trouble:
            if self._unwritten(address):
                survey.find(error(source, "not-written", Verdict.INCOMPLETE,
                                  f"the header of {path or _ROOT} is zeros: the writer was interrupted before it wrote "
                                  "it", where, None, (path,) if path else ()))
                return
            code = "checksum-mismatch" if trouble.checksum else "structure"
            survey.find(error(source, code, Verdict.CORRUPT, f"{path or _ROOT}: {trouble.summary}",
                              (trouble.offset + self.shift) if trouble.offset else where, None,
                              (path,) if path else ()))

    def _unwritten(self, address: int) -> bool:
        """A header of zeros in a file that was never closed: room was made for it and nothing more."""
        end, source = self.hdf.superblock.end, self.hdf.source
        if (end is not None and source.size_bytes <= end) and not self.hdf.superblock.flags & OPEN_FLAGS:
            return False
        try:
            return not self.hdf.read(address, _HEADER_BYTES).data.strip(b"\0")
        except (EndOfBytes, UnreadableBytes):
            return False

    def _object(self, path: str, address: int, depth: int) -> None:
        survey = self.survey
        found = self.hdf.object(address)
        try:
            if found.layout is not None:
                self._dataset(path, found)
            for name, child in self.hdf.children(found):
                survey.sign = survey.sign or name in _PARTS
                self._visit(f"{path}.{name}" if path else name, child, depth + 1)
        finally:
            survey.covered = survey.covered and found.checksummed and found.symbols is None
            survey.sign = survey.sign or not _ATTRIBUTES.isdisjoint(found.attributes)
        for name in self.hdf.dense_attributes(found):
            survey.sign = survey.sign or name in _ATTRIBUTES

    def _dataset(self, path: str, found: Object) -> None:
        survey = self.survey
        layout, datatype, space = found.layout, found.datatype, found.space
        assert layout is not None
        survey.sign = survey.sign or bool(_VARS.search(path))
        if found.unfollowed:
            raise NotFollowedError("a part of its description is shared in a way that is not followed")
        if datatype is None or space is None:
            raise HdfError("it has no datatype or no dataspace")
        if space.shape is None:
            return  # a null space: it has no element
        if datatype.variable:
            survey.covered = False
            return  # texts of any length: no tensor
        size = math.prod(space.shape) * datatype.size
        if size >= 1 << 62 or datatype.size == 0:
            raise HdfError(f"a shape of {space.shape[:4]} can't be")
        if found.external or layout.elsewhere:
            raise NotFollowedError("its bytes are in other files")
        if layout.chunked:
            data = read_chunks(self.hdf, path, found, self.shift)
            survey.chunked.append(data)
            survey.spans += data.spans
            for finding in data.findings:
                survey.find(finding)
            survey.covered = survey.covered and data.covered
            return
        self._run(path, found, datatype, space.shape, size)

    def _run(self, path: str, found: Object, datatype: Datatype, shape: tuple[int, ...], size: int) -> None:
        """A dataset that is one run of bytes."""
        survey, source, layout = self.survey, self.hdf.source, found.layout
        assert layout is not None
        if layout.offset is None:
            survey.tensors.append(PlainTensor(path, datatype.word, shape, 0, 0))
            if size:
                survey.find(warning(source, "never-written",
                                    f"no byte of {path} was ever stored: it reads as its fill value", None, None,
                                    (path,)))
            return
        tensor = PlainTensor(path, datatype.word, shape, layout.offset, size, None, datatype.big_endian)
        survey.tensors.append(tensor)
        if layout.length is not None and layout.length != size:
            survey.find(error(source, "tensor-size", Verdict.CORRUPT,
                              f"{path} has {layout.length} bytes, its shape and datatype need {size}",
                              layout.offset + self.shift, layout.length, (path,)))
        elif layout.compact and found.checksummed:
            survey.sealed.add(path)
        elif size:
            survey.spans.append(PayloadSpan(tensor.offset, size, (path,)))


def overlaps(source: Source, spans: Iterable[PayloadSpan], shift: int) -> list[CheckpointFinding]:
    """One finding where datasets share bytes."""
    reach: PayloadSpan | None = None
    for span in sorted(spans):
        if reach is not None and span.offset < reach.end:
            return [error(source, "overlap", Verdict.CORRUPT, "datasets share bytes", span.offset + shift,
                          min(reach.end, span.end) - span.offset, (*reach.tensors, *span.tensors))]
        reach = span if reach is None or span.end > reach.end else reach
    return []
