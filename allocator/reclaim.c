/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reclaim: who has to go when a tier runs short.
 *
 * Reuse is by chain, so eviction is leaf first: a block is a candidate in a tier only while no
 * indexed child of it has room there. Candidates of a tier are kept in a heap, coldest first: by
 * class (unnamed cached, then idle, paused, queued, decoding, pinned), priority, last use. When the
 * last child goes, its parent becomes a candidate with its own last use. So this is leaf LRU, one
 * heap operation a victim.
 *
 * DRAM: everything unpinned may go once a lower copy exists; the reclaim thread keeps use under the
 * high mark, and an allocation that finds no room reclaims its own shortfall.
 * Capacity tier: only unnamed blocks are candidates; a named block's room is never taken.
 *
 * When there is free room, but not in one piece, the cheapest page run is emptied: in DRAM by moving
 * its blocks elsewhere, in the capacity tier by dropping unnamed ones.
 */
#include <stdlib.h>
#include "allocator/base/bug.h"
#include "allocator/base/clock.h"
#include "allocator/base/err.h"
#include "allocator/pool_types.h"

#define RECLAIM_BATCH_BYTES MIB(32)	/* written back at once */
#define RECLAIM_BATCH	    1024	/* blocks */
#define CAPACITY_BATCH	    MIB(16)	/* removed from the capacity tier per commit */
#define EASY_BYTES	    MIB(32)	/* above the high mark nobody takes more than he must */
#define THROTTLE_BYTES	    MIB(64)	/* above the high mark allocations reclaim for themselves */
#define RUN_VICTIMS	    8192	/* extents in one page run to empty, as a rule */
#define DRAIN_TRIES	    16	/* commits until removals count as refused */
#define RUN_VICTIMS_MAX	    (EXTENT_MAX_BYTES / EXTENT_UNIT)

/* ---- heaps ---- */

static u64 heap_key(const struct block *b)
{
	return (u64)b->class << 56 | (u64)b->priority << 48 | (b->last_use & ((1ull << 48) - 1));
}

static bool colder(struct pool *pool, u32 a, u32 b)
{
	return heap_key(pool_block(pool, a)) < heap_key(pool_block(pool, b));
}

static void heap_place(struct pool *pool, enum block_tier t, u32 pos, u32 id)
{
	pool->heap[t].ids[pos] = id;
	pool_block(pool, id)->heap_pos[t] = pos;
}

static void heap_up(struct pool *pool, enum block_tier t, u32 pos)
{
	struct heap *heap = &pool->heap[t];
	u32 id = heap->ids[pos];

	while (pos && colder(pool, id, heap->ids[(pos - 1) / 2])) {
		heap_place(pool, t, pos, heap->ids[(pos - 1) / 2]);
		pos = (pos - 1) / 2;
	}
	heap_place(pool, t, pos, id);
}

static void heap_down(struct pool *pool, enum block_tier t, u32 pos)
{
	struct heap *heap = &pool->heap[t];
	u32 id = heap->ids[pos], kid;

	while ((kid = 2 * pos + 1) < heap->nr) {
		if (kid + 1 < heap->nr && colder(pool, heap->ids[kid + 1], heap->ids[kid]))
			kid++;
		if (!colder(pool, heap->ids[kid], id))
			break;
		heap_place(pool, t, pos, heap->ids[kid]);
		pos = kid;
	}
	heap_place(pool, t, pos, id);
}

static void heap_remove(struct pool *pool, enum block_tier t, u32 id)
{
	struct heap *heap = &pool->heap[t];
	u32 pos = pool_block(pool, id)->heap_pos[t], last;

	pool_block(pool, id)->heap_pos[t] = HEAP_NONE;
	last = heap->ids[--heap->nr];
	if (last == id)
		return;
	heap_place(pool, t, pos, last);
	heap_up(pool, t, pos);
	heap_down(pool, t, pool_block(pool, last)->heap_pos[t]);
}

