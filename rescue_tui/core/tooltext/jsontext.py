"""JSON that a tool printed, read without trust: any other shape than the expected one is a FormatError."""

from __future__ import annotations

import json
import re

from rescue_tui.core.errors import FormatError
from rescue_tui.core.text import printable

# The largest counter that any of our tools prints is 128 bits wide (NVMe's SMART log).
_NUMBER = re.compile(r"[0-9]{1,39}")


def load_object(text: bytes, tool: str) -> dict[str, object]:
    """The JSON object that ``tool`` printed. Bytes that are not UTF-8 become lone surrogates. Raises FormatError."""
    try:
        value = json.loads(text.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{tool} printed no JSON.", "Its output is below.", printable(text)) from error
    if not isinstance(value, dict):
        raise FormatError(f"{tool} printed JSON that is no object.", "Its output is below.", printable(text))
    return value


def objects(value: object) -> list[dict[str, object]]:
    """The objects in a JSON list; what is no object, or no list, is left out."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def table(value: object) -> dict[str, object]:
    """A JSON object, empty when ``value`` is none."""
    return value if isinstance(value, dict) else {}


def number(source: dict[str, object], *names: str) -> int | None:
    """The first of these fields that is a whole number, 0 or more; big ones may be written as text."""
    for name in names:
        value = source.get(name)
        if isinstance(value, dict):  # nvme-cli wraps a value whose bits it also explains
            value = value.get("value")
        if isinstance(value, bool):
            continue
        if isinstance(value, int) and value >= 0:
            return value
        # json-c prints counters above 64 bits as floating-point numbers or as text, by its age.
        if isinstance(value, float) and 0 <= value < float("inf"):
            return int(value)
        if isinstance(value, str) and _NUMBER.fullmatch(value.strip().replace(",", "")):
            return int(value.strip().replace(",", ""))
    return None


def text(source: dict[str, object], name: str) -> str:
    """A field that is a text, made printable; empty when it is none."""
    value = source.get(name)
    return printable(value) if isinstance(value, str) else ""
