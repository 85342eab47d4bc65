"""Text from disks and tools is untrusted: nothing reaches a terminal, a log or a report before `printable`."""

from __future__ import annotations

import unicodedata

DEFAULT_LIMIT = 512
# Categories that can move the cursor, reorder, hide or break a line: controls, formats (bidi, zero width, soft hyphen),
# surrogates, private use, unassigned, line and paragraph separators.
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def decode(value: bytes) -> str:
    """Decode UTF-8; bytes that are not become lone surrogates, which `printable` writes as ``\\xNN``."""
    return value.decode("utf-8", "surrogateescape")


def _escape(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


def printable(value: bytes | str | None, limit: int | None = DEFAULT_LIMIT) -> str:
    """A one-line text without control, bidirectional or invisible characters.

    What is unsafe is written as ``\\xNN`` (bytes that are not UTF-8 too), ``\\uNNNN`` or ``\\UNNNNNNNN``; a space is
    the only white space kept. Text longer than ``limit`` characters ends with ``...`` and its full length. Markup
    (``[bold]``) is left as it is: `rescue_tui.ui.safe` keeps widgets from reading it.
    """
    if value is None:
        return ""
    text = decode(value) if isinstance(value, bytes) else value
    cut = limit is not None and len(text) > limit
    shown = text[:limit] if cut else text
    if not shown.isascii() or not shown.isprintable():
        shown = "".join(
            char if char == " " or (unicodedata.category(char) not in _UNSAFE_CATEGORIES and not _is_odd_space(char))
            else _escape(char)
            for char in shown
        )
    return f"{shown}... ({len(text)} characters)" if cut else shown


def _is_odd_space(char: str) -> bool:
    return char != " " and unicodedata.category(char) == "Zs"


def printable_lines(value: bytes | str, limit: int | None = 64 * 1024) -> str:
    """As `printable`, for text of several lines: line feeds stay, tabs become spaces."""
    text = decode(value) if isinstance(value, bytes) else value
    if limit is not None and len(text) > limit:
        text = f"{text[:limit]}\n... ({len(text)} characters)"
    return "\n".join(printable(line.expandtabs(8), None) for line in text.replace("\r\n", "\n").split("\n"))


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def human_bytes(count: int) -> str:
    """A size for people: three figures and a binary unit (``465.8 GiB``)."""
    value = float(count)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def human_seconds(seconds: float) -> str:
    """A duration for people (``2 h 05 min``, ``48 s``)."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
