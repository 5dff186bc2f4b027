/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is to come to DRAM, and in which order.
 *
 *	demand	somebody waits for these bytes: read at once, by who needs them
 *	hints	what a sequential reader will want next. A ring; when it is full, hints are lost
 *	loads	prefetches with a deadline, of which somebody wants to hear. None is lost
 *
 * Loader threads serve hints and loads, a batch at a time, so that whatever is more urgent waits for a
 * batch and not for a sequence. Loads go by deadline. One that has time gives way to readers: while one
 * waits for the disk, or hints are there, no batch of it begins. It stops giving way at its
 * deadline, or after LOAD_PATIENCE_MS, whichever is first: else busy readers could starve it.
 *
 * A load has ended when each of its blocks was seen in DRAM. What somebody else is moving is looked at
 * again at the end. Blocks are noted with their generations, not named: a load keeps nothing alive.
 */
#include <stdlib.h>
#include "allocator/base/bug.h"
#include "allocator/base/clock.h"
#include "allocator/base/err.h"
#include "allocator/pool_types.h"

#define LOAD_PATIENCE_MS 1000u
#define LOAD_BATCH_BYTES (MOVE_BATCH_BYTES / 2)
#define NSEC_PER_MSEC	 1000000u

/* Has its bytes in NVMe alone, and nobody is at it. */
static bool loadable(const struct block *b)
{
	return b->flags & BLOCK_NVME_VALID &&
	       !(b->flags & (BLOCK_IO | BLOCK_DRAM_VALID | BLOCK_BAD));
}

/* ---- demand ---- */

void demand_begin(struct pool *pool)
{
	pool->nr_demand++;
}

void demand_end(struct pool *pool)
{
	if (!--pool->nr_demand && !list_empty(&pool->loads))
		waitq_wake_all(&pool->load_wait);
}

void pool_fetch(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	u64 start = clock_mono_ns();
	u32 batch[MOVE_BATCH];
	unsigned int n = 0;

	if (pool_volatile(pool))
		return;
	lock_assert_none();
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < nr && n < MOVE_BATCH; i++) {
		if (BLOCK_IS_NONE(ids[i]) || !loadable(pool_block(pool, ids[i].v)))
			continue;
		block_io_begin(pool, ids[i].v);
		if (dram_room_easy(pool, ids[i].v)) {
			block_io_end(pool, ids[i].v);
			break;
		}
		batch[n++] = ids[i].v;
	}
	demand_begin(pool);
	if (n)
		migrate_in(pool, batch, n);
	for (unsigned int i = 0; i < nr; i++)
		if (!BLOCK_IS_NONE(ids[i]))
			block_wait_io(pool, ids[i].v);
	demand_end(pool);
	pool->stall_ns += clock_mono_ns() - start;
	pool->reads_cold += n;
	lock_release(&pool->lock);
}

/* ---- hints ---- */

static bool hints_left(const struct pool *pool)
{
	return pool->hint_head != pool->hint_tail;
}

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
	if (hints_left(pool))
		waitq_wake_all(&pool->load_wait);
	lock_release(&pool->lock);
}

/** struct intake - a batch of blocks that are to be read; they have BLOCK_IO and room. */
struct intake {
	u32 ids[MOVE_BATCH];
	unsigned int nr;
	u64 bytes;
};

static bool intake_full(const struct intake *in)
{
	return in->nr == MOVE_BATCH || in->bytes >= LOAD_BATCH_BYTES;
}

/*
 * Take a loadable block in. Room for the first one may have to be made; the batch ends where more would
 * have to be: who wants to read the blocks in it must not wait for that. Lock held, dropped meanwhile
 * for the first one. Return: 0, -ENOSPC (the batch ends before this one), -ENOMEM (none for the first).
 */
