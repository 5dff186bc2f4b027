/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations on a pool with a real metadata store, killed at random points.
 *
 * The test plays the layer above: its names are records of its own that list blocks, each with the
 * seed of its bytes and a version. Names share blocks with each other and with cached chains. At
 * random points, also between the steps of persisting a name, the store is copied as it is on disk
 * at that moment, the bytes of the disk tier with it, and a second pool is opened on the copy, as
 * after kill -9. There each name must be a version that is not older than the last one acknowledged,
 * with the right bytes; what the prefix index finds must have the right bytes; the store must not
 * call anything damage; and when all names are dropped, nothing may be left.
 *
 * The copy is not made in one instant, yet is one that a kill could leave: a journal's seals are
 * copied before its frames, and new writes to the disk tier are held back meanwhile. Checkpoints run
 * only when the test asks; kills inside them are tested with the store alone.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "allocator/base/textbuf.h"
#include "lib/metastore.h"
#include "lib/pool_fixture.h"
#include "lib/test.h"
#include "lib/tier_flaky.h"

#define DRAM_BYTES MIB(6)
#define DISK_BYTES MIB(24)
#define META_NAME  40
#define NAMES	   24u
#define NAME_MAX_BLOCKS 8u
#define PREFIXES   6u
#define CHAIN	   8u
#define TOKENS	   16u
#define SPACE	   7u
#define JOURNAL_COPY MIB(3)

/** struct name - value of a record, and the model of one. */
struct name {
	u64 version;
	u32 nr, pad;
	struct {
		struct block_id id;
		u32 bytes;
		u64 seed;
	} block[NAME_MAX_BLOCKS];
};

struct side {
	struct pool_fixture fx;
	struct metastore dir;
	struct meta *meta;
	u32 root;
	/* what was loaded, and in the living side what is now */
	struct name names[NAMES];
};

struct world {
	struct side live;
	u64 acked[NAMES];	/* version that is durable for sure */
	u64 seq[NAMES];		/* of the last submit of the name */
	struct test_rng rng;
	u64 crashes, found_names, found_cached;
};

static const u32 sizes[] = {4096, 40960, 65536, 300000, MIB(1)};

static u64 below(struct world *w, u64 n)
{
	return test_rng_below(&w->rng, n);
}

/* ---- a side: opening a store as it is ---- */

static int load(void *ctx, const struct meta_key *key, const void *value, u32 bytes)
{
	struct side *s = ctx;
	struct textbuf why = TEXTBUF_INIT;
	int err = 0;

	if (key->type == META_NAME) {
		assert_true(key->id < NAMES && bytes == sizeof(struct name));
		memcpy(&s->names[key->id], value, bytes);
	} else {
		err = pool_load(s->fx.pool, key, value, bytes, &why);
	}
	textbuf_free(&why);
	return err;
}

static int load_names(struct side *s)
{
	int err = 0;

	for (u32 n = 0; n < NAMES; n++)
		for (u32 i = 0; i < s->names[n].nr && !err; i++)
			err = pool_load_ref(s->fx.pool, s->names[n].block[i].id,
					    s->names[n].block[i].bytes);
	return err;
}

static void side_open(struct side *s)
{
	struct pool_opts popts = {.dram = s->fx.dram, .nvme = s->fx.flaky, .high_pct = 80,
				  .low_pct = 60};
	struct meta_opts opts = {.create = true, .checkpoint_bytes = GIB(1),
				 .durable = pool_meta_durable};
	struct textbuf why = TEXTBUF_INIT;
	int err;

	memset(s->names, 0, sizeof(s->names));
	assert_int_equal(pool_create(&s->fx.pool, &popts), 0);
	opts.ctx = s->fx.pool;
	err = meta_open(&s->meta, s->dir.dir_fd, &opts, &(struct meta_loader){load, s}, &why);
	if (!err) {
		pool_set_meta(s->fx.pool, s->meta);
		err = load_names(s);
	}
	if (!err)
		err = pool_load_finish(s->fx.pool, &why);
	if (err)
		fail_msg("open: %d: %s", err, why.text ? why.text : "");
	assert_int_equal(pool_start(s->fx.pool), 0);
	assert_int_equal(pool_root(s->fx.pool, SPACE, "salt", 4, &s->root), 0);
	pool_check(s->fx.pool);
	textbuf_free(&why);
}

