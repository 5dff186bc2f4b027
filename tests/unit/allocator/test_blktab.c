/* SPDX-License-Identifier: Apache-2.0 */
/* Block tables and written ranges on a stubbed pool. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include "allocator/base/fault.h"
#include "allocator/blktab.h"
#include "allocator/meta.h"
#include "allocator/written.h"
#include "lib/pool_stub.h"
#include "lib/test.h"

#define BS 4096u

struct fixture {
	struct pool *pool;
	struct blktab tab;
};

static void open_fixture(struct fixture *f)
{
	f->pool = stub_pool_create(MIB(64));
	assert_int_equal(blktab_init(&f->tab, f->pool, 7, 1, BS), 0);
}

static void close_fixture(struct fixture *f)
{
	blktab_destroy(&f->tab);
	assert_int_equal(stub_pool_named(f->pool), 0);
	stub_pool_destroy(f->pool);
}

static int put(struct blktab *tab, const void *buf, size_t len, u64 off)
{
	int err;

	blktab_begin(tab);
	err = blktab_write(tab, buf, len, off);
	blktab_end(tab);
	return err;
}

static void fill(u8 *buf, size_t len, u32 seed)
{
	for (size_t i = 0; i < len; i++)
		buf[i] = (u8)(seed * 31 + i * 7 + (i >> 8));
}

static void submit(struct fixture *f)
{
	struct meta_txn txn = META_TXN_INIT;
	struct block_id *ids;
	u64 seq;
	u32 nr;

	blktab_begin(&f->tab);
	assert_int_equal(blktab_dirty_blocks(&f->tab, &ids, &nr), 0);
	blktab_emit(&f->tab, &txn);
	assert_int_equal(pool_submit(f->pool, ids, nr, &txn, &seq), 0);
	blktab_emitted(&f->tab);
	blktab_end(&f->tab);
	free(ids);
}

static void reads_what_was_written(void **state)
{
	u8 in[BS * 3], out[BS * 8];
	struct fixture f;

	open_fixture(&f);
	fill(in, sizeof(in), 1);
	assert_int_equal(put(&f.tab, in, sizeof(in), BS * 2 + 100), 0);
	memset(out, 0xee, sizeof(out));
	assert_int_equal(blktab_read(&f.tab, out, sizeof(out), 0), BS * 5 + 100);
	for (u32 i = 0; i < BS * 2 + 100; i++)
		assert_int_equal(out[i], 0);
	assert_memory_equal(out + BS * 2 + 100, in, sizeof(in));
	assert_int_equal(blktab_read(&f.tab, out, 10, BS * 5 + 100), 0);
	assert_int_equal(blktab_read(&f.tab, out, 10, BS * 5 + 95), 5);
	assert_int_equal(f.tab.nr_real, 4);
	assert_int_equal(put(&f.tab, in, 1, UINT64_MAX), -EFBIG);
	assert_int_equal(put(&f.tab, in, 1, (u64)BS << 31), -EFBIG);
	close_fixture(&f);
}

static void same_bytes_when_nothing_is_resident(void **state)
{
	static u8 in[BS * 100], out[BS * 100];
	struct fixture f;

	open_fixture(&f);
	fill(in, sizeof(in), 3);
	assert_int_equal(put(&f.tab, in, sizeof(in), 0), 0);
	stub_pool_absent(f.pool, true);
	for (u32 off = 0; off < sizeof(in); off += BS * 10)
		assert_int_equal(blktab_read(&f.tab, out + off, BS * 10, off), BS * 10);
	assert_memory_equal(in, out, sizeof(in));
	assert_true(stub_pool_prefetched(f.pool) > 0);
	assert_false(blktab_resident(&f.tab, 1, 0));
	fault_arm(FAULT_READ, 3);
	assert_int_equal(blktab_read(&f.tab, out, sizeof(out), 0), -EIO);
	fault_arm(FAULT_READ, 0);
	stub_pool_absent(f.pool, false);
	assert_true(blktab_resident(&f.tab, sizeof(in), 0));
	close_fixture(&f);
}

static void views_show_the_same(void **state)
{
	u8 in[BS * 4];
	struct blktab_view view;
	struct fixture f;
	size_t at = 0;

	open_fixture(&f);
	fill(in, sizeof(in), 2);
	assert_int_equal(put(&f.tab, in, BS, 0), 0);
	assert_int_equal(put(&f.tab, in + BS * 2, BS * 2, BS * 2), 0);
	memset(in + BS, 0, BS);
	assert_true(blktab_view(&f.tab, sizeof(in) - 20, 10, &view));
	assert_int_equal(view.bytes, sizeof(in) - 20);
	for (unsigned int i = 0; i < view.nr; i++) {
		assert_memory_equal(view.iov[i].iov_base, in + 10 + at, view.iov[i].iov_len);
		at += view.iov[i].iov_len;
	}
	assert_int_equal(at, view.bytes);
	/* What it shows stays alive when the table goes. */
	blktab_begin(&f.tab);
	assert_int_equal(blktab_cut(&f.tab, 0, 0), 0);
	blktab_end(&f.tab);
	assert_memory_equal(view.iov[0].iov_base, in + 10, BS - 10);
	blktab_view_put(&f.tab, &view);
	assert_int_equal(stub_pool_live(f.pool), 0);
	assert_true(blktab_view(&f.tab, 100, 0, &view));
	assert_int_equal(view.bytes, 0);
	blktab_view_put(&f.tab, &view);
	/* Too many pieces. */
	for (u32 i = 0; i < 140; i += 2)
		assert_int_equal(put(&f.tab, in, 1, (u64)i * BS), 0);
	assert_false(blktab_view(&f.tab, 140 * BS, 0, &view));
	assert_false(blktab_view(&f.tab, 60 * BS, 0, &view) && view.nr > 64);
	blktab_view_put(&f.tab, &view);
	close_fixture(&f);
}

