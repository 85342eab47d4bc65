"""Reading with the write guard against reading without it.

Two machines that differ in the guard alone, by turns: a guard can't be unloaded. Each run of one is paired with the run
of the other beside it, in the order A B B A, so that noise of the host and its drift meet both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from builder import samples
from builder.attackkit import ensure_kit
from builder.host import step
from builder.vm import Drive, KernelBoot

from tests.bench.figures import Figure
from tests.bench.machines import image, running, scratch
from tests.support.attack.stage import GUEST, Stage, enter, in_kit
from tests.support.vm.machine import Machine

SOURCE_MIB = 512
BOOTS = 2
PAIRS = 6
RUN_SECONDS, WARM_SECONDS = 4, 1
TARGET = 0.98
WAIT_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Pattern:
    """A way of reading. ``unit`` is MiB/s for large blocks, reads a second for small ones."""

    name: str
    options: str
    unit: str


PATTERNS = (
    Pattern("sequential", "--rw=read --bs=1M --iodepth=1", "MiB/s"),
    Pattern("random-1", "--rw=randread --bs=4k --iodepth=1", "reads/s"),
    Pattern("random-8", "--rw=randread --bs=4k --iodepth=8", "reads/s"),
)


def _speed(machine: Machine, pattern: Pattern) -> float:
    """One run of fio, which opens the disk for reading only."""
    said = in_kit(
        machine, f"fio --name=bench --filename=/dev/nvme0n1 --readonly --direct=1 --ioengine=libaio {pattern.options} "
        f"--time_based --runtime={RUN_SECONDS} --ramp_time={WARM_SECONDS} --randseed=1 --output-format=json",
        WAIT_SECONDS)
    read = json.loads(said[said.index("{"):])["jobs"][0]["read"]
    return float(read["bw_bytes"]) / samples.MIB if pattern.unit == "MiB/s" else float(read["iops"])


def _machine(stage: Stage, boot: KernelBoot, source: Drive, directory: Path, running_here: ExitStack) -> Machine:
    own = replace(stage, directory=directory)
    directory.mkdir(parents=True)
    spec = replace(own.spec(boot, (source,), (), {}), cpus=1, memory_mib=2048)
    machine = running_here.enter_context(running(spec, directory / "machine"))
    enter(machine)
    return machine


def guard() -> Iterator[Figure]:
    """Throughput of fio on one NVMe disk: 1 MiB sequentially, 4 KiB at random one and eight at a time."""
    with scratch("guard") as directory:
        stage = Stage(image(), ensure_kit(GUEST), directory)
        boots = {"guarded": image().kernel_boot(), "unguarded": stage.unguarded()}
        pairs: dict[str, list[tuple[float, float]]] = {pattern.name: [] for pattern in PATTERNS}
        for number in range(BOOTS):
            with ExitStack() as running_here:
                machines = {}
                for name in sorted(boots, reverse=bool(number % 2)):
                    # A file for each, so that neither waits for the other's lock.
                    source = directory / f"{name}.img"
                    samples.noise(source, SOURCE_MIB, 1)
                    machines[name] = _machine(
                        stage, boots[name], Drive(name="source", path=source, serial="BENCH-SOURCE"),
                        directory / f"{name}-{number}", running_here)
                for pattern in PATTERNS:
                    for turn in range(PAIRS):
                        order = ("guarded", "unguarded") if turn % 2 else ("unguarded", "guarded")
                        speed = {name: _speed(machines[name], pattern) for name in order}
                        pairs[pattern.name].append((speed["guarded"], speed["unguarded"]))
                        # A quarter of an hour and more in all: what is known so far must not be lost with the rest.
                        step(f"{pattern.name}: {speed['guarded']:.1f} guarded, {speed['unguarded']:.1f} unguarded")
                for machine in machines.values():
                    machine.assert_untouched()
        for pattern in PATTERNS:
            yield figure(pattern, pairs[pattern.name])


def figure(pattern: Pattern, pairs: list[tuple[float, float]]) -> Figure:
    """The figure of one pattern: medians, and the median of what each pair says."""
    ratios = sorted(ours / theirs for ours, theirs in pairs)
    ratio = median(ratios)
    ours, theirs = (median(values) for values in zip(*pairs, strict=True))
    how = (
        f"fio {pattern.options}, direct, libaio, {RUN_SECONDS} s a run, {len(pairs)} pairs of neighbouring runs in "
        f"{BOOTS} pairs of boots, one processor; median {ours:.1f} guarded, {theirs:.1f} unguarded {pattern.unit}; the "
        f"ratio is the median of the pairs' ({ratios[0]:.3f} to {ratios[-1]:.3f})"
    )
    return Figure(f"guard-read-{pattern.name}", ours, pattern.unit, how, peer="unguarded", ratio=ratio,
                  target=f">= {TARGET}", met=ratio >= TARGET)
