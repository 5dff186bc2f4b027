/* SPDX-License-Identifier: Apache-2.0 */
/* Life of the pool and views of its state: create, start, destroy, counters, dropping the cache. */
#include <stdlib.h>
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/base/textbuf.h"
#include "allocator/pool_types.h"

/* ---- life ---- */

static void pool_init_waits(struct pool *pool)
{
	lock_init(&pool->lock, LOCK_POOL);
	for (int i = 0; i < POOL_WAITQS; i++)
		waitq_init(&pool->io_done[i]);
	waitq_init(&pool->room_freed);
	waitq_init(&pool->reclaim_wait);
	waitq_init(&pool->load_wait);
	waitq_init(&pool->load_ended);
	list_init(&pool->loads);
	waitq_init(&pool->flush_wait);
}

int pool_create(struct pool **out, const struct pool_opts *opts)
{
	struct pool *pool = calloc(1, sizeof(*pool));
	int err = -ENOMEM;

	if (!pool)
		return -ENOMEM;
	pool->tier[IN_DRAM] = opts->dram;
	pool->tier[IN_NVME] = opts->nvme;
	pool->capacity = opts->nvme ? IN_NVME : IN_DRAM;
	pool->write_through = opts->write_through;
	pool->free_head = UINT32_MAX;
	pool->nr_roots = 1;
	pool_init_waits(pool);
	pool->chunks = calloc(BLOCK_MAX_ID / BLOCK_CHUNK, sizeof(*pool->chunks));
	pool->hints = kvc_alloc_array(PREFETCH_QUEUE, sizeof(*pool->hints));
	pool->dram_base = tier_map(opts->dram, 0, opts->dram->size_bytes);
	if (!pool->chunks || !pool->hints || !pool->dram_base)
		goto fail;
	err = domains_create(pool);
	if (!err && opts->nvme)
		err = extents_create(&pool->nvme_room, opts->nvme->size_bytes);
	if (err)
		goto fail;
	pool_set_watermarks(pool, opts->high_pct, opts->low_pct);
	*out = pool;
	return 0;
fail:
	pool_destroy(pool);
	return err;
}

void pool_set_meta(struct pool *pool, struct meta *meta)
{
	pool->meta = meta;
}

int pool_start(struct pool *pool)
{
	int started = 0;

	if (pool_volatile(pool))
		return 0; /* nothing to move to: room is made by those who need it */
	if (pthread_create(&pool->reclaimer, NULL, reclaim_thread, pool))
		return -ENOMEM;
	while (started < LOADERS) {
		if (pthread_create(&pool->loaders[started], NULL, loader_thread, pool))
			break;
		started++;
	}
	pool->started = started == LOADERS;
	if (pool->started)
		return 0;
	lock_acquire(&pool->lock);
	pool->stop = true;
	waitq_wake_all(&pool->reclaim_wait);
	waitq_wake_all(&pool->load_wait);
	lock_release(&pool->lock);
	pthread_join(pool->reclaimer, NULL);
	while (started--)
		pthread_join(pool->loaders[started], NULL);
	return -ENOMEM;
}

static void pool_stop(struct pool *pool)
{
	if (!pool->started)
		return;
	lock_acquire(&pool->lock);
	pool->stop = true;
	waitq_wake_all(&pool->reclaim_wait);
	waitq_wake_all(&pool->load_wait);
	lock_release(&pool->lock);
	pthread_join(pool->reclaimer, NULL);
	for (int i = 0; i < LOADERS; i++)
		pthread_join(pool->loaders[i], NULL);
	pool->started = false;
}

void pool_end(struct pool *pool)
{
	pool_stop(pool);
	if (pool->warm)
		pool->warm->ended = true;
}

