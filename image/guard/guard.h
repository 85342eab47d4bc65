/* SPDX-License-Identifier: GPL-2.0 */
/*
 * stasis_guard: the kernel refuses every write to every disk but the granted one.
 *
 * hooks.c       puts ftrace hooks that cannot be switched off into functions of the kernel
 * wall.c        refuses bios and NVMe commands, whoever sends them
 * passthrough.c refuses raw SCSI, ATA and other requests
 * door.c        refuses early and clearly: open for writing, ioctl, io_uring commands
 * lockdown.c    what could go round the guard: modules, kexec, /dev/mem, raw ports
 * judge.c       which command only reads (pure tables)
 * disks.c       the disks by attachment, their counters; grants.c: who may be written
 * state.c       /proc/stasis_guard; selftest.c: arming is believed only after an attack on a disk in memory
 */
#ifndef STASIS_GUARD_H
#define STASIS_GUARD_H

#include <linux/atomic.h>
#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/ftrace.h>
#include <linux/kernel_read_file.h>
#include <linux/security.h>
#include <linux/types.h>

struct nvme_command;
struct scsi_cmnd;

#define GUARD_VERSION 1

enum guard_layer {
	LAYER_BIO, LAYER_NVME, LAYER_PASSTHROUGH, LAYER_OPEN, LAYER_IOCTL, LAYER_LOCKDOWN, LAYER_MODULES, LAYER_FLAG,
	LAYER_COUNT
};

enum guard_kind { KIND_BIO, KIND_DISCARD, KIND_COMMAND, KIND_OPEN, KIND_IOCTL, KIND_COUNT };

extern const char *const guard_kind_names[KIND_COUNT];

/* What was refused last. Kept for each disk, and once for everything that belongs to no disk. */
struct guard_last {
	enum guard_kind kind;
	u32 opcode;
	pid_t pid;
	char comm[TASK_COMM_LEN];
	u64 at_ns;		/* 0: nothing was refused yet */
};

/* One attachment of a disk. Found by its gendisk, which it holds; freed after a grace period. */
struct guard_disk {
	struct hlist_node node;
	struct rcu_head rcu;
	struct gendisk *disk;
	dev_t dev;
	char name[DISK_NAME_LEN];
	char head[DISK_NAME_LEN];	/* of a hidden NVMe path: the disk whose path it is */
	u64 granted;			/* the diskseq that was granted; 0: none */
	atomic64_t refused[KIND_COUNT];
	atomic64_t flush_kept;
	spinlock_t last_lock;
	struct guard_last last;
};

/* hooks.c */
struct guard_hook {
	const char *name;
	enum guard_layer layer;
	ftrace_func_t judge;
	void *instead;
	unsigned long address;
	bool armed;
	struct ftrace_ops ops;
};

extern struct guard_hook guard_hooks[];
extern const unsigned int guard_hook_count;
int guard_find_hooks(void);
int guard_arm(void);
void guard_disarm(void);
bool guard_armed(void);
bool guard_layer_armed(enum guard_layer layer);
unsigned long guard_find_symbol(const char *name);
bool guard_is_function(const void *pointer, unsigned long address);
bool guard_came_from_us(unsigned long parent_ip);

/* Leave the hooked function and run `instead` with the same arguments in its place. */
static __always_inline void guard_divert(struct ftrace_ops *ops, struct ftrace_regs *fregs)
{
	struct guard_hook *hook = container_of(ops, struct guard_hook, ops);

	ftrace_regs_set_instruction_pointer(fregs, (unsigned long)hook->instead);
}

#define GUARD_ARG(fregs, number, type) ((type)ftrace_regs_get_argument(fregs, number))

