/* Try to mount and to write a disk that comes and goes, as fast as the machine can.
 *   race DIRECTORY MAJOR FIRST LAST [NICENESS]
 * Looks at the device numbers MAJOR:FIRST to MAJOR:LAST through nodes of its own in DIRECTORY: nobody needs to make
 * them, and no event is waited for. All names are relative to DIRECTORY, which may be mounted elsewhere meanwhile, as
 * happens when it is started by the first stage of a boot. Ends when DIRECTORY/stop is there; prints one JSON line with the tries by what became of
 * them (absent: there was no disk at that moment, which is no try). DIRECTORY/tries says meanwhile how many there were.
 * A write that succeeds is what it must never see. What is there at the start is left alone.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define THREADS 2
#define PAGE 4096
#define NODES 128
#define LOOK_EVERY 16
/* A number without a disk costs the kernel a search for a driver; one with a disk is tried again at once. */
#define AGAIN 64
#define MOUNT_EVERY 8

struct tally {
    unsigned long tries, absent, opened, wrote, mounted, mounted_read_only, open_errors[256], write_errors[256], mount_errors[256];
};

static struct tally tallies[THREADS];
static unsigned first, last, major_number;

static int is_absent(void)
{
    return errno == ENXIO || errno == ENODEV || errno == ENOENT;
}

static void try_mount(struct tally *tally, const char *node, const char *point, const char *kind, unsigned long flags)
{
    if (mount(node, point, kind, flags, NULL) == 0) {
        tally->tries++;
        if (flags & MS_RDONLY)
            tally->mounted_read_only++;
        else
            tally->mounted++;
        umount2(point, MNT_DETACH);
    } else if (is_absent()) {
        tally->absent++;
    } else {
        tally->tries++;
        tally->mount_errors[errno & 255]++;
    }
}

/* Whether there was a disk. */
static int try_node(struct tally *tally, const char *node, const char *point, unsigned char *page)
{
    int zero = 0, fd;

    fd = open(node, O_RDWR | O_CLOEXEC | O_DIRECT);
    if (fd < 0 && is_absent()) {
        tally->absent++;
        return 0;
    }
    tally->tries++;
    if (fd < 0) {
        tally->open_errors[errno & 255]++;
        fd = open(node, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            ioctl(fd, BLKROSET, &zero);
            close(fd);
            fd = open(node, O_RDWR | O_CLOEXEC | O_DIRECT);
        }
    }
    if (fd >= 0) {
        tally->opened++;
        if (pwrite(fd, page, PAGE, 16 * PAGE) == PAGE)
            tally->wrote++;
        else
            tally->write_errors[errno & 255]++;
        close(fd);
    }
    /* Unmounting waits for every processor; most of the tries are to be quick ones. */
    if (tally->tries % MOUNT_EVERY == 0) {
        try_mount(tally, node, point, "ext4", 0);
        try_mount(tally, node, point, "ext4", MS_RDONLY);
    }
    return 1;
}

static void tell(void)
{
    unsigned long tries = 0;
    char text[32];
    int fd, length;

    for (int thread = 0; thread < THREADS; thread++)
        tries += tallies[thread].tries;
    length = snprintf(text, sizeof text, "%020lu\n", tries);
    fd = open("tries", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || pwrite(fd, text, (size_t)length, 0) != length)
        perror("tries");
    close(fd);
}

static void *run(void *argument)
{
    struct tally *tally = argument;
    unsigned char *page = aligned_alloc(PAGE, PAGE);
    char node[NODES][32], point[32], there[NODES] = {0};
    unsigned number = (unsigned)(tally - tallies), count = last - first + 1, round;
    int fd;

    memset(page, 0x77, PAGE);
    snprintf(point, sizeof point, "point-%u", number);
    mkdir(point, 0700);
    for (unsigned at = 0; at < count; at++) {
        snprintf(node[at], sizeof node[at], "node-%u-%u", number, first + at);
        unlink(node[at]);
        if (mknod(node[at], S_IFBLK | 0600, makedev(major_number, first + at)) < 0) {
            fprintf(stderr, "mknod: %s\n", strerror(errno));
            exit(1);
        }
        fd = open(node[at], O_RDONLY | O_CLOEXEC);
        there[at] = fd >= 0;
        close(fd);
    }
    for (round = 0; round % LOOK_EVERY || access("stop", F_OK) != 0; round++) {
        if (round % LOOK_EVERY == 0)
            tell();
        for (unsigned at = 0; at < count; at++)
            for (unsigned again = 0; !there[at] && again < AGAIN && try_node(tally, node[at], point, page); again++)
                ;
    }
    return NULL;
}

static void show(const char *name, size_t offset)
{
    int shown = 0;

    printf(", \"%s\": {", name);
    for (int error = 1; error < 256; error++) {
        unsigned long sum = 0;

        for (int thread = 0; thread < THREADS; thread++)
            sum += ((unsigned long *)((char *)&tallies[thread] + offset))[error];
        if (sum)
            printf("%s\"%s\": %lu", shown++ ? ", " : "", strerrorname_np(error), sum);
    }
    printf("}");
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    struct tally sum = {0};

    if (argc != 5 && argc != 6)
        return 2;
    major_number = (unsigned)atoi(argv[2]);
    first = (unsigned)atoi(argv[3]);
    last = (unsigned)atoi(argv[4]);
    if (last < first || last - first >= NODES)
        return 2;
    mkdir(argv[1], 0700);
    if (chdir(argv[1]) < 0) {
        perror(argv[1]);
        return 1;
    }
    if (argc == 6 && nice(atoi(argv[5])) < 0)
        perror("nice");
    for (int at = 0; at < THREADS; at++)
        pthread_create(&threads[at], NULL, run, &tallies[at]);
    for (int at = 0; at < THREADS; at++) {
        pthread_join(threads[at], NULL);
        sum.tries += tallies[at].tries;
        sum.opened += tallies[at].opened;
        sum.wrote += tallies[at].wrote;
        sum.mounted += tallies[at].mounted;
        sum.mounted_read_only += tallies[at].mounted_read_only;
        sum.absent += tallies[at].absent;
    }
    printf("{\"tries\": %lu, \"absent\": %lu, \"opened\": %lu, \"wrote\": %lu, \"mounted\": %lu", sum.tries, sum.absent,
           sum.opened, sum.wrote, sum.mounted);
    printf(", \"mounted_read_only\": %lu", sum.mounted_read_only);
    show("open", offsetof(struct tally, open_errors));
    show("write", offsetof(struct tally, write_errors));
    show("mount", offsetof(struct tally, mount_errors));
    printf("}\n");
    return 0;
}
