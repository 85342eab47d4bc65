"""An operator's whole session by verbs, on loop devices: real file systems, ddrescue, workers, grants and mounts.

See tests/support/loop_services.py for the one thing that is pretended.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rescue_tui import cli
from rescue_tui.core.imaging import RESERVE_BYTES, SIDE_FILES_BYTES
from tests.support.loop_services import LoopServices
from tests.support.source_rules import ROOT

SOURCE_BYTES = 48 << 20
DESTINATION_BYTES = 512 << 20
LIMIT_SECONDS = 120


def _tool(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    assert done.returncode == 0, f"{argv}: {done.stderr}"
    return done.stdout.strip()


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True)
class Bench:
    """Two loop devices and a state directory."""

    state: Path
    source: str
    source_file: Path
    destination: str
    serials: dict[str, str]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A source with an ext4 and a file in it, a blank destination."""
    disks, content = tmp_path / "disks", tmp_path / "content"
    disks.mkdir()
    content.mkdir()
    (content / "step_900.safetensors").write_bytes(bytes(range(256)) * 4096)
    source_file, destination_file = disks / "source", disks / "destination"
    for path, size in ((source_file, SOURCE_BYTES), (destination_file, DESTINATION_BYTES)):
        with path.open("wb") as stream:
            stream.truncate(size)
    _tool("mkfs.ext4", "-q", "-F", "-d", str(content), str(source_file))
    loops: list[str] = []
    state = tmp_path / "state"
    try:
        loops += [_tool("losetup", "--find", "--show", str(source_file)),
                  _tool("losetup", "--find", "--show", "--partscan", str(destination_file))]
        yield Bench(state, loops[0], source_file, loops[1], {loops[0]: "SOURCE-1", loops[1]: "TARGET-1"})
    finally:
        mounted = [line.split(" ")[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for point in reversed(mounted):
            if point.startswith(f"{tmp_path}/"):
                subprocess.run(["umount", point], check=False, timeout=LIMIT_SECONDS)
        for loop in loops:
            subprocess.run(["losetup", "--detach", loop], check=False, timeout=LIMIT_SECONDS)


Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(bench: Bench, capsys: pytest.CaptureFixture[str]) -> Run:
    """Call a verb with --json; the status and the document."""

    def call(*argv: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        status = cli.run([*argv, "--json"], lambda: LoopServices(bench.state, bench.serials), lambda _services: 0)
        out = capsys.readouterr().out
        assert out.count("\n") == 1, out
        return status, json.loads(out)

    return call


def test_a_whole_session(run: Run, bench: Bench, tmp_path: Path) -> None:
    before = _sha256(bench.source_file)

    status, devices = run("devices")
    by_node = {each["node"]: each for each in devices["devices"]}
    assert status == 0
    assert by_node[bench.source]["role"] == "source"
    assert [each["kind"] for each in by_node[bench.source]["signatures"]] == ["ext4"]
    assert by_node[bench.source]["size_bytes"] == SOURCE_BYTES
    assert by_node[bench.destination]["signatures"] == []

    status, refused = run("destination", "grant", bench.destination, "--confirm", "target-1")
    assert (status, refused["error"]["kind"]) == (3, "refused")
    status, refused = run("image", "SOURCE-1", "--to", str(tmp_path))
    assert (status, refused["error"]["exit"]) == (3, 3)
    status, refused = run("destination", "format", "TARGET-1", "--confirm", "TARGET-1")
    assert status == 3

    status, granted = run("destination", "grant", "TARGET-1", "--confirm", "TARGET-1")
    assert (status, granted["node"]) == (0, bench.destination)
    status, _made = run("destination", "format", "TARGET-1", "--confirm", "TARGET-1", "--filesystem", "ext4")
    assert status == 0
    status, mounted = run("destination", "mount", "TARGET-1")
    assert status == 0
    point = Path(mounted["space"]["mount_point"])
    assert point.is_mount()
    status, listed = run("destination", "list")
    assert [each["mount_point"] for each in listed["destinations"]] == [str(point)]
    status, devices = run("devices", "TARGET-1", "--no-health")
    assert (devices["devices"][0]["role"], devices["devices"][0]["guard"]) == ("destination", "granted")
    status, guard = run("guard")
    assert [each["serial"] for each in guard["grants"]] == ["TARGET-1"]

    status, dry = run("image", "SOURCE-1", "--to", str(point), "--dry-run")
    assert (status, dry["jobs"]) == (0, [])
    assert dry["plans"][0]["command"][0] == "ddrescue"
    assert not list(point.glob("stasis-case-*"))

    status, imaged = run("image", "SOURCE-1", "--to", str(point))
    assert (status, imaged["exit"], imaged["detached"]) == (0, 0, False), imaged["jobs"]
    job = imaged["jobs"][0]
    assert (job["state"], job["result"]["sha256"], job["progress"]["bad_bytes"]) == ("done", before, 0)
    image, case = Path(imaged["plans"][0]["image"]), Path(imaged["plans"][0]["case_dir"])
    assert _sha256(image) == before
    status, jobs = run("jobs", "list")
    assert [each["id"] for each in jobs["jobs"]] == [job["id"]]
    status, attached = run("jobs", "attach", job["id"])
    assert (status, attached["exit"]) == (0, 0)
    status, refused = run("jobs", "resume", job["id"])
    assert status == 2

    status, verified = run("verify", str(case))
    assert status == 0, verified
    status, report = run("report", str(case))
    assert status == 0
    assert "SOURCE-1" in Path(report["html"]).read_text(encoding="utf-8")
    status, collected = run("collect", "--to", str(point / "collected"))
    assert status == 0
    assert collected["files"]
    assert all((point / "collected" / name).exists() for name in collected["files"])

    at = tmp_path / "view"
    at.mkdir()
    status, view = run("mount", str(image), "--at", str(at))
    assert status == 0, view
    assert "ro" in view["mount"]["options"]
    assert (at / "step_900.safetensors").read_bytes() == bytes(range(256)) * 4096
    with pytest.raises(OSError, match="Read-only"):
        (at / "new").write_text("x")
    status, _gone = run("unmount", str(at))
    assert status == 0
    assert not at.is_mount()

    with image.open("r+b") as stream:
        stream.seek(SOURCE_BYTES // 2)
        stream.write(b"not what was read")
    status, verified = run("verify", str(case))
    assert (status, verified["good"]) == (1, False)
    assert "mismatch" in {each["code"] for each in verified["findings"]}

    status, refused = run("destination", "grant", bench.source, "--confirm", "SOURCE-1")
    assert status == 3
    status, _released = run("destination", "release", "TARGET-1")
    assert status == 0
    assert not point.is_mount()
    assert _sha256(bench.source_file) == before


def test_a_job_outlives_the_call_and_can_be_attached(run: Run, bench: Bench) -> None:
    assert run("destination", "grant", "TARGET-1", "--confirm", "TARGET-1")[0] == 0
    assert run("destination", "format", "TARGET-1", "--confirm", "TARGET-1")[0] == 0
    point = run("destination", "mount", "TARGET-1")[1]["space"]["mount_point"]
    status, started = run("image", "SOURCE-1", "--to", point, "--detach")
    assert (status, started["detached"]) == (0, True)
    status, attached = run("jobs", "attach", started["jobs"][0]["id"])
    assert (status, attached["jobs"][0]["state"]) == (0, "done"), attached
    assert attached["jobs"][0]["result"]["sha256"] == _sha256(bench.source_file)
    assert run("destination", "release", "TARGET-1")[0] == 0


def test_ctrl_c_ends_the_waiting_and_not_the_job(run: Run, bench: Bench) -> None:
    assert run("destination", "grant", "TARGET-1", "--confirm", "TARGET-1")[0] == 0
    assert run("destination", "format", "TARGET-1", "--confirm", "TARGET-1", "--filesystem", "xfs")[0] == 0
    point = run("destination", "mount", "TARGET-1")[1]["space"]["mount_point"]
    serials = [f"{node}={serial}" for node, serial in bench.serials.items()]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.loop_services", str(bench.state), *serials, "--", "image", "SOURCE-1",
         "--to", point, "--json"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        process_group=0,
    ) as waiting:
        assert waiting.stderr is not None
        job_id = waiting.stderr.readline().split(":")[1].strip()
        worker = _worker_of(bench.state / "jobs" / job_id / "job.json")
        os.kill(worker, signal.SIGSTOP)  # so that the job can't end before the key is pressed
        try:
            os.killpg(waiting.pid, signal.SIGINT)
            out, err = waiting.communicate(timeout=LIMIT_SECONDS)
        finally:
            os.kill(worker, signal.SIGCONT)
    document = json.loads(out)
    assert (waiting.returncode, document["detached"], document["exit"]) == (130, True, 130)
    assert f"stasis jobs attach {job_id}" in err
    status, attached = run("jobs", "attach", job_id)
    assert (status, attached["jobs"][0]["result"]["sha256"]) == (0, _sha256(bench.source_file))
    assert run("destination", "release", "TARGET-1")[0] == 0


def test_several_sources_share_the_case_folder_and_the_space(run: Run, bench: Bench, tmp_path: Path) -> None:
    assert run("destination", "grant", "TARGET-1", "--confirm", "TARGET-1")[0] == 0
    assert run("destination", "format", "TARGET-1", "--confirm", "TARGET-1")[0] == 0
    space = run("destination", "mount", "TARGET-1")[1]["space"]
    point = space["mount_point"]
    # Fits alone, with half of the first source to spare.
    large_bytes = (space["free_bytes"] - RESERVE_BYTES - SIDE_FILES_BYTES - SOURCE_BYTES // 2) >> 20 << 20
    second, large = tmp_path / "disks/second", tmp_path / "disks/large"
    loops = []
    try:
        for path, size in ((second, 8 << 20), (large, large_bytes)):
            with path.open("wb") as stream:
                stream.truncate(size)
            loops.append(_tool("losetup", "--find", "--show", str(path)))
        for source in (bench.source, loops[1]):
            assert run("image", source, "--to", point, "--dry-run")[0] == 0
        status, refused = run("image", bench.source, loops[1], "--to", point, "--dry-run")
        assert (status, refused["error"]["kind"]) == (8, "space")
        status, imaged = run("image", bench.source, loops[0], "--to", point)
        assert (status, [job["state"] for job in imaged["jobs"]]) == (0, ["done", "done"]), imaged
        assert len({plan["case_dir"] for plan in imaged["plans"]}) == 1
        copies = [_sha256(Path(plan["image"])) for plan in imaged["plans"]]
        assert copies == [_sha256(bench.source_file), _sha256(second)]
        assert run("verify", imaged["plans"][0]["case_dir"])[0] == 0
        rescued = [LoopServices(bench.state, bench.serials).job_map(job["id"]).rescued_bytes for job in imaged["jobs"]]
        assert rescued == [SOURCE_BYTES, 8 << 20]
        assert run("destination", "release", "TARGET-1")[0] == 0
    finally:
        for loop in loops:
            subprocess.run(["losetup", "--detach", loop], check=False, timeout=LIMIT_SECONDS)


def _worker_of(record: Path) -> int:
    """The process that works at a job, once it has said so."""
    until = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < until:
        pid = json.loads(record.read_text(encoding="utf-8"))["pid"]
        if pid is not None:
            return int(pid)
    raise AssertionError(f"no worker took up the job: {record.read_text(encoding='utf-8')}")


def test_the_program_itself_lists_this_machine(bench: Bench) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rescue_tui", "devices", "--json", "--no-health"], cwd=ROOT, capture_output=True,
        text=True, timeout=LIMIT_SECONDS, check=False, env={**os.environ, "STASIS_STATE": str(bench.state)})
    assert (done.returncode, done.stderr) == (0, "")
    nodes = {each["node"] for each in json.loads(done.stdout)["devices"]}
    assert {bench.source, bench.destination} <= nodes
