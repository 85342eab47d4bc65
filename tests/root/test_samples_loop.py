"""The sample disks that need loop devices: file systems that died in mid-write, and LVM."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from builder import samples
from builder.samples import FIRST_PARTITION_BYTES


def output(*argv: str | Path) -> str:
    return subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    (top / "runs").mkdir(parents=True)
    (top / "runs/model.bin").write_bytes(b"model" * 1000)
    return top


def test_the_xfs_from_a_prototype_mounts_and_holds_its_files(tree: Path, tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    samples.xfs(image, 320, "DEMO", tree)
    with samples.mounted(image, "xfs") as top:
        assert (top / "runs/model.bin").read_bytes() == b"model" * 1000


def test_a_crashed_xfs_has_a_log_to_replay(tree: Path, tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    samples.xfs(image, 320, "DEMO", tree)
    samples.crash(image, "xfs", "runs/step_2/part.pt", b"p" * 100_000)
    with samples.loop(image, offset_bytes=FIRST_PARTITION_BYTES) as attached:
        said = subprocess.run(
            ["xfs_repair", "-n", str(attached.device)], capture_output=True, text=True, check=False,
        )
        assert "valuable metadata changes in a log" in said.stdout + said.stderr
    with samples.mounted(image, "xfs") as top:
        assert (top / "runs/step_2/part.pt").read_bytes()[:50_000] == b"p" * 50_000


@pytest.mark.parametrize("make", [samples.ext4, samples.dirty_ext4])
def test_a_crashed_ext4_replays_its_journal(make: object, tree: Path, tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    assert callable(make)
    make(image, 64, "DEMO", tree)
    if make is samples.ext4:
        samples.crash(image, "ext4", "runs/part.pt", b"p" * 100_000)
    with samples.loop(image, offset_bytes=FIRST_PARTITION_BYTES) as attached:
        assert "needs_recovery" in output("dumpe2fs", "-h", attached.device)
    before = image.read_bytes()
    with samples.mounted(image, "ext4") as top:
        assert (top / "runs/model.bin").read_bytes() == b"model" * 1000
    assert image.read_bytes() != before


def test_a_dirty_btrfs_has_a_log_tree(tree: Path, tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    samples.dirty_btrfs(image, 160, "DEMO", tree)
    with samples.loop(image, offset_bytes=FIRST_PARTITION_BYTES) as attached:
        said = output("btrfs", "inspect-internal", "dump-super", attached.device)
    fields = dict(line.split(None, 1) for line in said.splitlines() if len(line.split()) > 1)
    assert int(fields["log_root"].split()[0]) > 0


def test_lvm_has_a_group_and_a_volume(tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    samples.lvm(image, 64, "vg7")
    with samples.loop(image) as attached:
        only = f'devices{{use_devicesfile=0 filter=["a|^{attached.device}$|","r|.*|"]}}'
        said = output("lvs", "--config", only, "--noheadings", "-o", "vg_name,lv_name,lv_size", "--units", "m", "vg7")
    assert said.split() == ["vg7", "data", "16.00m"]


def test_mdadm_reads_the_crafted_bitmap(tmp_path: Path) -> None:
    payload = tmp_path / "payload"
    payload.write_bytes(b"x")
    images = (tmp_path / "m0.img", tmp_path / "m1.img")
    samples.md_raid1(images, 32, "stor7:0", payload)
    with samples.loop(images[0]) as attached:
        said = output("mdadm", "--examine-bitmap", attached.device)
    assert "Version : 4" in said
    assert "0 dirty" in said
