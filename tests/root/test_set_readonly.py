"""The program behind the udev rule, run as udev runs it, against a loop device (which the rule itself leaves alone)."""

from __future__ import annotations

import os
import shutil
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


RULES = Path(__file__).parents[2] / "image/mkosi.extra/usr/lib/udev/rules.d/00-stasis-readonly.rules"


def udev_test(node: blockdev.BlockNode, rules: str, directory: Path, action: str = "add") -> str:
    """What `udevadm test` says of an event, with these rules alone, in a mount namespace of its own."""
    (directory / "rules").mkdir()
    (directory / "lib").mkdir()
    (directory / "rules/00-stasis-readonly.rules").write_text(rules)
    shutil.copy(SCRIPT, directory / "lib/set-readonly")
    inside = """
        mount -t tmpfs tmpfs /run
        mkdir -p /dev/block && mount -t tmpfs tmpfs /dev/block
        mount --bind "$1/rules" /usr/lib/udev/rules.d
        mount -t tmpfs tmpfs /usr/local/lib && mkdir /usr/local/lib/stasis
        mount --bind "$1/lib" /usr/local/lib/stasis
        exec udevadm test --action="$2" "$3" 2>&1
    """
    link = f"/sys/class/block/{node.name}"
    there = Path("/dev/block").exists()
    try:
        return run("unshare", "--mount", "sh", "-ec", inside, "sh", str(directory), action, link)
    finally:
        if not there:
            Path("/dev/block").rmdir()


def rules_for_loops() -> str:
    """The rules as they are, but for loops too, and with the program where the namespace can put it."""
    text = RULES.read_text()
    assert 'KERNEL=="loop[0-9]*|' in text
    return text.replace('KERNEL=="loop[0-9]*|', 'KERNEL=="').replace("/usr/lib/stasis/", "/usr/local/lib/stasis/")


def test_udev_runs_it_in_the_middle_of_the_rules(usb: LoopDisk, tmp_path: Path) -> None:
    run("blockdev", "--setrw", usb.node)
    (disk,) = blockdev.nodes_of(usb.dev)
    said = udev_test(disk, rules_for_loops(), tmp_path, "change")
    assert "STASIS_ACCESS=read-only" in said
    assert "takes no effect" not in said
    assert usb.read_only


def test_udev_does_nothing_when_the_flag_is_set(usb: LoopDisk, tmp_path: Path) -> None:
    (disk,) = blockdev.nodes_of(usb.dev)
    said = udev_test(disk, rules_for_loops(), tmp_path)
    assert disk.name in said
    assert "/set-readonly" not in said


def test_no_later_rule_can_ask_for_a_watch() -> None:
    # `udevadm test` sets up no watches, so the text is what there is to look at; := makes it final (udev(7)).
    assert 'OPTIONS:="nowatch"' in RULES.read_text()


def test_udev_leaves_loops_alone(usb: LoopDisk, tmp_path: Path) -> None:
    run("blockdev", "--setrw", usb.node)
    (disk,) = blockdev.nodes_of(usb.dev)
    said = udev_test(disk, RULES.read_text(), tmp_path)
    assert f"DEVNAME={usb.node}" in said
    assert "STASIS_ACCESS" not in said
    assert not usb.read_only
