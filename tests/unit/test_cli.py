"""Every verb against services that touch nothing: documents, text, statuses."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rescue_tui import __main__, cli
from rescue_tui.core.errors import DeviceError, RescueError, SpaceError
from rescue_tui.core.finding import Finding, Severity
from rescue_tui.core.guardstate import LayerState
from rescue_tui.core.job import JobState
from tests.support.cli_services import CliServices, job
from tests.support.source_rules import ROOT

Run = Callable[..., "Answer"]


class Answer:
    """What one call ended with and printed."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = out
        self.err = err

    @property
    def document(self) -> dict[str, Any]:
        """The one document on stdout."""
        found: dict[str, Any] = json.loads(self.out)
        return found


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Call the command line as root with given services."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def call(*argv: str, services: CliServices | None = None) -> Answer:
        capsys.readouterr()
        made = services or CliServices(jobs=(job(JobState.DONE, done=100),))
        status = cli.run(argv, lambda: made, lambda _services: 0)
        captured = capsys.readouterr()
        return Answer(status, captured.out, captured.err)

    return call


# devices and guard ---------------------------------------------------------------------------------------------------
def test_devices_as_json(run: Run) -> None:
    answer = run("devices", "--json")
    assert answer.status == 0
    assert [each["node"] for each in answer.document["devices"]] == ["/dev/nvme0n1", "/dev/sdb"]
    assert answer.document["devices"][0]["health"]["media_errors"] == 3
    assert answer.document["devices"][1]["health"]["unavailable"]
    assert answer.err == ""


def test_devices_without_health_asks_no_disk(run: Run) -> None:
    services = CliServices()
    answer = run("--json", "devices", "--no-health", services=services)
    assert [each["health"] for each in answer.document["devices"]] == [None, None]
    assert services.calls == []


def test_devices_as_text_is_one_line_a_disk_in_a_pipe(run: Run) -> None:
    lines = run("devices").out.splitlines()
    assert lines[0].split() == ["DEVICE", "ROLE", "SIZE", "MODEL", "SERIAL", "CONTENT", "HEALTH"]
    assert len(lines) == 3
    assert "S4EVNX0M123456" in lines[1]
    assert "destination" in lines[2]


def test_devices_tell_of_hardware_that_shows_no_disk(run: Run) -> None:
    finding = Finding(Severity.WARNING, "storage-without-driver", "A RAID controller at 0000:02:00.0 has no driver.")
    services = CliServices(findings=(finding,))
    assert run("devices", services=services).out.splitlines()[-1] == f"warning: {finding.summary}"
    (told,) = run("devices", "--json", services=services).document["findings"]
    assert (told["code"], told["summary"]) == (finding.code, finding.summary)
    assert finding.summary not in run("devices", "USB0001", services=services).out


def test_one_device_tells_everything(run: Run) -> None:
    answer = run("devices", "USB0001")
    assert "identity      serial:usb/Portable/USB0001" in answer.out
    assert "nvme" not in answer.out
    assert run("devices", "nothing-like-it").status == 2


def test_watch_prints_a_document_for_each_change(run: Run) -> None:
    lines = run("devices", "--json", "--watch", "--no-health").out.splitlines()
    assert [len(json.loads(line)["devices"]) for line in lines] == [2, 2, 1]


def test_guard(run: Run) -> None:
    assert run("guard", "--json").document["layers"][0]["state"] == "armed"
    answer = run("guard")
    assert (answer.status, answer.out.splitlines()[0]) == (0, "guard      armed")


@pytest.mark.parametrize(("state", "level", "status"), [("partial", "partial", 1), ("absent", "absent", 4)])
def test_a_guard_that_is_not_whole_is_no_good_answer(run: Run, state: str, level: str, status: int) -> None:
    services = CliServices()
    services.layers = (LayerState("udev-flag", state, "Words of the layer."),)
    document = run("guard", "--json", services=services)
    assert (document.status, document.document["exit"], document.document["level"]) == (status, status, level)
    assert ("error" in document.document) == (status == 4)
    answer = run("guard", services=services)
    assert answer.status == status
    assert f"udev-flag  {state.upper()}  Words of the layer." in answer.out
    assert ("not the Stasis image" in answer.err) == (status == 4)