void pool_destroy(struct pool *pool)
{
	pool_stop(pool);
	KVC_BUG_ON(!list_empty(&pool->loads));
	for (u32 id = 0; id < pool->nr_ids; id++)
		free(pool_block(pool, id)->ids);
	for (u32 c = 0; c < pool->nr_chunks; c++)
		free(pool->chunks[c]);
	for (int t = 0; t < NR_BLOCK_TIERS; t++)
		heap_free(&pool->heap[t]);
	extents_destroy(pool->nvme_room);
	domains_free(pool);
	warm_free(pool->warm);
	prefix_free(pool);
	free(pool->chunks);
	free(pool->limbo);
	free(pool->stale.v);
	free(pool->renew.v);
	free(pool->hints);
	for (int i = 0; i < POOL_WAITQS; i++)
		waitq_destroy(&pool->io_done[i]);
	waitq_destroy(&pool->room_freed);
	waitq_destroy(&pool->reclaim_wait);
	waitq_destroy(&pool->load_wait);
	waitq_destroy(&pool->load_ended);
	waitq_destroy(&pool->flush_wait);
	lock_destroy(&pool->lock);
	free(pool);
}

/* ---- views ---- */

void pool_residency(struct pool *pool, const struct block_id *ids, unsigned int nr,
		    struct pool_residency *res)
{
	*res = (struct pool_residency){0};
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < nr; i++) {
		struct block *b;
		u32 names;

		if (BLOCK_IS_NONE(ids[i]))
			continue;
		b = pool_block(pool, ids[i].v);
		names = b->ref - !!(b->flags & BLOCK_ROOM);
		res->nr++;
		res->dram += !!(b->flags & BLOCK_DRAM_VALID);
		res->nvme += !!(b->flags & BLOCK_NVME_VALID);
		res->lossy += !!(b->flags & BLOCK_LOSSY);
		res->shared += names > 1;
		res->bytes += block_stride(b);
		if (names <= 1)
			res->exclusive_bytes += block_stride(b);
		if (i % BREATHE == BREATHE - 1)
			pool_breathe(pool);
	}
	lock_release(&pool->lock);
}

static void tier_stats(struct pool *pool, enum block_tier t, struct pool_tier_stats *s)
{
	if (!pool->tier[t])
		return;
	s->size = room_size(pool, t);
	s->used = room_used(pool, t);
	s->blocks = pool->copies_now[t];
	if (t == IN_DRAM)
		s->pinned = pool->pinned_bytes_now + pool->kept_bytes_now +
			    orphan_bytes(pool);
	if (t == pool->capacity)
		s->cached_bytes = s->used - min(s->used, pool->named_bytes_now);
}

void pool_get_stats(struct pool *pool, struct pool_stats *s)
{
	*s = (struct pool_stats){0};
	lock_acquire(&pool->lock);
	for (int t = 0; t < NR_BLOCK_TIERS; t++)
		tier_stats(pool, t, &s->tier[t]);
	s->capacity = s->tier[pool->capacity].size;
	s->named_bytes = pool->named_bytes_now;
	s->free_bytes = s->capacity - min(s->capacity, s->named_bytes);
	s->blocks = pool->live_blocks_now;
	s->cached_blocks = pool->cached_blocks_now;
	s->indexed_blocks = pool->nr_indexed;
	s->hit_tokens = pool->hit_tokens;
	s->lookup_tokens = pool->lookup_tokens;
	s->stall_us = pool->stall_ns / 1000;
	s->first_reads_resident = pool->reads_resident;
	s->first_reads_cold = pool->reads_cold;
	s->restored = pool->restored;
	s->evicted_dram = pool->evicted[IN_DRAM];
	s->evicted_nvme = pool->evicted[IN_NVME];
	s->demoted = pool->demoted;
	s->promoted = pool->promoted;
	s->moved = pool->moved;
	s->checksum_errors = pool->checksum_errors;
	lock_release(&pool->lock);
}

void pool_set_watermarks(struct pool *pool, unsigned int high_pct, unsigned int low_pct)
{
	u64 size = pool->dram_bytes;

	lock_acquire(&pool->lock);
	pool->kept_max_bytes = size / 100 * KEPT_MAX_PCT;
	pool->high_bytes = size / 100 * high_pct;
	pool->low_bytes = size / 100 * low_pct;
	waitq_wake_all(&pool->reclaim_wait);
	lock_release(&pool->lock);
}

/* ---- dropping the cache ---- */

