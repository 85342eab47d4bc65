"""HDF5 files of the real library: every superblock, layout and filter, whole and damaged."""

from __future__ import annotations

import functools
import io
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescue_tui.checkpoints import hdf5
from rescue_tui.checkpoints.hdf5_wire import fletcher32, lookup3
from rescue_tui.checkpoints.model import Head, Options, Proof, Reading, Verdict
from rescue_tui.checkpoints.source import BytesSource

NAMES = {f"layers.dense_{index}.vars.{part}" for index in range(12) for part in (0, 1)}


@functools.cache
def model(libver: str = "earliest", layers: int = 12, user_block: int = 0) -> bytes:
    """Weights as Keras 3 writes them, in the library's oldest or newest layout."""
    h5py = pytest.importorskip("h5py")
    numpy = pytest.importorskip("numpy")
    chance = numpy.random.default_rng(7)
    stream = io.BytesIO()
    with h5py.File(stream, "w", libver=libver, userblock_size=user_block) as file:
        for index in range(layers):
            group = file.create_group(f"layers/dense_{index}/vars")
            group.create_dataset("0", data=chance.random((40, 30), numpy.float32) + 1)
            group.create_dataset("1", data=chance.random(30, numpy.float32) + 1)
        file.create_group("optimizer/vars").create_dataset("0", data=numpy.int64(321))
    return stream.getvalue()


def look(data: bytes, name: str = "model.weights.h5") -> Reading:
    """The reading, which must be one."""
    reading = hdf5.read(BytesSource(data, name), Options())
    assert reading is not None
    return reading


def codes(reading: Reading) -> set[str]:
    return {finding.code for finding in reading.findings}


@pytest.mark.parametrize(
    ("libver", "layers", "user_block"),
    [("earliest", 12, 0), ("earliest", 12, 1024), ("latest", 6, 0), ("earliest", 300, 0)],
)
def test_a_whole_file_is_intact(libver: str, layers: int, user_block: int) -> None:
    data = model(libver, layers, user_block)
    reading = look(data)
    assert (reading.verdict, reading.findings, reading.covered, reading.step) == (Verdict.INTACT, (), False, 321)
    names = {f"layers.dense_{index}.vars.{part}" for index in range(layers) for part in (0, 1)}
    assert {tensor.name for tensor in reading.tensors} == names | {"optimizer.vars.0"}


def test_tensors_are_found_where_the_library_puts_them() -> None:
    h5py = pytest.importorskip("h5py")
    for libver, layers in (("earliest", 12), ("latest", 6)):
        data = model(libver, layers)
        with h5py.File(io.BytesIO(data)) as file:
            for tensor in look(data).tensors:
                expected = file[tensor.name.replace(".", "/")][()]
                assert (tensor.dtype, tensor.shape) == (expected.dtype.name, expected.shape)
                (block,) = tensor.blocks
                assert data[block.offset : block.offset + block.length] == expected.tobytes()


def test_every_cut_is_incomplete() -> None:
    for libver, layers in (("earliest", 12), ("latest", 6)):
        data = model(libver, layers)
        for size in [*range(1, 130), *range(130, len(data), 997), len(data) - 1]:
            reading = look(data[:size])
            assert reading.verdict in {Verdict.INCOMPLETE, Verdict.CORRUPT}, size
            assert reading.verdict is Verdict.INCOMPLETE or size < 9
            for tensor in reading.tensors:
                inside = all(block.offset + block.length <= size for block in tensor.blocks)
                assert inside or tensor.proof is Proof.DAMAGED


def test_flips_in_new_metadata_are_corrupt() -> None:
    data = model("latest", 6)
    places = [at for at in range(len(data)) if data.startswith((b"OHDR", b"OCHK"), at)]
    assert places
    for place in [20, *(at + 10 for at in places), *(at + 30 for at in places)]:
        damaged = bytearray(data)
        damaged[place] ^= 1
        reading = look(bytes(damaged))
        assert reading.verdict in {Verdict.CORRUPT, Verdict.INCOMPLETE}
        assert "checksum-mismatch" in codes(reading) or "superblock" in codes(reading)


