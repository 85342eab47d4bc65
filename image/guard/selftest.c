// SPDX-License-Identifier: GPL-2.0
/*
 * Arming is believed only after an attack: on a disk of 64 KiB in memory, made for it and removed again. Before arming, the
 * same acts must succeed (a test that cannot fail proves nothing). All of it lies in init text, which the hooks take for
 * a stranger's, and is gone once the module is loaded.
 */
#define pr_fmt(fmt) "stasis_guard: self-test: " fmt
#include <linux/bio.h>
#include <linux/blkdev.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/nvme.h>
#include <linux/slab.h>
#include <scsi/scsi_cmnd.h>
#include <scsi/scsi_proto.h>
#include "guard.h"

#define DISK_BYTES (64 * 1024)
#define TEST_TAG 3

struct nvme_ns;
extern blk_status_t nvme_setup_cmd(struct nvme_ns *ns, struct request *req);

static u8 *medium;
static struct gendisk *disk;

/* The driver of the test's disk. Not init text: it is called by the block layer. */
static void serve(struct bio *bio)
{
	loff_t at = (loff_t)bio->bi_iter.bi_sector << SECTOR_SHIFT;
	struct bvec_iter iter;
	struct bio_vec vec;

	if (bio_op(bio) == REQ_OP_READ || bio_op(bio) == REQ_OP_WRITE) {
		bio_for_each_segment(vec, bio, iter) {
			if (bio_op(bio) == REQ_OP_WRITE)
				memcpy_from_bvec(medium + at, &vec);
			else
				memcpy_to_bvec(&vec, medium + at);
			at += vec.bv_len;
		}
	} else if (bio_op(bio) == REQ_OP_DISCARD) {
		memset(medium + at, 0, bio->bi_iter.bi_size);
	}
	bio_endio(bio);
}

static const struct block_device_operations test_ops = { .owner = THIS_MODULE, .submit_bio = serve };

#define MUST(condition, words) \
	do { \
		if (!(condition)) { \
			pr_err("%s\n", words); \
			return -EIO; \
		} \
	} while (0)

static int __init make_disk(void)
{
	struct queue_limits limits = {
		.max_hw_discard_sectors = DISK_BYTES >> SECTOR_SHIFT, .discard_granularity = SECTOR_SIZE,
		.features = BLK_FEAT_WRITE_CACHE,
	};
	int err;

	disk = blk_alloc_disk(&limits, NUMA_NO_NODE);
	if (IS_ERR(disk)) {
		err = PTR_ERR(disk);
		disk = NULL;
		return err;
	}
	disk->flags = GENHD_FL_NO_PART;
	disk->fops = &test_ops;
	strscpy(disk->disk_name, "stasis_guard", sizeof(disk->disk_name));
	set_capacity(disk, DISK_BYTES >> SECTOR_SHIFT);
	err = add_disk(disk);
	if (err) {
		put_disk(disk);
		disk = NULL;
	}
	return err;
}

static void __init drop_disk(void)
{
	if (!disk)
		return;
	del_gendisk(disk);
	put_disk(disk);
	disk = NULL;
}

/* One act on the first sector; `fill` is what a write brings. */
static int __init act(blk_opf_t opf, u8 fill)
{
	struct page *page = alloc_page(GFP_KERNEL);
	struct bio_vec vec;
	struct bio bio;
	int err;

	if (!page)
		return -ENOMEM;
	memset(page_address(page), fill, PAGE_SIZE);
	bio_init(&bio, disk->part0, &vec, 1, opf);
	if ((opf & REQ_OP_MASK) == REQ_OP_DISCARD)
		bio.bi_iter.bi_size = SECTOR_SIZE;
	else if (!(opf & REQ_PREFLUSH))
		__bio_add_page(&bio, page, SECTOR_SIZE, 0);
	err = submit_bio_wait(&bio);
	if (!err && opf == REQ_OP_READ && memcmp(page_address(page), medium, SECTOR_SIZE))
		err = -EILSEQ;
	bio_uninit(&bio);
	__free_page(page);
	return err;
}

static int __init open_disk(blk_mode_t mode, unsigned int ioctl)
{
	struct file *file = bdev_file_open_by_dev(disk_devt(disk), mode, NULL, NULL);
	int err;

	if (IS_ERR(file))
		return PTR_ERR(file);
	err = ioctl ? security_file_ioctl(file, ioctl, 0) : 0;
	/* At once: a file that closes later could outlive a module that does not load. */
	__fput_sync(file);
	return err;
}

int __init guard_selftest_before(void)
{
	medium = kvzalloc(DISK_BYTES, GFP_KERNEL);
	MUST(medium, "no memory");
	MUST(!make_disk(), "the test's disk could not be made");
	MUST(!act(REQ_OP_WRITE, 0x11) && medium[0] == 0x11, "control: before arming, a write did not land");
	MUST(!act(REQ_OP_DISCARD, 0) && !medium[0], "control: before arming, a discard did not land");
	MUST(!open_disk(BLK_OPEN_READ | BLK_OPEN_WRITE, BLKDISCARD), "control: before arming, the disk did not open for writing");
	drop_disk();
	return 0;
}

/* What a driver keeps behind a request, large enough for both. */
struct made_up {
	struct request rq;
	union {
		struct { struct nvme_command *cmd; union nvme_result result; u8 genctr, retries, flags; u16 status; } nvme;
		struct scsi_cmnd scsi;
	};
};

