"""The scan as a whole: the newest good one and why no newer one is, names, markers, foreign and empty files."""

from __future__ import annotations

import hashlib
import math
import struct

import pytest

from rescue_tui.checkpoints.model import Verdict
from rescue_tui.checkpoints.scan import salvageable
from rescue_tui.checkpoints.source import BytesSource, UnreadableBytes
from rescue_tui.checkpoints.tree import MemoryTree
from tests.support.ckpt.saves import codes, only, safetensors_file, scanned, told

GOOD = safetensors_file({"w": 512, "b": 16})
CUT = GOOD[:-100]


def test_newest_good_is_by_step_not_by_time() -> None:
    found = scanned({"run/step_10.safetensors": GOOD, "run/step_9.safetensors": GOOD, "run/step_11.safetensors": CUT},
                    {"run/step_10.safetensors": 5, "run/step_9.safetensors": 50})
    assert found.newest_good == "run/step_10.safetensors"
    (run,) = found.runs
    assert (run.path, run.newest_good) == ("run", "run/step_10.safetensors")
    assert [(newer.path, newer.verdict) for newer in run.newer] == [("run/step_11.safetensors", Verdict.INCOMPLETE)]
    assert run.newer[0].reason


def test_without_steps_the_time_decides() -> None:
    found = scanned({"a.safetensors": GOOD, "b.safetensors": GOOD, "c.safetensors": CUT},
                    {"a.safetensors": 9, "b.safetensors": 5, "c.safetensors": 10})
    assert found.newest_good == "a.safetensors"
    assert [newer.path for newer in found.runs[0].newer] == ["c.safetensors"]


def test_every_run_has_its_own_newest() -> None:
    found = scanned({f"{run}/step_{step}/model.safetensors": GOOD for run, step in (("a", 1), ("a", 2), ("b", 1))})
    assert {run.path: run.newest_good for run in found.runs} == {
        "a": "a/step_2/model.safetensors", "b": "b/step_1/model.safetensors"}


def test_nothing_good_is_none() -> None:
    found = scanned({"step_1.safetensors": CUT})
    assert found.newest_good is None
    assert len(found.runs[0].newer) == 1


def test_an_optimizer_alone_is_not_the_newest_good() -> None:
    found = scanned({"step_2/model.safetensors": CUT, "step_2/optimizer.safetensors": GOOD,
                     "step_1/model.safetensors": GOOD})
    assert found.newest_good == "step_1/model.safetensors"


@pytest.mark.parametrize("name", ["model.safetensors.tmp", "tmp_model.safetensors", ".tmpA1b2C3",
                                  ".model.safetensors.Xy12ab", "model.safetensors.incomplete",
                                  "step_5.tmp/model.safetensors", "tmp-checkpoint-7/model.safetensors"])
def test_temporary_names_are_uncommitted(name: str) -> None:
    row = only(scanned({name: GOOD}))
    assert row.verdict is Verdict.UNCOMMITTED
    assert codes(row) == {"temporary-name"}


def test_a_directory_that_only_looks_temporary_is_somebodys_own() -> None:
    assert only(scanned({"tmp_experiments/step_5/model.safetensors": GOOD})).verdict is Verdict.INTACT


def test_the_name_of_the_root_counts() -> None:
    assert only(scanned({"model.safetensors": GOOD}, root="step_70")).reading.step == 70


@pytest.mark.parametrize("marker", ["m--step=4.ckpt-unfinished", "m--step=4-unfinished"])
def test_an_unfinished_marker_beside_it(marker: str) -> None:
    path = "m--step=4.ckpt" if ".ckpt" in marker else "m--step=4/model.safetensors"
    row = only(scanned({path: GOOD, marker: b""}))
    assert row.verdict is Verdict.UNCOMMITTED
    assert "unfinished" in told(row)


