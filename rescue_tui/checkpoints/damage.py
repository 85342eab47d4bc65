"""Sectors that the image lacks, told of the tensors that lie on them: zeros stand there, and zeros look like data.

A checksum that matches over such bytes proves them all the same. What no checksum covers is not there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

from rescue_tui.checkpoints.model import Block, CheckpointFinding, Proof, Reading, TensorEntry, Verdict
from rescue_tui.checkpoints.source import UnreadableBytes
from rescue_tui.core.damage import Loss, PlaceUnknown
from rescue_tui.core.finding import Severity
from rescue_tui.core.ranges import Ranges, ranges_of

BAD, UNREAD, PROVEN, UNKNOWN = "bad-sectors", "unread-sectors", "unread-but-proven", "damage-unknown"
DAMAGE_CODES = frozenset({BAD, UNREAD})
MAX_FINDINGS = 64
# A checksum over the whole file, from outside of it, settles its header too.
_WHOLE_FILE = frozenset({"sha256-matches", "git-sha1-matches"})


@runtime_checkable
class MappedTree(Protocol):
    """A tree that knows which bytes of its files were never read from the disk."""

    def losses(self, path: str) -> tuple[Loss, ...]:
        """In order. Raises `PlaceUnknown`, and `UnreadableBytes` for what can't be opened or is no file."""


class _Unknown(NamedTuple):
    """A file whose place can't be told, as in `PlaceUnknown`."""

    path: str
    reason: str
    checked: bool


def marked(tree: object, reading: Reading, members: Iterable[str] = ()) -> Reading:
    """The reading with what lies on sectors that were never read: tensors damaged, findings that force incomplete.

    ``members``: files of the save that the reading itself does not name.
    """
    if not isinstance(tree, MappedTree):
        return reading
    files = {block.file for tensor in reading.tensors for block in tensor.blocks}
    lost: dict[str, tuple[Loss, ...]] = {}
    unknown: list[_Unknown] = []
    for path in sorted({*files, *reading.members, *members}):
        try:
            losses = tree.losses(path)
        except PlaceUnknown as error:
            unknown.append(_Unknown(path, error.reason, error.checked))
        except UnreadableBytes:
            continue  # a directory, or what the reader has told of
        else:
            if losses:
                lost[path] = losses
    if not lost and not unknown:
        return reading
    return _Marking(reading, lost).reading(unknown)


class _Marking:
    def __init__(self, reading: Reading, lost: dict[str, tuple[Loss, ...]]) -> None:
        self.before = reading
        self.lost = lost
        self.whole = {finding.file for finding in reading.findings if finding.code in _WHOLE_FILE}
        self.hit: dict[str, list[dict[str, None]]] = {path: [{} for _ in losses] for path, losses in lost.items()}
        self.proven: dict[str, list[dict[str, None]]] = {path: [{} for _ in losses] for path, losses in lost.items()}
        self.held: dict[str, list[tuple[int, int]]] = defaultdict(list)

    def reading(self, unknown: Sequence[_Unknown]) -> Reading:
        tensors = tuple(self._tensor(tensor) for tensor in self.before.tensors)
        findings = [*self._findings(), *_unknown(unknown, self.before.covered)]
        return replace(self.before, tensors=tensors, findings=(*self.before.findings, *findings))

    def _tensor(self, tensor: TensorEntry) -> TensorEntry:
        blocks = tuple(self._block(tensor.name, block) for block in tensor.blocks)
        if blocks == tensor.blocks:
            return tensor
        return replace(tensor, blocks=blocks, proof=Proof.DAMAGED)

    def _block(self, name: str, block: Block) -> Block:
        losses = self.lost.get(block.file)
        if losses is None:
            return block
        end = block.offset + block.length
        self.held[block.file].append((block.offset, end))
        first = bisect_right(losses, block.offset, key=lambda loss: loss.end)
        stop = bisect_left(losses, end, key=lambda loss: loss.offset)
        into = self.proven if block.proof is Proof.VERIFIED else self.hit
        for index in range(first, stop):
            into[block.file][index][name] = None
        if first >= stop or block.proof is Proof.VERIFIED:
            return block
        return replace(block, proof=Proof.DAMAGED)

    def _findings(self) -> Iterable[CheckpointFinding]:
        found: list[CheckpointFinding] = []
        left: dict[str, None] = {}
        omitted = omitted_bytes = 0
        for path, losses in self.lost.items():
            held = ranges_of(self.held[path])
            for index, loss in enumerate(losses):
                for finding in self._of_loss(path, index, loss, held):
                    # Notes are no reason to leave damage untold.
                    if len(found) < MAX_FINDINGS:
                        found.append(finding)
                    elif finding.verdict is not None:
                        omitted, omitted_bytes = omitted + 1, omitted_bytes + (finding.length or 0)
                        left |= dict.fromkeys(finding.tensors)
        if omitted:
            found.append(CheckpointFinding(
                Severity.ERROR, UNREAD, f"{omitted_bytes} bytes in {omitted} more places were never read from the "
                "disk.", Verdict.INCOMPLETE, tensors=tuple(left)))
        return found

    def _of_loss(self, path: str, index: int, loss: Loss, held: Ranges) -> Iterable[CheckpointFinding]:
        hit, proven = self.hit[path][index], self.proven[path][index]
        between = ranges_of([(loss.offset, loss.end)]).without(held)
        if hit:
            yield _told(path, loss, tuple(hit), f"{_words(loss)}: what stands there is not what was saved.")
        if len(between) and path not in self.whole:
            part = Loss(between.starts[0], between.ends[-1] - between.starts[0], loss.bad)
            yield _told(path, part, (), f"{_words(Loss(part.offset, between.total_bytes, loss.bad))} outside of all "
                        "known tensors, where nothing is known to prove them.")
        if proven or (len(between) and path in self.whole):
            yield CheckpointFinding(
                Severity.INFO, PROVEN, f"{_words(loss)}, yet a checksum over them matches: they are right.", None, path,
                loss.offset, loss.length, tuple(proven))


def _words(loss: Loss) -> str:
    where = "on bad sectors of the disk" if loss.bad else "on sectors that were not read from the disk yet"
    return f"{loss.length} bytes lie {where}"


def _told(path: str, loss: Loss, tensors: tuple[str, ...], words: str) -> CheckpointFinding:
    return CheckpointFinding(Severity.ERROR, BAD if loss.bad else UNREAD, words, Verdict.INCOMPLETE, path, loss.offset,
                             loss.length, tensors)


def _unknown(files: Sequence[_Unknown], covered: bool) -> Iterable[CheckpointFinding]:
    """The image lacks something, and nobody can say whether it is a part of these."""
    for one in files[:MAX_FINDINGS]:
        doubted = not covered and not one.checked
        yield CheckpointFinding(
            Severity.ERROR if doubted else Severity.INFO, UNKNOWN,
            f"Whether it lies on sectors that were never read can't be told: {one.reason}.",
            Verdict.INCOMPLETE if doubted else None, one.path)
