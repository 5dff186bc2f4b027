/* SPDX-License-Identifier: Apache-2.0 */
/* Records of blocks: what a pool says to the metadata store is what the next pool starts from. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "lib/test.h"
#include "lib/pool_fixture.h"
#include "lib/tier_flaky.h"
#include "allocator/base/fault.h"
#include "allocator/base/textbuf.h"
#include "allocator/meta.h"

#define TOKENS	  16u
#define META_NAME 40	/* the test's own records: a list of block ids */

/* A store that can be closed and opened again: the disk outlives the pool. */
struct store {
	struct pool_fixture fx;
	struct meta *meta;
	char path[PATH_MAX];
	int dirfd;
	/* filled while loading */
	struct block_id named[16];
	u32 nr_named;
};

static int load(void *ctx, const struct meta_key *key, const void *value, u32 bytes)
{
	struct store *st = ctx;
	struct textbuf why = TEXTBUF_INIT;
	int err = 0;

	if (key->type == META_NAME) {
		st->nr_named = bytes / sizeof(st->named[0]);
		memcpy(st->named, value, bytes);
	} else {
		err = pool_load(st->fx.pool, key, value, bytes, &why);
	}
	textbuf_free(&why);
	return err;
}

static void open_pool(struct store *st)
{
	struct pool_opts opts = {.dram = st->fx.dram, .nvme = st->fx.flaky, .high_pct = 90,
				 .low_pct = 80};

	assert_int_equal(pool_create(&st->fx.pool, &opts), 0);
}

static int open_meta(struct store *st)
{
	struct meta_opts opts = {.create = true, .durable = pool_meta_durable, .ctx = st->fx.pool};
	struct textbuf why = TEXTBUF_INIT;
	int err;

	st->nr_named = 0;
	err = meta_open(&st->meta, st->dirfd, &opts, &(struct meta_loader){load, st}, &why);
	if (!err)
		pool_set_meta(st->fx.pool, st->meta);
	for (u32 i = 0; !err && i < st->nr_named; i++)
		err = pool_load_ref(st->fx.pool, st->named[i], 0);
	if (!err)
		err = pool_load_finish(st->fx.pool, &why);
	if (!err)
		err = pool_start(st->fx.pool);
	textbuf_free(&why);
	return err;
}

static void store_open(struct store *st)
{
	*st = (struct store){.dirfd = -1};
	test_tmp(st->path, "kvc-pool-meta-XXXXXX");
	assert_non_null(mkdtemp(st->path));
	st->dirfd = open(st->path, O_RDONLY | O_DIRECTORY);
	pool_fixture_open(&st->fx, MIB(4), MIB(16));
	pool_destroy(st->fx.pool);
	open_pool(st);
	assert_int_equal(open_meta(st), 0);
}

static void store_reopen(struct store *st)
{
	meta_close(st->meta);
	pool_destroy(st->fx.pool);
	open_pool(st);
	assert_int_equal(open_meta(st), 0);
	pool_check(st->fx.pool);
}

static void store_close(struct store *st)
{
	struct dirent *entry;
	DIR *dir;

	meta_close(st->meta);
	pool_fixture_close(&st->fx);
	dir = fdopendir(st->dirfd);
	while ((entry = readdir(dir)))
		if (entry->d_name[0] != '.')
			unlinkat(st->dirfd, entry->d_name, 0);
	closedir(dir);
	rmdir(st->path);
}

/* Persist @ids under the test's one name. */
static void set_name(struct store *st, const struct block_id *ids, u32 nr)
{
	struct meta_txn txn = META_TXN_INIT;
	u64 seq;

	assert_int_equal(pool_seal(st->fx.pool, ids, nr), 0);
	assert_int_equal(pool_writeback(st->fx.pool, ids, nr), 0);
	assert_int_equal(pool_flush(st->fx.pool), 0);
	meta_txn_put(&txn, (struct meta_key){.id = 1, .type = META_NAME}, ids, nr * sizeof(*ids));
	assert_int_equal(pool_submit(st->fx.pool, ids, nr, &txn, &seq), 0);
	assert_int_equal(pool_commit(st->fx.pool, seq), 0);
	meta_txn_free(&txn);
}

/* Make what is due durable: removals, and with them the extents' return. */
static void settle(struct store *st)
{
	u64 seq;

	assert_int_equal(pool_tick(st->fx.pool), 0);
	assert_int_equal(pool_submit(st->fx.pool, NULL, 0, NULL, &seq), 0);
	assert_int_equal(pool_commit(st->fx.pool, seq), 0);
}

