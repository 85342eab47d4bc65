"""Flax's msgpack files: whole, cut, chunked and hostile."""

from __future__ import annotations

import math
import random
import struct

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescue_tui.checkpoints import flax_msgpack
from rescue_tui.checkpoints.flax_chunks import rectangles
from rescue_tui.checkpoints.model import Block, Head, Options, Proof, Reading, Verdict
from rescue_tui.checkpoints.source import BytesSource

CHANCE = random.Random(4)


def array(shape: tuple[int, ...], dtype: str, data: bytes, code: int = 1) -> msgpack.ExtType:
    """An array as flax.serialization packs it."""
    return msgpack.ExtType(code, msgpack.packb((shape, dtype, data), use_bin_type=True))


def state() -> dict[str, object]:
    layers = {
        f"layer_{index}": {
            "bias": array((64,), "float32", CHANCE.randbytes(256)),
            "kernel": array((64, 32), "float32", CHANCE.randbytes(8192)),
        }
        for index in range(3)
    }
    return {
        "params": layers,
        "step": array((), "int32", struct.pack("<i", 700), 3),
        "lr": 0.5,
        "name": "run",
        "opt": {"0": {"count": array((), "int32", struct.pack("<i", 9)), "none": None}, "1": [1, -5, 2**40]},
    }


STATE = state()
GOOD = msgpack.packb(STATE, strict_types=True)


def look(data: bytes, name: str = "flax_model.msgpack") -> Reading:
    return flax_msgpack.read(BytesSource(data, name), Options())


def codes(reading: Reading) -> set[str]:
    return {finding.code for finding in reading.findings}


def head(data: bytes, name: str) -> Head:
    return Head(name, len(data), data[:4096], data[-128:])


def test_a_whole_file_is_intact_and_tells_its_scalars() -> None:
    reading = look(GOOD)
    assert (reading.verdict, reading.findings, reading.covered, reading.step) == (Verdict.INTACT, (), False, 700)
    assert {tensor.name for tensor in reading.tensors} == {
        *(f"params.layer_{index}.{part}" for index in range(3) for part in ("bias", "kernel")),
        "opt.0.count",
    }
    assert reading.values == {
        "step": 700,
        "lr": 0.5,
        "name": "run",
        "opt.0.count": 9,
        "opt.1.0": 1,
        "opt.1.1": -5,
        "opt.1.2": 2**40,
    }


def test_every_cut_is_incomplete_and_keeps_what_precedes_it() -> None:
    for size in [*range(1, 700), *range(700, len(GOOD), 131), len(GOOD) - 1]:
        reading = look(GOOD[:size])
        assert reading.verdict is Verdict.INCOMPLETE, size
        for tensor in reading.tensors:
            inside = all(block.offset + block.length <= size for block in tensor.blocks)
            assert (tensor.proof is Proof.DAMAGED) != inside
    cut = look(GOOD[: GOOD.index(b"layer_1") + 4000])
    assert any("layer_1.kernel" in finding.summary for finding in cut.findings)


def test_zeros() -> None:
    assert look(GOOD[:-9000] + bytes(9000)).verdict in {Verdict.INCOMPLETE, Verdict.CORRUPT}
    assert codes(look(GOOD[:12288] + bytes(4096) + GOOD[16384:])) == {"zero-run"}
    assert codes(look(GOOD + bytes(40))) == {"trailing-bytes"}
    assert look(GOOD + bytes(40)).verdict is Verdict.INTACT
    assert look(GOOD + b"more").verdict is Verdict.CORRUPT
    assert look(bytes(5000)).verdict is Verdict.INCOMPLETE


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (array((3,), "float32", bytes(8)), "tensor-size"),
        (array((2,), "float77", bytes(8)), "unknown-dtype"),
        (msgpack.ExtType(1, b"\x92\x01\x02"), "structure"),
        (msgpack.ExtType(1, b"\x93\x01\x02\x03"), "structure"),
        (msgpack.ExtType(1, b"\x93\x91\xff\xa1f\xc4\x00"), "structure"),
        (msgpack.ExtType(1, b"\x93\x90\x01\xc4\x00"), "structure"),
        (msgpack.ExtType(1, b"\x93\x90\xa1f\x01"), "structure"),
        (msgpack.ExtType(1, b"\x93\x90\xa1f\xc4\x09"), "structure"),
        (msgpack.ExtType(1, b"\x93\x90\xa7float32\xc4\x00\x00"), "structure"),
        (msgpack.ExtType(1, b""), "structure"),
        ({1: 2}, "structure"),
        (
            {"__msgpack_chunked_array__": True, "shape": {"0": 5}, "chunks": {"0": array((4,), "uint8", b"abcd")}},
            "chunks",
        ),
        ({"__msgpack_chunked_array__": True, "shape": {"0": "x"}, "chunks": {}}, "chunks"),
    ],
)
def test_each_broken_invariant_is_told(value: object, code: str) -> None:
    reading = look(msgpack.packb({"a": array((1,), "float32", b"abcd"), "b": value}))
    assert code in codes(reading)
    assert reading.verdict is (Verdict.INTACT if code == "unknown-dtype" else Verdict.CORRUPT)


