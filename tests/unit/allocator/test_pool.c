/* SPDX-License-Identifier: Apache-2.0 */
/* The pool: names, pins, sealing, demotion and promotion, checksums, room, the prefix index. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include "lib/test.h"
#include "lib/pool_fixture.h"
#include "lib/tier_flaky.h"
#include "allocator/base/err.h"
#include "allocator/base/fault.h"

#define BYTES 40960u
#define TOKENS 16u

static void fill_ids(u32 *ids, u32 nr, u32 seed)
{
	for (u32 i = 0; i < nr; i++)
		ids[i] = seed * 1000003u + i;
}

/** struct chain - which blocks: the first @nr of the prefix @seed; block i is filled from seed + i. */
struct chain {
	u32 root, seed, nr, bytes;
};

static struct chain chain_of(u32 root, u32 seed, u32 nr)
{
	return (struct chain){root, seed, nr, BYTES};
}

/* A sealed and indexed chain. */
static void make_chain_of(struct pool_fixture *fx, struct chain c, struct block_id *out)
{
	struct block_id parent = BLOCK_NONE, found;
	u32 ids[TOKENS * 64];

	fill_ids(ids, TOKENS * c.nr, c.seed);
	for (u32 i = 0; i < c.nr; i++) {
		struct prefix_key key = {c.root, TOKENS, ids + i * TOKENS, TOKENS};

		assert_int_equal(pool_fixture_block(fx, c.bytes, 1, c.seed + i, &out[i]), 0);
		assert_int_equal(pool_seal(fx->pool, &out[i], 1), 0);
		assert_int_equal(prefix_insert(fx->pool, &key, parent, out[i], &found), 0);
		assert_int_equal(found.v, out[i].v);
		parent = out[i];
	}
}

static void make_chain(struct pool_fixture *fx, u32 root, u32 seed, u32 nr, struct block_id *out)
{
	make_chain_of(fx, chain_of(root, seed, nr), out);
}

