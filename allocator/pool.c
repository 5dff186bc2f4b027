/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks and their names: descriptors, reference counts, pins, reservation of room.
 *
 * One lock protects all descriptors. It is held for a few loads and stores, never across a copy or a
 * transfer: whoever moves or writes a block's bytes sets BLOCK_IO, drops the lock, works, takes the
 * lock and clears it; others wait on the block's queue. Nobody waits for one block's I/O while
 * holding another's, so no cycle can form.
 */
#include <stdlib.h>
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/clock.h"
#include "allocator/base/err.h"
#include "allocator/base/fault.h"
#include "allocator/pool_types.h"

/* ---- descriptors ---- */

int block_chunk_add(struct pool *pool)
{
	struct block *chunk;

	if (pool->nr_chunks == BLOCK_MAX_ID / BLOCK_CHUNK)
		return -ENOMEM;
	chunk = calloc(BLOCK_CHUNK, sizeof(*chunk));
	if (!chunk)
		return -ENOMEM;
	pool->chunks[pool->nr_chunks++] = chunk;
	return 0;
}

u32 block_new(struct pool *pool, u32 bytes, u32 space)
{
	u32 id = pool->free_head, gen;
	struct block *b;

	if (fault_point(FAULT_MEMORY))
		return UINT32_MAX;
	if (id == UINT32_MAX) {
		if (pool->nr_ids == pool->nr_chunks * BLOCK_CHUNK && block_chunk_add(pool))
			return UINT32_MAX;
		id = pool->nr_ids++;
	} else {
		pool->free_head = pool_block(pool, id)->hash_next;
	}
	b = pool_block(pool, id);
	gen = b->gen;
	*b = (struct block){.gen = gen ? gen : 1,
			    .flags = BLOCK_LIVE | BLOCK_EMPTY | (space ? BLOCK_KV : 0),
			    .bytes = bytes,
			    .space = space,
			    .priority = 50,
			    .hash_next = UINT32_MAX,
			    .last_use = ++pool->clock,
			    .ext = {EXTENT_NONE, EXTENT_NONE},
			    .heap_pos = {HEAP_NONE, HEAP_NONE}};
	pool->live_blocks_now++;
	pool->cached_blocks_now++;
	return id;
}

static void block_free(struct pool *pool, u32 id)
{
	struct block *b = pool_block(pool, id);

	for (int t = 0; t < NR_BLOCK_TIERS; t++)
		block_release_ext(pool, id, t);
	block_requeue(pool, id);
	free(b->ids);
	pool->live_blocks_now--;
	pool->cached_blocks_now--;
	*b = (struct block){.gen = b->gen + 1, .hash_next = pool->free_head};
	pool->free_head = id;
}

bool block_maybe_free(struct pool *pool, u32 id)
{
	struct block *b = pool_block(pool, id);

	if (b->ref || b->pin || b->flags & (BLOCK_INDEXED | BLOCK_IO))
		return false;
	block_free(pool, id);
	return true;
}

void block_set_ext(struct pool *pool, u32 id, enum block_tier tier, u64 off)
{
	struct block *b = pool_block(pool, id);

	kvc_assert(b->ext[tier] == EXTENT_NONE);
	b->ext[tier] = off;
	pool->copies_now[tier]++;
	prefix_kids(pool, b, tier, 1);
}

void block_release_ext(struct pool *pool, u32 id, enum block_tier tier)
{
	struct block *b = pool_block(pool, id);

	if (b->ext[tier] == EXTENT_NONE)
		return;
	warm_forget(pool, id);
	if (tier == IN_NVME && b->flags & BLOCK_RECORDED) {
		limbo_add(pool, id, b->ext[tier], block_stride(b));
		b->flags &= ~BLOCK_RECORDED;
	} else if (tier == IN_NVME) {
		extents_free(pool->nvme_room, b->ext[tier], block_stride(b));
	} else {
		dram_free(pool, b->ext[tier], block_stride(b));
	}
	b->ext[tier] = EXTENT_NONE;
	b->flags &= tier == IN_DRAM ? ~BLOCK_DRAM_VALID : ~(BLOCK_NVME_VALID | BLOCK_FLUSHING);
	pool->copies_now[tier]--;
	prefix_kids(pool, b, tier, -1);
	if (tier == IN_DRAM)
		waitq_wake_all(&pool->room_freed);
}

