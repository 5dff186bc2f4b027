/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a pool finds in the DRAM that an earlier one left. The earlier one is gone as by kill -9: nothing
 * of its memory is put in order; its slab files, its index, the disk and the metadata are there.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "lib/test.h"
#include "lib/pool_fixture.h"
#include "allocator/base/fault.h"
#include "allocator/base/hash.h"
#include "allocator/base/textbuf.h"
#include "allocator/meta.h"
#include "allocator/warm_format.h"

#define DRAM	  MIB(32) /* in slabs of 8 MiB */
#define SLABS	  4u
#define NVME	  MIB(128)
#define BYTES	  65536u
#define META_NAME 40 /* the test's own records: a list of block ids, by space */
#define MAX_NAMED 512u
#define SPACES	  3u

struct world {
	struct pool_fixture fx;
	struct meta *meta;
	char path[PATH_MAX];
	int dirfd;
	int files[SLABS], index; /* of the earlier pool; -1: none */
	u32 uid[SPACES];	 /* owners of namespaces; 0: plain files, and spaces without an owner */
	struct block_id named[SPACES][MAX_NAMED];
	u32 nr_named[SPACES];
	struct pool_warm_stats found;
	int err; /* of taking over */
	u64 fail_begin, fail_load; /* the n-th wish for memory; 0: none */
};

static int load(void *ctx, const struct meta_key *key, const void *value, u32 bytes)
{
	struct world *w = ctx;
	struct textbuf why = TEXTBUF_INIT;
	int err = 0;

	if (key->type == META_NAME) {
		w->nr_named[key->id] = bytes / sizeof(struct block_id);
		memcpy(w->named[key->id], value, bytes);
	} else {
		err = pool_load(w->fx.pool, key, value, bytes, &why);
	}
	textbuf_free(&why);
	return err;
}

static void own(struct world *w, u32 space, u32 uid)
{
	struct pool_owner owner = {uid, uid, 0700};

	w->uid[space] = uid;
	if (uid)
		assert_int_equal(pool_set_space_owner(w->fx.pool, space, &owner), 0);
}

static void open_meta(struct world *w)
{
	struct meta_opts opts = {.create = true, .durable = pool_meta_durable, .ctx = w->fx.pool};
	struct textbuf why = TEXTBUF_INIT;

	memset(w->nr_named, 0, sizeof(w->nr_named));
	assert_int_equal(meta_open(&w->meta, w->dirfd, &opts, &(struct meta_loader){load, w}, &why), 0);
	pool_set_meta(w->fx.pool, w->meta);
	for (u32 s = 0; s < SPACES; s++)
		for (u32 i = 0; i < w->nr_named[s]; i++)
			assert_int_equal(pool_load_ref(w->fx.pool, w->named[s][i], BYTES), 0);
	assert_int_equal(pool_load_finish(w->fx.pool, &why), 0);
	textbuf_free(&why);
}

/* @w->err tells how taking over went; after an error the pool must not be used. */
static void begin(struct world *w)
{
	struct tier_opts topts = {.size_bytes = DRAM, .dirfd = -1, .numa_node = -1, .hugepages = "off",
				  .files = w->index >= 0 ? w->files : NULL};
	struct pool_opts opts = {.nvme = w->fx.disk, .high_pct = 90, .low_pct = 80};
	struct textbuf why = TEXTBUF_INIT;
	int index = w->index;

	assert_int_equal(tier_open(&w->fx.dram, &tier_dram_ops, "dram", &topts, &why), 0);
	textbuf_free(&why);
	opts.dram = w->fx.dram;
	assert_int_equal(pool_create(&w->fx.pool, &opts), 0);
	w->index = -1;
	fault_arm(FAULT_MEMORY, w->fail_begin);
	w->err = min(pool_warm_begin(w->fx.pool, index), 0);
	fault_arm(FAULT_MEMORY, 0);
	for (u32 s = 0; s < SPACES; s++)
		own(w, s, w->uid[s]);
	open_meta(w);
	fault_arm(FAULT_MEMORY, w->fail_load);
	if (!w->err)
		w->err = pool_warm_load(w->fx.pool, &w->found);
	fault_arm(FAULT_MEMORY, 0);
	if (!w->err)
		assert_int_equal(pool_start(w->fx.pool), 0);
	for (u32 i = 0; i < SLABS; i++)
		close(w->files[i]);
}

