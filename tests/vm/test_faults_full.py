"""A destination that is too small, and one that somebody else fills while a copy runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from builder.qemu import BuiltImage
from builder.vm import Drive, VmSpec

from tests.support.vm.machine import Machine
from tests.vm.fault_scenes import MIB, SHELL, Operator, destination, noise_disk, sha256

SIZE_MIB = 64


def test_a_full_destination_loses_nothing(
    image: BuiltImage, boot_to_tui: Callable[[VmSpec], Machine], artifacts: Path,
) -> None:
    source = Drive(name="source", path=noise_disk(artifacts / "source.img", SIZE_MIB, 6), serial="NVME-1",
                   throttle_bytes_per_second=0)
    machine = boot_to_tui(VmSpec(
        image.kernel_boot(), drives=(source, destination(artifacts, 320), destination(artifacts, 48, "SMALL-1")),
        cmdline_extra=SHELL, memory_mib=1024))
    operator = Operator(machine)
    content = source.path.read_bytes()

    small = operator.open_destination("SMALL-1")
    refused = operator.verb("image", "NVME-1", "--to", small)
    assert refused.status == 8
    assert "The image needs" in refused.document["error"]["summary"]
    answer = operator.verb("image", "NVME-1", "--to", small, "--accept-partial")
    assert answer.status == 1
    (job,) = answer.document["jobs"]
    assert (job["state"], job["result"]["verdict"]) == ("damaged", "partial")
    rescued = job["result"]["rescued_bytes"]
    folder = operator.folder(job["case"], "NVME-1")
    assert 16 * MIB <= rescued < 48 * MIB
    assert operator.map_of(folder) == [(0, rescued, "+"), (rescued, SIZE_MIB * MIB - rescued, "?")]
    head = operator.shell(f"head --bytes={rescued} {folder}/image.partial.raw | sha256sum").split()[0]
    assert head == sha256(content[:rescued])
    assert operator.good("verify", job["case"])["good"] is True
    operator.good("destination", "release", "SMALL-1")

    to = operator.open_destination()
    machine.throttle("source", 2 * MIB)
    job_id = operator.begin("NVME-1", to)
    operator.copied(job_id, 8)
    free = f"$(($(stat --file-system --format='%a * %S' {to}) - 12 * {MIB}))"
    operator.shell(f"fallocate --length {free} {to}/ballast")
    record = operator.rested(job_id)
    assert (record["state"], record["exit_status"]) == ("interrupted", 8)
    words = operator.listed()
    assert "The destination is full; the copy stopped in good order." in words
    assert "Make room there, then resume" in words
    operator.press("j", "INTERRUPTED")
    operator.press("enter", "The destination is full; the copy stopped in good order.")

    operator.shell(f"rm {to}/ballast")
    machine.throttle("source", 0)
    operator.press("r", "DONE")
    record = operator.rested(job_id)
    assert (record["state"], record["exit_status"]) == ("done", 0)
    operator.assert_rescued(record["case"], source)
    machine.assert_untouched()
