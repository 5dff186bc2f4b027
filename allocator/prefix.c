/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefix index: which block holds the KV of these tokens after those.
 *
 * A block's chain hash is XXH3-128 over its parent's chain hash and its own token ids; the chain of a
 * root is made from the namespace and its salt, so that different salts never meet. The hash finds a
 * candidate; then the parent's identity (id and generation) and the ids themselves are compared, so a
 * collision costs time and never an answer. Hashes are computed ahead in batches, so that the cache
 * misses of a walk (bucket, block, ids) overlap.
 *
 * A parent may go before its children (its room was needed, or its only copy was damaged): then the
 * children's parent generation no longer matches; they can't be found any more and age out.
 */
#include <stdlib.h>
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/base/fault.h"
#include "allocator/pool_types.h"

#define MATCH_BATCH	 16
#define MAX_BLOCK_TOKENS 1024

struct hash128 prefix_chain(struct hash128 parent, const u32 *ids, unsigned int nr)
{
	struct {
		struct hash128 parent;
		u32 ids[MAX_BLOCK_TOKENS];
	} in;

	KVC_BUG_ON(nr > MAX_BLOCK_TOKENS);
	in.parent = parent;
	memcpy(in.ids, ids, nr * sizeof(*ids));
	return hash128_bytes(&in, sizeof(parent) + nr * sizeof(*ids), 0);
}

static struct hash128 root_chain(u32 space, const void *salt, u32 salt_bytes)
{
	struct hash128 h = hash128_bytes(salt, salt_bytes, 0x6b766373616c74ull);
	u32 ids[3] = {space, salt_bytes, 0x6b766372};

	return prefix_chain(h, ids, 3);
}

/* ---- buckets ---- */

/*
 * Linear hashing: the table grows by one bucket at a time, in which one other is split. So no insertion
 * ever moves more than a chain, where doubling would stop everybody for a second.
 */
#define FIRST_BUCKETS 1024u

static u32 *bucket_of(struct pool *pool, struct hash128 chain)
{
	u32 i = (u32)chain.lo & pool->bucket_mask;

	return &pool->buckets[i < pool->nr_buckets ? i : i & pool->bucket_mask >> 1];
}

static int buckets_reserve(struct pool *pool)
{
	u32 max_nr = pool->max_buckets ? pool->max_buckets * 2 : FIRST_BUCKETS;
	u32 *buckets;

	if (pool->nr_buckets < pool->max_buckets)
		return 0;
	buckets = reallocarray(pool->buckets, max_nr, sizeof(*buckets));
	if (!buckets)
		return -ENOMEM;
	pool->buckets = buckets;
	pool->max_buckets = max_nr;
	return 0;
}

/* Without memory chains only get longer, but for the first buckets. */
static int buckets_grow(struct pool *pool)
{
	u32 id, next, old;

	if (buckets_reserve(pool))
		return pool->nr_buckets ? 0 : -ENOMEM;
	if (!pool->nr_buckets) {
		memset(pool->buckets, 0xff, FIRST_BUCKETS * sizeof(*pool->buckets));
		pool->nr_buckets = FIRST_BUCKETS;
		pool->bucket_mask = FIRST_BUCKETS - 1;
		return 0;
	}
	if (pool->nr_buckets > pool->bucket_mask)
		pool->bucket_mask = pool->bucket_mask * 2 + 1;
	old = pool->nr_buckets & pool->bucket_mask >> 1;
	id = pool->buckets[old];
	pool->buckets[old] = pool->buckets[pool->nr_buckets++] = UINT32_MAX;
	for (; id != UINT32_MAX; id = next) {
		u32 *head = bucket_of(pool, pool_block(pool, id)->chain);

		next = pool_block(pool, id)->hash_next;
		pool_block(pool, id)->hash_next = *head;
		*head = id;
	}
	return 0;
}

struct block *prefix_parent(struct pool *pool, const struct block *b)
{
	struct block *parent;

