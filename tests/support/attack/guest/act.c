/* Acts that no common tool does: each tries to change a disk in one certain way and says what became of it.
 *   act NAME NODE [ARGUMENT...]      status 0: done; 1: refused, with the errno on standard error; 2: misused
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/blkzoned.h>
#include <linux/bsg.h>
#include <linux/fs.h>
#include <linux/pr.h>
#include <scsi/sg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/io.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "ring.h"

#define BLOCK_URING_CMD_DISCARD_ _IO(0x12, 0)
#define PAGE 4096
#define SPOT (8 * PAGE)
#define TIMEOUT_MS 3000

static unsigned char *page;

static int say(const char *what, int error)
{
    fprintf(stderr, "%s: %s (%s)\n", what, strerrorname_np(error), strerror(error));
    return 1;
}

static int said(const char *what, long result)
{
    return result < 0 ? say(what, errno) : 0;
}

/* Open for writing; root may send most commands on a read-only descriptor, so that is tried next. */
static int open_any(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);

    if (fd < 0) {
        say("open read-write", errno);
        fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    }
    if (fd < 0)
        exit(say("open", errno));
    return fd;
}

static int open_write(const char *path, int flags)
{
    int fd = open(path, O_RDWR | flags | O_CLOEXEC);

    if (fd < 0)
        exit(say("open read-write", errno));
    return fd;
}

static int put(int fd)
{
    if (pwrite(fd, page, PAGE, SPOT) != PAGE)
        return say("write", errno);
    return said("fsync", fsync(fd));
}

static int act_mmap(const char *path)
{
    int fd = open_write(path, 0);
    unsigned char *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, SPOT);

    if (at == MAP_FAILED)
        return say("mmap", errno);
    memcpy(at, page, PAGE);
    return said("msync", msync(at, PAGE, MS_SYNC));
}

static int act_uring(const char *path, int discard)
{
    struct io_uring_sqe entry = {0};
    struct ring ring = {0};
    int fd = open_any(path), result = ring_open(&ring);

    if (result < 0)
        return say("io_uring_setup", -result);
    entry.fd = fd;
    if (discard) {
        entry.opcode = IORING_OP_URING_CMD;
        entry.cmd_op = BLOCK_URING_CMD_DISCARD_;
        entry.addr = SPOT;
        entry.addr3 = PAGE;
    } else {
        entry.opcode = IORING_OP_WRITE;
        entry.addr = (uintptr_t)page;
        entry.len = PAGE;
        entry.off = SPOT;
    }
    result = ring_run(&ring, &entry, NULL, 0);
    if (result < 0)
        return say("io_uring", -result);
    return discard ? 0 : said("fsync", fsync(fd));
}

static int act_range(const char *path, unsigned long request)
{
    uint64_t range[2] = {SPOT, PAGE};

    return said("ioctl", ioctl(open_any(path), request, range));
}

static int act_zone(const char *path, unsigned long request)
{
    struct blk_zone_range range = {.sector = 0, .nr_sectors = 8};

    return said("ioctl", ioctl(open_any(path), request, &range));
}

static int act_roset0(const char *path)
{
    int zero = 0, fd = open_any(path), error = 0;

    if (ioctl(fd, BLKROSET, &zero) < 0)
        error = say("BLKROSET 0", errno);
    close(fd);
    return put(open_write(path, O_DIRECT)) | error;
}

static int act_reserve(const char *path)
{
    struct pr_registration registration = {.old_key = 0, .new_key = 0x5157};
    struct pr_reservation reservation = {.key = 0x5157, .type = PR_WRITE_EXCLUSIVE};
    struct pr_clear clear = {.key = 0x5157};
    int fd = open_any(path), error = said("IOC_PR_REGISTER", ioctl(fd, IOC_PR_REGISTER, &registration));

    error |= said("IOC_PR_RESERVE", ioctl(fd, IOC_PR_RESERVE, &reservation));
    return error | said("IOC_PR_CLEAR", ioctl(fd, IOC_PR_CLEAR, &clear));
}

