"""Scanning paths of the machine: roots, progress, several processes, stopping."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from rescue_tui.checkpoints.model import Options, Verdict
from rescue_tui.core.errors import UsageError
from rescue_tui.jobs import scanning
from rescue_tui.jobs.scanning import ScanStopped, scan_paths, start_of
from tests.support.ckpt.saves import only, safetensors_file, sharded

GOOD = safetensors_file({"w": 4096, "b": 16})


def write(place: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    return place


def test_one_directory_is_the_root(tmp_path: Path) -> None:
    write(tmp_path, {"run/step_1.safetensors": GOOD, "run/notes.txt": b"x"})
    answer = scan_paths([tmp_path], Options())
    assert answer.root == str(tmp_path)
    assert only(answer.scan).path == "run/step_1.safetensors"
    assert answer.scan.scanned_files == 2
    assert answer.scan.scanned_bytes == len(GOOD)


def test_one_file_is_judged_below_its_directory(tmp_path: Path) -> None:
    write(tmp_path, {"a.safetensors": GOOD, "b.safetensors": GOOD})
    answer = scan_paths([tmp_path / "b.safetensors"], Options())
    assert (answer.root, only(answer.scan).path) == (str(tmp_path), "b.safetensors")


def test_the_index_of_a_set_stands_for_the_set(tmp_path: Path) -> None:
    write(tmp_path, sharded())
    row = only(scan_paths([tmp_path / "model.safetensors.index.json"], Options()).scan)
    assert row.reading.format == "safetensors-sharded"
    assert row.verdict is Verdict.INTACT


def test_several_paths_share_a_root(tmp_path: Path) -> None:
    write(tmp_path, {"x/a.safetensors": GOOD, "y/z/b.safetensors": GOOD, "c.safetensors": GOOD})
    answer = scan_paths([tmp_path / "x", tmp_path / "y" / "z" / "b.safetensors", tmp_path / "x"], Options())
    assert [row.path for row in answer.scan.checkpoints] == ["x/a.safetensors", "y/z/b.safetensors"]
    assert answer.root == str(tmp_path)


def test_rows_of_a_scan_are_judged_again_with_its_root_in_sight(tmp_path: Path) -> None:
    write(tmp_path, {"run/step_1.safetensors": GOOD, "run/step_2.safetensors": GOOD, "notes.txt": b"x"})
    answer = scan_paths([tmp_path / "run" / "step_2.safetensors"], Options(), root=tmp_path)
    assert (answer.root, only(answer.scan).path) == (str(tmp_path), "run/step_2.safetensors")
    assert start_of([tmp_path], tmp_path).below == ("",)
    with pytest.raises(UsageError, match="not there"):
        start_of([tmp_path / "gone" / "x"], tmp_path / "gone")
    with pytest.raises(UsageError, match="not below"):
        start_of([tmp_path], tmp_path / "run")


def test_what_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        start_of([tmp_path / "nothing"])
    with pytest.raises(UsageError):
        start_of([])


def test_a_link_that_leads_out_is_no_row(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out.safetensors").write_bytes(GOOD)
    (tmp_path / "in" / "m.safetensors").symlink_to("../out.safetensors")
    assert scan_paths([tmp_path / "in"], Options()).scan.checkpoints == ()


@pytest.fixture
def many(tmp_path: Path) -> Path:
    files = {f"run/step_{step}.safetensors": GOOD for step in range(8)}
    files |= {f"model/{name}": data for name, data in sharded().items()}
    return write(tmp_path, files | {"run/step_9.safetensors": GOOD[:-9], "bad.pt": b"", "t.pt": b"hello"})


def test_several_processes_answer_as_one_does(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = scan_paths([many], Options(), processes=1)
    monkeypatch.setattr(scanning, "POOL_BYTES", 0)
    monkeypatch.setattr(scanning, "SPREAD_BYTES", 1)
    ticks: list[tuple[str, int, int]] = []
    together = scan_paths([many], Options(), lambda *told: ticks.append(told), processes=2)
    assert together == alone
    assert len(alone.scan.checkpoints) == 12
    assert ticks
    assert all(0 <= done <= total for _, done, total in ticks)


def test_one_large_save_is_read_in_threads_wherever_it_is_read(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = bytearray(safetensors_file({"w": 5 << 20, "b": 1 << 20}))
    large[9 << 20 : 10 << 20] = bytes(1 << 20)
    write(many, {"run/step_20.safetensors": bytes(large)})
    alone = scan_paths([many], Options(), processes=1)
    assert scan_paths([many], Options(), processes=3) == alone
    monkeypatch.setattr(scanning, "POOL_BYTES", 0)
    assert scan_paths([many], Options(), processes=2) == alone
    row = next(row for row in alone.scan.checkpoints if row.path == "run/step_20.safetensors")
    assert [(finding.code, finding.offset, finding.length) for finding in row.reading.findings] == [
        ("zero-run", 9 << 20, 1 << 20)]


def test_stopping_ends_the_scan(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    with pytest.raises(ScanStopped):
        scan_paths([many], Options(), lambda *_: stop.set(), stop, processes=1)
    monkeypatch.setattr(scanning, "POOL_BYTES", 0)
    with pytest.raises(ScanStopped):
        scan_paths([many], Options(), None, stop, processes=2)


def test_nothing_is_changed_by_a_scan(many: Path) -> None:
    def look() -> dict[str, tuple[int, int, int]]:
        return {str(path): (status.st_mtime_ns, status.st_size, status.st_ino)
                for path in sorted(many.rglob("*")) for status in [os.stat(path)]}

    before = look()
    scan_paths([many], Options(values=True))
    assert look() == before


def test_the_command_line_answers_in_both_modes(many: Path, capsys: pytest.CaptureFixture[str],
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    from rescue_tui import cli
    from rescue_tui.services import Services

    monkeypatch.setenv("STASIS_STATE", str(many / "state"))
    assert cli.run(["checkpoints", "scan", str(many), "--json"], Services, lambda _: 0) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["root"]) == ("stasis.checkpoints/1", str(many))
    assert document["newest_good"] == "run/step_7.safetensors"
    row = next(row for row in document["checkpoints"] if row["path"] == "run/step_9.safetensors")
    assert (row["verdict"], row["step"]) == ("incomplete", 9)
    assert row["tensors"] == {"total": 2, "verified": 0, "unverifiable": 1, "damaged": 1}
    assert row["salvageable"] == {"tensors": ["w"], "bytes": 16384}
    assert row["saved_at"].endswith("Z")
    assert document["runs"][-1]["newer"][0]["path"] == "run/step_9.safetensors"
    assert cli.run(["checkpoints", "scan", str(many)], Services, lambda _: 0) == 1
    shown = capsys.readouterr().out
    assert "Newest good: run/step_7.safetensors" in shown
    assert "newer, not good: run/step_9.safetensors is incomplete" in shown
    assert cli.run(["checkpoints", "scan", str(many / "model"), "--json"], Services, lambda _: 0) == 0
    assert cli.run(["checkpoints", "scan", str(many / "nothing"), "--json"], Services, lambda _: 0) == 2
    assert cli.run(["checkpoints", "scan"], Services, lambda _: 0) == 2


def test_progress_has_bytes_rate_and_time_to_go() -> None:
    from rescue_tui.cli_checkpoints import progress_words

    assert progress_words(1 << 30, 2 << 30, 2.0) == "50 % of 2.0 GiB, 512.0 MiB/s, 2 s to go"
    assert progress_words(0, 2 << 30, 0.0) == "0 % of 2.0 GiB"
