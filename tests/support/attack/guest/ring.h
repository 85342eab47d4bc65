/* io_uring by its three system calls: one command at a time, with the big entries that NVMe commands need. */
#ifndef RING_H
#define RING_H
#include <errno.h>
#include <linux/io_uring.h>
#include <linux/nvme_ioctl.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RING_ENTRIES 4
#define SQE_BYTES 128
#define CQE_BYTES 32

struct ring {
    int fd;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    unsigned char *sqes, *cqes;
};

/* 0, or -errno. */
static int ring_open(struct ring *ring)
{
    struct io_uring_params p = {.flags = IORING_SETUP_SQE128 | IORING_SETUP_CQE32};
    unsigned char *rings;
    size_t bytes;

    ring->fd = syscall(SYS_io_uring_setup, RING_ENTRIES, &p);
    if (ring->fd < 0)
        return -errno;
    bytes = p.cq_off.cqes + p.cq_entries * CQE_BYTES;
    if (bytes < p.sq_off.array + p.sq_entries * sizeof(unsigned))
        bytes = p.sq_off.array + p.sq_entries * sizeof(unsigned);
    rings = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQ_RING);
    ring->sqes = mmap(NULL, p.sq_entries * SQE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd,
                      IORING_OFF_SQES);
    if (rings == MAP_FAILED || ring->sqes == MAP_FAILED)
        return -errno;
    ring->sq_tail = (unsigned *)(rings + p.sq_off.tail);
    ring->sq_mask = (unsigned *)(rings + p.sq_off.ring_mask);
    ring->sq_array = (unsigned *)(rings + p.sq_off.array);
    ring->cq_head = (unsigned *)(rings + p.cq_off.head);
    ring->cq_tail = (unsigned *)(rings + p.cq_off.tail);
    ring->cq_mask = (unsigned *)(rings + p.cq_off.ring_mask);
    ring->cqes = rings + p.cq_off.cqes;
    return 0;
}

/* Submit one entry and wait for it: its result (negative: -errno; an NVMe status is positive). */
static int ring_run(struct ring *ring, const struct io_uring_sqe *entry, const void *command, size_t command_bytes)
{
    unsigned tail = *ring->sq_tail, slot = tail & *ring->sq_mask, head;
    unsigned char *sqe = ring->sqes + slot * SQE_BYTES;
    int result;

    memset(sqe, 0, SQE_BYTES);
    memcpy(sqe, entry, sizeof *entry);
    if (command)
        memcpy(sqe + offsetof(struct io_uring_sqe, cmd), command, command_bytes);
    ring->sq_array[slot] = slot;
    __atomic_store_n(ring->sq_tail, tail + 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
        return -errno;
    head = *ring->cq_head;
    while (__atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE) == head)
        if (syscall(SYS_io_uring_enter, ring->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
            return -errno;
    result = ((struct io_uring_cqe *)(ring->cqes + (head & *ring->cq_mask) * CQE_BYTES))->res;
    __atomic_store_n(ring->cq_head, head + 1, __ATOMIC_RELEASE);
    return result;
}

/* An NVMe command by io_uring on a /dev/ng* or /dev/nvme* node. */
static int ring_nvme(struct ring *ring, int fd, unsigned operation, const struct nvme_uring_cmd *command)
{
    struct io_uring_sqe entry = {.opcode = IORING_OP_URING_CMD, .fd = fd};

    entry.cmd_op = operation;
    return ring_run(ring, &entry, command, sizeof *command);
}
#endif