	if (!(b->flags & BLOCK_INDEXED) || b->parent == PARENT_ROOT)
		return NULL;
	parent = pool_block(pool, b->parent);
	return parent->gen == b->parent_gen && parent->flags & BLOCK_INDEXED ? parent : NULL;
}

void prefix_kids(struct pool *pool, const struct block *b, enum block_tier tier, int delta)
{
	struct block *parent = prefix_parent(pool, b);

	if (!parent)
		return;
	KVC_BUG_ON(delta < 0 && !parent->kids[tier]);
	parent->kids[tier] += delta;
	if (parent->kids[tier] <= 1)
		block_requeue(pool, b->parent);
}

/* Enter a block whose chain, parent and ids are set into its bucket and its parent's counts. */
int prefix_link(struct pool *pool, u32 id)
{
	struct block *b = pool_block(pool, id);
	u32 *head;

	if (pool->nr_indexed >= pool->nr_buckets && buckets_grow(pool))
		return -ENOMEM;
	head = bucket_of(pool, b->chain);
	b->hash_next = *head;
	*head = id;
	b->flags |= BLOCK_INDEXED;
	pool->nr_indexed++;
	for (int t = 0; t < NR_BLOCK_TIERS; t++)
		if (b->ext[t] != EXTENT_NONE)
			prefix_kids(pool, b, t, 1);
	return 0;
}

void prefix_remove(struct pool *pool, u32 id)
{
	struct block *b = pool_block(pool, id);
	u32 *link;

	if (!(b->flags & BLOCK_INDEXED))
		return;
	for (int t = 0; t < NR_BLOCK_TIERS; t++)
		if (b->ext[t] != EXTENT_NONE)
			prefix_kids(pool, b, t, -1);
	for (link = bucket_of(pool, b->chain); *link != id;
	     link = &pool_block(pool, *link)->hash_next)
		KVC_BUG_ON(*link == UINT32_MAX);
	*link = b->hash_next;
	b->flags &= ~BLOCK_INDEXED;
	/* Its children lose their parent: a new generation makes their link stale. */
	b->gen++;
	b->kids[IN_DRAM] = b->kids[IN_NVME] = 0;
	free(b->ids);
	b->ids = NULL;
	b->nr_ids = 0;
	pool->nr_indexed--;
	if (b->flags & BLOCK_RECORDED && b->ref) /* else it goes, and its record with it */
		(void)block_stale(pool, id);
}

/** struct place - where in the tree of chains a block belongs. */
struct place {
	struct hash128 chain;
	u32 parent, parent_gen;	/* as in struct block */
	const u32 *ids;
	u32 nr;
};

static bool at_place(const struct block *b, const struct place *p)
{
	return hash128_eq(b->chain, p->chain) && b->parent == p->parent &&
	       b->parent_gen == p->parent_gen && b->nr_ids == p->nr &&
	       !memcmp(b->ids, p->ids, p->nr * sizeof(*p->ids));
}

/* The indexed block at a place, UINT32_MAX when there is none. */
static u32 prefix_find(struct pool *pool, const struct place *p)
{
	if (!pool->nr_buckets)
		return UINT32_MAX;
	for (u32 id = *bucket_of(pool, p->chain); id != UINT32_MAX;) {
		struct block *b = pool_block(pool, id);

		if (at_place(b, p))
			return id;
		id = b->hash_next;
	}
	return UINT32_MAX;
}

/* ---- matching ---- */

struct walk {
	struct pool *pool;
	const struct prefix_key *key;
	unsigned int nr;		/* whole blocks in key */
	struct hash128 chain;		/* of the last block hashed */
	struct hash128 ahead[MATCH_BATCH];
	u32 parent, parent_gen;		/* of the last block matched */
};

static const u32 *walk_ids(const struct walk *w, unsigned int index)
{
	return w->key->ids + (size_t)index * w->key->block_tokens;
}

