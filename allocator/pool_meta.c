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

#define SEQ_OPEN UINT64_MAX
#define TICK_BATCH 4096	/* records in one transaction of the tick */

/* ---- limbo ---- */

/* Without memory to remember it the extent is leaked until the next mount: safe, and rare. */
void limbo_add(struct pool *pool, u64 off, u32 bytes)
{
	extents_set_owner(pool->room[IN_NVME], off, bytes, EXTENT_NO_OWNER);
	if (pool->nr_limbo == pool->max_limbo) {
		u32 max_nr = pool->max_limbo ? pool->max_limbo * 2 : 256;
		struct limbo *limbo = reallocarray(pool->limbo, max_nr, sizeof(*limbo));

		if (!limbo)
			return;
		pool->limbo = limbo;
		pool->max_limbo = max_nr;
	}
	pool->limbo[pool->nr_limbo++] = (struct limbo){.off = off, .bytes = bytes, .seq = SEQ_OPEN};
}

int record_removed(struct pool *pool, u32 id)
{
	if (pool->nr_removed == pool->max_removed) {
		u32 max_nr = pool->max_removed ? pool->max_removed * 2 : 256;
		u32 *removed = reallocarray(pool->removed, max_nr, sizeof(*removed));

		if (!removed)
			return -ENOMEM;
		pool->removed = removed;
		pool->max_removed = max_nr;
	}
	pool->removed[pool->nr_removed++] = id;
	return 0;
}

void block_stale(struct pool *pool, u32 id)
{
	/* Without memory the record stays as it is: a cached block may be missed after a crash. */
	if (pool->meta && idvec_push(&pool->stale, id, pool_block(pool, id)->gen))
		kvc_err_count(-ENOMEM, KVC_ERR_record_skipped);
}

void pool_meta_durable(void *arg, u64 seq)
{
	struct pool *pool = arg;
	u32 kept = 0;

	lock_acquire(&pool->lock);
	for (u32 i = 0; i < pool->nr_limbo; i++) {
		struct limbo *l = &pool->limbo[i];

		if (l->seq <= seq)
			extents_free(pool->room[IN_NVME], l->off, l->bytes);
		else
			pool->limbo[kept++] = *l;
	}
	pool->nr_limbo = kept;
	lock_release(&pool->lock);
}

/* ---- submit ---- */

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

	meta_txn_putv(txn, (struct meta_key){.id = id, .type = META_BLOCK}, &rec, sizeof(rec),
		      b->ids, b->nr_ids * (u32)sizeof(u32));
}

static void put_root_records(struct pool *pool, struct meta_txn *txn)
{
	if (!pool->nr_roots_unrecorded)
		return;
	for (u32 r = 1; r < pool->nr_roots; r++) {
		struct prefix_root *root = &pool->roots[r];
		struct meta_key key = {.id = r, .type = META_ROOT};
		struct root_record rec = {root->space, root->salt_bytes};

		if (root->space && !root->recorded)
			meta_txn_putv(txn, key, &rec, sizeof(rec), root->salt, root->salt_bytes);
		else if (!root->space && root->recorded)
			meta_txn_del(txn, key);
	}
}

/* Everything that was put into the transaction is on its way: remember that. */
static void submitted(struct pool *pool, u64 seq)
{
	for (u32 i = 0; i < pool->nr_limbo; i++)
		if (pool->limbo[i].seq == SEQ_OPEN)
			pool->limbo[i].seq = seq;
	pool->nr_removed = 0;
	for (u32 r = 1; pool->nr_roots_unrecorded && r < pool->nr_roots; r++)
		pool->roots[r].recorded = pool->roots[r].space != 0;
	pool->nr_roots_unrecorded = 0;
}

static bool needs_record(const struct block *b)
{
	return !(b->flags & BLOCK_RECORDED) && b->flags & BLOCK_NVME_VALID;
}

int submit_locked(struct pool *pool, const struct block_id *ids, unsigned int nr,
		  struct meta_txn *txn, u64 *seq)
{
	struct meta_txn own = META_TXN_INIT;
	u64 got = 0;
	int err;

