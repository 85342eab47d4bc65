"""QEMU's machine protocol over a connected socket.

A socket that exists does not mean that QEMU lives: every call has a deadline, and the end of the stream is an error
that says so. Events that arrive between answers are kept until somebody waits for them.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.vm.deadline import Deadline, DeadlineError

Message = dict[str, Any]
CHUNK_BYTES = 1 << 16


class QmpError(AssertionError):
    """QEMU refused a command, sent nonsense, or is gone."""


class Qmp:
    """A monitor. ``report`` gives the state of the machine for failure messages."""

    def __init__(self, line: socket.socket, report: Callable[[], str] = str) -> None:
        self.version = ""
        self._line = line
        self._report = report
        self._buffer = b""
        self._events: list[Message] = []
        self._next_id = 0

    def connect(self, deadline: Deadline) -> None:
        """Read the greeting and leave negotiation mode."""
        greeting = self._read(deadline, "greeting")
        if "QMP" not in greeting:
            raise QmpError(f"not a QMP greeting: {greeting}")
        version = greeting["QMP"]["version"]["qemu"]
        self.version = f"{version['major']}.{version['minor']}.{version['micro']}"
        self.call("qmp_capabilities", deadline=deadline)

    def call(self, command: str, arguments: Mapping[str, object] | None = None, *, deadline: Deadline) -> Any:
        """The ``return`` of a command; :class:`QmpError` with QEMU's words when it refuses."""
        self._next_id += 1
        request: Message = {"execute": command, "id": self._next_id}
        if arguments is not None:
            request["arguments"] = dict(arguments)
        try:
            self._line.settimeout(max(deadline.remaining(), 0.001))
            self._line.sendall(json.dumps(request).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError) as error:
            raise QmpError(f"QEMU is gone, {command} was not sent: {error}\n{self._report()}") from error
        while True:
            answer = self._read(deadline, f"answer to {command}")
            if "event" in answer:
                self._events.append(answer)
            elif answer.get("id") != self._next_id:
                continue  # the late answer to a call that ran into its deadline
            elif "error" in answer:
                raise QmpError(f"{command}: {answer['error'].get('desc', answer['error'])}")
            else:
                return answer["return"]

    def wait_event(
        self, name: str, deadline: Deadline, matches: Callable[[Message], bool] = lambda _: True,
    ) -> Message:
        """The data of the first event of that name that ``matches`` accepts; it is taken out of the queue."""
        seen = 0
        while True:
            for index in range(seen, len(self._events)):
                event = self._events[index]
                data: Message = event.get("data", {})
                if event["event"] == name and matches(data):
                    del self._events[index]
                    return data
            seen = len(self._events)
            message = self._read(deadline, f"event {name}")
            if "event" in message:
                self._events.append(message)

    def _read(self, deadline: Deadline, what: str) -> Message:
        while b"\n" not in self._buffer:
            remaining = deadline.remaining()
            if remaining <= 0:
                raise DeadlineError(f"no {what} from QEMU within {deadline.seconds:g} s\n{self._report()}")
            self._line.settimeout(remaining)
            try:
                data = self._line.recv(CHUNK_BYTES)
            except TimeoutError:
                continue
            except ConnectionResetError:
                data = b""
            if not data:
                raise QmpError(f"QEMU is gone while waiting for {what}\n{self._report()}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError as error:
            raise QmpError(f"QEMU sent what is not JSON: {line[:200]!r}") from error
        if not isinstance(message, dict):
            raise QmpError(f"QEMU sent what is not an object: {line[:200]!r}")
        return message
