/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metadata store's entrances, its queue of groups and the commit thread.
 *
 * submit copies a transaction into the last group of the queue and takes everything that it needs
 * later: journal space that is already allocated and room in the index. After that only the disk
 * can say no, and then the store stops.
 *
 * Order of one group: frame durable -> index -> seal written -> durable_seq -> committers woken,
 * durable() called. The index is moved only by the commit thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/base/log.h"
#include "allocator/meta_types.h"

#define SPARE_BYTES MIB(8)	/* a larger buffer is not kept for the next group */

int meta_fail(struct meta *meta, const char *doing, int err)
{
	lock_acquire(&meta->lock);
	if (!meta->err)
		log_error("metadata: %s: %s; no more changes until the next mount", doing,
			  strerror(-err));
	meta->err = -EIO;
	waitq_wake_all(&meta->work);
	waitq_wake_all(&meta->checkpoint_work);
	waitq_wake_all(&meta->done);
	lock_release(&meta->lock);
	return kvc_err(-EIO, meta_failed);
}

void meta_count_written(struct meta *meta, u64 bytes)
{
	lock_acquire(&meta->lock);
	meta->stats.written_bytes += bytes;
	lock_release(&meta->lock);
}

void meta_note(struct meta *meta, const struct meta_record *rec)
{
	u64 before = meta_index_apply(&meta->index, rec);

	if (before && meta->old.fd >= 0 && before <= meta->cur.base_serial)
		meta->old_replaced++;
}

void meta_apply(struct meta *meta, const struct meta_record *rec, u32 nr)
{
	while (nr) {
		u32 batch = min(nr, 512u);

		nr -= batch;
		lock_acquire(&meta->lock);
		for (; batch; batch--, rec = meta_record_next(rec))
			meta_note(meta, rec);
		lock_release(&meta->lock);
	}
}

static void group_free(struct meta_group *group)
{
	if (group)
		free(group->buf);
	free(group);
}

static void group_recycle(struct meta *meta, struct meta_group *group)
{
	struct meta_group *drop = group;

	lock_acquire(&meta->lock);
	if (!meta->spare && group->size <= SPARE_BYTES) {
		meta->spare = group;
		drop = NULL;
	}
	lock_release(&meta->lock);
	group_free(drop);
}

/* The group that a transaction of @bytes goes to; a fresh one is empty and not queued yet. */
static struct meta_group *group_for(struct meta *meta, size_t bytes)
{
	struct meta_group *group;

	if (!list_empty(&meta->queue)) {
		group = list_last_entry(&meta->queue, struct meta_group, link);
		if (group->len + bytes <= META_GROUP_BYTES)
			return group;
	}
	group = meta->spare;
	if (!group) {
		group = meta_realloc(NULL, sizeof(*group));
		if (!group)
			return NULL;
		group->buf = NULL;
		group->size = 0;
	}
	meta->spare = group;
	list_init(&group->link);
	group->len = sizeof(struct meta_frame);
	group->nr_records = 0;
	group->nr_txns = 0;
	group->first_seq = meta->submitted_seq + 1;
	group->first_serial = meta->submitted_serial + 1;
	return group;
}

static int group_grow(struct meta_group *group, size_t len)
{
	size_t size = round_up_pow2(len, META_BLOCK);
	u8 *buf;

	if (size <= group->size)
		return 0;
	if (size < 2 * group->size && group->size < META_GROUP_BYTES)
		size = 2 * group->size;
	buf = meta_realloc(group->buf, size);
	if (!buf)
		return -ENOMEM;
	group->buf = buf;
	group->size = size;
	return 0;
}

static int txn_reserve(struct meta *meta, const struct meta_txn *txn)
{
	const struct meta_record *rec = (const void *)txn->buf;
	u32 done;

	for (done = 0; done < txn->nr_records; done++, rec = meta_record_next(rec))
		if (meta_index_reserve(&meta->index, rec))
			break;
	if (done == txn->nr_records)
		return 0;
	rec = (const void *)txn->buf;
	for (; done; done--, rec = meta_record_next(rec))
		meta_index_unreserve(&meta->index, rec);
	return -ENOMEM;
}

/* Copy the transaction in, numbering its records. Cannot fail any more. */
static void group_take(struct meta *meta, struct meta_group *group, const struct meta_txn *txn)
{
	struct meta_record *rec = (void *)(group->buf + group->len);

	memcpy(rec, txn->buf, txn->len);
	for (u32 i = 0; i < txn->nr_records; i++) {
		rec->serial = ++meta->submitted_serial;
		rec = (void *)meta_record_next(rec);
	}
	group->len += txn->len;
	group->nr_records += txn->nr_records;
	group->nr_txns++;
	group->last_seq = ++meta->submitted_seq;
	if (group == meta->spare) {
		meta->spare = NULL;
		list_add_tail(&group->link, &meta->queue);
	}
}