static void make(struct world *w)
{
	struct tier_opts topts = {.size_bytes = NVME, .dirfd = -1, .numa_node = -1};
	struct textbuf why = TEXTBUF_INIT;

	*w = (struct world){.index = -1, .uid = {0, 7, 8}, .files = {-1, -1, -1, -1}};
	test_tmp(w->path, "kvc-warm-XXXXXX");
	assert_non_null(mkdtemp(w->path));
	w->dirfd = open(w->path, O_RDONLY | O_DIRECTORY);
	assert_int_equal(tier_open(&w->fx.disk, &tier_null_ops, "disk", &topts, &why), 0);
	textbuf_free(&why);
	begin(w);
	assert_int_equal(w->err, 0);
	assert_int_equal(w->found.blocks, 0);
}

static int index_fd(struct world *w)
{
	char path[64], target[64];
	ssize_t n;

	for (int fd = 3; fd < 256; fd++) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, target, sizeof(target) - 1);
		if (n < 0)
			continue;
		target[n] = '\0';
		if (strstr(target, "kvcachefs-index") && fd != w->index)
			return fd;
	}
	fail();
	return -1;
}

/* What a keeper has when the daemon is killed. */
static void kill_pool(struct world *w)
{
	pool_check(w->fx.pool);
	for (u32 i = 0; i < SLABS; i++)
		w->files[i] = dup(tier_dram_file(w->fx.dram, i));
	w->index = dup(index_fd(w));
	meta_close(w->meta);
	pool_destroy(w->fx.pool);
	tier_close(w->fx.dram);
}

static void restart(struct world *w)
{
	kill_pool(w);
	begin(w);
	assert_int_equal(w->err, 0);
	pool_check(w->fx.pool);
}

static void end(struct world *w)
{
	struct dirent *entry;
	DIR *dir;

	meta_close(w->meta);
	pool_destroy(w->fx.pool);
	tier_close(w->fx.dram);
	tier_close(w->fx.disk);
	dir = fdopendir(w->dirfd);
	while ((entry = readdir(dir)))
		if (entry->d_name[0] != '.')
			unlinkat(w->dirfd, entry->d_name, 0);
	closedir(dir);
	rmdir(w->path);
}

static u64 seed_of(u32 space, u32 i)
{
	return (space + 1) * 100000ull + i;
}

static void add(struct world *w, u32 space, u32 nr)
{
	for (u32 i = 0; i < nr; i++) {
		u32 n = w->nr_named[space]++;

		assert_int_equal(pool_fixture_block(&w->fx, BYTES, space, seed_of(space, n),
						    &w->named[space][n]),
				 0);
	}
}

/* The names, as they are now, and their blocks are durable. */
static void persist(struct world *w, u32 space)
{
	struct meta_txn txn = META_TXN_INIT;
	struct pool *pool = w->fx.pool;
	const struct block_id *ids = w->named[space];
	u32 nr = w->nr_named[space];
	u64 seq;

	assert_int_equal(pool_seal(pool, ids, nr), 0);
	assert_int_equal(pool_writeback(pool, ids, nr), 0);
	assert_int_equal(pool_flush(pool), 0);
	meta_txn_put(&txn, (struct meta_key){.id = space, .type = META_NAME}, ids, nr * sizeof(*ids));
	assert_int_equal(pool_submit(pool, ids, nr, &txn, &seq), 0);
	assert_int_equal(pool_commit(pool, seq), 0);
	meta_txn_free(&txn);
}

static void all_right(struct world *w)
{
	for (u32 s = 0; s < SPACES; s++)
		for (u32 i = 0; i < w->nr_named[s]; i++)
			assert_int_equal(pool_fixture_holds(&w->fx, w->named[s][i], seed_of(s, i)), 1);
	pool_check(w->fx.pool);
}

static u64 disk_reads(struct world *w)
{
	return atomic_load(&w->fx.disk->reads);
}

static u64 pinned(struct world *w)
{
	struct pool_stats s;

	pool_get_stats(w->fx.pool, &s);
	return s.tier[IN_DRAM].pinned;
}

/* ---- content ---- */

static void recorded_blocks_are_there_again(void **state)
{
	struct world w;
	u64 reads;

	make(&w);
	for (u32 s = 0; s < SPACES; s++) {
		add(&w, s, 50);
		persist(&w, s);
	}
	reads = disk_reads(&w);
	for (int i = 0; i < 3; i++) {
		restart(&w);
		assert_int_equal(w.found.blocks, 150);
		assert_int_equal(w.found.refused, 0);
		all_right(&w);
	}
	assert_int_equal(disk_reads(&w), reads);
	end(&w);
}

static void what_was_not_recorded_is_not(void **state)
{
	struct world w;

	make(&w);
	add(&w, 1, 20);
	persist(&w, 1);
	add(&w, 1, 20); /* in no record */
	restart(&w);
	assert_int_equal(w.found.blocks, 20);
	assert_int_equal(w.nr_named[1], 20);
	all_right(&w);
	end(&w);
}

