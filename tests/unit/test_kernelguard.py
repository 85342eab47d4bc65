"""The kernel's side of the guard: a grant needs both halves, and what the kernel says is told."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rescue_tui.core.access import WriteGrant
from rescue_tui.core.errors import DeviceError, FormatError, PolicyRefusal, RescueError, SetupError
from rescue_tui.core.finding import Severity
from rescue_tui.core.guardstate import LAYER_WORDS, LayerState
from rescue_tui.core.record import to_plain
from rescue_tui.system.blockdev import BlockNode
from rescue_tui.system.guard import WriteGuard
from rescue_tui.system.guardlayers import BootPolicy
from rescue_tui.system.guardview import GuardState
from rescue_tui.system.kernelguard import KERNEL_LAYER, KernelGuard, kernel_layers
from rescue_tui.system.workspace import Workspace
from tests.support.false_sysfs import DISK, Sysfs, files
from tests.support.guard_text import disk_line, state_text

NODE = BlockNode("sdq", (65, 0), 41, True, 1 << 30)


class Kernel(KernelGuard):
    """A module that obeys: its state is what `lines` say, commands are remembered and done to `granted`."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.directory = directory
        directory.mkdir()
        self.told: list[str] = []
        self.granted = False
        self.obeys = True
        self.lines: tuple[str, ...] = ()
        self.refused = 0
        self.show()

    def show(self, *, protected: int = 1) -> None:
        """Write the state."""
        disk = disk_line("65:0", 41, "sdq", protected=protected, granted=int(self.granted), bio=2, flush_kept=4)
        (self.directory / "state").write_text(state_text(disk, *self.lines, refused=self.refused))

    def _tell(self, verb: str, disk: BlockNode) -> None:
        self.told.append(f"{verb} {disk.dev_text} {disk.diskseq}")
        if self.obeys:
            self.granted = verb == "grant"
            self.show()


class Flag:
    """A layer that notes what the kernel had been told when it was called."""

    def __init__(self, kernel: Kernel, sysfs: Sysfs) -> None:
        self.kernel = kernel
        self.sysfs = sysfs
        self.seen: list[tuple[str, list[str]]] = []

    def open(self, nodes: Sequence[BlockNode]) -> None:
        """As Layer.open."""
        self._set("open", nodes, "0")

    def close(self, nodes: Sequence[BlockNode]) -> None:
        """As Layer.close."""
        self._set("close", nodes, "1")

    def state(self, unprotected: Sequence[BlockNode]) -> LayerState:
        """As Layer.state."""
        return LayerState("flag", "partial" if unprotected else "armed", "")

    def _set(self, word: str, nodes: Sequence[BlockNode], flag: str) -> None:
        self.seen.append((word, list(self.kernel.told)))
        for node in nodes:
            (self.sysfs.root / "dev/block" / node.dev_text / "ro").write_text(flag)


class Bench:
    """A guard with an obedient kernel; ``noted`` is what was journaled."""

    def __init__(self, root: Path, sysfs: Sysfs) -> None:
        self.kernel = Kernel(root / "stasis_guard")
        self.flag = Flag(self.kernel, sysfs)
        self.noted: list[str] = []
        self.guard = WriteGuard(Workspace(root / "state"), [self.flag], sysfs.root, kernel=self.kernel,
                                record=lambda event, **_: self.noted.append(event))

    def codes(self) -> list[str]:
        """Findings that are errors."""
        return [each.code for each in self.guard.state().findings if each.severity is Severity.ERROR]


@pytest.fixture
def bench(tmp_path: Path, sysfs: Sysfs) -> Bench:
    """A bench with one disk."""
    return Bench(tmp_path, sysfs)


