"""NumPy arrays: a magic, a header that is a Python literal, the elements. No checksum.

Layout: NEP 1 and numpy/lib/format.py (versions 1.0, 2.0 and 3.0). Object arrays are pickles and are never loaded.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from rescue_tui.checkpoints.limits import HELD_BYTES
from rescue_tui.checkpoints.model import Head, Options, Reading, Verdict
from rescue_tui.checkpoints.plain import PlainTensor, error, judge_plain, unreadable, warning
from rescue_tui.checkpoints.source import Source, UnreadableBytes

FORMAT = "npy"
ENDING = ".npy"
MAGIC = b"\x93NUMPY"
# The largest header that is read: numpy itself stops at 10000 unless told otherwise.
PREFIX_BYTES = 1 << 16
_START = struct.Struct("<6s2B")
_SHORT, _LONG = struct.Struct("<H"), struct.Struct("<I")
_ALIGN_DEPTH = 32
_MAX_ITEM = 1 << 31
_TOKEN = re.compile(
    r"\s*(?:(?P<text>[bu]?'(?:[^'\\]|\\.)*'|[bu]?\"(?:[^\"\\]|\\.)*\")|(?P<number>\d{1,19})L?(?![\w.])"
    r"|(?P<word>True|False|None)\b|(?P<sign>[{}\[\](),:]))"
)
_SIMPLE = re.compile(r"(?P<order>[<>|=])?(?P<kind>[?biufcmMSaUVO])(?P<size>\d{0,9})(?:\[[^\]]{0,40}\])?$")
_WORDS = {
    ("b", 1): "bool",
    ("i", 1): "int8",
    ("i", 2): "int16",
    ("i", 4): "int32",
    ("i", 8): "int64",
    ("u", 1): "uint8",
    ("u", 2): "uint16",
    ("u", 4): "uint32",
    ("u", 8): "uint64",
    ("f", 2): "float16",
    ("f", 4): "float32",
    ("f", 8): "float64",
    ("f", 12): "float96",
    ("f", 16): "float128",
    ("c", 8): "complex64",
    ("c", 16): "complex128",
    ("c", 32): "complex256",
    ("m", 8): "timedelta64",
    ("M", 8): "datetime64",
}


class ArrayHeader(NamedTuple):
    """What a header says. ``start`` is where the elements begin; ``pickled`` arrays have no item size."""

    start: int
    dtype: str
    item_bytes: int
    shape: tuple[int, ...]
    fortran: bool
    big_endian: bool
    pickled: bool

    @property
    def data_bytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.item_bytes

    @property
    def strides(self) -> tuple[int, ...] | None:
        """In elements; None for C order."""
        if not self.fortran or len(self.shape) < 2:
            return None
        strides = [1]
        for dimension in self.shape[:-1]:
            strides.append(strides[-1] * dimension)
        return tuple(strides)


class ArrayHeaderError(Exception):
    """The header can't be read. ``cut`` when the bytes merely end too early."""

    def __init__(self, summary: str, cut: bool = False) -> None:
        super().__init__(summary)
        self.summary = summary
        self.cut = cut


def matches(head: Head) -> bool:
    """The magic; by name also where the start is zeros or the file ends inside the magic."""
    if head.first.startswith(MAGIC):
        return True
    named = head.name.lower().endswith(ENDING)
    return (
        named
        and head.size_bytes > 0
        and (MAGIC.startswith(head.first[: len(MAGIC)]) or not head.first[: _START.size].strip(b"\0"))
    )