static void side_close(struct side *s)
{
	assert_int_equal(meta_close(s->meta), 0);
	pool_fixture_close(&s->fx);
	metastore_remove(&s->dir);
}

static void side_tiers(struct side *s)
{
	pool_fixture_open(&s->fx, DRAM_BYTES, DISK_BYTES);
	pool_destroy(s->fx.pool);
}

/* ---- the copy ---- */

static void copy_file(int from_dir, int to_dir, const char *name)
{
	static u8 buf[KIB(256)];
	int from = openat(from_dir, name, O_RDONLY), to;
	u64 off = 0, end;
	struct stat st;
	ssize_t n;

	if (from < 0)
		return;
	to = openat(to_dir, name, O_WRONLY | O_CREAT, 0600);
	assert_true(to >= 0 && !fstat(from, &st));
	end = min((u64)st.st_size, JOURNAL_COPY);
	for (; off < end; off += (u64)n) {
		n = pread(from, buf, min((u64)sizeof(buf), end - off), (off_t)off);
		assert_true(n > 0 && pwrite(to, buf, (size_t)n, (off_t)off) == n);
	}
	assert_int_equal(ftruncate(to, st.st_size), 0);
	close(from);
	close(to);
}

static void copy_store(struct side *from, struct side *to)
{
	int fd = openat(from->dir.dir_fd, ".", O_RDONLY | O_DIRECTORY);
	DIR *dir = fdopendir(fd);
	struct dirent *entry;

	assert_non_null(dir);
	tier_flaky_hold(from->fx.flaky, TIER_WRITE, true);
	while ((entry = readdir(dir)))
		if (entry->d_name[0] != '.')
			copy_file(from->dir.dir_fd, to->dir.dir_fd, entry->d_name);
	memcpy(tier_map(to->fx.disk, 0, DISK_BYTES), tier_map(from->fx.disk, 0, DISK_BYTES),
	       DISK_BYTES);
	tier_flaky_hold(from->fx.flaky, TIER_WRITE, false);
	while (tier_flaky_release(from->fx.flaky, 64))
		;
	closedir(dir);
}

/* ---- what must be there ---- */

static void chain_ids(u32 *ids, u32 prefix)
{
	for (u32 i = 0; i < CHAIN * TOKENS; i++)
		ids[i] = prefix * 7919 + i;
}

static u64 chain_seed(u32 prefix, u32 i)
{
	return 1000000 + prefix * 1000 + i;
}

static void check_names(struct world *w, struct side *s)
{
	for (u32 n = 0; n < NAMES; n++) {
		struct name *name = &s->names[n];

		assert_in_range(name->version, w->acked[n], w->live.names[n].version);
		for (u32 i = 0; i < name->nr; i++, w->found_names++)
			assert_int_equal(pool_fixture_holds(&s->fx, name->block[i].id,
							    name->block[i].seed), 1);
	}
}

static void check_chains(struct world *w, struct side *s)
{
	u32 ids[CHAIN * TOKENS], nr;
	struct block_id got[CHAIN];

	for (u32 p = 0; p < PREFIXES; p++) {
		struct prefix_key key = {s->root, TOKENS, ids, CHAIN * TOKENS};

		chain_ids(ids, p);
		nr = prefix_match(s->fx.pool, &key, got, true);
		for (u32 i = 0; i < nr; i++, w->found_cached++)
			assert_int_equal(pool_fixture_holds(&s->fx, got[i], chain_seed(p, i)), 1);
		pool_put(s->fx.pool, got, nr);
	}
}

static void put_names(struct side *s)
{
	for (u32 n = 0; n < NAMES; n++)
		for (u32 i = 0; i < s->names[n].nr; i++)
			pool_put(s->fx.pool, &s->names[n].block[i].id, 1);
}

