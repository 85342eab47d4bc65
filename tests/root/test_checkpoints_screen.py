"""The checkpoints screens over a real image: mounted, scanned, the newest good save extracted, the damaged salvaged.

See tests/support/loop_services.py for the one thing that is pretended.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from rescue_tui.core.errors import PolicyRefusal
from rescue_tui.ui.app import StasisApp
from rescue_tui.ui.terminal import detect
from tests.support.ckpt.saves import safetensors_file
from tests.support.loop_services import LoopServices
from tests.support.loops import loop_disk, run
from tests.ui.harness import Session

SERIAL = "TARGET-1"


class Calls(LoopServices):
    """With the list that the harness shows when a state never comes."""

    calls: tuple[str, ...] = ()


def an_image(tmp_path: Path) -> bytes:
    """An ext4 with a run of two steps, the newer one cut."""
    content, image = tmp_path / "content", tmp_path / "made.raw"
    good = safetensors_file({"b": 64, "w": 1 << 20})
    for step, data in ((100, good), (200, good[:-(1 << 19)])):
        (content / f"run/step_{step}").mkdir(parents=True)
        (content / f"run/step_{step}/model.safetensors").write_bytes(data)
    with image.open("wb") as stream:
        stream.truncate(64 << 20)
    run("mkfs.ext4", "-q", "-F", "-d", str(content), str(image))
    return image.read_bytes()


async def test_from_an_image_to_a_proven_copy_by_keys(tmp_path: Path) -> None:
    image = an_image(tmp_path)
    with loop_disk(tmp_path / "destination", 400 << 20) as target:
        services = Calls(tmp_path / "state", {target.node: SERIAL})
        services.be_prompt()
        disk = (await services.snapshot()).find(target.node)
        await services.grant(disk, SERIAL)
        await services.format_destination(disk, "ext4", SERIAL)
        space = await services.mount_destination(disk)
        try:
            case = Path(space.mount_point) / "stasis-case-1" / "nvme-0"
            case.mkdir(parents=True)
            (case / "image.raw").write_bytes(image)
            app = StasisApp(services, detect({"TERM": "vt220"}))
            async with app.run_test(size=(80, 24)) as pilot:
                s = Session(app, pilot, services)  # type: ignore[arg-type]
                await s.see("Devices:")
                await s.press("c")
                await s.see("Images: 1, 0 mounted")
                await s.press("enter")
                await s.see("Newest good: run/step_100/model.safetensors  +  intact, step 100")
                await s.press("e")
                await s.see("Directory below it")
                await s.press("enter")
                await s.see("EXTRACTED: every file is there, and was read back and found equal.")
                await s.press("escape", "down", "s")
                await s.see("Directory below it")
                await s.press("enter")
                await s.see("SALVAGED: 1 of 2 tensors.")
                with pytest.raises(PolicyRefusal, match="image on the destination is mounted"):
                    await services.release_destination(disk)
                await s.press("escape", "escape")
                await s.see("Images: 1, 1 mounted")
                await s.press("u")
                await s.see("Images: 1, 0 mounted")
            copied = Path(space.mount_point) / "checkpoints/nvme-0-image.raw"
            source = tmp_path / "content/run/step_100/model.safetensors"
            assert (copied / "run/step_100/model.safetensors").read_bytes() == source.read_bytes()
            assert hashlib.sha256(source.read_bytes()).hexdigest() in (copied / "MANIFEST.sha256").read_text()
            assert list((Path(space.mount_point) / "salvaged").rglob("*.salvaged.safetensors"))
            assert (case / "image.raw").read_bytes() == image, "the image was only read"
        finally:
            for mounted in services.mounted():
                await services.unmount(Path(mounted.at))
            await services.release_destination((await services.snapshot()).find(target.node))
