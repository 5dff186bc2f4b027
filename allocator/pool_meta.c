/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of blocks and chain roots, and what happens to extents around a crash.
 *
 * A block's record is submitted only after its bytes are durable, a removal only after the table
 * that named it was submitted without it. An extent of a recorded block is reused only after the
 * removal is durable: until then it is in limbo. So whatever the journal says after a crash, the
 * bytes it points at are the ones it was written for.
 */
#include <stdlib.h>
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/base/textbuf.h"
#include "allocator/pool_format.h"
#include "allocator/pool_types.h"

#define RECORD_BATCH 1024	/* records in one transaction of our own */
#define ROOT_BATCH_BYTES MIB(1)
#define FREE_BATCH   4096	/* extents freed at once */

/* ---- limbo ---- */

/* A longer array, or the old one without what is done with. */
static int limbo_grow(struct pool *pool)
{
	u32 max_nr = pool->max_limbo ? pool->max_limbo * 2 : 256;
	struct limbo *limbo;

	if (pool->limbo_head > pool->nr_limbo / 2) {
		pool->nr_limbo -= pool->limbo_head;
		pool->limbo_open -= pool->limbo_head;
		memmove(pool->limbo, pool->limbo + pool->limbo_head,
			pool->nr_limbo * sizeof(*pool->limbo));
		pool->limbo_head = 0;
		return 0;
	}
	limbo = reallocarray(pool->limbo, max_nr, sizeof(*limbo));
	if (!limbo)
		return -ENOMEM;
	pool->limbo = limbo;
	pool->max_limbo = max_nr;
	return 0;
}

/*
 * Without memory to remember it the record stays and the extent is leaked until the next mount, which
 * finds both: safe, and rare.
 */
void limbo_add(struct pool *pool, u32 id, u64 off, u32 bytes)
{
	extents_set_owner(pool->nvme_room, off, bytes, EXTENT_NO_OWNER);
	pool->limbo_bytes_now += bytes;
	if (pool->nr_limbo == pool->max_limbo && limbo_grow(pool))
		return;
	pool->limbo[pool->nr_limbo++] = (struct limbo){.off = off, .bytes = bytes, .id = id};
}

int block_stale(struct pool *pool, u32 id)
{
	struct block *b = pool_block(pool, id);
	struct idvec *vec = b->flags & BLOCK_RECORDED ? &pool->renew : &pool->stale;

	if (!pool->meta || !idvec_push(vec, id, b->gen))
		return 0;
	/* Where that is ignored a cached block may be missed after a crash. */
	return kvc_err(-ENOMEM, record_skipped);
}

void pool_meta_durable(void *arg, u64 seq)
{
	struct pool *pool = arg;
	u32 nr = 0;

	lock_acquire(&pool->lock);
	while (pool->limbo_head < pool->limbo_open && pool->limbo[pool->limbo_head].seq <= seq) {
		struct limbo *l = &pool->limbo[pool->limbo_head++];

		extents_free(pool->nvme_room, l->off, l->bytes);
		pool->limbo_bytes_now -= l->bytes;
		if (++nr % FREE_BATCH == 0)
			pool_breathe(pool);
	}
	if (nr)
		waitq_wake_all(&pool->room_freed);
	lock_release(&pool->lock);
}

/* ---- submit ---- */

/*
 * Everything of the pool's own goes in transactions of its own, ahead of the caller's: the caller's
 * stays as it is when it cannot be submitted, so that it can be tried again, whatever became of the
 * blocks meanwhile. Removals go first: an id may have been used again, and the record of the block
 * that has it now must be the last word. Then records that are out of date: what the caller's says of
 * a block (that it is sealed) must not be more than the block's own does.
 */

static void put_block_record(struct meta_txn *txn, u32 id, const struct block *b)
{
	struct block_record rec = {
		.version = BLOCK_RECORD_VERSION,
		.flags = (b->flags & BLOCK_SEALED ? BLOCK_RECORD_SEALED : 0) |
			 (b->flags & BLOCK_INDEXED ? BLOCK_RECORD_INDEXED : 0) |
			 (b->flags & BLOCK_LOSSY ? BLOCK_RECORD_LOSSY : 0),
		.nr_ids = b->nr_ids,
		.bytes = b->bytes,
		.space = b->space,
		.gen = b->gen,
		.off = b->ext[IN_NVME],
		.csum = b->csum,
		.chain_lo = b->chain.lo,
		.chain_hi = b->chain.hi,
		.parent = b->parent,
		.parent_gen = b->parent_gen,
	};
	struct iovec parts[] = {{&rec, sizeof(rec)}, {b->ids, b->nr_ids * sizeof(*b->ids)}};

	meta_txn_putv(txn, (struct meta_key){.id = id, .type = META_BLOCK}, parts, 2);
}

