"""Scanning checkpoints against what else reads them: torch.load, a bare loop that sums the file up, and find.

On this machine, without a VM. Files are warm: they were just written, and a first round that does not count reads them
once. Rounds are interleaved, so that noise of the host meets all, and the best round of each counts.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.host import TOP, BuildError, step

from tests.bench.checkpoint_work import BLOCK_BYTES
from tests.bench.figures import Figure
from tests.bench.machines import scratch
from tests.support.ckpt.saves import safetensors_file

MIB, GIB = 1 << 20, 1 << 30
ROUNDS = 7
COLD_ROUNDS = 5
FASTER, LEANER, OF_THE_SUM, OF_FIND = 5.0, 10.0, 0.7, 2.0
SHARD_BYTES, SHARDS = GIB, 4
SHARDED_LIMIT_BYTES = 100 * MIB
TREE_FILES, TREE_SAVES = 100_000, 200
# What lies about on the disk of a machine that trains: mostly samples and texts, little of it worth opening.
_ENDINGS = (".jpg",) * 30 + (".json",) * 15 + (".txt",) * 15 + (".py",) * 10 + (
    ".log", ".parquet", ".csv", ".yaml", ".md", ".npy", ".tar", "", ".bin", ".idx", ".jsonl")


@dataclass(frozen=True, slots=True)
class Done:
    """One piece of work in a process of its own."""

    seconds: float
    peak_bytes: int
    told: object


def _work(what: str, *paths: Path) -> Done:
    ran = subprocess.run([sys.executable, "-m", "tests.bench.checkpoint_work", what, *map(str, paths)], cwd=TOP,
                         check=False, capture_output=True, text=True, timeout=900)
    if ran.returncode:
        raise BuildError(f"The bench's {what} failed: {ran.stderr[-2000:]}")
    return Done(**json.loads(ran.stdout))


def _rounds(works: dict[str, tuple[str, Path]]) -> dict[str, Done]:
    """Best of the rounds by time; the first one warms."""
    best: dict[str, Done] = {}
    for number in range(ROUNDS + 1):
        for name, (what, path) in works.items():
            done = _work(what, path)
            if number and (name not in best or done.seconds < best[name].seconds):
                best[name] = done
    return best


def checkpoints() -> Iterator[Figure]:
    """Time, memory and throughput of one file, of shards, of several files, and of a tree of files."""
    with scratch("checkpoints") as directory:
        if importlib.util.find_spec("torch"):
            yield from _torch_zip(directory / "one.pt")
            (directory / "one.pt").unlink()
        else:
            step("torch is not installed: the figures against torch.load and against a bare sum are left out")
        yield _sharded(directory / "sharded")
        yield _side_by_side(directory / "sharded")
        verdict = _plant(directory / "tree")
        yield _tree(directory / "tree", verdict)
        if os.geteuid() == 0 and shutil.which("mkfs.xfs"):
            yield _cold_tree(directory)
        else:
            step("not root, or no mkfs.xfs: the figure of a tree that nobody looked at before is left out")


def _expect(done: Done, count: int, verdict: str) -> None:
    """Speed is worth nothing where the answer is wrong."""
    told = done.told
    if not isinstance(told, dict) or (told["count"], told["verdicts"]) != (count, [verdict]):
        raise BuildError(f"The scan answered {told} where {count} times {verdict} is right.")


def _torch_zip(path: Path) -> Iterator[Figure]:
    _work("save", path)
    best = _rounds({name: (name, path) for name in ("scan", "load", "sum", "scan-alone", "sum-alone")})
    _expect(best["scan"], 1, "verified")
    size = path.stat().st_size
    seconds = ", ".join(f"{name} {done.seconds:.3f} s" for name, done in best.items())
    how = f"{size / MIB:.0f} MiB zip of torch.save in 16 tensors, warm, best of {ROUNDS} interleaved rounds: {seconds}"
    ratio = best["load"].seconds / best["scan"].seconds
    yield Figure("checkpoint-verify-time", best["scan"].seconds, "s", how, peer="torch.load", ratio=ratio,
                 target=f">= {FASTER}", met=ratio >= FASTER)
    told = best["scan"].told
    children = told["children"] if isinstance(told, dict) else 0
    if children:
        raise BuildError("The scan of one file started processes, whose memory is not in the figure.")
    leaner = best["load"].peak_bytes / best["scan"].peak_bytes
    yield Figure("checkpoint-verify-memory", best["scan"].peak_bytes / MIB, "MiB",
                 f"peak resident memory of the whole process (torch.load: {best['load'].peak_bytes / MIB:.0f} MiB)",
                 peer="torch.load", ratio=leaner, target=f">= {LEANER}", met=leaner >= LEANER)
    for name, ours, theirs, shape in (("cores", "scan", "sum", "a thread for each core"),
                                      ("one", "scan-alone", "sum-alone", "one thread")):
        ratio = best[theirs].seconds / best[ours].seconds
        yield Figure(f"checkpoint-throughput-{name}", size / MIB / best[ours].seconds, "MiB/s",
                     f"{how}; {shape} in both", peer=f"CRC-32 of the file by {best[theirs].told}", ratio=ratio,
                     target=f">= {OF_THE_SUM}", met=ratio >= OF_THE_SUM)


def _sharded(directory: Path) -> Figure:
    """Shards of real bytes: a sparse file would be passed over instead of read."""
    directory.mkdir()
    where: dict[str, str] = {}
    for number in range(1, SHARDS + 1):
        name = f"model-{number:05d}-of-{SHARDS:05d}.safetensors"
        count = 16
        each = SHARD_BYTES // count
        header = json.dumps({f"layers.{number}.{index}": {
            "dtype": "BF16", "shape": [each // 2], "data_offsets": [each * index, each * (index + 1)]}
            for index in range(count)}).encode()
        chance = random.Random(number)
        with (directory / name).open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for _ in range(SHARD_BYTES // BLOCK_BYTES):
                file.write(chance.randbytes(BLOCK_BYTES))
        where |= {f"layers.{number}.{index}": name for index in range(count)}
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": SHARD_BYTES * SHARDS}, "weight_map": where}))
    done = _work("scan", directory)
    _expect(done, 1, "intact")
    if isinstance(done.told, dict) and done.told["children"]:
        raise BuildError("The scan of one save started processes, whose memory is not in the figure.")
    return Figure("checkpoint-sharded-memory", done.peak_bytes / MIB, "MiB",
                  f"{SHARDS} shards of {SHARD_BYTES // MIB} MiB random bytes and their index, in {done.seconds:.2f} s; "
                  "peak resident memory of the whole process", target=f"< {SHARDED_LIMIT_BYTES // MIB}",
                  met=done.peak_bytes < SHARDED_LIMIT_BYTES)


def _side_by_side(directory: Path) -> Figure:
    """Several saves: one thread against all cores."""
    (directory / "model.safetensors.index.json").unlink()
    for number, shard in enumerate(sorted(directory.iterdir())):
        shard.rename(directory / f"step_{number}.safetensors")
    best = _rounds({"all": ("scan", directory), "one": ("scan-alone", directory)})
    _expect(best["all"], SHARDS, "intact")
    return Figure("checkpoint-several", best["all"].seconds, "s",
                  f"{SHARDS} files of {SHARD_BYTES // MIB} MiB, best of {ROUNDS} rounds", peer="one thread",
                  ratio=best["one"].seconds / best["all"].seconds)


def _plant(directory: Path) -> str:
    """The tree, and the verdict that its saves deserve."""
    runs = directory / "runs"
    for number in range(TREE_SAVES):
        place = runs / f"run{number // 20:02d}" / f"step_{number % 20 * 100}"
        place.mkdir(parents=True)
        (place / "model.safetensors").write_bytes(safetensors_file({f"l{index}.weight": 4096 for index in range(12)}))
    chance = random.Random(1)
    for number in range(TREE_FILES - TREE_SAVES):
        part, index = divmod(number, 100)
        place = directory / f"set{part // 50:02d}" / f"part{part % 50:03d}"
        if not index:
            place.mkdir(parents=True)
        (place / f"item_{index:05d}{chance.choice(_ENDINGS)}").write_bytes(b"text " * chance.randrange(1, 40))
    if not importlib.util.find_spec("torch"):
        return "intact"
    for old in runs.glob("run*/step_*/model.safetensors"):
        old.unlink()
    _work("save", runs)
    return "verified"


def _tree(directory: Path, verdict: str) -> Figure:
    """Warm: nothing is read from a disk, so what is compared is work, find's in C and ours in Python."""
    find: list[float] = []
    scans: list[Done] = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        found = subprocess.run(["find", str(directory), "-type", "f"], check=True, capture_output=True).stdout
        find.append(time.perf_counter() - began)
        scans.append(_work("scan", directory))
    lines = found.count(b"\n")
    if lines != TREE_FILES:
        raise BuildError(f"find found {lines} files.")
    best = min(scans[1:], key=lambda done: done.seconds)
    _expect(best, TREE_SAVES, verdict)
    ratio = best.seconds / min(find[1:])
    return Figure("checkpoint-tree", best.seconds, "s",
                  f"{TREE_FILES} files in directories of 100, {TREE_SAVES} of them checkpoints, which are judged; "
                  f"warm, best of {ROUNDS} interleaved rounds, find {min(find[1:]):.3f} s (its process included)",
                  peer="find -type f", ratio=ratio, target=f"<= {OF_FIND}", met=ratio <= OF_FIND)


