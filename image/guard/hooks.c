// SPDX-License-Identifier: GPL-2.0
/*
 * The hooks. ftrace with IPMODIFY may leave the hooked function for another one; PERMANENT makes kernel.ftrace_enabled=0
 * fail with EBUSY, so nothing in user space can switch a hook off. Each hook has ftrace_ops of its own, which gives it a
 * trampoline of its own: no list is walked and no recursion guard is asked (one that could skip a call would be a hole).
 * So a judge_ function must never cause a call of what it hooks: it looks, and at most changes where to go on.
 */
#define pr_fmt(fmt) "stasis_guard: " fmt
#include <linux/kprobes.h>
#include <linux/module.h>
#include "guard.h"

#define HOOK(function, of, looks, other) { .name = function, .layer = of, .judge = judge_##looks, .instead = other }

struct guard_hook guard_hooks[] = {
	HOOK("submit_bio_noacct", LAYER_BIO, bio, instead_of_bio),
	HOOK("blk_insert_cloned_request", LAYER_BIO, cloned_request, instead_of_cloned_request),
	HOOK("nvme_setup_cmd", LAYER_NVME, nvme_command, instead_of_nvme_command),
	HOOK("blk_execute_rq", LAYER_PASSTHROUGH, execute, instead_of_execute),
	HOOK("blk_execute_rq_nowait", LAYER_PASSTHROUGH, execute_nowait, instead_of_execute_nowait),
	HOOK("device_add_disk", LAYER_FLAG, add_disk, instead_of_add_disk),
	HOOK("del_gendisk", LAYER_FLAG, del_disk, instead_of_del_disk),
	HOOK("bdev_open", LAYER_OPEN, open, instead_of_open),
	HOOK("security_file_ioctl", LAYER_IOCTL, ioctl, instead_of_ioctl),
	HOOK("security_file_ioctl_compat", LAYER_IOCTL, ioctl, instead_of_ioctl_compat),
	HOOK("security_uring_cmd", LAYER_IOCTL, uring, instead_of_uring),
	HOOK("security_locked_down", LAYER_LOCKDOWN, lockdown, instead_of_lockdown),
	HOOK("security_kernel_read_file", LAYER_MODULES, read_file, instead_of_read_file),
	HOOK("security_kernel_load_data", LAYER_MODULES, load_data, instead_of_load_data),
};
const unsigned int guard_hook_count = ARRAY_SIZE(guard_hooks);

/* The address of a function of the kernel or of a module, exported or not, past the ENDBR that it may begin with; 0: there
 * is none, or more than one. */
unsigned long guard_find_symbol(const char *name)
{
	struct kprobe probe = { .symbol_name = name };
	unsigned long address;

	if (register_kprobe(&probe))
		return 0;
	address = (unsigned long)probe.addr;
	unregister_kprobe(&probe);
	return address;
}

/* Whether `pointer` points to the function that guard_find_symbol() found; functions begin 16 bytes apart at least. */
bool notrace guard_is_function(const void *pointer, unsigned long address)
{
	return address - (unsigned long)pointer < 8;
}

/* True for a call that one of our replacements makes. The self-test lies in init text and is treated as a stranger. */
bool notrace guard_came_from_us(unsigned long parent_ip)
{
	return within_module_core(parent_ip, THIS_MODULE);
}

int __init guard_find_hooks(void)
{
	struct guard_hook *hook;
	int missing = 0;

	for (hook = guard_hooks; hook < guard_hooks + guard_hook_count; hook++) {
		hook->address = guard_find_symbol(hook->name);
		if (!hook->address) {
			pr_err("this kernel has no function %s to hook\n", hook->name);
			missing++;
		}
	}
	return missing ? -EOPNOTSUPP : 0;
}

int __init guard_arm(void)
{
	struct guard_hook *hook;
	int err;

	for (hook = guard_hooks; hook < guard_hooks + guard_hook_count; hook++) {
		hook->ops.func = hook->judge;
		hook->ops.flags = FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_PERMANENT;
		err = ftrace_set_filter_ip(&hook->ops, hook->address, 0, 0);
		if (!err)
			err = register_ftrace_function(&hook->ops);
		if (err) {
			pr_err("the hook in %s could not be placed (%d)\n", hook->name, err);
			guard_disarm();
			return err;
		}
		hook->armed = true;
	}
	return 0;
}

/* Only for a module that is not going to load. */
void guard_disarm(void)
{
	struct guard_hook *hook;

	for (hook = guard_hooks; hook < guard_hooks + guard_hook_count; hook++) {
		if (hook->armed)
			unregister_ftrace_function(&hook->ops);
		hook->armed = false;
		ftrace_free_filter(&hook->ops);
	}
}

bool guard_layer_armed(enum guard_layer layer)
{
	const struct guard_hook *hook;

	for (hook = guard_hooks; hook < guard_hooks + guard_hook_count; hook++)
		if (hook->layer == layer && !(hook->armed && (hook->ops.flags & FTRACE_OPS_FL_ENABLED)))
			return false;
	return true;
}

bool guard_armed(void)
{
	enum guard_layer layer;

	for (layer = 0; layer < LAYER_COUNT; layer++)
		if (!guard_layer_armed(layer))
			return false;
	return true;
}
