/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads on one pool that is far too small: each owns blocks of several sizes whose bytes it knows,
 * and all share chains of a few prefixes. Every byte read must be the one written, whatever reclaim,
 * prefetch, compaction and drops of the cache do meanwhile; at the end nothing is left.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "allocator/base/clock.h"
#include "lib/metastore.h"
#include "lib/test.h"
#include "lib/pool_fixture.h"

#define THREADS 4
#define OWNED	48
#define CHAIN	12
#define TOKENS	16u
#define PREFIXES 6

struct owned {
	struct block_id id;
	u64 seed;
	bool live, open;
};

struct worker {
	pthread_t thread;
	struct pool_fixture *fx;
	struct test_rng rng;
	struct owned owned[OWNED];
	u64 steps, wrong;
	bool records;	/* there is a metadata store */
	u32 space;	/* of what it owns */
};

static const u32 sizes[] = {4096, 40960, 40960, 65536, 1 << 20, 5000};

static void chain_ids(u32 *ids, u32 prefix)
{
	for (u32 i = 0; i < CHAIN * TOKENS; i++)
		ids[i] = prefix * 7919 + i;
}

static void expect(struct worker *w, bool ok)
{
	w->wrong += !ok;
}

/* Attach what is cached of a prefix, check it, make and index the rest, let go. */
static void use_chain(struct worker *w)
{
	u32 prefix = 1 + test_rng_below(&w->rng, PREFIXES), ids[CHAIN * TOKENS], root = 1, have;
	struct prefix_key key = {root, TOKENS, ids, CHAIN * TOKENS};
	struct block_id chain[CHAIN], parent = BLOCK_NONE, found;
	struct pool *pool = w->fx->pool;
	u32 nr;

	chain_ids(ids, prefix);
	have = nr = prefix_match(pool, &key, chain, true);
	for (u32 i = 0; i < have; i++)
		expect(w, pool_fixture_holds(w->fx, chain[i], prefix * 1000 + i) == 1);
	if (have)
		parent = chain[have - 1];
	for (; nr < CHAIN; nr++) {
		key.ids = ids + nr * TOKENS;
		if (pool_fixture_block(w->fx, 40960, 1, prefix * 1000 + nr, &chain[nr]))
			break;
		expect(w, !pool_seal(pool, &chain[nr], 1));
		if (prefix_insert(pool, &key, parent, chain[nr], &found)) {
			nr++;
			break;
		}
		if (found.v != chain[nr].v) {
			pool_put(pool, &chain[nr], 1);
			chain[nr] = found;
		}
		parent = chain[nr];
	}
	pool_put(pool, chain, nr);
}

static void make_owned(struct worker *w, struct owned *o)
{
	u32 bytes = sizes[test_rng_below(&w->rng, ARRAY_SIZE(sizes))];
	int err;

	o->seed = test_rng_u64(&w->rng);
	err = pool_fixture_block(w->fx, bytes, w->space, o->seed, &o->id);
	expect(w, !err || err == -ENOSPC);
	o->live = !err;
	o->open = true;
}

static void copy_owned(struct worker *w, struct owned *o)
{
	struct block_id copy;

	if (pool_copy(w->fx->pool, o->id, pool_bytes(w->fx->pool, o->id), &copy))
		return;
	pool_put(w->fx->pool, &o->id, 1);
	o->id = copy;
	o->open = true;
}

/* Give the block a record, as a table that names it would. */
static void record_owned(struct worker *w, struct owned *o)
{
	struct pool *pool = w->fx->pool;
	u64 seq;

	if (!w->records)
		return;
	expect(w, !pool_seal(pool, &o->id, 1));
	expect(w, !pool_writeback(pool, &o->id, 1));
	expect(w, !pool_flush(pool));
	expect(w, !pool_submit(pool, &o->id, 1, NULL, &seq));
	o->open = false;
	if (!test_rng_below(&w->rng, 4))
		expect(w, !pool_commit(pool, seq));
}

