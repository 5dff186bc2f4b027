/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/base/fault.h"
#include "allocator/base/lock.h"
#include "allocator/base/textbuf.h"
#include "tests/lib/pool_stub.h"

#define NR_BUCKETS 4096u
#define MAX_SALT   256u

struct stub_block {
	u32 ref, pin, flags, bytes, space;
	u32 root, parent, kids, nr_ids, hash_next; /* of the index */
	u32 *ids;
	u8 *data; /* NULL: EMPTY */
};

struct stub_root {
	u32 space, salt_bytes;
	u8 salt[MAX_SALT];
};

struct stub_record {
	struct meta_key key;
	u32 bytes;
	u8 *value;
};

struct pool {
	struct lock lock;
	struct stub_block **blocks;
	u32 nr_blocks, max_blocks, nr_free;
	u32 *free;
	u64 capacity, used, prefetched, seq;
	u32 buckets[NR_BUCKETS];
	struct stub_root *roots;
	u32 nr_roots;
	struct stub_record *records;
	u32 nr_records;
	bool absent;
};

/* ---- blocks ---- */

struct pool *stub_pool_create(u64 capacity)
{
	struct pool *pool = calloc(1, sizeof(*pool));

	KVC_BUG_ON(!pool);
	lock_init(&pool->lock, LOCK_POOL);
	pool->capacity = capacity;
	memset(pool->buckets, 0xff, sizeof(pool->buckets));
	return pool;
}

static struct stub_block *get(struct pool *pool, struct block_id id)
{
	KVC_BUG_ON(id.v >= pool->nr_blocks || !pool->blocks[id.v]);
	return pool->blocks[id.v];
}

static u32 bucket_of(u32 root, u32 parent, const u32 *ids, u32 nr)
{
	return hash_bytes(ids, nr * sizeof(u32)) % NR_BUCKETS ^
	       hash_u64((u64)root << 32 | parent) % NR_BUCKETS;
}

static u32 lookup(struct pool *pool, u32 root, u32 parent, const u32 *ids, u32 nr)
{
	u32 i = pool->buckets[bucket_of(root, parent, ids, nr)];

	for (; i != UINT32_MAX; i = pool->blocks[i]->hash_next) {
		struct stub_block *b = pool->blocks[i];

		if (b->root == root && b->parent == parent && b->nr_ids == nr &&
		    !memcmp(b->ids, ids, nr * sizeof(u32)))
			break;
	}
	return i;
}

static void unindex(struct pool *pool, u32 i)
{
	struct stub_block *b = pool->blocks[i];
	u32 *at = &pool->buckets[bucket_of(b->root, b->parent, b->ids, b->nr_ids)];

	while (*at != i)
		at = &pool->blocks[*at]->hash_next;
	*at = b->hash_next;
	if (b->parent != PARENT_ROOT)
		pool->blocks[b->parent]->kids--;
	free(b->ids);
	b->ids = NULL;
	b->flags &= ~(u32)BLOCK_INDEXED;
}

static void maybe_free(struct pool *pool, u32 i)
{
	struct stub_block *b = pool->blocks[i];

	if (b->ref || b->pin || b->flags & BLOCK_INDEXED)
		return;
	pool->used -= b->bytes;
	if (b->data)
		memset(b->data, 0xdb, b->bytes); /* whoever still reads it will notice */
	free(b->data);
	free(b);
	pool->blocks[i] = NULL;
	pool->free[pool->nr_free++] = i;
}

static bool evict_leaf(struct pool *pool, u32 space)
{
	for (u32 i = 0; i < pool->nr_blocks; i++) {
		struct stub_block *b = pool->blocks[i];

		if (!b || b->ref || b->pin || b->kids || (space && b->space != space))
			continue;
		unindex(pool, i);
		maybe_free(pool, i);
		return true;
	}
	return false;
}

static u32 new_id(struct pool *pool)
{
	if (pool->nr_free)
		return pool->free[--pool->nr_free];
	if (pool->nr_blocks == pool->max_blocks) {
		pool->max_blocks = pool->max_blocks * 2 + 64;
		pool->blocks = reallocarray(pool->blocks, pool->max_blocks, sizeof(void *));
		pool->free = reallocarray(pool->free, pool->max_blocks, sizeof(u32));
		KVC_BUG_ON(!pool->blocks || !pool->free);
	}
	return pool->nr_blocks++;
}

