"""The monitor client, against a fake QEMU at the other end of a socket pair."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.vm.deadline import Deadline, DeadlineError
from tests.support.vm.qmp import Qmp, QmpError

GREETING = {"QMP": {"version": {"qemu": {"major": 7, "minor": 2, "micro": 22}, "package": ""}, "capabilities": []}}
NOW = Deadline.after(0)


class FakeQemu:
    """Answers are queued before the call: a socket pair holds them until they are read."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line

    def say(self, *messages: object) -> None:
        self.line.sendall(b"".join(json.dumps(message).encode() + b"\r\n" for message in messages))

    def heard(self) -> list[dict[str, Any]]:
        self.line.setblocking(False)
        return [json.loads(line) for line in self.line.recv(65536).splitlines()]


@pytest.fixture
def pair() -> Iterator[tuple[Qmp, FakeQemu]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Qmp(ours, lambda: "THE STATE"), FakeQemu(theirs)


def soon() -> Deadline:
    return Deadline.after(5)


def test_connect_reads_the_greeting_and_leaves_negotiation(pair: tuple[Qmp, FakeQemu]) -> None:
    qmp, qemu = pair
    qemu.say(GREETING, {"return": {}, "id": 1})
    qmp.connect(soon())
    assert qmp.version == "7.2.22"
    assert qemu.heard() == [{"execute": "qmp_capabilities", "id": 1}]


def test_events_between_call_and_answer_are_kept(pair: tuple[Qmp, FakeQemu]) -> None:
    qmp, qemu = pair
    qemu.say({"event": "STOP"}, {"event": "RESET", "data": {"guest": True}}, {"return": {"status": "ok"}, "id": 1})
    assert qmp.call("query-status", deadline=soon()) == {"status": "ok"}
    assert qmp.wait_event("RESET", soon()) == {"guest": True}
    assert qmp.wait_event("STOP", soon()) == {}


def test_an_event_must_match_and_is_taken_once(pair: tuple[Qmp, FakeQemu]) -> None:
    qmp, qemu = pair
    qemu.say({"event": "DEVICE_DELETED", "data": {"device": "a"}}, {"event": "DEVICE_DELETED", "data": {"device": "b"}})
    assert qmp.wait_event("DEVICE_DELETED", soon(), lambda data: data["device"] == "b") == {"device": "b"}
    assert qmp.wait_event("DEVICE_DELETED", soon()) == {"device": "a"}
    with pytest.raises(DeadlineError):
        qmp.wait_event("DEVICE_DELETED", NOW)


def test_a_refusal_carries_the_words_of_qemu(pair: tuple[Qmp, FakeQemu]) -> None:
    qmp, qemu = pair
    qemu.say({"error": {"class": "GenericError", "desc": "no such device"}, "id": 1})
    with pytest.raises(QmpError, match="device_del: no such device"):
        qmp.call("device_del", {"id": "x"}, deadline=soon())
    assert qemu.heard() == [{"execute": "device_del", "id": 1, "arguments": {"id": "x"}}]


def test_the_late_answer_to_an_earlier_call_is_not_taken_for_ours(pair: tuple[Qmp, FakeQemu]) -> None:
    qmp, qemu = pair
    with pytest.raises(DeadlineError):
        qmp.call("slow", deadline=NOW)
    qemu.say({"return": "late", "id": 1}, {"return": "ours", "id": 2})
    assert qmp.call("fast", deadline=soon()) == "ours"


def test_a_deadline_says_what_was_waited_for_and_the_state(pair: tuple[Qmp, FakeQemu]) -> None:
    with pytest.raises(DeadlineError, match=r"no event SHUTDOWN from QEMU within 0 s\nTHE STATE"):
        pair[0].wait_event("SHUTDOWN", NOW)


def test_the_end_of_the_stream_is_noticed_at_once(pair: tuple[Qmp, FakeQemu]) -> None:
    qmp, qemu = pair
    qemu.line.close()
    with pytest.raises(QmpError, match=r"QEMU is gone.*\nTHE STATE"):
        qmp.connect(Deadline.after(3600))


def test_a_call_to_a_dead_qemu_says_so(pair: tuple[Qmp, FakeQemu]) -> None:
    qmp, qemu = pair
    qemu.line.close()
    with pytest.raises(QmpError, match="QEMU is gone, quit was not sent"):
        qmp.call("quit", deadline=soon())


@pytest.mark.parametrize(("line", "match"), [(b"nonsense\n", "not JSON"), (b"[1]\n", "not an object")])
def test_nonsense_is_refused(pair: tuple[Qmp, FakeQemu], line: bytes, match: str) -> None:
    qmp, qemu = pair
    qemu.line.sendall(line)
    with pytest.raises(QmpError, match=match):
        qmp.connect(soon())


def test_what_greets_differently_is_not_qemu(pair: tuple[Qmp, FakeQemu]) -> None:
    qmp, qemu = pair
    qemu.say({"hello": 1})
    with pytest.raises(QmpError, match="not a QMP greeting"):
        qmp.connect(soon())
