"""Grant, format, mount, test write, release: on real loop devices with real file systems."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from rescue_tui.core.access import Access
from rescue_tui.core.command import Command
from rescue_tui.core.device import SIGNATURES_UNREAD
from rescue_tui.core.errors import DeviceError, PolicyRefusal, RescueError, SetupError, SpaceError, UsageError
from rescue_tui.core.finding import Finding, Severity
from rescue_tui.system import blockdev
from rescue_tui.system.mounttable import mounted_at
from tests.root.conftest import Desk, make_desk
from tests.support.loops import LoopDisk, loop_disk, run, snapshot

SERIAL = "Usb Serial-01"


def fill(path: Path) -> None:
    """Write until the file system is full."""
    with path.open("wb", buffering=0) as file:
        while file.write(b"\xff" * (1 << 20)):
            continue


async def make_ready(desk: Desk, usb: LoopDisk, filesystem: str = "ext4") -> str:
    """Grant, format, mount; the mount point."""
    await desk.destinations.grant(snapshot(usb), usb.disk(), SERIAL)
    await desk.destinations.format(snapshot(usb), usb.disk(), filesystem, SERIAL)
    return (await desk.destinations.mount(snapshot(usb), usb.disk())).mount_point


@pytest.mark.parametrize(
    "typed", ["", "usb serial-01", f"{SERIAL} ", f" {SERIAL}", "Usb Serial-02", "Usb Serial-1", "yes"])
async def test_a_serial_that_is_not_exact_opens_nothing(desk: Desk, usb: LoopDisk, typed: str) -> None:
    with pytest.raises(PolicyRefusal) as refusal:
        await desk.destinations.grant(snapshot(usb), usb.disk(), typed)
    assert SERIAL not in f"{refusal.value} {refusal.value.evidence}"
    assert usb.read_only
    assert desk.guard.grants() == {}
    assert desk.journal.entries == [
        ("destination.refused", {"device_id": usb.id, "reasons": ["serial-not-confirmed"]})]


async def test_a_grant_opens_the_disk_for_every_process(desk: Desk, usb: LoopDisk) -> None:
    grant = await desk.destinations.grant(snapshot(usb), usb.disk(), SERIAL)
    assert not usb.read_only
    major, minor = usb.dev
    assert (desk.workspace.grants_dir / f"{major}:{minor}.{usb.disk().generation}").exists()
    other = make_desk(desk.workspace)
    assert other.guard.grants() == {usb.id: grant}
    assert other.destinations.roles(snapshot(usb))[usb.id].access is Access.DESTINATION
    assert [state.serial for state in other.destinations.states()] == [SERIAL]
    assert await desk.destinations.grant(snapshot(usb), usb.disk(), SERIAL) == grant
    await other.destinations.release(snapshot(usb), usb.disk())
    assert usb.read_only
    with pytest.raises(PolicyRefusal, match="not in force"):
        desk.guard.redeem(grant)


@pytest.mark.parametrize("filesystem", ["ext4", "xfs"])
async def test_from_blank_to_released(desk: Desk, usb: LoopDisk, filesystem: str) -> None:
    point = await make_ready(desk, usb, filesystem)
    (state,) = desk.destinations.states()
    assert (state.problem, state.mount_point, state.present) == ("", point, True)
    assert state.space is not None
    assert state.space.filesystem == filesystem
    assert state.space.sparse
    assert state.space.preallocate
    assert state.space.direct_io
    entry = mounted_at(point)
    assert entry is not None
    assert {"rw", "nodev", "nosuid", "noexec"} <= set(entry.options)
    assert [name for name in os.listdir(point) if name != "lost+found"] == []

    (Path(point) / "kept").write_bytes(b"kept")
    await desk.destinations.release(snapshot(usb), usb.disk())
    assert mounted_at(point) is None
    assert all(node.read_only for node in blockdev.nodes_of(usb.dev))
    assert desk.destinations.states() == ()
    assert list(desk.workspace.grants_dir.iterdir()) == []
    part = usb.disk().partitions[0]
    for node in (usb.node, part.node):
        descriptor = os.open(node, os.O_RDWR)
        with pytest.raises(PermissionError):
            os.pwrite(descriptor, b"x" * 512, 0)
        os.close(descriptor)

    await desk.destinations.grant(snapshot(usb), usb.disk(), SERIAL)
    again = await desk.destinations.mount(snapshot(usb), usb.disk(), 1)
    assert (Path(again.mount_point) / "kept").read_bytes() == b"kept"
    assert desk.journal.events[-4:] == [
        "destination.granting", "destination.granted", "destination.mounting", "destination.mounted"]


async def test_exfat_is_made_in_a_partition(desk: Desk, usb: LoopDisk) -> None:
    await desk.destinations.grant(snapshot(usb), usb.disk(), SERIAL)
    await desk.destinations.format(snapshot(usb), usb.disk(), "exfat", SERIAL)
    (part,) = usb.disk().partitions
    assert "exfat" in {sig.kind for sig in part.signatures}
    codes = {finding.code for finding in desk.destinations.gate(snapshot(usb), usb.disk()).warnings}
    assert "no-sparse-files" in codes
    if "exfat" in Path("/proc/filesystems").read_text():
        space = await desk.destinations.mount(snapshot(usb), usb.disk())
        assert not space.sparse
    else:
        with pytest.raises(SetupError, match="no driver for exfat"):
            await desk.destinations.mount(snapshot(usb), usb.disk())
    await desk.destinations.release(snapshot(usb), usb.disk())
    assert usb.read_only


async def test_format_refuses_what_is_not_granted_or_not_blank(desk: Desk, usb: LoopDisk) -> None:
    with pytest.raises(PolicyRefusal, match="is not granted"):
        await desk.destinations.format(snapshot(usb), usb.disk(), "ext4", SERIAL)
    await desk.destinations.grant(snapshot(usb), usb.disk(), SERIAL)
    with pytest.raises(PolicyRefusal, match="not the serial"):
        await desk.destinations.format(snapshot(usb), usb.disk(), "ext4", "no")
    with pytest.raises(UsageError):
        await desk.destinations.format(snapshot(usb), usb.disk(), "zfs", SERIAL)
    assert usb.disk().is_blank
    with pytest.raises(UsageError, match="no file system"):
        await desk.destinations.mount(snapshot(usb), usb.disk())
    await desk.destinations.format(snapshot(usb), usb.disk(), "ext4", SERIAL)
    with pytest.raises(PolicyRefusal, match="not blank"):
        await desk.destinations.format(snapshot(usb), usb.disk(), "ext4", SERIAL)


async def test_a_disk_that_could_not_be_read_is_neither_formatted_nor_mounted(desk: Desk, usb: LoopDisk) -> None:
    await desk.destinations.grant(snapshot(usb), usb.disk(), SERIAL)
    unread = replace(usb.disk(), findings=(Finding(Severity.WARNING, SIGNATURES_UNREAD, "It hangs."),))
    seen = replace(snapshot(usb), disks=(unread,))
    with pytest.raises(DeviceError, match="could not be read yet"):
        await desk.destinations.format(seen, unread, "ext4", SERIAL)
    with pytest.raises(DeviceError, match="could not be read yet"):
        await desk.destinations.mount(seen, unread)
    assert usb.disk().is_blank


async def test_a_disk_without_partition_table_is_mounted_whole(desk: Desk, usb: LoopDisk) -> None:
    run("blockdev", "--setrw", usb.node)
    run("mkfs.xfs", "-q", usb.node)
    await desk.destinations.grant(snapshot(usb), usb.disk(), SERIAL)
    space = await desk.destinations.mount(snapshot(usb), usb.disk())
    assert space.filesystem == "xfs"
    again = await desk.destinations.mount(snapshot(usb), usb.disk())
    assert replace(again, free_bytes=space.free_bytes) == space


async def test_a_full_destination_says_so_and_is_not_left_mounted(desk: Desk, usb: LoopDisk) -> None:
    point = await make_ready(desk, usb)
    with pytest.raises(OSError, match="No space left"):
        fill(Path(point) / "fill")
    states = desk.destinations.states()
    assert states[0].space is not None
    assert states[0].space.free_bytes < 1 << 20
    await desk.destinations.release(snapshot(usb), usb.disk())
    await desk.destinations.grant(snapshot(usb), usb.disk(), SERIAL)
    with pytest.raises(SpaceError, match="full"):
        await desk.destinations.mount(snapshot(usb), usb.disk())
    assert mounted_at(point) is None
    assert desk.destinations.states()[0].mount_point == ""


async def test_release_waits_for_who_writes(desk: Desk, usb: LoopDisk) -> None:
    point = await make_ready(desk, usb)
    with (Path(point) / "busy").open("wb"):
        with pytest.raises(PolicyRefusal, match="in use") as refusal:
            await desk.destinations.release(snapshot(usb), usb.disk())
        assert f"({os.getpid()})" in refusal.value.evidence
        assert usb.id in desk.guard.grants()
        assert mounted_at(point) is not None
    await desk.destinations.release(snapshot(usb), usb.disk())
    assert usb.read_only
    with pytest.raises(UsageError, match="not a destination"):
        await desk.destinations.release(snapshot(usb), usb.disk())


async def test_space_is_told_for_a_destination_only(desk: Desk, usb: LoopDisk, tmp_path: Path) -> None:
    point = await make_ready(desk, usb)
    space = await desk.destinations.space_at(snapshot(usb), Path(point) / "case-1" / "deeper")
    assert space.mount_point == point
    assert 0 < space.free_bytes < 400 << 20
    with pytest.raises(PolicyRefusal, match="in RAM"):
        await desk.destinations.space_at(snapshot(usb), Path("/dev/shm/x"))
    with pytest.raises(PolicyRefusal, match="not on a granted destination"):
        await desk.destinations.space_at(snapshot(usb), tmp_path)
    (tmp_path / "link").symlink_to("/proc")
    with pytest.raises(PolicyRefusal, match="in RAM"):
        await desk.destinations.space_at(snapshot(usb), tmp_path / "link" / "x")


async def test_a_path_on_a_source_is_named_as_such(desk: Desk, usb: LoopDisk, tmp_path: Path) -> None:
    run("blockdev", "--setrw", usb.node)
    run("mkfs.ext4", "-q", usb.node)
    (tmp_path / "source").mkdir()
    run("mount", "-o", "ro", usb.node, str(tmp_path / "source"))
    with pytest.raises(PolicyRefusal, match=r"Usb Serial-01\), which is not granted"):
        await desk.destinations.space_at(snapshot(usb), tmp_path / "source")
    with pytest.raises(PolicyRefusal, match="in use: mounted at"):
        await desk.destinations.grant(snapshot(usb), usb.disk(), SERIAL)


async def test_a_source_never_becomes_a_destination(desk: Desk, usb: LoopDisk) -> None:
    desk.destinations.note_source(usb.id)
    other = make_desk(desk.workspace)
    with pytest.raises(PolicyRefusal, match="source of this session"):
        await other.destinations.grant(snapshot(usb), usb.disk(), SERIAL)
    assert usb.read_only


async def test_a_granted_disk_can_not_be_noted_as_a_source(desk: Desk, usb: LoopDisk) -> None:
    await desk.destinations.grant(snapshot(usb), usb.disk(), SERIAL)
    with pytest.raises(PolicyRefusal, match="granted as a destination"):
        desk.destinations.note_source(usb.id)


async def test_a_pulled_destination_is_shown_and_its_grant_is_dead(desk: Desk, usb: LoopDisk, tmp_path: Path) -> None:
    with loop_disk(tmp_path / "second", 300 << 20) as second:
        grant = await desk.destinations.grant(snapshot(second), second.disk(), "second")
        await desk.destinations.format(snapshot(second), second.disk(), "ext4", "second")
        space = await desk.destinations.mount(snapshot(second), second.disk())
        run("umount", space.mount_point)
    (state,) = desk.destinations.states()
    assert (state.present, state.serial) == (False, "second")
    assert "unplugged" in state.problem
    with pytest.raises(RescueError):
        desk.guard.redeem(grant)
    assert list(desk.workspace.grants_dir.iterdir()) == []

    with loop_disk(tmp_path / "second") as again:
        run("blockdev", "--setro", again.node)
        run("partx", "--update", again.node)
        roles = desk.destinations.roles(snapshot(again))
        assert roles[again.id].access is Access.SOURCE
        with pytest.raises(DeviceError, match="plugged again"):
            desk.guard.grant(replace(again.disk(), generation=grant.generation))
        await desk.destinations.grant(snapshot(again), again.disk(), "second")
        assert "destination.lost" in desk.journal.events
        await desk.destinations.mount(snapshot(again), again.disk())
        await desk.destinations.release(snapshot(again), again.disk())
        assert again.read_only


async def test_write_protected_hardware_is_refused_and_closed(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "locked").touch()
    os.truncate(tmp_path / "locked", 16 << 20)
    with loop_disk(tmp_path / "locked", 0, "--read-only") as disk:
        with pytest.raises(PolicyRefusal, match="write protected"):
            await desk.destinations.grant(snapshot(disk), disk.disk(), "locked")
        assert desk.guard.grants() == {}


async def test_a_command_without_a_live_grant_is_not_started(desk: Desk, usb: LoopDisk, tmp_path: Path) -> None:
    grant = await desk.destinations.grant(snapshot(usb), usb.disk(), SERIAL)
    await desk.destinations.release(snapshot(usb), usb.disk())
    with pytest.raises(PolicyRefusal, match="not in force"):
        await desk.runner.run(Command(("touch", str(tmp_path / "ran")), grant=grant))
    assert not (tmp_path / "ran").exists()


async def test_the_guard_tells_of_open_devices(desk: Desk, usb: LoopDisk) -> None:
    await desk.destinations.grant(snapshot(usb), usb.disk(), SERIAL)
    state = desk.guard.state()
    mine = next(device for device in state.devices if device.node == usb.node)
    assert (mine.read_only, mine.granted, mine.exempt) == (False, True, True)
    assert state.refused is None
    assert [grant.device_id for grant in state.grants] == [usb.id]
    open_nodes = {node.node for node in blockdev.all_nodes() if not node.read_only and not node.exempt}
    assert {finding.summary.split()[0] for finding in state.findings} == open_nodes
    with pytest.raises(PolicyRefusal, match="is granted"):
        desk.guard.protect(usb.disk())
    await desk.destinations.release(snapshot(usb), usb.disk())
    run("blockdev", "--setrw", usb.node)
    desk.guard.protect(usb.disk())
    assert usb.read_only