@pytest.mark.parametrize(("content", "word"), [
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 12345\n", "LFS"),
    (b"<!DOCTYPE html>\n<html><head><title>503</title></head></html>", "HTML"),
    (b"  \n<html lang=en><body>no", "HTML"),
    (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "XML"),
    (b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        ", "AppleDouble"),
    (b"\x1f\x8b\x08\x00" + bytes(range(64)), "gzip"), (b"\x04\x22\x4d\x18" + bytes(range(64)), "lz4"),
    (b"\x28\xb5\x2f\xfd" + bytes(range(64)), "zstd"), (b"Entry not found\n", "text"),
    ('{"error": "não"}\n'.encode(), "text"),
])
@pytest.mark.parametrize("name", ["model.pt", "pytorch_model.bin", "x.ckpt", "y.safetensors"])
def test_foreign_content_under_a_checkpoints_name(content: bytes, word: str, name: str) -> None:
    row = only(scanned({name: content}))
    assert row.verdict is Verdict.FOREIGN
    assert word in told(row)


@pytest.mark.parametrize("content", [b"", bytes(100), bytes(50_000)])
def test_empty_files(content: bytes) -> None:
    row = only(scanned({"last.pt": content}))
    assert row.verdict is Verdict.EMPTY


def test_one_byte_in_the_middle_of_zeros_is_not_empty() -> None:
    data = bytes(40_000) + b"x" + bytes(40_000)
    assert only(scanned({"last.safetensors": data})).verdict is not Verdict.EMPTY


@pytest.mark.parametrize(("name", "content"), [
    ("notes.txt", b"hello"), ("firmware.bin", hashlib.sha512(b"x").digest() * 300), ("app.bin", b""),
    ("readme", b"hello"), ("backup.tar", b"a" * 1024), ("checkpoint", b"model_checkpoint_path: 'x'"),
    ("state.json", b"{}"), ("x.pt.md", b"about x.pt"), ("data.idx", bytes(100)), ("x.index", b"words and pages")])
def test_what_is_no_checkpoint_is_not_listed(name: str, content: bytes) -> None:
    assert scanned({name: content}).checkpoints == ()


def test_strong_name_with_unknown_content_is_corrupt() -> None:
    row = only(scanned({"model.pt": hashlib.sha512(b"x").digest() * 300}))
    assert row.verdict is Verdict.CORRUPT
    assert "unrecognised" in codes(row)


def test_a_checkpoint_under_any_name_is_found() -> None:
    assert only(scanned({"backup-of-monday": GOOD})).reading.format == "safetensors"


def test_a_file_that_can_not_be_read_is_a_row() -> None:
    class Broken(BytesSource):
        def read_at(self, offset: int, length: int) -> bytes:
            raise UnreadableBytes(offset, length, "Input/output error")

    from rescue_tui.checkpoints.model import Options
    from rescue_tui.checkpoints.scan import scan

    row = only(scan(MemoryTree({}, sources={"model.safetensors": Broken(GOOD, "model.safetensors")}), Options()))
    assert row.verdict in {Verdict.INCOMPLETE, Verdict.CORRUPT}
    assert not salvageable(row.reading)[0]


def test_salvageable_counts_what_is_whole() -> None:
    names, size = salvageable(only(scanned({"m.safetensors": GOOD[:-40]})).reading)
    assert names == ("w",)
    assert size == 512 * 4


def test_hugging_face_cache_names_prove_content() -> None:
    good, bad = hashlib.sha256(GOOD).hexdigest(), hashlib.sha256(b"other").hexdigest()
    files = {f"models--a/blobs/{good}": GOOD, f"models--a/blobs/{bad}": GOOD, f"models--a/blobs/{'0' * 64}": GOOD,
             "models--a/refs/main": b"r1"}
    links = {"models--a/snapshots/r1/model.safetensors": f"../../blobs/{good}"}
    tree = MemoryTree({**files, "models--a/snapshots/r1/model.safetensors": GOOD}, links=links)
    from rescue_tui.checkpoints.model import Options
    from rescue_tui.checkpoints.scan import scan

    verdicts = {row.path: row.verdict for row in scan(tree, Options()).checkpoints}
    assert verdicts == {
        "models--a/snapshots/r1/model.safetensors": Verdict.VERIFIED, f"models--a/blobs/{bad}": Verdict.CORRUPT,
        f"models--a/blobs/{'0' * 64}": Verdict.CORRUPT}


def test_an_interrupted_download_is_uncommitted_or_worse() -> None:
    row = only(scanned({f"models--a/blobs/{'a' * 64}.incomplete": GOOD}))
    assert row.verdict.rank <= Verdict.UNCOMMITTED.rank


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e37])
def test_values_are_looked_at_when_asked(number: float) -> None:
    at = len(GOOD) - 16 * 4 - 8
    hurt = GOOD[:at] + struct.pack("<f", number) + GOOD[at + 4 :]
    assert codes(only(scanned({"m.safetensors": hurt}))) == set()
    row = only(scanned({"m.safetensors": hurt}, values=True))
    (finding,) = [finding for finding in row.reading.findings if finding.code == "absurd-values"]
    assert (finding.tensors, finding.offset) == (("w",), at)
    assert row.verdict is Verdict.INTACT
    assert codes(only(scanned({"m.safetensors": GOOD}, values=True))) == set()
