/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking over what an earlier daemon left in DRAM.
 *
 *	slabs	go to the domain of the owner they had. Where there is no such namespace any more, or the
 *		index is not sure, the slab gets a fresh file: no other domain sees what was in it
 *	content	is claimed where a block's record agrees with the entry in everything, then hashed, by
 *		several threads; only what has its record's checksum becomes the block's copy
 *	places	that clients of that daemon map are kept: as pins of the block that is there, else as
 *		orphans, until pool_warm_release()
 *
 * The index stays right all the while: an entry that is taken over stays in its slot, the others are
 * cleared while nothing uses their room. A daemon that is killed here leaves it to the next.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/base/hash.h"
#include "allocator/base/log.h"
#include "allocator/grow.h"
#include "allocator/pool_types.h"

#define HASHERS_MAX 16

/** struct takeover - on the way. */
struct takeover {
	struct pool *pool;
	struct warm *warm;
	u32 nr_used;	   /* entries to look at */
	bool *renew;	   /* by slab */
	bool *mapped;	   /* by slab: clients have it mapped */
	u32 *ids;	   /* blocks that were claimed */
	bool *right;	   /* of these, which have the right bytes; each written by one thread */
	u32 nr, max;
	_Atomic u32 next;  /* of ids, to be hashed */
};

static const struct warm_entry *entry_at(const struct takeover *t, u32 slot, enum warm_kind kind)
{
	const struct warm_entry *e = &t->warm->entries[slot - 1];

	return warm_entry_good(e) && e->kind == kind ? e : NULL;
}

static u64 stride_of(const struct warm_entry *e)
{
	return round_up_pow2((u64)e->bytes, KVC_PAGE_SIZE);
}

/* Does it say something that can be? */
static bool in_dram(const struct takeover *t, const struct warm_entry *e)
{
	u64 size = t->pool->dram_bytes;

	return e->bytes && e->bytes <= BLOCK_MAX_BYTES && e->off < size &&
	       stride_of(e) <= size - e->off;
}

/* ---- slabs ---- */

/* Which slabs clients map: there, nothing may be emptied. */
static void find_mapped(struct takeover *t)
{
	for (u32 slot = 1; slot <= t->nr_used; slot++) {
		const struct warm_entry *e = entry_at(t, slot, WARM_PLACE);

		if (e && in_dram(t, e))
			t->mapped[e->off / t->pool->slab_bytes] = true;
	}
}

/* Lock held. Return: whether the slab can be used as it is. */
static bool adopt_slab(struct takeover *t, u32 slab)
{
	const struct warm_slab *w = &t->warm->slabs[slab];
	struct pool_owner owner = {w->uid, w->gid, w->mode};

	if (!warm_slab_good(t->warm, slab))
		return false;
	if (w->flags & WARM_SLAB_DOMAIN && domain_adopt(t->pool, slab, &owner))
		return false;
	t->pool->slabs[slab].touched = w->flags & WARM_SLAB_TOUCHED;
	return true;
}

static int take_slabs(struct takeover *t)
{
	struct pool *pool = t->pool;
	int err = 0;

	lock_acquire(&pool->lock);
	for (u32 i = 0; i < pool->nr_slabs; i++)
		t->renew[i] = !adopt_slab(t, i);
	lock_release(&pool->lock);
	for (u32 i = 0; i < pool->nr_slabs && !err; i++) {
		if (!t->renew[i])
			continue;
		err = tier_renew(pool->tier[IN_DRAM], i, !t->mapped[i]);
		warm_file(pool, i);
	}
	return err;
}

/* ---- content ---- */