def test_the_kernel_is_told_first_to_open_and_last_to_close(bench: Bench) -> None:
    grant = bench.guard.grant(DISK)
    assert bench.flag.seen == [("open", ["grant 65:0 41"])]
    bench.guard.redeem(grant)
    assert bench.guard.grant(DISK) == grant
    bench.guard.revoke(grant)
    assert bench.flag.seen[-1] == ("close", ["grant 65:0 41"])
    assert bench.kernel.told == ["grant 65:0 41", "revoke 65:0 41"]
    assert bench.noted == ["guard.granted", "guard.granted", "guard.revoked"]


def test_a_grant_that_the_kernel_lost_is_void_until_it_is_made_again(bench: Bench, tmp_path: Path) -> None:
    grant = bench.guard.grant(DISK)
    assert (bench.codes(), bench.guard.void()) == ([], frozenset())
    bench.kernel.granted = False
    bench.kernel.show()
    assert bench.codes() == ["grant-void"]
    assert bench.guard.state().void == (DISK.id,)
    assert bench.guard.void() == {DISK.id}
    for use in (bench.guard.redeem, bench.guard.renew):
        with pytest.raises(PolicyRefusal, match="void"):
            use(grant)
    assert bench.noted[-1] == "guard.void"
    assert bench.kernel.told == ["grant 65:0 41"]
    bench.guard.revoke(grant)
    assert files(tmp_path) == []
    again = bench.guard.grant(DISK)
    assert again.token != grant.token
    bench.guard.redeem(again)


def test_a_grant_after_a_void_one_has_a_new_token(bench: Bench) -> None:
    grant = bench.guard.grant(DISK)
    bench.kernel.granted = False
    bench.kernel.show()
    assert bench.guard.grant(DISK) != grant
    with pytest.raises(PolicyRefusal, match="not in force"):
        bench.guard.redeem(grant)


def test_a_kernel_that_does_not_do_it_leaves_no_grant(bench: Bench, tmp_path: Path) -> None:
    bench.kernel.obeys = False
    with pytest.raises(SetupError, match="does not show it"):
        bench.guard.grant(DISK)
    assert files(tmp_path) == []
    assert bench.guard.grants() == {}
    assert [word for word, _ in bench.flag.seen] == ["close"]


def test_a_grant_that_only_the_kernel_knows_is_told(bench: Bench) -> None:
    bench.kernel.granted = True
    bench.kernel.show()
    assert bench.codes() == ["grant-unknown"]
    assert bench.guard.state().level == "partial"


def test_a_hidden_path_is_judged_by_its_disk(bench: Bench) -> None:
    bench.kernel.lines = (disk_line("0:0", 9, "nvme0c0n1", granted=1, read_only=0),)
    bench.kernel.show()
    assert bench.codes() == []


def test_a_disk_that_the_module_leaves_alone_is_told_and_needs_no_grant_there(bench: Bench) -> None:
    bench.kernel.show(protected=0)
    assert bench.codes() == ["unguarded"]
    bench.guard.grant(DISK)
    assert bench.kernel.told == []


def test_a_disk_that_is_gone_ends_its_grant_and_is_journaled_once(bench: Bench, sysfs: Sysfs) -> None:
    grant = bench.guard.grant(DISK)
    for dev in ("65:0", "65:1"):
        (sysfs.root / "dev/block" / dev).unlink()
    assert bench.guard.grants() == {}
    assert bench.guard.grants() == {}
    assert bench.noted == ["guard.granted", "guard.ended"]
    bench.guard.revoke(grant)
    assert bench.kernel.told == ["grant 65:0 41"]


