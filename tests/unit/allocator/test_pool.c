/* SPDX-License-Identifier: Apache-2.0 */
/* The pool: names, pins, sealing, demotion and promotion, checksums, room, the prefix index. */
#include <errno.h>
#include <string.h>
#include "lib/test.h"
#include "lib/pool_fixture.h"
#include "lib/tier_flaky.h"
#include "allocator/base/fault.h"

#define BYTES 40960u
#define TOKENS 16u

static void fill_ids(u32 *ids, u32 nr, u32 seed)
{
	for (u32 i = 0; i < nr; i++)
		ids[i] = seed * 1000003u + i;
}

/* A sealed chain of @nr blocks indexed under @root, block i filled from seed + i. */
static void make_chain(struct pool_fixture *fx, u32 root, u32 seed, u32 nr, struct block_id *out)
{
	struct block_id parent = BLOCK_NONE, found;
	u32 ids[TOKENS * 64];

	fill_ids(ids, TOKENS * nr, seed);
	for (u32 i = 0; i < nr; i++) {
		struct prefix_key key = {root, TOKENS, ids + i * TOKENS, TOKENS};

		assert_int_equal(pool_fixture_block(fx, BYTES, 1, seed + i, &out[i]), 0);
		assert_int_equal(pool_seal(fx->pool, &out[i], 1), 0);
		assert_int_equal(prefix_insert(fx->pool, &key, parent, out[i], &found), 0);
		assert_int_equal(found.v, out[i].v);
		parent = out[i];
	}
}

static u32 match(struct pool_fixture *fx, u32 root, u32 seed, u32 nr, struct block_id *out, bool take)
{
	u32 ids[TOKENS * 64];
	struct prefix_key key = {root, TOKENS, ids, TOKENS * nr};

	fill_ids(ids, TOKENS * nr, seed);
	return prefix_match(fx->pool, &key, out, take);
}