static bool agrees(struct takeover *t, const struct warm_entry *e)
{
	const u32 need = BLOCK_LIVE | BLOCK_RECORDED | BLOCK_NVME_VALID;
	struct pool *pool = t->pool;
	const struct block *b;

	if (!in_dram(t, e) || e->id >= pool->nr_ids || t->renew[e->off / pool->slab_bytes])
		return false;
	b = pool_block(pool, e->id);
	return (b->flags & need) == need && b->bytes == e->bytes && b->csum == e->csum && b->ext[IN_NVME] == e->nvme_off &&
	       b->ext[IN_DRAM] == EXTENT_NONE &&
	       domain_at(pool, e->off) == domain_of_space(pool, b->space);
}

/* Lock held. */
static bool claim_content(struct takeover *t, u32 slot, const struct warm_entry *e)
{
	struct block *b;

	if (!agrees(t, e) || grow_array(&t->ids, &t->max, t->nr + 1ull, sizeof(*t->ids)) ||
	    dram_claim(t->pool, e->id, e->off, (u32)stride_of(e)))
		return false;
	b = pool_block(t->pool, e->id);
	block_set_ext(t->pool, e->id, IN_DRAM, e->off);
	b->warm[WARM_CONTENT] = slot;
	t->warm->nr_content++;
	t->ids[t->nr++] = e->id;
	return true;
}

static void claim_contents(struct takeover *t)
{
	lock_acquire(&t->pool->lock);
	for (u32 slot = 1; slot <= t->nr_used; slot++) {
		const struct warm_entry *e = entry_at(t, slot, WARM_CONTENT);

		if (e && !claim_content(t, slot, e))
			warm_slot_put(t->warm, slot);
	}
	lock_release(&t->pool->lock);
}

static void *hash_some(void *arg)
{
	struct takeover *t = arg;
	u32 i;

	while ((i = atomic_fetch_add(&t->next, 1)) < t->nr) {
		const struct block *b = pool_block(t->pool, t->ids[i]);

		t->right[i] = hash_bytes(block_addr(t->pool, b), block_stride(b)) == b->csum;
	}
	return NULL;
}

/* Nobody else is there yet: nothing of this is under the lock. */
static void hash_all(struct takeover *t)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	pthread_t threads[HASHERS_MAX];
	u32 nr = 0, want = (u32)min(max(cpus, 1l), (long)HASHERS_MAX) - 1;

	while (nr < want && !pthread_create(&threads[nr], NULL, hash_some, t))
		nr++;
	hash_some(t);
	while (nr--)
		pthread_join(threads[nr], NULL);
}

static void settle_contents(struct takeover *t, struct pool_warm_stats *stats)
{
	struct pool *pool = t->pool;

	lock_acquire(&pool->lock);
	for (u32 i = 0; i < t->nr; i++) {
		struct block *b = pool_block(pool, t->ids[i]);

		if (t->right && t->right[i]) {
			b->flags |= BLOCK_DRAM_VALID;
			b->last_use = ++pool->clock;
			stats->blocks++;
			pool->restored++;
			stats->bytes += block_stride(b);
		} else {
			stats->refused++;
			block_release_ext(pool, t->ids[i], IN_DRAM);
		}
		block_requeue(pool, t->ids[i]);
	}
	lock_release(&pool->lock);
}

static void take_contents(struct takeover *t, struct pool_warm_stats *stats)
{
	claim_contents(t);
	t->right = calloc(t->nr + 1ul, sizeof(*t->right));
	if (t->right)
		hash_all(t);
	settle_contents(t, stats);
}

/* ---- places ---- */

static bool hold_block(struct takeover *t, u32 slot, const struct warm_entry *e)
{
	struct warm *warm = t->warm;
	struct block *b;

	if (e->id >= t->pool->nr_ids)
		return false;
	b = pool_block(t->pool, e->id);
	if (!(b->flags & BLOCK_DRAM_VALID) || b->ext[IN_DRAM] != e->off || b->bytes != e->bytes || b->warm[WARM_PLACE] ||
	    grow_array(&warm->legacy, &warm->max_legacy, warm->nr_legacy + 1ull,
		       sizeof(*warm->legacy)))
		return false;
	pool_pin_locked(t->pool, e->id);
	b->held++;
	b->warm[WARM_PLACE] = slot;
	warm->legacy[warm->nr_legacy++].v = e->id;
	return true;
}

