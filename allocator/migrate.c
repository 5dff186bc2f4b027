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
#include "allocator/base/clock.h"
#include "allocator/base/err.h"
#include "allocator/base/fault.h"
#include "allocator/base/hash.h"
#include "allocator/base/log.h"
#include "allocator/pool_types.h"

#define MOVE_STEP_BYTES	 MIB(4) /* submitted at once: the next step's checksums overlap with it */

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

static int batch_init(struct pool *pool, struct move_batch *batch, const u32 *ids,
		      unsigned int nr)
{
	*batch = (struct move_batch){
		.moves = calloc(nr, sizeof(*batch->moves)),
		.ios = calloc(nr, sizeof(struct tier_io *)),
		.nr = nr,
	};
	if (!batch->moves || !batch->ios || fault_point(FAULT_MEMORY)) {
		free(batch->moves);
		free(batch->ios);
		return -ENOMEM;
	}
	lock_init(&batch->lock, LOCK_LEAF);
	waitq_init(&batch->wait);
	for (unsigned int i = 0; i < nr; i++) {
		const struct block *b = pool_block(pool, ids[i]);

		batch->moves[i].id = ids[i];
		batch->moves[i].sealed = b->flags & BLOCK_SEALED;
		batch->moves[i].named = b->ref;
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

/* Start the transfer of every move in [@from, @to) that has no error yet. No lock held. */
static void batch_submit(struct pool *pool, struct move_batch *batch, enum tier_op op,
			 unsigned int from, unsigned int to)
{
	struct tier_io **ios = batch->ios + from;
	unsigned int nr = 0;
	int err;

	for (unsigned int i = from; i < to; i++) {
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
		ios[nr++] = &m->io;
	}
	if (!nr)
		return;
	lock_acquire(&batch->lock);
	batch->pending += nr;
	lock_release(&batch->lock);
	err = tier_submit(pool->tier[IN_NVME], ios, nr);
	for (unsigned int i = 0; err && i < nr; i++)
		move_done(ios[i], err);
}

static void batch_wait(struct move_batch *batch)
{
	lock_acquire(&batch->lock);
	while (batch->pending)
		waitq_wait(&batch->wait, &batch->lock);
	lock_release(&batch->lock);
}

/* ---- out ---- */

/* Checksum before it leaves; a sealed block's must be what it was sealed with. */
static void check_out(struct pool *pool, struct move *m)
{
	struct block *b = pool_block(pool, m->id);

	m->csum = hash_bytes(block_addr(pool, b), block_stride(b));
	if (m->sealed && m->csum != b->csum) {
		m->err = kvc_err(-EBADMSG, dram_corrupt);
		log_error("block %u changed in memory after it was sealed: not written", m->id);
	}
}

/* Checksum and submit step by step, so that the disk is busy meanwhile. No lock held. */
static void send_out(struct pool *pool, struct move_batch *batch)
{
	unsigned int from = 0;
	u64 bytes = 0;

	for (unsigned int i = 0; i < batch->nr; i++) {
		check_out(pool, &batch->moves[i]);
		bytes += block_stride(pool_block(pool, batch->moves[i].id));
		if (bytes < MOVE_STEP_BYTES && i + 1 < batch->nr)
			continue;
		batch_submit(pool, batch, TIER_WRITE, from, i + 1);
		from = i + 1;
		bytes = 0;
	}
}

/* Start writing @nr blocks. Lock held, dropped meanwhile. On error their I/O has ended. */
static int out_begin(struct pool *pool, struct move_batch *batch, const u32 *ids, unsigned int nr)
{
	int err = batch_init(pool, batch, ids, nr);

	if (err) {
		for (unsigned int i = 0; i < nr; i++)
			block_io_end(pool, ids[i]);
		return err;
	}
	lock_release(&pool->lock);
	send_out(pool, batch);
	lock_acquire(&pool->lock);
	return 0;
}

/* Its only copy is not what it should be: no data from now on. */
static void damaged(struct pool *pool, u32 id)
{
	struct block *b = pool_block(pool, id);

	pool->checksum_errors++;
	prefix_remove(pool, id);
	if (b->ref)
		b->flags |= BLOCK_BAD;
}

static void finish_out(struct pool *pool, struct move *m)
{
	struct block *b = pool_block(pool, m->id);

	if (!m->err) {
		b->csum = m->csum;
		b->flags |= BLOCK_NVME_VALID;
		/* A cached block's copy is of use after a restart only with a record. */
		if (b->flags & BLOCK_INDEXED && !(b->flags & BLOCK_RECORDED))
			(void)block_stale(pool, m->id);
	} else if (m->err == -EBADMSG) {
		damaged(pool, m->id);
		if (!b->pin) /* else reclaim does, when those who read it let go */
			block_release_ext(pool, m->id, IN_DRAM);
	} else {
		b->last_use = ++pool->clock; /* where it is to go may be bad: others first */
	}
	block_io_end(pool, m->id);
}

/* Wait for what out_begin() started. Lock held, dropped meanwhile. Return: first error. */
static int out_end(struct pool *pool, struct move_batch *batch)
{
	int err = 0;

	lock_release(&pool->lock);
	batch_wait(batch);
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < batch->nr; i++) {
		if (batch->moves[i].err && !err)
			err = batch->moves[i].err == -EBADMSG ? -EIO : batch->moves[i].err;
		finish_out(pool, &batch->moves[i]);
	}
	batch_free(batch);
	return err;
}

int migrate_out(struct pool *pool, const u32 *ids, unsigned int nr)
{
	struct move_batch batch;
	int err = out_begin(pool, &batch, ids, nr);

	return err ? err : out_end(pool, &batch);
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
			  m->named ? "reads of the file that names it fail with EIO"
				   : "dropped from the cache");
	}
}

