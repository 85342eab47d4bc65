// SPDX-License-Identifier: GPL-2.0
/*
 * The door: the same refusals as the wall's, but early and with a clear word. What is read here from user space may be
 * changed by another thread before the driver reads it again; the wall judges what is really sent.
 */
#define pr_fmt(fmt) "stasis_guard: " fmt
#include <linux/compat.h>
#include <linux/bsg.h>
#include <linux/fs.h>
#include <linux/hdreg.h>
#include <linux/io_uring/cmd.h>
#include <linux/magic.h>
#include <linux/module.h>
#include <linux/nvme_ioctl.h>
#include <linux/security.h>
#include <linux/uaccess.h>
#include <linux/usbdevice_fs.h>
#include <scsi/scsi_ioctl.h>
#include <scsi/sg.h>
#include "guard.h"

#define CDB_BYTES 32

static unsigned long bsg_ioctl_address;

int __init guard_find_door(void)
{
	bsg_ioctl_address = guard_find_symbol("bsg_ioctl");
	if (bsg_ioctl_address)
		return 0;
	pr_err("this kernel has no function bsg_ioctl, so /dev/bsg could not be told from other nodes\n");
	return -EOPNOTSUPP;
}

GUARD_JUDGE(open)
{
	struct block_device *bdev = GUARD_ARG(fregs, 0, struct block_device *);
	blk_mode_t mode = (__force blk_mode_t)GUARD_ARG(fregs, 1, unsigned long);

	if ((mode & BLK_OPEN_WRITE) && !guard_may_write(bdev->bd_disk))
		guard_divert(ops, fregs);
}

/* open(2) of a node hears EROFS: many programs (smartctl, losetup) then open it for reading. The kernel's own openers (mount, swap,
 * md, dm, loop) hear EPERM: for EROFS, mount(8) would quietly mount read-only. */
int instead_of_open(struct block_device *bdev, blk_mode_t mode, void *holder, const void *hops, struct file *file)
{
	guard_refused(bdev->bd_disk, LAYER_OPEN, KIND_OPEN, (__force u32)mode);
	return file_inode(file)->i_sb->s_magic == BDEVFS_MAGIC ? -EPERM : -EROFS;
}

static bool judged_as_char(const struct file *file)
{
	return file->f_op->owner || guard_is_function(file->f_op->unlocked_ioctl, bsg_ioctl_address);
}

GUARD_JUDGE(ioctl)
{
	const struct file *file = GUARD_ARG(fregs, 0, const struct file *);
	umode_t mode = file_inode(file)->i_mode;

	/* Terminals, the most frequent users of ioctl, are built in and have no owner. */
	if (!S_ISBLK(mode) && !(S_ISCHR(mode) && judged_as_char(file)))
		return;
	if (!guard_came_from_us(parent_ip))
		guard_divert(ops, fregs);
}

/* SG_IO of both kinds. What can't be read is left to the driver, which can't read it either. */
static bool sg_io_reads(const struct file *file, void __user *arg)
{
	u8 cdb[CDB_BYTES] = { };
	bool to_device;
	const void __user *from;
	unsigned int length;
	int kind;

	if (get_user(kind, (int __user *)arg))
		return true;
	if (kind == 'Q') {
		struct sg_io_v4 v4;

		if (copy_from_user(&v4, arg, sizeof(v4)))
			return true;
		from = (const void __user *)(uintptr_t)v4.request;
		length = v4.request_len;
		to_device = v4.dout_xfer_len;
	} else {
		struct sg_io_hdr hdr;

		if (get_sg_io_hdr(&hdr, arg))
			return true;
		from = hdr.cmdp;
		length = hdr.cmd_len;
		to_device = hdr.dxfer_direction == SG_DXFER_TO_DEV && hdr.dxfer_len;
	}
	length = min_t(unsigned int, length, CDB_BYTES);
	if (copy_from_user(cdb, from, length))
		return true;
	/* What the wall answers without sending it is let through to the wall. */
	return guard_judge_scsi(cdb, length, to_device) != VERDICT_REFUSE;
}

/* NVMe commands: the opcode is the first byte of all three structures, the namespace (or fabrics type) comes later. */
static bool nvme_ioctl_reads(unsigned int cmd, void __user *arg, bool *is_command)
{
	struct { u8 opcode, flags; u16 rsvd1; u32 nsid; } head;

	*is_command = true;
	switch (cmd) {
	case NVME_IOCTL_ADMIN_CMD:
	case NVME_IOCTL_ADMIN64_CMD:
		if (copy_from_user(&head, arg, sizeof(head)))
			return true;
		return guard_nvme_user_admin_reads(head.opcode);
	case NVME_IOCTL_SUBMIT_IO:
	case NVME_IOCTL_IO_CMD:
	case NVME_IOCTL_IO64_CMD:
	case NVME_IOCTL_IO64_CMD_VEC:
		if (copy_from_user(&head, arg, sizeof(head)))
			return true;
		return guard_nvme_io_reads(head.opcode);
	}
	*is_command = false;
	return false;
}