void block_wait_io(struct pool *pool, u32 id)
{
	while (pool_block(pool, id)->flags & BLOCK_IO)
		waitq_wait(&pool->io_done[id % POOL_WAITQS], &pool->lock);
}

void block_io_begin(struct pool *pool, u32 id)
{
	struct block *b = pool_block(pool, id);

	KVC_BUG_ON(b->flags & BLOCK_IO || !(b->flags & BLOCK_LIVE));
	b->flags |= BLOCK_IO;
}

void block_io_end(struct pool *pool, u32 id)
{
	struct block *b = pool_block(pool, id);

	KVC_BUG_ON(!(b->flags & BLOCK_IO));
	b->flags &= ~BLOCK_IO;
	waitq_wake_all(&pool->io_done[id % POOL_WAITQS]);
	waitq_wake_all(&pool->room_freed);
	if (!block_maybe_free(pool, id))
		block_requeue(pool, id);
}

int idvec_push(struct idvec *vec, u32 id, u32 gen)
{
	if (vec->nr == vec->max) {
		u32 size = vec->max ? vec->max * 2 : 256;
		struct idgen *v = NULL;

		if (!fault_point(FAULT_MEMORY))
			v = reallocarray(vec->v, size, sizeof(*v));
		if (!v)
			return -ENOMEM;
		vec->v = v;
		vec->max = size;
	}
	vec->v[vec->nr++] = (struct idgen){id, gen};
	return 0;
}

/* ---- names ---- */

/* Named pins are budgeted: beyond it a block is only the last to go. */
static void block_set_class(struct pool *pool, struct block *b, enum block_class class)
{
	if (b->class == CLASS_PINNED)
		pool->kept_bytes_now -= block_stride(b);
	if (class == CLASS_PINNED && pool->kept_bytes_now + block_stride(b) > pool->kept_max_bytes)
		class = CLASS_DECODING;
	b->class = class;
	if (class == CLASS_PINNED)
		pool->kept_bytes_now += block_stride(b);
}

/* Room in the capacity tier. */
static int reserve(struct pool *pool, u32 id, u64 near, u64 *off)
{
	if (pool->capacity == IN_DRAM)
		return dram_alloc(pool, id, near, off);
	return extents_alloc(pool->nvme_room, block_stride(pool_block(pool, id)), near, id, off);
}

int block_named(struct pool *pool, u32 id)
{
	struct block *b = pool_block(pool, id);
	enum block_tier t = pool->capacity;

	if (b->ref++)
		return 0;
	if (b->ext[t] == EXTENT_NONE) {
		u64 off;

		if (reserve(pool, id, EXTENT_NONE, &off)) {
			b->ref--;
			return -ENOSPC;
		}
		block_set_ext(pool, id, t, off);
	}
	block_set_class(pool, b, CLASS_IDLE);
	pool->named_bytes_now += block_stride(b);
	pool->cached_blocks_now--;
	block_requeue(pool, id);
	return 0;
}

void block_unnamed(struct pool *pool, u32 id)
{
	struct block *b = pool_block(pool, id);

	KVC_BUG_ON(!b->ref);
	if (--b->ref)
		return;
	block_set_class(pool, b, CLASS_CACHED);
	pool->named_bytes_now -= block_stride(b);
	pool->cached_blocks_now++;
	if (b->flags & BLOCK_BAD)
		prefix_remove(pool, id);
	if (!block_maybe_free(pool, id))
		block_requeue(pool, id);
}

void pool_get(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < nr; i++) {
		struct block *b;

		if (BLOCK_IS_NONE(ids[i]))
			continue;
		b = pool_block(pool, ids[i].v);
		KVC_BUG_ON(!b->ref || b->ref == UINT32_MAX);
		b->ref++;
		if (i % BREATHE == BREATHE - 1)
			pool_breathe(pool);
	}
	lock_release(&pool->lock);
}

void pool_put(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	lock_acquire(&pool->lock);
	/* Last first: a chain's tail becomes a candidate before its head. */
	while (nr--) {
		if (!BLOCK_IS_NONE(ids[nr]))
			block_unnamed(pool, ids[nr].v);
		if (nr % BREATHE == BREATHE - 1)
			pool_breathe(pool);
	}
	lock_release(&pool->lock);
}

