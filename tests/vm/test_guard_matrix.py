"""The write guard against every act that we know to write, on every layout; judged from outside of the guest.

First, in a machine without the guard, each act is seen to write: an act that would write nothing anyway proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pytest
from builder.attackkit import ensure_kit
from builder.host import BUILD
from builder.qemu import BuiltImage, working_accel
from builder.vm import VmSpec

from tests.support.attack.layouts import GRANTED, LAYOUTS, attach
from tests.support.attack.ledger import Cell, leaks, silent
from tests.support.attack.report import document
from tests.support.attack.stage import (
    GRANTED_ACTS,
    GUEST,
    Stage,
    all_cells,
    control_cells,
    enter,
    phase,
    plan,
    require_guard,
    run_cells,
)
from tests.support.attack.workshop import Workshop, work
from tests.support.vm.deadline import Deadline
from tests.support.vm.machine import Machine


@dataclass(frozen=True, slots=True)
class Guarded:
    """A guarded machine after all acts, and what became of each."""

    machine: Machine
    cells: tuple[Cell, ...]


@pytest.fixture(scope="module")
def stage(image: BuiltImage) -> Stage:
    """The image, the attack kit and a directory for all of this module."""
    directory = BUILD / "vm-tests" / "guard-matrix"
    directory.mkdir(parents=True, exist_ok=True)
    return Stage(image, ensure_kit(GUEST), directory)


@pytest.fixture(scope="module")
def workshop(stage: Stage) -> Workshop:
    """The disks and the control run, made once for the tests here."""
    with ExitStack() as running:
        def boot(spec: VmSpec) -> Machine:
            accel = working_accel(stage.image.kernel)
            return running.enter_context(Machine(replace(spec, accel=accel), stage.directory / "unguarded"))

        return work(stage, boot)


@pytest.fixture(scope="module")
def guarded(stage: Stage, workshop: Workshop) -> Iterator[Guarded]:
    """The image as it is shipped, every disk of every layout attached writable, and every act tried on each."""
    drives, subsystems = attach(workshop.disks, protected=True, granted=True)
    cells = all_cells()
    again = [(act, GRANTED) for act in GRANTED_ACTS]
    spec = stage.spec(stage.image.kernel_boot(), drives, subsystems, {
        "plan.json": plan(LAYOUTS, cells, restore=False), "granted.json": plan((GRANTED,), again, restore=False),
    })
    accel = working_accel(stage.image.kernel)
    with Machine(replace(spec, accel=accel), stage.directory / "guarded") as machine:
        enter(machine)
        require_guard(machine)
        found = run_cells(machine, len(cells))
        (BUILD / "GUARD-MATRIX.md").write_text(document(found, workshop.cells))
        yield Guarded(machine, found)


def test_each_act_writes_where_nothing_guards(workshop: Workshop) -> None:
    assert silent(workshop.cells) == []
    assert len(workshop.cells) == len(control_cells())


def test_a_disk_that_is_plugged_in_is_written_at_once_where_nothing_guards(workshop: Workshop) -> None:
    assert workshop.raced["wrote"] > 0
    assert workshop.hot_writes > 0


def test_a_disk_that_is_there_at_boot_is_written_before_udev_knows_it_where_nothing_guards(workshop: Workshop) -> None:
    assert workshop.raced_at_boot["wrote"] > 0


def test_no_act_reaches_any_disk_of_a_guarded_machine(guarded: Guarded) -> None:
    assert leaks(guarded.cells) == []
    assert len(guarded.cells) == len(all_cells())
    guarded.machine.assert_untouched()


def test_no_act_hangs_and_none_leaves_anything_in_use_that_could_be_written(guarded: Guarded) -> None:
    assert [f"{cell.tried.act} on {cell.tried.layout}" for cell in guarded.cells if cell.tried.status == 124] == []


def test_the_kernel_names_the_guard_in_no_complaint(guarded: Guarded) -> None:
    # A line of a call trace ends with the name of its module.
    complaints = r"dmesg | grep -E 'BUG: (kernel|unable|sleeping)|Oops|general protection|\[stasis_guard\]' || true"
    assert guarded.machine.guest.check(complaints, Deadline.after(60)) == ""


def test_the_same_acts_write_to_a_granted_disk_and_are_refused_again_after_its_release(guarded: Guarded) -> None:
    machine = guarded.machine
    phase(machine, "open", "granted.json")
    assert silent(run_cells(machine, len(GRANTED_ACTS), "granted.json")) == []
    phase(machine, "close", "granted.json")
    assert leaks(run_cells(machine, len(GRANTED_ACTS), "granted.json")) == []
    # NVMe commands can't be told apart by disk; the files behind the disks can.
    assert [found for found in machine.violations() if not found.startswith((f"{GRANTED.name}:", "nvme:"))] == []
