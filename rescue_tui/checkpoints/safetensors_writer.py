"""The header of a safetensors file from sizes known beforehand, so that payloads can be streamed behind it.

Layout: huggingface/safetensors, README "Format": tensors tile the buffer without gaps, in the order of offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rescue_tui.checkpoints.limits import HEADER_BYTES
from rescue_tui.checkpoints.safetensors import HEADER_LENGTH, METADATA_KEY

_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor to be written: its name there, its type in safetensors' words, its size."""

    name: str
    word: str
    shape: tuple[int, ...]
    size_bytes: int
    item_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """``head`` is the file's beginning, ``places`` the offset in the file of each tensor by name."""

    head: bytes
    places: Mapping[str, int]
    size_bytes: int


class HeaderTooLarge(Exception):
    """More names than the format's header may hold."""


def plan(slots: Iterable[Slot], metadata: Mapping[str, str]) -> Plan:
    """Where everything goes. Large elements come first, so that all are aligned. Raises `HeaderTooLarge`."""
    header: dict[str, object] = {METADATA_KEY: dict(metadata)}
    offsets: dict[str, int] = {}
    at = 0
    for slot in sorted(slots, key=lambda slot: -slot.item_bytes):
        header[slot.name] = {"dtype": slot.word, "shape": list(slot.shape), "data_offsets": [at, at + slot.size_bytes]}
        offsets[slot.name] = at
        at += slot.size_bytes
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > HEADER_BYTES:
        raise HeaderTooLarge
    head = HEADER_LENGTH.pack(len(text)) + text
    return Plan(head, {name: len(head) + offset for name, offset in offsets.items()}, len(head) + at)


def names_for(names: Iterable[str]) -> list[str]:
    """A name for each that a header may hold: no lone surrogates, none twice, none that means something else."""
    taken = {METADATA_KEY}
    found = []
    for name in names:
        base = name.encode("utf-8", "backslashreplace").decode("utf-8")
        free, number = base, 2
        while free in taken:
            free = f"{base}#{number}"
            number += 1
        taken.add(free)
        found.append(free)
    return found
