"""Jobs as they go on and end, leaving, errors, calls that hang, and what is shown everywhere."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from rescue_tui.core.errors import DeviceError, PolicyRefusal
from rescue_tui.core.finding import Finding, Severity
from rescue_tui.core.job import JobRecord, JobState, Progress
from rescue_tui.core.mapfile import Area, Mapfile, Status
from rescue_tui.jobs.verification import CaseVerdict
from rescue_tui.ui.screens import base
from rescue_tui.ui.screens.devices import DevicesScreen
from rescue_tui.ui.widgets.table import KeyedTable
from tests.support.fake_services import GIB, MOMENT, FakeServices, nvme_disk
from tests.ui.harness import session
from tests.ui.steps import called, find


def a_job(state: JobState, *, job_id: str = "job-1", progress: Progress | None = None, error: str = "") -> JobRecord:
    return JobRecord(job_id, "image", "Image ACME S4EVNX0M", state, MOMENT, MOMENT, "nvme-nguid:00",
                     "/dest/stasis-case-1", ("ddrescue -d /dev/nvme0n1",), 1,
                     progress or Progress("copying", 4 * GIB), error, "")


async def test_jobs_found_running_are_shown_at_the_start() -> None:
    services = FakeServices()
    services.set_job(a_job(JobState.RUNNING))
    async with session(services, ready="1 job is running. j shows it.") as s:
        await s.press("j")
        await s.see("RUNNING")
        await s.press("enter")
        await s.see("Job job-1: RUNNING")


async def test_progress_alone_does_not_draw_the_devices_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    services = FakeServices()
    services.set_job(a_job(JobState.RUNNING))
    async with session(services, ready="1 job is running") as s:
        drawn: list[str] = []
        monkeypatch.setattr(DevicesScreen, "draw", lambda _: drawn.append("devices"))
        services.set_progress("job-1", Progress("copying", 4 * GIB, GIB))
        await s.status()
        assert drawn == []
        services.finish("job-1")
        await s.status()
        await s.until(lambda: drawn, "the devices, since the state of the job is another")


async def test_progress_errors_range_and_map() -> None:
    services = FakeServices()
    services.set_job(a_job(JobState.RUNNING))
    async with session(services, ready="1 job is running") as s:
        await s.press("j", "enter")
        await s.see("Job job-1: RUNNING")
        services.maps["job-1"] = Mapfile((Area(0, 2 * GIB, Status.FINISHED), Area(2 * GIB, 4096, Status.BAD_SECTOR),
                                          Area(2 * GIB + 4096, 2 * GIB - 4096, Status.NON_TRIED)))
        services.set_progress(
            "job-1", Progress("scraping", 4 * GIB, 2 * GIB, 4096, 1, 3, 100e6, 90e6, 12.0, 20.0, 40.0))
        await s.status()
        await s.see("50.00 %")
        await s.see("RUNNING  scraping")
        await s.see("3 read errors, 4.0 KiB bad in 1 area")
        await s.see("Last good read 12 s ago")
        await s.see("20 s to 40 s")
        await s.see("B bad-sector")
        await s.until(lambda: any(set(line.strip(" #|")) >= {"+", "B", "."} for line in s.lines), "the map's bad cell")
        services.set_progress("job-1", Progress("hashing", 4 * GIB, GIB, message="reading the copy back"))
        await s.status()
        await s.see("RUNNING  hashing")
        assert "Last good read" not in s.text, "the source is not read any more"


async def test_pause_resume_and_cancel_after_a_question() -> None:
    services = FakeServices()
    services.set_job(a_job(JobState.RUNNING))
    async with session(services, ready="1 job is running") as s:
        await s.press("j", "enter")
        await s.see("Job job-1: RUNNING")
        await s.press("p")
        await s.see("PAUSING")
        services.set_job(a_job(JobState.PAUSED))
        await s.status()
        await s.see("PAUSED. The place is kept")
        await s.press("r")
        await s.see("Job job-1: RUNNING")
        await s.press("x")
        await s.see("Cancel this job?")
        await s.press("n")
        await s.see_not("Cancel this job?")
        assert called(services, "cancel") == []
        await s.press("x")
        await s.see("Cancel this job?")
        await s.press("y")
        await s.see("CANCELLING")
    assert [call for call in services.calls if call.split()[0] in ("pause", "resume", "cancel")] == [
        "pause job-1", "resume job-1", "cancel job-1"]


@pytest.mark.parametrize(("state", "words"), [
    (JobState.DAMAGED, "DAMAGED: the copy has ended, 4.0 KiB in 1 area could not be read."),
    (JobState.FAILED, "FAILED. The destination was pulled."),
    (JobState.INTERRUPTED, "INTERRUPTED. The destination was pulled."),
])
async def test_ends_are_told_in_words(state: JobState, words: str) -> None:
    services = FakeServices()
    services.set_job(a_job(state, error="" if state is JobState.DAMAGED else "The destination was pulled."))
    if state is JobState.DAMAGED:
        services.finish("job-1", state)
    async with session(services) as s:
        await s.press("j")
        await s.see("Jobs: 1 job, 0 running")
        await s.press("enter")
        await s.until(lambda: words in " ".join(s.text.split()), words)


async def test_leaving_says_that_jobs_go_on_and_calls_nothing() -> None:
    services = FakeServices()
    services.set_job(a_job(JobState.RUNNING))
    async with session(services, ready="1 job is running") as s:
        await s.press("q")
        await s.see("1 job will go on without this program.")
        await s.press("n")
        await s.see_not("Leave Stasis?")
        await s.press("ctrl+c")
        await s.see("Leave Stasis?")
        await s.press("y")
        await s.until(lambda: not s.app.is_running, "the end of the app")
    assert s.app.return_value == 0
    assert [call for call in services.calls if call.split()[0] in ("pause", "cancel")] == []


async def test_leaving_waits_for_an_action_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    # These keys are not typed ahead: the operator sees that it hangs.
    monkeypatch.setattr(base, "ACT_HOLD_SECONDS", 0.0)
    services = FakeServices()
    services.hold["mount"] = asyncio.Event()
    async with session(services) as s:
        await find(s, "USB-0001")
        await s.press("g")
        await s.see("This disk may become the destination.")
        await s.press("enter")
        await s.type("USB-0001")
        await s.press("enter")
        await s.see("GRANTED")
        await s.press("m")
        await s.see("Working: mounting /dev/sda.")
        await s.press("q")
        await s.see("Not yet: mounting /dev/sda.")
        await s.press("escape", "escape")
        await s.see("Devices: 4 disks")
        services.hold["mount"].set()
        await s.see("7.0 GiB free")


async def test_an_error_is_a_sentence_a_hint_and_evidence() -> None:
    services = FakeServices()
    services.errors["grant"] = PolicyRefusal("The disk was plugged again.", "Look at the list again.",
                                             "$ blockdev --getro\n" + "\n".join(f"line {n}" for n in range(60)))
    async with session(services) as s:
        await find(s, "USB-0001")
        await s.press("g")
        await s.see("This disk may become the destination.")
        await s.press("enter")
        await s.type("USB-0001")
        await s.press("enter")
        await s.see("The disk was plugged again.")
        await s.see("What to do: Look at the list again.")
        await s.see("line 3")
        assert "line 59" not in s.text
        await s.press("end")
        await s.see("line 59")
        await s.press("escape")
        await s.see_not("That did not work")


async def test_a_failed_look_at_the_disks_is_told_and_recovers() -> None:
    services = FakeServices()
    services.errors["snapshot"] = DeviceError("udev does not answer.", "Wait, then press r.")
    async with session(services, ready="PROBLEM: udev does not answer.") as s:
        await s.press("r")
        await s.see("Devices: 4 disks")
        await s.see_not("PROBLEM")


async def test_an_answer_for_a_closed_screen_is_dropped() -> None:
    services = FakeServices()
    services.set_job(a_job(JobState.DONE))
    services.hold["verify"] = asyncio.Event()
    async with session(services) as s:
        await s.press("v")
        await s.see("Case folder")
        await s.press("v")
        await s.see("Verifying: reading every file again")
        await s.press("escape")
        await s.see("Devices: 4 disks")
        services.hold["verify"].set()
        await s.press("l")
        await s.see("session.start")
        assert "verified" not in s.text


async def test_a_case_that_does_not_match() -> None:
    services = FakeServices()
    services.set_job(a_job(JobState.DONE))
    services.verdict = CaseVerdict("/dest/stasis-case-1", False, (
        Finding(Severity.ERROR, "hash-differs", "image.raw is not what it was.", "sha256 differs"),), 12, 4096)
    async with session(services) as s:
        await s.press("j", "v")
        await s.see("NOT VERIFIED")
        await s.see("ERROR: image.raw is not what it was.")
        await s.press("o")
        await s.see("/dest/stasis-case-1/report.html")
    assert called(services, "report") == ["report /dest/stasis-case-1"]


async def test_case_path_can_be_typed() -> None:
    async with session() as s:
        await s.press("v")
        await s.see("The path of a case folder")
        await s.type("mnt")
        await s.press("enter")
        await s.see("A path starts with /.")
        await s.press("backspace", "backspace", "backspace")
        await s.type("/mnt/case")
        await s.press("enter")
        await s.see("Case folder    /mnt/case")
        await s.press("v")
        await s.see("verified")


async def test_filter_can_be_left_and_everything_is_back() -> None:
    async with session() as s:
        await find(s, "S4EVNX1M")
        assert "S4EVNX0M" not in s.text
        await s.press("escape")
        await s.see("S4EVNX0M")
        await s.press("slash")
        await s.type("zzz")
        await s.see("showing 0 that match")
        await s.press("escape")
        await s.see("S4EVNX0M")


async def test_guard_and_refused_attempts_are_always_shown() -> None:
    services = FakeServices()
    services.refused = 3
    async with session(services, ready="3 refused") as s:
        for key, title in (("j", "Jobs:"), ("l", "Journal:"), ("d", "Devices:")):
            await s.press(key)
            await s.see(title)
            assert "Guard: armed (4 locked) | 3 refused" in s.lines[1]
        await s.press("question_mark")
        await s.see("Help: Devices")
        assert "3 refused" in s.lines[1]


async def test_open_device_is_told_everywhere() -> None:
    services = FakeServices()
    services.open_findings = (Finding(Severity.ERROR, "unprotected", "/dev/sdz could be written."),)
    async with session(services, ready="Guard: 1 OPEN DEVICE") as s:
        await s.see("The write guard is not complete, w shows why.")
        await s.press("w")
        await s.see("ERROR: /dev/sdz could be written.")


async def test_a_call_that_hangs_freezes_no_key() -> None:
    services = FakeServices()
    services.stuck.clear()
    try:
        async with session(services, ready="Guard: being read") as s:
            await s.press("l")
            await s.see("session.start")
            await s.press("d", "down")
            await s.see("/dev/nvme1n1  ACME")
            services.stuck.set()
            await s.status()
            await s.see("Guard: armed")
    finally:
        services.stuck.set()


async def test_rows_follow_their_keys() -> None:
    async with session() as s:
        table = s.app.screen.query_one(KeyedTable)
        rows = table.rows_shown
        await s.press("down", "down")
        key = table.cursor_key
        table.show_rows([rows[3], rows[2], rows[1], rows[0]])
        assert table.cursor_key == key == rows[2].key
        table.show_rows([rows[2]])
        assert table.cursor_key == key
        table.show_rows([])
        assert table.cursor_key is None
        table.show_rows([replace(rows[1], cells=("*", *rows[1].cells[1:])), rows[0]])
        await s.pilot.pause()
        assert table.cursor_key == rows[1].key
        assert [str(table.get_cell(row.key, "0")) for row in table.rows_shown] == ["*", ""]


async def test_forty_disks_scroll_and_stay_within_80_columns() -> None:
    async with session(FakeServices(*(nvme_disk(number, f"SN{number:02}") for number in range(40)))) as s:
        await s.press("end")
        await s.see("SN39")
        assert "SN00" not in s.text
        assert any(line.endswith("#") for line in s.lines)
        assert all("gpt: xfs" in line for line in s.lines if "  nvme  " in line)


async def test_after_a_crash_the_next_start_says_so_once() -> None:
    services = FakeServices()
    services.journal.append("ui.crash", traceback="ValueError")
    async with session(services, ready="The screens failed and were started again; jobs went on.") as s:
        await s.press("l")
        await s.see("ui.crash")
        await s.press("d")
        await s.see("All disks are protected.")


async def test_a_failing_status_is_told_and_recovers() -> None:
    services = FakeServices()
    services.status_error = DeviceError("The state directory can't be read.", "Look at /run.")
    async with session(services, ready="PROBLEM: The state directory can't be read.") as s:
        services.status_error = None
        await s.status()
        await s.see_not("PROBLEM")
        assert "Guard: armed" in s.lines[1]


async def test_long_warnings_leave_the_serial_and_the_line_in_sight() -> None:
    services = FakeServices()
    services.gate_warnings = tuple(Finding(Severity.WARNING, f"w{n}", f"Warning {n}. " * 8) for n in range(9))
    async with session(services) as s:
        await find(s, "USB-0001")
        await s.press("g")
        await s.see("yes, 9 warnings")
        await s.press("enter")
        await s.see("Its serial     USB-0001")
        await s.see("PgDn More")
        await s.type("USB")
        await s.see("| USB")
        await s.press("pagedown", "pagedown")
        await s.see_not("Its serial")
        await s.type("-0001")
        await s.press("enter")
        await s.see("GRANTED")
