"""Files that a checkpoint's name was given and that hold something else: pointers, error pages, wrapped or empty files.

First bytes: Git LFS specification v1 (``version https://git-lfs``), AppleDouble (RFC 1740: 00 05 16 07), gzip
(RFC 1952), zstd (RFC 8878), lz4 frame format 1.6.
"""

from __future__ import annotations

import re

from rescue_tui.checkpoints.model import CheckpointFinding, Head, Reading, Verdict
from rescue_tui.checkpoints.names import format_of_name
from rescue_tui.checkpoints.source import CHUNK_BYTES, Source
from rescue_tui.core.finding import Severity

_WRAPPERS: tuple[tuple[bytes, str], ...] = (
    (b"\x1f\x8b\x08", "gzip"), (b"\x04\x22\x4d\x18", "lz4"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"), (b"7z\xbc\xaf\x27\x1c", "7z"), (b"Rar!\x1a\x07", "rar"),
)
_APPLE_DOUBLE = (b"\x00\x05\x16\x07", b"\x00\x05\x16\x00")
_LFS = re.compile(rb"version https://(?:git-lfs\.github\.com|hawser\.github\.com)/spec/v1\b")
_LFS_OID = re.compile(rb"^oid sha256:([0-9a-f]{64})$", re.MULTILINE)
_LFS_SIZE = re.compile(rb"^size (\d{1,20})$", re.MULTILINE)
_MARKUP = re.compile(
    rb"\s*(?:\xef\xbb\xbf)?\s*<(?P<tag>!doctype|html|head|body|\?xml|error|[a-z][a-z0-9:]*[ />])", re.IGNORECASE)
_OTHER_FILES: tuple[tuple[bytes, str], ...] = (
    (b"%PDF-", "a PDF document"), (b"\x89PNG\r\n\x1a\n", "a PNG image"), (b"\xff\xd8\xff", "a JPEG image"),
    (b"\x7fELF", "a program (ELF)"), (b"SQLite format 3\x00", "an SQLite database"), (b"GIF8", "a GIF image"),
)
MAX_POINTER_BYTES = 4096
_TEXT_BYTES = bytes(range(32, 127)) + b"\t\n\r\f\b\x1b" + bytes(range(128, 256))


def foreign_words(head: Head) -> tuple[str, str] | None:
    """What a file really is, as a code and a sentence, when its first bytes say so beyond doubt; else None."""
    first = head.first
    if first.startswith(_APPLE_DOUBLE):
        return "apple-double", ("It is an AppleDouble file, which macOS stores beside the real one; that has the same "
                                "name without the leading dot and underscore.")
    if _LFS.match(first) and head.size_bytes <= MAX_POINTER_BYTES:
        oid, size = _LFS_OID.search(first), _LFS_SIZE.search(first)
        told = f"; the real file has {int(size[1])} bytes" if size else ""
        told += f" and the SHA-256 {oid[1].decode()}" if oid else ""
        return "lfs-pointer", f"It is a Git LFS pointer that was never replaced by the file{told}."
    for magic, words in _WRAPPERS:
        if first.startswith(magic):
            return "wrapped", f"It is {words} data; unpack it and scan what comes out."
    markup = _MARKUP.match(first)
    if markup and b"\x00" not in first:
        kind = "an XML document" if markup["tag"].lower() in {b"?xml", b"error"} else "an HTML page"
        return "markup", f"It is {kind}, most likely a server's error page that was saved as the file."
    for magic, words in _OTHER_FILES:
        if first.startswith(magic):
            return "other-file", f"It is {words}."
    return None


def is_text(head: Head) -> bool:
    """True when the beginning and the end are nothing but text in UTF-8 or Latin letters."""
    sample = head.first + head.last
    return bool(sample) and not sample.translate(None, _TEXT_BYTES) and _mostly_letters(sample)


def _mostly_letters(sample: bytes) -> bool:
    try:
        sample.decode("utf-8")
    except UnicodeDecodeError as error:
        # The cut at 4 KiB may split a letter; random bytes fail long before.
        return error.start >= len(sample) - 4 or sum(byte < 128 for byte in sample) > 0.8 * len(sample)
    return True


def is_all_zero(source: Source) -> bool:
    """True when there is nothing but zero bytes; stops at the first other one, and reads no hole."""
    at = 0
    size = source.size_bytes
    for hole in (*source.holes(0, size), None):
        end = size if hole is None else min(hole.offset, size)
        while at < end:
            piece = source.read_at(at, min(CHUNK_BYTES, end - at))
            if piece.count(0) != len(piece):
                return False
            at += len(piece)
        at = max(at, size if hole is None else hole.end)
    return True


def foreign_reading(source: Source, code: str, words: str) -> Reading:
    """The reading of a file whose content is something else; the format is the one that its name promises."""
    finding = CheckpointFinding(Severity.ERROR, code, words, Verdict.FOREIGN, source.name, 0, source.size_bytes)
    return Reading(format_of_name(source.name), (finding,), members=(source.name,))


def empty_reading(source: Source) -> Reading:
    """The reading of a file without any content."""
    words = ("It has no bytes at all." if not source.size_bytes
             else f"All of its {source.size_bytes} bytes are zero.")
    finding = CheckpointFinding(Severity.ERROR, "empty", words, Verdict.EMPTY, source.name, 0, source.size_bytes)
    return Reading(format_of_name(source.name), (finding,), members=(source.name,))