/* As a client: look at the block in the file that it is said to be in. */
static void map_owned(struct worker *w, struct owned *o)
{
	struct pool *pool = w->fx->pool;
	struct pool_place place, again;
	u32 domain = pool_space_domain(pool, w->space);
	u64 first, bytes = pool_file_bytes(pool);
	int err, fd;
	char *addr;

	if (!domain)
		return;
	err = pool_hold(pool, &o->id, 1, &place);
	expect(w, !err || err == -ENOMEM || err == -EAGAIN);
	if (err)
		return;
	expect(w, pool_file_domain(pool, place.file) == domain);
	fd = pool_file_fd(pool, place.file, false);
	addr = fd < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	expect(w, addr != MAP_FAILED);
	if (addr != MAP_FAILED) {
		memcpy(&first, addr + place.off, sizeof(first));
		expect(w, first == (o->seed * 0x9e3779b97f4a7c15ull ^ o->seed));
		munmap(addr, bytes);
	}
	if (fd >= 0)
		close(fd);
	if (!pool_try_hold(pool, &o->id, 1, &again)) {
		expect(w, again.file == place.file && again.off == place.off);
		pool_unhold(pool, &o->id, 1);
	}
	pool_unhold(pool, &o->id, 1);
}

/** struct waited - a load that tells its end here. */
struct waited {
	struct pool_load load;
	atomic_int result; /* 1: not yet */
};

static void load_done(struct pool_load *load, int err)
{
	atomic_store(&container_of(load, struct waited, load)->result, err);
}

/* All that is ours, wanted now or some time; sometimes not any more. */
static void load_owned(struct worker *w)
{
	struct waited load = {.load = {.done = load_done}, .result = 1};
	struct block_id ids[OWNED];
	u32 nr = 0;
	int err;

	for (int i = 0; i < OWNED; i++)
		if (w->owned[i].live)
			ids[nr++] = w->owned[i].id;
	load.load.deadline_ns = test_rng_below(&w->rng, 3) * clock_mono_ns();
	err = pool_load_begin(w->fx->pool, &load.load, ids, nr);
	expect(w, !err);
	if (err)
		return;
	while (test_rng_below(&w->rng, 4) && atomic_load(&load.result) == 1)
		sched_yield();
	pool_load_cancel(w->fx->pool, &load.load);
	err = load.result;
	expect(w, !err || err == -ECANCELED || err == -ENOMEM);
}

static void use_owned(struct worker *w, struct owned *o)
{
	struct pool *pool = w->fx->pool;
	u64 blocks, bytes;

	switch (test_rng_below(&w->rng, 18)) {
	case 0:
		expect(w, !pool_seal(pool, &o->id, 1));
		o->open = false;
		break;
	case 1:
		expect(w, !pool_demote(pool, &o->id, 1));
		break;
	case 2:
		pool_prefetch(pool, &o->id, 1);
		break;
	case 3:
		copy_owned(w, o);
		break;
	case 4:
		pool_put(pool, &o->id, 1);
		o->live = false;
		break;
	case 5:
		pool_drop_cached(pool, 0, test_rng_below(&w->rng, NR_BLOCK_TIERS + 1), &blocks,
				 &bytes);
		break;
	case 7:
		record_owned(w, o);
		break;
	case 8:
		map_owned(w, o);
		break;
	case 9:
		load_owned(w);
		break;
	case 10:
		pool_bring_home(pool, w->space);
		break;
	case 6:
		pool_touch(pool, &o->id, 1, CLASS_QUEUED, 70);
		break;
	default:
		expect(w, pool_fixture_holds(w->fx, o->id, o->seed) == 1);
	}
}

