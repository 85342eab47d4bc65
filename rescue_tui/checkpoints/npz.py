"""NumPy archives: a zip of arrays, each member with its CRC-32. See numpy.lib.npyio ``_savez``."""

from __future__ import annotations

from rescue_tui.checkpoints import npy
from rescue_tui.checkpoints.model import (
    Block,
    CheckpointFinding,
    Head,
    Options,
    Proof,
    Reading,
    TensorEntry,
    Verdict,
)
from rescue_tui.checkpoints.plain import error, unreadable, warning
from rescue_tui.checkpoints.pyzip import (
    DEFLATED,
    END_MAGIC,
    LOCAL_MAGIC,
    Member,
    beginning,
    check,
    first_name,
    open_archive,
)
from rescue_tui.checkpoints.source import Source, UnreadableBytes

FORMAT = "npz"
ENDING = ".npz"


def matches(head: Head) -> bool:
    """A zip whose first member is an array; by name any zip, also one of which only the end is left."""
    if first_name(head.first).endswith(npy.ENDING):
        return True
    return head.name.lower().endswith(ENDING) and (head.first.startswith(LOCAL_MAGIC) or END_MAGIC in head.last)


def read(source: Source, options: Options) -> Reading:
    """Check every member's CRC-32 and every array's header; verified when all match and none is lost."""
    del options
    return read_arrays(source, FORMAT)


def read_arrays(source: Source, form: str) -> Reading:
    """As `read`, under another word for the format (weights in a Keras archive)."""
    try:
        archive = open_archive(source)
    except UnreadableBytes as broken:
        return Reading(form, (unreadable(source, broken),))
    findings: list[CheckpointFinding] = []
    tensors: list[TensorEntry] = []
    covered = archive.whole and bool(archive.members)
    for finding in archive.findings:
        covered = covered and finding.verdict is None
        findings.append(finding)
    for member in archive.members:
        found = check(source, member)
        tensor, doubt = _array(source, member, Proof.VERIFIED if found is None else Proof.DAMAGED)
        names = (tensor.name,) if tensor is not None else (_name(member),)
        covered = covered and found is None
        for trouble in (found, doubt):
            if trouble is not None:
                covered = covered and trouble.verdict is None
                findings.append(_naming(trouble, names))
        if tensor is not None:
            tensors.append(tensor)
    if not archive.members:
        findings.append(error(source, "no-members", Verdict.INCOMPLETE, "the archive has no member that can be read"))
    size = sum(member.size_bytes for member in archive.members)
    return Reading(form, tuple(findings), tuple(tensors), covered, payload_bytes=size, members=())


def _name(member: Member) -> str:
    return member.name.removesuffix(npy.ENDING)


def _naming(finding: CheckpointFinding, names: tuple[str, ...]) -> CheckpointFinding:
    return CheckpointFinding(
        finding.severity,
        finding.code,
        finding.summary,
        finding.verdict,
        finding.file,
        finding.offset,
        finding.length,
        names,
    )


def _array(source: Source, member: Member, proof: Proof) -> tuple[TensorEntry | None, CheckpointFinding | None]:
    """The tensor in a member, and what is wrong with its header."""
    if not member.name.endswith(npy.ENDING):
        return None, None
    prefix = beginning(source, member, npy.PREFIX_BYTES)
    place = (member.offset, member.stored_bytes)
    try:
        header = npy.parse_header(prefix, member.size_bytes <= npy.PREFIX_BYTES)
    except npy.ArrayHeaderError as trouble:
        if proof is Proof.DAMAGED:
            return TensorEntry(_name(member), "", (), (), proof), None
        # The CRC matched: the writer itself put this there.
        return None, error(
            source,
            "header",
            Verdict.INCOMPLETE if trouble.cut else Verdict.CORRUPT,
            f"the header of {member.name} can't be read: {trouble.summary}",
            *place,
        )
    if header.pickled:
        return None, warning(
            source, "pickled-array", f"the elements of {member.name} are a pickle, which is never loaded", *place
        )
    if header.start + header.data_bytes > member.size_bytes:
        missing = header.start + header.data_bytes - member.size_bytes
        finding = error(source, "cut", Verdict.INCOMPLETE, f"{missing} bytes of {member.name} are missing", *place)
        return TensorEntry(_name(member), header.dtype, header.shape, (), Proof.DAMAGED, header.big_endian), finding
    return _entry(source, member, header, proof), None


def _entry(source: Source, member: Member, header: npy.ArrayHeader, proof: Proof) -> TensorEntry:
    origin = (0,) * len(header.shape)
    if member.method == DEFLATED:
        # The decoded run begins with the header, which numpy pads to a multiple of 64 bytes.
        aligned = header.item_bytes and header.start % header.item_bytes == 0
        blocks: tuple[Block, ...] = (
            (
                Block(
                    source.name,
                    member.offset,
                    member.stored_bytes,
                    origin,
                    header.shape,
                    proof,
                    header.start // header.item_bytes,
                    header.strides,
                    "deflate",
                ),
            )
            if aligned
            else ()
        )
    else:
        blocks = (
            Block(
                source.name,
                member.offset + header.start,
                header.data_bytes,
                origin,
                header.shape,
                proof,
                0,
                header.strides,
            ),
        )
    return TensorEntry(
        _name(member), header.dtype, header.shape, blocks if header.data_bytes else (), proof, header.big_endian
    )
