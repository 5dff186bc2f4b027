/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every commit interval: bodies and sequences that are dirty are written back and their records
 * submitted, and all that was submitted becomes durable. Files being rewritten
 * after O_TRUNC wait for their close, so that a crash finds the old bytes or the new ones. A write
 * back that fails is remembered in the inode (late_err) and told by its next fsync or close.
 */
#include <errno.h>
#include <pthread.h>
#include "allocator/base/bug.h"
#include "allocator/base/clock.h"
#include "allocator/base/log.h"
#include "fs/persist.h"
#include "fs/store.h"
#include "fs/tick.h"

#define STATE_TIMEOUT_NS (30 * NSEC_PER_SEC)

struct ticker {
	struct fs *fs;
	pthread_t thread;
	struct lock lock; /* LOCK_LEAF: stop */
	struct waitq wake;
	bool stop;
};

static void late_error(struct inode *inode, int err)
{
	if (!inode)
		return;
	log_error("inode %llu: writing back failed: %d; the next fsync or close says so",
		  (unsigned long long)inode->ino, -err);
	inode->late_err = (u8)-err;
}

static void requeue_inode(struct fs *fs, struct inode *inode)
{
	inode->dirty_tick = fs->tick;
	list_del(&inode->dirty);
	list_add_tail(&inode->dirty, &fs->dirty_inodes);
}

static void atime_record(struct fs *fs, struct inode *inode)
{
	list_del(&inode->dirty);
	inode->flags &= (u8)~INODE_ATIME;
	log_inode(fs, inode);
}

/* One dirty inode, lock held throughout but while it is written. Return: was there one? */
static bool tick_inode(struct fs *fs, u32 before)
{
	struct gates gates = GATES_INIT;
	struct inode *inode;
	int err;
	u64 seq;

	if (list_empty(&fs->dirty_inodes))
		return false;
	inode = list_first_entry(&fs->dirty_inodes, struct inode, dirty);
	if (inode->dirty_tick >= before)
		return false;
	if (!(inode->flags & INODE_DIRTY)) {
		atime_record(fs, inode);
		return true;
	}
	if (inode->flags & INODE_TRUNCATED && inode->nr_writers) {
		requeue_inode(fs, inode);
		return true;
	}
	gates_add(&gates, inode, true);
	if (!gates_take(fs, &gates))
		return true;
	fs_unlock(fs);
	err = persist_body(fs, inode, &seq);
	fs_lock(fs);
	if (err) {
		late_error(inode, err);
		if (inode->flags & INODE_DIRTY)
			requeue_inode(fs, inode);
	}
	gates_drop(fs, &gates);
	return true;
}

static bool tick_fseq(struct fs *fs, u32 before)
{
	struct gates gates = GATES_INIT;
	struct fseq *fseq;
	int err;
	u64 seq;

	if (list_empty(&fs->dirty_seqs))
		return false;
	fseq = list_first_entry(&fs->dirty_seqs, struct fseq, dirty);
	if (fseq->dirty_tick >= before)
		return false;
	if (!fseq->kv && !fseq->ids) {
		list_del(&fseq->dirty);
		fseq->dirty_on = false;
		return true;
	}
	gates_add(&gates, fseq->kv, false);
	gates_add(&gates, fseq->ids, false);
	if (!gates_take(fs, &gates))
		return true;
	fseq_get(fseq);
	fs_unlock(fs);
	err = persist_fseq(fs, fseq, &seq);
	fs_lock(fs);
	if (err)
		late_error(fseq->kv ? fseq->kv : fseq->ids, err);
	fseq_put(fs, fseq);
	gates_drop(fs, &gates);
	return true;
}

int persist_tick(struct fs *fs)
{
	u32 before;
	u64 seq;
	int err;

	fs_lock(fs);
	before = ++fs->tick;
	while (tick_inode(fs, before))
		fs_unlock(fs), fs_lock(fs);
	while (tick_fseq(fs, before))
		fs_unlock(fs), fs_lock(fs);
	err = log_submit(fs);
	seq = fs->log_seq;
	fs_unlock(fs);
	return err ? err : pool_commit(fs->pool, seq);
}

void persist_make_room(struct fs *fs)
{
	int err = persist_tick(fs);

	if (!err)
		err = pool_tick(fs->pool);
	if (err)
		log_warn("making room: %d", -err);
}

/*
 * A sequence that nobody has touched for a while is not being decoded, whatever it was told; but a
 * session that has it open says itself when it is done. Holds the filesystem's lock.
 */
static bool state_stale(struct fseq *fseq, u64 now)
{
	struct sequence *s = fseq->seq;
	bool stale;

	if (!list_empty(&fseq->watches))
		return false;
	lock_acquire(&s->tab.lock);
	stale = s->last_use_ns + STATE_TIMEOUT_NS < now;
	lock_release(&s->tab.lock);
	return stale;
}

static void expire_states(struct fs *fs)
{
	u64 now = clock_real_ns();
	struct list_head stale;
	struct fseq *fseq, *next;

	list_init(&stale);
	fs_lock(fs);
	list_for_each_entry_safe (fseq, next, &fs->active_seqs, active) {
		if (!state_stale(fseq, now))
			continue;
		list_del(&fseq->active);
		list_add_tail(&fseq->active, &stale);
		fseq_get(fseq);
	}
	while (!list_empty(&stale)) {
		fseq = list_first_entry(&stale, struct fseq, active);
		list_del(&fseq->active);
		fs_unlock(fs);
		seq_set_state(fseq->seq, SEQ_IDLE);
		fs_lock(fs);
		fseq_put(fs, fseq);
	}
	fs_unlock(fs);
}

/* Until the commit interval is over; every second of it who is gone is looked for. */
static bool ticker_wait(struct ticker *t)
{
	u64 now = clock_mono_ns(), until = now + t->fs->opts->commit_seconds * NSEC_PER_SEC;
	bool stop;

	do {
		u64 next = min(until, now + NSEC_PER_SEC);

		lock_acquire(&t->lock);
		for (; !t->stop && now < next; now = clock_mono_ns())
			waitq_wait_ms(&t->wake, &t->lock, div_round_up(next - now, 1000000));
		stop = t->stop;
		lock_release(&t->lock);
		store_tick(t->fs->store);
	} while (!stop && now < until);
	return !stop;
}

static void *ticker_main(void *arg)
{
	struct ticker *t = arg;
	int last = 0;

	while (ticker_wait(t)) {
		int err = persist_tick(t->fs);

		if (!err)
			err = pool_tick(t->fs->pool);
		if (err && err != last)
			log_error("commit interval: %d; names and cached blocks are not durable",
				  -err);
		last = err;
		expire_states(t->fs);
	}
	return NULL;
}

int ticker_start(struct ticker **ticker, struct fs *fs)
{
	struct ticker *t = calloc(1, sizeof(*t));
	int err;

	if (!t)
		return -ENOMEM;
	t->fs = fs;
	lock_init(&t->lock, LOCK_LEAF);
	waitq_init(&t->wake);
	err = pthread_create(&t->thread, NULL, ticker_main, t);
	if (err) {
		free(t);
		return -err;
	}
	*ticker = t;
	return 0;
}

void ticker_stop(struct ticker *t)
{
	if (!t)
		return;
	lock_acquire(&t->lock);
	t->stop = true;
	waitq_wake_all(&t->wake);
	lock_release(&t->lock);
	pthread_join(t->thread, NULL);
	waitq_destroy(&t->wake);
	lock_destroy(&t->lock);
	free(t);
}
