// SPDX-License-Identifier: GPL-2.0
/*
 * What could go round the guard: code in the kernel that is not the image's, another kernel, memory and ports by hand. The
 * kernel's own lockdown would do most of it, but it also refuses the unsigned ZFS; so the same questions are answered
 * here, all but that one.
 */
#define pr_fmt(fmt) "stasis_guard: " fmt
#include <linux/fs.h>
#include <linux/kernel_read_file.h>
#include <linux/mutex.h>
#include <linux/namei.h>
#include <linux/security.h>
#include "guard.h"

atomic64_t guard_other_lockdown, guard_other_module;

static struct path seal;	/* held for ever, so that its super block stays the one it was */
static struct super_block *sealed;
static DEFINE_MUTEX(seal_mutex);

bool guard_sealed(void)
{
	return READ_ONCE(sealed);
}

/* From now on modules come from the file system of `path`, and from nowhere else. Once only. */
int guard_seal(const char *path)
{
	int err = -EPERM;

	mutex_lock(&seal_mutex);
	if (!sealed) {
		err = kern_path(path, LOOKUP_FOLLOW | LOOKUP_DIRECTORY, &seal);
		if (!err && !sb_rdonly(seal.dentry->d_sb)) {
			path_put(&seal);
			err = -EROFS;
		}
		if (!err)
			WRITE_ONCE(sealed, seal.dentry->d_sb);
	}
	mutex_unlock(&seal_mutex);
	return err;
}

/* The loop device below the sealed root: exchanging its file would exchange the modules. */
bool guard_backs_the_seal(const struct gendisk *disk)
{
	const struct super_block *sb = READ_ONCE(sealed);

	return sb && sb->s_bdev && sb->s_bdev->bd_disk == disk;
}

GUARD_JUDGE(lockdown)
{
	enum lockdown_reason what = GUARD_ARG(fregs, 0, unsigned long);

	if (what > LOCKDOWN_NONE && what < LOCKDOWN_INTEGRITY_MAX && what != LOCKDOWN_MODULE_SIGNATURE)
		guard_divert(ops, fregs);
}

int instead_of_lockdown(enum lockdown_reason what)
{
	atomic64_inc(&guard_layer_refused[LAYER_LOCKDOWN]);
	atomic64_inc(&guard_other_lockdown);
	pr_notice_ratelimited("refused lockdown reason %d to %s[%d]\n", what, current->comm, current->tgid);
	return -EPERM;
}

GUARD_JUDGE(read_file)
{
	const struct file *file = GUARD_ARG(fregs, 0, const struct file *);
	enum kernel_read_file_id id = GUARD_ARG(fregs, 1, unsigned long);
	const struct super_block *only = READ_ONCE(sealed);

	if (id == READING_KEXEC_IMAGE || id == READING_KEXEC_INITRAMFS ||
	    (id == READING_MODULE && only && (!file || file_inode(file)->i_sb != only)))
		guard_divert(ops, fregs);
}

static int refuse_code(void)
{
	atomic64_inc(&guard_layer_refused[LAYER_MODULES]);
	atomic64_inc(&guard_other_module);
	pr_notice_ratelimited("refused code for the kernel to %s[%d]\n", current->comm, current->tgid);
	return -EPERM;
}

int instead_of_read_file(struct file *file, enum kernel_read_file_id id, bool contents)
{
	return refuse_code();
}

/* init_module(2): a module out of memory, whose file nobody knows. */
GUARD_JUDGE(load_data)
{
	enum kernel_load_data_id id = GUARD_ARG(fregs, 0, unsigned long);

	if (id == LOADING_KEXEC_IMAGE || id == LOADING_KEXEC_INITRAMFS || (id == LOADING_MODULE && guard_sealed()))
		guard_divert(ops, fregs);
}

int instead_of_load_data(enum kernel_load_data_id id, bool contents)
{
	return refuse_code();
}
