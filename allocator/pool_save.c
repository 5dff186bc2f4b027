/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeping the prefix cache over a clean unmount: cached blocks that live in DRAM alone are written
 * back before the pool goes. Blocks are named while they are written, as anybody's would be.
 */
#include "allocator/pool.h"
#include "allocator/pool_types.h"

#define SAVE_BATCH 256u

static bool worth_saving(const struct block *b)
{
	const u32 need = BLOCK_LIVE | BLOCK_SEALED | BLOCK_INDEXED | BLOCK_DRAM_VALID;

	return (b->flags & need) == need && !(b->flags & (BLOCK_NVME_VALID | BLOCK_BAD)) && !b->ref;
}

/* Name the next cached blocks from *@at on. Return: how many. */
static unsigned int take_batch(struct pool *pool, u32 *at, struct block_id *ids)
{
	unsigned int nr = 0;

	lock_acquire(&pool->lock);
	for (; *at < pool->nr_ids && nr < SAVE_BATCH; ++*at)
		if (worth_saving(pool_block(pool, *at)) && !block_named(pool, *at))
			ids[nr++].v = *at;
	lock_release(&pool->lock);
	return nr;
}

int pool_save_cached(struct pool *pool)
{
	struct block_id ids[SAVE_BATCH];
	unsigned int nr;
	u32 at = 0;
	int err = 0;

	if (!pool->tier[IN_NVME])
		return 0;
	while (!err && (nr = take_batch(pool, &at, ids))) {
		err = pool_writeback(pool, ids, nr);
		pool_put(pool, ids, nr);
	}
	return err ? err : pool_tick(pool);
}
