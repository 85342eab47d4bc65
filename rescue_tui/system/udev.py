"""udev's side of the inventory: the properties in its database, and its events. Source: libudev(3), pyudev."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pyudev

from rescue_tui.core.errors import SetupError

SUBSYSTEMS = ("block", "nvme", "nvme-subsystem")
QUIET_SECONDS = 0.2
# A storm of events must not put off the news for ever: a hot-plug has to show within a second.
LONGEST_WAIT_SECONDS = 0.7
_CONTROL = Path("/run/udev/control")
_QUEUE = Path("/run/udev/queue")
_BUFFER_BYTES = 16 << 20


def database() -> Callable[[str], Mapping[str, str]]:
    """A look-up of the udev database by absolute sysfs path; empty for a device that is gone.

    Use it in one thread: a libudev context is not safe to share.
    """
    context = _context()

    def properties(path: str) -> Mapping[str, str]:
        try:
            table = pyudev.Devices.from_sys_path(context, path).properties
            names = list(table)
        except (pyudev.DeviceNotFoundError, OSError, UnicodeDecodeError):
            return {}
        found: dict[str, str] = {}
        for name in names:
            # pyudev decodes strictly: one value that is not UTF-8 must not cost all others.
            with suppress(KeyError, UnicodeDecodeError):
                found[name] = str(table[name])
        return found

    return properties


def _context() -> pyudev.Context:
    try:
        return pyudev.Context()
    except (ImportError, OSError) as error:
        raise SetupError("libudev is not there.", "Install the package libudev1.") from error


class Settled:
    """Tells when devices came, went or changed and udev has done its rules for them.

    ``on_change`` is called from the event loop with the sysfs paths that events were about, at most once every
    `QUIET_SECONDS`. Where no udevd runs, the kernel's own events are used.
    """

    def __init__(self, on_change: Callable[[frozenset[str]], None]) -> None:
        self._on_change = on_change
        self._paths: set[str] = set()
        self._first: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        source = "udev" if _CONTROL.exists() else "kernel"
        self._monitor = pyudev.Monitor.from_netlink(_context(), source)
        for subsystem in SUBSYSTEMS:
            self._monitor.filter_by(subsystem)
        with suppress(OSError):  # more than the default needs CAP_NET_ADMIN
            self._monitor.set_receive_buffer_size(_BUFFER_BYTES)
        self._monitor.start()
        self._fd = os.dup(self._monitor.fileno())
        self._loop.add_reader(self._fd, self._drain)

    def close(self) -> None:
        """Stop listening; a second call does nothing."""
        if self._fd < 0:
            return
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1
        if self._timer is not None:
            self._timer.cancel()

    def _drain(self) -> None:
        """Take every waiting event, then wait for silence."""
        try:
            while (device := self._monitor.poll(timeout=0)) is not None:
                self._paths.add(device.device_path)
        except (OSError, UnicodeDecodeError):
            # The socket's buffer ran over, or a name is no text: what was lost is unknown, so all is looked at again.
            self._paths.add("/")
        now = self._loop.time()
        if self._first is None:
            self._first = now
        self._arm(min(QUIET_SECONDS, max(0.0, self._first + LONGEST_WAIT_SECONDS - now)))

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._fire)

    def _fire(self) -> None:
        now = self._loop.time()
        if _QUEUE.exists() and self._first is not None and now < self._first + LONGEST_WAIT_SECONDS:
            self._arm(min(QUIET_SECONDS / 2, self._first + LONGEST_WAIT_SECONDS - now))
            return
        paths, self._paths, self._first, self._timer = frozenset(self._paths), set(), None, None
        self._on_change(paths)