def test_broken_bytes_are_corrupt() -> None:
    start = b"\x82\xa1a" + msgpack.packb(array((1,), "float32", b"abcd"))
    for rest in [
        b"\xa1b\xc1",
        b"\xa1a\x01",
        b"\xa1\xff\x01",
        b"\xa1b" + b"\x91" * 5000,
        b"\xa1b" + b"\x81\xa1a" * 5000,
    ]:
        assert look(start + rest).verdict is Verdict.CORRUPT


def test_absurd_lengths_are_not_read() -> None:
    for rest in [
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01\x93\x91\xcf" + b"\xff" * 8 + b"\xa7float32\xc6\xff\xff\xff\xf0",
    ]:
        assert look(b"\x81\xa1a" + rest).verdict in {Verdict.INCOMPLETE, Verdict.CORRUPT}


def test_chunked_arrays_are_put_together() -> None:
    data = CHANCE.randbytes(7 * 5 * 3 * 2)
    chunks = {
        str(index): array((len(part) // 2,), "int16", part)
        for index, part in enumerate(data[start : start + 46] for start in range(0, len(data), 46))
    }
    packed = msgpack.packb(
        {
            "before": array((1,), "uint8", b"x"),
            "big": {"__msgpack_chunked_array__": True, "shape": {"0": 7, "1": 5, "2": 3}, "chunks": chunks},
        }
    )
    reading = look(packed)
    assert reading.verdict is Verdict.INTACT
    tensor = next(tensor for tensor in reading.tensors if tensor.name == "big")
    assert (tensor.dtype, tensor.shape) == ("int16", (7, 5, 3))
    assert place(packed, tensor.blocks, tensor.shape, 2) == data


def place(packed: bytes, blocks: tuple[Block, ...], shape: tuple[int, ...], item: int) -> bytes:
    """The array's bytes in C order, from its blocks."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    made = bytearray(math.prod(shape) * item)
    for block in blocks:
        inner = [math.prod(block.shape[axis + 1 :]) for axis in range(len(shape))]
        for element in range(math.prod(block.shape)):
            at = sum(
                (element // inner[axis] % block.shape[axis] + block.origin[axis]) * strides[axis]
                for axis in range(len(shape))
            )
            made[at * item : at * item + item] = packed[
                block.offset + element * item : block.offset + (element + 1) * item
            ]
    return bytes(made)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_any_run_of_elements_is_cut_into_few_rectangles(sizes: list[int], data: st.DataObject) -> None:
    shape = tuple(sizes)
    total = math.prod(shape)
    start = data.draw(st.integers(0, total))
    count = data.draw(st.integers(0, total - start))
    raw = bytes(range(1, 1 + count)) if count < 255 else bytes([1]) * count
    made = rectangles(Block("f", 0, count, (0,), (count,), Proof.UNVERIFIABLE), shape, start)
    assert len(made) <= 2 * len(shape)
    assert place(raw, tuple(made), shape, 1) == bytes(start) + raw + bytes(total - start - count)


def test_what_is_no_checkpoint_is_not_one() -> None:
    other = msgpack.packb({"users": [{"name": "a", "age": 3}] * 50})
    assert not flax_msgpack.matches(head(other, "cache.bin"))
    assert look(other, "cache.bin").format == ""
    assert not flax_msgpack.matches(head(msgpack.packb([1, 2]), "a.msgpack"))
    assert not flax_msgpack.matches(head(b"version https://git-lfs", "a.msgpack"))
    assert not flax_msgpack.matches(head(b"", "a.msgpack"))
    assert flax_msgpack.matches(head(GOOD, "checkpoint_700"))
    assert flax_msgpack.matches(head(GOOD, "anything"))
    assert flax_msgpack.matches(
        head(msgpack.packb({"params": {"k": array((2000,), "float32", bytes(8000))}}), "anything")
    )


def test_real_arrays_of_every_dtype_are_read_bit_for_bit() -> None:
    numpy = pytest.importorskip("numpy")
    arrays = {
        kind: (numpy.random.default_rng(1).random((3, 4)) * 9).astype(kind)
        for kind in (
            "float16",
            "float32",
            "float64",
            "int8",
            "int16",
            "int32",
            "int64",
            "uint8",
            "uint64",
            "bool",
            "complex64",
            "complex128",
        )
    }
    packed = msgpack.packb(
        {name: array(value.shape, value.dtype.name, value.tobytes()) for name, value in arrays.items()}
    )
    reading = look(packed)
    assert (reading.verdict, reading.findings) == (Verdict.INTACT, ())
    assert {
        tensor.name: packed[tensor.blocks[0].offset : tensor.blocks[0].offset + tensor.blocks[0].length]
        for tensor in reading.tensors
    } == {name: value.tobytes() for name, value in arrays.items()}


SMALL = msgpack.packb(
    {"a": array((2,), "float32", b"abcdefgh"), "b": {"c": [1, "x", None], "d": array((), "int8", b"1")}}
)


@settings(deadline=None, max_examples=400)
@given(st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), max_size=4), st.integers(0, len(SMALL)))
def test_mutated_files_never_crash_the_reader(changes: list[tuple[int, int]], size: int) -> None:
    data = bytearray(SMALL)
    for at, value in changes:
        data[at] = value
    assert not look(bytes(data[:size])).covered
    assert flax_msgpack.matches(head(bytes(data[:size]), "a.msgpack")) in {True, False}


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=300))
def test_any_bytes_end_in_a_verdict(data: bytes) -> None:
    assert not look(data).covered
    assert flax_msgpack.matches(head(data, "x")) in {True, False}