static void named_blocks_come_back(void **state)
{
	struct block_id ids[8], more[8];
	struct pool_stats s;
	struct store st;

	store_open(&st);
	for (u32 i = 0; i < 8; i++)
		assert_int_equal(pool_fixture_block(&st.fx, 65536, 0, i, &ids[i]), 0);
	set_name(&st, ids, 8);
	for (u32 i = 0; i < 8; i++)
		assert_int_equal(pool_fixture_block(&st.fx, 65536, 0, 100 + i, &more[i]), 0);
	store_reopen(&st);
	assert_int_equal(st.nr_named, 8);
	pool_get_stats(st.fx.pool, &s);
	assert_int_equal(s.blocks, 8);
	assert_int_equal(s.named_bytes, 8 * 65536);
	for (u32 i = 0; i < 8; i++)
		assert_int_equal(pool_fixture_holds(&st.fx, st.named[i], i), 1);
	store_close(&st);
}

static void extents_wait_for_the_removal(void **state)
{
	struct block_id ids[8], again[12];
	struct pool_stats s;
	struct store st;

	store_open(&st);
	for (u32 i = 0; i < 8; i++)
		assert_int_equal(pool_fixture_block(&st.fx, MIB(1), 0, i, &ids[i]), 0);
	set_name(&st, ids, 8);
	set_name(&st, ids, 1);
	pool_put(st.fx.pool, ids + 1, 7);
	pool_get_stats(st.fx.pool, &s);
	assert_int_equal(s.named_bytes, MIB(1));
	assert_int_equal(s.tier[IN_NVME].used, MIB(8)); /* in limbo */
	/* Room is short of what is asked for: the removals are made durable, then it fits. */
	for (u32 i = 0; i < 12; i++)
		assert_int_equal(pool_fixture_block(&st.fx, MIB(1), 0, 50 + i, &again[i]), 0);
	store_reopen(&st);
	assert_int_equal(st.nr_named, 1);
	assert_int_equal(pool_fixture_holds(&st.fx, st.named[0], 0), 1);
	settle(&st);
	pool_get_stats(st.fx.pool, &s);
	assert_int_equal(s.tier[IN_NVME].used, MIB(1));
	store_close(&st);
}

static void cached_chains_come_back(void **state)
{
	struct block_id chain[10], parent = BLOCK_NONE, found, got[10];
	u32 ids[10 * TOKENS], root, other;
	struct prefix_key key;
	struct store st;

	store_open(&st);
	assert_int_equal(pool_root(st.fx.pool, 3, "s", 1, &root), 0);
	for (u32 i = 0; i < 10 * TOKENS; i++)
		ids[i] = i * 3;
	for (u32 i = 0; i < 10; i++) {
		key = (struct prefix_key){root, TOKENS, ids + i * TOKENS, TOKENS};
		assert_int_equal(pool_fixture_block(&st.fx, 40960, 3, i, &chain[i]), 0);
		assert_int_equal(pool_seal(st.fx.pool, &chain[i], 1), 0);
		assert_int_equal(prefix_insert(st.fx.pool, &key, parent, chain[i], &found), 0);
		parent = chain[i];
	}
	assert_int_equal(pool_writeback(st.fx.pool, chain, 10), 0);
	pool_put(st.fx.pool, chain, 10);
	assert_int_equal(pool_tick(st.fx.pool), 0);
	store_reopen(&st);
	assert_int_equal(pool_root(st.fx.pool, 3, "s", 1, &other), 0);
	assert_int_equal(other, root);
	key = (struct prefix_key){root, TOKENS, ids, 10 * TOKENS};
	assert_int_equal(prefix_match(st.fx.pool, &key, got, true), 10);
	for (u32 i = 0; i < 10; i++)
		assert_int_equal(pool_fixture_holds(&st.fx, got[i], i), 1);
	pool_put(st.fx.pool, got, 10);
	prefix_drop_space(st.fx.pool, 3);
	assert_int_equal(pool_tick(st.fx.pool), 0);
	store_reopen(&st);
	assert_int_equal(prefix_match(st.fx.pool, &key, NULL, false), 0);
	store_close(&st);
}

static void a_name_without_its_block_is_damage(void **state)
{
	struct meta_txn txn = META_TXN_INIT;
	struct block_id none = {77};
	struct store st;

	store_open(&st);
	meta_txn_put(&txn, (struct meta_key){.id = 1, .type = META_NAME}, &none, sizeof(none));
	assert_int_equal(pool_submit(st.fx.pool, NULL, 0, &txn, NULL), 0);
	meta_txn_free(&txn);
	meta_close(st.meta);
	pool_destroy(st.fx.pool);
	open_pool(&st);
	assert_int_equal(open_meta(&st), -EUCLEAN);
	store_close(&st);
}

/* A sealed block indexed as the first of a chain of @root, written back; its name is dropped. */
static struct block_id cache_block(struct store *st, u32 root, u32 seed)
{
	struct block_id id, found;
	u32 ids[TOKENS];
	struct prefix_key key = {root, TOKENS, ids, TOKENS};

