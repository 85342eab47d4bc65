"""torch.distributed.checkpoint as its own writer makes it: slices, metadata, staleness, ranks."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed.checkpoint", reason="the real writer makes the files")

from hypothesis import given, settings
from hypothesis import strategies as st

from rescue_tui.checkpoints.layouts.dcp_metadata import parse
from rescue_tui.checkpoints.layouts.dcp_slices import archives
from rescue_tui.checkpoints.layouts.tiling import box_fault, file_gaps
from rescue_tui.checkpoints.model import Options, Proof, Verdict
from rescue_tui.checkpoints.source import BytesSource, Span
from rescue_tui.jobs.scanning import scan_paths
from tests.support.ckpt.saves import Files, below, codes, dcp, flipped, only, scanned, told, vector

DATA = "__0_0.distcp"


@pytest.fixture(scope="module")
def save(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return dcp(tmp_path_factory.mktemp("dcp") / "step")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A later save with a larger tensor, so that the layout differs."""
    return dcp(tmp_path_factory.mktemp("other") / "step", 200, 400)


def test_a_whole_save_is_verified_and_tells_its_step(save: Files) -> None:
    row = only(scanned(below("ckpt/step_7", save)))
    assert (row.verdict, row.reading.format, row.path) == (Verdict.VERIFIED, "torch-dcp", "ckpt/step_7")
    assert codes(row) == set()
    assert {tensor.name: tensor.shape for tensor in row.reading.tensors} == {"model.w": (300,), "model.b": (20,)}
    assert row.reading.step == 100  # from inside, not from the name


def test_blocks_point_at_the_bytes_of_the_tensor(save: Files) -> None:
    row = only(scanned(below("s", save)))
    tensor = next(tensor for tensor in row.reading.tensors if tensor.name == "model.b")
    block = tensor.blocks[0]
    assert save[DATA][block.offset : block.offset + block.length] == vector(20).numpy().tobytes()


@pytest.mark.parametrize(("change", "verdict", "word"), [
    ({".metadata": None}, Verdict.UNCOMMITTED, ".metadata"),
    ({".metadata": b""}, Verdict.INCOMPLETE, ".metadata"),
    ({".metadata": bytes(500)}, Verdict.INCOMPLETE, ".metadata"),
    ({DATA: None}, Verdict.INCOMPLETE, DATA),
    ({DATA: b""}, Verdict.INCOMPLETE, "ends"),
])
def test_lost_members(save: Files, change: dict[str, bytes | None], verdict: Verdict, word: str) -> None:
    files = {name: data for name, data in (save | change).items() if data is not None}
    row = only(scanned(below("s", files)))
    assert row.verdict is verdict, told(row)
    assert word in told(row)


def test_metadata_that_was_not_renamed_is_used(save: Files) -> None:
    files = {".metadata.tmp": save[".metadata"], DATA: save[DATA]}
    row = only(scanned(below("s", files)))
    assert row.verdict is Verdict.UNCOMMITTED
    assert ".metadata.tmp" in told(row)
    assert all(tensor.proof is Proof.VERIFIED for tensor in row.reading.tensors)


def test_data_that_is_newer_than_its_metadata_is_inconsistent(save: Files) -> None:
    times = {"s/.metadata": 100, f"s/{DATA}": 103}
    assert only(scanned(below("s", save), times)).verdict is Verdict.INCONSISTENT
    assert only(scanned(below("s", save), {"s/.metadata": 100, f"s/{DATA}": 101})).verdict is Verdict.VERIFIED


def test_whole_data_of_another_save_is_inconsistent_not_corrupt(save: Files, other: Files) -> None:
    row = only(scanned(below("s", {".metadata": save[".metadata"], DATA: other[DATA]})))
    assert row.verdict is Verdict.INCONSISTENT, told(row)
    assert "metadata-mismatch" in codes(row)


def test_a_flip_hits_one_tensor(save: Files) -> None:
    row = only(scanned(below("s", save)))
    block = next(tensor for tensor in row.reading.tensors if tensor.name == "model.w").blocks[0]
    hurt = only(scanned(below("s", save | {DATA: flipped(save[DATA], block.offset + 9)})))
    assert hurt.verdict is Verdict.CORRUPT
    assert {tensor.name: tensor.proof for tensor in hurt.reading.tensors} == {
        "model.w": Proof.DAMAGED, "model.b": Proof.VERIFIED}
    finding = next(finding for finding in hurt.reading.findings if finding.verdict is Verdict.CORRUPT)
    assert finding.tensors == ("model.w",)
    assert finding.offset is not None
    assert abs(finding.offset - block.offset) <= 128


