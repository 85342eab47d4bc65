"""What can be saved of a checkpoint: the tensors to copy, those that are lost and why, and what tells of both.

A tensor is taken when a checksum proves it, or when its format has none and it still lies whole. Nothing is guessed:
what a reader calls damaged, and what can't be put together from its parts, is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite

from rescue_tui.checkpoints.checksums import extend_crc32
from rescue_tui.checkpoints.elements import ITEM_BYTES, safetensors_word
from rescue_tui.checkpoints.model import Checkpoint, CheckpointFinding, Proof, Reading, Scalar, TensorEntry
from rescue_tui.checkpoints.placing import NotDecoded, Scratch, Write, fault_of, place, stored_bytes
from rescue_tui.checkpoints.safetensors_writer import Slot, names_for
from rescue_tui.checkpoints.source import EndOfBytes, UnreadableBytes
from rescue_tui.checkpoints.tree import Tree
from rescue_tui.checkpoints.zip_records import descriptor
from rescue_tui.core.finding import Severity


@dataclass(frozen=True, slots=True)
class Borrowed:
    """Something that the save itself no longer tells, and the file that told it instead."""

    what: str
    file: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Kept:
    """A tensor to copy. ``name`` is the one in the new file; ``word`` is empty for those that go there raw."""

    tensor: TensorEntry
    name: str
    word: str
    size_bytes: int

    @property
    def slot(self) -> Slot:
        """Its place in the header."""
        return Slot(self.name, self.word, self.tensor.shape, self.size_bytes, ITEM_BYTES.get(self.tensor.dtype, 1))


@dataclass(frozen=True, slots=True)
class Lost:
    """A tensor that can't be given back, with the finding's code and a sentence."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """What is copied and what is lost."""

    kept: tuple[Kept, ...]
    lost: tuple[Lost, ...]
    values: Mapping[str, Scalar | None] = field(default_factory=dict)

    def without(self, failed: Mapping[str, str]) -> Selection:
        """The same when copying some (by their new name) failed for a reason."""
        kept = tuple(one for one in self.kept if one.name not in failed)
        more = tuple(Lost(one.tensor.name, one.tensor.dtype, one.tensor.shape, "copy-failed", failed[one.name])
                     for one in self.kept if one.name in failed)
        return replace(self, kept=kept, lost=(*self.lost, *more))


def select(row: Checkpoint) -> Selection:
    """Every tensor that is proven, or that no checksum covers and that lies whole."""
    reading = row.reading
    reasons = _reasons(reading)
    good: list[TensorEntry] = []
    lost: list[Lost] = []
    for tensor in reading.tensors:
        if tensor.proof is Proof.DAMAGED:
            code, words = reasons.get(tensor.name) or ("damaged", "Its bytes are missing, or contradict the file.")
            lost.append(Lost(tensor.name, tensor.dtype, tensor.shape, code, words))
            continue
        fault = fault_of(tensor)
        if fault:
            lost.append(Lost(tensor.name, tensor.dtype, tensor.shape, "not-whole", f"{fault[:1].upper()}{fault[1:]}."))
        else:
            good.append(tensor)
    named = {tensor.name for tensor in reading.tensors}
    # The index or the pickle names them, and no bytes of theirs are known.
    lost.extend(Lost(name, "", (), code, words) for name, (code, words) in reasons.items() if name not in named)
    kept = tuple(Kept(tensor, name, safetensors_word(tensor.dtype), stored_bytes(tensor))
                 for tensor, name in zip(good, names_for(tensor.name for tensor in good), strict=True))
    return Selection(kept, tuple(lost), {name: _plain(value) for name, value in reading.values.items()})


def _plain(value: Scalar) -> Scalar:
    """JSON has no word for NaN and infinity."""
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _reasons(reading: Reading) -> dict[str, tuple[str, str]]:
    """The first finding on each tensor that forces a verdict, in words."""
    found: dict[str, tuple[str, str]] = {}
    for finding in reading.findings:
        if finding.severity is Severity.ERROR:
            for name in finding.tensors:
                found.setdefault(name, (finding.code, finding.summary))
    return found


def copy_tensor(tree: Tree, tensor: TensorEntry, scratch: Callable[[], Scratch], write: Write) -> str:
    """Put the tensor together; the reason when that failed, else nothing.

    Where a CRC-32 lies behind a payload that is all of the tensor, the bytes are compared with it as they are copied.
    """
    try:
        told = _crc_of(tree, tensor)
        if told is None:
            place(tree, tensor, scratch, write)
            return ""
        summed = _Summed(write)
        place(tree, tensor, scratch, summed.write)
        return "" if summed.crc == told else (
            "Its CRC-32 no longer matches: the medium gives other bytes than a moment ago.")
    except NotDecoded as error:
        return f"It can't be decoded: {error}."
    except UnreadableBytes as error:
        return f"It can't be read: {error.reason}."
    except EndOfBytes as error:
        return f"It ends too early: {error}."


class _Summed:
    """Passes bytes on that come in order, with their CRC-32."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self.crc = 0

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self.crc = extend_crc32(self.crc, data)
        self._write(offset, data)