int pool_alloc(struct pool *pool, const struct pool_want *want, unsigned int nr,
	       struct block_id *ids)
{
	int err = 0;

	lock_assert_none();

	if (fault_point(FAULT_SPACE))
		return -ENOSPC;
	lock_acquire(&pool->lock);
	while (pool->used + (u64)want->bytes * nr > pool->capacity && !err)
		err = evict_leaf(pool, 0) ? 0 : -ENOSPC;
	for (unsigned int i = 0; !err && i < nr; i++) {
		struct stub_block *b = calloc(1, sizeof(*b));

		KVC_BUG_ON(!b);
		*b = (struct stub_block){
			.ref = 1, .bytes = want->bytes, .space = want->space, .flags = BLOCK_LIVE};
		ids[i].v = new_id(pool);
		pool->blocks[ids[i].v] = b;
		pool->used += want->bytes;
	}
	lock_release(&pool->lock);
	return err;
}

void pool_get(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < nr; i++)
		if (!BLOCK_IS_NONE(ids[i]))
			get(pool, ids[i])->ref++;
	lock_release(&pool->lock);
}

void pool_put(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < nr; i++) {
		if (BLOCK_IS_NONE(ids[i]))
			continue;
		KVC_BUG_ON(!get(pool, ids[i])->ref);
		get(pool, ids[i])->ref--;
		maybe_free(pool, ids[i].v);
	}
	lock_release(&pool->lock);
}

int pool_pin(struct pool *pool, struct block_id id, const void **addr)
{
	if (fault_point(FAULT_READ))
		return -EIO;
	lock_assert_none();
	lock_acquire(&pool->lock);
	get(pool, id)->pin++;
	*addr = get(pool, id)->data;
	lock_release(&pool->lock);
	return 0;
}

bool pool_try_pin(struct pool *pool, const struct block_id *ids, unsigned int nr,
		  const void **addrs)
{
	if (pool->absent)
		return false;
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < nr; i++) {
		get(pool, ids[i])->pin++;
		addrs[i] = get(pool, ids[i])->data;
	}
	lock_release(&pool->lock);
	return true;
}

void pool_unpin(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < nr; i++) {
		KVC_BUG_ON(!get(pool, ids[i])->pin);
		get(pool, ids[i])->pin--;
		maybe_free(pool, ids[i].v);
	}
	lock_release(&pool->lock);
}

/* Places are made up: a test looks at blocks by way of pool_pin(). */
int pool_hold(struct pool *pool, const struct block_id *ids, unsigned int nr,
	      struct pool_place *places)
{
	if (fault_point(FAULT_READ))
		return -EIO;
	lock_assert_none();
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < nr; i++) {
		struct stub_block *b = get(pool, ids[i]);

		b->pin++;
		if (!b->data)
			b->data = calloc(1, b->bytes);
		KVC_BUG_ON(!b->data);
		places[i] = (struct pool_place){.off = ids[i].v * (u64)KVC_HUGE_SIZE};
	}
	lock_release(&pool->lock);
	return 0;
}

void pool_unhold(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	pool_unpin(pool, ids, nr);
}

int pool_fill_begin(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	return fault_point(FAULT_MEMORY) ? -ENOMEM : 0;
}

void pool_fill_end(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
}

int pool_begin_write(struct pool *pool, struct block_id id, bool whole, void **addr)
{
	struct stub_block *b;

	if (fault_point(FAULT_MEMORY))
		return -ENOMEM;
	lock_assert_none();
	lock_acquire(&pool->lock);
	b = get(pool, id);
	KVC_BUG_ON(b->flags & (BLOCK_SEALED | BLOCK_RECORDED));
	if (!b->data)
		b->data = whole ? malloc(b->bytes) : calloc(1, b->bytes);
	KVC_BUG_ON(!b->data);
	b->pin++;
	*addr = b->data;
	lock_release(&pool->lock);
	return 0;
}

void pool_end_write(struct pool *pool, struct block_id id)
{
	pool_unpin(pool, &id, 1);
}

bool pool_writable(struct pool *pool, struct block_id id)
{
	bool writable;

	lock_acquire(&pool->lock);
	writable = !(get(pool, id)->flags & (BLOCK_SEALED | BLOCK_RECORDED)) &&
		   get(pool, id)->ref == 1;
	lock_release(&pool->lock);
	return writable;
}