/* Submit and drop @txn. */
static int submit_own(struct pool *pool, struct meta_txn *txn, u64 *seq)
{
	int err = meta_submit(pool->meta, txn, seq);

	meta_txn_free(txn);
	return err;
}

static int submit_removals(struct pool *pool)
{
	struct meta_txn txn = META_TXN_INIT;
	int err = 0;

	while (pool->limbo_open < pool->nr_limbo && !err) {
		u32 to = min(pool->limbo_open + RECORD_BATCH, pool->nr_limbo);
		u64 seq;

		for (u32 i = pool->limbo_open; i < to; i++)
			meta_txn_del(&txn, (struct meta_key){.id = pool->limbo[i].id,
							     .type = META_BLOCK});
		err = submit_own(pool, &txn, &seq);
		for (; !err && pool->limbo_open < to; pool->limbo_open++)
			pool->limbo[pool->limbo_open].seq = seq;
	}
	return err;
}

static void put_root_record(struct pool *pool, struct meta_txn *txn, u32 r)
{
	struct prefix_root *root = &pool->roots[r];
	struct meta_key key = {.id = r, .type = META_ROOT};
	struct root_record rec = {root->space, root->salt_bytes};
	struct iovec parts[] = {{&rec, sizeof(rec)}, {root->salt, root->salt_bytes}};

	if (root->space)
		meta_txn_putv(txn, key, parts, 2);
	else
		meta_txn_del(txn, key);
}

static int submit_roots(struct pool *pool)
{
	struct meta_txn txn = META_TXN_INIT;
	int err = 0;

	while (pool->nr_roots_due && !err) {
		u32 from = pool->nr_roots_due;

		while (from && txn.len < ROOT_BATCH_BYTES)
			put_root_record(pool, &txn, pool->roots_due[--from]);
		err = submit_own(pool, &txn, NULL);
		while (!err && pool->nr_roots_due > from)
			pool->roots[pool->roots_due[--pool->nr_roots_due]].due = false;
	}
	return err;
}

static int submit_renewals(struct pool *pool)
{
	struct meta_txn txn = META_TXN_INIT;
	struct idvec *vec = &pool->renew;
	int err = 0;

	while (vec->nr && !err) {
		u32 from = vec->nr - min(vec->nr, (u32)RECORD_BATCH);

		for (u32 i = from; i < vec->nr; i++) {
			struct block *b = pool_block(pool, vec->v[i].id);

			if (b->gen == vec->v[i].gen && b->flags & BLOCK_RECORDED)
				put_block_record(&txn, vec->v[i].id, b);
		}
		err = submit_own(pool, &txn, NULL);
		if (!err)
			vec->nr = from;
	}
	return err;
}

/* Records of up to RECORD_BATCH blocks, whose bytes are durable, after what is due anyway. */
static int submit_records(struct pool *pool, const u32 *ids, unsigned int nr)
{
	struct meta_txn txn = META_TXN_INIT;
	int err = submit_removals(pool);

	if (!err)
		err = submit_roots(pool);
	if (!err)
		err = submit_renewals(pool);
	if (err)
		return err;
	for (unsigned int i = 0; i < nr; i++)
		put_block_record(&txn, ids[i], pool_block(pool, ids[i]));
	err = submit_own(pool, &txn, NULL);
	for (unsigned int i = 0; !err && i < nr; i++) {
		pool_block(pool, ids[i])->flags |= BLOCK_RECORDED;
		warm_content(pool, ids[i]);
	}
	return err;
}

