"""Numbered shards: with an index, without one, without one by design, and split GGUF."""

from __future__ import annotations

import json

import pytest

from rescue_tui.checkpoints.model import Verdict
from tests.support.ckpt.saves import below, codes, only, safetensors_file, scanned, sharded, told


def test_a_whole_set_is_one_row_with_its_shards_as_members() -> None:
    row = only(scanned(below("model", sharded())))
    assert (row.path, row.reading.format, row.verdict) == ("model", "safetensors-sharded", Verdict.INTACT)
    assert codes(row) == set()
    assert len(row.reading.members) == 4
    assert len(row.reading.tensors) == 6


def test_the_root_of_the_scan_can_be_the_save() -> None:
    assert only(scanned(sharded())).path == "."


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_lost_shard_is_named_with_its_tensors(lost: int) -> None:
    files = sharded()
    name = f"model-{lost:05d}-of-00003.safetensors"
    del files[name]
    row = only(scanned(below("model", files)))
    assert row.verdict is Verdict.INCOMPLETE
    assert name in told(row)
    assert f"layers.{lost}.weight" in told(row)
    assert len(row.reading.tensors) == 4


def test_without_an_index_the_save_is_uncommitted_and_lost_numbers_count() -> None:
    files = sharded(index=False)
    assert only(scanned(files)).verdict is Verdict.UNCOMMITTED
    del files["model-00002-of-00003.safetensors"]
    row = only(scanned(files))
    assert row.verdict is Verdict.INCOMPLETE
    assert "model-00002-of-00003.safetensors" in told(row)


def test_index_alone_is_incomplete() -> None:
    row = only(scanned({"m/model.safetensors.index.json": sharded()["model.safetensors.index.json"]}))
    assert row.verdict is Verdict.INCOMPLETE


@pytest.mark.parametrize(("content", "verdict"), [
    (b"", Verdict.INCOMPLETE), (bytes(90), Verdict.INCOMPLETE), (b'{"weight_map": {"a":', Verdict.INCOMPLETE),
    (b'{"other": 1}', Verdict.CORRUPT), (b'{"weight_map": {"a": "../../etc/passwd"}}', Verdict.CORRUPT),
])
def test_an_index_that_can_not_be_used(content: bytes, verdict: Verdict) -> None:
    row = only(scanned(sharded() | {"model.safetensors.index.json": content}))
    assert row.verdict is verdict, told(row)
    assert "index-unusable" in codes(row)


def test_a_shard_of_another_save_is_inconsistent() -> None:
    files = sharded()
    files["model-00002-of-00003.safetensors"] = safetensors_file({"other.weight": 256})
    row = only(scanned(files))
    assert row.verdict is Verdict.INCONSISTENT
    assert "layers.2.weight" in told(row)


def test_a_cut_shard_hits_only_its_own_tensors() -> None:
    files = sharded()
    name = "model-00003-of-00003.safetensors"
    files[name] = files[name][:-32]
    row = only(scanned(files))
    assert row.verdict is Verdict.INCOMPLETE
    assert [tensor.name for tensor in row.reading.tensors if tensor.proof.value == "damaged"] == ["layers.3.bias"]


def test_two_sets_in_a_directory_are_two_rows_and_other_files_have_their_own() -> None:
    files = sharded() | sharded(2, "ema") | {"vae.safetensors": safetensors_file({"v": 64})}
    found = scanned(below("m", files))
    assert {row.path: row.verdict for row in found.checkpoints} == {
        "m/ema.safetensors.index.json": Verdict.INTACT, "m/model.safetensors.index.json": Verdict.INTACT,
        "m/vae.safetensors": Verdict.INTACT}


def test_variant_in_the_name_belongs_to_its_index() -> None:
    files = {name.replace("model.", "model.fp16.") if name.endswith("json") else name.replace("model-", "model.fp16-"):
             data for name, data in sharded().items()}
    index = json.loads(files["model.fp16.safetensors.index.json"])
    index["weight_map"] = {name: file.replace("model-", "model.fp16-") for name, file in index["weight_map"].items()}
    files["model.fp16.safetensors.index.json"] = json.dumps(index).encode()
    assert only(scanned(files)).verdict is Verdict.INTACT


def test_a_difference_of_the_total_is_no_damage() -> None:
    files = sharded()
    index = json.loads(files["model.safetensors.index.json"])
    index["metadata"]["total_size"] += 4
    row = only(scanned(files | {"model.safetensors.index.json": json.dumps(index).encode()}))
    assert row.verdict is Verdict.INTACT
    assert "total-differs" in {finding.code for finding in row.reading.findings}


def _ranks(counts: list[int]) -> dict[str, bytes]:
    """Each rank's part of one vector, as HuggingFaceStorageWriter(save_distributed=True) writes it."""
    files = {}
    for rank, count in enumerate(counts):
        sharing = {"DCP_VERSION": "1.0", "format": "pt",
                   "DCP_SHARDING_INFO": json.dumps({"w": {"saved_offsets": [sum(counts[:rank])]}})}
        files[f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors"] = safetensors_file({"w": count}, sharing)
    return files


def test_shards_that_ranks_wrote_have_no_index_by_design_and_are_put_together() -> None:
    row = only(scanned(_ranks([64, 64, 40])))
    assert (row.verdict, row.reading.format) == (Verdict.INTACT, "safetensors-sharded")
    assert codes(row) == set()
    (tensor,) = row.reading.tensors
    assert tensor.shape == (168,)
    assert [block.origin for block in tensor.blocks] == [(0,), (64,), (128,)]


@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_rank_leaves_a_gap(lost: int) -> None:
    files = _ranks([64, 64, 40])
    name = f"shard-{lost:05d}-model-00001-of-00001.safetensors"
    del files[name]
    row = only(scanned(files))
    assert row.verdict is Verdict.INCOMPLETE
    assert name in told(row)
    assert "chunks-do-not-tile" in codes(row)
