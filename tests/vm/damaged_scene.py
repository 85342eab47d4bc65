"""An XFS disk with a run of five steps, of which one was cut off and one lies over bad sectors."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builder import samples
from builder.vm import Drive

from tests.vm.fault_scenes import SECTOR

SIZE_MIB = 320
SERIAL = "NODE-BAD"
STEPS = (100, 200, 300, 400, 500)
# The fourth lost its end when the node died; the newest was whole, and its sectors went bad.
CUT_STEP, BAD_STEP, GOOD_STEP = 400, 500, 300
LAYERS = 6
LAYER_BYTES = 128 << 10
BAD_LAYER, EDGE_LAYERS = 2, (3, 4)


def name_of(layer: int) -> str:
    """The tensor's name."""
    return f"layers.{layer}.weight"


def payload_of(step: int, layer: int) -> bytes:
    """Finite numbers that occur nowhere else on the disk."""
    count = LAYER_BYTES // 4
    numbers = random.Random(f"{step} {layer}")
    return struct.pack(f"<{count}f", *(numbers.uniform(-1, 1) for _ in range(count)))


def safetensors_of(payloads: Mapping[str, bytes], step: int) -> bytes:
    """As the safetensors library writes vectors of float32: header padded to 8 bytes, tensors end to end."""
    header: dict[str, object] = {"__metadata__": {"format": "pt", "step": str(step)}}
    at = 0
    for name, data in payloads.items():
        header[name] = {"dtype": "F32", "shape": [len(data) // 4], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(payloads.values())


@dataclass(frozen=True, slots=True)
class DamagedRun:
    """The disk, and what was saved on it: the files of each step by name, and the newest step's tensors.

    ``bad`` are the bad sectors as offset and length in the newest step's file, and the tensors that lie on them.
    """

    drive: Drive
    files: Mapping[int, Mapping[str, bytes]]
    bad: tuple[tuple[int, int, tuple[str, ...]], ...]

    @property
    def lost(self) -> set[str]:
        """Tensors of the newest step that are gone."""
        return {name for _, _, names in self.bad for name in names}


def damaged_run(artifacts: Path) -> DamagedRun:
    """Make the disk. The sectors go bad beneath one tensor, and beneath the border between two others."""
    top = artifacts / "node.tree"
    saved: dict[int, dict[str, bytes]] = {}
    for step in STEPS:
        tensors = {name_of(layer): payload_of(step, layer) for layer in range(LAYERS)}
        state = {"global_step": step, "epoch": step / 100, "log_history": []}
        saved[step] = {
            "model.safetensors": safetensors_of(tensors, step),
            "config.json": json.dumps({"model_type": "demo", "layers": LAYERS}).encode(),
            "trainer_state.json": json.dumps(state).encode(),
        }
        directory = top / f"run-7/checkpoint-{step}"
        directory.mkdir(parents=True)
        for name, content in saved[step].items():
            cut = len(content) // 2 if step == CUT_STEP and name == "model.safetensors" else len(content)
            (directory / name).write_bytes(content[:cut])
    path = artifacts / "node.img"
    samples.xfs(path, SIZE_MIB, "node", top)
    model = saved[BAD_STEP]["model.safetensors"]
    content = path.read_bytes()
    bad, sectors = [], []
    for first, count, names in (
        (_offset(model, BAD_LAYER) + 40_000, 2, (name_of(BAD_LAYER),)),
        (_offset(model, EDGE_LAYERS[1]) - SECTOR, 2, tuple(name_of(layer) for layer in EDGE_LAYERS)),
    ):
        # The file begins at a block of the file system, so its sectors are the disk's.
        offset = first // SECTOR * SECTOR
        run = model[offset:offset + count * SECTOR]
        place = content.index(run)
        assert place % SECTOR == 0
        assert content.count(run) == 1
        bad.append((offset, len(run), names))
        sectors += [place // SECTOR + number for number in range(count)]
    drive = Drive(name="node", path=path, serial=SERIAL, bad_sectors=tuple(sectors))
    return DamagedRun(drive, saved, tuple(bad))


def _offset(model: bytes, layer: int) -> int:
    return len(model) - (LAYERS - layer) * LAYER_BYTES