def test_zeros_and_trailing_bytes() -> None:
    data = model()
    assert (look(data + b"more").verdict, codes(look(data + b"more"))) == (Verdict.INTACT, {"trailing-bytes"})
    assert look(bytes(4096) + data[4096:]).verdict is Verdict.CORRUPT
    assert look(data[:-8192] + bytes(8192)).verdict in {Verdict.CORRUPT, Verdict.INCOMPLETE}
    h5py = pytest.importorskip("h5py")
    numpy = pytest.importorskip("numpy")
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file["model_weights/kernel"] = numpy.random.default_rng(1).random(20000) + 1
    big = stream.getvalue()
    zeroed = big[:8192] + bytes(4096) + big[12288:]
    assert (look(zeroed).verdict, codes(look(zeroed))) == (Verdict.INTACT, {"zero-run"})


def test_a_file_that_was_never_closed_is_uncommitted() -> None:
    data = bytearray(model("latest", 6))
    assert data[8] >= 2
    data[8], data[11] = 3, 1
    data[44:48] = lookup3(bytes(data[:44])).to_bytes(4, "little")
    reading = look(bytes(data))
    assert (reading.verdict, codes(reading)) == (Verdict.UNCOMMITTED, {"not-closed"})


def filtered(**options: object) -> tuple[bytes, object]:
    h5py = pytest.importorskip("h5py")
    numpy = pytest.importorskip("numpy")
    values = numpy.random.default_rng(3).random((70, 50)).astype("f4") + 1
    stream = io.BytesIO()
    libver = options.pop("libver", "earliest")
    with h5py.File(stream, "w", libver=libver) as file:
        file["state_dict/other"] = numpy.arange(9.0)
        file["state_dict"].create_dataset("weight", data=values, **options)
    return stream.getvalue(), values


CHUNKED: tuple[dict[str, object], ...] = (
    {"fletcher32": True, "chunks": (20, 30)},
    {"compression": "gzip", "chunks": (20, 30)},
    {"compression": "gzip", "shuffle": True, "fletcher32": True, "chunks": (7, 50)},
    {"compression": "gzip", "chunks": (70, 50), "libver": "latest"},
)


