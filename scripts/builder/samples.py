"""Disk images to show and to test with: demonstration disks, and a zoo of what is found on the disks of a dead node.

Everything here is written into plain files without a mount, so that it works without root and in containers: ext4 and
btrfs from a directory, XFS from a prototype file, an ext4 journal to replay with debugfs, md and ZFS from their
documented layout. Only a dirty XFS log, a dirty btrfs log tree and LVM need root and loop devices.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import struct
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder import superblocks
from builder.host import BuildError, output_of, require_tools, run

MIB = 1 << 20
SECTOR_BYTES = 512
FIRST_PARTITION_BYTES = MIB
TAIL_BYTES = MIB
FS_IOC_SHUTDOWN = 0x8004587D
SHUTDOWN_FLUSH_LOG = 1
TYPES = {"linux": "0FC63DAF-8483-4772-8E79-3D69D8477DE4", "raid": "A19D880F-05FC-4D3B-A006-743F0F84911E"}


def blank(path: Path, size_mib: int) -> None:
    """A sparse file of zeros; replaces what was there."""
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(size_mib * MIB)


def noise(path: Path, size_mib: int, seed: int = 7) -> None:
    """Random bytes, the same ones each time, on which no signature is found."""
    numbers = random.Random(seed)  # noqa: S311  # reproducible on purpose
    with path.open("wb") as file:
        for _ in range(size_mib):
            file.write(numbers.randbytes(MIB))


def place(image: Path, offset_bytes: int, data: bytes) -> None:
    """Write bytes at a place of an image."""
    with image.open("r+b") as file:
        file.seek(offset_bytes)
        file.write(data)


def place_file(image: Path, offset_bytes: int, source: Path) -> None:
    """Copy a file into an image at a place; holes stay holes."""
    with source.open("rb") as reader, image.open("r+b") as writer:
        at = 0
        size = os.fstat(reader.fileno()).st_size
        while at < size:
            data = os.pread(reader.fileno(), MIB, at)
            if data.strip(b"\0"):
                os.pwrite(writer.fileno(), data, offset_bytes + at)
            at += len(data)


def gpt(image: Path, size_mib: int, name: str, *, kind: str = "linux") -> int:
    """A blank image with a GPT and one partition that fills it; the partition's size in bytes (it starts at 1 MiB)."""
    require_tools("sfdisk")
    blank(image, size_mib)
    size_bytes = size_mib * MIB - FIRST_PARTITION_BYTES - TAIL_BYTES
    table = (
        f"label: gpt\nlabel-id: {uuid.uuid5(uuid.NAMESPACE_URL, f'disk:{name}')}\n"
        f"start={FIRST_PARTITION_BYTES // SECTOR_BYTES}, size={size_bytes // SECTOR_BYTES}, type={TYPES[kind]}, "
        f'uuid={uuid.uuid5(uuid.NAMESPACE_URL, f"part:{name}")}, name="{name}"\n'
    )
    done = subprocess.run(
        ["sfdisk", "--quiet", str(image)], input=table, text=True, capture_output=True, check=False,
    )
    if done.returncode:
        raise BuildError(f"sfdisk failed with status {done.returncode}: {done.stderr.strip()}")
    return size_bytes


def prototype(tree: Path) -> str:
    """mkfs.xfs's prototype file for a directory tree. Names with white space can't be said in it: BuildError."""
    lines = ["/stasis", "0 0", "d--755 0 0"]

    def describe(directory: Path) -> None:
        for entry in sorted(directory.iterdir()):
            if len(entry.name.split()) != 1 or len(str(entry).split()) != 1:
                raise BuildError(f"mkfs.xfs can't take a name with white space: {entry}. Rename it.")
            if entry.is_dir():
                lines.append(f"{entry.name} d--755 0 0")
                describe(entry)
            else:
                lines.append(f"{entry.name} ---644 0 0 {entry}")
        lines.append("$")

    describe(tree)
    return "\n".join(lines) + "\n"


def _in_partition(image: Path, size_mib: int, name: str, make: Sequence[str | Path], *, kind: str = "linux") -> None:
    """Run ``make`` with the path of a file of the partition's size added, and put that file into the partition."""
    size_bytes = gpt(image, size_mib, name, kind=kind)
    with tempfile.TemporaryDirectory(prefix="stasis-", dir=image.parent) as scratch:
        part = Path(scratch) / "part"
        with part.open("wb") as file:
            file.truncate(size_bytes)
        output_of([*make, part])
        place_file(image, FIRST_PARTITION_BYTES, part)


def xfs(image: Path, size_mib: int, name: str, tree: Path) -> None:
    """A GPT disk with an XFS (label ``name``, at most 12 bytes) that holds ``tree``; at least 304 MiB."""
    require_tools("mkfs.xfs")
    with tempfile.NamedTemporaryFile("w", prefix="stasis-", suffix=".proto") as proto:
        proto.write(prototype(tree))
        proto.flush()
        _in_partition(image, size_mib, name, ["mkfs.xfs", "-q", "-L", name, "-p", proto.name])


