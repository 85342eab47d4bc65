"""Values to JSON and time stamps, in one way everywhere."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from pathlib import PurePath
from typing import TypeAlias

from rescue_tui.core.text import printable

Plain: TypeAlias = "None | bool | int | float | str | list[Plain] | dict[str, Plain]"


def rfc3339(moment: datetime) -> str:
    """``2026-12-02T09:00:00.000Z``: UTC, milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_plain(value: object) -> Plain:
    """Turn dataclasses, enums, mappings, sequences, bytes and times into what `json` can write.

    A mapping's keys are written with `str`. Raises TypeError for a type that has no plain form.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Enum):
        return to_plain(value.value)
    if isinstance(value, str):
        return printable(value, None) if not value.isprintable() else value
    if isinstance(value, bytes):
        return printable(value, None)
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, PurePath):
        return to_plain(str(value))
    plain = getattr(value, "to_plain", None)
    if plain is not None:
        return to_plain(plain())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(to_plain(key)): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [to_plain(item) for item in items]
    raise TypeError(f"no plain form for {type(value).__name__}")


def document(verb: str, **fields: object) -> dict[str, Plain]:
    """A document of the command line: ``schema`` first, then ``fields``."""
    return {"schema": f"stasis.{verb}/1", **{name: to_plain(value) for name, value in fields.items()}}


def canonical(value: Plain) -> bytes:
    """The one byte form of a plain value that is hashed: sorted keys, no blanks, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