static int intake_add(struct pool *pool, struct intake *in, u32 id)
{
	int err;

	block_io_begin(pool, id);
	err = in->nr ? dram_room_easy(pool, id) : dram_room(pool, id, EXTENT_NONE);
	if (err) {
		block_io_end(pool, id);
		return in->nr ? -ENOSPC : -ENOMEM;
	}
	in->ids[in->nr++] = id;
	in->bytes += block_stride(pool_block(pool, id));
	return 0;
}

/* Bring in hints that are still worth it. Lock held, dropped meanwhile. */
static void serve_hints(struct pool *pool)
{
	struct intake in = {.nr = 0};

	while (hints_left(pool) && !intake_full(&in)) {
		struct idgen hint = pool->hints[pool->hint_tail++ % PREFETCH_QUEUE];
		const struct block *b = pool_block(pool, hint.id);

		if (b->gen != hint.gen || !loadable(b))
			continue;
		if (intake_add(pool, &in, hint.id) == -ENOSPC) {
			pool->hint_tail--;
			break;
		}
	}
	if (in.nr)
		migrate_in(pool, in.ids, in.nr);
}

/* ---- loads ---- */

static bool load_has_work(const struct pool_load *load)
{
	return load->next < load->nr || (load->again < load->nr && !load->threads);
}

static void load_insert(struct pool *pool, struct pool_load *load)
{
	struct list_head *at = pool->loads.prev;

	while (at != &pool->loads &&
	       list_entry(at, struct pool_load, link)->order_ns > load->order_ns)
		at = at->prev;
	list_add(&load->link, at);
	pool->nr_loads++;
	pool->load_blocks += load->nr;
}

/* The last one at it has let go. Lock held, dropped meanwhile; afterwards its owner may free it. */
static void load_end(struct pool *pool, struct pool_load *load)
{
	list_del(&load->link);
	pool->nr_loads--;
	pool->load_blocks -= load->nr;
	free(load->blocks);
	lock_release(&pool->lock);
	load->done(load, load->err);
	lock_acquire(&pool->lock);
	load->ended = true;
	waitq_wake_all(&pool->load_ended);
}

static void load_fail(struct pool_load *load, int err)
{
	if (!load->err)
		load->err = err;
}

/* What has to come at all. Lock held. */
static void load_note(struct pool *pool, struct pool_load *load, const struct block_id *ids,
		      unsigned int nr)
{
	for (unsigned int i = 0; i < nr; i++) {
		const struct block *b;

		if (BLOCK_IS_NONE(ids[i]))
			continue;
		b = pool_block(pool, ids[i].v);
		if (b->flags & BLOCK_IO || !(b->flags & (BLOCK_EMPTY | BLOCK_DRAM_VALID)))
			load->blocks[load->nr++] = (struct idgen){ids[i].v, b->gen};
	}
}

int pool_load_begin(struct pool *pool, struct pool_load *load, const struct block_id *ids,
		    unsigned int nr)
{
	u64 now = clock_mono_ns(), patience = LOAD_PATIENCE_MS * (u64)NSEC_PER_MSEC;
	bool full;

	*load = (struct pool_load){.deadline_ns = load->deadline_ns, .done = load->done};
	if (pool_volatile(pool) || !nr) {
		load->ended = true;
		load->done(load, 0);
		return 0;
	}
	load->order_ns = load->deadline_ns ? load->deadline_ns : UINT64_MAX;
	load->late_ns = min(load->order_ns, now + patience);
	load->blocks = kvc_alloc_array(nr, sizeof(*load->blocks));
	if (!load->blocks)
		return -ENOMEM;
	lock_acquire(&pool->lock);
	full = pool->nr_loads >= LOADS_MAX || nr > LOAD_BLOCKS_MAX - pool->load_blocks;
	if (!full) {
		load_note(pool, load, ids, nr);
		load->again = load->nr;
		load_insert(pool, load);
		if (load->nr)
			waitq_wake_all(&pool->load_wait);
		else
			load_end(pool, load);
	}
	lock_release(&pool->lock);
	if (!full)
		return 0;
	free(load->blocks);
	return kvc_err(-EAGAIN, prefetch_queue_full);
}

