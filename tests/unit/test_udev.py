"""Events of udev: gathered, settled, and told once."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pyudev

from rescue_tui.system import udev
from rescue_tui.system.udev import Settled, database

WAIT_SECONDS = 20


@dataclass
class Event:
    """A device of an event."""

    device_path: str


class Netlink:
    """Plays a pyudev.Monitor: events are sent by the test."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self.waiting: deque[Event | OSError] = deque()
        self.subsystems: list[str] = []
        self.started = False

    def send(self, *events: Event | OSError) -> None:
        """Make the socket readable with these events."""
        self.waiting.extend(events)
        self._theirs.send(b"x")

    def fileno(self) -> int:
        """As pyudev's."""
        return self._ours.fileno()

    def filter_by(self, subsystem: str) -> None:
        """As pyudev's."""
        self.subsystems.append(subsystem)

    def set_receive_buffer_size(self, _size: int) -> None:
        """As pyudev's without CAP_NET_ADMIN."""
        raise PermissionError

    def start(self) -> None:
        """As pyudev's."""
        self.started = True

    def poll(self, timeout: float) -> Event | None:
        """As pyudev's with ``timeout=0``."""
        assert timeout == 0
        if not self.waiting:
            self._ours.recv(4096)
            return None
        event = self.waiting.popleft()
        if isinstance(event, OSError):
            self._ours.recv(4096)
            raise event
        return event

    def close(self) -> None:
        """Close both ends."""
        self._ours.close()
        self._theirs.close()


@pytest.fixture
def netlink(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Netlink]:
    """The monitor that `Settled` gets; udevd is idle."""
    made = Netlink()
    monkeypatch.setattr(pyudev.Monitor, "from_netlink", lambda _context, _source: made)
    monkeypatch.setattr(udev, "_QUEUE", tmp_path / "queue")
    yield made
    made.close()


async def test_a_burst_of_events_is_told_once_with_all_paths(netlink: Netlink) -> None:
    told: asyncio.Queue[frozenset[str]] = asyncio.Queue()
    settled = Settled(told.put_nowait)
    netlink.send(Event("/devices/a"), Event("/devices/b"))
    netlink.send(Event("/devices/a"))
    assert await asyncio.wait_for(told.get(), WAIT_SECONDS) == {"/devices/a", "/devices/b"}
    assert told.empty()
    netlink.send(Event("/devices/c"))
    assert await asyncio.wait_for(told.get(), WAIT_SECONDS) == {"/devices/c"}
    settled.close()


async def test_an_overrun_stands_for_everything(netlink: Netlink) -> None:
    told: asyncio.Queue[frozenset[str]] = asyncio.Queue()
    settled = Settled(told.put_nowait)
    netlink.send(OSError(105, "No buffer space available"))
    assert await asyncio.wait_for(told.get(), WAIT_SECONDS) == {"/"}
    settled.close()


async def test_a_udev_that_never_settles_does_not_hold_up_the_news(netlink: Netlink, tmp_path: Path) -> None:
    (tmp_path / "queue").touch()
    told: asyncio.Queue[frozenset[str]] = asyncio.Queue()
    settled = Settled(told.put_nowait)
    netlink.send(Event("/devices/a"))
    assert await asyncio.wait_for(told.get(), WAIT_SECONDS) == {"/devices/a"}
    settled.close()


async def test_the_subsystems_and_the_end(netlink: Netlink) -> None:
    told: list[frozenset[str]] = []
    settled = Settled(told.append)
    assert netlink.started
    assert netlink.subsystems == ["block", "nvme", "nvme-subsystem"]
    netlink.send(Event("/devices/a"))
    settled.close()
    settled.close()
    assert not asyncio.get_running_loop().remove_reader(netlink.fileno())
    assert told == []


def test_the_longest_wait_keeps_the_promise_of_one_second() -> None:
    assert udev.QUIET_SECONDS < udev.LONGEST_WAIT_SECONDS <= 0.8


class Properties(dict[str, str]):
    """Properties of which one is not UTF-8, which pyudev can't decode."""

    def __getitem__(self, name: str) -> str:
        return b"\xff".decode() if name == "ID_BAD" else super().__getitem__(name)


@dataclass
class Device:
    """A device with properties."""

    properties: Properties


def test_a_property_that_is_no_text_does_not_cost_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(Properties(ID_BUS="usb", ID_BAD="", ID_MODEL="x"))
    monkeypatch.setattr(pyudev.Devices, "from_sys_path", lambda _context, _path: device)
    assert database()("/sys/devices/x") == {"ID_BUS": "usb", "ID_MODEL": "x"}


def test_a_device_that_is_gone_has_no_properties() -> None:
    assert database()("/sys/devices/virtual/block/not-there") == {}
