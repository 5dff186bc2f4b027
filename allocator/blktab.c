/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries of a block table: the exclusion of changers, replacing, cutting, retiring.
 *
 * A name that an entry loses goes one of two ways. If the durable record names that block, it is
 * retired, and its name dropped after the next record was submitted. Else nothing on media needs it
 * and its name is dropped at once.
 */
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/blktab_impl.h"
#include "allocator/grow.h"

/*
 * Where changers sleep. Tables share a few of these instead of carrying a condition each: a table
 * is rarely waited for, and there are many.
 */
#define NR_PARKINGS 64u

static struct parking {
	struct lock lock;
	struct waitq wq;
} parkings[NR_PARKINGS];
static pthread_once_t parkings_once = PTHREAD_ONCE_INIT;

static void init_parkings(void)
{
	for (unsigned int i = 0; i < NR_PARKINGS; i++) {
		lock_init(&parkings[i].lock, LOCK_LEAF);
		waitq_init(&parkings[i].wq);
	}
}

static struct parking *parking_of(struct blktab *tab)
{
	pthread_once(&parkings_once, init_parkings);
	return &parkings[hash_u64((uintptr_t)tab) % NR_PARKINGS];
}

int blktab_init(struct blktab *tab, struct pool *pool, u64 id, u32 space, u32 block_bytes)
{
	*tab = (struct blktab){.pool = pool, .id = id, .space = space, .block_bytes = block_bytes};
	lock_init(&tab->lock, LOCK_FS_INODE);
	return 0;
}

void blktab_destroy(struct blktab *tab)
{
	kvc_assert(!tab->busy);
	if (!tab->unnamed)
		pool_put(tab->pool, tab->blocks, tab->nr_blocks);
	pool_put(tab->pool, tab->retired, tab->nr_retired);
	free(tab->blocks);
	free(tab->recorded);
	free(tab->retired);
	lock_destroy(&tab->lock);
}

void blktab_begin(struct blktab *tab)
{
	struct parking *p = parking_of(tab);

	lock_assert_none();
	lock_acquire(&p->lock);
	while (tab->busy)
		waitq_wait(&p->wq, &p->lock);
	tab->busy = true;
	lock_release(&p->lock);
}

void blktab_end(struct blktab *tab)
{
	struct parking *p = parking_of(tab);

	lock_acquire(&p->lock);
	KVC_BUG_ON(!tab->busy);
	tab->busy = false;
	waitq_wake_all(&p->wq);
	lock_release(&p->lock);
}

void blktab_begin2(struct blktab *a, struct blktab *b)
{
	blktab_begin((uintptr_t)a < (uintptr_t)b ? a : b);
	if (a != b)
		blktab_begin((uintptr_t)a < (uintptr_t)b ? b : a);
}

void blktab_end2(struct blktab *a, struct blktab *b)
{
	blktab_end(a);
	if (a != b)
		blktab_end(b);
}

static int reserve_entries(struct blktab *tab, u32 nr)
{
	u32 max_blocks = tab->max_blocks, old_words = (tab->max_blocks + 63) / 64;
	struct block_id *blocks;
	u64 *recorded;
	u32 words;

	if (nr <= max_blocks)
		return 0;
	if (nr > BLKTAB_MAX_BLOCKS)
		return -EFBIG;
	max_blocks = min(max(nr, max_blocks + max_blocks / 2), BLKTAB_MAX_BLOCKS);
	words = (max_blocks + 63) / 64;
	blocks = kvc_alloc_array(max_blocks, sizeof(*blocks));
	recorded = calloc(words, sizeof(*recorded));
	if (!blocks || !recorded || fault_point(FAULT_MEMORY)) {
		free(blocks);
		free(recorded);
		return -ENOMEM;
	}
	if (tab->nr_blocks) {
		memcpy(blocks, tab->blocks, tab->nr_blocks * sizeof(*blocks));
		memcpy(recorded, tab->recorded, old_words * sizeof(*recorded));
	}
	lock_acquire(&tab->lock);
	free(tab->blocks);
	free(tab->recorded);
	tab->blocks = blocks;
	tab->recorded = recorded;
	tab->max_blocks = max_blocks;
	lock_release(&tab->lock);
	return 0;
}

int blktab_reserve(struct blktab *tab, u32 nr_blocks, u32 nr_retire)
{
	int err = reserve_entries(tab, nr_blocks);

	if (err)
		return err;
	lock_acquire(&tab->lock);
	err = grow_array(&tab->retired, &tab->max_retired, (u64)tab->nr_retired + nr_retire,
			 sizeof(*tab->retired));
	lock_release(&tab->lock);
	return err;
}

void __blktab_extend(struct blktab *tab, u32 nr)
{
	if (nr <= tab->nr_blocks)
		return;
	kvc_assert(nr <= tab->max_blocks);
	memset(tab->blocks + tab->nr_blocks, 0xff, (nr - tab->nr_blocks) * sizeof(*tab->blocks));
	tab->nr_blocks = nr;
}

void __blktab_mark(struct blktab *tab, u32 from, u32 to)
{
	tab->dirty = true;
	if (from >= to)
		return;
	if (tab->dirty_from >= tab->dirty_to) {
		tab->dirty_from = from;
		tab->dirty_to = to;
		return;
	}
	tab->dirty_from = min(tab->dirty_from, from);
	tab->dirty_to = max(tab->dirty_to, to);
}

