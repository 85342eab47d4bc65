"""The guest's shell protocol, spoken with a real shell at the other end of a socket pair."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.vm.deadline import Deadline, DeadlineError
from tests.support.vm.guest import Guest, GuestError, parse_answer, script_lines
from tests.support.vm.pump import Pump

TOKEN = "abcdef012345"


def soon() -> Deadline:
    return Deadline.after(30)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[tuple[Guest, socket.socket]]:
    ours, theirs = socket.socketpair()
    pump = Pump()
    guest = Guest(pump.port("hvc0", ours))
    with pump, theirs:
        end = theirs.fileno()
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        process = subprocess.Popen(["sh"], stdin=end, stdout=end, stderr=end, env=environment)
        try:
            yield guest, theirs
        finally:
            process.kill()
            process.wait()


def test_status_output_and_errors_arrive_apart(shell: tuple[Guest, socket.socket]) -> None:
    guest, _ = shell
    guest.wait_ready(soon())
    outcome = guest.run("echo out; echo err >&2; exit 3", soon())
    assert (outcome.status, outcome.stdout, outcome.stderr) == (3, b"out\n", b"err\n")


def test_bytes_and_long_scripts_pass_unchanged(shell: tuple[Guest, socket.socket]) -> None:
    guest, _ = shell
    assert guest.run(["printf", r"\000\001\377\r\n"], soon()).stdout == b"\x00\x01\xff\r\n"
    text = "x'y\"$z" * 3000
    assert guest.check(["echo", text], soon()) == text


def test_files_go_in_and_come_out(shell: tuple[Guest, socket.socket], tmp_path: Path) -> None:
    guest, _ = shell
    data = bytes(range(256)) * 20
    guest.put(f"{tmp_path}/a b", data, soon())
    assert guest.get(f"{tmp_path}/a b", soon()) == data
    with pytest.raises(GuestError, match="can't be read"):
        guest.get(f"{tmp_path}/none", soon())


def test_noise_on_the_line_is_no_answer(shell: tuple[Guest, socket.socket]) -> None:
    guest, line = shell
    line.sendall(b"[ 12.3] usb 1-1: new device\n<nonsense:x:0:0:0>\n# ")
    assert guest.check("echo fine", soon()) == "fine"


def test_a_command_reads_nothing_of_what_is_typed_after_it(shell: tuple[Guest, socket.socket]) -> None:
    guest, _ = shell
    assert guest.check("cat; echo done", soon()) == "done"


def test_check_raises_with_the_words_of_the_guest(shell: tuple[Guest, socket.socket]) -> None:
    with pytest.raises(GuestError, match=r"status 4\nwhat\nwhy"):
        shell[0].check("echo what; echo why >&2; exit 4", soon())


def test_a_deadline_names_the_command(shell: tuple[Guest, socket.socket]) -> None:
    with pytest.raises(DeadlineError, match="no end of `exec sleep 3600` in the guest on hvc0"):
        shell[0].run("exec sleep 3600", Deadline.after(0.01))


def test_the_token_is_never_typed_whole() -> None:
    typed = "\n".join(script_lines("true " * 2000, TOKEN)).replace(f"/.h-{TOKEN}", "")
    assert TOKEN not in typed
    assert max(len(line) for line in script_lines("true " * 2000, TOKEN)) < 1200


def test_an_answer_is_complete_only_with_its_last_line() -> None:
    payload = base64.b64encode(b"hello").decode()
    text = f"<{TOKEN}:o:{payload}>\n"
    assert parse_answer(text, TOKEN, "c") is None
    outcome = parse_answer(f"{text}<{TOKEN}:x:0:5:0>", TOKEN, "c")
    assert outcome is not None
    assert outcome.stdout == b"hello"


@pytest.mark.parametrize("payload", ["aGVs[ 1.2] oops\nbG8=", "aGVsbG8", ""])
def test_a_payload_that_noise_has_cut_is_refused(payload: str) -> None:
    with pytest.raises(GuestError, match="damaged answer"):
        parse_answer(f"<{TOKEN}:o:{payload}>\n<{TOKEN}:x:0:5:0>", TOKEN, "c")