/* A submit that finds too little space sets both threads on allocating more, also after ENOSPC. */
static int room_check(struct meta *meta, u64 more)
{
	u64 room = min(meta->cur.alloc_end - meta->cur.end, meta->next_room);

	if (meta->queued_bytes + more <= room)
		return 0;
	meta->want_space = max(meta->want_space, more);
	waitq_wake_all(&meta->work);
	waitq_wake_all(&meta->checkpoint_work);
	return kvc_err(-ENOSPC, meta_no_space);
}

static int __submit(struct meta *meta, const struct meta_txn *txn)
{
	struct meta_group *group;
	u64 more;
	int err;

	if (meta->err || meta->submitted_serial + txn->nr_records > META_MAX_SERIAL)
		return kvc_err(-EIO, meta_stopped);
	if (!txn->nr_records)
		return 0;
	group = group_for(meta, txn->len);
	if (!group)
		return -ENOMEM;
	more = round_up_pow2(group->len + txn->len, META_BLOCK);
	if (group->nr_txns)
		more -= round_up_pow2(group->len, META_BLOCK);
	err = room_check(meta, more);
	if (!err)
		err = group_grow(group, group->len + txn->len);
	if (!err)
		err = txn_reserve(meta, txn);
	if (err)
		return err;
	group_take(meta, group, txn);
	meta->queued_bytes += more;
	if (meta->queued_bytes >= META_KICK_BYTES) {
		meta->kick_seq = meta->submitted_seq;
		waitq_wake_all(&meta->work);
	}
	if (meta_journal_wants_space(meta))
		waitq_wake_all(&meta->checkpoint_work);
	return 0;
}

int meta_submit(struct meta *meta, struct meta_txn *txn, u64 *seq)
{
	int err;

	if (txn->err)
		return txn->err;
	lock_acquire(&meta->lock);
	err = __submit(meta, txn);
	if (!err && seq)
		*seq = meta->submitted_seq;
	lock_release(&meta->lock);
	if (!err) {
		txn->len = 0;
		txn->nr_records = 0;
	}
	return err;
}

static void __kick(struct meta *meta, u64 seq)
{
	if (seq <= meta->kick_seq)
		return;
	meta->kick_seq = seq;
	waitq_wake_all(&meta->work);
}

int meta_commit(struct meta *meta, u64 seq)
{
	int err;

	lock_assert_none();
	lock_acquire(&meta->lock);
	seq = min(seq, meta->submitted_seq);
	__kick(meta, seq);
	while (meta->durable_seq < seq && !meta->err)
		waitq_wait(&meta->done, &meta->lock);
	err = meta->durable_seq < seq ? meta->err : 0;
	meta->stats.commits += !err;
	lock_release(&meta->lock);
	return err;
}

void meta_kick(struct meta *meta)
{
	lock_acquire(&meta->lock);
	__kick(meta, meta->submitted_seq);
	lock_release(&meta->lock);
}

u64 meta_durable_seq(struct meta *meta)
{
	u64 seq;

	lock_acquire(&meta->lock);
	seq = meta->durable_seq;
	lock_release(&meta->lock);
	return seq;
}

void meta_get_stats(struct meta *meta, struct meta_stats *stats)
{
	lock_acquire(&meta->lock);
	*stats = meta->stats;
	stats->keys = meta->index.keys;
	stats->live_bytes = meta->index.live_bytes;
	stats->journal_bytes = meta->cur.end - META_JOURNAL_START;
	if (meta->old.fd >= 0)
		stats->journal_bytes += meta->old.end - META_JOURNAL_START;
	lock_release(&meta->lock);
}

int meta_checkpoint(struct meta *meta)
{
	u64 ticket;
	int err;

	err = meta_commit(meta, UINT64_MAX);
	if (err)
		return err;
	lock_acquire(&meta->lock);
	ticket = ++meta->tickets;
	waitq_wake_all(&meta->checkpoint_work);
	while (meta->served < ticket && !meta->err)
		waitq_wait(&meta->done, &meta->lock);
	err = meta->err ? meta->err : meta->served_err;
	lock_release(&meta->lock);
	return err;
}

/* Write the oldest group. Called and left with the lock, which is dropped meanwhile. */
static void commit_group(struct meta *meta)
{
	struct meta_group *group = list_first_entry(&meta->queue, struct meta_group, link);
	u64 seq = group->last_seq;
	int err;

	list_del(&group->link);
	lock_release(&meta->lock);
	err = meta_journal_write(meta, group);
	group_recycle(meta, group);
	if (err) {
		(void)meta_fail(meta, "writing the journal", err);
		lock_acquire(&meta->lock);
		return;
	}
	lock_acquire(&meta->lock);
	meta->durable_seq = seq;
	meta->stats.groups++;
	waitq_wake_all(&meta->done);
	if (meta_checkpoint_due(meta))
		waitq_wake_all(&meta->checkpoint_work);
	if (!meta->opts.durable)
		return;
	lock_release(&meta->lock);
	meta->opts.durable(meta->opts.ctx, seq);
	lock_acquire(&meta->lock);
}

