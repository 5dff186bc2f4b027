/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Migration: the only code that changes where a block's bytes are.
 *
 * reclaim.c and the callers of pool.h decide; this file executes. A transfer runs with BLOCK_IO set
 * and no lock held: batches are submitted whole, so that the tier can merge neighbours and keep its
 * queue full, and waited for together.
 *
 *   out:  checksum (taken at the seal; checked before it leaves, taken now for an open block) → write
 *   in:   read → checksum compared → visible. A mismatch is read once more, then the copy is dropped:
 *         an unnamed block is forgotten, a named one is BAD and every read of it -EIO.
 */
#include <stdlib.h>
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/base/hash.h"
#include "allocator/base/log.h"
#include "allocator/pool_types.h"

#define MOVE_BATCH_BYTES MIB(32)
#define MOVE_BATCH	 512	/* blocks */

struct move_batch {
	struct lock lock;	/* LOCK_LEAF */
	struct waitq wait;
	unsigned int pending;	/* protected by lock */
	struct move *moves;
	struct tier_io **ios;
	unsigned int nr;
};

static void move_done(struct tier_io *io, int err)
{
	struct move *move = container_of(io, struct move, io);
	struct move_batch *batch = move->batch;

	move->err = err;
	lock_acquire(&batch->lock);
	if (!--batch->pending)
		waitq_wake_all(&batch->wait);
	lock_release(&batch->lock);
}

static int batch_init(struct move_batch *batch, const u32 *ids, unsigned int nr)
{
	*batch = (struct move_batch){
		.moves = calloc(nr, sizeof(*batch->moves)),
		.ios = calloc(nr, sizeof(struct tier_io *)),
		.nr = nr,
	};
	if (!batch->moves || !batch->ios) {
		free(batch->moves);
		free(batch->ios);
		return -ENOMEM;
	}
	lock_init(&batch->lock, LOCK_LEAF);
	waitq_init(&batch->wait);
	for (unsigned int i = 0; i < nr; i++) {
		batch->moves[i].id = ids[i];
		batch->moves[i].batch = batch;
	}
	return 0;
}

static void batch_free(struct move_batch *batch)
{
	waitq_destroy(&batch->wait);
	lock_destroy(&batch->lock);
	free(batch->moves);
	free(batch->ios);
}

/* Transfer every move that has no error yet, and wait. No lock held. */
static void batch_run(struct pool *pool, struct move_batch *batch, enum tier_op op)
{
	unsigned int nr = 0;
	int err;

	for (unsigned int i = 0; i < batch->nr; i++) {
		struct move *m = &batch->moves[i];
		struct block *b = pool_block(pool, m->id);

		if (m->err)
			continue;
		m->iov = (struct iovec){block_addr(pool, b), block_stride(b)};
		m->io = (struct tier_io){.op = op,
					 .off = b->ext[IN_NVME],
					 .iov = &m->iov,
					 .nr_iov = 1,
					 .done = move_done};
		batch->ios[nr++] = &m->io;
	}
	if (!nr)
		return;
	batch->pending = nr;
	err = tier_submit(pool->tier[IN_NVME], batch->ios, nr);
	lock_acquire(&batch->lock);
	while (!err && batch->pending)
		waitq_wait(&batch->wait, &batch->lock);
	lock_release(&batch->lock);
	for (unsigned int i = 0; err && i < nr; i++)
		container_of(batch->ios[i], struct move, io)->err = err;
}

/* ---- out ---- */

/* Checksum before it leaves; a sealed block's must be what it was sealed with. */
static u64 check_out(struct pool *pool, struct move *m)
{
	struct block *b = pool_block(pool, m->id);
	u64 csum = hash_bytes(block_addr(pool, b), block_stride(b));

	if (b->flags & BLOCK_SEALED && csum != b->csum) {
		m->err = kvc_err(-EIO, dram_corrupt);
		log_error("block %u changed in memory after it was sealed: not written", m->id);
	}
	return csum;
}

static void finish_out(struct pool *pool, struct move *m, u64 csum)
{
	struct block *b = pool_block(pool, m->id);

	if (!m->err) {
		b->csum = csum;
		b->flags |= BLOCK_NVME_VALID;
		/* A cached block's copy is of use after a restart only with a record. */
		if (b->flags & BLOCK_INDEXED && !(b->flags & BLOCK_RECORDED))
			block_stale(pool, m->id);
	}
	block_io_end(pool, m->id);
}

