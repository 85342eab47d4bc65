"""NVMe over TCP: a machine that exports its disks, and acts by name on what another one (or itself) connects to.

The target is the image's system without the guard, with the one module that the image leaves out (nvmet-tcp) taken from
the tree in which the guard is compiled. Its disks are what the oracle of its own QEMU watches: a command that an
initiator gets through the network arrives there, or does not.
"""

from __future__ import annotations

import lzma
import shlex
from dataclasses import dataclass
from pathlib import Path

from builder.modules import headers_tree
from builder.toolstree import ensure_tools_tree, kernel_release

from tests.support.attack.acts import PLAIN, TOOLS, Act
from tests.support.attack.acts_command import NVME
from tests.support.attack.stage import in_kit
from tests.support.vm.deadline import Deadline
from tests.support.vm.grant import CONTROL
from tests.support.vm.machine import Machine
from tests.support.vm.oracle import Class, Traced

SUBSYSTEM = "nqn.2026-01.test:wall-tcp"
HOST = "nqn.2014-08.org.nvmexpress:uuid:8e2a1d4c-0b6f-4d0e-9a43-5c0f5f1d7a10"
SERIAL = "WALL-TCP"
TARGET_ADDRESS, INITIATOR_ADDRESS = "10.9.0.1", "10.9.0.2"
SECONDS = 180
MODULE = "kernel/drivers/nvme/target/nvmet-tcp.ko.xz"
# The acts that get through a network to a disk of Linux's own target, in an order in which each has something to write.
WRITES = (
    "mkfs.ext4", "mount", "wipefs", "dd buffered", "dd direct", "mmap write", "io_uring write",
    "write by a node of mknod", "blkdiscard", "blkdiscard -z", "io_uring discard", "losetup, then dd",
    "dmsetup linear, then dd", "mkfs.xfs", "mkfs.btrfs", "sgdisk", "fio", "nvme write", "nvme write-zeroes",
    "nvme dsm --ad", "nvme io-passthru write",
    "NVME_IOCTL_IO_CMD on the block node", "NVME_IOCTL_IO64_CMD on the block node",
    "NVME_IOCTL_IO_CMD on the generic node", "io_uring command write on the generic node",
    "io_uring command write-zeroes on the generic node", "every I/O opcode by ioctl", "every I/O opcode by io_uring",
)
# The target turns these down by itself, or they come after the disk has been made writable by hand.
REFUSED_ONLY = (
    "blockdev --setrw, then dd", "BLKROSET 0 on a read-only descriptor, then write", "nvme write-uncor", "nvme copy",
    "nvme resv-register", "nvme set-feature", "nvme format", "nvme sanitize", "nvme fw-download", "nvme security-send",
    "nvme delete-ns", "nvme detach-ns", "io_uring command format on the controller node",
    "500 random I/O commands", "every admin opcode by ioctl", "every admin opcode by io_uring",
)


def acts(names: tuple[str, ...]) -> tuple[Act, ...]:
    """The acts with these names, in this order. KeyError for one that is none."""
    known = {act.name: act for act in (*PLAIN, *TOOLS, *NVME)}
    return tuple(known[name] for name in names)


def target_module() -> bytes:
    """Debian's nvmet-tcp for the image's kernel."""
    tools = ensure_tools_tree()
    kernel = kernel_release(tools)
    return lzma.decompress((headers_tree(tools, kernel) / "usr/lib/modules" / kernel / MODULE).read_bytes())


def network(path: Path, *, server: bool) -> str:
    """One end of a cable between two machines; the server's is plugged in first."""
    return f"stream,server={'on' if server else 'off'},addr.type=unix,addr.path={path}"


def address(machine: Machine, own: str) -> None:
    """Give the machine's only card an address."""
    machine.guest.check(
        f"""set -e
        modprobe virtio_net; udevadm settle || :
        card=$(ls /sys/class/net | grep -v '^lo$')
        ip link set lo up; ip addr add {own}/24 dev $card; ip link set $card up""", Deadline.after(SECONDS))


