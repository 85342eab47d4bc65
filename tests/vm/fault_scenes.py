"""What the tests of faults share: disks, the verbs of `stasis` in the guest, and jobs that are waited for."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder import samples
from builder.vm import Drive

from tests.support.vm.deadline import Deadline, DeadlineError
from tests.support.vm.machine import Machine

MIB = 1 << 20
SECTOR = 512
BOOT_SECONDS = 300
VERB_SECONDS = 300
JOB_SECONDS = 600
TUI_SECONDS = 180
# Held back like this, a disk of 160 MiB takes minutes to copy: what is to happen in the middle of a copy does. Much
# slower, and the guest's kernel would take the reads for lost (after 30 seconds).
SLOW = 512 << 10
SHELL = "stasis.debug-shell=hvc0"
AT_REST = frozenset({"paused", "interrupted", "done", "damaged", "failed", "cancelled"})
Record = dict[str, Any]


def noise_disk(path: Path, size_mib: int, seed: int, *, blank_mib: int = 0) -> Path:
    """A disk of random bytes, where nothing can be lost or misplaced unseen, with blank space before its last MiB."""
    samples.noise(path, size_mib - blank_mib, seed)
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate((size_mib - blank_mib - 1) * MIB)
        file.truncate(size_mib * MIB)
        file.seek((size_mib - 1) * MIB)
        file.write(content[-MIB:])
    return path


def destination(artifacts: Path, size_mib: int, serial: str = "DEST-1") -> Drive:
    """A USB disk with an empty ext4."""
    tree = artifacts / f"{serial}.tree"
    tree.mkdir()
    path = artifacts / f"{serial}.img"
    samples.ext4(path, size_mib, serial.lower(), tree)
    return Drive(name=serial.lower(), path=path, serial=serial, kind="usb", removable=True, protected=False)


def sha256(content: bytes) -> str:
    """The hash that `sha256sum` prints."""
    return hashlib.sha256(content).hexdigest()


def map_areas(mapfile: str) -> list[tuple[int, int, str]]:
    """Start, size and status of the areas in a ddrescue mapfile."""
    found = re.findall(r"^(0x[0-9A-F]+) +(0x[0-9A-F]+) +([?*/+-])$", mapfile, re.MULTILINE)
    return [(int(start, 16), int(size, 16), status) for start, size, status in found]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a verb ended with, and the document that it printed."""

    status: int
    document: dict[str, Any]