def _cold_tree(directory: Path) -> Figure:
    """As a mounted image is: no name and no byte of it in memory. Whole processes, the command and find."""
    disk, place = directory / "tree.img", directory / "mounted"
    place.mkdir()
    with disk.open("wb") as file:
        file.truncate(4 * GIB)
    _run("mkfs.xfs", "-q", str(disk))
    _run("mount", "-o", "loop", str(disk), str(place))
    try:
        _run("cp", "-a", str(directory / "tree"), str(place))
    finally:
        _run("umount", str(place))
    commands = {"find": ("find", str(place), "-type", "f"),
                "scan": (sys.executable, "-m", "rescue_tui", "checkpoints", "scan", str(place), "--json")}
    best: dict[str, float] = {}
    for _ in range(COLD_ROUNDS):
        for name, command in commands.items():
            with disk.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            _run("mount", "-o", "ro,loop", str(disk), str(place))
            try:
                began = time.perf_counter()
                _run(*command)
                best[name] = min(time.perf_counter() - began, best.get(name, math.inf))
            finally:
                _run("umount", str(place))
    return Figure("checkpoint-tree-cold", best["scan"], "s",
                  f"the same tree on a fresh XFS mount whose disk is not in memory; whole processes, the command's "
                  f"with the start of Python; best of {COLD_ROUNDS} interleaved rounds, find {best['find']:.3f} s",
                  peer="find -type f", ratio=best["scan"] / best["find"])


def _run(*command: str) -> None:
    ran = subprocess.run(command, cwd=TOP, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                         timeout=900)
    if ran.returncode:
        raise BuildError(f"{command[0]} failed: {ran.stderr[-2000:]}")
