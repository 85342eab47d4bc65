"""The state of the kernel's guard as text: what the module prints, what a newer one may add, what is refused."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import quote_from_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescue_tui.core.blockstat import WriteCounters, parse_stat
from rescue_tui.core.errors import FormatError
from rescue_tui.core.guardstate import (
    DISK_KINDS,
    LAYER_WORDS,
    KernelDisk,
    LastRefusal,
    parse_guard_state,
    unescape,
)
from rescue_tui.core.text import printable
from tests.support.guard_text import disk_line, state_text

TEXT = state_text(
    "hook name=submit_bio_noacct armed=1",
    disk_line("259:0", 7, "nvme0n1", bio=3, command=2, open=1, flush_kept=1),
    disk_line("8:0", 50, "sda", protected=0, granted=1, read_only=0),
    "last dev=259:0 diskseq=7 what=bio opcode=0x01 pid=123 comm=dd age_ms=1234",
    "admin name=nvme0 command=2",
    "admin name=nvme0 command=1",
    "other lockdown=1 module=0",
)


def test_every_line_becomes_a_value() -> None:
    state = parse_guard_state(TEXT)
    assert (state.version, state.armed, state.sealed, state.kernel) == (1, True, True, "6.12.0-amd64")
    assert [layer.name for layer in state.layers] == list(LAYER_WORDS)
    assert state.disks[0] == KernelDisk((259, 0), 7, "nvme0n1", True, False, True, {
        "bio": 3, "discard": 0, "command": 2, "open": 1, "ioctl": 0}, 1)
    assert state.disks[0].refused_total == 6
    assert state.disk((8, 0), 50) == state.disks[1]
    assert state.disk((8, 0), 51) is None
    assert state.last == (LastRefusal((259, 0), 7, "bio", 1, 123, "dd", 1234),)
    assert state.admin == {"nvme0": 3}
    assert state.refused_by_kind() == {
        "bio": 3, "discard": 0, "command": 5, "open": 1, "ioctl": 0, "lockdown": 1, "module": 0}
    assert state.loose_hooks == ()


def test_what_a_newer_module_adds_is_passed_over() -> None:
    newer = TEXT.replace("name=nvme0n1", "name=nvme0n1 zone=4 colour").replace("version=1", "version=2 boot=9")
    assert parse_guard_state(f"weather sunny=1\n{newer}\n\n").disks == parse_guard_state(TEXT).disks


@pytest.mark.parametrize(("old", "new"), [
    ("guard ", "gourd "), ("armed=1 sealed=1", "armed=yes sealed=1"), ("sealed=1", ""), ("version=1", "version=x"),
    ("diskseq=7 name", "diskseq=-7 name"), ("dev=259:0 diskseq=7 name", "dev=sda diskseq=7 name"), ("bio=3", ""),
    ("bio=3", "bio=3e9"), ("granted=1", "granted=2"), ("opcode=0x01", "opcode=01"), ("pid=123", "pid="),
    ("layer ", "player "), ("guard version", "guard version=1 armed=1 sealed=1 kernel=x\nguard version"),
])
def test_what_is_needed_and_missing_is_told(old: str, new: str) -> None:
    assert old in TEXT
    with pytest.raises(FormatError, match="write guard"):
        parse_guard_state(TEXT.replace(old, new))


def test_hooks_that_are_not_in_place_are_named() -> None:
    assert parse_guard_state(state_text("hook name=a armed=1", "hook name=b armed=0")).loose_hooks == ("b",)


@given(st.binary(max_size=40))
def test_a_name_of_any_bytes_comes_out_printable(name: bytes) -> None:
    line = f"last dev=0:0 diskseq=0 what=open opcode=0x0 pid=1 comm={quote_from_bytes(name, safe=':/+-')} age_ms=0"
    assert parse_guard_state(state_text(line)).last[0].comm == printable(name)


@given(st.text())
def test_any_text_is_a_state_or_a_format_error(text: str) -> None:
    with suppress(FormatError):
        assert parse_guard_state(text).layers
    assert unescape(text) == printable(unescape(text), None)


@given(st.dictionaries(st.sampled_from(DISK_KINDS), st.integers(0, (1 << 64) - 1)))
def test_counters_of_64_bits_are_kept(counts: dict[str, int]) -> None:
    (disk,) = parse_guard_state(state_text(disk_line("259:0", 7, "nvme0n1", **counts))).disks
    assert disk.refused == {kind: counts.get(kind, 0) for kind in DISK_KINDS}


def test_the_kernels_own_counters() -> None:
    text = "     120        3     9000       40        2        0       16       10        0       33 44 1 0 8 2 5 1\n"
    counters = parse_stat(text)
    assert counters == WriteCounters(120, 9000, 2, 16, 1, 8, 5)
    assert counters.changing_ios == 3
    assert parse_stat(f"{text.strip()} 99").since(counters) == WriteCounters(0, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("text", ["", "1 2 3", "x " * 17, "-1 " * 17, "²" * 3 + " 1" * 16])
def test_other_counters_are_refused(text: str) -> None:
    with pytest.raises(FormatError):
        parse_stat(text)