def test_the_picture_has_counters_and_the_last_attempt(bench: Bench, sysfs: Sysfs) -> None:
    bench.kernel.refused = 5
    bench.kernel.lines = (
        "last dev=65:0 diskseq=41 what=bio opcode=0x1 pid=7 comm=dd%1b%5b2J age_ms=2000",
        "last dev=65:0 diskseq=40 what=ioctl opcode=0x125d pid=8 comm=blockdev age_ms=9000",
        "last dev=0:0 diskseq=0 what=lockdown opcode=0x0 pid=9 comm=kexec age_ms=1000",
        "admin name=nvme0 command=2", "other lockdown=1 module=0")
    bench.kernel.show()
    sysfs.add("sdz", "65:240", 60)
    state = bench.guard.state()
    # Six layers count attempts to write; lockdown and modules refuse other things.
    assert (state.level, state.armed, state.refused) == ("armed", True, 30)
    assert [layer.name for layer in state.layers] == [KERNEL_LAYER, *LAYER_WORDS, "flag"]
    assert state.devices[0].refused["bio"] == 2
    assert state.devices[0].flush_kept == 4
    assert state.devices[1].refused == {}
    assert [(each.device, each.process) for each in state.last] == [
        ("no disk", "kexec"), ("/dev/sdq", r"dd\x1b[2J"), ("65:0 (gone)", "blockdev")]
    assert state.refused_by_kind["command"] == 2
    assert [(each.code, each.severity) for each in state.findings] == [("uncounted", Severity.WARNING)]
    document = json.dumps(to_plain(state))
    assert '"admin_refused": {"nvme0": 2}' in document


def test_without_the_module_the_others_hold(tmp_path: Path, sysfs: Sysfs) -> None:
    noted: list[object] = []
    flag = Flag(Kernel(tmp_path / "unused"), sysfs)
    guard = WriteGuard(Workspace(tmp_path / "state"), [flag], sysfs.root, kernel=KernelGuard(tmp_path / "none"),
                       record=lambda event, **detail: noted.append((event, detail.get("kernel"))))
    grant = guard.grant(DISK)
    guard.redeem(grant)
    state = guard.state()
    assert (state.level, state.nowhere, state.refused, state.kernel) == ("absent", False, None, None)
    assert [(layer.name, layer.state) for layer in state.layers] == [(KERNEL_LAYER, "absent"), ("flag", "armed")]
    guard.revoke(grant)
    assert noted == [("guard.granted", "absent"), ("guard.revoked", "absent")]


def test_a_state_that_can_not_be_read_grants_nothing_and_is_told(bench: Bench, tmp_path: Path) -> None:
    (bench.kernel.directory / "state").write_text("what\n")
    state = bench.guard.state()
    assert (state.level, state.layers[0].state) == ("absent", "unknown")
    with pytest.raises(FormatError):
        bench.guard.grant(DISK)
    (bench.kernel.directory / "state").unlink()
    (bench.kernel.directory / "state").mkdir()
    with pytest.raises(SetupError, match="can't be read"):
        bench.kernel.look()


@pytest.mark.parametrize(("code", "kind", "words"), [
    (errno.ENODEV, DeviceError, "plugged again"), (errno.EPERM, SetupError, "did not grant"),
    (errno.EINVAL, SetupError, "did not grant"), (errno.EBUSY, DeviceError, "in use"),
    (errno.EIO, DeviceError, "fails"),
])
def test_what_the_kernel_answers_is_put_into_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[RescueError], words: str,
) -> None:
    guard = _on_files(tmp_path)

    def refuse(_handle: int, _data: bytes) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(kind, match=words) as caught:
        guard.open(NODE)
    assert "grant 65:0 41" in caught.value.evidence


def _on_files(tmp_path: Path, *, granted: int = 0) -> KernelGuard:
    directory = tmp_path / "stasis_guard"
    directory.mkdir()
    (directory / "state").write_text(state_text(disk_line("65:0", 41, "sdq", granted=granted)))
    (directory / "control").touch()
    return KernelGuard(directory)


def test_a_command_is_one_line_in_one_write(tmp_path: Path) -> None:
    guard = _on_files(tmp_path, granted=1)
    guard.open(NODE)
    assert (tmp_path / "stasis_guard/control").read_text() == ""
    guard.close(NODE)
    assert (tmp_path / "stasis_guard/control").read_text() == "revoke 65:0 41\n"


