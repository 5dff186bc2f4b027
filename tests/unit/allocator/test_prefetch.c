/* SPDX-License-Identifier: Apache-2.0 */
/* Prefetch with a deadline: who goes first, who gives way, and how a load ends. */
#include <errno.h>
#include <pthread.h>
#include "allocator/base/clock.h"
#include "allocator/pool_types.h"
#include "lib/pool_fixture.h"
#include "lib/test.h"
#include "lib/tier_flaky.h"

#define BYTES 4096u
#define BATCH 512u /* blocks of one */
#define NR    (3 * BATCH)
#define FAR   (3600 * NSEC_PER_SEC)

static struct pool_fixture fx;
static struct block_id ids[NR];

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;

/** struct waited - a load, and what it said. Static everywhere: it may outlive a test that fails. */
struct waited {
	struct pool_load load;
	bool done;
	int err;
};

static void load_done(struct pool_load *load, int err)
{
	struct waited *w = container_of(load, struct waited, load);

	pthread_mutex_lock(&mutex);
	assert_false(w->done);
	w->done = true;
	w->err = err;
	pthread_cond_broadcast(&ended);
	pthread_mutex_unlock(&mutex);
}

static bool is_done(struct waited *w)
{
	bool done;

	pthread_mutex_lock(&mutex);
	done = w->done;
	pthread_mutex_unlock(&mutex);
	return done;
}

static int wait_done(struct waited *w)
{
	pthread_mutex_lock(&mutex);
	while (!w->done)
		pthread_cond_wait(&ended, &mutex);
	pthread_mutex_unlock(&mutex);
	pool_load_cancel(fx.pool, &w->load); /* the pool has let go of it */
	return w->err;
}

static void begin(struct waited *w, u32 first, u32 nr, u64 deadline_ns)
{
	*w = (struct waited){.load = {.deadline_ns = deadline_ns, .done = load_done}};
	assert_int_equal(pool_load_begin(fx.pool, &w->load, ids + first, nr), 0);
}

static u32 resident(u32 first, u32 nr)
{
	struct pool_residency res;

	pool_residency(fx.pool, ids + first, nr, &res);
	return res.dram;
}

static u64 reads(void)
{
	return tier_flaky_seen(fx.flaky, TIER_READ);
}

static void hold_reads(bool hold)
{
	tier_flaky_hold(fx.flaky, TIER_READ, hold);
	if (!hold)
		tier_flaky_release(fx.flaky, UINT32_MAX);
}

static int setup(void **state)
{
	pool_fixture_open(&fx, MIB(64), MIB(64));
	for (u32 i = 0; i < NR; i++)
		assert_int_equal(pool_fixture_block(&fx, BYTES, 1, i, &ids[i]), 0);
	assert_int_equal(pool_seal(fx.pool, ids, NR), 0);
	assert_int_equal(pool_demote(fx.pool, ids, NR), 0);
	assert_int_equal(resident(0, NR), 0);
	return 0;
}

static int teardown(void **state)
{
	hold_reads(false);
	for (u32 i = 0; i < NR; i++)
		assert_int_equal(pool_fixture_holds(&fx, ids[i], i), 1);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
	return 0;
}

/* Both loader threads are busy with the first blocks, until reads are let go. */
static void occupy(struct waited busy[LOADERS])
{
	hold_reads(true);
	for (u32 i = 0; i < LOADERS; i++) {
		begin(&busy[i], i, 1, clock_mono_ns());
		tier_flaky_wait_held(fx.flaky, i + 1);
	}
}

static void comes_once(void **state)
{
	static struct waited w;

	begin(&w, 0, NR, 0);
	assert_int_equal(wait_done(&w), 0);
	assert_int_equal(resident(0, NR), NR);
	assert_int_equal(reads(), NR);
	begin(&w, 0, NR, 0);
	assert_true(is_done(&w)); /* nothing to do: at once */
	assert_int_equal(wait_done(&w), 0);
	assert_int_equal(reads(), NR);
}

/* What was asked for later but is wanted earlier is read as soon as a loader has a hand free. */
static void earlier_deadlines_go_first(void **state)
{
	static struct waited busy[LOADERS], none, late, early;
	u64 now = clock_mono_ns();

	occupy(busy);
	begin(&none, 2 * BATCH + 8, 8, 0);
	begin(&late, 8, 2 * BATCH, now + 2 * FAR);
	begin(&early, 2 * BATCH + 16, 8, now + FAR);
	tier_flaky_release(fx.flaky, LOADERS);
	tier_flaky_wait_held(fx.flaky, 8 + BATCH);
	assert_int_equal(reads(), LOADERS + 8 + BATCH);
	tier_flaky_release(fx.flaky, 8 + BATCH);
	assert_int_equal(wait_done(&early), 0);
	assert_false(is_done(&late));
	assert_false(is_done(&none));
	hold_reads(false);
	assert_int_equal(wait_done(&late), 0);
	assert_int_equal(wait_done(&none), 0);
	for (u32 i = 0; i < LOADERS; i++)
		assert_int_equal(wait_done(&busy[i]), 0);
	assert_int_equal(reads(), LOADERS + 2 * BATCH + 16);
}

