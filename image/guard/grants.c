// SPDX-License-Identifier: GPL-2.0
/*
 * Granting and revoking. A grant names a whole disk by number and diskseq: it covers the disk's partitions, no sibling,
 * and not the next disk under the same number. It changes nothing on the disk.
 */
#include <linux/blkdev.h>
#include <linux/mutex.h>
#include "guard.h"

struct search {
	dev_t dev;
	u64 diskseq;
	struct gendisk *found;
};

static void look(struct guard_disk *entry, void *data)
{
	struct search *search = data;
	struct gendisk *disk = entry->disk;

	if (search->found || guard_is_hidden_path(disk) || disk_devt(disk) != search->dev)
		return;
	if (disk->diskseq != search->diskseq || !disk_live(disk))
		return;
	get_device(disk_to_dev(disk));
	search->found = disk;
}

/* The disk with a reference, or NULL. */
static struct gendisk *attached(dev_t dev, u64 diskseq)
{
	struct search search = { .dev = dev, .diskseq = diskseq };

	if (diskseq)
		guard_each_disk(look, &search);
	return search.found;
}

/* The next partition behind `*index` with a reference; part0 is none. */
static struct block_device *next_partition(struct gendisk *disk, unsigned long *index)
{
	struct block_device *part;

	rcu_read_lock();
	xa_for_each_start(&disk->part_tbl, *index, part, *index + 1)
		if (kobject_get_unless_zero(&part->bd_device.kobj))
			break;
	rcu_read_unlock();
	return part;
}

static void set_flags(struct gendisk *disk, bool read_only)
{
	struct block_device *part;
	unsigned long index = 0;

	if (read_only)
		bdev_set_flag(disk->part0, BD_READ_ONLY);
	else
		bdev_clear_flag(disk->part0, BD_READ_ONLY);
	while ((part = next_partition(disk, &index))) {
		if (read_only)
			bdev_set_flag(part, BD_READ_ONLY);
		else
			bdev_clear_flag(part, BD_READ_ONLY);
		put_device(&part->bd_device);
	}
}

int guard_grant(dev_t dev, u64 diskseq)
{
	struct gendisk *disk = attached(dev, diskseq);
	int err;

	if (!disk)
		return -ENODEV;
	mutex_lock(&guard_disks_mutex);
	/* The medium may have been changed since. */
	err = disk->diskseq == diskseq ? guard_set_grant(disk, true) : -ENODEV;
	if (!err)
		set_flags(disk, false);
	mutex_unlock(&guard_disks_mutex);
	put_device(disk_to_dev(disk));
	return err;
}

/* Write back what was written under the grant, then close. An error is the write-back's; the grant ends in any case. */
int guard_revoke(dev_t dev, u64 diskseq)
{
	struct gendisk *disk = attached(dev, diskseq);
	struct block_device *part;
	unsigned long index = 0;
	int err, first;

	if (!disk)
		return -ENODEV;
	/* First the flag: nothing new gets dirty while the old is written. */
	set_flags(disk, true);
	first = sync_blockdev(disk->part0);
	while ((part = next_partition(disk, &index))) {
		err = sync_blockdev(part);
		first = first ? first : err;
		put_device(&part->bd_device);
	}
	if (guard_may_write(disk)) {
		err = blkdev_issue_flush(disk->part0);
		first = first ? first : err;
	}
	mutex_lock(&guard_disks_mutex);
	err = guard_set_grant(disk, false);
	set_flags(disk, true);
	mutex_unlock(&guard_disks_mutex);
	put_device(disk_to_dev(disk));
	return err ? err : first;
}