/* Hash the next batch and start fetching what the walk will touch. Return: blocks hashed. */
static unsigned int walk_ahead(struct walk *w, unsigned int from)
{
	unsigned int nr = min((unsigned int)MATCH_BATCH, w->nr - from);
	struct pool *pool = w->pool;
	u32 id;

	for (unsigned int i = 0; i < nr; i++) {
		w->chain = prefix_chain(w->chain, walk_ids(w, from + i), w->key->block_tokens);
		w->ahead[i] = w->chain;
		__builtin_prefetch(bucket_of(pool, w->chain));
	}
	for (unsigned int i = 0; i < nr; i++) {
		id = *bucket_of(pool, w->ahead[i]);
		if (id != UINT32_MAX) {
			__builtin_prefetch(pool_block(pool, id));
			__builtin_prefetch((char *)pool_block(pool, id) + 64);
		}
	}
	for (unsigned int i = 0; i < nr; i++) {
		id = *bucket_of(pool, w->ahead[i]);
		if (id == UINT32_MAX || !pool_block(pool, id)->ids)
			continue;
		for (unsigned int o = 0; o < w->key->block_tokens; o += 16)
			__builtin_prefetch(pool_block(pool, id)->ids + o);
	}
	return nr;
}

/* One step of the walk; UINT32_MAX ends it. */
static u32 walk_step(struct walk *w, unsigned int index, unsigned int in_batch)
{
	struct place p = {w->ahead[in_batch], w->parent, w->parent_gen, walk_ids(w, index),
			  w->key->block_tokens};
	u32 id = prefix_find(w->pool, &p);

	if (id == UINT32_MAX || pool_block(w->pool, id)->flags & BLOCK_BAD)
		return UINT32_MAX;
	w->parent = id;
	w->parent_gen = pool_block(w->pool, id)->gen;
	return id;
}

static unsigned int match_locked(struct walk *w, struct block_id *out, bool take)
{
	struct pool *pool = w->pool;
	unsigned int done = 0, batch, i;

	while (done < w->nr) {
		batch = walk_ahead(w, done);
		for (i = 0; i < batch; i++, done++) {
			u32 id = walk_step(w, done, i);

			if (id == UINT32_MAX || (take && block_named(pool, id)))
				return done;
			if (take) {
				pool_block(pool, id)->last_use = pool->clock;
				block_requeue(pool, id);
			}
			if (out)
				out[done].v = id;
		}
	}
	return done;
}

static bool root_known(const struct pool *pool, u32 root)
{
	return root && root < pool->nr_roots && pool->roots[root].space;
}

unsigned int prefix_match(struct pool *pool, const struct prefix_key *key, struct block_id *out,
			  bool take)
{
	struct walk w = {.pool = pool,
			 .key = key,
			 .nr = key->nr_ids / key->block_tokens,
			 .parent = PARENT_ROOT,
			 .parent_gen = key->root};
	unsigned int nr = 0;

	lock_acquire(&pool->lock);
	if (root_known(pool, key->root) && pool->nr_indexed) {
		w.chain = pool->roots[key->root].chain;
		pool->clock++;
		nr = match_locked(&w, out, take);
	}
	if (take) {
		pool->lookup_tokens += key->nr_ids;
		pool->hit_tokens += (u64)nr * key->block_tokens;
	}
	lock_release(&pool->lock);
	return nr;
}

/* ---- insertion ---- */

static int insert_new(struct pool *pool, u32 id, const struct place *p)
{
	struct block *b = pool_block(pool, id);

	b->ids = fault_point(FAULT_MEMORY) ? NULL : kvc_alloc_array(p->nr, sizeof(*b->ids));
	if (!b->ids)
		return -ENOMEM;
	memcpy(b->ids, p->ids, p->nr * sizeof(*b->ids));
	b->nr_ids = (u16)p->nr;
	b->chain = p->chain;
	b->parent = p->parent;
	b->parent_gen = p->parent_gen;
	if (prefix_link(pool, id)) {
		free(b->ids);
		b->ids = NULL;
		b->nr_ids = 0;
		return -ENOMEM;
	}
	if (b->flags & BLOCK_NVME_VALID) /* else when it gets there */
		(void)block_stale(pool, id);
	block_requeue(pool, id);
	return 0;
}

