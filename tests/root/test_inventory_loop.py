"""The inventory on a real loop device: GPT, ext4 with a stale second signature, XFS, swap, mounts and events."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rescue_tui.core.device import DeviceKind, Disk
from rescue_tui.core.snapshot import diff
from rescue_tui.system.inventory import Inventory
from rescue_tui.system.runner import Runner
from rescue_tui.system.tools.wipefs import signatures_command
from tests.support.loops import LoopDisk, loop_disk, run

MIB = 1 << 20
SECTOR = 512
EXT4_START, EXT4_SIZE = 2048, 100 * MIB // SECTOR
XFS_START, XFS_SIZE = 2048 + 128 * MIB // SECTOR, 320 * MIB // SECTOR
WAIT_SECONDS = 20


def _partition_nodes(disk: LoopDisk) -> None:
    """Let the kernel know the partitions; one without a GPT parser is told them."""
    name = Path(disk.node).name
    if not Path(f"/sys/block/{name}/{name}p1").exists():
        run("addpart", disk.node, "1", str(EXT4_START), str(EXT4_SIZE))
        run("addpart", disk.node, "2", str(XFS_START), str(XFS_SIZE))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    """GPT; partition 1 is ext4 with the label of an LVM physical volume left before it, partition 2 is XFS."""
    file = tmp_path / "disk.img"
    with loop_disk(file, 512 * MIB, "--partscan") as loop:
        run("sfdisk", "--quiet", "--no-reread", "--no-tell-kernel", loop.node, stdin=(
            f"label: gpt\nstart={EXT4_START}, size={EXT4_SIZE}, name=\"data [b]one\"\n"
            f"start={XFS_START}, size={XFS_SIZE}\n"))
        _partition_nodes(loop)
        run("pvcreate", "--quiet", f"{loop.node}p1")
        with open(f"{loop.node}p1", "rb") as node:
            label = node.read(1024)[512:]
        run("mkfs.ext4", "-q", "-F", "-L", "we[/b]ird", f"{loop.node}p1")
        with open(f"{loop.node}p1", "r+b") as node:
            node.seek(512)
            node.write(label)
            node.flush()
            os.fsync(node.fileno())
        run("mkfs.xfs", "-q", "-f", "-L", "scratch", f"{loop.node}p2")
        yield loop


async def seen(inventory: Inventory, node: str) -> Disk:
    return {disk.node: disk for disk in (await inventory.snapshot()).disks}[node]


async def test_a_real_disk_with_all_its_signatures(disk: LoopDisk) -> None:
    found = await seen(Inventory(Runner()), disk.node)
    assert (found.kind, str(found.id), found.backing_file) == (DeviceKind.LOOP, f"loop:{disk.file}", str(disk.file))
    assert (found.size_bytes, found.logical_sector_bytes, found.dev) == (512 * MIB, 512, disk.dev)
    assert found.generation > 0
    assert found.partition_table == "gpt"
    assert {sig.kind for sig in found.signatures} == {"gpt", "PMBR"}
    ext4, xfs = found.partitions
    assert (ext4.number, ext4.start_bytes, ext4.size_bytes) == (1, EXT4_START * SECTOR, EXT4_SIZE * SECTOR)
    assert [(sig.kind, sig.usage, sig.label) for sig in ext4.signatures] == [
        ("LVM2_member", "raid", ""), ("ext4", "filesystem", "we[/b]ird")]
    assert [(sig.kind, sig.label) for sig in xfs.signatures] == [("xfs", "scratch")]
    assert found.signatures_complete


async def test_looking_changes_nothing(disk: LoopDisk) -> None:
    run("blockdev", "--flushbufs", disk.node)
    before = hashlib.sha256(disk.file.read_bytes()).digest()
    inventory = Inventory(Runner())
    found = await seen(inventory, disk.node)
    await inventory.health(found)
    await inventory.raw_health(found)
    run("blockdev", "--flushbufs", disk.node)
    assert hashlib.sha256(disk.file.read_bytes()).digest() == before


async def test_a_write_shows_in_the_next_snapshot_without_any_event(disk: LoopDisk) -> None:
    inventory = Inventory(Runner())
    await inventory.snapshot()
    run("wipefs", "--quiet", "--all", f"{disk.node}p2")
    assert (await seen(inventory, disk.node)).partitions[1].signatures == ()
    run("mkswap", "--label", "swap one", f"{disk.node}p2")
    assert [(sig.kind, sig.label) for sig in (await seen(inventory, disk.node)).partitions[1].signatures] == [
        ("swap", "swap one")]


async def test_mounts_show_at_their_partition(disk: LoopDisk, tmp_path: Path) -> None:
    point = tmp_path / "mount point"
    point.mkdir()
    run("mount", "-o", "ro,norecovery", f"{disk.node}p2", str(point))
    found = await seen(Inventory(Runner()), disk.node)
    (mount,) = found.partitions[1].mounts
    assert (mount.target, mount.filesystem, mount.writable) == (str(point), "xfs", False)
    assert not found.mounts
    assert not found.partitions[0].mounts
    assert found.all_mounts == (mount,)


async def test_a_loop_that_is_attached_again_is_another_attachment(tmp_path: Path) -> None:
    inventory = Inventory(Runner())
    file = tmp_path / "again.img"
    with loop_disk(file, 8 * MIB) as first:
        old = await inventory.snapshot()
        node = first.node
    gone = await inventory.snapshot()
    assert str(file) not in [disk.backing_file for disk in gone.disks]
    with loop_disk(file) as second:
        new = await inventory.snapshot()
        before = next(disk for disk in old.disks if disk.node == node)
        after = next(disk for disk in new.disks if disk.node == second.node)
    assert before.id == after.id
    assert before.generation != after.generation
    assert after in diff(old, new).added


async def test_plugging_and_pulling_are_told(tmp_path: Path) -> None:
    inventory = Inventory(Runner())
    await inventory.snapshot()
    changes = inventory.changes()
    news = asyncio.ensure_future(anext(changes))
    # Listening begins with the first step of the iterator; the next snapshot ends after it.
    await inventory.snapshot()
    with loop_disk(tmp_path / "plugged.img", 8 * MIB) as loop:
        await asyncio.wait_for(news, WAIT_SECONDS)
        assert (await seen(inventory, loop.node)).is_blank
        news = asyncio.ensure_future(anext(changes))
    await asyncio.wait_for(news, WAIT_SECONDS)
    await changes.aclose()  # type: ignore[attr-defined]
    assert str(tmp_path / "plugged.img") not in [disk.backing_file for disk in (await inventory.snapshot()).disks]


def test_wipefs_opens_the_disk_for_reading_only(disk: LoopDisk) -> None:
    traced = subprocess.run(
        ("strace", "-f", "-e", "trace=open,openat", *signatures_command(f"{disk.node}p1").argv),
        check=False, capture_output=True, text=True, timeout=60) if Path("/usr/bin/strace").exists() else None
    if traced is None or traced.returncode:
        pytest.skip("needs strace and the right to trace")
    opened = [line for line in traced.stderr.splitlines() if f'"{disk.node}p1"' in line]
    assert opened
    assert all("O_RDONLY" in line for line in opened)