	if (!pool->meta) {
		if (txn)
			meta_txn_free(txn);
		pool->nr_removed = 0;
		*seq = 0;
		return 0;
	}
	if (!txn)
		txn = &own;
	put_root_records(pool, txn);
	for (u32 i = 0; i < pool->nr_removed; i++)
		meta_txn_del(txn, (struct meta_key){.id = pool->removed[i], .type = META_BLOCK});
	for (unsigned int i = 0; i < nr; i++)
		if (!BLOCK_IS_NONE(ids[i]) && needs_record(pool_block(pool, ids[i].v)))
			put_block_record(txn, ids[i].v, pool_block(pool, ids[i].v));
	err = meta_submit(pool->meta, txn, &got);
	*seq = got;
	if (!err) {
		submitted(pool, got);
		for (unsigned int i = 0; i < nr; i++)
			if (!BLOCK_IS_NONE(ids[i]) && needs_record(pool_block(pool, ids[i].v)))
				pool_block(pool, ids[i].v)->flags |= BLOCK_RECORDED;
	}
	meta_txn_free(&own);
	return err;
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

/* Still the block it was, and one that no table is going to record? */
static bool stale_holds(struct pool *pool, const struct idgen *stale)
{
	struct block *b = pool_block(pool, stale->id);

	return b->gen == stale->gen && b->flags & BLOCK_NVME_VALID &&
	       b->flags & (BLOCK_RECORDED | BLOCK_INDEXED);
}

/* Records of one batch of stale blocks. The caller's flush covers their bytes. Lock held. */
static int submit_stale(struct pool *pool, const struct idvec *vec, u32 from, u32 to)
{
	struct meta_txn txn = META_TXN_INIT;
	u64 seq;
	int err;

	for (u32 i = from; i < to; i++)
		if (stale_holds(pool, &vec->v[i]))
			put_block_record(&txn, vec->v[i].id, pool_block(pool, vec->v[i].id));
	err = submit_locked(pool, NULL, 0, &txn, &seq);
	for (u32 i = from; !err && i < to; i++)
		if (stale_holds(pool, &vec->v[i]))
			pool_block(pool, vec->v[i].id)->flags |= BLOCK_RECORDED;
	meta_txn_free(&txn);
	return err;
}

int pool_tick(struct pool *pool)
{
	struct idvec vec;
	u64 seq;
	int err;

	if (!pool->meta)
		return 0;
	lock_acquire(&pool->lock);
	vec = pool->stale;
	pool->stale = (struct idvec){0};
	lock_release(&pool->lock);
	err = vec.nr ? pool_flush(pool) : 0;
	lock_acquire(&pool->lock);
	for (u32 i = 0; !err && i < vec.nr; i += TICK_BATCH)
		err = submit_stale(pool, &vec, i, min(i + TICK_BATCH, vec.nr));
	if (!err && (pool->nr_removed || pool->nr_roots_unrecorded))
		err = submit_locked(pool, NULL, 0, NULL, &seq);
	lock_release(&pool->lock);
	free(vec.v);
	return err;
}

/* ---- loading ---- */

static int load_block(struct pool *pool, u64 id, const void *value, u32 bytes, struct textbuf *why);

static int load_root(struct pool *pool, u64 id, const void *value, u32 bytes, struct textbuf *why)
{
	struct root_record rec;
	int err;

	if (bytes < sizeof(rec) || !id || id > BLOCK_MAX_ID)
		goto bad;
	memcpy(&rec, value, sizeof(rec));
	if (!rec.space || rec.salt_bytes != bytes - sizeof(rec))
		goto bad;
	err = root_set(pool, (u32)id, rec.space, (const u8 *)value + sizeof(rec), rec.salt_bytes);
	if (!err)
		pool->roots[id].recorded = true;
	return err;
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
	       !(rec->off % EXTENT_UNIT) && rec->off < extents_size(pool->room[IN_NVME]) &&
	       stride <= extents_size(pool->room[IN_NVME]) - rec->off &&
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
			block_stale(pool, id);
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
	int err = extents_claim(pool->room[IN_NVME], b->ext[IN_NVME], block_stride(b), id);

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
