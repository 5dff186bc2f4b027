/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P2: what it costs to have a resident sequence in one contiguous range. Blocks of 2 MiB. Fresh: the
 * sequence was written into an empty tier. After churn: the tier was filled with sequences that grew
 * in turn, and every other one was removed and evicted, so that free memory lies in holes.
 */
#include <errno.h>
#include <math.h>
#include <string.h>
#include "tools/common/cli.h"
#include "tools/kvbench/engine.h"

#define BLOCK_BYTES   MIB(2)
#define TOKEN_BYTES   (u32)(BLOCK_BYTES / MOUNTS_BLOCK_TOKENS)
#define DEFAULT_BYTES GIB(1)
#define ROUNDS	      8
#define CHURN_SEQS    32u
#define PIECE_BLOCKS  8u /* a sequence grows by so many at a time */

enum { TIME, RUNS, NR_FIGURES };

static double per_gib(double value, u64 bytes)
{
	return value * (double)GIB(1) / (double)bytes;
}

static int measure(const struct bench *bench, struct kvc_seq *seq, struct figure figs[NR_FIGURES])
{
	struct kvc_view view = {.size = sizeof(view)};

	for (u32 i = 0; i < bench->runs * ROUNDS; i++) {
		u64 start = clock_mono_ns();
		int err = kvc_seq_map(seq, &view);
		double ms = seconds_since(start) * 1e3;

		if (err) {
			cli_error("map: %s", strerror(-err));
			return err;
		}
		figure_add(&figs[TIME], per_gib(ms, view.bytes), NAN);
		figure_add(&figs[RUNS], per_gib(view.nr_runs, view.bytes), NAN);
		kvc_view_unmap(&view);
	}
	return 0;
}

static int write_one(struct engine *e, const char *name, u64 bytes, struct kvc_seq **seq)
{
	u32 tokens = (u32)(bytes / TOKEN_BYTES);
	int err = engine_seq(e, name, 0, seq);

	return err ? err : engine_grow(*seq, 1, tokens, PIECE_BLOCKS * MOUNTS_BLOCK_TOKENS);
}

/* Fill @bytes with sequences that grow in turn, by one to PIECE_BLOCKS blocks; then remove every other. */
static int churn(struct engine *e, u64 bytes)
{
	struct kvc_seq *seqs[CHURN_SEQS] = {0};
	u64 rng = 7;
	int err = 0;

	for (u32 i = 0; i < CHURN_SEQS && !err; i++)
		err = engine_seq(e, "c", i, &seqs[i]);
	while (!err && bytes >= PIECE_BLOCKS * BLOCK_BYTES) {
		u32 blocks;

		rng = rng * 6364136223846793005ull + 1442695040888963407ull;
		blocks = (u32)(rng >> 40) % PIECE_BLOCKS + 1;
		err = engine_grow(seqs[(rng >> 33) % CHURN_SEQS], (u32)(rng >> 33) % CHURN_SEQS + 2,
				  blocks * MOUNTS_BLOCK_TOKENS, blocks * MOUNTS_BLOCK_TOKENS);
		bytes -= blocks * BLOCK_BYTES;
	}
	for (u32 i = 0; i < CHURN_SEQS; i++)
		kvc_seq_close(seqs[i]);
	for (u32 i = 0; i < CHURN_SEQS && !err; i += 2)
		err = engine_remove(e, "c", i);
	return err;
}

static int run(const struct bench *bench, u64 bytes, bool churned, struct figure figs[NR_FIGURES])
{
	struct engine e;
	struct kvc_seq *seq = NULL;
	u64 dram = 3 * bytes + MIB(256);
	int err = engine_open(&e, bench, dram, TOKEN_BYTES);

	if (!err && churned)
		err = churn(&e, dram / 10 * 6);
	if (!err)
		err = write_one(&e, "m", bytes, &seq);
	if (!err)
		err = measure(bench, seq, figs);
	kvc_seq_close(seq);
	engine_close(&e);
	return err;
}

int bench_map(const struct bench *bench)
{
	static const struct figure_spec specs[2][NR_FIGURES] = {
		{{"P2", "map_fresh", "ms/GiB", NULL, BETTER_LOW, 2, 0},
		 {"P2", "map_fresh_runs", "mmaps/GiB", NULL, BETTER_LOW, 0, 0}},
		{{"P2", "map_churned", "ms/GiB", NULL, BETTER_LOW, 6, 0},
		 {"P2", "map_churned_runs", "mmaps/GiB", NULL, BETTER_LOW, 0, 0}}};
	u64 bytes = round_up_pow2(bench->size_bytes ? bench->size_bytes : DEFAULT_BYTES, BLOCK_BYTES);
	int err = 0;

	for (int churned = 0; churned < 2 && !err; churned++) {
		struct figure figs[NR_FIGURES];
		unsigned int mark = cleanup_mark();

		for (int f = 0; f < NR_FIGURES; f++)
			figure_init(&figs[f], &specs[churned][f]);
		err = run(bench, bytes, churned, figs);
		cleanup_to(mark);
		for (int f = 0; f < NR_FIGURES; f++) {
			if (err)
				figure_why(&figs[f], "%s", strerror(-err));
			report_figure(bench->report, &figs[f]);
		}
	}
	return err;
}