static bool keep_orphan(struct takeover *t, u32 slot, const struct warm_entry *e)
{
	struct warm *warm = t->warm;
	u32 stride = (u32)stride_of(e);

	if (t->renew[e->off / t->pool->slab_bytes] || e->off % KVC_PAGE_SIZE ||
	    grow_array(&warm->orphans, &warm->max_orphans, warm->nr_orphans + 1ull,
		       sizeof(*warm->orphans)) ||
	    dram_claim(t->pool, EXTENT_NO_OWNER, e->off, stride))
		return false;
	warm->orphans[warm->nr_orphans++] = (struct orphan){e->off, stride, slot};
	warm->orphan_bytes += stride;
	return true;
}

static void take_places(struct takeover *t, struct pool_warm_stats *stats)
{
	lock_acquire(&t->pool->lock);
	for (u32 slot = 1; slot <= t->nr_used; slot++) {
		const struct warm_entry *e = entry_at(t, slot, WARM_PLACE);

		if (e && (!in_dram(t, e) ||
			  (!hold_block(t, slot, e) && !keep_orphan(t, slot, e))))
			warm_slot_put(t->warm, slot);
	}
	stats->held_blocks = t->warm->nr_legacy;
	stats->held_bytes = t->warm->orphan_bytes;
	lock_release(&t->pool->lock);
}

/* ---- all of it ---- */

/* Slots that nothing is in. What claims and places left is where it was. */
static void free_slots(struct takeover *t)
{
	for (u32 slot = t->nr_used; slot; slot--)
		if (!warm_entry_good(&t->warm->entries[slot - 1]))
			warm_slot_put(t->warm, slot);
}

static int takeover_init(struct takeover *t, struct pool *pool)
{
	*t = (struct takeover){.pool = pool, .warm = pool->warm};
	t->nr_used = pool->warm->header->nr_used;
	t->renew = calloc(pool->nr_slabs, sizeof(*t->renew));
	t->mapped = calloc(pool->nr_slabs, sizeof(*t->mapped));
	return t->renew && t->mapped ? 0 : -ENOMEM;
}

int pool_warm_load(struct pool *pool, struct pool_warm_stats *stats)
{
	struct takeover t;
	int err;

	*stats = (struct pool_warm_stats){0};
	if (!pool->warm || !pool->warm->taken)
		return 0;
	err = takeover_init(&t, pool);
	if (!err) {
		find_mapped(&t);
		err = take_slabs(&t);
	}
	if (!err) {
		free_slots(&t);
		take_contents(&t, stats);
		take_places(&t, stats);
	}
	pool->warm->taken = err;
	lock_acquire(&pool->lock);
	for (u32 i = 0; i < pool->nr_slabs && !err; i++)
		warm_slab(pool, i);
	lock_release(&pool->lock);
	free(t.renew);
	free(t.mapped);
	free(t.ids);
	free(t.right);
	return err;
}

void pool_warm_release(struct pool *pool)
{
	struct warm *warm = pool->warm;
	struct block_id *legacy;
	u32 nr;

	if (!warm)
		return;
	lock_acquire(&pool->lock);
	for (u32 i = 0; i < warm->nr_orphans; i++) {
		warm_slot_put(warm, warm->orphans[i].slot);
		dram_free(pool, warm->orphans[i].off, warm->orphans[i].bytes);
	}
	warm->nr_orphans = 0;
	warm->orphan_bytes = 0;
	legacy = warm->legacy;
	nr = warm->nr_legacy;
	warm->legacy = NULL;
	warm->nr_legacy = warm->max_legacy = 0;
	waitq_wake_all(&pool->room_freed);
	lock_release(&pool->lock);
	pool_unhold(pool, legacy, nr);
	free(legacy);
}