bool pool_sealed(struct pool *pool, struct block_id id)
{
	bool sealed;

	lock_acquire(&pool->lock);
	sealed = get(pool, id)->flags & BLOCK_SEALED;
	lock_release(&pool->lock);
	return sealed;
}

u32 pool_bytes(struct pool *pool, struct block_id id)
{
	u32 bytes;

	lock_acquire(&pool->lock);
	bytes = get(pool, id)->bytes;
	lock_release(&pool->lock);
	return bytes;
}

int pool_copy(struct pool *pool, struct block_id src, u32 bytes, struct block_id *dst)
{
	struct stub_block *from, *to;
	struct pool_want want = {.bytes = bytes, .space = get(pool, src)->space, .near = src};
	int err = pool_alloc(pool, &want, 1, dst);

	if (err)
		return err;
	lock_acquire(&pool->lock);
	from = get(pool, src);
	to = get(pool, *dst);
	if (from->data) {
		to->data = calloc(1, bytes);
		KVC_BUG_ON(!to->data);
		memcpy(to->data, from->data, min(bytes, from->bytes));
	}
	lock_release(&pool->lock);
	return 0;
}

int pool_same_bytes(struct pool *pool, struct block_id a, struct block_id b)
{
	struct stub_block *x = get(pool, a), *y = get(pool, b);

	KVC_BUG_ON(!(x->flags & y->flags & BLOCK_SEALED));
	if (x->bytes != y->bytes || !x->data != !y->data)
		return 0;
	return !x->data || !memcmp(x->data, y->data, x->bytes);
}

void pool_prefetch(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < nr; i++)
		get(pool, ids[i]);
	pool->prefetched += nr;
	lock_release(&pool->lock);
}

void pool_fetch(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	lock_assert_none();
}

int pool_demote(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	for (unsigned int i = 0; i < nr; i++)
		get(pool, ids[i]);
	return 0;
}

void pool_unkeep(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
}

void pool_touch(struct pool *pool, const struct block_id *ids, unsigned int nr,
		enum block_class class, u8 priority)
{
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < nr; i++)
		if (!BLOCK_IS_NONE(ids[i]))
			get(pool, ids[i]);
	lock_release(&pool->lock);
}

int pool_seal(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	if (fault_point(FAULT_WRITE))
		return -EIO;
	lock_assert_none();
	for (unsigned int i = 0; i < nr; i++)
		if (!BLOCK_IS_NONE(ids[i]))
			get(pool, ids[i])->flags |= BLOCK_SEALED;
	return 0;
}

int pool_writeback(struct pool *pool, const struct block_id *ids, unsigned int nr)
{
	for (unsigned int i = 0; i < nr; i++)
		get(pool, ids[i]);
	lock_assert_none();
	return fault_point(FAULT_WRITE) ? -EIO : 0;
}

int pool_flush(struct pool *pool)
{
	lock_assert_none();
	return fault_point(FAULT_WRITE) ? -EIO : 0;
}

int pool_submit(struct pool *pool, const struct block_id *ids, unsigned int nr,
		struct meta_txn *txn, u64 *seq)
{
	if (txn && txn->err)
		return txn->err;
	if (fault_point(FAULT_META))
		return -ENOSPC;
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < nr; i++)
		get(pool, ids[i])->flags |= BLOCK_RECORDED;
	*seq = ++pool->seq;
	lock_release(&pool->lock);
	if (txn)
		stub_apply(pool, txn);
	return 0;
}

int pool_load_ref(struct pool *pool, struct block_id id, u32 bytes)
{
	if (id.v >= pool->nr_blocks || !pool->blocks[id.v] || pool->blocks[id.v]->bytes != bytes)
		return -EUCLEAN;
	pool->blocks[id.v]->ref++;
	return 0;
}

/* ---- prefix index ---- */

int pool_root(struct pool *pool, u32 space, const void *salt, u32 salt_bytes, u32 *root)
{
	struct stub_root *r;

	KVC_BUG_ON(salt_bytes > MAX_SALT);
	for (*root = 1; *root <= pool->nr_roots; (*root)++) {
		r = &pool->roots[*root - 1];
		if (r->space == space && r->salt_bytes == salt_bytes &&
		    !memcmp(r->salt, salt, salt_bytes))
			return 0;
	}
	pool->roots = reallocarray(pool->roots, ++pool->nr_roots, sizeof(*r));
	KVC_BUG_ON(!pool->roots);
	r = &pool->roots[*root - 1];
	r->space = space;
	r->salt_bytes = salt_bytes;
	if (salt_bytes)
		memcpy(r->salt, salt, salt_bytes);
	return 0;
}

