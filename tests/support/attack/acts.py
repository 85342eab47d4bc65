"""Every act that the write guard must refuse, as data.

A command is a line for sh in the guest, run inside the attack kit with these variables: ``T`` the block node that
carries the content of the layout (a partition where it has some), ``D`` and ``ALL`` its first disk and all of them,
``TS`` the nodes like ``T`` of all its disks, ``DEV`` the device number of ``T``, ``NG`` and ``CTL`` the generic and the
controller node of an NVMe disk with ``NSID`` and ``LBA`` (bytes a block), ``SG`` and ``BSG`` those of a SCSI disk,
``SYS`` the sysfs directory of ``D``, ``M`` an empty directory, ``A`` our own program.

``on`` is a tag that a layout must have (layouts.py). ``control`` names the layout on which the act is shown to write
when nothing guards; empty means that it can't be shown on emulated disks, and ``why`` says for what reason.
"""

from __future__ import annotations

from dataclasses import dataclass

WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Act:
    """One way of changing a disk. ``seconds`` is its own limit; ``spoils`` says that the machine is not the same
    afterwards (a controller that was reset), so that it comes last."""

    name: str
    command: str
    on: str = "disk"
    control: str = WHOLE
    why: str = ""
    seconds: int = 20
    spoils: bool = False


PLAIN = (
    Act("dd buffered", "dd if=/dev/urandom of=$T bs=4k count=1 seek=8 conv=nocreat,notrunc,fsync"),
    Act("dd direct", "dd if=/dev/urandom of=$T bs=4k count=1 seek=8 conv=nocreat,notrunc oflag=direct"),
    Act("mmap write", "$A mmap $T"),
    Act("io_uring write", "$A uring-write $T"),
    Act("write by a node of mknod", "mknod /dev/wall b ${DEV%:*} ${DEV#*:} && "
        "dd if=/dev/urandom of=/dev/wall bs=4k count=1 seek=8 conv=nocreat,notrunc,fsync; s=$?; rm -f /dev/wall; exit $s"),
    Act("blockdev --setrw, then dd", "blockdev --setrw $T; blockdev --setrw $D; "
        "dd if=/dev/urandom of=$T bs=4k count=1 seek=8 conv=nocreat,notrunc,fsync"),
    Act("BLKROSET 0 on a read-only descriptor, then write", "$A roset0 $T"),
    Act("fallocate punch hole", "$A fallocate $T"),
    Act("blkdiscard", "blkdiscard -f $T"),
    Act("blkdiscard -z", "blkdiscard -f -z -o 0 -l 65536 $T"),
    Act("blkdiscard -s", "blkdiscard -f -s $T", control="", why="no emulated disk erases securely"),
    Act("io_uring discard", "$A uring-discard $T"),
    Act("zone reset", "$A zone-reset $T", control="", why="no zoned disk is attached"),
    Act("zone finish", "$A zone-finish $T", control="", why="no zoned disk is attached"),
    Act("persistent reservation (IOC_PR_*)", "$A reserve $T", control="", why="no disk of QEMU 7.2 takes reservations"),
    Act("losetup, then dd", "l=$(losetup -f --show $T) || exit; dd if=/dev/urandom of=$l bs=4k count=1 seek=8 "
        "conv=nocreat,notrunc,fsync; s=$?; losetup -d $l; exit $s"),
    Act("dmsetup linear, then dd", "dmsetup create wall --table \"0 $(blockdev --getsz $T) linear $T 0\" || exit; "
        "dmsetup mknodes; dd if=/dev/urandom of=/dev/mapper/wall bs=4k count=1 seek=8 conv=nocreat,notrunc,fsync; s=$?; "
        "dmsetup remove wall; exit $s"),
    Act("dmsetup linear read-only, BLKROSET 0, then dd", "dmsetup create wall --readonly --table "
        "\"0 $(blockdev --getsz $T) linear $T 0\" || exit; dmsetup mknodes; blockdev --setrw /dev/mapper/wall; "
        "dd if=/dev/urandom of=/dev/mapper/wall bs=4k count=1 seek=8 conv=nocreat,notrunc,fsync; s=$?; dmsetup remove wall; exit $s",
        control="", why="a mapping that is read-only stays so"),
    Act("fio", "fio --name=wall --filename=$T --rw=randwrite --bs=4k --size=64k --direct=1 --ioengine=psync "
        "--allow_mounted_write=1 --minimal"),
)

