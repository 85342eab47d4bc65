"""NumPy arrays: whole, cut, zeroed and hostile."""

from __future__ import annotations

import io
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescue_tui.checkpoints import npy
from rescue_tui.checkpoints.model import Head, Options, Proof, Reading, Verdict
from rescue_tui.checkpoints.source import BytesSource
from tests.support.ckpt.zips import array

DATA = random.Random(1).randbytes(100 * 70 * 4)
GOOD = array("<f4", (100, 70), DATA)


def look(data: bytes, name: str = "weights.npy") -> Reading:
    return npy.read(BytesSource(data, name), Options())


def codes(reading: Reading) -> list[str]:
    return [finding.code for finding in reading.findings]


def with_header(text: str, data: bytes = b"", version: int = 1) -> bytes:
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes((version, 0)) + length + text.encode() + data


def test_a_whole_array_is_intact() -> None:
    reading = look(GOOD)
    assert (reading.verdict, reading.findings, reading.covered) == (Verdict.INTACT, (), False)
    (tensor,) = reading.tensors
    assert (tensor.name, tensor.dtype, tensor.shape) == ("weights", "float32", (100, 70))
    assert (tensor.blocks[0].offset, tensor.blocks[0].length) == (len(GOOD) - len(DATA), len(DATA))


@pytest.mark.parametrize("size", [1, 6, 7, 9, 30, 127, 128, 129, 5000, len(GOOD) - 1])
def test_every_cut_is_incomplete(size: int) -> None:
    reading = look(GOOD[:size])
    assert (reading.verdict, codes(reading)) == (Verdict.INCOMPLETE, ["cut"])
    assert all(tensor.proof is Proof.DAMAGED for tensor in reading.tensors)


def test_zeros_and_trailing_bytes() -> None:
    assert codes(look(GOOD + b"more")) == ["trailing-bytes"]
    assert look(GOOD[:-9000] + bytes(9000)).verdict is Verdict.INCOMPLETE
    assert codes(look(GOOD[:8192] + bytes(4096) + GOOD[12288:])) == ["zero-run"]
    assert look(bytes(4096) + GOOD[4096:]).verdict is Verdict.CORRUPT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "{'descr': '<f4'}",
        "[1]",
        "{'descr': '<f4', 'fortran_order': 1, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 3}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}",
        "{'descr': '<q9', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': 4, 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,",
        "{'descr': '<f4', 'descr': '<f8', 'fortran_order': False, 'shape': (1,)}",
        "(" * 3000,
        "-" * 3000,
        "{1: 2}",
        "{,}",
        "{'descr': [('a',)], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('a', '<f4', (9999999999,))], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9999999999999999999, " * 60 + ")}",
    ],
)
def test_a_header_that_is_no_header_is_corrupt(text: str) -> None:
    assert look(with_header(text, b"abcd")).verdict is Verdict.CORRUPT


def test_odd_versions_and_lengths() -> None:
    good = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n"
    assert look(with_header(good, b"abcd", 3)).verdict is Verdict.INTACT
    assert look(with_header(good, b"abcd", 4)).verdict is Verdict.CORRUPT
    assert look(b"\x93NUMPY\x02\x00\xff\xff\xff\xff").verdict is Verdict.CORRUPT


def test_object_arrays_are_not_loaded() -> None:
    whole = look(array("|O", (2,), b"\x80\x04]."))
    assert (whole.verdict, codes(whole), whole.tensors) == (Verdict.INTACT, ["pickled-array"], ())
    assert look(array("|O", (2,), b"\x80\x04]")).verdict is Verdict.INCOMPLETE
    assert look(array("|O", (2,), b"xx.")).verdict is Verdict.CORRUPT


def test_names_and_magic() -> None:
    def head(data: bytes, name: str) -> Head:
        return Head(name, len(data), data[:4096], data[-128:])

    assert npy.matches(head(GOOD, "anything"))
    assert npy.matches(head(bytes(4096) + GOOD[4096:], "a.npy"))
    assert npy.matches(head(GOOD[:4], "a.npy"))
    assert not npy.matches(head(b"text file", "a.npy"))
    assert not npy.matches(head(bytes(4096), "a.bin"))


def test_real_arrays_are_found_where_numpy_puts_them() -> None:
    numpy = pytest.importorskip("numpy")
    chance = numpy.random.default_rng(1)
    arrays = [
        (chance.random((5, 6, 7)) * 100).astype(kind)
        for kind in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u8", "c8", "c16", "?", ">f4", ">i2")
    ]
    arrays += [
        numpy.asfortranarray(chance.random((5, 6, 7))),
        numpy.array(3.5),
        numpy.zeros((0, 3)),
        numpy.zeros(9),
        numpy.array(["word", "w"]),
        numpy.array([b"abc"]),
        numpy.array(["2024-01-01"], "M8[D]"),
        numpy.zeros(3, [("a", "<f4"), ("b", "<i8", (2, 3)), ("c", [("d", "u1")])]),
    ]
    for expected in arrays:
        stream = io.BytesIO()
        numpy.save(stream, expected)
        data = stream.getvalue()
        reading = look(data)
        assert (reading.verdict, codes(reading)) == (Verdict.INTACT, []), expected.dtype
        (tensor,) = reading.tensors
        assert tensor.shape == expected.shape
        if expected.dtype.kind in "fiucb":
            assert tensor.dtype == expected.dtype.newbyteorder("=").name
            assert tensor.big_endian == (expected.dtype.str[0] == ">")
            raw = b"".join(data[block.offset : block.offset + block.length] for block in tensor.blocks)
            strides = tensor.blocks[0].strides if tensor.blocks else None
            flat = numpy.frombuffer(raw, expected.dtype)
            again = (
                numpy.lib.stride_tricks.as_strided(flat, tensor.shape, [stride * flat.itemsize for stride in strides])
                if strides
                else flat.reshape(tensor.shape)
            )
            assert numpy.array_equal(again, expected)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=200))
def test_any_header_ends_in_a_verdict(data: bytes) -> None:
    assert not look(b"\x93NUMPY" + data).covered
    text = with_header(data.decode("latin-1"))
    assert not look(text).covered


@settings(deadline=None, max_examples=300)
@given(st.text("{}[]():,'\"0189TrueFalsdcpthon_ <f4", max_size=120))
def test_any_literal_ends_in_a_verdict(text: str) -> None:
    assert not look(with_header(text, b"abcd")).covered
