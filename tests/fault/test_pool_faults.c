/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fail the n-th, over every entry point of the pool: memory, space, the metadata store's steps, and
 * reads, writes and flushes of the disk tier.
 *
 * A scene is set: blocks with a durable name, an open one, cold ones, a cached chain. Then one
 * operation runs with its first question to the world answered no, then with its second, and so on
 * until it asks no more. Each time it must end, with success or an error; every invariant holds; what
 * was named before has its bytes; when all is dropped nothing is left in DRAM, nor on the disk while
 * the metadata store runs; and the store opens again with the name as it was.
 */
#include <errno.h>
#include <string.h>
#include "allocator/base/fault.h"
#include "allocator/base/textbuf.h"
#include "lib/metastore.h"
#include "lib/pool_fixture.h"
#include "lib/test.h"
#include "lib/tier_flaky.h"

#define DRAM_BYTES MIB(4)
#define DISK_BYTES MIB(8)
#define META_NAME  40
#define BYTES	   65536u
#define NAMED	   4u
#define CHAIN	   4u
#define TOKENS	   16u
#define SPACE	   3u
#define MAX_N	   400u

/** struct scene - what an operation finds. Seeds: named[i] 1 + i, chain[i] 20 + i. */
struct scene {
	struct pool_fixture fx;
	struct metastore dir;
	struct meta *meta;
	u32 root;
	struct block_id named[NAMED];	/* sealed, committed under the test's one name; [3] is cold */
	struct block_id retired;	/* was in that name, is no more: seed 30 */
	struct block_id open;		/* seed 10 */
	struct block_id cold, cold2;	/* sealed, not in DRAM; seed 11 both */
	struct block_id chain[CHAIN];	/* cached; on disk but for the last */
	struct block_id more[200];	/* named by the operation */
	u32 nr_more;
	u32 nr_loaded;
	struct block_id loaded[NAMED];
};

static void chain_ids(u32 *ids)
{
	for (u32 i = 0; i < (CHAIN + 1) * TOKENS; i++)
		ids[i] = 100 + i;
}

/* ---- opening and closing ---- */

static int load(void *ctx, const struct meta_key *key, const void *value, u32 bytes)
{
	struct scene *sc = ctx;
	struct textbuf why = TEXTBUF_INIT;
	int err = 0;

	if (key->type == META_NAME) {
		sc->nr_loaded = bytes / sizeof(sc->loaded[0]);
		memcpy(sc->loaded, value, bytes);
	} else {
		err = pool_load(sc->fx.pool, key, value, bytes, &why);
	}
	textbuf_free(&why);
	return err;
}

static void open_store(struct scene *sc)
{
	struct pool_opts popts = {.dram = sc->fx.dram, .nvme = sc->fx.flaky, .high_pct = 90,
				  .low_pct = 80};
	struct meta_opts opts = {.create = true, .durable = pool_meta_durable};
	struct textbuf why = TEXTBUF_INIT;

	sc->nr_loaded = 0;
	assert_int_equal(pool_create(&sc->fx.pool, &popts), 0);
	opts.ctx = sc->fx.pool;
	assert_int_equal(meta_open(&sc->meta, sc->dir.dir_fd, &opts,
					   &(struct meta_loader){load, sc}, &why), 0);
	pool_set_meta(sc->fx.pool, sc->meta);
	for (u32 i = 0; i < sc->nr_loaded; i++)
		assert_int_equal(pool_load_ref(sc->fx.pool, sc->loaded[i], BYTES), 0);
	assert_int_equal(pool_load_finish(sc->fx.pool, &why), 0);
	assert_int_equal(pool_start(sc->fx.pool), 0);
	textbuf_free(&why);
}

static void block(struct scene *sc, u64 seed, bool seal, struct block_id *id)
{
	assert_int_equal(pool_fixture_block(&sc->fx, BYTES, seed >= 20 && seed < 30 ? SPACE : 0, seed,
					    id), 0);
	if (seal)
		assert_int_equal(pool_seal(sc->fx.pool, id, 1), 0);
}

static int set_name(struct scene *sc, const struct block_id *ids, u32 nr)
{
	struct meta_txn txn = META_TXN_INIT;
	u64 seq = 0;
	int err = pool_seal(sc->fx.pool, ids, nr);

	if (!err)
		err = pool_writeback(sc->fx.pool, ids, nr);
	if (!err)
		err = pool_flush(sc->fx.pool);
	meta_txn_put(&txn, (struct meta_key){.id = 1, .type = META_NAME}, ids, nr * sizeof(*ids));
	if (!err)
		err = pool_submit(sc->fx.pool, ids, nr, &txn, &seq);
	if (!err)
		err = pool_commit(sc->fx.pool, seq);
	meta_txn_free(&txn);
	return err;
}

