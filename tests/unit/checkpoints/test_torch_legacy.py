"""Files that torch wrote before its zip format: five pickles and storages, and the tar before that."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from rescue_tui.checkpoints import torch_legacy, torch_tar  # noqa: E402
from rescue_tui.checkpoints.model import Head, Options, Proof, Reading, Verdict  # noqa: E402
from rescue_tui.checkpoints.source import BytesSource, Window  # noqa: E402
from tests.support.ckpt.torch_files import (  # noqa: E402
    disagreements,
    flat,
    flipped,
    model,
    raw_bytes,
    saved,
    tar_era,
    tensor_of,
    zoo,
)

pytestmark = pytest.mark.filterwarnings("ignore")
GOOD = ("verified", "unverifiable")
MODEL = model(4, 64)
DATA = saved(MODEL, _use_new_zipfile_serialization=False)
TRUTH = {name: raw_bytes(tensor) for name, tensor in flat(MODEL).items()}
TAR_TENSORS = {"w": tensor_of(torch.float32, (40, 50), 1), "v.b": tensor_of(torch.float32, (60, 40), 2),
               "s": torch.tensor(3.0)}
TAR = tar_era(TAR_TENSORS)
TAR_TRUTH = {name: raw_bytes(tensor) for name, tensor in TAR_TENSORS.items()}


def head(data: bytes) -> Head:
    return Head("model.pt", len(data), data[:4096], data[-128:])


def read(data: bytes) -> Reading:
    return torch_legacy.read(BytesSource(data, "model.pt"), Options())


def read_tar(data: bytes) -> Reading:
    return torch_tar.read(BytesSource(data, "model.pt"), Options())


def good(reading: Reading) -> set[str]:
    return {entry.name for entry in reading.tensors if entry.proof is not Proof.DAMAGED}


def codes(reading: Reading) -> set[str]:
    return {finding.code for finding in reading.findings}


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_every_kind_of_tensor_is_bit_equal(protocol: int) -> None:
    value = zoo()
    data = saved(value, _use_new_zipfile_serialization=False, pickle_protocol=protocol)
    reading = read(data)
    truth = {name: raw_bytes(tensor) for name, tensor in flat(value).items()}
    # torch.load knows no untyped storage in a legacy file, so it can't read back all that torch.save writes.
    typed = {key: tensor for key, tensor in value.items() if "uint" not in key and "float8" not in key
             and "complex32" not in key}
    again = torch.load(io.BytesIO(saved(typed, _use_new_zipfile_serialization=False)), weights_only=False)
    assert {name: raw_bytes(tensor) for name, tensor in flat(again).items()}.items() <= truth.items()
    assert torch_legacy.matches(head(data))
    assert (reading.verdict, reading.format, reading.step) == (Verdict.INTACT, "torch-legacy", 17)
    assert good(reading) == set(truth)
    assert disagreements(data, reading, truth, GOOD) == []


def test_offsets_in_a_window_are_the_outer_files() -> None:
    outer = b"o" * 333 + DATA + b"x"
    reading = torch_legacy.read(Window(BytesSource(outer, "o"), 333, len(DATA)), Options())
    assert reading.verdict is Verdict.INTACT
    assert disagreements(outer, reading, TRUTH, GOOD) == []


def test_zeros_by_right_are_no_damage() -> None:
    for value in ({"w": torch.zeros(5000)}, {"w": torch.zeros(5000), "v": torch.zeros(9000), "b": torch.zeros(3)}):
        reading = read(saved(value, _use_new_zipfile_serialization=False))
        assert reading.verdict is Verdict.INTACT
        assert good(reading) == set(value)


def test_quantised_and_whole_modules() -> None:
    quantised = torch.quantize_per_tensor(torch.arange(12.0), 0.5, 2, torch.quint8)
    data = saved({"q": quantised, "net": torch.nn.Linear(3, 2)}, _use_new_zipfile_serialization=False)
    reading = read(data)
    assert reading.verdict is Verdict.INTACT
    assert good(reading) == {"q", "net.weight", "net.bias"}
    assert disagreements(data, Reading("", tensors=reading.tensors[:1]), {"q": raw_bytes(quantised)}, GOOD) == []


def test_every_cut() -> None:
    payload = len(DATA) - sum(len(raw) + 8 for raw in TRUTH.values())
    for length in [*range(1, payload, 37), *range(payload, len(DATA), 501), len(DATA) - 1]:
        data = DATA[:length]
        reading = read(data)
        assert reading.verdict is Verdict.INCOMPLETE, length
        assert disagreements(data, reading, TRUTH, GOOD) == []
        if length >= payload:
            # Each whole tensor before the cut counts, in the order of the keys.
            here = sorted(block.offset + block.length for entry in read(DATA).tensors for block in entry.blocks)
            assert len(good(reading)) == sum(end <= length for end in here)
            lost = {name for finding in reading.findings for name in finding.tensors}
            assert lost == set(TRUTH) - good(reading)


def test_zeros_over_the_tail_and_counts() -> None:
    payload = len(DATA) - sum(len(raw) + 8 for raw in TRUTH.values())
    middle = (payload + len(DATA)) // 2
    reading = read(DATA[:middle] + bytes(len(DATA) - middle))
    assert reading.verdict in (Verdict.CORRUPT, Verdict.INCOMPLETE)
    assert disagreements(DATA[:middle] + bytes(len(DATA) - middle), reading, TRUTH, GOOD) == []
    wrong = read(flipped(DATA, payload))
    assert (wrong.verdict, "storage-count" in codes(wrong)) == (Verdict.CORRUPT, True)
    assert len(good(wrong)) == len(TRUTH) - 1
    more = read(DATA + b"12")
    assert (more.verdict, "trailing-bytes" in codes(more)) == (Verdict.CORRUPT, True)
    assert good(more) == set(TRUTH)


def test_bits_flipped_in_the_pickles_are_never_better_than_intact() -> None:
    payload = len(DATA) - sum(len(raw) + 8 for raw in TRUTH.values())
    for at in range(0, payload, 5):
        reading = read(flipped(DATA, at, at % 8))
        assert reading.verdict is not Verdict.VERIFIED


def test_storages_missing_from_the_list_or_too_many() -> None:
    small = saved({"a": torch.ones(3), "b": torch.zeros(3)}, _use_new_zipfile_serialization=False)
    # The last pickle lists the keys; rename one of them there, where it is written last.
    places = [at for at in range(len(small) - 8) if small[at:at + 1] == b"X"]
    last = places[-1]
    length = int.from_bytes(small[last + 1:last + 5], "little")
    changed = small[:last + 5] + b"7" * length + small[last + 5 + length:]
    reading = read(changed)
    assert reading.verdict is Verdict.CORRUPT
    assert {"storage-missing", "storage-extra"} <= codes(reading)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_anything_is_survived(data: st.DataObject) -> None:
    reader, whole = data.draw(st.sampled_from([(read, DATA[:9000]), (read_tar, TAR)]))
    raw = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(raw) - 1))
        if data.draw(st.booleans()):
            raw[at] = data.draw(st.integers(0, 255))
        else:
            raw[at:at + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=40))
        if not raw:
            return
    reading = reader(bytes(raw))
    assert reading.verdict is not Verdict.VERIFIED


@given(st.binary(max_size=600))
def test_random_bytes(raw: bytes) -> None:
    for data in (raw, DATA[:15] + raw, TAR[:512] + raw):
        assert read(data).verdict is not Verdict.VERIFIED
        assert read_tar(data).verdict is not Verdict.VERIFIED
        torch_legacy.matches(head(data))
        torch_tar.matches(head(data))


def test_the_tar_is_read_as_torch_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    path.write_bytes(TAR)
    loaded: dict[str, Any] = torch.load(path, weights_only=False)
    reading = read_tar(TAR)
    assert torch_tar.matches(head(TAR))
    assert not torch_legacy.matches(head(TAR))
    assert (reading.verdict, reading.format, reading.step) == (Verdict.INTACT, "torch-legacy", 5)
    assert {name: raw_bytes(tensor) for name, tensor in loaded.items() if name != "step"} == TAR_TRUTH
    assert good(reading) == set(TAR_TRUTH)
    assert disagreements(TAR, reading, TAR_TRUTH, GOOD) == []


def test_tars_cut_and_flipped() -> None:
    end = len(TAR.rstrip(b"\x00"))
    for length in range(513, end, 311):
        reading = read_tar(TAR[:length])
        assert reading.verdict is Verdict.INCOMPLETE, length
        assert disagreements(TAR[:length], reading, TAR_TRUTH, GOOD) == []
    chance = random.Random(1)
    for start in range(0, 512, 7):
        data = flipped(TAR, start, chance.randrange(8))
        assert read_tar(data).verdict in (Verdict.CORRUPT, Verdict.INCOMPLETE)
    assert not torch_tar.matches(head(flipped(TAR, 3)))


def test_an_ordinary_tar_does_not_match() -> None:
    import tarfile

    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:") as archive:
        archive.addfile(tarfile.TarInfo("notes.txt"), io.BytesIO())
    assert not torch_tar.matches(head(target.getvalue()))
    assert not torch_tar.matches(head(bytes(10_240)))