TOOLS = (
    Act("wipefs", "wipefs -a -f $T", control="ext4"),
    Act("sgdisk", "sgdisk -Z $D && sgdisk -n 1:2048:4095 $D"),
    Act("sfdisk", "echo ,1M | sfdisk --force --no-reread --wipe always $D"),
    Act("mkfs.xfs", "mkfs.xfs -f -q $T", control="xfs"),
    Act("mkfs.ext4", "mkfs.ext4 -F -q $T"),
    Act("mkfs.btrfs", "mkfs.btrfs -f -q --mixed $T", control="btrfs"),
    Act("mkfs.f2fs", "mkfs.f2fs -f -q $T"),
    Act("mkfs.vfat", "mkfs.vfat -I $T"),
    Act("mkfs.exfat", "mkfs.exfat $T"),
    Act("mkswap", "mkswap -f $T"),
    Act("swapon", "swapon $T && swapoff $T", control="swap"),
    Act("resume signature", "echo $DEV | tee /sys/power/resume", on="swap", control="", why="the image boots with nohibernate"),
    Act("mount", "mount $T $M && umount $M", control="xfs"),
    Act("mount -o ro", "mount -o ro $T $M && umount $M", control="xfs"),
    Act("mdadm --create", "yes | mdadm --create /dev/md9 --run --force --level=1 --raid-devices=2 --metadata=1.2 "
        "$T missing && mdadm --stop /dev/md9"),
    Act("mdadm --zero-superblock", "mdadm --zero-superblock $T", control="md-raid1"),
    Act("pvcreate", "pvcreate -ff -y $T"),
    Act("vgcreate", "vgcreate -ff -y wallvg $T"),
    Act("zpool create", "zpool create -f -O mountpoint=none wall $TS && zpool export wall", control="zfs-mirror", seconds=40),
    Act("zpool labelclear", "zpool labelclear -f $T", control="zfs-mirror"),
    Act("cryptsetup luksFormat", "printf x | cryptsetup luksFormat -q --type luks2 --pbkdf pbkdf2 "
        "--pbkdf-force-iterations 1000 $T -", seconds=40),
    Act("make-bcache", "make-bcache -B --wipe-bcache $T"),
    Act("bcache register", "echo $T | tee /sys/fs/bcache/register && sleep 1; "
        "test -d /sys/block/${T##*/}/bcache && echo 1 > /sys/block/${T##*/}/bcache/stop",
        on="disk", control="", why="needs a superblock that make-bcache would have written"),
    Act("btrfs device add", "mount -o device=${TS% *},device=${TS#* } $T $M && btrfs device add -f $D $M; umount $M", on="btrfs", control="",
        why="the mount before it writes already"),
)