def _crc_of(tree: Tree, tensor: TensorEntry) -> int | None:
    """The CRC-32 of exactly the bytes that are copied: torch.save puts it right behind (zip's descriptor)."""
    if tensor.proof is not Proof.VERIFIED or len(tensor.blocks) != 1 or tensor.big_endian:
        return None
    block = tensor.blocks[0]
    if block.codec or block.inline is not None or block.strides is not None or block.start:
        return None
    with tree.open(block.file) as source:
        told = descriptor(source, block.offset + block.length, block.length)
    return told.crc if told is not None and told.crc and told.size_bytes == block.length else None


def salvage_fields(row: Checkpoint, chosen: Selection, places: Mapping[str, tuple[str, int]],
                   borrowed: tuple[Borrowed, ...]) -> dict[str, object]:
    """The fields of the document that say what was saved and what was not.

    ``places``: the new file and the offset in it of each tensor, by its new name.
    """
    counts = {proof.value: sum(one.tensor.proof is proof for one in chosen.kept)
              for proof in (Proof.VERIFIED, Proof.UNVERIFIABLE)}
    return {
        "path": row.path, "format": row.reading.format, "verdict": row.verdict, "step": row.reading.step,
        "tensors": {"total": len(chosen.kept) + len(chosen.lost), "salvaged": len(chosen.kept), **counts,
                    "lost": len(chosen.lost)},
        "salvaged": [_kept_fields(one, places) for one in chosen.kept],
        "lost": [{"tensor": one.name, "dtype": one.dtype or None, "shape": list(one.shape) if one.dtype else None,
                  "code": one.code, "reason": one.reason} for one in chosen.lost],
        "values": chosen.values,
        "borrowed": [{"what": one.what, "file": one.file, "note": one.note} for one in borrowed],
        "findings": [finding_fields(finding) for finding in row.reading.findings],
    }


def _kept_fields(one: Kept, places: Mapping[str, tuple[str, int]]) -> dict[str, object]:
    tensor = one.tensor
    first = tensor.blocks[0] if tensor.blocks else None
    file, offset = places.get(one.name, ("", 0))
    return {
        "tensor": tensor.name, "name": one.name, "dtype": tensor.dtype, "shape": list(tensor.shape),
        "proof": tensor.proof, "in": file, "at": offset, "bytes": one.size_bytes,
        "from": None if first is None else {
            "file": first.file, "offset": first.offset, "length": first.length, "parts": len(tensor.blocks)},
    }


def finding_fields(finding: CheckpointFinding) -> dict[str, object]:
    """A finding as the document of a scan has it."""
    return {"severity": finding.severity, "code": finding.code, "summary": finding.summary,
            "tensors": list(finding.tensors), "file": finding.file, "offset": finding.offset,
            "length": finding.length, "verdict": finding.verdict}