static int nvme_said(int result)
{
    if (result < 0)
        return say("NVMe command", errno);
    if (result > 0) {
        fprintf(stderr, "NVMe command: status %#x of the device\n", result & 0x7ff);
        return 1;
    }
    return 0;
}

/* What a command carries, for the opcodes that look at it. */
static struct nvme_passthru_cmd64 nvme_command(unsigned opcode, unsigned nsid)
{
    struct nvme_passthru_cmd64 command = {.opcode = opcode, .nsid = nsid, .timeout_ms = TIMEOUT_MS};

    if (opcode & 1) {
        command.addr = (uintptr_t)page;
        command.data_len = PAGE;
        command.cdw10 = 8;
    }
    return command;
}

static int act_nvme(const char *path, unsigned long request, unsigned opcode, unsigned nsid)
{
    struct nvme_passthru_cmd64 wide = nvme_command(opcode, nsid);
    struct nvme_passthru_cmd narrow = {
        .opcode = opcode, .nsid = nsid, .addr = wide.addr, .data_len = wide.data_len, .cdw10 = wide.cdw10,
        .timeout_ms = TIMEOUT_MS,
    };
    struct nvme_user_io plain = {.opcode = opcode, .nblocks = 0, .addr = (uintptr_t)page, .slba = 8};
    int fd = open_any(path);

    /* One block of what the disk calls a block. */
    if (opcode == 1 && (request == NVME_IOCTL_IO_CMD || request == NVME_IOCTL_IO64_CMD)) {
        int block = 512;

        ioctl(fd, BLKSSZGET, &block);
        wide.data_len = narrow.data_len = block;
    }
    if (request == NVME_IOCTL_SUBMIT_IO)
        return nvme_said(ioctl(fd, request, &plain));
    if (request == NVME_IOCTL_IO64_CMD || request == NVME_IOCTL_ADMIN64_CMD)
        return nvme_said(ioctl(fd, request, &wide));
    return nvme_said(ioctl(fd, request, &narrow));
}

static int uring_nvme(struct ring *ring, int fd, unsigned operation, unsigned opcode, unsigned nsid, unsigned bytes)
{
    struct nvme_passthru_cmd64 wide = nvme_command(opcode, nsid);
    struct nvme_uring_cmd command = {
        .opcode = opcode, .nsid = nsid, .addr = wide.addr, .data_len = wide.data_len ? bytes : 0, .cdw10 = wide.cdw10,
        .timeout_ms = TIMEOUT_MS,
    };

    return ring_nvme(ring, fd, operation, &command);
}

static int act_uring_nvme(const char *path, unsigned operation, unsigned opcode, unsigned nsid, unsigned bytes)
{
    struct ring ring = {0};
    int fd = open_any(path), result = ring_open(&ring);

    if (result < 0)
        return say("io_uring_setup", -result);
    result = uring_nvme(&ring, fd, operation, opcode, nsid, bytes);
    if (result < 0)
        return say("io_uring command", -result);
    return nvme_said(result);
}

/* Every opcode there is. Prints those that were done or answered by the device, and how many were refused how. */
static int act_sweep(const char *path, const char *how, unsigned nsid, unsigned first, unsigned last)
{
    unsigned errors[256] = {0}, passed = 0, opcode;
    int fd = open_any(path), uring = !strncmp(how, "uring", 5), admin = strstr(how, "admin") != NULL;
    struct ring ring = {0};

    if (uring && ring_open(&ring) < 0)
        return say("io_uring_setup", errno);
    for (opcode = first; opcode <= last; opcode++) {
        struct nvme_passthru_cmd64 command = nvme_command(opcode, nsid);
        int result;

        if (uring) {
            result = uring_nvme(&ring, fd, admin ? NVME_URING_CMD_ADMIN : NVME_URING_CMD_IO, opcode, nsid, 512);
            errno = result < 0 ? -result : 0;
        } else {
            result = ioctl(fd, admin ? NVME_IOCTL_ADMIN64_CMD : NVME_IOCTL_IO64_CMD, &command);
        }
        if (result < 0) {
            errors[errno & 255]++;
        } else {
            printf("%s%02x", passed++ ? " " : "passed ", opcode);
        }
    }
    printf("\n");
    for (opcode = 1; opcode < 256; opcode++)
        if (errors[opcode])
            fprintf(stderr, "%u opcodes: %s (%s)\n", errors[opcode], strerrorname_np(opcode), strerror(opcode));
    return passed == 0;
}