static void sealed_shared_and_recorded_blocks_are_copied(void **state)
{
	struct block_id before, shared;
	u8 in[BS], out[BS];
	struct fixture f;

	open_fixture(&f);
	fill(in, BS, 5);
	assert_int_equal(put(&f.tab, in, BS, 0), 0);
	before = f.tab.blocks[0];
	assert_int_equal(put(&f.tab, in, 10, 5), 0);
	assert_int_equal(f.tab.blocks[0].v, before.v);
	assert_int_equal(pool_seal(f.pool, &before, 1), 0);
	blktab_snapshot(&f.tab, 0, 1, &shared);
	assert_int_equal(put(&f.tab, "x", 1, 0), 0);
	assert_int_not_equal(f.tab.blocks[0].v, before.v);
	assert_int_equal(stub_pool_ref(f.pool, shared), 1);
	pool_put(f.pool, &shared, 1);
	submit(&f);
	before = f.tab.blocks[0];
	assert_int_equal(put(&f.tab, "y", 1, 1), 0);
	assert_int_not_equal(f.tab.blocks[0].v, before.v);
	/* The record still names it. */
	assert_int_equal(stub_pool_ref(f.pool, before), 1);
	assert_int_equal(f.tab.nr_retired, 1);
	submit(&f);
	assert_int_equal(stub_pool_live(f.pool), 1);
	assert_int_equal(blktab_read(&f.tab, out, BS, 0), BS);
	assert_int_equal(out[0], 'x');
	assert_int_equal(out[1], 'y');
	assert_memory_equal(out + 20, in + 20, BS - 20);
	close_fixture(&f);
}

static void blocks_that_no_record_names_go_at_once(void **state)
{
	u8 in[BS * 4] = {0};
	struct fixture f;

	open_fixture(&f);
	assert_int_equal(put(&f.tab, in, sizeof(in), 0), 0);
	blktab_begin(&f.tab);
	assert_int_equal(blktab_cut(&f.tab, 1, BS), 0);
	blktab_end(&f.tab);
	assert_int_equal(stub_pool_live(f.pool), 1);
	submit(&f);
	assert_int_equal(put(&f.tab, in, sizeof(in), 0), 0);
	blktab_begin(&f.tab);
	assert_int_equal(blktab_cut(&f.tab, 0, 0), 0);
	blktab_end(&f.tab);
	/* The one on record is retired. */
	assert_int_equal(stub_pool_live(f.pool), 1);
	submit(&f);
	assert_int_equal(stub_pool_live(f.pool), 0);
	close_fixture(&f);
}