/* Records that the blocks of a table still lack. Lock held, dropped between batches. */
static int submit_missing(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	u32 batch[RECORD_BATCH], n = 0;
	int err = 0;

	for (unsigned int i = 0; i < nr && !err; i++) {
		struct block *b = BLOCK_IS_NONE(ids[i]) ? NULL : pool_block(pool, ids[i].v);

		if (i % BREATHE == BREATHE - 1)
			pool_breathe(pool);
		if (!b || b->flags & BLOCK_RECORDED)
			continue;
		if (!(b->flags & BLOCK_NVME_VALID))
			return kvc_err(-EIO, block_unwritten);
		batch[n++] = ids[i].v;
		if (n < RECORD_BATCH)
			continue;
		err = submit_records(pool, batch, n);
		n = 0;
		pool_breathe(pool);
	}
	/* even without a block: removals and roots are due */
	return err ? err : submit_records(pool, batch, n);
}

int submit_locked(struct pool *pool, const struct block_id *ids, unsigned int nr,
		  struct meta_txn *txn, u64 *seq)
{
	struct meta_txn none = META_TXN_INIT;
	int err;

	*seq = 0;
	if (!pool->meta) {
		if (txn)
			meta_txn_free(txn);
		return 0;
	}
	if (txn && txn->err)
		return txn->err;
	err = submit_missing(pool, ids, nr);
	return err ? err : meta_submit(pool->meta, txn ? txn : &none, seq);
}

int pool_submit(struct pool *pool, const struct block_id *ids, unsigned int nr,
		struct meta_txn *txn, u64 *seq)
{
	u64 got;
	int err;

	lock_acquire(&pool->lock);
	err = submit_locked(pool, ids, nr, txn, &got);
	lock_release(&pool->lock);
	if (seq)
		*seq = got;
	return err;
}

int pool_commit(struct pool *pool, u64 seq)
{
	return pool->meta && seq ? meta_commit(pool->meta, seq) : 0;
}

/* ---- the commit interval ---- */

/* Still the block it was, of use after a crash, and without a record? */
static bool stale_holds(struct pool *pool, const struct idgen *stale)
{
	struct block *b = pool_block(pool, stale->id);

	return b->gen == stale->gen && !(b->flags & BLOCK_RECORDED) &&
	       b->flags & BLOCK_NVME_VALID && b->flags & BLOCK_INDEXED;
}

/*
 * Take the blocks that need a record and have bytes in NVMe now: the flush that follows covers these
 * bytes. A block that is written only now comes back into the list when that is done.
 */
static struct idvec tick_take(struct pool *pool)
{
	struct idvec vec = pool->stale;
	u32 nr = 0;

	pool->stale = (struct idvec){0};
	for (u32 i = 0; i < vec.nr; i++) {
		if (!stale_holds(pool, &vec.v[i]))
			continue;
		pool_block(pool, vec.v[i].id)->flags |= BLOCK_FLUSHING;
		vec.v[nr++] = vec.v[i];
	}
	vec.nr = nr;
	return vec;
}

/* Record what was taken; @from moves on by what was done. Lock held, dropped between batches. */
static int tick_submit(struct pool *pool, const struct idvec *vec, u32 *from)
{
	u32 batch[RECORD_BATCH], n, i = 0;
	int err = 0;

	do {
		for (n = 0, i = *from; i < vec->nr && n < RECORD_BATCH; i++)
			if (stale_holds(pool, &vec->v[i]) &&
			    pool_block(pool, vec->v[i].id)->flags & BLOCK_FLUSHING)
				batch[n++] = vec->v[i].id;
		err = submit_records(pool, batch, n);
		if (!err)
			*from = i;
		pool_breathe(pool);
	} while (!err && i < vec->nr);
	return err;
}

/* Records that found no room now are tried again; a store that has stopped takes no more. */
static void tick_give_back(struct pool *pool, const struct idvec *vec, u32 from, int err)
{
	if (err == -EIO)
		return;
	for (u32 i = from; i < vec->nr; i++)
		if (stale_holds(pool, &vec->v[i]))
			(void)block_stale(pool, vec->v[i].id);
}

int pool_tick(struct pool *pool)
{
	struct idvec vec;
	u32 done = 0;
	int err = 0;

	if (!pool->meta)
		return 0;
	lock_acquire(&pool->lock);
	while (pool->ticking)
		waitq_wait(&pool->flush_wait, &pool->lock);
	pool->ticking = true;
	vec = tick_take(pool);
	if (vec.nr) {
		lock_release(&pool->lock);
		err = pool_flush(pool);
		lock_acquire(&pool->lock);
	}
	if (!err)
		err = tick_submit(pool, &vec, &done);
	if (err)
		tick_give_back(pool, &vec, done, err);
	pool->ticking = false;
	waitq_wake_all(&pool->flush_wait);
	lock_release(&pool->lock);
	free(vec.v);
	return err;
}