/* A candidate that cannot be queued for lack of memory is only missed by reclaim. */
static void heap_insert(struct pool *pool, enum block_tier t, u32 id)
{
	struct heap *heap = &pool->heap[t];

	if (heap->nr == heap->max) {
		u32 max_nr = heap->max ? heap->max * 2 : 1024;
		u32 *ids = reallocarray(heap->ids, max_nr, sizeof(*ids));

		if (!ids)
			return;
		heap->ids = ids;
		heap->max = max_nr;
	}
	heap->ids[heap->nr] = id;
	heap_up(pool, t, heap->nr++);
}

void heap_free(struct heap *heap)
{
	free(heap->ids);
	*heap = (struct heap){0};
}

static bool candidate(const struct pool *pool, const struct block *b, enum block_tier t)
{
	if (!(b->flags & BLOCK_LIVE) || b->ext[t] == EXTENT_NONE || b->kids[t])
		return false;
	if (b->pin || b->flags & BLOCK_IO)
		return false;
	return t == pool->capacity ? !b->ref : b->class != CLASS_PINNED;
}

void block_requeue(struct pool *pool, u32 id)
{
	struct block *b = pool_block(pool, id);

	for (int t = 0; t < NR_BLOCK_TIERS; t++) {
		bool want = candidate(pool, b, t);

		if (b->heap_pos[t] == HEAP_NONE) {
			if (want)
				heap_insert(pool, t, id);
		} else if (!want) {
			heap_remove(pool, t, id);
		} else {
			heap_up(pool, t, b->heap_pos[t]);
			heap_down(pool, t, b->heap_pos[t]);
		}
	}
}

/* Coldest block of a tier that may go now, taken out of the heap; UINT32_MAX: none. */
static u32 heap_pop(struct pool *pool, enum block_tier t)
{
	struct heap *heap = &pool->heap[t];

	while (heap->nr) {
		u32 id = heap->ids[0];

		heap_remove(pool, t, id);
		if (candidate(pool, pool_block(pool, id), t))
			return id; /* else it comes back when its pin or I/O goes */
	}
	return UINT32_MAX;
}

/* ---- DRAM ---- */

/* Unnamed and without room below: nothing is lost but a cache entry. */
static void forget(struct pool *pool, u32 id)
{
	prefix_remove(pool, id);
	block_release_ext(pool, id, IN_DRAM);
	if (!block_maybe_free(pool, id))
		block_requeue(pool, id);
}

/* Lower room for a block that has none: an unnamed one only gets what is free. */
static bool has_room_below(struct pool *pool, u32 id)
{
	struct block *b = pool_block(pool, id);
	u64 off;

	if (b->ext[IN_NVME] != EXTENT_NONE)
		return true;
	if (extents_alloc(pool->nvme_room, block_stride(b), EXTENT_NONE, id, &off))
		return false;
	block_set_ext(pool, id, IN_NVME, off);
	return true;
}

static void drop_dram(struct pool *pool, u32 id)
{
	block_release_ext(pool, id, IN_DRAM);
	pool->evicted[IN_DRAM]++;
	block_requeue(pool, id);
}

/*
 * Evict from DRAM until @need bytes went or nothing is left that may go. Clean copies are dropped at
 * once, dirty ones written back in one batch first. Lock held, dropped during the write.
 * Return: bytes freed.
 */
static u64 reclaim_dram(struct pool *pool, u64 need)
{
	u32 batch[RECLAIM_BATCH], nr = 0;
	u64 freed = 0, dirty = 0;

	while (freed + dirty < need && nr < RECLAIM_BATCH && dirty < RECLAIM_BATCH_BYTES) {
		u32 id = heap_pop(pool, IN_DRAM);
		struct block *b;

		if (id == UINT32_MAX)
			break;
		b = pool_block(pool, id);
		if (b->flags & (BLOCK_NVME_VALID | BLOCK_BAD)) {
			freed += block_stride(b);
			drop_dram(pool, id);
		} else if (pool_volatile(pool) || (!b->ref && !has_room_below(pool, id))) {
			freed += block_stride(b);
			pool->evicted[IN_DRAM]++;
			forget(pool, id);
		} else {
			dirty += block_stride(b);
			block_io_begin(pool, id);
			batch[nr++] = id;
		}
	}
	if (!nr)
		return freed;
	if (migrate_out(pool, batch, nr))
		kvc_err_count(-EIO, KVC_ERR_demote_failed);
	for (u32 i = 0; i < nr; i++) {
		struct block *b = pool_block(pool, batch[i]);

		if (b->flags & BLOCK_LIVE && b->flags & BLOCK_NVME_VALID &&
		    b->flags & BLOCK_DRAM_VALID && !b->pin && !(b->flags & BLOCK_IO)) {
			freed += block_stride(b);
			pool->demoted++;
			drop_dram(pool, batch[i]);
		}
	}
	return freed;
}