unsigned int prefix_match(struct pool *pool, const struct prefix_key *key, struct block_id *out,
			  bool take)
{
	u32 bt = key->block_tokens, parent = PARENT_ROOT;
	unsigned int n = 0;

	lock_acquire(&pool->lock);
	for (; (n + 1) * bt <= key->nr_ids; n++) {
		u32 i = lookup(pool, key->root, parent, key->ids + (size_t)n * bt, bt);

		if (i == UINT32_MAX)
			break;
		if (take)
			pool->blocks[i]->ref++;
		if (out)
			out[n].v = i;
		parent = i;
	}
	lock_release(&pool->lock);
	return n;
}

static void enter(struct pool *pool, const struct prefix_key *key, u32 parent, u32 id)
{
	struct stub_block *b = pool->blocks[id];
	u32 *bucket = &pool->buckets[bucket_of(key->root, parent, key->ids, key->block_tokens)];

	b->root = key->root;
	b->parent = parent;
	b->nr_ids = key->block_tokens;
	b->ids = calloc(b->nr_ids, sizeof(u32));
	KVC_BUG_ON(!b->ids);
	memcpy(b->ids, key->ids, b->nr_ids * sizeof(u32));
	b->flags |= BLOCK_INDEXED;
	b->hash_next = *bucket;
	*bucket = id;
	if (parent != PARENT_ROOT)
		pool->blocks[parent]->kids++;
}

int prefix_insert(struct pool *pool, const struct prefix_key *key, struct block_id parent,
		  struct block_id id, struct block_id *found)
{
	struct stub_block *b;
	u32 have;
	int err = 0;

	if (fault_point(FAULT_MEMORY))
		return -ENOMEM;
	lock_acquire(&pool->lock);
	b = get(pool, id);
	KVC_BUG_ON(!(b->flags & BLOCK_SEALED) || !key->root);
	have = lookup(pool, key->root, parent.v, key->ids, key->block_tokens);
	*found = id;
	if (!BLOCK_IS_NONE(parent) && !(get(pool, parent)->flags & BLOCK_INDEXED)) {
		err = -EEXIST;
	} else if (b->flags & BLOCK_INDEXED) {
		err = have == id.v ? 0 : -EEXIST;
	} else if (have != UINT32_MAX) {
		pool->blocks[have]->ref++;
		found->v = have;
	} else {
		enter(pool, key, parent.v, id.v);
	}
	lock_release(&pool->lock);
	return err;
}

/* ---- state ---- */

void pool_residency(struct pool *pool, const struct block_id *ids, unsigned int nr,
		    struct pool_residency *res)
{
	*res = (struct pool_residency){0};
	lock_acquire(&pool->lock);
	for (unsigned int i = 0; i < nr; i++) {
		struct stub_block *b;

		if (BLOCK_IS_NONE(ids[i]))
			continue;
		b = get(pool, ids[i]);
		res->nr++;
		res->dram += !!b->data;
		res->shared += b->ref > 1;
		res->exclusive_bytes += b->ref > 1 ? 0 : round_up_pow2(b->bytes, KVC_PAGE_SIZE);
		res->bytes += round_up_pow2(b->bytes, KVC_PAGE_SIZE);
	}
	lock_release(&pool->lock);
}

void pool_drop_cached(struct pool *pool, u32 space, enum block_tier tier, u64 *blocks, u64 *bytes)
{
	u64 before;

	lock_acquire(&pool->lock);
	before = pool->used;
	for (*blocks = 0; evict_leaf(pool, space); (*blocks)++)
		;
	*bytes = before - pool->used;
	lock_release(&pool->lock);
}

void pool_check(struct pool *pool)
{
	for (u32 i = 0; i < pool->nr_blocks; i++) {
		struct stub_block *b = pool->blocks[i];

		if (!b)
			continue;
		KVC_BUG_ON(!b->ref && !b->pin && !(b->flags & BLOCK_INDEXED));
		KVC_BUG_ON(b->flags & BLOCK_INDEXED && !(b->flags & BLOCK_SEALED));
	}
}

/* ---- records ---- */