/* Drop one unnamed block from @tier, or altogether. Return: bytes of room given back. */
static u64 drop_one(struct pool *pool, u32 id, enum block_tier tier)
{
	struct block *b = pool_block(pool, id);
	u64 bytes = block_stride(b);

	if (tier != NR_BLOCK_TIERS) {
		enum block_tier other = tier == IN_DRAM ? IN_NVME : IN_DRAM;
		u32 other_valid = other == IN_DRAM ? BLOCK_DRAM_VALID : BLOCK_NVME_VALID;

		if (b->ext[tier] == EXTENT_NONE)
			return 0;
		if (b->flags & other_valid) {
			block_release_ext(pool, id, tier);
			block_requeue(pool, id);
			return bytes;
		}
	}
	prefix_remove(pool, id);
	return block_maybe_free(pool, id) ? bytes : 0;
}

static bool droppable(const struct block *b, u32 space)
{
	return b->flags & BLOCK_LIVE && !b->ref && !b->pin && (!space || b->space == space);
}

void pool_drop_cached(struct pool *pool, u32 space, enum block_tier tier, u64 *blocks, u64 *bytes)
{
	*blocks = *bytes = 0;
	lock_acquire(&pool->lock);
	for (u32 id = 0; id < pool->nr_ids; id++) {
		struct block *b = pool_block(pool, id);
		u64 freed;

		if (id % BREATHE == BREATHE - 1)
			pool_breathe(pool);
		if (droppable(b, space))
			block_wait_io(pool, id);
		if (!droppable(b, space) || b->flags & BLOCK_IO)
			continue;
		freed = drop_one(pool, id, tier);
		*bytes += freed;
		*blocks += freed != 0;
	}
	lock_release(&pool->lock);
	if (pool_tick(pool))
		kvc_err_count(-EIO, KVC_ERR_drop_not_recorded);
}

/* ---- text and checks ---- */

void pool_block_to_text(struct pool *pool, struct block_id id, struct textbuf *tb)
{
	static const char *const names[] = {"live", "sealed",	"indexed", "empty", "dram", "nvme",
					    "recorded", "io", "bad", "lossy", "kv", "flushing"};
	struct block *b;

	lock_acquire(&pool->lock);
	if (id.v >= pool->nr_ids) {
		textbuf_printf(tb, "block %u: no such block\n", id.v);
		lock_release(&pool->lock);
		return;
	}
	b = pool_block(pool, id.v);
	textbuf_printf(tb, "block %u gen %u ref %u pin %u bytes %u space %u class %u flags", id.v,
		       b->gen, b->ref, b->pin, b->bytes, b->space, b->class);
	for (unsigned int i = 0; i < ARRAY_SIZE(names); i++)
		if (b->flags & 1u << i)
			textbuf_printf(tb, " %s", names[i]);
	textbuf_printf(tb, " dram %lld nvme %lld\n", (long long)b->ext[IN_DRAM],
		       (long long)b->ext[IN_NVME]);
	lock_release(&pool->lock);
}

void block_check(struct pool *pool, u32 id)
{
	struct block *b = pool_block(pool, id);
	u32 f = b->flags;

	if (!(f & BLOCK_LIVE)) {
		KVC_BUG_ON(b->ref || b->pin || b->ids);
		return;
	}
	KVC_BUG_ON(f & BLOCK_INDEXED && (!(f & BLOCK_SEALED) || !b->ids));		/* B2 */
	KVC_BUG_ON(f & BLOCK_NVME_VALID && b->ext[IN_NVME] == EXTENT_NONE);		/* B4 */
	KVC_BUG_ON(f & BLOCK_DRAM_VALID && b->ext[IN_DRAM] == EXTENT_NONE);
	KVC_BUG_ON(b->ref && b->ext[pool->capacity] == EXTENT_NONE);			/* B5 */
	KVC_BUG_ON(f & BLOCK_RECORDED && !(f & BLOCK_NVME_VALID));			/* B6 */
	KVC_BUG_ON(b->warm[WARM_CONTENT] && (~f & (BLOCK_RECORDED | BLOCK_DRAM_VALID)));	/* B8 */
	KVC_BUG_ON(b->warm[WARM_PLACE] && !b->held);					/* B8 */
	KVC_BUG_ON(f & BLOCK_EMPTY && f & (BLOCK_DRAM_VALID | BLOCK_NVME_VALID | BLOCK_SEALED));
	KVC_BUG_ON(!b->ref && !b->pin && !(f & (BLOCK_INDEXED | BLOCK_IO)));		/* freed */
	KVC_BUG_ON(!(f & (BLOCK_EMPTY | BLOCK_DRAM_VALID | BLOCK_NVME_VALID | BLOCK_IO | BLOCK_BAD)));
	for (int t = 0; t < NR_BLOCK_TIERS; t++) {
		bool want = b->ext[t] != EXTENT_NONE && !b->kids[t] && !b->pin &&
			    !(f & BLOCK_IO) &&
			    (t == pool->capacity ? !b->ref : b->class != CLASS_PINNED);

		bool in = b->heap_pos[t] != HEAP_NONE;

		KVC_BUG_ON(want != in && !(in && f & BLOCK_IO));			/* B7 */
		KVC_BUG_ON(in && pool->heap[t].ids[b->heap_pos[t]] != id);
	}
}

