/* SPDX-License-Identifier: Apache-2.0 */
/* Plain files on a stubbed pool, mostly random operations against flat arrays. */
#include <errno.h>
#include <string.h>
#include "allocator/base/fault.h"
#include "allocator/meta.h"
#include "allocator/plainfile.h"
#include "lib/pool_stub.h"
#include "lib/test.h"

#define MAX_BYTES (PLAIN_BLOCK * 6u)
#define NR_FILES  4u

static struct model {
	u8 data[MAX_BYTES];
	u64 size;
} models[NR_FILES];

static struct plainfile files[NR_FILES];
static struct pool *pool;
static struct test_rng rng;

static u32 below(u32 n)
{
	return (u32)test_rng_below(&rng, n);
}

static void no_emit(void *ctx, struct meta_txn *txn)
{
}

static void check(u32 i)
{
	static u8 buf[MAX_BYTES + 100];
	ssize_t n = plain_read(&files[i], buf, sizeof(buf), 0);

	assert_int_equal(n, (ssize_t)models[i].size);
	assert_int_equal(plain_size(&files[i]), models[i].size);
	assert_memory_equal(buf, models[i].data, models[i].size);
}

static u32 random_offset(u32 i)
{
	switch (below(4)) {
	case 0:
		return (u32)models[i].size;
	case 1:
		return below(PLAIN_INLINE);
	case 2:
		return below(6) * PLAIN_BLOCK;
	default:
		return below(MAX_BYTES);
	}
}

static void op_write(u32 i)
{
	static u8 buf[MAX_BYTES];
	u32 off = random_offset(i), len = 1 + (below(3) ? below(600) : below(PLAIN_BLOCK * 3));

	if (off >= MAX_BYTES)
		return;
	len = min(len, MAX_BYTES - off);
	memset(buf, (int)below(256), len);
	assert_int_equal(plain_write(&files[i], buf, len, off), 0);
	memcpy(models[i].data + off, buf, len);
	models[i].size = max(models[i].size, (u64)off + len);
}

static void op_truncate(u32 i)
{
	u32 size = random_offset(i);

	assert_int_equal(plain_truncate(&files[i], size), 0);
	if (size < models[i].size)
		memset(models[i].data + size, 0, models[i].size - size);
	models[i].size = size;
}

static void op_fallocate(u32 i)
{
	u32 off = below(MAX_BYTES - 1), len = 1 + below(MAX_BYTES - off - 1);
	bool keep = below(2);

	assert_int_equal(plain_fallocate(&files[i], off, len, keep), 0);
	if (!keep)
		models[i].size = max(models[i].size, (u64)off + len);
}

static void op_copy(u32 i, u32 to)
{
	u32 from = below(2) ? below(6) * PLAIN_BLOCK : random_offset(i);
	u32 at = below(2) ? from % PLAIN_BLOCK + below(4) * PLAIN_BLOCK : random_offset(to), len;
	u64 want = 0;

	if (i == to || at >= MAX_BYTES)
		return;
	len = below(MAX_BYTES - at) + 1;
	if (from < models[i].size)
		want = min((u64)len, models[i].size - from);
	assert_int_equal(plain_copy_range(&files[i], from, &files[to], at, len), (ssize_t)want);
	memcpy(models[to].data + at, models[i].data + from, want);
	if (want)
		models[to].size = max(models[to].size, at + want);
}

static void op_persist(u32 i)
{
	u64 seq;

	assert_int_equal(plain_persist(&files[i], no_emit, NULL, &seq), 0);
	assert_false(plain_dirty(&files[i]));
}

static int load_one(void *ctx, const struct meta_key *key, const void *value, u32 bytes)
{
	struct plainfile *pf = ctx;

	return key->id == pf->id ? plain_load_chunk(pf, key->sub, value, bytes) : 0;
}

static void op_reload(u32 i)
{
	struct plainfile again;
	u8 data[PLAIN_INLINE];
	u32 bytes = 0;

	op_persist(i);
	plain_init(&again, pool, files[i].id);
	assert_int_equal(stub_records(pool, load_one, &again), 0);
	if (!files[i].tab)
		bytes = (u32)plain_read(&files[i], data, sizeof(data), 0);
	assert_int_equal(plain_load_finish(&again, models[i].size, data, bytes), 0);
	plain_destroy(&files[i]);
	files[i] = again;
}

static void op_again(u32 i)
{
	struct meta_txn txn = META_TXN_INIT;
	u64 id = files[i].id;

	plain_emit_delete(&files[i], &txn);
	stub_apply(pool, &txn);
	plain_destroy(&files[i]);
	plain_init(&files[i], pool, id);
	memset(&models[i], 0, sizeof(models[i]));
}

static void random_op(void)
{
	u32 i = below(NR_FILES), op = below(100);

	if (op < 45)
		op_write(i);
	else if (op < 60)
		op_truncate(i);
	else if (op < 63)
		op_fallocate(i);
	else if (op < 75)
		op_copy(i, below(NR_FILES));
	else if (op < 85)
		op_persist(i);
	else if (op < 95)
		op_reload(i);
	else
		op_again(i);
}

