/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P5: how long it takes to find the longest cached prefix of a prompt of 128 K tokens.
 *
 * The index holds many other chains, grown in turn so that neighbours in a chain are not neighbours
 * in memory. Every block is sealed and cached, as after use; nothing names it. Before each
 * measurement the CPU's caches are emptied by a walk, for both sides.
 *
 * The peer does what serving engines do: SHA-256 of each block of 16 tokens, chained (the parent's
 * digest and the ids), one EVP context used again and again, and a hash table of digests that holds
 * as many tokens as ours. It trusts the digest where ours compares the ids.
 */
#include <errno.h>
#include <math.h>
#include <string.h>
#include "allocator/base/textbuf.h"
#include "allocator/pool.h"
#include "tiers/tier.h"
#include "tools/common/cli.h"
#include "tools/kvbench/kvbench.h"
#include "tools/kvbench/shawalk.h"

#define PROMPT_TOKENS  131072
#define BLOCK_TOKENS   64
#define CHAIN_BLOCKS   (PROMPT_TOKENS / BLOCK_TOKENS)
#define BLOCK_BYTES    4096u
#define DEFAULT_BLOCKS 200000
#define SPACE	       1

struct lookup {
	struct tier *dram;
	struct pool *pool;
	u32 root;
	u32 nr_chains;		/* the last one is looked up */
	u32 *prompt;		/* its ids, PROMPT_TOKENS */
	struct block_id *last;	/* of each chain */
	struct block_id *level; /* the blocks being added, one a chain */
	struct shawalk *sha;	/* NULL: this build has no OpenSSL */
};

/* Ids of a chain's block. */
static void make_ids(u32 chain, u32 block, u32 *ids)
{
	u64 x = ((u64)chain << 32 | block) * 0x9e3779b97f4a7c15ull + 1;

	for (u32 i = 0; i < BLOCK_TOKENS; i++) {
		x = x * 6364136223846793005ull + 1442695040888963407ull;
		ids[i] = (u32)(x >> 40) % 128000;
	}
}

/* Blocks with bytes in them, sealed. */
static int make_blocks(struct lookup *l)
{
	struct pool_want want = {.bytes = BLOCK_BYTES, .space = SPACE, .near = BLOCK_NONE};
	int err = pool_alloc(l->pool, &want, l->nr_chains, l->level);
	void *addr;

	if (err)
		return err;
	for (u32 c = 0; c < l->nr_chains && !err; c++) {
		err = pool_begin_write(l->pool, l->level[c], true, &addr);
		if (err)
			break;
		memset(addr, (int)c, BLOCK_BYTES);
		pool_end_write(l->pool, l->level[c]);
	}
	if (!err)
		err = pool_seal(l->pool, l->level, l->nr_chains);
	return err;
}

/* Make every chain one block longer. */
static int grow_chains(struct lookup *l, u32 block)
{
	u32 ids[BLOCK_TOKENS];
	struct prefix_key key = {l->root, BLOCK_TOKENS, ids, BLOCK_TOKENS};
	struct block_id found;
	int err = make_blocks(l);

	for (u32 c = 0; c < l->nr_chains && !err; c++) {
		struct block_id parent = block ? l->last[c] : BLOCK_NONE;

		make_ids(c, block, ids);
		err = prefix_insert(l->pool, &key, parent, l->level[c], &found);
		if (!err && l->sha)
			err = shawalk_grow(l->sha, c, ids, BLOCK_TOKENS);
		l->last[c] = l->level[c];
	}
	pool_put(l->pool, l->level, l->nr_chains);
	return err;
}

static int fill(struct lookup *l)
{
	int err = 0;

	for (u32 b = 0; b < CHAIN_BLOCKS && !err; b++)
		err = grow_chains(l, b);
	for (u32 b = 0; b < CHAIN_BLOCKS; b++)
		make_ids(l->nr_chains - 1, b, l->prompt + b * BLOCK_TOKENS);
	return err;
}

