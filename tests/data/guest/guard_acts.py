"""Acts on disks for the boot proofs of the write guard; runs as root in the guest, needs nothing but Python.

``python3 guard_acts.py GROUP ARGUMENT...`` prints a JSON object: name of the act -> "ok" or the name of the errno.
"""

import ctypes
import errno
import fcntl
import json
import lzma
import mmap
import os
import stat
import struct
import sys
from collections.abc import Callable

LIBC = ctypes.CDLL(None, use_errno=True)
SYS_IOPL, SYS_IOPERM, SYS_INIT_MODULE, SYS_KEXEC_LOAD, SYS_FINIT_MODULE = 172, 173, 175, 246, 313
SYS_URING_SETUP, SYS_URING_ENTER = 425, 426
BLKROSET, BLKDISCARD, BLKSECDISCARD, BLKZEROOUT = 0x125D, 0x1277, 0x127D, 0x127F
BLKGETSIZE64, BLKFLSBUF = 0x80081272, 0x1261
NVME_ADMIN, NVME_IO, NVME_RESET, SG_IO = 0xC0484E41, 0xC0484E43, 0x4E44, 0x2285
NVME_URING_IO = 0xC0484E80
LOOP_CHANGE_FD, LOOP_CLR_FD = 0x4C06, 0x4C01
TO_DEVICE, FROM_DEVICE, NO_DATA = -2, -3, -1
BLOCK = 512
RESULTS: dict[str, str] = {}


def attempt(name: str, act: Callable[..., object], *arguments: object) -> None:
    """Run an act and note how it ended."""
    try:
        act(*arguments)
    except OSError as error:
        RESULTS[name] = errno.errorcode.get(error.errno or 0, str(error.errno))
    else:
        RESULTS[name] = "ok"


def syscall(number: int, *arguments: object) -> int:
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    done = int(LIBC.syscall(ctypes.c_long(number), *words))
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


def with_fd(path: str, flags: int, act: Callable[..., object]) -> object:
    fd = os.open(path, flags)
    try:
        return act(fd)
    finally:
        os.close(fd)


def address(buffer: mmap.mmap | bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def aligned(size: int, fill: int) -> mmap.mmap:
    area = mmap.mmap(-1, max(size, 4096))
    area.write(bytes([fill]) * size)
    return area


def buffered_write(path: str) -> None:
    def act(fd: int) -> None:
        os.pwrite(fd, b"\xA1" * 4096, 0)
        os.fsync(fd)
    with_fd(path, os.O_WRONLY, act)


def direct_write(path: str) -> None:
    with_fd(path, os.O_WRONLY | os.O_DIRECT, lambda fd: os.pwritev(fd, [aligned(4096, 0xA2)], 4096))


def mapped_write(path: str) -> None:
    def act(fd: int) -> None:
        with mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE) as area:
            area[0:4] = b"\xA3\xA3\xA3\xA3"
            area.flush()
    with_fd(path, os.O_RDWR, act)


def node_write(path: str) -> None:
    """Through a node of our own, as after mknod."""
    copy = "/dev/guard-acts-node"
    os.mknod(copy, stat.S_IFBLK | 0o600, os.stat(path).st_rdev)
    try:
        buffered_write(copy)
    finally:
        os.unlink(copy)


def range_ioctl(path: str, number: int) -> None:
    def act(fd: int) -> None:
        fcntl.ioctl(fd, number, struct.pack("QQ", 0, 4096))
    try:
        with_fd(path, os.O_RDWR, act)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        with_fd(path, os.O_RDONLY, act)


def set_rw(path: str) -> None:
    with_fd(path, os.O_RDONLY, lambda fd: fcntl.ioctl(fd, BLKROSET, struct.pack("i", 0)))


def direct_read(path: str) -> None:
    with_fd(path, os.O_RDONLY | os.O_DIRECT, lambda fd: os.preadv(fd, [aligned(4096, 0)], 0))


def nvme(
    path: str, request: int, opcode: int, *, nsid: int = 1, size: int = 0, cdw10: int = 0, cdw11: int = 0,
) -> None:
    data = aligned(4096, 0xA5)
    command = bytearray(struct.pack(
        "<BBHIIIQQIIIIIIIIII", opcode, 0, 0, nsid, 0, 0, 0, address(data) if size else 0, 0, size,
        cdw10, cdw11, 0, 0, 0, 0, 5000, 0))

    def act(fd: int) -> None:
        status = fcntl.ioctl(fd, request, command)
        if status:
            raise OSError(errno.EREMOTEIO, f"NVMe status {status:#x}")
    with_fd(path, os.O_RDONLY, act)