CONTENT = (
    Act("xfs_repair -L", "xfs_repair -L $T", on="xfs", control="xfs", seconds=40),
    Act("xfs_admin -L", "xfs_admin -L wall $T", on="xfs", control="", why="it refuses a log that is dirty"),
    Act("mount -o ro,norecovery, remount rw", "mount -o ro,norecovery $T $M || exit; mount -o remount,rw $M; s=$?; "
        "umount $M; exit $s", on="xfs", control="", why="XFS refuses it by itself"),
    Act("e2fsck -fy", "e2fsck -fy $T; test $? -lt 4", on="ext4", control="ext4", seconds=40),
    Act("tune2fs", "tune2fs -f -L wall $T", on="ext4", control="ext4"),
    Act("debugfs -w", "debugfs -w -R 'rm run-7' $T; debugfs -w -R 'mkdir wall' $T 2>&1 | grep -c . >/dev/null; "
        "test -w $T", on="ext4", control="ext4"),
    Act("mount -o ro,noload", "mount -o ro,noload $T $M && umount $M", on="ext4", control="ext4"),
    Act("mount -o ro,rescue=all", "mount -o ro,rescue=all,device=${TS% *},device=${TS#* } $T $M && umount $M", on="btrfs", control="",
        why="it is made to write nothing"),
    Act("mount with all members named", "mount -o device=${TS% *},device=${TS#* } $T $M && umount $M", on="btrfs",
        control="btrfs"),
    Act("mount -o ro with all members named", "mount -o ro,device=${TS% *},device=${TS#* } $T $M && umount $M", on="btrfs",
        control="btrfs"),
    Act("btrfs rescue zero-log", "btrfs rescue zero-log $T", on="btrfs", control="btrfs"),
    Act("btrfstune", "btrfstune -f -u $T", on="btrfs", control="", why="it refuses a log that is dirty"),
    Act("fsck.f2fs -f", "fsck.f2fs -f -y $T", on="f2fs", control="f2fs", seconds=40),
    Act("mdadm --assemble --readonly", "mdadm --assemble --readonly /dev/md9 $TS; s=$?; mdadm --stop /dev/md9; exit $s",
        on="md", control="md-raid1", seconds=40),
    Act("mdadm --assemble", "mdadm --assemble /dev/md9 $TS; s=$?; mdadm --stop /dev/md9; exit $s", on="md",
        control="md-raid1", seconds=40),
    Act("mdadm --assemble --run --force", "mdadm --assemble --run --force /dev/md9 $TS; s=$?; mdadm --stop /dev/md9; exit $s",
        on="md", control="md-raid1-degraded", seconds=40),
    Act("mdadm check", "mdadm --assemble --run /dev/md9 $TS; echo check > /sys/block/md9/md/sync_action && "
        "mdadm --wait /dev/md9; s=$?; mdadm --stop /dev/md9; exit $s", on="md", control="md-raid1", seconds=40),
    Act("write to the array", "mdadm --assemble --run /dev/md9 $TS; test -b /dev/md9 && dd if=/dev/urandom of=/dev/md9 bs=4k count=1 "
        "conv=nocreat,notrunc,fsync; s=$?; mdadm --stop /dev/md9; exit $s", on="md", control="md-raid1", seconds=40),
    Act("vgchange -ay, then dd", "vgchange -ay -K --sysinit wallgroup; vgmknodes; dd if=/dev/urandom of=/dev/wallgroup/data "
        "bs=4k count=1 conv=nocreat,notrunc,fsync; s=$?; vgchange -an wallgroup; exit $s", on="lvm", control="lvm-mirror", seconds=40),
    Act("vgchange --addtag", "vgchange --addtag wall wallgroup", on="lvm", control="lvm-mirror", seconds=40),
    Act("lvcreate", "lvcreate -y -an -Zn -n more -l 1 wallgroup", on="lvm", control="lvm-mirror", seconds=40),
    Act("lvconvert", "vgchange -ay -K --sysinit wallgroup; lvconvert -y --mirrors 0 wallgroup/data; s=$?; "
        "vgchange -an wallgroup; exit $s", on="lvm", control="lvm-mirror", seconds=40),
    Act("pvremove", "pvremove -ff -y $T", on="lvm", control="lvm-mirror", seconds=40),
    Act("zpool import", "zpool import -N -R /mnt -d ${TS% *} -d ${TS#* } walltank && zpool export walltank", on="zfs",
        control="", why="the pool was in use by another system, so it refuses by itself", seconds=40),
    Act("zpool import -f", "zpool import -f -N -R /mnt -d ${TS% *} -d ${TS#* } walltank && zpool export walltank", on="zfs",
        control="zfs-mirror", seconds=40),
    Act("zpool import -f -F", "zpool import -f -F -N -R /mnt -d ${TS% *} -d ${TS#* } walltank && zpool export walltank",
        on="zfs", control="zfs-mirror", seconds=40),
    Act("cryptsetup luksAddKey", "printf x > /run/key; printf y > /run/other; cryptsetup luksAddKey -q --pbkdf pbkdf2 "
        "--pbkdf-force-iterations 1000 --key-file /run/key $T /run/other", on="luks", control="luks", seconds=40),
    Act("cryptsetup config --label", "cryptsetup config --label wall $T", on="luks", control="luks"),
    Act("cryptsetup erase", "cryptsetup erase -q $T", on="luks", control="luks"),
    Act("cryptsetup open, then dd", "printf x | cryptsetup open --key-file - $T wall || exit; dmsetup mknodes; "
        "dd if=/dev/urandom of=/dev/mapper/wall bs=4k count=1 conv=nocreat,notrunc,fsync; s=$?; cryptsetup close wall; exit $s",
        on="luks", control="luks", seconds=40),
)