static int scsi(int fd, const unsigned char *cdb, unsigned length, int direction, unsigned bytes, int bsg)
{
    unsigned char sense[64] = {0};
    struct sg_io_hdr old = {
        .interface_id = 'S', .dxfer_direction = direction, .cmd_len = length, .mx_sb_len = sizeof sense,
        .dxfer_len = bytes, .dxferp = page, .cmdp = (void *)(uintptr_t)cdb, .sbp = sense, .timeout = TIMEOUT_MS,
    };
    struct sg_io_v4 new = {
        .guard = 'Q', .request_len = length, .request = (uintptr_t)cdb, .max_response_len = sizeof sense,
        .response = (uintptr_t)sense, .timeout = TIMEOUT_MS,
        .dout_xfer_len = direction == SG_DXFER_TO_DEV ? bytes : 0, .dout_xferp = (uintptr_t)page,
        .din_xfer_len = direction == SG_DXFER_FROM_DEV ? bytes : 0, .din_xferp = (uintptr_t)page,
    };

    if (ioctl(fd, SG_IO, bsg ? (void *)&new : (void *)&old) < 0)
        return -1;
    if (bsg ? new.device_status || new.transport_status : old.status || old.host_status) {
        unsigned fixed = (sense[0] & 0x7f) < 0x72;

        fprintf(stderr, "SCSI command %02x: status %#x host %#x sense %x/%02x/%02x\n", cdb[0],
                bsg ? new.device_status : old.status, bsg ? new.transport_status : old.host_status,
                fixed ? sense[2] & 15 : sense[1] & 15, fixed ? sense[12] : sense[2], fixed ? sense[13] : sense[3]);
        return 1;
    }
    return 0;
}

static int act_scsi(const char *path, const char *hex, const char *direction, unsigned bytes, int bsg)
{
    unsigned char cdb[32];
    unsigned length = 0;
    int result, towards = !strcmp(direction, "out") ? SG_DXFER_TO_DEV
                        : !strcmp(direction, "in")  ? SG_DXFER_FROM_DEV : SG_DXFER_NONE;

    while (length < sizeof cdb && sscanf(hex + 2 * length, "%2hhx", &cdb[length]) == 1)
        length++;
    result = scsi(open_any(path), cdb, length, towards, bytes, bsg);
    return result < 0 ? say("SG_IO", errno) : result;
}

static int act_scsi_sweep(const char *path)
{
    unsigned errors[256] = {0}, passed = 0, answered = 0, opcode;
    int fd = open_any(path);

    for (opcode = 0; opcode < 256; opcode++) {
        unsigned char cdb[16] = {opcode};
        unsigned length = opcode < 0x20 ? 6 : opcode < 0x60 ? 10 : opcode >= 0x80 && opcode < 0xa0 ? 16 : 12;
        int reads = opcode == 0x08 || opcode == 0x28 || opcode == 0x88 || opcode == 0xa8 || opcode == 0x12 || opcode == 3;
        int result = scsi(fd, cdb, length, reads ? SG_DXFER_FROM_DEV : SG_DXFER_TO_DEV, 512, 0);

        if (result < 0)
            errors[errno & 255]++;
        else if (result > 0)
            answered++;
        else
            printf("%s%02x", passed++ ? " " : "passed ", opcode);
    }
    printf("\n%u with a SCSI status\n", answered);
    for (opcode = 1; opcode < 256; opcode++)
        if (errors[opcode])
            fprintf(stderr, "%u opcodes: %s (%s)\n", errors[opcode], strerrorname_np(opcode), strerror(opcode));
    return passed == 0;
}

static int act_kexec(void)
{
    return said("kexec_load", syscall(SYS_kexec_load, 0UL, 0UL, NULL, 0UL));
}

