/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads on the same sequences: one appends, commits and cuts, others fork, copy, take apart,
 * match, read and persist. The bytes of a block are made from its place, so that every reader can
 * judge what it sees. Meant for the thread sanitizer.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include "allocator/base/textbuf.h"
#include "allocator/sequence.h"
#include "lib/pool_fixture.h"
#include "lib/test.h"

#define BLOCKS 20u
#define BT     16u

static struct geometry geo;
static struct pool_fixture fx;
static struct sequence *shared;
static u32 root;
static atomic_bool done;
static atomic_ullong next_id = 2;

static struct sequence *new_seq(void)
{
	struct sequence *seq;

	assert_int_equal(seq_create(&seq, fx.pool, next_id++, 1, &geo), 0);
	seq->root = root;
	return seq;
}

static void fill_ids(u32 *ids, u32 from, u32 nr)
{
	for (u32 i = 0; i < nr; i++)
		ids[i] = from + i + 1;
}

static void check_bytes(struct sequence *seq)
{
	size_t size = BLOCKS * geo.block_bytes;
	u8 *buf = malloc(size);
	ssize_t n;

	assert_non_null(buf);
	n = seq_read(seq, buf, size, 0);
	assert_true(n >= 0);
	for (ssize_t i = 0; i < n; i++)
		assert_int_equal(buf[i], (u8)(i / (ssize_t)geo.block_bytes + 1));
	free(buf);
}

static void *append(void *arg)
{
	u64 rounds = test_count(3000);
	u8 *buf = malloc(geo.block_bytes);
	u32 ids[BT];

	assert_non_null(buf);
	for (u64 r = 0; r < rounds; r++) {
		for (u32 i = 0; i < BLOCKS; i++) {
			fill_ids(ids, i * BT, BT);
			memset(buf, (int)i + 1, geo.block_bytes);
			assert_int_equal(
				seq_write(shared, buf, geo.block_bytes, i * geo.block_bytes), 0);
			assert_int_equal(seq_write_ids(shared, ids, sizeof(ids), i * sizeof(ids)),
					 0);
			assert_int_equal(seq_commit(shared), 0);
		}
		assert_int_equal(r % 2 ? seq_truncate(shared, 0) : seq_set_tokens(shared, 0), 0);
		assert_int_equal(seq_truncate_ids(shared, 0), 0);
	}
	free(buf);
	done = true;
	return NULL;
}

static void *fork_and_copy(void *arg)
{
	while (!done) {
		struct sequence *fork = new_seq(), *copy = new_seq(), *kv;

		assert_int_equal(seq_fork(shared, fork, SEQ_NO_TOKENS), 0);
		assert_true(seq_copy_range(shared, 0, copy, 0, MIB(1)) >= 0);
		assert_int_equal(seq_kv_gone(fork, next_id++, &kv), 0);
		check_bytes(kv);
		check_bytes(copy);
		seq_destroy(fork);
		seq_destroy(copy);
		seq_destroy(kv);
	}
	return NULL;
}

static void *match_and_read(void *arg)
{
	u32 ids[BLOCKS * BT];
	u64 nr, blocks, bytes;

	fill_ids(ids, 0, BLOCKS * BT);
	for (u32 i = 0; !done; i++) {
		struct sequence *seq = new_seq();

		assert_int_equal(seq_write_ids(seq, ids, sizeof(ids), 0), 0);
		assert_int_equal(seq_close_ids(seq), 0);
		assert_int_equal(seq_size(seq), seq->cached_tokens / BT * geo.block_bytes);
		check_bytes(seq);
		assert_int_equal(seq_persist(seq, NULL, NULL, &nr), 0);
		seq_destroy(seq);
		if (i % 50 == 0)
			pool_drop_cached(fx.pool, 0, NR_BLOCK_TIERS, &blocks, &bytes);
	}
	return NULL;
}

static void threads_see_whole_blocks(void **state)
{
	static const char text[] =
		"layers=2 kv_heads=2 head_dim=8 dtype=f16 block_tokens=16 layout=hnd";
	void *(*const work[])(void *) = {append, fork_and_copy, fork_and_copy, match_and_read};
	struct textbuf why = TEXTBUF_INIT;
	pthread_t threads[ARRAY_SIZE(work)];
	bool complete;

	assert_int_equal(geometry_parse(text, strlen(text), &geo, &complete, &why), 0);
	pool_fixture_open(&fx, MIB(4), MIB(64));
	assert_int_equal(pool_root(fx.pool, 1, "", 0, &root), 0);
	shared = new_seq();
	for (size_t i = 0; i < ARRAY_SIZE(work); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, work[i], NULL), 0);
	for (size_t i = 0; i < ARRAY_SIZE(work); i++)
		pthread_join(threads[i], NULL);
	seq_destroy(shared);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(threads_see_whole_blocks)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
