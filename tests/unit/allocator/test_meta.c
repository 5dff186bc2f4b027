/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#include "allocator/base/err.h"
#include "allocator/meta_types.h"
#include "lib/metastore.h"
#include "lib/test.h"

/** struct table - what the store should hold: for ids below its size, a version, 0 for nothing. */
#define NR_IDS 500u

struct table {
	u32 version[NR_IDS];
	u64 nr_loaded, nr_bad;
};

static u32 value_bytes(u64 id, u32 version)
{
	u64 mix = hash_u64(id << 32 | version);

	return mix % 97 == 0 ? (u32)(mix >> 32) % 100000 : (u32)(mix >> 32) % 300;
}

static void value_fill(u8 *value, u64 id, u32 version)
{
	for (u32 i = 0; i < value_bytes(id, version); i++)
		value[i] = (u8)(id + version + i * 7);
}

static int table_load(void *ctx, const struct meta_key *key, const void *value, u32 bytes)
{
	static u8 expect[100000];
	struct table *table = ctx;
	u32 version = key->id < NR_IDS ? table->version[key->id] : 0;

	table->nr_loaded++;
	value_fill(expect, key->id, version);
	if (!version || key->sub != key->id % 3 || key->type != 1 + key->id % 5 ||
	    bytes != value_bytes(key->id, version) || memcmp(value, expect, bytes))
		table->nr_bad++;
	return 0;
}

static struct meta_key table_key(u64 id)
{
	return (struct meta_key){.id = id, .sub = (u32)(id % 3), .type = (u8)(1 + id % 5)};
}

static struct meta *open_table(struct metastore *store, struct table *table, u64 checkpoint_bytes)
{
	struct meta_opts opts = {.create = true, .checkpoint_bytes = checkpoint_bytes};
	struct textbuf why = TEXTBUF_INIT;
	struct meta_stats stats;
	struct meta *meta;
	u64 expect = 0;

	table->nr_loaded = 0;
	assert_int_equal(meta_open(&meta, store->dir_fd, &opts,
					   &(struct meta_loader){table_load, table}, &why), 0);
	assert_null(why.text);
	for (u32 i = 0; i < NR_IDS; i++)
		expect += table->version[i] != 0;
	assert_int_equal(table->nr_loaded, expect);
	assert_int_equal(table->nr_bad, 0);
	meta_get_stats(meta, &stats);
	assert_int_equal(stats.keys, expect);
	return meta;
}

static void table_change(struct meta_txn *txn, struct table *table, struct test_rng *rng,
			 u32 version)
{
	static u8 value[100000];
	u64 id = test_rng_below(rng, NR_IDS);

	if (test_rng_below(rng, 3)) {
		value_fill(value, id, version);
		meta_txn_put(txn, table_key(id), value, value_bytes(id, version));
		table->version[id] = version;
	} else {
		meta_txn_del(txn, table_key(id));
		table->version[id] = 0;
	}
}

static void against_table(void **unused)
{
	static struct table table;
	struct meta_txn txn = META_TXN_INIT;
	struct metastore store;
	struct test_rng rng;
	struct meta *meta;
	u64 nr = test_count(4000);
	u64 seq = 0;

	test_rng_init(&rng);
	metastore_make(&store);
	meta = open_table(&store, &table, KIB(200));
	for (u32 i = 1; i <= nr; i++) {
		u64 what = test_rng_below(&rng, 1000);

		for (u64 n = test_rng_below(&rng, 6); n; n--)
			table_change(&txn, &table, &rng, i);
		assert_int_equal(meta_submit(meta, &txn, &seq), 0);
		if (what < 300)
			assert_int_equal(meta_commit(meta, seq), 0);
		if (what < 10)
			assert_int_equal(meta_checkpoint(meta), 0);
		if (what > 990) {
			assert_int_equal(meta_close(meta), 0);
			meta = open_table(&store, &table, what % 2 ? KIB(200) : KIB(20));
		}
	}
	assert_int_equal(meta_close(meta), 0);
	meta = open_table(&store, &table, 0);
	assert_int_equal(meta_close(meta), 0);
	meta_txn_free(&txn);
	metastore_remove(&store);
}