def scsi(path: str, cdb: bytes, direction: int = NO_DATA, size: int = 0) -> None:
    data, sense = aligned(max(size, 4096), 0xA6), bytearray(64)
    raw = bytearray(cdb)
    header = bytearray(struct.pack(
        "<iiBBHIQQQIIi4xQBBBBHHiII4x", ord("S"), direction, len(raw), len(sense), 0, size, address(data) if size else 0,
        address(raw), address(sense), 5000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))

    def act(fd: int) -> None:
        fcntl.ioctl(fd, SG_IO, header)
        if header[64]:
            raise OSError(errno.EREMOTEIO, f"SCSI status {header[64]:#x} sense {sense[:14].hex()}")
    with_fd(path, os.O_RDONLY, act)


def scsi_v4(path: str, cdb: bytes, out: int = 0) -> None:
    """SG_IO of version 4, as /dev/bsg takes it."""
    data, raw = aligned(4096, 0xA7), bytearray(cdb)
    header = bytearray(160)
    struct.pack_into("<iIIIQ", header, 0, ord("Q"), 0, 0, len(raw), address(raw))
    struct.pack_into("<I", header, 60, out)
    struct.pack_into("<Q", header, 72, address(data) if out else 0)
    with_fd(path, os.O_RDWR, lambda fd: fcntl.ioctl(fd, SG_IO, header))


def sg_write_call(path: str, cdb: bytes) -> None:
    """The old interface: write(2) of a header and a command, no ioctl."""
    header = struct.pack("<iiiiI16x", 36 + len(cdb) + BLOCK, 36, 1, 0, 0)

    def act(fd: int) -> None:
        os.write(fd, header + bytes(cdb) + b"\xA8" * BLOCK)
        answer = os.read(fd, 36)
        if struct.unpack_from("<i", answer, 16)[0]:
            raise OSError(errno.EREMOTEIO, answer.hex())
    with_fd(path, os.O_RDWR, act)


def uring(path: str, operation: int, command: bytes) -> None:
    """One io_uring command, made with the bare system calls."""
    parameters = bytearray(120)
    struct.pack_into("<I", parameters, 8, (1 << 10) | (1 << 11))
    ring = syscall(SYS_URING_SETUP, 2, (ctypes.c_char * 120).from_buffer(parameters))
    try:
        fields = struct.unpack_from("<10I", parameters, 40), struct.unpack_from("<10I", parameters, 80)
        (_, sq_tail, _, _, _, _, sq_array, *_), (_, cq_tail, _, _, _, cqes, *_) = fields
        rings = mmap.mmap(ring, 4096, mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=0)
        entries = mmap.mmap(ring, 4096, mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=0x10000000)

        def act(fd: int) -> None:
            entry = struct.pack("<BBHiQQIIQ", 46, 0, 0, fd, operation, 0, 0, 0, 7).ljust(48, b"\0") + command
            entries[0:len(entry)] = entry
            struct.pack_into("<I", rings, sq_array, 0)
            struct.pack_into("<I", rings, sq_tail, 1)
            syscall(SYS_URING_ENTER, ring, 1, 1, 1, None, 0)
            assert struct.unpack_from("<I", rings, cq_tail)[0] == 1
            result = struct.unpack_from("<i", rings, cqes + 8)[0]
            if result:
                raise OSError(-result if result < 0 else errno.EREMOTEIO, "io_uring")
        with_fd(path, os.O_RDONLY, act)
    finally:
        os.close(ring)


def uring_nvme(path: str, opcode: int) -> None:
    data = aligned(4096, 0xA9)
    uring(path, NVME_URING_IO, struct.pack(
        "<BBHIIIQQIIIIIIIIII", opcode, 0, 0, 1, 0, 0, 0, address(data), 0, BLOCK, 0, 0, 0, 0, 0, 0, 5000, 0))


def ata16(command: int, protocol: int = 3, direction: int = 8) -> bytes:
    return bytes([0x85, protocol << 1, direction | 6, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x40, command, 0])


WRITE_10 = bytes([0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0])
READ_10 = bytes([0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0])
SCSI_WRITES = {
    "WRITE(10)": (WRITE_10, TO_DEVICE, BLOCK), "UNMAP": (bytes([0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0]), TO_DEVICE, 24),
    "WRITE SAME(16)": (bytes([0x93, 8] + [0] * 11 + [1, 0, 0]), TO_DEVICE, BLOCK),
    "FORMAT UNIT": (bytes([4, 0, 0, 0, 0, 0]), NO_DATA, 0), "SANITIZE": (bytes([0x48, 3] + [0] * 8), NO_DATA, 0),
    "MODE SELECT": (bytes([0x55, 0x10, 0, 0, 0, 0, 0, 0, 8, 0]), TO_DEVICE, 8),
    "PERSISTENT RESERVE OUT": (bytes([0x5F, 0, 0, 0, 0, 0, 0, 0, 24, 0]), TO_DEVICE, 24),
    "vendor": (bytes([0xC1, 0, 0, 0, 0, 0]), NO_DATA, 0), "ATA WRITE": (ata16(0x35, 5, 0), TO_DEVICE, BLOCK),
    "ATA SECURITY ERASE": (ata16(0xF4, 5, 0), TO_DEVICE, BLOCK), "ATA SET FEATURES": (ata16(0xEF, 3, 0), NO_DATA, 0),
    "READ that sends": (READ_10, TO_DEVICE, BLOCK),
}
NVME_WRITES = {"write": 1, "write-uncorrectable": 4, "write-zeroes": 8, "dataset management": 9, "reservation": 0x0D,
               "copy": 0x19, "zone append": 0x7D, "vendor": 0xC1}
