"""Extract: what is copied is the same, proven, and leads nowhere else; what can't be copied is told."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rescue_tui import cli
from rescue_tui.checkpoints.model import CheckpointFinding, Verdict
from rescue_tui.checkpoints.source import Span
from rescue_tui.core.errors import PolicyRefusal, SetupError, SpaceError, UsageError
from rescue_tui.jobs import extracting, manifests
from rescue_tui.jobs.casefolder import parse_manifest
from rescue_tui.jobs.extracting import DEFAULT_VERDICTS, ExtractAnswer, extract
from rescue_tui.jobs.scanning import ScanStopped
from rescue_tui.services import Services
from rescue_tui.system.extraction import copy
from rescue_tui.system.freshfiles import PARTIAL, FreshDirectory, FreshFile
from tests.support.ckpt.saves import hf_trainer, safetensors_file, sharded

GOOD = safetensors_file({"w": 4096, "b": 16})
CUT = GOOD[:-9]


def write(place: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    return place


def below(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def run(source: Path, to: Path, *verdicts: Verdict) -> ExtractAnswer:
    return extract([source], to, verdicts or DEFAULT_VERDICTS)


def codes(answer: ExtractAnswer) -> list[str]:
    return [finding.code for finding in answer.findings]


def finding(answer: ExtractAnswer, code: str) -> CheckpointFinding:
    return next(one for one in answer.findings if one.code == code)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "src", {
        "run/step_1/model.safetensors": GOOD, "run/step_1/config.json": b"{}", "run/step_1/huge.log": b"no",
        "run/step_2/model.safetensors": CUT, "run/step_2/config.json": b"{}", "notes.txt": b"x"})


def test_chosen_rows_of_a_scan_are_copied_and_nothing_beside_them(source: Path, tmp_path: Path) -> None:
    write(source, {"run/step_3/model.safetensors": GOOD})
    rows = [source / "run/step_3/model.safetensors", source / "run/step_2/model.safetensors"]
    answer = extract(rows, tmp_path / "out", DEFAULT_VERDICTS, root=source)
    assert [item.row.path for item in answer.checkpoints] == ["run/step_3/model.safetensors"]
    assert [row.path for row in answer.not_chosen] == ["run/step_2/model.safetensors"]
    assert below(tmp_path / "out")["run/step_3/model.safetensors"] == GOOD
    assert not (tmp_path / "out/run/step_1").exists()
    assert answer.root == str(source)


def test_the_good_ones_are_copied_with_what_belongs_to_them(source: Path, tmp_path: Path) -> None:
    answer = run(source, tmp_path / "out")
    assert answer.good
    copied = below(tmp_path / "out")
    manifest = copied.pop("MANIFEST.sha256")
    assert copied == {"run/step_1/model.safetensors": GOOD, "run/step_1/config.json": b"{}"}
    assert [row.path for row in answer.not_chosen] == ["run/step_2/model.safetensors"]
    assert manifests.parse(manifest) == {path: hashlib.sha256(data).hexdigest() for path, data in copied.items()}
    assert subprocess.run(["sha256sum", "-c", "MANIFEST.sha256"], cwd=tmp_path / "out", check=False,
                          capture_output=True).returncode == 0


def test_other_verdicts_on_demand(source: Path, tmp_path: Path) -> None:
    answer = run(source, tmp_path / "out", Verdict.INCOMPLETE)
    assert answer.good
    assert below(tmp_path / "out")["run/step_2/model.safetensors"] == CUT
    nothing = run(source, tmp_path / "other", Verdict.EMPTY)
    assert not nothing.good
    assert codes(nothing) == ["nothing-chosen"]
    assert not (tmp_path / "other").exists()


def test_a_save_of_many_files_is_copied_whole(tmp_path: Path) -> None:
    files = hf_trainer(500)
    write(tmp_path / "src/run", files)
    write(tmp_path / "src/model", sharded())
    answer = run(tmp_path / "src", tmp_path / "out")
    assert answer.good
    copied = below(tmp_path / "out")
    copied.pop("MANIFEST.sha256")
    assert copied == below(tmp_path / "src")
    assert {item.row.path: len(item.files) for item in answer.checkpoints} == {
        "run/checkpoint-500": len(files), "model": 4}


def test_one_file_by_its_name(source: Path, tmp_path: Path) -> None:
    answer = extract([source / "run/step_1/model.safetensors"], tmp_path / "out", DEFAULT_VERDICTS)
    assert set(below(tmp_path / "out")) == {"model.safetensors", "config.json", "MANIFEST.sha256"}
    assert answer.good


def test_holes_times_and_attributes_are_kept(tmp_path: Path) -> None:
    source, out = tmp_path / "src", tmp_path / "out"
    source.mkdir()
    data = safetensors_file({"a": 1 << 18, "b": 4})
    begin, half = len(data) - 16 - (1 << 20), 1 << 19
    with (source / "m.safetensors").open("wb") as file:
        file.write(data[: begin + 4096])
        file.seek(begin + half)
        file.write(data[begin + half :])
    os.setxattr(source / "m.safetensors", "user.origin", b"node7")
    os.utime(source / "m.safetensors", ns=(1, 1_700_000_000_123_456_789))
    answer = extract([source], out, set(Verdict))
    status = (out / "m.safetensors").stat()
    assert (out / "m.safetensors").read_bytes() == (source / "m.safetensors").read_bytes()
    assert status.st_mtime_ns == 1_700_000_000_123_456_789
    assert os.getxattr(out / "m.safetensors", "user.origin") == b"node7"
    (copied,) = answer.files
    assert copied.data_bytes < copied.size_bytes - half // 2
    assert status.st_blocks * 512 < status.st_size


def test_links_devices_and_pipes_are_told_and_not_followed(tmp_path: Path) -> None:
    run_ = tmp_path / "src/run/checkpoint-500"
    write(tmp_path / "src/run", hf_trainer(500))
    write(tmp_path, {"secret.bin": b"secret", "src/shared.json": b"{}"})
    (run_ / "out.bin").symlink_to("../../../secret.bin")
    (run_ / "abs.bin").symlink_to("/etc/passwd")
    (run_ / "circle").symlink_to("circle")
    (run_ / "inside.json").symlink_to("../../shared.json")
    (run_ / "up").symlink_to("..")
    os.mkfifo(run_ / "pipe")
    answer = run(tmp_path / "src", tmp_path / "out")
    copied = below(tmp_path / "out")
    assert copied["run/checkpoint-500/inside.json"] == b"{}"
    assert not (tmp_path / "out/run/checkpoint-500/inside.json").is_symlink()
    assert not any(b"secret" in data or b"root:" in data for data in copied.values())
    assert codes(answer).count("link-not-followed") == 3
    assert finding(answer, "special-file").file.endswith("pipe")
    assert finding(answer, "link-to-directory").file.endswith("up")
    assert not answer.good


def test_the_destination_may_not_lie_in_what_is_read(source: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(source)
    for place in (source, source / "run", source / "new/deeper", tmp_path / "alias" / "out"):
        with pytest.raises(PolicyRefusal):
            run(source, place)
    with pytest.raises(PolicyRefusal):
        extract([source / "run/step_1/model.safetensors"], source / "run/step_1", DEFAULT_VERDICTS)
    assert sorted(path.name for path in source.iterdir()) == ["notes.txt", "run"]
    with pytest.raises(UsageError):
        run(tmp_path / "nothing", tmp_path / "out")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SetupError):
        run(source, tmp_path / "file")


def test_too_little_room_is_said_before_anything_is_written(source: Path, tmp_path: Path,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FreshDirectory, "free_bytes", len(GOOD))
    with pytest.raises(SpaceError):
        run(source, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_what_is_there_stays_and_counts_when_it_is_the_same(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(source, out).good
    before = {path: path.stat().st_ino for path in out.rglob("*.json")}
    write(source, {"run/step_3.safetensors": GOOD})
    again = run(source, out)
    assert again.good
    assert {copied.path: copied.was_there for copied in again.files}["run/step_1/config.json"]
    assert {path: path.stat().st_ino for path in out.rglob("*.json")} == before
    sums = manifests.parse((out / "MANIFEST.sha256").read_bytes())
    assert sums is not None
    assert len(sums) == 3
    (out / "run/step_1/model.safetensors").write_bytes(b"mine")
    (out / "run/step_1/config.json").unlink()
    (out / "run/step_1/config.json").symlink_to("/etc/passwd")
    refused = run(source, out)
    assert codes(refused) == ["exists", "exists"]
    assert (out / "run/step_1/model.safetensors").read_bytes() == b"mine"
    assert (out / "run/step_1/config.json").is_symlink()
    assert [item.complete for item in refused.checkpoints] == [False, True]


def test_a_link_in_the_destination_is_not_written_through(source: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/run").symlink_to(elsewhere)
    answer = run(source, tmp_path / "out")
    assert list(elsewhere.iterdir()) == []
    assert set(codes(answer)) == {"exists"}
    assert answer.manifest == ""


def test_a_destination_that_lies_is_found_out(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FreshFile, "share", lambda *_: False)
    honest = FreshFile.write
    monkeypatch.setattr(FreshFile, "write", lambda self, offset, data: honest(
        self, offset, bytes(data)[:-1] + bytes([data[-1] ^ 1])))
    answer = run(source, tmp_path / "out")
    assert set(codes(answer)) == {"read-back-differs"}
    assert all(name.endswith(PARTIAL) for name in below(tmp_path / "out"))


def test_stopping_leaves_partial_files_and_a_manifest_of_the_others(source: Path, tmp_path: Path) -> None:
    stop = threading.Event()

    def tick(name: str, done: int, total: int) -> None:
        assert 0 < done <= total
        if name.endswith("model.safetensors"):
            stop.set()

    with pytest.raises(ScanStopped):
        extract([source], tmp_path / "out", DEFAULT_VERDICTS, None, stop, tick)
    assert set(below(tmp_path / "out")) == {"run/step_1/model.safetensors" + PARTIAL, "run/step_1/config.json",
                                            "MANIFEST.sha256"}
    assert run(source, tmp_path / "out").good
    assert not [name for name in below(tmp_path / "out") if name.endswith(PARTIAL)]


def test_a_source_named_partial_is_a_source(tmp_path: Path) -> None:
    write(tmp_path / "src", {"m.safetensors": GOOD, "m.safetensors.partial": GOOD})
    answer = run(tmp_path / "src", tmp_path / "out", *Verdict)
    copied = below(tmp_path / "out")
    assert copied["m.safetensors"] == copied.get("m.safetensors.partial", GOOD) == GOOD
    assert answer.good


@pytest.mark.parametrize("length", [240, 248, 255])
def test_names_as_long_as_they_may_be(tmp_path: Path, length: int) -> None:
    name = "m" * (length - len(".safetensors")) + ".safetensors"
    write(tmp_path / "src", {name: GOOD})
    assert run(tmp_path / "src", tmp_path / "out").good
    assert below(tmp_path / "out")[name] == GOOD


def test_names_that_are_no_text_get_into_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    name = b"a\\b\nc\xff.safetensors"
    Path(os.fsdecode(os.fsencode(tmp_path / "src") + b"/" + name)).write_bytes(GOOD)
    assert run(tmp_path / "src", tmp_path / "out").good
    assert subprocess.run(["sha256sum", "-c", "MANIFEST.sha256"], cwd=tmp_path / "out", check=False,
                          capture_output=True).returncode == 0


def test_a_manifest_that_is_none_or_a_copy_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path / "src", {"m.safetensors": GOOD, "MANIFEST.sha256": b"0" * 64 + b"  other\n"})
    answer = run(tmp_path / "src", tmp_path / "out")
    assert answer.manifest.endswith("MANIFEST-2.sha256")
    write(tmp_path / "src2", {"m.safetensors": GOOD})
    write(tmp_path / "out2", {"MANIFEST.sha256": b"notes of mine"})
    assert run(tmp_path / "src2", tmp_path / "out2").manifest.endswith("MANIFEST-2.sha256")
    assert (tmp_path / "out2/MANIFEST.sha256").read_bytes() == b"notes of mine"


def failing(monkeypatch: pytest.MonkeyPatch, number: int, wanted: str) -> None:
    """Let opening names with this in them fail as file systems do."""
    real: Callable[..., int] = os.open

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_CREAT and wanted in str(path):
            raise OSError(number, os.strerror(number), path)
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENAMETOOLONG, errno.EILSEQ])
def test_a_name_that_can_t_be_stored_costs_only_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                        number: int) -> None:
    write(tmp_path / "src", {"a:1.safetensors": GOOD, "b.safetensors": GOOD})
    failing(monkeypatch, number, ":")
    answer = run(tmp_path / "src", tmp_path / "out")
    assert codes(answer) == ["name-not-storable"]
    assert [item.complete for item in answer.checkpoints] == [False, True]


def test_a_destination_that_becomes_full_keeps_what_is_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "src", {"a.safetensors": GOOD, "b.safetensors": GOOD})
    failing(monkeypatch, errno.ENOSPC, "b.safe")
    with pytest.raises(SpaceError, match="became full"):
        run(tmp_path / "src", tmp_path / "out")
    assert set(manifests.parse((tmp_path / "out/MANIFEST.sha256").read_bytes()) or {}) == {"a.safetensors"}


def test_names_that_differ_by_case_only_clash_where_case_is_nothing(tmp_path: Path,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "src", {"Run/m.safetensors": GOOD, "run/n.safetensors": GOOD, "x/A.safetensors": GOOD,
                             "x/a.safetensors": GOOD})
    monkeypatch.setattr(FreshDirectory, "_probe", lambda _: (True, True))
    answer = run(tmp_path / "src", tmp_path / "out")
    assert codes(answer) == ["case-clash", "case-clash"]
    assert len(answer.files) == 2


def test_an_unreadable_file_stays_partial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "src", {"a.safetensors": GOOD, "b.safetensors": GOOD})
    def spoiled(tree: Any, path: str, *rest: Any) -> Any:
        if path.startswith("a"):
            with (tmp_path / "src/a.safetensors").open("r+b") as file:
                file.truncate(100)
            monkeypatch.setattr("rescue_tui.system.extraction.data_runs",
                                lambda _: [Span(0, len(GOOD))])
        return copy(tree, path, *rest)

    monkeypatch.setattr(extracting, "copy", spoiled)
    answer = run(tmp_path / "src", tmp_path / "out")
    assert codes(answer) == ["changed"]
    assert "a.safetensors" + PARTIAL in below(tmp_path / "out")
    assert "b.safetensors" in below(tmp_path / "out")


def test_members_that_lead_out_are_refused() -> None:
    for path in ("../x", "a/../../x", "/etc/passwd", "a//b", "", "a\x00b", "./a"):
        assert not extracting._safe(path)
    assert extracting._safe("a/b..c/.d")


def test_the_manifest_is_read_as_it_is_written() -> None:
    sums = {"a b": "0" * 64, "back\\slash": "1" * 64, "line\nend\rs": "2" * 64, "\udcff": "3" * 64}
    assert manifests.parse(manifests.lines_of(sums)) == sums
    assert manifests.parse(b"0" * 63 + b"  a\n") is None


def test_remarks_of_the_manifest_stay_with_their_files(tmp_path: Path) -> None:
    names = ("a b", "back\\slash", "line\nend", "\udcff")
    remarks = {name: ["bad 4096+512", "unread 0+1"] for name in names}
    content = manifests.lines_of(dict.fromkeys(names, "0" * 64), remarks)
    assert manifests.remarks_of(content) == remarks
    assert manifests.parse(content) == dict.fromkeys(names, "0" * 64)
    # What we would not write is another's file: it is left alone.
    assert manifests.parse(b"# my own words\n" + content) is None
    manifests.write(tmp_path, dict.fromkeys(names, "0" * 64), (), remarks)
    manifests.write(tmp_path, {"a b": "1" * 64, "new": "2" * 64}, (), {"new": ["bad 0+512"]})
    content = (tmp_path / manifests.NAME).read_bytes()
    left = {name: words for name, words in remarks.items() if name != "a b"}
    assert manifests.remarks_of(content) == {**left, "new": ["bad 0+512"]}
    # A case folder that such a manifest lies in is verified as before.
    assert parse_manifest(b"# bad 0+512  new\n" + b"2" * 64 + b"  new\n") == {"new": "2" * 64}


def test_an_offset_without_a_mapfile_is_a_usage_error(
        source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def status(*argv: str) -> int:
        return cli.run(("checkpoints", *argv), Services, lambda _: 0)

    assert status("scan", str(source), "--map-offset", "512") == 2
    assert "--mapfile" in capsys.readouterr().err
    for number in ("-1", "1k", "0x200", "9" * 20, "\u0661"):
        assert status("scan", str(source), "--mapfile", "x", f"--map-offset={number}") == 2
    capsys.readouterr()
    missing = str(tmp_path / "none.map")
    assert status("scan", str(source), "--mapfile", missing) == 2
    assert status("extract", str(source), "--to", str(tmp_path / "out"), "--mapfile", missing) == 2
    assert status("salvage", str(source / "run/step_1"), "--to", str(tmp_path / "out"), "--mapfile", missing) == 2
    assert capsys.readouterr().err.count("none.map is not there") == 3


def test_the_command_line_answers(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def status(*argv: str) -> int:
        return cli.run(argv, Services, lambda _: 0)

    out = str(tmp_path / "out")
    assert status("checkpoints", "extract", str(source), "--to", out, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "stasis.checkpoints-extract/1"
    assert document["checkpoints"][0]["copied"] is True
    assert document["files"][1]["sha256"] == hashlib.sha256(GOOD).hexdigest()
    assert status("checkpoints", "extract", str(source), "--to", str(source / "x")) == 3
    assert status("checkpoints", "extract", str(source), "--to", out, "--only", "perfect") == 2
    assert status("checkpoints", "extract", str(source), "--to", out, "--only", "empty,foreign") == 1
    capsys.readouterr()
    assert status("checkpoints", "extract", str(source), "--to", out) == 0
    assert "were there already" in capsys.readouterr().out
    assert status("checkpoints", "salvage", str(source / "run/step_2"), "--to", str(tmp_path / "s")) == 1
    words = capsys.readouterr().out
    assert "1 of 2 tensors saved" in words
    assert "lost: b:" in words
    assert status("checkpoints", "salvage", str(source / "run/step_1"), "--to", str(tmp_path / "t"), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["exit"]) == ("stasis.checkpoints-salvage/1", 0)
