"""Salvage: what comes back of each kind of damage equals what was saved, bit for bit, and loads in safetensors."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rescue_tui.checkpoints import salvage as choosing
from rescue_tui.checkpoints.model import Verdict
from rescue_tui.core.errors import DeviceError, FormatError, PolicyRefusal, SpaceError, UsageError
from rescue_tui.jobs import salvaging
from rescue_tui.jobs.salvaging import SalvageAnswer, salvage
from rescue_tui.jobs.scanning import ScanStopped
from rescue_tui.system import freshfiles
from rescue_tui.system.freshfiles import FreshDirectory, FreshFile
from tests.support.ckpt import premade
from tests.support.ckpt.saves import dcp, flipped, safetensors_file, sharded

torch = pytest.importorskip("torch")
st_torch = pytest.importorskip("safetensors.torch")
torch_files = pytest.importorskip("tests.support.ckpt.torch_files")
_LAYERS = 12
Tensors = Mapping[str, Any]


def equal(count: int = _LAYERS, side: int = 64) -> OrderedDict[str, Any]:
    """Tensors of one size."""
    return OrderedDict((f"layers.{number}.weight", torch_files.tensor_of(torch.float32, (side, side), number))
                       for number in range(count))


def loaded(answer: SalvageAnswer) -> Tensors:
    """What safetensors itself reads back."""
    name = next(name for name in answer.files if name.endswith(salvaging.FILE_END))
    tensors: Tensors = st_torch.load_file(Path(answer.to) / name)
    return tensors


def check(answer: SalvageAnswer, truth: Tensors) -> set[str]:
    """Compare every salvaged tensor with what was saved; their names."""
    tensors = loaded(answer)
    for name, tensor in tensors.items():
        assert tensor.dtype == truth[name].dtype, name
        assert torch_files.raw_bytes(tensor) == torch_files.raw_bytes(truth[name]), name
        assert tensor.shape == truth[name].shape, name
    return set(tensors)


def told(answer: SalvageAnswer) -> dict[str, Any]:
    """The JSON file, which says the same as the answer."""
    name = next(name for name in answer.files if name.endswith(salvaging.TOLD_END))
    document: dict[str, Any] = json.loads((Path(answer.to) / name).read_bytes())
    listed = {file["name"]: file for file in document["files"]}
    for file in listed.values():
        content = (Path(answer.to) / file["name"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file["size_bytes"], file["sha256"])
    return document


@pytest.mark.parametrize(("part", "count"), [(0.5, 6), (0.9, 10), (1.0, 12)])
def test_a_cut_torch_zip_gives_back_the_records_before_the_cut(tmp_path: Path, part: float, count: int) -> None:
    truth = equal()
    data = torch_files.saved(truth)
    (tmp_path / "model.pt").write_bytes(data[: int(len(data) * part)])
    answer = salvage(tmp_path / "model.pt", tmp_path / "out")
    assert len(check(answer, truth)) == count
    assert {one.tensor.proof.value for one in answer.chosen.kept} == {"verified"}
    document = told(answer)
    assert document["schema"] == "stasis.checkpoints-salvage/1"
    assert document["tensors"] == {"total": 12, "salvaged": count, "verified": count, "unverifiable": 0,
                                   "lost": 12 - count}
    assert answer.whole == (count == 12)
    assert all(lost["reason"] for lost in document["lost"])
    first = document["salvaged"][0]
    assert first["from"]["file"].endswith("model.pt")
    assert data[first["from"]["offset"] :][: first["bytes"]] == torch_files.raw_bytes(truth[first["tensor"]])


def test_a_torn_central_directory_costs_no_tensor(tmp_path: Path) -> None:
    truth = equal()
    data = torch_files.saved(truth)
    at = data.index(b"PK\x01\x02")
    (tmp_path / "model.pt").write_bytes(data[:at] + b"\x00" * (len(data) - at))
    answer = salvage(tmp_path / "model.pt", tmp_path / "out")
    assert check(answer, truth) == set(truth)
    assert answer.row.verdict in {Verdict.CORRUPT, Verdict.INCOMPLETE}


def test_a_flipped_tensor_is_lost_and_its_reason_is_the_finding(tmp_path: Path) -> None:
    truth = equal()
    data = torch_files.saved(truth)
    at = data.index(torch_files.raw_bytes(truth["layers.3.weight"])) + 100
    (tmp_path / "model.pt").write_bytes(flipped(data, at))
    answer = salvage(tmp_path / "model.pt", tmp_path / "out")
    assert check(answer, truth) == set(truth) - {"layers.3.weight"}
    (lost,) = told(answer)["lost"]
    assert (lost["tensor"], lost["code"]) == ("layers.3.weight", "crc-mismatch")


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_kind_of_tensor_is_the_same_in_the_new_file(tmp_path: Path) -> None:
    zoo = torch_files.zoo()
    (tmp_path / "zoo.pt").write_bytes(torch_files.saved(zoo))
    answer = salvage(tmp_path / "zoo.pt", tmp_path / "out")
    truth = torch_files.flat(zoo)
    names = check(answer, truth)
    raw = {one.name for one in answer.chosen.kept if not one.word}
    assert names | raw == set(truth)
    assert answer.chosen.lost == ()
    document = told(answer)
    content = (tmp_path / "out" / "zoo.pt.salvaged.bin").read_bytes() if raw else b""
    for one in document["salvaged"]:
        if one["in"].endswith(".bin"):
            assert content[one["at"] :][: one["bytes"]] == torch_files.raw_bytes(truth[one["tensor"]])
    assert document["values"] == {"step": 17, "epoch": 3}


def test_big_endian_records_come_out_little_endian(tmp_path: Path) -> None:
    truth = {"w": torch.arange(40, dtype=torch.float32).reshape(5, 8), "n": torch.arange(7, dtype=torch.int16)}
    swapped = {name: tensor.view(torch.uint8).reshape(*tensor.shape, -1).flip(-1).contiguous().view(
        tensor.dtype).squeeze(-1) for name, tensor in truth.items()}
    (tmp_path / "be.pt").write_bytes(_as_big_endian(torch_files.saved(swapped)))
    answer = salvage(tmp_path / "be.pt", tmp_path / "out")
    assert check(answer, truth) == set(truth)


def _as_big_endian(data: bytes) -> bytes:
    """The same archive whose record byteorder says big; written by zipfile, as the format allows."""
    import io
    import zipfile

    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            new.writestr(info.filename, b"big" if info.filename.endswith("byteorder") else old.read(info))
    return target.getvalue()


def test_a_cut_legacy_file_gives_back_its_prefix(tmp_path: Path) -> None:
    truth = equal()
    data = torch_files.saved(truth, _use_new_zipfile_serialization=False)
    (tmp_path / "old.pt").write_bytes(data[: len(data) // 2])
    answer = salvage(tmp_path / "old.pt", tmp_path / "out")
    names = check(answer, truth)
    assert 5 <= len(names) <= 6
    assert {one.tensor.proof.value for one in answer.chosen.kept} == {"unverifiable"}


def run_of(tmp_path: Path, damaged: bytes, good: bytes, name: str = "model.pt") -> Path:
    """A run of two steps, the newer damaged; its path."""
    for step, data in ((100, good), (200, damaged)):
        (tmp_path / f"run/step_{step}").mkdir(parents=True)
        (tmp_path / f"run/step_{step}/{name}").write_bytes(data)
    return tmp_path / f"run/step_200/{name}"


def test_a_lost_pickle_is_borrowed_from_another_step(tmp_path: Path) -> None:
    truth = equal()
    data = torch_files.saved(truth)
    at = data.index(b"data.pkl") + 64
    older = torch_files.saved(OrderedDict((name, tensor + 1) for name, tensor in truth.items()))
    path = run_of(tmp_path, data[:at] + bytes(64) + data[at + 64 :], older)
    answer = salvage(path, tmp_path / "out")
    assert check(answer, truth) == set(truth)
    (loan,) = told(answer)["borrowed"]
    assert loan["file"].endswith("step_100/model.pt")


def test_a_pickle_of_another_model_is_not_borrowed(tmp_path: Path) -> None:
    data = torch_files.saved(equal())
    at = data.index(b"data.pkl") + 64
    path = run_of(tmp_path, data[:at] + bytes(64) + data[at + 64 :], torch_files.saved(equal(side=65)))
    answer = salvage(path, tmp_path / "out")
    assert answer.chosen.kept == ()
    assert answer.files == ("model.pt.salvage.json",)
    assert not answer.whole
    assert told(answer)["findings"]


def test_safetensors_below_the_cut(tmp_path: Path) -> None:
    truth = {name: tensor.clone() for name, tensor in equal().items()}
    data = st_torch.save(truth)
    (tmp_path / "m.safetensors").write_bytes(data[: len(data) * 3 // 4])
    answer = salvage(tmp_path / "m.safetensors", tmp_path / "out")
    assert len(check(answer, truth)) == 8
    assert answer.row.verdict is Verdict.INCOMPLETE


@pytest.mark.parametrize("zeroed", [8, 512, 4096])
def test_a_lost_safetensors_header_is_borrowed(tmp_path: Path, zeroed: int) -> None:
    truth = equal(side=32)
    older = {name: tensor + 1 for name, tensor in truth.items()}
    data = st_torch.save(truth, {"step": "200"})
    path = run_of(tmp_path, bytes(zeroed) + data[zeroed:], st_torch.save(older, {"step": "100"}), "m.safetensors")
    answer = salvage(path, tmp_path / "out")
    (length,) = struct.unpack("<Q", data[:8])
    names = check(answer, truth)
    assert len(names) == (12 if zeroed <= length + 8 else 12 - -(-(zeroed - length - 8) // 4096))
    assert {one.tensor.proof.value for one in answer.chosen.kept} == {"unverifiable"}
    assert told(answer)["borrowed"][0]["file"].endswith("step_100/m.safetensors")


def test_a_header_of_another_size_is_not_borrowed(tmp_path: Path) -> None:
    data = st_torch.save(equal())
    path = run_of(tmp_path, bytes(8) + data[8:], st_torch.save(equal(side=65)), "m.safetensors")
    assert salvage(path, tmp_path / "out").chosen.kept == ()


def dcp_run(tmp_path: Path) -> tuple[Path, Tensors]:
    for step in (100, 200):
        dcp(tmp_path / f"run/step_{step}", step)
    from tests.support.ckpt.saves import state

    return tmp_path / "run/step_200", {f"model.{name}": tensor for name, tensor in state(w=300, b=20).items()}


def test_dcp_slices_by_the_metadata_of_another_step(tmp_path: Path) -> None:
    path, truth = dcp_run(tmp_path)
    (path / ".metadata").unlink()
    answer = salvage(path, tmp_path / "out")
    assert check(answer, truth) == set(truth)
    assert {one.tensor.proof.value for one in answer.chosen.kept} == {"verified"}
    (loan,) = told(answer)["borrowed"]
    assert loan["file"].endswith("step_100/.metadata")


def test_dcp_slices_by_metadata_that_was_not_renamed(tmp_path: Path) -> None:
    path, truth = dcp_run(tmp_path)
    (path / ".metadata").rename(path / ".metadata.tmp")
    answer = salvage(path, tmp_path / "out")
    assert check(answer, truth) == set(truth)
    assert told(answer)["borrowed"][0]["file"].endswith("step_200/.metadata.tmp")


def test_dcp_metadata_of_another_model_is_not_borrowed(tmp_path: Path) -> None:
    dcp(tmp_path / "run/step_100", 100, count=301)
    dcp(tmp_path / "run/step_200", 200)
    (tmp_path / "run/step_200/.metadata").unlink()
    answer = salvage(tmp_path / "run/step_200", tmp_path / "out")
    assert answer.borrowed == ()
    assert not any(one.tensor.name.startswith("model.") for one in answer.chosen.kept)


def test_shards_without_their_index_get_a_new_one(tmp_path: Path) -> None:
    files = sharded()
    expected = json.loads(files.pop("model.safetensors.index.json"))
    (tmp_path / "m").mkdir()
    for name, data in files.items():
        (tmp_path / "m" / name).write_bytes(data)
    answer = salvage(tmp_path / "m", tmp_path / "out")
    assert answer.whole
    index = next(name for name in answer.files if name.endswith(salvaging.INDEX_END))
    assert json.loads((tmp_path / "out" / index).read_bytes()) == expected
    assert set(loaded(answer)) == set(expected["weight_map"])


def write_sample(tmp_path: Path, name: str) -> premade.Sample:
    sample = premade.load(name)
    for path, content in sample.files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    return sample


def same_as_writer(answer: SalvageAnswer, sample: premade.Sample, prefix: str = "") -> int:
    """How many tensors are what their writer had."""
    document = told(answer)
    count = 0
    for one in document["salvaged"]:
        expected = sample.values.get(one["tensor"].removeprefix(prefix))
        if expected is not None:
            content = (Path(answer.to) / one["in"]).read_bytes()[one["at"] :][: one["bytes"]]
            assert content == expected.content, one["tensor"]
            count += 1
    return count


@pytest.mark.parametrize("name", ["tf-sharded", "tf-dtypes"])
def test_tensorflow_entries_whose_crc_holds(tmp_path: Path, name: str) -> None:
    sample = write_sample(tmp_path / "tf", name)
    shard = next(path for path in sample.files if ".data-00000" in path)
    prefix = tmp_path / "tf" / shard.partition(".data-")[0]
    good = salvage(prefix, tmp_path / "good")
    assert same_as_writer(good, sample) >= len(sample.values) - 2  # those of a second bundle
    (tmp_path / "tf" / shard).write_bytes(flipped(sample.files[shard], len(sample.files[shard]) // 2))
    answer = salvage(prefix, tmp_path / "out")
    assert 0 < len(answer.chosen.kept) < len(good.chosen.kept)
    assert same_as_writer(answer, sample) > 0
    assert "crc-mismatch" in {lost.code for lost in answer.chosen.lost}


@pytest.mark.parametrize("name", ["orbax-ocdbt", "orbax-zarr3", "orbax-files", "orbax-files3"])
def test_orbax_arrays_are_decoded(tmp_path: Path, name: str) -> None:
    sample = write_sample(tmp_path / "10", name)
    answer = salvage(tmp_path / "10", tmp_path / "out")
    assert same_as_writer(answer, sample) > 0
    assert not answer.chosen.lost


def test_names_that_no_header_can_hold_are_changed_and_told(tmp_path: Path) -> None:
    data = torch_files.saved({"__metadata__": torch.ones(2), "a\ud800b": torch.ones(3), "x": {"y": torch.ones(4)},
                              "x.y": torch.ones(5)})
    (tmp_path / "m.pt").write_bytes(data)
    answer = salvage(tmp_path / "m.pt", tmp_path / "out")
    assert {name: len(tensor) for name, tensor in loaded(answer).items()} == {
        "__metadata__#2": 2, "a\\ud800b": 3, "x.y": 4, "x.y#2": 5}


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(safetensors_file({"w": 9}))
    salvage(tmp_path / "m.safetensors", tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(PolicyRefusal):
        salvage(tmp_path / "m.safetensors", tmp_path / "out")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_what_is_asked_for_must_be_one_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(safetensors_file({"w": 9}))
    (tmp_path / "b.safetensors").write_bytes(safetensors_file({"w": 9}))
    (tmp_path / "n.txt").write_bytes(b"notes")
    with pytest.raises(UsageError, match="2 checkpoints"):
        salvage(tmp_path, tmp_path.parent / "out")
    with pytest.raises(UsageError):
        salvage(tmp_path / "nothing", tmp_path / "out")
    with pytest.raises(FormatError):
        salvage(tmp_path / "n.txt", tmp_path / "out")
    with pytest.raises(PolicyRefusal):
        salvage(tmp_path, tmp_path / "out")


def test_too_little_room_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.safetensors").write_bytes(safetensors_file({"w": 9}))
    monkeypatch.setattr(FreshDirectory, "free_bytes", 35)
    with pytest.raises(SpaceError):
        salvage(tmp_path / "m.safetensors", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_destination_that_lies_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.safetensors").write_bytes(safetensors_file({"w": 9}))
    honest = FreshFile.write

    def lying(self: FreshFile, offset: int, data: bytes | bytearray | memoryview) -> None:
        honest(self, offset, bytes(data).replace(struct.pack("<f", 1), struct.pack("<f", 2), 1))

    monkeypatch.setattr(FreshFile, "write", lying)
    with pytest.raises(DeviceError, match="other bytes"):
        salvage(tmp_path / "m.safetensors", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [
        f"m.safetensors{salvaging.FILE_END}{freshfiles.PARTIAL}"]


def test_a_medium_that_changes_its_mind_costs_that_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = equal(3)
    (tmp_path / "m.pt").write_bytes(torch_files.saved(truth))
    chosen = choosing.select

    def then_damaged(row: Any) -> Any:
        data = (tmp_path / "m.pt").read_bytes()
        (tmp_path / "m.pt").write_bytes(flipped(data, data.index(torch_files.raw_bytes(truth["layers.1.weight"])) + 5))
        return chosen(row)

    monkeypatch.setattr(salvaging, "select", then_damaged)
    answer = salvage(tmp_path / "m.pt", tmp_path / "out")
    assert check(answer, truth) == {"layers.0.weight", "layers.2.weight"}
    assert [(lost.name, lost.code) for lost in answer.chosen.lost] == [("layers.1.weight", "copy-failed")]
    assert not any(path.name.endswith(freshfiles.PARTIAL) for path in (tmp_path / "out").iterdir())


def test_stopping_leaves_a_partial_file_that_the_next_call_replaces(tmp_path: Path) -> None:
    truth = equal(3)
    (tmp_path / "m.pt").write_bytes(torch_files.saved(truth))
    stop = threading.Event()
    with pytest.raises(ScanStopped):
        salvage(tmp_path / "m.pt", tmp_path / "out", lambda *_: stop.set(), stop)
    assert [path.suffix for path in (tmp_path / "out").iterdir()] == [freshfiles.PARTIAL]
    assert check(salvage(tmp_path / "m.pt", tmp_path / "out"), truth) == set(truth)
    assert sorted(os.listdir(tmp_path / "out")) == ["m.pt.salvage.json", "m.pt.salvaged.safetensors"]


def test_values_that_json_can_t_hold_are_words(tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_bytes(torch_files.saved({"w": torch.ones(2), "loss": float("nan"), "lr": 0.5}))
    assert told(salvage(tmp_path / "m.pt", tmp_path / "out"))["values"] == {"loss": "nan", "lr": 0.5}
