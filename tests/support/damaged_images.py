"""Images of file systems with checkpoints in them, and mapfiles with holes where a test wants them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rescue_tui.core.mapfile import Area, Mapfile, Status, joined
from tests.support.loops import loop_disk, run

MIB = 1 << 20
SECTOR = 512
START = 1 * MIB
PART = 338 * MIB
MAKE = {
    "xfs": ("mkfs.xfs", "-q"),
    "ext4": ("mkfs.ext4", "-q", "-O", "inline_data"),
    "btrfs": ("mkfs.btrfs", "-q"),
}


def mapfile(size_bytes: int, lost: Iterable[tuple[int, int, Status]]) -> Mapfile:
    """A map of an image in which these areas (start, size, status) are not rescued."""
    areas: list[Area] = []
    at = 0
    for start, size, status in sorted(lost):
        if start > at:
            areas.append(Area(at, start - at, Status.FINISHED))
        areas.append(Area(start, size, status))
        at = start + size
    if at < size_bytes:
        areas.append(Area(at, size_bytes - at, Status.FINISHED))
    return Mapfile(joined(areas), 0, "+")


@contextmanager
def mounted_writable(image: Path, at: Path, filesystem: str = "", offset: int = START) -> Iterator[Path]:
    """The file system in an image, made first when one is named, mounted for writing by the test alone."""
    at.mkdir(exist_ok=True)
    with loop_disk(image, 0, "--offset", str(offset), "--sizelimit", str(PART)) as disk:
        if filesystem:
            run(*MAKE[filesystem], disk.node)
        run("mount", disk.node, str(at))
        try:
            yield at
        finally:
            run("umount", str(at))


def nothing(at: Path) -> None:
    """Leave it empty."""


def make_image(image: Path, filesystem: str, at: Path, fill: Callable[[Path], None] = nothing) -> Path:
    """A partitioned image of 340 MiB whose only partition has a file system that ``fill`` wrote to."""
    with image.open("wb") as file:
        file.truncate(340 * MIB)
    table = f"label: gpt\nstart={START // SECTOR}, size={PART // SECTOR}, type=linux\n"
    run("sfdisk", "--quiet", str(image), stdin=table)
    with mounted_writable(image, at, filesystem):
        fill(at)
        run("sync", "-f", str(at))
    return image


def physical(path: Path) -> list[tuple[int, int, int]]:
    """Extents by another program than ours (filefrag): offset in the file, offset on the medium, length; bytes."""
    found = []
    for line in run("filefrag", "-b512", "-v", str(path)).splitlines():
        words = line.replace("..", " ").replace(":", " ").split()
        if words and words[0].isdigit() and len(words) >= 6:
            found.append((int(words[1]) * SECTOR, int(words[3]) * SECTOR, int(words[5]) * SECTOR))
    return found


def place(path: Path, offset: int) -> int:
    """Where on the medium a byte of a file lies, as filefrag tells."""
    for logical, where, length in physical(path):
        if logical <= offset < logical + length:
            return where + offset - logical
    raise AssertionError(f"{path} has no byte {offset} on the medium")


def wipe(image: Path, start: int, size: int) -> None:
    """What ddrescue leaves where it could not read: zeros."""
    with image.open("r+b") as file:
        file.seek(start)
        file.write(bytes(size))