/* One block with its reservation, lock held; -EAGAIN: make room and try again. */
static int alloc_one(struct pool *pool, const struct pool_want *want, u64 near, u32 *id)
{
	enum block_tier t = pool->capacity;
	u64 off;
	int err;

	*id = block_new(pool, want->bytes, want->space);
	if (*id == UINT32_MAX)
		return -ENOMEM;
	err = fault_point(FAULT_SPACE) ? -ENOSPC : reserve(pool, *id, near, &off);
	if (err) {
		block_maybe_free(pool, *id);
		return err == -ENOSPC ? -EAGAIN : err;
	}
	block_set_ext(pool, *id, t, off);
	return block_named(pool, *id);
}

/* Where a block behind @near would best lie. */
static u64 near_offset(struct pool *pool, struct block_id near, enum block_tier tier)
{
	struct block *b;

	if (BLOCK_IS_NONE(near) || near.v >= pool->nr_ids)
		return EXTENT_NONE;
	b = pool_block(pool, near.v);
	if (!(b->flags & BLOCK_LIVE) || b->ext[tier] == EXTENT_NONE)
		return EXTENT_NONE;
	return b->ext[tier] + block_stride(b);
}

int pool_alloc(struct pool *pool, const struct pool_want *want, unsigned int nr,
	       struct block_id *ids)
{
	u64 stride = round_up_pow2(want->bytes, KVC_PAGE_SIZE);
	struct block_id near = want->near;
	unsigned int done = 0;
	u64 deadline = 0;
	u16 domain;
	int err = 0;

	lock_assert_none();
	if (!want->bytes || want->bytes > BLOCK_MAX_BYTES)
		return kvc_err(-EINVAL, block_size_bad);
	lock_acquire(&pool->lock);
	domain = domain_use(pool, want->space);
	while (done < nr && !err) {
		u64 near_off = near_offset(pool, near, pool->capacity);

		err = alloc_one(pool, want, near_off, &ids[done].v);
		if (!err)
			near = ids[done++];
		else if (err == -EAGAIN)
			err = capacity_room(pool, domain, (u32)stride, (nr - done) * stride,
					    &deadline);
	}
	domain_unuse(pool, domain);
	if (err)
		while (done--)
			block_unnamed(pool, ids[done].v);
	lock_release(&pool->lock);
	return err;
}

/* ---- pins ---- */

void pool_pin_locked(struct pool *pool, u32 id)
{
	struct block *b = pool_block(pool, id);

	b->last_use = ++pool->clock;
	if (b->pin++)
		return;
	pool->pinned_bytes_now += block_stride(b);
	block_requeue(pool, id);
}

static void unpin_locked(struct pool *pool, u32 id)
{
	struct block *b = pool_block(pool, id);

	KVC_BUG_ON(!b->pin);
	if (--b->pin)
		return;
	pool->pinned_bytes_now -= block_stride(b);
	if (!block_maybe_free(pool, id))
		block_requeue(pool, id);
	waitq_wake_all(&pool->room_freed);
}

bool pool_try_pin(struct pool *pool, const struct block_id *ids, unsigned int nr,
		  const void **addrs)
{
	unsigned int i;

	lock_acquire(&pool->lock);
	for (i = 0; i < nr; i++) {
		struct block *b;

		if (BLOCK_IS_NONE(ids[i]))
			continue;
		b = pool_block(pool, ids[i].v);
		if (b->flags & (BLOCK_IO | BLOCK_BAD) ||
		    !(b->flags & (BLOCK_EMPTY | BLOCK_DRAM_VALID)))
			break;
	}
	if (i == nr) {
		for (i = 0; i < nr; i++) {
			struct block *b;

			addrs[i] = NULL;
			if (BLOCK_IS_NONE(ids[i]))
				continue;
			b = pool_block(pool, ids[i].v);
			pool_pin_locked(pool, ids[i].v);
			if (!(b->flags & BLOCK_EMPTY))
				addrs[i] = block_addr(pool, b);
		}
		pool->reads_resident += nr;
	}
	lock_release(&pool->lock);
	return i == nr;
}