def parse_header(prefix: bytes, whole: bool) -> ArrayHeader:
    """Parse the header in the first `PREFIX_BYTES` of an array (``whole``: there is nothing behind ``prefix``).

    Raises `ArrayHeaderError`.
    """
    if not prefix.startswith(MAGIC):
        if whole and MAGIC.startswith(prefix):
            raise ArrayHeaderError("it ends inside the magic", True)
        zeros = not prefix[: _START.size].strip(b"\0")
        raise ArrayHeaderError("its start was overwritten with zeros" if zeros else "it does not begin with the magic")
    if len(prefix) < _START.size:
        raise ArrayHeaderError("it ends inside the version", True)
    _, major, minor = _START.unpack_from(prefix)
    if major not in {1, 2, 3} or minor:
        raise ArrayHeaderError(f"version {major}.{minor} does not exist")
    field = _SHORT if major == 1 else _LONG
    begin = _START.size + field.size
    if len(prefix) < begin:
        raise ArrayHeaderError("it ends inside the length of the header", True)
    (length,) = field.unpack_from(prefix, _START.size)
    if begin + length > PREFIX_BYTES:
        raise ArrayHeaderError(f"a header of {length} bytes is more than numpy reads")
    if begin + length > len(prefix):
        raise ArrayHeaderError("it ends inside the header", whole)
    try:
        text = prefix[begin : begin + length].decode("utf-8" if major == 3 else "latin-1")
    except UnicodeDecodeError:
        raise ArrayHeaderError("the header is no UTF-8") from None
    return _header(_literal(text), begin + length)


def read(source: Source, options: Options) -> Reading:
    """Judge one array: the header against the size, holes, zeros. At best intact."""
    del options
    whole = source.size_bytes <= PREFIX_BYTES
    try:
        header = parse_header(source.read_at(0, min(PREFIX_BYTES, source.size_bytes)), whole)
    except ArrayHeaderError as trouble:
        verdict = Verdict.INCOMPLETE if trouble.cut else Verdict.CORRUPT
        return Reading(
            FORMAT,
            (
                error(
                    source,
                    "cut" if trouble.cut else "header",
                    verdict,
                    f"the header can't be read: {trouble.summary}",
                    0,
                ),
            ),
        )
    except UnreadableBytes as trouble:
        return Reading(FORMAT, (unreadable(source, trouble),))
    name = source.name.rpartition("/")[2]
    name = name[: -len(ENDING)] if name.lower().endswith(ENDING) else name
    if header.pickled:
        return _pickled(source, header)
    tensor = PlainTensor(
        name, header.dtype, header.shape, header.start, header.data_bytes, header.strides, header.big_endian
    )
    report = judge_plain(source, [tensor])
    findings = list(report.findings)
    if source.size_bytes > tensor.end:
        findings.append(
            warning(
                source,
                "trailing-bytes",
                f"{source.size_bytes - tensor.end} bytes follow the array; numpy passes over them",
                tensor.end,
                source.size_bytes - tensor.end,
            )
        )
    return Reading(FORMAT, tuple(findings), report.tensors, payload_bytes=report.payload_bytes)


def _pickled(source: Source, header: ArrayHeader) -> Reading:
    findings = [
        warning(
            source,
            "pickled-array",
            "its elements are a pickle, which is never loaded: only that it begins and ends as one was checked",
            header.start,
        )
    ]
    if source.size_bytes <= header.start or source.read_at(source.size_bytes - 1, 1) != b".":
        findings.append(
            error(
                source,
                "cut",
                Verdict.INCOMPLETE,
                "the pickle with the elements does not end in STOP",
                source.size_bytes,
            )
        )
    elif source.read_at(header.start, 1) != b"\x80":
        findings.append(error(source, "header", Verdict.CORRUPT, "no pickle follows the header", header.start, 1))
    return Reading(FORMAT, tuple(findings), payload_bytes=source.size_bytes - header.start)


def _header(value: object, start: int) -> ArrayHeader:
    if not isinstance(value, dict) or value.keys() != {"descr", "fortran_order", "shape"}:
        raise ArrayHeaderError("it has not the three keys descr, fortran_order and shape")
    fortran, shape = value["fortran_order"], value["shape"]
    if not isinstance(fortran, bool):
        raise ArrayHeaderError("fortran_order is neither True nor False")
    if not isinstance(shape, tuple) or not all(type(item) is int for item in shape) or len(shape) > 64:
        raise ArrayHeaderError("the shape is no tuple of numbers")
    word, size, big, pickled = _descr(value["descr"], 0)
    header = ArrayHeader(start, word, size, shape, fortran, big, pickled)
    if header.data_bytes >= 1 << 63:
        raise ArrayHeaderError("the shape is too large for any file")
    return header


