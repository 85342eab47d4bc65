"""safetensors files: real ones where the writer is installed, damaged as crashes damage them."""

from __future__ import annotations

import json
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescue_tui.checkpoints import safetensors
from rescue_tui.checkpoints.model import Head, Options, Proof, Reading, Verdict
from rescue_tui.checkpoints.source import BytesSource

SHAPES = {"b.weight": (32, 64), "a.bias": (33,), "c.weight": (64, 48), "d.scale": ()}


def build(header: object, buffer: bytes = b"", pad: bool = True) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    if pad:
        text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + buffer


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def model(metadata: dict[str, str] | None = None) -> bytes:
    chance = random.Random(3)
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    buffer = b""
    for name, shape in SHAPES.items():
        length = 4
        for dimension in shape:
            length *= dimension
        header[name] = entry("F32", list(shape), len(buffer), len(buffer) + length)
        buffer += chance.randbytes(length)
    return build(header, buffer)


def look(data: bytes, name: str = "run/model.safetensors") -> Reading:
    return safetensors.read(BytesSource(data, name), Options())


def codes(reading: Reading) -> set[str]:
    return {finding.code for finding in reading.findings}


def head(data: bytes, name: str) -> Head:
    return Head(name, len(data), data[:4096], data[-128:])


def test_an_undamaged_file_is_intact_and_never_verified() -> None:
    reading = look(model({"format": "pt", "step": "900"}))
    assert (reading.verdict, reading.findings, reading.covered) == (Verdict.INTACT, (), False)
    assert {tensor.name: tensor.shape for tensor in reading.tensors} == SHAPES
    assert reading.step == 900
    assert reading.values == {"format": "pt", "step": "900"}


def test_every_cut_is_incomplete_and_names_the_tensors_behind_it() -> None:
    data = model()
    begin = 8 + struct.unpack_from("<Q", data)[0]
    for size in [1, 7, 8, 9, begin - 1, begin, begin + 1, begin + 8192, begin + 8300, len(data) - 4, len(data) - 1]:
        reading = look(data[:size])
        assert reading.verdict is Verdict.INCOMPLETE, size
        good = {tensor.name for tensor in reading.tensors if tensor.proof is Proof.UNVERIFIABLE}
        assert ("b.weight" in good) == (size >= begin + 8192)
        assert "d.scale" not in good


def test_a_zeroed_start_is_corrupt() -> None:
    data = bytes(4096) + model()[4096:]
    assert look(data).verdict is Verdict.CORRUPT
    assert codes(look(data)) == {"header-lost"}
    assert safetensors.matches(head(data, "model.safetensors"))


def test_zeros_to_the_end_are_incomplete_and_a_zeroed_block_is_a_warning() -> None:
    data = model()
    tail = look(data[:-5000] + bytes(5000))
    assert tail.verdict is Verdict.INCOMPLETE
    assert [tensor.name for tensor in tail.tensors if tensor.proof is Proof.DAMAGED] == ["c.weight", "d.scale"]
    block = look(data[:12288] + bytes(4096) + data[16384:])
    assert (block.verdict, codes(block)) == (Verdict.INTACT, {"zero-run"})
    assert block.findings[0].tensors == ("c.weight",)


def test_bytes_behind_the_last_tensor_are_a_warning_only() -> None:
    reading = look(model() + b"extra")
    assert (reading.verdict, codes(reading)) == (Verdict.INTACT, {"trailing-bytes"})