def ext4(image: Path, size_mib: int, name: str, tree: Path) -> None:
    """A GPT disk with an ext4 (label ``name``) that holds ``tree``."""
    require_tools("mkfs.ext4")
    _in_partition(image, size_mib, name, ["mkfs.ext4", "-q", "-L", name, "-d", tree])


def btrfs(image: Path, size_mib: int, name: str, tree: Path) -> None:
    """A GPT disk with a btrfs (label ``name``) that holds ``tree``; at least 128 MiB."""
    require_tools("mkfs.btrfs")
    _in_partition(image, size_mib, name, ["mkfs.btrfs", "-q", "-L", name, "-r", tree])


def swap(image: Path, size_mib: int, *, hibernated: bool = False) -> None:
    """A whole-disk swap area, with the signature of a hibernated system if asked for."""
    require_tools("mkswap")
    blank(image, size_mib)
    output_of(["mkswap", "--label", "swap7", image])
    if hibernated:
        # The kernel moves the signature aside and puts its own into the last ten bytes of the first page.
        place(image, 4096 - 20, b"SWAPSPACE2S1SUSPEND\0")


def dirty_ext4(image: Path, size_mib: int, name: str, tree: Path) -> None:
    """Like :func:`ext4`, with a committed transaction in the journal that a mount, even a read-only one, would replay.

    The transaction rewrites an unused block, so replay is a write to the disk that harms nothing.
    """
    require_tools("debugfs", "dumpe2fs")
    ext4(image, size_mib, name, tree)
    with tempfile.TemporaryDirectory(prefix="stasis-", dir=image.parent) as scratch:
        part, page = Path(scratch) / "part", Path(scratch) / "page"
        with image.open("rb") as reader:
            reader.seek(FIRST_PARTITION_BYTES)
            part.write_bytes(reader.read(size_mib * MIB - FIRST_PARTITION_BYTES - TAIL_BYTES))
        block = int(output_of(["debugfs", "-R", "ffb 1", part]).split(":")[-1].split()[0])
        page.write_bytes(b"journalled ".ljust(4096, b"."))
        commands = Path(scratch) / "commands"
        commands.write_text(f"jo\njw -b {block} {page}\njc\n")
        output_of(["debugfs", "-w", "-f", commands, part])
        place_file(image, FIRST_PARTITION_BYTES, part)


def md_raid1(images: tuple[Path, Path], size_mib: int, name: str, payload: Path) -> None:
    """Two members of a clean RAID1 (metadata 1.2, internal bitmap) whose content is the file ``payload``."""
    data_sectors = size_mib * MIB // SECTOR_BYTES - superblocks.MD_DATA_SECTOR
    if payload.stat().st_size > data_sectors * SECTOR_BYTES:
        raise BuildError(f"{payload} does not fit into an array of {data_sectors * SECTOR_BYTES} bytes.")
    set_uuid = uuid.uuid5(uuid.NAMESPACE_URL, f"md:{name}").bytes
    for number, image in enumerate(images):
        blank(image, size_mib)
        superblock = superblocks.md_superblock(
            set_uuid=set_uuid, device_uuid=uuid.uuid5(uuid.NAMESPACE_URL, f"md:{name}:{number}").bytes, name=name,
            number=number, devices=len(images), data_sectors=data_sectors,
        )
        start = superblocks.MD_SUPER_SECTOR * SECTOR_BYTES
        place(image, start, superblock)
        bitmap = superblocks.md_bitmap(set_uuid=set_uuid, data_sectors=data_sectors)
        place(image, start + superblocks.MD_BITMAP_SECTORS * SECTOR_BYTES, bitmap)
        place_file(image, superblocks.MD_DATA_SECTOR * SECTOR_BYTES, payload)


def zfs_member(image: Path, size_mib: int, pool: str) -> None:
    """A whole-disk member of a ZFS pool by its four labels. There is no pool behind them: no import can work."""
    blank(image, size_mib)
    size_bytes = size_mib * MIB
    label = superblocks.ZFS_LABEL_BYTES
    for offset in (0, label, size_bytes - 2 * label, size_bytes - label):
        place(image, offset, superblocks.zfs_label(
            pool=pool, pool_guid=0x1122334455667788, device_guid=0x99AABBCCDDEEFF00 >> 1, txg=1000,
            size_bytes=size_bytes, offset=offset,
        ))


@dataclass(frozen=True, slots=True)
class Loop:
    """An attached loop device."""

    device: Path


def loops_work() -> bool:
    """Whether we may attach loop devices here (root, and not in a container without them)."""
    return os.geteuid() == 0 and Path("/dev/loop-control").exists() and shutil.which("losetup") is not None