def _descr(descr: object, depth: int) -> tuple[str, int, bool, bool]:
    """Word, bytes of an item, big endian, holds objects."""
    if isinstance(descr, str):
        match = _SIMPLE.match(descr)
        if match is None:
            raise ArrayHeaderError(f"the dtype {descr[:40]!r} is unknown")
        kind, size = match["kind"], int(match["size"] or 1)
        if kind == "O":
            return "object", 0, False, True
        kind = "b" if kind == "?" else "S" if kind == "a" else kind
        if kind in "SUV":
            return f"{kind}{size}", size * 4 if kind == "U" else size, match["order"] == ">", False
        word = _WORDS.get((kind, size))
        if word is None:
            raise ArrayHeaderError(f"the dtype {descr[:40]!r} is unknown")
        return word, size, match["order"] == ">", False
    if isinstance(descr, tuple) and len(descr) == 2 and isinstance(descr[1], (tuple, int)):
        _, size, _, pickled = _descr(descr[0], depth + 1)
        return "structured", _times(size, descr[1]), False, pickled
    if not isinstance(descr, list) or depth > _ALIGN_DEPTH:
        raise ArrayHeaderError("the dtype is no text and no list of fields")
    total, objects = 0, False
    for item in descr:
        if not isinstance(item, tuple) or len(item) not in {2, 3}:
            raise ArrayHeaderError("a field of the dtype is no name, type and shape")
        _, size, _, pickled = _descr(item[1], depth + 1)
        total += _times(size, item[2]) if len(item) == 3 else size
        objects = objects or pickled
    return "structured", total, False, objects


def _times(size: int, shape: object) -> int:
    numbers = shape if isinstance(shape, tuple) else (shape,)
    total = size
    for number in numbers:
        if type(number) is not int:
            raise ArrayHeaderError("the shape of a field is no tuple of numbers")
        total *= number
        if total > _MAX_ITEM or number > HELD_BYTES:
            raise ArrayHeaderError("an item is absurdly large")
    return total


def _literal(text: str) -> object:
    tokens = _tokens(text)
    value = _value(next(tokens, ""), tokens, 0)
    if next(tokens, None) is not None:
        raise ArrayHeaderError("something follows the literal in the header")
    return value


class _Text(str):
    """A text of the literal, told from signs."""

    __slots__ = ()


def _tokens(text: str) -> Iterator[object]:
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise ArrayHeaderError(f"the header is no literal at character {at}")
        at = match.end()
        if match["text"] is not None:
            yield _Text(match["text"].lstrip("bu")[1:-1])
        elif match["number"] is not None:
            yield int(match["number"])
        elif match["word"] is not None:
            yield {"True": True, "False": False, "None": None}[match["word"]]
        else:
            yield match["sign"]


_CLOSING = {"{": "}", "[": "]", "(": ")"}


def _value(sign: object, tokens: Iterator[object], depth: int) -> object:
    if depth > _ALIGN_DEPTH:
        raise ArrayHeaderError("the header nests too deep")
    if isinstance(sign, _Text):
        return str(sign)
    if not isinstance(sign, str):
        return sign
    if sign not in _CLOSING:
        raise ArrayHeaderError("the literal in the header is broken")
    items: list[object] = []
    commas = 0
    while True:
        inner = next(tokens, "")
        if inner == _CLOSING[sign] and not isinstance(inner, _Text):
            break
        item = _value(inner, tokens, depth + 1)
        follows = next(tokens, "")
        if sign == "{":
            if follows != ":":
                raise ArrayHeaderError("the literal in the header is broken")
            item = (item, _value(next(tokens, ""), tokens, depth + 1))
            follows = next(tokens, "")
        items.append(item)
        if follows == _CLOSING[sign]:
            break
        if follows != ",":
            raise ArrayHeaderError("the literal in the header is broken")
        commas += 1
    if sign == "[":
        return items
    if sign == "(":
        return tuple(items) if commas or not items else items[0]
    pairs = [item for item in items if isinstance(item, tuple) and isinstance(item[0], str)]
    if len(dict(pairs)) != len(items):
        raise ArrayHeaderError("a key of the header is no text, or there twice")
    return dict(pairs)