/* Bring it in; the caller has pinned it, the lock is held and dropped meanwhile. */
static int load_pinned(struct pool *pool, u32 id)
{
	struct block *b = pool_block(pool, id);
	u64 start = clock_mono_ns();
	int err;

	block_io_begin(pool, id);
	err = dram_room(pool, id, EXTENT_NONE);
	if (err) {
		block_io_end(pool, id);
	} else {
		demand_begin(pool);
		migrate_in(pool, &id, 1);
		demand_end(pool);
		err = b->flags & BLOCK_DRAM_VALID ? 0 : -EIO;
	}
	pool->stall_ns += clock_mono_ns() - start;
	pool->reads_cold++;
	return err;
}

int pool_pin(struct pool *pool, struct block_id id, const void **addr)
{
	struct block *b;
	int err = 0;

	lock_assert_none();
	lock_acquire(&pool->lock);
	b = pool_block(pool, id.v);
	KVC_BUG_ON(!(b->flags & BLOCK_LIVE));
	block_wait_io(pool, id.v); /* before the pin: a writer has BLOCK_IO and waits for pins */
	if (b->flags & BLOCK_BAD) {
		err = kvc_err(-EIO, block_bad);
	} else {
		pool_pin_locked(pool, id.v);
		if (!(b->flags & (BLOCK_EMPTY | BLOCK_DRAM_VALID)))
			err = load_pinned(pool, id.v);
		if (err)
			unpin_locked(pool, id.v);
	}
	if (!err)
		*addr = b->flags & BLOCK_EMPTY ? NULL : block_addr(pool, b);
	lock_release(&pool->lock);
	return err;
}

void pool_unpin(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < nr; i++)
		if (!BLOCK_IS_NONE(ids[i]))
			unpin_locked(pool, ids[i].v);
	lock_release(&pool->lock);
}

/* ---- writing in place ---- */

static bool writable_locked(const struct block *b)
{
	return b->ref == 1 && !(b->flags & (BLOCK_SEALED | BLOCK_RECORDED | BLOCK_BAD));
}

bool pool_writable(struct pool *pool, struct block_id id)
{
	bool writable;

	lock_acquire(&pool->lock);
	writable = writable_locked(pool_block(pool, id.v));
	lock_release(&pool->lock);
	return writable;
}

bool pool_sealed(struct pool *pool, struct block_id id)
{
	bool sealed;

	lock_acquire(&pool->lock);
	sealed = pool_block(pool, id.v)->flags & BLOCK_SEALED;
	lock_release(&pool->lock);
	return sealed;
}

u32 pool_bytes(struct pool *pool, struct block_id id)
{
	u32 bytes;

	lock_acquire(&pool->lock);
	bytes = pool_block(pool, id.v)->bytes;
	lock_release(&pool->lock);
	return bytes;
}

/* Give an EMPTY block memory. BLOCK_IO is set; lock held, dropped meanwhile. */
static int materialise(struct pool *pool, u32 id, bool whole)
{
	struct block *b = pool_block(pool, id);
	int err = b->ext[IN_DRAM] == EXTENT_NONE ? dram_room(pool, id, EXTENT_NONE) : 0;

	if (err)
		return err;
	lock_release(&pool->lock);
	if (!whole)
		memset(block_addr(pool, b), 0, block_stride(b));
	else if (b->bytes < block_stride(b))
		memset(block_addr(pool, b) + b->bytes, 0, block_stride(b) - b->bytes);
	lock_acquire(&pool->lock);
	b->flags = (b->flags & ~BLOCK_EMPTY) | BLOCK_DRAM_VALID;
	return 0;
}

/* Ready for in-place writing or hashing: BLOCK_IO set and bytes in DRAM. Lock held. */
static int begin_exclusive(struct pool *pool, u32 id, bool whole)
{
	struct block *b = pool_block(pool, id);
	int err;

	for (;;) {
		block_wait_io(pool, id);
		if (b->flags & BLOCK_BAD)
			return kvc_err(-EIO, block_bad_write);
		if (b->flags & (BLOCK_EMPTY | BLOCK_DRAM_VALID))
			break;
		pool_pin_locked(pool, id);
		err = load_pinned(pool, id);
		unpin_locked(pool, id);
		if (err)
			return err;
	}
	block_io_begin(pool, id);
	if (!(b->flags & BLOCK_EMPTY))
		return 0;
	err = materialise(pool, id, whole);
	if (err)
		block_io_end(pool, id);
	return err;
}

int block_materialise(struct pool *pool, u32 id)
{
	int err = begin_exclusive(pool, id, false);

	if (!err)
		block_io_end(pool, id);
	return err;
}

