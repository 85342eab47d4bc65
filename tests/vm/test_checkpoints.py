"""Checkpoints on a disk of a dead node, judged by the built image without a byte written."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from builder import samples
from builder.qemu import BuiltImage
from builder.vm import Drive, VmSpec

from tests.support.source_rules import ROOT
from tests.support.vm.machine import Machine
from tests.vm.fault_scenes import SHELL, Operator

CORPUS = ROOT / "tests/data/checkpoints/handed.tar"
SIZE_MIB = 320


def test_each_sample_on_an_xfs_disk_gets_its_verdict(
    image: BuiltImage, boot_to_tui: Callable[[VmSpec], Machine], artifacts: Path,
) -> None:
    path, empty = artifacts / "node.img", artifacts / "empty"
    empty.mkdir()
    samples.xfs(path, SIZE_MIB, "node", empty)
    with samples.mounted(path, "xfs") as point:
        # Holes and times say more than the bytes do.
        subprocess.run(["tar", "-xf", CORPUS, "-C", point], check=True)
        rows = json.loads((point / "handed/expected.json").read_text())
    machine = boot_to_tui(VmSpec(
        image.kernel_boot(), drives=(Drive(name="node", path=path, serial="NODE-1"),), cmdline_extra=SHELL))
    operator = Operator(machine)
    operator.good("mount", operator.node("NODE-1"), "--part", "1", "--at", "/run/node")
    answer = operator.verb("checkpoints", "scan", "/run/node/handed", seconds=600)
    assert answer.status == 1
    found = {row["path"]: row for row in answer.document["checkpoints"]}
    wrong = []
    for row in rows:
        if row.get("decoy"):
            continue
        hits = [found[f"{row['case']}/{name}"] for name in (row["path"], *(row.get("path_alt") or ()))
                if f"{row['case']}/{name}" in found]
        wanted = row["verdict"] if isinstance(row["verdict"], list) else [row["verdict"]]
        if not hits or hits[0]["verdict"] not in wanted:
            wrong.append((row["case"], wanted, [hit["verdict"] for hit in hits]))
    assert wrong == []
    operator.good("unmount", "/run/node")
    machine.assert_untouched()
