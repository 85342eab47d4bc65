"""An operator's whole session by keys alone, and each step that may go wrong."""

from __future__ import annotations

from dataclasses import replace

from textual.events import Key

from rescue_tui.core.device import Partition, Signature
from rescue_tui.core.finding import Finding, Severity
from rescue_tui.core.ident import DeviceId
from rescue_tui.ui.screens.dialogs import PlainInput
from tests.support.fake_services import BAD, GIB, FakeServices, boot_disk, nvme_disk, usb_disk
from tests.ui.harness import Session, session
from tests.ui.steps import called, find, grant_and_mount


async def start_image(s: Session) -> None:
    await s.press("escape", "escape")
    await find(s, "S4EVNX1M")
    await s.press("i")
    await s.see("$ ddrescue -d -r0 -b512 -c8192 /dev/nvme1n1")
    await s.press("s")
    await s.see("Start now?")
    await s.press("y")
    await s.see("Job job-1: RUNNING")


async def test_whole_session_by_keys() -> None:
    async with session() as s:
        await grant_and_mount(s)
        await s.see("7.0 GiB free")
        await start_image(s)
        await s.see("1 job running")
        s.services.finish("job-1")
        await s.status()
        await s.see("DONE. Every sector was read.")
        await s.see("ab" * 32)
        await s.press("v")
        await s.see("verified: everything matches")
        await s.press("q")
        await s.see("Leave Stasis?")
        await s.press("y")
        await s.until(lambda: not s.app.is_running, "the end of the app")
    assert s.app.return_value == 0
    verbs = [call for call in s.services.calls if call.split()[0] not in ("snapshot", "health")]
    case = "/run/stasis/destination/usb/stasis-case-20261202T090000Z"
    assert verbs == [
        "grant /dev/sda USB-0001", "format /dev/sda ext4 USB-0001", "mount /dev/sda",
        "plan /dev/nvme1n1 /run/stasis/destination/usb", "start /dev/nvme1n1", f"verify {case}"]


async def test_grant_needs_the_exact_serial() -> None:
    async with session() as s:
        await find(s, "USB-0001")
        await s.press("g")
        await s.see("This disk may become the destination.")
        await s.press("enter")
        await s.see("Type the serial")
        await s.type("usb-0001")
        await s.press("enter")
        await s.see("That is not the serial of /dev/sda.")
        assert called(s.services, "grant") == []
        await s.press("escape")
        await s.see_not("Type the serial")
        assert called(s.services, "grant") == []


async def test_keys_that_come_at_once_edit_in_the_order_they_were_typed() -> None:
    async with session(FakeServices(usb_disk(), boot_disk()), ready="unknown") as s:
        await s.press("g")
        await s.see("This disk may become the destination.")
        await s.press("enter")
        await s.see("Type the serial")
        line = s.app.screen.query_one(PlainInput)
        for key in ("W", "R", "backspace", "backspace", "A", "C", "left", "B", "end", "D", "home", "x", "delete"):
            s.app.post_message(Key(key, key if len(key) == 1 else None))
        await s.until(lambda: line.value == "xBCD", "xBCD")


async def test_serial_that_the_console_cannot_show_is_typed_as_it_is_shown() -> None:
    disk = usb_disk("USB-é")
    async with session(FakeServices(disk, boot_disk()), ready="unknown") as s:
        await s.press("g")
        await s.see("This disk may become the destination.")
        await s.press("enter")
        await s.see("USB-\\xe9")
        await s.type("USB-\\xe9")
        await s.press("enter")
        await s.see("GRANTED")
    assert called(s.services, "grant") == ["grant /dev/sda USB-é"]


async def test_refusals_are_listed_and_enter_on_one_explains() -> None:
    services = FakeServices()
    services.gate_refusals["S4EVNX0M"] = (Finding(Severity.ERROR, "shares-uuid", "It shares an array with a source."),)
    async with session(services) as s:
        await s.press("g")
        await s.see("It can't be the destination:")
        await s.see("ERROR: It shares an array with a source.")
        await s.see("ERROR: This is an internal disk.")
        await s.press("enter")
        await s.see("/dev/nvme0n1 can't be the destination.")
        await s.see("- It shares an array with a source.")
        assert called(services, "grant") == []


async def test_internal_disks_only_when_asked_for() -> None:
    async with session(FakeServices(nvme_disk(0, "N0"), boot_disk())) as s:
        await s.press("g")
        await s.see("This is an internal disk.")
        await s.press("o")
        await s.see("internal disks allowed")
        await s.see("yes, 1 warning")
        await s.press("enter")
        await s.see("WARNING: There are data on this disk.")
        await s.type("N0")
        await s.press("enter")
        await s.see("GRANTED")
    assert called(s.services, "grant") == ["grant /dev/nvme0n1 N0 internal"]


