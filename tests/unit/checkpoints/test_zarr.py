"""Zarr arrays of the real writer through every codec, and metadata that can't be."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescue_tui.checkpoints import orbax, zarr
from rescue_tui.checkpoints.model import Options, Proof, Reading, Verdict
from rescue_tui.checkpoints.source import BytesSource
from rescue_tui.checkpoints.tree import MemoryTree
from tests.support.ckpt import premade
from tests.support.ckpt.premade import Sample, cut, flip

CHECKED = {"crc", "zstd", "gzip", "zstdcrc", "turned", "shards", "first", "two"}
BARE = {"plain", "big", "blosc"}


@cache
def sample() -> Sample:
    return premade.load("zarr-codecs")


def read(tree: MemoryTree) -> Reading:
    return orbax.read_directory(tree, "", Options())


def only(name: str) -> Sample:
    saved = sample()
    return Sample({path: content for path, content in saved.files.items() if path.startswith(f"{name}/")},
                  {name: saved.values[name]})


@pytest.mark.parametrize("name", sorted(CHECKED | BARE))
def test_arrays_are_equal_and_proven_where_a_checksum_is(name: str) -> None:
    np = pytest.importorskip("numpy")
    saved = only(name)
    reading = read(saved.tree)
    (tensor,) = reading.tensors
    assert reading.verdict is (Verdict.VERIFIED if name in CHECKED else Verdict.INTACT)
    assert tensor.proof is (Proof.VERIFIED if name in CHECKED else Proof.UNVERIFIABLE)
    assert tensor.shape == saved.values[name].shape
    if name != "blosc":
        assert premade.assembled(saved.tree, tensor, np) == saved.values[name].content


@pytest.mark.parametrize("name", sorted(CHECKED))
def test_every_bit_that_is_covered_shows(name: str) -> None:
    np = pytest.importorskip("numpy")
    saved = only(name)
    for path, content in saved.files.items():
        if path.endswith((".zarray", "zarr.json")):
            continue
        for at in range(0, len(content), 7):
            tree = saved.changed(path, flip(at, at % 8))
            reading = read(tree)
            if reading.verdict is Verdict.VERIFIED:  # a header's byte that means nothing (gzip's time and system)
                assert premade.assembled(tree, reading.tensors[0], np) == saved.values[name].content
                assert name in {"gzip", "two"}
        for at in range(0, len(content), 31):
            assert read(saved.changed(path, cut(at))).verdict in {Verdict.INCOMPLETE, Verdict.CORRUPT}, (path, at)


def metadata(**changes: Any) -> bytes:
    found = {"shape": [4, 4], "data_type": "float32", "chunk_grid": {"name": "regular", "configuration": {
        "chunk_shape": [2, 2]}}, "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes"}],
        "zarr_format": 3, "node_type": "array", "fill_value": 0}
    return json.dumps({**found, **changes}).encode()


@pytest.mark.parametrize("changes", [
    {"shape": [4]}, {"shape": [-1, 4]}, {"shape": "44"}, {"shape": [1 << 70, 1]}, {"shape": [10**9, 10**9]},
    {"data_type": "string"}, {"data_type": 7}, {"zarr_format": 2}, {"node_type": "group"}, {"chunk_grid": []},
    {"shape": [1] * 100}, {"shape": [True, 4]},
    {"codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [3, 2], "codecs": []}}]},
])
def test_impossible_metadata_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(zarr.ZarrError):
        zarr.parse_v3(metadata(**changes))


@pytest.mark.parametrize(("key", "index"), [
    ("c/1/1", (1, 1)), ("c/2/0", None), ("c/0", None), ("0/0", None), ("c/a/0", None), ("c/-1/0", None), ("c", None),
])
def test_keys_of_chunks(key: str, index: tuple[int, ...] | None) -> None:
    assert zarr.chunk_index(zarr.parse_v3(metadata()), key) == index


def test_codecs_that_are_not_known_are_told_not_judged() -> None:
    array = zarr.parse_v3(metadata(codecs=[{"name": "bytes"}, {"name": "numcodecs.lz4"}]))
    check = zarr.check_chunk(array, (0, 0), BytesSource(b"whatever"), 0, 8)
    assert [fault.unknown for fault in check.faults] == [True]
    assert check.parts[0].proof is Proof.UNVERIFIABLE


def test_a_bomb_is_not_decoded() -> None:
    zstandard = pytest.importorskip("zstandard")
    array = zarr.parse_v3(metadata(codecs=[{"name": "bytes"}, {"name": "zstd"}]))
    bomb = zstandard.ZstdCompressor(level=19, write_content_size=False).compress(bytes(64 << 20))
    check = zarr.check_chunk(array, (0, 0), BytesSource(bomb), 0, len(bomb))
    assert check.parts[0].proof is Proof.DAMAGED


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([["zstd"], ["gzip"], ["crc32c"], ["zstd", "crc32c"], ["blosc"], []]))
def test_random_chunks_neither_crash_nor_are_proven(content: bytes, codecs: list[str]) -> None:
    array = zarr.parse_v3(metadata(codecs=[{"name": "bytes"}, *({"name": name} for name in codecs)]))
    check = zarr.check_chunk(array, (1, 1), BytesSource(content), 0, len(content))
    assert all(part.proof is not Proof.VERIFIED for part in check.parts)


@settings(max_examples=200, deadline=None)
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["shape", "chunks", "dtype", "codecs", "name", "configuration", "chunk_shape"]), inner),
    max_leaves=8), st.sampled_from(["shape", "codecs", "chunk_grid", "chunk_key_encoding", "data_type"]))
def test_odd_metadata_is_read_or_refused(value: Any, field: str) -> None:
    try:
        array = zarr.parse_v3(metadata(**{field: value}))
    except zarr.ZarrError:
        return
    assert len(array.shape) == len(array.chunk)
