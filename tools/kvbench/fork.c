/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P7: what a fork of a sequence of 128 K tokens costs: through the library, in us per 1000 blocks,
 * and by `cp` of its KV file on a mount, the process's start included. The peer of cp is cp of as
 * many bytes on the filesystem that the scratch directory is on.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "allocator/base/textbuf.h"
#include "allocator/sequence.h"
#include "tiers/tier.h"
#include "tools/common/cli.h"
#include "tools/kvbench/kvbench.h"

#define TOKENS	      131072u
#define BLOCK_TOKENS  64u
#define BLOCKS	      (TOKENS / BLOCK_TOKENS)
#define TOKEN_BYTES   64u /* by the library: bytes play no part in it */
#define DEFAULT_BYTES GIB(1) /* of the file that cp copies */
#define SPACE	      1
#define SEQ_ID(n)     (1ull << 63 | (n))

struct forker {
	struct geometry geo;
	struct tier *dram;
	struct pool *pool;
	u32 root;
	struct sequence *src;
	u64 nr_seqs;
};

static int new_sequence(struct forker *f, struct sequence **seq)
{
	int err = seq_create(seq, f->pool, SEQ_ID(f->nr_seqs++), SPACE, &f->geo);

	if (!err)
		(*seq)->root = f->root;
	return err;
}

/* Ids, bytes, committed: all blocks sealed and indexed. */
static int fill_source(struct forker *f)
{
	u64 bytes = (u64)TOKENS * TOKEN_BYTES;
	u32 *ids = kvc_alloc_array(TOKENS, sizeof(*ids));
	u8 *kv = malloc(bytes);
	int err = ids && kv ? new_sequence(f, &f->src) : -ENOMEM;

	if (!err) {
		fill_random(kv, bytes, 5);
		for (u32 i = 0; i < TOKENS; i++)
			ids[i] = i % 50000;
		err = seq_write_ids(f->src, ids, TOKENS * sizeof(*ids), 0);
	}
	if (!err)
		err = seq_close_ids(f->src);
	if (!err)
		err = seq_write(f->src, kv, bytes, 0);
	if (!err)
		err = seq_commit(f->src);
	free(ids);
	free(kv);
	return err;
}

static int forker_open(struct forker *f)
{
	static const char text[] = "layers=1 token_bytes=64 block_tokens=64 layout=opaque\n";
	struct tier_opts topts = {.size_bytes = MIB(256), .dirfd = -1, .numa_node = -1};
	struct pool_opts popts = {.high_pct = 90, .low_pct = 85};
	struct textbuf why = TEXTBUF_INIT;
	bool complete;
	int err = geometry_parse(text, strlen(text), &f->geo, &complete, &why);

	if (!err)
		err = tier_open(&f->dram, &tier_null_ops, "dram", &topts, &why);
	textbuf_free(&why);
	popts.dram = f->dram;
	if (!err)
		err = pool_create(&f->pool, &popts);
	if (!err)
		err = pool_root(f->pool, SPACE, NULL, 0, &f->root);
	return err ? err : fill_source(f);
}

static void forker_close(struct forker *f)
{
	seq_destroy(f->src);
	if (f->pool)
		pool_destroy(f->pool);
	tier_close(f->dram);
}

/* Return: us per 1000 blocks, or negative errno. */
static double fork_once(struct forker *f)
{
	struct sequence *dst;
	int err = new_sequence(f, &dst);
	double us;
	u64 start;

	if (err)
		return err;
	start = clock_mono_ns();
	err = seq_fork(f->src, dst, SEQ_NO_TOKENS);
	us = seconds_since(start) * 1e6 * 1000 / BLOCKS;
	if (!err && dst->T != TOKENS)
		err = -EIO;
	seq_destroy(dst);
	return err ? err : us;
}

static int bench_library(const struct bench *bench)
{
	static const struct figure_spec spec = {
		"P7", "fork_library", "us/1000blocks", NULL, BETTER_LOW, 100, 0};
	struct forker f = {0};
	struct figure fig;
	double us = forker_open(&f);

	figure_init(&fig, &spec);
	for (u32 i = 0; i < bench->runs && us >= 0; i++) {
		us = fork_once(&f);
		if (us >= 0)
			figure_add(&fig, us, NAN);
	}
	forker_close(&f);
	report_figure(bench->report, &fig);
	return us < 0 ? (int)us : 0;
}

/* ---- cp ---- */

/* Return: ms, or negative errno. */
static double cp_once(const char *from, const char *to)
{
	char *argv[] = {"cp", (char *)from, (char *)to, NULL};
	u64 start = clock_mono_ns();
	pid_t pid = spawn(argv, -1);
	int err = pid < 0 ? pid : spawn_wait(pid);
	double ms = seconds_since(start) * 1e3;
	struct stat a, b;

	if (!err && (stat(from, &a) || stat(to, &b) || a.st_size != b.st_size))
		err = -EIO;
	return err ? err : ms;
}

static int run_cp(const struct mounts *m, struct figure *fig)
{
	char from[PATH_MAX + 64], dir[PATH_MAX + 64], to[PATH_MAX + 80];
	char other[PATH_MAX + 32], other_to[PATH_MAX + 32];
	double ours, theirs;

	snprintf(from, sizeof(from), "%s/a/kv", m->ns);
	snprintf(dir, sizeof(dir), "%s/b", m->ns);
	snprintf(to, sizeof(to), "%s/kv", dir);
	snprintf(other, sizeof(other), "%s/a", m->other);
	snprintf(other_to, sizeof(other_to), "%s/b", m->other);
	if (mkdir(dir, 0700))
		return -errno;
	ours = cp_once(from, to);
	theirs = cp_once(other, other_to);
	if (unlink(to) || rmdir(dir) || unlink(other_to))
		return -errno;
	if (ours < 0 || theirs < 0)
		return -EIO;
	figure_add(fig, ours, theirs);
	return 0;
}

static int prepare_cp(const struct mounts *m, u64 bytes)
{
	char path[PATH_MAX + 64];

	snprintf(path, sizeof(path), "%s/a", m->ns);
	if (mkdir(path, 0700))
		return -errno;
	snprintf(path, sizeof(path), "%s/a/kv", m->ns);
	if (file_write(path, bytes) < 0)
		return -EIO;
	snprintf(path, sizeof(path), "%s/a", m->other);
	return file_write(path, bytes) < 0 ? -EIO : 0;
}

static int bench_cp(const struct bench *bench)
{
	static const struct figure_spec spec = {"P7", "fork_cp", "ms", "cp_disk_fs", BETTER_LOW, 10, 0};
	u64 bytes = bench->size_bytes ? bench->size_bytes : DEFAULT_BYTES;
	u32 token_bytes = (u32)max(bytes / TOKENS, (u64)64);
	unsigned int mark = cleanup_mark();
	struct mounts m;
	struct figure fig;
	int err;

	bytes = (u64)token_bytes * TOKENS;
	figure_init(&fig, &spec);
	err = mounts_make(&m, bench, 2 * bytes + MIB(256), 0, token_bytes);
	if (!err)
		err = prepare_cp(&m, bytes);
	for (u32 i = 0; i < bench->runs && !err; i++)
		err = run_cp(&m, &fig);
	cleanup_to(mark);
	if (err)
		figure_why(&fig, "%s", strerror(-err));
	report_figure(bench->report, &fig);
	return err;
}

int bench_fork(const struct bench *bench)
{
	int err = bench_library(bench), err2 = bench_cp(bench);

	return err ? err : err2;
}