static int __init attack_nvme(struct made_up *made)
{
	struct nvme_command command = { };
	void *some_namespace = made;

	made->rq.q = disk->queue;
	made->rq.tag = TEST_TAG;
	made->rq.rq_flags = RQF_DONTPREP;
	made->rq.cmd_flags = REQ_OP_DRV_IN;
	made->nvme.cmd = &command;
	made->nvme.genctr = 1;
	command.common.opcode = nvme_cmd_read;
	MUST(nvme_setup_cmd(some_namespace, &made->rq) == BLK_STS_OK, "an NVMe read was refused");
	/* The number is made of genctr and tag: so the members of the driver's structure are where we look for them. */
	MUST(command.common.command_id == (1 << 12 | TEST_TAG), "the NVMe driver's structure is not as expected");
	made->rq.cmd_flags = REQ_OP_DRV_OUT;
	command.common.opcode = nvme_cmd_write_zeroes;
	MUST(nvme_setup_cmd(some_namespace, &made->rq) == BLK_STS_IOERR, "an NVMe write-zeroes was let through");
	command.common.opcode = nvme_admin_format_nvm;
	MUST(nvme_setup_cmd(NULL, &made->rq) == BLK_STS_IOERR, "an NVMe format was let through");
	command.common.opcode = nvme_admin_set_features;
	command.features.fid = cpu_to_le32(NVME_FEAT_NUM_QUEUES);
	MUST(nvme_setup_cmd(NULL, &made->rq) == BLK_STS_OK, "the NVMe driver's own command was refused");
	made->nvme.flags = 1 << 1;
	MUST(nvme_setup_cmd(NULL, &made->rq) == BLK_STS_IOERR, "a program's NVMe set features was let through");
	return 0;
}

static int __init attack_scsi(struct made_up *made, struct request_queue *queue)
{
	struct blk_mq_ops ops = { .queue_rq = (void *)guard_find_symbol("scsi_queue_rq") };

	memset(made, 0, sizeof(*made));
	made->rq.q = queue;
	made->rq.cmd_flags = REQ_OP_DRV_OUT;
	MUST(blk_execute_rq(&made->rq, false) == BLK_STS_IOERR, "a command of an unknown driver was let through");
	queue->mq_ops = &ops;
	made->scsi.cmd_len = 10;
	made->scsi.cmnd[0] = WRITE_10;
	MUST(blk_execute_rq(&made->rq, false) == BLK_STS_IOERR && made->scsi.result == SAM_STAT_CHECK_CONDITION,
	     "a SCSI write was let through");
	made->scsi.cmnd[0] = SYNCHRONIZE_CACHE;
	made->rq.cmd_flags = REQ_OP_DRV_IN;
	MUST(blk_execute_rq(&made->rq, false) == BLK_STS_OK && made->scsi.result == SAM_STAT_GOOD,
	     "a SCSI flush was not answered");
	return 0;
}

static int __init attack_commands(void)
{
	struct made_up *made = kzalloc(sizeof(*made), GFP_KERNEL);
	struct request_queue *queue = kzalloc(sizeof(*queue), GFP_KERNEL);
	int err = -ENOMEM;

	if (made && queue) {
		err = attack_nvme(made);
		if (!err)
			err = attack_scsi(made, queue);
	}
	kfree(queue);
	kfree(made);
	return err;
}

static int __init attack_bios(void)
{
	int err;

	MUST(get_disk_ro(disk), "the read-only flag was not set");
	MUST(!act(REQ_OP_WRITE | REQ_PREFLUSH, 0), "a flush was not answered");
	MUST(act(REQ_OP_WRITE, 0x22) && !medium[0], "a write was let through");
	MUST(act(REQ_OP_DISCARD, 0), "a discard was let through");
	MUST(!act(REQ_OP_READ, 0), "a read failed");
	MUST(open_disk(BLK_OPEN_READ | BLK_OPEN_WRITE, 0) == -EPERM, "the disk opened for writing");
	MUST(open_disk(BLK_OPEN_READ, BLKDISCARD) == -EPERM, "a discard by ioctl was let through");
	MUST(!open_disk(BLK_OPEN_READ, BLKGETSIZE64), "an ioctl that only asks was refused");
	err = guard_grant(disk_devt(disk), disk->diskseq + 1);
	MUST(err == -ENODEV, "a grant for another attachment was taken");
	MUST(!guard_grant(disk_devt(disk), disk->diskseq) && !get_disk_ro(disk), "a grant was refused");
	MUST(!act(REQ_OP_WRITE, 0x33) && medium[0] == 0x33, "a write to the granted disk was refused");
	MUST(!open_disk(BLK_OPEN_READ | BLK_OPEN_WRITE, 0), "the granted disk did not open for writing");
	MUST(!guard_revoke(disk_devt(disk), disk->diskseq) && get_disk_ro(disk), "a grant could not be revoked");
	MUST(act(REQ_OP_WRITE, 0x44) && medium[0] == 0x33, "a write was let through after the grant had ended");
	return 0;
}

int __init guard_selftest_after(void)
{
	const struct gendisk *gone;
	int err;

	MUST(!make_disk(), "the test's disk could not be made again");
	err = attack_bios();
	if (!err)
		err = attack_commands();
	if (err)
		return err;
	MUST(security_locked_down(LOCKDOWN_DEV_MEM) == -EPERM, "/dev/mem stays open");
	MUST(security_kernel_load_data(LOADING_KEXEC_IMAGE, false) == -EPERM, "another kernel could be loaded");
	gone = disk;
	drop_disk();
	MUST(!guard_find_disk(gone), "a disk that has gone is still listed");
	guard_forget_counts();
	return 0;
}

void __init guard_selftest_end(void)
{
	drop_disk();
	kvfree(medium);
	medium = NULL;
}