def test_the_writers_temporary_name_is_uncommitted() -> None:
    assert look(model(), "run/.tmpu9Yh9h").verdict is Verdict.UNCOMMITTED
    assert safetensors.matches(head(model(), "run/.tmpu9Yh9h"))
    assert look(model()[:-9], "run/.tmpu9Yh9h").verdict is Verdict.INCOMPLETE


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
            "duplicate-key",
        ),
        (b'{"__metadata__":{"a":"b","a":"c"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', "duplicate-key"),
        ({"__metadata__": {"a": 1}, "a": entry("F32", [1], 0, 4)}, "metadata-kind"),
        ({"a": entry("F99", [1], 0, 4)}, "dtype"),
        ({"a": entry("F32", [2], 0, 4)}, "tensor-size"),
        ({"a": entry("F32", [1 << 62] * 150, 0, 4)}, "tensor-size"),
        ({"a": entry("F4", [3], 0, 4)}, "tensor-size"),
        ({"a": entry("F32", [1], 4, 0)}, "offsets"),
        ({"a": entry("F32", [-1], 0, 4)}, "tensor-entry"),
        ({"a": entry("F32", [True], 0, 4)}, "tensor-entry"),
        ({"a": {"dtype": "F32", "shape": [1]}}, "tensor-entry"),
        ({"a": 7}, "tensor-entry"),
        ({"a": entry("U8", [2], 0, 2), "b": entry("U8", [3], 1, 4)}, "overlap"),
        ({"a": entry("U8", [1], 0, 1), "b": entry("U8", [2], 2, 4)}, "gap"),
        ({"a" * 5000: entry("U8", [4], 0, 4)}, "tensor-name"),
        (b'{"a":', "header-syntax"),
        (b'{"a":NaN}', "header-syntax"),
        (b'{"\xff":1}', "header-syntax"),
        (b"[1]", "header-syntax"),
        (b'{"a":' + b"[" * 100000, "header-syntax"),
        (b'{"a":{"dtype":"F32","shape":[1' + b"0" * 5000 + b'],"data_offsets":[0,4]}}', "header-syntax"),
    ],
)
def test_each_broken_invariant_is_corrupt(header: object, code: str) -> None:
    reading = look(build(header, b"abcd"))
    assert reading.verdict is Verdict.CORRUPT
    assert code in codes(reading)


def test_a_header_of_absurd_length_is_corrupt_and_not_read() -> None:
    reading = look(struct.pack("<Q", 1 << 60) + b"{" + bytes(50))
    assert (reading.verdict, codes(reading)) == (Verdict.CORRUPT, {"header-length"})


@pytest.mark.parametrize(
    ("dtype", "shape", "length"),
    [
        ("F4", [4, 2], 4),
        ("F6_E2M3", [4], 3),
        ("F6_E3M2", [8], 6),
        ("F8_E8M0", [3], 3),
        ("C64", [2], 16),
        ("F32", [0, 7], 0),
    ],
)
def test_small_and_odd_elements(dtype: str, shape: list[int], length: int) -> None:
    reading = look(build({"a": entry(dtype, shape, 0, length)}, b"\x01" * length))
    assert (reading.verdict, reading.findings) == (Verdict.INTACT, ())


def test_what_is_something_else_is_not_taken() -> None:
    for other in [
        b"version https://git-lfs.github.com/spec/v1\noid",
        b"PK\x03\x04" + bytes(60),
        b"<!DOCTYPE html><html>",
        bytes(range(256)),
    ]:
        assert not safetensors.matches(head(other, "model.safetensors"))
    assert not safetensors.matches(head(build({"some": "json"}), "note.bin"))
    assert safetensors.matches(head(model(), "blobs/0a1b"))
    assert safetensors.matches(head(build({}), "empty"))


def test_real_files_of_every_dtype_are_read_bit_for_bit() -> None:
    torch = pytest.importorskip("torch")
    writer = pytest.importorskip("safetensors.torch")
    kinds = [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.complex64,
    ]
    tensors = {f"layer.{kind}": (torch.rand(7, 11) * 5).to(kind) for kind in kinds}
    tensors |= {"scalar": torch.tensor(2.5), "none": torch.zeros(0, 4), "zero": torch.zeros(3000)}
    data = writer.save(tensors, {"format": "pt"})
    reading = look(data)
    assert (reading.verdict, reading.findings) == (Verdict.INTACT, ())
    assert {tensor.name for tensor in reading.tensors} == set(tensors)
    for tensor in reading.tensors:
        expected = tensors[tensor.name]
        assert (f"torch.{tensor.dtype}", tensor.shape) == (str(expected.dtype), tuple(expected.shape))
        raw = b"".join(data[block.offset : block.offset + block.length] for block in tensor.blocks)
        assert raw == bytes(
            expected.contiguous().view(torch.uint8).reshape(-1).tolist() if expected.ndim else struct.pack("<f", 2.5)
        )


GOOD = model({"format": "pt"})


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=300))
def test_any_bytes_end_in_a_verdict(data: bytes) -> None:
    assert not look(data).covered
    assert safetensors.matches(head(data, "x.safetensors")) in {True, False}


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), min_size=1, max_size=4), st.integers(0, len(GOOD)))
def test_a_mutated_header_never_crashes_the_reader(changes: list[tuple[int, int]], size: int) -> None:
    data = bytearray(GOOD)
    for place, value in changes:
        data[place] = value
    assert look(bytes(data[:size])).verdict is not Verdict.VERIFIED