static void commit_rotate(struct meta *meta)
{
	if (meta->err) {
		meta->rotate_err = meta->err;
		meta->want_rotate = false;
		waitq_wake_all(&meta->checkpoint_work);
		return;
	}
	lock_release(&meta->lock);
	meta_journal_rotate(meta);
	lock_acquire(&meta->lock);
}

static void *commit_main(void *arg)
{
	struct meta *meta = arg;

	lock_acquire(&meta->lock);
	for (;;) {
		if (meta->want_rotate)
			commit_rotate(meta);
		else if (meta_journal_wants_space(meta))
			meta_journal_extend(meta);
		else if (!meta->err && meta->durable_seq < meta->kick_seq)
			commit_group(meta);
		else if (meta->stop == META_STOP)
			break;
		else
			waitq_wait(&meta->work, &meta->lock);
	}
	lock_release(&meta->lock);
	return NULL;
}

static void stop_threads(struct meta *meta)
{
	lock_acquire(&meta->lock);
	meta->stop = META_STOP_CHECKPOINT;
	waitq_wake_all(&meta->checkpoint_work);
	lock_release(&meta->lock);
	if (meta->nr_threads > 1)
		pthread_join(meta->checkpoint_thread, NULL);
	lock_acquire(&meta->lock);
	meta->stop = META_STOP;
	waitq_wake_all(&meta->work);
	lock_release(&meta->lock);
	if (meta->nr_threads > 0)
		pthread_join(meta->commit_thread, NULL);
}

/* Signals are the program's business: our threads take none. */
static int start_threads(struct meta *meta)
{
	sigset_t all, before;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(&meta->commit_thread, NULL, commit_main, meta);
	if (!err) {
		meta->nr_threads++;
		err = pthread_create(&meta->checkpoint_thread, NULL, meta_checkpoint_main, meta);
		meta->nr_threads += !err;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -err;
}

static void meta_destroy(struct meta *meta)
{
	struct meta_group *group, *next;

	list_for_each_entry_safe(group, next, &meta->queue, link)
		group_free(group);
	group_free(meta->spare);
	meta_close_fd(&meta->cur.fd);
	meta_close_fd(&meta->old.fd);
	meta_close_fd(&meta->dir_fd);
	meta_index_free(&meta->index);
	waitq_destroy(&meta->work);
	waitq_destroy(&meta->checkpoint_work);
	waitq_destroy(&meta->done);
	lock_destroy(&meta->lock);
	free(meta);
}

static struct meta *meta_new(const struct meta_opts *opts)
{
	struct meta *meta = meta_realloc(NULL, sizeof(*meta));

	if (!meta)
		return NULL;
	*meta = (struct meta){
		.opts = *opts,
		.dir_fd = -1,
		.cur.fd = -1,
		.old.fd = -1,
		.next_room = UINT64_MAX,
	};
	if (!meta->opts.checkpoint_bytes)
		meta->opts.checkpoint_bytes = MIB(64);
	meta->ahead = min(meta->opts.checkpoint_bytes / 2, (u64)META_MAX_AHEAD);
	meta->ahead = max(meta->ahead, (u64)META_MIN_AHEAD);
	list_init(&meta->queue);
	lock_init(&meta->lock, LOCK_STORE);
	waitq_init(&meta->work);
	waitq_init(&meta->checkpoint_work);
	waitq_init(&meta->done);
	return meta;
}

int meta_open(struct meta **metap, int dirfd, const struct meta_opts *opts,
	      const struct meta_loader *loader, struct textbuf *why)
{
	struct meta *meta = meta_new(opts);
	int err;

	*metap = NULL;
	if (!meta)
		return -ENOMEM;
	err = meta_open_file(dirfd, ".", O_RDONLY | O_DIRECTORY, &meta->dir_fd);
	if (err && why)
		textbuf_printf(why, "store directory: %s", strerror(-err));
	if (!err)
		err = meta_recover(meta, loader, why);
	if (!err) {
		err = start_threads(meta);
		if (err && why)
			textbuf_printf(why, "metadata: cannot start threads: %s", strerror(-err));
		if (err)
			stop_threads(meta);
	}
	if (err) {
		meta_destroy(meta);
		return err;
	}
	*metap = meta;
	return 0;
}

/* At the next open the journal costs as much to read as a checkpoint of the same length. */
static bool checkpoint_worth_it(struct meta *meta)
{
	struct meta_stats stats;

	meta_get_stats(meta, &stats);
	return stats.journal_bytes > max(meta->opts.checkpoint_bytes / 4, stats.live_bytes / 2);
}

int meta_close(struct meta *meta)
{
	int err;

	lock_assert_none();
	err = meta_commit(meta, UINT64_MAX);
	if (!err && checkpoint_worth_it(meta)) {
		err = meta_checkpoint(meta);
		if (err != -EIO)
			err = 0;	/* put off to the next mount; nothing is lost */
	}
	stop_threads(meta);
	/* The last seal has had no sync of its own. */
	if (!err && !meta->err)
		err = meta_sync(meta->cur.fd);
	if (!err)
		err = meta->err;
	meta_destroy(meta);
	return err;
}
