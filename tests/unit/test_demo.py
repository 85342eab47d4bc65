"""The demonstration: which disks a machine gets, and what is said when something is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builder import demo, qemu
from builder.host import TOP, BuildError


@pytest.fixture
def disks(tmp_path: Path) -> Path:
    """The demonstration's description with small files in place of the disks."""
    for disk in demo.DISKS:
        (tmp_path / disk.file).write_bytes(b"\0" * 65536)
    (tmp_path / "disks.json").write_text(json.dumps([
        {"file": disk.file, "kind": disk.kind, "serial": disk.serial, "kept": disk.kept} for disk in demo.DISKS
    ]))
    return tmp_path


def test_the_description_keeps_a_serial_that_is_no_text(disks: Path) -> None:
    assert demo.demo_disks(disks) == demo.DISKS
    strange = demo.demo_disks(disks)[2].serial.encode(errors="surrogateescape")
    assert strange == b"[/foo]\x1b[7m, \xff=1"
    assert len(strange) <= 20


@pytest.mark.skipif(shutil.which("qemu-img") is None, reason="qemu-img is not installed")
def test_sources_get_overlays_and_the_destination_is_written_itself(disks: Path) -> None:
    drives = demo.attached(disks)
    assert [drive.format for drive in drives] == ["qcow2", "qcow2", "qcow2", "raw"]
    assert all(drive.path.read_bytes()[:4] == b"QFI\xfb" for drive in drives[:3])
    assert drives[3].path == disks / "rescue-usb.img"
    assert [drive.protected for drive in drives] == [True, True, True, False]
    assert (drives[3].kind, drives[3].removable) == ("usb", True)


def test_without_snapshot_every_disk_is_written_itself(disks: Path) -> None:
    drives = demo.attached(disks, snapshot=False)
    assert [drive.path for drive in drives] == [disks / disk.file for disk in demo.DISKS]
    assert {drive.format for drive in drives} == {"raw"}


def test_a_directory_of_plain_images_will_do(tmp_path: Path) -> None:
    (tmp_path / "mine.img").touch()
    assert demo.demo_disks(tmp_path) == (demo.DemoDisk("mine.img", "nvme", "MINE"),)


def test_an_empty_directory_says_what_makes_the_disks(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"no disk images\. `make samples`"):
        demo.demo_disks(tmp_path)


def test_disks_that_are_there_are_left_alone(disks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in disks.iterdir()}
    demo.make_demo(disks)
    assert "there already" in capsys.readouterr().err
    assert {path.name: path.stat().st_mtime_ns for path in disks.iterdir()} == before


def test_an_image_that_is_not_built_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"not built: .*stasis\.efi is missing\. Build it with `make image`\."):
        qemu.built_image(tmp_path)


def test_a_built_image_boots_with_its_own_command_line(tmp_path: Path) -> None:
    for name in ("stasis.efi", "stasis.vmlinuz", "stasis.initrd", "stasis.usb.raw"):
        (tmp_path / name).touch()
    (tmp_path / "stasis.cmdline").write_text("quiet audit=0\n")
    assert qemu.built_image(tmp_path).kernel_boot().cmdline == "quiet audit=0"


def test_a_missing_qemu_and_missing_firmware_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="qemu-system-x86_64 is not installed"):
        qemu.require_qemu()
    monkeypatch.setattr(qemu, "FIRMWARE", ((str(tmp_path / "none"), str(tmp_path / "none")),))
    with pytest.raises(BuildError, match="no UEFI firmware"):
        qemu.firmware_pair()


@pytest.mark.parametrize(("said", "accel"), [(b"boot Linux version 6", "kvm"), (b"nothing of the kind", "tcg")])
def test_kvm_counts_only_when_a_kernel_speaks(
    said: bytes, accel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = tmp_path / "fake-qemu"
    fake.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        "fd = next(word for word in sys.argv if word.startswith('socket,')).rpartition('=')[2]\n"
        f"os.write(int(fd), {said!r})\n"
    )
    fake.chmod(0o755)
    kernel = tmp_path / "vmlinuz"
    kernel.touch()
    monkeypatch.setattr(qemu, "PROGRAM", str(fake))
    monkeypatch.setattr(os, "access", lambda *_: True)
    assert qemu.working_accel(kernel) == accel
    qemu.working_accel.cache_clear()
    fake.unlink()
    assert qemu.working_accel(kernel) == accel


@pytest.mark.parametrize("script", ["run_vm", "make_samples"])
def test_the_scripts_explain_themselves(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(TOP / "scripts" / script), "--help"], capture_output=True, text=True, check=True,
    )
    assert "usage:" in done.stdout
