"""The program behind the udev rule, run as udev runs it, against a loop device (which the rule itself leaves alone)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from rescue_tui.system import blockdev
from tests.support.loops import LoopDisk, run

SCRIPT = Path(__file__).parents[2] / "image/mkosi.extra/usr/lib/stasis/set-readonly"


def as_udev(node: blockdev.BlockNode, state: Path) -> str:
    """Run it for an event of this node; what it printed."""
    link = Path(os.path.realpath(f"/sys/dev/block/{node.dev_text}"))
    environment = {"DEVPATH": str(link).removeprefix("/sys"), "DEVNAME": node.node, "MAJOR": str(node.dev[0]),
                   "MINOR": str(node.dev[1]), "STASIS_STATE": str(state)}
    return run_script(environment).stdout


def run_script(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The script with nothing but this environment."""
    return subprocess.run((str(SCRIPT),), env=environment, check=True, capture_output=True, text=True, timeout=30)


def test_a_disk_without_grant_becomes_read_only(usb: LoopDisk, tmp_path: Path) -> None:
    run("blockdev", "--setrw", usb.node)
    (disk,) = blockdev.nodes_of(usb.dev)
    # A grant of the attachment before this one, and one of another device, open nothing.
    grants = tmp_path / "grants"
    grants.mkdir()
    (grants / f"{disk.dev_text}.{disk.diskseq - 1}").touch()
    (grants / f"{disk.dev[0]}:{disk.dev[1] + 1}.{disk.diskseq}").touch()
    assert as_udev(disk, tmp_path) == "STASIS_ACCESS=read-only\n"
    assert usb.read_only


def test_a_granted_disk_and_its_partitions_stay_open(usb: LoopDisk, tmp_path: Path) -> None:
    run("blockdev", "--setrw", usb.node)
    run("sfdisk", "-q", "--no-reread", "--no-tell-kernel", usb.node, stdin="label: gpt\n;\n")
    run("partx", "--update", usb.node)
    disk, part = blockdev.nodes_of(usb.dev)
    grants = tmp_path / "grants"
    grants.mkdir()
    (grants / f"{disk.dev_text}.{disk.diskseq}").touch()
    assert as_udev(disk, tmp_path) == "STASIS_ACCESS=granted\n"
    # A partition that was made a moment ago has no file of its own yet.
    assert as_udev(part, tmp_path) == "STASIS_ACCESS=granted\n"
    assert not any(node.read_only for node in blockdev.nodes_of(usb.dev))


def test_only_the_partition_is_closed_when_it_has_no_grant(usb: LoopDisk, tmp_path: Path) -> None:
    run("blockdev", "--setrw", usb.node)
    run("sfdisk", "-q", "--no-reread", "--no-tell-kernel", usb.node, stdin="label: gpt\n;\n")
    run("partx", "--update", usb.node)
    disk, part = blockdev.nodes_of(usb.dev)
    assert as_udev(part, tmp_path) == "STASIS_ACCESS=read-only\n"
    assert [node.read_only for node in blockdev.nodes_of(usb.dev)] == [False, True]
    assert as_udev(disk, tmp_path) == "STASIS_ACCESS=read-only\n"


def test_a_failure_is_told_to_udev(tmp_path: Path) -> None:
    node = blockdev.BlockNode("no-such-node", (999, 9), 1, False, 512)
    done = run_script(
        {"DEVPATH": "/none", "DEVNAME": node.node, "MAJOR": "999", "MINOR": "9", "STASIS_STATE": str(tmp_path)})
    assert done.stdout == "STASIS_ACCESS=open\n"
    assert "no-such-node" in done.stderr
