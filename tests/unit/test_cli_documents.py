"""The documents that --json prints, from values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rescue_tui.cli_documents import (
    UNKNOWN_GUARD,
    devices_document,
    error_document,
    guard_document,
    guard_words,
    image_document,
    job_fields,
    kind_of,
    plan_fields,
    relative,
)
from rescue_tui.core.access import Access, Role
from rescue_tui.core.errors import (
    CommandError,
    DeviceError,
    ExitStatus,
    FormatError,
    PolicyRefusal,
    RescueError,
    SetupError,
    SpaceError,
    UsageError,
)
from rescue_tui.core.ident import DeviceId
from rescue_tui.core.job import JobState
from rescue_tui.core.record import Plain
from rescue_tui.core.snapshot import Snapshot
from rescue_tui.system.guardview import GuardState, ProtectedDevice
from tests.support.cli_services import HOSTILE, MOMENT, CliServices, job, nvme_disk, usb_disk


def _devices(value: dict[str, Plain]) -> list[dict[str, Plain]]:
    found = value["devices"]
    assert isinstance(found, list)
    assert all(isinstance(item, dict) for item in found)
    return [item for item in found if isinstance(item, dict)]


async def test_devices_have_every_promised_field() -> None:
    services = CliServices()
    disk = nvme_disk()
    snapshot = await services.snapshot()
    health = await services.health(disk)
    value = devices_document(snapshot, services.roles(snapshot), {disk.node: health},
                             guard_words(services.guard_state()))
    assert next(iter(value)) == "schema"
    assert value["schema"] == "stasis.devices/1"
    assert value["taken_at"] == "2026-12-02T09:00:00.000Z"
    first, second = _devices(value)
    for name in ("role", "reason", "identity", "weak", "node", "kind", "model", "serial", "firmware", "size_bytes",
                 "logical_sector_bytes", "physical_sector_bytes", "transport", "slot", "read_only", "external",
                 "namespace", "health", "signatures", "partitions", "holders", "mounts", "links", "guard"):
        assert name in first
    assert first["identity"] == f"nvme-nguid:{'a' * 32}"
    assert first["role"] == "source"
    assert first["weak"] is False
    assert first["size_bytes"] == 960197124096
    assert (first["guard"], second["guard"]) == ("read-only", "granted")
    assert second["namespace"] is None
    assert second["health"] is None
    json.dumps(value)


def test_a_namespace_tells_its_subsystem_and_controllers() -> None:
    value = devices_document(Snapshot(MOMENT, (nvme_disk(),)), {}, {}, {})
    space = _devices(value)[0]["namespace"]
    assert isinstance(space, dict)
    assert (space["nsid"], space["nguid"], space["paths"]) == (1, "a" * 32, ["nvme0c0n1"])
    assert space["lba_format"] == {"data_bytes": 512, "metadata_bytes": 0}
    subsystem = space["subsystem"]
    assert isinstance(subsystem, dict)
    controllers = subsystem["controllers"]
    assert isinstance(controllers, list)
    assert isinstance(controllers[0], dict)
    assert controllers[0]["address"] == "0000:01:00.0"


def test_what_nobody_decided_is_a_source_and_what_nobody_looked_at_is_unknown() -> None:
    value = devices_document(Snapshot(MOMENT, (usb_disk(),)), {}, {}, {})
    assert _devices(value)[0]["role"] == "source"
    assert _devices(value)[0]["guard"] == UNKNOWN_GUARD


def test_a_partition_has_identity_and_device_number() -> None:
    value = devices_document(Snapshot(MOMENT, (nvme_disk(),)), {}, {}, {"/dev/nvme0n1p1": "read-only"})
    parts = _devices(value)[0]["partitions"]
    assert isinstance(parts, list)
    assert isinstance(parts[0], dict)
    assert (parts[0]["identity"], parts[0]["dev"]) == (f"nvme-nguid:{'a' * 32}-part1", "259:1")
    assert (parts[0]["number"], parts[0]["guard"]) == (1, "read-only")
    assert "id" not in parts[0]


def test_hostile_text_is_escaped() -> None:
    disk = replace(nvme_disk(serial=HOSTILE), id=DeviceId("serial", f"nvme/{HOSTILE}"))
    role = Role(Access.SOURCE, HOSTILE)
    text = json.dumps(devices_document(Snapshot(MOMENT, (disk,)), {disk.id: role}, {}, {}), ensure_ascii=False)
    assert "\x1b" not in text
    assert "\udcff" not in text
    assert r"S4EV\\x1b[2J[/bold]\\xff" in text


@pytest.mark.parametrize(("error", "kind", "status"), [
    (UsageError("a."), "usage", 2), (PolicyRefusal("a."), "refused", 3), (SetupError("a."), "setup", 4),
    (DeviceError("a."), "device", 5), (CommandError("a."), "tool", 6), (FormatError("a."), "format", 7),
    (SpaceError("a."), "space", 8),
])
def test_an_error_is_a_document(error: RescueError, kind: str, status: int) -> None:
    error.hint = "Do b."
    error.evidence = "$ x\nline \x1b[31m two"
    assert error_document("image", error) == {
        "schema": "stasis.image/1",
        "error": {"kind": kind, "summary": "a.", "hint": "Do b.", "evidence": "$ x\nline \\x1b[31m two",
                  "exit": status}}


def test_every_status_has_a_word() -> None:
    assert len({kind_of(status) for status in ExitStatus}) == len(ExitStatus)


def test_the_guard_document_keeps_the_token_back() -> None:
    value = guard_document(CliServices().guard_state())
    assert value["schema"] == "stasis.guard/1"
    assert value["armed"] is True
    assert "secret-token" not in json.dumps(value)
    grants = value["grants"]
    assert isinstance(grants, list)
    assert isinstance(grants[0], dict)
    assert grants[0]["serial"] == "USB0001"


@pytest.mark.parametrize(("read_only", "granted", "exempt", "word"), [
    (True, False, False, "read-only"), (False, True, False, "granted"), (False, False, True, "exempt"),
    (False, False, False, "open"),
])
def test_guard_words(read_only: bool, granted: bool, exempt: bool, word: str) -> None:
    state = GuardState((), (ProtectedDevice("/dev/x", "1:2", read_only, granted, exempt),), (), ())
    assert guard_words(state) == {"/dev/x": word}


async def test_a_plan_leaves_the_disk_out_and_shows_the_words_of_the_command() -> None:
    services = CliServices()
    plan = await services.plan_image(nvme_disk(), Path("/mnt/d"))
    fields = plan_fields(plan)
    assert "disk" not in fields
    assert fields["source"] == f"nvme-nguid:{'a' * 32}"
    assert fields["command"] == list(plan.command)
    assert fields["image"] == "/mnt/d/stasis-case-1/x/image.raw"


def test_a_job_has_its_percentage() -> None:
    progress = job(done=50)
    fields = job_fields(progress)["progress"]
    assert isinstance(fields, dict)
    assert fields["percent"] == 50.0


def test_the_image_document_says_whether_jobs_go_on() -> None:
    value = image_document((), [job(JobState.DAMAGED, bad=3)], dry_run=False, detached=False, exit_status=1)
    assert (value["schema"], value["exit"], value["detached"]) == ("stasis.image/1", 1, False)


def test_paths_are_relative_to_what_was_asked() -> None:
    assert relative(Path("/a/b/c"), Path("/a")) == "b/c"
    assert relative(Path("/x"), Path("/a")) == "/x"