/* With no name and no cache left, nothing may be left. */
static void check_no_leak(struct side *s)
{
	struct pool_stats st;
	u64 blocks, bytes, seq;

	put_names(s);
	pool_drop_cached(s->fx.pool, 0, NR_BLOCK_TIERS, &blocks, &bytes);
	assert_int_equal(pool_submit(s->fx.pool, NULL, 0, NULL, &seq), 0);
	assert_int_equal(pool_commit(s->fx.pool, seq), 0);
	pool_meta_durable(s->fx.pool, seq);
	pool_check(s->fx.pool);
	pool_get_stats(s->fx.pool, &st);
	assert_int_equal(st.blocks, 0);
	assert_int_equal(st.named_bytes, 0);
	assert_int_equal(st.tier[IN_DRAM].used, 0);
	assert_int_equal(st.tier[IN_NVME].used, 0);
}

static void crash(struct world *w)
{
	static struct side s;

	w->crashes++;
	side_tiers(&s);
	metastore_make(&s.dir);
	copy_store(&w->live, &s);
	side_open(&s);
	check_names(w, &s);
	check_chains(w, &s);
	check_no_leak(&s);
	side_close(&s);
}

/* ---- operations ---- */

static void maybe_crash(struct world *w)
{
	if (!below(w, 40))
		crash(w);
}

static void note_acked(struct world *w, u64 seq)
{
	for (u32 n = 0; n < NAMES; n++)
		if (w->seq[n] <= seq)
			w->acked[n] = w->live.names[n].version;
}

/* Let @next take the place of name @n: the steps of persisting, killed anywhere between them. */
static void persist(struct world *w, u32 n, struct name *next)
{
	struct pool *pool = w->live.fx.pool;
	struct name old = w->live.names[n];
	struct meta_txn txn = META_TXN_INIT;
	struct block_id ids[NAME_MAX_BLOCKS];

	next->version = old.version + 1;
	for (u32 i = 0; i < next->nr; i++)
		ids[i] = next->block[i].id;
	if (below(w, 8))
		assert_int_equal(pool_seal(pool, ids, next->nr), 0);
	assert_int_equal(pool_writeback(pool, ids, next->nr), 0);
	maybe_crash(w);
	assert_int_equal(pool_flush(pool), 0);
	meta_txn_put(&txn, (struct meta_key){.id = n, .type = META_NAME}, next, sizeof(*next));
	w->live.names[n] = *next;
	w->seq[n] = UINT64_MAX;
	assert_int_equal(pool_submit(pool, ids, next->nr, &txn, &w->seq[n]), 0);
	meta_txn_free(&txn);
	maybe_crash(w);
	for (u32 i = 0; i < old.nr; i++)
		pool_put(pool, &old.block[i].id, 1);
	if (below(w, 2))
		return;
	maybe_crash(w);
	assert_int_equal(pool_commit(pool, w->seq[n]), 0);
	note_acked(w, w->seq[n]);
}

static bool add_block(struct name *name, struct block_id id, u32 bytes, u64 seed)
{
	name->block[name->nr].id = id;
	name->block[name->nr].bytes = bytes;
	name->block[name->nr].seed = seed;
	name->nr++;
	return name->nr < NAME_MAX_BLOCKS;
}

/* Some of the old blocks, some of another name's, some new ones. */
static void rewrite(struct world *w, u32 n)
{
	struct name *other = &w->live.names[below(w, 2) ? n : below(w, NAMES)], next = {0};

	for (u32 i = 0; i < other->nr && below(w, 3); i++) {
		if (!pool_sealed(w->live.fx.pool, other->block[i].id))
			continue;
		pool_get(w->live.fx.pool, &other->block[i].id, 1);
		if (!add_block(&next, other->block[i].id, other->block[i].bytes,
			       other->block[i].seed))
			break;
	}
	while (next.nr < NAME_MAX_BLOCKS && below(w, 3)) {
		u32 bytes = sizes[below(w, ARRAY_SIZE(sizes))];
		u64 seed = test_rng_u64(&w->rng);
		struct block_id id;

		if (pool_fixture_block(&w->live.fx, bytes, 0, seed, &id))
			break;
		add_block(&next, id, bytes, seed);
	}
	persist(w, n, &next);
}

