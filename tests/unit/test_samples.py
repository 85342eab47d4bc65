"""The sample disks that are made without a mount, judged by the tools that everybody else uses."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from builder import samples
from builder.host import BuildError
from builder.samples import FIRST_PARTITION_BYTES, MIB

pytestmark = pytest.mark.skipif(shutil.which("blkid") is None, reason="blkid is not installed")


def blkid(image: Path, offset_bytes: int = 0) -> dict[str, str]:
    done = subprocess.run(
        ["blkid", "-p", "-o", "export", "-O", str(offset_bytes), str(image)],
        capture_output=True, text=True, check=False,
    )
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def wipefs(image: Path, offset_bytes: int = 0) -> set[str]:
    """All signatures, not the one that blkid prefers."""
    with image.open("rb") as reader, image.with_suffix(".part").open("wb") as writer:
        reader.seek(offset_bytes)
        writer.write(reader.read())
    done = subprocess.run(
        ["wipefs", "--noheadings", "--output", "TYPE", str(image.with_suffix(".part"))],
        capture_output=True, text=True, check=True,
    )
    return set(done.stdout.split())


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    (top / "runs/step_1").mkdir(parents=True)
    (top / "runs/step_1/model.bin").write_bytes(bytes(range(256)) * 4000)
    (top / "notes").write_text("hello\n")
    return top


@pytest.mark.parametrize(("kind", "size_mib"), [("xfs", 320), ("ext4", 32), ("btrfs", 128)])
def test_a_file_system_with_its_files_is_made_without_a_mount(
    kind: str, size_mib: int, tree: Path, tmp_path: Path,
) -> None:
    image = tmp_path / "disk.img"
    getattr(samples, kind)(image, size_mib, "DEMO", tree)
    found = blkid(image, FIRST_PARTITION_BYTES)
    assert (found["TYPE"], found["LABEL"]) == (kind, "DEMO")
    assert blkid(image)["PTTYPE"] == "gpt"
    assert image.stat().st_size == size_mib * MIB
    assert (tree / "runs/step_1/model.bin").read_bytes() in image.read_bytes()


def test_names_that_a_prototype_can_not_say_are_refused(tree: Path) -> None:
    (tree / "two words").touch()
    with pytest.raises(BuildError, match="two words"):
        samples.prototype(tree)


def test_a_dirty_ext4_asks_for_recovery(tree: Path, tmp_path: Path) -> None:
    image, part = tmp_path / "disk.img", tmp_path / "part"
    samples.dirty_ext4(image, 64, "DIRTY", tree)
    part.write_bytes(image.read_bytes()[FIRST_PARTITION_BYTES:])
    features = subprocess.run(["dumpe2fs", "-h", str(part)], capture_output=True, text=True, check=True).stdout
    assert "needs_recovery" in features
    assert b"journalled" in part.read_bytes()


@pytest.mark.parametrize(("hibernated", "kind"), [(False, "swap"), (True, "swsuspend")])
def test_swap_is_recognised(hibernated: bool, kind: str, tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    samples.swap(image, 16, hibernated=hibernated)
    assert blkid(image)["TYPE"] == kind


def test_both_members_of_a_raid1_are_recognised(tmp_path: Path) -> None:
    payload = tmp_path / "payload"
    payload.write_bytes(b"inside the array")
    images = (tmp_path / "m0.img", tmp_path / "m1.img")
    samples.md_raid1(images, 32, "stor7:0", payload)
    found = [blkid(image) for image in images]
    assert {member["TYPE"] for member in found} == {"linux_raid_member"}
    assert {member["LABEL"] for member in found} == {"stor7:0"}
    assert len({member["UUID"] for member in found}) == 1
    assert len({member["UUID_SUB"] for member in found}) == 2
    assert wipefs(images[0]) == {"linux_raid_member"}


def test_mdadm_accepts_the_crafted_superblock(tmp_path: Path) -> None:
    if shutil.which("mdadm") is None:
        pytest.skip("mdadm is not installed")
    payload = tmp_path / "payload"
    payload.write_bytes(b"x")
    images = (tmp_path / "m0.img", tmp_path / "m1.img")
    samples.md_raid1(images, 32, "stor7:0", payload)
    said = subprocess.run(["mdadm", "--examine", str(images[1])], capture_output=True, text=True, check=True).stdout
    for words in ("- correct", "State : clean", "Internal Bitmap : 8 sectors", "Active device 1", "Array State : AA"):
        assert words in said


def test_a_payload_that_is_too_large_for_the_array_is_refused(tmp_path: Path) -> None:
    payload = tmp_path / "payload"
    samples.blank(payload, 32)
    with pytest.raises(BuildError, match="does not fit"):
        samples.md_raid1((tmp_path / "a", tmp_path / "b"), 32, "x", payload)


def test_a_zfs_member_is_recognised_by_pool_and_device(tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    samples.zfs_member(image, 128, "tank")
    found = blkid(image)
    assert (found["TYPE"], found["LABEL"], found["VERSION"]) == ("zfs_member", "tank", "5000")
    assert int(found["UUID"]) == 0x1122334455667788
    assert "zfs_member" in wipefs(image)


def test_noise_has_no_signature_and_is_the_same_each_time(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    samples.noise(first, 2)
    samples.noise(second, 2)
    assert first.read_bytes() == second.read_bytes()
    assert wipefs(first) == set()
    assert blkid(first) == {}
