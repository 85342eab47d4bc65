"""NeMo archives: tar structure around torch's own files."""

from __future__ import annotations

import gzip

import pytest

pytest.importorskip("torch", reason="the real writer makes the weights")

from hypothesis import given, settings
from hypothesis import strategies as st

from rescue_tui.checkpoints import nemo
from rescue_tui.checkpoints.model import Head, Options, Proof, Verdict
from rescue_tui.checkpoints.source import BytesSource
from tests.support.ckpt.saves import codes, flipped, only, scanned, state, tar_of, told, torch_file, vector

CONFIG = b"name: tiny\n"


@pytest.fixture(scope="module")
def archive() -> bytes:
    return tar_of({"./model_config.yaml": CONFIG, "./model_weights.ckpt": torch_file(state(w=500, b=16))})


def test_a_whole_archive_is_verified_and_blocks_lie_in_the_tar(archive: bytes) -> None:
    row = only(scanned({"tiny.nemo": archive}))
    assert (row.reading.format, row.verdict) == ("nemo", Verdict.VERIFIED), told(row)
    tensors = {tensor.name: tensor for tensor in row.reading.tensors}
    block = tensors["b"].blocks[0]
    assert archive[block.offset : block.offset + block.length] == vector(16).numpy().tobytes()


def test_a_renamed_archive_is_recognised_by_its_members(archive: bytes) -> None:
    assert only(scanned({"tiny.tar": archive})).reading.format == "nemo"


def test_other_tars_are_not_listed() -> None:
    assert scanned({"backup.tar": tar_of({"a.txt": b"hello", "b/c.txt": b"x" * 9999})}).checkpoints == ()


def test_model_parallel_ranks_have_names_of_their_own() -> None:
    data = tar_of({"model_config.yaml": CONFIG, "mp_rank_00/model_weights.ckpt": torch_file(state(w=8)),
                   "mp_rank_01/model_weights.ckpt": torch_file(state(w=8))})
    row = only(scanned({"m.nemo": data}))
    assert [tensor.name for tensor in row.reading.tensors] == ["mp_rank_00.w", "mp_rank_01.w"]


@pytest.mark.parametrize("percent", [2, 20, 30, 40])
def test_a_cut_archive_is_incomplete(archive: bytes, percent: int) -> None:
    row = only(scanned({"tiny.nemo": archive[: len(archive) * percent // 100]}))
    assert row.verdict is Verdict.INCOMPLETE, told(row)


def test_a_flip_in_the_weights_hits_one_tensor(archive: bytes) -> None:
    whole = only(scanned({"tiny.nemo": archive}))
    block = next(tensor for tensor in whole.reading.tensors if tensor.name == "w").blocks[0]
    row = only(scanned({"tiny.nemo": flipped(archive, block.offset + 3)}))
    assert row.verdict is Verdict.CORRUPT
    assert {tensor.name: tensor.proof for tensor in row.reading.tensors} == {"w": Proof.DAMAGED, "b": Proof.VERIFIED}


def test_a_flip_in_a_tar_header_is_corrupt(archive: bytes) -> None:
    at = archive.index(b"model_weights.ckpt")
    row = only(scanned({"tiny.nemo": flipped(archive, at)}))
    assert row.verdict is Verdict.CORRUPT
    assert "tar-broken" in codes(row)


def test_a_packed_archive_is_judged_as_a_whole(archive: bytes) -> None:
    data = gzip.compress(archive, mtime=0)
    assert only(scanned({"m.nemo": data})).verdict is Verdict.INTACT
    assert only(scanned({"m.nemo": data[:-5]})).verdict is Verdict.INCOMPLETE
    assert only(scanned({"m.nemo": flipped(data, len(data) // 2)})).verdict in {Verdict.CORRUPT, Verdict.INCOMPLETE}
    bomb = gzip.compress(bytes(1 << 22))
    assert only(scanned({"m.nemo": bomb})).verdict is Verdict.CORRUPT


def test_missing_members_are_told() -> None:
    assert only(scanned({"m.nemo": tar_of({"model_config.yaml": CONFIG})})).verdict is Verdict.INCOMPLETE
    row = only(scanned({"m.nemo": tar_of({"model_weights.ckpt": torch_file(state(w=8))})}))
    assert row.verdict is Verdict.INCOMPLETE
    assert "model_config.yaml" in told(row)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=40), st.integers(0, 10**6))
def test_mutations_neither_crash_nor_pass(archive: bytes, seed: int, patch: bytes, cut: int) -> None:
    at = seed % len(archive)
    data = (archive[:at] + patch + archive[at + len(patch) :])[: max(1, cut % (2 * len(archive)))]
    reading = nemo.read(BytesSource(data, "m.nemo"), Options())
    whole = nemo.read(BytesSource(archive, "m.nemo"), Options())
    intact = all(data[block.offset : block.offset + block.length] == archive[block.offset : block.offset + block.length]
                 for tensor in whole.tensors for block in tensor.blocks)
    assert intact or reading.verdict is not Verdict.VERIFIED


@given(st.binary(max_size=3000))
def test_random_bytes_are_no_crash(data: bytes) -> None:
    assert nemo.read(BytesSource(data), Options()).verdict.rank < Verdict.INTACT.rank
    assert isinstance(nemo.matches(Head("x", len(data), data[:4096], data[-128:])), bool)