NVME_ADMIN_WRITES = {"delete queue": 0, "create queue": 1, "set features": 9, "namespace management": 0x0D,
                     "firmware commit": 0x10, "firmware download": 0x11, "self-test": 0x14, "namespace attach": 0x15,
                     "directive send": 0x19, "virtualization": 0x1C, "doorbell": 0x7C, "format": 0x80,
                     "security send": 0x81, "sanitize": 0x84, "vendor": 0xC1}


def block_group(*paths: str) -> None:
    """Writes by a block node."""
    for path in paths:
        for act in (buffered_write, direct_write, mapped_write, node_write, set_rw):
            attempt(f"{path} {act.__name__}", act, path)
        for name in ("BLKDISCARD", "BLKSECDISCARD", "BLKZEROOUT"):
            attempt(f"{path} {name}", range_ioctl, path, globals()[name])


def raw_group(controller: str, nvme_disk: str, generic: str, *scsi_nodes: str) -> None:
    """Writes by raw commands."""
    for node in (nvme_disk, generic, controller):
        for name, opcode in NVME_WRITES.items():
            attempt(f"{node} {name}", lambda o=opcode, n=node: nvme(n, NVME_IO, o, size=BLOCK))
    for node in (controller, nvme_disk):
        for name, opcode in NVME_ADMIN_WRITES.items():
            attempt(f"{node} admin {name}", lambda o=opcode, n=node: nvme(n, NVME_ADMIN, o, cdw10=7))
    attempt(f"{controller} reset", with_fd, controller, os.O_RDONLY, lambda fd: fcntl.ioctl(fd, NVME_RESET))
    attempt(f"{generic} uring write", uring_nvme, generic, 1)
    attempt(f"{nvme_disk} uring discard", uring, nvme_disk, (18 << 8) | 0, b"")
    for node in scsi_nodes:
        for name, (cdb, direction, size) in SCSI_WRITES.items():
            if "/bsg/" in node:
                attempt(f"{node} {name}", scsi_v4, node, cdb, size if direction == TO_DEVICE else 0)
            else:
                attempt(f"{node} {name}", scsi, node, cdb, direction, size)


def read_group(controller: str, nvme_disk: str, generic: str, *scsi_nodes: str) -> None:
    """What must go on working."""
    attempt("direct read", direct_read, nvme_disk)
    attempt("size", with_fd, nvme_disk, os.O_RDONLY, lambda fd: fcntl.ioctl(fd, BLKGETSIZE64, b"\0" * 8))
    for node in (nvme_disk, generic):
        attempt(f"{node} read", lambda n=node: nvme(n, NVME_IO, 2, size=BLOCK))
    attempt("identify", lambda: nvme(controller, NVME_ADMIN, 6, nsid=0, size=4096, cdw10=1))
    attempt("get log page", lambda: nvme(controller, NVME_ADMIN, 2, nsid=0xFFFFFFFF, size=512, cdw10=0x7F0002))
    attempt("get features", lambda: nvme(controller, NVME_ADMIN, 10, nsid=0, cdw10=7))
    for node in scsi_nodes:
        attempt(f"{node} INQUIRY", scsi, node, bytes([0x12, 0, 0, 0, 96, 0]), FROM_DEVICE, 96)
        attempt(f"{node} READ(10)", scsi, node, READ_10, FROM_DEVICE, BLOCK)


def flush_group(*paths: str) -> None:
    """Flushes, which are answered and not sent."""
    for path in paths:
        attempt(f"{path} fsync", with_fd, path, os.O_RDONLY, os.fsync)
    for path in paths:
        if "/sd" in path:
            attempt(f"{path} SYNCHRONIZE CACHE", scsi, path, bytes([0x35] + [0] * 9))
            attempt(f"{path} START STOP UNIT", scsi, path, bytes([0x1B, 0, 0, 0, 0, 0]))


