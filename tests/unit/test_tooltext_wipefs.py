"""wipefs: every recorded output, and junk."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescue_tui.core.errors import FormatError
from rescue_tui.core.tooltext.wipefs import parse_wipefs

DATA = Path(__file__).parents[1] / "data/wipefs"
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["signatures", "type", "offset", "usage", "uuid", "label"]), inner, max_size=5), max_leaves=12)


@pytest.mark.parametrize(("name", "expected"), [
    ("blank", []),
    ("btrfs", [("btrfs", "filesystem", 0x10040)]),
    ("xfs", [("xfs", "filesystem", 0)]),
    ("vfat", [("vfat", "filesystem", 0), ("vfat", "filesystem", 0x36), ("vfat", "filesystem", 0x1FE)]),
    ("exfat", [("exfat", "filesystem", 3), ("dos", "partition-table", 0x1FE)]),
    ("swap", [("swap", "other", 0xFF6)]),
    ("swsuspend", [("swsuspend", "other", 0xFF6)]),
    ("lvm2", [("LVM2_member", "raid", 0x218)]),
    ("ext4-and-stale-lvm2", [("LVM2_member", "raid", 0x218), ("ext4", "filesystem", 0x438)]),
    ("gpt", [("PMBR", "partition-table", 0x1FE), ("gpt", "partition-table", 0x200),
             ("gpt", "partition-table", 0x383FFE00)]),
    ("dos", [("dos", "partition-table", 0x1FE)]),
    ("luks1", [("crypto_LUKS", "crypto", 0)]),
    ("md-0.90", [("linux_raid_member", "raid", 0x3FF0000)]),
    ("md-1.2", [("linux_raid_member", "raid", 0x1000)]),
    ("imsm", [("isw_raid_member", "raid", 0x3FFFC00)]),
    ("ddf", [("ddf_raid_member", "raid", 0x3FFFE00)]),
    ("bcache", [("bcache", "other", 0x1018)]),
    ("iso9660", [("iso9660", "filesystem", 0x8001)]),
])
def test_recorded_output(name: str, expected: list[tuple[str, str, int]]) -> None:
    found = parse_wipefs((DATA / f"{name}.json").read_bytes())
    assert [(sig.kind, sig.usage, sig.offset_bytes) for sig in found] == expected


def test_every_copy_of_a_zfs_uberblock_is_listed() -> None:
    found = parse_wipefs((DATA / "zfs.json").read_bytes())
    assert {sig.kind for sig in found} == {"zfs_member"}
    assert len(found) == 5


def test_labels_and_uuids_are_kept_and_printable() -> None:
    (found,) = parse_wipefs((DATA / "ext4-hostile-label.json").read_bytes())
    assert found.label == r"a\x01\xff[/b]"
    assert found.uuid == "10d201bd-35a4-47e5-8e62-b4a593bd4722"
    assert parse_wipefs((DATA / "md-1.2.json").read_bytes())[0].label == "node:0"


def test_older_wipefs_without_usage_still_tells_tables_apart() -> None:
    text = json.dumps({"signatures": [{"type": "gpt", "offset": "0x200"}, {"type": "xfs", "offset": 0}]})
    assert [sig.usage for sig in parse_wipefs(text.encode())] == ["other", "partition-table"]


@pytest.mark.parametrize("text", [
    b"[]", b"{}", b"\xff", b"{", b'{"signatures": [{"type": "xfs"}]}', b'{"signatures": [{"offset": "0x0"}]}',
    b'{"signatures": [{"type": "xfs", "offset": "-1"}]}', b"[" * 100000,
])
def test_other_output_is_a_format_error(text: bytes) -> None:
    with pytest.raises(FormatError):
        parse_wipefs(text)


def test_no_output_means_nothing_found() -> None:
    assert parse_wipefs(b"\n") == ()


@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_junk_raises_nothing_but_a_format_error(text: bytes) -> None:
    found = None
    with suppress(FormatError):
        found = parse_wipefs(text)
    assert found is None or all(sig.kind and sig.offset_bytes >= 0 for sig in found)
