/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P6: what it costs to take and give back the room of a block.
 *
 * Three patterns, each against malloc() and free() of jemalloc for the same size:
 *   pair    take, give back, take, give back: the cheapest case of both sides
 *   burst   256 are taken, then given back in a scattered order, as a sequence comes and goes: more
 *           than any cache per thread holds. For information
 *   pool    pool_alloc() and pool_put() of one block: a descriptor, a name and the reservation, under
 *           the pool's lock. For information; nothing like it in jemalloc
 * Neither side touches the memory. Figures of two threads are ns per pair as each thread sees it.
 */
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "allocator/base/textbuf.h"
#include "allocator/extent.h"
#include "allocator/pool.h"
#include "tiers/tier.h"
#include "tools/common/cli.h"
#include "tools/kvbench/kvbench.h"

#define SPACE_BYTES  GIB(4)
#define PAIRS	     51200
#define NR_HELD	     256 /* a power of two; divides PAIRS */
#define MAX_THREADS  2
#define ROUNDS	     5 /* short runs, and more of them: a neighbour disturbs few of them */
#define JEMALLOC     "libjemalloc.so.2"
#define TUNABLES     "GLIBC_TUNABLES"
#define STATIC_TLS   "glibc.rtld.optional_static_tls=16384"

struct jemalloc {
	void *(*malloc)(size_t bytes);
	void (*free)(void *p);
	char why[120];
};

/* One side of a figure: what a thread does, for one size. */
struct work {
	void (*run)(const struct work *work);
	struct extents *ex;
	const struct jemalloc *je;
	struct pool *pool;
	u32 bytes;
};

struct worker {
	const struct work *work;
	pthread_barrier_t *start;
	double ns; /* per pair */
};

void alloc_prepare(char **argv)
{
	const char *old = getenv(TUNABLES);
	struct textbuf tb = TEXTBUF_INIT;

	if (old && strstr(old, "optional_static_tls"))
		return;
	/* jemalloc wants static TLS, of which a program that loads it late has too little left. */
	textbuf_printf(&tb, "%s%s%s", old ? old : "", old ? ":" : "", STATIC_TLS);
	if (!tb.err && !setenv(TUNABLES, tb.text, 1))
		execv("/proc/self/exe", argv);
	textbuf_free(&tb);
}

static void jemalloc_load(struct jemalloc *je)
{
	void *lib = dlopen(JEMALLOC, RTLD_NOW | RTLD_LOCAL);
	const char *error = lib ? NULL : dlerror();

	if (lib) {
		*(void **)&je->malloc = dlsym(lib, "malloc");
		*(void **)&je->free = dlsym(lib, "free");
	}
	if (!je->malloc || !je->free)
		snprintf(je->why, sizeof(je->why), "%s", error ? error : JEMALLOC " lacks malloc");
}

/* ---- patterns ---- */

static void extent_pairs(const struct work *w)
{
	u64 off;

	for (u32 i = 0; i < PAIRS; i++) {
		if (extents_alloc(w->ex, w->bytes, EXTENT_NONE, i, &off))
			abort();
		extents_free(w->ex, off, w->bytes);
	}
}

static void jemalloc_pairs(const struct work *w)
{
	for (u32 i = 0; i < PAIRS; i++) {
		void *volatile p = w->je->malloc(w->bytes);

		w->je->free(p);
	}
}

static void pool_pairs(const struct work *w)
{
	struct pool_want want = {.bytes = w->bytes, .space = 1, .near = BLOCK_NONE};
	struct block_id id;

	for (u32 i = 0; i < PAIRS; i++) {
		if (pool_alloc(w->pool, &want, 1, &id))
			abort();
		pool_put(w->pool, &id, 1);
	}
}

/* Where to give back next: all of [0, NR_HELD), in a scattered order. */
static u32 scattered(u32 i)
{
	return i * 167 & (NR_HELD - 1);
}

static void extent_bursts(const struct work *w)
{
	static __thread u64 held[NR_HELD];

	for (u32 n = 0; n < PAIRS; n += NR_HELD) {
		for (u32 i = 0; i < NR_HELD; i++)
			if (extents_alloc(w->ex, w->bytes, EXTENT_NONE, i, &held[i]))
				abort();
		for (u32 i = 0; i < NR_HELD; i++)
			extents_free(w->ex, held[scattered(i)], w->bytes);
	}
}

static void jemalloc_bursts(const struct work *w)
{
	static __thread void *held[NR_HELD];

	for (u32 n = 0; n < PAIRS; n += NR_HELD) {
		for (u32 i = 0; i < NR_HELD; i++)
			held[i] = w->je->malloc(w->bytes);
		for (u32 i = 0; i < NR_HELD; i++)
			w->je->free(held[scattered(i)]);
	}
}

