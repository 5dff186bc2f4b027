/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks that clients map: pinned where they are, and told as places in pool files.
 *
 * A hold waits for one block while it has others. That cannot go round in a circle for good: holds
 * never have more than their share of DRAM, the rest of it keeps moving, and whoever gets no room
 * in the end gives up what it has.
 */
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/pool_types.h"

#define HOLD_PCT 80 /* of DRAM, for all mappings together */

u64 pool_hold_limit(struct pool *pool)
{
	return tier_size(pool->tier[IN_DRAM]) / 100 * HOLD_PCT;
}

static struct pool_place place_of(struct pool *pool, const struct block *b)
{
	return (struct pool_place){.file = 0, .off = b->ext[IN_DRAM]};
}

/* Would pinning @ids be more than mappings may have? Lock held. */
static bool over_limit(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	u64 more = 0;

	for (unsigned int i = 0; i < nr; i++) {
		const struct block *b = pool_block(pool, ids[i].v);

		more += b->pin ? 0 : block_stride(b);
	}
	return more && pool->pinned_bytes_now + more > pool_hold_limit(pool);
}

/* Pin and place those of @ids that are resident, up to the first that is not. Lock held. */
static unsigned int hold_resident(struct pool *pool, const struct block_id *ids, unsigned int nr,
				  struct pool_place *places)
{
	unsigned int i;

	for (i = 0; i < nr; i++) {
		const struct block *b = pool_block(pool, ids[i].v);

		KVC_BUG_ON(!(b->flags & BLOCK_LIVE));
		if (b->flags & (BLOCK_IO | BLOCK_BAD | BLOCK_EMPTY) ||
		    !(b->flags & BLOCK_DRAM_VALID))
			break;
		pool_pin_locked(pool, ids[i].v);
		places[i] = place_of(pool, b);
	}
	return i;
}

int pool_try_hold(struct pool *pool, const struct block_id *ids, unsigned int nr,
		  struct pool_place *places)
{
	unsigned int done = 0;
	int err = 0;

	lock_acquire(&pool->lock);
	if (over_limit(pool, ids, nr))
		err = kvc_err(-EAGAIN, hold_budget);
	else
		done = hold_resident(pool, ids, nr, places);
	lock_release(&pool->lock);
	if (!err && done == nr)
		return 0;
	pool_unhold(pool, ids, done);
	return -EAGAIN;
}

/* One block that is not resident, or EMPTY. */
static int hold_one(struct pool *pool, struct block_id id, struct pool_place *place)
{
	const void *addr;
	int err = pool_pin(pool, id, &addr);

	if (err)
		return err;
	lock_acquire(&pool->lock);
	if (!addr)
		err = block_materialise(pool, id.v);
	if (!err)
		*place = place_of(pool, pool_block(pool, id.v));
	lock_release(&pool->lock);
	if (err)
		pool_unpin(pool, &id, 1);
	return err;
}

int pool_hold(struct pool *pool, const struct block_id *ids, unsigned int nr,
	      struct pool_place *places)
{
	unsigned int done = 0, got;
	bool over;
	int err = 0;

	lock_assert_none();
	lock_acquire(&pool->lock);
	over = over_limit(pool, ids, nr);
	if (!over)
		done = hold_resident(pool, ids, nr, places);
	lock_release(&pool->lock);
	if (over)
		return kvc_err(-EAGAIN, hold_over_budget);
	while (done < nr && !err) {
		pool_fetch(pool, ids + done, nr - done);
		lock_acquire(&pool->lock);
		got = hold_resident(pool, ids + done, nr - done, places + done);
		lock_release(&pool->lock);
		done += got;
		if (got || done == nr)
			continue;
		err = hold_one(pool, ids[done], &places[done]);
		done += !err;
	}
	if (err)
		pool_unhold(pool, ids, done);
	return err;
}

void pool_unhold(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	pool_unpin(pool, ids, nr);
}

int pool_fill_begin(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	int err = 0;

	lock_assert_none();
	for (unsigned int i = 0; i < nr && !err; i++) {
		void *addr;

		/* Beginning a write waits for a write-back under way, and voids the copy it made. */
		err = pool_begin_write(pool, ids[i], false, &addr);
		if (err)
			break;
		lock_acquire(&pool->lock);
		pool_block(pool, ids[i].v)->flags |= BLOCK_FILLING;
		lock_release(&pool->lock);
		pool_end_write(pool, ids[i]);
	}
	return err;
}

void pool_fill_end(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < nr; i++)
		pool_block(pool, ids[i].v)->flags &= ~BLOCK_FILLING;
	lock_release(&pool->lock);
}

unsigned int pool_nr_files(struct pool *pool)
{
	return 1;
}

u64 pool_file_bytes(struct pool *pool)
{
	return tier_size(pool->tier[IN_DRAM]);
}

u32 pool_file_domain(struct pool *pool, unsigned int file)
{
	return 1;
}

u32 pool_space_domain(struct pool *pool, u32 space)
{
	return 1;
}

int pool_file_fd(struct pool *pool, unsigned int file, bool writable)
{
	return -EOPNOTSUPP;
}