int pool_begin_write(struct pool *pool, struct block_id id, bool whole, void **addr)
{
	struct block *b;
	int err;

	lock_assert_none();
	lock_acquire(&pool->lock);
	b = pool_block(pool, id.v);
	KVC_BUG_ON(b->flags & (BLOCK_SEALED | BLOCK_RECORDED));
	err = begin_exclusive(pool, id.v, whole);
	if (!err) {
		/* A reader may hold a passing name: it sees old bytes of the block or new ones. */
		while (b->pin > b->held)
			waitq_wait(&pool->room_freed, &pool->lock);
		b->flags &= ~BLOCK_NVME_VALID;
		*addr = block_addr(pool, b);
	}
	lock_release(&pool->lock);
	return err;
}

void pool_end_write(struct pool *pool, struct block_id id)
{
	lock_acquire(&pool->lock);
	pool_block(pool, id.v)->last_use = ++pool->clock;
	block_io_end(pool, id.v);
	lock_release(&pool->lock);
}

/*
 * Two blocks in DRAM at once. Who holds a place there and waits for another could wait for somebody
 * who does the same, and both for good. So the second is taken without waiting; where that fails,
 * everything is let go of and taken again while nobody else holds and waits.
 */
static void pair_begin(struct pool *pool)
{
	lock_acquire(&pool->lock);
	while (pool->pairing)
		waitq_wait(&pool->room_freed, &pool->lock);
	pool->pairing = true;
	lock_release(&pool->lock);
}

static void pair_end(struct pool *pool)
{
	lock_acquire(&pool->lock);
	pool->pairing = false;
	waitq_wake_all(&pool->room_freed);
	lock_release(&pool->lock);
}

/* Pin a new block, with a place in DRAM if there is one free. Return: whether it is pinned. */
static bool try_pin_new(struct pool *pool, u32 id)
{
	bool got;

	lock_acquire(&pool->lock);
	pool_pin_locked(pool, id);
	block_io_begin(pool, id);
	got = pool_block(pool, id)->ext[IN_DRAM] != EXTENT_NONE ||
	      !dram_room_nowait(pool, id, EXTENT_NONE);
	block_io_end(pool, id);
	if (!got)
		unpin_locked(pool, id);
	lock_release(&pool->lock);
	return got;
}

/** struct copy - the leading @bytes of a block to one that was just allocated. */
struct copy {
	struct block_id src, dst;
	u32 bytes;
	bool whole;
};

/* Into a new block: if anybody has it pinned, it is the caller. */
static int copy_from(struct pool *pool, const struct copy *c, const void *from)
{
	struct block *b;
	int err;

	lock_acquire(&pool->lock);
	b = pool_block(pool, c->dst.v);
	err = begin_exclusive(pool, c->dst.v, c->whole);
	lock_release(&pool->lock);
	if (err)
		return err;
	memcpy(block_addr(pool, b), from, c->bytes);
	pool_end_write(pool, c->dst);
	return 0;
}

static int copy_paired(struct pool *pool, const struct copy *c)
{
	const void *from;
	int err;

	pair_begin(pool);
	err = pool_pin(pool, c->src, &from);
	if (!err) {
		err = copy_from(pool, c, from);
		pool_unpin(pool, &c->src, 1);
	}
	pair_end(pool);
	return err;
}

static int copy_bytes(struct pool *pool, const struct copy *c)
{
	const void *from;
	bool got;
	int err = pool_pin(pool, c->src, &from);

	if (err)
		return err;
	got = from && try_pin_new(pool, c->dst.v);
	if (got) {
		err = copy_from(pool, c, from);
		pool_unpin(pool, &c->dst, 1);
	}
	pool_unpin(pool, &c->src, 1);
	return got || !from ? err : copy_paired(pool, c);
}

int pool_copy(struct pool *pool, struct block_id src, u32 bytes, struct block_id *dst)
{
	struct pool_want want = {.bytes = bytes, .near = src};
	struct copy copy = {.src = src};
	u32 have;
	int err;

	lock_acquire(&pool->lock);
	want.space = pool_block(pool, src.v)->space;
	have = pool_block(pool, src.v)->bytes;
	lock_release(&pool->lock);
	err = pool_alloc(pool, &want, 1, dst);
	if (err)
		return err;
	copy.dst = *dst;
	copy.bytes = min(have, bytes);
	copy.whole = have >= bytes;
	err = copy_bytes(pool, &copy);
	if (err)
		pool_put(pool, dst, 1);
	return err;
}

