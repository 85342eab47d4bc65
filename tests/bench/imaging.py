"""Imaging against the fastest dd and against plain ddrescue: same guest, same disks, same run.

Each way copies the whole source to a new file on the same destination; the rounds are interleaved, so that noise of the
host meets all of them, and the best round of each counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from builder.vm import Drive, VmSpec

from tests.bench.figures import Figure
from tests.bench.machines import SHELL, image, running, scratch
from tests.support.vm.deadline import Deadline
from tests.support.vm.machine import Machine

# Large enough that the start of ddrescue (a third of a second under TCG) is no part of the answer.
SOURCE_MIB = 6144
ROUNDS = 3
DD_BLOCKS = ("1M", "4M", "16M")
TARGET = 0.95
WAIT_SECONDS = 900
CHUNK_BYTES = 1 << 20


def _disks(directory: Path) -> tuple[Drive, Drive]:
    source, destination = directory / "source.img", directory / "destination.img"
    with source.open("wb") as file:
        for _ in range(SOURCE_MIB):
            file.write(os.urandom(CHUNK_BYTES))
    with destination.open("wb") as file:
        file.truncate((SOURCE_MIB * 2) << 20)
    return (Drive(name="source", path=source, serial="BENCH-SOURCE"),
            Drive(name="destination", path=destination, kind="virtio", serial="BENCH-DEST", protected=False))


def _timed(machine: Machine, command: str) -> float:
    """Seconds of wall time in the guest, by its own clock."""
    clock = "cut -d' ' -f1 /proc/uptime"
    script = f"sync; echo 3 > /proc/sys/vm/drop_caches; a=$({clock}); {command}; b=$({clock}); echo $a $b"
    before, after = machine.guest.check(script, Deadline.after(WAIT_SECONDS)).splitlines()[-1].split()
    return float(after) - float(before)


def _copy_seconds(machine: Machine, where: str) -> float:
    """Imaging by Stasis: from the start of the copy to its end, by the journal of its case.

    The hash that follows is not waited for: it re-reads the destination, takes minutes under TCG, and dd makes none.
    """
    script = f"""stasis image BENCH-SOURCE --to {where} --json > /tmp/image.json 2> /tmp/image.err &
        python3 -c '
import datetime, glob, json, time
until = time.monotonic() + {WAIT_SECONDS}
at = {{}}
while "image.ddrescue-ended" not in at:
    assert time.monotonic() < until, open("/tmp/image.err").read()
    time.sleep(1)
    for path in glob.glob("{where}/stasis-case-*/journal.jsonl"):
        at = {{entry["event"]: datetime.datetime.fromisoformat(entry["time"])
              for entry in map(json.loads, open(path)) if entry["event"].startswith("image.ddrescue")}}
print((at["image.ddrescue-ended"] - at["image.ddrescue"]).total_seconds())'
        stasis jobs cancel $(stasis jobs list --json | python3 -c 'import json, sys
print(json.load(sys.stdin)["jobs"][0]["id"])') > /tmp/cancel.out 2>&1
        wait
        rm -rf {where}/stasis-case-*"""
    return float(machine.guest.check(script, Deadline.after(WAIT_SECONDS)).splitlines()[-1])


def imaging() -> Iterator[Figure]:
    """Wall time of the copy against the fastest of three dd block sizes, and against ``ddrescue -d -r0``."""
    with scratch("imaging") as directory:
        spec = VmSpec(image().kernel_boot(), drives=_disks(directory), memory_mib=2048, cmdline_extra=SHELL)
        with running(spec, directory / "machine") as machine:
            machine.terminal.wait_for("BENCH-SOURCE", Deadline.after(WAIT_SECONDS))
            machine.guest.wait_ready(Deadline.after(WAIT_SECONDS))
            where = machine.guest.check(
                "{ stasis destination grant BENCH-DEST --confirm BENCH-DEST && stasis destination format BENCH-DEST "
                "--filesystem xfs --confirm BENCH-DEST && stasis destination mount BENCH-DEST; } >/dev/null && "
                "findmnt -rno TARGET /dev/vda1", Deadline.after(WAIT_SECONDS))
            best: dict[str, float] = {}

            def note(name: str, seconds: float) -> None:
                best[name] = min(seconds, best.get(name, seconds))

            node = machine.guest.check("echo /dev/nvme0n1", Deadline.after(30))
            for _ in range(ROUNDS):
                note("stasis", _copy_seconds(machine, where))
                for block in DD_BLOCKS:
                    note(f"dd bs={block}", _timed(
                        machine, f"dd if={node} of={where}/copy iflag=direct oflag=direct bs={block} status=none"))
                    machine.guest.check(f"rm {where}/copy", Deadline.after(60))
                note("ddrescue -d -r0", _timed(
                    machine, f"ddrescue -q -d -r0 {node} {where}/copy {where}/map && sync {where}/copy"))
                machine.guest.check(f"rm {where}/copy {where}/map*", Deadline.after(60))
            machine.assert_untouched()
        fastest = min((name for name in best if name.startswith("dd bs")), key=best.__getitem__)
        how = f"{SOURCE_MIB} MiB NVMe to XFS on virtio, best of {ROUNDS} interleaved rounds; " + ", ".join(
            f"{name} {seconds:.2f} s" for name, seconds in best.items())
        ratio = best[fastest] / best["stasis"]
        yield Figure("imaging-vs-dd", SOURCE_MIB / best["stasis"], "MiB/s", how, peer=fastest, ratio=ratio,
                     target=f">= {TARGET}", met=ratio >= TARGET)
        yield Figure("imaging-vs-plain-ddrescue", SOURCE_MIB / best["stasis"], "MiB/s", how, peer="ddrescue -d -r0",
                     ratio=best["ddrescue -d -r0"] / best["stasis"])