static int insert_at(struct pool *pool, const struct place *p, u32 id, u32 *found)
{
	struct block *b = pool_block(pool, id);
	u32 there;

	*found = id;
	if (b->flags & BLOCK_INDEXED)
		return at_place(b, p) ? 0 : -EEXIST;
	there = prefix_find(pool, p);
	if (there == UINT32_MAX)
		return insert_new(pool, id, p);
	*found = there;
	return block_named(pool, there) ? -EEXIST : 0;
}

int prefix_insert(struct pool *pool, const struct prefix_key *key, struct block_id parent,
		  struct block_id id, struct block_id *found)
{
	struct place p = {.parent = parent.v, .parent_gen = key->root, .ids = key->ids,
			  .nr = key->block_tokens};
	int err = 0;

	lock_acquire(&pool->lock);
	if (!root_known(pool, key->root)) {
		err = kvc_err(-EINVAL, root_unknown);
	} else if (!(pool_block(pool, id.v)->flags & BLOCK_SEALED)) {
		/* not our mistake alone: what a table says of its blocks was read from media */
		err = kvc_err(-EINVAL, index_unsealed);
	} else if (BLOCK_IS_NONE(parent)) {
		p.chain = prefix_chain(pool->roots[key->root].chain, p.ids, p.nr);
	} else if (pool_block(pool, parent.v)->flags & BLOCK_INDEXED) {
		p.parent_gen = pool_block(pool, parent.v)->gen;
		p.chain = prefix_chain(pool_block(pool, parent.v)->chain, p.ids, p.nr);
	} else {
		err = -EEXIST;
	}
	if (!err)
		err = insert_at(pool, &p, id.v, &found->v);
	lock_release(&pool->lock);
	return err;
}

/* ---- roots ---- */

static u32 *root_bucket(struct pool *pool, struct hash128 chain)
{
	return &pool->root_buckets[chain.lo & (pool->max_roots - 1)];
}

static void root_link(struct pool *pool, u32 root)
{
	u32 *head = root_bucket(pool, pool->roots[root].chain);

	pool->roots[root].next = *head;
	*head = root;
}

static void root_unlink(struct pool *pool, u32 root)
{
	u32 *link = root_bucket(pool, pool->roots[root].chain);

	while (*link != root)
		link = &pool->roots[*link].next;
	*link = pool->roots[root].next;
}

/* Room for roots up to @root. */
static int roots_reserve(struct pool *pool, u32 root)
{
	u32 max_nr = max(pool->max_roots, 64u), *buckets, *due;
	struct prefix_root *roots;

	while (max_nr <= root)
		max_nr *= 2;
	if (max_nr == pool->max_roots)
		return 0;
	roots = reallocarray(pool->roots, max_nr, sizeof(*roots));
	if (!roots)
		return -ENOMEM;
	memset(roots + pool->max_roots, 0, (max_nr - pool->max_roots) * sizeof(*roots));
	pool->roots = roots;
	due = reallocarray(pool->roots_due, max_nr, sizeof(*due));
	if (!due)
		return -ENOMEM;
	pool->roots_due = due;
	buckets = calloc(max_nr, sizeof(*buckets));
	if (!buckets)
		return -ENOMEM;
	free(pool->root_buckets);
	pool->root_buckets = buckets;
	pool->max_roots = max_nr;
	for (u32 r = 1; r < pool->nr_roots; r++)
		if (pool->roots[r].space)
			root_link(pool, r);
	return 0;
}