static void failed_writes_change_nothing(void **state)
{
	static const enum fault_site sites[] = {FAULT_MEMORY, FAULT_SPACE};
	u8 before[BS * 4], in[BS * 6], out[BS * 8];
	struct fixture f;
	u32 failures = 0;

	open_fixture(&f);
	fill(before, sizeof(before), 1);
	fill(in, sizeof(in), 2);
	assert_int_equal(put(&f.tab, before, sizeof(before), 0), 0);
	assert_int_equal(pool_seal(f.pool, &f.tab.blocks[1], 1), 0);
	for (u32 s = 0; s < ARRAY_SIZE(sites); s++) {
		for (u64 nth = 1;; nth++) {
			u32 live = stub_pool_live(f.pool);
			int err;

			fault_arm(sites[s], nth);
			err = put(&f.tab, in, sizeof(in), 100);
			if (fault_asked(sites[s]) < nth) {
				fault_arm(sites[s], 0);
				assert_int_equal(err, 0);
				break;
			}
			fault_arm(sites[s], 0);
			assert_true(err == -ENOMEM || err == -ENOSPC);
			failures++;
			assert_int_equal(stub_pool_live(f.pool), live);
			assert_int_equal(blktab_read(&f.tab, out, sizeof(out), 0), f.tab.size);
			assert_int_equal(f.tab.size, s ? 100 + sizeof(in) : sizeof(before));
			if (!s)
				assert_memory_equal(out, before, sizeof(before));
		}
		assert_int_equal(pool_seal(f.pool, &f.tab.blocks[2], 1), 0);
	}
	assert_true(failures > 6);
	close_fixture(&f);
}

struct loader {
	struct blktab *tab;
	u32 records;
};

static int load_one(void *ctx, const struct meta_key *key, const void *value, u32 bytes)
{
	struct loader *l = ctx;

	l->records++;
	return blktab_load_chunk(l->tab, key->sub, value, bytes);
}

static void records_bring_the_table_back(void **state)
{
	struct loader l = {0};
	struct blktab again;
	u8 in[BS], out[BS];
	struct fixture f;

	open_fixture(&f);
	fill(in, BS, 9);
	assert_int_equal(put(&f.tab, in, BS, 3 * BS), 0);
	assert_int_equal(put(&f.tab, in, BS, 1700ull * BS), 0);
	submit(&f);
	assert_int_equal(put(&f.tab, "z", 1, 1700ull * BS), 0);
	submit(&f);
	assert_int_equal(blktab_init(&again, f.pool, 7, 1, BS), 0);
	l.tab = &again;
	assert_int_equal(stub_records(f.pool, load_one, &l), 0);
	assert_int_equal(l.records, 2); /* chunks of holes have none */
	again.size = f.tab.size;
	assert_int_equal(blktab_load_names(&again, false), 0);
	assert_int_equal(blktab_read(&again, out, BS, 1700ull * BS), BS);
	assert_int_equal(out[0], 'z');
	assert_memory_equal(out + 1, in + 1, BS - 1);
	blktab_destroy(&again);
	/* Cut: the far chunk's record goes. */
	blktab_begin(&f.tab);
	assert_int_equal(blktab_cut(&f.tab, 4, 4 * BS), 0);
	blktab_end(&f.tab);
	submit(&f);
	assert_int_equal(blktab_init(&again, f.pool, 7, 1, BS), 0);
	l.records = 0;
	assert_int_equal(stub_records(f.pool, load_one, &l), 0);
	assert_int_equal(l.records, 1);
	assert_int_equal(again.nr_blocks, 4);
	blktab_destroy(&again); /* loaded, never named: no name is dropped */
	assert_int_equal(stub_pool_named(f.pool), 1);
	close_fixture(&f);
}

