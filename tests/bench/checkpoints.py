"""Scanning checkpoints against what else reads them: torch.load, a bare loop that sums the file up, and find.

On this machine, without a VM. Files are warm: they were just written, and a first round that does not count reads them
once. Rounds are interleaved, so that noise of the host meets all, and the best round of each counts.
"""

from __future__ import annotations

import importlib.util
import json
import random
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
        yield _tree(directory / "tree")


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
    for ours, theirs in (("scan", "sum"), ("scan-alone", "sum-alone")):
        shape = "one thread" if ours.endswith("alone") else "a thread for each core"
        ratio = best[theirs].seconds / best[ours].seconds
        yield Figure(f"checkpoint-throughput-{shape.split()[0]}", size / MIB / best[ours].seconds, "MiB/s",
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


def _tree(directory: Path) -> Figure:
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
    verdict = "intact"
    if importlib.util.find_spec("torch"):
        for old in runs.glob("run*/step_*/model.safetensors"):
            old.unlink()
        _work("save", runs)
        verdict = "verified"
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
