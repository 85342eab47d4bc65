"""One thread that drains every port of a machine, so that a guest never blocks on a serial line that nobody reads.

What arrives goes to the port's sinks under one lock; whoever waits for something is woken by every arrival.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TypeVar

from tests.support.vm.deadline import Deadline, DeadlineError

T = TypeVar("T")
Sink = Callable[[bytes], None]
CHUNK_BYTES = 1 << 16


class LineClosedError(AssertionError):
    """The other side has gone (QEMU died or left) while something was waited for."""


class GuestPanicError(LineClosedError):
    """The guest's kernel has panicked: nothing that is waited for will come."""


class Port:
    """A character device of the guest: what arrives is handed to the sinks, what we send is written at once."""

    def __init__(self, name: str, line: socket.socket, pump: Pump) -> None:
        self.name = name
        self.closed = False
        self.panic = ""  # what the guest's kernel died of
        self.sinks: list[Sink] = []
        self._line = line
        self._pump = pump

    @property
    def lock(self) -> threading.Condition:
        """Held while sinks run: hold it to look at what they fill."""
        return self._pump.changed

    def send(self, data: bytes, deadline: Deadline) -> None:
        """Write all of ``data``.

        Raises :class:`DeadlineError` when the guest takes nothing, :class:`LineClosedError` when it is gone.
        """
        view = memoryview(data)
        with selectors.DefaultSelector() as selector:
            selector.register(self._line, selectors.EVENT_WRITE)
            while view:
                if not selector.select(deadline.remaining()):
                    raise DeadlineError(f"{self.name} took no input for {deadline.seconds:g} s\n{self._pump.report()}")
                try:
                    view = view[self._line.send(view):]
                except (BrokenPipeError, ConnectionResetError) as error:
                    raise LineClosedError(f"{self.name} is closed: {error}\n{self._pump.report()}") from error

    def wait_for(self, what: str, probe: Callable[[], T | None], deadline: Deadline) -> T:
        """The first answer of ``probe`` that is not None; it is asked, under the lock, after every arrival."""
        with self._pump.changed:
            while True:
                answer = probe()
                if answer is not None:
                    return answer
                if self.panic:
                    raise GuestPanicError(f"the kernel panicked ({self.panic}) before {what}\n{self._pump.report()}")
                if self.closed:
                    raise LineClosedError(f"{self.name} closed while waiting for {what}\n{self._pump.report()}")
                if deadline.expired:
                    late = f"no {what} on {self.name} within {deadline.seconds:g} s"
                    raise DeadlineError(f"{late}\n{self._pump.report()}")
                self._pump.changed.wait(deadline.remaining())


class Pump:
    """The reader of all ports; a context manager, whose end closes the lines."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.report: Callable[[], str] = str
        self._selector = selectors.DefaultSelector()
        self._lines: list[socket.socket] = []
        self._wake_in, self._wake_out = socket.socketpair()
        self._selector.register(self._wake_out, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="vm-pump", daemon=True)

    def port(self, name: str, line: socket.socket) -> Port:
        """Take over ``line``. To be called before the pump is entered."""
        line.setblocking(False)
        port = Port(name, line, self)
        self._lines.append(line)
        self._selector.register(line, selectors.EVENT_READ, port)
        return port

    def __enter__(self) -> Pump:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        self._wake_in.close()
        self._thread.join()
        self._selector.close()
        for line in (*self._lines, self._wake_out):
            line.close()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                self._drain(key.data, key.fileobj)

    def _drain(self, port: Port, line: object) -> None:
        assert isinstance(line, socket.socket)
        data = b""
        with suppress(ConnectionResetError):
            data = line.recv(CHUNK_BYTES)
        with self.changed:
            if data:
                for sink in port.sinks:
                    sink(data)
            else:
                port.closed = True
                self._selector.unregister(line)
            self.changed.notify_all()
