"""The table of mount options."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescue_tui.core.errors import PolicyRefusal
from rescue_tui.core.mountplan import READABLE, WRITABLE, destination_plan, max_file_bytes, read_only_plan

HARDENED = "ro,nodev,nosuid,noexec"


@pytest.mark.parametrize(("kind", "filesystem", "options"), [
    ("xfs", "xfs", f"{HARDENED},norecovery,nouuid"),
    ("ext2", "ext2", HARDENED),
    ("ext3", "ext3", f"{HARDENED},noload"),
    ("ext4", "ext4", f"{HARDENED},noload"),
    ("btrfs", "btrfs", f"{HARDENED},rescue=nologreplay"),
    ("exfat", "exfat", HARDENED),
    ("vfat", "vfat", HARDENED),
    ("ntfs", "ntfs3", HARDENED),
])
def test_read_only_plans(kind: str, filesystem: str, options: str) -> None:
    plan = read_only_plan(kind)
    assert (plan.filesystem, ",".join(plan.options)) == (filesystem, options)


@given(st.text(max_size=20))
def test_every_read_only_plan_is_read_only(kind: str) -> None:
    if kind in READABLE:
        assert read_only_plan(kind).options[0] == "ro"
    else:
        with pytest.raises(PolicyRefusal):
            read_only_plan(kind)


@pytest.mark.parametrize("asked", [("rw",), ("ro", "remount"), ("loop",), ("ro", "norecovery")])
def test_no_option_can_be_asked_for(asked: tuple[str, ...]) -> None:
    with pytest.raises(PolicyRefusal, match="every mount is read-only"):
        read_only_plan("xfs", asked)
    assert read_only_plan("xfs", ("ro",)) == read_only_plan("xfs")


def test_a_hostile_kind_is_escaped() -> None:
    with pytest.raises(PolicyRefusal) as refusal:
        read_only_plan("\x1b[2J")
    assert "\x1b" not in str(refusal.value)


def test_destination_plans() -> None:
    assert set(WRITABLE) == set(READABLE)
    for kind in WRITABLE:
        assert destination_plan(kind).options == ("rw", "nodev", "nosuid", "noexec", "noatime")
    for kind in ("", "zfs_member", "apfs"):
        with pytest.raises(PolicyRefusal):
            destination_plan(kind)


def test_largest_files() -> None:
    assert max_file_bytes("vfat") == 4294967295
    assert max_file_bytes("ext4") == 17592186040320
    assert max_file_bytes("xfs") is None
    assert max_file_bytes("unknown") is None