@pytest.mark.parametrize("options", CHUNKED)
def test_chunks_with_a_checksum_are_verified_and_a_flip_is_corrupt(options: dict[str, object]) -> None:
    data, _ = filtered(**options)
    reading = look(data)
    assert (reading.verdict, reading.findings) == (Verdict.INTACT, ())
    tensor = next(tensor for tensor in reading.tensors if tensor.name == "state_dict.weight")
    assert tensor.proof is Proof.VERIFIED
    for block in tensor.blocks:
        for place in (block.offset, block.offset + block.length // 2, block.offset + block.length - 1):
            damaged = bytearray(data)
            damaged[place] ^= 0x10
            found = look(bytes(damaged))
            assert found.verdict is Verdict.CORRUPT
            assert found.findings[0].tensors == ("state_dict.weight",)


def test_plain_chunks_are_placed_and_a_cut_names_them() -> None:
    numpy = pytest.importorskip("numpy")
    data, values = filtered(chunks=(20, 30))
    reading = look(data)
    assert (reading.verdict, reading.findings) == (Verdict.INTACT, ())
    tensor = next(tensor for tensor in reading.tensors if tensor.name == "state_dict.weight")
    made = numpy.zeros((70, 50), "f4")
    for block in tensor.blocks:
        assert block.strides == (30, 1)
        raw = numpy.frombuffer(data[block.offset : block.offset + block.length], "f4").reshape(20, 30)
        where = tuple(slice(first, first + size) for first, size in zip(block.origin, block.shape, strict=True))
        made[where] = raw[: block.shape[0], : block.shape[1]]
    assert numpy.array_equal(made, values)
    cut = look(data[: max(block.offset for block in tensor.blocks) + 10])
    assert cut.verdict is Verdict.INCOMPLETE
    assert any("state_dict.weight" in finding.tensors for finding in cut.findings)


def test_every_kind_of_dataset_is_read() -> None:
    h5py = pytest.importorskip("h5py")
    numpy = pytest.importorskip("numpy")
    stream = io.BytesIO()
    values = {
        kind: (numpy.random.default_rng(1).random((3, 4)) * 9 + 1).astype(kind)
        for kind in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u8", ">f4", "c8", "c16", "?")
    }
    with h5py.File(stream, "w") as file:
        for kind, value in values.items():
            file[f"weights/{kind}"] = value
        file["weights/text"] = "of any length"
        file["weights/bytes"] = numpy.array([b"abc", b"d"])
        file["weights/null"] = h5py.Empty("f4")
        file["weights/none"] = numpy.zeros((0, 3))
        file.create_dataset("weights/later", (5,), "f4")
        file["weights/again"] = file["weights/f4"]
        file["weights/soft"] = h5py.SoftLink("/weights/f4")
        file["weights/loop"] = file["weights"]
    reading = look(stream.getvalue())
    assert (reading.verdict, codes(reading)) == (Verdict.INTACT, {"never-written"})
    found = {tensor.name.removeprefix("weights."): tensor for tensor in reading.tensors}
    for kind, value in values.items():
        name = kind if kind in found else "again"  # one object, two names
        assert found[name].dtype == value.dtype.newbyteorder("=").name
        assert found[name].big_endian == (kind[0] == ">")
    assert "text" not in found


def test_measurements_are_no_checkpoint() -> None:
    h5py = pytest.importorskip("h5py")
    numpy = pytest.importorskip("numpy")
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file["station/temperature"] = numpy.random.default_rng(1).random(500)
        file.attrs["instrument"] = "thermometer"
    data = stream.getvalue()
    for size in (len(data), len(data) - 500):
        assert hdf5.read(BytesSource(data[:size], "weather.h5"), Options()) is None
    assert look(data, "model.h5").format == "hdf5"
    assert look(model(), "run.h5").format == "hdf5"


def test_names() -> None:
    def head(data: bytes, name: str) -> Head:
        return Head(name, len(data), data[:4096], data[-128:])

    assert hdf5.matches(head(model(), "anything"))
    assert hdf5.matches(head(model("earliest", 12, 1024), "anything"))
    assert hdf5.matches(head(bytes(4096) + model()[4096:], "a.h5"))
    assert not hdf5.matches(head(b"<!DOCTYPE html>", "a.h5"))


def test_checksums_are_those_of_their_definitions() -> None:
    assert lookup3(b"Four score and seven years ago") == 0x17770551
    assert lookup3(b"") == 0xDEADBEEF
    chance = random.Random(1)
    for length in (0, 1, 2, 7, 1000, 100001):
        data = chance.randbytes(length)
        first = second = 0
        for at in range(0, length, 2):
            first += int.from_bytes(data[at : at + 2].ljust(2, b"\0"), "big")
            second += first
            first, second = (first & 0xFFFF) + (first >> 16), (second & 0xFFFF) + (second >> 16)
        first, second = (first & 0xFFFF) + (first >> 16), (second & 0xFFFF) + (second >> 16)
        half = length // 4 * 2
        assert fletcher32([data]) == fletcher32([data[:half], data[half:]]) == second << 16 | first


def test_structures_that_lead_to_themselves_end() -> None:
    data = bytearray(model())
    node = data.index(b"TREE")
    inner = data.index(b"TREE", node + 1)
    data[node + 5] = 1  # its children are said to be nodes
    assert look(bytes(data)).verdict is Verdict.CORRUPT
    data[inner + 6 : inner + 8] = b"\xff\xff"
    assert look(bytes(data)).verdict in {Verdict.CORRUPT, Verdict.INCOMPLETE}


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(["earliest", "latest"]),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=6),
    st.integers(0, 1 << 16),
    st.booleans(),
)
def test_mutated_files_never_crash_the_reader(
    libver: str, changes: list[tuple[int, int]], size: int, near: bool
) -> None:
    data = bytearray(model(libver, 6))
    for place, value in changes:
        data[place % (2048 if near else len(data))] = value
    assert not look(bytes(data[: len(data) - size % len(data)] if size % 3 else data)).covered


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=6), st.sampled_from(range(4)))
def test_mutated_chunks_never_crash_the_reader(changes: list[tuple[int, int]], kind: int) -> None:
    data = bytearray(filtered(**CHUNKED[kind])[0])
    for place, value in changes:
        data[place % len(data)] = value
    assert not look(bytes(data)).covered


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=300), st.integers(0, 4))
def test_any_bytes_end_in_a_verdict(data: bytes, version: int) -> None:
    assert not look(b"\x89HDF\r\n\x1a\n" + bytes([version]) + data).covered
