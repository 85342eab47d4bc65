// SPDX-License-Identifier: GPL-2.0
/*
 * The disks, one entry for each attachment, from device_add_disk() to del_gendisk(). The entry holds the gendisk, so its
 * address is not used again; the diskseq tells attachments (and media of one drive) apart, the kernel never repeats it.
 */
#define pr_fmt(fmt) "stasis_guard: " fmt
#include <linux/hashtable.h>
#include <linux/module.h>
#include <linux/rculist.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>
#include "guard.h"

const char *const guard_kind_names[KIND_COUNT] = { "bio", "discard", "command", "open", "ioctl" };
atomic64_t guard_layer_refused[LAYER_COUNT];
atomic64_t guard_flush_unlisted;
struct guard_admin guard_admins[GUARD_ADMINS];
struct guard_last guard_last_admin;
DEFINE_MUTEX(guard_disks_mutex);

static DEFINE_HASHTABLE(disks, 7);
static DEFINE_SPINLOCK(disks_lock);
static DEFINE_SPINLOCK(admin_lock);
static atomic_t grants = ATOMIC_INIT(0);

/* In memory, or made of other block devices on which their bios end and are judged again. */
static const char *const exempt_modules[] = { "loop", "brd", "zram", "dm_mod", "md_mod", "zfs" };

bool notrace guard_is_exempt(const struct gendisk *disk)
{
	const struct module *owner = disk->fops->owner;
	unsigned int at;

	for (at = 0; owner && at < ARRAY_SIZE(exempt_modules); at++)
		if (!strcmp(owner->name, exempt_modules[at]))
			return true;
	return false;
}

/* One path of an NVMe disk with several: nobody can open it, its bios come from the disk that everybody sees. */
bool notrace guard_is_hidden_path(const struct gendisk *disk)
{
	return disk->flags & GENHD_FL_HIDDEN;
}

/* Under RCU or the mutex. */
struct guard_disk *notrace guard_find_disk(const struct gendisk *disk)
{
	struct guard_disk *entry;

	hash_for_each_possible_rcu(disks, entry, node, (unsigned long)disk)
		if (entry->disk == disk)
			return entry;
	return NULL;
}

/* The question of the wall. Reads never ask it. */
bool notrace guard_may_write(struct gendisk *disk)
{
	struct guard_disk *entry;
	bool granted = false;

	if (!disk)
		return false;
	if (guard_is_exempt(disk))
		return true;
	if (!atomic_read(&grants))
		return false;
	rcu_read_lock();
	entry = guard_find_disk(disk);
	if (entry)
		granted = READ_ONCE(entry->granted) && READ_ONCE(entry->granted) == READ_ONCE(disk->diskseq);
	rcu_read_unlock();
	return granted;
}

bool guard_any_grant(void)
{
	return atomic_read(&grants) > 0;
}

/* "nvme3c1n2" is a path of "nvme3n2": the driver makes both names from the same numbers. */
static void name_head(struct guard_disk *entry)
{
	unsigned int subsystem, controller, head;

	if (sscanf(entry->name, "nvme%uc%un%u", &subsystem, &controller, &head) == 3)
		snprintf(entry->head, sizeof(entry->head), "nvme%un%u", subsystem, head);
}

static struct guard_disk *named(const char *name)
{
	struct guard_disk *entry;
	unsigned int bucket;

	hash_for_each(disks, bucket, entry, node)
		if (!strcmp(entry->name, name))
			return entry;
	return NULL;
}

/* Mark an entry, and the paths of its disk, as granted or not. Under the mutex. */
static void mark(struct guard_disk *entry, bool grant)
{
	struct guard_disk *path;
	unsigned int bucket;

	if (grant != !!entry->granted)
		atomic_add(grant ? 1 : -1, &grants);
	WRITE_ONCE(entry->granted, grant ? entry->disk->diskseq : 0);
	if (entry->head[0])
		return;
	hash_for_each(disks, bucket, path, node)
		if (path->head[0] && !strcmp(path->head, entry->name))
			mark(path, grant);
}

int guard_set_grant(struct gendisk *disk, bool grant)
{
	struct guard_disk *entry;

	lockdep_assert_held(&guard_disks_mutex);
	entry = guard_find_disk(disk);
	if (!entry || entry->head[0])
		return -ENODEV;
	mark(entry, grant);
	return 0;
}

/* The disk is about to be added: read-only from its first moment, and known. */
int guard_add_disk(struct gendisk *disk)
{
	struct guard_disk *entry, *head;

	if (guard_is_exempt(disk))
		return 0;
	bdev_set_flag(disk->part0, BD_READ_ONLY);
	entry = kzalloc(sizeof(*entry), GFP_KERNEL);
	if (!entry)
		return -ENOMEM;
	spin_lock_init(&entry->last_lock);
	entry->disk = disk;
	get_device(disk_to_dev(disk));
	strscpy(entry->name, disk->disk_name, sizeof(entry->name));
	if (guard_is_hidden_path(disk))
		name_head(entry);
	mutex_lock(&guard_disks_mutex);
	head = entry->head[0] ? named(entry->head) : NULL;
	if (head && head->granted)
		mark(entry, true);
	spin_lock(&disks_lock);
	hash_add_rcu(disks, &entry->node, (unsigned long)disk);
	spin_unlock(&disks_lock);
	mutex_unlock(&guard_disks_mutex);
	return 0;
}

