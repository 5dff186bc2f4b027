/* SPDX-License-Identifier: Apache-2.0 */
/* Moving many blocks: batches that overlap, writes that fail or are refused in the middle, prefetch. */
#include <errno.h>
#include <pthread.h>
#include "lib/test.h"
#include "lib/pool_fixture.h"
#include "lib/tier_flaky.h"

#define BYTES	4096u
#define BATCHES 3	/* a batch takes at most 512 blocks */
#define NR	(512 * BATCHES + 77)

static void make_blocks(struct pool_fixture *fx, struct block_id *ids, u32 nr)
{
	for (u32 i = 0; i < nr; i++)
		assert_int_equal(pool_fixture_block(fx, BYTES, 1, i, &ids[i]), 0);
	assert_int_equal(pool_seal(fx->pool, ids, nr), 0);
}

static void all_hold(struct pool_fixture *fx, const struct block_id *ids, u32 nr)
{
	for (u32 i = 0; i < nr; i++)
		assert_int_equal(pool_fixture_holds(fx, ids[i], i), 1);
}

static u32 resident(struct pool_fixture *fx, const struct block_id *ids, u32 nr)
{
	struct pool_residency res;

	pool_residency(fx->pool, ids, nr, &res);
	return res.dram;
}

static void many_batches_leave_and_come_back(void **state)
{
	struct pool_fixture fx;
	struct block_id ids[NR];
	struct pool_residency res;

	pool_fixture_open(&fx, MIB(64), MIB(64));
	make_blocks(&fx, ids, NR);
	assert_int_equal(pool_writeback(fx.pool, ids, NR), 0);
	pool_residency(fx.pool, ids, NR, &res);
	assert_int_equal(res.nvme, NR);
	assert_int_equal(tier_flaky_seen(fx.flaky, TIER_WRITE), NR);
	assert_int_equal(pool_writeback(fx.pool, ids, NR), 0);
	assert_int_equal(tier_flaky_seen(fx.flaky, TIER_WRITE), NR); /* nothing twice */
	assert_int_equal(pool_demote(fx.pool, ids, NR), 0);
	assert_int_equal(resident(&fx, ids, NR), 0);
	all_hold(&fx, ids, NR);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

static void lists_may_have_holes_and_repeat(void **state)
{
	struct pool_fixture fx;
	struct block_id ids[8], list[19];

	pool_fixture_open(&fx, MIB(16), MIB(16));
	make_blocks(&fx, ids, 8);
	for (u32 i = 0; i < 19; i++)
		list[i] = i % 5 ? ids[i % 8] : BLOCK_NONE;
	assert_int_equal(pool_writeback(fx.pool, list, 19), 0);
	assert_int_equal(pool_writeback(fx.pool, ids, 8), 0);
	assert_int_equal(tier_flaky_seen(fx.flaky, TIER_WRITE), 8);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

/* A failure anywhere is told, loses nothing, and leaves no block behind that is still moving. */
static void failures_are_told_and_can_be_repeated(void **state)
{
	const u64 at[] = {1, 2, 511, 512, 513, 1024, NR};

	for (u32 i = 0; i < 2 * ARRAY_SIZE(at); i++) {
		struct pool_fixture fx;
		struct block_id ids[NR];

		pool_fixture_open(&fx, MIB(64), MIB(64));
		make_blocks(&fx, ids, NR);
		if (i % 2)
			tier_flaky_fail(fx.flaky, TIER_WRITE, at[i / 2], -EIO);
		else
			tier_flaky_refuse(fx.flaky, i / 2 % 2 + 1, -ENOMEM);
		assert_int_equal(pool_demote(fx.pool, ids, NR), i % 2 ? -EIO : -ENOMEM);
		pool_check(fx.pool);
		all_hold(&fx, ids, NR);
		assert_int_equal(pool_demote(fx.pool, ids, NR), 0);
		assert_int_equal(resident(&fx, ids, NR), 0);
		all_hold(&fx, ids, NR);
		pool_check(fx.pool);
		pool_fixture_close(&fx);
	}
}

struct writer {
	struct pool *pool;
	const struct block_id *ids;
	int err;
};

static void *write_back(void *arg)
{
	struct writer *w = arg;

	w->err = pool_writeback(w->pool, w->ids, 4);
	return NULL;
}

/* Who finds a block on its way waits for it and does not write it again. */
static void writers_of_the_same_blocks_wait(void **state)
{
	struct pool_fixture fx;
	struct block_id ids[4];
	struct writer w[2];
	pthread_t threads[2];

	pool_fixture_open(&fx, MIB(16), MIB(16));
	make_blocks(&fx, ids, 4);
	tier_flaky_hold(fx.flaky, TIER_WRITE, true);
	for (int i = 0; i < 2; i++) {
		w[i] = (struct writer){.pool = fx.pool, .ids = ids, .err = 1};
		assert_int_equal(pthread_create(&threads[i], NULL, write_back, &w[i]), 0);
		if (!i)
			tier_flaky_wait_held(fx.flaky, 4);
	}
	tier_flaky_hold(fx.flaky, TIER_WRITE, false);
	tier_flaky_release(fx.flaky, 4);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_int_equal(w[i].err, 0);
	}
	assert_int_equal(tier_flaky_seen(fx.flaky, TIER_WRITE), 4);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

/* More than there is room for: hints may be dropped, bytes may not. */
static void prefetch_beyond_the_room_harms_nothing(void **state)
{
	struct pool_fixture fx;
	struct block_id ids[NR];

	pool_fixture_open(&fx, MIB(4), MIB(64));
	make_blocks(&fx, ids, NR);
	assert_int_equal(pool_demote(fx.pool, ids, NR), 0);
	pool_prefetch(fx.pool, ids, NR);
	all_hold(&fx, ids, NR);
	pool_prefetch(fx.pool, ids, NR);
	pool_fixture_close(&fx); /* in the middle of it */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(many_batches_leave_and_come_back),
		cmocka_unit_test(lists_may_have_holes_and_repeat),
		cmocka_unit_test(failures_are_told_and_can_be_repeated),
		cmocka_unit_test(writers_of_the_same_blocks_wait),
		cmocka_unit_test(prefetch_beyond_the_room_harms_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