/* ---- loading ---- */

static int load_block(struct pool *pool, u64 id, const void *value, u32 bytes, struct textbuf *why);

static int load_root(struct pool *pool, u64 id, const void *value, u32 bytes, struct textbuf *why)
{
	struct root_record rec;

	if (bytes < sizeof(rec) || !id || id > BLOCK_MAX_ID)
		goto bad;
	memcpy(&rec, value, sizeof(rec));
	if (!rec.space || rec.salt_bytes != bytes - sizeof(rec))
		goto bad;
	return root_set(pool, (u32)id, rec.space, (const u8 *)value + sizeof(rec), rec.salt_bytes);
bad:
	textbuf_printf(why, "record of prefix root %llu is malformed", (unsigned long long)id);
	return -EUCLEAN;
}

int pool_load(struct pool *pool, const struct meta_key *key, const void *value, u32 bytes,
	      struct textbuf *why)
{
	if (key->type == META_ROOT)
		return load_root(pool, key->id, value, bytes, why);
	return load_block(pool, key->id, value, bytes, why);
}

static bool record_sane(struct pool *pool, const struct block_record *rec, u32 bytes)
{
	u64 stride = round_up_pow2(rec->bytes, KVC_PAGE_SIZE);

	return rec->version == BLOCK_RECORD_VERSION && rec->bytes &&
	       rec->bytes <= BLOCK_MAX_BYTES && rec->gen &&
	       bytes == sizeof(*rec) + rec->nr_ids * sizeof(u32) &&
	       !(rec->off % EXTENT_UNIT) && rec->off < extents_size(pool->nvme_room) &&
	       stride <= extents_size(pool->nvme_room) - rec->off &&
	       !(rec->flags & BLOCK_RECORD_INDEXED) == !rec->nr_ids &&
	       (!rec->nr_ids || rec->flags & BLOCK_RECORD_SEALED);
}

/* Descriptors up to and including @id exist afterwards, free ones not linked yet. */
static int reach_id(struct pool *pool, u32 id)
{
	while (pool->nr_chunks * (u64)BLOCK_CHUNK <= id)
		if (block_chunk_add(pool))
			return -ENOMEM;
	pool->nr_ids = max(pool->nr_ids, id + 1);
	return 0;
}

static int load_block(struct pool *pool, u64 id, const void *value, u32 bytes, struct textbuf *why)
{
	struct block_record rec;
	struct block *b;

	if (bytes >= sizeof(rec))
		memcpy(&rec, value, sizeof(rec));
	if (bytes < sizeof(rec) || id >= BLOCK_MAX_ID || !record_sane(pool, &rec, bytes)) {
		textbuf_printf(why, "record of block %llu is malformed", (unsigned long long)id);
		return -EUCLEAN;
	}
	if (reach_id(pool, (u32)id))
		return -ENOMEM;
	b = pool_block(pool, (u32)id);
	*b = (struct block){
		.gen = rec.gen,
		.flags = BLOCK_LIVE | BLOCK_NVME_VALID | BLOCK_RECORDED |
			 (rec.flags & BLOCK_RECORD_SEALED ? BLOCK_SEALED : 0) |
			 (rec.flags & BLOCK_RECORD_LOSSY ? BLOCK_LOSSY : 0) |
			 (rec.space ? BLOCK_KV : 0),
		.bytes = rec.bytes,
		.space = rec.space,
		.priority = 50,
		.hash_next = UINT32_MAX,
		.ext = {EXTENT_NONE, rec.off},
		.csum = rec.csum,
		.chain = {rec.chain_lo, rec.chain_hi},
		.parent = rec.parent,
		.parent_gen = rec.parent_gen,
		.heap_pos = {HEAP_NONE, HEAP_NONE},
	};
	if (rec.nr_ids) {
		b->ids = kvc_alloc_array(rec.nr_ids, sizeof(u32));
		if (!b->ids)
			return -ENOMEM;
		memcpy(b->ids, (const u8 *)value + sizeof(rec), rec.nr_ids * sizeof(u32));
		b->nr_ids = rec.nr_ids;
	}
	return 0;
}