void pool_load_cancel(struct pool *pool, struct pool_load *load)
{
	lock_assert_none();
	lock_acquire(&pool->lock);
	if (!load->ended && (load->next < load->nr || load->again < load->nr)) {
		load->next = load->again = load->nr;
		load_fail(load, -ECANCELED);
		if (!load->threads)
			load_end(pool, load);
	}
	while (!load->ended)
		waitq_wait(&pool->load_ended, &pool->lock);
	lock_release(&pool->lock);
}

/* The next batch of a load. Lock held, dropped meanwhile. */
static void load_collect(struct pool *pool, struct pool_load *load, struct intake *in)
{
	u32 looked = 0;
	int err;

	while (load->next < load->nr && !intake_full(in) && looked++ < BREATHE) {
		u32 i = load->next++;
		const struct block *b = pool_block(pool, load->blocks[i].id);

		if (b->gen != load->blocks[i].gen || b->flags & BLOCK_DRAM_VALID)
			continue;
		if (b->flags & BLOCK_IO) {
			load->again = min(load->again, i);
			continue;
		}
		if (b->flags & BLOCK_BAD)
			load_fail(load, -EIO);
		if (!loadable(b))
			continue;
		err = intake_add(pool, in, load->blocks[i].id);
		if (err == -ENOSPC) {
			load->next = i;
			break;
		}
		if (err)
			load_fail(load, err);
	}
}

/* Look at what others were moving once more, as soon as the first of it is still. */
static void load_again(struct pool *pool, struct pool_load *load)
{
	u32 i = load->again;

	block_wait_io(pool, load->blocks[i].id);
	if (load->again == i) { /* else it was cancelled */
		load->next = i;
		load->again = load->nr;
	}
}

/* One step of a load. Lock held, dropped meanwhile. */
static void load_serve(struct pool *pool, struct pool_load *load)
{
	struct intake in = {.nr = 0};

	load->threads++;
	if (load->next < load->nr)
		load_collect(pool, load, &in);
	else
		load_again(pool, load);
	if (in.nr)
		migrate_in(pool, in.ids, in.nr);
	else
		pool_breathe(pool);
	for (unsigned int i = 0; i < in.nr; i++)
		if (!(pool_block(pool, in.ids[i])->flags & BLOCK_DRAM_VALID))
			load_fail(load, -EIO);
	load->threads--;
	if (load_has_work(load))
		waitq_wake_all(&pool->load_wait);
	else if (!load->threads)
		load_end(pool, load);
}

/*
 * The load whose turn it is. NULL: none; *@until is when there will be one whatever readers do,
 * UINT64_MAX: not known.
 */
static struct pool_load *load_pick(struct pool *pool, u64 *until)
{
	bool give_way = pool->nr_demand || hints_left(pool);
	u64 now = give_way ? clock_mono_ns() : 0;
	struct pool_load *load;

	*until = UINT64_MAX;
	list_for_each_entry (load, &pool->loads, link) {
		if (!load_has_work(load))
			continue;
		if (!give_way || now >= load->late_ns)
			return load;
		*until = min(*until, load->late_ns);
	}
	return NULL;
}

/* ---- threads ---- */

static void loader_sleep(struct pool *pool, u64 until)
{
	u64 now = clock_mono_ns();

	if (until == UINT64_MAX)
		waitq_wait(&pool->load_wait, &pool->lock);
	else if (until > now)
		(void)waitq_wait_ms(&pool->load_wait, &pool->lock,
				    div_round_up(until - now, NSEC_PER_MSEC));
}

void *loader_thread(void *arg)
{
	struct pool *pool = arg;
	struct pool_load *load;
	u64 until;

	lock_acquire(&pool->lock);
	while (!pool->stop) {
		load = load_pick(pool, &until);
		if (load)
			load_serve(pool, load);
		else if (hints_left(pool))
			serve_hints(pool);
		else
			loader_sleep(pool, until);
	}
	lock_release(&pool->lock);
	return NULL;
}
