/* SPDX-License-Identifier: Apache-2.0 */
/* A volatile pool: nothing is recorded, so there is nothing to load again. */
#include "allocator/meta.h"
#include "lib/pool_fixture.h"
#include "lib/test.h"
#include "model/seq_backend.h"

static struct pool_fixture fx;

struct pool *backend_open(u64 capacity)
{
	pool_fixture_open(&fx, round_up_pow2(capacity * 32, MIB(2)), 0);
	return fx.pool;
}

void backend_close(void)
{
	struct pool_stats stats;

	pool_check(fx.pool);
	pool_get_stats(fx.pool, &stats);
	assert_int_equal(stats.named_bytes, 0);
	pool_fixture_close(&fx);
}

bool backend_feed(u64 id, struct sequence *seq)
{
	return false;
}

void backend_apply(struct meta_txn *txn)
{
	meta_txn_free(txn);
}

bool backend_drops_leaves_only(void)
{
	return false;
}
