"""Flax state in one msgpack object: maps with text keys, arrays as extension types. No checksum.

Layout: google/flax flax/serialization.py (extension types 1 array, 2 complex, 3 numpy scalar; arrays above 2^30 bytes
in chunks) and the msgpack specification. The object is walked with a cursor: payloads are passed over, never held.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rescue_tui.checkpoints.cursor import Cursor
from rescue_tui.checkpoints.flax_chunks import join_chunks
from rescue_tui.checkpoints.limits import NAME_BYTES, NESTING, TENSORS
from rescue_tui.checkpoints.model import (
    CheckpointFinding,
    Head,
    Options,
    Reading,
    Scalar,
    TensorEntry,
    Verdict,
)
from rescue_tui.checkpoints.msgpack_wire import Kind, Token, WireError, next_token
from rescue_tui.checkpoints.plain import PlainTensor, error, judge_plain, unreadable, warning
from rescue_tui.checkpoints.source import CHUNK_BYTES, BytesSource, EndOfBytes, Source, UnreadableBytes
from rescue_tui.core.text import decode

FORMAT = "flax-msgpack"
_ARRAY_CODE, _COMPLEX_CODE, _SCALAR_CODE = 1, 2, 3
_CHUNKED = "__msgpack_chunked_array__"
_NAMED = re.compile(r"(?:\.msgpack|^checkpoint_\d+|\.flax)$", re.IGNORECASE)
_KEPT_VALUES, _KEPT_TEXT, _DIMENSIONS = 16384, 4096, 64
_ITEM_BYTES: Mapping[str, int] = {
    "bool": 1,
    "int4": 1,
    "uint4": 1,
    "int2": 1,
    "uint2": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "float8_e3m4": 1,
    "float8_e4m3": 1,
    "float8_e4m3b11fnuz": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn": 1,
}
_NUMBERS: Mapping[str, struct.Struct] = {
    "int8": struct.Struct("<b"),
    "uint8": struct.Struct("<B"),
    "int16": struct.Struct("<h"),
    "uint16": struct.Struct("<H"),
    "int32": struct.Struct("<i"),
    "uint32": struct.Struct("<I"),
    "int64": struct.Struct("<q"),
    "uint64": struct.Struct("<Q"),
    "float32": struct.Struct("<f"),
    "float64": struct.Struct("<d"),
}
# numpy's name of a text type holds its size in bits.
_TEXT_TYPE = re.compile(r"(?:str|bytes|void)(\d{1,9})$")


@dataclass(slots=True)
class _Walk:
    """What was met so far."""

    source: Source
    cursor: Cursor
    tensors: list[PlainTensor] = field(default_factory=list)
    values: dict[str, Scalar] = field(default_factory=dict)
    findings: list[CheckpointFinding] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)
    chunked: dict[str, tuple[int, int]] = field(default_factory=dict)  # name: first and last+1 of its chunks
    path: str = ""


def matches(head: Head) -> bool:
    """A map with text keys and an array in it; by name any map with text keys."""
    walk = _Walk(source := BytesSource(head.first), Cursor(source))
    try:
        first = next_token(walk.cursor)
        if first.kind is not Kind.MAP or not first.length:
            return False
        _walk_map(walk, first.length, "", 0)
    except WireError:
        return bool(walk.tensors)
    except EndOfBytes:
        pass
    return bool(walk.tensors) or (bool(_NAMED.search(head.name.rpartition("/")[2])) and bool(walk.path))


def read(source: Source, options: Options) -> Reading:
    """Judge one file: the object must end with the file, each array must have the bytes that its shape needs.

    At best intact. ``format`` is empty where a whole msgpack object holds no array: that is no checkpoint.
    """
    del options
    walk = _Walk(source, Cursor(source))
    cut = False
    try:
        first = next_token(walk.cursor)
        if first.kind is not Kind.MAP:
            raise WireError("it does not begin with a map", 0)
        _walk_map(walk, first.length, "", 0)
        _check_end(walk)
    except EndOfBytes:
        cut = True
    except UnreadableBytes as trouble:
        walk.findings.append(unreadable(source, trouble))
    except WireError as trouble:
        if not walk.tensors and not _NAMED.search(source.name):
            return Reading("")
        walk.findings.append(_broken(walk, trouble))
    if not walk.tensors and not walk.findings and not cut:
        return Reading("")
    report = judge_plain(source, walk.tensors, walk.damaged)
    findings = [*walk.findings, *report.findings]
    if cut and not any(finding.code == "cut" for finding in report.findings):
        findings.append(
            error(
                source,
                "cut",
                Verdict.INCOMPLETE,
                f"the file ends inside {walk.path or 'the first key'}, where more must follow",
                source.size_bytes,
                None,
                (walk.path,) if walk.path else (),
            )
        )
    step = walk.values.get("step")
    return Reading(
        FORMAT,
        tuple(_renamed(walk, findings)),
        _joined(walk, report.tensors),
        values=walk.values,
        step=step if type(step) is int and step >= 0 else None,
        payload_bytes=report.payload_bytes,
    )


def _broken(walk: _Walk, trouble: WireError) -> CheckpointFinding:
    names = (walk.path,) if walk.path else ()
    if trouble.offset < walk.source.size_bytes and _only_zeros(walk.source, trouble.offset):
        return error(
            walk.source,
            "zero-tail",
            Verdict.INCOMPLETE,
            f"from {walk.path or 'its start'} on there is nothing but zeros",
            trouble.offset,
            walk.source.size_bytes - trouble.offset,
            names,
        )
    return error(
        walk.source,
        "structure",
        Verdict.CORRUPT,
        f"the object is broken near {walk.path or 'its start'}: {trouble}",
        trouble.offset,
        None,
        names,
    )


def _only_zeros(source: Source, start: int) -> bool:
    position = start
    for hole in source.holes(start, source.size_bytes - start):
        if not _zeros_between(source, position, hole.offset):
            return False
        position = max(position, hole.end)
    return _zeros_between(source, position, source.size_bytes)


def _zeros_between(source: Source, start: int, end: int) -> bool:
    if end <= start:
        return True
    try:
        return all(chunk.count(0) == len(chunk) for chunk in source.chunks(start, end - start))
    except (EndOfBytes, UnreadableBytes):
        return False


def _check_end(walk: _Walk) -> None:
    rest = walk.cursor.left
    if not rest:
        return
    at = walk.cursor.offset
    if rest <= CHUNK_BYTES and _only_zeros(walk.source, at):
        walk.findings.append(warning(walk.source, "trailing-bytes", f"{rest} zero bytes follow the object", at, rest))
    else:
        walk.findings.append(
            error(
                walk.source,
                "trailing-bytes",
                Verdict.CORRUPT,
                f"{rest} bytes follow the object: one of its counts is wrong, or something was appended",
                at,
                rest,
            )
        )


def _walk_map(walk: _Walk, count: int, path: str, depth: int) -> None:
    if depth > NESTING:
        raise WireError(f"it nests deeper than {NESTING}", walk.cursor.offset)
    first = len(walk.tensors)
    keys = set()
    for _ in range(count):
        at = walk.cursor.offset
        token = next_token(walk.cursor)
        if token.kind is not Kind.TEXT or token.length > NAME_BYTES:
            raise WireError("a key is no text", at)
        raw = walk.cursor.take(token.length)
        try:
            key = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise WireError("a key is no UTF-8", at) from None
        if key in keys:
            raise WireError(f"the key {key[:64]} is there twice", at)
        keys.add(key)
        walk.path = f"{path}.{key}" if path else key
        if len(walk.path) > 4 * NAME_BYTES:
            raise WireError("a name is too long", at)
        _walk_value(walk, walk.path, depth)
    if _CHUNKED in keys:
        walk.chunked[path] = (first, len(walk.tensors))
        _check_chunks(walk, path, first)


def _walk_value(walk: _Walk, path: str, depth: int) -> None:
    at = walk.cursor.offset
    token = next_token(walk.cursor)
    if token.kind is Kind.MAP:
        _walk_map(walk, token.length, path, depth + 1)
    elif token.kind is Kind.LIST:
        if depth > NESTING:
            raise WireError(f"it nests deeper than {NESTING}", at)
        for index in range(token.length):
            walk.path = f"{path}.{index}"
            _walk_value(walk, walk.path, depth + 1)
    elif token.kind is Kind.EXTENSION:
        _walk_extension(walk, token, path)
    elif token.kind is Kind.TEXT and token.length <= _KEPT_TEXT:
        _keep(walk, path, decode(walk.cursor.take(token.length)))
    elif token.kind in {Kind.TEXT, Kind.BYTES}:
        walk.cursor.skip(token.length)
    elif token.value is not None:
        _keep(walk, path, token.value)


def _keep(walk: _Walk, path: str, value: Scalar) -> None:
    if len(walk.values) < _KEPT_VALUES:
        walk.values[path] = value


def _walk_extension(walk: _Walk, token: Token, path: str) -> None:
    """An extension: its content is msgpack again, (shape, dtype, bytes)."""
    begin = walk.cursor.offset
    if token.code not in {_ARRAY_CODE, _SCALAR_CODE}:
        walk.cursor.skip(token.length)
        return
    if len(walk.tensors) >= TENSORS:
        raise WireError(f"there are more than {TENSORS} arrays", begin)
    cursor = Cursor(walk.source, begin, begin + token.length)
    try:
        shape, dtype, size = _array(cursor)
    except EndOfBytes:
        if begin + token.length > walk.source.size_bytes:
            raise
        raise WireError("an array is larger than its extension", begin) from None
    offset = cursor.offset
    if offset + size != begin + token.length:
        raise WireError("an array does not fill its extension", begin)
    tensor = PlainTensor(path, dtype, shape, offset, size)
    item = _item_bytes(dtype)
    if item is None:
        walk.findings.append(
            warning(
                walk.source,
                "unknown-dtype",
                f"the dtype {dtype[:64]} of {path} is unknown: its size was not checked",
                offset,
                size,
                (path,),
            )
        )
    elif math.prod(shape) * item != size:
        walk.damaged.add(path)
        walk.findings.append(
            error(
                walk.source,
                "tensor-size",
                Verdict.CORRUPT,
                f"{path} has {size} bytes, its shape and dtype need {math.prod(shape) * item}",
                offset,
                size,
                (path,),
            )
        )
    layout = _NUMBERS.get(dtype)
    if not shape and layout is not None and size == layout.size:
        (number,) = layout.unpack(walk.source.read_at(offset, size))
        _keep(walk, path, number)
    if token.code == _ARRAY_CODE or layout is None:
        walk.tensors.append(tensor)
    walk.cursor.skip(token.length)


def _array(cursor: Cursor) -> tuple[tuple[int, ...], str, int]:
    """Shape, dtype and byte count; the cursor is left where the bytes begin."""
    at = cursor.offset
    outer, dimensions = next_token(cursor), next_token(cursor)
    if (
        outer.kind is not Kind.LIST
        or outer.length != 3
        or dimensions.kind is not Kind.LIST
        or dimensions.length > _DIMENSIONS
    ):
        raise WireError("an array is no (shape, dtype, bytes)", at)
    shape = []
    for _ in range(dimensions.length):
        value = next_token(cursor).value
        if type(value) is not int or value < 0:
            raise WireError("a shape holds something else than sizes", at)
        shape.append(value)
    word = next_token(cursor)
    if word.kind is not Kind.TEXT or word.length > 256:
        raise WireError("a dtype is no text", at)
    dtype = decode(cursor.take(word.length))
    content = next_token(cursor)
    if content.kind is not Kind.BYTES:
        raise WireError("an array holds no bytes", at)
    return tuple(shape), dtype, content.length


def _item_bytes(dtype: str) -> int | None:
    match = _TEXT_TYPE.match(dtype)
    return int(match[1]) // 8 if match else _ITEM_BYTES.get(dtype)


def _shape_of(walk: _Walk, path: str) -> tuple[int, ...] | None:
    shape: list[int] = []
    while True:
        size = walk.values.get(f"{path}.shape.{len(shape)}")
        if size is None:
            return tuple(shape)
        if type(size) is not int or size < 0 or len(shape) > _DIMENSIONS:
            return None
        shape.append(size)


def _check_chunks(walk: _Walk, path: str, first: int) -> None:
    shape = _shape_of(walk, path)
    chunks = walk.tensors[first:]
    elements = sum(math.prod(chunk.shape) for chunk in chunks)
    if shape is None or len({chunk.dtype for chunk in chunks}) > 1 or elements != math.prod(shape):
        walk.damaged.update(chunk.name for chunk in chunks)
        walk.findings.append(
            error(
                walk.source,
                "chunks",
                Verdict.CORRUPT,
                f"the chunks of {path} hold {elements} elements, which is not what its shape needs",
                None,
                None,
                (path,),
            )
        )


def _renamed(walk: _Walk, findings: Sequence[CheckpointFinding]) -> list[CheckpointFinding]:
    """Findings that name arrays instead of their chunks."""
    whole = {
        walk.tensors[index].name: path for path, (first, last) in walk.chunked.items() for index in range(first, last)
    }
    if not whole:
        return list(findings)
    return [
        replace(finding, tensors=tuple(dict.fromkeys(whole.get(name, name) for name in finding.tensors)))
        for finding in findings
    ]


def _joined(walk: _Walk, entries: Sequence[TensorEntry]) -> tuple[TensorEntry, ...]:
    """The tensors, chunks put together again."""
    joined: list[TensorEntry] = []
    position = 0
    for path, (first, last) in sorted(walk.chunked.items(), key=lambda item: item[1]):
        if first >= position:
            joined += [*entries[position:first], join_chunks(path, _shape_of(walk, path) or (), entries[first:last])]
            position = last
    return (*joined, *entries[position:])
