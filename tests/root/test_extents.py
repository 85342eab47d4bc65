"""Extents as the kernel tells them, against filefrag and against the bytes that lie there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rescue_tui.core.damage import PlaceUnknown
from rescue_tui.core.ranges import ranges_of
from rescue_tui.system.extents import extents_of, fibmap, free_space
from tests.support.damaged_images import START, make_image, mounted_writable, physical
from tests.support.loops import run


def extents(path: Path, filesystem: str) -> list[tuple[int, int, int, bool]]:
    """What the kernel says of a file."""
    with path.open("rb") as file:
        return [(extent.offset, extent.medium_offset, extent.length, extent.written)
                for extent in extents_of(file.fileno(), path.stat().st_size, filesystem)]


def fragmented(at: Path) -> Path:
    """A file whose pieces alternate with those of another."""
    with (at / "one").open("wb") as one, (at / "other").open("wb") as other:
        for number in range(600):
            for file in (one, other):
                file.write(bytes([number % 251 + 1]) * 4096)
                file.flush()
                os.fsync(file.fileno())
    (at / "other").unlink()
    with (at / "one").open("r+b") as one:
        begin = one.seek(0, os.SEEK_END)
        os.posix_fallocate(one.fileno(), begin, 600 * 8192)
        for number in range(600):
            os.pwrite(one.fileno(), bytes([number % 251 + 1]) * 4096, begin + number * 8192)
        os.fsync(one.fileno())
    return at / "one"


@pytest.mark.parametrize("filesystem", ["xfs", "ext4"])
def test_extents_are_those_that_filefrag_tells(tmp_path: Path, filesystem: str) -> None:
    image = tmp_path / "image"
    make_image(image, filesystem, tmp_path / "m")
    with mounted_writable(image, tmp_path / "m") as at:
        path = fragmented(at)
        found = extents(path, filesystem)
        assert [item[:3] for item in found] == physical(path)
        assert len(found) > 1200  # more than the kernel is asked for at once
        with path.open("rb") as file:
            blocks = list(fibmap(file.fileno(), path.stat().st_size))
        raw = image.read_bytes()
        for one in (found, [(extent.offset, extent.medium_offset, extent.length, True) for extent in blocks]):
            content = bytearray(path.stat().st_size)
            for offset, where, length, written in one:
                if written:
                    content[offset:offset + length] = raw[START + where:START + where + length]
            assert content == path.read_bytes()


@pytest.mark.parametrize("filesystem", ["xfs", "ext4"])
def test_space_set_aside_and_holes_can_lose_nothing(tmp_path: Path, filesystem: str) -> None:
    image = make_image(tmp_path / "image", filesystem, tmp_path / "m")
    with mounted_writable(image, tmp_path / "m") as at:
        path = at / "sparse"
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 1 << 20)
            os.pwrite(file.fileno(), b"x" * 8192, 256 << 10)
            os.truncate(file.fileno(), 2 << 20)
            os.fsync(file.fileno())
        found = extents(path, filesystem)
        assert [(offset, length) for offset, _, length, written in found if written] == [(256 << 10, 8192)]
        assert sum(length for *_, length, written in found if not written) == (1 << 20) - 8192


def test_a_file_within_its_inode_lies_in_the_inode(tmp_path: Path) -> None:
    image = make_image(tmp_path / "image", "ext4", tmp_path / "m")
    with mounted_writable(image, tmp_path / "m") as at:
        (at / "tiny").write_bytes(b"within the inode")
        run("sync", "-f", str(at))
        ((offset, where, length, written),) = extents(at / "tiny", "ext4")
    assert (offset, length, written) == (0, 16, True)
    assert image.read_bytes()[START + where:START + where + length] == b"within the inode"


@pytest.mark.parametrize("filesystem", ["xfs", "ext4"])
def test_free_space_is_where_no_file_lies(tmp_path: Path, filesystem: str) -> None:
    image = make_image(tmp_path / "image", filesystem, tmp_path / "m")
    with mounted_writable(image, tmp_path / "m") as at:
        path = fragmented(at)
        run("sync", "-f", str(at))
        descriptor = os.open(at, os.O_RDONLY | os.O_DIRECTORY)
        try:
            free = free_space(descriptor, os.fstat(descriptor).st_dev)
            assert len(free_space(descriptor, os.makedev(250, 250))) == 0
        finally:
            os.close(descriptor)
        held = ranges_of((where, where + length) for _, where, length, _ in extents(path, filesystem))
        stat = os.statvfs(at)
        assert free.without(held) == free
        # Some of what is free is kept back, by ext4 for its own tables.
        assert free.total_bytes > 0.9 * stat.f_bfree * stat.f_frsize
        assert free.total_bytes < image.stat().st_size - held.total_bytes


def test_what_is_of_no_disk_has_no_place(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 8192)
    with path.open("rb") as file, pytest.raises(PlaceUnknown, match="not known to tell"):
        extents_of(file.fileno(), 8192, "overlay")
    with Path("/proc/version").open("rb") as file, pytest.raises(PlaceUnknown, match="does not say"):
        extents_of(file.fileno(), 100, "ext4")
