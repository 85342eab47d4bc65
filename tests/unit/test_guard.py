"""Grants and their files over a sysfs made of files; the layers only write down what they are told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from rescue_tui.core.access import WriteGrant
from rescue_tui.core.errors import DeviceError, PolicyRefusal, SetupError
from rescue_tui.core.guardstate import LayerState
from rescue_tui.core.record import to_plain
from rescue_tui.system import blockdev
from rescue_tui.system.blockdev import BlockNode
from rescue_tui.system.guard import WriteGuard
from rescue_tui.system.guardlayers import ReadOnlyFlag
from rescue_tui.system.guardview import GuardState
from rescue_tui.system.kernelguard import KernelGuard
from rescue_tui.system.workspace import Workspace
from tests.support.false_sysfs import DISK, Sysfs, files


@dataclass
class Recorder:
    """A layer that writes down what it is told and sets the flag in the false sysfs."""

    sysfs: Sysfs
    stuck: bool = False
    told: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def open(self, nodes: Sequence[BlockNode]) -> None:
        """As Layer.open."""
        self._tell("open", nodes, False)

    def close(self, nodes: Sequence[BlockNode]) -> None:
        """As Layer.close."""
        self._tell("close", nodes, True)

    def state(self, unprotected: Sequence[BlockNode]) -> LayerState:
        """As Layer.state."""
        return LayerState("recorder", "partial" if unprotected else "armed", "", 3)

    def _tell(self, word: str, nodes: Sequence[BlockNode], read_only: bool) -> None:
        self.told.append((word, tuple(node.name for node in nodes)))
        for node in nodes:
            if not self.stuck:
                (self.sysfs.root / "dev/block" / node.dev_text / "ro").write_text(f"{int(read_only)}\n")


def make(tmp_path: Path, sysfs: Sysfs, *, stuck: bool = False) -> tuple[WriteGuard, Recorder]:
    """A guard of one process and its layer."""
    layer = Recorder(sysfs, stuck)
    guard = WriteGuard(Workspace(tmp_path / "state"), [layer], sysfs.root, kernel=KernelGuard(tmp_path / "none"))
    return guard, layer


def test_a_grant_is_a_file_for_each_node_and_opens_them(tmp_path: Path, sysfs: Sysfs) -> None:
    guard, layer = make(tmp_path, sysfs)
    grant = guard.grant(DISK)
    assert files(tmp_path) == ["65:0.41", "65:1.41"]
    assert layer.told == [("open", ("sdq", "sdq1"))]
    assert guard.grants() == {DISK.id: grant}
    guard.redeem(grant)
    assert guard.grant(DISK) == grant
    other, _ = make(tmp_path, sysfs)
    other.redeem(grant)
    assert (tmp_path / "state/grants/65:0.41").stat().st_mode & 0o777 == 0o600


def test_revoke_closes_and_forgets(tmp_path: Path, sysfs: Sysfs) -> None:
    guard, layer = make(tmp_path, sysfs)
    grant = guard.grant(DISK)
    guard.revoke(grant)
    guard.revoke(grant)
    assert layer.told[1:] == [("close", ("sdq", "sdq1"))]
    assert files(tmp_path) == []
    with pytest.raises(PolicyRefusal, match="not in force"):
        guard.redeem(grant)


def test_no_forged_grant_is_redeemed(tmp_path: Path, sysfs: Sysfs) -> None:
    guard, _ = make(tmp_path, sysfs)
    grant = guard.grant(DISK)
    for forged in (replace(grant, token="0" * 32), replace(grant, node="/dev/sdr"), replace(grant, generation=42),
                   WriteGrant(DISK.id, 41, "/dev/sdq", "s", "now", "")):
        with pytest.raises(PolicyRefusal):
            guard.redeem(forged)


def test_a_replug_ends_the_grant(tmp_path: Path, sysfs: Sysfs) -> None:
    guard, _ = make(tmp_path, sysfs)
    grant = guard.grant(DISK)
    (sysfs.root / "devices/sdq/diskseq").write_text("42\n")
    with pytest.raises(PolicyRefusal):
        guard.redeem(grant)
    assert guard.grants() == {}
    assert files(tmp_path) == []
    with pytest.raises(DeviceError, match="plugged again"):
        guard.grant(DISK)
    guard.revoke(grant)


def test_a_disk_that_is_gone_ends_the_grant(tmp_path: Path, sysfs: Sysfs) -> None:
    guard, _ = make(tmp_path, sysfs)
    guard.grant(DISK)
    for dev in ("65:0", "65:1"):
        (sysfs.root / "dev/block" / dev).unlink()
    assert guard.grants() == {}
    with pytest.raises(DeviceError, match="no block device 65:0"):
        guard.grant(DISK)


def test_renew_takes_in_new_partitions(tmp_path: Path, sysfs: Sysfs) -> None:
    guard, layer = make(tmp_path, sysfs)
    grant = guard.grant(DISK)
    child = sysfs.root / "devices/sdq/sdq2"
    sysfs._node(child, "259:7", True)
    (child / "partition").write_text("2\n")
    assert [node.partition for node in guard.renew(grant)] == [None, 1, 2]
    assert files(tmp_path) == ["259:7.41", "65:0.41", "65:1.41"]
    assert layer.told[-1] == ("open", ("sdq", "sdq1", "sdq2"))


def test_hardware_that_stays_read_only_is_closed_again(tmp_path: Path, sysfs: Sysfs) -> None:
    guard, layer = make(tmp_path, sysfs, stuck=True)
    with pytest.raises(PolicyRefusal, match="write protected"):
        guard.grant(DISK)
    assert [word for word, _ in layer.told] == ["open", "close"]
    assert files(tmp_path) == []


def test_without_diskseq_nothing_is_granted(tmp_path: Path, sysfs: Sysfs) -> None:
    guard, layer = make(tmp_path, sysfs)
    with pytest.raises(SetupError, match="diskseq"):
        guard.grant(replace(DISK, generation=0))
    assert layer.told == []


def test_a_partition_number_is_no_disk(tmp_path: Path, sysfs: Sysfs) -> None:
    guard, layer = make(tmp_path, sysfs)
    with pytest.raises(DeviceError):
        guard.grant(replace(DISK, dev=(65, 1)))
    assert layer.told == []


def test_damaged_and_foreign_grant_files_grant_nothing(tmp_path: Path, sysfs: Sysfs) -> None:
    guard, _ = make(tmp_path, sysfs)
    grants = tmp_path / "state/grants"
    grants.mkdir(parents=True)
    (grants / "65:0.41").write_text("{half")
    (grants / "x:y.z").write_text("{}")
    (grants / "65:1.41").write_text(json.dumps({"partition": 1}))
    (grants / "9:9.9").write_text("{}")
    assert guard.grants() == {}
    assert files(tmp_path) == ["65:0.41", "65:1.41", "x:y.z"]


def test_protect_closes_what_has_no_grant(tmp_path: Path, sysfs: Sysfs) -> None:
    guard, layer = make(tmp_path, sysfs)
    guard.protect(DISK)
    assert layer.told == [("close", ("sdq", "sdq1"))]
    guard.grant(DISK)
    with pytest.raises(PolicyRefusal, match="is granted"):
        guard.protect(DISK)


def test_the_state_tells_each_open_device(tmp_path: Path, sysfs: Sysfs) -> None:
    sysfs.add("sdr", "65:16", 50, ro=False, parts=[(1, "65:17")])
    sysfs.add("sds", "65:32", 51, ro=True)
    for name, dev in (("loop3", "7:3"), ("zram0", "252:0"), ("ram1", "1:1"), ("sr0", "11:0")):
        sysfs.add(name, dev, 60, ro=False)
    guard, _ = make(tmp_path, sysfs)
    guard.grant(DISK)
    state = guard.state()
    assert [finding.summary.split()[0] for finding in state.findings] == ["/dev/sdr", "/dev/sdr1"]
    assert {finding.code for finding in state.findings} == {"unprotected"}
    exempt = {device.node for device in state.devices if device.exempt}
    assert exempt == {"/dev/loop3", "/dev/zram0", "/dev/ram1", "/dev/sr0"}
    assert {device.node for device in state.devices if device.granted} == {"/dev/sdq", "/dev/sdq1"}
    assert (state.armed, state.protected, state.refused) == (False, 1, 3)
    document = json.dumps(to_plain(state))
    assert next(iter(guard.grants().values())).token not in document


def test_armed_needs_every_layer_and_no_open_device() -> None:
    armed = LayerState("a", "armed", "")
    assert GuardState((armed,), (), (), ()).armed
    assert not GuardState((), (), (), ()).armed
    assert not GuardState((armed, replace(armed, state="partial")), (), (), ()).armed
    assert not GuardState((replace(armed, state="absent"),), (), (), ()).armed
    assert GuardState((armed,), (), (), ()).refused is None


def test_the_read_only_flag_is_honest(tmp_path: Path) -> None:
    assert ReadOnlyFlag(tmp_path / "none").state(()).state == "absent"
    rule = tmp_path / "rule"
    rule.touch()
    assert ReadOnlyFlag(rule).state(()).state == "armed"
    node = BlockNode("sdr", (65, 16), 50, False, 512)
    partial = ReadOnlyFlag(rule).state((node,))
    assert (partial.state, partial.refused) == ("partial", None)
    assert "Without a read-only flag: 1" in partial.detail


def test_a_node_that_is_another_device_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="gone"):
        blockdev.check_node(str(tmp_path / "none"), (65, 0))
    with pytest.raises(DeviceError, match="another device"):
        blockdev.check_node("/dev/null", (65, 0))
    node = BlockNode("null", (1, 3), 1, False, 0)
    with pytest.raises(DeviceError, match="another device"):
        blockdev.set_read_only(node, True)


def test_names_with_a_slash_become_paths() -> None:
    assert BlockNode("cciss!c0d0", (104, 0), 1, True, 0).node == "/dev/cciss/c0d0"


def test_a_directory_that_is_not_ours_is_told() -> None:
    with pytest.raises(SetupError):
        WriteGuard(Workspace(Path("/proc/none"))).grants()