static void needs_create(void **unused)
{
	const struct meta_opts opts = {0};
	struct textbuf why = TEXTBUF_INIT;
	struct metastore_state state;
	struct metastore store;
	struct meta *meta;

	metastore_make(&store);
	assert_int_equal(metastore_open(&store, &opts, &meta, &state, &why), -ENOENT);
	assert_null(meta);
	assert_non_null(why.text);
	textbuf_free(&why);
	assert_int_equal(metastore_open(&store, NULL, &meta, &state, &why), 0);
	assert_int_equal(meta_close(meta), 0);
	assert_int_equal(metastore_open(&store, &opts, &meta, &state, &why), 0);
	assert_int_equal(state.last, 0);
	assert_int_equal(meta_durable_seq(meta), 0);
	assert_int_equal(meta_close(meta), 0);
	metastore_remove(&store);
}

static int load_stop(void *ctx, const struct meta_key *key, const void *value, u32 bytes)
{
	++*(int *)ctx;
	return -E2BIG;
}

static void load_stops_open(void **unused)
{
	const struct meta_opts opts = {0};
	struct metastore_state state;
	struct metastore store;
	struct meta *meta;
	int nr = 0;

	metastore_make(&store);
	assert_int_equal(metastore_open(&store, NULL, &meta, &state, NULL), 0);
	assert_int_equal(metastore_run(meta, 1, 10), 0);
	assert_int_equal(meta_close(meta), 0);
	assert_int_equal(meta_open(&meta, store.dir_fd, &opts,
					   &(struct meta_loader){load_stop, &nr}, NULL), -E2BIG);
	assert_int_equal(nr, 1);
	assert_null(meta);
	metastore_remove(&store);
}

struct large {
	u8 *bytes;
	u32 nr;
	bool same;
};

static int load_large(void *ctx, const struct meta_key *key, const void *value, u32 bytes)
{
	struct large *large = ctx;

	large->same = bytes == large->nr && !memcmp(value, large->bytes, bytes);
	return 0;
}

static void sizes(void **unused)
{
	const struct meta_opts opts = {.create = true};
	struct meta_key key = {.id = UINT64_MAX, .sub = UINT32_MAX, .type = 255};
	struct large large = {.nr = META_MAX_RECORD};
	struct meta_txn txn = META_TXN_INIT;
	struct metastore store;
	struct meta *meta;
	u64 seq;

	metastore_make(&store);
	large.bytes = malloc(META_MAX_RECORD + 1);
	assert_non_null(large.bytes);
	for (u32 i = 0; i <= META_MAX_RECORD; i++)
		large.bytes[i] = (u8)(i * 13 >> 3);
	assert_int_equal(meta_open(&meta, store.dir_fd, &opts,
					   &(struct meta_loader){load_large, &large}, NULL), 0);
	meta_txn_put(&txn, key, large.bytes, META_MAX_RECORD + 1);
	assert_int_equal(meta_submit(meta, &txn, &seq), -E2BIG);
	meta_txn_free(&txn);
	for (int i = 0; i < 9; i++)
		meta_txn_put(&txn, key, large.bytes, META_MAX_RECORD);
	assert_int_equal(meta_submit(meta, &txn, &seq), -E2BIG);
	meta_txn_free(&txn);
	for (int i = 0; i < 7; i++)
		meta_txn_putv(&txn, key,
			      (struct iovec[]){{large.bytes, 1000},
					       {large.bytes + 1000, META_MAX_RECORD - 1000}},
			      2);
	assert_int_equal(meta_submit(meta, &txn, &seq), 0);
	assert_int_equal(txn.len, 0);
	assert_int_equal(meta_commit(meta, seq), 0);
	assert_int_equal(meta_checkpoint(meta), 0);
	assert_int_equal(meta_close(meta), 0);
	assert_int_equal(meta_open(&meta, store.dir_fd, &opts,
					   &(struct meta_loader){load_large, &large}, NULL), 0);
	assert_true(large.same);
	large.nr = 0;
	meta_txn_put(&txn, key, NULL, 0);
	assert_int_equal(meta_submit(meta, &txn, NULL), 0);
	assert_int_equal(meta_close(meta), 0);	/* commits what was submitted */
	large.same = false;
	assert_int_equal(meta_open(&meta, store.dir_fd, &opts,
					   &(struct meta_loader){load_large, &large}, NULL), 0);
	assert_true(large.same);
	assert_int_equal(meta_close(meta), 0);
	meta_txn_free(&txn);
	free(large.bytes);
	metastore_remove(&store);
}

