"""A disk that comes and goes under a program that tries to mount and to write it all the time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from builder import samples
from builder.host import output_of
from builder.vm import Drive

from tests.support.vm.deadline import Deadline
from tests.support.vm.machine import Machine

HOT_MIB = 64
PLUG_SECONDS = 120
TRIES_SECONDS = 300
# NVMe namespaces and partitions of everything share the major 259; a new disk gets the lowest number that is free.
START = """
rm -rf /dev/race
echo > /proc/sys/kernel/modprobe || :
exec < /dev/null > /dev/race.said 2>&1
setsid /run/acts/race /dev/race 259 0 {last} &
until [ -e /dev/race/tries ]; do kill -0 $! || exit; sleep 0.1; done
"""
ALIVE = "pidof race > /dev/null || { echo 'the race has ended:'; cat /dev/race.said; exit 1; } >&2"
WAIT = f"until [ $(cat /dev/race/tries) -gt @TRIES@ ]; do {ALIVE}; sleep 0.2; done"
STOP = (
    f"{ALIVE}; touch /dev/race/stop; until grep -q tries /dev/race.said; do sleep 0.1; done; "
    "grep tries /dev/race.said; rm -rf /dev/race"
)
# For the first stage of a boot, before it mounts the system and so before any driver of a disk. What is armed, is armed
# by then (its self-test has a disk, too, which is not to be disturbed). Nice, or nothing boots.
AT_BOOT = "/race /dev/race 259 0 3 10 < /dev/null > /dev/race.said 2>&1 &\n"
BEFORE = "loop=$(busybox losetup -f)"


def hot_disk(path: Path, *, protected: bool) -> Drive:
    """An NVMe disk with an ext4 on the whole of it, kept back until it is plugged."""
    samples.blank(path, HOT_MIB)
    output_of(["mkfs.ext4", "-q", "-F", path])
    return Drive(name="hot", path=path, serial="WALL-HOT", hotplug=True, plugged=False, protected=protected)


def race(machine: Machine, name: str, *, rounds: int, tries: int, last: int) -> Mapping[str, int]:
    """Plug the disk ``rounds`` times, each time until the program has tried ``tries`` times more; what it counted.

    The program starts before the disk is there for the first time, and looks for it at the device numbers 259:0 to
    259:``last``.
    """
    machine.guest.check(START.format(last=last), Deadline.after(TRIES_SECONDS))
    for number in range(1, rounds + 1):
        machine.plug(name)
        wait_for_tries(machine, number * tries)
        machine.unplug(name, Deadline.after(PLUG_SECONDS))
    return stop(machine)


def wait_for_tries(machine: Machine, tries: int) -> None:
    """Wait until the program has tried that often, since its start and while there was a disk."""
    machine.guest.check(WAIT.replace("@TRIES@", str(tries)), Deadline.after(TRIES_SECONDS))


def with_race(init: str) -> str:
    """A first stage that starts the race by itself. ValueError when it has no place for it."""
    lines = init.splitlines(keepends=True)
    (place,) = (number for number, line in enumerate(lines) if line.startswith(BEFORE))
    return "".join((*lines[:place], AT_BOOT, *lines[place:]))


def stop(machine: Machine) -> Mapping[str, int]:
    """End the race and say what was counted; counts of errors as ``open EPERM``."""
    said = json.loads(machine.guest.check(STOP, Deadline.after(TRIES_SECONDS)))
    kinds = ("open", "write", "mount")
    errors = {f"{kind} {error}": count for kind in kinds for error, count in said.pop(kind).items()}
    return {**said, **errors}
