"""What a reader says of a checkpoint. Sizes and offsets are bytes, tensor names dotted paths from the root object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rescue_tui.core.finding import Severity

Scalar = bool | int | float | str


class Verdict(StrEnum):
    """What can be promised, the worst first; the words and their order are the command line's contract."""

    FOREIGN = "foreign"
    EMPTY = "empty"
    CORRUPT = "corrupt"
    INCOMPLETE = "incomplete"
    INCONSISTENT = "inconsistent"
    UNCOMMITTED = "uncommitted"
    INTACT = "intact"
    VERIFIED = "verified"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return tuple(Verdict).index(self)

    @property
    def trusted(self) -> bool:
        """Good enough to be the newest good one."""
        return self in {Verdict.INTACT, Verdict.VERIFIED}

    @property
    def sign(self) -> str:
        """Two ASCII characters for the eye that runs down a column; the word says the same."""
        return {"verified": "++", "intact": "+ ", "uncommitted": "? ", "inconsistent": "! "}.get(self.value, "X ")


class Proof(StrEnum):
    """What is known of the bytes of a tensor, or of a part of it."""

    VERIFIED = "verified"  # a checksum covers every byte and matched
    UNVERIFIABLE = "unverifiable"  # whole and where it should be, no checksum exists
    DAMAGED = "damaged"  # missing, cut, overlapped, or its checksum does not match


@dataclass(frozen=True, slots=True)
class CheckpointFinding:
    """One observation on a checkpoint.

    ``verdict`` is the verdict that this finding alone forces (None: it forces nothing). ``code`` is stable and
    hyphenated. Offsets are those of ``file``, which is relative to the root of the scan.
    """

    severity: Severity
    code: str
    summary: str
    verdict: Verdict | None = None
    file: str = ""
    offset: int | None = None
    length: int | None = None
    tensors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a tensor that lies in one run of bytes.

    ``origin`` and ``shape`` (elements) place it in the tensor. ``start`` and ``strides`` (elements) pick its elements
    from the decoded run; strides None means C order. ``codec`` names what the stored bytes must be decoded with
    ("" stored as they are, "zstd", "gzip", "zlib", "deflate", "blosc"). ``inline`` holds the stored bytes themselves
    where they are part of a compressed node; file, offset and length are then those of the node.
    """

    file: str
    offset: int
    length: int
    origin: tuple[int, ...]
    shape: tuple[int, ...]
    proof: Proof
    start: int = 0
    strides: tuple[int, ...] | None = None
    codec: str = ""
    inline: bytes | None = None


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor: ``dtype`` in the words of numpy and torch (float32, bfloat16, float8_e4m3fn), shape in elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    blocks: tuple[Block, ...]
    proof: Proof
    big_endian: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """What one reader found in one file, or in one directory that is one save.

    ``format`` is a word of the contract. ``covered`` is true only if every payload byte is covered by a checksum that
    matched. ``values`` holds non-tensor scalars by dotted name (step, epoch, lr). ``tree`` is the inert object tree
    where the format has one (dicts, lists, scalars, tensor references), for those who read a trainer's own fields.
    """

    format: str
    findings: tuple[CheckpointFinding, ...] = ()
    tensors: tuple[TensorEntry, ...] = ()
    covered: bool = False
    values: Mapping[str, Scalar] = field(default_factory=dict)
    step: int | None = None
    members: tuple[str, ...] = ()
    payload_bytes: int = 0
    tree: object = None

    @property
    def verdict(self) -> Verdict:
        """The worst that the findings force; without any, what the checksums allow."""
        return judge(self.findings, self.covered)


def judge(findings: Iterable[CheckpointFinding], covered: bool) -> Verdict:
    """The worst verdict that a finding forces, else verified where checksums cover every payload byte, else intact."""
    forced = [finding.verdict for finding in findings if finding.verdict is not None]
    forced.append(Verdict.VERIFIED if covered else Verdict.INTACT)
    return min(forced, key=lambda verdict: verdict.rank)


@dataclass(frozen=True, slots=True)
class Options:
    """What the operator asked of a scan. ``values``: read payloads for NaN, Inf and absurd numbers as well."""

    values: bool = False


@dataclass(frozen=True, slots=True)
class Head:
    """What recognisers look at, content before name: ``first`` holds up to 4 KiB, ``last`` the last 128 bytes."""

    name: str
    size_bytes: int
    first: bytes
    last: bytes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One row of the contract: a lone file, or a directory that is one save (``path`` relative to the scan's root)."""

    path: str
    reading: Reading
    verdict: Verdict
    size_bytes: int
    saved_at_ns: int | None = None
