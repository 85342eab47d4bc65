"""The damage map on real file systems: which tensors lie on sectors that the image of their disk lacks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rescue_tui.checkpoints.damage import BAD, PROVEN, UNKNOWN, UNREAD
from rescue_tui.checkpoints.model import Checkpoint, Options, Proof, Verdict
from rescue_tui.core.errors import FormatError, UsageError
from rescue_tui.core.finding import Severity
from rescue_tui.core.mapfile import Status
from rescue_tui.jobs.damage import ELSEWHERE, NO_MAP, AskedMap
from rescue_tui.jobs.extracting import extract
from rescue_tui.jobs.salvaging import salvage
from rescue_tui.jobs.scanning import ScanAnswer, scan_paths
from tests.root.conftest import Desk
from tests.support.damaged_images import (
    MIB,
    SECTOR,
    START,
    make_image,
    mapfile,
    mounted_writable,
    place,
    wipe,
)
from tests.support.loops import loop_disk, run, snapshot

torch = pytest.importorskip("torch")
st_torch = pytest.importorskip("safetensors.torch")
torch_files = pytest.importorskip("tests.support.ckpt.torch_files")
SIDE = 160
TENSORS = 8
Lost = list[tuple[int, int, Status]]


def state(seed: int) -> dict[str, Any]:
    """Tensors of 100 KiB; ``zeros`` is as zero as an optimizer's first moments are."""
    found = {f"layers.{number}.weight": torch_files.tensor_of(torch.float32, (SIDE, SIDE), seed + number)
             for number in range(TENSORS)}
    return {**found, "zeros": torch.zeros(SIDE, SIDE)}


def fill(at: Path) -> None:
    """Two steps of a run and one file of no interest."""
    for step in (100, 200):
        where = at / f"run/step_{step}"
        where.mkdir(parents=True)
        st_torch.save_file(state(step), where / "model.safetensors")
        torch.save(state(step), where / "optimizer.pt")
    (at / "log.txt").write_bytes(os.urandom(64 << 10))


def tensor_place(file: Path, name: str) -> int:
    """Where the payload of a tensor begins in a file of ours."""
    row = next(row for row in scan_paths([file], Options(), processes=1).scan.checkpoints)
    return next(tensor.blocks[0].offset for tensor in row.reading.tensors if tensor.name == name)


class Node:
    """An image in the folder of a case, with its mapfile, mounted as `stasis mount` does it."""

    def __init__(self, desk: Desk, tmp_path: Path) -> None:
        self.desk = desk
        self.folder = tmp_path / "stasis-case-1" / "nvme-1"
        self.folder.mkdir(parents=True)
        self.image = self.folder / "image.raw"
        self.at = tmp_path / "at"
        self.work = tmp_path / "work"
        self.lost: Lost = []

    def make(self, filesystem: str, filler: Callable[[Path], None]) -> None:
        make_image(self.image, filesystem, self.work, filler)

    def lose(self, file: str, offset: int, size: int, status: Status = Status.BAD_SECTOR) -> None:
        """The sectors under these bytes of a file could not be read. Call within `mounted_writable`."""
        where = place(self.work / file, offset) + START
        self.lost.append((where, size, status))

    async def mount(self) -> Path:
        """Zero what is lost, write the map, mount."""
        for start, size, _ in self.lost:
            wipe(self.image, start, size)
        self.write_map()
        await self.desk.mounts.mount(snapshot(), str(self.image), self.at)
        return self.at

    def write_map(self) -> None:
        (self.folder / "image.map").write_text(mapfile(self.image.stat().st_size, self.lost).to_text())

    async def unmount(self) -> None:
        await self.desk.mounts.unmount(self.at)


@pytest.fixture
def node(desk: Desk, tmp_path: Path) -> Iterator[Node]:
    """A disk of a node, to be made and damaged."""
    made = Node(desk, tmp_path)
    yield made
    if os.path.ismount(made.at):  # the test failed: nothing stays mounted for that
        run("umount", "--lazy", str(made.at))


def command(*words: str) -> tuple[int, str]:
    """A command's status and what it printed."""
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout


def rows(answer: ScanAnswer) -> dict[str, Checkpoint]:
    """The rows by path."""
    return {row.path: row for row in answer.scan.checkpoints}


