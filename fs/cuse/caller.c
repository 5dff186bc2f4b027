/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Acting as the caller. The device's process is root, the daemon must judge whoever has the device
 * open: FUSE sends it fsuid and fsgid of the thread that asks, and the daemon looks up that
 * thread's supplementary groups. So a worker takes all three over for the length of one access.
 * Effective and real ids stay root's: a thread that had them all could be killed by the user whose
 * ids it took.
 *
 * With an fsuid other than 0 the kernel takes the thread's rights to override permissions away, and
 * gives them back with fsuid 0. The C library's setgroups() changes all threads, hence the bare
 * call.
 */
#include <errno.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "fs/cuse/front.h"

#define MAX_GROUPS 64 /* more than these are not looked at, as by the daemon */

#ifdef SYS_setgroups32
#define THREAD_SETGROUPS SYS_setgroups32
#else
#define THREAD_SETGROUPS SYS_setgroups
#endif

static int set_groups(int nr, const gid_t *groups)
{
	return syscall(THREAD_SETGROUPS, (long)nr, groups) ? -errno : 0;
}

/* Neither call tells of a failure; asking for an id that nobody has changes nothing. */
static bool is_now(uid_t uid, gid_t gid)
{
	return (uid_t)setfsuid((uid_t)-1) == uid && (gid_t)setfsgid((gid_t)-1) == gid;
}

int caller_begin(fuse_req_t req)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	gid_t groups[MAX_GROUPS];
	int nr = 0, err;

	if (ctx->uid)
		nr = fuse_req_getgroups(req, MAX_GROUPS, groups);
	nr = max(min(nr, MAX_GROUPS), 0); /* not to be found out: none */
	err = set_groups(nr, groups);
	if (err)
		return err;
	setfsgid(ctx->gid);
	setfsuid(ctx->uid);
	if (is_now(ctx->uid, ctx->gid))
		return 0;
	caller_end();
	return -EPERM;
}

void caller_end(void)
{
	setfsuid(0);
	setfsgid(0);
	if (set_groups(0, NULL) || !is_now(0, 0))
		abort(); /* a thread that keeps a stranger's rights must not go on */
}
