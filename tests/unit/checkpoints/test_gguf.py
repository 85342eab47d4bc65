"""GGUF files: whole, cut, with broken invariants, and real ones where the writer is installed."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescue_tui.checkpoints import gguf
from rescue_tui.checkpoints.model import Head, Options, Proof, Reading, Verdict
from rescue_tui.checkpoints.source import BytesSource
from tests.support.ckpt.gguf_files import Tensor, build, model, text, u32

PAIRS, TENSORS = model()
GOOD = build(PAIRS, TENSORS)
DATA = GOOD.index(TENSORS[0].data)


def look(data: bytes) -> Reading:
    return gguf.read(BytesSource(data, "tiny.gguf"), Options())


def codes(reading: Reading) -> set[str]:
    return {finding.code for finding in reading.findings}


def test_a_whole_file_is_intact_and_tells_its_values() -> None:
    reading = look(GOOD)
    assert (reading.verdict, reading.findings, reading.covered) == (Verdict.INTACT, (), False)
    assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in reading.tensors] == [
        ("blk.0.q.weight", "float32", (40, 64)),
        ("norm", "float32", (9,)),
        ("blk.1.q.weight", "q4_0", (100, 64)),
    ]
    assert reading.values == {
        "general.architecture": "llama",
        "split.no": 1,
        "split.count": 3,
        "flag": True,
        "rate": 0.5,
    }
    for tensor, made in zip(reading.tensors, TENSORS, strict=True):
        (block,) = tensor.blocks
        assert GOOD[block.offset : block.offset + block.length] == made.data


def test_the_last_padding_may_be_left_out_and_other_bytes_may_follow() -> None:
    end = DATA + 10240 + 64 + 3600
    assert (look(GOOD[:end]).verdict, look(GOOD[:end]).findings) == (Verdict.INTACT, ())
    assert (look(GOOD + b"junk").verdict, codes(look(GOOD + b"junk"))) == (Verdict.INTACT, {"trailing-bytes"})


def test_every_cut_is_incomplete() -> None:
    end = DATA + 10240 + 64 + 3600
    for size in [*range(1, DATA + 64, 5), DATA + 10239, DATA + 10240, DATA + 10250, end - 3600, end - 1]:
        reading = look(GOOD[:size])
        assert reading.verdict is Verdict.INCOMPLETE, size
        good = {tensor.name for tensor in reading.tensors if tensor.proof is Proof.UNVERIFIABLE}
        assert ("blk.0.q.weight" in good) == (size >= DATA + 10240)
        assert "blk.1.q.weight" not in good


def test_zeros() -> None:
    assert codes(look(bytes(4096) + GOOD[4096:])) == {"header-lost"}
    assert look(bytes(4096) + GOOD[4096:]).verdict is Verdict.CORRUPT
    assert look(GOOD[:-5000] + bytes(5000)).verdict is Verdict.INCOMPLETE
    assert codes(look(GOOD[:4096] + bytes(4096) + GOOD[8192:])) == {"zero-run"}


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (build(PAIRS, TENSORS, version=4), "version"),
        (build(PAIRS, TENSORS, counts=(1 << 40, 0)), "count"),
        (build(PAIRS, TENSORS, counts=(3, 1 << 63)), "count"),
        (build([("k" * 70000, u32(1))], TENSORS), "length"),
        (build([(b"\xff", u32(1))], TENSORS), "key"),
        (build([("k", u32(1)), ("k", u32(2))], TENSORS), "duplicate-key"),
        (build([("k", (13, b""))], TENSORS), "value"),
        (build([("k", (7, b"\7"))], TENSORS), "value"),
        (build([("k", (9, struct.pack("<IQ", 13, 1)))], TENSORS), "value"),
        (build([("k", (9, struct.pack("<IQ", 9, 1) * 100))], TENSORS), "value"),
        (build([("k", (9, struct.pack("<IQ", 0, 1 << 60)))], TENSORS), "length"),
        (build([("k", (9, struct.pack("<IQ", 8, 1 << 60)))], TENSORS), "length"),
        (build([("k", (8, struct.pack("<Q", 1 << 60)))], TENSORS), "length"),
        (build([("general.alignment", u32(33))], TENSORS), "alignment"),
        (build([("general.alignment", u32(0))], TENSORS), "alignment"),
        (build(PAIRS, [Tensor("n" * 64, 0, (1,), b"abcd")]), "tensor-name"),
        (build(PAIRS, [TENSORS[1], TENSORS[1]]), "duplicate-name"),
        (build(PAIRS, [Tensor("n", 0, (1,) * 5, b"abcd")]), "shape"),
        (build(PAIRS, [Tensor("n", 0, (1 << 60, 1 << 60), b"abcd")]), "shape"),
        (build(PAIRS, [Tensor("n", 2, (33,), bytes(18))]), "shape"),
        (build(PAIRS, [Tensor("n", 1 << 30, (1,), b"abcd")]), "dtype"),
        (build(PAIRS, TENSORS, offsets=[0, 10240, 10304 - 32]), "offset"),
        (build(PAIRS, TENSORS, offsets=[0, 10241, 10304]), "offset"),
    ],
)
def test_each_broken_invariant_is_corrupt(data: bytes, code: str) -> None:
    reading = look(data)
    assert reading.verdict is Verdict.CORRUPT
    assert code in codes(reading)


def test_other_alignments_byte_orders_and_unknown_types() -> None:
    pairs = [*PAIRS, ("general.alignment", u32(256))]
    assert look(build(pairs, TENSORS, 256)).findings == ()
    big = look(build([("key", (8, text("v", ">")))], TENSORS[:1], order=">"))
    assert (big.findings, big.tensors[0].big_endian) == ((), True)
    new = look(build(PAIRS, [Tensor("n", 99, (4,), b"abcdefgh"), TENSORS[1]]))
    assert (new.verdict, codes(new)) == (Verdict.INTACT, {"unknown-dtype"})


def test_names() -> None:
    def head(data: bytes, name: str) -> Head:
        return Head(name, len(data), data[:4096], data[-128:])

    assert gguf.matches(head(GOOD, "anything"))
    assert gguf.matches(head(bytes(4096) + GOOD[4096:], "a.gguf"))
    assert gguf.matches(head(b"GG", "a.gguf"))
    assert not gguf.matches(head(b"<!DOCTYPE html>", "a.gguf"))
    assert not gguf.matches(head(bytes(4096), "a.bin"))


def test_sizes_of_quantised_blocks_are_those_of_the_reference_writer() -> None:
    constants = pytest.importorskip("gguf.constants")
    for kind, (block, size) in constants.GGML_QUANT_SIZES.items():
        if kind.name != "Q8_1":  # the writer's table says 40; ggml stores two half floats and 32 bytes
            assert (gguf.KINDS[kind.value].block, gguf.KINDS[kind.value].block_bytes) == (block, size), kind.name


def test_a_file_of_the_reference_writer_is_read_bit_for_bit(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    library = pytest.importorskip("gguf")
    path = tmp_path / "real.gguf"
    writer = library.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_array("tokenizer.ggml.tokens", [f"token{index}" for index in range(500)])
    arrays = {
        "a.weight": numpy.random.default_rng(1).random((30, 64), numpy.float32),
        "b.weight": numpy.arange(77, dtype=numpy.float16),
    }
    for name, values in arrays.items():
        writer.add_tensor(name, values)
    packed = library.quants.quantize(arrays["a.weight"], library.GGMLQuantizationType.Q8_0)
    writer.add_tensor("c.weight", packed, raw_dtype=library.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = path.read_bytes()
    reading = look(data)
    assert (reading.verdict, reading.findings) == (Verdict.INTACT, ())
    assert reading.values["llama.block_count"] == 2
    raw = {
        tensor.name: data[tensor.blocks[0].offset : tensor.blocks[0].offset + tensor.blocks[0].length]
        for tensor in reading.tensors
    }
    assert raw == {
        "a.weight": arrays["a.weight"].tobytes(),
        "b.weight": arrays["b.weight"].tobytes(),
        "c.weight": packed.tobytes(),
    }
    assert {tensor.name: tensor.shape for tensor in reading.tensors} == {
        "a.weight": (30, 64),
        "b.weight": (77,),
        "c.weight": (30, 64),
    }


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.integers(0, DATA), st.integers(0, 255)), max_size=4), st.integers(0, len(GOOD)))
def test_mutated_headers_never_crash_the_reader(changes: list[tuple[int, int]], size: int) -> None:
    data = bytearray(GOOD)
    for place, value in changes:
        data[place] = value
    assert not look(bytes(data[:size])).covered


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=300))
def test_any_bytes_end_in_a_verdict(data: bytes) -> None:
    assert not look(b"GGUF\3\0\0\0" + data).covered
    assert not look(data).covered