static void note_durable(void *ctx, u64 seq)
{
	lock_assert_none();
	atomic_store((atomic_ullong *)ctx, seq);
}

static void sequence_numbers(void **unused)
{
	atomic_ullong durable = 0;
	struct meta_opts opts = {.create = true, .durable = note_durable, .ctx = &durable};
	struct meta_txn txn = META_TXN_INIT;
	struct metastore_state state;
	struct metastore store;
	struct meta *meta;
	u64 before = 0;
	u64 seq = 0;

	metastore_make(&store);
	assert_int_equal(metastore_open(&store, &opts, &meta, &state, NULL), 0);
	assert_int_equal(meta_submit(meta, &txn, &seq), 0);	/* an empty one is nothing */
	assert_int_equal(seq, 0);
	assert_int_equal(meta_commit(meta, seq), 0);
	for (u64 t = 1; t <= 20; t++) {
		metastore_txn(&txn, t);
		assert_int_equal(meta_submit(meta, &txn, &seq), 0);
		assert_int_equal(seq, before + 1);
		before = seq;
	}
	assert_int_equal(meta_durable_seq(meta), 0);	/* nobody asked */
	assert_int_equal(meta_commit(meta, 3), 0);
	assert_true(meta_durable_seq(meta) >= 3);
	meta_kick(meta);
	assert_int_equal(meta_commit(meta, UINT64_MAX), 0);
	assert_int_equal(meta_durable_seq(meta), 20);
	assert_int_equal(meta_close(meta), 0);
	assert_int_equal(atomic_load(&durable), 20);
	assert_int_equal(metastore_open(&store, &opts, &meta, &state, NULL), 0);
	assert_int_equal(meta_durable_seq(meta), 20);
	assert_true(metastore_check(&state));
	assert_int_equal(meta_close(meta), 0);
	meta_txn_free(&txn);
	metastore_remove(&store);
}

static void checkpoint_files(void **unused)
{
	struct metastore_state state;
	struct meta_stats stats;
	struct metastore store;
	struct meta *meta;

	metastore_make(&store);
	assert_int_equal(metastore_open(&store, NULL, &meta, &state, NULL), 0);
	assert_int_equal(meta_checkpoint(meta), 0);	/* nothing to write: nothing done */
	assert_int_equal(faccessat(store.dir_fd, "journal.1", F_OK, 0), 0);
	for (u64 i = 0; i < 3; i++) {
		assert_int_equal(metastore_run(meta, i * 10 + 1, i * 10 + 10), 0);
		assert_int_equal(meta_checkpoint(meta), 0);
		assert_int_equal(meta_checkpoint(meta), 0);
	}
	meta_get_stats(meta, &stats);
	assert_int_equal(stats.checkpoints, 3);
	assert_int_equal(stats.journal_bytes, 0);
	assert_int_equal(faccessat(store.dir_fd, "journal.4", F_OK, 0), 0);
	assert_int_equal(faccessat(store.dir_fd, "checkpoint.4", F_OK, 0), 0);
	assert_int_equal(faccessat(store.dir_fd, "journal.3", F_OK, 0), -1);
	assert_int_equal(faccessat(store.dir_fd, "checkpoint.3", F_OK, 0), -1);
	assert_int_equal(meta_close(meta), 0);
	assert_int_equal(metastore_open(&store, NULL, &meta, &state, NULL), 0);
	assert_true(metastore_check(&state));
	assert_int_equal(state.last, 30);
	assert_int_equal(meta_close(meta), 0);
	metastore_remove(&store);
}