static void set_chain(struct scene *sc)
{
	struct block_id parent = BLOCK_NONE, found;
	u32 ids[(CHAIN + 1) * TOKENS];

	chain_ids(ids);
	for (u32 i = 0; i < CHAIN; i++) {
		struct prefix_key key = {sc->root, TOKENS, ids + i * TOKENS, TOKENS};

		block(sc, 20 + i, true, &sc->chain[i]);
		assert_int_equal(prefix_insert(sc->fx.pool, &key, parent, sc->chain[i], &found), 0);
		parent = found;
	}
	assert_int_equal(pool_demote(sc->fx.pool, sc->chain, CHAIN - 1), 0);
	assert_int_equal(pool_tick(sc->fx.pool), 0);
	pool_put(sc->fx.pool, sc->chain, CHAIN);
}

static void scene_open(struct scene *sc)
{
	struct block_id with_old[NAMED];

	memset(sc, 0, sizeof(*sc));
	metastore_make(&sc->dir);
	pool_fixture_open(&sc->fx, DRAM_BYTES, DISK_BYTES);
	pool_destroy(sc->fx.pool);
	open_store(sc);
	assert_int_equal(pool_root(sc->fx.pool, SPACE, "", 0, &sc->root), 0);
	for (u32 i = 0; i < NAMED; i++)
		block(sc, 1 + i, true, &sc->named[i]);
	block(sc, 30, true, &sc->retired);
	memcpy(with_old, sc->named, sizeof(with_old));
	with_old[0] = sc->retired;
	assert_int_equal(set_name(sc, with_old, NAMED), 0);
	assert_int_equal(set_name(sc, sc->named, NAMED), 0);
	assert_int_equal(pool_demote(sc->fx.pool, &sc->named[3], 1), 0);
	block(sc, 10, false, &sc->open);
	block(sc, 11, true, &sc->cold);
	block(sc, 11, true, &sc->cold2);
	assert_int_equal(pool_demote(sc->fx.pool, &sc->cold, 1), 0);
	assert_int_equal(pool_demote(sc->fx.pool, &sc->cold2, 1), 0);
	set_chain(sc);
	pool_put(sc->fx.pool, &sc->retired, 1); /* its removal is due, its extent in limbo */
	pool_check(sc->fx.pool);
}

static void expect_bytes(struct scene *sc)
{
	for (u32 i = 0; i < NAMED; i++)
		assert_int_equal(pool_fixture_holds(&sc->fx, sc->named[i], 1 + i), 1);
	assert_int_equal(pool_fixture_holds(&sc->fx, sc->open, 10), 1);
	assert_int_equal(pool_fixture_holds(&sc->fx, sc->cold, 11), 1);
	assert_int_equal(pool_fixture_holds(&sc->fx, sc->cold2, 11), 1);
}

/* Drop the cache and make all removals durable. Return: why that could not be, or 0. */
static int settle(struct scene *sc, struct meta_txn *txn)
{
	struct pool *pool = sc->fx.pool;
	u64 blocks, bytes, seq = 0;
	int err = pool_submit(pool, NULL, 0, txn, &seq);

	pool_drop_cached(pool, 0, NR_BLOCK_TIERS, &blocks, &bytes);
	if (!err)
		err = pool_submit(pool, NULL, 0, NULL, &seq);
	if (!err)
		err = pool_commit(pool, seq);
	if (!err)
		pool_meta_durable(pool, seq);
	pool_check(pool);
	return err;
}

/* Without what was not on record, what was is all there is. */
static void expect_no_leak(struct scene *sc)
{
	struct pool *pool = sc->fx.pool;
	struct pool_stats st;
	int err;

	pool_put(pool, sc->more, sc->nr_more);
	pool_put(pool, &sc->cold, 1);
	pool_put(pool, &sc->cold2, 1);
	err = settle(sc, NULL);
	pool_get_stats(pool, &st);
	assert_int_equal(st.blocks, NAMED + 1);
	assert_int_equal(st.named_bytes, (NAMED + 1) * BYTES);
	assert_int_equal(st.tier[IN_DRAM].pinned, 0);
	assert_true(st.tier[IN_DRAM].used <= (NAMED + 1) * BYTES);
	if (!err)
		assert_int_equal(st.tier[IN_NVME].used, (NAMED + 1) * BYTES);
}

