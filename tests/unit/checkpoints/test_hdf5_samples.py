"""HDF5 files that the library wrote before: read bit for bit without it, damaged, and hostile ones built by hand."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from rescue_tui.checkpoints import hdf5
from rescue_tui.checkpoints.hdf5_wire import lookup3
from rescue_tui.checkpoints.model import Options, Proof, Reading, Verdict
from rescue_tui.checkpoints.placing import fault_of, place, stored_bytes
from rescue_tui.checkpoints.source import BytesSource, Source
from rescue_tui.checkpoints.tree import MemoryTree
from rescue_tui.jobs.salvaging import salvage
from tests.support.ckpt import premade

NAME = "model.h5"
FILES = ["groups-new.h5", "groups-old.h5", "indices-new.h5", "indices-old.h5", "proven.h5"]
KILLED = ["killed-earliest.h5", "killed-latest.h5"]


@functools.cache
def sample() -> premade.Sample:
    return premade.load("hdf5")


def content(file: str) -> bytes:
    return sample().files[file]


def expected(file: str) -> dict[str, premade.Expected]:
    return {key.partition(":")[2]: value for key, value in sample().values.items() if key.startswith(f"{file}:")}


def look(data: bytes) -> Reading:
    """The reading, which must be one."""
    reading = hdf5.read(BytesSource(data, NAME), Options())
    assert reading is not None
    return reading


def codes(reading: Reading) -> set[str]:
    return {finding.code for finding in reading.findings}


def no_scratch() -> NoScratch:
    raise AssertionError("small chunks are held")


class NoScratch:
    def write(self, data: bytes) -> None:
        raise NotImplementedError

    def source(self) -> Source:
        raise NotImplementedError


def differing(data: bytes, reading: Reading, truth: dict[str, premade.Expected]) -> set[str]:
    """Tensors whose names, types, shapes or bytes are not those of the writer."""
    tree = MemoryTree({NAME: data})
    wrong = set(truth) ^ {tensor.name for tensor in reading.tensors}
    for tensor in reading.tensors:
        made = bytearray(stored_bytes(tensor))

        def write(at: int, piece: bytes | bytearray | memoryview, made: bytearray = made) -> None:
            made[at : at + len(piece)] = piece

        assert fault_of(tensor) == "", tensor.name
        place(tree, tensor, no_scratch, write)
        if truth.get(tensor.name) != premade.Expected(tensor.dtype, tensor.shape, bytes(made)):
            wrong.add(tensor.name)
    return wrong


@pytest.mark.parametrize("file", FILES)
def test_every_tensor_is_the_one_that_was_written(file: str) -> None:
    data = content(file)
    reading = look(data)
    assert (reading.verdict, reading.findings) == (Verdict.VERIFIED if file == "proven.h5" else Verdict.INTACT, ())
    assert len(reading.tensors) == len(expected(file)) > 0
    assert differing(data, reading, expected(file)) == set()


def test_checksums_are_told_tensor_by_tensor() -> None:
    proofs = {tensor.name.partition(".")[2]: tensor.proof for tensor in look(content("indices-new.h5")).tensors}
    for name, proof in proofs.items():
        covered = name.endswith(("_packed", "_summed", "_both")) or name == "compact"  # its header's own checksum
        assert proof is (Proof.VERIFIED if covered else Proof.UNVERIFIABLE), name


@pytest.mark.parametrize("file", FILES)
def test_every_cut_is_incomplete(file: str) -> None:
    data = content(file)
    for size in [*range(9, 200, 7), *range(200, len(data), len(data) // 60), len(data) - 1]:
        reading = look(data[:size])
        assert reading.verdict is Verdict.INCOMPLETE, size
        for tensor in reading.tensors:
            inside = all(block.offset + block.length <= size for block in tensor.blocks)
            assert inside or tensor.proof is Proof.DAMAGED


def test_no_flip_leaves_other_values_verified() -> None:
    data = content("proven.h5")
    verified = 0
    for at in range(0, len(data), 5):
        flipped = premade.flip(at, at % 8)(data)
        reading = look(flipped)
        if reading.verdict is Verdict.VERIFIED:
            verified += 1
            assert differing(flipped, reading, expected("proven.h5")) == set(), at
    assert verified < len(data) / 5 / 2  # only bytes that nothing uses


def test_a_flip_in_a_chunk_names_its_tensor() -> None:
    data = content("indices-new.h5")
    for tensor in look(data).tensors:
        for block in tensor.blocks[::5] if tensor.proof is Proof.VERIFIED else ():
            reading = look(premade.flip(block.offset + block.length // 2, 3)(data))
            assert reading.verdict is Verdict.CORRUPT, tensor.name
            assert {name for finding in reading.findings for name in finding.tensors} >= {tensor.name}


@pytest.mark.parametrize("signature", [b"FRHP", b"FHIB", b"FHDB", b"BTHD", b"BTLF"])
def test_a_flip_in_a_dense_group_is_corrupt(signature: bytes) -> None:
    data = content("groups-new.h5")
    found = look(premade.flip(data.index(signature) + 9, 2)(data))
    assert found.verdict is Verdict.CORRUPT
    assert "checksum-mismatch" in codes(found)


@pytest.mark.parametrize("signature", [b"FAHD", b"FADB", b"EAHD", b"EAIB", b"EASB", b"EADB", b"BTHD\0\n", b"BTLF\0\n"])
def test_a_flip_in_an_index_is_corrupt_and_leaves_the_other_tensors(signature: bytes) -> None:
    data = content("indices-new.h5")
    found = look(premade.flip(data.rindex(signature) + 8, 2)(data))
    assert found.verdict is Verdict.CORRUPT
    assert "checksum-mismatch" in codes(found)
    assert sum(tensor.proof is not Proof.DAMAGED for tensor in found.tensors) >= len(expected("indices-new.h5")) - 1


@pytest.mark.parametrize("file", KILLED)
def test_a_killed_writer_leaves_an_uncommitted_file(file: str) -> None:
    reading = look(content(file))
    assert (reading.verdict, codes(reading)) >= (Verdict.UNCOMMITTED, {"not-closed"})
    assert "not-closed" in codes(reading)
    assert [tensor.name for tensor in reading.tensors] == [f"model_weights.layer_{index}" for index in range(4)]


def test_bytes_that_were_appended_are_only_told() -> None:
    data = content("groups-old.h5")
    for more in (b"a line\n", bytes(8192)):
        assert (look(data + more).verdict, codes(look(data + more))) == (Verdict.INTACT, {"trailing-bytes"})
    assert look(data + b"\1" * 8192).verdict is Verdict.UNCOMMITTED


def test_salvage_unpacks_chunks_and_keeps_what_lies_before_a_cut(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    for number, (file, size, least) in enumerate((
            ("indices-new.h5", None, 26), ("indices-old.h5", None, 26), ("indices-old.h5", 170_000, 15),
            ("groups-old.h5", 30_000, 50))):
        (tmp_path / NAME).write_bytes(content(file)[:size])
        answer = salvage(tmp_path / NAME, tmp_path / f"out{number}")
        name = next(name for name in answer.files if name.endswith(".safetensors"))
        tensors = numpy.load_file(Path(answer.to) / name)
        truth = expected(file)
        assert (len(tensors) == len(truth)) == (size is None)
        assert len(tensors) >= least, file
        for key, tensor in tensors.items():
            assert tensor.tobytes() == truth[key].content, key


# Files by hand: a superblock of version 2, then headers of version 2, each as large as it must be.
BASE = 48


def sealed(body: bytes) -> bytes:
    return body + struct.pack("<I", lookup3(body))


def superblock(end: int, root: int = BASE) -> bytes:
    return sealed(b"\x89HDF\r\n\x1a\n" + struct.pack("<4B4Q", 2, 8, 8, 0, 0, 2**64 - 1, end, root))


def header(*messages: tuple[int, bytes]) -> bytes:
    body = b"".join(struct.pack("<BHB", kind, len(data), 0) + data for kind, data in messages)
    return sealed(b"OHDR" + struct.pack("<BBI", 2, 2, len(body)) + body)


def link(name: str, address: int) -> tuple[int, bytes]:
    return 6, struct.pack("<3B", 1, 0, len(name)) + name.encode() + struct.pack("<Q", address)


def file_of(headers: Sequence[bytes]) -> bytes:
    body = b"".join(headers)
    return superblock(BASE + len(body)) + body


FLOATS = (3, struct.pack("<B3BI2H4BI", 0x11, 0x20, 31, 0, 4, 0, 32, 23, 8, 0, 23, 127))


def dataset(shape: tuple[int, ...], address: int, length: int) -> bytes:
    space = struct.pack("<4B", 2, len(shape), 0, 1) + struct.pack(f"<{len(shape)}Q", *shape)
    return header((1, space), FLOATS, (8, struct.pack("<2B2Q", 3, 1, address, length)))


def one_dataset(shape: tuple[int, ...], length: int, payload: bytes, address: int | None = None) -> bytes:
    top = header(link("kernel", 0))
    made = dataset(shape, 0, length)
    at = BASE + len(top) + len(made)
    body = [header(link("kernel", BASE + len(top))), dataset(shape, at if address is None else address, length)]
    return file_of([*body, payload])


def test_a_lost_node_does_not_hide_the_others() -> None:
    data = content("groups-old.h5")
    nodes = [at for at in range(0, len(data), 8) if data.startswith(b"SNOD", at)]
    assert len(nodes) > 5
    lost = []
    for at in nodes:
        reading = look(premade.flip(at)(data))
        assert (reading.verdict, codes(reading)) == (Verdict.CORRUPT, {"structure"})
        lost.append(len(expected("groups-old.h5")) - len(reading.tensors))
    assert lost[0] == len(expected("groups-old.h5"))  # the root group's only node
    assert {0 < count <= 8 for count in lost[1:]} == {True}  # a node of other groups holds eight members at most


def test_a_file_by_hand_is_intact() -> None:
    reading = look(one_dataset((2, 3), 24, b"\1" * 24))
    assert (reading.verdict, reading.findings) == (Verdict.INTACT, ())
    assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in reading.tensors] == [("kernel", "float32", (2, 3))]


@pytest.mark.parametrize(("data", "code", "verdict"), [
    (one_dataset((2, 3), 20, b"\1" * 24), "tensor-size", Verdict.CORRUPT),
    (one_dataset((2, 3), 24, b"\1" * 24, 1 << 40), "address", Verdict.CORRUPT),
    (one_dataset((2, 3), 24, b"\1" * 24, 2**64 - 1), "never-written", Verdict.INTACT),
    (one_dataset((1 << 40, 1 << 40), 24, b"\1" * 24), "structure", Verdict.CORRUPT),
    (one_dataset((2, 3), 24, b"\1" * 24)[:-1], "cut", Verdict.INCOMPLETE),
    (file_of([header(link("kernel", 1 << 50))]), "address", Verdict.CORRUPT),
    (file_of([header((0x10, struct.pack("<2Q", BASE, 34)))]), "structure", Verdict.CORRUPT),
    (file_of([header((2, struct.pack("<2B2Q", 0, 0, BASE, BASE)))]), "address", Verdict.CORRUPT),
    (file_of([header((0, b""))]), "", Verdict.INTACT),
])
def test_what_contradicts_itself_is_told(data: bytes, code: str, verdict: Verdict) -> None:
    reading = look(data)
    assert reading.verdict is verdict
    assert codes(reading) >= ({code} if code else set())


def test_a_chain_of_groups_without_end_is_left() -> None:
    size = len(header(link("g", 0)))
    chain = [header(link("g", BASE + size * (number + 1))) for number in range(5000)]
    reading = look(file_of([*chain, header()]))
    assert (reading.verdict, codes(reading)) == (Verdict.CORRUPT, {"too-large"})


def test_groups_that_hold_themselves_are_met_once() -> None:
    assert look(file_of([header(*(link(f"g{number}", BASE) for number in range(300)))])).verdict is Verdict.INTACT


def resealed(data: bytes, signature: bytes, length: int, at: int, value: bytes) -> bytes:
    """One field of the last such structure changed, and its checksum made to match."""
    start = data.rindex(signature)
    body = bytearray(data[start : start + length])
    body[at : at + len(value)] = value
    return data[:start] + sealed(bytes(body)) + data[start + length + 4 :]


@pytest.mark.parametrize(("file", "signature", "length", "at", "value"), [
    ("indices-new.h5", b"FAHD", 24, 8, (1 << 60).to_bytes(8, "little")),
    ("indices-new.h5", b"EAHD", 68, 44, (1 << 60).to_bytes(8, "little")),
    ("indices-new.h5", b"EAHD", 68, 7, b"\xff"),
    ("indices-new.h5", b"BTHD", 34, 12, b"\xff\xff"),
    ("groups-new.h5", b"BTHD", 34, 12, b"\x20\x00"),
    ("groups-new.h5", b"BTHD", 34, 26, (1 << 60).to_bytes(8, "little")),
    ("groups-new.h5", b"FRHP", 142, 110, b"\xff\xff"),
    ("groups-new.h5", b"FRHP", 142, 140, b"\xff\xff"),
    ("groups-new.h5", b"FRHP", 142, 120, (1 << 60).to_bytes(8, "little")),
])
def test_counts_without_measure_end_in_a_finding(file: str, signature: bytes, length: int, at: int,
                                                 value: bytes) -> None:
    data = content(file)
    assert resealed(data, signature, length, 0, signature) == data  # the layout is as it is thought to be
    reading = look(resealed(data, signature, length, at, value))
    assert codes(reading) & {"structure", "not-followed", "address", "checksum-mismatch"}
    assert not reading.covered