static void files_behave_as_arrays(void **state)
{
	test_rng_init(&rng);
	pool = stub_pool_create(MIB(64));
	for (u32 i = 0; i < NR_FILES; i++)
		plain_init(&files[i], pool, 100 + i);
	for (u32 step = 0; step < test_count(1200); step++) {
		random_op();
		for (u32 i = 0; i < NR_FILES; i++)
			check(i);
	}
	pool_check(pool);
	for (u32 i = 0; i < NR_FILES; i++)
		plain_destroy(&files[i]);
	assert_int_equal(stub_pool_named(pool), 0);
	stub_pool_destroy(pool);
}

static void open_one(u64 capacity)
{
	pool = stub_pool_create(capacity);
	plain_init(&files[0], pool, 1);
}

static void close_one(void)
{
	plain_destroy(&files[0]);
	assert_int_equal(stub_pool_named(pool), 0);
	stub_pool_destroy(pool);
}

static void small_files_take_no_block(void **state)
{
	static u8 buf[1000];

	open_one(MIB(1));
	assert_int_equal(plain_write(&files[0], buf, 512, 0), 0);
	assert_int_equal(plain_truncate(&files[0], 1 << 20), 0);
	assert_null(files[0].tab);
	assert_int_equal(plain_allocated(&files[0]), 0);
	assert_int_equal(plain_write(&files[0], buf, 1, 512), 0);
	assert_non_null(files[0].tab);
	close_one();
}

static void the_last_block_shrinks_to_what_it_needs(void **state)
{
	static u8 buf[PLAIN_BLOCK + 5000];
	u64 seq;

	open_one(MIB(1));
	memset(buf, 7, sizeof(buf));
	assert_int_equal(plain_write(&files[0], buf, sizeof(buf), 0), 0);
	assert_int_equal(plain_allocated(&files[0]), 2 * PLAIN_BLOCK);
	assert_int_equal(plain_persist(&files[0], no_emit, NULL, &seq), 0);
	assert_int_equal(plain_allocated(&files[0]), PLAIN_BLOCK + 8192);
	assert_int_equal(stub_pool_used(pool), PLAIN_BLOCK + 8192);
	close_one();
}

static void copies_share_whole_blocks(void **state)
{
	static u8 buf[PLAIN_BLOCK * 10 + 77];

	open_one(PLAIN_BLOCK * 13);
	plain_init(&files[1], pool, 2);
	memset(buf, 9, sizeof(buf));
	assert_int_equal(plain_write(&files[0], buf, sizeof(buf), 0), 0);
	assert_int_equal(plain_copy_range(&files[0], 0, &files[1], 0, UINT64_MAX / 4), sizeof(buf));
	assert_int_equal(stub_pool_live(pool), 12);
	/* Each is its own from then on. */
	assert_int_equal(plain_write(&files[1], "x", 1, PLAIN_BLOCK), 0);
	assert_int_equal(plain_read(&files[0], buf, 1, PLAIN_BLOCK), 1);
	assert_int_equal(buf[0], 9);
	plain_destroy(&files[1]);
	close_one();
}

static void a_full_pool_changes_nothing(void **state)
{
	static u8 buf[PLAIN_BLOCK * 4], out[PLAIN_BLOCK * 4];

	open_one(PLAIN_BLOCK * 3);
	memset(buf, 1, sizeof(buf));
	assert_int_equal(plain_write(&files[0], buf, 100, 0), 0);
	assert_int_equal(plain_write(&files[0], buf, sizeof(buf), 0), -ENOSPC);
	assert_int_equal(plain_size(&files[0]), 100);
	assert_int_equal(plain_write(&files[0], buf, PLAIN_BLOCK * 3, 0), 0);
	memset(buf, 2, sizeof(buf));
	assert_int_equal(plain_write(&files[0], buf, PLAIN_BLOCK * 2, PLAIN_BLOCK * 2), -ENOSPC);
	assert_int_equal(plain_fallocate(&files[0], 0, PLAIN_BLOCK * 4, false), -ENOSPC);
	assert_int_equal(plain_read(&files[0], out, sizeof(out), 0), PLAIN_BLOCK * 3);
	for (u32 i = 0; i < PLAIN_BLOCK * 3; i++)
		assert_int_equal(out[i], 1);
	assert_int_equal(plain_write(&files[0], buf, 1, PLAIN_MAX_BYTES), -EFBIG);
	assert_int_equal(plain_truncate(&files[0], PLAIN_MAX_BYTES + 1), -EFBIG);
	close_one();
}

static void a_failed_persist_stays_dirty(void **state)
{
	static const enum fault_site sites[] = {FAULT_WRITE, FAULT_META};
	static u8 buf[PLAIN_BLOCK];
	u64 seq;

	open_one(MIB(1));
	for (u32 s = 0; s < ARRAY_SIZE(sites); s++) {
		assert_int_equal(plain_write(&files[0], buf, sizeof(buf), 0), 0);
		fault_arm(sites[s], 1);
		assert_int_not_equal(plain_persist(&files[0], no_emit, NULL, &seq), 0);
		fault_arm(sites[s], 0);
		assert_true(plain_dirty(&files[0]));
		assert_int_equal(plain_persist(&files[0], no_emit, NULL, &seq), 0);
		assert_false(plain_dirty(&files[0]));
	}
	close_one();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(files_behave_as_arrays),
		cmocka_unit_test(small_files_take_no_block),
		cmocka_unit_test(the_last_block_shrinks_to_what_it_needs),
		cmocka_unit_test(copies_share_whole_blocks),
		cmocka_unit_test(a_full_pool_changes_nothing),
		cmocka_unit_test(a_failed_persist_stays_dirty),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