/* What is on record is the name, old or new, with its bytes; without it nothing is left. */
static void expect_reopens(struct scene *sc)
{
	struct meta_txn txn = META_TXN_INIT;
	struct pool_stats st;

	(void)!meta_close(sc->meta); /* an error says that it had stopped */
	pool_destroy(sc->fx.pool);
	open_store(sc);
	assert_int_equal(sc->nr_loaded, NAMED);
	for (u32 i = 0; i < NAMED; i++) {
		u64 seed = sc->loaded[i].v == sc->open.v ? 10 : 1 + i;

		assert_int_equal(pool_fixture_holds(&sc->fx, sc->loaded[i], seed), 1);
	}
	pool_check(sc->fx.pool);
	meta_txn_del(&txn, (struct meta_key){.id = 1, .type = META_NAME});
	assert_int_equal(pool_submit(sc->fx.pool, NULL, 0, &txn, NULL), 0);
	pool_put(sc->fx.pool, sc->loaded, NAMED);
	assert_int_equal(settle(sc, &txn), 0);
	pool_get_stats(sc->fx.pool, &st);
	assert_int_equal(st.blocks, 0);
	assert_int_equal(st.tier[IN_DRAM].used, 0);
	assert_int_equal(st.tier[IN_NVME].used, 0);
	meta_txn_free(&txn);
	assert_int_equal(meta_close(sc->meta), 0);
	pool_fixture_close(&sc->fx);
	metastore_remove(&sc->dir);
}

/* ---- the operations ---- */

static int keep(struct scene *sc, int err, struct block_id id)
{
	if (!err)
		sc->more[sc->nr_more++] = id;
	return err;
}

static int op_alloc(struct scene *sc)
{
	struct pool_want want = {.bytes = BYTES, .near = sc->open};
	int err = pool_alloc(sc->fx.pool, &want, 8, sc->more);

	sc->nr_more = err ? 0 : 8;
	return err;
}

static int op_write(struct scene *sc)
{
	struct block_id id;

	return keep(sc, pool_fixture_block(&sc->fx, BYTES, 0, 77, &id), id);
}

static int op_fill(struct scene *sc)
{
	int err;

	do
		err = op_write(sc);
	while (!err && sc->nr_more < ARRAY_SIZE(sc->more));
	return err == -ENOSPC ? 0 : err;
}

static int op_copy(struct scene *sc)
{
	struct block_id id;

	return keep(sc, pool_copy(sc->fx.pool, sc->cold, BYTES, &id), id);
}

static int op_same(struct scene *sc)
{
	int same = pool_same_bytes(sc->fx.pool, sc->cold, sc->cold2);

	assert_int_not_equal(same, 0);
	return min(same, 0);
}

static int op_pin(struct scene *sc)
{
	const void *addr;
	int err = pool_pin(sc->fx.pool, sc->named[3], &addr);

	if (!err)
		pool_unpin(sc->fx.pool, &sc->named[3], 1);
	return err;
}

static int op_fetch(struct scene *sc)
{
	struct block_id ids[] = {sc->named[3], sc->cold, BLOCK_NONE, sc->cold2};

	pool_fetch(sc->fx.pool, ids, ARRAY_SIZE(ids));
	return 0;
}

static int op_prefetch(struct scene *sc)
{
	struct block_id ids[] = {sc->named[3], sc->cold, sc->cold2};

	pool_prefetch(sc->fx.pool, ids, ARRAY_SIZE(ids));
	return op_pin(sc);
}

static int op_seal(struct scene *sc)
{
	struct pool_want want = {.bytes = BYTES, .near = BLOCK_NONE};
	int err = pool_alloc(sc->fx.pool, &want, 1, &sc->more[sc->nr_more]);

	if (err)
		return err;
	sc->nr_more++;
	err = pool_seal(sc->fx.pool, sc->more, 1);
	return err ? err : pool_seal(sc->fx.pool, &sc->open, 1);
}

static int op_demote(struct scene *sc)
{
	struct block_id ids[] = {sc->open, sc->named[0], BLOCK_NONE, sc->named[1]};

	return pool_demote(sc->fx.pool, ids, ARRAY_SIZE(ids));
}

static int op_flush(struct scene *sc)
{
	return pool_flush(sc->fx.pool);
}

static int op_name(struct scene *sc)
{
	struct block_id ids[NAMED] = {sc->named[0], sc->named[1], sc->open, sc->named[3]};

	return set_name(sc, ids, NAMED);
}

static int op_tick(struct scene *sc)
{
	struct block_id got[CHAIN];
	u32 ids[(CHAIN + 1) * TOKENS], nr;
	struct prefix_key key = {sc->root, TOKENS, ids, CHAIN * TOKENS};
	int err;

	chain_ids(ids);
	nr = prefix_match(sc->fx.pool, &key, got, true);
	assert_int_equal(nr, CHAIN);
	err = pool_writeback(sc->fx.pool, got, nr);
	pool_put(sc->fx.pool, got, nr);
	if (!err)
		err = pool_tick(sc->fx.pool);
	return err;
}