int migrate_out(struct pool *pool, const u32 *ids, unsigned int nr)
{
	struct move_batch batch;
	int err = batch_init(&batch, ids, nr);
	u64 *csums = kvc_alloc_array(nr, sizeof(*csums));

	if (err || !csums) {
		for (unsigned int i = 0; i < nr; i++)
			block_io_end(pool, ids[i]);
		if (!err)
			batch_free(&batch);
		free(csums);
		return -ENOMEM;
	}
	lock_release(&pool->lock);
	for (unsigned int i = 0; i < nr; i++)
		csums[i] = check_out(pool, &batch.moves[i]);
	batch_run(pool, &batch, TIER_WRITE);
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < nr; i++) {
		if (batch.moves[i].err && !err)
			err = batch.moves[i].err;
		finish_out(pool, &batch.moves[i], csums[i]);
	}
	batch_free(&batch);
	free(csums);
	return err;
}

/* ---- in ---- */

static bool verify(struct pool *pool, struct block *b)
{
	return hash_bytes(block_addr(pool, b), block_stride(b)) == b->csum;
}

/* Compare checksums; a mismatch is read once more: the wire may have been at fault. */
static void check_in(struct pool *pool, struct move *m)
{
	struct block *b = pool_block(pool, m->id);

	if (m->err || verify(pool, b))
		return;
	m->err = tier_rw_sync(pool->tier[IN_NVME], TIER_READ, b->ext[IN_NVME],
			      block_addr(pool, b), block_stride(b));
	if (!m->err && !verify(pool, b)) {
		m->err = kvc_err(-EBADMSG, nvme_corrupt);
		log_error("block %u: checksum mismatch at nvme offset %llu, %u bytes: %s", m->id,
			  (unsigned long long)b->ext[IN_NVME], b->bytes,
			  b->ref ? "reads of the file that names it fail with EIO"
				 : "dropped from the cache");
	}
}

static void finish_in(struct pool *pool, struct move *m)
{
	struct block *b = pool_block(pool, m->id);

	if (!m->err) {
		b->flags |= BLOCK_DRAM_VALID;
		pool->promoted++;
	} else {
		if (m->err == -EBADMSG) {
			pool->checksum_errors++;
			prefix_remove(pool, m->id);
			if (b->ref)
				b->flags |= BLOCK_BAD;
		}
		block_release_ext(pool, m->id, IN_DRAM);
	}
	block_io_end(pool, m->id);
}

void migrate_in(struct pool *pool, const u32 *ids, unsigned int nr)
{
	struct move_batch batch;

	if (batch_init(&batch, ids, nr)) {
		for (unsigned int i = 0; i < nr; i++) {
			block_release_ext(pool, ids[i], IN_DRAM);
			block_io_end(pool, ids[i]);
		}
		return;
	}
	lock_release(&pool->lock);
	batch_run(pool, &batch, TIER_READ);
	for (unsigned int i = 0; i < nr; i++)
		check_in(pool, &batch.moves[i]);
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < nr; i++)
		finish_in(pool, &batch.moves[i]);
	batch_free(&batch);
}

/* ---- inside DRAM ---- */

void migrate_shift(struct pool *pool, u32 id, u64 to)
{
	struct block *b = pool_block(pool, id);
	u8 *from = block_addr(pool, b);
	u64 old = b->ext[IN_DRAM];

	lock_release(&pool->lock);
	memcpy(pool->dram_base + to, from, block_stride(b));
	lock_acquire(&pool->lock);
	b->ext[IN_DRAM] = to;
	extents_free(pool->room[IN_DRAM], old, block_stride(b));
	block_io_end(pool, id);
}

/* ---- on request ---- */

/* Collect what still has to be written, up to a batch; *wait: a block that somebody else moves. */
static unsigned int collect_out(struct pool *pool, const struct block_id *ids, unsigned int nr,
				u32 *batch, u32 *wait)
{
	unsigned int n = 0;
	u64 bytes = 0;

	*wait = UINT32_MAX;
	for (unsigned int i = 0; i < nr && n < MOVE_BATCH && bytes < MOVE_BATCH_BYTES; i++) {
		struct block *b;

		if (BLOCK_IS_NONE(ids[i]))
			continue;
		b = pool_block(pool, ids[i].v);
		if (b->flags & BLOCK_IO) {
			*wait = ids[i].v;
		} else if (b->flags & BLOCK_DRAM_VALID && !(b->flags & BLOCK_NVME_VALID)) {
			block_io_begin(pool, ids[i].v);
			batch[n++] = ids[i].v;
			bytes += block_stride(b);
		}
	}
	return n;
}

