"""``python -m tests.fuzz [--executions N] [--seed S] [--jobs J]``: all readers on mutated saves; failures are kept."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

from builder.host import BUILD

from tests.fuzz.driver import describe, job, keep, merged


def main(arguments: list[str]) -> int:
    """Run and tell; 1 when an input failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--executions", type=int, default=1_000_000, help="scans in all (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the same numbers give the same inputs")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", default="", help="a part of the names of the seeds to mutate")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        trap = Path(directory) / "sprung"
        each = -(-asked.executions // asked.jobs)
        tasks = [(asked.seed * 1000 + job, each, asked.only, trap) for job in range(asked.jobs)]
        with multiprocessing.get_context("spawn").Pool(asked.jobs) as pool:
            outcome = merged(pool.map(job, tasks, chunksize=1))
    rate = outcome.executions / outcome.seconds
    print(f"{outcome.executions} executions in {outcome.seconds:.0f} s, {rate:.0f}/s; slowest "
          f"{outcome.slowest_seconds:.2f} s, most memory {outcome.largest_bytes / (1 << 20):.0f} MiB")
    print(f"verdicts: {describe(outcome.verdicts)}")
    print(f"formats: {describe(outcome.formats)}")
    for failure in outcome.failures:
        print(f"FAILED {failure.kind} from {failure.seed}: {failure.told} ({keep(failure, BUILD / 'fuzz')})")
    if outcome.trap_sprung:
        print("FAILED: a pickle was executed", file=sys.stderr)
    return 1 if outcome.failures or outcome.trap_sprung else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
