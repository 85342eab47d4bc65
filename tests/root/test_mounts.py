"""Read-only mounts of real images: dirty logs are not replayed, not a byte changes, nothing is left behind."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from rescue_tui.core.errors import CommandError, PolicyRefusal, RescueError, UsageError
from rescue_tui.system.mounttable import mounted_at
from tests.root.conftest import Desk, make_desk
from tests.support.loops import loop_disk, run, snapshot

MAKE = {
    "ext4": ("mkfs.ext4", "-q"),
    "ext3": ("mkfs.ext3", "-q"),
    "ext2": ("mkfs.ext2", "-q"),
    "xfs": ("mkfs.xfs", "-q"),
    "btrfs": ("mkfs.btrfs", "-q"),
}
EMPTY = snapshot()


def sha256(path: Path) -> str:
    """The hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_image(tmp_path: Path, filesystem: str, *, dirty: bool) -> Path:
    """An image with ``settled`` in it; dirty: copied while mounted, with ``unsettled`` in the log only."""
    image = tmp_path / f"{filesystem}.raw"
    at = tmp_path / "making"
    at.mkdir()
    with loop_disk(tmp_path / f"{filesystem}.disk", 320 << 20) as disk:
        run(*MAKE[filesystem], disk.node)
        run("mount", disk.node, str(at))
        (at / "settled").write_bytes(b"settled")
        run("umount", str(at))
        if dirty:
            run("mount", disk.node, str(at))
            for number in range(50):
                with (at / f"unsettled-{number}").open("wb") as file:
                    file.write(b"unsettled")
                    os.fsync(file.fileno())
            run("cp", "--sparse=always", str(disk.file), str(image))
            run("umount", str(at))
        else:
            run("cp", "--sparse=always", str(disk.file), str(image))
    at.rmdir()
    disk.file.unlink()
    return image


def loops_over(path: Path) -> str:
    """What losetup lists for a backing file."""
    return run("losetup", "--associated", str(path)).strip()


@pytest.mark.parametrize("filesystem", ["xfs", "ext4", "ext3", "btrfs"])
async def test_a_dirty_image_is_shown_and_not_changed(desk: Desk, tmp_path: Path, filesystem: str) -> None:
    image = make_image(tmp_path, filesystem, dirty=True)
    before = sha256(image)
    # The positive control: an ordinary mount of the same bytes replays the log and changes them.
    control = tmp_path / "control.raw"
    shutil.copyfile(image, control)
    with loop_disk(control) as disk:
        (tmp_path / "c").mkdir()
        run("mount", disk.node, str(tmp_path / "c"))
        run("umount", str(tmp_path / "c"))
    assert sha256(control) != before

    mounted = await desk.mounts.mount(EMPTY, str(image), tmp_path / "at")
    assert (tmp_path / "at" / "settled").read_bytes() == b"settled"
    assert "last may be missing" in mounted.note
    with pytest.raises(OSError, match="Read-only file system"):
        (tmp_path / "at" / "new").touch()
    assert desk.mounts.mounted() == (mounted,)
    assert make_desk(desk.workspace).mounts.mounted() == (mounted,)
    entry = mounted_at(mounted.at)
    assert entry is not None
    assert {"ro", "nodev", "nosuid", "noexec"} <= set(entry.options)

    await desk.mounts.unmount(tmp_path / "at")
    assert sha256(image) == before
    assert loops_over(image) == ""
    assert desk.mounts.mounted() == ()
    assert list(desk.workspace.mounts_dir.iterdir()) == []
    assert desk.journal.events == ["mount.mounting", "mount.mounted", "mount.unmounting", "mount.unmounted"]


async def test_ext2_has_no_log_to_leave_alone(desk: Desk, tmp_path: Path) -> None:
    image = make_image(tmp_path, "ext2", dirty=False)
    before = sha256(image)
    mounted = await desk.mounts.mount(EMPTY, str(image), tmp_path / "at")
    assert mounted.note == ""
    await desk.mounts.unmount(tmp_path / "at")
    assert sha256(image) == before


async def test_two_copies_of_one_xfs_can_be_mounted(desk: Desk, tmp_path: Path) -> None:
    image = make_image(tmp_path, "xfs", dirty=False)
    shutil.copyfile(image, tmp_path / "copy.raw")
    await desk.mounts.mount(EMPTY, str(image), tmp_path / "one")
    await desk.mounts.mount(EMPTY, str(tmp_path / "copy.raw"), tmp_path / "two")
    assert len(desk.mounts.mounted()) == 2
    await desk.mounts.unmount(tmp_path / "one")
    await desk.mounts.unmount(tmp_path / "two")


