"""Orbax checkpoints of the real writer, whole and damaged."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescue_tui.checkpoints import orbax
from rescue_tui.checkpoints.model import Options, Proof, Reading, Verdict
from rescue_tui.checkpoints.ocdbt import read_database
from rescue_tui.checkpoints.tree import MemoryTree, Tree
from tests.support.ckpt import premade
from tests.support.ckpt.premade import Sample, cut, flip, zero

STEP = "step_17"
NAMES = ("orbax-ocdbt", "orbax-zarr3", "orbax-files", "orbax-files3")
OCDBT = NAMES[:2]
FILES = NAMES[2:]


@cache
def sample(name: str) -> Sample:
    return premade.load(name)


def read(tree: Tree, directory: str = STEP) -> Reading:
    return orbax.read_directory(tree, directory, Options())


def codes(reading: Reading) -> set[str]:
    return {finding.code for finding in reading.findings}


def equal(tree: Tree, reading: Reading, name: str, np: Any) -> bool:
    """Every tensor that is not damaged has the values that were saved."""
    good = [tensor for tensor in reading.tensors if tensor.proof is not Proof.DAMAGED]
    values = sample(name).values
    return all(premade.assembled(tree, tensor, np) == values[tensor.name].content for tensor in good)


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_save_is_intact_and_equal(name: str) -> None:
    np = pytest.importorskip("numpy")
    saved = sample(name)
    reading = read(saved.tree)
    assert reading.verdict is Verdict.INTACT
    assert codes(reading) == {"no-checksum"}
    assert {(tensor.name, tensor.dtype, tensor.shape) for tensor in reading.tensors} == {
        (key, value.dtype, value.shape) for key, value in saved.values.items()}
    assert equal(saved.tree, reading, name, np)
    assert (reading.step, reading.values["step"], reading.values["lr"]) == (17, 17, 0.25)
    assert set(reading.members) == set(saved.files)


@pytest.mark.parametrize("name", OCDBT)
def test_what_lies_in_nodes_is_proven(name: str) -> None:
    proofs = {tensor.name: tensor.proof for tensor in read(sample(name).tree).tensors}
    assert proofs["params.dense.bias"] is Proof.VERIFIED
    assert proofs["params.dense.kernel"] is Proof.UNVERIFIABLE


def test_claims_a_step_but_no_run() -> None:
    run = sample("orbax-run").tree
    assert orbax.claims(run, "run/1")
    assert not orbax.claims(run, "run")
    assert not orbax.claims(MemoryTree({"1/model.pt": b"x", "a_2/notes.txt": b"y"}), "1")


def test_old_steps_without_metadata_are_claimed_but_not_their_run() -> None:
    files = {path: content for path, content in sample("orbax-run").files.items()
             if not path.endswith(("_CHECKPOINT_METADATA", "commit_success.txt"))}
    tree = MemoryTree(files)
    assert orbax.claims(tree, "run/2")
    assert not orbax.claims(tree, "run")
    assert read(tree, "run/2").verdict is Verdict.VERIFIED
    flat = MemoryTree({path.replace("run/", "run_7/").replace("/state/", "/"): content
                       for path, content in files.items()})
    assert not orbax.claims(flat, "run_7")
    assert orbax.claims(flat, "run_7/1")


def test_items_of_a_manager() -> None:
    reading = read(sample("orbax-run").tree, "run/2")
    assert (reading.verdict, reading.step, reading.values["extra.epoch"]) == (Verdict.INTACT, 2, 2)


def test_a_missing_item_is_incomplete() -> None:
    saved = sample("orbax-run")
    gone = [path for path in saved.files if path.startswith("run/2/state/")]
    reading = read(saved.without(*gone), "run/2")
    assert reading.verdict is Verdict.INCOMPLETE
    assert any("state" in finding.summary for finding in reading.findings)
    assert read(saved.without("run/2/extra/metadata"), "run/2").verdict is Verdict.INCOMPLETE


@pytest.mark.parametrize("name", NAMES)
def test_a_temporary_name_is_uncommitted(name: str) -> None:
    where = f"{STEP}.orbax-checkpoint-tmp"
    files = {path.replace(STEP, where): content for path, content in sample(name).files.items()}
    assert orbax.claims(MemoryTree(files), where)
    assert read(MemoryTree(files), where).verdict is Verdict.UNCOMMITTED
    files.pop(f"{where}/manifest.ocdbt", None)
    reading = read(MemoryTree(files), where)
    assert reading.verdict is Verdict.UNCOMMITTED
    assert name in FILES or "manifest-missing" in codes(reading)


def test_no_time_of_commit_is_uncommitted_unless_the_marker_is_there() -> None:
    saved = sample("orbax-ocdbt")
    path = f"{STEP}/_CHECKPOINT_METADATA"

    def open_ended(content: bytes) -> bytes:
        head, _, tail = content.partition(b'"commit_timestamp_nsecs": ')
        return head + b'"commit_timestamp_nsecs": null' + tail[tail.index(b",") :]

    tree = saved.changed(path, open_ended)
    assert read(tree).verdict is Verdict.INTACT
    files = {key: value for key, value in tree.files.items() if not key.endswith("commit_success.txt")}
    assert read(MemoryTree(files)).verdict is Verdict.UNCOMMITTED


@pytest.mark.parametrize("name", OCDBT)
def test_a_lost_manifest_is_replaced_by_those_of_the_processes(name: str) -> None:
    np = pytest.importorskip("numpy")
    tree = sample(name).without(f"{STEP}/manifest.ocdbt")
    reading = read(tree)
    assert reading.verdict is Verdict.INCOMPLETE
    assert any("manifest.ocdbt" in finding.summary for finding in reading.findings)
    assert not any(tensor.proof is Proof.DAMAGED for tensor in reading.tensors)
    assert equal(tree, reading, name, np)


@pytest.mark.parametrize("name", OCDBT)
def test_the_manifests_of_processes_may_go(name: str) -> None:
    assert read(sample(name).without(f"{STEP}/ocdbt.process_0/manifest.ocdbt")).verdict is Verdict.INTACT


@pytest.mark.parametrize("name", NAMES)
def test_every_file_that_is_removed_shows(name: str) -> None:
    saved = sample(name)
    whole = read(saved.tree)
    used = {block.file for tensor in whole.tensors for block in tensor.blocks}
    for path in saved.files:
        reading = read(saved.without(path))
        needed = path.endswith(("/_METADATA", ".zarray", "zarr.json"))
        if path in used or needed:
            assert reading.verdict is Verdict.INCOMPLETE, path
        elif "manifest" not in path:
            assert reading.verdict.rank <= Verdict.INTACT.rank, path


@pytest.mark.parametrize("name", NAMES)
def test_cuts_and_zeros_in_values_name_their_arrays(name: str) -> None:
    saved = sample(name)
    for tensor in read(saved.tree).tensors:
        for block in tensor.blocks:
            if block.inline is not None:
                continue
            for tree in (saved.changed(block.file, cut(block.offset + block.length - 1)),
                         saved.changed(block.file, cut(block.offset + block.length // 2)),
                         saved.changed(block.file, zero(block.offset, block.length))):
                reading = read(tree)
                assert reading.verdict in {Verdict.CORRUPT, Verdict.INCOMPLETE}
                assert any(tensor.name in finding.tensors for finding in reading.findings)
                (found,) = (one for one in reading.tensors if one.name == tensor.name)
                assert found.proof is Proof.DAMAGED


def test_a_zero_page_in_a_chunk_that_still_decodes_is_damage() -> None:
    zstandard = pytest.importorskip("zstandard")
    content = random.Random(4).randbytes(64 << 10)
    frame = zstandard.ZstdCompressor(level=1).compress(content)
    array = {"chunks": [16384], "compressor": {"id": "zstd", "level": 1}, "dtype": "<f4", "fill_value": None,
             "filters": None, "order": "C", "shape": [16384], "zarr_format": 2}
    files = {"1/w/.zarray": json.dumps(array).encode(), "1/w/0": frame}
    assert read(MemoryTree(files), "1").verdict is Verdict.INTACT
    reading = read(MemoryTree({**files, "1/w/0": zero(8192, 4096)(frame)}), "1")
    assert reading.verdict is Verdict.CORRUPT
    assert [tensor.proof for tensor in reading.tensors] == [Proof.DAMAGED]


@pytest.mark.parametrize("name", OCDBT)
def test_every_bit_of_manifest_and_nodes_is_covered(name: str) -> None:
    saved = sample(name)
    database = read_database(saved.tree, STEP)
    manifest = f"{STEP}/manifest.ocdbt"
    nodes = {(value.file, value.offset, value.length) for value in database.values.values() if value.inline is not None}
    for path, offset, length in {(manifest, 0, len(saved.files[manifest])), *nodes}:
        for at in range(offset, offset + length, 3):
            assert read(saved.changed(path, flip(at, at % 8))).verdict in {Verdict.CORRUPT, Verdict.INCOMPLETE}, at
        for at in range(offset, offset + length, 29):
            assert read(saved.changed(path, cut(at))).verdict in {Verdict.CORRUPT, Verdict.INCOMPLETE}, at


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_chunk_is_lost_only_where_all_were_stored(name: str) -> None:
    if name in OCDBT:
        pytest.skip("chunks are keys of a node here")
    saved = sample(name)
    path = next(path for path in saved.files if "kernel" in path and path.endswith(("1.1", "1/1")))
    reading = read(saved.without(path))
    assert (reading.verdict, "chunk-missing" in codes(reading)) == (Verdict.INCOMPLETE, True)
    files = {**saved.files, f"{STEP}/_METADATA": saved.files[f"{STEP}/_METADATA"].replace(
        b'"store_array_data_equal_to_fill_value": true', b'"store_array_data_equal_to_fill_value": false')}
    del files[path]
    reading = read(MemoryTree(files))
    assert (reading.verdict, "chunk-absent" in codes(reading)) == (Verdict.INTACT, True)


def test_an_array_that_metadata_promises_is_missed() -> None:
    saved = sample("orbax-files")
    gone = [path for path in saved.files if "/params.half/" in path]
    reading = read(saved.without(*gone))
    assert reading.verdict is Verdict.INCOMPLETE
    assert any(tensor.name == "params.half" and tensor.proof is Proof.DAMAGED for tensor in reading.tensors)


def test_a_process_without_its_array_metadata_is_missed() -> None:
    saved = sample("orbax-ocdbt")
    files = {**saved.files, f"{STEP}/ocdbt.process_1/manifest.ocdbt": b""}
    assert read(MemoryTree(files)).verdict is Verdict.INCOMPLETE


@pytest.mark.parametrize(("content", "verdict"), [
    (b"", Verdict.INCOMPLETE), (b'{"tree_metadata": {"a', Verdict.INCOMPLETE), (bytes(100), Verdict.INCOMPLETE),
    (b"[" * 100_000, Verdict.CORRUPT), (b"[]", Verdict.CORRUPT), (b'{"tree_metadata": nul}', Verdict.CORRUPT),
], ids=["empty", "cut", "zeros", "deep", "list", "word"])
def test_damaged_metadata(content: bytes, verdict: Verdict) -> None:
    reading = read(sample("orbax-ocdbt").changed(f"{STEP}/_METADATA", lambda _: content))
    assert reading.verdict is verdict


def test_nothing_leads_out_of_a_database() -> None:
    saved = sample("orbax-ocdbt")
    assert all(path.startswith(STEP) for path in read_database(saved.tree, STEP).files)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_damage_crashes_or_is_proven(data: st.DataObject) -> None:
    np = pytest.importorskip("numpy")
    name = data.draw(st.sampled_from(NAMES))
    saved = sample(name)
    path = data.draw(st.sampled_from(sorted(saved.files)))
    length = len(saved.files[path])
    change = data.draw(st.one_of(
        st.builds(flip, st.integers(0, length - 1), st.integers(0, 7)), st.builds(cut, st.integers(0, length - 1)),
        st.builds(zero, st.integers(0, length - 1), st.integers(1, 4096)),
        st.binary(max_size=300).map(lambda content: lambda _: content)))
    tree = saved.changed(path, change)
    reading = read(tree)
    for tensor in reading.tensors:
        if tensor.proof is Proof.VERIFIED and tensor.name in saved.values:
            assert premade.assembled(tree, tensor, np) == saved.values[tensor.name].content