/* Attach what is cached of a chain, make and index the rest; the name takes it or nobody does. */
static void use_chain(struct world *w, u32 n)
{
	u32 prefix = (u32)below(w, PREFIXES), ids[CHAIN * TOKENS], nr, want = 1 + (u32)below(w, CHAIN);
	struct prefix_key key = {w->live.root, TOKENS, ids, want * TOKENS};
	struct block_id chain[CHAIN], parent = BLOCK_NONE, found;
	struct pool *pool = w->live.fx.pool;
	struct name next = {0};
	int err;

	chain_ids(ids, prefix);
	nr = prefix_match(pool, &key, chain, true);
	if (nr)
		parent = chain[nr - 1];
	for (; nr < want; nr++) {
		key.ids = ids + nr * TOKENS;
		if (pool_fixture_block(&w->live.fx, 40960, SPACE, chain_seed(prefix, nr),
				       &chain[nr]))
			break;
		assert_int_equal(pool_seal(pool, &chain[nr], 1), 0);
		err = prefix_insert(pool, &key, parent, chain[nr], &found);
		/* A match ends where a block finds no room to be named; it may be there all the same. */
		if (err || found.v != chain[nr].v)
			pool_put(pool, &chain[nr], 1);
		if (err == -EEXIST)
			break;
		assert_int_equal(err, 0);
		chain[nr] = parent = found;
	}
	if (below(w, 3)) {
		if (below(w, 2))
			assert_int_equal(pool_writeback(pool, chain, nr), 0);
		pool_put(pool, chain, nr);
		return;
	}
	for (u32 i = 0; i < nr; i++)
		add_block(&next, chain[i], 40960, chain_seed(prefix, i));
	persist(w, n, &next);
}

static void reopen(struct world *w)
{
	struct name before[NAMES];

	assert_int_equal(meta_close(w->live.meta), 0);
	pool_destroy(w->live.fx.pool);
	memcpy(before, w->live.names, sizeof(before));
	side_open(&w->live);
	assert_memory_equal(before, w->live.names, sizeof(before));
	for (u32 n = 0; n < NAMES; n++)
		w->acked[n] = before[n].version;
	memset(w->seq, 0, sizeof(w->seq));
}

static void tidy(struct world *w)
{
	struct pool *pool = w->live.fx.pool;
	struct meta_stats st;
	u64 blocks, bytes;

	switch (below(w, 12)) {
	case 0:
		reopen(w);
		break;
	case 1:
		pool_drop_cached(pool, 0, below(w, NR_BLOCK_TIERS + 1), &blocks, &bytes);
		break;
	case 2:
		prefix_drop_space(pool, SPACE);
		assert_int_equal(pool_root(pool, SPACE, "salt", 4, &w->live.root), 0);
		break;
	case 3:
		meta_get_stats(w->live.meta, &st);
		if (below(w, 3) && st.journal_bytes < JOURNAL_COPY / 2)
			break;
		assert_int_equal(meta_checkpoint(w->live.meta), 0);
		break;
	default:
		assert_int_equal(pool_tick(pool), 0);
	}
	pool_check(w->live.fx.pool);
}

static void step(struct world *w)
{
	u32 n = (u32)below(w, NAMES);
	struct name none = {0};

	switch (below(w, 8)) {
	case 0:
		persist(w, n, &none);
		break;
	case 1:
	case 2:
		use_chain(w, n);
		break;
	case 3:
	case 4:
		tidy(w);
		break;
	default:
		rewrite(w, n);
	}
	maybe_crash(w);
}

static void killed_anywhere(void **state)
{
	static struct world w;
	u64 points = test_count(400);

	test_rng_init(&w.rng);
	metastore_make(&w.live.dir);
	side_tiers(&w.live);
	side_open(&w.live);
	while (w.crashes < points)
		step(&w);
	print_message("%llu kills, %llu named and %llu cached blocks found\n",
		      (unsigned long long)w.crashes, (unsigned long long)w.found_names,
		      (unsigned long long)w.found_cached);
	assert_true(w.found_names && w.found_cached);
	side_close(&w.live);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(killed_anywhere),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
