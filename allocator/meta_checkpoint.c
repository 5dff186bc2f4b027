/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints: copy the records that are still live out of checkpoint.G and journal.G, while groups
 * go on being committed to journal.G+1.
 *
 *   1. the commit thread turns to journal.G+1 between two groups (meta_journal.c). From here on
 *      checkpoint.G + journal.G are closed and hold exactly the transactions up to that journal's base
 *   2. both are read from front to back, every checksum verified; a record that the index still
 *      calls its key's latest goes to checkpoint.G+1.tmp
 *   3. head, fdatasync, everything read back from the disk and verified, rename, directory synced
 *   4. checkpoint.G and journal.G are removed
 *
 * A key that a transaction in journal.G+1 has replaced meanwhile is skipped. That is safe because
 * the index learns of a record only when it is durable, and journal.G+1 is always replayed whole on
 * top of checkpoint.G+1: the open refuses the store rather than drop an acknowledged frame.
 *
 * On disk there is at every moment either checkpoint.G + journal.G [+ journal.G+1] or
 * checkpoint.G+1 + journal.G+1. When the copy cannot be finished (space, memory, close), the first
 * set stays in force and the next try begins at step 2.
 *
 * As a check on ourselves, the records copied and those replaced since the turn must account for
 * every key that there was at the turn; else the new checkpoint is not published.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "allocator/base/log.h"
#include "allocator/meta_types.h"

#define SYNC_BYTES MIB(8)	/* dirty bytes: keeps the commits' syncs short */
#define BATCH	   256u		/* records looked up in one go under the lock */
#define BUF_BYTES  (META_CHUNK_BYTES + META_MAX_RECORD + 2 * META_BLOCK)

/** struct copier - the checkpoint being written. Checkpoint thread only. */
struct copier {
	struct meta *meta;
	int fd;
	struct meta_head head;	/* end, nr_frames, nr_records, chain grow as frames are written */
	u64 unsynced;
	u8 *buf;		/* header and records of the frame being filled */
	size_t len;
	u32 nr_records;
};

static int copier_flush(struct copier *copier)
{
	struct meta_frame *frame = (void *)copier->buf;
	size_t bytes = round_up_pow2(copier->len, META_BLOCK);
	int err;

	if (!copier->nr_records)
		return 0;
	*frame = (struct meta_frame){
		.generation = copier->head.generation,
		.number = copier->head.nr_frames,
		.payload_bytes = (u32)(copier->len - sizeof(*frame)),
		.nr_records = copier->nr_records,
		.chain = copier->head.chain,
	};
	memset(copier->buf + copier->len, 0, bytes - copier->len);
	meta_frame_seal(copier->head.store, frame, bytes);
	err = meta_pwrite(copier->fd, copier->buf, bytes, copier->head.end);
	if (err)
		return err;
	meta_count_written(copier->meta, bytes);
	copier->head.end += bytes;
	copier->head.nr_frames++;
	copier->head.nr_records += copier->nr_records;
	copier->head.chain = frame->head_sum;
	copier->unsynced += bytes;
	copier->nr_records = 0;
	copier->len = sizeof(*frame);
	if (copier->unsynced < SYNC_BYTES)
		return 0;
	copier->unsynced = 0;
	return meta_sync(copier->fd);
}

static int copier_add(struct copier *copier, const struct meta_record *rec)
{
	u32 bytes = meta_record_bytes(rec);
	int err;

	if (copier->len + bytes > META_CHUNK_BYTES) {
		err = copier_flush(copier);
		if (err)
			return err;
	}
	memcpy(copier->buf + copier->len, rec, bytes);
	copier->len += bytes;
	copier->nr_records++;
	return 0;
}

/* Between batches: give way to a close, and keep the journal's space ahead of the commits. */
static int copier_breathe(struct meta *meta)
{
	lock_assert_held(&meta->lock);
	if (meta->err)
		return meta->err;
	if (meta->stop != META_RUN)
		return -ECANCELED;
	if (meta_journal_wants_space(meta))
		meta_journal_extend(meta);
	return 0;
}

static int copy_frame(struct copier *copier, const struct meta_reader *reader)
{
	struct meta *meta = copier->meta;
	const struct meta_record *rec = reader->records;
	const struct meta_record *live[BATCH];

	for (u32 done = 0; done < reader->frame->nr_records;) {
		u32 nr = min(reader->frame->nr_records - done, BATCH);
		u32 nr_live = 0;
		int err;

		lock_acquire(&meta->lock);
		err = copier_breathe(meta);
		for (u32 i = 0; i < nr; i++, rec = meta_record_next(rec))
			if (meta_index_live(&meta->index, rec))
				live[nr_live++] = rec;
		lock_release(&meta->lock);
		for (u32 i = 0; i < nr_live && !err; i++)
			err = copier_add(copier, live[i]);
		if (err)
			return err;
		done += nr;
	}
	return 0;
}

