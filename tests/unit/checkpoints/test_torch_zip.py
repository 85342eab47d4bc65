"""torch zip archives: what torch's own writer makes, in its forms, and saves that were left unfinished."""

from __future__ import annotations

import argparse
import io
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from rescue_tui.checkpoints import torch_zip  # noqa: E402
from rescue_tui.checkpoints.model import Head, Options, Proof, Reading, Verdict  # noqa: E402
from rescue_tui.checkpoints.source import BytesSource, UnreadableBytes, Window  # noqa: E402
from tests.support.ckpt.torch_files import (  # noqa: E402
    disagreements,
    entry_bytes,
    flat,
    model,
    random_bytes,
    raw_bytes,
    regions,
    saved,
    zoo,
)

pytestmark = pytest.mark.filterwarnings("ignore")
GOOD = ("verified", "unverifiable")


def head(data: bytes, name: str = "model.pt") -> Head:
    return Head(name, len(data), data[:4096], data[-128:])


def read(data: bytes, name: str = "model.pt") -> Reading:
    return torch_zip.read(BytesSource(data, name), Options())


def codes(reading: Reading) -> set[str]:
    return {finding.code for finding in reading.findings}


def truth_of(value: Any) -> dict[str, bytes]:
    return {name: raw_bytes(tensor) for name, tensor in flat(value).items()}


