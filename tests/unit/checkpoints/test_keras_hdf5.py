"""Keras archives and HDF5 files: cut, flipped, unfinished, and what only looks like one."""

from __future__ import annotations

import io
import struct
import zipfile

import pytest

from rescue_tui.checkpoints import hdf5, keras
from rescue_tui.checkpoints.model import Options, Reading, Verdict
from rescue_tui.checkpoints.registry import read_file
from rescue_tui.checkpoints.source import BytesSource

WEIGHTS = b"model_weights" + bytes(range(256)) * 16


def h5(version: int, payload: bytes = WEIGHTS, flags: int = 0) -> bytes:
    """A superblock and bytes behind it; the end of file is told rightly."""
    if version < 2:
        head = hdf5.MAGIC + bytes([version, 0, 0, 0, 0, 8, 8, 0]) + struct.pack("<2HI", 4, 16, 0) + bytes(4 * version)
        addresses = struct.Struct("<4Q")
        end = len(head) + addresses.size + len(payload)
        return head + addresses.pack(0, 2**64 - 1, end, 2**64 - 1) + payload
    layout = struct.Struct("<4QI")
    end = 12 + layout.size + len(payload)
    return hdf5.MAGIC + bytes([version, 8, 8, flags]) + layout.pack(0, 2**64 - 1, end, 48, 0) + payload


def archive(**members: bytes) -> bytes:
    """A .keras as Keras writes it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, data in ({"metadata.json": b'{"keras_version": "3.15.1"}', "config.json": b"{}",
                            "model.weights.h5": h5(0)} | members).items():
            if data:
                made.writestr(name, data)
    return file.getvalue()


def judged(data: bytes, name: str) -> Reading:
    """The reading by the registry, which must be one."""
    reading = read_file(BytesSource(data, name), Options())
    assert reading is not None
    return reading


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_whole_file_is_intact_and_a_cut_one_incomplete(version: int) -> None:
    data = h5(version)
    assert (judged(data, "model.h5").format, judged(data, "model.h5").verdict) == ("hdf5", Verdict.INTACT)
    for size in range(len(data) - 1, len(data) - 4000, -97):
        assert judged(data[:size], "model.h5").verdict is Verdict.INCOMPLETE


@pytest.mark.parametrize("size", range(9, 44, 5))
def test_a_file_cut_within_its_superblock_is_incomplete(size: int) -> None:
    findings = hdf5._superblock(BytesSource(h5(0)[:size]), h5(0)[:size])
    assert [finding.verdict for finding in findings] == [Verdict.INCOMPLETE]


def test_a_file_that_was_never_closed_is_uncommitted() -> None:
    assert judged(h5(3, flags=1), "model.h5").verdict is Verdict.UNCOMMITTED


def test_an_unknown_superblock_is_corrupt() -> None:
    assert judged(hdf5.MAGIC + b"\x09" + h5(0)[9:], "model.h5").verdict is Verdict.CORRUPT


def test_bytes_behind_the_end_are_told() -> None:
    assert "trailing-bytes" in {finding.code for finding in judged(h5(0) + b"more", "model.h5").findings}


def test_measurements_are_no_checkpoint() -> None:
    assert read_file(BytesSource(h5(0, b"temperature" * 900), "weather.h5"), Options()) is None


def test_a_whole_archive_is_verified_under_any_name() -> None:
    for name in ("model.keras", "backup.zip"):
        reading = judged(archive(), name)
        assert (reading.format, reading.verdict) == ("keras", Verdict.VERIFIED)


def test_no_flipped_bit_within_a_member_is_verified() -> None:
    data = archive()
    for needle in (b"keras_version", WEIGHTS[:64], WEIGHTS[-32:]):
        at = data.index(needle)
        flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]
        assert judged(flipped, "model.keras").verdict is Verdict.CORRUPT


def test_a_cut_archive_and_one_without_weights_are_incomplete() -> None:
    data = archive()
    for size in (len(data) - 1, len(data) // 2):
        assert judged(data[:size], "model.keras").verdict in {Verdict.INCOMPLETE, Verdict.CORRUPT}
    lost = judged(archive(**{"model.weights.h5": b""}), "model.keras")
    assert lost.verdict is Verdict.INCOMPLETE
    assert "model.weights.h5" in " ".join(finding.summary for finding in lost.findings)


def test_keras_knows_its_archive_without_a_name() -> None:
    assert keras.read(BytesSource(archive()), Options()).covered
