// SPDX-License-Identifier: GPL-2.0
/*
 * The wall. Whatever a program, a file system, md, dm or ZFS wants of a disk ends as a bio, a request or a command, and
 * passes here. Each hook has two halves: judge_ looks, inside ftrace, without sleeping, and lets pass by doing nothing;
 * instead_of_ runs in place of the function that was called.
 */
#include <linux/bio.h>
#include <linux/nvme.h>
#include "guard.h"

/* The first members of what drivers/nvme/host keeps behind a request (nvme.h there; the self-test checks the layout). */
struct nvme_request_head {
	struct nvme_command *cmd;
	union nvme_result result;
	u8 genctr;
	u8 retries;
	u8 flags;
};
#define NVME_USER_COMMAND (1 << 1)

/* Multipath takes an I/O error for a dead path and would drop it; this one says that the target refused. */
static blk_status_t refusal(blk_opf_t opf)
{
	return opf & REQ_FAILFAST_TRANSPORT ? BLK_STS_TARGET : BLK_STS_IOERR;
}

GUARD_JUDGE(bio)
{
	struct bio *bio = GUARD_ARG(fregs, 0, struct bio *);

	/* Every operation that changes a medium has an odd number (blk_types.h); nothing more is asked of a read. */
	if (likely(!op_is_write(bio->bi_opf)))
		return;
	if (!guard_may_write(bio->bi_bdev->bd_disk))
		guard_divert(ops, fregs);
}

void instead_of_bio(struct bio *bio)
{
	struct gendisk *disk = bio->bi_bdev->bd_disk;
	enum req_op op = bio_op(bio);

	if (op == REQ_OP_WRITE && !bio_sectors(bio)) {
		/* A flush. Nothing was written, so nothing is to be flushed, and the device is not asked to. */
		guard_kept_back(disk);
		bio->bi_status = BLK_STS_OK;
	} else {
		guard_refused(disk, LAYER_BIO, op == REQ_OP_WRITE ? KIND_BIO : KIND_DISCARD, op);
		bio->bi_status = refusal(bio->bi_opf);
	}
	bio_endio(bio);
}

/* Request-based dm-multipath: its requests go to the lower disk's queue without becoming bios again. */
GUARD_JUDGE(cloned_request)
{
	struct request *rq = GUARD_ARG(fregs, 0, struct request *);

	if (req_op(rq) != REQ_OP_READ && !guard_may_write(rq->q->disk))
		guard_divert(ops, fregs);
}

blk_status_t instead_of_cloned_request(struct request *rq)
{
	enum req_op op = req_op(rq);

	guard_refused(rq->q->disk, LAYER_BIO, op == REQ_OP_WRITE || op == REQ_OP_FLUSH ? KIND_BIO : KIND_DISCARD, op);
	return refusal(rq->cmd_flags);
}

static bool notrace nvme_reads(const void *ns, struct request *rq)
{
	const struct nvme_request_head *head = blk_mq_rq_to_pdu(rq);
	const struct nvme_command *cmd = head->cmd;
	u8 opcode = cmd->common.opcode, fctype = cmd->fabrics.fctype;

	if (ns)
		return guard_nvme_io_reads(opcode) || guard_may_write(rq->q->disk);
	if (head->flags & NVME_USER_COMMAND)
		return guard_nvme_user_admin_reads(opcode);
	/* The save bit would keep a setting beyond this session. */
	if (opcode == nvme_admin_set_features && le32_to_cpu(cmd->features.fid) & ~0xffu)
		return false;
	return guard_nvme_driver_admin_needed(opcode, fctype, le32_to_cpu(cmd->features.fid));
}

/* Every NVMe command of every transport is prepared by nvme_setup_cmd(ns, rq); without a namespace it is an admin one. */
GUARD_JUDGE(nvme_command)
{
	const void *ns = GUARD_ARG(fregs, 0, const void *);
	struct request *rq = GUARD_ARG(fregs, 1, struct request *);

	if (likely(req_op(rq) == REQ_OP_READ))
		return;
	if (blk_rq_is_passthrough(rq) ? !nvme_reads(ns, rq) : !guard_may_write(rq->q->disk))
		guard_divert(ops, fregs);
}

blk_status_t instead_of_nvme_command(void *ns, struct request *rq)
{
	const struct nvme_request_head *head = blk_mq_rq_to_pdu(rq);

	if (!blk_rq_is_passthrough(rq)) {
		guard_refused(rq->q->disk, LAYER_NVME, KIND_COMMAND, req_op(rq));
	} else if (ns) {
		guard_refused(rq->q->disk, LAYER_NVME, KIND_COMMAND, head->cmd->common.opcode);
	} else {
		atomic64_inc(&guard_layer_refused[LAYER_NVME]);
		guard_refused_admin("nvme-admin", head->cmd->common.opcode);
	}
	return BLK_STS_IOERR;
}

/* A new disk: read-only before anybody can open it. */
GUARD_JUDGE(add_disk)
{
	if (!guard_came_from_us(parent_ip))
		guard_divert(ops, fregs);
}

int instead_of_add_disk(struct device *parent, struct gendisk *disk, const struct attribute_group **groups)
{
	int err = guard_add_disk(disk);

	if (err)
		return err;
	err = device_add_disk(parent, disk, groups);
	if (err)
		guard_drop_disk(disk);
	return err;
}

GUARD_JUDGE(del_disk)
{
	if (!guard_came_from_us(parent_ip))
		guard_divert(ops, fregs);
}

void instead_of_del_disk(struct gendisk *disk)
{
	/* It writes back what is dirty, which a granted disk may still do. */
	del_gendisk(disk);
	guard_drop_disk(disk);
}
