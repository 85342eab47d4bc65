// SPDX-License-Identifier: GPL-2.0
/*
 * Arming. Everything must be in place and proven, or the module does not load and the first stage stops before any
 * storage driver. There is no exit function: the guard stays as long as this kernel runs.
 */
#define pr_fmt(fmt) "stasis_guard: " fmt
#include <generated/utsrelease.h>
#include <linux/module.h>
#include <linux/utsname.h>
#include "guard.h"

/*
 * Both drivers' cores must be there before us, since their functions are hooked, and must never go. The kernel sees to it:
 * nvme_setup_cmd (selftest.c) and get_sg_io_hdr (door.c) are theirs.
 */
static int __init guard_init(void)
{
	int err;

	/* The checksums of exported symbols say nothing of the other functions that are hooked, so it must be this very kernel. */
	if (strcmp(init_utsname()->release, UTS_RELEASE)) {
		pr_err("it was made for kernel %s, and this one is %s\n", UTS_RELEASE, init_utsname()->release);
		return -EOPNOTSUPP;
	}
	err = guard_find_hooks();
	if (err)
		return err;
	err = guard_find_queues();
	if (err)
		return err;
	err = guard_find_door();
	if (err)
		return err;
	err = guard_selftest_before();
	if (err)
		goto out_test;
	err = guard_arm();
	if (err)
		goto out_test;
	err = guard_selftest_after();
	if (err)
		goto out_disarm;
	err = guard_make_proc();
	if (err) {
		pr_err("/proc/stasis_guard could not be made (%d)\n", err);
		goto out_disarm;
	}
	guard_selftest_end();
	pr_notice("armed: %u hooks, every disk is protected\n", guard_hook_count);
	return 0;

out_disarm:
	/* The hooks' code is about to be freed. Nothing was protected yet: no storage driver has been loaded. */
	guard_disarm();
out_test:
	guard_selftest_end();
	return err;
}
module_init(guard_init);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Stasis: refuse every write to every disk that was not granted");