bool dram_movable(void *ctx, u32 owner)
{
	struct block *b = pool_block(ctx, owner);

	return !b->pin && !(b->flags & BLOCK_IO) && b->flags & BLOCK_DRAM_VALID;
}

bool dram_vacate(struct pool *pool, const struct extent_ref *ref, const struct extent_run *run)
{
	struct block *b = pool_block(pool, ref->owner);
	u64 to;

	if (b->ext[IN_DRAM] != ref->off)
		return true;
	if (!dram_movable(pool, ref->owner))
		return false;
	if (!dram_alloc_outside(pool, ref->owner, run, &to)) {
		block_io_begin(pool, ref->owner);
		migrate_shift(pool, ref->owner, to);
		pool->moved++;
		return true;
	}
	if (!(b->flags & BLOCK_NVME_VALID) || b->class == CLASS_PINNED)
		return false;
	drop_dram(pool, ref->owner);
	return true;
}

/* Which extents stand in the way of @bytes in one piece. Return: their number, or -errno. */
static int find_victims(struct pool *pool, struct extents *room, u32 bytes, struct extent_victims *v)
{
	int nr = -E2BIG;

	v->ctx = pool;
	for (v->max = RUN_VICTIMS; nr == -E2BIG && v->max <= RUN_VICTIMS_MAX; v->max *= 32) {
		free(v->refs);
		v->refs = kvc_alloc_array(v->max, sizeof(*v->refs));
		if (!v->refs)
			return -ENOMEM;
		nr = extents_find_victims(room, bytes, v);
	}
	return nr;
}

/* Free room exists but not in one piece: empty the cheapest run. Return: whether to try again. */
static bool compact_dram(struct pool *pool, u16 domain, u32 bytes)
{
	struct extent_victims v = {.movable = dram_movable};
	int nr, gone = 0;

	if (domain_free_bytes(pool, domain) < bytes)
		return false;
	nr = find_victims(pool, pool->domains[domain].room, bytes, &v);
	while (gone < nr && dram_vacate(pool, &v.refs[gone], &v.run))
		gone++;
	free(v.refs);
	return gone == nr; /* else there is nowhere to go: trying again would not end */
}

/* Lie behind the block that lies behind us below: what was written together stays together. */
static u64 dram_near(struct pool *pool, u32 id)
{
	struct block *before;

	if (!id)
		return EXTENT_NONE;
	before = pool_block(pool, id - 1);
	if (!(before->flags & BLOCK_LIVE) || before->ext[IN_DRAM] == EXTENT_NONE ||
	    before->bytes != pool_block(pool, id)->bytes)
		return EXTENT_NONE;
	return before->ext[IN_DRAM] + block_stride(before);
}

int dram_room_nowait(struct pool *pool, u32 id, u64 near)
{
	u64 off;

	if (near == EXTENT_NONE)
		near = dram_near(pool, id);
	if (dram_alloc(pool, id, near, &off))
		return -ENOSPC;
	block_set_ext(pool, id, IN_DRAM, off);
	if (pool->dram_used_now > pool->high_bytes)
		reclaim_kick(pool);
	return 0;
}

int dram_room_easy(struct pool *pool, u32 id)
{
	u64 stride = block_stride(pool_block(pool, id));

	if (pool->dram_used_now + stride > pool->high_bytes + EASY_BYTES)
		return -ENOSPC;
	return dram_room_nowait(pool, id, EXTENT_NONE);
}

