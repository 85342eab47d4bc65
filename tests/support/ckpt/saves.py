"""Saves of several files as trainers write them, small and in memory, around files of the real writers."""

from __future__ import annotations

import argparse
import io
import json
import struct
import tarfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rescue_tui.checkpoints.model import Checkpoint, Options
from rescue_tui.checkpoints.scan import Scan, scan
from rescue_tui.checkpoints.tree import MemoryTree

Files = dict[str, bytes]
SECOND_NS = 1_000_000_000


def safetensors_file(names: Mapping[str, int], metadata: Mapping[str, str] | None = None, fill: int = 1) -> bytes:
    """A safetensors file with a float32 vector of so many elements under each name."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    payload = b""
    for index, (name, count) in enumerate(names.items()):
        data = struct.pack("<f", fill + index) * count
        header[name] = {"dtype": "F32", "shape": [count], "data_offsets": [len(payload), len(payload) + len(data)]}
        payload += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + payload


def torch_file(value: object) -> bytes:
    """What torch.save writes into a file object."""
    import torch

    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def vector(count: int = 64, seed: int = 0) -> Any:
    """A float32 tensor without zeros. Without torch the test is skipped."""
    torch = pytest.importorskip("torch", reason="torch itself makes the tensors")

    return torch.arange(1, count + 1, dtype=torch.float32) + seed


def state(**names: int) -> dict[str, Any]:
    """A state dict of vectors."""
    return {name.replace("__", "."): vector(count) for name, count in names.items()}


def flipped(data: bytes, at: int) -> bytes:
    """The same with one bit turned."""
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def sharded(count: int = 3, stem: str = "model", index: bool = True) -> Files:
    """A safetensors model in shards, with its index."""
    files: Files = {}
    where: dict[str, str] = {}
    for number in range(1, count + 1):
        name = f"{stem}-{number:05d}-of-{count:05d}.safetensors"
        files[name] = safetensors_file({f"layers.{number}.weight": 256, f"layers.{number}.bias": 16})
        where |= {f"layers.{number}.weight": name, f"layers.{number}.bias": name}
    if index:
        files[f"{stem}.safetensors.index.json"] = json.dumps(
            {"metadata": {"total_size": count * 272 * 4}, "weight_map": where}).encode()
    return files


def megatron(step: int, tensor: int = 2, pipeline: int = 1) -> Files:
    """A legacy Megatron step of ``tensor`` x ``pipeline`` ranks with its tracker."""
    args = argparse.Namespace(tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline,
                              expert_model_parallel_size=1, iteration=step)
    names = [f"mp_rank_{one:02d}" + (f"_{two:03d}" if pipeline > 1 else "")
             for one in range(tensor) for two in range(pipeline)]
    files = {f"iter_{step:07d}/{name}/model_optim_rng.pt": torch_file(
        {"args": args, "iteration": step, "model": {"language_model": state(embedding=100)}})
        for name in names}
    return files | {"latest_checkpointed_iteration.txt": str(step).encode()}


def deepspeed(step: int, data: int = 2, model: int = 1, stage3: bool = False) -> Files:
    """A DeepSpeed tag with ZeRO partitions and its pointer."""
    tag = f"global_step{step}"
    files: Files = {"latest": tag.encode()}
    shapes = [{"w1": vector(96).shape, "w2": vector(32).shape}]
    for two in range(model):
        states = {"module": state(w1=96, w2=32), "dp_world_size": data, "mp_world_size": model, "global_steps": step,
                  "param_shapes": shapes}
        names = ([f"zero_pp_rank_{one}_mp_rank_{two:02d}_model_states.pt" for one in range(data)] if stage3
                 else [f"mp_rank_{two:02d}_model_states.pt"])
        for name in names:
            files[f"{tag}/{name}"] = torch_file(states)
        for one in range(data):
            files[f"{tag}/bf16_zero_pp_rank_{one}_mp_rank_{two:02d}_optim_states.pt"] = torch_file(
                {"optimizer_state_dict": {"partition_count": data, "zero_stage": 3 if stage3 else 2,
                                          "single_partition_of_fp32_groups": [vector(128 // data)]}})
    return files


def hf_trainer(step: int, ranks: int = 1) -> Files:
    """A Trainer's checkpoint directory."""
    name = f"checkpoint-{step}"
    files = {f"{name}/model.safetensors": safetensors_file({"a.weight": 512, "a.bias": 8}),
             f"{name}/optimizer.pt": torch_file({"state": {0: {"exp_avg": vector()}}, "param_groups": [{"lr": 0.1}]}),
             f"{name}/scheduler.pt": torch_file({"last_epoch": step}),
             f"{name}/training_args.bin": torch_file(argparse.Namespace(lr=0.1)),
             f"{name}/config.json": b"{}",
             f"{name}/trainer_state.json": json.dumps({"global_step": step, "epoch": 1.5}).encode()}
    for rank in range(ranks):
        random = "rng_state.pth" if ranks == 1 else f"rng_state_{rank}.pth"
        files[f"{name}/{random}"] = torch_file({"cpu": vector(16)})
    return files


def dcp(path: Path, step: int = 100, count: int = 300) -> Files:
    """What torch.distributed.checkpoint writes in one process, read back from ``path``."""
    import torch.distributed.checkpoint as writer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that it is one process, which is what is asked for
        writer.save({"model": state(w=count, b=20), "step": step}, checkpoint_id=str(path), no_dist=True)
    return {entry.name: entry.read_bytes() for entry in path.iterdir()}


def tar_of(files: Mapping[str, bytes]) -> bytes:
    """A tar as NeMo writes it."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def below(directory: str, files: Mapping[str, bytes]) -> Files:
    """The same files in a directory."""
    return {f"{directory}/{name}": data for name, data in files.items()}


def scanned(files: Mapping[str, bytes], times: Mapping[str, int] | None = None,
            links: Mapping[str, str] | None = None, values: bool = False, root: str = "") -> Scan:
    """A scan of files in memory; ``times`` are seconds."""
    return scan(MemoryTree(files, {name: at * SECOND_NS for name, at in (times or {}).items()}, links or {}),
                Options(values), root)


def only(found: Scan) -> Checkpoint:
    """The one row of a scan."""
    assert len(found.checkpoints) == 1, [row.path for row in found.checkpoints]
    return found.checkpoints[0]


def codes(row: Checkpoint) -> set[str]:
    """The codes of its findings but those that only inform."""
    return {finding.code for finding in row.reading.findings if finding.severity.value != "info"}


def told(row: Checkpoint) -> str:
    """All that is said of it."""
    return " ".join(f"{finding.summary} {finding.file} {' '.join(finding.tensors)}" for finding in row.reading.findings)