/* ---- threads ---- */

static void *work_thread(void *arg)
{
	struct worker *worker = arg;
	u64 start;

	pthread_barrier_wait(worker->start);
	start = clock_mono_ns();
	worker->work->run(worker->work);
	worker->ns = seconds_since(start) * 1e9 / PAIRS;
	return NULL;
}

/* Run @work in @nr threads at once. Return: ns per pair, their mean; NAN when no thread could start. */
static double run_threads(const struct work *work, u32 nr)
{
	struct worker workers[MAX_THREADS];
	pthread_t threads[MAX_THREADS];
	pthread_barrier_t start;
	double sum = 0;
	u32 n;

	if (pthread_barrier_init(&start, NULL, nr))
		return NAN;
	for (n = 0; n < nr; n++)
		workers[n] = (struct worker){.work = work, .start = &start};
	for (n = 1; n < nr; n++)
		if (pthread_create(&threads[n], NULL, work_thread, &workers[n]))
			abort(); /* the others would wait at the barrier for ever */
	work_thread(&workers[0]);
	for (n = 1; n < nr; n++)
		pthread_join(threads[n], NULL);
	pthread_barrier_destroy(&start);
	for (n = 0; n < nr; n++)
		sum += workers[n].ns;
	return sum / nr;
}

static void measure(const struct bench *bench, const struct figure_spec *spec,
		    const struct work *ours, const struct work *theirs, u32 nr_threads)
{
	const struct jemalloc *je = theirs ? theirs->je : NULL;
	struct figure fig;

	figure_init(&fig, spec);
	if (je && !je->malloc)
		figure_why(&fig, "%s", je->why);
	for (u32 i = 0; i < ROUNDS; i++)
		run_threads(ours, nr_threads); /* warm */
	for (u32 i = 0; i < bench->runs * ROUNDS; i++) {
		double a = run_threads(ours, nr_threads);

		figure_add(&fig, a, je && je->malloc ? run_threads(theirs, nr_threads) : NAN);
	}
	report_figure(bench->report, &fig);
}

static void measure_size(const struct bench *bench, struct extents *ex, const struct jemalloc *je,
			 u32 bytes)
{
	for (u32 threads = 1; threads <= MAX_THREADS; threads++) {
		struct work ours = {.run = extent_pairs, .ex = ex, .bytes = bytes};
		struct work theirs = {.run = jemalloc_pairs, .je = je, .bytes = bytes};
		char name[32];
		struct figure_spec spec = {"P6", name, "ns", "jemalloc", BETTER_LOW, 60, 1};

		snprintf(name, sizeof(name), "extent_pair_%uk_%ut", bytes >> 10, threads);
		measure(bench, &spec, &ours, &theirs, threads);
		spec.goal = spec.goal_ratio = 0;
		ours.run = extent_bursts;
		theirs.run = jemalloc_bursts;
		snprintf(name, sizeof(name), "extent_burst_%uk_%ut", bytes >> 10, threads);
		measure(bench, &spec, &ours, &theirs, threads);
	}
}

static int measure_pool(const struct bench *bench)
{
	static const struct figure_spec specs[MAX_THREADS] = {
		{"P6", "pool_alloc_put_64k_1t", "ns", NULL, BETTER_LOW, 0, 0},
		{"P6", "pool_alloc_put_64k_2t", "ns", NULL, BETTER_LOW, 0, 0},
	};
	struct tier_opts topts = {.size_bytes = SPACE_BYTES, .dirfd = -1, .numa_node = -1};
	struct pool_opts popts = {.high_pct = 90, .low_pct = 85};
	struct work work = {.run = pool_pairs, .bytes = (u32)KIB(64)};
	struct textbuf why = TEXTBUF_INIT;
	int err = tier_open(&popts.dram, &tier_null_ops, "dram", &topts, &why);

	textbuf_free(&why);
	if (err)
		return err;
	err = pool_create(&work.pool, &popts);
	if (!err) {
		for (u32 t = 0; t < MAX_THREADS; t++)
			measure(bench, &specs[t], &work, NULL, t + 1);
		pool_destroy(work.pool);
	}
	tier_close(popts.dram);
	return err;
}

int bench_alloc(const struct bench *bench)
{
	struct jemalloc je = {0};
	struct extents *ex;
	int err = extents_create(&ex, SPACE_BYTES);

	if (err)
		return err;
	jemalloc_load(&je);
	measure_size(bench, ex, &je, (u32)KIB(40));
	measure_size(bench, ex, &je, (u32)KIB(64));
	extents_destroy(ex);
	return measure_pool(bench);
}
