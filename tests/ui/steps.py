"""Steps that several sessions take: find a disk by its serial, make the USB disk the destination."""

from __future__ import annotations

from tests.support.fake_services import FakeServices
from tests.ui.harness import Session


def called(services: FakeServices, verb: str) -> list[str]:
    return [call for call in services.calls if call.split()[0] == verb]


async def find(s: Session, serial: str) -> None:
    await s.press("slash")
    await s.type(serial)
    await s.press("enter")
    await s.see("showing 1 that match")


async def grant_and_mount(s: Session) -> None:
    await find(s, "USB-0001")
    await s.press("g")
    await s.see("This disk may become the destination.")
    await s.press("enter")
    await s.see("Type the serial")
    await s.type("USB-0001")
    await s.press("enter")
    await s.see("GRANTED")
    await s.press("f")
    await s.see("Which file system")
    await s.press("1")
    await s.see("Type the serial again:")
    await s.type("USB-0001")
    await s.press("enter")
    await s.see("On it: ext4. m mounts it.")
    await s.press("m")
    await s.see("The destination is ready.")
