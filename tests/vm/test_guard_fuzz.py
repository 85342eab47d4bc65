"""Ten thousand random NVMe commands by every door, and writes while the hooks are traced, in one machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from builder import samples
from builder.attackkit import ensure_kit
from builder.host import BUILD
from builder.qemu import BuiltImage, working_accel

from tests.support.attack import fuzzing
from tests.support.attack.acts_command import TRACED
from tests.support.attack.layouts import MARKER, OWN, few
from tests.support.attack.ledger import leaks
from tests.support.attack.stage import FUZZ_SEED, GUEST, Stage, enter, in_kit, plan, require_guard, run_cells
from tests.support.vm.machine import Machine
from tests.support.vm.oracle import Class, Traced
from tests.vm.scenes import power_off

COMMANDS = 10_000
FUZZ_SECONDS = 600
DISK_MIB = 64
DISKS = frozenset({"whole", "sata", "scsi"})


@pytest.fixture(scope="module")
def directory() -> Path:
    """Where the artifacts of this module go."""
    path = BUILD / "vm-tests" / "guard-fuzz"
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture(scope="module")
def machine(image: BuiltImage, directory: Path) -> Iterator[Machine]:
    """A guarded machine with an NVMe, a SATA and a SCSI disk. One processor: see TRACED."""
    for name in (*DISKS, MARKER):
        samples.blank(directory / f"{name}.img", DISK_MIB)
    stage = Stage(image, ensure_kit(GUEST), directory)
    layouts = tuple(layout for layout in OWN if layout.name in {"whole", "scsi"})
    files = {
        "table": fuzzing.packed(FUZZ_SEED, COMMANDS),
        "plan.json": plan(layouts, [(act, layout) for act in TRACED for layout in layouts], restore=False),
    }
    spec = replace(stage.spec(image.kernel_boot(), *few(directory, DISKS), files), cpus=1)
    with Machine(replace(spec, accel=working_accel(image.kernel)), directory / "machine") as started:
        enter(started)
        require_guard(started)
        yield started


def not_reads(commands: tuple[Traced, ...]) -> list[Traced]:
    """What changes a disk or a controller, or flushes."""
    return [command for command in commands if command.kind is not Class.READ]


def test_no_random_command_of_write_class_reaches_the_device(machine: Machine, directory: Path) -> None:
    before = len(machine.trace())
    node = in_kit(machine, "lsblk -ndo NAME,SERIAL | awk '$2 == \"WALL-WHOLE\" {print $1}'")
    controller = node.removesuffix("n1")
    said = json.loads(in_kit(
        machine, f"/run/acts/fuzz /run/acts/table /dev/{node} /dev/ng{node[4:]} /dev/{controller}", FUZZ_SECONDS))
    (directory / "fuzz.json").write_text(json.dumps(said))
    assert said["sent"] == COMMANDS
    counted = dict(zip(fuzzing.DOORS, said["doors"], strict=True))
    for door in fuzzing.DOORS:
        assert counted[door].get("EPERM", 0) > 0, (door, counted[door])
    arrived = machine.trace()[before:]
    assert not_reads(arrived) == []
    # Some are reads, or the fuzzer would not know how to talk to the device at all.
    assert any(command.bus == "nvme" for command in arrived)
    machine.assert_untouched()


def test_no_write_gets_past_a_hook_that_is_traced(machine: Machine) -> None:
    cells = run_cells(machine, 2 * len(TRACED))
    assert leaks(cells) == []
    assert [cell.tried.status for cell in cells if cell.tried.status in {0, 124}] == []


def test_neither_a_flush_nor_a_stop_is_sent_when_the_machine_powers_off(machine: Machine) -> None:
    before = len(machine.trace())
    power_off(machine)
    # The driver takes down its own queues.
    last = [command for command in not_reads(machine.trace()[before:]) if not command.name.startswith("admin DELETE_")]
    assert last == []
    machine.assert_untouched()
