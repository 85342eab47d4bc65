"""TensorFlow bundles of the real writer, whole and damaged, and some that only a builder makes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescue_tui.checkpoints.model import Options, Proof, Reading, Verdict
from rescue_tui.checkpoints.source import BytesSource, UnreadableBytes
from rescue_tui.checkpoints.tf_bundle import Bundle, is_bundle, parse_state, prefixes, read_bundle
from rescue_tui.checkpoints.tf_entries import Extent, slice_key
from rescue_tui.checkpoints.tree import MemoryTree, Tree
from tests.support.ckpt import premade, sstables
from tests.support.ckpt.premade import Sample, cut, flip, zero

ALL = ("tf-dtypes", "all")
PARTS = ("tf-dtypes", "parts")
SHARDED = ("tf-sharded", "ckpt-3")
OBJECT = ("tf-object", "ckpt-1")
BUNDLES = (ALL, PARTS, SHARDED, OBJECT)
TEXT = {"string", "variant"}


@cache
def sample(name: str) -> Sample:
    return premade.load(name)


def read(tree: Tree, prefix: str) -> Reading:
    return read_bundle(tree, prefix, Options())


def codes(reading: Reading) -> set[str]:
    return {finding.code for finding in reading.findings}


def named(reading: Reading, code: str) -> set[str]:
    return {name for finding in reading.findings if finding.code == code for name in finding.tensors}


def equal(tree: Tree, reading: Reading, name: str, np: Any, proofs: set[Proof]) -> bool:
    values = sample(name).values
    return all(premade.assembled(tree, tensor, np) == values[tensor.name].content
               for tensor in reading.tensors if tensor.proof in proofs and tensor.name in values)


@pytest.mark.parametrize(("name", "prefix"), BUNDLES)
def test_a_whole_bundle_is_verified_and_equal(name: str, prefix: str) -> None:
    np = pytest.importorskip("numpy")
    saved = sample(name)
    reading = read(saved.tree, prefix)
    assert (reading.verdict, reading.findings) == (Verdict.VERIFIED, ())
    assert all(tensor.proof is Proof.VERIFIED for tensor in reading.tensors)
    assert equal(saved.tree, reading, name, np, {Proof.VERIFIED})
    for tensor in reading.tensors:
        if tensor.name in saved.values:
            expected = saved.values[tensor.name]
            assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape)
    assert set(reading.members) == {path for path in saved.files if path.startswith(f"{prefix}.")}


def test_every_tensor_that_was_saved_is_there() -> None:
    reading = read(sample(ALL[0]).tree, ALL[1])
    others = {"strings", "no_strings", "one_string", "variant"}
    assert {tensor.name for tensor in reading.tensors} == {
        *others, *(name for name in sample(ALL[0]).values if name not in {"b", "w\x00\xff"})}
    assert {tensor.dtype for tensor in reading.tensors if tensor.name in others} == TEXT
    assert reading.values["scalar"] == -7


def test_slices_are_put_in_their_places() -> None:
    (tensor,) = (tensor for tensor in read(sample(PARTS[0]).tree, PARTS[1]).tensors if tensor.shape == (200, 3))
    assert sorted((block.origin, block.shape) for block in tensor.blocks) == [
        ((0, 0), (70, 3)), ((70, 0), (100, 3)), ((170, 0), (30, 3))]


def test_steps_and_pointer() -> None:
    saved = sample(OBJECT[0])
    reading = read(saved.tree, OBJECT[1])
    assert (reading.step, reading.values["step"]) == (1, 12)
    state = parse_state(saved.files["checkpoint"])
    assert state is not None
    assert (state.latest, state.kept) == ("ckpt-1", ("ckpt-1",))
    assert parse_state(b'model_checkpoint_path: "a\\303\\244\\"\\n"\n') is not None
    assert parse_state(b"step: 3\n") is None


@pytest.mark.parametrize(("name", "prefix"), BUNDLES)
def test_a_flip_in_data_names_its_tensor(name: str, prefix: str) -> None:
    saved = sample(name)
    for tensor in read(saved.tree, prefix).tensors:
        for block in tensor.blocks:
            for at in range(block.offset, block.offset + block.length, max(1, block.length // 5)):
                reading = read(saved.changed(block.file, flip(at, at % 8)), prefix)
                assert reading.verdict is Verdict.CORRUPT
                assert named(reading, "crc-mismatch") == {tensor.name}
                assert [one.name for one in reading.tensors if one.proof is not Proof.VERIFIED] == [tensor.name]


@pytest.mark.parametrize(("name", "prefix"), BUNDLES)
def test_cut_data_costs_what_lies_behind(name: str, prefix: str) -> None:
    saved = sample(name)
    whole = read(saved.tree, prefix)
    for path in {block.file for tensor in whole.tensors for block in tensor.blocks}:
        for at in range(0, len(saved.files[path]), 61):
            reading = read(saved.changed(path, cut(at)), prefix)
            lost = {tensor.name for tensor in whole.tensors for block in tensor.blocks
                    if block.file == path and block.offset + block.length > at}
            assert reading.verdict is Verdict.INCOMPLETE
            assert named(reading, "data-cut") == lost
            assert {tensor.name for tensor in reading.tensors if tensor.proof is Proof.DAMAGED} == lost


@pytest.mark.parametrize(("name", "prefix"), BUNDLES)
def test_no_change_of_the_index_proves_what_was_not_saved(name: str, prefix: str) -> None:
    np = pytest.importorskip("numpy")
    saved = sample(name)
    path = f"{prefix}.index"
    for at in range(len(saved.files[path])):
        tree = saved.changed(path, flip(at, at % 8))
        reading = read(tree, prefix)
        assert reading.verdict in {Verdict.CORRUPT, Verdict.INCOMPLETE, Verdict.VERIFIED}
        assert equal(tree, reading, name, np, {Proof.VERIFIED})
        assert "names-unproven" in codes(reading) or not any(
            tensor.proof is Proof.UNVERIFIABLE for tensor in reading.tensors)
    for at in range(0, len(saved.files[path]), 5):
        tree = saved.changed(path, cut(at))
        assert read(tree, prefix).verdict is Verdict.INCOMPLETE
        assert equal(tree, read(tree, prefix), name, np, {Proof.VERIFIED, Proof.UNVERIFIABLE})


def test_zeros_are_damage() -> None:
    saved = sample(PARTS[0])
    path = "parts.data-00000-of-00001"
    assert read(saved.changed(path, zero(400, 4096)), "parts").verdict is Verdict.CORRUPT
    assert read(saved.changed("parts.index", zero(0, 4096)), "parts").verdict is Verdict.INCOMPLETE
    empty = MemoryTree({"parts.index": b"", path: b""})
    assert read(empty, "parts").verdict is Verdict.EMPTY


def test_lost_files() -> None:
    saved = sample(SHARDED[0])
    reading = read(saved.without("ckpt-3.data-00001-of-00002"), "ckpt-3")
    assert (reading.verdict, codes(reading)) == (Verdict.INCOMPLETE, {"shard-missing"})
    assert named(reading, "shard-missing") == {"w1", "w3"}
    reading = read(saved.without("ckpt-3.index"), "ckpt-3")
    assert (reading.verdict, codes(reading)) == (Verdict.INCOMPLETE, {"index-missing"})
    assert read(MemoryTree({}), "ckpt-3").verdict is Verdict.INCOMPLETE


def test_data_that_was_moved_is_told_by_the_indexes_of_the_parts() -> None:
    np = pytest.importorskip("numpy")
    saved = sample(SHARDED[0])
    files = {path.replace("unmerged_temp/", "ckpt-3_temp/"): content for path, content in saved.files.items()
             if path != "ckpt-3.index" and not (path.startswith("unmerged") and ".data" in path)}
    tree = MemoryTree(files)
    reading = read(tree, "ckpt-3")
    assert (reading.verdict, len(reading.tensors)) == (Verdict.UNCOMMITTED, 4)
    assert equal(tree, reading, SHARDED[0], np, {Proof.VERIFIED})
    assert all(tensor.proof is Proof.VERIFIED for tensor in reading.tensors)


def test_a_part_of_an_unmerged_save_is_uncommitted() -> None:
    saved = sample(SHARDED[0])
    found = prefixes(saved.tree.listing("unmerged_temp"))
    assert [bundle.prefix for bundle in found] == [
        "unmerged_temp/part-00000-of-00002", "unmerged_temp/part-00001-of-00002"]
    assert [read(saved.tree, bundle.prefix).verdict for bundle in found] == [Verdict.UNCOMMITTED] * 2


def test_temporary_names_are_uncommitted() -> None:
    saved = sample(OBJECT[0])
    files = {f"{path}.tempstate1234": content for path, content in saved.files.items() if path.startswith("ckpt-1.")}
    (bundle,) = prefixes(MemoryTree(files).listing(""))
    assert bundle == Bundle("ckpt-1", None, (), None, bundle.leftovers)
    reading = read(MemoryTree(files), "ckpt-1")
    assert (reading.verdict, len(reading.tensors)) == (Verdict.UNCOMMITTED, 4)
    assert read(MemoryTree({**saved.files, **files}), "ckpt-1").verdict is Verdict.VERIFIED


def test_indexes_of_other_programs_are_no_bundles() -> None:
    saved = sample(OBJECT[0])
    tree = MemoryTree({"a.index": b"IxF2" + bytes(200), "b.index": saved.files["ckpt-1.index"], "c.index": b"",
                       "d.data-00000-of-00001": b""})
    assert [is_bundle(tree, bundle) for bundle in prefixes(tree.listing(""))] == [False, True, False, True]


def test_shards_of_an_older_save_do_not_count() -> None:
    saved = sample(SHARDED[0])
    tree = MemoryTree({**saved.files, "ckpt-3.data-00000-of-00004": b"old", "ckpt-3.data-00003-of-00004": b"old"})
    reading = read(tree, "ckpt-3")
    assert (reading.verdict, codes(reading)) == (Verdict.VERIFIED, {"stray-shard"})


def bundle(rows: list[tuple[bytes, bytes]], data: bytes, endianness: int = 0) -> MemoryTree:
    return MemoryTree({"b.index": sstables.table([(b"", sstables.header(1, endianness)), *rows], 50, snappy=True),
                       "b.data-00000-of-00001": data})


def test_a_big_endian_bundle_of_many_tensors() -> None:
    rows, data = [], b""
    for number in range(500):
        content = struct.pack(">3i", number, 1, 2)
        rows.append((f"t{number:03d}".encode(), sstables.entry(3, (3,), len(data), content)))
        data += content
    tree = bundle(rows, data, 1)
    reading = read(tree, "b")
    assert (reading.verdict, len(reading.tensors)) == (Verdict.VERIFIED, 500)
    assert all(tensor.big_endian for tensor in reading.tensors)
    reading = read(bundle(rows, bytes(len(data)), 1), "b")
    assert reading.verdict is Verdict.CORRUPT
    assert len(reading.findings) < 100
    assert len({name for finding in reading.findings for name in finding.tensors}) == 500


@pytest.mark.parametrize(("row", "code"), [
    (sstables.entry(1, (2, 2), 0, bytes(12)), "size-mismatch"),
    (sstables.entry(1, (1 << 40, 1 << 40), 0, bytes(16)), "size-mismatch"),
    (sstables.entry(99, (4,), 0, bytes(16)), "bad-entry"),
    (sstables.entry(1, (4,), 1 << 62, bytes(16)), "data-cut"),
    (sstables.entry(1, (4,), 0, bytes(16), shard=9), "shard-missing"),
    (sstables.entry(7, (1 << 50,), 0, bytes(16)), "crc-mismatch"),
    (b"\xff\xff", "bad-entry"),
    (sstables.field(1, 1) + sstables.field(2, sstables.field(2, sstables.field(1, 8))) + sstables.field(
        7, sstables.field(1, sstables.field(2, 4))), "slice-missing"),
    (sstables.field(1, 1) + sstables.field(2, sstables.field(2, sstables.field(1, 8))) + sstables.field(
        7, sstables.field(1, sstables.field(1, 6) + sstables.field(2, 4))), "bad-slice"),
])
def test_entries_that_can_not_be(row: bytes, code: str) -> None:
    reading = read(bundle([(b"x", row)], bytes(16)), "b")
    assert code in codes(reading)
    assert reading.verdict in {Verdict.CORRUPT, Verdict.INCOMPLETE}
    assert all(tensor.proof is Proof.DAMAGED for tensor in reading.tensors)


def test_overlapping_entries_are_corrupt() -> None:
    rows = [(b"a", sstables.entry(1, (4,), 0, bytes(16))), (b"b", sstables.entry(1, (4,), 8, bytes(16)))]
    reading = read(bundle(rows, bytes(24)), "b")
    assert (reading.verdict, named(reading, "overlap")) == (Verdict.CORRUPT, {"b"})


@pytest.mark.parametrize(("value", "code"), [
    (0, "80"), (63, "bf"), (64, "c040"), (-1, "7f"), (-64, "40"), (-65, "3fbf"), (8191, "dfff"), (8192, "e02000"),
    ((1 << 62) - 1, "ff" "bf" + "ff" * 7), (1 << 62, "ffc0" + "40" + "00" * 7),
])
def test_ordered_code_of_signed_numbers(value: int, code: str) -> None:
    key = slice_key(b"n", (Extent(value, -1),))
    assert key.hex() == "00" + "6e0001" + "0101" + code + "7f"


class Unreadable(BytesSource):
    """A medium with a bad sector."""

    def chunks(self, offset: int, length: int) -> Iterator[bytes]:
        if offset <= 500 < offset + length:
            raise UnreadableBytes(500, 1, "Input/output error")
        return super().chunks(offset, length)


def test_a_bad_sector_costs_the_tensor_on_it() -> None:
    saved = sample(PARTS[0])
    path = "parts.data-00000-of-00001"
    tree = MemoryTree({"parts.index": saved.files["parts.index"]}, sources={path: Unreadable(saved.files[path], path)})
    reading = read(tree, "parts")
    assert (reading.verdict, codes(reading)) == (Verdict.INCOMPLETE, {"unreadable"})
    assert [tensor.proof for tensor in reading.tensors].count(Proof.DAMAGED) == 1


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_damage_crashes_or_is_proven(data: st.DataObject) -> None:
    np = pytest.importorskip("numpy")
    name, prefix = data.draw(st.sampled_from(BUNDLES))
    saved = sample(name)
    path = data.draw(st.sampled_from(sorted(path for path in saved.files if path.startswith(f"{prefix}."))))
    length = len(saved.files[path])
    change = data.draw(st.one_of(
        st.builds(flip, st.integers(0, length - 1), st.integers(0, 7)), st.builds(cut, st.integers(0, length - 1)),
        st.builds(zero, st.integers(0, length - 1), st.integers(1, 4096)),
        st.binary(max_size=300).map(lambda content: lambda _: content)))
    tree = saved.changed(path, change)
    reading = read(tree, prefix)
    assert equal(tree, reading, name, np, {Proof.VERIFIED})


def test_tensorflow_reads_the_same(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    np = pytest.importorskip("numpy")
    saved = sample(ALL[0])
    for path, content in saved.files.items():
        (tmp_path / path).write_bytes(content)
    loaded = tf.train.load_checkpoint(str(tmp_path / ALL[1]))
    for tensor in read(saved.tree, ALL[1]).tensors:
        if tensor.dtype not in TEXT:
            value = np.ascontiguousarray(loaded.get_tensor(tensor.name))
            assert premade.assembled(saved.tree, tensor, np) == value.tobytes()