@contextlib.contextmanager
def loop(image: Path, *, offset_bytes: int = 0, size_bytes: int = 0) -> Iterator[Loop]:
    """Attach (a part of) an image to a loop device for a while; BuildError when that is not possible here."""
    if not loops_work():
        raise BuildError("loop devices can't be used here: root and /dev/loop-control are needed.")
    limit = ["--sizelimit", str(size_bytes)] if size_bytes else []
    device = output_of(["losetup", "--find", "--show", "--offset", str(offset_bytes), *limit, image])
    try:
        yield Loop(Path(device))
    finally:
        run(["losetup", "--detach", device])


@contextlib.contextmanager
def mounted(image: Path, kind: str, *, offset_bytes: int = FIRST_PARTITION_BYTES) -> Iterator[Path]:
    """Mount the file system at ``offset_bytes`` of an image, writable, in a directory of our own."""
    size_bytes = image.stat().st_size - offset_bytes - (TAIL_BYTES if offset_bytes else 0)
    with (
        loop(image, offset_bytes=offset_bytes, size_bytes=size_bytes) as attached,
        tempfile.TemporaryDirectory(prefix="stasis-mount-") as where,
    ):
        output_of(["mount", "-t", kind, attached.device, where])
        try:
            yield Path(where)
        finally:
            run(["umount", where])


def crash(image: Path, kind: str, partial: str, data: bytes) -> None:
    """Write ``data`` to the new file ``partial`` of an XFS or ext4 image and stop the file system dead in mid-write.

    The first half is synced. The log is flushed but nothing else is: it must be replayed at the next mount. A deleted
    file that is still open leaves an orphan inode as well.
    """
    with mounted(image, kind) as top:
        target = top / partial
        target.parent.mkdir(parents=True, exist_ok=True)
        half = len(data) // 2
        # Unbuffered: what is still in a buffer could not be written at the close after the shutdown.
        with target.open("wb", buffering=0) as file, (top / "deleted").open("wb", buffering=0) as deleted:
            deleted.write(b"x" * 4096)
            (top / "deleted").unlink()
            file.write(data[:half])
            os.fsync(file.fileno())
            file.write(data[half:])
            fcntl.ioctl(file.fileno(), FS_IOC_SHUTDOWN, struct.pack("<I", SHUTDOWN_FLUSH_LOG))


def dirty_btrfs(image: Path, size_mib: int, name: str, tree: Path) -> None:
    """Like :func:`btrfs`, with a log tree: copied while mounted, right after an fsync."""
    original = image.with_name(f"{image.name}.mounted")
    btrfs(original, size_mib, name, tree)
    with mounted(original, "btrfs") as top, (top / "partial.pt").open("wb") as file:
        file.write(b"p" * 4096)
        os.sync()
        file.write(b"q" * 4096)
        file.flush()
        os.fsync(file.fileno())
        blank(image, size_mib)
        place_file(image, 0, original)
    original.unlink()


def lvm(image: Path, size_mib: int, group: str) -> None:
    """A whole-disk LVM physical volume, with a volume group and a linear logical volume ``data`` of 16 MiB.

    The volume is written into the group's metadata, since lvcreate asks for the kernel's device mapper even when
    nothing is to be activated.
    """
    require_tools("pvcreate", "vgcreate", "vgcfgbackup", "vgcfgrestore")
    blank(image, size_mib)
    with loop(image) as attached, tempfile.TemporaryDirectory(prefix="stasis-") as scratch:
        metadata = Path(scratch) / "metadata"
        config = (
            f'devices{{use_devicesfile=0 filter=["a|^{attached.device}$|","r|.*|"]}} '
            "activation{udev_sync=0 udev_rules=0} global{use_lvmlockd=0} backup{backup=0 archive=0}"
        )

        def lvm2(program: str, *words: str) -> None:
            output_of([program, "--quiet", "--config", config, *words])

        lvm2("pvcreate", str(attached.device))
        lvm2("vgcreate", group, str(attached.device))
        lvm2("vgcfgbackup", "--file", str(metadata), group)
        group_open, _, rest = metadata.read_text().rpartition("}")
        metadata.write_text(f"{group_open}{_LOGICAL_VOLUME}}}{rest}")
        lvm2("vgcfgrestore", "--force", "--file", str(metadata), group)


_LOGICAL_VOLUME = """
logical_volumes {
  data {
    id = "Stasis-1111-2222-3333-4444-5555-666666"
    status = ["READ", "WRITE", "VISIBLE"]
    flags = []
    segment_count = 1
    segment1 {
      start_extent = 0
      extent_count = 4
      type = "striped"
      stripe_count = 1
      stripes = ["pv0", 0]
    }
  }
}
"""