	for (u32 i = 0; i < TOKENS; i++)
		ids[i] = seed;
	assert_int_equal(pool_fixture_block(&st->fx, 65536, 3, seed, &id), 0);
	assert_int_equal(pool_seal(st->fx.pool, &id, 1), 0);
	assert_int_equal(prefix_insert(st->fx.pool, &key, BLOCK_NONE, id, &found), 0);
	assert_int_equal(pool_writeback(st->fx.pool, &id, 1), 0);
	pool_put(st->fx.pool, &id, 1);
	return id;
}

static u32 cached(struct store *st, u32 root, u32 seed)
{
	u32 ids[TOKENS];
	struct prefix_key key = {root, TOKENS, ids, TOKENS};

	for (u32 i = 0; i < TOKENS; i++)
		ids[i] = seed;
	return prefix_match(st->fx.pool, &key, NULL, false);
}

static bool recorded(struct store *st, struct block_id id)
{
	struct textbuf tb = TEXTBUF_INIT;
	bool is;

	pool_block_to_text(st->fx.pool, id, &tb);
	is = strstr(tb.text, " recorded") != NULL;
	textbuf_free(&tb);
	return is;
}

/* The removal of an id's old record and the record of the block that has the id now: one commit. */
static void a_reused_id_keeps_its_new_record(void **state)
{
	struct block_id id, again;
	struct store st;
	u32 root;

	store_open(&st);
	assert_int_equal(pool_root(st.fx.pool, 3, "", 0, &root), 0);
	assert_int_equal(pool_fixture_block(&st.fx, 65536, 0, 1, &id), 0);
	set_name(&st, &id, 1);
	set_name(&st, NULL, 0);
	pool_put(st.fx.pool, &id, 1);
	again = cache_block(&st, root, 5);
	assert_int_equal(again.v, id.v);
	assert_int_equal(pool_tick(st.fx.pool), 0);
	store_reopen(&st);
	assert_int_equal(cached(&st, root, 5), 1);
	store_close(&st);
}

/* What a submit that failed had put into the caller's transaction may be wrong by the next try. */
static void a_failed_submit_leaves_the_transaction(void **state)
{
	struct meta_txn txn = META_TXN_INIT;
	struct block_id ids[40];
	struct store st;
	u64 seq;
	size_t len;

	store_open(&st);
	for (u32 i = 0; i < 40; i++)
		assert_int_equal(pool_fixture_block(&st.fx, 65536, 0, i, &ids[i]), 0);
	assert_int_equal(pool_writeback(st.fx.pool, ids, 40), 0);
	meta_txn_put(&txn, (struct meta_key){.id = 9, .type = META_NAME}, ids, 4);
	len = txn.len;
	fault_arm(FAULT_META, 1); /* memory for the transaction */
	assert_int_equal(pool_submit(st.fx.pool, ids, 40, &txn, &seq), -ENOMEM);
	fault_arm(FAULT_META, 0);
	assert_int_equal(txn.len, len);
	assert_int_equal(txn.nr_records, 1);
	assert_int_equal(txn.err, 0);
	assert_false(recorded(&st, ids[0]));
	assert_int_equal(pool_submit(st.fx.pool, ids, 40, &txn, &seq), 0);
	assert_true(recorded(&st, ids[39]));
	meta_txn_free(&txn);
	store_close(&st);
}

static void a_root_in_a_reused_place_is_recorded(void **state)
{
	struct store st;
	u32 root, other;

	store_open(&st);
	assert_int_equal(pool_root(st.fx.pool, 3, "a", 1, &root), 0);
	assert_int_equal(pool_tick(st.fx.pool), 0);
	prefix_drop_space(st.fx.pool, 3);
	assert_int_equal(pool_root(st.fx.pool, 3, "b", 1, &other), 0);
	cache_block(&st, other, 5);
	assert_int_equal(pool_tick(st.fx.pool), 0);
	store_reopen(&st);
	assert_int_equal(pool_root(st.fx.pool, 3, "b", 1, &root), 0);
	assert_int_equal(root, other);
	assert_int_equal(cached(&st, root, 5), 1);
	store_close(&st);
}

static void *tick(void *arg)
{
	struct store *st = arg;

	return (void *)(intptr_t)pool_tick(st->fx.pool);
}

