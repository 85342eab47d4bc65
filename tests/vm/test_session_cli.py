"""An operator's whole session by the verbs of `stasis`, and who a disk is, on the built image."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builder.qemu import BuiltImage
from builder.vm import Controller, Drive, Namespace, Subsystem, VmSpec

from tests.support.vm.deadline import Deadline
from tests.support.vm.machine import Machine
from tests.vm.fault_scenes import Operator, sha256
from tests.vm.scenes import (
    BOOT_SECONDS,
    SHELL,
    blank_usb,
    ext4_source,
    first_difference,
    noise_source,
    opened,
    power_off,
    xfs_source,
)

XFS, EXT4 = "S4XFNX0T700123", "S4EXNX0T700124"
DISK_FIELDS = {
    "role": str, "reason": str, "identity": str, "weak": bool, "node": str, "dev": str, "generation": int, "kind": str,
    "model": str, "serial": str, "firmware": str, "size_bytes": int, "logical_sector_bytes": int,
    "physical_sector_bytes": int, "transport": str, "slot": str, "read_only": bool, "removable": bool,
    "external": bool, "health": dict, "signatures": list, "signatures_complete": bool, "partitions": list,
    "holders": list, "mounts": list, "links": list, "siblings": list, "findings": list, "guard": str,
}
SPACE_FIELDS = {
    "mount_point": str, "filesystem": str, "free_bytes": int, "sparse": bool, "preallocate": bool, "direct_io": bool,
}
PLAN_FIELDS = {
    "source": str, "source_node": str, "source_serial": str, "size_bytes": int, "sector_bytes": int, "case_dir": str,
    "image": str, "mapfile": str, "command": list, "retries": int, "resume": bool, "warnings": list,
}
JOB_FIELDS = {
    "id": str, "kind": str, "title": str, "state": str, "created_at": str, "updated_at": str, "source": str,
    "case": str, "commands": list, "progress": dict, "error": str, "result": dict, "exit_status": int,
}
RESULT_FIELDS = {"verdict": str, "sha256": str, "size_bytes": int, "rescued_bytes": int, "bad_bytes": int}
MOUNT_FIELDS = {"target": str, "at": str, "filesystem": str, "options": list, "loop": str, "note": str}
ERROR_FIELDS = {"kind": str, "summary": str, "hint": str, "evidence": str, "exit": int}


def fields(value: dict[str, Any], wanted: Mapping[str, type]) -> dict[str, Any]:
    """``value``, which must have each of the fields in the right type."""
    lacking = {name: type(value.get(name)).__name__ for name, kind in wanted.items()
               if type(value.get(name)) is not kind}
    assert not lacking, f"missing, or of another type: {lacking} in {value}"
    return value


@dataclass(frozen=True, slots=True)
class Verbs:
    """The verbs in one guest; each document is held to its schema."""

    operator: Operator

    def good(self, *words: str, status: int = 0) -> dict[str, Any]:
        """A verb that must end with this status; its document."""
        answer = self.operator.verb(*words, seconds=600)
        assert answer.status == status, f"stasis {shlex.join(words)}: {answer}"
        verb = next(word for word in words if not word.startswith("-"))
        assert next(iter(answer.document)) == "schema"
        assert answer.document["schema"] == f"stasis.{verb}/1"
        assert ("error" in answer.document) == (status > 1)
        return answer.document

    def refused(self, *words: str, status: int = 3) -> str:
        """A verb that must be refused; its one sentence."""
        error = fields(self.good(*words, status=status)["error"], ERROR_FIELDS)
        assert error["exit"] == status
        assert error["hint"]
        return str(error["summary"])

    def open(self, serial: str, filesystem: str) -> str:
        """Grant, format and mount a blank disk; the mount point."""
        granted = fields(self.good("destination", "grant", serial, "--confirm", serial),
                         {"action": str, "identity": str, "node": str, "granted_at": str, "serial": str})
        assert granted["serial"] == serial
        made = self.good("destination", "format", serial, "--confirm", serial, "--filesystem", filesystem)
        assert made["filesystem"] == filesystem
        space = fields(self.good("destination", "mount", granted["identity"])["space"], SPACE_FIELDS)
        assert space["filesystem"] == filesystem
        assert space["sparse"] == (filesystem != "exfat")
        assert space["mount_point"] == f"/run/stasis/destination/{serial}"
        return str(space["mount_point"])

    def image(self, to: str, *serials: str) -> tuple[str, list[str]]:
        """Image sources to the end; the case folder and the images."""
        document = fields(self.good("image", *serials, "--to", to),
                          {"dry_run": bool, "detached": bool, "exit": int, "plans": list, "jobs": list})
        assert (document["dry_run"], document["detached"], document["exit"]) == (False, False, 0)
        plans = [fields(plan, PLAN_FIELDS) for plan in document["plans"]]
        assert [plan["source_serial"] for plan in plans] == list(serials)
        assert all(plan["command"][:3] == ["ddrescue", "-d", "-r0"] for plan in plans)
        for job in document["jobs"]:
            fields(fields(job, JOB_FIELDS)["result"], RESULT_FIELDS)
            assert (job["state"], job["exit_status"], job["progress"]["percent"]) == ("done", 0, 100.0)
            assert job["result"]["bad_bytes"] == 0
        return plans[0]["case_dir"], [plan["image"] for plan in plans]


def test_whole_session_by_verbs_to_each_kind_of_destination(
    image: BuiltImage, boot: Callable[[VmSpec], Machine], artifacts: Path,
) -> None:
    xfs, ext4 = xfs_source(artifacts, "ckpt", XFS), ext4_source(artifacts, "archive", EXT4)
    usb = {kind: blank_usb(artifacts, f"USB-{kind.upper()}-1", name=kind) for kind in ("ext4", "xfs", "exfat")}
    machine = boot(VmSpec(image.kernel_boot(), drives=(xfs, ext4, *usb.values()), cmdline_extra=SHELL,
                          memory_mib=1024))
    machine.guest.wait_ready(Deadline.after(BOOT_SECONDS))
    operator = Operator(machine)
    verbs = Verbs(operator)

    _look_at_the_devices(verbs)
    point = verbs.open("USB-EXT4-1", "ext4")
    case, images = verbs.image(point, XFS, EXT4)
    for path, source in zip(images, (xfs, ext4), strict=True):
        operator.assert_identical(path, source.path.read_bytes())
    _look_at_the_jobs(verbs)
    _look_at_the_case(verbs, case, point)
    _mount_the_images(verbs, images, artifacts)
    assert "source" in verbs.refused("destination", "grant", XFS, "--confirm", XFS, "--internal")
    verbs.good("destination", "release", "USB-EXT4-1")

    kept = {"ext4": images[1]}
    for kind in ("xfs", "exfat"):
        case, images = verbs.image(verbs.open(f"USB-{kind.upper()}-1", kind), EXT4)
        operator.assert_identical(images[0], ext4.path.read_bytes())
        assert verbs.good("verify", case)["good"] is True
        verbs.good("destination", "release", f"USB-{kind.upper()}-1")
        kept[kind] = images[0]
    writable = "grep -L 1 /sys/class/block/sd*/ro /sys/class/block/nvme*/ro || true"
    assert operator.shell(writable) == "", "a disk is still writable after the release"

    power_off(machine)
    machine.assert_untouched()
    # No host here has exFAT: that image was compared in the guest.
    for kind in ("ext4", "xfs"):
        inside = Path(kept[kind]).relative_to(f"/run/stasis/destination/USB-{kind.upper()}-1")
        with opened(usb[kind].path, kind) as top:
            assert first_difference(top / inside, ext4.path) is None
            assert sorted(path.name for path in top.glob("stasis-case-*/*")) != []


def _look_at_the_devices(verbs: Verbs) -> None:
    document = verbs.good("devices")
    disks = {disk["serial"]: fields(disk, DISK_FIELDS) for disk in document["devices"]}
    assert {XFS, EXT4, "USB-EXT4-1", "USB-XFS-1", "USB-EXFAT-1"} <= set(disks)
    assert document["findings"] == []
    for serial, kind in ((XFS, "xfs"), (EXT4, "ext4")):
        disk = disks[serial]
        assert (disk["role"], disk["guard"]) == ("source", "read-only")
        assert (disk["read_only"], disk["external"]) == (True, False)
        assert [sign["kind"] for sign in disk["partitions"][0]["signatures"]] == [kind]
        assert disk["health"]["ok"] is True
        assert disk["namespace"]["nsid"] == 1
    assert len({disk["identity"] for disk in disks.values()}) == len(disks)
    listed = verbs.good("destination", "list")
    assert listed["destinations"] == []
    assert {each["serial"]: each["allowed"] for each in listed["candidates"]}.items() >= {
        XFS: False, EXT4: False, "USB-EXT4-1": True}.items()
    # A wrong serial, a source, and a disk that nobody granted.
    verbs.refused("destination", "grant", "USB-EXT4-1", "--confirm", "usb-ext4-1")
    verbs.refused("destination", "grant", XFS, "--confirm", XFS, "--internal")
    verbs.refused("destination", "mount", "USB-EXT4-1")
    verbs.refused("image", EXT4, "--to", "/tmp")
    assert verbs.good("guard")["grants"] == []


def _look_at_the_jobs(verbs: Verbs) -> None:
    jobs = verbs.good("jobs", "list")["jobs"]
    assert [job["state"] for job in jobs] == ["done", "done"]
    assert verbs.good("jobs", "attach", jobs[0]["id"])["exit"] == 0


def _look_at_the_case(verbs: Verbs, case: str, point: str) -> None:
    verdict = fields(verbs.good("verify", case),
                     {"case": str, "good": bool, "exit": int, "checked_files": int, "checked_bytes": int,
                      "findings": list})
    assert (verdict["good"], verdict["findings"]) == (True, [])
    report = verbs.good("report", case)
    html = verbs.operator.shell(f"cat {shlex.quote(report['html'])}")
    assert XFS in html
    assert EXT4 in html
    assert report["json"].endswith("report.json")
    # Whoever has only coreutils can check it, too.
    verbs.operator.shell(f"cd {shlex.quote(case)} && sha256sum --quiet -c MANIFEST.sha256", 300)
    collected = fields(verbs.good("collect", "--to", point), {"to": str, "files": list})
    assert {"devices.json", "kernel.log"} <= {Path(name).name for name in collected["files"]}


def _mount_the_images(verbs: Verbs, images: list[str], artifacts: Path) -> None:
    for path, kind, name in zip(images, ("xfs", "ext4"), ("ckpt", "archive"), strict=True):
        at = f"/mnt/{kind}"
        mount = fields(verbs.good("mount", path, "--part", "1", "--at", at)["mount"], MOUNT_FIELDS)
        assert (mount["filesystem"], mount["at"]) == (kind, at)
        assert "ro" in mount["options"]
        model = artifacts / f"{name}.tree/run-7/model.safetensors"
        assert verbs.operator.shell(f"sha256sum {at}/run-7/model.safetensors").split()[0] == sha256(model.read_bytes())
        assert verbs.operator.machine.guest.run(f"touch {at}/x", Deadline.after(60)).status != 0
        verbs.good("unmount", at)
        assert verbs.operator.shell(f"ls {at}") == ""
    verbs.refused("mount", images[0], "--part", "1", "--at", "/mnt/rw", "--rw")


# identities ----------------------------------------------------------------------------------------------------------
# QEMU puts a prefix of its own before it.
NQN = "subsystem-1"


def test_a_disk_is_who_it_is_whatever_its_name(
    image: BuiltImage, boot: Callable[[VmSpec], Machine], blank: Callable[[str, int], Path], artifacts: Path,
) -> None:
    nvme = (noise_source(artifacts, "first", "SWAP-NVME-1"), noise_source(artifacts, "second", "SWAP-NVME-2", seed=12))
    virtio = tuple(Drive(name=f"virtio{number}", path=blank(f"virtio{number}", 8 * number), kind="virtio",
                         serial=f"SWAP-VIRTIO-{number}") for number in (1, 2))
    paths = Subsystem(
        "subsystem", NQN, (Controller("left", "CTRL-SHARED"), Controller("right", "CTRL-SHARED")),
        (Namespace(name="ns1", path=blank("ns1", 32), nsid=1, eui64=0x0011223344556677),
         Namespace(name="ns2", path=blank("ns2", 16), nsid=2, uuid="6f8e2a4c-1b3d-4e5f-8a9b-0c1d2e3f4a5b")))
    spec = VmSpec(image.kernel_boot(), subsystems=(paths,), cmdline_extra=SHELL, memory_mib=1024)
    seen = []
    for drives in ((*nvme, *virtio), (*nvme[::-1], *virtio[::-1])):
        machine = boot(replace(spec, drives=drives))
        machine.guest.wait_ready(Deadline.after(BOOT_SECONDS))
        verbs = Verbs(Operator(machine))
        disks = verbs.good("devices")["devices"]
        _look_at_the_subsystem(verbs, disks)
        swapped = {disk["serial"]: disk for disk in disks if disk["serial"].startswith("SWAP-")}
        assert len(swapped) == 4
        # Whichever name it is asked for by, the answer is of the same disk.
        for serial, disk in swapped.items():
            (same,) = verbs.good("devices", "--no-health", disk["identity"])["devices"]
            assert (same["serial"], same["node"]) == (serial, disk["node"])
        seen.append(swapped)
        machine.assert_untouched()
        machine.power_cut()
    for serial, before in seen[0].items():
        after = seen[1][serial]
        assert (before["identity"], before["size_bytes"]) == (after["identity"], after["size_bytes"])
    # The order of the virtio disks is the order of the kernel's names; that of NVMe disks is anybody's guess.
    assert seen[0]["SWAP-VIRTIO-1"]["node"] == seen[1]["SWAP-VIRTIO-2"]["node"]
    assert seen[0]["SWAP-VIRTIO-2"]["node"] == seen[1]["SWAP-VIRTIO-1"]["node"]


def _look_at_the_subsystem(verbs: Verbs, disks: list[dict[str, Any]]) -> None:
    nvme = (disk for disk in disks if disk["namespace"])
    spaces = sorted((disk for disk in nvme if disk["namespace"]["subsystem"]["nqn"].endswith(NQN)),
                    key=lambda disk: int(disk["namespace"]["nsid"]))
    assert [space["namespace"]["nsid"] for space in spaces] == [1, 2]
    for space in spaces:
        assert len(space["namespace"]["paths"]) == 2
        controllers = space["namespace"]["subsystem"]["controllers"]
        assert len({control["name"] for control in controllers}) == 2
        assert {control["state"] for control in controllers} == {"live"}
        assert space["role"] == "source"
    # Linux ignores EUI-64 and UUID of QEMU's controllers (NVME_QUIRK_BOGUS_NID), so the next best is asked for.
    assert [space["identity"].partition(NQN)[2] for space in spaces] == ["/1", "/2"]
    assert all(space["identity"].startswith("nvme-nqn:") for space in spaces)
    assert spaces[1]["siblings"] or spaces[0]["siblings"]
    # One serial for both: a serial names no disk here, an identity does.
    verbs.refused("devices", "CTRL-SHARED", status=2)
    # Blank, internal, and of a subsystem whose other namespace is a source.
    verbs.refused("destination", "grant", spaces[1]["identity"], "--confirm", "CTRL-SHARED", "--internal")
