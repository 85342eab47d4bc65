"""safetensors: a length, a JSON header, a buffer that the tensors tile exactly. No checksum of any kind.

Layout and invariants: huggingface/safetensors, README "Format" and safetensors/src/tensor.rs.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from rescue_tui.checkpoints.limits import HEADER_BYTES, NAME_BYTES, NESTING, TENSORS
from rescue_tui.checkpoints.model import CheckpointFinding, Head, Options, Reading, Verdict
from rescue_tui.checkpoints.plain import PlainTensor, error, judge_plain, unreadable, warning
from rescue_tui.checkpoints.source import EndOfBytes, Source, UnreadableBytes

FORMAT = "safetensors"
METADATA_KEY = "__metadata__"
HEADER_LENGTH = struct.Struct("<Q")
_MAX_SIZE = 1 << 63
# Bits of an element and the word for it.
DTYPES: Mapping[str, tuple[int, str]] = {
    "BOOL": (8, "bool"),
    "U8": (8, "uint8"),
    "I8": (8, "int8"),
    "U16": (16, "uint16"),
    "I16": (16, "int16"),
    "U32": (32, "uint32"),
    "I32": (32, "int32"),
    "U64": (64, "uint64"),
    "I64": (64, "int64"),
    "F16": (16, "float16"),
    "BF16": (16, "bfloat16"),
    "F32": (32, "float32"),
    "F64": (64, "float64"),
    "C64": (64, "complex64"),
    "F8_E5M2": (8, "float8_e5m2"),
    "F8_E4M3": (8, "float8_e4m3fn"),
    "F8_E8M0": (8, "float8_e8m0fnu"),
    "F8_E4M3FNUZ": (8, "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (8, "float8_e5m2fnuz"),
    "F6_E2M3": (6, "float6_e2m3fn"),
    "F6_E3M2": (6, "float6_e3m2fn"),
    "F4": (4, "float4_e2m1fn"),
}
# What the writer since 0.8 calls the file until it renames it (the tempfile crate's names).
_TEMPORARY = re.compile(r"\.tmp[A-Za-z0-9]{6}$")
_NAMED = re.compile(r"\.safetensors(?:[-._~][\w.-]*|~)?$", re.IGNORECASE)
_STEP_KEYS = ("step", "global_step", "iteration", "train_step")
_SIGNS = (b'"dtype"', b'"data_offsets"', b'"shape"', METADATA_KEY.encode())


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed header: tensors with offsets in the file, the free metadata, the names whose place is not to be trusted.

    ``tensors`` is empty where the header could not be parsed; ``end`` is where the last tensor should end.
    """

    tensors: tuple[PlainTensor, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[CheckpointFinding, ...] = ()
    damaged: frozenset[str] = frozenset()
    end: int = 0
    parsed: bool = False


class _BrokenHeaderError(Exception):
    """The header is no JSON of the format's kind."""


def matches(head: Head) -> bool:
    """A plausible length and an opening brace; by name also where one of the two, or the start of the file, is lost."""
    name = head.name.rpartition("/")[2]
    named = bool(_NAMED.search(name))
    if len(head.first) < HEADER_LENGTH.size:
        return named and head.size_bytes > 0
    (length,) = HEADER_LENGTH.unpack_from(head.first)
    brace = head.first[HEADER_LENGTH.size : HEADER_LENGTH.size + 1] == b"{"
    if brace and 2 <= length <= HEADER_BYTES:
        text = head.first[HEADER_LENGTH.size : HEADER_LENGTH.size + length]
        return (
            named or any(sign in text for sign in _SIGNS) or (not text.strip(b"{} ") and head.size_bytes == 8 + length)
        )
    return named and (brace or length <= HEADER_BYTES) and not head.first.startswith(b"PK")


def read_header(source: Source) -> Header:
    """Parse and check the header alone: no payload byte is read. Raises `UnreadableBytes`."""
    size = source.size_bytes
    if size < HEADER_LENGTH.size:
        return _failed(source, "cut", Verdict.INCOMPLETE, "the file ends inside the length of the header", 0, size)
    (length,) = HEADER_LENGTH.unpack(source.read_at(0, HEADER_LENGTH.size))
    start = HEADER_LENGTH.size
    if length == 0:
        return _failed(
            source,
            "header-lost",
            Verdict.CORRUPT,
            "the length of the header is 0: the start of the file was overwritten with zeros and the header is lost",
            0,
            start,
        )
    if length > HEADER_BYTES:
        return _failed(
            source,
            "header-length",
            Verdict.CORRUPT,
            f"the header claims {length} bytes, more than the format allows",
            0,
            start,
        )
    if start + length > size:
        if size > start and source.read_at(start, 1) != b"{":
            return _failed(source, "header-syntax", Verdict.CORRUPT, "the header does not begin with a brace", start, 1)
        return _failed(
            source,
            "cut",
            Verdict.INCOMPLETE,
            f"the file ends inside the header: {start + length - size} of its bytes and all tensors are missing",
            size,
            start + length - size,
        )
    try:
        raw = source.read_at(start, length)
    except EndOfBytes:
        return _failed(source, "cut", Verdict.INCOMPLETE, "the file ends inside the header", start, length)
    try:
        pairs = _pairs(raw)
    except _BrokenHeaderError as trouble:
        return _failed(
            source, "header-syntax", Verdict.CORRUPT, f"the header can't be parsed: {trouble}", start, length
        )
    return _Checker(source, start + length).check(pairs)


def read(source: Source, options: Options) -> Reading:
    """Judge one file: header, tiling, size, holes, zeros. At best intact, since nothing in the format proves a byte."""
    del options
    findings = []
    if _TEMPORARY.search(source.name.rpartition("/")[2]):
        findings.append(
            error(
                source,
                "temporary-name",
                Verdict.UNCOMMITTED,
                "the writer's temporary name: the save was never renamed into place",
            )
        )
    try:
        header = read_header(source)
    except UnreadableBytes as trouble:
        return Reading(FORMAT, (*findings, unreadable(source, trouble)))
    findings += header.findings
    if not header.parsed:
        return Reading(FORMAT, tuple(findings))
    report = judge_plain(source, header.tensors, header.damaged)
    findings += report.findings
    if source.size_bytes > header.end:
        findings.append(
            warning(
                source,
                "trailing-bytes",
                f"{source.size_bytes - header.end} bytes follow the last tensor; "
                "the data is whole, loaders refuse the file until they are cut off",
                header.end,
                source.size_bytes - header.end,
            )
        )
    return Reading(
        FORMAT,
        tuple(findings),
        report.tensors,
        values=dict(header.metadata),
        step=_step(header.metadata),
        payload_bytes=report.payload_bytes,
        tree={METADATA_KEY: dict(header.metadata)},
    )


def _failed(source: Source, code: str, verdict: Verdict, summary: str, offset: int, length: int) -> Header:
    return Header(findings=(error(source, code, verdict, summary, offset, length),))


def _step(metadata: Mapping[str, str]) -> int | None:
    for key in _STEP_KEYS:
        text = metadata.get(key, "")
        if text.isascii() and text.isdigit() and len(text) <= 18:
            return int(text)
    return None


class _Object:
    """A JSON object with all its keys, repeated ones too."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        self.pairs = pairs


def _pairs(raw: bytes) -> list[tuple[str, object]]:
    if raw[:1] != b"{":
        raise _BrokenHeaderError("it does not begin with a brace")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as trouble:
        raise _BrokenHeaderError(f"byte {trouble.start} is no UTF-8") from None
    try:
        value = json.loads(text, object_pairs_hook=_Object, parse_constant=_no_constant)
    except RecursionError:
        raise _BrokenHeaderError(f"it nests deeper than {NESTING}") from None
    except ValueError as trouble:
        raise _BrokenHeaderError(str(trouble)[:200]) from None
    if not isinstance(value, _Object):
        raise _BrokenHeaderError("it is no object")
    if len(value.pairs) > TENSORS:
        raise _BrokenHeaderError(f"it has more than {TENSORS} entries")
    return value.pairs


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


class _Checker:
    """The header's invariants, one finding each."""

    def __init__(self, source: Source, buffer: int) -> None:
        self.source = source
        self.buffer = buffer
        self.findings: list[CheckpointFinding] = []
        self.damaged: set[str] = set()
        self.tensors: dict[str, PlainTensor] = {}
        self.metadata: dict[str, str] = {}

    def check(self, pairs: list[tuple[str, object]]) -> Header:
        seen = set()
        repeated = []
        for key, value in pairs:
            if key in seen:
                repeated.append(key)
                continue
            seen.add(key)
            if key == METADATA_KEY:
                self._take_metadata(value)
            else:
                self._take_tensor(key, value)
        if repeated:
            self._wrong("duplicate-key", "names occur twice in the header", tuple(dict.fromkeys(repeated)))
        self._check_tiling()
        end = max((tensor.end for tensor in self.tensors.values()), default=self.buffer)
        return Header(
            tuple(self.tensors.values()), self.metadata, tuple(self.findings), frozenset(self.damaged), end, True
        )

    def _wrong(
        self, code: str, summary: str, names: tuple[str, ...], offset: int | None = None, length: int | None = None
    ) -> None:
        self.damaged.update(names)
        if len(self.findings) < 1000:
            self.findings.append(error(self.source, code, Verdict.CORRUPT, summary, offset, length, names))

    def _take_metadata(self, value: object) -> None:
        if not isinstance(value, _Object) or not all(isinstance(text, str) for _, text in value.pairs):
            self._wrong("metadata-kind", f"{METADATA_KEY} is no mapping of strings to strings", ())
            return
        if len(dict(value.pairs)) != len(value.pairs):
            self._wrong("duplicate-key", f"names occur twice in {METADATA_KEY}", ())
        self.metadata = {key: str(text) for key, text in value.pairs}

    def _take_tensor(self, name: str, value: object) -> None:
        if len(name) > NAME_BYTES:
            self._wrong("tensor-name", f"a name is longer than {NAME_BYTES} characters", (name[:NAME_BYTES],))
            return
        fields = dict(value.pairs) if isinstance(value, _Object) else {}
        dtype, shape, offsets = (
            fields.get("dtype"),
            _naturals(fields.get("shape")),
            _naturals(fields.get("data_offsets")),
        )
        if (
            not isinstance(value, _Object)
            or len(fields) != len(value.pairs)
            or shape is None
            or offsets is None
            or len(offsets) != 2
            or not isinstance(dtype, str)
        ):
            self._wrong("tensor-entry", f"the entry of {name} is not dtype, shape and data_offsets", (name,))
            return
        begin, end = offsets
        if begin > end:
            self._wrong("offsets", f"{name} ends before it begins", (name,))
            return
        bits, word = DTYPES.get(dtype, (0, dtype[:64]))
        self.tensors[name] = PlainTensor(name, word, shape, self.buffer + begin, end - begin)
        if not bits:
            self._wrong(
                "dtype", f"{name} has the unknown dtype {dtype[:64]}", (name,), self.buffer + begin, end - begin
            )
        elif math.prod(shape) * bits != (end - begin) * 8:
            self._wrong(
                "tensor-size",
                f"{name} takes {end - begin} bytes, its shape and dtype need {-(-math.prod(shape) * bits // 8)}",
                (name,),
                self.buffer + begin,
                end - begin,
            )

    def _check_tiling(self) -> None:
        ordered = sorted(self.tensors.values(), key=lambda tensor: (tensor.offset, tensor.end))
        position, before = self.buffer, ""
        for tensor in ordered:
            if tensor.offset < position:
                self._wrong(
                    "overlap",
                    f"{tensor.name} begins {position - tensor.offset} bytes inside {before}",
                    (tensor.name, before),
                    tensor.offset,
                    position - tensor.offset,
                )
            elif tensor.offset > position:
                self._wrong(
                    "gap",
                    f"{tensor.offset - position} bytes before {tensor.name} belong to no tensor",
                    (),
                    position,
                    tensor.offset - position,
                )
            if tensor.end > position:
                position, before = tensor.end, tensor.name


def _naturals(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list) or len(value) > NESTING:
        return None
    numbers = tuple(item for item in value if type(item) is int and 0 <= item < _MAX_SIZE)
    return numbers if len(numbers) == len(value) else None
