// SPDX-License-Identifier: GPL-2.0
/*
 * /proc/stasis_guard, for root only. `control` takes one command a write; its errno is the answer: EINVAL (no such
 * command), ENODEV (no such attachment of a disk), EPERM (not now, not you), or what writing back brought.
 * `state` has one fact a line, `word key=value ...`; text is percent-escaped.
 */
#include <linux/capability.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>
#include <linux/uaccess.h>
#include <linux/utsname.h>
#include "guard.h"

#define COMMAND_BYTES 4096

static const char *const layer_names[LAYER_COUNT] = {
	"bio", "nvme-command", "passthrough", "open", "ioctl", "lockdown", "modules", "read-only-flag",
};

static void show_text(struct seq_file *out, const char *text)
{
	for (; *text; text++) {
		unsigned char c = *text;

		if ((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || strchr("._:/+-", c))
			seq_putc(out, c);
		else
			seq_printf(out, "%%%02X", c);
	}
}

static void show_last(struct seq_file *out, dev_t dev, u64 diskseq, const struct guard_last *last)
{
	seq_printf(out, "last dev=%u:%u diskseq=%llu what=%s opcode=0x%02x pid=%d comm=", MAJOR(dev), MINOR(dev), diskseq,
		   guard_kind_names[last->kind], last->opcode, last->pid);
	show_text(out, last->comm);
	seq_printf(out, " age_ms=%llu\n", (ktime_get_ns() - last->at_ns) / NSEC_PER_MSEC);
}

static void show_disk(struct guard_disk *entry, void *data)
{
	struct gendisk *disk = entry->disk;
	bool hidden = guard_is_hidden_path(disk), granted = guard_may_write(disk);
	dev_t dev = MKDEV(disk->major, disk->first_minor);
	struct seq_file *out = data;
	struct guard_last last;
	int kind;

	/* Not added yet, or gone: nobody can reach it. */
	if (!hidden && !disk_live(disk))
		return;
	seq_printf(out, "disk dev=%u:%u diskseq=%llu name=", MAJOR(dev), MINOR(dev), disk->diskseq);
	show_text(out, entry->name);
	seq_printf(out, " protected=1 granted=%d read_only=%d", granted, get_disk_ro(disk));
	for (kind = 0; kind < KIND_COUNT; kind++)
		seq_printf(out, " %s=%lld", guard_kind_names[kind], atomic64_read(&entry->refused[kind]));
	seq_printf(out, " flush_kept=%lld", atomic64_read(&entry->flush_kept));
	if (entry->head[0]) {
		seq_puts(out, " path_of=");
		show_text(out, entry->head);
	}
	seq_putc(out, '\n');
	if (guard_last_of(entry, &last))
		show_last(out, dev, disk->diskseq, &last);
}

static int show_state(struct seq_file *out, void *unused)
{
	const struct guard_hook *hook;
	struct guard_last last;
	unsigned int at;

	seq_printf(out, "guard version=%d armed=%d sealed=%d kernel=", GUARD_VERSION, guard_armed(), guard_sealed());
	show_text(out, init_utsname()->release);
	seq_putc(out, '\n');
	for (at = 0; at < LAYER_COUNT; at++)
		seq_printf(out, "layer name=%s armed=%d refused=%lld\n", layer_names[at], guard_layer_armed(at),
			   atomic64_read(&guard_layer_refused[at]));
	for (hook = guard_hooks; hook < guard_hooks + guard_hook_count; hook++)
		seq_printf(out, "hook name=%s armed=%d\n", hook->name, hook->armed);
	guard_each_disk(show_disk, out);
	for (at = 0; at < GUARD_ADMINS && guard_admins[at].name[0]; at++) {
		seq_puts(out, "admin name=");
		show_text(out, guard_admins[at].name);
		seq_printf(out, " command=%lld\n", atomic64_read(&guard_admins[at].refused));
	}
	if (guard_last_admin_of(&last))
		show_last(out, 0, 0, &last);
	seq_printf(out, "other lockdown=%lld module=%lld flush_kept=%lld\n", atomic64_read(&guard_other_lockdown),
		   atomic64_read(&guard_other_module), atomic64_read(&guard_flush_unlisted));
	return 0;
}

static int obey(char *command)
{
	unsigned int major, minor;
	char word[8], end;
	u64 diskseq;

	strim(command);
	if (!strncmp(command, "seal ", 5))
		return command[5] == '/' ? guard_seal(command + 5) : -EINVAL;
	if (sscanf(command, "%7s %u:%u %llu%c", word, &major, &minor, &diskseq, &end) != 4)
		return -EINVAL;
	if (major > MAJOR(~0U) || minor > MINORMASK)
		return -EINVAL;
	if (!strcmp(word, "grant"))
		return guard_grant(MKDEV(major, minor), diskseq);
	if (!strcmp(word, "revoke"))
		return guard_revoke(MKDEV(major, minor), diskseq);
	return -EINVAL;
}

static ssize_t write_control(struct file *file, const char __user *from, size_t size, loff_t *offset)
{
	char *command;
	int err;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (!size || size > COMMAND_BYTES)
		return -EINVAL;
	command = memdup_user_nul(from, size);
	if (IS_ERR(command))
		return PTR_ERR(command);
	err = strlen(command) == size ? obey(command) : -EINVAL;
	kfree(command);
	return err ? err : size;
}

static int open_state(struct inode *inode, struct file *file)
{
	return single_open(file, show_state, NULL);
}

static const struct proc_ops state_ops = {
	.proc_open = open_state, .proc_read = seq_read, .proc_lseek = seq_lseek, .proc_release = single_release,
};
static const struct proc_ops control_ops = { .proc_write = write_control };

int __init guard_make_proc(void)
{
	struct proc_dir_entry *dir = proc_mkdir_mode("stasis_guard", 0500, NULL);

	if (!dir)
		return -ENOMEM;
	if (proc_create("state", 0400, dir, &state_ops) && proc_create("control", 0200, dir, &control_ops))
		return 0;
	remove_proc_subtree("stasis_guard", NULL);
	return -ENOMEM;
}