struct txn_head {
	struct meta_key key;
	u32 bytes; /* UINT32_MAX: removal */
};

static void txn_add(struct meta_txn *txn, const void *data, size_t len)
{
	if (!len)
		return;
	txn->buf = realloc(txn->buf, txn->len + len);
	KVC_BUG_ON(!txn->buf);
	memcpy(txn->buf + txn->len, data, len);
	txn->len += len;
}

void meta_txn_put(struct meta_txn *txn, struct meta_key key, const void *value, u32 bytes)
{
	struct txn_head h = {.key = key, .bytes = bytes};

	txn_add(txn, &h, sizeof(h));
	txn_add(txn, value, bytes);
	txn->nr_records++;
}

void meta_txn_del(struct meta_txn *txn, struct meta_key key)
{
	struct txn_head h = {.key = key, .bytes = UINT32_MAX};

	txn_add(txn, &h, sizeof(h));
	txn->nr_records++;
}

void meta_txn_free(struct meta_txn *txn)
{
	free(txn->buf);
	*txn = META_TXN_INIT;
}

static struct stub_record *record_of(struct pool *pool, struct meta_key key)
{
	for (u32 i = 0; i < pool->nr_records; i++) {
		struct meta_key *k = &pool->records[i].key;

		if (k->id == key.id && k->sub == key.sub && k->type == key.type)
			return &pool->records[i];
	}
	return NULL;
}

static void apply_one(struct pool *pool, const struct txn_head *h, const void *value)
{
	struct stub_record *r = record_of(pool, h->key);

	if (h->bytes == UINT32_MAX) {
		if (r) {
			free(r->value);
			*r = pool->records[--pool->nr_records];
		}
		return;
	}
	if (!r) {
		pool->records =
			reallocarray(pool->records, pool->nr_records + 1, sizeof(*pool->records));
		KVC_BUG_ON(!pool->records);
		r = &pool->records[pool->nr_records++];
		r->value = NULL;
		r->key = h->key;
	}
	r->bytes = h->bytes;
	r->value = realloc(r->value, h->bytes + 1);
	KVC_BUG_ON(!r->value);
	memcpy(r->value, value, h->bytes);
}

void stub_apply(struct pool *pool, struct meta_txn *txn)
{
	struct txn_head h;

	for (size_t at = 0; at < txn->len;) {
		memcpy(&h, txn->buf + at, sizeof(h));
		at += sizeof(h);
		apply_one(pool, &h, txn->buf + at);
		at += h.bytes == UINT32_MAX ? 0 : h.bytes;
	}
	meta_txn_free(txn);
}

int stub_records(struct pool *pool,
		 int (*fn)(void *ctx, const struct meta_key *key, const void *value, u32 bytes),
		 void *ctx)
{
	int err = 0;

	/* backwards: nothing may depend on the order */
	for (u32 i = pool->nr_records; i-- > 0 && !err;)
		err = fn(ctx, &pool->records[i].key, pool->records[i].value,
			 pool->records[i].bytes);
	return err;
}

/* ---- questions of tests ---- */

void stub_pool_destroy(struct pool *pool)
{
	for (u32 i = 0; i < pool->nr_blocks; i++) {
		if (!pool->blocks[i])
			continue;
		free(pool->blocks[i]->ids);
		free(pool->blocks[i]->data);
		free(pool->blocks[i]);
	}
	for (u32 i = 0; i < pool->nr_records; i++)
		free(pool->records[i].value);
	free(pool->records);
	free(pool->roots);
	free(pool->blocks);
	free(pool->free);
	lock_destroy(&pool->lock);
	free(pool);
}

u32 stub_pool_named(struct pool *pool)
{
	u32 n = 0;

	for (u32 i = 0; i < pool->nr_blocks; i++)
		n += pool->blocks[i] && pool->blocks[i]->ref;
	return n;
}

u32 stub_pool_live(struct pool *pool)
{
	return pool->nr_blocks - pool->nr_free;
}

u32 stub_pool_ref(struct pool *pool, struct block_id id)
{
	return get(pool, id)->ref;
}

u64 stub_pool_used(struct pool *pool)
{
	return pool->used;
}

void stub_pool_absent(struct pool *pool, bool absent)
{
	pool->absent = absent;
}

u64 stub_pool_prefetched(struct pool *pool)
{
	return pool->prefetched;
}
