/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include "allocator/base/lock.h"
#include "fs/fuse.h"
#include "fs/notify.h"

#define MAX_QUEUED 4096u

/** struct stale - pages of @ino from @from to before @to, UINT64_MAX: to the end. */
struct stale {
	u64 ino, from, to;
};

/*
 * A ring of what is stale. When it is full the oldest goes: opens drop stale pages anyway
 * (INODE_STALE_PAGES), this is for files that stay open.
 */
static struct {
	struct lock lock; /* LOCK_LEAF: all that follows */
	struct waitq wake;
	struct stale queue[MAX_QUEUED];
	u32 head, nr;
	bool on, stop;
	pthread_t thread;
	struct fuse_session *session;
} notify;

/* One that is queued last grows; appends come one behind the other. Lock held. */
static bool grow_last(struct stale more)
{
	struct stale *last = &notify.queue[(notify.head + notify.nr - 1) % MAX_QUEUED];

	if (!notify.nr || last->ino != more.ino)
		return false;
	last->from = min(last->from, more.from);
	last->to = max(last->to, more.to);
	return true;
}

void notify_inval(u64 ino)
{
	notify_inval_range(ino, 0, 0);
}

void notify_inval_range(u64 ino, u64 off, u64 len)
{
	struct stale stale = {.ino = ino, .from = off, .to = len ? off + len : UINT64_MAX};

	if (!notify.on)
		return;
	lock_acquire(&notify.lock);
	if (notify.nr == MAX_QUEUED) {
		notify.head = (notify.head + 1) % MAX_QUEUED;
		notify.nr--;
	}
	if (!grow_last(stale)) {
		notify.queue[(notify.head + notify.nr++) % MAX_QUEUED] = stale;
		waitq_wake_all(&notify.wake);
	}
	lock_release(&notify.lock);
}

static bool next_stale(struct stale *stale)
{
	bool got;

	lock_acquire(&notify.lock);
	while (!notify.nr && !notify.stop)
		waitq_wait(&notify.wake, &notify.lock);
	got = !notify.stop;
	if (got) {
		*stale = notify.queue[notify.head];
		notify.head = (notify.head + 1) % MAX_QUEUED;
		notify.nr--;
	}
	lock_release(&notify.lock);
	return got;
}

static void *notify_main(void *arg)
{
	struct stale s;

	while (next_stale(&s))
		fuse_lowlevel_notify_inval_inode(notify.session, s.ino, (off_t)s.from,
						 s.to == UINT64_MAX ? 0 : (off_t)(s.to - s.from));
	return NULL;
}

int notify_start(struct fuse_session *session)
{
	int err;

	lock_init(&notify.lock, LOCK_LEAF);
	waitq_init(&notify.wake);
	notify.session = session;
	err = pthread_create(&notify.thread, NULL, notify_main, NULL);
	notify.on = !err;
	return -err;
}

void notify_stop(void)
{
	if (!notify.on)
		return;
	lock_acquire(&notify.lock);
	notify.stop = true;
	waitq_wake_all(&notify.wake);
	lock_release(&notify.lock);
	pthread_join(notify.thread, NULL);
	notify.on = false;
}