/* Queued bytes never exceed what is preallocated; a refused submit takes nothing and can be repeated. */
static void no_space(void **unused)
{
	struct meta_txn txn = META_TXN_INIT;
	struct metastore_state state;
	struct metastore store;
	struct meta *meta;
	u64 seq;

	metastore_make(&store);
	assert_int_equal(metastore_open(&store, NULL, &meta, &state, NULL), 0);
	assert_int_equal(metastore_run(meta, 1, 3), 0);
	metastore_txn(&txn, 4);
	lock_acquire(&meta->lock);
	while (meta->extending)
		waitq_wait(&meta->done, &meta->lock);
	meta->no_space = true;
	meta->cur.alloc_end = meta->cur.end;
	lock_release(&meta->lock);
	assert_int_equal(meta_submit(meta, &txn, &seq), -ENOSPC);
	assert_int_equal(txn.nr_records, 3);
	lock_acquire(&meta->lock);
	while (meta->cur.alloc_end < meta->cur.end + meta->ahead)
		waitq_wait(&meta->done, &meta->lock);
	assert_false(meta->no_space);
	lock_release(&meta->lock);
	assert_int_equal(meta_submit(meta, &txn, &seq), 0);
	assert_int_equal(seq, 4);
	assert_int_equal(meta_close(meta), 0);
	assert_int_equal(metastore_open(&store, NULL, &meta, &state, NULL), 0);
	assert_true(metastore_check(&state));
	assert_int_equal(state.last, 4);
	assert_int_equal(meta_close(meta), 0);
	meta_txn_free(&txn);
	metastore_remove(&store);
}

#define NR_WRITERS 4

struct writer {
	struct meta *meta;
	u64 first_id, nr;
};

static void *writer_main(void *arg)
{
	struct writer *writer = arg;
	struct meta_txn txn = META_TXN_INIT;

	for (u64 i = 1; i <= writer->nr; i++) {
		u64 seq;

		/* Two records that must never be seen apart. */
		meta_txn_put(&txn, (struct meta_key){.id = writer->first_id, .type = 1}, &i,
			     sizeof(i));
		meta_txn_put(&txn, (struct meta_key){.id = writer->first_id + 1 + i % 100, .type = 1},
			     &i, sizeof(i));
		assert_int_equal(meta_submit(writer->meta, &txn, &seq), 0);
		/* Statistics know what was written: the last one has to be. */
		if (i % 3 == 0 || i == writer->nr)
			assert_int_equal(meta_commit(writer->meta, seq), 0);
	}
	meta_txn_free(&txn);
	return NULL;
}

static int load_sum(void *ctx, const struct meta_key *key, const void *value, u32 bytes)
{
	u64 v = 0;

	memcpy(&v, value, min(bytes, (u32)sizeof(v)));
	*(u64 *)ctx += v;
	return 0;
}