def export(machine: Machine, serials: tuple[str, ...]) -> None:
    """Offer the target's own NVMe disks with these serials as the namespaces 1, 2, ... of one subsystem."""
    spaces = "\n".join(
        f"""node=$(lsblk -ndpo NAME,SERIAL | awk '$2 == "{serial}" {{print $1}}')
        blockdev --setrw $node
        mkdir namespaces/{nsid}; echo $node > namespaces/{nsid}/device_path; echo 1 > namespaces/{nsid}/enable"""
        for nsid, serial in enumerate(serials, start=1))
    machine.guest.check(
        f"""set -e
        modprobe nvmet; insmod /run/acts/nvmet-tcp.ko
        mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
        cd /sys/kernel/config/nvmet
        mkdir subsystems/{SUBSYSTEM}; cd subsystems/{SUBSYSTEM}
        echo 1 > attr_allow_any_host; echo {SERIAL} > attr_serial
        {spaces}
        mkdir ../../ports/1; cd ../../ports/1
        echo ipv4 > addr_adrfam; echo tcp > addr_trtype; echo 0.0.0.0 > addr_traddr; echo 4420 > addr_trsvcid
        ln -s ../../subsystems/{SUBSYSTEM} subsystems/{SUBSYSTEM}""", Deadline.after(SECONDS))


def connect(machine: Machine, where: str) -> None:
    """Connect to the target. The limits are long: emulated machines are slow, and a lost connection is no refusal."""
    machine.guest.check("modprobe nvme-tcp", Deadline.after(SECONDS))
    in_kit(machine, f"nvme connect -t tcp -a {where} -s 4420 -n {SUBSYSTEM} --hostnqn={HOST} --hostid={HOST[-36:]} "
                    "--nr-io-queues=1 --keep-alive-tmo=120", SECONDS)


def disconnect(machine: Machine) -> None:
    """Leave the target."""
    in_kit(machine, f"nvme disconnect -n {SUBSYSTEM}", SECONDS)


@dataclass(frozen=True, slots=True)
class Remote:
    """A namespace of the target in the machine that is connected to it."""

    machine: Machine
    name: str
    facts: str

    @property
    def node(self) -> str:
        """Its block node."""
        return f"/dev/{self.name}"

    def act(self, act: Act) -> tuple[int, str]:
        """Do it. Status (124: it hung) and what it said."""
        limited = f"timeout -k 5 {3 * act.seconds} sh -c {shlex.quote(act.command)}"
        command = f"{self.facts}; {limited} 2>&1; s=$?; umount -q $M; exit $s"
        outcome = self.machine.guest.run(
            ["chroot", "/run/kit", "sh", "-c", command], Deadline.after(SECONDS + 3 * act.seconds))
        return outcome.status, outcome.text[-600:]

    def control(self, word: str) -> None:
        """Grant or revoke it in the guard."""
        attachment = f"$(cat /sys/block/{self.name}/dev /sys/block/{self.name}/diskseq)"
        self.machine.guest.check(f"echo {word} {attachment} > {CONTROL}", Deadline.after(SECONDS))


# The number in a node's name is not that of the namespace where the kernel knows of several paths.
FIND = """
n=0
name=
until [ -n "$name" ]; do
    n=$((n + 1)); [ $n -lt 300 ] || exit 1
    for node in $(ls /sys/block | grep '^nvme[0-9]*n[0-9]*$'); do
        block=/sys/block/$node
        [ "$(tr -d ' ' < $block/device/serial)" = @SERIAL@ ] && [ "$(cat $block/nsid)" = @NSID@ ] && name=$node
    done
    [ -n "$name" ] || sleep 0.2
done
block=/sys/block/$name
control=$(ls $block/device/ | grep -E '^nvme[0-9]+$' | head -n 1)
mkdir -p /run/kit/mnt/point
echo $name ${control:-$(basename $(realpath $block/device))} $(cat $block/dev $block/queue/logical_block_size)
"""


def remote(machine: Machine, nsid: int) -> Remote:
    """Namespace ``nsid`` of the target, when it has appeared."""
    script = FIND.replace("@NSID@", str(nsid)).replace("@SERIAL@", SERIAL)
    name, controller, dev, block_bytes = machine.guest.check(script, Deadline.after(SECONDS)).split()
    return Remote(machine, name, (
        f"export A=/run/acts/act M=/mnt/point D=/dev/{name} T=/dev/{name} TS=/dev/{name} NG=/dev/ng{name[4:]} "
        f"CTL=/dev/{controller} NSID={nsid} LBA={block_bytes} DEV={dev} DM_DISABLE_UDEV=1 LVM_SUPPRESS_FD_WARNINGS=1"))


def arrived(target: Machine, since: int) -> tuple[Traced, ...]:
    """What the target's disks were told to do since the trace was ``since`` long, reads left out."""
    return tuple(command for command in target.trace()[since:] if command.kind is not Class.READ)


def changes(commands: tuple[Traced, ...]) -> list[str]:
    """Those that write, by name."""
    return [f"{command.bus} {command.name}" for command in commands if command.kind is Class.WRITE]
