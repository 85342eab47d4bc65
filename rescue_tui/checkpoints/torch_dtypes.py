"""Element types of torch storages and of NumPy arrays inside pickles: their words and sizes in bytes."""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from rescue_tui.checkpoints.pickles import Call, Global


class ElementType(NamedTuple):
    """``word`` as numpy and torch say it; ``packed``: several elements share a byte, so counts don't give lengths."""

    word: str
    item_bytes: int
    packed: bool = False
    big_endian: bool = False


_ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1, "complex128": 16, "complex64": 8, "complex32": 4,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "qint8": 1, "quint8": 1, "qint32": 4, "bits8": 1, "bits16": 2, "bit": 1, "bcomplex32": 4,
}
_PACKED = frozenset({"quint4x2", "quint2x4", "float4_e2m1fn_x2", "bits1x8", "bits2x4", "bits4x2"})
_SUB_BYTE = re.compile(r"u?int[1-7]$")
_ALIASES = {"double": "float64", "float": "float32", "half": "float16", "long": "int64", "int": "int32",
            "short": "int16", "cfloat": "complex64", "cdouble": "complex128", "chalf": "complex32"}
# torch/storage.py, _dtype_to_storage_type_map
_STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64", "QInt8Storage": "qint8", "QUInt8Storage": "quint8", "QInt32Storage": "qint32",
    "QUInt4x2Storage": "quint4x2", "QUInt2x4Storage": "quint2x4", "UntypedStorage": "uint8",
}
_NUMPY = {"f8": "float64", "f4": "float32", "f2": "float16", "i8": "int64", "i4": "int32", "i2": "int16", "i1": "int8",
          "u8": "uint64", "u4": "uint32", "u2": "uint16", "u1": "uint8", "b1": "bool", "c16": "complex128",
          "c8": "complex64"}
_NUMPY_SCALARS = {"float64": "d", "float32": "f", "float16": "e", "int64": "q", "int32": "i", "int16": "h",
                  "int8": "b", "uint64": "Q", "uint32": "I", "uint16": "H", "uint8": "B", "bool": "?"}


def named_type(word: str) -> ElementType | None:
    """The element type behind a name in torch (``float``, ``bfloat16``); None if this is none that we know."""
    word = _ALIASES.get(word, word)
    if word in _PACKED or _SUB_BYTE.match(word):
        return ElementType(word, 1, True)
    size = _ITEM_BYTES.get(word)
    return None if size is None else ElementType(word, size)


def storage_type(node: object) -> ElementType | None:
    """The element type of a storage class (``torch FloatStorage``, ``torch.cuda HalfStorage``)."""
    if not isinstance(node, Global) or node.module.partition(".")[0] != "torch":
        return None
    return named_type(_STORAGES.get(node.name, ""))


def torch_dtype(node: object) -> ElementType | None:
    """The element type of a dtype (``torch float8_e4m3fn``)."""
    return named_type(node.name) if isinstance(node, Global) and node.module == "torch" else None


def numpy_type(node: object) -> ElementType | None:
    """The element type of a pickled ``numpy.dtype``: its name, and the byte order in its state."""
    if not isinstance(node, Call) or node.dotted != "numpy.dtype" or not node.args or not isinstance(node.args[0], str):
        return None
    word = _NUMPY.get(node.args[0])
    if word is None:
        return None
    state = node.state
    big = isinstance(state, tuple) and len(state) > 1 and state[1] == ">"
    return ElementType(word, _ITEM_BYTES[word], False, big)


def numpy_scalar(node: Call) -> bool | int | float | None:
    """The value of a pickled NumPy scalar (``numpy._core.multiarray scalar``), None if it is no plain number."""
    if len(node.args) != 2 or not isinstance(node.args[1], bytes):
        return None
    kind = numpy_type(node.args[0])
    letter = _NUMPY_SCALARS.get(kind.word) if kind is not None else None
    if kind is None or letter is None or len(node.args[1]) != kind.item_bytes:
        return None
    value = struct.unpack((">" if kind.big_endian else "<") + letter, node.args[1])[0]
    return value if isinstance(value, bool | int | float) else None
