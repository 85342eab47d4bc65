/* Send the NVMe commands of a table, each by the door that it names, and count what became of them.
 *   fuzz TABLE BLOCK-NODE GENERIC-NODE CONTROLLER-NODE
 * The table is made by the host from a seed (tests/support/attack/fuzzing.py), 64 bytes an entry. Prints one JSON line.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include "ring.h"

#define DATA_BYTES 65536
#define TIMEOUT_MS 2000

struct entry {
    uint8_t door, opcode, flags, unused;
    uint32_t nsid, cdw2, cdw3, metadata_bytes, data_bytes, cdw[6], fill, spare[3];
};

enum { IO_BLOCK, IO_GENERIC, IO64_GENERIC, SUBMIT, ADMIN, ADMIN64, URING_IO, URING_ADMIN, URING_BLOCK, DOORS };

static int send_one(struct ring *ring, const int *fds, const struct entry *e, unsigned char *data, unsigned char *metadata)
{
    static const unsigned long requests[] = {
        [IO_BLOCK] = NVME_IOCTL_IO_CMD, [IO_GENERIC] = NVME_IOCTL_IO_CMD, [IO64_GENERIC] = NVME_IOCTL_IO64_CMD,
        [ADMIN] = NVME_IOCTL_ADMIN_CMD, [ADMIN64] = NVME_IOCTL_ADMIN64_CMD,
    };
    struct nvme_passthru_cmd64 command = {
        .opcode = e->opcode, .flags = e->flags, .nsid = e->nsid, .cdw2 = e->cdw2, .cdw3 = e->cdw3,
        .addr = e->data_bytes ? (uintptr_t)data : 0, .data_len = e->data_bytes,
        .metadata = e->metadata_bytes ? (uintptr_t)metadata : 0, .metadata_len = e->metadata_bytes,
        .cdw10 = e->cdw[0], .cdw11 = e->cdw[1], .cdw12 = e->cdw[2], .cdw13 = e->cdw[3], .cdw14 = e->cdw[4],
        .cdw15 = e->cdw[5], .timeout_ms = TIMEOUT_MS,
    };
    struct nvme_uring_cmd wish;
    struct nvme_user_io plain = {
        .opcode = e->opcode, .flags = e->flags, .nblocks = e->cdw[2] & 7, .addr = (uintptr_t)data, .slba = e->cdw[0],
    };
    int fd = e->door == IO_BLOCK || e->door == SUBMIT || e->door == URING_BLOCK ? fds[0]
             : e->door == ADMIN || e->door == ADMIN64 || e->door == URING_ADMIN ? fds[2] : fds[1];

    if (e->door < URING_IO) {
        int result = e->door == SUBMIT ? ioctl(fd, NVME_IOCTL_SUBMIT_IO, &plain) : ioctl(fd, requests[e->door], &command);

        return result < 0 ? -errno : result;
    }
    memset(&wish, 0, sizeof wish);
    wish.opcode = e->opcode;
    wish.flags = e->flags;
    wish.nsid = e->nsid;
    wish.cdw2 = e->cdw2;
    wish.cdw3 = e->cdw3;
    wish.addr = command.addr;
    wish.data_len = e->data_bytes;
    wish.metadata = command.metadata;
    wish.metadata_len = e->metadata_bytes;
    memcpy(&wish.cdw10, e->cdw, sizeof e->cdw);
    wish.timeout_ms = TIMEOUT_MS;
    return ring_nvme(ring, fd, e->door == URING_ADMIN ? NVME_URING_CMD_ADMIN : NVME_URING_CMD_IO, &wish);
}

int main(int argc, char **argv)
{
    static unsigned errors[DOORS][256], status[DOORS], passed[DOORS];
    unsigned char *data = aligned_alloc(4096, DATA_BYTES), *metadata = aligned_alloc(4096, DATA_BYTES);
    unsigned sent = 0, door, error;
    struct entry entry;
    struct ring ring = {0};
    FILE *table;
    int fds[3];

    if (argc != 5 || !(table = fopen(argv[1], "rb")))
        return 2;
    for (int at = 0; at < 3; at++)
        if ((fds[at] = open(argv[2 + at], O_RDONLY | O_CLOEXEC)) < 0) {
            fprintf(stderr, "%s: %s\n", argv[2 + at], strerror(errno));
            return 1;
        }
    if (ring_open(&ring) < 0) {
        fprintf(stderr, "io_uring: %s\n", strerror(errno));
        return 1;
    }
    memset(metadata, 0xa5, DATA_BYTES);
    while (fread(&entry, sizeof entry, 1, table) == 1) {
        int result;

        if (entry.door >= DOORS || entry.data_bytes > DATA_BYTES || entry.metadata_bytes > DATA_BYTES)
            return 2;
        memset(data, entry.fill & 255, DATA_BYTES);
        result = send_one(&ring, fds, &entry, data, metadata);
        sent++;
        if (result < 0)
            errors[entry.door][-result & 255]++;
        else if (result > 0)
            status[entry.door]++;
        else
            passed[entry.door]++;
    }
    printf("{\"sent\": %u, \"doors\": [", sent);
    for (door = 0; door < DOORS; door++) {
        printf("%s{\"passed\": %u, \"status\": %u", door ? ", " : "", passed[door], status[door]);
        for (error = 1; error < 256; error++)
            if (errors[door][error])
                printf(", \"%s\": %u", strerrorname_np(error), errors[door][error]);
        printf("}");
    }
    printf("]}\n");
    return 0;
}