/* A flush covers what was written before it began; what comes meanwhile waits for the next. */
static void bytes_are_flushed_before_their_record(void **state)
{
	struct block_id first, second, found;
	u32 root, ids[TOKENS] = {0};
	struct prefix_key key = {0, TOKENS, ids, TOKENS};
	pthread_t thread;
	struct store st;
	void *err;

	store_open(&st);
	assert_int_equal(pool_root(st.fx.pool, 3, "", 0, &root), 0);
	key.root = root;
	first = cache_block(&st, root, 5);
	/* indexed before the tick begins, written while its flush is on its way */
	assert_int_equal(pool_fixture_block(&st.fx, 65536, 3, 6, &second), 0);
	assert_int_equal(pool_seal(st.fx.pool, &second, 1), 0);
	assert_int_equal(prefix_insert(st.fx.pool, &key, BLOCK_NONE, second, &found), 0);
	tier_flaky_hold(st.fx.flaky, TIER_FLUSH, true);
	assert_int_equal(pthread_create(&thread, NULL, tick, &st), 0);
	tier_flaky_wait_held(st.fx.flaky, 1);
	assert_int_equal(pool_writeback(st.fx.pool, &second, 1), 0);
	tier_flaky_hold(st.fx.flaky, TIER_FLUSH, false);
	tier_flaky_release(st.fx.flaky, 1);
	pthread_join(thread, &err);
	assert_null(err);
	assert_true(recorded(&st, first));
	assert_false(recorded(&st, second));
	assert_int_equal(pool_tick(st.fx.pool), 0);
	assert_true(recorded(&st, second));
	pool_put(st.fx.pool, &second, 1);
	store_close(&st);
}

/* A commit interval that could not be recorded is recorded by a later one. */
static void a_failed_tick_is_made_up_for(void **state)
{
	struct block_id id;
	struct store st;
	u32 root;

	store_open(&st);
	assert_int_equal(pool_root(st.fx.pool, 3, "", 0, &root), 0);
	id = cache_block(&st, root, 5);
	fault_arm(FAULT_META, 1);
	assert_int_equal(pool_tick(st.fx.pool), -ENOMEM);
	fault_arm(FAULT_META, 0);
	assert_int_equal(pool_tick(st.fx.pool), 0);
	assert_true(recorded(&st, id));
	store_reopen(&st);
	assert_int_equal(cached(&st, root, 5), 1);
	store_close(&st);
}

/* A name must not become durable before its block: not even one that was never written. */
static void a_block_without_bytes_is_not_submitted(void **state)
{
	struct pool_want want = {.bytes = 65536, .near = BLOCK_NONE};
	struct meta_txn txn = META_TXN_INIT;
	struct block_id id;
	struct store st;
	u64 seq;

	store_open(&st);
	assert_int_equal(pool_alloc(st.fx.pool, &want, 1, &id), 0);
	meta_txn_put(&txn, (struct meta_key){.id = 1, .type = META_NAME}, &id, sizeof(id));
	assert_int_equal(pool_submit(st.fx.pool, &id, 1, &txn, &seq), -EIO);
	meta_txn_free(&txn);
	store_reopen(&st);
	assert_int_equal(st.nr_named, 0);
	store_close(&st);
}

/* A block that was recorded open and is sealed then: no later record may know more than its own. */
static void a_seal_is_on_record_before_what_follows(void **state)
{
	struct meta_txn txn = META_TXN_INIT;
	struct block_id id;
	struct store st;
	u64 seq;

	store_open(&st);
	assert_int_equal(pool_fixture_block(&st.fx, 65536, 0, 1, &id), 0);
	assert_int_equal(pool_writeback(st.fx.pool, &id, 1), 0);
	assert_int_equal(pool_flush(st.fx.pool), 0);
	meta_txn_put(&txn, (struct meta_key){.id = 1, .type = META_NAME}, &id, sizeof(id));
	assert_int_equal(pool_submit(st.fx.pool, &id, 1, &txn, &seq), 0);
	assert_int_equal(pool_seal(st.fx.pool, &id, 1), 0);
	/* the table is not changed by that, so its blocks are not handed in */
	meta_txn_put(&txn, (struct meta_key){.id = 1, .type = META_NAME}, &id, sizeof(id));
	assert_int_equal(pool_submit(st.fx.pool, NULL, 0, &txn, &seq), 0);
	assert_int_equal(pool_commit(st.fx.pool, seq), 0);
	meta_txn_free(&txn);
	store_reopen(&st);
	assert_int_equal(st.nr_named, 1);
	assert_true(pool_sealed(st.fx.pool, st.named[0]));
	store_close(&st);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(named_blocks_come_back),
		cmocka_unit_test(extents_wait_for_the_removal),
		cmocka_unit_test(cached_chains_come_back),
		cmocka_unit_test(a_name_without_its_block_is_damage),
		cmocka_unit_test(a_reused_id_keeps_its_new_record),
		cmocka_unit_test(a_failed_submit_leaves_the_transaction),
		cmocka_unit_test(a_root_in_a_reused_place_is_recorded),
		cmocka_unit_test(bytes_are_flushed_before_their_record),
		cmocka_unit_test(a_failed_tick_is_made_up_for),
		cmocka_unit_test(a_seal_is_on_record_before_what_follows),
		cmocka_unit_test(a_block_without_bytes_is_not_submitted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