static int compare_paired(struct pool *pool, struct block_id a, struct block_id b, u32 bytes)
{
	const void *pa, *pb;
	int err;

	pair_begin(pool);
	err = pool_pin(pool, a, &pa);
	if (!err) {
		err = pool_pin(pool, b, &pb);
		if (!err) {
			err = !memcmp(pa, pb, bytes);
			pool_unpin(pool, &b, 1);
		}
		pool_unpin(pool, &a, 1);
	}
	pair_end(pool);
	return err;
}

static int compare(struct pool *pool, struct block_id a, struct block_id b, u32 bytes)
{
	const void *pa, *pb;
	int same = pool_pin(pool, a, &pa);
	bool got;

	if (same)
		return same;
	got = pool_try_pin(pool, &b, 1, &pb);
	if (got) {
		same = !memcmp(pa, pb, bytes);
		pool_unpin(pool, &b, 1);
	}
	pool_unpin(pool, &a, 1);
	return got ? same : compare_paired(pool, a, b, bytes);
}

int pool_same_bytes(struct pool *pool, struct block_id a, struct block_id b)
{
	struct block *ba, *bb;
	bool same;
	u32 bytes;

	lock_acquire(&pool->lock);
	ba = pool_block(pool, a.v);
	bb = pool_block(pool, b.v);
	same = ba->flags & bb->flags & BLOCK_SEALED && ba->csum == bb->csum &&
	       ba->bytes == bb->bytes;
	bytes = ba->bytes;
	lock_release(&pool->lock);
	return same ? compare(pool, a, b, bytes) : 0;
}

/* ---- sealing ---- */

static int seal_one(struct pool *pool, u32 id)
{
	struct block *b = pool_block(pool, id);
	u64 csum;
	int err;

	block_wait_io(pool, id);
	if (b->flags & BLOCK_SEALED)
		return 0;
	if (b->flags & BLOCK_NVME_VALID) { /* spilled while open: checksummed when it left */
		if (b->flags & BLOCK_RECORDED && block_stale(pool, id))
			return -ENOMEM;
		b->flags |= BLOCK_SEALED;
		return 0;
	}
	err = begin_exclusive(pool, id, false);
	if (err)
		return err;
	lock_release(&pool->lock);
	csum = hash_bytes(block_addr(pool, b), block_stride(b));
	lock_acquire(&pool->lock);
	b->csum = csum;
	b->flags = (b->flags & ~BLOCK_FILLING) | BLOCK_SEALED;
	block_io_end(pool, id);
	return 0;
}

int pool_seal(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	int err = 0;

	lock_assert_none();
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < nr && !err; i++)
		if (!BLOCK_IS_NONE(ids[i]))
			err = seal_one(pool, ids[i].v);
	lock_release(&pool->lock);
	if (!err && pool->write_through)
		err = pool_writeback(pool, ids, nr);
	return err;
}

void pool_touch(struct pool *pool, const struct block_id *ids, unsigned int nr,
		enum block_class class, u8 priority)
{
	u64 now;

	lock_acquire(&pool->lock);
	now = ++pool->clock;
	for (unsigned int i = 0; i < nr; i++) {
		struct block *b;

		if (BLOCK_IS_NONE(ids[i]))
			continue;
		b = pool_block(pool, ids[i].v);
		b->last_use = now;
		b->priority = priority;
		/* A shared block follows its most demanding name; alone, it follows its owner. */
		if (b->ref == 1 || (b->ref && class > b->class))
			block_set_class(pool, b, class);
		block_requeue(pool, ids[i].v);
		if (i % BREATHE == BREATHE - 1)
			pool_breathe(pool);
	}
	lock_release(&pool->lock);
}

void pool_unkeep(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < nr; i++) {
		struct block *b;

		if (BLOCK_IS_NONE(ids[i]))
			continue;
		b = pool_block(pool, ids[i].v);
		if (b->class != CLASS_PINNED)
			continue;
		block_set_class(pool, b, CLASS_IDLE);
		block_requeue(pool, ids[i].v);
	}
	lock_release(&pool->lock);
}
