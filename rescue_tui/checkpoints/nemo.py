"""NeMo 1 ``.nemo``: a tar of ``model_config.yaml`` and weights (``model_weights.ckpt``, or one in each ``mp_rank_*``).

Tar: POSIX.1-1988 ustar headers with checksums, in records of 512 bytes, ended by two records of zeros.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from rescue_tui.checkpoints import torch_legacy, torch_zip
from rescue_tui.checkpoints.model import CheckpointFinding, Head, Options, Reading, TensorEntry, Verdict
from rescue_tui.checkpoints.source import CHUNK_BYTES, EndOfBytes, Source, Window
from rescue_tui.core.finding import Severity
from rescue_tui.core.text import decode

RECORD_BYTES = 512
MAX_MEMBERS = 100_000
CONFIG = "model_config.yaml"
GZIP_MAGIC = b"\x1f\x8b\x08"
_GZIP_BITS = 31  # zlib.h, inflateInit2: 15 bits of window, a gzip header is expected and its CRC checked
_MAX_RATIO = 200
_HEADER = struct.Struct("<100s8s8s8s12s12s8s1s100s6s2s32s32s8s8s155s12x")
_FILES = frozenset({b"0", b"\x00", b"7"})
_LONG_NAME, _PAX = b"L", frozenset({b"x", b"g"})
_WEIGHTS_ENDS = (".ckpt", ".pt", ".bin", ".pth")
_MAX_NAME_BYTES = 1 << 16


class _Fields(NamedTuple):
    name: bytes
    mode: bytes
    uid: bytes
    gid: bytes
    size: bytes
    mtime: bytes
    checksum: bytes
    kind: bytes
    link: bytes
    magic: bytes
    version: bytes
    owner: bytes
    group: bytes
    major: bytes
    minor: bytes
    prefix: bytes


class Member(NamedTuple):
    """A file in a tar: its name, and where its bytes are."""

    name: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class TarFault(Exception):
    """Where and why a tar can't be followed any further."""

    verdict: Verdict
    offset: int
    words: str


def matches(head: Head) -> bool:
    """A tar that begins with NeMo's members, or that is called .nemo."""
    if head.name.endswith(".nemo") and (is_packed(head) or head.size_bytes < RECORD_BYTES):
        return True
    if not _good_checksum(head.first[:RECORD_BYTES]):
        return False
    if head.name.endswith(".nemo"):
        return True
    first = _HEADER.unpack(head.first[:RECORD_BYTES])[0]
    begins = first.split(b"\x00", 1)[0].removeprefix(b"./")
    return begins == CONFIG.encode() or (CONFIG.encode() in head.first and b"model_weights" in head.first)


def is_packed(head: Head) -> bool:
    """True for a tar that NeMo packed with gzip, as it did by default at first."""
    return head.first.startswith(GZIP_MAGIC)


def _packed(source: Source) -> Reading:
    """A packed archive as a whole: gzip has a CRC-32 over all of it, which does not tell that the save was whole."""
    engine = zlib.decompressobj(wbits=_GZIP_BITS)
    limit = max(1, source.size_bytes) * _MAX_RATIO
    total = 0
    finding: tuple[Verdict, str] | None = None
    try:
        for piece in source.chunks(0, source.size_bytes):
            rest = piece
            while rest and not engine.eof and total <= limit:
                total += len(engine.decompress(rest, CHUNK_BYTES))
                rest = engine.unconsumed_tail
        if total > limit:
            finding = (Verdict.CORRUPT, f"It unpacks to more than {_MAX_RATIO} times its size.")
        elif not engine.eof:
            finding = (Verdict.INCOMPLETE, "The packed data ends too early.")
        elif engine.unused_data.strip(b"\x00"):
            finding = (Verdict.CORRUPT, "Something else follows the packed data.")
    except zlib.error as error:
        finding = (Verdict.CORRUPT, f"The packed data is broken: {error}.")
    told = CheckpointFinding(Severity.INFO, "packed", "It is packed with gzip, whose CRC-32 matches; what is in it is "
                             "not looked at: unpack it for a verdict on each tensor.", file=source.name)
    if finding is not None:
        told = CheckpointFinding(Severity.ERROR, "packed-broken", finding[1], finding[0], source.name, 0,
                                 source.size_bytes)
    return Reading("nemo", (told,), members=(source.name,), payload_bytes=total)


