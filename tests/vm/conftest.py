"""Fixtures for tests that boot the built image. A machine's artifacts lie below build/vm-tests/<test>."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from builder.host import BUILD, BuildError
from builder.qemu import BuiltImage, built_image, require_qemu, working_accel
from builder.vm import Drive, VmSpec

from tests.support.vm.deadline import Deadline
from tests.support.vm.machine import Machine

TESTS = Path(__file__).parent
# The title bar; the firmware, too, names our stick by a word that begins like it.
TITLE = "STASIS  "
BOOT_SECONDS = 240
EMULATOR_FAULT = r"GuestPanicError: the kernel panicked \(Oops: int3"
BootMachine = Callable[[VmSpec], Machine]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here is a VM test, whether its author remembered to say so or not.

    QEMU 7.2 emulating several processors at once sometimes loses a code change of the guest's kernel, which then
    panics with "Oops: int3" (seen once in about seventy boots, on a busy machine, with and without our module). For
    that panic alone a test gets a second try, which pytest counts as a rerun; any other failure stands.
    """
    for item in items:
        if TESTS in item.path.parents:
            item.add_marker(pytest.mark.vm)
            item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=EMULATOR_FAULT))


@pytest.fixture(scope="session")
def image() -> BuiltImage:
    """The built image. Without it, or without QEMU, the VM tests fail: a skipped proof proves nothing."""
    try:
        require_qemu()
        return built_image()
    except BuildError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def artifacts(request: pytest.FixtureRequest) -> Path:
    """An empty directory for what this test leaves."""
    name = re.sub(r"[^\w.-]+", "_", request.node.nodeid.rpartition("/")[2])
    path = BUILD / "vm-tests" / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


@pytest.fixture
def boot(image: BuiltImage, artifacts: Path) -> Iterator[BootMachine]:
    """Start machines; at the end of the test each is stopped. The accelerator is the one that works here."""
    with ExitStack() as running:
        numbers = iter(range(1, 100))

        def start(spec: VmSpec) -> Machine:
            accel = working_accel(image.kernel)
            return running.enter_context(Machine(replace(spec, accel=accel), artifacts / f"machine-{next(numbers)}"))

        yield start


@pytest.fixture
def boot_to_tui(boot: BootMachine) -> BootMachine:
    """Start a machine and wait until the serial line shows the TUI."""

    def start(spec: VmSpec) -> Machine:
        machine = boot(spec)
        machine.terminal.wait_for(TITLE, Deadline.after(BOOT_SECONDS))
        return machine

    return start


@pytest.fixture
def blank(artifacts: Path) -> Callable[[str, int], Path]:
    """Make a sparse file of some MiB for a disk."""

    def make(name: str, size_mib: int) -> Path:
        path = artifacts / f"{name}.img"
        with path.open("wb") as file:
            file.truncate(size_mib << 20)
        return path

    return make


@pytest.fixture
def stick(image: BuiltImage, artifacts: Path) -> Drive:
    """A copy of the USB disk image as the stick to boot from."""
    path = artifacts / "stick.img"
    shutil.copyfile(image.usb, path)
    return Drive(name="stick", path=path, kind="usb", serial="STASIS-BOOT", removable=True, boot_index=0)