# destination ---------------------------------------------------------------------------------------------------------
def test_destination_list_gives_the_reasons(run: Run) -> None:
    document = run("destination", "list", "--json").document
    assert document["schema"] == "stasis.destination/1"
    assert [each["allowed"] for each in document["candidates"]] == [False, True]
    assert document["candidates"][0]["refusals"][0]["code"] == "internal"
    assert "It is inside this machine." in run("destination", "list").out


def test_a_grant_needs_the_serial(run: Run) -> None:
    services = CliServices()
    good = run("destination", "grant", "/dev/sdb", "--confirm", "USB0001", "--json", services=services)
    assert (good.status, good.document["action"]) == (0, "grant")
    assert "secret-token" not in good.out
    assert services.calls == [("grant", "/dev/sdb", "USB0001", False)]
    bad = run("destination", "grant", "/dev/sdb", "--confirm", "usb0001", "--json")
    assert (bad.status, bad.document["error"]["kind"]) == (3, "refused")


@pytest.mark.parametrize(("argv", "call"), [
    (("format", "USB0001", "--confirm", "USB0001", "--filesystem", "xfs"), ("format", "/dev/sdb", "xfs", "USB0001")),
    (("mount", "/dev/sdb", "--part", "2"), ("mount_destination", "/dev/sdb", 2)),
    (("release", "/dev/sdb"), ("release", "/dev/sdb")),
    (("grant", "/dev/sdb", "--confirm", "USB0001", "--internal"), ("grant", "/dev/sdb", "USB0001", True)),
])
def test_destination_actions(run: Run, argv: tuple[str, ...], call: tuple[object, ...]) -> None:
    services = CliServices()
    answer = run("destination", *argv, services=services)
    assert answer.status == 0
    assert services.calls == [call]
    assert answer.out.startswith("/dev/sdb is ") or "/dev/sdb has " in answer.out


# image and jobs ------------------------------------------------------------------------------------------------------
def test_a_dry_run_starts_nothing(run: Run) -> None:
    services = CliServices()
    answer = run("image", "S4EVNX0M123456", "--to", "/mnt/d", "--dry-run", services=services)
    assert answer.status == 0
    assert "command   ddrescue -d -r0 /dev/nvme0n1 /mnt/d/stasis-case-1/x/image.raw" in answer.out
    assert [call[0] for call in services.calls] == ["plan"]


def test_image_waits_and_ends_with_the_job(run: Run) -> None:
    for state, status in ((JobState.DONE, 0), (JobState.DAMAGED, 1), (JobState.FAILED, 6)):
        services = CliServices(jobs=(job(state, done=100, bad=5 if state is JobState.DAMAGED else 0),))
        answer = run("image", "S4EVNX0M123456", "--to", "/mnt/d", "--json", services=services)
        assert (answer.status, answer.document["exit"]) == (status, status)
        assert answer.document["jobs"][0]["state"] == state.value
        assert answer.document["detached"] is False


def test_image_of_several_sources_plans_all_before_it_starts_one(run: Run) -> None:
    services = CliServices(jobs=(job(JobState.DONE, done=100),))
    assert run("image", "S4EVNX0M123456", "USB0001", "--to", "/mnt/d", services=services).status == 0
    assert [call[0] for call in services.calls][:4] == ["plan", "plan", "start", "start"]


def test_a_source_is_named_once(run: Run) -> None:
    services = CliServices()
    assert run("image", "S4EVNX0M123456", "/dev/nvme0n1", "--to", "/mnt/d", services=services).status == 2
    assert services.calls == []


def test_image_detached_returns_at_once(run: Run) -> None:
    services = CliServices()
    answer = run("image", "S4EVNX0M123456", "--to", "/mnt/d", "--detach", "--json", services=services)
    assert (answer.status, answer.document["detached"]) == (0, True)
    assert [call[0] for call in services.calls] == ["plan", "start"]


def test_ctrl_c_detaches_and_says_how_to_come_back(run: Run) -> None:
    class Interrupting(CliServices):
        def job(self, job_id: str) -> Any:
            """A job that runs for ever, with a Ctrl-C at the first look."""
            os.kill(os.getpid(), signal.SIGINT)
            return job(job_id=job_id)

    answer = run("image", "S4EVNX0M123456", "--to", "/mnt/d", "--json", services=Interrupting())
    assert answer.status == 130
    assert answer.document["detached"] is True
    assert "stasis jobs attach job-nvme0n1" in answer.err