def read(source: Source, options: Options) -> Reading:
    """The weights by their own checksums; the configuration by the tar's structure alone."""
    if source.size_bytes >= len(GZIP_MAGIC) and source.read_at(0, len(GZIP_MAGIC)) == GZIP_MAGIC:
        return _packed(source)
    findings: list[CheckpointFinding] = []
    members: list[Member] = []
    try:
        members.extend(_members(source))
    except TarFault as fault:
        findings.append(CheckpointFinding(Severity.ERROR, "tar-broken", fault.words, fault.verdict, source.name,
                                          fault.offset))
        members.extend(_before(source, fault.offset))
    tensors: list[TensorEntry] = []
    covered: list[bool] = []
    values: dict[str, bool | int | float | str] = {}
    payload = 0
    for member in members:
        if not member.name.endswith(_WEIGHTS_ENDS):
            continue
        window = Window(source, member.offset, min(member.length, max(0, source.size_bytes - member.offset)))
        reading = _inner(window, options)
        rank = member.name.rpartition("/")[0].removeprefix("./")
        prefix = f"{rank}." if rank and rank != "." else ""
        # The readers see through their window: offsets are the file's already.
        findings.extend(replace(finding, tensors=tuple(prefix + name for name in finding.tensors))
                        for finding in reading.findings)
        tensors.extend(replace(tensor, name=prefix + tensor.name) for tensor in reading.tensors)
        values.update(reading.values)
        covered.append(reading.covered)
        payload += reading.payload_bytes
    names = {member.name.removeprefix("./") for member in members}
    if not covered:
        findings.append(CheckpointFinding(Severity.ERROR, "no-data", "There are no weights in it.", Verdict.INCOMPLETE,
                                          source.name))
    if CONFIG not in names and not any(finding.code == "tar-broken" for finding in findings):
        findings.append(CheckpointFinding(Severity.ERROR, "member-missing", f"{CONFIG} is missing.",
                                          Verdict.INCOMPLETE, source.name))
    return Reading("nemo", tuple(findings), tuple(tensors), bool(covered) and all(covered), values,
                   members=(source.name,), payload_bytes=payload)


def _inner(window: Window, options: Options) -> Reading:
    try:
        head = Head("model_weights.ckpt", window.size_bytes, window.read_at(0, min(4096, window.size_bytes)),
                    window.read_at(max(0, window.size_bytes - 128), min(128, window.size_bytes)))
        legacy = torch_legacy.matches(replace(head, name=""))
        return torch_legacy.read(window, options) if legacy else torch_zip.read(window, options)
    except EndOfBytes as error:
        return Reading("nemo", (CheckpointFinding(Severity.ERROR, "cut", f"It ends too early: {error}.",
                                                  Verdict.INCOMPLETE, window.name),))


def _before(source: Source, offset: int) -> Iterator[Member]:
    """The members before a fault, and one that is cut by it."""
    try:
        for member in _members(source):
            if member.offset <= offset:
                yield member
    except TarFault:
        return


def _members(source: Source) -> Iterator[Member]:
    at = 0
    long_name = b""
    for _ in range(MAX_MEMBERS):
        if at + RECORD_BYTES > source.size_bytes:
            raise TarFault(Verdict.INCOMPLETE, at, "The tar ends without the two records of zeros that close it.")
        record = source.read_at(at, RECORD_BYTES)
        if not record.strip(b"\x00"):
            if at + 2 * RECORD_BYTES > source.size_bytes or source.read_at(
                    at + RECORD_BYTES, RECORD_BYTES).strip(b"\x00"):
                raise TarFault(Verdict.CORRUPT, at, "A record of zeros lies where a member of the tar should begin.")
            return
        if not _good_checksum(record):
            raise TarFault(Verdict.CORRUPT, at, "The header of a member of the tar does not match its checksum.")
        fields = _Fields(*_HEADER.unpack(record))
        length = _number(fields.size)
        if length is None:
            raise TarFault(Verdict.CORRUPT, at, "The header of a member of the tar has no size.")
        payload = at + RECORD_BYTES
        if fields.kind == _LONG_NAME and length <= _MAX_NAME_BYTES and payload + length <= source.size_bytes:
            long_name = source.read_at(payload, length).split(b"\x00", 1)[0]
        elif fields.kind in _FILES:
            name = long_name or _joined(fields)
            long_name = b""
            yield Member(decode(name), payload, length)
        if payload + length > source.size_bytes:
            raise TarFault(Verdict.INCOMPLETE, payload, "The tar ends within a member: "
                           f"{payload + length - source.size_bytes} bytes are missing.")
        at = payload + -(-length // RECORD_BYTES) * RECORD_BYTES
    raise TarFault(Verdict.CORRUPT, at, f"The tar has more than {MAX_MEMBERS} members.")


def _joined(fields: _Fields) -> bytes:
    name = fields.name.split(b"\x00", 1)[0]
    prefix = fields.prefix.split(b"\x00", 1)[0] if fields.magic.startswith(b"ustar\x00") else b""
    return prefix + b"/" + name if prefix else name


def _number(field: bytes) -> int | None:
    """Octal digits, or (GNU) a big-endian number behind the byte 0x80."""
    if field[:1] == b"\x80":
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \x00")
    if not digits:
        return 0
    return int(digits, 8) if all(48 <= digit < 56 for digit in digits) else None


def _good_checksum(record: bytes) -> bool:
    if len(record) < RECORD_BYTES:
        return False
    stored = _number(_Fields(*_HEADER.unpack(record)).checksum)
    return bool(stored) and sum(record) - sum(record[148:156]) + 8 * 32 == stored