/* Copy what is live out of a closed file, whose frames end at head->end. */
static int copy_file(struct copier *copier, int fd, const struct meta_head *head)
{
	struct meta_reader reader;
	int err = 0;

	meta_reader_init(&reader, fd, head, head->end);
	while (!err && reader.off < head->end) {
		err = meta_reader_next(&reader);
		if (err == -EUCLEAN)
			log_error("metadata: %s.%llu: frame at offset %llu: %s; restore the store from a copy",
				  head->kind == META_JOURNAL ? "journal" : "checkpoint",
				  (unsigned long long)head->generation,
				  (unsigned long long)reader.off, reader.what);
		if (!err)
			err = copy_frame(copier, &reader);
	}
	meta_reader_free(&reader);
	return err;
}

static int copy_checkpoint(struct copier *copier, u64 generation)
{
	struct meta *meta = copier->meta;
	char name[META_NAME_BYTES];
	struct meta_head head;
	size_t got;
	int fd, err;

	if (generation == 1)
		return 0;
	meta_name(name, META_CHECKPOINT, generation, false);
	err = meta_open_file(meta->dir_fd, name, O_RDONLY, &fd);
	if (err)
		return err;
	err = meta_pread(fd, &head, sizeof(head), 0, &got);
	if (!err && (got != sizeof(head) || meta_head_wrong(&head) ||
		     head.kind != META_CHECKPOINT || head.store != meta->store ||
		     head.generation != generation))
		err = -EUCLEAN;
	if (!err)
		err = copy_file(copier, fd, &head);
	meta_close_fd(&fd);
	return err;
}

static int copy_journal(struct copier *copier)
{
	const struct meta_journal *old = &copier->meta->old;
	struct meta_head head = {
		.kind = META_JOURNAL,
		.store = copier->meta->store,
		.generation = old->generation,
		.base_seq = old->base_seq,
		.base_serial = old->base_serial,
		.end = old->end,
	};

	return copy_file(copier, old->fd, &head);
}

/* Whether the copy accounts for every key that there was at the turn. */
static int copier_check(struct copier *copier)
{
	struct meta *meta = copier->meta;
	u64 keys, replaced;

	lock_acquire(&meta->lock);
	keys = meta->old_keys;
	replaced = meta->old_replaced;
	lock_release(&meta->lock);
	if (copier->head.nr_records <= keys && copier->head.nr_records + replaced >= keys)
		return 0;
	log_error("metadata: a checkpoint of %llu records for %llu keys, %llu of them replaced, is not used",
		  (unsigned long long)copier->head.nr_records, (unsigned long long)keys,
		  (unsigned long long)replaced);
	return -EUCLEAN;
}

/* The head comes last: a file whose head is valid is complete. */
static int copier_finish(struct copier *copier)
{
	_Alignas(8) u8 block[META_BLOCK] = {0};
	int err;

	err = copier_flush(copier);
	if (!err)
		err = copier_check(copier);
	if (err)
		return err;
	meta_head_seal(&copier->head);
	memcpy(block, &copier->head, sizeof(copier->head));
	err = meta_pwrite(copier->fd, block, META_BLOCK, 0);
	meta_count_written(copier->meta, META_BLOCK);
	return err ? err : meta_sync_all(copier->fd);
}

/* Read the new file back from the disk, not from the page cache. */
static int copier_verify(struct copier *copier)
{
	struct meta_reader reader;
	struct meta_head head;
	size_t got;
	int err;

	posix_fadvise(copier->fd, 0, 0, POSIX_FADV_DONTNEED);
	err = meta_pread(copier->fd, &head, sizeof(head), 0, &got);
	if (err)
		return err;
	if (got != sizeof(head) || memcmp(&head, &copier->head, sizeof(head)))
		return -EUCLEAN;
	meta_reader_init(&reader, copier->fd, &head, head.end);
	while (!err && reader.off < head.end)
		err = meta_reader_next(&reader);
	if (!err && (reader.number != head.nr_frames || reader.nr_records != head.nr_records ||
		     reader.chain != head.chain))
		err = -EUCLEAN;
	if (err == -EUCLEAN)
		log_error("metadata: checkpoint.%llu.tmp does not read back as written; check the disk",
			  (unsigned long long)head.generation);
	meta_reader_free(&reader);
	return err;
}

static int copier_publish(struct copier *copier, const char *tmp)
{
	struct meta *meta = copier->meta;
	u64 generation = copier->head.generation;
	char name[META_NAME_BYTES];
	int err;

	meta_name(name, META_CHECKPOINT, generation, false);
	err = meta_rename(meta->dir_fd, tmp, name);
	if (!err)
		err = meta_sync_all(meta->dir_fd);
	if (err)
		return err;
	lock_acquire(&meta->lock);
	meta->checkpoint_generation = generation;
	meta->checkpoint_bytes = copier->head.end;
	meta->stats.checkpoints++;
	meta->retry_at = 0;
	lock_release(&meta->lock);
	return 0;
}