void blktab_mark(struct blktab *tab, u32 from, u32 to)
{
	lock_acquire(&tab->lock);
	__blktab_mark(tab, from, to);
	lock_release(&tab->lock);
}

/* The name that entry @i holds: retired (BLOCK_NONE returned) or to be dropped by the caller. */
static struct block_id give_up(struct blktab *tab, u32 i)
{
	struct block_id old = tab->blocks[i];

	tab->nr_real -= !BLOCK_IS_NONE(old);
	if (!blktab_is_recorded(tab, i))
		return old;
	blktab_set_recorded(tab, i, false);
	if (BLOCK_IS_NONE(old))
		return old;
	KVC_BUG_ON(tab->nr_retired == tab->max_retired);
	tab->retired[tab->nr_retired++] = old;
	return BLOCK_NONE;
}

struct block_id __blktab_replace(struct blktab *tab, u32 i, struct block_id id)
{
	struct block_id old = give_up(tab, i);

	tab->blocks[i] = id;
	tab->nr_real += !BLOCK_IS_NONE(id);
	__blktab_mark(tab, i, i + 1);
	return old;
}

int blktab_set_range(struct blktab *tab, u32 index, u32 nr, const struct block_id *ids)
{
	struct block_id old;
	int err;

	if (!nr)
		return 0;
	if (index >= BLKTAB_MAX_BLOCKS || nr > BLKTAB_MAX_BLOCKS - index)
		return -EFBIG;
	err = blktab_reserve(tab, max(index + nr, tab->nr_blocks), nr);
	if (err)
		return err;
	lock_acquire(&tab->lock);
	__blktab_extend(tab, index + nr);
	for (u32 i = 0; i < nr; i++) {
		old = __blktab_replace(tab, index + i, ids[i]);
		if (!BLOCK_IS_NONE(old))
			pool_put(tab->pool, &old, 1);
	}
	lock_release(&tab->lock);
	return 0;
}

int blktab_set(struct blktab *tab, u32 index, struct block_id id)
{
	return blktab_set_range(tab, index, 1, &id);
}

int blktab_cut(struct blktab *tab, u32 nr_blocks, u64 size)
{
	u32 nr = tab->nr_blocks, kept = 0;
	int err;

	if (nr > nr_blocks) {
		err = blktab_reserve(tab, nr, nr - nr_blocks);
		if (err)
			return err;
	}
	lock_acquire(&tab->lock);
	for (u32 i = nr_blocks; i < nr; i++) {
		struct block_id old = give_up(tab, i);

		tab->blocks[nr_blocks + kept] = old;
		kept += !BLOCK_IS_NONE(old);
	}
	if (nr > nr_blocks) {
		__blktab_mark(tab, nr_blocks, nr);
		pool_put(tab->pool, tab->blocks + nr_blocks, kept);
		tab->nr_blocks = nr_blocks;
	}
	tab->size = size;
	tab->dirty = true;
	tab->seq_hint = min(tab->seq_hint, nr_blocks);
	tab->ahead = 0;
	lock_release(&tab->lock);
	return 0;
}

void blktab_set_size(struct blktab *tab, u64 size)
{
	lock_acquire(&tab->lock);
	tab->dirty |= tab->size != size;
	tab->size = size;
	lock_release(&tab->lock);
}

void blktab_snapshot(struct blktab *tab, u32 from, u32 nr, struct block_id *out)
{
	u32 have;

	lock_acquire(&tab->lock);
	have = from < tab->nr_blocks ? min(nr, tab->nr_blocks - from) : 0;
	if (have) {
		memcpy(out, tab->blocks + from, have * sizeof(*out));
		pool_get(tab->pool, out, have);
	}
	lock_release(&tab->lock);
	if (have < nr)
		memset(out + have, 0xff, (nr - have) * sizeof(*out));
}

static u32 count_holes(const struct blktab *tab, u32 from, u32 to)
{
	u32 have = min(to, tab->nr_blocks), holes = to - max(from, have);

	for (u32 i = from; i < have; i++)
		holes += BLOCK_IS_NONE(tab->blocks[i]);
	return holes;
}

int blktab_fill(struct blktab *tab, u32 from, u32 to)
{
	u32 holes = from < to ? count_holes(tab, from, to) : 0, used = 0;
	struct pool_want want = {
		.bytes = tab->block_bytes, .space = tab->space, .near = BLOCK_NONE};
	struct block_id *ids;
	int err;

	if (!holes)
		return 0;
	err = blktab_reserve(tab, max(to, tab->nr_blocks), 0);
	if (err)
		return err;
	ids = kvc_alloc_array(holes, sizeof(*ids));
	if (!ids)
		return -ENOMEM;
	if (from && from <= tab->nr_blocks)
		want.near = tab->blocks[from - 1];
	err = pool_alloc(tab->pool, &want, holes, ids);
	if (!err) {
		lock_acquire(&tab->lock);
		__blktab_extend(tab, to);
		for (u32 i = from; i < to; i++)
			if (BLOCK_IS_NONE(tab->blocks[i]))
				__blktab_replace(tab, i, ids[used++]);
		lock_release(&tab->lock);
	}
	free(ids);
	return err;
}