def told(row: Checkpoint, *codes: str) -> list[tuple[str, str, int | None, int | None, tuple[str, ...]]]:
    """Code, file, offset, length and tensors of the findings with these codes."""
    return [(finding.code, finding.file, finding.offset, finding.length, finding.tensors)
            for finding in row.reading.findings if finding.code in codes]


@pytest.mark.parametrize("filesystem", ["xfs", "ext4"])
async def test_tensors_on_lost_sectors_are_named(node: Node, filesystem: str, tmp_path: Path) -> None:
    node.make(filesystem, fill)
    plain, packed = "run/step_200/model.safetensors", "run/step_200/optimizer.pt"
    with mounted_writable(node.image, node.work) as at:
        one = tensor_place(at / plain, "layers.3.weight")
        # A sector inside one tensor, and an area over the border of two, which nobody has read yet.
        first = -(-(one + 9000) // SECTOR) * SECTOR
        node.lose(plain, first, SECTOR)
        border = tensor_place(at / plain, "layers.5.weight") // SECTOR * SECTOR
        node.lose(plain, border - SECTOR, 3 * SECTOR, Status.NON_TRIED)
        zeros = -(-(tensor_place(at / packed, "zeros") + 4000) // SECTOR) * SECTOR
        node.lose(packed, zeros, 2 * SECTOR)
    await node.mount()

    blind = tmp_path / "blind.raw"
    shutil.copyfile(node.image, blind)
    with mounted_writable(blind, node.work) as at:
        unknowing = rows(scan_paths([at], Options()))
    # The control: whoever has no map takes the zeros for weights.
    assert unknowing[plain].verdict is Verdict.INTACT
    assert not told(unknowing[plain], BAD, UNREAD)

    answer = scan_paths([node.at], Options())
    found = rows(answer)
    assert found["run/step_100/model.safetensors"].verdict is Verdict.INTACT
    assert found["run/step_100/optimizer.pt"].verdict is Verdict.VERIFIED
    row = found[plain]
    assert row.verdict is Verdict.INCOMPLETE
    assert told(row, BAD, UNREAD, PROVEN) == [
        (BAD, plain, first, SECTOR, ("layers.3.weight",)),
        (UNREAD, plain, border - SECTOR, 3 * SECTOR, ("layers.4.weight", "layers.5.weight"))]
    assert {tensor.name for tensor in row.reading.tensors if tensor.proof is Proof.DAMAGED} == {
        f"layers.{number}.weight" for number in (3, 4, 5)}
    # Zeros that a checksum proves were zeros before.
    assert found[packed].verdict is Verdict.VERIFIED
    assert told(found[packed], BAD, UNREAD, PROVEN) == [(PROVEN, packed, zeros, 2 * SECTOR, ("zeros",))]
    (known,) = answer.maps
    assert (known.offset_bytes, known.image, known.mapfile) == (
        START, str(node.image), str(node.folder / "image.map"))
    assert (known.lost.bad.total_bytes, known.lost.unread.total_bytes) == (3 * SECTOR, 3 * SECTOR)
    assert (known.in_files_bytes, known.free_bytes, known.elsewhere_bytes) == (6 * SECTOR, 0, 0)
    assert answer.scan.findings == ()
    await node.unmount()


async def test_processes_of_their_own_know_the_map_too(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.make("xfs", fill)
    path = "run/step_100/model.safetensors"
    with mounted_writable(node.image, node.work) as at:
        node.lose(path, tensor_place(at / path, "layers.0.weight") // SECTOR * SECTOR + SECTOR, SECTOR)
    await node.mount()
    alone = scan_paths([node.at], Options(), processes=1)
    monkeypatch.setattr("rescue_tui.jobs.scanning.POOL_BYTES", 1)
    assert scan_paths([node.at], Options(), processes=2) == alone
    assert rows(alone)[path].verdict is Verdict.INCOMPLETE
    await node.unmount()


async def test_a_checksum_that_fails_is_corrupt_and_the_map_says_why(node: Node, tmp_path: Path) -> None:
    node.make("xfs", fill)
    path = "run/step_200/optimizer.pt"
    with mounted_writable(node.image, node.work) as at:
        where = -(-(tensor_place(at / path, "layers.2.weight") + 1) // SECTOR) * SECTOR
        node.lose(path, where, SECTOR)
    await node.mount()
    row = rows(scan_paths([node.at], Options()))[path]
    assert row.verdict is Verdict.CORRUPT
    assert told(row, BAD) == [(BAD, path, where, SECTOR, ("layers.2.weight",))]
    answer = salvage(node.at / path, tmp_path / "out")
    assert {one.name: one.code for one in answer.chosen.lost} == {"layers.2.weight": "crc-mismatch"}
    assert all(kept.tensor.proof is Proof.VERIFIED for kept in answer.chosen.kept)
    await node.unmount()


async def test_salvage_leaves_out_what_was_never_read(node: Node, tmp_path: Path) -> None:
    node.make("xfs", fill)
    path = "run/step_200/model.safetensors"
    with mounted_writable(node.image, node.work) as at:
        node.lose(path, -(-(tensor_place(at / path, "layers.6.weight") + 1) // SECTOR) * SECTOR, SECTOR,
                  Status.NON_SCRAPED)
    await node.mount()
    answer = salvage(node.at / path, tmp_path / "out")
    (lost,) = answer.chosen.lost
    assert (lost.name, lost.code) == ("layers.6.weight", UNREAD)
    saved = st_torch.load_file(tmp_path / "out/model.safetensors.salvaged.safetensors")
    truth = state(200)
    assert set(saved) == set(truth) - {"layers.6.weight"}
    assert all(torch_files.raw_bytes(saved[name]) == torch_files.raw_bytes(truth[name]) for name in saved)
    assert {kept.tensor.proof for kept in answer.chosen.kept} == {Proof.UNVERIFIABLE}
    await node.unmount()


async def test_a_borrowed_header_says_when_its_owner_has_losses(node: Node, tmp_path: Path) -> None:
    node.make("ext4", fill)
    path, sibling = "run/step_200/model.safetensors", "run/step_100/model.safetensors"
    with mounted_writable(node.image, node.work) as at:
        node.lose(path, 0, SECTOR)
        node.lose(sibling, tensor_place(at / sibling, "layers.5.weight") // SECTOR * SECTOR + SECTOR, SECTOR)
    await node.mount()
    row = rows(scan_paths([node.at], Options()))[path]
    assert row.verdict is Verdict.CORRUPT
    assert told(row, BAD) == [(BAD, path, 0, SECTOR, ())]
    answer = salvage(node.at / path, tmp_path / "out")
    (loan,) = answer.borrowed
    assert loan.file.endswith(sibling)
    assert "never read from the disk" in loan.note
    saved = st_torch.load_file(tmp_path / "out/model.safetensors.salvaged.safetensors")
    truth = state(200)
    assert {name: torch_files.raw_bytes(tensor) for name, tensor in saved.items()} == {
        name: torch_files.raw_bytes(tensor) for name, tensor in truth.items()}
    await node.unmount()


async def test_extract_tells_the_damage_in_its_manifest(node: Node, tmp_path: Path) -> None:
    def with_config(at: Path) -> None:
        fill(at)
        (at / "run/step_100/config.json").write_text(json.dumps({"layers": ["x" * 4000] * 3}))

    node.make("xfs", with_config)
    hit, beside = "run/step_200/model.safetensors", "run/step_100/config.json"
    with mounted_writable(node.image, node.work) as at:
        where = -(-(tensor_place(at / hit, "layers.1.weight") + 1) // SECTOR) * SECTOR
        node.lose(hit, where, SECTOR)
        node.lose(beside, 2048, SECTOR)
    await node.mount()
    out = tmp_path / "out"
    answer = extract([node.at], out, {Verdict.INCOMPLETE, Verdict.INTACT})
    assert not answer.good
    assert [(finding.severity, finding.code, finding.file, finding.offset, finding.length)
            for finding in answer.findings] == [(Severity.ERROR, BAD, beside, 2048, SECTOR)]
    remarks = [line for line in (out / "MANIFEST.sha256").read_text().splitlines() if line.startswith("#")]
    assert remarks == [f"# bad 2048+{SECTOR}  {beside}", f"# bad {where}+{SECTOR}  {hit}"]
    assert command("env", "-C", str(out), "sha256sum", "--check", "--strict", "--quiet", "MANIFEST.sha256") == (0, "")
    # Another call for other files keeps the remarks.
    extract([node.at], out, {Verdict.VERIFIED})
    lines = (out / "MANIFEST.sha256").read_text().splitlines()
    assert [line for line in lines if line.startswith("#")] == remarks
    assert any(line.endswith("  run/step_200/optimizer.pt") for line in lines)
    await node.unmount()


async def test_lost_sectors_in_no_file_are_free_or_a_warning(node: Node) -> None:
    node.make("xfs", fill)
    with mounted_writable(node.image, node.work) as at:
        (at / "gone").write_bytes(os.urandom(MIB))
        run("sync", "-f", str(at))
        free = place(at / "gone", 4096)
        (at / "gone").unlink()
    node.lost = [(START + free, SECTOR, Status.BAD_SECTOR)]
    await node.mount()
    answer = scan_paths([node.at], Options())
    (known,) = answer.maps
    assert (known.in_files_bytes, known.free_bytes, known.elsewhere_bytes) == (0, SECTOR, 0)
    assert answer.scan.findings == ()
    await node.unmount()
    # The second and last copy of the super block's area is a table of the file system's own.
    node.lost = [*node.lost, (START + 2 * SECTOR, SECTOR, Status.BAD_SECTOR)]
    node.write_map()
    await node.desk.mounts.mount(snapshot(), str(node.image), node.at)
    answer = scan_paths([node.at], Options())
    (known,) = answer.maps
    assert (known.in_files_bytes, known.free_bytes, known.elsewhere_bytes) == (0, SECTOR, SECTOR)
    (finding,) = answer.scan.findings
    assert (finding.code, finding.severity, finding.offset, finding.length) == (
        ELSEWHERE, Severity.WARNING, START + 2 * SECTOR, SECTOR)
    assert "directories or the file system's own tables" in finding.summary
    await node.unmount()


async def test_a_mount_of_a_part_says_that_it_knows_a_part(node: Node, tmp_path: Path) -> None:
    node.make("xfs", fill)
    with mounted_writable(node.image, node.work):
        node.lose("log.txt", 4096, SECTOR)
    await node.mount()
    assert scan_paths([node.at / "run"], Options()).scan.findings == ()
    part = tmp_path / "part"
    part.mkdir()
    run("mount", "--bind", str(node.at / "run"), str(part))
    try:
        (finding,) = scan_paths([part], Options()).scan.findings
    finally:
        run("umount", str(part))
    assert finding.code == ELSEWHERE
    assert "files outside of this mount" in finding.summary
    await node.unmount()


async def test_a_named_mapfile_is_checked_against_the_mount(node: Node, tmp_path: Path) -> None:
    node.make("ext4", fill)
    other = tmp_path / "copy-of-a-disk.img"
    path = "run/step_200/model.safetensors"
    with mounted_writable(node.image, node.work) as at:
        node.lose(path, -(-(tensor_place(at / path, "layers.6.weight") + 1) // SECTOR) * SECTOR, SECTOR)
    shutil.copyfile(node.image, other)
    named = tmp_path / "disk.map"
    named.write_text(mapfile(other.stat().st_size, node.lost).to_text())
    await node.desk.mounts.mount(snapshot(), str(other), node.at)
    assert rows(scan_paths([node.at], Options()))[path].verdict is Verdict.INTACT
    for asked in (AskedMap(named), AskedMap(named, START)):
        assert rows(scan_paths([node.at], Options(), mapfile=asked))[path].verdict is Verdict.INCOMPLETE
    with pytest.raises(UsageError, match="of another image"):
        scan_paths([node.at], Options(), mapfile=AskedMap(named, other.stat().st_size))
    with pytest.raises(UsageError, match="not there"):
        scan_paths([node.at], Options(), mapfile=AskedMap(tmp_path / "none"))
    (tmp_path / "no.map").write_text("no map at all\n")
    with pytest.raises(FormatError):
        scan_paths([node.at], Options(), mapfile=AskedMap(tmp_path / "no.map"))
    with pytest.raises(UsageError, match="no file system of a block device"):
        scan_paths([Path("/proc/self/fdinfo")], Options(), mapfile=AskedMap(named))

    status, printed = command(sys.executable, "-m", "rescue_tui", "checkpoints", "scan", str(node.at), "--mapfile",
                              str(named), "--json")
    assert status == 1
    document = json.loads(printed)
    (known,) = document["damage_maps"]
    assert (known["mapfile"], known["offset_bytes"], known["bad_bytes"]) == (str(named), START, SECTOR)
    (entry,) = (item for item in document["checkpoints"] if item["path"] == path)
    assert entry["verdict"] == "incomplete"
    status, printed = command(sys.executable, "-m", "rescue_tui", "checkpoints", "scan", str(node.at), "--mapfile",
                              str(named))
    assert status == 1
    assert f"{node.at}: 512 B on bad sectors and 0 B not read yet, says {named}." in printed
    assert "512 bytes lie on bad sectors of the disk" in printed
    assert "[layers.6.weight]" in printed
    assert entry["tensors"] == {"total": TENSORS + 1, "verified": 0, "unverifiable": TENSORS, "damaged": 1}
    await node.unmount()


async def test_a_case_without_a_readable_mapfile_is_told(node: Node) -> None:
    node.make("ext4", fill)
    await node.mount()
    assert scan_paths([node.at], Options()).scan.findings == ()
    (node.folder / "image.map").write_text("cut o")
    (finding,) = scan_paths([node.at], Options()).scan.findings
    assert (finding.code, finding.severity) == (NO_MAP, Severity.WARNING)
    await node.unmount()


async def test_btrfs_places_nothing_and_proves_what_it_reads(node: Node) -> None:
    def unchecked(at: Path) -> None:
        fill(at)
        (at / "unchecked").mkdir()
        run("chattr", "+C", str(at / "unchecked"))
        shutil.copyfile(at / "run/step_100/model.safetensors", at / "unchecked/model.safetensors")

    node.make("btrfs", unchecked)
    payload = torch_files.raw_bytes(state(200)["layers.3.weight"])
    # No extent tells where it lies: its bytes are looked for.
    where = node.image.read_bytes().index(payload[8192:12288]) // SECTOR * SECTOR
    node.lost = [(where, SECTOR, Status.BAD_SECTOR)]
    await node.mount()
    answer = scan_paths([node.at], Options())
    found = rows(answer)
    whole, hit, open_to_doubt = (f"{name}/model.safetensors" for name in ("run/step_100", "run/step_200", "unchecked"))
    assert found[whole].verdict is Verdict.INTACT
    assert [item[0] for item in told(found[whole], UNKNOWN)] == [UNKNOWN]
    assert found[hit].verdict is Verdict.INCOMPLETE
    assert told(found[hit], "unreadable")[0][-1] == ("layers.3.weight",)
    assert found[open_to_doubt].verdict is Verdict.INCOMPLETE
    assert [finding.code for finding in answer.scan.findings] == [ELSEWHERE]
    await node.unmount()


def test_a_partition_of_a_loop_device_is_found_too(tmp_path: Path) -> None:
    folder = tmp_path / "stasis-case-1/disk"
    folder.mkdir(parents=True)
    image, at = folder / "image.partial.raw", tmp_path / "m"
    make_image(image, "ext4", at, fill)
    path = "run/step_100/model.safetensors"
    with mounted_writable(image, at):
        where = place(at / path, 8192)
    (folder / "image.map.bak").write_text(
        mapfile(image.stat().st_size, [(START + where, SECTOR, Status.NON_TRIMMED)]).to_text())
    (folder / "image.map").write_text("")
    with loop_disk(image) as disk:
        run("partx", "--add", disk.node)
        run("mount", "-o", "ro,noload", f"{disk.node}p1", str(at))
        answer = scan_paths([at / "run"], Options())
        assert told(rows(answer)["step_100/model.safetensors"], UNREAD)[0][1:4] == (
            "step_100/model.safetensors", 8192, SECTOR)
        assert answer.maps[0].mapfile == str(folder / "image.map.bak")
        # From above as well: the scan crosses mounts.
        answer = scan_paths([tmp_path], Options())
        assert [item[0] for item in told(rows(answer)[f"m/{path}"], UNREAD)] == [UNREAD]


async def test_files_that_share_extents_share_the_damage(node: Node) -> None:
    def shared(at: Path) -> None:
        fill(at)
        run("cp", "--reflink=always", str(at / "run/step_200/model.safetensors"), str(at / "run/copy.safetensors"))

    node.make("xfs", shared)
    path = "run/step_200/model.safetensors"
    with mounted_writable(node.image, node.work) as at:
        where = -(-(tensor_place(at / path, "layers.0.weight") + 1) // SECTOR) * SECTOR
        node.lose(path, where, SECTOR)
    await node.mount()
    answer = scan_paths([node.at], Options())
    for name in (path, "run/copy.safetensors"):
        assert told(rows(answer)[name], BAD) == [(BAD, name, where, SECTOR, ("layers.0.weight",))]
    assert answer.maps[0].in_files_bytes == SECTOR
    await node.unmount()