def test_a_start_that_fails_names_the_jobs_that_go_on(run: Run) -> None:
    class Full(CliServices):
        async def start_image(self, plan: Any) -> Any:
            """The second start fails."""
            if plan.source_node == "/dev/sdb":
                raise SpaceError("The destination is full.", "Take another.")
            return await super().start_image(plan)

    answer = run("image", "S4EVNX0M123456", "USB0001", "--to", "/mnt/d", services=Full())
    assert answer.status == 8
    assert "job-nvme0n1 was started and goes on" in answer.err


def test_jobs_list(run: Run) -> None:
    assert run("jobs", "list", "--json").document["jobs"][0]["progress"]["percent"] == 100.0
    assert run("jobs", "list").out.splitlines()[0].split() == ["JOB", "STATE", "DONE", "BAD", "TITLE"]
    assert run("jobs", "list", services=CliServices()).out == "No jobs.\n"


def test_jobs_list_says_why_a_job_stopped_and_what_to_do(run: Run) -> None:
    stopped = replace(job(JobState.INTERRUPTED, done=40), error="The source went away.", hint="Plug it in again.")
    lines = run("jobs", "list", services=CliServices(jobs=(job(), stopped))).out.splitlines()
    assert lines[-2:] == [f"{stopped.id}: The source went away.", "  Plug it in again."]
    assert lines.count(lines[-2]) == 1


@pytest.mark.parametrize(("action", "state"), [("pause", "pausing"), ("resume", "pending"), ("cancel", "cancelling")])
def test_jobs_actions(run: Run, action: str, state: str) -> None:
    services = CliServices(jobs=(job(),))
    answer = run("jobs", action, "20261202-a1", "--json", services=services)
    assert answer.document["jobs"][0]["state"] == state
    assert services.calls == [("job", "20261202-a1"), (action, "20261202-a1")]


def test_jobs_attach_waits_for_the_end(run: Run) -> None:
    services = CliServices(jobs=(job(JobState.DAMAGED, done=90, bad=10), ))
    answer = run("jobs", "attach", "20261202-a1", services=services)
    assert answer.status == 1
    assert "10 B in 1 area could not be read" in answer.out


# case folders and mounts ---------------------------------------------------------------------------------------------
def test_verify_says_what_does_not_match(run: Run) -> None:
    good, bad = run("verify", "/mnt/case", "--json"), run("verify", "/mnt/bad", "--json")
    assert (good.status, good.document["good"], good.document["findings"]) == (0, True, [])
    assert (bad.status, bad.document["good"], bad.document["findings"][0]["code"]) == (1, False, "mismatch")
    assert good.document["checked_bytes"] == 100
    text = run("verify", "/mnt/bad")
    assert text.out == ("error: x/image.raw was changed.\n"
                        "/mnt/bad: NOT everything is as it was (3 files, 100 B were read again).\n")
    assert text.err.splitlines()[-1] == "stasis: read 100 % of 100 B"
    assert len(text.err.splitlines()) == 11


def test_report_collect_unmount(run: Run) -> None:
    assert run("report", "/mnt/c", "--json").document["html"] == "/mnt/c/report.html"
    assert run("collect", "--to", "/mnt/c", "--json").document["files"] == ["kernel.log", "journal.jsonl"]
    assert run("unmount", "/mnt/x", "--json").document == {"schema": "stasis.unmount/1", "at": "/mnt/x"}


@pytest.mark.parametrize("option", [("--rw",), ("-o", "rw"), ("-orw",), ("-o", "ro,rw"), ("-o", "remount")])
def test_a_writable_mount_is_refused(run: Run, option: tuple[str, ...]) -> None:
    answer = run("mount", "/x.raw", "--at", "/mnt/x", "--json", *option)
    assert (answer.status, answer.document["error"]["kind"]) == (3, "refused")
    assert "read-only" in answer.document["error"]["summary"]


# errors --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("argv", [("probe", "x"), ("checkpoints", "scan", "x"), ("objects",), ("image", "x")])
def test_unknown_verbs_are_usage_errors(run: Run, argv: tuple[str, ...]) -> None:
    text = run(*argv)
    assert (text.status, text.out) == (2, "")
    assert text.err.startswith("stasis: ")
    assert run(*argv, "--json").document["error"]["exit"] == 2