static void *work(void *arg)
{
	struct worker *w = arg;

	for (u64 s = 0; s < w->steps; s++) {
		struct owned *o = &w->owned[test_rng_below(&w->rng, OWNED)];

		if (!test_rng_below(&w->rng, 8))
			use_chain(w);
		else if (!o->live)
			make_owned(w, o);
		else
			use_owned(w, o);
	}
	for (int i = 0; i < OWNED; i++) {
		if (!w->owned[i].live)
			continue;
		expect(w, pool_fixture_holds(w->fx, w->owned[i].id, w->owned[i].seed) == 1);
		pool_put(w->fx->pool, &w->owned[i].id, 1);
	}
	return NULL;
}

/* A metadata store under the pool, and the commit interval without pause. */
struct recorder {
	struct metastore dir;
	struct meta *meta;
	struct pool *pool;
	pthread_t thread;
	atomic_bool stop;
	u64 wrong;
};

static int load_nothing(void *ctx, const struct meta_key *key, const void *value, u32 bytes)
{
	return -EUCLEAN;
}

static void *tick_always(void *arg)
{
	struct recorder *r = arg;

	while (!atomic_load(&r->stop))
		r->wrong += pool_tick(r->pool) != 0;
	return NULL;
}

static void recorder_open(struct recorder *r, struct pool *pool)
{
	struct meta_opts opts = {.create = true, .checkpoint_bytes = MIB(1),
				 .durable = pool_meta_durable, .ctx = pool};

	*r = (struct recorder){.pool = pool};
	metastore_make(&r->dir);
	assert_int_equal(meta_open(&r->meta, r->dir.dir_fd, &opts,
					   &(struct meta_loader){load_nothing, NULL}, NULL), 0);
	pool_set_meta(pool, r->meta);
	assert_int_equal(pthread_create(&r->thread, NULL, tick_always, r), 0);
}

static void recorder_stop(struct recorder *r)
{
	atomic_store(&r->stop, true);
	pthread_join(r->thread, NULL);
	assert_int_equal(r->wrong, 0);
}

/* All that was freed comes out of limbo. */
static void recorder_close(struct recorder *r)
{
	struct pool_stats s;
	u64 seq;

	assert_int_equal(pool_submit(r->pool, NULL, 0, NULL, &seq), 0);
	assert_int_equal(pool_commit(r->pool, seq), 0);
	pool_meta_durable(r->pool, seq);
	pool_get_stats(r->pool, &s);
	assert_int_equal(s.tier[IN_NVME].used, 0);
	assert_int_equal(meta_close(r->meta), 0);
	metastore_remove(&r->dir);
}

/** struct scene - sizes in bytes; @owners: that many domains and plain files, in pool files; 0: none. */
struct scene {
	u64 dram, nvme;
	u32 owners;
	bool records;
};

static void open_pool(struct pool_fixture *fx, const struct scene *scene)
{
	if (!scene->owners) {
		pool_fixture_open(fx, scene->dram, scene->nvme);
		return;
	}
	pool_fixture_open_files(fx, scene->dram, scene->nvme);
	for (u32 space = 1; space <= scene->owners; space++) {
		struct pool_owner owner = {space, space, 0700};

		assert_int_equal(pool_set_space_owner(fx->pool, space, &owner), 0);
	}
}