/* A clean end drops names too, and says nothing of it. */
static void a_clean_end_leaves_all(void **state)
{
	struct world w;

	make(&w);
	add(&w, 0, 30);
	persist(&w, 0);
	pool_end(w.fx.pool);
	pool_put(w.fx.pool, w.named[0], 30);
	restart(&w);
	assert_int_equal(w.found.blocks, 30);
	all_right(&w);
	end(&w);
}

/* Evicted, moved, freed, loaded again: the index goes along. */
static void blocks_come_and_go(void **state)
{
	struct test_rng rng;
	struct world w;
	u64 found = 0;

	test_rng_init(&rng);
	make(&w);
	for (u64 round = 0, nr_rounds = max(test_count(12), (u64)6); round < nr_rounds; round++) {
		u32 s = (u32)test_rng_below(&rng, SPACES), nr = w.nr_named[s];

		add(&w, s, (u32)min(test_rng_below(&rng, 120), (u64)MAX_NAMED / 2 - nr));
		persist(&w, s);
		for (u64 i = test_rng_below(&rng, 60); i && nr; i--) {
			struct block_id id = w.named[s][test_rng_below(&rng, nr)];

			if (i % 3)
				assert_int_equal(pool_demote(w.fx.pool, &id, 1), 0);
			else
				pool_prefetch(w.fx.pool, &id, 1);
		}
		if (nr > 100) { /* forget the newest */
			w.nr_named[s] = 100;
			persist(&w, s);
			pool_put(w.fx.pool, w.named[s] + 100, nr - 100);
		}
		restart(&w);
		found += w.found.blocks;
		assert_int_equal(w.found.refused, 0);
		all_right(&w);
	}
	assert_true(found > 100);
	end(&w);
}

/* ---- damage ---- */

/* An index like the one left, with one byte changed. */
static void damage(struct world *w, u64 at, u8 bits)
{
	int copy = memfd_create("kvcachefs-index", MFD_CLOEXEC);
	u64 size = (u64)lseek(w->index, 0, SEEK_END);
	u8 *to, *from = mmap(NULL, size, PROT_READ, MAP_SHARED, w->index, 0);

	assert_int_equal(ftruncate(copy, (off_t)size), 0);
	to = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, copy, 0);
	assert_ptr_not_equal(from, MAP_FAILED);
	assert_ptr_not_equal(to, MAP_FAILED);
	memcpy(to, from, size);
	to[at] ^= bits;
	munmap(to, size);
	munmap(from, size);
	close(w->index);
	w->index = copy;
}

static void a_damaged_index_costs_reads_at_most(void **state)
{
	const u64 entries = 2 * KVC_PAGE_SIZE;
	struct test_rng rng;
	struct world w;

	test_rng_init(&rng);
	make(&w);
	for (u32 s = 0; s < SPACES; s++) {
		add(&w, s, 8);
		persist(&w, s);
	}
	for (u64 i = 0; i < test_count(40); i++) {
		u64 where = test_rng_below(&rng, 8);
		u64 at = where == 0 ? test_rng_below(&rng, sizeof(struct warm_header))
			 : where == 1
				 ? KVC_PAGE_SIZE + test_rng_below(&rng, SLABS * sizeof(struct warm_slab))
				 : entries + test_rng_below(&rng, 24 * sizeof(struct warm_entry));

		kill_pool(&w);
		damage(&w, at, (u8)(1 + test_rng_below(&rng, 255)));
		begin(&w);
		assert_int_equal(w.err, 0);
		assert_true(where < 2 ? w.found.blocks <= 24 : w.found.blocks == 23);
		all_right(&w);
	}
	end(&w);
}

/* An entry that checks and lies: the record and the bytes have the last word. */
static void an_index_that_lies_is_not_believed(void **state)
{
	struct warm_entry *e;
	struct world w;
	u8 *base;

	for (int lie = 0; lie < 5; lie++) {
		make(&w);
		add(&w, 1, 8);
		persist(&w, 1);
		kill_pool(&w);
		base = mmap(NULL, 4 * KVC_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, w.index, 0);
		e = (struct warm_entry *)(void *)(base + 2 * KVC_PAGE_SIZE) + 3;
		if (lie == 0)
			e->off = (e - 1)->off;
		else if (lie == 1)
			e->id = (e - 1)->id;
		else if (lie == 2)
			e->csum++;
		else if (lie == 3)
			e->off = DRAM - KVC_PAGE_SIZE;
		else
			e->off = DRAM - MIB(1); /* of nobody */
		e->check = hash_bytes(e, offsetof(struct warm_entry, check)) | 1;
		munmap(base, 4 * KVC_PAGE_SIZE);
		begin(&w);
		assert_int_equal(w.err, 0);
		assert_int_equal(w.found.blocks, 7);
		all_right(&w);
		end(&w);
	}
}

