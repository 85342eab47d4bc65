"""msgpack, one token at a time: what comes next and how long it is, without building objects or reading payloads."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple

from rescue_tui.checkpoints.cursor import Cursor


class Kind(Enum):
    """What a token is."""

    SCALAR = auto()  # nil, truth values, numbers
    TEXT = auto()
    BYTES = auto()
    LIST = auto()
    MAP = auto()
    EXTENSION = auto()


class Token(NamedTuple):
    """``length`` is bytes of texts, bytes and extensions, entries of lists and maps; ``code`` an extension's type."""

    kind: Kind
    length: int = 0
    value: bool | int | float | None = None
    code: int = 0


class WireError(Exception):
    """The bytes are no msgpack, or not of the kind that is expected."""

    def __init__(self, summary: str, offset: int) -> None:
        super().__init__(summary)
        self.offset = offset


_U8, _U16, _U32 = struct.Struct(">B"), struct.Struct(">H"), struct.Struct(">I")
_CODE = struct.Struct(">b")
_SIZED: Mapping[int, tuple[Kind, struct.Struct]] = {
    0xC4: (Kind.BYTES, _U8),
    0xC5: (Kind.BYTES, _U16),
    0xC6: (Kind.BYTES, _U32),
    0xD9: (Kind.TEXT, _U8),
    0xDA: (Kind.TEXT, _U16),
    0xDB: (Kind.TEXT, _U32),
    0xDC: (Kind.LIST, _U16),
    0xDD: (Kind.LIST, _U32),
    0xDE: (Kind.MAP, _U16),
    0xDF: (Kind.MAP, _U32),
    0xC7: (Kind.EXTENSION, _U8),
    0xC8: (Kind.EXTENSION, _U16),
    0xC9: (Kind.EXTENSION, _U32),
}
_NUMBERS: Mapping[int, struct.Struct] = {
    0xCA: struct.Struct(">f"),
    0xCB: struct.Struct(">d"),
    0xCC: _U8,
    0xCD: _U16,
    0xCE: _U32,
    0xCF: struct.Struct(">Q"),
    0xD0: struct.Struct(">b"),
    0xD1: struct.Struct(">h"),
    0xD2: struct.Struct(">i"),
    0xD3: struct.Struct(">q"),
}
_CONSTANTS: Mapping[int, bool | None] = {0xC0: None, 0xC2: False, 0xC3: True}
_FIXED_EXTENSIONS: Mapping[int, int] = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}


def next_token(cursor: Cursor) -> Token:
    """The next token; the cursor is left behind its length, so before the bytes or entries that it announces.

    Raises `WireError`, `EndOfBytes`, `UnreadableBytes`.
    """
    at = cursor.offset
    first = cursor.number(_U8)
    if first <= 0x7F:
        return Token(Kind.SCALAR, value=first)
    if first <= 0x8F:
        return Token(Kind.MAP, first & 0x0F)
    if first <= 0x9F:
        return Token(Kind.LIST, first & 0x0F)
    if first <= 0xBF:
        return Token(Kind.TEXT, first & 0x1F)
    if first >= 0xE0:
        return Token(Kind.SCALAR, value=first - 0x100)
    if first in _CONSTANTS:
        return Token(Kind.SCALAR, value=_CONSTANTS[first])
    if first in _NUMBERS:
        (value,) = cursor.unpack(_NUMBERS[first])
        return Token(Kind.SCALAR, value=value if isinstance(value, float) else int(value))
    if first in _FIXED_EXTENSIONS:
        return Token(Kind.EXTENSION, _FIXED_EXTENSIONS[first], code=cursor.number(_CODE))
    if first not in _SIZED:
        raise WireError(f"the byte {first:#04x} begins nothing", at)
    kind, layout = _SIZED[first]
    length = cursor.number(layout)
    return Token(kind, length, code=cursor.number(_CODE) if kind is Kind.EXTENSION else 0)