static void run_scene(const struct scene *scene)
{
	static struct worker workers[THREADS];
	struct pool_fixture fx;
	struct recorder recorder;
	struct test_rng rng;
	struct pool_stats s;
	u64 blocks, bytes, wrong = 0;
	u32 root;

	memset(workers, 0, sizeof(workers));
	test_rng_init(&rng);
	open_pool(&fx, scene);
	assert_int_equal(pool_root(fx.pool, 1, "", 0, &root), 0);
	assert_int_equal(root, 1);
	if (scene->records)
		recorder_open(&recorder, fx.pool);
	for (int i = 0; i < THREADS; i++) {
		workers[i].fx = &fx;
		workers[i].records = scene->records;
		workers[i].space = scene->owners ? i % (scene->owners + 1) : 0;
		workers[i].rng.state = test_rng_u64(&rng) | 1;
		workers[i].steps = test_count(6000);
		assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(workers[i].thread, NULL);
		wrong += workers[i].wrong;
	}
	assert_int_equal(wrong, 0);
	if (scene->records)
		recorder_stop(&recorder);
	pool_drop_cached(fx.pool, 0, NR_BLOCK_TIERS, &blocks, &bytes);
	pool_check(fx.pool);
	pool_get_stats(fx.pool, &s);
	print_message("demoted %llu promoted %llu moved %llu evicted %llu/%llu hits %llu\n",
		      (unsigned long long)s.demoted, (unsigned long long)s.promoted,
		      (unsigned long long)s.moved, (unsigned long long)s.evicted_dram,
		      (unsigned long long)s.evicted_nvme, (unsigned long long)s.hit_tokens);
	print_message("pool files %u\n", pool_nr_files(fx.pool));
	assert_int_equal(s.blocks, 0);
	assert_int_equal(s.tier[IN_DRAM].used, 0);
	assert_int_equal(s.tier[IN_DRAM].pinned, 0);
	if (scene->records)
		recorder_close(&recorder);
	pool_fixture_close(&fx);
}

static void run(u64 dram, u64 nvme, bool records)
{
	run_scene(&(struct scene){.dram = dram, .nvme = nvme, .records = records});
}

/* As many slabs as a pool of that size can have: twice as many as domains. */
static void three_owners(void **state)
{
	run_scene(&(struct scene){.dram = MIB(30), .nvme = MIB(64), .owners = 3});
}

static void three_owners_with_records(void **state)
{
	run_scene(&(struct scene){
		.dram = MIB(30), .nvme = MIB(64), .owners = 3, .records = true});
}

static void three_owners_volatile(void **state)
{
	run_scene(&(struct scene){.dram = MIB(62), .owners = 3});
}

static void with_two_tiers(void **state)
{
	run(MIB(12), MIB(64), false);
}

static void nearly_full(void **state)
{
	run(MIB(12), MIB(24), false);
}

static void with_records(void **state)
{
	run(MIB(12), MIB(24), true);
}

static void volatile_mode(void **state)
{
	run(MIB(32), 0, false);
}

struct mover {
	struct pool_fixture *fx;
	struct block_id id;
	atomic_bool stop;
	u64 wrong;
};

static void *move_often(void *arg)
{
	struct mover *m = arg;

	while (!atomic_load(&m->stop)) {
		m->wrong += pool_demote(m->fx->pool, &m->id, 1) != 0;
		m->wrong += pool_fixture_holds(m->fx, m->id, 5) != 1;
	}
	return NULL;
}

/* Transfers look at blocks without the lock, while there come to be more and more blocks. */
static void blocks_come_while_others_move(void **state)
{
	enum { NR = 5 * 4096 };
	static struct block_id ids[NR];
	struct pool_want want = {.bytes = 4096, .near = BLOCK_NONE};
	struct pool_fixture fx;
	struct mover m = {.fx = &fx};
	pthread_t thread;

	pool_fixture_open(&fx, MIB(4), MIB(96));
	assert_int_equal(pool_fixture_block(&fx, 40960, 0, 5, &m.id), 0);
	assert_int_equal(pthread_create(&thread, NULL, move_often, &m), 0);
	for (u32 i = 0; i < NR; i++)
		assert_int_equal(pool_alloc(fx.pool, &want, 1, &ids[i]), 0);
	atomic_store(&m.stop, true);
	pthread_join(thread, NULL);
	assert_int_equal(m.wrong, 0);
	pool_put(fx.pool, ids, NR);
	pool_put(fx.pool, &m.id, 1);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(with_two_tiers),
		cmocka_unit_test(nearly_full),
		cmocka_unit_test(with_records),
		cmocka_unit_test(volatile_mode),
		cmocka_unit_test(three_owners),
		cmocka_unit_test(three_owners_with_records),
		cmocka_unit_test(three_owners_volatile),
		cmocka_unit_test(blocks_come_while_others_move),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