static void *read_first(void *arg)
{
	const void *addr;

	assert_int_equal(pool_pin(fx.pool, ids[0], &addr), 0);
	pool_unpin(fx.pool, ids, 1);
	return NULL;
}

/* While a reader waits only hints and what is late go on. */
static void gives_way_to_readers(void **state)
{
	static struct waited early, late;
	pthread_t reader;

	hold_reads(true);
	assert_int_equal(pthread_create(&reader, NULL, read_first, NULL), 0);
	tier_flaky_wait_held(fx.flaky, 1);
	begin(&early, 8, 8, clock_mono_ns() + FAR);
	for (u32 i = 0; i < LOADERS; i++) {
		pool_prefetch(fx.pool, ids + 100 + i, 1);
		tier_flaky_wait_held(fx.flaky, 2 + i);
	}
	assert_int_equal(reads(), 1 + LOADERS);
	hold_reads(false);
	assert_int_equal(pthread_join(reader, NULL), 0);
	assert_int_equal(wait_done(&early), 0);

	assert_int_equal(pool_demote(fx.pool, ids, NR), 0);
	hold_reads(true);
	assert_int_equal(pthread_create(&reader, NULL, read_first, NULL), 0);
	tier_flaky_wait_held(fx.flaky, 1);
	begin(&late, 8, 8, clock_mono_ns());
	tier_flaky_wait_held(fx.flaky, 1 + 8);
	hold_reads(false);
	assert_int_equal(pthread_join(reader, NULL), 0);
	assert_int_equal(wait_done(&late), 0);
}

/* Nor does it read again what a reader is reading. */
static void waits_for_what_others_move(void **state)
{
	static struct waited w, next;
	u64 now = clock_mono_ns();
	pthread_t reader;

	hold_reads(true);
	assert_int_equal(pthread_create(&reader, NULL, read_first, NULL), 0);
	tier_flaky_wait_held(fx.flaky, 1);
	begin(&w, 0, 1, now);
	begin(&next, 1, 1, now + 1); /* whose turn comes after the other's */
	tier_flaky_wait_held(fx.flaky, 2);
	assert_false(is_done(&w));
	hold_reads(false);
	assert_int_equal(pthread_join(reader, NULL), 0);
	assert_int_equal(wait_done(&w), 0);
	assert_int_equal(wait_done(&next), 0);
	assert_int_equal(resident(0, 2), 2);
	assert_int_equal(reads(), 2);
}

static void tells_what_cannot_be_read(void **state)
{
	static struct waited w;

	tier_flaky_fail(fx.flaky, TIER_READ, 7, -EIO);
	begin(&w, 0, 16, 0);
	assert_int_equal(wait_done(&w), -EIO);
	assert_int_equal(resident(0, 16), 15);
	begin(&w, 0, 16, 0);
	assert_int_equal(wait_done(&w), 0);
	assert_int_equal(resident(0, 16), 16);
}

static void can_be_cancelled(void **state)
{
	static struct waited busy[LOADERS], w;

	occupy(busy);
	begin(&w, 8, BATCH, 0);
	assert_false(is_done(&w));
	pool_load_cancel(fx.pool, &w.load);
	assert_true(is_done(&w));
	assert_int_equal(w.err, -ECANCELED);
	hold_reads(false);
	for (u32 i = 0; i < LOADERS; i++)
		assert_int_equal(wait_done(&busy[i]), 0);
	assert_int_equal(reads(), LOADERS);
}

/* What is on its way is waited for: nobody writes to memory of which nobody knows. */
static void cancelling_waits_for_reads_under_way(void **state)
{
	static struct waited w;
	u32 next;

	hold_reads(true);
	begin(&w, 0, NR, 0);
	tier_flaky_wait_held(fx.flaky, BATCH);
	hold_reads(false);
	pool_load_cancel(fx.pool, &w.load);
	assert_true(is_done(&w));
	next = resident(0, NR);
	assert_true(next >= BATCH && next % BATCH == 0);
	assert_int_equal(reads(), next);
}

static void too_many_are_refused(void **state)
{
	struct block_id *many = calloc(LOAD_BLOCKS_MAX + 1, sizeof(*many));
	struct waited w = {.load = {.done = load_done}};

	assert_non_null(many);
	for (u32 i = 0; i <= LOAD_BLOCKS_MAX; i++)
		many[i] = BLOCK_NONE;
	assert_int_equal(pool_load_begin(fx.pool, &w.load, many, LOAD_BLOCKS_MAX + 1), -EAGAIN);
	assert_false(is_done(&w));
	assert_int_equal(pool_load_begin(fx.pool, &w.load, many, LOAD_BLOCKS_MAX), 0);
	assert_int_equal(wait_done(&w), 0);
	free(many);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(comes_once),
		T(earlier_deadlines_go_first),
		T(gives_way_to_readers),
		T(waits_for_what_others_move),
		T(tells_what_cannot_be_read),
		T(can_be_cancelled),
		T(cancelling_waits_for_reads_under_way),
		T(too_many_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