static bool is_nvme_admin(unsigned int cmd)
{
	return cmd == NVME_IOCTL_ADMIN_CMD || cmd == NVME_IOCTL_ADMIN64_CMD;
}

static bool block_ioctl_allowed(struct file *file, struct gendisk *disk, unsigned int cmd, void __user *arg)
{
	bool is_nvme, reads = nvme_ioctl_reads(cmd, arg, &is_nvme);
	u8 drive[4];
	int flag;

	if (is_nvme && is_nvme_admin(cmd))
		return reads;
	if (guard_may_write(disk) && !guard_backs_the_seal(disk))
		return true;
	if (is_nvme)
		return reads;
	switch (cmd) {
	case BLKROSET:
		return get_user(flag, (int __user *)arg) || flag;
	case SG_IO:
		return sg_io_reads(file, arg);
	case HDIO_DRIVE_CMD:
	case HDIO_DRIVE_TASK:
		return copy_from_user(drive, arg, sizeof(drive)) ||
			guard_ata_reads(drive[0], cmd == HDIO_DRIVE_CMD ? drive[2] : drive[1]);
	}
	return guard_block_ioctl_harmless(cmd);
}

/* Which disk a character node leads to is not known here, so as soon as any disk is granted, the wall has to judge. */
static bool char_ioctl_allowed(struct file *file, unsigned int cmd, void __user *arg)
{
	const char *owner = file->f_op->owner ? file->f_op->owner->name : "bsg";
	bool is_nvme, reads;

	if (!strcmp(owner, "sg") || !strcmp(owner, "bsg")) {
		if (cmd == SG_IO)
			return sg_io_reads(file, arg) || guard_any_grant();
		return guard_char_ioctl_harmless(cmd);
	}
	if (!strcmp(owner, "nvme_core")) {
		reads = nvme_ioctl_reads(cmd, arg, &is_nvme);
		if (is_nvme)
			return reads || (!is_nvme_admin(cmd) && guard_any_grant());
		return guard_char_ioctl_harmless(cmd);
	}
	if (!strcmp(owner, "usbcore")) {
		/* A program could drive a USB disk by itself; descriptors can be read from sysfs and by read(2). */
		return cmd == USBDEVFS_GETDRIVER || cmd == USBDEVFS_CONNECTINFO || cmd == USBDEVFS_GET_CAPABILITIES ||
			cmd == USBDEVFS_GET_SPEED || guard_char_ioctl_harmless(cmd);
	}
	return guard_char_module_harmless(owner) || guard_char_ioctl_harmless(cmd);
}

static int judge(struct file *file, unsigned int cmd, void __user *arg)
{
	struct gendisk *disk;

	if (S_ISBLK(file_inode(file)->i_mode)) {
		disk = I_BDEV(file->f_mapping->host)->bd_disk;
		if (block_ioctl_allowed(file, disk, cmd, arg))
			return 0;
		guard_refused(disk, LAYER_IOCTL, KIND_IOCTL, cmd);
		return -EPERM;
	}
	if (char_ioctl_allowed(file, cmd, arg))
		return 0;
	atomic64_inc(&guard_layer_refused[LAYER_IOCTL]);
	guard_refused_admin(file->f_path.dentry->d_name.name, cmd);
	return -EPERM;
}

int instead_of_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	int err = judge(file, cmd, (void __user *)arg);

	return err ? err : security_file_ioctl(file, cmd, arg);
}

int instead_of_ioctl_compat(struct file *file, unsigned int cmd, unsigned long arg)
{
	int err = judge(file, cmd, compat_ptr(arg));

	return err ? err : security_file_ioctl_compat(file, cmd, arg);
}

/* io_uring commands: discard of a block device, passthrough of /dev/ng*. Reading needs none of them. */
GUARD_JUDGE(uring)
{
	const struct io_uring_cmd *cmd = GUARD_ARG(fregs, 0, const struct io_uring_cmd *);
	const struct file *file = cmd->file;
	const struct module *owner = file->f_op->owner;
	umode_t mode = file_inode(file)->i_mode;

	if (S_ISBLK(mode) && !guard_may_write(I_BDEV(file->f_mapping->host)->bd_disk))
		guard_divert(ops, fregs);
	if (S_ISCHR(mode) && owner && !guard_char_module_harmless(owner->name) &&
	    !(guard_any_grant() && !strcmp(owner->name, "nvme_core")))
		guard_divert(ops, fregs);
}

int instead_of_uring(struct io_uring_cmd *cmd)
{
	struct file *file = cmd->file;

	if (S_ISBLK(file_inode(file)->i_mode)) {
		guard_refused(I_BDEV(file->f_mapping->host)->bd_disk, LAYER_IOCTL, KIND_IOCTL, cmd->cmd_op);
	} else {
		atomic64_inc(&guard_layer_refused[LAYER_IOCTL]);
		guard_refused_admin(file->f_path.dentry->d_name.name, cmd->cmd_op);
	}
	return -EPERM;
}
