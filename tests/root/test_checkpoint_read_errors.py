"""A checkpoint of which the medium gives no bytes: what is told is what is lost, however many threads read it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rescue_tui.checkpoints.model import Options, Verdict
from rescue_tui.jobs.scanning import scan_paths
from rescue_tui.system.lanes import WIDE_BYTES
from tests.support.ckpt.saves import only, safetensors_file
from tests.support.damaged_images import MIB, physical, place
from tests.support.loops import loop_disk, run

LAYERS = 12


@pytest.mark.parametrize("filesystem", [("mkfs.ext4", "-q", "-b", "4096"), ("mkfs.xfs", "-q", "-f")],
                         ids=["ext4", "xfs"])
def test_everything_that_is_lost_is_told(filesystem: tuple[str, ...], tmp_path: Path) -> None:
    image, mounted = tmp_path / "disk.img", tmp_path / "mounted"
    mounted.mkdir()
    file = mounted / "model.safetensors"
    data = safetensors_file({f"layers.{number}.weight": (2 * MIB) // 4 for number in range(LAYERS)})
    assert len(data) > 2 * WIDE_BYTES
    with loop_disk(image, 400 * MIB) as disk:
        run(*filesystem, disk.node)
        run("mount", disk.node, str(mounted))
        file.write_bytes(data)
        run("umount", str(mounted))
        run("mount", "-o", "ro", disk.node, str(mounted))
        # What lies behind the end of its file is no byte of a loop device: reading there is an error of the medium.
        cut = place(file, 13 * MIB) // 4096 * 4096
        lost = sum(max(0, min(logical + length, len(data)) - max(logical, logical + cut - where))
                   for logical, where, length in physical(file))
        os.truncate(image, cut)
        for count in (1, 2):
            for path in (image, file):
                with path.open("rb") as handle:
                    os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            with file.open("rb") as handle, pytest.raises(OSError, match="Input/output error"):
                os.pread(handle.fileno(), 4096, 13 * MIB)
            row = only(scan_paths([mounted], Options(), processes=count).scan)
            assert row.verdict is Verdict.INCOMPLETE
            told = [finding for finding in row.reading.findings if finding.code == "unreadable"]
            assert sum(finding.length or 0 for finding in told) == lost
            assert {name for finding in told for name in finding.tensors} == {
                tensor.name for tensor in row.reading.tensors if tensor.proof == "damaged"}
        run("umount", str(mounted))