@pytest.mark.parametrize("sector_bytes", [512, 4096])
async def test_a_partition_is_found_by_its_own_number(desk: Desk, tmp_path: Path, sector_bytes: int) -> None:
    case = tmp_path / "case"
    case.mkdir()
    unit = sector_bytes // 512
    with loop_disk(case / "image.raw", 64 << 20, "--sector-size", str(sector_bytes)) as disk:
        run("sfdisk", "-q", "--no-reread", "--no-tell-kernel", disk.node, stdin=(
            f"label: gpt\n2 : start={2048 // unit}, size={32768 // unit}\n"
            f"7 : start={40960 // unit}, size={65536 // unit}\n"))
    with loop_disk(case / "image.raw", 0, "--offset", str(40960 * 512), "--sizelimit", str(65536 * 512)) as part:
        run("mkfs.ext4", "-q", "-b", "4096", "-L", "seven", part.node)
    (case / "identity.json").write_text(json.dumps({"logical_sector_bytes": sector_bytes}))
    before = sha256(case / "image.raw")

    with pytest.raises(UsageError, match="2 partitions") as several:
        await desk.mounts.mount(EMPTY, str(case / "image.raw"), tmp_path / "at")
    assert "7: 33554432 bytes" in several.value.evidence
    with pytest.raises(UsageError, match="no partition 1"):
        await desk.mounts.mount(EMPTY, str(case / "image.raw"), tmp_path / "at", 1)
    with pytest.raises(PolicyRefusal, match="No file system was recognised"):
        await desk.mounts.mount(EMPTY, str(case / "image.raw"), tmp_path / "at", 2)
    assert loops_over(case / "image.raw") == ""

    mounted = await desk.mounts.mount(EMPTY, str(case / "image.raw"), tmp_path / "at", 7)
    assert (mounted.part, mounted.filesystem) == (7, "ext4")
    assert "lost+found" in os.listdir(tmp_path / "at")
    await desk.mounts.unmount(tmp_path / "at")
    assert sha256(case / "image.raw") == before


@pytest.mark.parametrize(("content", "word"), [
    ({4086: b"SWAPSPACE2", 1024: b"\1\0\0\0\xff\0\0\0"}, "swap"),
    ({0: b"LUKS\xba\xbe\0\1"}, "crypto_LUKS"),
    ({0: b"hsqs", 28: b"\4\0"}, "does not mount squashfs"),
])
async def test_what_is_no_safe_file_system_is_refused(
    desk: Desk, tmp_path: Path, content: dict[int, bytes], word: str,
) -> None:
    image = tmp_path / "image.raw"
    with image.open("wb") as file:
        file.truncate(16 << 20)
        for offset, text in content.items():
            file.seek(offset)
            file.write(text)
    before = sha256(image)
    with pytest.raises(PolicyRefusal, match=word):
        await desk.mounts.mount(EMPTY, str(image), tmp_path / "at")
    assert sha256(image) == before
    assert loops_over(image) == ""


async def test_two_file_systems_at_one_place_are_not_guessed_at(desk: Desk, tmp_path: Path) -> None:
    image = make_image(tmp_path, "ext4", dirty=False)
    with image.open("r+b") as file:
        file.write(b"hsqs")
        file.seek(28)
        file.write(b"\4\0")
    with pytest.raises(PolicyRefusal, match="several file systems at one place: ext4, squashfs"):
        await desk.mounts.mount(EMPTY, str(image), tmp_path / "at")


async def test_wrong_targets_and_directories_are_told_apart(desk: Desk, tmp_path: Path) -> None:
    image = make_image(tmp_path, "ext4", dirty=False)
    full = tmp_path / "full"
    full.mkdir()
    (full / "x").touch()
    for target, at, word in [
        (image, full, "is not empty"), (image, image, "can't be used"),
        (tmp_path / "none", tmp_path / "at", "No attached"),
        (full, tmp_path / "at", "neither an image"), (image, Path("/proc"), "already"),
    ]:
        with pytest.raises(UsageError, match=word):
            await desk.mounts.mount(EMPTY, str(target), at)
    with pytest.raises(UsageError, match="mounted nothing"):
        await desk.mounts.unmount(tmp_path / "at")
    assert loops_over(image) == ""


async def test_a_damaged_image_gives_the_words_of_mount_and_leaves_nothing(desk: Desk, tmp_path: Path) -> None:
    image = make_image(tmp_path, "ext4", dirty=False)
    with image.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (1 << 20))
    with pytest.raises(CommandError) as failed:
        await desk.mounts.mount(EMPTY, str(image), tmp_path / "at")
    assert "mount -t ext4 -o ro,nodev,nosuid,noexec,noload" in failed.value.evidence
    assert loops_over(image) == ""
    assert list(desk.workspace.mounts_dir.iterdir()) == []


