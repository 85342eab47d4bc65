"""Keras models: the zip's checksums cover the HDF5 inside."""

from __future__ import annotations

import io
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescue_tui.checkpoints import keras
from rescue_tui.checkpoints.model import Head, Options, Proof, Reading, Verdict
from rescue_tui.checkpoints.source import BytesSource
from tests.support.ckpt import premade
from tests.support.ckpt.zips import archive, array
from tests.unit.checkpoints.test_hdf5 import NAMES, model

METADATA = b'{"keras_version": "3.15.1", "date_saved": "2025-12-01@10:00:00"}'
CONFIG = b'{"module": "keras", "class_name": "Sequential"}'


def members() -> dict[str, bytes]:
    return {"metadata.json": METADATA, "config.json": CONFIG, "model.weights.h5": model()}


def look(data: bytes) -> Reading:
    return keras.read(BytesSource(data, "model.keras"), Options())


def codes(reading: Reading) -> set[str]:
    return {finding.code for finding in reading.findings}


def head(data: bytes, name: str) -> Head:
    return Head(name, len(data), data[:4096], data[-128:])


@pytest.mark.parametrize("zip64", [True, False])
def test_a_whole_model_is_verified(zip64: bool) -> None:
    data = archive(members(), zip64=zip64)
    reading = look(data)
    assert (reading.verdict, reading.findings, reading.step) == (Verdict.VERIFIED, (), 321)
    assert {tensor.name for tensor in reading.tensors} == NAMES | {"optimizer.vars.0"}
    assert all(tensor.proof is Proof.VERIFIED for tensor in reading.tensors)
    h5py = pytest.importorskip("h5py")
    with h5py.File(io.BytesIO(model())) as file:
        for tensor in reading.tensors:
            (block,) = tensor.blocks
            assert data[block.offset : block.offset + block.length] == file[tensor.name.replace(".", "/")][()].tobytes()


def test_a_flip_in_any_member_is_corrupt_and_names_it() -> None:
    data = archive(members())
    for name, content in members().items():
        at = data.index(content) + len(content) // 2
        reading = look(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert reading.verdict is Verdict.CORRUPT
        assert any(name in finding.summary for finding in reading.findings)
        damaged = name == "model.weights.h5"
        assert all((tensor.proof is Proof.DAMAGED) == damaged for tensor in reading.tensors)


def test_zeros_and_cuts() -> None:
    data = archive(members())
    assert look(data[:8192] + bytes(4096) + data[12288:]).verdict is Verdict.CORRUPT
    assert look(bytes(4096) + data[4096:]).verdict is Verdict.CORRUPT
    for size in [1, 30, 100, 300, 5000, len(data) // 2, len(data) - 300, len(data) - 30, len(data) - 1]:
        reading = look(data[:size])
        assert reading.verdict is Verdict.INCOMPLETE, size
        assert not reading.covered


def test_a_lost_directory_leaves_members_that_their_local_headers_prove() -> None:
    data = archive(members())
    reading = look(data[: data.index(b"PK\x01\x02")])
    assert (reading.verdict, codes(reading)) == (Verdict.INCOMPLETE, {"directory-lost"})
    assert all(tensor.proof is Proof.VERIFIED for tensor in reading.tensors)
    assert len(reading.tensors) == len(NAMES) + 1


@pytest.mark.parametrize("name", ["metadata.json", "config.json", "model.weights.h5"])
def test_a_missing_member_is_incomplete(name: str) -> None:
    reading = look(archive({key: value for key, value in members().items() if key != name}))
    assert (reading.verdict, codes(reading)) == (Verdict.INCOMPLETE, {"member-missing"})
    assert name in reading.findings[0].summary


def test_weights_that_were_broken_before_they_were_packed_are_told() -> None:
    reading = look(archive({**members(), "model.weights.h5": model()[:-3000]}))
    assert reading.verdict is Verdict.INCOMPLETE
    assert not reading.covered


def test_other_weights() -> None:
    arrays = archive({"a.npy": array("<f4", (2,), b"abcdefgh")})
    data = archive({"metadata.json": METADATA, "config.json": CONFIG, "model.weights.npz": arrays})
    reading = look(data)
    assert reading.verdict is Verdict.VERIFIED
    (block,) = reading.tensors[0].blocks
    assert data[block.offset : block.offset + block.length] == b"abcdefgh"
    packed = look(archive(members(), zipfile.ZIP_DEFLATED))
    assert (packed.verdict, len(packed.tensors)) == (Verdict.VERIFIED, len(NAMES) + 1)
    assert not any(tensor.blocks for tensor in packed.tensors)


def real(file: str = "groups-old.h5") -> bytes:
    """Weights that the library wrote before, for where it is not installed."""
    return premade.load("hdf5").files[file]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_weights_are_judged_packed_or_not(method: int) -> None:
    whole = {"metadata.json": METADATA, "config.json": CONFIG, "model.weights.h5": real()}
    reading = look(archive(whole, method))
    assert (reading.verdict, reading.findings, reading.step, len(reading.tensors)) == (Verdict.VERIFIED, (), 77, 61)
    cut = look(archive({**whole, "model.weights.h5": real()[:-1000]}, method))
    assert (cut.verdict, "cut" in codes(cut)) == (Verdict.INCOMPLETE, True)
    damaged = look(archive({**whole, "model.weights.h5": real().replace(b"SNOD", b"NODS")}, method))
    assert (damaged.verdict, codes(damaged)) == (Verdict.CORRUPT, {"structure"})
    killed = look(archive({**whole, "model.weights.h5": real("killed-earliest.h5")}, method))
    assert (killed.verdict, codes(killed)) == (Verdict.UNCOMMITTED, {"not-closed"})


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
@pytest.mark.parametrize("name", ["metadata.json", "config.json"])
def test_a_description_that_is_no_json_object_is_corrupt(name: str, content: bytes) -> None:
    whole = {"metadata.json": METADATA, "config.json": CONFIG, "model.weights.h5": real()}
    reading = look(archive({**whole, name: content}))
    assert (reading.verdict, codes(reading)) == (Verdict.CORRUPT, {"description"})
    assert name in reading.findings[0].summary


def test_names() -> None:
    data = archive(members())
    assert keras.matches(head(data, "anything"))
    assert keras.matches(head(bytes(4096) + data[4096:], "model.keras"))
    assert keras.matches(head(data[:500], "model.keras"))
    assert not keras.matches(head(archive({"notes.txt": b"a"}), "notes.zip"))
    assert not keras.matches(head(archive({"config.json": b"{}"}), "settings.zip"))
    assert not keras.matches(head(b"<!DOCTYPE html>", "model.keras"))


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=4), st.booleans())
def test_mutated_models_are_verified_only_when_the_members_are_whole(
    changes: list[tuple[int, int]], near: bool
) -> None:
    data = bytearray(archive(members()))
    for place, value in changes:
        data[-1 - place % 500 if near else place % len(data)] = value
    if look(bytes(data)).verdict is Verdict.VERIFIED:
        with zipfile.ZipFile(io.BytesIO(data)) as source:
            assert {name: source.read(name) for name in source.namelist()} == members()
