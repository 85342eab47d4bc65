"""GGUF files built by hand, so that every field can be set wrong."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import NamedTuple

Value = tuple[int, bytes]  # the type's number, the value as stored


class Tensor(NamedTuple):
    """A tensor info (dimensions as stored: the fastest first) and its bytes."""

    name: str
    kind: int
    dimensions: tuple[int, ...]
    data: bytes


def text(value: str | bytes, order: str = "<") -> bytes:
    """A string as stored."""
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack(order + "Q", len(raw)) + raw


def u32(value: int, order: str = "<") -> Value:
    """A number of type 4."""
    return 4, struct.pack(order + "I", value)


def build(
    pairs: Sequence[tuple[str | bytes, Value]],
    tensors: Sequence[Tensor],
    alignment: int = 32,
    order: str = "<",
    version: int = 3,
    counts: tuple[int, int] | None = None,
    offsets: Sequence[int] | None = None,
) -> bytes:
    """A file; ``counts`` and ``offsets`` replace what would be right."""
    counts = counts or (len(tensors), len(pairs))
    head = b"GGUF" + struct.pack(order + "I2Q", version, *counts)
    for key, (kind, value) in pairs:
        head += text(key, order) + struct.pack(order + "I", kind) + value
    data = b""
    for index, tensor in enumerate(tensors):
        data += bytes(-len(data) % alignment)
        head += text(tensor.name, order) + struct.pack(order + "I", len(tensor.dimensions))
        head += struct.pack(f"{order}{len(tensor.dimensions)}Q", *tensor.dimensions)
        head += struct.pack(order + "IQ", tensor.kind, offsets[index] if offsets else len(data))
        data += tensor.data
    return head + bytes(-len(head) % alignment) + data + bytes(-len(data) % alignment)


def model() -> tuple[list[tuple[str | bytes, Value]], list[Tensor]]:
    """A small model with every kind of value: two float tensors, one quantised."""
    chance = random.Random(5)
    words = struct.pack("<IQ", 8, 2) + text("a") + text("bc")
    pairs: list[tuple[str | bytes, Value]] = [
        ("general.architecture", (8, text("llama"))),
        ("split.no", (2, b"\1\0")),
        ("split.count", (2, b"\3\0")),
        ("flag", (7, b"\1")),
        ("rate", (6, struct.pack("<f", 0.5))),
        ("words", (9, words)),
        ("numbers", (9, struct.pack("<IQ3i", 5, 3, 1, 2, 3))),
    ]
    tensors = [
        Tensor("blk.0.q.weight", 0, (64, 40), chance.randbytes(10240)),
        Tensor("norm", 0, (9,), chance.randbytes(36)),
        Tensor("blk.1.q.weight", 2, (64, 100), chance.randbytes(3600)),
    ]
    return pairs, tensors
