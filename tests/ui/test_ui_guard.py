"""The write guard in the status bar and on its screen: armed, partial, absent, and who tried what."""

from __future__ import annotations

from rescue_tui.core.finding import Finding, Severity
from rescue_tui.core.guardstate import LayerState
from rescue_tui.system.kernelguard import kernel_layers
from rescue_tui.ui.widgets.bars import StatusBar
from tests.support.fake_services import FakeServices
from tests.support.guard_text import disk_line, state_text
from tests.ui.harness import Session, check_snapshot, session

POLICY = LayerState("boot-policy", "armed", "Nothing starts by itself.")
FLAG = LayerState("udev-flag", "armed", "Set by udev.")


def guarded(*, loose: str = "", sealed: int = 1, comm: str = "dd") -> FakeServices:
    """A machine with the kernel module: somebody tried to write to the first disk."""
    services = FakeServices()
    services.extra_layers = (FLAG, POLICY)
    disks = [disk_line(f"{disk.dev[0]}:{disk.dev[1]}", disk.generation, disk.node.removeprefix("/dev/"))
             for disk in services.disks[1:]]
    services.guard_text = state_text(
        disk_line("259:0", 1, "nvme0n1", bio=3, command=2, ioctl=1, flush_kept=2), *disks,
        f"last dev=259:0 diskseq=1 what=bio opcode=0x01 pid=123 comm={comm} age_ms=60000",
        "last dev=0:0 diskseq=0 what=lockdown opcode=0x0 pid=7 comm=kexec age_ms=1000",
        "other lockdown=1 module=0", loose=loose, sealed=sealed, refused=1)
    return services


def _guard_is_red(s: Session) -> bool:
    content = s.app.screen.query_one(StatusBar).content
    return any("red" in str(span.style) for span in getattr(content, "spans", ()))


async def test_an_armed_guard_counts_and_names_who_tried() -> None:
    async with session(guarded(), ready="Guard: armed (4 locked) | 6 refused") as s:
        assert not _guard_is_red(s)
        await s.press("w")
        await s.see("08:59:00  /dev/nvme0n1  bio 0x01 by dd (process 123)")
        await s.see("no disk  lockdown 0x00 by kexec (process 7)")
        await s.see("bio             armed  refused 1")
        check_snapshot("guard-kernel-80x24", s.lines)
        await s.press("end")
        await s.see("/dev/nvme0n1  read-only  refused bio 3, command 2, ioctl 1; 2 flushes kept")


async def test_the_count_is_live_on_every_screen() -> None:
    services = guarded()
    async with session(services, ready="6 refused") as s:
        await s.press("j")
        await s.see("Jobs")
        services.guard_text = services.guard_text.replace("name=open armed=1 refused=1", "name=open armed=1 refused=40")
        await s.status()
        await s.see("45 refused")


async def test_a_layer_that_is_missing_is_said_in_red_and_in_words() -> None:
    services = guarded(loose="ioctl")
    async with session(services, ready="Guard: PARTIAL (1 of 11 layers)") as s:
        assert _guard_is_red(s)
        await s.see("The write guard is not complete, w shows why.")
        await s.press("w")
        await s.see("ioctl           ABSENT  refused 1. Not armed.")
        await s.see("The guard is not complete: red lines say what is missing.")


async def test_a_module_that_is_missing_is_said_in_red_and_the_others_stay() -> None:
    services = FakeServices()
    services.extra_layers = (*kernel_layers(None, ""), POLICY)
    async with session(services, ready="Guard: ABSENT (4 read-only)") as s:
        assert _guard_is_red(s)
        assert len(s.lines[1]) <= 80
        await s.press("w")
        await s.see("The kernel module stasis_guard is not loaded")
        await s.see("udev-flag     armed")
        check_snapshot("guard-absent-80x24", s.lines)


async def test_another_system_is_told() -> None:
    services = FakeServices()
    services.guard_text = ""
    services.extra_layers = kernel_layers(None, "It can't be read.")
    async with session(services, ready="Guard: ABSENT") as s:
        await s.press("w")
        await s.see("kernel-guard  UNKNOWN  It can't be read.")


async def test_a_void_grant_is_told() -> None:
    services = FakeServices()
    disk = services.disks[2]
    async with session(services) as s:
        await services.grant(disk, disk.serial)
        services.void = (disk.id,)
        services.open_findings = (Finding(Severity.ERROR, "grant-void", "The grant of /dev/sda is void."),)
        await s.status()
        await s.see("Guard: PARTIAL (w shows why)")
        await s.press("w")
        await s.see("A grant is void: nothing more is written there.")
        await s.see("VOID")


async def test_a_hostile_process_name_stays_text() -> None:
    async with session(guarded(comm="%1b%5b2J%5b/red%5d%ff"), ready="6 refused") as s:
        await s.press("w")
        await s.see(r"by \x1b[2J[/red]\xff (process 123)")


async def test_help_names_every_layer() -> None:
    async with session(guarded(), size=(80, 60), ready="6 refused") as s:
        await s.press("w")
        await s.see("Last refused")
        await s.press("f1")
        await s.see("Help: Write guard")
        for layer in ("kernel-guard", *(line.split("=")[1].split(" ")[0] for line in state_text().splitlines()
                                        if line.startswith("layer ")), "udev-flag", "boot-policy"):
            assert f"\n|  {layer} " in s.text or f"  {layer} " in s.text, layer