@pytest.mark.parametrize("percent", [1, 30, 60, 99])
def test_a_cut_leaves_what_lies_before_it(save: Files, percent: int) -> None:
    data = save[DATA]
    row = only(scanned(below("s", save | {DATA: data[: len(data) * percent // 100]})))
    assert row.verdict is Verdict.INCOMPLETE, told(row)
    whole = only(scanned(below("s", save)))
    for tensor, before in zip(row.reading.tensors, whole.reading.tensors, strict=True):
        ends = max(block.offset + block.length for block in before.blocks)
        assert tensor.proof is Proof.DAMAGED or ends <= len(data) * percent // 100


def test_without_metadata_a_gap_in_the_ranks_is_incomplete(save: Files) -> None:
    files = {"__0_0.distcp": save[DATA], "__2_0.distcp": save[DATA]}
    row = only(scanned(below("s", files)))
    assert row.verdict is Verdict.INCOMPLETE
    assert "__1_0.distcp" in told(row)


def test_metadata_that_leads_outside_is_corrupt(save: Files) -> None:
    hostile = save[".metadata"].replace(DATA.encode(), b"../_0.distcp")
    row = only(scanned(below("s", save | {".metadata": hostile})))
    assert row.verdict is Verdict.CORRUPT
    assert "outside" in told(row)


def test_integrity_manifest_is_compared(save: Files) -> None:
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in save.items()}
    manifest = json.dumps({"algorithm": "sha256", "files": sums}).encode()
    assert only(scanned(below("s", save | {"integrity.json": manifest}))).verdict is Verdict.VERIFIED
    wrong = json.dumps({"algorithm": "sha256", "files": sums | {DATA: "0" * 64}}).encode()
    row = only(scanned(below("s", save | {"integrity.json": wrong})))
    assert row.verdict is Verdict.CORRUPT
    assert "sha256-mismatch" in codes(row)


def test_megatron_dist_needs_its_marker(save: Files) -> None:
    marker = {"metadata.json": b'{"sharded_backend": "torch_dist"}'}
    tracker = {"run/latest_checkpointed_iteration.txt": b"100"}
    row = only(scanned(below("run/iter_0000100", save | marker) | tracker))
    assert (row.verdict, row.reading.format) == (Verdict.VERIFIED, "megatron")
    row = only(scanned(below("run/iter_0000100", save) | tracker))
    assert row.verdict is Verdict.UNCOMMITTED
    assert "metadata.json" in told(row)


def test_archives_are_found_one_behind_the_other(save: Files) -> None:
    spans = sorted(Span(part.offset, part.length) for part in parse(save[".metadata"]).slices)
    assert list(archives(BytesSource(save[DATA]))) == spans


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=64), st.booleans())
def test_mutated_saves_neither_crash_nor_pass_for_verified(save: Files, seed: int, patch: bytes, meta: bool) -> None:
    name = ".metadata" if meta else DATA
    at = seed % len(save[name])
    hurt = save[name][:at] + patch + save[name][at + len(patch) :]
    row = only(scanned(below("s", save | {name: hurt})))
    damaged = [block for tensor in only(scanned(below("s", save))).reading.tensors for block in tensor.blocks
               if hurt[block.offset : block.offset + block.length] != save[name][block.offset :
                                                                                 block.offset + block.length]]
    assert meta or not damaged or row.verdict is not Verdict.VERIFIED


@given(st.binary(max_size=2000))
def test_random_metadata_never_raises(data: bytes) -> None:
    assert parse(data).fault


@pytest.mark.parametrize(("size", "boxes", "fault"), [
    ((4, 4), [((0, 0), (2, 4)), ((2, 0), (2, 4))], ""),
    ((4, 4), [((0, 0), (2, 4)), ((2, 0), (2, 2))], "cover"),
    ((4, 4), [((0, 0), (3, 4)), ((2, 0), (2, 4))], "overlap"),
    ((4, 4), [((0, 0), (4, 2)), ((0, 2), (4, 3))], "beyond"),
    ((4,), [((0, 0), (4, 1))], "dimensions"),
    ((), [((), ())], ""), ((0, 3), [((0, 0), (0, 3))], ""), ((), [], "cover"),
])
def test_boxes_tile(size: tuple[int, ...], boxes: list[tuple[tuple[int, ...], tuple[int, ...]]], fault: str) -> None:
    answer = box_fault(size, boxes)
    assert fault in answer if fault else not answer


def test_gaps_of_a_file() -> None:
    gaps = file_gaps([Span(0, 4), Span(6, 4), Span(9, 3)], 15)
    assert [(gap.span.offset, gap.span.length, gap.overlap) for gap in gaps] == [
        (4, 2, False), (9, 1, True), (12, 3, False)]


def test_a_real_directory_is_the_same(save: Files, tmp_path: Path) -> None:
    for name in (DATA, ".metadata"):
        (tmp_path / name).write_bytes(save[name])
    row = only(scan_paths([tmp_path], Options()).scan)
    assert (row.path, row.verdict) == (".", Verdict.VERIFIED)