@pytest.mark.parametrize("error", [DeviceError("Gone.", "Plug it in.", "$ x"), SpaceError("Full.")])
def test_an_error_of_the_services_is_told(run: Run, error: RescueError) -> None:
    text = run("destination", "release", "/dev/sdb", services=CliServices(fail=error))
    assert (text.status, text.out) == (int(error.status), "")
    assert text.err.startswith(f"stasis: {error.summary}")
    document = run("destination", "release", "/dev/sdb", "--json", services=CliServices(fail=error)).document
    assert document["error"]["summary"] == error.summary


@pytest.mark.parametrize(("number", "status"), [(errno.EACCES, 4), (errno.EPERM, 4), (errno.EIO, 5), (errno.ENOSPC, 8),
                                              (errno.ELOOP, 6)])
def test_what_the_system_refuses_is_one_sentence(run: Run, number: int, status: int) -> None:
    class Refusing(CliServices):
        async def report(self, case: Any) -> Any:
            """Refused by the system."""
            raise OSError(number, os.strerror(number), str(case))

    answer = run("report", "/mnt/c", services=Refusing())
    assert answer.status == status
    assert answer.err.startswith(f"stasis: /mnt/c: {os.strerror(number)}.")


@pytest.mark.parametrize("argv", [
    ("image", "USB0001", "--to", "d"), ("destination", "grant", "x", "--confirm", "y"), ("destination", "release", "x"),
    ("mount", "x", "--at", "y"), ("unmount", "y"), ("collect", "--to", "y"),
])
def test_verbs_that_need_root_say_so(run: Run, argv: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    answer = run(*argv, "--json")
    assert (answer.status, answer.document["error"]["kind"]) == (4, "setup")
    assert "needs root" in answer.document["error"]["summary"]


@pytest.mark.parametrize("argv", [("devices",), ("guard",), ("jobs", "list"), ("destination", "list"), ("report", "x")])
def test_verbs_that_only_look_need_no_root(run: Run, argv: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert run(*argv).status == 0


def test_ctrl_c_elsewhere_is_130(run: Run) -> None:
    class Interrupted(CliServices):
        async def report(self, case: Any) -> Any:
            """Never ends by itself."""
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.get_running_loop().create_future()

    answer = run("report", "/mnt/c", "--json", services=Interrupted())
    assert (answer.status, answer.document["error"]["kind"]) == (130, "interrupted")


def test_a_reader_that_went_away_is_no_news(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert cli.run(["devices", "--json"], CliServices, lambda _services: 0) == 130
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("argv", [["devices", "--json"], ["devices"], ["nonsense", "--json"]])
def test_an_answer_that_can_not_be_written_is_told(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert cli.run(argv, CliServices, lambda _services: 0) == 8
    assert capfd.readouterr().err == "stasis: The answer can't be written: No space left on device.\n"


@pytest.mark.parametrize("closed", [(1,), (2,), (1, 2)])
def test_closed_streams_are_no_mistake(closed: tuple[int, ...], tmp_path: Path) -> None:
    script = ("import os, sys; [os.close(int(each)) for each in sys.argv[1:]]; "
              "os.execv(sys.executable, [sys.executable, '-m', 'rescue_tui', 'jobs', 'list'])")
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, closed)], cwd=ROOT, capture_output=True, timeout=60, check=False,
        env={**os.environ, "STASIS_STATE": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, b"")


def test_without_a_verb_a_terminal_is_needed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert run().status == 2


def test_without_a_verb_the_interface_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            """A terminal."""
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys, "stdout", Terminal())
    services = CliServices()
    assert cli.run([], lambda: services, lambda given: 7 if given is services else 0) == 7


def test_a_mistake_of_ours_is_no_damage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.crashed(["devices", "--json"], "KeyError: 'x'") == 6
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "tool"


def test_a_job_process_goes_to_the_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from rescue_tui.jobs import worker

    monkeypatch.setattr(worker, "main", lambda folder: 3 if folder == tmp_path else 0)
    monkeypatch.setattr(sys, "argv", ["stasis", "__job", str(tmp_path)])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    assert __main__.main() == 3
