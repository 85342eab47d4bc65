"""The machine without a guard in which the attacked disks are made, and in which each act is first seen to write."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from builder import samples
from builder.vm import VmSpec

from tests.support.attack.layouts import GRANTED, LAYOUTS, MARKER, attach, disk_names, size_bytes
from tests.support.attack.ledger import Cell
from tests.support.attack.racing import hot_disk, race, stop
from tests.support.attack.stage import BOOT_SECONDS, Stage, control_cells, enter, phase, plan, run_cells
from tests.support.vm.deadline import Deadline
from tests.support.vm.machine import Machine

MARKER_MIB = 64
CONTROL_TRIES = 200
# Namespaces, their hidden paths and partitions take about sixty.
LAST_NUMBER = 95


def blank_disks(directory: Path) -> None:
    """Empty files for every disk of every layout, and for the marker."""
    directory.mkdir(parents=True, exist_ok=True)
    for disk in disk_names():
        samples.blank(directory / f"{disk}.img", size_bytes(disk) // samples.MIB)
    samples.blank(directory / f"{MARKER}.img", MARKER_MIB)
    samples.blank(directory / f"{GRANTED.name}.img", GRANTED.size_mib)


def copy_disks(source: Path, target: Path) -> None:
    """Copy the disks as they are now; holes stay holes."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for disk in (*disk_names(), MARKER, GRANTED.name):
        subprocess.run(["cp", "--sparse=always", source / f"{disk}.img", target / f"{disk}.img"], check=True)


@dataclass(frozen=True, slots=True)
class Workshop:
    """What came out of the machine without a guard: the disks, what each act did to them, the race that was lost."""

    disks: Path
    cells: tuple[Cell, ...]
    raced: Mapping[str, int]
    hot_writes: int
    raced_at_boot: Mapping[str, int]


def work(stage: Stage, boot: Callable[[VmSpec], Machine]) -> Workshop:
    """Make every layout and copy its disks; then run each act where it must write, and the race against hot-plug."""
    directory, made = stage.directory / "workshop", stage.directory / "disks"
    blank_disks(directory)
    drives, subsystems = attach(directory, protected=False)
    hot = hot_disk(stage.directory / "hot-unguarded.img", protected=False)
    cells = control_cells()
    files = {"plan.json": plan(LAYOUTS, cells, restore=True)}
    machine = boot(stage.spec(stage.unguarded(raced=True), (*drives, hot), subsystems, files))
    machine.guest.wait_ready(Deadline.after(BOOT_SECONDS))
    raced_at_boot = stop(machine)
    enter(machine)
    phase(machine, "open")
    phase(machine, "make")
    copy_disks(directory, made)
    phase(machine, "save")
    phase(machine, "release")
    found = run_cells(machine, len(cells))
    raced = race(machine, hot.name, rounds=1, tries=CONTROL_TRIES, last=LAST_NUMBER)
    return Workshop(made, found, raced, machine.counters()[hot.name].writes, raced_at_boot)
