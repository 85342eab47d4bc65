"""The write guard against writes over the network: disks of another machine, reached by NVMe over TCP.

Two machines on one cable. The target has no guard and exports two NVMe disks; its QEMU is the oracle. First it connects
to itself, and each act is seen to write. Then a guarded machine connects, and nothing but reads arrives.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from builder import samples
from builder.attackkit import ensure_kit
from builder.host import BUILD, output_of
from builder.qemu import BuiltImage, working_accel
from builder.vm import Drive

from tests.support.attack import fabrics
from tests.support.attack.fabrics import REFUSED_ONLY, WRITES, Remote, acts, arrived, changes, remote
from tests.support.attack.stage import GUEST, Stage, enter, in_kit, require_guard
from tests.support.vm.machine import Machine

CLOSED, OPEN = 1, 2
DISK_MIB = 320
SIBLING = ("dd direct", "nvme write", "nvme write-zeroes")


@pytest.fixture(scope="module")
def stage(image: BuiltImage) -> Stage:
    """The image, the attack kit and a directory for all of this module."""
    directory = BUILD / "vm-tests" / "guard-fabrics"
    directory.mkdir(parents=True, exist_ok=True)
    return Stage(image, ensure_kit(GUEST), directory)


@pytest.fixture(scope="module")
def cable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A socket between the machines; its path must be short."""
    return tmp_path_factory.mktemp("cable") / "socket"


@pytest.fixture(scope="module")
def target(stage: Stage, cable: Path) -> Iterator[Machine]:
    """The machine that exports two disks: the first must stay as it is, the second may be written."""
    drives = tuple(
        Drive(name=name, path=stage.directory / f"{name}.img", serial=f"TCP-{name}".upper(), protected=name == "closed")
        for name in ("closed", "open"))
    for number, drive in enumerate(drives):
        # Noise between the tables of a file system: what is read over the network is not all zero.
        samples.noise(drive.path, DISK_MIB, number)
        output_of(["mkfs.ext4", "-q", "-F", "-E", "nodiscard", drive.path])
    spec = stage.spec(stage.unguarded(), drives, (), {"nvmet-tcp.ko": fabrics.target_module()})
    accel = working_accel(stage.image.kernel)
    spec = replace(spec, accel=accel, cpus=1, memory_mib=2048, network=fabrics.network(cable, server=True))
    with Machine(spec, stage.directory / "target") as machine:
        enter(machine)
        fabrics.address(machine, fabrics.TARGET_ADDRESS)
        fabrics.export(machine, tuple(drive.serial for drive in drives))
        yield machine


@pytest.fixture(scope="module")
def written(target: Machine) -> dict[str, list[str]]:
    """What each act did to the second disk when the target was connected to itself."""
    fabrics.connect(target, "127.0.0.1")
    disk = remote(target, OPEN)
    in_kit(target, f"blockdev --setrw {disk.node}")
    found = reached(target, disk, WRITES)
    fabrics.disconnect(target)
    return found


@pytest.fixture(scope="module")
def initiator(stage: Stage, target: Machine, written: dict[str, list[str]], cable: Path) -> Iterator[Machine]:
    """The image as it is shipped, connected to the target. It has no NVMe disk of its own."""
    assert written
    directory = stage.directory / "initiator-acts"
    directory.mkdir(exist_ok=True)
    spec = replace(stage, directory=directory).spec(stage.image.kernel_boot(), (), (), {})
    accel = working_accel(stage.image.kernel)
    spec = replace(spec, accel=accel, cpus=1, memory_mib=2048, network=fabrics.network(cable, server=False))
    with Machine(spec, stage.directory / "initiator") as machine:
        enter(machine)
        require_guard(machine)
        fabrics.address(machine, fabrics.INITIATOR_ADDRESS)
        fabrics.connect(machine, fabrics.TARGET_ADDRESS)
        yield machine


def reached(target: Machine, disk: Remote, names: tuple[str, ...], said: Path | None = None) -> dict[str, list[str]]:
    """Do the acts; by name, what arrived at the target's disks that is no read and no flush."""
    found, words = {}, {}
    for act in acts(names):
        before = len(target.trace())
        words[act.name] = disk.act(act)
        found[act.name] = changes(arrived(target, before))
    (said or target.directory / "control.json").write_text(json.dumps([
        {"act": name, "status": status, "said": text, "arrived": len(found[name])}
        for name, (status, text) in words.items()], indent=1))
    return found


def test_each_act_writes_to_the_target_where_nothing_guards(written: dict[str, list[str]]) -> None:
    assert [name for name, commands in written.items() if not commands] == []
    assert tuple(written) == WRITES


def test_nothing_but_reads_arrives_at_the_target_from_a_guarded_machine(
    target: Machine, initiator: Machine, stage: Stage,
) -> None:
    disk = remote(initiator, CLOSED)
    before = len(target.trace())
    for names, said in ((WRITES, "refused.json"), (REFUSED_ONLY, "refused-too.json")):
        found = reached(target, disk, names, stage.directory / said)
        assert {name: commands for name, commands in found.items() if commands} == {}
    # Not even a flush.
    assert arrived(target, before) == ()
    ended = [entry["status"] for said in ("refused.json", "refused-too.json")
             for entry in json.loads((stage.directory / said).read_text())]
    assert 124 not in ended
    target.assert_untouched()


def test_a_guarded_machine_reads_the_disk_over_the_network(target: Machine, initiator: Machine, stage: Stage) -> None:
    node = remote(initiator, CLOSED).node
    there = in_kit(initiator, f"dd if={node} bs=1M iflag=direct status=none | sha256sum").split()[0]
    assert there == hashlib.sha256((stage.directory / "closed.img").read_bytes()).hexdigest()
    assert arrived(target, len(target.trace())) == ()
    target.assert_untouched()


def test_a_granted_namespace_is_written_and_its_sibling_is_not(
    target: Machine, initiator: Machine, stage: Stage,
) -> None:
    disk, sibling = remote(initiator, OPEN), remote(initiator, CLOSED)
    disk.control("grant")
    found = reached(target, disk, WRITES, stage.directory / "granted.json")
    assert [name for name, commands in found.items() if not commands] == []
    before = len(target.trace())
    assert changes_of(reached(target, sibling, SIBLING, stage.directory / "sibling.json")) == []
    assert arrived(target, before) == ()
    disk.control("revoke")
    before = len(target.trace())
    assert changes_of(reached(target, disk, WRITES, stage.directory / "released.json")) == []
    assert arrived(target, before) == ()
    target.assert_untouched()


def changes_of(found: dict[str, list[str]]) -> list[str]:
    """The acts that reached a disk."""
    return [name for name, commands in found.items() if commands]