def rebuilt(data: bytes, keep: Callable[[str], bool] = lambda name: bool(name), method: int = zipfile.ZIP_STORED,
            more: Sequence[tuple[str, bytes]] = ()) -> bytes:
    """The same records in an archive of Python's zipfile."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(target, "w", method) as new:
        for info in old.infolist():
            if keep(info.filename.partition("/")[2]):
                new.writestr(info.filename, old.read(info))
        for name, content in more:
            new.writestr(name, content)
    return target.getvalue()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_kind_of_tensor_is_verified_and_bit_equal(protocol: int) -> None:
    value = zoo()
    data = saved(value, pickle_protocol=protocol)
    reading = read(data)
    truth = truth_of(torch.load(io.BytesIO(data), weights_only=False))
    assert torch_zip.matches(head(data))
    assert (reading.verdict, reading.format, reading.step) == (Verdict.VERIFIED, "torch-zip", 17)
    assert {entry.name for entry in reading.tensors} == set(truth)
    assert all(entry.proof is Proof.VERIFIED for entry in reading.tensors)
    assert disagreements(data, reading, truth, GOOD) == []
    shapes = {name: tuple(tensor.shape) for name, tensor in flat(value).items()}
    assert {entry.name: entry.shape for entry in reading.tensors} == shapes


def test_saved_to_a_path_the_root_is_the_name(tmp_path: Path) -> None:
    path = tmp_path / "step_7.pt"
    torch.save(model(), path)
    reading = read(path.read_bytes())
    assert reading.verdict is Verdict.VERIFIED
    assert reading.values["step"] == 1200
    assert reading.step == 1200
    assert reading.payload_bytes == 6 * (48 * 48 + 48) * 4


def test_bare_tensor_scalar_and_window() -> None:
    tensor = torch.arange(7.0)
    data = saved(tensor)
    outer = b"x" * 777 + data + b"y" * 99
    reading = torch_zip.read(Window(BytesSource(outer, "outer.tar"), 777, len(data)), Options())
    (entry,) = reading.tensors
    assert (reading.verdict, entry.name, entry.shape) == (Verdict.VERIFIED, "", (7,))
    assert entry_bytes(outer, entry) == raw_bytes(tensor)
    number = read(saved(5))
    assert (number.verdict, dict(number.values), number.tensors) == (Verdict.VERIFIED, {"": 5}, ())


def test_findings_in_a_window_name_offsets_of_the_outer_file() -> None:
    data = bytearray(saved(model()))
    (place,) = [region for region in regions(bytes(data)) if (region.kind, region.record) == ("payload", "data/3")]
    data[place.start] ^= 1
    reading = torch_zip.read(Window(BytesSource(bytes(500) + bytes(data), "o"), 500, len(data)), Options())
    (finding,) = [finding for finding in reading.findings if finding.code == "crc-mismatch"]
    assert (finding.offset, finding.length) == (place.start + 500, place.end - place.start)


def test_quantised_sparse_nested_meta_and_numpy() -> None:
    per_tensor = torch.quantize_per_tensor(torch.arange(-4.0, 8.0).reshape(3, 4), 0.5, 2, torch.qint8)
    channel = torch.quantize_per_channel(torch.rand(3, 4), torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3), 0,
                                          torch.quint8)
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2], [1, 0]]), torch.tensor([3.0, 4.0]), (3, 2))
    array = np.arange(60, dtype=np.float64).reshape(5, 12)
    fortran = np.asfortranarray(np.arange(20, dtype=">i4").reshape(4, 5))
    value = {"q": per_tensor, "c": channel, "s": sparse, "csr": torch.eye(3).to_sparse_csr(), "a": array, "f": fortran,
             "m": torch.empty(3, 3, device="meta"), "best": np.float64(0.25),
             "storage": torch.arange(4.0).untyped_storage()}
    data = saved(value)
    reading = read(data)
    entries = {entry.name: entry for entry in reading.tensors}
    assert reading.verdict is Verdict.VERIFIED
    assert reading.values["best"] == 0.25
    assert (entries["q"].dtype, entries["c"].dtype) == ("qint8", "quint8")
    assert entry_bytes(data, entries["q"]) == raw_bytes(per_tensor)
    assert entry_bytes(data, entries["c"]) == raw_bytes(channel)
    assert entry_bytes(data, entries["s.indices"]) == raw_bytes(sparse._indices())
    assert entry_bytes(data, entries["s.values"]) == raw_bytes(sparse._values())
    assert {"csr.crow_indices", "csr.col_indices", "csr.values"} <= set(entries)
    assert entry_bytes(data, entries["a"]) == array.tobytes()
    assert entries["f"].big_endian
    assert entry_bytes(data, entries["f"]) == fortran.tobytes()
    assert entry_bytes(data, entries["storage"]) == raw_bytes(torch.arange(4.0))
    assert "m" not in entries
    assert [finding.tensors for finding in reading.findings if finding.code == "no-values"] == [("m",)]


def test_a_whole_module_and_foreign_classes_are_described_not_imported() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    data = saved({"net": net, "args": argparse.Namespace(tensor_model_parallel_size=4), "iteration": 9})
    reading = read(data)
    assert reading.verdict is Verdict.VERIFIED
    assert {entry.name for entry in reading.tensors} == {f"net.{name}" for name in net.state_dict()}
    assert reading.values["args.tensor_model_parallel_size"] == 4
    assert reading.step == 9


class Creator:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def test_a_pickle_that_would_create_a_file_creates_none(tmp_path: Path) -> None:
    reading = read(saved({"w": torch.ones(3), "evil": Creator(tmp_path / "made")}))
    assert {entry.name for entry in reading.tensors} == {"w"}
    assert list(tmp_path.iterdir()) == []


def test_script_modules_have_their_own_word() -> None:
    traced = torch.jit.trace(torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.Linear(20, 10)), torch.rand(1, 30))
    target = io.BytesIO()
    torch.jit.save(traced, target)
    data = target.getvalue()
    reading = read(data, "net.pt")
    assert torch_zip.matches(head(data))
    assert (reading.format, reading.verdict) == ("torchscript", Verdict.VERIFIED)
    truth = {name: raw_bytes(tensor) for name, tensor in traced.state_dict().items()}
    assert truth.keys() <= {entry.name for entry in reading.tensors}
    assert disagreements(data, reading, truth, GOOD) == []
    (code,) = [region for region in regions(data) if region.kind == "payload" and region.record.endswith("__torch__.py")
               ][:1] or [next(region for region in regions(data) if "code/" in region.record)]
    damaged = bytearray(data)
    damaged[(code.start + code.end) // 2] ^= 0x10
    assert read(bytes(damaged)).verdict is Verdict.CORRUPT


def saved_without_crc(value: Any) -> bytes:
    from torch.utils.serialization import config

    before = config.save.compute_crc32
    config.save.compute_crc32 = False
    try:
        return saved(value)
    finally:
        config.save.compute_crc32 = before


def test_without_crc_it_is_intact_at_best() -> None:
    data = saved_without_crc(model())
    reading = read(data)
    assert reading.verdict is Verdict.INTACT
    assert "crc-off" in codes(reading)
    assert all(entry.proof is Proof.UNVERIFIABLE for entry in reading.tensors)
    (place,) = [region for region in regions(data) if (region.kind, region.record) == ("payload", "data/4")]
    zeroed = bytearray(data)
    start = -(-place.start // 4096) * 4096
    zeroed[start:start + 4096] = bytes(4096)
    assert [finding.tensors for finding in read(bytes(zeroed)).findings if finding.code == "zero-run"]


def test_without_crc_zeros_by_right_are_no_damage_and_a_cut_is() -> None:
    zeros = {"w": torch.zeros(5000), "v": torch.zeros(9000)}
    assert read(saved_without_crc(zeros)).verdict is Verdict.INTACT
    value = model()
    data = saved_without_crc(value)
    cut = read(data[:len(data) // 2])
    assert cut.verdict is Verdict.INCOMPLETE
    assert {entry.proof for entry in cut.tensors} == {Proof.UNVERIFIABLE, Proof.DAMAGED}
    assert disagreements(data, cut, truth_of(value), GOOD) == []


def test_names_borrowed_from_a_sibling() -> None:
    value, older = model(seed=5), saved(model(seed=3))
    data = saved(value)
    for lost in (bytes(4096) + data[4096:], bytes(4096) + data[4096:90_000]):
        names = torch_zip.borrow(BytesSource(lost, "a.pt"), BytesSource(older, "b.pt"))
        proven = {entry.name for entry in names if entry.proof is Proof.VERIFIED}
        assert len(proven) >= 6
        assert disagreements(lost, Reading("", tensors=names), truth_of(value), GOOD) == []
    stranger = saved(model(layers=5))
    assert torch_zip.borrow(BytesSource(data, "a.pt"), BytesSource(stranger, "b.pt")) == ()
    assert torch_zip.borrow(BytesSource(data, "a.pt"), BytesSource(b"PK", "b.pt")) == ()


def test_placeholders_of_skip_data_are_never_good(tmp_path: Path) -> None:
    from torch.serialization import skip_data

    path = tmp_path / "skipped.pt"
    with skip_data():
        torch.save(model(), path)
    reading = read(path.read_bytes())
    assert reading.verdict is Verdict.INCOMPLETE
    assert "placeholder" in codes(reading)
    assert all(entry.proof is Proof.DAMAGED for entry in reading.tensors)


def test_two_saves_in_one_handle() -> None:
    target = io.BytesIO()
    torch.save(model(seed=1), target)
    first = target.tell()
    torch.save({**model(seed=2), "step": 1300}, target)
    data = target.getvalue()
    reading = read(data)
    assert reading.verdict is Verdict.INCONSISTENT
    assert reading.step == 1300
    assert "two-archives" in codes(reading)
    assert disagreements(data, reading, truth_of(model(seed=2)), GOOD) == []
    cut = read(data[:first + (len(data) - first) // 2])
    assert cut.verdict is Verdict.INCOMPLETE
    assert "two-archives" in codes(cut)


@pytest.mark.parametrize("junk", [b"\x00" * 10, b"j" * 5000, b"z" * 70_000, bytes(200_000)])
def test_trailing_bytes_break_the_tail_but_no_tensor(junk: bytes) -> None:
    value = model()
    data = saved(value) + junk
    reading = read(data)
    assert reading.verdict is Verdict.CORRUPT
    assert "trailing-bytes" in codes(reading)
    assert all(entry.proof is Proof.VERIFIED for entry in reading.tensors)
    assert disagreements(data, reading, truth_of(value), GOOD) == []


@pytest.mark.parametrize("lost", [1, 4, 40, 64])
def test_a_lost_front_shifts_everything(lost: int) -> None:
    value = model()
    data = saved(value)[lost:]
    reading = read(data)
    assert torch_zip.matches(head(data))
    assert reading.verdict is Verdict.CORRUPT
    assert "front-lost" in codes(reading)
    assert disagreements(data, reading, truth_of(value), GOOD) == []
    assert sum(entry.proof is Proof.VERIFIED for entry in reading.tensors) in (0, 12)


def test_junk_in_front() -> None:
    value = model()
    data = b"junk" * 100 + saved(value)
    reading = read(data)
    assert reading.verdict is Verdict.CORRUPT
    assert "prefix-bytes" in codes(reading)
    assert disagreements(data, reading, truth_of(value), GOOD) == []


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_repacked_by_another_writer(method: int) -> None:
    value = model()
    data = rebuilt(saved(value), method=method)
    reading = read(data)
    assert torch_zip.matches(head(data))
    assert reading.verdict is Verdict.VERIFIED
    assert len(reading.tensors) == 12
    assert disagreements(data, reading, truth_of(value), GOOD) == []


@pytest.mark.parametrize(("lost", "verdict", "code"), [
    ("data.pkl", Verdict.INCOMPLETE, "pickle-missing"), ("data/3", Verdict.INCOMPLETE, "storage-missing"),
    ("version", Verdict.INCOMPLETE, "version-missing"), ("byteorder", Verdict.INCOMPLETE, "byteorder-missing"),
    (".format_version", Verdict.VERIFIED, ""), (".data/serialization_id", Verdict.VERIFIED, ""),
])
def test_a_record_is_missing(lost: str, verdict: Verdict, code: str) -> None:
    reading = read(rebuilt(saved(model()), lambda name: name != lost))
    assert reading.verdict is verdict
    assert not code or code in codes(reading)
    if lost == "data/3":
        assert [finding.tensors for finding in reading.findings if finding.code == code] == [("model.layers.1.bias",)]


def test_records_too_many_twice_or_elsewhere() -> None:
    data = saved(model())
    assert "storage-extra" in codes(read(rebuilt(data, more=[("archive/data/99", b"1234")])))
    stranger = read(rebuilt(data, more=[("other/data/1", b"1234")]))
    assert (stranger.verdict, "other-root" in codes(stranger)) == (Verdict.CORRUPT, True)
    twice = read(rebuilt(data, more=[("archive/data/1", b"1234")]))
    assert (twice.verdict, "duplicate-record" in codes(twice)) == (Verdict.CORRUPT, True)
    wrong = read(rebuilt(data, lambda name: name != "data/3", more=[("archive/data/3", b"12345678")]))
    assert (wrong.verdict, "storage-size" in codes(wrong)) == (Verdict.CORRUPT, True)
    assert {entry.name for entry in wrong.tensors if entry.proof is Proof.DAMAGED} == {"model.layers.1.bias"}


def test_shared_storage_is_hit_for_every_view() -> None:
    base = torch.arange(4096.0)
    data = saved({"a": base, "b": base[10:20], "c": {"d": base.reshape(64, 64).t()}, "other": torch.ones(3)})
    (place,) = [region for region in regions(data) if (region.kind, region.record) == ("payload", "data/0")]
    damaged = data[:place.start] + bytes(16) + b"x" + data[place.start + 17:]
    (finding,) = [finding for finding in read(damaged).findings if finding.code == "crc-mismatch"]
    assert set(finding.tensors) == {"a", "b", "c.d"}


def test_a_save_that_failed_while_pickling() -> None:
    class Refuses:
        def __reduce__(self) -> tuple[Any, ...]:
            raise RuntimeError

    target = io.BytesIO()
    with pytest.raises(RuntimeError):
        torch.save({"w": torch.ones(3), "x": Refuses()}, target)
    reading = read(target.getvalue())
    assert torch_zip.matches(head(target.getvalue()))
    assert reading.verdict is Verdict.INCOMPLETE
    assert "pickle-missing" in codes(reading)


class Sick:
    """A medium with bad sectors."""

    name = "model.pt"

    def __init__(self, data: bytes, start: int, end: int) -> None:
        self.good = BytesSource(data)
        self.size_bytes = len(data)
        self.bad = range(start, end)

    def read_at(self, offset: int, length: int) -> bytes:
        if max(offset, self.bad.start) < min(offset + length, self.bad.stop):
            raise UnreadableBytes(self.bad.start, len(self.bad), "EIO")
        return self.good.read_at(offset, length)

    def chunks(self, offset: int, length: int) -> Any:
        for start in range(offset, offset + length, 512):
            yield self.read_at(start, min(512, offset + length - start))

    def holes(self, offset: int, length: int) -> tuple[Any, ...]:
        return ()


def test_bad_sectors_cost_the_tensors_on_them() -> None:
    data = saved(model())
    (place,) = [region for region in regions(data) if (region.kind, region.record) == ("payload", "data/4")]
    reading = torch_zip.read(Sick(data, place.start + 512, place.start + 1024), Options())
    assert reading.verdict is Verdict.INCOMPLETE
    assert {entry.name for entry in reading.tensors if entry.proof is Proof.DAMAGED} == {"model.layers.2.weight"}
    for start in (0, len(data) - 40, len(data) - 300):
        assert torch_zip.read(Sick(data, start, start + 30), Options()).verdict is not Verdict.VERIFIED


def test_decoys_do_not_match() -> None:
    plain = io.BytesIO()
    with zipfile.ZipFile(plain, "w") as archive:
        archive.writestr("notes/readme.txt", "x")
        archive.writestr("notes/version", "1")
    assert not torch_zip.matches(head(plain.getvalue(), "notes.zip"))
    assert not torch_zip.matches(head(random_bytes(9000, 1), "model.pt"))
    assert not torch_zip.matches(head(b"", "model.pt"))


def test_sizes_of_64_bits_in_header_descriptor_and_directory() -> None:
    """The form that records beyond 4 GiB take, at the size of a test: zip64 extras and a descriptor of 24 bytes."""
    import zlib

    source = saved({"w": torch.arange(100.0)})
    with zipfile.ZipFile(io.BytesIO(source)) as archive:
        records = [(info.filename, archive.read(info)) for info in archive.infolist()]
    body, directory = b"", b""
    for name, content in records:
        crc, size, at = zlib.crc32(content), len(content), len(body)
        raw = name.encode()
        wide = struct.pack("<HHQQ", 1, 16, 0, 0)
        local = struct.pack("<4s5H3I2H", b"PK\3\4", 0, 0x0808, 0, 0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF, len(raw), len(wide))
        body += local + raw + wide + content + struct.pack("<4sI2Q", b"PK\7\x08", crc, size, size)
        extra = struct.pack("<HH3Q", 1, 24, size, size, at)
        directory += struct.pack("<4s6H3I5H2I", b"PK\1\2", 0, 0, 0x0808, 0, 0, 0, crc, 0xFFFFFFFF, 0xFFFFFFFF, len(raw),
                                 len(extra), 0, 0, 0, 0, 0xFFFFFFFF) + raw + extra
    end = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 0, 0, 0, 0, len(records), len(records), len(directory), len(body))
    end += struct.pack("<4sIQI", b"PK\6\7", 0, len(body) + len(directory), 1)
    end += struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, len(records), len(records), len(directory), 0xFFFFFFFF, 0)
    data = body + directory + end
    reading = read(data)
    assert (reading.verdict, reading.findings) == (Verdict.VERIFIED, ())
    assert disagreements(data, reading, {"w": raw_bytes(torch.arange(100.0))}, GOOD) == []
    cut = read(data[:-1])
    assert cut.verdict is Verdict.INCOMPLETE
    assert [entry.proof for entry in cut.tensors] == [Proof.VERIFIED]
