"""A disk that comes and goes under a program that tries to mount and to write it all the time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from builder import samples
from builder.host import output_of
from builder.vm import Drive

from tests.support.attack.stage import in_kit
from tests.support.vm.deadline import Deadline
from tests.support.vm.machine import Machine

HOT_MIB = 64
PLUG_SECONDS = 120
TRIES_SECONDS = 300
# NVMe namespaces and partitions of everything share the major 259; a new disk gets the lowest number that is free.
START = """
rm -rf /dev/race /run/race.stop
echo > /proc/sys/kernel/modprobe || :
exec < /dev/null > /run/race.said 2>&1
setsid /run/acts/race /dev/race /run/race.stop 259 0 {last} &
echo $! > /run/race.pid
until [ -e /dev/race/tries ]; do kill -0 $(cat /run/race.pid) || exit; sleep 0.1; done
"""
WAIT = """
until [ "$(cat /dev/race/tries 2>/dev/null || echo 0)" -gt {tries} ]; do
    kill -0 $(cat /run/race.pid) || {{ cat /run/race.said; exit 1; }}
    sleep 0.2
done
"""
STOP = "touch /run/race.stop; while kill -0 $(cat /run/race.pid) 2>/dev/null; do sleep 0.1; done; cat /run/race.said"


def hot_disk(path: Path, *, protected: bool) -> Drive:
    """An NVMe disk with an ext4 on the whole of it, kept back until it is plugged."""
    samples.blank(path, HOT_MIB)
    output_of(["mkfs.ext4", "-q", "-F", path])
    return Drive(name="hot", path=path, serial="WALL-HOT", hotplug=True, plugged=False, protected=protected)


def race(machine: Machine, name: str, *, rounds: int, tries: int, last: int) -> Mapping[str, int]:
    """Plug the disk ``rounds`` times, each time until the program has tried ``tries`` times more; what it counted.

    The program starts before the disk is there for the first time, and looks for it at the device numbers 259:0 to
    259:``last``. Counts of errors are kept as ``open EPERM``.
    """
    in_kit(machine, START.format(last=last))
    for number in range(1, rounds + 1):
        machine.plug(name)
        in_kit(machine, WAIT.format(tries=number * tries), TRIES_SECONDS)
        machine.unplug(name, Deadline.after(PLUG_SECONDS))
    said = json.loads(in_kit(machine, STOP, TRIES_SECONDS))
    kinds = ("open", "write", "mount")
    errors = {f"{kind} {error}": count for kind in kinds for error, count in said.pop(kind).items()}
    return {**said, **errors}
