"""What lies on the disks that are attacked, as data: which disks, how the content is made, what it is called.

The content is made by the real tools in a machine without the guard (workshop), so that logs, bitmaps, intent headers
and pools are what a dead node leaves. ``make`` runs with the variables of acts.py; what it leaves in use (a mounted
btrfs, an imported pool) is in use when the disks are copied, and ``release`` ends that use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from builder.vm import Controller, Drive, Kind, Namespace, Subsystem

MIB = 1 << 20
ONE_PARTITION = "printf 'label: gpt\\n,\\n' | sfdisk --quiet $D && $W $T"
TREE = "mkdir $M/run-7 && seq 4000 > $M/run-7/train.log && head -c 300000 /dev/urandom > $M/run-7/model.pt"
MARKER = "marker"
MARKER_NSID = 200
SHARED_SERIAL = "WALL"
PATHS_SERIAL = "PATHS"


@dataclass(frozen=True, slots=True)
class Layout:
    """``disks`` are names; ``part`` is what follows the node of a disk to give the node with the content."""

    name: str
    title: str
    disks: tuple[str, ...]
    tags: frozenset[str]
    make: str
    release: str = ""
    part: str = ""
    size_mib: int = 64
    kind: Kind = "nvme"
    logical_bytes: int = 512


def _layout(name: str, title: str, tags: str, make: str, *, disks: int = 1, release: str = "", part: str = "",
            size_mib: int = 64, kind: Kind = "nvme", logical_bytes: int = 512) -> Layout:
    names = tuple(f"{name}-{number}" for number in range(1, disks + 1)) if disks > 1 else (name,)
    return Layout(name, title, names, frozenset({"disk", *tags.split()}), make, release, part, size_mib, kind, logical_bytes)


# Disks with a controller of their own, which a format, a sanitize or a reset takes down alone.
OWN = (
    _layout("whole", "whole disk (NVMe)", "nvme", "head -c 1M /dev/urandom > $T"),
    _layout("sectors-4k", "4 KiB sectors (NVMe)", "nvme", "mkfs.ext4 -q -F $T", logical_bytes=4096),
    _layout("sata", "SATA disk, ext4 in a partition", "scsi ata", f"{ONE_PARTITION} && mkfs.ext4 -q -F $T", part="1", kind="sata"),
    _layout("scsi", "SCSI disk, ext4", "scsi", "mkfs.ext4 -q -F $T", kind="scsi"),
    _layout("usb", "USB disk, FAT in a partition", "scsi usb", f"{ONE_PARTITION} && mkfs.vfat $T", part="1", kind="usb"),
    _layout("virtio", "virtio disk, ext4", "virtio", "mkfs.ext4 -q -F $T", kind="virtio"),
)
# Namespaces of one controller.
SHARED = (
    _layout("partitions", "three partitions", "nvme parted",
            "printf 'label: gpt\\n,20M\\n,20M,S\\n,\\n' | sfdisk --quiet $D && $W $T && mkfs.ext4 -q -F $T && "
            "mkswap ${T%1}2 && mkfs.vfat ${T%1}3", part="p1"),
    _layout("xfs", "XFS, dirty log", "nvme xfs",
            f"{ONE_PARTITION} && mkfs.xfs -q -f $T && mount $T $M && {TREE} && sync -f $M && echo torn > $M/half && "
            "$A shutdown $M 1; umount $M", part="p1", size_mib=320),
    _layout("ext4", "ext4, dirty journal and an orphan", "nvme ext4",
            f"{ONE_PARTITION} && mkfs.ext4 -q -F $T && mount $T $M && {TREE} && exec 3> $M/deleted && "
            "head -c 100000 /dev/urandom >&3 && sync -f $M && rm $M/deleted && echo torn > $M/half && $A shutdown $M 1; "
            "exec 3>&-; umount $M", part="p1"),
    _layout("f2fs", "f2fs, files to roll forward", "nvme f2fs",
            f"mkfs.f2fs -q -f $T && mount $T $M && {TREE} && sync -f $M && echo torn > $M/half && sync $M/half && "
            "$A shutdown $M 2; umount $M"),
    _layout("md-raid1", "md RAID1, bitmap", "nvme md",
            "mdadm --create /dev/md9 --run --assume-clean --level=1 --raid-devices=2 --bitmap=internal $TS && "
            "mkfs.ext4 -q -F /dev/md9 && mdadm --stop /dev/md9", disks=2),
    _layout("md-raid1-degraded", "md RAID1, degraded", "nvme md",
            "mdadm --create /dev/md9 --run --level=1 --raid-devices=2 --bitmap=internal $TS missing && "
            "mkfs.ext4 -q -F /dev/md9 && mdadm --stop /dev/md9"),
    _layout("md-raid5", "md RAID5, PPL", "nvme md",
            "mdadm --create /dev/md9 --run --assume-clean --level=5 --raid-devices=3 --consistency-policy=ppl $TS && "
            "mkfs.ext4 -q -F /dev/md9 && mdadm --stop /dev/md9", disks=3),
    _layout("md-raid5-degraded", "md RAID5, degraded", "nvme md",
            "mdadm --create /dev/md9 --run --level=5 --raid-devices=3 $TS missing && mkfs.ext4 -q -F /dev/md9 && "
            "mdadm --stop /dev/md9", disks=2),
    _layout("lvm-mirror", "LVM with a mirror", "nvme lvm",
            "pvcreate -q $TS && vgcreate -q -s 1m wallgroup $TS && "
            "lvcreate -q -y -Wn -Zn --type raid1 -m 1 --nosync -l 8 -n data wallgroup && vgchange -q -an wallgroup", disks=2),
    _layout("zfs-mirror", "ZFS mirror, in use", "nvme zfs",
            "for d in $ALL; do printf 'label: gpt\\n,\\n' | sfdisk --quiet $d && $W ${d}p1 || exit; done; "
            "zpool create -f -O mountpoint=/mnt/walltank walltank mirror $TS && seq 4000 > /mnt/walltank/log && zpool sync walltank",
            release="zpool export -f walltank", disks=2, part="p1", size_mib=96),
    _layout("luks", "LUKS2", "nvme luks",
            "printf x | cryptsetup luksFormat -q --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 $T -"),
    _layout("swap", "swap with a hibernated system", "nvme swap",
            "mkswap -q $T && printf 'SWAPSPACE2S1SUSPEND\\0' | dd of=$T bs=1 seek=4076 conv=notrunc,fsync"),
    # The last: every sfdisk ends with a sync of all file systems, and that would empty the log tree.
    _layout("btrfs", "btrfs RAID1 over two disks, log tree", "nvme btrfs",
            f"mkfs.btrfs -q -f -d raid1 -m raid1 $TS && mount -o commit=300 $T $M.btrfs && M=$M.btrfs && {TREE} && sync -f $M && "
            "echo torn > $M/half && sync $M/half", release="umount $M.btrfs", disks=2, size_mib=128),
)
PATHS = _layout("multipath", "multipath, two controllers", "nvme paths", "mkfs.ext4 -q -F $T")
MACHINE = Layout("machine", "the machine itself", (), frozenset({"machine"}), "")
# A disk that is granted, written, and released again. No act of the matrix is tried on it.
GRANTED = _layout("granted", "granted disk", "nvme", "", size_mib=320)
LAYOUTS = (*OWN, *SHARED, PATHS, MACHINE)
_SHARED_DISKS = tuple(disk for layout in SHARED for disk in layout.disks)


def identity(disk: str) -> str:
    """By what the guest finds a disk: the serial, with the number of the namespace where a controller has several."""
    if disk == MARKER:
        return f"{SHARED_SERIAL}:{MARKER_NSID}"
    if disk in _SHARED_DISKS:
        return f"{SHARED_SERIAL}:{_SHARED_DISKS.index(disk) + 1}"
    return f"{PATHS_SERIAL}:1" if disk in PATHS.disks else f"WALL-{disk}".upper()


def size_bytes(disk: str) -> int:
    """How large a disk is."""
    return next(layout.size_mib for layout in (*LAYOUTS, GRANTED) if disk in layout.disks) * MIB


def disk_names() -> tuple[str, ...]:
    """Every disk of every layout."""
    return tuple(disk for layout in LAYOUTS for disk in layout.disks)


def few(directory: Path, names: frozenset[str]) -> tuple[tuple[Drive, ...], tuple[Subsystem, ...]]:
    """Only these disks with controllers of their own, and the marker, all protected."""
    drives, (shared, _) = attach(directory, protected=True)
    marker = tuple(space for space in shared.namespaces if space.name == MARKER)
    return tuple(drive for drive in drives if drive.name in names), (replace(shared, namespaces=marker),)


def attach(directory: Path, *, protected: bool, granted: bool = False) -> tuple[tuple[Drive, ...], tuple[Subsystem, ...]]:
    """The disks as parts of a machine; their files are ``<directory>/<disk>.img``, the marker's too.

    With ``granted`` the disk of that layout is there as well.
    """
    drives = tuple(
        Drive(name=disk, path=directory / f"{disk}.img", serial=identity(disk), kind=layout.kind, protected=protected,
              logical_bytes=layout.logical_bytes)
        for layout in (*OWN, *((GRANTED,) if granted else ())) for disk in layout.disks
    )

    def namespace(disk: str, nsid: int) -> Namespace:
        return Namespace(name=disk, path=directory / f"{disk}.img", nsid=nsid, protected=protected)

    spaces = tuple(namespace(disk, nsid) for nsid, disk in enumerate(_SHARED_DISKS, start=1))
    marker = replace(namespace(MARKER, MARKER_NSID), protected=True)
    return drives, (
        Subsystem("wall", "nqn.2026-01.test:wall", (Controller("wall0", SHARED_SERIAL),), (*spaces, marker)),
        Subsystem("paths", "nqn.2026-01.test:paths", (Controller("path0", PATHS_SERIAL), Controller("path1", PATHS_SERIAL)),
                  (namespace("multipath", 1),)),
    )
