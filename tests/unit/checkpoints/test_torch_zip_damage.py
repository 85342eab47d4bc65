"""torch zip archives damaged in every kind of region: nothing damaged is called good, nothing good is lost."""

from __future__ import annotations

import io
import itertools
import random
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from rescue_tui.checkpoints import torch_zip  # noqa: E402
from rescue_tui.checkpoints.model import Options, Proof, Reading, Verdict  # noqa: E402
from rescue_tui.checkpoints.source import BytesSource  # noqa: E402
from tests.support.ckpt.torch_files import (  # noqa: E402
    disagreements,
    flat,
    flipped,
    model,
    raw_bytes,
    regions,
    saved,
    zoo,
)

pytestmark = pytest.mark.filterwarnings("ignore")
MODEL = model()
DATA = saved(MODEL)
TRUTH = {name: raw_bytes(tensor) for name, tensor in flat(MODEL).items()}
REGIONS = regions(DATA)
KINDS = sorted({region.kind for region in REGIONS})


def read(data: bytes) -> Reading:
    return torch_zip.read(BytesSource(data, "model.pt"), Options())


def verified(reading: Reading) -> set[str]:
    return {entry.name for entry in reading.tensors if entry.proof is Proof.VERIFIED}


def lies(data: bytes, reading: Reading) -> list[str]:
    return disagreements(data, reading, TRUTH, ("verified", "unverifiable"))


def test_regions_cover_the_file() -> None:
    ordered = sorted(REGIONS, key=lambda region: region.start)
    assert ordered[0].start == 0
    assert ordered[-1].end == len(DATA)
    assert all(before.end == after.start for before, after in itertools.pairwise(ordered))


@pytest.mark.parametrize("kind", KINDS)
def test_one_bit_flipped_in_every_region(kind: str) -> None:
    chance = random.Random(kind)
    for region in (region for region in REGIONS if region.kind == kind):
        for at in {region.start, region.end - 1, *(chance.randrange(region.start, region.end) for _ in range(4))}:
            data = flipped(DATA, at, chance.randrange(8))
            reading = read(data)
            assert lies(data, reading) == []
            if kind == "payload":
                assert reading.verdict is Verdict.CORRUPT, (region, at)
                hit = {name for finding in reading.findings for name in finding.tensors}
                if region.record.startswith("data/"):
                    assert len(hit) == 1
                    assert verified(reading) == set(TRUTH) - hit
            elif kind == "descriptor":
                assert reading.verdict is Verdict.CORRUPT, (region, at)
                assert verified(reading) == set(TRUTH)


def test_every_bit_of_the_pickle() -> None:
    (place,) = [region for region in REGIONS if (region.kind, region.record) == ("payload", "data.pkl")]
    for at in range(place.start, place.end, 3):
        data = flipped(DATA, at, at % 8)
        reading = read(data)
        assert reading.verdict is Verdict.CORRUPT
        assert verified(reading) == set()


@pytest.mark.parametrize("kind", KINDS)
def test_cut_at_the_borders_of_every_region(kind: str) -> None:
    for region in (region for region in REGIONS if region.kind == kind):
        for at in {region.start, region.start + 1, (region.start + region.end) // 2, region.end - 1}:
            data = DATA[:at]
            reading = read(data)
            assert lies(data, reading) == []
            assert reading.verdict is Verdict.INCOMPLETE, (region, at)
            whole = [other for other in REGIONS if other.kind == "descriptor" and other.record.startswith("data/")
                     and other.end <= at]
            assert len(verified(reading)) == len(whole), (region, at)


@pytest.mark.parametrize(("share", "count"), [(0.5, 6), (0.9, 10)])
def test_equal_tensors_before_a_cut_come_back_proven(share: float, count: int) -> None:
    value = {f"t{number:02d}": torch.rand(50_000) for number in range(12)}
    data = saved(value)
    data = data[:int(len(data) * share)]
    reading = read(data)
    assert len(verified(reading)) == count
    named = {name for finding in reading.findings for name in finding.tensors}
    assert named == set(value) - verified(reading)


@pytest.mark.parametrize("fill", [b"\x00", b"\xff"])
def test_every_page_overwritten(fill: bytes) -> None:
    for start in range(0, len(DATA), 4096):
        data = DATA[:start] + fill * min(4096, len(DATA) - start) + DATA[start + 4096:]
        reading = read(data)
        assert lies(data, reading) == []
        assert reading.verdict in (Verdict.CORRUPT, Verdict.INCOMPLETE), start
        untouched = {region.record for region in REGIONS
                     if region.kind == "payload" and (region.end <= start or region.start >= start + 4096)}
        if start >= 4096 and start + 4096 < REGIONS[-4].start:
            assert len(verified(reading)) >= sum(record.startswith("data/") for record in untouched) - 1


def test_zeros_to_the_end() -> None:
    for share in (0.1, 0.3, 0.5, 0.7, 0.95):
        at = int(len(DATA) * share)
        data = DATA[:at] + bytes(len(DATA) - at)
        reading = read(data)
        assert reading.verdict in (Verdict.INCOMPLETE, Verdict.CORRUPT)
        assert lies(data, reading) == []
        whole = [other for other in REGIONS if other.kind == "descriptor" and other.record.startswith("data/")
                 and other.end <= at]
        assert len(verified(reading)) == len(whole)


def test_blocks_swapped_and_spliced_from_another_step() -> None:
    other = saved(model(seed=100))
    places = [region for region in REGIONS if region.kind == "payload" and region.record.startswith("data/")]
    first, second = places[0], places[2]
    swapped = bytearray(DATA)
    swapped[first.start:first.end], swapped[second.start:second.end] = (
        DATA[second.start:second.end], DATA[first.start:first.end])
    for data in (bytes(swapped), DATA[:60_000] + other[60_000:], other[:4096] + DATA[4096:],
                 DATA[:8192] + DATA[12_288:16_384] + DATA[8192:12_288] + DATA[16_384:]):
        reading = read(data)
        assert reading.verdict is Verdict.CORRUPT
        good = verified(reading)
        truths = [TRUTH, {name: raw_bytes(tensor) for name, tensor in flat(model(seed=100)).items()}]
        assert all(any(not disagreements(data, Reading("", tensors=(entry,)), truth, ("verified",)) for truth in truths)
                   for entry in reading.tensors if entry.name in good)


def test_bytes_lost_or_added_inside() -> None:
    for at in (30, 700, 30_000, len(DATA) - 500):
        for data in (DATA[:at] + DATA[at + 8:], DATA[:at] + b"12345678" + DATA[at:]):
            reading = read(data)
            assert reading.verdict in (Verdict.CORRUPT, Verdict.INCOMPLETE)
            assert lies(data, reading) == []


def test_script_archives_cut() -> None:
    traced = torch.jit.trace(torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.Linear(20, 10)), torch.rand(1, 30))
    target = io.BytesIO()
    torch.jit.save(traced, target)
    data = target.getvalue()
    pickle = next(region for region in regions(data) if region.record == "data.pkl" and region.kind == "descriptor")
    for at in range(1, len(data), 97):
        reading = read(data[:at])
        assert reading.verdict is Verdict.INCOMPLETE
        assert len(verified(reading)) == (4 if at >= pickle.end else 0)