int pool_load_ref(struct pool *pool, struct block_id id, u32 bytes)
{
	struct block *b;

	if (id.v >= pool->nr_ids)
		return -EUCLEAN;
	b = pool_block(pool, id.v);
	if (!(b->flags & BLOCK_LIVE) || (bytes && b->bytes != bytes) || b->ref == UINT32_MAX)
		return -EUCLEAN;
	b->ref++;
	return 0;
}

/* Is its link to its parent still the one it was recorded with? Identity first, then the hash. */
static bool link_sane(struct pool *pool, const struct block *b)
{
	struct block *parent;

	if (!b->nr_ids || b->nr_ids > 1024)
		return false;
	if (b->parent == PARENT_ROOT) {
		struct prefix_root *root;

		if (!b->parent_gen || b->parent_gen >= pool->nr_roots)
			return false;
		root = &pool->roots[b->parent_gen];
		return root->space == b->space &&
		       hash128_eq(prefix_chain(root->chain, b->ids, b->nr_ids), b->chain);
	}
	if (b->parent >= pool->nr_ids)
		return false;
	parent = pool_block(pool, b->parent);
	return parent->flags & BLOCK_LIVE && parent->nr_ids && parent->gen == b->parent_gen &&
	       parent->space == b->space &&
	       hash128_eq(prefix_chain(parent->chain, b->ids, b->nr_ids), b->chain);
}

static void unlink_loaded(struct pool *pool, struct block *b)
{
	free(b->ids);
	b->ids = NULL;
	b->nr_ids = 0;
}

/* Index every block whose link holds; parents need not come before their children. */
static int link_loaded(struct pool *pool)
{
	int err = 0;

	for (u32 id = 0; id < pool->nr_ids; id++) {
		struct block *b = pool_block(pool, id);

		if (b->ids && !link_sane(pool, b))
			b->flags |= BLOCK_BAD; /* used as a mark in this loop only */
	}
	for (u32 id = 0; id < pool->nr_ids && !err; id++) {
		struct block *b = pool_block(pool, id);

		if (b->flags & BLOCK_BAD) {
			b->flags &= ~BLOCK_BAD;
			b->gen++;
			unlink_loaded(pool, b);
			(void)block_stale(pool, id);
		} else if (b->ids) {
			b->flags |= BLOCK_INDEXED;
		}
	}
	for (u32 id = 0; id < pool->nr_ids && !err; id++)
		if (pool_block(pool, id)->flags & BLOCK_INDEXED)
			err = prefix_link(pool, id);
	return err;
}

static int claim_loaded(struct pool *pool, u32 id, struct textbuf *why)
{
	struct block *b = pool_block(pool, id);
	int err = extents_claim(pool->nvme_room, b->ext[IN_NVME], block_stride(b), id);

	if (err == -ENOMEM)
		return err;
	if (err) {
		textbuf_printf(why, "block %u: extent at %llu of %u bytes %s", id,
			       (unsigned long long)b->ext[IN_NVME], block_stride(b),
			       err == -EEXIST ? "is owned twice" : "does not fit its size class");
		return -EUCLEAN;
	}
	pool->copies_now[IN_NVME]++;
	pool->live_blocks_now++;
	if (b->ref) {
		b->class = CLASS_IDLE;
		pool->named_bytes_now += block_stride(b);
	} else {
		pool->cached_blocks_now++;
	}
	return 0;
}

int pool_load_finish(struct pool *pool, struct textbuf *why)
{
	int err = 0;

	lock_acquire(&pool->lock);
	roots_loaded(pool);
	for (u32 id = 0; id < pool->nr_ids && !err; id++)
		if (pool_block(pool, id)->flags & BLOCK_LIVE)
			err = claim_loaded(pool, id, why);
	if (!err)
		err = link_loaded(pool);
	for (u32 id = pool->nr_ids; id-- && !err;) {
		struct block *b = pool_block(pool, id);

		if (!(b->flags & BLOCK_LIVE)) {
			b->gen = b->gen ? b->gen : 1;
			b->hash_next = pool->free_head;
			pool->free_head = id;
		} else if (!block_maybe_free(pool, id)) {
			block_requeue(pool, id);
		}
	}
	lock_release(&pool->lock);
	return err;
}
