"""Bad sectors: what is read well is in the image bit for bit, what is not is named to the sector."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from builder.qemu import BuiltImage
from builder.vm import Drive, VmSpec

from tests.support.vm.machine import Machine
from tests.vm.fault_scenes import MIB, SECTOR, SHELL, Operator, destination, noise_disk, sha256

SIZE_MIB = 24
LAST = SIZE_MIB * MIB // SECTOR - 1
# The first sector and the last, one alone, neighbours, and the two ends of a cluster: of 4 MiB for NVMe, of 1 MiB for a
# disk that turns. ddrescue reads each failed cluster again sector by sector, so there are few of them.
NVME_BAD = (0, 9, 1000, 1001, 1002, 8191)
SATA_BAD = (0, 77, 1000, 1001, 2047, LAST)


def _areas(sectors: tuple[int, ...]) -> list[tuple[int, int]]:
    """Start and size in bytes of the runs of sectors."""
    runs = [list(run) for _, run in groupby(enumerate(sectors), lambda pair: pair[1] - pair[0])]
    return [(run[0][1] * SECTOR, len(run) * SECTOR) for run in runs]


def test_the_bad_areas_are_exactly_the_bad_sectors(
    image: BuiltImage, boot_to_tui: Callable[[VmSpec], Machine], artifacts: Path,
) -> None:
    sources = (
        Drive(name="nvme", path=noise_disk(artifacts / "nvme.img", SIZE_MIB, 1), serial="NVME-BAD",
              bad_sectors=NVME_BAD),
        Drive(name="sata", path=noise_disk(artifacts / "sata.img", SIZE_MIB, 2), serial="SATA-BAD",
              bad_sectors=SATA_BAD, kind="sata"),
    )
    machine = boot_to_tui(VmSpec(
        image.kernel_boot(), drives=(*sources, destination(artifacts, 192)), cmdline_extra=SHELL, memory_mib=1024))
    operator = Operator(machine)
    to = operator.open_destination()
    answer = operator.verb("image", "NVME-BAD", "SATA-BAD", "--to", to, seconds=900)
    assert answer.status == 1
    assert answer.document["exit"] == 1
    jobs = answer.document["jobs"]
    assert [job["state"] for job in jobs] == ["damaged", "damaged"]
    assert jobs[0]["case"] == jobs[1]["case"]
    case = jobs[0]["case"]
    report = json.loads(operator.shell(f"cat {case}/report.json"))
    page = operator.shell(f"cat {case}/report.html")
    for drive in sources:
        bad = _areas(drive.bad_sectors)
        bad_bytes = len(drive.bad_sectors) * SECTOR
        folder = operator.folder(case, drive.serial)
        areas = operator.map_of(folder)
        assert [(start, size) for start, size, status in areas if status == "-"] == bad, drive.serial
        assert {status for _, _, status in areas} == {"+", "-"}
        content = bytearray(drive.path.read_bytes())
        for start, size in bad:
            content[start:start + size] = bytes(size)
        operator.assert_identical(f"{folder}/image.raw", bytes(content))
        (told,) = (source for source in report["sources"] if source["disk"]["serial"] == drive.serial)
        assert told["state"] == told["result"]["verdict"] == "damaged"
        assert told["result"]["sha256"] == sha256(bytes(content))
        assert told["result"]["bad_bytes"] == bad_bytes
        assert told["result"]["rescued_bytes"] == SIZE_MIB * MIB - bad_bytes
        for listed in (told["map"]["bad_areas"], told["result"]["bad_areas"]):
            assert [(area["start_bytes"], area["size_bytes"]) for area in listed] == bad
        assert re.search(rf"in {len(bad)} areas could not be read", page)
    verdict = operator.good("verify", case)
    assert verdict["good"] is True
    assert [(finding["severity"], finding["code"]) for finding in verdict["findings"]] == [("info", "bad-areas")] * 2
    listed = operator.listed()
    assert listed.count("damaged") == len(sources)
    machine.assert_untouched()
