/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include "allocator/base/lock.h"
#include "fs/fuse.h"
#include "fs/notify.h"

#define MAX_QUEUED 4096u

/*
 * A ring of inode numbers. When it is full the oldest goes: opens drop stale pages anyway
 * (INODE_STALE_PAGES), this is for files that stay open.
 */
static struct {
	struct lock lock; /* LOCK_LEAF: all that follows */
	struct waitq wake;
	u64 queue[MAX_QUEUED];
	u32 head, nr;
	bool on, stop;
	pthread_t thread;
	struct fuse_session *session;
} notify;

void notify_inval(u64 ino)
{
	if (!notify.on)
		return;
	lock_acquire(&notify.lock);
	if (notify.nr == MAX_QUEUED) {
		notify.head = (notify.head + 1) % MAX_QUEUED;
		notify.nr--;
	}
	if (!notify.nr || notify.queue[(notify.head + notify.nr - 1) % MAX_QUEUED] != ino) {
		notify.queue[(notify.head + notify.nr++) % MAX_QUEUED] = ino;
		waitq_wake_all(&notify.wake);
	}
	lock_release(&notify.lock);
}

static bool next_ino(u64 *ino)
{
	bool got;

	lock_acquire(&notify.lock);
	while (!notify.nr && !notify.stop)
		waitq_wait(&notify.wake, &notify.lock);
	got = !notify.stop;
	if (got) {
		*ino = notify.queue[notify.head];
		notify.head = (notify.head + 1) % MAX_QUEUED;
		notify.nr--;
	}
	lock_release(&notify.lock);
	return got;
}

static void *notify_main(void *arg)
{
	u64 ino;

	while (next_ino(&ino))
		fuse_lowlevel_notify_inval_inode(notify.session, ino, 0, 0);
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
