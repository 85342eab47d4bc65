// SPDX-License-Identifier: GPL-2.0
/*
 * Raw commands: SG_IO, /dev/sg*, bsg, HDIO and CDROM ioctls and what the SCSI disk driver sends for itself all come
 * through blk_execute_rq() or blk_execute_rq_nowait(). NVMe commands pass; they are judged in nvme_setup_cmd(). What kind
 * of command a request carries is told by its queue's driver; of a driver that is not known, nothing passes.
 */
#define pr_fmt(fmt) "stasis_guard: " fmt
#include <linux/kallsyms.h>
#include <linux/printk.h>
#include <scsi/scsi_cmnd.h>
#include <scsi/scsi_device.h>
#include <scsi/scsi_proto.h>
#include "guard.h"

#define SENSE_BYTES 18

enum queue_kind { QUEUE_UNKNOWN, QUEUE_SCSI, QUEUE_NVME, QUEUE_VIRTIO };

static unsigned long scsi_queue;

int __init guard_find_queues(void)
{
	scsi_queue = guard_find_symbol("scsi_queue_rq");
	if (scsi_queue)
		return 0;
	pr_err("this kernel has no function scsi_queue_rq, so SCSI commands could not be told from others\n");
	return -EOPNOTSUPP;
}

static enum queue_kind kind_of(const struct request_queue *q)
{
	static const struct { const char *shown; enum queue_kind kind; } known[] = {
		{ "nvme_queue_rq [nvme]", QUEUE_NVME },
		{ "nvme_tcp_queue_rq [nvme_tcp]", QUEUE_NVME },
		{ "nvme_rdma_queue_rq [nvme_rdma]", QUEUE_NVME },
		{ "nvme_fc_queue_rq [nvme_fc]", QUEUE_NVME },
		{ "virtio_queue_rq [virtio_blk]", QUEUE_VIRTIO },
	};
	char shown[KSYM_NAME_LEN + MODULE_NAME_LEN];
	unsigned int at;

	if (!q->mq_ops)
		return QUEUE_UNKNOWN;
	if (guard_is_function(q->mq_ops->queue_rq, scsi_queue))
		return QUEUE_SCSI;
	snprintf(shown, sizeof(shown), "%ps", q->mq_ops->queue_rq);
	for (at = 0; at < ARRAY_SIZE(known); at++)
		if (!strcmp(shown, known[at].shown))
			return known[at].kind;
	return QUEUE_UNKNOWN;
}

static enum guard_verdict judge_scsi_request(struct request *rq, u32 *opcode)
{
	const struct scsi_cmnd *cmd = blk_mq_rq_to_pdu(rq);

	*opcode = cmd->cmnd[0];
	/* To an optical drive the code of ATA PASS-THROUGH (12) says BLANK. */
	if (cmd->cmnd[0] == ATA_12 && cmd->device && cmd->device->type == TYPE_ROM)
		return VERDICT_REFUSE;
	return guard_judge_scsi(cmd->cmnd, min_t(unsigned int, cmd->cmd_len, sizeof(cmd->cmnd)),
				req_op(rq) == REQ_OP_DRV_OUT && blk_rq_bytes(rq));
}

static enum guard_verdict judge_request(struct request *rq, enum queue_kind *kind, u32 *opcode)
{
	*opcode = req_op(rq);
	*kind = kind_of(rq->q);
	switch (*kind) {
	case QUEUE_NVME:
		return VERDICT_READ;
	case QUEUE_SCSI:
		return judge_scsi_request(rq, opcode);
	case QUEUE_VIRTIO:
		return req_op(rq) == REQ_OP_DRV_IN ? VERDICT_READ : VERDICT_REFUSE;
	case QUEUE_UNKNOWN:
		break;
	}
	return VERDICT_REFUSE;
}

static void divert_unless_read(struct ftrace_ops *ops, struct ftrace_regs *fregs)
{
	struct request *rq = GUARD_ARG(fregs, 0, struct request *);
	enum queue_kind kind;
	u32 opcode;

	if (judge_request(rq, &kind, &opcode) != VERDICT_READ && !guard_may_write(rq->q->disk))
		guard_divert(ops, fregs);
}

GUARD_JUDGE(execute)
{
	divert_unless_read(ops, fregs);
}

GUARD_JUDGE(execute_nowait)
{
	divert_unless_read(ops, fregs);
}

/* What the device would have answered: done, or "write protected". */
static blk_status_t answer(struct request *rq)
{
	struct scsi_cmnd *cmd = blk_mq_rq_to_pdu(rq);
	enum guard_verdict verdict;
	enum queue_kind kind;
	u32 opcode;

	verdict = judge_request(rq, &kind, &opcode);
	if (verdict == VERDICT_KEEP_BACK) {
		guard_kept_back(rq->q->disk);
		cmd->result = SAM_STAT_GOOD;
		return BLK_STS_OK;
	}
	guard_refused(rq->q->disk, LAYER_PASSTHROUGH, KIND_COMMAND, opcode);
	if (kind == QUEUE_SCSI) {
		cmd->result = SAM_STAT_CHECK_CONDITION;
		cmd->resid_len = blk_rq_bytes(rq);
		if (cmd->sense_buffer) {
			memset(cmd->sense_buffer, 0, SENSE_BYTES);
			cmd->sense_buffer[0] = 0x70;
			cmd->sense_buffer[2] = DATA_PROTECT;
			cmd->sense_buffer[7] = SENSE_BYTES - 8;
			cmd->sense_buffer[12] = 0x27;	/* write protected */
			cmd->sense_len = SENSE_BYTES;
		}
	}
	return BLK_STS_IOERR;
}

blk_status_t instead_of_execute(struct request *rq, bool at_head)
{
	blk_status_t status = answer(rq);

	/* Ends its bios; the caller frees the request. */
	blk_update_request(rq, status, blk_rq_bytes(rq));
	return status;
}

void instead_of_execute_nowait(struct request *rq, bool at_head)
{
	blk_mq_end_request(rq, answer(rq));
}
