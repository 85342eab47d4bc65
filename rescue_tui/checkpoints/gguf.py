"""GGUF: key-value pairs, tensor infos, then tensors at running, aligned offsets. No checksum.

Layout: ggml-org/ggml docs/gguf.md and src/gguf.cpp; sizes of quantised blocks: ggml/src/ggml-common.h.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rescue_tui.checkpoints.cursor import Cursor
from rescue_tui.checkpoints.limits import TENSORS
from rescue_tui.checkpoints.model import CheckpointFinding, Head, Options, Reading, Scalar, Verdict
from rescue_tui.checkpoints.plain import PlainTensor, error, judge_plain, unreadable, warning
from rescue_tui.checkpoints.source import EndOfBytes, Source, UnreadableBytes
from rescue_tui.core.text import decode

FORMAT = "gguf"
MAGIC = b"GGUF"
ENDING = ".gguf"
# Keys that split models hold; a sharded save is judged with them.
SPLIT_NUMBER, SPLIT_COUNT, SPLIT_TENSORS = "split.no", "split.count", "split.tensors.count"
_ALIGNMENT_KEY, _ALIGNMENT = "general.alignment", 32
_NAME_BYTES, _KEY_BYTES, _DIMENSIONS = 63, 65535, 4
_KEPT_VALUES, _KEPT_TEXT = 16384, 4096
_STRING_BYTES = 1 << 30
_DATA_BYTES = 1 << 62
_NESTED_ARRAYS = 4
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: Mapping[int, str] = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "B",
    10: "Q",
    11: "q",
    12: "d",
}


class _Kind(NamedTuple):
    word: str
    block: int  # elements
    block_bytes: int


KINDS: Mapping[int, _Kind] = {
    0: _Kind("float32", 1, 4),
    1: _Kind("float16", 1, 2),
    24: _Kind("int8", 1, 1),
    25: _Kind("int16", 1, 2),
    26: _Kind("int32", 1, 4),
    27: _Kind("int64", 1, 8),
    28: _Kind("float64", 1, 8),
    30: _Kind("bfloat16", 1, 2),
    2: _Kind("q4_0", 32, 18),
    3: _Kind("q4_1", 32, 20),
    6: _Kind("q5_0", 32, 22),
    7: _Kind("q5_1", 32, 24),
    8: _Kind("q8_0", 32, 34),
    9: _Kind("q8_1", 32, 36),
    10: _Kind("q2_k", 256, 84),
    11: _Kind("q3_k", 256, 110),
    12: _Kind("q4_k", 256, 144),
    13: _Kind("q5_k", 256, 176),
    14: _Kind("q6_k", 256, 210),
    15: _Kind("q8_k", 256, 292),
    16: _Kind("iq2_xxs", 256, 66),
    17: _Kind("iq2_xs", 256, 74),
    18: _Kind("iq3_xxs", 256, 98),
    19: _Kind("iq1_s", 256, 50),
    20: _Kind("iq4_nl", 32, 18),
    21: _Kind("iq3_s", 256, 110),
    22: _Kind("iq2_s", 256, 82),
    23: _Kind("iq4_xs", 256, 136),
    29: _Kind("iq1_m", 256, 56),
    34: _Kind("tq1_0", 256, 54),
    35: _Kind("tq2_0", 256, 66),
    39: _Kind("mxfp4", 32, 17),
    40: _Kind("nvfp4", 64, 36),
    41: _Kind("q1_0", 128, 18),
}


class _Layout(NamedTuple):
    """How numbers are written: by the byte order, and in version 1 with 32 bits."""

    length: struct.Struct
    u32: struct.Struct
    u64: struct.Struct
    scalars: Mapping[int, struct.Struct]
    big_endian: bool


class _Info(NamedTuple):
    name: str
    kind: int
    shape: tuple[int, ...]
    offset: int  # from the beginning of the data


class _BrokenError(Exception):
    """An invariant of the header does not hold."""

    def __init__(self, code: str, summary: str, offset: int, tensor: str = "") -> None:
        super().__init__(summary)
        self.code, self.summary, self.offset, self.tensor = code, summary, offset, tensor


@dataclass(slots=True)
class _Header:
    """What was read of it, also where it breaks off."""

    values: dict[str, Scalar] = field(default_factory=dict)
    infos: list[_Info] = field(default_factory=list)
    findings: list[CheckpointFinding] = field(default_factory=list)
    promised: int = 0
    data: int | None = None
    big_endian: bool = False
    alignment: int = _ALIGNMENT


def matches(head: Head) -> bool:
    """The magic; by name also where the start is zeros."""
    if head.first.startswith(MAGIC):
        return True
    start = head.first[: len(MAGIC)]
    return (
        head.name.lower().endswith(ENDING)
        and head.size_bytes > 0
        and (not start.strip(b"\0") or (len(head.first) < len(MAGIC) and MAGIC.startswith(start)))
    )


def read(source: Source, options: Options) -> Reading:
    """Judge one file: header, running offsets, size, holes, zeros. At best intact."""
    del options
    header = _Header()
    try:
        _read_header(source, header)
    except EndOfBytes:
        header.findings.append(
            error(
                source,
                "cut",
                Verdict.INCOMPLETE,
                f"the file ends inside the header: {len(header.infos)} of "
                f"{header.promised} tensors are known, none of their bytes is there",
                source.size_bytes,
                None,
                tuple(info.name for info in header.infos),
            )
        )
    except UnreadableBytes as trouble:
        header.findings.append(unreadable(source, trouble))
    except _BrokenError as trouble:
        names = (trouble.tensor,) if trouble.tensor else ()
        header.findings.append(
            error(source, trouble.code, Verdict.CORRUPT, trouble.summary, trouble.offset, None, names)
        )
    if header.data is None:
        return Reading(FORMAT, tuple(header.findings), values=header.values)
    tensors, damaged = _placed(source, header, header.data)
    report = judge_plain(source, tensors, damaged)
    findings = [*header.findings, *report.findings]
    end = _aligned(max((tensor.end for tensor in tensors), default=header.data), header.alignment)
    if source.size_bytes > end:
        findings.append(
            warning(
                source,
                "trailing-bytes",
                f"{source.size_bytes - end} bytes follow the last tensor",
                end,
                source.size_bytes - end,
            )
        )
    return Reading(FORMAT, tuple(findings), report.tensors, values=header.values, payload_bytes=report.payload_bytes)


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _layout(cursor: Cursor) -> _Layout:
    raw = cursor.take(4)
    little, big = int.from_bytes(raw, "little"), int.from_bytes(raw, "big")
    version, order = (little, "<") if little in {1, 2, 3} else (big, ">")
    if version not in {1, 2, 3}:
        raise _BrokenError("version", f"version {little} does not exist", len(MAGIC))
    u32, u64 = struct.Struct(order + "I"), struct.Struct(order + "Q")
    scalars = {kind: struct.Struct(order + word) for kind, word in _SCALARS.items()}
    return _Layout(u32 if version == 1 else u64, u32, u64, scalars, order == ">")


def _read_header(source: Source, header: _Header) -> None:
    cursor = Cursor(source)
    magic = cursor.take(len(MAGIC))
    if magic != MAGIC:
        zeros = not magic.strip(b"\0")
        raise _BrokenError(
            "header-lost" if zeros else "magic",
            "the start of the file was overwritten with zeros, or never written: the header is lost"
            if zeros
            else "it does not begin with the magic",
            0,
        )
    layout = _layout(cursor)
    header.big_endian = layout.big_endian
    tensors, pairs = cursor.number(layout.length), cursor.number(layout.length)
    header.promised = tensors
    if max(tensors, pairs) > TENSORS:
        raise _BrokenError("count", f"{tensors} tensors and {pairs} keys are more than any model has", 8)
    _read_pairs(source, cursor, layout, pairs, header)
    names = set()
    for _ in range(tensors):
        at = cursor.offset
        info = _read_info(cursor, layout)
        header.infos.append(info)
        if info.name in names:
            raise _BrokenError("duplicate-name", f"two tensors are called {info.name}", at, info.name)
        names.add(info.name)
    header.data = _aligned(cursor.offset, header.alignment)


def _read_pairs(source: Source, cursor: Cursor, layout: _Layout, pairs: int, header: _Header) -> None:
    keys = set()
    for _ in range(pairs):
        at = cursor.offset
        raw = _text(cursor, layout, _KEY_BYTES, "a key")
        try:
            key = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise _BrokenError("key", "a key is no UTF-8", at) from None
        if key in keys:
            header.findings.append(
                error(source, "duplicate-key", Verdict.CORRUPT, f"the key {key[:64]} is there twice", at)
            )
        keys.add(key)
        value = _read_value(cursor, layout, cursor.number(layout.u32))
        if value is not None and len(header.values) < _KEPT_VALUES:
            header.values[key] = value
    alignment = header.values.get(_ALIGNMENT_KEY, _ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1) or alignment > 1 << 30:
        raise _BrokenError("alignment", f"an alignment of {str(alignment)[:40]} is no power of two", 0)
    header.alignment = alignment


def _text(cursor: Cursor, layout: _Layout, most: int, what: str) -> bytes:
    at = cursor.offset
    length = cursor.number(layout.length)
    if length > most:
        raise _BrokenError("length", f"{what} claims to be {length} bytes long", at)
    return cursor.take(length)


def _read_value(cursor: Cursor, layout: _Layout, kind: int) -> Scalar | None:
    """A scalar or a short text; None for what is passed over."""
    at = cursor.offset
    scalar = layout.scalars.get(kind)
    if scalar is not None:
        (value,) = cursor.unpack(scalar)
        if kind == _BOOL:
            if value not in {0, 1}:
                raise _BrokenError("value", "a truth value is neither 0 nor 1", at)
            return bool(value)
        return value if isinstance(value, (int, float)) else None
    if kind == _STRING:
        length = cursor.number(layout.length)
        if length > _STRING_BYTES:
            raise _BrokenError("length", f"a text claims to be {length} bytes long", at)
        if length <= _KEPT_TEXT:
            return decode(cursor.take(length))
        cursor.skip(length)
        return None
    if kind == _ARRAY:
        _pass_array(cursor, layout, 0)
        return None
    raise _BrokenError("value", f"the value type {kind} does not exist", at)


def _pass_array(cursor: Cursor, layout: _Layout, depth: int) -> None:
    at = cursor.offset
    kind, count = cursor.number(layout.u32), cursor.number(layout.length)
    scalar = layout.scalars.get(kind)
    if scalar is not None:
        if count > _STRING_BYTES:
            raise _BrokenError("length", f"an array claims {count} elements", at)
        cursor.skip(count * scalar.size)
        return
    if kind not in {_STRING, _ARRAY} or depth >= _NESTED_ARRAYS:
        raise _BrokenError("value", f"an array of type {kind} at depth {depth} does not exist", at)
    if count > _STRING_BYTES:
        raise _BrokenError("length", f"an array claims {count} elements", at)
    for _ in range(count):
        if kind == _ARRAY:
            _pass_array(cursor, layout, depth + 1)
            continue
        length = cursor.number(layout.length)
        if length > _STRING_BYTES:
            raise _BrokenError("length", f"a text claims to be {length} bytes long", cursor.offset)
        cursor.skip(length)


def _read_info(cursor: Cursor, layout: _Layout) -> _Info:
    at = cursor.offset
    name = decode(_text(cursor, layout, _KEY_BYTES, "a tensor's name"))
    if len(name) > _NAME_BYTES:
        raise _BrokenError("tensor-name", f"a tensor's name has {len(name)} characters, {_NAME_BYTES} are allowed", at)
    dimensions = cursor.number(layout.u32)
    if dimensions > _DIMENSIONS:
        raise _BrokenError("shape", f"{name} has {dimensions} dimensions", at, name)
    shape = tuple(cursor.number(layout.length) for _ in range(dimensions))
    kind = cursor.number(layout.u32)
    # The first dimension is the one whose elements lie side by side: numpy and torch name it last.
    info = _Info(name, kind, shape[::-1], cursor.number(layout.u64))
    if math.prod(shape) > _DATA_BYTES or info.offset > _DATA_BYTES:
        raise _BrokenError("shape", f"{name} is larger than any file", at, name)
    return info


def _placed(source: Source, header: _Header, data: int) -> tuple[list[PlainTensor], set[str]]:
    """Where each tensor is; names whose place or size can't be right."""
    tensors: list[PlainTensor] = []
    damaged: set[str] = set()

    def wrong(code: str, summary: str, name: str, offset: int) -> None:
        damaged.add(name)
        if len(header.findings) < 1000:
            header.findings.append(error(source, code, Verdict.CORRUPT, summary, offset, None, (name,)))

    expected: int | None = 0
    for index, info in enumerate(header.infos):
        kind = KINDS.get(info.kind)
        elements = math.prod(info.shape)
        if kind is None:
            # Newer than this table: it reaches to the next one.
            behind = header.infos[index + 1].offset if index + 1 < len(header.infos) else source.size_bytes - data
            length, word = max(0, behind - info.offset), f"ggml-type-{info.kind}"
            if info.kind > 0xFFFF:
                wrong(
                    "dtype", f"{info.name} has the type {info.kind}, which can't exist", info.name, data + info.offset
                )
            else:
                header.findings.append(
                    warning(
                        source,
                        "unknown-dtype",
                        f"the type {info.kind} of {info.name} is unknown: its size was not checked",
                        data + info.offset,
                        None,
                        (info.name,),
                    )
                )
        else:
            length, word = elements // kind.block * kind.block_bytes, kind.word
            if (info.shape[-1] if info.shape else 1) % kind.block:
                wrong(
                    "shape",
                    f"rows of {info.name} are no multiple of a block of {kind.block} elements",
                    info.name,
                    data + info.offset,
                )
        if info.offset % header.alignment or (expected is not None and info.offset != expected):
            wrong(
                "offset",
                f"{info.name} should begin at {expected}, the header says {info.offset} (bytes behind {data})",
                info.name,
                data + info.offset,
            )
        expected = None if kind is None else _aligned(info.offset + length, header.alignment)
        tensors.append(PlainTensor(info.name, word, info.shape, data + info.offset, length, None, header.big_endian))
    return tensors, damaged