class Operator:
    """An operator at the shell and at the screen of a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        machine.guest.wait_ready(Deadline.after(BOOT_SECONDS))

    # the shell -------------------------------------------------------------------------------------------------------
    def shell(self, script: str, seconds: float = VERB_SECONDS) -> str:
        """Run a script that must succeed; what it printed."""
        return self.machine.guest.check(script, Deadline.after(seconds))

    def verb(self, *words: str, seconds: float = VERB_SECONDS) -> Answer:
        """Run a verb of `stasis` with --json, however it ends."""
        outcome = self.machine.guest.run(["stasis", *words, "--json"], Deadline.after(seconds))
        assert outcome.stdout, f"{outcome.command}: no document, status {outcome.status}, {outcome.stderr!r}"
        return Answer(outcome.status, json.loads(outcome.stdout))

    def good(self, *words: str, seconds: float = VERB_SECONDS) -> dict[str, Any]:
        """Run a verb that must end with status 0."""
        answer = self.verb(*words, seconds=seconds)
        assert answer.status == 0, f"stasis {shlex.join(words)}: {answer}\n{self.machine.report()}"
        return answer.document

    def open_destination(self, serial: str = "DEST-1") -> str:
        """Grant and mount a disk; its mount point."""
        self.good("destination", "grant", serial, "--confirm", serial)
        answer = self.good("destination", "mount", serial)
        return str(answer["space"]["mount_point"])

    def node(self, serial: str) -> str:
        """The present device node of the disk with this serial."""
        disks = self.good("devices", "--no-health")["devices"]
        (node,) = (disk["node"] for disk in disks if disk["serial"] == serial)
        return str(node)

    # jobs ------------------------------------------------------------------------------------------------------------
    def begin(self, source: str, to: str, *options: str) -> str:
        """Start to image one disk and leave it alone; the id of the job."""
        (record,) = self.good("image", source, "--to", to, "--detach", *options)["jobs"]
        return str(record["id"])

    def record(self, job_id: str) -> Record:
        """The job as it stands in its file."""
        found: Record = json.loads(self.shell(f"cat /run/stasis/jobs/{job_id}/job.json"))
        return found

    def wait(self, job_id: str, what: str, holds: Callable[[Record], bool], seconds: float = JOB_SECONDS) -> Record:
        """Wait until ``holds`` for the job; a job that has come to rest is waited for no longer."""
        deadline = Deadline.after(seconds)
        while True:
            record = self.record(job_id)
            if holds(record):
                return record
            if deadline.expired or record["state"] in AT_REST:
                raise DeadlineError(f"{job_id} is not {what}: {record}\n{self.machine.report()}")
            self.shell("sleep 1")

    def copied(self, job_id: str, size_mib: int) -> Record:
        """Wait until the job, at work, has copied so much."""
        return self.wait(job_id, f"at {size_mib} MiB", lambda job: bool(
            job["state"] == "running" and job["progress"]["done_bytes"] >= size_mib * MIB))

    def saved(self, job_id: str, folder: str, size_mib: int) -> Record:
        """Wait until the mapfile that ddrescue flushed and put aside, while the job is at work, tells of so much."""

        def holds(job: Record) -> bool:
            areas = map_areas(self.shell(f"cat {folder}/image.map.bak 2>/dev/null || :"))
            return bool(job["state"] == "running"
                        and sum(size for _, size, status in areas if status == "+") >= size_mib * MIB)

        return self.wait(job_id, f"with {size_mib} MiB in a saved mapfile", holds)

    def rested(self, job_id: str) -> Record:
        """Wait until the job has ended or stopped."""
        return self.wait(job_id, "at rest", lambda job: job["state"] in AT_REST)

    def listed(self) -> str:
        """What `stasis jobs list` tells people."""
        return self.shell("stasis jobs list")

    def folder(self, case: str, serial: str) -> str:
        """The folder of the disk with this serial in a case."""
        return self.shell(f"dirname {shlex.quote(case)}/*{serial}*/binding.json")

    def map_of(self, folder: str) -> list[tuple[int, int, str]]:
        """The areas of the mapfile in a source's folder.

        ddrescue rewrites the mapfile in its place: a power cut may leave it empty, and the synced copy whole.
        """
        return map_areas(self.shell(f"cd {folder}; [ -s image.map ] || set -- .bak; cat image.map$1"))

    def assert_identical(self, image: str, content: bytes) -> None:
        """The image in the guest is ``content``, bit for bit."""
        assert self.shell(f"sha256sum {shlex.quote(image)}").split()[0] == sha256(content), image

    def assert_rescued(self, case: str, drive: Drive) -> None:
        """The image of the drive is its backing file, the mapfile has no bad area, and the case verifies."""
        folder = self.folder(case, drive.serial)
        content = drive.path.read_bytes()
        assert self.map_of(folder) == [(0, len(content), "+")]
        self.assert_identical(f"{folder}/image.raw", content)
        verdict = self.good("verify", case)
        assert (verdict["good"], verdict["findings"]) == (True, [])

    # the screen ------------------------------------------------------------------------------------------------------
    def sees(self, words: str, seconds: float = TUI_SECONDS) -> str:
        """Wait until the screen shows the words, wherever its lines are broken; the screen."""
        terminal = self.machine.terminal

        def probe() -> str | None:
            return terminal.text if words in " ".join(terminal.text.split()) else None

        return terminal.port.wait_for(f"{words!r}", probe, Deadline.after(seconds))

    def press(self, key: str, words: str) -> str:
        """Press a key and wait for the words that it brings up."""
        self.machine.terminal.press(key)
        return self.sees(words)