/* Nothing can be had where it belongs, for pins: it may lie where nobody can map it. */
static bool room_as_guest(struct pool *pool, u32 id)
{
	u64 off;

	if (dram_alloc_guest(pool, id, &off))
		return false;
	block_set_ext(pool, id, IN_DRAM, off);
	return true;
}

/* dram_room() once there is none: make some. */
static int make_room(struct pool *pool, u32 id, u64 near, u16 domain)
{
	u64 stride = block_stride(pool_block(pool, id));
	u64 deadline = 0;

	while (dram_room_nowait(pool, id, near)) {
		if (compact_dram(pool, domain, (u32)stride) && !dram_room_nowait(pool, id, near))
			return 0;
		if (domain_takeover(pool, domain, (u32)stride))
			continue;
		if (reclaim_dram(pool, domain_reclaim_bytes(pool, domain, (u32)stride)))
			continue;
		if (room_as_guest(pool, id))
			return 0;
		if (!deadline)
			deadline = clock_mono_ns() + ROOM_WAIT_MS * 1000000ull;
		else if (clock_mono_ns() > deadline || pool->stop)
			return kvc_err(-ENOMEM, dram_all_pinned);
		waitq_wait_ms(&pool->room_freed, &pool->lock, 20);
	}
	return 0;
}

int dram_room(struct pool *pool, u32 id, u64 near)
{
	u64 stride = block_stride(pool_block(pool, id));
	u16 domain;
	int err;

	if (stride > pool->dram_bytes)
		return kvc_err(-ENOMEM, dram_block_large);
	if (pool->dram_used_now + stride > pool->high_bytes + THROTTLE_BYTES)
		reclaim_dram(pool, stride);
	domain = domain_use(pool, pool_block(pool, id)->space);
	err = make_room(pool, id, near, domain);
	domain_unuse(pool, domain);
	return err;
}

/* ---- capacity ---- */

/* An unnamed block gives up its room in the capacity tier. */
static void drop_capacity(struct pool *pool, u32 id)
{
	struct block *b = pool_block(pool, id);
	enum block_tier t = pool->capacity;

	pool->evicted[t]++;
	if (t == IN_DRAM || b->ext[IN_DRAM] == EXTENT_NONE) {
		prefix_remove(pool, id);
		block_maybe_free(pool, id);
		return;
	}
	block_release_ext(pool, id, t);
	block_requeue(pool, id);
}

static u64 evict_capacity(struct pool *pool, u64 need)
{
	u64 freed = 0;

	while (freed < need) {
		u32 id = heap_pop(pool, pool->capacity);

		if (id == UINT32_MAX)
			break;
		freed += block_stride(pool_block(pool, id));
		drop_capacity(pool, id);
	}
	return freed;
}

static bool droppable(void *ctx, u32 owner)
{
	struct block *b = pool_block(ctx, owner);

	return !b->ref && !b->pin && !(b->flags & BLOCK_IO);
}

/*
 * No leaf is left, but parents may be whose descendants are named. They cannot wait for those. Rare, so
 * a walk over all blocks will do. Lock held, dropped now and then. Return: bytes freed.
 */
static u64 evict_parents(struct pool *pool, u64 need)
{
	u64 freed = 0;

	if (room_used(pool, pool->capacity) <=
	    pool->named_bytes_now + pool->limbo_bytes_now)
		return 0;
	for (u32 id = 0; id < pool->nr_ids && freed < need; id++) {
		struct block *b = pool_block(pool, id);

		if (b->flags & BLOCK_LIVE && b->ext[pool->capacity] != EXTENT_NONE &&
		    droppable(pool, id)) {
			freed += block_stride(b);
			drop_capacity(pool, id);
		}
		if (id % BREATHE == BREATHE - 1)
			pool_breathe(pool);
	}
	return freed;
}

static bool compact_capacity(struct pool *pool, u16 domain, u32 bytes)
{
	struct extents *room =
		pool->capacity == IN_DRAM ? pool->domains[domain].room : pool->nvme_room;
	struct extent_victims v = {.movable = droppable};
	int nr = find_victims(pool, room, bytes, &v), dropped = 0;

	for (int i = 0; i < nr; i++) {
		struct block *b = pool_block(pool, v.refs[i].owner);

		if (b->ext[pool->capacity] != v.refs[i].off || !droppable(pool, v.refs[i].owner))
			continue;
		drop_capacity(pool, v.refs[i].owner);
		dropped++;
	}
	free(v.refs);
	return dropped || !nr;
}

