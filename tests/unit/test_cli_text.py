"""The words for people."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rescue_tui.cli_text import (
    content_words,
    device_lines,
    device_row,
    end_words,
    finding_words,
    gate_row,
    guard_lines,
    health_words,
    job_row,
    plan_lines,
    progress_words,
)
from rescue_tui.core.access import Access, Role
from rescue_tui.core.device import SIGNATURES_UNREAD, Health, Signature
from rescue_tui.core.finding import Finding, Severity
from rescue_tui.core.guardstate import LayerState, RefusedAttempt
from rescue_tui.core.imaging import ImagingPlan
from rescue_tui.core.job import JobState, Progress
from rescue_tui.core.snapshot import Snapshot
from rescue_tui.system.guardview import ProtectedDevice
from tests.support.cli_services import MOMENT, CliServices, job, nvme_disk, usb_disk

SOURCE = Role(Access.SOURCE, "Every disk is a source until it is granted.")


def test_every_signature_is_named() -> None:
    assert content_words(nvme_disk()) == "gpt: xfs"
    protective = replace(nvme_disk(), signatures=(Signature("PMBR", "partition-table", 510), *nvme_disk().signatures))
    assert content_words(protective) == "gpt: xfs", "every GPT brings a protective MBR along"
    assert content_words(usb_disk()) == "blank"
    both = (Signature("xfs", "filesystem", 0), Signature("linux_raid_member", "raid", 4096))
    twice = replace(usb_disk(), signatures=both)
    assert content_words(twice) == "xfs, linux_raid_member"
    unread = Finding(Severity.WARNING, SIGNATURES_UNREAD, "The scan failed.")
    assert content_words(replace(usb_disk(), findings=(unread,))) == "(not all could be read)"
    bare = replace(nvme_disk(), partitions=(replace(nvme_disk().partitions[0], signatures=()),))
    assert content_words(bare) == "gpt: 1 partition"


@pytest.mark.parametrize(("health", "words"), [
    (None, "-"), (Health(unavailable="No SMART."), "-"), (Health(ok=True), "ok"), (Health(ok=False), "FAILING"),
    (Health(ok=True, media_errors=3), "ok, 3 media errors"), (Health(), "unknown"),
    (Health(ok=False, critical_warning=4), "FAILING, critical warning 0x04"),
])
def test_health_words(health: Health | None, words: str) -> None:
    assert health_words(health) == words


def test_a_device_row_is_short() -> None:
    row = device_row(replace(nvme_disk(), model="M" * 40), SOURCE, None)
    assert row == ("/dev/nvme0n1", "source", "894.3 GiB", "M" * 21 + "...", "S4EVNX0M123456", "gpt: xfs", "-")


def test_a_device_tells_all_that_is_known() -> None:
    health = Health("nvme", True, 0, 40, 100, 10, 1, 0, 2, 9, 4)
    text = "\n".join(device_lines(nvme_disk(), SOURCE, health, "read-only"))
    for word in ("nvme-nguid:" + "a" * 32, "nsid 1", "nvme0 pcie 0000:01:00.0 live", "label data", "960197124096 bytes",
                 "temperature   40 C", "guard         read-only"):
        assert word in text


def test_a_health_that_is_not_known_says_why() -> None:
    lines = device_lines(usb_disk(), SOURCE, Health(unavailable="The bridge passes no SMART."), "open")
    assert "health        not known: The bridge passes no SMART." in lines


def test_the_gate_gives_the_first_reason_and_counts_the_rest() -> None:
    services, snapshot = CliServices(), Snapshot(MOMENT, (nvme_disk(), usb_disk()))
    inside, outside = (gate_row(disk, services.gate(snapshot, disk)) for disk in snapshot.disks)
    assert inside == ("/dev/nvme0n1", "S4EVNX0M123456", "894.3 GiB", "It is inside this machine. (and 1 more reason)")
    assert outside[-1] == "yes"


async def _plan() -> ImagingPlan:
    return await CliServices().plan_image(nvme_disk(), Path("/mnt/d e"))


async def test_a_plan_ends_with_a_command_that_can_be_pasted() -> None:
    lines = plan_lines(await _plan())
    assert lines[-1] == ("command   ddrescue -d -r0 /dev/nvme0n1 '/mnt/d e/stasis-case-1/x/image.raw' "
                         "'/mnt/d e/stasis-case-1/x/image.map'")


def test_progress_has_no_single_number_for_the_time_left() -> None:
    progress = Progress("copying", 1000, 500, 10, 1, 2, 1048576.0, None, 12.0, 60.0, 600.0)
    assert progress_words(progress) == (
        "copying, 50.00 %, 500 B of 1000 B, 1.0 MiB/s, bad 10 B in 1 area, 2 read errors, last good read 12 s ago, "
        "1 min 00 s to 10 min 00 s left")
    assert progress_words(Progress()) == "starting, 0.00 %, 0 B of 0 B"


@pytest.mark.parametrize("state", list(JobState))
def test_every_end_says_what_to_do_or_where_it_is(state: JobState) -> None:
    record = replace(job(state, bad=512), error="The disk is gone.", hint="Plug it in.")
    words = end_words(record)
    assert words.startswith("Image of S4EVNX0M123456: ")
    assert any(part in words for part in ("/mnt/d/stasis-case-1", "stasis jobs ", "Plug it in."))


def test_rows_and_findings() -> None:
    assert job_row(job(bad=512)) == ("20261202-a1", "running", "50.00 %", "512 B", "Image of S4EVNX0M123456")
    assert finding_words(Finding(Severity.WARNING, "x", "It is hot.", "80 C")) == "warning: It is hot. (80 C)"


def test_the_guard_says_who_is_granted() -> None:
    lines = guard_lines(CliServices().guard_state())
    assert lines[0] == ("guard      armed", False)
    assert any("USB0001" in line for line, _ in lines)
    assert not any("secret-token" in line or alarming for line, alarming in lines)


def test_the_guard_marks_what_is_wrong_and_counts() -> None:
    kept = ProtectedDevice("/dev/nvme0n1", "259:0", True, False, False, {"bio": 3, "discard": 0, "ioctl": 1}, 2)
    state = replace(
        CliServices().guard_state(), layers=(LayerState("kernel-guard", "absent", "Not loaded."),
                                             LayerState("bio", "armed", "Refuses.", 7)),
        devices=(kept, replace(kept, node="/dev/nvme1n1", refused={"bio": 0}, flush_kept=0)), void=(usb_disk().id,),
        findings=(Finding(Severity.ERROR, "x", "It is open."), Finding(Severity.WARNING, "y", "It is odd.")),
        last=(RefusedAttempt("2026-12-02T09:00:00.000Z", "/dev/nvme0n1", "bio", 1, 123, "dd"),))
    lines = guard_lines(state)
    assert [line for line, alarming in lines if alarming] == [
        "guard      ABSENT: the kernel does not refuse every write", "layer      kernel-guard  ABSENT  Not loaded.",
        "granted    /dev/sdb  serial USB0001  since 2026-12-02T09:00:00.000Z  VOID", "finding    error: It is open."]
    assert [line for line, alarming in lines if not alarming] == [
        "layer      bio           armed  refused 7. Refuses.",
        "protected  2 of 2 disks and partitions are read-only", "refused    7",
        "counted    /dev/nvme0n1: bio 3, ioctl 1; 2 flushes kept back",
        "last       2026-12-02T09:00:00.000Z  /dev/nvme0n1  bio 0x01 by dd (process 123)",
        "finding    warning: It is odd."]
