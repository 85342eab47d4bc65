"""Checkpoints by keys alone: from an image to the newest good save, its tensors, and a copy of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from rescue_tui.checkpoints.model import Options
from rescue_tui.core.errors import CommandError, DeviceError, SpaceError
from rescue_tui.jobs import scanning
from rescue_tui.jobs.scanning import ScanAnswer, Tick
from rescue_tui.services import Services
from rescue_tui.system.mounts import MountedImage
from rescue_tui.ui.screens.checkpoints import CheckpointsScreen
from rescue_tui.ui.widgets.table import KeyedTable
from tests.support.fake_services import GIB, FakeServices
from tests.ui.harness import Session, session
from tests.ui.steps import called, grant_and_mount

IMAGE = "/dest/stasis-case-1/nvme-0/image.raw"
DESTINATION = "/run/stasis/destination/usb"


def with_image(*, mounted: bool = True) -> FakeServices:
    services = FakeServices()
    services.image_paths = (Path(IMAGE),)
    if mounted:
        services.views = (MountedImage(IMAGE, "/views/a", "xfs", ("ro",), "/dev/loop0", 1),)
    return services


async def open_checkpoints(s: Session) -> None:
    await s.press("c")
    await s.see("mounted     xfs")
    await s.press("enter")
    await s.see("Newest good: run-a/step_200/model.pt  ++ verified, step 200")


async def ready(s: Session) -> None:
    """With a destination, on the checkpoints screen."""
    await grant_and_mount(s)
    await s.press("d", "escape")
    await s.see("Devices: 4 disks")
    await open_checkpoints(s)


async def reads(s: Session, words: str) -> None:
    """As `see`, for words that may be wrapped."""
    await s.until(lambda: words in " ".join(s.text.replace("|", " ").split()), words)


async def test_an_image_is_mounted_and_scanned_and_the_newest_good_save_stands_first() -> None:
    async with session(with_image(mounted=False)) as s:
        await s.press("c")
        await s.see("Images: 1, 0 mounted")
        await s.press("enter")
        await s.see("Newest good: run-a/step_200/model.pt")
        assert s.services.calls[-2:] == [f"view {IMAGE}", "scan /views/0"]
        rows = [row.cells for row in s.app.screen.query_one(KeyedTable).rows_shown]
        assert [(cells[1], cells[2], cells[-1]) for cells in rows] == [
            ("RUN", "", "run-a"), ("++ verified", "200", "* step_200/model.pt"),
            ("X  CORRUPT", "300", "step_300/model.pt"),
            ("+  intact", "150", "step_150/model.pt"), ("++ verified", "100", "step_100/model.pt"),
            ("RUN", "", "run-b"), ("X  INCOMPLETE", "50", "step_50/model.pt")]
        await s.see("This one is the newest good save.")
        await s.press("up")
        await reads(s, "newer, X CORRUPT: run-a/step_300/model.pt: The CRC-32 of data/1 does not match.")
        await s.press("escape")
        await s.see("Images: 1, 1 mounted")
        await s.press("u")
        await s.see("Images: 1, 0 mounted")
    assert called(s.services, "unmount") == ["unmount /views/0"]


async def test_the_partition_is_asked_for_when_there_are_several() -> None:
    services = with_image(mounted=False)
    services.parts = ((1, GIB, "c12a7328"), (5, 2 * GIB, "[/foo]\x1b"))
    async with session(services) as s:
        await s.press("c")
        await s.see("Images: 1, 0 mounted")
        await s.press("enter")
        await s.see("partition 5  2.0 GiB  [/foo]\\x1b")
        await s.press("2")
        await s.see("Newest good:")
        await s.see("image.raw-part5")
    assert called(services, "view") == [f"view {IMAGE}", f"view {IMAGE} 5"]


async def test_a_mount_that_fails_says_why() -> None:
    services = with_image(mounted=False)
    services.errors["view"] = CommandError("mount failed.", "Look at the log.", "$ mount /dev/loop0\nbad superblock")
    async with session(services) as s:
        await s.press("c")
        await s.see("Images: 1, 0 mounted")
        await s.press("enter")
        await s.see("bad superblock")
        await s.press("escape")
        await s.see("Not mounted. Enter mounts it read-only.")


async def test_a_directory_or_another_image_can_be_named(tmp_path: Path) -> None:
    async with session() as s:
        await s.press("c")
        await s.see("No image is known.")
        await s.press("e")
        await s.see("The path of an image file")
        await s.type("x")
        await s.press("enter")
        await s.see("A path starts with /.")
        await s.press("ctrl+u")
        await s.type(str(tmp_path))
        await s.press("enter")
        await s.see("Newest good:")
        await s.press("escape", "e")
        await s.see("The path of an image file")
        await s.type("/img/x.raw")
        await s.press("enter")
        await s.until(lambda: called(s.services, "view") == ["view /img/x.raw"])
    assert called(s.services, "scan")[0] == f"scan {tmp_path}"


async def test_the_case_folder_leads_to_its_images() -> None:
    async with session(with_image()) as s:
        await s.press("v")
        await s.see("The path of a case folder")
        await s.type("/dest/stasis-case-1")
        await s.press("enter")
        await s.see("Case folder    /dest/stasis-case-1")
        await open_checkpoints(s)


async def test_details_and_tensors_with_a_filter() -> None:
    async with session(with_image()) as s:
        await open_checkpoints(s)
        await s.press("down", "enter")
        await s.see("X  CORRUPT: a checksum does not match")
        await s.see("run-a/step_300/model.pt, at byte 1052672, 1048576 bytes")
        await s.see("lr = 0.001")
        await s.press("t")
        await s.see("Tensors: 4, run-a/step_300/model.pt")
        table = s.app.screen.query_one(KeyedTable)
        assert [row.cells[0] for row in table.rows_shown] == ["X  DAMAGED", *["++ verified"] * 3]
        await s.press("slash")
        await s.type("verified")
        await s.see("Tensors: 4, 3 that match verified")
        await s.type(" layers.3")
        await s.press("enter")
        await s.see("1048576 bytes at byte 3149824 of run-a/step_300/model.pt")
        assert [row.cells[-1] for row in table.rows_shown] == ["model.layers.3.weight"]
        await s.press("escape")
        await s.see("Tensors: 4, run-a/step_300/model.pt")
        await s.press("escape")
        await s.see("Checkpoint: run-a/step_300/model.pt")


async def test_progress_of_a_scan_is_drawn_and_no_key_waits_for_it() -> None:
    services = with_image()
    services.hold["scan"] = asyncio.Event()
    services.ticks["scan"] = ("run-a/[/foo]\x1b[2J", GIB, 2 * GIB)
    async with session(services) as s:
        await s.press("c")
        await s.see("mounted     xfs")
        await s.press("enter")
        await s.see("[##############--------------] 50 % of 2.0 GiB")
        await s.see("now: run-a/[/foo]\\x1b[2J")
        await s.press("l")
        await s.see("session.start")
        await s.press("q")
        await s.see("The scan of checkpoints ENDS HERE.")
        await s.press("n", "d", "c", "enter")
        await s.see("50 % of 2.0 GiB")
        services.hold["scan"].set()
        await s.see("Newest good: run-a/step_200/model.pt")
    assert called(services, "scan") == ["scan /views/a"], "the screen that was opened again asked for no other scan"


async def test_a_scan_can_be_cancelled_and_begun_again() -> None:
    services = with_image()
    services.hold["scan"] = asyncio.Event()
    async with session(services) as s:
        await s.press("c")
        await s.see("mounted     xfs")
        await s.press("enter")
        await s.see("x cancels")
        await s.press("x")
        await s.see("The scan was cancelled.")
        services.hold["scan"].set()
        await s.press("n")
        await s.see("Newest good: run-a/step_200/model.pt")
        services.hold["scan"].clear()
        await s.press("r")
        await s.see("x cancels")
        await s.press("x")
        await s.see("The scan after that did not come to its end; this is the one before.")
        await s.see("Newest good: run-a/step_200/model.pt")
    assert called(services, "scan") == ["scan /views/a", "scan /views/a values", "scan /views/a"]


async def test_a_scan_that_fails_says_why() -> None:
    services = with_image()
    services.errors["scan"] = DeviceError("[/foo]\x1b can't be read.", "Mount it again.")
    async with session(services) as s:
        await s.press("c")
        await s.see("mounted     xfs")
        await s.press("enter")
        await s.see("[/foo]\\x1b can't be read.")
        await s.press("escape")
        await s.see("Not scanned.")
        await s.press("r")
        await s.see("Newest good:")


async def test_without_a_destination_nothing_is_copied_and_the_reason_is_said() -> None:
    async with session(with_image()) as s:
        await open_checkpoints(s)
        for key in ("e", "s"):
            await s.press(key)
            await s.see("No destination is granted.")
            await s.see("What to do: d shows the disks")
            await s.press("escape")
            await s.see_not("That did not work")
        await s.services.grant(s.services.disks[2], "USB-0001")
        await s.status()
        await s.press("e")
        await s.see("The destination is granted, but not mounted.")
    assert not called(s.services, "extract")
    assert not called(s.services, "salvage")


async def test_marked_saves_are_extracted_below_the_destination() -> None:
    async with session(with_image()) as s:
        await ready(s)
        await s.press("space", "end", "up", "up", "space")
        await s.see("2 saves marked.")
        await s.press("e")
        await s.see("2 saves, 8.0 MiB:")
        assert "NOT ALL OF THEM ARE GOOD" not in s.text
        await s.press("ctrl+u")
        await s.type("../x")
        await s.press("enter")
        await s.see("Name a directory below the destination")
        await s.press("ctrl+u")
        await s.type("good/node7")
        await s.press("enter")
        await s.see("Extraction: ENDED")
        await s.see("EXTRACTED: every file is there")
        await s.see("2 files, 8.0 MiB")
        await s.press("escape")
        await s.see("p Copy")
        await s.press("p")
        await s.see("Extraction: ENDED")
    assert s.services.calls[-2:] == [
        f"space {DESTINATION}/good/node7",
        f"extract run-a/step_100/model.pt run-a/step_200/model.pt {DESTINATION}/good/node7 verified"]


async def test_a_damaged_save_is_extracted_only_with_a_warning() -> None:
    async with session(with_image()) as s:
        await ready(s)
        await s.press("down", "e")
        await s.see("NOT ALL OF THEM ARE GOOD")
        await s.press("escape")
        await s.see_not("NOT ALL")
    assert not called(s.services, "extract")


async def test_salvage_says_what_is_saved_and_what_is_lost() -> None:
    async with session(with_image()) as s:
        await ready(s)
        await s.press("down", "s")
        await reads(s, "or at least whole, goes into a new")
        await s.press("enter")
        await s.see("SALVAGED: 3 of 4 tensors.")
        await s.see("lost: model.layers.1.weight: The CRC-32 does not match.")
        await s.see("names from step_200/model.pt (the same run)")
    to = f"{DESTINATION}/salvaged/nvme-0-image.raw-part1/run-a-step_300-model.pt"
    assert s.services.calls[-2:] == [f"space {to}", f"salvage /views/a/run-a/step_300/model.pt {to}"]


async def test_the_gate_has_the_last_word() -> None:
    async with session(with_image()) as s:
        await ready(s)
        await s.press("e")
        await s.see("Directory below it")
        s.services.spaces.clear()
        await s.press("enter")
        await reads(s, "is not on a granted destination.")
        await s.see("FAILED. The lines above say why")
    assert not called(s.services, "extract")


async def test_a_full_destination_is_told() -> None:
    services = with_image()
    services.errors["extract"] = SpaceError("The copies need 9 GiB.", "Choose fewer checkpoints.")
    async with session(services) as s:
        await ready(s)
        await s.press("e")
        await s.see("Directory below it")
        await s.press("enter")
        await s.see("FAILED. The copies need 9 GiB.")
        await s.see("Choose fewer checkpoints.")


async def test_a_copy_goes_on_behind_other_screens_and_is_cancelled_after_a_question() -> None:
    services = with_image()
    services.hold["extract"] = asyncio.Event()
    services.ticks["extract"] = ("run-a/step_200/model.pt", GIB, 4 * GIB)
    async with session(services) as s:
        await ready(s)
        await s.press("e")
        await s.see("Directory below it")
        await s.press("enter")
        await s.see("RUNNING  copying")
        await s.see("1.0 GiB of 4.0 GiB")
        await s.press("escape")
        await s.see("The extraction is RUNNING. p shows how far it is.")
        await s.press("e", "s", "r")
        await s.pilot.pause()
        assert isinstance(s.app.screen, CheckpointsScreen), "one piece of work at a time"
        await s.press("escape", "u")
        await s.see("The extraction of this image is under way.")
        await s.press("escape", "q")
        await s.see("The extraction of checkpoints ENDS HERE. What was copied whole stays.")
        await s.press("n", "enter", "p")
        await s.see("RUNNING  copying")
        await s.press("x")
        await s.see("Cancel the extraction?")
        await s.press("n", "x")
        await s.see("Cancel the extraction?")
        await s.press("y")
        await s.see("CANCELLED. What was copied whole stays")
    assert called(services, "unmount") == []


async def test_leaving_ends_what_runs_in_this_program() -> None:
    services = with_image()
    services.hold["scan"] = asyncio.Event()
    async with session(services) as s:
        await s.press("c")
        await s.see("mounted     xfs")
        await s.press("enter")
        await s.see("x cancels")
        await s.press("q")
        await s.see("No job is running.")
        assert "Granted disks" not in s.text, "none is granted"
        await s.press("y")
        await s.until(lambda: not s.app.is_running, "the end of the app")
    assert s.app.return_value == 0


class RealScan(FakeServices):
    """Scans for real, in a thread as `Services` does, and stands still at the first bytes until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.stopped = threading.Event()

    async def scan_checkpoints(self, paths: Sequence[Path], options: Options, tick: Tick | None = None) -> ScanAnswer:
        def told(name: str, done_bytes: int, total_bytes: int) -> None:
            assert tick is not None
            tick(name, done_bytes, total_bytes)
            self.go_on.wait()

        try:
            return await Services.scan_checkpoints(self, paths, options, told)  # type: ignore[arg-type]
        finally:
            self.stopped.set()

    _stoppable = staticmethod(Services._stoppable)


@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("pool", [False, True])
async def test_a_real_scan_freezes_no_key(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, pool: bool, cancel: bool) -> None:
    if pool:
        monkeypatch.setattr(scanning, "POOL_BYTES", 0)
    (tmp_path / "step_7").mkdir()
    header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    (tmp_path / "step_7" / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\x01" * 8)
    services = RealScan()
    services.views = (MountedImage(IMAGE, str(tmp_path), "xfs", ("ro",), "/dev/loop0", 1),)
    try:
        async with session(services) as s:
            await s.press("c")
            await s.see("mounted     xfs")
            await s.press("enter")
            await s.see("now: step_7/model.safetensors")
            await s.press("f1")
            await s.see("Help: Checkpoints")
            await s.press("escape")
            if cancel:
                await s.press("x")
                await s.see("CANCELLING.")
                services.go_on.set()
                await s.see("The scan was cancelled.")
            else:
                services.go_on.set()
                await s.see("Newest good: step_7/model.safetensors  +  intact, step 7")
    finally:
        services.go_on.set()
    assert services.stopped.is_set()
