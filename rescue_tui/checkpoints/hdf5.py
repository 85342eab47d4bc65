"""HDF5 files that hold a model: the superblock, and whether all bytes that it counts are there.

Source: HDF5 File Format Specification 3.0, section II.A (superblock versions 0 to 3). HDF5 as Keras writes it has no
checksum over data, so the best verdict is intact. Groups and datasets are not walked: tensors are not listed.
"""

from __future__ import annotations

import struct

from rescue_tui.checkpoints.model import CheckpointFinding, Head, Options, Reading, Verdict
from rescue_tui.checkpoints.plain import error, unreadable, warning
from rescue_tui.checkpoints.source import CHUNK_BYTES, Source, UnreadableBytes
from rescue_tui.core.finding import Severity

FORMAT = "hdf5"
MAGIC = b"\x89HDF\r\n\x1a\n"
# Version 0: sizes of an offset and of a length at 13 and 14, then base, free space, end of file and driver addresses.
_OLD = struct.Struct("<8s5x2B9x4Q")
# Version 1 has four bytes more before the addresses.
_OLD_1 = struct.Struct("<8s5x2B13x4Q")
# Version 2 and 3: sizes, consistency flags, base, extension, end of file, root group, checksum.
_NEW = struct.Struct("<8sx3B4QI")
_VERSION_OFFSET = 8
_OPEN_FOR_WRITE, _SWMR = 1, 4
_OFFSET_BYTES = 8
# Names of groups and attributes that only weights have: Keras 2 and 3, tf.keras, timm's and transformers' h5 files.
_MODEL_WORDS = (
    b"model_weights", b"layer_names", b"weight_names", b"optimizer_weights", b"_layer_checkpoint_dependencies",
    b"keras_version", b"trainable_variables", b"state_dict",
)
_LOOKED_AT_BYTES = 8 << 20


def matches(head: Head) -> bool:
    """The signature at the beginning; a user block before it is not looked for."""
    return head.first.startswith(MAGIC)


def read(source: Source, options: Options) -> Reading | None:
    """Intact, incomplete or corrupt; None for an HDF5 file that holds no model."""
    del options
    try:
        first = source.read_at(0, min(source.size_bytes, _NEW.size + _OLD_1.size))
        if not _is_model(source):
            return None
    except UnreadableBytes as broken:
        return Reading(FORMAT, (unreadable(source, broken),))
    findings = _superblock(source, first)
    hole = next((hole for hole in source.holes(0, source.size_bytes) if hole.end >= source.size_bytes), None)
    if hole is not None:
        findings.append(error(source, "data-in-hole", Verdict.INCOMPLETE,
                              "the file ends in bytes that were never written", hole.offset, hole.length))
    findings.append(CheckpointFinding(
        Severity.INFO, "tensors-not-listed",
        "HDF5 has no checksum over these data, and its tensors are not listed one by one.", None, source.name))
    return Reading(FORMAT, tuple(findings), payload_bytes=source.size_bytes)


def _is_model(source: Source) -> bool:
    kept = b""
    for at in range(0, min(source.size_bytes, _LOOKED_AT_BYTES), CHUNK_BYTES):
        piece = kept + source.read_at(at, min(CHUNK_BYTES, source.size_bytes - at))
        if any(word in piece for word in _MODEL_WORDS):
            return True
        kept = piece[-64:]
    return False


def _superblock(source: Source, first: bytes) -> list[CheckpointFinding]:
    """Findings on the superblock. The end-of-file address is set when the file is flushed or closed."""
    try:
        version = first[_VERSION_OFFSET]
        if version in {0, 1}:
            layout = _OLD_1 if version else _OLD
            _, offset_bytes, _, base, _, end, _ = layout.unpack_from(first)
            flags = 0
        elif version in {2, 3}:
            _, offset_bytes, _, flags, base, _, end, _, _ = _NEW.unpack_from(first)
        else:
            return [error(source, "superblock", Verdict.CORRUPT, f"superblock version {version} is unknown",
                          _VERSION_OFFSET, 1)]
    except (IndexError, struct.error):
        return [error(source, "cut", Verdict.INCOMPLETE, "the file ends within its superblock", 0, len(first))]
    if offset_bytes != _OFFSET_BYTES:
        return [error(source, "superblock", Verdict.CORRUPT, f"offsets of {offset_bytes} bytes are not known", 0, 16)]
    findings = []
    size = source.size_bytes
    if base + end > size:
        findings.append(error(source, "cut", Verdict.INCOMPLETE,
                              f"the file has {size} bytes, its superblock counts {base + end}",
                              size, base + end - size))
    elif base + end < size:
        findings.append(warning(source, "trailing-bytes",
                                f"{size - base - end} bytes lie behind the end that the superblock tells",
                                base + end, size - base - end))
    if flags & (_OPEN_FOR_WRITE | _SWMR):
        findings.append(error(source, "not-closed", Verdict.UNCOMMITTED,
                              "the file was open for writing and never closed", 11, 1))
    return findings
