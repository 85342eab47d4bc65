"""Console, terminal and pump, with a socket pair in place of a serial line."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.vm.console import AnsiStripper, Console
from tests.support.vm.deadline import Deadline, DeadlineError
from tests.support.vm.pump import GuestPanicError, LineClosedError, Port, Pump
from tests.support.vm.terminal import Terminal, key_bytes

NOW = Deadline.after(0)


def soon() -> Deadline:
    return Deadline.after(10)


@pytest.fixture
def line() -> Iterator[tuple[Pump, Port, socket.socket]]:
    ours, theirs = socket.socketpair()
    pump = Pump()
    pump.report = lambda: "THE STATE"
    port = pump.port("ttyS0", ours)
    with pump, theirs:
        yield pump, port, theirs


def test_a_deadline_counts_down_on_its_own_clock() -> None:
    now = [100.0]
    deadline = Deadline.after(5, lambda: now[0])
    assert (deadline.remaining(), deadline.expired) == (5.0, False)
    now[0] = 106.0
    assert (deadline.remaining(), deadline.expired) == (0.0, True)


def test_a_slow_machine_stretches_every_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STASIS_DEADLINE_FACTOR", "3")
    assert Deadline.after(5, lambda: 0.0).remaining() == 15.0


@pytest.mark.parametrize(("pieces", "text"), [
    ([b"\x1b[1;31mred\x1b[0m\r\n"], "red\n"),
    ([b"a\x1b[", b"2Jb"], "ab"),
    ([b"a\x1b", b"[2;3Hb"], "ab"),
    ([b"\x1b]0;title\x07x\x1b(Bx"], "xx"),
    ([b"\x1b[?2026$p\x1b[>4;1mq"], "q"),
    (["é".encode()[:1], "é".encode()[1:]], "é"),
    ([b"\xff\x00\x08!"], "\\xff!"),
])
def test_escape_sequences_are_stripped_also_when_cut(pieces: list[bytes], text: str) -> None:
    stripper = AnsiStripper()
    assert "".join(stripper.feed(piece) for piece in pieces) == text


def test_a_console_waits_for_one_pattern_after_the_other(
    line: tuple[Pump, Port, socket.socket], tmp_path: Path,
) -> None:
    _, port, guest = line
    console = Console(port, tmp_path / "log")
    guest.sendall(b"login: root\r\n\x1b[32mok\x1b[0m login: \r\n")
    assert console.wait_for(r"login: (\w+)", soon())[1] == "root"
    assert console.wait_for(r"^ok login: $", soon())[0] == "ok login: "
    assert (tmp_path / "log").read_text() == "login: root\nok login: \n"
    with pytest.raises(DeadlineError, match=r"no /login/ on ttyS0 within 0 s\nTHE STATE"):
        console.wait_for("login", NOW)


def test_a_console_types_a_line(line: tuple[Pump, Port, socket.socket], tmp_path: Path) -> None:
    _, port, guest = line
    Console(port, tmp_path / "log").send_line("ls", soon())
    assert guest.recv(10) == b"ls\r"


def test_a_line_that_ends_is_noticed_before_the_deadline(
    line: tuple[Pump, Port, socket.socket], tmp_path: Path,
) -> None:
    _, port, guest = line
    console = Console(port, tmp_path / "log")
    guest.sendall(b"last words")
    guest.close()
    assert console.wait_for("last words", Deadline.after(3600))
    with pytest.raises(LineClosedError, match="ttyS0 closed while waiting for /more/"):
        console.wait_for("more", Deadline.after(3600))
    with pytest.raises(LineClosedError):
        port.send(b"x", soon())


def test_a_guest_that_takes_no_input_runs_into_the_deadline(line: tuple[Pump, Port, socket.socket]) -> None:
    with pytest.raises(DeadlineError, match="took no input"):
        line[1].send(b"x" * 10_000_000, NOW)


def test_a_terminal_shows_what_an_operator_sees(line: tuple[Pump, Port, socket.socket]) -> None:
    _, port, guest = line
    terminal = Terminal(port)
    guest.sendall("\x1b[2J\x1b[1;1H┌──┐\x1b[2;1H│\x1b[7mon\x1b[0m│\x1b[24;79Hzz".encode())
    text = terminal.wait_for("zz", soon())
    assert text.splitlines()[0] == "┌──┐"
    assert text.splitlines()[1] == "│on│"
    assert len(terminal.rows) == 24
    assert {len(row) for row in terminal.rows} == {80}
    assert terminal.highlighted() == ("on",)
    guest.sendall(b"\x1b[2J")
    assert terminal.wait_gone("zz", soon()).strip() == ""


def test_a_terminal_answers_where_its_cursor_is(line: tuple[Pump, Port, socket.socket]) -> None:
    _, port, guest = line
    Terminal(port)
    guest.sendall(b"\x1b[5;7H\x1b[6n")
    guest.settimeout(10)
    assert guest.recv(20) == b"\x1b[5;7R"


def test_keys_arrive_as_a_vt220_sends_them(line: tuple[Pump, Port, socket.socket]) -> None:
    _, port, guest = line
    terminal = Terminal(port)
    terminal.press("down", "f1", "f5", "enter", "ctrl+c", "q")
    terminal.type("SERIAL 1")
    expected = b"\x1b[B\x1bOP\x1b[15~\r\x03qSERIAL 1"
    guest.settimeout(10)
    heard = b""
    while len(heard) < len(expected):
        heard += guest.recv(100)
    assert heard == expected


def test_a_key_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no such key"):
        key_bytes("f99")


def test_a_kernel_panic_ends_every_wait(line: tuple[Pump, Port, socket.socket], tmp_path: Path) -> None:
    _, port, guest = line
    console = Console(port, tmp_path / "log")
    guest.sendall(b"[ 3.1] Oops: int3: 0000 [#1]\r\n[ 3.2] Kernel panic - not ")
    console.wait_for("not ", Deadline.after(10))
    guest.sendall(b"syncing: Fatal exception\r\n")
    with pytest.raises(GuestPanicError, match=r"the kernel panicked \(Oops: int3\) before /login/"):
        console.wait_for("login", Deadline.after(3600))
