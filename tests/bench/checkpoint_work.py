"""``python -m tests.bench.checkpoint_work WHAT PATH...``: one piece of work in a process of its own, told as JSON.

Seconds are those of the work itself, without the start of Python or the import of a library; the peak of memory is that
of the whole process, with what its imports take.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import resource
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

BLOCK_BYTES = 1 << 20


def main(arguments: list[str]) -> int:
    """Do it and tell."""
    what, paths = arguments[0], [Path(name) for name in arguments[1:]]
    works: dict[str, Callable[[list[Path]], Callable[[], object]]] = {
        "scan": scanned, "scan-alone": scanned_alone, "load": loaded, "sum": summed, "sum-alone": summed_alone,
        "save": saved}
    work = works[what](paths)
    began = time.perf_counter()
    told = work()
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "peak_bytes": peak_bytes(), "told": told}))
    return 0


def peak_bytes() -> int:
    """The most memory that this process ever had resident (proc(5), VmHWM). Its children are not in it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise LookupError("VmHWM")


def scanned(paths: list[Path], processes: int | None = None) -> Callable[[], object]:
    """A scan with all cores: verdicts by path, and how many processes it needed."""
    from rescue_tui.checkpoints.model import Options
    from rescue_tui.jobs.scanning import scan_paths

    def work() -> object:
        rows = scan_paths(paths, Options(), processes=processes).scan.checkpoints
        words = sorted({str(row.verdict) for row in rows})
        return {"count": len(rows), "verdicts": words, "children": _children()}

    return work


def scanned_alone(paths: list[Path]) -> Callable[[], object]:
    """A scan with one thread."""
    return scanned(paths, 1)


def _children() -> int:
    """Processes that this one started and that ended since, or are there."""
    running = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return len(running) + (1 if resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss else 0)


def loaded(paths: list[Path]) -> Callable[[], object]:
    """torch.load, as it is by default."""
    import torch

    return lambda: len(torch.load(paths[0])["model"])


def saved(paths: list[Path]) -> Callable[[], object]:
    """Make what is looked at: a GiB in 16 tensors by torch.save, or many small saves below a directory."""
    import torch

    torch.manual_seed(1)

    def work() -> object:
        if not paths[0].is_dir():
            torch.save({"model": {f"layers.{index}.weight": torch.randn(4096, 4096) for index in range(16)},
                        "step": 5}, paths[0])
            return 1
        places = sorted(paths[0].glob("run*/step_*"))
        for place in places:
            torch.save({"model": {f"layers.{index}.weight": torch.randn(64, 64) for index in range(12)}, "step": 5},
                       place / "model.pt")
        return len(places)

    return work


def summed(paths: list[Path], threads: int | None = None) -> Callable[[], object]:
    """The CRC-32 of a file by the fastest library here, read into one buffer by each thread: no more than must be."""
    crc32, name = fastest()
    count = threads or len(os.sched_getaffinity(0))

    def part(descriptor: int, start: int, end: int) -> None:
        buffer = memoryview(bytearray(BLOCK_BYTES))
        value = 0
        while start < end:
            got = os.preadv(descriptor, [buffer[: min(BLOCK_BYTES, end - start)]], start)
            value = crc32(buffer[:got], value)
            start += got

    def work() -> object:
        with paths[0].open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            edges = [size * index // count for index in range(count + 1)]
            running = [threading.Thread(target=part, args=(file.fileno(), *pair))
                       for pair in itertools.pairwise(edges)]
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()
        return name

    return work


def summed_alone(paths: list[Path]) -> Callable[[], object]:
    """The same in one thread."""
    return summed(paths, 1)


def fastest() -> tuple[Callable[[memoryview, int], int], str]:
    """The fastest CRC-32 that can be imported, and its name."""
    found: list[tuple[Callable[[memoryview, int], int], str]] = [(zlib.crc32, "zlib")]
    try:
        from isal import isal_zlib
    except ImportError:
        pass
    else:
        found.append((isal_zlib.crc32, "isal"))
    if importlib.util.find_spec("zlib_ng"):
        found.append((importlib.import_module("zlib_ng.zlib_ng").crc32, "zlib-ng"))
    data = memoryview(os.urandom(BLOCK_BYTES))

    def seconds(one: tuple[Callable[[memoryview, int], int], str]) -> float:
        times = []
        for _ in range(16):
            began = time.perf_counter()
            one[0](data, 0)
            times.append(time.perf_counter() - began)
        return min(times)

    return min(found, key=seconds)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