/* disks.c */
extern atomic64_t guard_layer_refused[LAYER_COUNT];
extern atomic64_t guard_flush_unlisted;
struct guard_admin { char name[32]; atomic64_t refused; };
#define GUARD_ADMINS 64
extern struct guard_admin guard_admins[GUARD_ADMINS];
extern struct guard_last guard_last_admin;
bool guard_is_exempt(const struct gendisk *disk);
bool guard_is_hidden_path(const struct gendisk *disk);
bool guard_may_write(struct gendisk *disk);
bool guard_any_grant(void);
int guard_add_disk(struct gendisk *disk);
void guard_drop_disk(struct gendisk *disk);
struct guard_disk *guard_find_disk(const struct gendisk *disk);
void guard_each_disk(void (*visit)(struct guard_disk *disk, void *data), void *data);
void guard_refused(struct gendisk *disk, enum guard_layer layer, enum guard_kind kind, u32 opcode);
void guard_refused_admin(const char *name, u32 opcode);
void guard_kept_back(struct gendisk *disk);
bool guard_last_of(struct guard_disk *disk, struct guard_last *last);
bool guard_last_admin_of(struct guard_last *last);
void guard_forget_counts(void);
extern struct mutex guard_disks_mutex;

/* grants.c */
int guard_grant(dev_t dev, u64 diskseq);
int guard_revoke(dev_t dev, u64 diskseq);
int guard_set_grant(struct gendisk *disk, bool grant);

/* judge.c */
enum guard_verdict { VERDICT_READ, VERDICT_KEEP_BACK, VERDICT_REFUSE };
bool guard_nvme_io_reads(u8 opcode);
bool guard_nvme_user_admin_reads(u8 opcode);
bool guard_nvme_driver_admin_needed(u8 opcode, u8 fctype, u8 feature);
enum guard_verdict guard_judge_scsi(const u8 *cdb, unsigned int length, bool to_device);
bool guard_ata_reads(u8 command, u8 feature);
bool guard_block_ioctl_harmless(unsigned int cmd);
bool guard_char_ioctl_harmless(unsigned int cmd);
bool guard_char_module_harmless(const char *module);

/* wall.c, passthrough.c, door.c, lockdown.c: the hooks' two halves. judge_ runs inside ftrace and must not sleep. */
#define GUARD_JUDGE(what) \
	void notrace judge_##what(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops, struct ftrace_regs *fregs)
GUARD_JUDGE(bio);
GUARD_JUDGE(cloned_request);
GUARD_JUDGE(nvme_command);
GUARD_JUDGE(execute);
GUARD_JUDGE(execute_nowait);
GUARD_JUDGE(add_disk);
GUARD_JUDGE(del_disk);
GUARD_JUDGE(open);
GUARD_JUDGE(ioctl);
GUARD_JUDGE(uring);
GUARD_JUDGE(lockdown);
GUARD_JUDGE(read_file);
GUARD_JUDGE(load_data);
void instead_of_bio(struct bio *bio);
blk_status_t instead_of_cloned_request(struct request *rq);
blk_status_t instead_of_nvme_command(void *ns, struct request *rq);
blk_status_t instead_of_execute(struct request *rq, bool at_head);
void instead_of_execute_nowait(struct request *rq, bool at_head);
int instead_of_add_disk(struct device *parent, struct gendisk *disk, const struct attribute_group **groups);
void instead_of_del_disk(struct gendisk *disk);
int instead_of_open(struct block_device *bdev, blk_mode_t mode, void *holder, const void *hops, struct file *file);
int instead_of_ioctl(struct file *file, unsigned int cmd, unsigned long arg);
int instead_of_ioctl_compat(struct file *file, unsigned int cmd, unsigned long arg);
struct io_uring_cmd;
int instead_of_uring(struct io_uring_cmd *cmd);
int instead_of_lockdown(enum lockdown_reason what);
int instead_of_read_file(struct file *file, enum kernel_read_file_id id, bool contents);
int instead_of_load_data(enum kernel_load_data_id id, bool contents);

/* passthrough.c */
int guard_find_queues(void);

/* door.c */
int guard_find_door(void);

/* lockdown.c */
extern atomic64_t guard_other_lockdown, guard_other_module;
int guard_seal(const char *path);
bool guard_sealed(void);
bool guard_backs_the_seal(const struct gendisk *disk);

/* state.c, selftest.c */
int guard_make_proc(void);
int guard_selftest_before(void);
int guard_selftest_after(void);
void guard_selftest_end(void);

#endif