ZOO = saved(zoo())


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_anything_is_survived(data: st.DataObject) -> None:
    raw = bytearray(data.draw(st.sampled_from([DATA[:6000], ZOO])))
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(raw) - 1))
        match data.draw(st.integers(0, 3)):
            case 0:
                raw[at] = data.draw(st.integers(0, 255))
            case 1:
                del raw[at:at + data.draw(st.integers(0, 300))]
            case 2:
                raw[at:at] = data.draw(st.binary(max_size=40))
            case 3:
                raw[at:at + 8] = b"\xff" * 8
        if not raw:
            return
    reading = read(bytes(raw))
    if bytes(raw) != ZOO and reading.verdict is Verdict.VERIFIED:
        truth = {name: raw_bytes(tensor) for name, tensor in flat(zoo()).items()}
        assert disagreements(bytes(raw), reading, truth, ("verified",)) == []


@given(st.binary(max_size=400))
def test_random_bytes_behind_a_header(raw: bytes) -> None:
    assert read(DATA[:64] + raw).verdict is not Verdict.VERIFIED
    assert read(raw).verdict is not Verdict.VERIFIED


def test_small_files_that_declare_much_take_little() -> None:
    import struct

    bombs = [
        # one record of 2^62 bytes; 2^32 directory entries; a pickle whose text has 2^63 bytes
        struct.pack("<4s5H3I2H", b"PK\3\4", 0, 0, 0, 0, 0, 1, 0xFFFFFFFF, 0xFFFFFFFF, 8, 20) + b"a/data/0"
        + struct.pack("<HHQQ", 1, 16, 1 << 62, 1 << 62),
        DATA[:64] + struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 0, 0, 0, 0, 1 << 40, 1 << 40, 64, 0)
        + struct.pack("<4sIQI", b"PK\6\7", 0, 64, 1) + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 9, 9, 64, 0, 0),
        DATA[:64] + b"\x80\x02\x8d" + b"\xff" * 7 + b"\x7f" + bytes(200),
    ]
    for bomb in bombs:
        tracemalloc.start()
        reading = read(bomb)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4 << 20
        assert reading.verdict in (Verdict.CORRUPT, Verdict.INCOMPLETE)


def test_a_deflated_bomb_is_read_no_further_than_it_declares() -> None:
    import zipfile
    import zlib

    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}.")
        archive.writestr("a/version", b"3\n")
        archive.writestr("a/data/0", bytes(30 << 20))
    raw = bytearray(target.getvalue())
    tracemalloc.start()
    whole = read(bytes(raw))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20
    assert whole.verdict is Verdict.VERIFIED
    # The same stream, declared as 1000 bytes.
    size = (30 << 20).to_bytes(4, "little")
    crc = zlib.crc32(bytes(1000)).to_bytes(4, "little")
    lying = bytes(raw).replace(size, (1000).to_bytes(4, "little")).replace(
        zlib.crc32(bytes(30 << 20)).to_bytes(4, "little"), crc)
    assert read(lying).verdict is Verdict.CORRUPT
