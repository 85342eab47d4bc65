"""The guest's side of the attack matrix: runs acts on layouts, one after the other, and writes down what they said.

    driver.py PLAN make|save|release|open|run RESULTS

Runs inside the attack kit's root with the kit's Python; needs nothing else. Between the acts it reads one block of a
disk of its own: QEMU's trace then shows the same number, which tells the host what the commands in between belong to.
"""

from __future__ import annotations

import ctypes
import fcntl
import glob
import json
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HERE = Path("/run/acts")
SAVED = Path("/run/saved")
POINT = "/mnt/point"
GUARD = Path("/proc/stasis_guard/state")
CONTROL = Path("/proc/stasis_guard/control")
BLKFLSBUF, BLKRRPART, BLKDISCARD, BLKSSZGET = 0x1261, 0x125F, 0x1277, 0x1268
FIRST_MARK = 1 << 14
CHUNK = 1 << 16
SAID_BYTES = 600
LIBC = ctypes.CDLL(None, use_errno=True)
Plan = dict[str, Any]


def read(path: str | Path) -> str:
    """The text of a small file of the kernel, or nothing."""
    try:
        return Path(path).read_text(errors="replace").strip("\0 \n")
    except OSError:
        return ""


def nodes() -> dict[str, str]:
    """Names of whole disks by serial, and those of NVMe namespaces by serial and number of the namespace as well."""
    found = {}
    listed = subprocess.run(["lsblk", "-ndo", "NAME,SERIAL"], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        name, _, serial = line.partition(" ")
        found[serial.strip()] = name
    for path in glob.glob("/sys/block/nvme*/nsid"):
        name = path.split("/")[3]
        if re.fullmatch(r"nvme\d+n\d+", name):  # not the hidden paths of a namespace with several
            found[f"{read(f'/sys/block/{name}/device/serial')}:{read(path)}"] = name
    return found


def facts(layout: Plan, known: dict[str, str]) -> dict[str, str]:
    """The variables of a layout's acts. KeyError when a disk is not there."""
    disks = [known[identity] for identity in layout["disks"]]
    env = {
        **os.environ, "A": str(HERE / "act"), "W": str(HERE / "wait-node"), "M": POINT, "DM_DISABLE_UDEV": "1",
        "LVM_SUPPRESS_FD_WARNINGS": "1",
    }
    if not disks:
        return env
    first = disks[0]
    env |= {
        "D": f"/dev/{first}", "ALL": " ".join(f"/dev/{disk}" for disk in disks), "T": f"/dev/{first}{layout['part']}",
        "TS": " ".join(f"/dev/{disk}{layout['part']}" for disk in disks), "SYS": f"/sys/block/{first}",
        "DEV": read(f"/sys/class/block/{first}{layout['part']}/dev"),
        "LBA": read(f"/sys/block/{first}/queue/logical_block_size"),
    }
    if first.startswith("nvme"):
        device = Path(f"/sys/block/{first}/device").resolve()
        controllers = [device.name] if re.fullmatch(r"nvme\d+", device.name) else sorted(
            path.name for path in device.iterdir() if re.fullmatch(r"nvme\d+", path.name))
        env |= {"NG": f"/dev/ng{first[4:]}", "CTL": f"/dev/{controllers[0]}", "NSID": read(f"/sys/block/{first}/nsid")}
    else:
        generic = sorted(glob.glob(f"/sys/block/{first}/device/scsi_generic/*"))
        address = Path(f"/sys/block/{first}/device").resolve().name
        env |= {"SG": f"/dev/{Path(generic[0]).name}" if generic else "", "BSG": f"/dev/bsg/{address}"}
    return env


class Marker:
    """Reads block N of the marker disk, past every cache."""

    def __init__(self, node: str) -> None:
        self.fd = os.open(node, os.O_RDONLY | os.O_DIRECT)
        self.page = mmap.mmap(-1, 4096)
        self.block = int.from_bytes(fcntl.ioctl(self.fd, BLKSSZGET, bytes(4)), sys.byteorder)

    def set(self, number: int) -> None:
        """Leave the number in QEMU's trace."""
        os.preadv(self.fd, [memoryview(self.page)[:self.block]], (FIRST_MARK + number) * self.block)


def guard_counts() -> dict[str, int]:
    """What each layer of the guard has refused so far; empty without a guard."""
    layers = re.finditer(r"^layer name=(\S+).*? refused=(\d+)", read(GUARD), re.MULTILINE)
    return {layer[1]: int(layer[2]) for layer in layers}


def shell(command: str, env: dict[str, str], seconds: int) -> tuple[int, str]:
    """Run a line for sh; status (124 when it took too long) and the end of what it said."""
    with open("/run/said", "w+b") as said:
        process = subprocess.Popen(
            ["sh", "-c", command], env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = 124
            os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
        said.seek(0)
        return status, said.read().decode(errors="replace")[-SAID_BYTES:]


def tidy(env: dict[str, str]) -> list[str]:
    """End what an act left in use, and say what it was."""
    left = []
    for line in read("/proc/mounts").splitlines():
        if line.split()[1] == POINT:
            left.append(f"mount of {line.split()[0]}")
            LIBC.umount2(POINT.encode(), 2)
    for line in read("/proc/swaps").splitlines()[1:]:
        left.append(f"swap on {line.split()[0]}")
        shell(f"swapoff {line.split()[0]}", env, 10)
    for name in sorted(os.listdir("/sys/block")):
        commands = {
            "dm-": f"dmsetup remove --force /dev/{name}; dmsetup remove_all --force", "md": f"mdadm --stop /dev/{name}",
        }
        for prefix, command in commands.items():
            if name.startswith(prefix):
                left.append(name)
                shell(command, env, 15)
        if name.startswith("bcache"):
            left.append(name)
            with suppress(OSError):
                Path(f"/sys/block/{name}/bcache/stop").write_text("1")
        if name.startswith("loop") and read(f"/sys/block/{name}/loop/backing_file").startswith("/dev/"):
            left.append(name)
            shell(f"losetup -d /dev/{name}", env, 10)
    # A dd to a node that is not there must not leave a file which then stands for it.
    for path in (*glob.glob("/dev/md[0-9]*"), *glob.glob("/dev/mapper/wall*"), *glob.glob("/dev/wallgroup/*")):
        if not Path(path).is_block_device() and not os.path.islink(path):
            left.append(path)
            # A node of an array that is just being stopped goes by itself.
            Path(path).unlink(missing_ok=True)
    return left


def extents(node: str) -> Iterator[tuple[int, bytes]]:
    """The pieces of a disk that are not all zero, read past the cache."""
    fd = os.open(node, os.O_RDONLY | os.O_DIRECT)
    page = mmap.mmap(-1, 1 << 20)
    size = os.lseek(fd, 0, os.SEEK_END)
    for at in range(0, size, 1 << 20):
        got = os.preadv(fd, [memoryview(page)[:min(1 << 20, size - at)]], at)
        data = page[:got]
        if data.count(0) != got:
            for piece in range(0, got, CHUNK):
                if data[piece:piece + CHUNK].strip(b"\0"):
                    yield at + piece, data[piece:piece + CHUNK]
    os.close(fd)


def save(layout: Plan, known: dict[str, str]) -> None:
    """Keep a layout's content in RAM."""
    SAVED.mkdir(exist_ok=True)
    for identity in layout["disks"]:
        with (SAVED / identity).open("wb") as file:
            for at, data in extents(f"/dev/{known[identity]}"):
                file.write(at.to_bytes(8, "little") + len(data).to_bytes(8, "little") + data)


def restore(layout: Plan, known: dict[str, str]) -> None:
    """Bring back a layout's content as it was saved."""
    for identity in layout["disks"]:
        fd = os.open(f"/dev/{known[identity]}", os.O_RDWR)
        size = os.lseek(fd, 0, os.SEEK_END)
        # What an emulated disk was told to forget reads as zero.
        fcntl.ioctl(fd, BLKDISCARD, (0).to_bytes(8, sys.byteorder) + size.to_bytes(8, sys.byteorder))
        with (SAVED / identity).open("rb") as file:
            while head := file.read(16):
                at, length = int.from_bytes(head[:8], "little"), int.from_bytes(head[8:], "little")
                os.pwrite(fd, file.read(length), at)
        os.fsync(fd)
        fcntl.ioctl(fd, BLKFLSBUF)
        with suppress(OSError):
            fcntl.ioctl(fd, BLKRRPART)
        os.close(fd)


def open_up(layouts: list[Plan], known: dict[str, str]) -> None:
    """Let the disks be written: by a grant of the guard, or, without a guard, by clearing the read-only flag."""
    for layout in layouts:
        for identity in layout["disks"]:
            name = known[identity]
            if CONTROL.exists():
                CONTROL.write_text(f"grant {read(f'/sys/block/{name}/dev')} {read(f'/sys/block/{name}/diskseq')}")
                continue
            for path in (f"/dev/{name}", *glob.glob(f"/dev/{name}p[0-9]*")):
                subprocess.run(["blockdev", "--setrw", path], check=True)


def close_down(layouts: list[Plan], known: dict[str, str]) -> None:
    """Take the grants back."""
    for layout in layouts:
        for identity in layout["disks"]:
            name = known[identity]
            CONTROL.write_text(f"revoke {read(f'/sys/block/{name}/dev')} {read(f'/sys/block/{name}/diskseq')}")


@contextmanager
def progress() -> Iterator[Any]:
    """A line for each act on the second serial port, so that the host sees where a machine stopped."""
    try:
        port = open("/dev/ttyS1", "w", encoding="utf-8")  # noqa: SIM115  # closed below
    except OSError:
        yield sys.stderr
        return
    with port:
        yield port


def run(plan: Plan, results: Path, known: dict[str, str]) -> None:
    """Run every cell of the plan."""
    marker = Marker(f"/dev/{known[plan['marker']]}")
    environments = {layout["name"]: facts(layout, known) for layout in plan["layouts"]}
    layouts = {layout["name"]: layout for layout in plan["layouts"]}
    Path(POINT).mkdir(exist_ok=True)
    with results.open("w") as file, progress() as port:
        for number, cell in enumerate(plan["cells"]):
            env = environments[cell["layout"]]
            if plan["restore"]:
                restore(layouts[cell["layout"]], known)
                env = facts(layouts[cell["layout"]], known)
            print(f"{number + 1}/{len(plan['cells'])} {cell['layout']}: {cell['act']}", file=port, flush=True)
            before, started = guard_counts(), time.monotonic()
            marker.set(2 * number + 1)
            status, said = shell(cell["command"], env, cell["seconds"])
            left = tidy(env)
            if plan["restore"]:
                os.sync()
            marker.set(2 * number + 2)
            after = guard_counts()
            json.dump({
                "act": cell["act"], "layout": cell["layout"], "status": status, "said": said, "left": left,
                "seconds": round(time.monotonic() - started, 2),
                "refused": {name: more for name in after if (more := after[name] - before.get(name, 0))},
            }, file)
            file.write("\n")
            file.flush()


def main() -> None:
    """Do one phase of a plan."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    phase, results = sys.argv[2], Path(sys.argv[3])
    known = nodes()
    layouts: list[Plan] = plan["layouts"]
    missing = [identity for layout in layouts for identity in layout["disks"] if identity not in known]
    if missing:
        sys.exit(f"disks are missing: {missing}; there are {known}")
    wait = HERE / "wait-node"
    wait.write_text("#!/bin/sh\nn=0; until [ -b \"$1\" ]; do n=$((n + 1)); [ $n -lt 100 ] || exit 1; sleep 0.1; done\n")
    wait.chmod(0o755)
    if phase in {"make", "release"}:
        Path(POINT).mkdir(exist_ok=True)
        Path(f"{POINT}.btrfs").mkdir(exist_ok=True)
        failed = []
        for layout in layouts:
            if layout[phase]:
                status, said = shell(layout[phase], facts(layout, known), 120)
                if status:
                    failed.append(f"{phase} {layout['name']}: status {status}: {said}")
        if failed:
            sys.exit("\n".join(failed))
    elif phase == "save":
        shutil.rmtree(SAVED, ignore_errors=True)
        for layout in layouts:
            save(layout, known)
    elif phase == "open":
        open_up(layouts, known)
    elif phase == "close":
        close_down(layouts, known)
    elif phase == "run":
        run(plan, results, known)
    else:
        sys.exit(f"no such phase: {phase}")


if __name__ == "__main__":
    main()