async def test_a_device_is_seen_through_a_read_only_loop(desk: Desk, tmp_path: Path) -> None:
    image = make_image(tmp_path, "xfs", dirty=True)
    before = sha256(image)
    with loop_disk(image) as disk:
        mounted = await desk.mounts.mount(snapshot(disk), disk.node, tmp_path / "at")
        assert mounted.loop != disk.node
        assert (tmp_path / "at" / "settled").exists()
        await desk.mounts.unmount(tmp_path / "at")
        (tmp_path / "rw").mkdir()
        assert sha256(image) == before
        run("mount", disk.node, str(tmp_path / "rw"))
        with pytest.raises(PolicyRefusal, match="mounted for writing"):
            await desk.mounts.mount(snapshot(disk), disk.node, tmp_path / "at")
        run("umount", str(tmp_path / "rw"))


async def test_unmount_is_refused_while_in_use_and_goes_on_later(desk: Desk, tmp_path: Path) -> None:
    image = make_image(tmp_path, "ext4", dirty=False)
    await desk.mounts.mount(EMPTY, str(image), tmp_path / "at")
    with (tmp_path / "at" / "settled").open("rb"), pytest.raises(PolicyRefusal, match="in use"):
        await desk.mounts.unmount(tmp_path / "at")
    await desk.mounts.unmount(tmp_path / "at")
    assert loops_over(image) == ""


async def test_a_crash_before_the_mount_is_cleaned(desk: Desk, tmp_path: Path) -> None:
    image = make_image(tmp_path, "ext4", dirty=False)
    mounted = await desk.mounts.mount(EMPTY, str(image), tmp_path / "at")
    records = {path.name: path.read_bytes() for path in desk.workspace.mounts_dir.iterdir()}
    await desk.mounts.unmount(tmp_path / "at")
    # As a killed process leaves it: the loop is attached, the record is there, the mount is not.
    loop = run("losetup", "--read-only", "--find", "--show", str(image)).strip()
    for name, content in records.items():
        (desk.workspace.mounts_dir / name).write_bytes(content.replace(mounted.loop.encode(), loop.encode()))
    assert desk.mounts.mounted() == ()
    (cleaned,) = await desk.mounts.clean()
    assert cleaned.loop == loop
    assert loops_over(image) == ""
    assert await desk.mounts.clean() == ()


async def test_the_next_mount_cleans_what_a_crash_left(desk: Desk, tmp_path: Path) -> None:
    image = make_image(tmp_path, "ext4", dirty=False)
    first = await desk.mounts.mount(EMPTY, str(image), tmp_path / "at")
    (record,) = desk.workspace.mounts_dir.iterdir()
    content = record.read_bytes()
    await desk.mounts.unmount(tmp_path / "at")
    loop = run("losetup", "--read-only", "--find", "--show", str(image)).strip()
    record.write_bytes(content.replace(first.loop.encode(), loop.encode()))
    with desk.mounts._mounting(fcntl.LOCK_SH):
        # Somebody is in the middle of a mount: the record may be theirs.
        assert await make_desk(desk.workspace).mounts.clean() == ()
        assert loops_over(image) != ""
    await make_desk(desk.workspace).mounts.mount(EMPTY, str(image), tmp_path / "other")
    await desk.mounts.unmount(tmp_path / "other")
    assert loops_over(image) == ""


async def test_clean_leaves_the_loop_of_somebody_else_alone(desk: Desk, tmp_path: Path) -> None:
    image = make_image(tmp_path, "ext4", dirty=False)
    await desk.mounts.mount(EMPTY, str(image), tmp_path / "at")
    (record,) = desk.workspace.mounts_dir.iterdir()
    content = record.read_bytes()
    await desk.mounts.unmount(tmp_path / "at")
    with loop_disk(tmp_path / "other", 1 << 20) as other:
        record.write_bytes(json.dumps({**json.loads(content), "loop": other.node}).encode())
        assert len(await desk.mounts.clean()) == 1
        assert loops_over(other.file) != ""


async def test_a_plain_umount_by_hand_leaves_no_loop(desk: Desk, tmp_path: Path) -> None:
    image = make_image(tmp_path, "ext4", dirty=False)
    await desk.mounts.mount(EMPTY, str(image), tmp_path / "at")
    run("umount", str(tmp_path / "at"))
    assert loops_over(image) == ""
    assert desk.mounts.mounted() == ()
    await desk.mounts.unmount(tmp_path / "at")


async def test_a_hostile_file_name_is_shown_escaped(desk: Desk, tmp_path: Path) -> None:
    with pytest.raises(RescueError) as failed:
        await desk.mounts.mount(EMPTY, str(tmp_path / "\x1b[2J[/x]"), tmp_path / "at")
    assert "\x1b" not in str(failed.value)