async def test_mount_asks_for_the_partition_when_there_are_several() -> None:
    ext4 = (Signature("ext4", "filesystem", 1080, "a"),)
    parts = tuple(Partition(DeviceId("part", f"u/{number}"), f"/dev/sda{number}", (8, number), number, 1 << 20, GIB,
                            True, signatures=ext4) for number in (2, 5))
    services = FakeServices(replace(usb_disk(blank=False), partitions=parts))
    async with session(services, ready="unknown") as s:
        await s.press("g")
        await s.see("This disk may become the destination.")
        await s.press("enter")
        await s.type("USB-0001")
        await s.press("enter")
        await s.see("GRANTED")
        await s.press("m")
        await s.see("Which partition of /dev/sda")
        await s.press("2")
        await s.see("MOUNTED")
    assert called(services, "mount") == ["mount /dev/sda 5"]


async def test_release_locks_the_disk_again() -> None:
    async with session() as s:
        await grant_and_mount(s)
        await s.press("u")
        await s.see("This disk may become the destination.")
        await s.see("Dest: none")
    assert called(s.services, "release") == ["release /dev/sda"]


async def test_hot_plug_appears_and_the_cursor_stays() -> None:
    async with session() as s:
        await s.press("down")
        await s.see("/dev/nvme1n1  ACME")
        s.services.plug(nvme_disk(7, "NEWCOMER"))
        await s.see("NEWCOMER")
        await s.see("Devices: 5 disks")
        assert "/dev/nvme1n1  ACME" in s.text
        s.services.unplug(nvme_disk(0, "S4EVNX0M"))
        await s.see("Devices: 4 disks")
        assert "/dev/nvme1n1  ACME" in s.text
        assert "S4EVNX0M" not in s.text


async def test_hardware_that_shows_no_disk_is_told_below_the_list() -> None:
    services = FakeServices()
    async with session(services) as s:
        assert "WARNING" not in s.text
        services.hidden = tuple(
            Finding(Severity.WARNING, "storage-without-driver", f"The RAID card at slot {slot} has no driver [/x].")
            for slot in range(4))
        await s.press("r")
        await s.see("WARNING: The RAID card at slot 0 has no driver [/x].")
        await s.see("WARNING: The RAID card at slot 1")
        await s.see("and 2 more: `stasis devices` lists them")
        assert len(s.lines) == 24
        services.hidden = services.hidden[:1]
        await s.press("r")
        await s.see_not("slot 1")
        services.hidden = ()
        await s.press("r")
        await s.see_not("WARNING")


async def test_detail_of_a_disk_that_goes() -> None:
    async with session() as s:
        await s.press("enter")
        await s.see("Device: /dev/nvme0n1")
        await s.see("nqn.2014-08.org.nvmexpress:0")
        s.services.unplug(nvme_disk(0, "S4EVNX0M"))
        await s.see("(GONE)")
        await s.see("This disk was unplugged")


async def test_health_words_and_error_log() -> None:
    services = FakeServices(nvme_disk(0, "BADONE"), nvme_disk(1, "GOODONE"))
    services.healths["BADONE"] = BAD
    async with session(services, ready="FAILING", size=(120, 60)) as s:
        await s.press("enter")
        await s.see("ERROR: The disk has 17 media errors.")
        await s.see("Unrecovered Read Error")


async def test_plan_without_a_destination_says_so() -> None:
    async with session() as s:
        await s.press("i")
        await s.see("No destination is mounted.")
        await s.see("A destination is missing.")
        await s.press("s")
        await s.pilot.pause()
        assert called(s.services, "start") == []


async def test_plan_without_space_is_refused_until_partial_is_accepted() -> None:
    services = FakeServices(nvme_disk(0, "BIG"), usb_disk(size_bytes=2 * GIB), boot_disk())
    async with session(services) as s:
        await grant_and_mount(s)
        await s.press("escape", "escape")
        await find(s, "BIG")
        await s.press("i")
        await s.see("This can't start")
        await s.see("The image needs more than the destination has free.")
        await s.press("p")
        await s.see("A partial image is accepted")
        await s.see("$ ddrescue")
        await s.press("c")
        await s.until(lambda: called(services, "plan")[-1].endswith("partial resume"))


async def test_several_sources_share_a_case_and_go_to_the_jobs_screen() -> None:
    async with session(FakeServices(nvme_disk(0, "A"), nvme_disk(1, "B"), usb_disk(size_bytes=20 * GIB))) as s:
        await grant_and_mount(s)
        await s.press("escape", "escape", "home", "space", "down", "space")
        await s.see("2 disks marked.")
        await s.press("i")
        await s.see("$ ddrescue")
        await s.press("s")
        await s.see("Start imaging 2 disks?")
        await s.press("y")
        await s.see("Jobs: 2 jobs, 2 running")
    assert called(s.services, "start") == ["start /dev/nvme0n1", "start /dev/nvme1n1"]
    assert len({record.case for record in s.services.jobs.values()}) == 1