static int copier_run(struct copier *copier)
{
	struct meta *meta = copier->meta;
	char tmp[META_NAME_BYTES];
	int err;

	meta_name(tmp, META_CHECKPOINT, copier->head.generation, true);
	err = meta_open_file(meta->dir_fd, tmp, O_RDWR | O_CREAT | O_TRUNC, &copier->fd);
	if (err)
		return err;
	copier->buf = meta_realloc(NULL, BUF_BYTES);
	if (!copier->buf)
		err = -ENOMEM;
	if (!err)
		err = copy_checkpoint(copier, copier->head.generation - 1);
	if (!err)
		err = copy_journal(copier);
	if (!err)
		err = copier_finish(copier);
	if (!err)
		err = copier_verify(copier);
	if (!err)
		err = copier_publish(copier, tmp);
	if (err)
		unlinkat(meta->dir_fd, tmp, 0);
	free(copier->buf);
	meta_close_fd(&copier->fd);
	return err;
}

/* The closed journal is in the new checkpoint: let go of it. */
static void drop_old(struct meta *meta)
{
	char name[META_NAME_BYTES];
	u64 generation;
	int fd;

	lock_acquire(&meta->lock);
	generation = meta->old.generation;
	fd = meta->old.fd;
	meta->old.fd = -1;
	lock_release(&meta->lock);
	meta_close_fd(&fd);
	for (int kind = META_JOURNAL; kind <= META_CHECKPOINT; kind++) {
		meta_name(name, kind, generation, false);
		unlinkat(meta->dir_fd, name, 0);
	}
}

static bool may_retry(int err)
{
	return err == -ENOSPC || err == -ENOMEM || err == -ECANCELED || err == -EMFILE ||
	       err == -ENFILE;
}

/* Copy the closed generation. No lock held. */
static int checkpoint_copy(struct meta *meta)
{
	struct copier copier = {
		.meta = meta,
		.fd = -1,
		.len = sizeof(struct meta_frame),
		.head = {
			.kind = META_CHECKPOINT,
			.store = meta->store,
			.generation = meta->old.generation + 1,
			.base_seq = meta->old.seq,
			.base_serial = meta->old.serial,
			.seq = meta->old.seq,
			.serial = meta->old.serial,
			.end = META_CHECKPOINT_START,
			.chain = meta->store,
		},
	};
	int err = copier_run(&copier);

	if (!err)
		drop_old(meta);
	else if (!may_retry(err))
		err = meta_fail(meta, "writing a checkpoint", err);
	return err;
}

/* Ask the commit thread to close the journal and wait for it. Lock held, dropped meanwhile. */
static int ask_rotate(struct meta *meta)
{
	meta->want_rotate = true;
	waitq_wake_all(&meta->work);
	while (meta->want_rotate)
		waitq_wait(&meta->checkpoint_work, &meta->lock);
	return meta->rotate_err;
}

static u64 journal_bytes(const struct meta *meta)
{
	return meta->cur.end - META_JOURNAL_START;
}

static u64 threshold(const struct meta *meta)
{
	return max(meta->opts.checkpoint_bytes, meta->index.live_bytes / 2);
}

bool meta_checkpoint_due(const struct meta *meta)
{
	u64 bytes = journal_bytes(meta);

	if (meta->err || bytes < meta->retry_at)
		return false;
	return meta->old.fd >= 0 || bytes > threshold(meta);
}

/* One turn: finish a closed generation, or close the current one and copy it. Lock held. */
static int checkpoint_turn(struct meta *meta)
{
	int err = 0;

	if (meta->old.fd < 0) {
		if (!journal_bytes(meta))
			return 0;
		err = ask_rotate(meta);
	}
	if (err)
		return err;
	lock_release(&meta->lock);
	err = checkpoint_copy(meta);
	lock_acquire(&meta->lock);
	return err;
}

static void checkpoint_serve(struct meta *meta)
{
	u64 ticket = meta->tickets;
	bool again = meta->old.fd >= 0 && ticket > meta->served;
	int err = checkpoint_turn(meta);

	if (!err && again)
		err = checkpoint_turn(meta);
	if (err)
		meta->retry_at = journal_bytes(meta) + max(MIB(1), threshold(meta) / 8);
	if (err && !meta->err && err != -ECANCELED)
		log_warn("metadata: checkpoint put off: %s", strerror(-err));
	meta->served = ticket;
	meta->served_err = err;
	waitq_wake_all(&meta->done);
}

void *meta_checkpoint_main(void *arg)
{
	struct meta *meta = arg;

	lock_acquire(&meta->lock);
	while (meta->stop == META_RUN) {
		if (meta_journal_wants_space(meta))
			meta_journal_extend(meta);
		else if (meta->tickets > meta->served || meta_checkpoint_due(meta))
			checkpoint_serve(meta);
		else
			waitq_wait(&meta->checkpoint_work, &meta->lock);
	}
	lock_release(&meta->lock);
	return NULL;
}
