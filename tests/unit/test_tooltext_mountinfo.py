"""The mount table and the swap table."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescue_tui.core.errors import FormatError
from rescue_tui.core.text import decode
from rescue_tui.core.tooltext.mountinfo import parse_mountinfo, parse_swaps, unescape

DATA = Path(__file__).parents[1] / "data/mountinfo"


def test_a_whole_table() -> None:
    entries = parse_mountinfo((DATA / "debian12.txt").read_text())
    assert [(entry.dev, entry.target, entry.filesystem) for entry in entries][1:4] == [
        ((259, 2), "/", "ext4"), ((0, 36), "/home", "btrfs"), ((7, 3), "/mnt/a b\\c\td", "xfs")]
    assert entries[1].options == ("rw", "relatime", "errors=remount-ro")
    assert entries[2].source == "/dev/sdb1"
    assert entries[2].root == "/@home"
    assert entries[3].options == ("ro", "relatime", "norecovery", "attr2")


def test_a_read_only_mount_of_a_writable_super_block_is_told_apart() -> None:
    bind = parse_mountinfo((DATA / "debian12.txt").read_text())[4]
    assert "rw" not in bind.options
    assert bind.superblock_writable
    assert not parse_mountinfo((DATA / "debian12.txt").read_text())[3].superblock_writable


def test_swap_areas() -> None:
    assert parse_swaps((DATA / "swaps.txt").read_text()) == ("/dev/nvme0n1p3", "/swap file")
    assert parse_swaps("") == ()


@pytest.mark.parametrize(("field", "text"), [
    (r"a\040b", "a b"), (r"\134040", r"\040"), (r"\377", decode(b"\xff")), (r"\9", r"\9"), ("\\", "\\")])
def test_octal_escapes(field: str, text: str) -> None:
    assert unescape(field) == text


@given(st.binary(max_size=40))
def test_what_the_kernel_escapes_is_read_back(name: bytes) -> None:
    escaped = b"".join(b"\\%03o" % byte if byte in b" \t\n\\#" else bytes([byte]) for byte in name)
    assert unescape(decode(escaped)) == decode(name)


@pytest.mark.parametrize("line", ["x", "1 2 3:4 / /", "1 2 a:b / / rw - xfs /dev/x rw", "1 2 3:4 / / rw xfs /dev/x rw"])
def test_another_line_is_a_format_error(line: str) -> None:
    with pytest.raises(FormatError):
        parse_mountinfo(line)


fields = st.lists(st.sampled_from(["1", "3:4", "-", "/", "rw", "xfs", ""]), max_size=14)


@given(st.text(max_size=80) | fields.map(" ".join))
def test_junk_raises_nothing_but_a_format_error(text: str) -> None:
    entries = None
    with suppress(FormatError):
        entries = parse_mountinfo(text)
    assert entries is None or len(entries) <= len(text.split("\n"))
    assert all(path.startswith("/") for path in parse_swaps(text.encode("utf-8", "replace").decode()))