static void damaged_records_are_refused(void **state)
{
	u32 entries[513] = {12345};
	struct fixture f;

	open_fixture(&f);
	assert_int_equal(blktab_load_chunk(&f.tab, 0, entries, 0), -EUCLEAN);
	assert_int_equal(blktab_load_chunk(&f.tab, 0, entries, 3), -EUCLEAN);
	assert_int_equal(blktab_load_chunk(&f.tab, 0, entries, 513 * 4), -EUCLEAN);
	assert_int_equal(blktab_load_chunk(&f.tab, 1u << 30, entries, 4), -EUCLEAN);
	assert_int_equal(blktab_load_chunk(&f.tab, 0, entries, 4), 0);
	assert_int_equal(blktab_load_names(&f.tab, true), -EUCLEAN);
	assert_int_equal(f.tab.nr_blocks, 0);
	close_fixture(&f);
}

static void *reader(void *ctx)
{
	struct fixture *f = ctx;
	u8 buf[BS * 2];
	ssize_t n;

	for (u32 i = 0; i < 2000; i++) {
		n = blktab_read(&f->tab, buf, sizeof(buf), (i % 40) * (BS / 2));
		assert_true(n >= 0);
		/* Sealed blocks hold one value each. */
		for (ssize_t k = 1; k < n; k++)
			if ((k + (i % 40) * (BS / 2)) % BS)
				assert_int_equal(buf[k], buf[k - 1]);
	}
	return NULL;
}

static void readers_run_beside_changes(void **state)
{
	struct fixture f;
	pthread_t threads[2];
	u8 buf[BS];

	open_fixture(&f);
	for (u32 t = 0; t < 2; t++)
		assert_int_equal(pthread_create(&threads[t], NULL, reader, &f), 0);
	for (u32 i = 0; i < 3000; i++) {
		struct pool_want want = {.bytes = BS, .space = 1, .near = BLOCK_NONE};
		struct block_id id;
		void *addr;

		memset(buf, (int)i, BS);
		assert_int_equal(pool_alloc(f.pool, &want, 1, &id), 0);
		assert_int_equal(pool_begin_write(f.pool, id, true, &addr), 0);
		memcpy(addr, buf, BS);
		pool_end_write(f.pool, id);
		blktab_begin(&f.tab);
		assert_int_equal(blktab_set(&f.tab, i % 20, id), 0);
		blktab_set_size(&f.tab, 20 * BS);
		if (i % 50 == 0)
			assert_int_equal(blktab_cut(&f.tab, 3, 3 * BS), 0);
		blktab_end(&f.tab);
	}
	for (u32 t = 0; t < 2; t++)
		pthread_join(threads[t], NULL);
	close_fixture(&f);
}

static void written_ranges_agree_with_a_bitmap(void **state)
{
	struct written w = WRITTEN_INIT;
	bool map[256] = {false};
	struct test_rng rng;

	test_rng_init(&rng);
	for (u32 step = 0; step < test_count(20000); step++) {
		u32 from = (u32)test_rng_below(&rng, 256);
		u32 to = from + (u32)test_rng_below(&rng, 256 - from + 1), run = from;
		bool add = test_rng_below(&rng, 2);

		assert_int_equal(written_reserve(&w, 1), 0);
		if (add)
			written_add(&w, from, to);
		else
			written_remove(&w, from, to);
		memset(map + from, add, to - from);
		for (u32 i = 0; i < w.nr; i++) {
			assert_true(w.ranges[i].from < w.ranges[i].to);
			assert_true(!i || w.ranges[i - 1].to < w.ranges[i].from);
		}
		for (u32 i = 0; i < 256; i++)
			assert_int_equal(written_covers(&w, i, i + 1), map[i]);
		from = run = (u32)test_rng_below(&rng, 256);
		while (run < 256 && map[run])
			run++;
		assert_int_equal(written_run(&w, from), run);
	}
	written_free(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_what_was_written),
		cmocka_unit_test(same_bytes_when_nothing_is_resident),
		cmocka_unit_test(views_show_the_same),
		cmocka_unit_test(sealed_shared_and_recorded_blocks_are_copied),
		cmocka_unit_test(blocks_that_no_record_names_go_at_once),
		cmocka_unit_test(failed_writes_change_nothing),
		cmocka_unit_test(records_bring_the_table_back),
		cmocka_unit_test(damaged_records_are_refused),
		cmocka_unit_test(readers_run_beside_changes),
		cmocka_unit_test(written_ranges_agree_with_a_bitmap),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