int pool_writeback(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	u32 batch[MOVE_BATCH], wait;
	unsigned int n;
	int err = 0;

	if (pool_volatile(pool))
		return 0;
	lock_assert_none();
	lock_acquire(&pool->lock);
	for (;;) {
		n = collect_out(pool, ids, nr, batch, &wait);
		if (n)
			err = migrate_out(pool, batch, n);
		else if (wait != UINT32_MAX)
			block_wait_io(pool, wait);
		else
			break;
		if (err)
			break;
	}
	lock_release(&pool->lock);
	return err;
}

int pool_demote(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	int err = pool_writeback(pool, ids, nr);

	if (err || pool_volatile(pool))
		return err;
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < nr; i++) {
		struct block *b;

		if (BLOCK_IS_NONE(ids[i]))
			continue;
		b = pool_block(pool, ids[i].v);
		if (b->pin || b->flags & BLOCK_IO || !(b->flags & BLOCK_NVME_VALID))
			continue;
		if (b->flags & BLOCK_DRAM_VALID)
			pool->demoted++;
		block_release_ext(pool, ids[i].v, IN_DRAM);
		block_requeue(pool, ids[i].v);
	}
	lock_release(&pool->lock);
	return 0;
}

int pool_flush(struct pool *pool)
{
	u64 need;
	int err;

	if (pool_volatile(pool))
		return 0;
	lock_acquire(&pool->lock);
	need = pool->flush_started + 1; /* one that starts after our writes completed */
	while (pool->flush_done < need) {
		if (pool->flushing) {
			waitq_wait(&pool->flush_wait, &pool->lock);
			continue;
		}
		pool->flushing = true;
		pool->flush_started++;
		lock_release(&pool->lock);
		err = tier_flush_sync(pool->tier[IN_NVME]);
		lock_acquire(&pool->lock);
		pool->flushing = false;
		pool->flush_done = pool->flush_started;
		if (err)
			pool->flush_err = err; /* what the device lost is unknown: for good */
		waitq_wake_all(&pool->flush_wait);
	}
	err = pool->flush_err ? kvc_err(pool->flush_err, flush_failed) : 0;
	lock_release(&pool->lock);
	return err;
}

/* ---- prefetch ---- */

void pool_prefetch(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	if (pool_volatile(pool))
		return;
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < nr; i++) {
		struct block *b;

		if (BLOCK_IS_NONE(ids[i]))
			continue;
		if (pool->hint_head - pool->hint_tail == PREFETCH_QUEUE)
			break;
		b = pool_block(pool, ids[i].v);
		if (b->flags & (BLOCK_IO | BLOCK_EMPTY | BLOCK_DRAM_VALID | BLOCK_BAD))
			continue;
		pool->hints[pool->hint_head++ % PREFETCH_QUEUE] =
			(struct idgen){ids[i].v, b->gen};
	}
	if (pool->hint_head != pool->hint_tail)
		waitq_wake_all(&pool->load_wait);
	lock_release(&pool->lock);
}

/* Take hints that are still worth loading and for which there is room. Lock held. */
static unsigned int collect_in(struct pool *pool, u32 *batch)
{
	unsigned int n = 0;
	u64 bytes = 0;

	while (pool->hint_tail != pool->hint_head && n < MOVE_BATCH && bytes < MOVE_BATCH_BYTES / 2) {
		struct idgen hint = pool->hints[pool->hint_tail++ % PREFETCH_QUEUE];
		struct block *b = pool_block(pool, hint.id);

		if (b->gen != hint.gen || !(b->flags & BLOCK_NVME_VALID) ||
		    b->flags & (BLOCK_IO | BLOCK_DRAM_VALID | BLOCK_BAD))
			continue;
		block_io_begin(pool, hint.id);
		if (dram_room(pool, hint.id, EXTENT_NONE)) {
			block_io_end(pool, hint.id);
			continue;
		}
		batch[n++] = hint.id;
		bytes += block_stride(b);
	}
	return n;
}

void *loader_thread(void *arg)
{
	struct pool *pool = arg;
	u32 batch[MOVE_BATCH];
	unsigned int n;

	lock_acquire(&pool->lock);
	while (!pool->stop) {
		n = collect_in(pool, batch);
		if (n)
			migrate_in(pool, batch, n);
		else
			waitq_wait(&pool->load_wait, &pool->lock);
	}
	lock_release(&pool->lock);
	return NULL;
}
