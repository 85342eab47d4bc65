"""A run on an XFS disk with bad sectors: imaged, judged, extracted and salvaged by the built image."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from builder import samples
from builder.qemu import BuiltImage
from builder.vm import VmSpec

from tests.support.vm.machine import Machine
from tests.vm.damaged_scene import (
    BAD_STEP,
    CUT_STEP,
    GOOD_STEP,
    LAYERS,
    SERIAL,
    DamagedRun,
    damaged_run,
    name_of,
    payload_of,
)
from tests.vm.fault_scenes import SHELL, Operator, destination, sha256


def test_a_run_on_bad_sectors_from_the_image_to_the_rescued_files(
    image: BuiltImage, boot_to_tui: Callable[[VmSpec], Machine], artifacts: Path,
) -> None:
    run = damaged_run(artifacts)
    machine = boot_to_tui(VmSpec(
        image.kernel_boot(), drives=(run.drive, destination(artifacts, 768)), cmdline_extra=SHELL, memory_mib=1024))
    operator = Operator(machine)
    to = operator.open_destination()
    imaged = operator.verb("image", SERIAL, "--to", to, seconds=900)
    assert imaged.status == 1
    (job,) = imaged.document["jobs"]
    assert (job["state"], job["result"]["bad_bytes"]) == ("damaged", 512 * len(run.drive.bad_sectors))
    folder = operator.folder(job["case"], SERIAL)
    operator.good("mount", f"{folder}/image.raw", "--part", "1", "--at", "/run/node")

    answer = operator.verb("checkpoints", "scan", "/run/node", seconds=600)
    assert answer.status == 1
    _look_at_the_scan(answer.document, run, folder)
    _extract(operator, run, to)
    _salvage(operator, run, to)

    operator.good("unmount", "/run/node")
    operator.good("destination", "release", "DEST-1")
    machine.assert_untouched()


def _look_at_the_scan(document: dict[str, Any], run: DamagedRun, folder: str) -> None:
    rows = {row["step"]: row for row in document["checkpoints"]}
    assert {step: row["verdict"] for step, row in rows.items()} == {
        step: "incomplete" if step in {CUT_STEP, BAD_STEP} else "intact" for step in run.files}
    assert document["newest_good"] == f"run-7/checkpoint-{GOOD_STEP}"
    (found,) = document["runs"]
    assert [newer["path"] for newer in found["newer"]] == [
        f"run-7/checkpoint-{BAD_STEP}", f"run-7/checkpoint-{CUT_STEP}"]
    told = [(finding["offset"], finding["length"], tuple(finding["tensors"]))
            for finding in rows[BAD_STEP]["findings"] if finding["code"] == "bad-sectors"]
    assert told == list(run.bad)
    assert rows[BAD_STEP]["tensors"] == {
        "total": LAYERS, "verified": 0, "unverifiable": LAYERS - len(run.lost), "damaged": len(run.lost)}
    assert not [finding for finding in rows[CUT_STEP]["findings"] if finding["code"] == "bad-sectors"]
    bad_bytes = 512 * len(run.drive.bad_sectors)
    (known,) = document["damage_maps"]
    assert (known["mapfile"], known["offset_bytes"]) == (f"{folder}/image.map", samples.FIRST_PARTITION_BYTES)
    assert (known["bad_bytes"], known["unread_bytes"], known["in_files_bytes"]) == (bad_bytes, 0, bad_bytes)
    assert document["findings"] == []


def _extract(operator: Operator, run: DamagedRun, to: str) -> None:
    operator.good("checkpoints", "extract", f"/run/node/run-7/checkpoint-{GOOD_STEP}", "--to", f"{to}/good")
    for name, content in run.files[GOOD_STEP].items():
        operator.assert_identical(f"{to}/good/{name}", content)
    # Everything good of the run, and whoever has only coreutils can check it.
    document = operator.good("checkpoints", "extract", "/run/node", "--to", f"{to}/all")
    assert [row["step"] for row in document["checkpoints"]] == [100, 200, GOOD_STEP]
    assert all(row["copied"] for row in document["checkpoints"])
    for step in (100, 200, GOOD_STEP):
        for name, content in run.files[step].items():
            operator.assert_identical(f"{to}/all/run-7/checkpoint-{step}/{name}", content)
    operator.shell(f"cd {to}/all && sha256sum --quiet --strict -c MANIFEST.sha256")
    # Whoever asks for the damaged one gets it, and a manifest that says what of it was never read.
    newest = f"/run/node/run-7/checkpoint-{BAD_STEP}"
    operator.good("checkpoints", "extract", newest, "--to", f"{to}/bad", "--only", "incomplete")
    remarks = operator.shell(f"grep ^# {to}/bad/MANIFEST.sha256").splitlines()
    assert remarks == [f"# bad {offset}+{length}  model.safetensors" for offset, length, _ in run.bad]


def _salvage(operator: Operator, run: DamagedRun, to: str) -> None:
    newest = f"/run/node/run-7/checkpoint-{BAD_STEP}"
    answer = operator.verb("checkpoints", "salvage", newest, "--to", f"{to}/salvaged")
    assert answer.status == 1
    assert {item["tensor"] for item in answer.document["lost"]} == run.lost
    assert {item["code"] for item in answer.document["lost"]} == {"bad-sectors"}
    saved = {item["tensor"]: item for item in answer.document["salvaged"]}
    wanted = {name_of(layer): layer for layer in range(LAYERS) if name_of(layer) not in run.lost}
    assert set(saved) == set(wanted)
    for name, layer in wanted.items():
        item = saved[name]
        # No checksum covers a safetensors file: whole, and not called proven.
        assert item["proof"] == "unverifiable"
        part = f"tail -c +{item['at'] + 1} {to}/salvaged/{item['in']} | head -c {item['bytes']} | sha256sum"
        assert operator.shell(part).split()[0] == sha256(payload_of(BAD_STEP, layer)), name