static int op_index(struct scene *sc)
{
	u32 ids[(CHAIN + 1) * TOKENS], nr;
	struct prefix_key key = {sc->root, TOKENS, ids, CHAIN * TOKENS};
	struct block_id got[CHAIN], id, found;
	int err;

	chain_ids(ids);
	nr = prefix_match(sc->fx.pool, &key, got, true);
	assert_int_equal(nr, CHAIN);
	key.ids = ids + CHAIN * TOKENS;
	err = keep(sc, pool_fixture_block(&sc->fx, BYTES, SPACE, 24, &id), id);
	if (!err)
		err = pool_seal(sc->fx.pool, &id, 1);
	if (!err)
		err = prefix_insert(sc->fx.pool, &key, got[CHAIN - 1], id, &found);
	pool_put(sc->fx.pool, got, nr);
	return err;
}

static int op_root(struct scene *sc)
{
	u32 root;
	int err = pool_root(sc->fx.pool, SPACE, "other", 5, &root);

	return err ? err : pool_tick(sc->fx.pool);
}

static int op_drop(struct scene *sc)
{
	u64 blocks, bytes;

	pool_drop_cached(sc->fx.pool, 0, IN_DRAM, &blocks, &bytes);
	pool_drop_cached(sc->fx.pool, 0, NR_BLOCK_TIERS, &blocks, &bytes);
	return 0;
}

static int op_drop_space(struct scene *sc)
{
	prefix_drop_space(sc->fx.pool, SPACE);
	return pool_tick(sc->fx.pool);
}

static int op_save(struct scene *sc)
{
	return pool_save_cached(sc->fx.pool);
}

static const struct op {
	const char *name;
	int (*run)(struct scene *sc);
} ops[] = {
	{"alloc", op_alloc}, {"write", op_write},   {"fill", op_fill},	   {"copy", op_copy},
	{"same", op_same},   {"pin", op_pin},	    {"fetch", op_fetch},   {"prefetch", op_prefetch},
	{"seal", op_seal},   {"demote", op_demote}, {"flush", op_flush},   {"name", op_name},
	{"tick", op_tick},   {"index", op_index},   {"root", op_root},	   {"drop", op_drop},
	{"save", op_save},   {"drop space", op_drop_space},
};

/* ---- failing the n-th ---- */

/* Run @op with question @nth at @site failing. Return: whether it was asked. */
static bool run_site(const struct op *op, enum fault_site site, u64 nth)
{
	static struct scene sc;
	bool asked;
	int err;

	scene_open(&sc);
	fault_arm(site, nth);
	err = op->run(&sc);
	asked = fault_asked(site) >= nth;
	fault_arm(site, 0);
	if (err > 0 || (err && !asked))
		fail_msg("%s: site %d, %llu-th: %d", op->name, site, (unsigned long long)nth, err);
	pool_check(sc.fx.pool);
	expect_bytes(&sc);
	expect_no_leak(&sc);
	expect_reopens(&sc);
	return asked;
}

static bool run_tier(const struct op *op, enum tier_op what, u64 nth)
{
	static struct scene sc;
	bool asked;
	u64 seen;
	int err;

	scene_open(&sc);
	seen = tier_flaky_seen(sc.fx.flaky, what);
	tier_flaky_fail(sc.fx.flaky, what, nth, -EIO);
	err = op->run(&sc);
	asked = tier_flaky_seen(sc.fx.flaky, what) >= seen + nth;
	tier_flaky_fail(sc.fx.flaky, what, 0, 0);
	if (err > 0 || (err && !asked))
		fail_msg("%s: tier op %d, %llu-th: %d", op->name, what, (unsigned long long)nth, err);
	pool_check(sc.fx.pool);
	expect_bytes(&sc);
	expect_no_leak(&sc);
	expect_reopens(&sc);
	return asked;
}

static void over_sites(enum fault_site site)
{
	for (u32 i = 0; i < ARRAY_SIZE(ops); i++) {
		u64 n = 1, step = 1;

		/* every early one, then ever fewer: a full tier takes hundreds of steps */
		for (; n < MAX_N && run_site(&ops[i], site, n); n += step)
			step = 1 + n / test_count(16);
	}
}

static void memory(void **state)
{
	over_sites(FAULT_MEMORY);
}

static void space(void **state)
{
	over_sites(FAULT_SPACE);
}

static void metadata(void **state)
{
	over_sites(FAULT_META);
}

static void over_tier(enum tier_op what)
{
	for (u32 i = 0; i < ARRAY_SIZE(ops); i++) {
		u64 n = 1, step = 1;

		for (; n < MAX_N && run_tier(&ops[i], what, n); n += step)
			step = 1 + n / test_count(16);
	}
}

static void reads(void **state)
{
	over_tier(TIER_READ);
}

static void writes(void **state)
{
	over_tier(TIER_WRITE);
}

static void flushes(void **state)
{
	over_tier(TIER_FLUSH);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory), cmocka_unit_test(space),  cmocka_unit_test(metadata),
		cmocka_unit_test(reads),  cmocka_unit_test(writes), cmocka_unit_test(flushes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