static void finish_in(struct pool *pool, struct move *m)
{
	struct block *b = pool_block(pool, m->id);

	if (!m->err) {
		b->flags |= BLOCK_DRAM_VALID;
		warm_content(pool, m->id);
		b->last_use = ++pool->clock; /* wanted soon: not the coldest any more */
		pool->promoted++;
	} else {
		if (m->err == -EBADMSG)
			damaged(pool, m->id);
		block_release_ext(pool, m->id, IN_DRAM);
	}
	block_io_end(pool, m->id);
}

void migrate_in(struct pool *pool, const u32 *ids, unsigned int nr)
{
	struct move_batch batch;

	if (batch_init(pool, &batch, ids, nr)) {
		for (unsigned int i = 0; i < nr; i++) {
			block_release_ext(pool, ids[i], IN_DRAM);
			block_io_end(pool, ids[i]);
		}
		return;
	}
	lock_release(&pool->lock);
	batch_submit(pool, &batch, TIER_READ, 0, nr);
	batch_wait(&batch);
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
	bool leaves = domain_at(pool, old) != domain_at(pool, to);

	lock_release(&pool->lock);
	memcpy(pool->dram_base + to, from, block_stride(b));
	if (leaves) /* who may look there now may not see it */
		memset(from, 0, block_stride(b));
	lock_acquire(&pool->lock);
	warm_forget(pool, id);
	b->ext[IN_DRAM] = to;
	warm_content(pool, id);
	dram_free(pool, old, block_stride(b));
	block_io_end(pool, id);
}

/* ---- on request ---- */

/** struct collect - a pass over a list of blocks that have to be written. */
struct collect {
	const struct block_id *ids;
	unsigned int nr, next;	/* ids[next] is looked at next */
	unsigned int busy;	/* first one that somebody moves just now, nr: none */
	bool bad;		/* met one that has no good copy */
};

/* The next batch of what still has to be written. */
static unsigned int collect_out(struct pool *pool, struct collect *c, u32 *batch)
{
	unsigned int n = 0;
	u64 bytes = 0;

	for (; c->next < c->nr && n < MOVE_BATCH && bytes < MOVE_BATCH_BYTES; c->next++) {
		u32 id = c->ids[c->next].v;
		struct block *b;

		if (c->next % BREATHE == BREATHE - 1)
			pool_breathe(pool);
		if (BLOCK_IS_NONE(c->ids[c->next]))
			continue;
		b = pool_block(pool, id);
		if (b->flags & BLOCK_IO) {
			c->busy = min(c->busy, c->next);
		} else if ((b->flags & (BLOCK_BAD | BLOCK_NVME_VALID)) == BLOCK_BAD) {
			c->bad = true;
		} else if (b->flags & BLOCK_DRAM_VALID &&
			   !(b->flags & (BLOCK_NVME_VALID | BLOCK_FILLING))) {
			block_io_begin(pool, id);
			batch[n++] = id;
			bytes += block_stride(b);
		}
	}
	return n;
}

/* One pass; a batch is made ready while the one before is on its way. Lock held, dropped meanwhile. */
static int write_pass(struct pool *pool, struct collect *c)
{
	struct move_batch batches[2];
	u32 ids[MOVE_BATCH];
	unsigned int n, cur = 0;
	bool under_way = false;
	int err = 0, err_before;

	do {
		n = err ? 0 : collect_out(pool, c, ids);
		if (n) {
			err = out_begin(pool, &batches[cur], ids, n);
			if (err)
				n = 0;
		}
		err_before = under_way ? out_end(pool, &batches[!cur]) : 0;
		if (!err)
			err = err_before;
		under_way = n;
		cur = !cur;
	} while (under_way);
	return err;
}

/* Blocks that nobody wrote to get their zeros. Lock held, dropped meanwhile. */
static int fill_empty(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	int err = 0;

	for (unsigned int i = 0; i < nr && !err; i++) {
		if (i % BREATHE == BREATHE - 1)
			pool_breathe(pool);
		if (!BLOCK_IS_NONE(ids[i]) && pool_block(pool, ids[i].v)->flags & BLOCK_EMPTY)
			err = block_materialise(pool, ids[i].v);
	}
	return err;
}

int pool_writeback(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	struct collect c = {.ids = ids, .nr = nr, .busy = nr};
	int err;

	if (pool_volatile(pool))
		return 0;
	lock_assert_none();
	lock_acquire(&pool->lock);
	err = fill_empty(pool, ids, nr);
	if (!err)
		err = write_pass(pool, &c);
	while (!err && c.busy < nr) {
		block_wait_io(pool, ids[c.busy].v);
		c.next = c.busy;
		c.busy = nr;
		err = write_pass(pool, &c);
	}
	lock_release(&pool->lock);
	return !err && c.bad ? kvc_err(-EIO, block_bad_writeback) : err;
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
		if (b->pin || b->class == CLASS_PINNED || b->flags & BLOCK_IO ||
		    !(b->flags & BLOCK_NVME_VALID))
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
