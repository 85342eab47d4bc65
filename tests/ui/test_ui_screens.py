"""How every screen looks, at 80x24 on a VT220 and at 120x40 in a modern terminal; hostile strings on every screen."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from rescue_tui.core.access import WriteGrant
from rescue_tui.core.device import Disk, Health, Mount, Partition, Signature
from rescue_tui.core.errors import DeviceError
from rescue_tui.core.finding import Finding, Severity
from rescue_tui.core.ident import DeviceId
from rescue_tui.core.imaging import DestinationSpace
from rescue_tui.core.job import JobRecord, JobState, Progress
from rescue_tui.core.mapfile import Area, Mapfile, Status
from rescue_tui.jobs.verification import CaseVerdict
from rescue_tui.system.mounts import MountedImage
from tests.support.fake_services import BAD, GIB, MOMENT, FakeServices, boot_disk, nvme_disk, usb_disk
from tests.ui.harness import Session, check_snapshot, session

# One string with everything that has a way to do harm, and one that is long: each session visits every screen.
HOSTILE = {
    "mixed": "[/foo][red]\x1b[2J\x1b[31m\x07[/]\udcff\u202e\u2066a\u0301\u0301b\n\t\r"
             "\u200b\ufeff$(x) {y} %s \u4e16\u754c \U0001f600",
    "long": "N" * 4096,
}


def machine(text: str = "") -> FakeServices:
    """A machine with everything that a screen can show; ``text`` goes wherever a disk can say something."""
    def said(plain: str) -> str:
        return text or plain

    def dressed(disk: Disk) -> Disk:
        xfs = Signature(said("xfs"), "filesystem", 0, said("label"), said("uuid"), said("5"))
        part = Partition(DeviceId("part", "1"), said("/dev/x1"), (9, 9), 1, 1 << 20, GIB, True, said("name"),
                         said("type"), said("uuid"), (xfs,), (said("md0"),),
                         (Mount(said("/mnt"), said("xfs"), ("ro",)),))
        return replace(
            disk, model=said(disk.model), serial=said(disk.serial), firmware=said("fw"), slot=said("slot"),
            wwn=said("wwn"), backing_file=said("/file"), links=(said("/dev/disk/by-id/x"),),
            partitions=(part,), slaves=(said("sdz"),))

    usb = usb_disk() if not text else replace(usb_disk(), model=text, serial=f"U{text}")
    services = FakeServices(dressed(nvme_disk(0, "S4EVNX0M")), nvme_disk(1, "S4EVNX1M"), usb, boot_disk())
    services.healths = {said("S4EVNX0M"): replace(
        BAD, source=said("nvme-cli"), unavailable=text,
        findings=(Finding(Severity.ERROR, "media-errors", said("17 media errors."), said("media_errors: 17")),),
        errors=(replace(BAD.errors[0], status_text=said("Unrecovered Read Error")),))}
    if text:
        services.healths[services.disks[1].serial] = Health(unavailable=text)
    usb = services.disks[2]
    services.granted[usb.id] = WriteGrant(usb.id, usb.generation, usb.node, usb.serial, MOMENT, "t")
    mount_point = f"/dest/{text}" if text else "/run/stasis/destination/usb"
    services.spaces[usb.id] = DestinationSpace(mount_point, said("ext4"), 7 * GIB, True, True, True)
    services.gate_refusals[said("S4EVNX0M")] = (
        Finding(Severity.ERROR, "shares-uuid", said("It shares an array with /dev/nvme1n1."), said("UUID 1")),)
    services.set_job(JobRecord(
        "job-1", "image", said("Image ACME S4EVNX0M"), JobState.RUNNING, MOMENT, MOMENT, said("nvme-nguid:00"),
        said("/run/stasis/destination/usb/stasis-case-1"), (said("ddrescue -d /dev/nvme0n1"),), 1,
        Progress(said("copying"), 4 * GIB, GIB, 4096, 1, 2, 120e6, 110e6, 0.5, 25.0, 40.0, GIB, 6 * GIB, text)))
    services.maps["job-1"] = Mapfile((Area(0, GIB, Status.FINISHED), Area(GIB, 4096, Status.BAD_SECTOR),
                                      Area(GIB + 4096, 3 * GIB - 4096, Status.NON_TRIED)))
    services.checkpoint_text = text
    services.image_paths = (Path(said("/run/stasis/destination/usb/stasis-case-1/nvme-0/image.raw")),)
    services.views = (MountedImage(said("/dest/stasis-case-1/nvme-1/image.raw"), said("/views/a"), said("xfs"),
                                   (said("ro"), "norecovery"), "/dev/loop0", 1, said("The log is not replayed.")),)
    services.journal.append(said("job.start"), job="job-1", serial=said("S4EVNX0M"))
    services.verdict = CaseVerdict(said("/case"), False, (
        Finding(Severity.ERROR, "hash-differs", said("image.raw is not what it was."), said("sha256 differs")),), 3, 99)
    return services


async def _devices(s: Session) -> None:
    await s.press("down")


async def _device(s: Session) -> None:
    await s.press("enter")
    await s.see("Device:")


async def _destination(s: Session) -> None:
    await s.press("g")
    await s.see("It can't be the destination:")


async def _granted(s: Session) -> None:
    await s.press("down", "down", "g")
    await s.see("MOUNTED")


async def _plan(s: Session) -> None:
    await s.press("i")
    await s.see("Command that will run")


async def _start(s: Session) -> None:
    await _plan(s)
    await s.press("s")
    await s.see("Start now?")


async def _jobs(s: Session) -> None:
    await s.press("j")
    await s.see("Jobs: 1 job")


async def _job(s: Session) -> None:
    await _jobs(s)
    await s.press("enter")
    await s.see("Job job-1")
    await s.see("bad-sector")


async def _case(s: Session) -> None:
    await _jobs(s)
    await s.press("v")
    await s.see("NOT VERIFIED")


async def _journal(s: Session) -> None:
    await s.press("l")
    await s.see("Journal: 2 entries")


async def _guard(s: Session) -> None:
    await s.press("w")
    await s.see("Every disk that was not granted is locked.")


async def _help(s: Session) -> None:
    await s.press("question_mark")
    await s.see("Help: Devices")


async def _leave(s: Session) -> None:
    await s.press("q")
    await s.see("Leave Stasis?")


async def _images(s: Session) -> None:
    await s.press("c")
    await s.see("Images: 2, 1 mounted")


async def _checkpoints(s: Session) -> None:
    await _images(s)
    await s.press("enter")
    await s.see("This one is the newest good save.")


async def _scanning(s: Session) -> None:
    s.services.hold["scan"] = asyncio.Event()
    s.services.ticks["scan"] = ("run-a/step_300/model.pt", GIB, 4 * GIB)
    await _images(s)
    await s.press("enter", "r")
    await s.see("25 % of 4.0 GiB")


async def _checkpoint(s: Session) -> None:
    await _checkpoints(s)
    await s.press("down", "enter")
    await s.see("Findings")


async def _tensors(s: Session) -> None:
    await _checkpoints(s)
    await s.press("down", "t")
    await s.see("Tensors: 4")
    await s.press("slash")
    await s.type("layers damaged")
    await s.press("enter")
    await s.see("1 that match")


async def _extracted(s: Session) -> None:
    await _checkpoints(s)
    await s.press("e")
    await s.see("Directory below it")
    await s.press("enter")
    await s.see("Extraction: ENDED")


async def _salvaged(s: Session) -> None:
    await _checkpoints(s)
    await s.press("down", "s")
    await s.see("Directory below it")
    await s.press("enter")
    await s.see("Salvage: ENDED")


async def _error(s: Session) -> None:
    s.services.errors["release"] = DeviceError("The disk can't be released.", "Look at the log.",
                                               "$ umount /x\ntarget busy")
    await _granted(s)
    await s.press("u")
    await s.see("That did not work")


Go = Callable[[Session], Awaitable[None]]
PLACES: dict[str, Go] = {
    "devices": _devices, "device": _device, "destination": _destination, "granted": _granted, "plan": _plan,
    "start": _start, "jobs": _jobs, "job": _job, "case": _case, "journal": _journal,
    "images": _images, "checkpoints": _checkpoints, "checkpoint": _checkpoint, "tensors": _tensors,
    "scanning": _scanning, "extracted": _extracted, "salvaged": _salvaged,
    "guard": _guard, "help": _help, "leave": _leave, "error": _error,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("term", "size"), [("vt220", (80, 24)), ("xterm-256color", (120, 40))])
async def test_snapshot(place: str, term: str, size: tuple[int, int]) -> None:
    async with session(machine(), term=term, size=size, ready="FAILING") as s:
        await PLACES[place](s)
        await s.until(lambda: "7.0 GiB free" in s.lines[1] and "reading" not in s.text, "the status bar and the health")
        check_snapshot(f"{place}-{size[0]}x{size[1]}", s.lines)
        assert len(s.lines) == size[1]
        assert all(len(line) <= size[0] for line in s.lines)


def is_harmless(char: str) -> bool:
    """No control, format, surrogate, private or combining character: nothing that moves, hides or piles up."""
    return unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Mn", "Me", "Mc"}


@pytest.mark.parametrize("term", ["vt220", "xterm-256color"])
@pytest.mark.parametrize("kind", HOSTILE)
async def test_hostile_strings_on_every_screen(kind: str, term: str) -> None:
    keys = {"DeviceScreen": ("enter",), "DestinationScreen": ("g",), "PlanScreen": ("i",), "JobsScreen": ("j",),
            "JobScreen": ("j", "enter"), "CaseScreen": ("j", "v"), "JournalScreen": ("l",),
            "GuardScreen": ("w",), "ImagesScreen": ("c",), "CheckpointsScreen": ("c", "enter"),
            "CheckpointScreen": ("c", "enter", "enter"), "TensorsScreen": ("c", "enter", "t")}
    async with session(machine(HOSTILE[kind]), term=term, ready="FAILING") as s:
        check_harmless(s)
        for name, pressed in keys.items():
            await s.press("d", "home", *pressed)
            await s.on_screen(name)
            for key in ("down", "down", "pagedown", "end"):
                await s.press(key)
                check_harmless(s)
        await s.press("d", "home", "i")
        await s.until(lambda: s.app.screen.check_action("start", ()), "the plan")
        await s.press("s")
        await s.see("Start imaging 1 disk?")
        check_harmless(s)


def check_harmless(s: Session) -> None:
    """24 lines of 80 cells without a character that moves, hides or piles up; ASCII alone on a VT220."""
    assert len(s.lines) == 24
    for line in s.lines:
        assert all(is_harmless(char) for char in line), line
        assert cell_len(line) <= 80, line
        assert line.isascii() or s.app.terminal.name != "vt220", line


async def test_hostile_error_and_prompt() -> None:
    services = machine("[/foo]\x1b[2J\u202e")
    async with session(services, ready="FAILING") as s:
        services.errors["release"] = DeviceError("[/foo]\x1b[2J is busy.", "[red]Look[/]", "\x1b]0;title\x07\n[/bar]")
        await _granted(s)
        await s.press("u")
        await s.see("[/foo]\\x1b[2J is busy.")
        await s.see("What to do: [red]Look[/]")
        await s.see("\\x1b]0;title\\x07")
        await s.press("escape", "u")
        await s.see("This disk may become the destination.")
        await s.press("enter")
        await s.see("Its serial     U[/foo]\\x1b[2J\\u202e")


async def test_small_and_growing_terminal() -> None:
    async with session(machine(), ready="FAILING") as s:
        for place, go in PLACES.items():
            if place in ("error", "scanning"):
                continue
            await s.press("escape", "escape", "d", "home")
            await s.see("Devices: 4 disks")
            await go(s)
            for width, height in ((60, 15), (20, 5), (80, 24)):
                await s.pilot.resize_terminal(width, height)
                await s.rows(height)
            assert "STASIS" in s.lines[0], place


async def test_every_screen_has_next_words_and_help() -> None:
    async with session(machine(), ready="FAILING") as s:
        for place in ("devices", "device", "destination", "plan", "jobs", "job", "case", "journal", "images",
                      "checkpoints", "checkpoint", "extracted", "salvaged", "scanning"):
            await s.press("escape", "escape", "d", "home")
            await s.see("Devices: 4 disks")
            await PLACES[place](s)
            words = str(s.app.screen.query_one("#next").content)  # type: ignore[attr-defined]
            assert len(words) > 20, place
            assert len(words) <= 156, (place, words)
            await s.press("f1")
            await s.see("On every screen")
            await s.press("escape")
            await s.see_not("On every screen")


async def test_colours_repeat_words_only() -> None:
    async with session(machine(), ready="FAILING") as s:
        strips = s.app.screen._compositor.render_strips()
        styles = {segment.style for strip in strips for segment in strip if segment.style}
        assert all(style.color is None and style.bgcolor is None for style in styles)
        assert any(style.reverse for style in styles)