static int lookup_open(struct lookup *l, u64 nr_blocks)
{
	u64 bytes = round_up_pow2(2 * nr_blocks * BLOCK_BYTES, KVC_HUGE_SIZE) + MIB(64);
	struct tier_opts topts = {.size_bytes = bytes, .dirfd = -1, .numa_node = -1};
	struct pool_opts popts = {.high_pct = 90, .low_pct = 85};
	struct textbuf why = TEXTBUF_INIT;
	int err;

	l->nr_chains = (u32)div_round_up(nr_blocks, CHAIN_BLOCKS) + 1;
	l->prompt = kvc_alloc_array(PROMPT_TOKENS, sizeof(*l->prompt));
	l->last = kvc_alloc_array(l->nr_chains, sizeof(*l->last));
	l->level = kvc_alloc_array(l->nr_chains, sizeof(*l->level));
	if (!l->prompt || !l->last || !l->level)
		return -ENOMEM;
	err = shawalk_open(&l->sha, l->nr_chains, (u64)l->nr_chains * PROMPT_TOKENS);
	if (err && err != -EOPNOTSUPP)
		return err;
	err = tier_open(&l->dram, &tier_null_ops, "dram", &topts, &why);
	textbuf_free(&why);
	popts.dram = l->dram;
	if (!err)
		err = pool_create(&l->pool, &popts);
	if (!err)
		err = pool_root(l->pool, SPACE, NULL, 0, &l->root);
	return err ? err : fill(l);
}

static void lookup_close(struct lookup *l)
{
	if (l->pool)
		pool_destroy(l->pool);
	tier_close(l->dram);
	shawalk_close(l->sha);
	free(l->prompt);
	free(l->last);
	free(l->level);
}

/* Return: ms, or a negative errno when not all was found. */
static double match(struct lookup *l, struct block_id *out, bool take)
{
	struct prefix_key key = {l->root, BLOCK_TOKENS, l->prompt, PROMPT_TOKENS};
	unsigned int nr;
	double ms;
	u64 start;

	if (evict_caches())
		return -ENOMEM;
	start = clock_mono_ns();
	nr = prefix_match(l->pool, &key, out, take);
	ms = seconds_since(start) * 1e3;
	if (take)
		pool_put(l->pool, out, nr);
	return nr == CHAIN_BLOCKS ? ms : -ENODATA;
}

static double match_sha(struct lookup *l)
{
	u64 start;
	u32 nr;

	if (evict_caches())
		return -ENOMEM;
	start = clock_mono_ns();
	nr = shawalk_match(l->sha, l->prompt, PROMPT_TOKENS);
	return nr == PROMPT_TOKENS ? seconds_since(start) * 1e3 : -ENODATA;
}

static int measure(const struct bench *bench, struct lookup *l, const struct figure_spec *spec,
		   bool take)
{
	struct block_id *out = kvc_alloc_array(CHAIN_BLOCKS, sizeof(*out));
	struct figure fig;
	double ours = out ? 0 : -ENOMEM, theirs = NAN;

	figure_init(&fig, spec);
	if (!l->sha)
		figure_why(&fig, "built without OpenSSL");
	for (u32 i = 0; i < bench->runs && ours >= 0; i++) {
		ours = match(l, out, take);
		if (l->sha)
			theirs = match_sha(l);
		if (theirs < 0)
			ours = theirs;
		if (ours >= 0)
			figure_add(&fig, ours, theirs);
	}
	free(out);
	report_figure(bench->report, &fig);
	return ours < 0 ? (int)ours : 0;
}

int bench_lookup(const struct bench *bench)
{
	static const struct figure_spec specs[] = {
		{"P5", "match_128k", "ms", "sha256_walk", BETTER_LOW, 1, 3},
		{"P5", "match_attach_128k", "ms", "sha256_walk", BETTER_LOW, 0, 0},
	};
	struct lookup l = {0};
	int err = lookup_open(&l, bench->size_bytes ? bench->size_bytes / BLOCK_BYTES
						    : DEFAULT_BLOCKS);

	for (u32 i = 0; i < ARRAY_SIZE(specs); i++) {
		if (err)
			report_missing(bench->report, &specs[i], strerror(-err));
		else
			err = measure(bench, &l, &specs[i], i == 1);
	}
	lookup_close(&l);
	return err;
}