static void writers_and_checkpoints(void **unused)
{
	struct meta_opts opts = {.create = true, .checkpoint_bytes = KIB(64)};
	struct writer writers[NR_WRITERS];
	pthread_t threads[NR_WRITERS];
	struct meta_stats stats;
	struct metastore store;
	struct meta *meta;
	u64 nr = max(test_count(600), (u64)100);
	u64 expect = 0;
	u64 sum = 0;

	metastore_make(&store);
	assert_int_equal(meta_open(&meta, store.dir_fd, &opts,
					   &(struct meta_loader){load_sum, &sum}, NULL), 0);
	for (u64 i = 0; i < NR_WRITERS; i++) {
		writers[i] = (struct writer){.meta = meta, .first_id = i * 1000, .nr = nr};
		assert_int_equal(pthread_create(&threads[i], NULL, writer_main, &writers[i]), 0);
		expect += nr;
		for (u64 k = 0; k < 100; k++)
			expect += nr - k;
	}
	for (int i = 0; i < NR_WRITERS; i++)
		pthread_join(threads[i], NULL);
	do /* the first checkpoint has begun by now */
		meta_get_stats(meta, &stats);
	while (!stats.checkpoints && !sched_yield());
	assert_int_equal(stats.keys, NR_WRITERS * 101);
	assert_int_equal(meta_close(meta), 0);
	assert_int_equal(meta_open(&meta, store.dir_fd, &opts,
					   &(struct meta_loader){load_sum, &sum}, NULL), 0);
	assert_int_equal(sum, expect);
	assert_int_equal(meta_close(meta), 0);
	metastore_remove(&store);
}

/* The index alone, against an array. */
static void index_random(void **unused)
{
	static u64 serials[3000];
	static struct meta_index index;
	struct test_rng rng;
	u64 keys = 0;

	test_rng_init(&rng);
	for (u64 i = 1; i <= test_count(200000); i++) {
		u64 id = test_rng_below(&rng, ARRAY_SIZE(serials));
		bool del = test_rng_below(&rng, 5) < 2;
		u32 bytes = (u32)(id * 701 % META_MAX_RECORD);
		struct meta_record rec = {.id = id * 0x10000001, .sub = (u32)id, .serial = i,
					  .what = 3 | (del ? META_DELETED : bytes) << 8};
		struct meta_record old = rec;

		old.what = 3;
		old.serial = serials[id];
		assert_int_equal(serials[id] && meta_index_live(&index, &old), serials[id] != 0);
		assert_int_equal(meta_index_reserve(&index, &rec), 0);
		assert_int_equal(meta_index_apply(&index, &rec), serials[id]);
		keys += !del;
		keys -= serials[id] != 0;
		serials[id] = del ? 0 : i;
		assert_int_equal(meta_index_live(&index, &rec), !del);
		assert_int_equal(index.keys, keys);
	}
	for (u64 id = 0; id < ARRAY_SIZE(serials); id++) {
		struct meta_record rec = {.id = id * 0x10000001, .sub = (u32)id,
					  .what = 3 | META_DELETED << 8};

		assert_int_equal(meta_index_apply(&index, &rec), serials[id]);
		serials[id] = 0;
	}
	assert_int_equal(index.keys, 0);
	assert_int_equal(index.live_bytes, 0);
	meta_index_free(&index);
}

static void index_memory(void **unused)
{
	static struct meta_index index;

	for (u64 i = 1; i <= 300000; i++) {
		struct meta_record rec = {.id = i, .serial = i, .what = 1};

		assert_int_equal(meta_index_reserve(&index, &rec), 0);
		(void)meta_index_apply(&index, &rec);
		if (i % 50000 == 0)
			assert_true(meta_index_memory(&index) <= 32 * i);
	}
	meta_index_free(&index);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(needs_create),
		cmocka_unit_test(load_stops_open),
		cmocka_unit_test(sizes),
		cmocka_unit_test(sequence_numbers),
		cmocka_unit_test(checkpoint_files),
		cmocka_unit_test(no_space),
		cmocka_unit_test(writers_and_checkpoints),
		cmocka_unit_test(against_table),
		cmocka_unit_test(index_random),
		cmocka_unit_test(index_memory),
	};

	return cmocka_run_group_tests_name("meta", tests, NULL, NULL);
}