static void bytes_that_changed_are_not_used(void **state)
{
	struct world w;
	u64 word = 0;

	make(&w);
	add(&w, 1, 64);
	persist(&w, 1);
	kill_pool(&w);
	for (u32 i = 0; i < SLABS; i++) /* a byte in each first block of a slab's */
		assert_int_equal(pwrite(w.files[i], &word, sizeof(word), 4096), sizeof(word));
	begin(&w);
	assert_int_equal(w.err, 0);
	assert_int_equal(w.found.blocks, 63);
	assert_int_equal(w.found.refused, 1);
	all_right(&w);
	end(&w);
}

static void a_file_made_shorter_is_not_used(void **state)
{
	struct world w;

	make(&w);
	add(&w, 0, 64);
	persist(&w, 0);
	kill_pool(&w);
	for (u32 i = 0; i < SLABS; i++) {
		close(w.files[i]);
		w.files[i] = memfd_create("short", MFD_CLOEXEC);
		assert_int_equal(ftruncate(w.files[i], MIB(4)), 0);
	}
	begin(&w);
	assert_int_equal(w.err, 0);
	assert_int_equal(w.found.blocks, 0);
	all_right(&w);
	end(&w);
}

/* ---- places ---- */

static char *map(struct world *w, u32 file)
{
	int fd = pool_file_fd(w->fx.pool, file, true);
	char *addr;

	assert_true(fd >= 0);
	addr = mmap(NULL, pool_file_bytes(w->fx.pool), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(addr, MAP_FAILED);
	close(fd);
	return addr;
}

/* Twice DRAM through it. */
static void push(struct world *w, u32 space)
{
	struct block_id id;

	for (u32 i = 0; i < 2 * DRAM / BYTES; i++) {
		assert_int_equal(pool_fixture_block(&w->fx, BYTES, space, i, &id), 0);
		pool_put(w->fx.pool, &id, 1);
		if (i % 8 == 0) {
			assert_int_equal(pool_fixture_block(&w->fx, BYTES, space, i, &id), 0);
			assert_int_equal(pool_seal(w->fx.pool, &id, 1), 0);
			assert_int_equal(pool_demote(w->fx.pool, &id, 1), 0);
			pool_put(w->fx.pool, &id, 1);
		}
	}
}

static bool is_filled(const char *addr, char value)
{
	for (u32 i = 0; i < BYTES; i++)
		if (addr[i] != value)
			return false;
	return true;
}

/* A recorded block, and one that clients were filling: both stay where they are until released. */
static void what_clients_map_stays(void **state)
{
	struct pool_place place[2], again;
	struct block_id open_id;
	struct world w;
	char *addr[2];

	make(&w);
	add(&w, 1, 4);
	persist(&w, 1);
	assert_int_equal(pool_fixture_block(&w.fx, BYTES, 1, 1, &open_id), 0);
	assert_int_equal(pool_hold(w.fx.pool, &w.named[1][2], 1, &place[0]), 0);
	assert_int_equal(pool_hold(w.fx.pool, &open_id, 1, &place[1]), 0);
	for (int i = 0; i < 2; i++)
		addr[i] = map(&w, place[i].file);
	memset(addr[1] + place[1].off, 'x', BYTES);
	for (int i = 0; i < 3; i++) { /* over several deaths */
		restart(&w);
		assert_int_equal(w.found.blocks, i ? 1 : 4);
		assert_int_equal(w.found.held_blocks, 1);
		assert_int_equal(w.found.held_bytes, BYTES);
		assert_int_equal(pinned(&w), 2 * BYTES);
		push(&w, 1);
		push(&w, 2);
		push(&w, 0);
		assert_int_equal(pool_demote(w.fx.pool, w.named[1], 4), 0);
		assert_true(is_filled(addr[1] + place[1].off, 'x'));
		assert_int_equal(pool_fixture_holds(&w.fx, w.named[1][2], seed_of(1, 2)), 1);
	}
	/* It can be mapped again, at the same place, and stays when the old hold goes. */
	assert_int_equal(pool_hold(w.fx.pool, &w.named[1][2], 1, &again), 0);
	assert_int_equal(again.off, place[0].off);
	pool_warm_release(w.fx.pool);
	pool_warm_release(w.fx.pool);
	assert_int_equal(pinned(&w), BYTES);
	pool_check(w.fx.pool);
	restart(&w);
	assert_int_equal(w.found.held_bytes, 0);
	assert_int_equal(w.found.held_blocks, 1);
	pool_warm_release(w.fx.pool);
	assert_int_equal(pinned(&w), 0);
	all_right(&w);
	for (int i = 0; i < 2; i++)
		munmap(addr[i], pool_file_bytes(w.fx.pool));
	end(&w);
}

/* A block whose bytes a client spoiled is read from NVMe, to somewhere else: the client keeps its view. */
static void a_spoiled_block_leaves_its_place(void **state)
{
	struct pool_place place;
	struct world w;
	char *addr;

	make(&w);
	add(&w, 1, 4);
	persist(&w, 1);
	assert_int_equal(pool_hold(w.fx.pool, &w.named[1][0], 1, &place), 0);
	addr = map(&w, place.file);
	memset(addr + place.off, 'y', BYTES);
	restart(&w);
	assert_int_equal(w.found.blocks, 3);
	assert_int_equal(w.found.refused, 1);
	assert_int_equal(w.found.held_bytes, BYTES);
	push(&w, 1);
	all_right(&w);
	assert_true(is_filled(addr + place.off, 'y'));
	pool_warm_release(w.fx.pool);
	all_right(&w);
	munmap(addr, pool_file_bytes(w.fx.pool));
	end(&w);
}

/* ---- trust domains ---- */

/* The namespace changed hands: its old clients see nothing new, and lose nothing that they held. */
static void an_owner_that_is_gone_sees_no_more(void **state)
{
	for (int held = 0; held < 2; held++) {
		struct pool_place place;
		struct world w;
		u64 nr_zero = 0;
		char *addr;

		make(&w);
		add(&w, 1, 100);
		persist(&w, 1);
		assert_int_equal(pool_hold(w.fx.pool, &w.named[1][0], 1, &place), 0);
		addr = map(&w, place.file);
		if (!held)
			pool_unhold(w.fx.pool, &w.named[1][0], 1);
		w.uid[1] = 9;
		restart(&w);
		assert_int_equal(w.found.blocks, 0);
		for (u32 s = 0; s < SPACES; s++)
			push(&w, s);
		all_right(&w);
		for (u64 i = 0; i < pool_file_bytes(w.fx.pool); i += 4096)
			nr_zero += !*(u64 *)(void *)(addr + i);
		/* Emptied, or untouched from before the restart: never the new pool's. */
		if (held)
			assert_true(*(u64 *)(void *)(addr + place.off) != 0);
		else
			assert_int_equal(nr_zero, pool_file_bytes(w.fx.pool) / 4096);
		memset(addr, 'z', pool_file_bytes(w.fx.pool));
		all_right(&w);
		munmap(addr, pool_file_bytes(w.fx.pool));
		end(&w);
	}
}

/* ---- memory ---- */

static void without_memory_it_fails_or_works(void **state)
{
	struct world w;

	make(&w);
	for (u32 s = 0; s < SPACES; s++) {
		struct pool_place place;

		add(&w, s, 10);
		persist(&w, s);
		if (s)
			assert_int_equal(pool_hold(w.fx.pool, w.named[s], 1, &place), 0);
	}
	for (u64 nth = 1; nth < 30; nth++) {
		kill_pool(&w);
		w.fail_load = nth;
		begin(&w);
		assert_int_equal(w.err, 0);
		assert_true(w.found.blocks + w.found.held_blocks < 32 || nth > 10);
		all_right(&w);
	}
	w.fail_load = 0;
	restart(&w);
	all_right(&w);
	/* Without an index nobody knows whose the memory is. */
	kill_pool(&w);
	damage(&w, 0, 1);
	w.fail_begin = 1;
	begin(&w);
	assert_int_equal(w.err, -ENOMEM);
	end(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(recorded_blocks_are_there_again),
		cmocka_unit_test(what_was_not_recorded_is_not),
		cmocka_unit_test(a_clean_end_leaves_all),
		cmocka_unit_test(blocks_come_and_go),
		cmocka_unit_test(a_damaged_index_costs_reads_at_most),
		cmocka_unit_test(an_index_that_lies_is_not_believed),
		cmocka_unit_test(bytes_that_changed_are_not_used),
		cmocka_unit_test(a_file_made_shorter_is_not_used),
		cmocka_unit_test(what_clients_map_stays),
		cmocka_unit_test(a_spoiled_block_leaves_its_place),
		cmocka_unit_test(an_owner_that_is_gone_sees_no_more),
		cmocka_unit_test(without_memory_it_fails_or_works),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
