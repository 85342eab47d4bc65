"""Changes to bytes: what crashes and bad media do, and what a hostile writer would."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

_NUMBERS = (0, 1, 2, 7, 127, 128, 255, 256, 4095, 65535, 1 << 20, 1_000_000_000, (1 << 31) - 1, 1 << 31, (1 << 32) - 1,
            1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_DIGITS = re.compile(rb"\d+")
_WORDS = (b"NaN", b"1e999", b"-1", b"null", b"[]", b"{}", b"[" * 3000, b"\"\\ud800\"", b"99999999999999999999", b"\x00",
          b"../x", b"/etc/passwd", b"PK\x03\x04", b"PK\x05\x06", b"PK\x01\x02", b"PK\x06\x06", b"(" * 300,
          b"\x80\x04\x95", b".", b"\xff" * 9)
Chance = random.Random
Change = Callable[[bytes, Chance], bytes]


def _flip(data: bytes, chance: Chance) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]


def _byte(data: bytes, chance: Chance) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]


def _number(data: bytes, chance: Chance) -> bytes:
    """A number of 1 to 8 bytes of either order, near an interesting value or near what the file's size is."""
    width = chance.choice((1, 2, 4, 8))
    value = chance.choice((*_NUMBERS, len(data), len(data) // 2)) + chance.choice((-1, 0, 0, 0, 1))
    at = chance.randrange(len(data))
    raw = (value % (1 << 8 * width)).to_bytes(width, chance.choice(("little", "little", "big")))
    return data[:at] + raw + data[at + width :]


def _count(data: bytes, chance: Chance) -> bytes:
    """A number that is there, made a little or much larger."""
    width = chance.choice((2, 4, 8))
    at = chance.randrange(len(data))
    value = int.from_bytes(data[at : at + width], "little") * chance.choice((1, 2, 256)) + chance.randrange(-2, 3)
    return data[:at] + (value % (1 << 8 * width)).to_bytes(width, "little") + data[at + width :]


def _digits(data: bytes, chance: Chance) -> bytes:
    """A decimal number in a text."""
    found = list(_DIGITS.finditer(data[:20_000]))
    if not found:
        return _number(data, chance)
    hit = chance.choice(found)
    return data[: hit.start()] + str(chance.choice(_NUMBERS)).encode() + data[hit.end() :]


def _word(data: bytes, chance: Chance) -> bytes:
    at, word = chance.randrange(len(data)), chance.choice(_WORDS)
    return data[:at] + word + data[at + chance.choice((0, len(word))) :]


def _cut(data: bytes, chance: Chance) -> bytes:
    return data[: chance.randrange(len(data))]


def _behead(data: bytes, chance: Chance) -> bytes:
    return data[chance.randrange(len(data)) :]


def _zeros(data: bytes, chance: Chance) -> bytes:
    at, length = chance.randrange(len(data)), chance.choice((1, 8, 64, 512, 4096))
    return data[:at] + bytes(min(length, len(data) - at)) + data[at + length :]


def _run(data: bytes, chance: Chance) -> tuple[int, int]:
    at = chance.randrange(len(data))
    return at, at + chance.choice((1, 2, 4, 8, 30, 64, 512, 4096))


def _remove(data: bytes, chance: Chance) -> bytes:
    start, end = _run(data, chance)
    return data[:start] + data[end:]


def _repeat(data: bytes, chance: Chance) -> bytes:
    start, end = _run(data, chance)
    return data[:end] + data[start:end] * chance.choice((1, 1, 3, 50)) + data[end:]


def _move(data: bytes, chance: Chance) -> bytes:
    start, end = _run(data, chance)
    at = chance.randrange(len(data))
    return data[:at] + data[start:end] + data[at + end - start :]


_CHANGES: Sequence[Change] = (
    _flip, _byte, _byte, _number, _number, _number, _count, _digits, _word, _cut, _behead, _zeros, _remove, _repeat,
    _move)


def mutated(data: bytes, other: bytes, chance: Chance, most_bytes: int) -> bytes:
    """The bytes after one to six changes; now and then a part of ``other`` takes the place of a part."""
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        if not data:
            data = other[: chance.randrange(len(other) + 1)]
        elif other and not chance.randrange(16):
            start, end = _run(other, chance)
            at = chance.randrange(len(data))
            data = data[:at] + other[start:end] + data[at + end - start :]
        else:
            data = chance.choice(_CHANGES)(data, chance)
    return data[:most_bytes]