static void named_blocks_survive_pressure(void **state)
{
	struct pool_fixture fx;
	struct block_id ids[400];
	struct pool_stats s;

	pool_fixture_open(&fx, MIB(4), MIB(32));
	for (u32 i = 0; i < 400; i++) {
		assert_int_equal(pool_fixture_block(&fx, BYTES, 1, i, &ids[i]), 0);
		if (i % 3)
			assert_int_equal(pool_seal(fx.pool, &ids[i], 1), 0);
	}
	pool_check(fx.pool);
	for (u32 i = 0; i < 400; i++)
		assert_int_equal(pool_fixture_holds(&fx, ids[(i * 7) % 400], (i * 7) % 400), 1);
	pool_get_stats(fx.pool, &s);
	assert_true(s.tier[IN_DRAM].used <= MIB(4));
	assert_true(s.demoted > 0 && s.promoted > 0);
	assert_int_equal(s.named_bytes, 400ull * BYTES);
	pool_put(fx.pool, ids, 400);
	pool_get_stats(fx.pool, &s);
	assert_int_equal(s.blocks, 0);
	assert_int_equal(s.named_bytes, 0);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

static void full_is_enospc_whole(void **state)
{
	struct pool_fixture fx;
	struct block_id ids[2048], more[8];
	struct pool_want want = {.bytes = 65536, .near = BLOCK_NONE};
	u32 nr = 0;

	pool_fixture_open(&fx, MIB(4), MIB(8));
	while (nr < 2048 && !pool_fixture_block(&fx, 65536, 0, nr, &ids[nr]))
		nr++;
	assert_int_equal(nr, MIB(8) / 65536);
	pool_put(fx.pool, &ids[--nr], 1);
	assert_int_equal(pool_alloc(fx.pool, &want, 8, more), -ENOSPC);
	assert_int_equal(pool_alloc(fx.pool, &want, 1, more), 0);
	pool_put(fx.pool, more, 1);
	for (u32 i = 0; i < nr; i++)
		assert_int_equal(pool_fixture_holds(&fx, ids[i], i), 1);
	pool_put(fx.pool, ids, nr);
	pool_fixture_close(&fx);
}

static void chain_is_cached_and_found(void **state)
{
	struct pool_fixture fx;
	struct block_id chain[20], got[20];
	u32 root, other;

	pool_fixture_open(&fx, MIB(4), MIB(32));
	assert_int_equal(pool_root(fx.pool, 1, "", 0, &root), 0);
	assert_int_equal(pool_root(fx.pool, 1, "tenant", 6, &other), 0);
	make_chain(&fx, root, 7, 20, chain);
	pool_put(fx.pool, chain, 20);
	pool_check(fx.pool);
	assert_int_equal(match(&fx, root, 7, 20, NULL, false), 20);
	assert_int_equal(match(&fx, other, 7, 20, NULL, false), 0);
	assert_int_equal(match(&fx, root, 8, 20, NULL, false), 0);
	assert_int_equal(match(&fx, root, 7, 20, got, true), 20);
	for (u32 i = 0; i < 20; i++)
		assert_int_equal(pool_fixture_holds(&fx, got[i], 7 + i), 1);
	pool_put(fx.pool, got, 20);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

static void eviction_is_leaf_first(void **state)
{
	struct pool_fixture fx;
	struct block_id chain[20], fresh[200];
	u32 root, left, nr = 0;

	pool_fixture_open(&fx, MIB(4), MIB(8));
	assert_int_equal(pool_root(fx.pool, 1, "", 0, &root), 0);
	make_chain(&fx, root, 7, 20, chain);
	pool_put(fx.pool, chain, 20);
	/* Fill what is left and then some: the chain must shrink from its end only. */
	while (nr < 195 && !pool_fixture_block(&fx, BYTES, 1, 1000 + nr, &fresh[nr]))
		nr++;
	left = match(&fx, root, 7, 20, NULL, false);
	assert_in_range(left, 1, 19);
	pool_check(fx.pool);
	for (u32 i = 0; i < nr; i++)
		assert_int_equal(pool_fixture_holds(&fx, fresh[i], 1000 + i), 1);
	pool_put(fx.pool, fresh, nr);
	pool_fixture_close(&fx);
}

static void first_of_equal_chains_is_kept(void **state)
{
	struct pool_fixture fx;
	struct block_id a, b, found;
	u32 root, ids[TOKENS];
	struct prefix_key key = {0, TOKENS, ids, TOKENS};

	pool_fixture_open(&fx, MIB(4), MIB(8));
	assert_int_equal(pool_root(fx.pool, 1, "", 0, &root), 0);
	key.root = root;
	fill_ids(ids, TOKENS, 3);
	make_chain(&fx, root, 3, 1, &a);
	assert_int_equal(pool_fixture_block(&fx, BYTES, 1, 3, &b), 0);
	assert_int_equal(pool_seal(fx.pool, &b, 1), 0);
	assert_int_equal(prefix_insert(fx.pool, &key, BLOCK_NONE, b, &found), 0);
	assert_int_equal(found.v, a.v);
	assert_int_equal(pool_same_bytes(fx.pool, a, b), 1);
	pool_put(fx.pool, &found, 1);
	pool_put(fx.pool, &b, 1);
	assert_int_equal(pool_fixture_block(&fx, BYTES, 1, 4, &b), 0);
	assert_int_equal(pool_seal(fx.pool, &b, 1), 0);
	assert_int_equal(pool_same_bytes(fx.pool, a, b), 0);
	pool_put(fx.pool, &a, 1);
	pool_put(fx.pool, &b, 1);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

static void damage_is_never_data(void **state)
{
	struct pool_fixture fx;
	struct block_id chain[4];
	u32 root;

	pool_fixture_open(&fx, MIB(4), MIB(8));
	assert_int_equal(pool_root(fx.pool, 1, "", 0, &root), 0);
	make_chain(&fx, root, 7, 4, chain);
	assert_int_equal(pool_demote(fx.pool, chain, 4), 0);
	/* A flip on the wire is read again, one on the medium is an error. */
	tier_flaky_flip(fx.flaky, 1, 5);
	assert_int_equal(pool_fixture_holds(&fx, chain[0], 7), 1);
	memset(tier_map(fx.disk, 0, MIB(8)), 0x5a, MIB(8));
	assert_int_equal(pool_fixture_holds(&fx, chain[2], 9), -EIO);
	assert_int_equal(pool_fixture_holds(&fx, chain[2], 9), -EIO);
	assert_int_equal(match(&fx, root, 7, 4, NULL, false), 2);
	pool_check(fx.pool);
	pool_put(fx.pool, chain, 4);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

static void failed_write_keeps_the_bytes(void **state)
{
	struct pool_fixture fx;
	struct block_id id;

	pool_fixture_open(&fx, MIB(4), MIB(8));
	assert_int_equal(pool_fixture_block(&fx, BYTES, 1, 5, &id), 0);
	assert_int_equal(pool_seal(fx.pool, &id, 1), 0);
	tier_flaky_fail(fx.flaky, TIER_WRITE, 1, -EIO);
	assert_int_equal(pool_demote(fx.pool, &id, 1), -EIO);
	assert_int_equal(pool_fixture_holds(&fx, id, 5), 1);
	assert_int_equal(pool_demote(fx.pool, &id, 1), 0);
	tier_flaky_fail(fx.flaky, TIER_READ, 1, -EIO);
	assert_int_equal(pool_fixture_holds(&fx, id, 5), -EIO);
	assert_int_equal(pool_fixture_holds(&fx, id, 5), 1);
	pool_put(fx.pool, &id, 1);
	pool_fixture_close(&fx);
}

static void scattered_small_blocks_do_not_starve_large_ones(void **state)
{
	struct pool_fixture fx;
	static struct block_id small[2000];
	struct block_id big[8];
	struct pool_want want = {.bytes = MIB(8), .near = BLOCK_NONE};
	u32 nr = 0, got = 0;

	pool_fixture_open(&fx, MIB(64), 0);
	while (nr < 2000 && !pool_fixture_block(&fx, BYTES, 0, nr, &small[nr]))
		nr++;
	assert_true(nr > 1550);
	for (u32 i = 0; i < nr; i++)
		if (i % 20)
			pool_put(fx.pool, &small[i], 1);
	while (got < 8 && !pool_alloc(fx.pool, &want, 1, &big[got]))
		got++;
	assert_true(got * MIB(8) >= MIB(64) * 85 / 100);
	for (u32 i = 0; i < nr; i += 20)
		assert_int_equal(pool_fixture_holds(&fx, small[i], i), 1);
	pool_check(fx.pool);
	pool_put(fx.pool, big, got);
	for (u32 i = 0; i < nr; i += 20)
		pool_put(fx.pool, &small[i], 1);
	pool_fixture_close(&fx);
}

static void empty_blocks_are_zeros(void **state)
{
	struct pool_fixture fx;
	struct pool_want want = {.bytes = BYTES, .near = BLOCK_NONE};
	struct block_id id, copy;
	const void *addr;

	pool_fixture_open(&fx, MIB(4), MIB(8));
	assert_int_equal(pool_alloc(fx.pool, &want, 1, &id), 0);
	assert_int_equal(pool_pin(fx.pool, id, &addr), 0);
	assert_null(addr);
	pool_unpin(fx.pool, &id, 1);
	assert_int_equal(pool_copy(fx.pool, id, BYTES, &copy), 0);
	assert_int_equal(pool_seal(fx.pool, &id, 1), 0);
	assert_int_equal(pool_demote(fx.pool, &id, 1), 0);
	assert_int_equal(pool_pin(fx.pool, id, &addr), 0);
	for (u32 i = 0; i < BYTES; i++)
		assert_int_equal(((const u8 *)addr)[i], 0);
	pool_unpin(fx.pool, &id, 1);
	pool_put(fx.pool, &id, 1);
	pool_put(fx.pool, &copy, 1);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

static void alloc_fails_whole_at_every_n(void **state)
{
	struct pool_fixture fx;
	struct pool_want want = {.bytes = BYTES, .near = BLOCK_NONE};
	struct block_id ids[8];
	struct pool_stats s;

	pool_fixture_open(&fx, MIB(4), MIB(8));
	for (u64 n = 1; n <= 8; n++) {
		fault_arm(FAULT_MEMORY, n);
		assert_int_equal(pool_alloc(fx.pool, &want, 8, ids), -ENOMEM);
		fault_arm(FAULT_MEMORY, 0);
		pool_get_stats(fx.pool, &s);
		assert_int_equal(s.blocks, 0);
		assert_int_equal(s.named_bytes, 0);
	}
	pool_fixture_close(&fx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(named_blocks_survive_pressure),
		cmocka_unit_test(full_is_enospc_whole),
		cmocka_unit_test(chain_is_cached_and_found),
		cmocka_unit_test(eviction_is_leaf_first),
		cmocka_unit_test(first_of_equal_chains_is_kept),
		cmocka_unit_test(damage_is_never_data),
		cmocka_unit_test(failed_write_keeps_the_bytes),
		cmocka_unit_test(scattered_small_blocks_do_not_starve_large_ones),
		cmocka_unit_test(empty_blocks_are_zeros),
		cmocka_unit_test(alloc_fails_whole_at_every_n),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