/** struct tally - what the pool's gauges should say, counted anew. */
struct tally {
	u64 live, cached, named_bytes, pinned_bytes, kept_bytes, indexed;
	u64 copies[NR_BLOCK_TIERS], bytes[NR_BLOCK_TIERS];
	bool busy;
	u32 (*kids)[NR_BLOCK_TIERS]; /* by block id */
};

static void tally_add(struct pool *pool, struct tally *t, u32 id)
{
	struct block *b = pool_block(pool, id), *parent = prefix_parent(pool, b);

	if (!(b->flags & BLOCK_LIVE))
		return;
	t->live++;
	t->cached += !b->ref;
	t->indexed += !!(b->flags & BLOCK_INDEXED);
	t->busy |= !!(b->flags & BLOCK_IO);
	t->named_bytes += b->ref ? block_stride(b) : 0;
	t->kept_bytes += b->class == CLASS_PINNED ? block_stride(b) : 0;
	t->pinned_bytes += b->pin ? block_stride(b) : 0;
	for (int tier = 0; tier < NR_BLOCK_TIERS; tier++) {
		bool has = b->ext[tier] != EXTENT_NONE;

		t->copies[tier] += has;
		t->bytes[tier] += has ? block_stride(b) : 0;
		if (parent && has)
			t->kids[b->parent][tier]++;
	}
}

static void tally_compare(struct pool *pool, const struct tally *t)
{
	KVC_BUG_ON(t->live != pool->live_blocks_now || t->cached != pool->cached_blocks_now);
	KVC_BUG_ON(t->kept_bytes != pool->kept_bytes_now);
	KVC_BUG_ON(t->named_bytes != pool->named_bytes_now || t->indexed != pool->nr_indexed);
	KVC_BUG_ON(t->pinned_bytes != pool->pinned_bytes_now);
	for (int tier = 0; tier < NR_BLOCK_TIERS; tier++) {
		u64 bytes = t->bytes[tier] + (tier == IN_NVME ? pool->limbo_bytes_now
							      : orphan_bytes(pool));

		KVC_BUG_ON(t->copies[tier] != pool->copies_now[tier]);
		/* a block that is moved inside a tier has two extents there */
		KVC_BUG_ON(pool->tier[tier] && !t->busy && bytes != room_used(pool, tier));
	}
	for (u32 id = 0; id < pool->nr_ids; id++)
		KVC_BUG_ON(memcmp(t->kids[id], pool_block(pool, id)->kids, sizeof(t->kids[id])));
}

void pool_check(struct pool *pool)
{
	struct tally t = {0};

	lock_acquire(&pool->lock);
	t.kids = calloc((size_t)pool->nr_ids + 1, sizeof(*t.kids));
	KVC_BUG_ON(!t.kids);
	for (u32 id = 0; id < pool->nr_ids; id++) {
		block_check(pool, id);
		tally_add(pool, &t, id);
	}
	tally_compare(pool, &t);
	domains_check(pool);
	free(t.kids);
	lock_release(&pool->lock);
}