int root_set(struct pool *pool, u32 root, u32 space, const void *salt, u32 salt_bytes)
{
	struct prefix_root *r;
	u8 *copy;

	if (roots_reserve(pool, root))
		return -ENOMEM;
	copy = fault_point(FAULT_MEMORY) ? NULL : malloc(salt_bytes + 1);
	if (!copy)
		return -ENOMEM;
	if (salt_bytes)
		memcpy(copy, salt, salt_bytes);
	r = &pool->roots[root];
	r->salt = copy;
	r->salt_bytes = salt_bytes;
	r->space = space;
	r->chain = root_chain(space, copy, salt_bytes);
	root_link(pool, root);
	pool->nr_roots = max(pool->nr_roots, root + 1);
	return 0;
}

void roots_loaded(struct pool *pool)
{
	for (u32 r = pool->nr_roots; --r > 0;) {
		if (pool->roots[r].space)
			continue;
		pool->roots[r].next = pool->root_free;
		pool->root_free = r;
	}
}

/* The next submit writes or removes its record. */
static void root_due(struct pool *pool, u32 root)
{
	if (pool->roots[root].due)
		return;
	pool->roots[root].due = true;
	pool->roots_due[pool->nr_roots_due++] = root;
}

static u32 root_find(struct pool *pool, u32 space, const void *salt, u32 salt_bytes)
{
	u32 r = 0;

	if (pool->max_roots)
		r = *root_bucket(pool, root_chain(space, salt, salt_bytes));
	for (; r; r = pool->roots[r].next) {
		struct prefix_root *root = &pool->roots[r];

		if (root->space == space && root->salt_bytes == salt_bytes &&
		    (!salt_bytes || !memcmp(root->salt, salt, salt_bytes)))
			break;
	}
	return r;
}

/* A new root in a free place. Return: it, 0: no memory. */
static u32 root_make(struct pool *pool, u32 space, const void *salt, u32 salt_bytes)
{
	u32 r = pool->root_free ? pool->root_free : pool->nr_roots;
	u32 next = pool->root_free ? pool->roots[r].next : 0;

	if (root_set(pool, r, space, salt, salt_bytes))
		return 0;
	pool->root_free = next;
	root_due(pool, r);
	return r;
}

int pool_root(struct pool *pool, u32 space, const void *salt, u32 salt_bytes, u32 *root)
{
	lock_acquire(&pool->lock);
	*root = root_find(pool, space, salt, salt_bytes);
	if (!*root)
		*root = root_make(pool, space, salt, salt_bytes);
	lock_release(&pool->lock);
	return *root ? 0 : -ENOMEM;
}

static void root_drop(struct pool *pool, u32 root)
{
	struct prefix_root *r = &pool->roots[root];

	root_unlink(pool, root);
	free(r->salt);
	r->salt = NULL;
	r->salt_bytes = 0;
	r->space = 0;
	r->next = pool->root_free;
	pool->root_free = root;
	root_due(pool, root);
}

void prefix_drop_space(struct pool *pool, u32 space)
{
	lock_acquire(&pool->lock);
	for (u32 r = 1; r < pool->nr_roots; r++)
		if (pool->roots[r].space == space)
			root_drop(pool, r);
	for (u32 id = 0; id < pool->nr_ids; id++) {
		struct block *b = pool_block(pool, id);

		if (id % BREATHE == BREATHE - 1)
			pool_breathe(pool);
		if (!(b->flags & BLOCK_INDEXED) || b->space != space)
			continue;
		prefix_remove(pool, id);
		if (!block_maybe_free(pool, id))
			block_requeue(pool, id);
	}
	domain_forget_space(pool, space);
	lock_release(&pool->lock);
}

void prefix_free(struct pool *pool)
{
	for (u32 r = 1; r < pool->nr_roots; r++)
		free(pool->roots[r].salt);
	free(pool->roots);
	free(pool->root_buckets);
	free(pool->roots_due);
	free(pool->buckets);
}