static void free_entry(struct rcu_head *rcu)
{
	kfree(container_of(rcu, struct guard_disk, rcu));
}

/* The disk has gone, and its grant with it. */
void guard_drop_disk(struct gendisk *disk)
{
	struct guard_disk *entry;

	mutex_lock(&guard_disks_mutex);
	entry = guard_find_disk(disk);
	if (entry) {
		mark(entry, false);
		spin_lock(&disks_lock);
		hash_del_rcu(&entry->node);
		spin_unlock(&disks_lock);
	}
	mutex_unlock(&guard_disks_mutex);
	if (entry) {
		put_device(disk_to_dev(disk));
		call_rcu(&entry->rcu, free_entry);
	}
}

/* For the state. The mutex keeps each entry, and its disk, while it is looked at. */
void guard_each_disk(void (*visit)(struct guard_disk *disk, void *data), void *data)
{
	struct guard_disk *entry;
	unsigned int bucket;

	mutex_lock(&guard_disks_mutex);
	hash_for_each(disks, bucket, entry, node)
		visit(entry, data);
	mutex_unlock(&guard_disks_mutex);
}

static void note(struct guard_last *last, enum guard_kind kind, u32 opcode)
{
	last->kind = kind;
	last->opcode = opcode;
	last->pid = current->tgid;
	memcpy(last->comm, current->comm, sizeof(last->comm));
	last->comm[sizeof(last->comm) - 1] = 0;
	last->at_ns = ktime_get_ns();
}

/* Count a refusal. In any context but NMI. */
void guard_refused(struct gendisk *disk, enum guard_layer layer, enum guard_kind kind, u32 opcode)
{
	struct guard_disk *entry;
	unsigned long flags;

	atomic64_inc(&guard_layer_refused[layer]);
	if (!disk) {
		guard_refused_admin("no-disk", opcode);
		return;
	}
	rcu_read_lock();
	entry = guard_find_disk(disk);
	if (entry) {
		atomic64_inc(&entry->refused[kind]);
		spin_lock_irqsave(&entry->last_lock, flags);
		note(&entry->last, kind, opcode);
		spin_unlock_irqrestore(&entry->last_lock, flags);
	}
	rcu_read_unlock();
	pr_notice_ratelimited("refused %s 0x%x on %s by %s[%d]\n", guard_kind_names[kind], opcode, disk->disk_name,
			    current->comm, current->tgid);
}

/* A command that belongs to no disk, by the name of its controller as far as that is known. */
void guard_refused_admin(const char *name, u32 opcode)
{
	unsigned long flags;
	unsigned int at;

	spin_lock_irqsave(&admin_lock, flags);
	for (at = 0; at < GUARD_ADMINS - 1 && guard_admins[at].name[0]; at++)
		if (!strcmp(guard_admins[at].name, name))
			break;
	/* A full table counts the rest in its last line. */
	if (!guard_admins[at].name[0])
		strscpy(guard_admins[at].name, at == GUARD_ADMINS - 1 ? "others" : name, sizeof(guard_admins[at].name));
	atomic64_inc(&guard_admins[at].refused);
	note(&guard_last_admin, KIND_COMMAND, opcode);
	spin_unlock_irqrestore(&admin_lock, flags);
	pr_notice_ratelimited("refused command 0x%x on %s by %s[%d]\n", opcode, name, current->comm, current->tgid);
}

/* A flush, stop or lock was answered without being sent. */
void guard_kept_back(struct gendisk *disk)
{
	struct guard_disk *entry;

	rcu_read_lock();
	entry = disk ? guard_find_disk(disk) : NULL;
	atomic64_inc(entry ? &entry->flush_kept : &guard_flush_unlisted);
	rcu_read_unlock();
}

bool guard_last_of(struct guard_disk *entry, struct guard_last *last)
{
	unsigned long flags;

	spin_lock_irqsave(&entry->last_lock, flags);
	*last = entry->last;
	spin_unlock_irqrestore(&entry->last_lock, flags);
	return last->at_ns;
}

bool guard_last_admin_of(struct guard_last *last)
{
	unsigned long flags;

	spin_lock_irqsave(&admin_lock, flags);
	*last = guard_last_admin;
	spin_unlock_irqrestore(&admin_lock, flags);
	return last->at_ns;
}

/* After the self-test: what is counted from here on are real attempts. */
void __init guard_forget_counts(void)
{
	unsigned int at;

	for (at = 0; at < LAYER_COUNT; at++)
		atomic64_set(&guard_layer_refused[at], 0);
	memset(guard_admins, 0, sizeof(guard_admins));
	memset(&guard_last_admin, 0, sizeof(guard_last_admin));
	atomic64_set(&guard_flush_unlisted, 0);
	atomic64_set(&guard_other_lockdown, 0);
	atomic64_set(&guard_other_module, 0);
}