/*
 * Make removals durable so that their extents come out of limbo. A journal that is behind with its
 * space takes them in a few goes, each of which gets further. Lock held, dropped meanwhile.
 * Return: 1, 0 (there was nothing in limbo), -errno.
 */
static int drain_limbo(struct pool *pool)
{
	u64 seq = 0;
	int err = -ENOSPC;

	if (pool->limbo_head == pool->nr_limbo)
		return 0;
	for (int tries = 0; err == -ENOSPC && tries < DRAIN_TRIES; tries++) {
		int submitted = submit_locked(pool, NULL, 0, NULL, &seq);

		lock_release(&pool->lock);
		err = pool_commit(pool, submitted ? UINT64_MAX : seq);
		if (!err && !submitted)
			pool_meta_durable(pool, seq); /* the store's own call may come only later */
		lock_acquire(&pool->lock);
		if (!err)
			err = submitted;
	}
	return err ? err : 1;
}

/* Unnamed blocks have room that cannot be taken just now: they are moved or read. Wait for that. */
static bool wait_for_busy(struct pool *pool, u64 *deadline)
{
	if (room_used(pool, pool->capacity) <=
	    pool->named_bytes_now + pool->limbo_bytes_now)
		return false;
	if (!*deadline)
		*deadline = clock_mono_ns() + ROOM_WAIT_MS * 1000000ull;
	else if (clock_mono_ns() > *deadline)
		return false;
	waitq_wait_ms(&pool->room_freed, &pool->lock, 20);
	return true;
}

int capacity_room(struct pool *pool, u16 domain, u32 bytes, u64 total_bytes, u64 *deadline)
{
	enum block_tier t = pool->capacity;
	u64 free_bytes = room_size(pool, t) - pool->named_bytes_now, used = room_used(pool, t);
	u64 batch = min(CAPACITY_BATCH, free_bytes / 8), evicted;
	int drained;

	if (total_bytes > free_bytes)
		return kvc_err(-ENOSPC, tier_full);
	/* Much is free, but not in one piece: one run costs less than the cache's coldest blocks. */
	if (room_size(pool, t) - used >= total_bytes + batch &&
	    compact_capacity(pool, domain, bytes))
		return min(drain_limbo(pool), 0);
	if (t == IN_DRAM && domain_takeover(pool, domain, bytes))
		return 0;
	evicted = evict_capacity(pool, max(total_bytes, batch));
	if (!evicted)
		evicted = evict_parents(pool, max(total_bytes, batch));
	drained = drain_limbo(pool);
	if (drained < 0 && room_used(pool, t) >= used)
		return kvc_err(drained, removals_failed); /* evicting more would not help either */
	if (evicted || drained || compact_capacity(pool, domain, bytes))
		return 0;
	if (t == IN_DRAM && compact_dram(pool, domain, bytes))
		return 0;
	return wait_for_busy(pool, deadline) ? 0 : kvc_err(-ENOSPC, tier_fragmented);
}

/* ---- the reclaim thread ---- */

void reclaim_kick(struct pool *pool)
{
	waitq_wake_all(&pool->reclaim_wait);
}

void *reclaim_thread(void *arg)
{
	struct pool *pool = arg;

	lock_acquire(&pool->lock);
	while (!pool->stop) {
		if (pool->dram_used_now <= pool->high_bytes) {
			waitq_wait_ms(&pool->reclaim_wait, &pool->lock, 1000);
			continue;
		}
		while (!pool->stop && pool->dram_used_now > pool->low_bytes)
			if (!reclaim_dram(pool, pool->dram_used_now - pool->low_bytes))
				break;
		if (pool->dram_used_now > pool->high_bytes)
			waitq_wait_ms(&pool->reclaim_wait, &pool->lock, 20);
	}
	lock_release(&pool->lock);
	return NULL;
}