/* The blocks of @c that the index has, named for the caller where @out is given. */
static u32 match(struct pool_fixture *fx, struct chain c, struct block_id *out)
{
	u32 ids[TOKENS * 64];
	struct prefix_key key = {c.root, TOKENS, ids, TOKENS * c.nr};

	fill_ids(ids, TOKENS * c.nr, c.seed);
	return prefix_match(fx->pool, &key, out, out != NULL);
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
	do /* one that the reclaim thread is moving goes when that has ended */
		pool_get_stats(fx.pool, &s);
	while (s.blocks && !sched_yield());
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
	assert_int_equal(match(&fx, chain_of(root, 7, 20), NULL), 20);
	assert_int_equal(match(&fx, chain_of(other, 7, 20), NULL), 0);
	assert_int_equal(match(&fx, chain_of(root, 8, 20), NULL), 0);
	assert_int_equal(match(&fx, chain_of(root, 7, 20), got), 20);
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
	/* Out of DRAM, where cached blocks stay known without room in NVMe. */
	assert_int_equal(pool_demote(fx.pool, chain, 20), 0);
	pool_put(fx.pool, chain, 20);
	/* Fill what is left and then some: the chain must shrink from its end only. */
	while (nr < 195 && !pool_fixture_block(&fx, BYTES, 1, 1000 + nr, &fresh[nr]))
		nr++;
	left = match(&fx, chain_of(root, 7, 20), NULL);
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
	assert_int_equal(prefix_insert(fx.pool, &key, BLOCK_NONE, b, &found), -EINVAL); /* open */
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
	assert_int_equal(match(&fx, chain_of(root, 7, 4), NULL), 2);
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

struct copier {
	pthread_t thread;
	struct pool_fixture *fx;
	struct block_id src;
	int err;
};

static void *copy_once(void *arg)
{
	struct copier *c = arg;
	struct block_id dst;

	c->err = pool_copy(c->fx->pool, c->src, MIB(1), &dst);
	if (!c->err)
		pool_put(c->fx->pool, &dst, 1);
	return NULL;
}

/* Each copy needs two blocks in DRAM and there is room for two: who has one must not wait for good. */
static void copies_do_not_wait_for_each_other(void **state)
{
	struct copier copiers[2];
	struct pool_fixture fx;

	pool_fixture_open(&fx, MIB(2), MIB(32));
	for (u32 i = 0; i < ARRAY_SIZE(copiers); i++) {
		copiers[i] = (struct copier){.fx = &fx};
		assert_int_equal(pool_fixture_block(&fx, MIB(1), 0, i, &copiers[i].src), 0);
		assert_int_equal(pool_demote(fx.pool, &copiers[i].src, 1), 0);
	}
	tier_flaky_hold(fx.flaky, TIER_READ, true);
	for (u32 i = 0; i < ARRAY_SIZE(copiers); i++)
		assert_int_equal(pthread_create(&copiers[i].thread, NULL, copy_once, &copiers[i]), 0);
	tier_flaky_wait_held(fx.flaky, 2);
	tier_flaky_hold(fx.flaky, TIER_READ, false);
	tier_flaky_release(fx.flaky, 2);
	for (u32 i = 0; i < ARRAY_SIZE(copiers); i++)
		pthread_join(copiers[i].thread, NULL);
	for (u32 i = 0; i < ARRAY_SIZE(copiers); i++) {
		assert_int_equal(copiers[i].err, 0);
		assert_int_equal(pool_fixture_holds(&fx, copiers[i].src, i), 1);
		pool_put(fx.pool, &copiers[i].src, 1);
	}
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

struct held_write {
	struct pool_fixture *fx;
	struct block_id id;
};

/** struct rewrite - a writer of an open block that a reader has pinned. */
struct rewrite {
	struct pool *pool;
	struct block_id id;
	atomic_bool done;
};

static void *rewrite_block(void *arg)
{
	struct rewrite *r = arg;
	void *addr;

	assert_int_equal(pool_begin_write(r->pool, r->id, false, &addr), 0);
	memset(addr, 0, pool_bytes(r->pool, r->id));
	pool_end_write(r->pool, r->id);
	r->done = true;
	return NULL;
}

/* Who has an open block pinned sees the bytes that were there, until he lets go. */
static void a_write_waits_for_readers(void **state)
{
	struct rewrite r = {.done = false};
	struct pool_fixture fx;
	const void *addr;
	pthread_t writer;
	u64 first;

	pool_fixture_open(&fx, MIB(4), MIB(8));
	r.pool = fx.pool;
	assert_int_equal(pool_fixture_block(&fx, 8192, 1, 5, &r.id), 0);
	assert_int_equal(pool_pin(fx.pool, r.id, &addr), 0);
	first = *(const u64 *)addr;
	assert_int_equal(pthread_create(&writer, NULL, rewrite_block, &r), 0);
	while (!r.done && pool_try_pin(fx.pool, &r.id, 1, &addr)) {
		pool_unpin(fx.pool, &r.id, 1);
		sched_yield();
	}
	/* It has begun and keeps new readers out; it must not get further. */
	for (int i = 0; i < 1000 && !r.done; i++)
		sched_yield();
	assert_false(r.done);
	assert_int_equal(*(const u64 *)addr, first);
	pool_unpin(fx.pool, &r.id, 1);
	pthread_join(writer, NULL);
	assert_int_equal(pool_pin(fx.pool, r.id, &addr), 0);
	assert_int_equal(*(const u64 *)addr, 0);
	pool_unpin(fx.pool, &r.id, 1);
	pool_put(fx.pool, &r.id, 1);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

static void *demote(void *arg)
{
	struct held_write *h = arg;

	return (void *)(intptr_t)pool_demote(h->fx->pool, &h->id, 1);
}

/* Let the held write go once somebody has asked for room in vain. */
static void *release_when_asked(void *arg)
{
	struct held_write *h = arg;
	u64 before = kvc_err_value(KVC_ERR_extent_no_room);

	while (kvc_err_value(KVC_ERR_extent_no_room) < before + 3)
		sched_yield();
	tier_flaky_hold(h->fx->flaky, TIER_WRITE, false);
	tier_flaky_release(h->fx->flaky, 1);
	return NULL;
}

/* The room of a cached block is free room, also while the block is on its way to it. */
static void room_under_a_transfer_is_waited_for(void **state)
{
	struct pool_fixture fx;
	struct held_write h = {.fx = &fx};
	struct block_id fill[8], id;
	pthread_t writer, releaser;
	u32 root, nr = 0;

	pool_fixture_open(&fx, MIB(16), MIB(8));
	assert_int_equal(pool_root(fx.pool, 1, "", 0, &root), 0);
	make_chain_of(&fx, (struct chain){root, 7, 1, MIB(1)}, &h.id);
	while (nr < 7 && !pool_fixture_block(&fx, MIB(1), 0, nr, &fill[nr]))
		nr++;
	assert_int_equal(nr, 7);
	tier_flaky_hold(fx.flaky, TIER_WRITE, true);
	assert_int_equal(pthread_create(&writer, NULL, demote, &h), 0);
	tier_flaky_wait_held(fx.flaky, 1);
	pool_put(fx.pool, &h.id, 1);
	assert_int_equal(pthread_create(&releaser, NULL, release_when_asked, &h), 0);
	assert_int_equal(pool_fixture_block(&fx, MIB(1), 0, 99, &id), 0);
	pthread_join(releaser, NULL);
	pthread_join(writer, NULL);
	assert_int_equal(pool_fixture_holds(&fx, id, 99), 1);
	pool_put(fx.pool, &id, 1);
	pool_put(fx.pool, fill, nr);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

/* A cached block whose descendant is named is no leaf and will not be one: its room is free room. */
static void parents_of_named_blocks_give_way(void **state)
{
	struct pool_fixture fx;
	struct block_id chain[2], fill[8], id;
	u32 root, nr = 0;

	pool_fixture_open(&fx, MIB(16), MIB(8));
	assert_int_equal(pool_root(fx.pool, 1, "", 0, &root), 0);
	make_chain_of(&fx, (struct chain){root, 7, 2, MIB(1)}, chain);
	while (nr < 6 && !pool_fixture_block(&fx, MIB(1), 0, nr, &fill[nr]))
		nr++;
	assert_int_equal(nr, 6);
	assert_int_equal(pool_demote(fx.pool, chain, 2), 0);
	pool_put(fx.pool, &chain[0], 1);
	assert_int_equal(pool_fixture_block(&fx, MIB(1), 0, 99, &id), 0);
	assert_int_equal(pool_fixture_holds(&fx, chain[1], 8), 1);
	pool_check(fx.pool);
	pool_put(fx.pool, &id, 1);
	pool_put(fx.pool, &chain[1], 1);
	pool_put(fx.pool, fill, nr);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

/* Sealed bytes that changed in memory are found when they leave, and are no data from then on. */
static void bytes_damaged_in_memory_are_not_data(void **state)
{
	struct pool_fixture fx;
	struct block_id chain[2];
	const void *addr;
	u32 root;

	pool_fixture_open(&fx, MIB(4), MIB(8));
	assert_int_equal(pool_root(fx.pool, 1, "", 0, &root), 0);
	make_chain(&fx, root, 7, 2, chain);
	assert_int_equal(pool_pin(fx.pool, chain[1], &addr), 0);
	((u8 *)(uintptr_t)addr)[100] ^= 4;
	assert_int_equal(pool_writeback(fx.pool, chain, 2), -EIO);
	pool_check(fx.pool);
	pool_unpin(fx.pool, &chain[1], 1);
	assert_int_equal(pool_fixture_holds(&fx, chain[1], 8), -EIO);
	assert_int_equal(pool_fixture_holds(&fx, chain[0], 7), 1);
	assert_int_equal(pool_writeback(fx.pool, chain, 2), -EIO);
	assert_int_equal(pool_demote(fx.pool, chain, 1), 0);
	assert_int_equal(match(&fx, chain_of(root, 7, 2), NULL), 1);
	pool_check(fx.pool);
	pool_put(fx.pool, chain, 2);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

/* Also a block that nobody wrote to has bytes once it is written back: zeros. */
static void empty_blocks_are_written_back(void **state)
{
	struct pool_fixture fx;
	struct pool_want want = {.bytes = BYTES, .near = BLOCK_NONE};
	struct pool_residency res;
	struct block_id ids[3];

	pool_fixture_open(&fx, MIB(4), MIB(8));
	assert_int_equal(pool_alloc(fx.pool, &want, 3, ids), 0);
	assert_int_equal(pool_writeback(fx.pool, ids, 3), 0);
	pool_residency(fx.pool, ids, 3, &res);
	assert_int_equal(res.nvme, 3);
	pool_check(fx.pool);
	pool_put(fx.pool, ids, 3);
	pool_fixture_close(&fx);
}

/* The index grows a bucket at a time: every chain is found at every size. */
static void index_of_many_blocks(void **state)
{
	enum { NR = 6000 };
	static struct block_id ids[NR];
	struct pool_fixture fx;
	u32 root, found = 0;

	pool_fixture_open(&fx, MIB(32), MIB(64));
	assert_int_equal(pool_root(fx.pool, 1, "", 0, &root), 0);
	for (u32 i = 0; i < NR; i++) {
		make_chain_of(&fx, (struct chain){root, i, 1, 4096}, &ids[i]);
		assert_int_equal(match(&fx, chain_of(root, i / 2, 1), NULL), 1);
	}
	for (u32 i = 0; i < NR; i++)
		found += match(&fx, chain_of(root, i, 1), NULL);
	assert_int_equal(found, NR);
	pool_check(fx.pool);
	prefix_drop_space(fx.pool, 1);
	pool_put(fx.pool, ids, NR);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

/* Thousands of salts, some namespaces dropped and their places used again. */
static void roots_of_many_salts(void **state)
{
	struct pool_fixture fx;
	u32 root, again, spaces[2] = {1, 2};
	char salt[16];

	pool_fixture_open(&fx, MIB(2), MIB(2));
	for (u32 round = 0; round < 3; round++) {
		for (u32 i = 0; i < 2000; i++) {
			u32 len = (u32)snprintf(salt, sizeof(salt), "s%u", i / 2);

			assert_int_equal(pool_root(fx.pool, spaces[i % 2], salt, len, &root), 0);
			assert_in_range(root, 1, 2000);
			assert_int_equal(pool_root(fx.pool, spaces[i % 2], salt, len, &again), 0);
			assert_int_equal(root, again);
		}
		prefix_drop_space(fx.pool, spaces[round % 2]);
		spaces[round % 2] += 2;
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
		cmocka_unit_test(copies_do_not_wait_for_each_other),
		cmocka_unit_test(a_write_waits_for_readers),
		cmocka_unit_test(room_under_a_transfer_is_waited_for),
		cmocka_unit_test(parents_of_named_blocks_give_way),
		cmocka_unit_test(bytes_damaged_in_memory_are_not_data),
		cmocka_unit_test(empty_blocks_are_written_back),
		cmocka_unit_test(index_of_many_blocks),
		cmocka_unit_test(roots_of_many_salts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
