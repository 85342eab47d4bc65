"""NumPy archives: every member's CRC, and what is left when the directory is lost."""

from __future__ import annotations

import io
import random
import struct
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescue_tui.checkpoints import npz
from rescue_tui.checkpoints.model import Head, Options, Proof, Reading, Verdict
from rescue_tui.checkpoints.source import BytesSource
from tests.support.ckpt.zips import archive, array

CHANCE = random.Random(2)
MEMBERS = {
    "w1.npy": array("<f4", (40, 50), CHANCE.randbytes(8000)),
    "b1.npy": array("<f4", (50,), CHANCE.randbytes(200)),
    "layers/w2.npy": array("<f8", (60, 20), CHANCE.randbytes(9600), True),
}
GOOD = archive(MEMBERS)
PACKED = archive({**MEMBERS, "zeros.npy": array("<f4", (1000,), bytes(4000))}, zipfile.ZIP_DEFLATED)


def look(data: bytes, name: str = "params.npz") -> Reading:
    return npz.read(BytesSource(data, name), Options())


def codes(reading: Reading) -> set[str]:
    return {finding.code for finding in reading.findings}


def good(reading: Reading) -> set[str]:
    return {tensor.name for tensor in reading.tensors if tensor.proof is Proof.VERIFIED}


@pytest.mark.parametrize("data", [GOOD, PACKED, archive(MEMBERS, zip64=False)], ids=["stored", "packed", "small"])
def test_a_whole_archive_is_verified(data: bytes) -> None:
    reading = look(data)
    assert (reading.verdict, reading.findings) == (Verdict.VERIFIED, ())
    assert {"w1", "b1", "layers/w2"} <= good(reading)


@pytest.mark.parametrize("data", [GOOD, PACKED], ids=["stored", "packed"])
def test_every_flipped_bit_in_a_payload_is_corrupt_and_names_the_member(data: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as source:
        members = source.infolist()
    for member in members:
        start = struct.unpack_from("<2H", data, member.header_offset + 26)
        begin = member.header_offset + 30 + sum(start)
        for place in {begin, begin + member.compress_size // 2, begin + member.compress_size - 2}:
            damaged = bytearray(data)
            damaged[place] ^= 4
            reading = look(bytes(damaged))
            if member.filename == "zeros.npy" and reading.verdict is Verdict.VERIFIED:
                # Another distance into a run of zeros unpacks to the same zeros.
                assert good_members(bytes(damaged)) == good_members(data)
                continue
            assert reading.verdict is Verdict.CORRUPT
            assert good(reading) == good(look(data)) - {member.filename.removesuffix(".npy")}


def test_no_flip_anywhere_is_verified_unless_the_payload_is_whole() -> None:
    payload = dict(MEMBERS)
    for place in range(0, len(GOOD), 7):
        damaged = bytearray(GOOD)
        damaged[place] ^= 1 << (place % 8)
        if look(bytes(damaged)).verdict is Verdict.VERIFIED:
            with zipfile.ZipFile(io.BytesIO(damaged)) as source:
                assert {name: source.read(name) for name in source.namelist()} == payload


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.7, 0.95, 0.99])
def test_a_cut_archive_is_incomplete_and_keeps_what_precedes_the_cut(share: float) -> None:
    reading = look(GOOD[: int(len(GOOD) * share)])
    assert reading.verdict is Verdict.INCOMPLETE
    assert not reading.covered
    assert ("w1" in good(reading)) == (share >= 0.5)
    assert ("b1" in good(reading)) == (share >= 0.5)


def test_every_short_cut_is_incomplete() -> None:
    for size in range(1, len(GOOD), 97):
        assert look(GOOD[:size]).verdict is Verdict.INCOMPLETE, size
    for size in range(len(GOOD) - 400, len(GOOD)):
        assert look(GOOD[:size]).verdict is Verdict.INCOMPLETE, size


def test_zeroed_blocks() -> None:
    assert look(GOOD[:4096] + bytes(4096) + GOOD[8192:]).verdict is Verdict.CORRUPT
    assert look(bytes(4096) + GOOD[4096:]).verdict is Verdict.CORRUPT
    assert look(GOOD[:-4096] + bytes(4096)).verdict in {Verdict.INCOMPLETE, Verdict.CORRUPT}


def test_bytes_around_the_archive_are_told() -> None:
    assert (look(GOOD + b"x" * 100).verdict, codes(look(GOOD + b"x" * 100))) == (Verdict.VERIFIED, {"trailing-bytes"})
    assert codes(look(b"x" * 100 + GOOD)) == {"prefix-bytes"}
    assert look(GOOD[100:]).verdict is Verdict.CORRUPT


def test_a_member_whose_array_is_short_is_incomplete_though_its_crc_matches() -> None:
    reading = look(archive({"a.npy": MEMBERS["w1.npy"][:-8]}))
    assert (reading.verdict, codes(reading)) == (Verdict.INCOMPLETE, {"cut"})


def test_members_that_share_bytes_are_unpacked_once() -> None:
    """The kind of bomb whose directory names one packed member a thousand times."""
    bomb = archive({"a.npy": bytes(1 << 20)}, zipfile.ZIP_DEFLATED)
    start = bomb.index(b"PK\x01\x02")
    end = bomb.index(b"PK\x05\x06")
    entries = bomb[start:end] * 1000
    record = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1000, 1000, len(entries), start, 0)
    reading = look(bomb[:start] + entries + record)
    assert reading.verdict is Verdict.CORRUPT
    assert "overlap" in codes(reading)
    assert len(reading.tensors) <= 1


def test_a_member_that_unpacks_to_more_than_it_says_stops_early() -> None:
    bomb = bytearray(archive({"a.npy": bytes(1 << 22)}, zipfile.ZIP_DEFLATED, zip64=False))
    for magic, at in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        struct.pack_into("<I", bomb, bomb.index(magic) + at, 1000)
    assert codes(look(bytes(bomb))) == {"bad-deflate"}


def test_names() -> None:
    def head(data: bytes, name: str) -> Head:
        return Head(name, len(data), data[:4096], data[-128:])

    assert npz.matches(head(GOOD, "anything"))
    assert npz.matches(head(bytes(4096) + GOOD[4096:], "a.npz"))
    assert not npz.matches(head(archive({"notes.txt": b"a"}), "notes.zip"))


def test_real_archives_are_verified() -> None:
    numpy = pytest.importorskip("numpy")
    for save in (numpy.savez, numpy.savez_compressed):
        stream = io.BytesIO()
        arrays = {"a": numpy.arange(1000.0).reshape(20, 50).T, "b": numpy.array(1), "o": numpy.array([{}, 1], object)}
        save(stream, **arrays)
        reading = look(stream.getvalue())
        assert reading.verdict is Verdict.VERIFIED
        assert good(reading) == {"a", "b"}
        assert codes(reading) == {"pickled-array"}


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.tuples(st.integers(0, len(PACKED) - 1), st.integers(0, 255)), max_size=5), st.integers(0, len(PACKED))
)
def test_mutated_archives_never_crash_the_reader(changes: list[tuple[int, int]], size: int) -> None:
    data = bytearray(PACKED)
    for place, value in changes:
        data[place] = value
    whole = good_members(PACKED)
    reading = look(bytes(data[:size]))
    if reading.verdict is Verdict.VERIFIED:
        assert good_members(bytes(data[:size])) == whole


def good_members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as source:
        return {name: source.read(name) for name in source.namelist()}


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=400))
def test_any_bytes_end_in_a_verdict(data: bytes) -> None:
    assert look(b"PK\x03\x04" + data).verdict is not Verdict.VERIFIED
