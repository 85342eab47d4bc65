"""Megatron, DeepSpeed, the HF Trainer and Accelerate: ranks, markers, pointers and steps of a save."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="the real writer makes the files")

from rescue_tui.checkpoints.model import Proof, Verdict
from tests.support.ckpt.saves import (
    below,
    codes,
    deepspeed,
    flipped,
    hf_trainer,
    megatron,
    only,
    safetensors_file,
    scanned,
    state,
    told,
    torch_file,
)


@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 1), (2, 1), (2, 3)])
def test_megatron_with_all_ranks_is_verified(tensor: int, pipeline: int) -> None:
    row = only(scanned(megatron(100, tensor, pipeline)))
    assert (row.verdict, row.reading.format, row.path) == (Verdict.VERIFIED, "megatron", "iter_0000100")
    assert row.reading.step == 100
    assert len(row.reading.tensors) == tensor * pipeline
    assert all(tensor.name.startswith("mp_rank_") for tensor in row.reading.tensors)


@pytest.mark.parametrize(("tensor", "pipeline", "lost"), [
    (4, 1, "mp_rank_03"), (2, 2, "mp_rank_01_001"), (4, 1, "mp_rank_01")])
def test_megatron_misses_a_rank_that_its_arguments_ask_for(tensor: int, pipeline: int, lost: str) -> None:
    files = {name: data for name, data in megatron(200, tensor, pipeline).items() if f"/{lost}/" not in name}
    row = only(scanned(files))
    assert row.verdict is Verdict.INCOMPLETE
    assert lost in told(row)


def test_megatron_of_two_steps_is_inconsistent() -> None:
    mixed = megatron(100) | {"iter_0000100/mp_rank_01/model_optim_rng.pt": torch_file(
        {"iteration": 90, "model": state(embedding=100)})}
    row = only(scanned(mixed))
    assert row.verdict is Verdict.INCONSISTENT
    assert "90" in told(row)


def test_megatron_reports_a_flip_in_one_rank() -> None:
    name = "iter_0000100/mp_rank_01/model_optim_rng.pt"
    files = megatron(100)
    whole = only(scanned(files))
    at = next(tensor for tensor in whole.reading.tensors if tensor.name.startswith("mp_rank_01")).blocks[0].offset
    row = only(scanned(files | {name: flipped(files[name], at + 5)}))
    assert row.verdict is Verdict.CORRUPT
    assert [tensor.name[:10] for tensor in row.reading.tensors if tensor.proof is Proof.DAMAGED] == ["mp_rank_01"]


@pytest.mark.parametrize("tracker", [b"", None, b"50"])
def test_megatron_newest_step_without_its_tracker_is_uncommitted(tracker: bytes | None) -> None:
    files = megatron(50) | megatron(100)
    if tracker is None:
        del files["latest_checkpointed_iteration.txt"]
    else:
        files["latest_checkpointed_iteration.txt"] = tracker
    found = scanned(below("run", files))
    assert [row.verdict for row in found.checkpoints] == [Verdict.VERIFIED, Verdict.UNCOMMITTED]
    assert found.newest_good == "run/iter_0000050"
    assert [(newer.path, newer.verdict) for newer in found.runs[0].newer] == [
        ("run/iter_0000100", Verdict.UNCOMMITTED)]


@pytest.mark.parametrize(("data", "model", "stage3"), [(2, 1, False), (4, 2, False), (3, 1, True)])
def test_deepspeed_with_all_partitions_is_verified(data: int, model: int, stage3: bool) -> None:
    row = only(scanned(deepspeed(50, data, model, stage3)))
    assert (row.verdict, row.reading.format, row.path, row.reading.step) == (
        Verdict.VERIFIED, "deepspeed", "global_step50", 50), told(row)
    assert codes(row) == set()


@pytest.mark.parametrize("lost", ["bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt", "mp_rank_00_model_states.pt",
                                  "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"])
def test_deepspeed_misses_a_partition_that_the_others_count(lost: str) -> None:
    files = deepspeed(60, 4)
    del files[f"global_step60/{lost}"]
    row = only(scanned(files))
    assert row.verdict is Verdict.INCOMPLETE
    assert lost in told(row)


def test_deepspeed_names_the_parameters_of_a_lost_partition() -> None:
    files = deepspeed(60, 4)
    del files["global_step60/bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt"]
    findings = [finding for finding in only(scanned(files)).reading.findings if finding.code == "partition-lost"]
    assert [finding.tensors for finding in findings] == [("w2",)]
    del files["global_step60/bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"]
    findings = [finding for finding in only(scanned(files)).reading.findings if finding.code == "partition-lost"]
    assert [finding.tensors for finding in findings] == [("w1",), ("w2",)]


def test_deepspeed_behind_its_pointer_is_uncommitted() -> None:
    files = deepspeed(50) | deepspeed(60) | {"latest": b"global_step50"}
    found = scanned(files)
    assert [row.verdict for row in found.checkpoints] == [Verdict.VERIFIED, Verdict.UNCOMMITTED]
    assert found.newest_good == "global_step50"


def test_deepspeed_universal_misses_a_file_that_other_parameters_have() -> None:
    files = {f"step/zero/{name}/{kind}.pt": torch_file({"param": state(x=8)["x"]})
             for name in ("w1", "w2") for kind in ("fp32", "exp_avg", "exp_avg_sq")}
    assert only(scanned(files)).verdict in {Verdict.VERIFIED, Verdict.UNCOMMITTED}
    del files["step/zero/w2/exp_avg.pt"]
    row = only(scanned(files))
    assert row.verdict is Verdict.INCOMPLETE
    assert "zero/w2/exp_avg.pt" in told(row)


@pytest.mark.parametrize("ranks", [1, 4])
def test_hf_trainer_is_one_intact_save(ranks: int) -> None:
    row = only(scanned(below("run", hf_trainer(500, ranks))))
    assert (row.verdict, row.reading.format, row.path, row.reading.step) == (
        Verdict.INTACT, "hf-trainer", "run/checkpoint-500", 500), told(row)
    assert "run/checkpoint-500/config.json" in row.reading.members
    assert {"a.weight", "a.bias"} <= {tensor.name for tensor in row.reading.tensors}


@pytest.mark.parametrize(("change", "verdict", "word"), [
    ({"trainer_state.json": None}, Verdict.UNCOMMITTED, "trainer_state.json"),
    ({"trainer_state.json": b"{\"global_st"}, Verdict.UNCOMMITTED, "trainer_state.json"),
    ({"trainer_state.json": json.dumps({"global_step": 400}).encode()}, Verdict.INCONSISTENT, "400"),
    ({"checkpoint-is-incomplete.txt": b""}, Verdict.UNCOMMITTED, "checkpoint-is-incomplete.txt"),
    ({"model.safetensors": None}, Verdict.INCOMPLETE, "model"),
    ({"optimizer.pt": b""}, Verdict.INCOMPLETE, "optimizer.pt"),
    ({"rng_state_1.pth": None}, Verdict.INCOMPLETE, "rng_state_1.pth"),
    ({"model.safetensors": b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 9\n"},
     Verdict.INCOMPLETE, "LFS"),
])
def test_hf_trainer_damage(change: dict[str, bytes | None], verdict: Verdict, word: str) -> None:
    files = hf_trainer(500, 4)
    for name, data in change.items():
        if data is None:
            del files[f"checkpoint-500/{name}"]
        else:
            files[f"checkpoint-500/{name}"] = data
    row = only(scanned(files))
    assert row.verdict is verdict, told(row)
    assert word in told(row)


def test_hf_trainer_under_its_temporary_name_is_uncommitted() -> None:
    files = {name.replace("checkpoint-", "tmp-checkpoint-"): data for name, data in hf_trainer(500).items()}
    row = only(scanned(files))
    assert (row.path, row.verdict) == ("tmp-checkpoint-500", Verdict.UNCOMMITTED)


def test_accelerate_save_is_one_row_and_counts_its_ranks() -> None:
    files = {"save/model.safetensors": safetensors_file({"a": 64}), "save/optimizer.bin": torch_file({"lr": 0.1}),
             **{f"save/random_states_{rank}.pkl": torch_file({"step": 7}) for rank in (0, 1, 3)}}
    row = only(scanned(files))
    assert row.verdict is Verdict.INCOMPLETE
    assert "random_states_2.pkl" in told(row)
    files["save/random_states_2.pkl"] = files["save/random_states_0.pkl"]
    assert only(scanned(files)).verdict is Verdict.INTACT
