/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/pool_stub.h"
#include "lib/test.h"
#include "model/seq_backend.h"

static struct pool *pool;

struct feed {
	u64 id;
	struct sequence *seq;
	bool any;
};

struct pool *backend_open(u64 capacity)
{
	pool = stub_pool_create(capacity);
	return pool;
}

void backend_close(void)
{
	assert_int_equal(stub_pool_named(pool), 0);
	stub_pool_destroy(pool);
}

static int feed_one(void *ctx, const struct meta_key *key, const void *value, u32 bytes)
{
	struct feed *f = ctx;

	if (key->id != f->id)
		return 0;
	f->any = true;
	return seq_load(f->seq, key->type, key->sub, value, bytes);
}

bool backend_feed(u64 id, struct sequence *seq)
{
	struct feed f = {.id = id, .seq = seq};

	assert_int_equal(stub_records(pool, feed_one, &f), 0);
	return f.any;
}

void backend_apply(struct meta_txn *txn)
{
	stub_apply(pool, txn);
}

bool backend_drops_leaves_only(void)
{
	return true;
}
