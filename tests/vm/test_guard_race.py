"""A disk that is taken out and put in again under a program that never stops trying to mount and to write it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from builder.attackkit import ensure_kit
from builder.qemu import BuiltImage
from builder.vm import VmSpec

from tests.support.attack.racing import hot_disk, race, stop, wait_for_tries, with_race
from tests.support.attack.stage import BOOT_SECONDS, GUEST, Stage, enter, require_guard
from tests.support.vm.deadline import Deadline
from tests.support.vm.machine import Machine

ROUNDS = 3
TRIES_A_ROUND = 10_500
LAST_NUMBER = 7
TRIES_AT_BOOT = 1000


def test_no_try_is_fast_enough(image: BuiltImage, boot: Callable[[VmSpec], Machine], artifacts: Path) -> None:
    stage = Stage(image, ensure_kit(GUEST), artifacts)
    hot = hot_disk(artifacts / "hot.img", protected=True)
    machine = boot(stage.spec(image.kernel_boot(), (hot,), (), {}))
    enter(machine, udev=True)
    require_guard(machine)
    counted = race(machine, hot.name, rounds=ROUNDS, tries=TRIES_A_ROUND, last=LAST_NUMBER)
    (artifacts / "race.txt").write_text(f"{counted}\n")
    assert counted["tries"] > 30_000
    assert (counted["opened"], counted["wrote"], counted["mounted"]) == (0, 0, 0), counted
    machine.assert_untouched()


def test_no_try_is_early_enough(image: BuiltImage, boot: Callable[[VmSpec], Machine], artifacts: Path) -> None:
    stage = Stage(image, ensure_kit(GUEST), artifacts)
    early = replace(hot_disk(artifacts / "early.img", protected=True), name="early", plugged=True, hotplug=False)
    machine = boot(stage.spec(stage.guarded_with(with_race), (early,), (), {}))
    machine.guest.wait_ready(Deadline.after(BOOT_SECONDS))
    require_guard(machine)
    wait_for_tries(machine, TRIES_AT_BOOT)
    counted = stop(machine)
    (artifacts / "race.txt").write_text(f"{counted}\n")
    assert (counted["opened"], counted["wrote"], counted["mounted"]) == (0, 0, 0), counted
    machine.assert_untouched()