static int act_module(const char *path)
{
    static unsigned char text[1 << 22];
    int fd = open(path, O_RDONLY | O_CLOEXEC), error;
    ssize_t bytes = read(fd, text, sizeof text);

    if (bytes < 0)
        return say("read", errno);
    error = said("init_module", syscall(SYS_init_module, text, (unsigned long)bytes, ""));
    return error & said("finit_module", syscall(SYS_finit_module, fd, "", 0));
}

static int act_map(const char *path)
{
    int fd = open(path, O_RDWR | O_SYNC | O_CLOEXEC);

    if (fd < 0)
        return say("open", errno);
    return mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED ? say("mmap", errno) : 0;
}

/* Stop a file system dead (FS_IOC_SHUTDOWN): what is in its log must be replayed at the next mount. */
static int act_shutdown(const char *path, unsigned flags)
{
    return said("FS_IOC_SHUTDOWN", ioctl(open(path, O_RDONLY | O_CLOEXEC), _IOR('X', 125, uint32_t), &flags));
}

#define IS(word) (!strcmp(name, word))
#define NUMBER(at) ((unsigned)(argc > (at) ? strtoul(argv[at], NULL, 0) : 0))

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "", *path = argc > 2 ? argv[2] : "";

    page = aligned_alloc(PAGE, PAGE);
    memset(page, 0x5a, PAGE);
    if (IS("write")) return put(open_write(path, 0));
    if (IS("write-direct")) return put(open_write(path, O_DIRECT));
    if (IS("mmap")) return act_mmap(path);
    if (IS("uring-write")) return act_uring(path, 0);
    if (IS("uring-discard")) return act_uring(path, 1);
    if (IS("discard")) return act_range(path, BLKDISCARD);
    if (IS("secure-discard")) return act_range(path, BLKSECDISCARD);
    if (IS("zero-out")) return act_range(path, BLKZEROOUT);
    if (IS("fallocate")) return said("fallocate", fallocate(open_write(path, 0), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, SPOT, PAGE));
    if (IS("zone-reset")) return act_zone(path, BLKRESETZONE);
    if (IS("zone-finish")) return act_zone(path, BLKFINISHZONE);
    if (IS("roset0")) return act_roset0(path);
    if (IS("reserve")) return act_reserve(path);
    if (IS("fsync")) return said("fsync", fsync(open_any(path)));
    if (IS("nvme-io")) return act_nvme(path, NVME_IOCTL_IO_CMD, NUMBER(3), NUMBER(4));
    if (IS("nvme-io64")) return act_nvme(path, NVME_IOCTL_IO64_CMD, NUMBER(3), NUMBER(4));
    if (IS("nvme-submit")) return act_nvme(path, NVME_IOCTL_SUBMIT_IO, NUMBER(3), 0);
    if (IS("nvme-admin")) return act_nvme(path, NVME_IOCTL_ADMIN_CMD, NUMBER(3), NUMBER(4));
    if (IS("nvme-uring")) return act_uring_nvme(path, NVME_URING_CMD_IO, NUMBER(3), NUMBER(4), NUMBER(5));
    if (IS("nvme-uring-admin")) return act_uring_nvme(path, NVME_URING_CMD_ADMIN, NUMBER(3), NUMBER(4), PAGE);
    if (IS("nvme-sweep") && argc > 6) return act_sweep(path, argv[3], NUMBER(4), NUMBER(5), NUMBER(6));
    if (IS("sg") && argc > 5) return act_scsi(path, argv[3], argv[4], NUMBER(5), 0);
    if (IS("bsg") && argc > 5) return act_scsi(path, argv[3], argv[4], NUMBER(5), 1);
    if (IS("sg-sweep")) return act_scsi_sweep(path);
    if (IS("kexec")) return act_kexec();
    if (IS("module")) return act_module(path);
    if (IS("map")) return act_map(path);
    if (IS("shutdown")) return act_shutdown(path, NUMBER(3));
    if (IS("iopl")) return said("iopl", iopl(3));
    fprintf(stderr, "act: no such act: %s\n", name);
    return 2;
}
