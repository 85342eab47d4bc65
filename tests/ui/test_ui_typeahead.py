"""Keys that come faster than the screens: in order, none lost, and none answers a question that nobody has seen."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from textual.widgets import Input

from rescue_tui.core.device import Partition, Signature
from rescue_tui.core.errors import DeviceError
from rescue_tui.core.ident import DeviceId
from rescue_tui.ui import keys
from rescue_tui.ui.holds import AHEAD_SECONDS, Holds
from rescue_tui.ui.screens import base
from tests.support.fake_services import GIB, FakeServices, boot_disk, usb_disk
from tests.ui.harness import session
from tests.ui.steps import called, grant_and_mount

GRANT = "/USB-0001\rg\rUSB-0001\r"


def deeds(services: FakeServices) -> list[str]:
    return [call for call in services.calls if call.split()[0] not in ("snapshot", "health")]


async def test_a_burst_from_the_list_to_the_mounted_destination() -> None:
    async with session() as s:
        s.burst(f"{GRANT}f1USB-0001\rm")
        await s.see("The destination is ready.")
    assert deeds(s.services) == ["grant /dev/sda USB-0001", "format /dev/sda ext4 USB-0001", "mount /dev/sda"]


async def test_keys_wait_for_a_slow_grant() -> None:
    services = FakeServices()
    services.hold["grant"] = asyncio.Event()
    async with session(services) as s:
        s.burst(f"{GRANT}f2")
        await s.see("Working: granting /dev/sda.")
        for _ in range(20):
            await s.pilot.pause()
        assert "Which file system" not in s.text
        services.hold["grant"].set()
        await s.see("FORMAT with xfs")
        s.burst("USB-0001\r")
        await s.see("On it: xfs. m mounts it.")
    assert deeds(services) == ["grant /dev/sda USB-0001", "format /dev/sda xfs USB-0001"]


async def test_a_wrong_serial_in_a_burst_grants_nothing_and_goes_nowhere() -> None:
    async with session() as s:
        s.burst("/USB-0001\rg\rUSB-0002\rf1USB-0002\rsy")
        await s.see("That is not the serial of /dev/sda.")
        await s.see("f1USB-0002")
    assert deeds(s.services) == []


async def test_a_burst_starts_no_copy_and_a_fresh_y_does() -> None:
    async with session() as s:
        await grant_and_mount(s)
        s.burst("\x1b\x1b/S4EVNX1M\risyyy\ry")
        await s.see("Start imaging 1 disk?")
        for _ in range(20):
            await s.pilot.pause()
        await s.see("Start now?")
        assert called(s.services, "start") == []
        s.burst("y")
        await s.see("Job job-1: RUNNING")
    assert called(s.services, "start") == ["start /dev/nvme1n1"]


async def test_no_and_escape_are_taken_before_the_question_is_drawn() -> None:
    async with session() as s:
        s.burst("q\x1bqnj")
        await s.see("Jobs: 0 jobs")
        s.burst("qy")
        await s.see("Leave Stasis?")
        assert s.app.is_running
        await s.press("y")
        await s.until(lambda: not s.app.is_running, "the end of the app")
    assert s.app.return_value == 0


async def test_escape_and_the_key_after_it_are_two_keys() -> None:
    async with session() as s:
        s.burst("?\x1bl?\x1bw\x1b\x1b[B\x1b[B\r")
        await s.see("Device: /dev/sda")
        assert len(s.app.screen_stack) == 2


async def test_an_error_is_not_closed_by_what_was_typed_before_it() -> None:
    services = FakeServices()
    services.errors["grant"] = DeviceError("The disk went away.", "Plug it in again.")
    async with session(services) as s:
        s.burst(f"{GRANT}f1USB-0001\r\x1b\x1bqy")
        await s.see("The disk went away.")
        for _ in range(20):
            await s.pilot.pause()
        await s.see("The disk went away.")
        s.burst("\x1b")
        await s.see_not("The disk went away.")
        await s.on_screen("DestinationScreen")
    assert deeds(services) == ["grant /dev/sda USB-0001"]


async def test_a_partition_is_not_chosen_unseen() -> None:
    ext4 = (Signature("ext4", "filesystem", 1080, "a"),)
    parts = tuple(Partition(DeviceId("part", f"u/{number}"), f"/dev/sda{number}", (8, number), number, 1 << 20, GIB,
                            True, signatures=ext4) for number in (2, 5))
    async with session(FakeServices(replace(usb_disk(blank=False), partitions=parts), boot_disk()),
                       ready="unknown") as s:
        s.burst(f"{GRANT}m2")
        await s.see("Which partition of /dev/sda")
        for _ in range(20):
            await s.pilot.pause()
        assert called(s.services, "mount") == []
        s.burst("2")
        await s.see("MOUNTED")
    assert called(s.services, "mount") == ["mount /dev/sda 5"]


async def test_the_queue_is_bounded_and_keeps_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "QUEUE_KEYS", 40)
    digits = "".join(str(number % 10) for number in range(400))
    async with session() as s:
        s.burst("/" + digits)
        await s.until(lambda: len(s.app.screen.query_one(Input).value) >= 39, "the end of the burst")
        await s.pilot.pause()
        value = s.app.screen.query_one(Input).value
        assert digits.startswith(value)
        assert len(value) <= 41
        await s.press("escape")
        await s.see("Devices: 4 disks")


def test_a_hold_ends_by_itself_and_only_holds_what_was_typed_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("rescue_tui.ui.holds.time.monotonic", lambda: now[0])
    holds = Holds()
    first = holds.begin(10.0)
    assert holds.holds(99.0)
    assert holds.holds(100.0 + AHEAD_SECONDS - 0.1)
    assert not holds.holds(100.0 + AHEAD_SECONDS)
    holds.begin(3.0)
    holds.end(first)
    assert holds.holds(99.0)
    now[0] = 103.0
    assert not holds.holds(99.0)
    holds.end(first)


async def test_keys_lead_away_from_an_action_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "ACT_HOLD_SECONDS", 0.2)
    services = FakeServices()
    services.hold["grant"] = asyncio.Event()
    async with session(services) as s:
        s.burst(f"{GRANT}\x1bj")
        await s.see("Jobs: 0 jobs")
        services.hold["grant"].set()