def test_a_revoke_of_what_went_away_meanwhile_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = _on_files(tmp_path, granted=1)
    written: list[bytes] = []

    def gone(_handle: int, data: bytes) -> int:
        written.append(data)
        raise OSError(errno.ENODEV, "gone")

    monkeypatch.setattr(os, "write", gone)
    guard.close(NODE)
    assert written == [b"revoke 65:0 41\n"]


def test_no_module_is_no_error() -> None:
    guard = KernelGuard(Path("/nowhere"))
    assert guard.look() is None
    assert guard.holds((1, 1), 1)


@pytest.mark.parametrize(("text", "words"), [
    (state_text(armed=0), "not armed"), (state_text(sealed=0), "outside the image"),
    (state_text("hook name=bdev_open armed=0"), "bdev_open is not in place"),
])
def test_every_gap_of_the_module_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "state").write_text(text)
    whole = kernel_layers(KernelGuard(tmp_path).look(), "")[0]
    assert whole.state == "partial"
    assert words in whole.detail


def test_a_layer_that_is_not_armed_is_absent(tmp_path: Path) -> None:
    (tmp_path / "state").write_text(state_text(loose="ioctl"))
    states = {layer.name: layer.state for layer in kernel_layers(KernelGuard(tmp_path).look(), "")}
    assert [name for name, state in states.items() if state != "armed"] == ["ioctl"]


def test_levels() -> None:
    armed, absent = LayerState(KERNEL_LAYER, "armed", ""), LayerState("boot-policy", "absent", "")
    assert GuardState((armed, absent), (), (), ()).level == "partial"
    assert GuardState((replace(armed, state="unknown"),), (), (), ()).level == "absent"
    nowhere = GuardState((replace(armed, state="absent"), absent), (), (), ())
    assert (nowhere.level, nowhere.nowhere) == ("absent", True)


def test_a_forged_grant_asks_no_kernel(bench: Bench) -> None:
    with pytest.raises(PolicyRefusal):
        bench.guard.redeem(WriteGrant(DISK.id, 41, "/dev/sdq", "s", "now", "x"))
    assert bench.kernel.told == []


CMDLINE = "quiet nohibernate noresume raid=noautodetect systemd.gpt_auto=no systemd.swap=no fsck.mode=skip\n"


@pytest.mark.parametrize(("cmdline", "swaps", "state", "words"), [
    (CMDLINE, "", "armed", "Nothing assembles"),
    (CMDLINE.replace("noresume ", ""), "", "partial", "noresume is missing"),
    (CMDLINE.strip() + " systemd.swap=yes", "", "partial", "systemd.swap=no is missing"),
    (CMDLINE, "/dev/sda2 partition 9 0 -2\n", "partial", "/dev/sda2 is used as swap"),
    (CMDLINE, "/dev/zram0 partition 9 0 100\n", "armed", "Nothing"),
])
def test_the_boot_policy(tmp_path: Path, cmdline: str, swaps: str, state: str, words: str) -> None:
    (tmp_path / "cmdline").write_text(cmdline)
    (tmp_path / "swaps").write_text(f"Filename Type Size Used Priority\n{swaps}")
    (tmp_path / "os-release").write_text('ID=debian\nIMAGE_ID="stasis"\n')
    policy = BootPolicy(tmp_path, tmp_path / "os-release")
    policy.open((NODE,))
    policy.close((NODE,))
    found = policy.state(())
    assert (found.name, found.state) == ("boot-policy", state)
    assert words in found.detail


def test_another_system_has_no_boot_policy(tmp_path: Path) -> None:
    assert BootPolicy(tmp_path, tmp_path / "none").state(()).state == "absent"
    (tmp_path / "os-release").write_text("IMAGE_ID=stasis\n")
    assert BootPolicy(tmp_path, tmp_path / "os-release").state(()).state == "partial"
    assert BootPolicy(tmp_path, tmp_path).state(()).state == "unknown"
