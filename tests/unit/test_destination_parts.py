"""What destinations are made of, without a disk: choosing, the ledger, patience, the test write, the commands."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rescue_tui.core.access import OWN_PARTITION_NAME, WriteGrant
from rescue_tui.core.device import DeviceKind, Disk, Mount, Partition, Signature
from rescue_tui.core.errors import DeviceError, FormatError, SetupError, UsageError
from rescue_tui.core.ident import DeviceId
from rescue_tui.core.imaging import DestinationSpace
from rescue_tui.core.mountplan import MountPlan, destination_plan, read_only_plan
from rescue_tui.core.placement import choose_filesystem, where
from rescue_tui.core.snapshot import Snapshot
from rescue_tui.system import testwrite
from rescue_tui.system.ledger import Ledger, MountedDestination
from rescue_tui.system.mounttable import is_writable, mount_of, mounted_at
from rescue_tui.system.patience import Call, within
from rescue_tui.system.tools import losetup, mkfs
from rescue_tui.system.tools import mount as mount_tool
from rescue_tui.system.workspace import Workspace

ID = DeviceId("serial", "usb/m/s")
GRANT = WriteGrant(ID, 4, "/dev/sdq", "s", "now", "t")
ESP = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"


def disk(*parts: tuple[int, str, tuple[str, ...]], whole: tuple[str, ...] = (), mounts: tuple[Mount, ...] = ()) -> Disk:
    """A disk from (number, type, kinds)."""
    def signatures(kinds: tuple[str, ...]) -> tuple[Signature, ...]:
        return tuple(Signature(kind, "partition-table" if kind == "gpt" else "filesystem", 0) for kind in kinds)

    return Disk(ID, "/dev/sdq", (65, 0), 4, DeviceKind.USB, "m", "s", "", 1 << 30, 512, 512, True,
                signatures=signatures(whole), mounts=mounts, partitions=tuple(
                    Partition(DeviceId("serial", f"p{number}"), f"/dev/sdq{number}", (65, number), number, 0, 1, True,
                              type=kind, signatures=signatures(kinds)) for number, kind, kinds in parts))


@pytest.mark.parametrize(("one", "partition", "chosen"), [
    (disk(whole=("xfs",)), None, (None, "xfs")),
    (disk((1, "", ("exfat",)), whole=("gpt",)), None, (1, "exfat")),
    (disk((1, ESP, ("vfat",)), (2, "", ("ext4",))), None, (2, "ext4")),
    (disk((1, ESP, ("vfat",))), None, (1, "vfat")),
    (disk((1, "", ("ext4",)), (2, "", ("xfs",))), 2, (2, "xfs")),
    (disk((1, "", ()), (2, "", ("xfs",))), None, (2, "xfs")),
])
def test_the_file_system_is_chosen(one: Disk, partition: int | None, chosen: tuple[int | None, str]) -> None:
    assert choose_filesystem(one, partition) == chosen


@pytest.mark.parametrize(("one", "partition", "words"), [
    (disk(), None, "has no file system"),
    (disk((1, "", ("ext4",)), (2, "", ("xfs",))), None, "partitions 1, 2"),
    (disk((1, "", ("ext4",))), 3, "Partition 3 of /dev/sdq has no file system"),
    (disk(whole=("ext4", "xfs")), None, "several file systems"),
    (disk(whole=("zfs_member",)), None, "has no file system"),
])
def test_what_can_not_be_chosen_is_told(one: Disk, partition: int | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        choose_filesystem(one, partition)


MOUNTINFO = rb"""22 1 0:20 / / rw,relatime - tmpfs tmpfs rw
30 22 8:1 / /mnt/a\040b rw,nodev - ext4 /dev/sda1 rw
31 22 8:2 / /mnt ro - xfs /dev/sda2 rw
32 31 8:3 / /mnt/ro rw - xfs /dev/sda3 ro
33 22 8:4 / /mnt/a\040b rw - ext4 /dev/sda4 rw
"""


def test_the_mount_of_a_path_is_the_innermost_and_the_topmost(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_bytes(MOUNTINFO)
    for place, source in [("/mnt/a b/c", "/dev/sda4"), ("/mnt/a bc", "/dev/sda2"), ("/mnt", "/dev/sda2"),
                          ("/mn", "tmpfs"), ("/mnt/ro/x", "/dev/sda3")]:
        entry = mount_of(place, table)
        assert entry is not None
        assert entry.source == source
    top = mounted_at("/mnt/a b", table)
    assert top is not None
    assert is_writable(top)
    for target in ("/mnt", "/mnt/ro"):
        entry = mounted_at(target, table)
        assert entry is not None
        assert not is_writable(entry)
    assert mounted_at("/mnt/", table) is None
    with pytest.raises(SetupError):
        mount_of("/", tmp_path / "none")


def test_where_a_path_lies_is_said_in_words(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_bytes(MOUNTINFO)
    snapshot = Snapshot(datetime.now(UTC), (disk(mounts=(Mount("/mnt", "xfs", ("ro",)),)),))
    assert where(snapshot, mount_of("/x", table)) == "it is in RAM, and lost at power-off"
    assert where(snapshot, mount_of("/mnt/x", table)) == "it is on /dev/sdq (s), which is not granted"
    assert where(snapshot, mount_of("/mnt/ro", table)) == "it is on /dev/sda3 (xfs)"
    assert where(snapshot, None) == "it is nowhere"


# ledger --------------------------------------------------------------------------------------------------------------
def test_the_ledger_remembers_for_every_process(tmp_path: Path) -> None:
    ledger, other = Ledger(Workspace(tmp_path)), Ledger(Workspace(tmp_path))
    assert ledger.sources() == frozenset()
    ledger.add_source(ID)
    other.add_source(DeviceId("wwn", "5000"))
    other.add_source(ID)
    assert ledger.sources() == {ID, DeviceId("wwn", "5000")}
    space = DestinationSpace("/x", "ext4", 7, True, True, False, None)
    record = MountedDestination(ID, 4, "s", "/dev/sdq1", "/x", "ext4", space)
    ledger.put(record)
    assert other.destinations() == (record,)
    assert other.destination(ID) == record
    (tmp_path / "destinations/half.json").write_text("{")
    (tmp_path / "destinations/list.json").write_text("[]")
    assert other.destinations() == (record,)
    other.drop(ID)
    assert ledger.destination(ID) is None


def test_a_mount_point_is_short_and_made_of_the_serial(tmp_path: Path) -> None:
    ledger = Ledger(Workspace(tmp_path))
    assert ledger.mount_point(ID, "AA00000000000485") == str(tmp_path / "destination/AA00000000000485")
    strange = ledger.mount_point(ID, "../[/foo]\x1b[7m" + "x" * 40 + " 12")
    assert strange == str(tmp_path / f"destination/{'x' * 21}-12")
    assert ledger.mount_point(ID, "...") == str(tmp_path / "destination/disk")
    ledger.put(MountedDestination(ID, 4, "s 1", "/dev/sdq1", ledger.mount_point(ID, "s 1"), "ext4"))
    assert ledger.mount_point(ID, "other") == str(tmp_path / "destination/s-1")
    twin = ledger.mount_point(DeviceId("wwn", "5000"), "s/1")
    assert twin.startswith(str(tmp_path / "destination/s-1-"))
    assert {"s-1", Path(twin).name} < {path.name for path in (tmp_path / "destination").iterdir()}
    assert list((tmp_path / "destination").glob("*.json")) == []
    ledger.drop(ID)
    assert not (tmp_path / "destination/s-1").exists()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"sources": 3}', b"null", b'{"sources": {"x": ""}}', b"\xff"])
def test_damaged_sources_stop_everything(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "sources.json").write_bytes(content)
    with pytest.raises(SetupError, match="sources of this session are unknown"):
        Ledger(Workspace(tmp_path)).sources()


# patience ------------------------------------------------------------------------------------------------------------
async def test_a_call_that_hangs_is_given_up() -> None:
    gate = threading.Event()
    with pytest.raises(DeviceError, match="The disk does not answer"):
        await within(0.01, "The disk", gate.wait)
    gate.set()


async def test_values_and_errors_pass() -> None:
    assert await within(30, "x", lambda: 7) == 7
    with pytest.raises(FileNotFoundError):
        await within(30, "x", lambda: os.stat("/nonexistent"))

    def refuse() -> int:
        raise UsageError("no")

    with pytest.raises(UsageError):
        await within(30, "x", refuse)
    await asyncio.gather(*(within(30, "x", lambda: None) for _ in range(20)))


def test_a_call_tells_when_it_has_ended() -> None:
    gate, told = threading.Event(), threading.Event()
    call = Call(gate.wait)
    assert not call.wait(0)
    call.when_done(told.set)
    gate.set()
    assert told.wait(30)
    assert call.wait(30)
    assert call.result() is True
    late = threading.Event()
    call.when_done(late.set)
    assert late.is_set()


# test write ----------------------------------------------------------------------------------------------------------
def test_the_test_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / ".stasis-test-0000.a").write_bytes(b"left by a crash")
    (tmp_path / "kept").touch()
    found = testwrite.examine(str(tmp_path))
    assert found["ok"] is True
    assert found["error"] == ""
    assert int(str(found["free_bytes"])) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_the_pattern_repeats_nowhere() -> None:
    content = testwrite.pattern(b"8 bytes!")
    assert len(content) == testwrite.SIZE_BYTES
    assert len({content[at:at + 16] for at in range(0, len(content), 16)}) == len(content) // 16


def test_what_differs_when_read_back_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(descriptor: int, content: bytes) -> None:
        os.write(descriptor, bytes(len(content)))

    monkeypatch.setattr(testwrite, "write_all", lie)
    found = testwrite.examine(str(tmp_path))
    assert (found["ok"], found["error"]) == (False, "What was read back is not what was written.")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int, _content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(testwrite, "write_all", full)
    found = testwrite.examine(str(tmp_path))
    assert (found["ok"], found["errno"]) == (False, "ENOSPC")
    assert testwrite.examine(str(tmp_path / "none"))["errno"] == "ENOENT"


# commands ------------------------------------------------------------------------------------------------------------
def test_every_command_that_writes_carries_the_grant() -> None:
    assert mkfs.partition("/dev/sdq", "ext4", GRANT).grant is GRANT
    assert OWN_PARTITION_NAME.encode() in mkfs.partition("/dev/sdq", "ext4", GRANT).stdin
    assert b"EBD0A0A2" in mkfs.partition("/dev/sdq", "exfat", GRANT).stdin
    assert mount_tool.mount(destination_plan("ext4"), "/dev/sdq1", "/x", GRANT).grant is GRANT
    for filesystem in mkfs.FILESYSTEMS:
        made = mkfs.make("/dev/sdq1", filesystem, GRANT)
        assert made.grant is GRANT
        assert made.argv[0] == f"mkfs.{filesystem}"
        assert made.argv[-1] == "/dev/sdq1"
    for filesystem in ("btrfs", "", "ext4 "):
        with pytest.raises(UsageError):
            mkfs.make("/dev/sdq1", filesystem, GRANT)


def test_a_mount_without_grant_is_read_only() -> None:
    assert mount_tool.mount(read_only_plan("ext4"), "/dev/loop0", "/x").line == (
        "mount -t ext4 -o ro,nodev,nosuid,noexec,noload -- /dev/loop0 /x")
    with pytest.raises(ValueError, match="read-only"):
        mount_tool.mount(MountPlan("ext4", ("rw",)), "/dev/loop0", "/x")
    assert mount_tool.unmount("/x", lazy=True).line == "umount --lazy -- /x"


def test_loops_are_always_read_only() -> None:
    assert losetup.attach("-x.img").line == "losetup --read-only --find --show -- -x.img"
    assert losetup.attach("x", sector_bytes=4096, offset_bytes=1048576, limit_bytes=512).line == (
        "losetup --read-only --find --show --sector-size 4096 --offset 1048576 --sizelimit 512 -- x")


def test_the_list_of_loops_is_read() -> None:
    item = {"name": "/dev/loop0", "back-file": "/a b", "ro": True, "offset": 512, "sizelimit": 0}
    assert losetup.parse_list(json.dumps({"loopdevices": [item]}).encode()) == (
        losetup.LoopDevice("/dev/loop0", "/a b", True, 512, 0),)
    assert losetup.parse_list(b"\n") == ()
    for bad in (b"{", b"[]", b'{"loopdevices": [{}]}', b'{"loopdevices": 3}'):
        with pytest.raises(FormatError):
            losetup.parse_list(bad)
