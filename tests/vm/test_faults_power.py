"""The power fails in the middle of two copies; both go on after the next start, each in another way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from builder.qemu import BuiltImage
from builder.vm import Drive, VmSpec

from tests.support.vm.machine import Machine
from tests.vm.fault_scenes import MIB, SHELL, Operator, destination, noise_disk

SPEED = 2 * MIB


def test_after_a_power_cut_both_ways_to_resume_end_in_identical_images(
    image: BuiltImage, boot_to_tui: Callable[[VmSpec], Machine], artifacts: Path,
) -> None:
    sources = tuple(
        Drive(name=name, path=noise_disk(artifacts / f"{name}.img", 160, seed, blank_mib=112), serial=name.upper(),
              throttle_bytes_per_second=0)
        for seed, name in enumerate(("nvme-a", "nvme-b"), start=4)
    )
    spec = VmSpec(
        image.kernel_boot(), drives=(*sources, destination(artifacts, 512)), cmdline_extra=SHELL, memory_mib=1024)
    machine = boot_to_tui(spec)
    operator = Operator(machine)
    to = operator.open_destination()
    for source in sources:
        machine.throttle(source.name, SPEED)
    started = operator.good("image", "NVME-A", "NVME-B", "--to", to, "--detach")["jobs"]
    jobs = [job["id"] for job in started]
    for job, source in zip(started, sources, strict=True):
        # Two saves told of something: whichever of the two files the cut spoils, the other one has reached the disk.
        operator.saved(job["id"], operator.folder(job["case"], source.serial), 32)
    machine.power_cut()
    machine.assert_untouched()

    # The disks are found in another order, so their names may change.
    machine = boot_to_tui(replace(spec, drives=(spec.drives[2], spec.drives[1], spec.drives[0])))
    operator = Operator(machine)
    assert operator.good("jobs", "list")["jobs"] == []
    to = operator.open_destination()
    found = {job["id"]: job for job in operator.good("jobs", "list")["jobs"]}
    assert found.keys() == set(jobs)
    assert {job["state"] for job in found.values()} == {"interrupted"}
    assert "The machine stopped while this job was at work." in operator.listed()
    case = found[jobs[0]]["case"]
    for source in sources:
        rescued = sum(size for _, size, status in operator.map_of(operator.folder(case, source.serial))
                      if status == "+")
        assert 8 * MIB <= rescued < 160 * MIB, source.serial

    operator.good("jobs", "resume", jobs[0])
    answer = operator.verb("image", "NVME-B", "--to", to, "--resume")
    assert answer.status == 0, answer
    assert [job["id"] for job in answer.document["jobs"]] == [jobs[1]]
    assert operator.rested(jobs[0])["state"] == "done"
    for source in sources:
        operator.assert_rescued(case, source)
    machine.assert_untouched()
