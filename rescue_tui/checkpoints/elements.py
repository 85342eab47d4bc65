"""Elements of tensors: how many bytes one takes, in what words safetensors names it, and its bytes the other way round.

Words are those of `rescue_tui.checkpoints.model.TensorEntry`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from rescue_tui.checkpoints.safetensors import DTYPES

# Packed types are left out: how many elements share a byte is their own affair.
ITEM_BYTES: Mapping[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1, "complex128": 16, "complex64": 8, "complex32": 4,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float8_e4m3b11fnuz": 1, "float8_e4m3": 1, "float8_e3m4": 1,
    "qint8": 1, "quint8": 1, "qint16": 2, "quint16": 2, "qint32": 4, "bits8": 1, "bits16": 2, "bcomplex32": 4,
}
# Of these the parts are swapped, not the whole.
_PARTS = {"complex128": 8, "complex64": 4, "complex32": 2, "bcomplex32": 2}
_WORDS: Mapping[str, str] = {word: name for name, (bits, word) in DTYPES.items() if bits % 8 == 0}
_CODES = {2: "H", 4: "I", 8: "Q"}


def safetensors_word(dtype: str) -> str:
    """What safetensors calls a type; nothing where it has no whole bytes per element, or no word for it."""
    return _WORDS.get(dtype, "")


def swapped(data: bytes | bytearray, dtype: str) -> bytes | bytearray:
    """Big-endian elements as little-endian ones; ``data`` is whole elements of a type in `ITEM_BYTES`."""
    width = _PARTS.get(dtype, ITEM_BYTES[dtype])
    if width == 1:
        return data
    numbers = array(_CODES[width], bytes(data))
    numbers.byteswap()
    return numbers.tobytes()