def behind_the_door_group(generic: str, sg: str) -> None:
    """Raw writes that no ioctl is asked about, or that the door leaves to the wall since another disk is granted."""
    attempt("ng write", lambda: nvme(generic, NVME_IO, 1, size=BLOCK))
    attempt("ng write-zeroes", lambda: nvme(generic, NVME_IO, 8))
    attempt("ng uring write", uring_nvme, generic, 1)
    attempt("sg SG_IO WRITE(10)", scsi, sg, WRITE_10, TO_DEVICE, BLOCK)
    attempt("sg write(2) WRITE(10)", sg_write_call, sg, WRITE_10)


def raw_granted_group(path: str) -> None:
    """Raw writes to a granted SCSI disk."""
    attempt("SG_IO WRITE(10)", scsi, path, WRITE_10, TO_DEVICE, BLOCK)
    attempt("SYNCHRONIZE CACHE", scsi, path, bytes([0x35] + [0] * 9))


def nvme_granted_group(path: str) -> None:
    """Every way to write a granted NVMe disk."""
    for act in (buffered_write, direct_write, mapped_write):
        attempt(act.__name__, act, path)
    generic = path.replace("/nvme", "/ng")
    for node in (path, generic):
        attempt(f"{node} write", lambda n=node: nvme(n, NVME_IO, 1, size=BLOCK))
        attempt(f"{node} write-zeroes", lambda n=node: nvme(n, NVME_IO, 8))
        attempt(f"{node} dataset management", lambda n=node: nvme(n, NVME_IO, 9, size=16, cdw11=4))
        attempt(f"{node} flush", lambda n=node: nvme(n, NVME_IO, 0))
    attempt("uring write", uring_nvme, generic, 1)


def late_group(path: str, control: str, revoke: str) -> None:
    """A mapping and a descriptor from the time of a grant, used after its end."""
    fd = os.open(path, os.O_RDWR)
    area = mmap.mmap(fd, 8192, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    area[0:4] = b"good"
    area.flush()
    with open(control, "w") as file:
        file.write(revoke)
    attempt("pwrite", os.pwrite, fd, b"late", 0)
    area[4096:4100] = b"late"
    attempt("msync", area.flush)
    attempt("fsync", os.fsync, fd)


def around_group(bar: str, module_file: str, nothing: str) -> None:
    """Ways round the guard."""
    with lzma.open(module_file) as compressed:
        image = compressed.read()

    def in_memory() -> None:
        syscall(SYS_INIT_MODULE, image, len(image), b"")

    def from_run() -> None:
        copy = "/run/guard-acts.ko"
        with open(copy, "wb") as target:
            target.write(image)
        with_fd(copy, os.O_RDONLY, lambda fd: syscall(SYS_FINIT_MODULE, fd, b"", 0))

    def exchange_root(number: int) -> None:
        with_fd("/dev/loop0", os.O_RDONLY, lambda fd: with_fd(
            nothing, os.O_RDONLY, lambda other: fcntl.ioctl(fd, number, other)))

    def write_file(path: str, text: str) -> None:
        with open(path, "w") as file:
            file.write(text)

    attempt("module from memory", in_memory)
    attempt("module from /run", from_run)
    attempt("/dev/mem", with_fd, "/dev/mem", os.O_RDWR, os.fstat)
    attempt("/dev/port", with_fd, "/dev/port", os.O_RDWR, os.fstat)
    attempt("iopl", syscall, SYS_IOPL, 3)
    attempt("ioperm", syscall, SYS_IOPERM, 0x80, 1, 1)
    attempt("kexec_load", syscall, SYS_KEXEC_LOAD, 0, 0, None, 0x3E0000)
    attempt("PCI BAR", with_fd, bar, os.O_RDWR, lambda fd: mmap.mmap(fd, 4096))
    attempt("PCI config", with_fd, f"{os.path.dirname(bar)}/config", os.O_RDWR, lambda fd: os.pwrite(fd, b"\0\0", 4))
    attempt("exchange the root's file", exchange_root, LOOP_CHANGE_FD)
    attempt("detach the root's file", exchange_root, LOOP_CLR_FD)
    attempt("ftrace off", write_file, "/proc/sys/kernel/ftrace_enabled", "0")
    attempt("kprobes off", write_file, "/sys/kernel/debug/kprobes/enabled", "0")
    attempt("another seal", write_file, "/proc/stasis_guard/control", "seal /run")
    attempt("nonsense", write_file, "/proc/stasis_guard/control", "grant all")
    attempt("grant of nothing", write_file, "/proc/stasis_guard/control", "grant 8:0 999999")


if __name__ == "__main__":
    globals()[f"{sys.argv[1]}_group"](*sys.argv[2:])
    sys.stdout.write(json.dumps(RESULTS))
