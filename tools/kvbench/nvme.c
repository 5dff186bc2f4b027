/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P3: how fast one sequence leaves DRAM for the disk and comes back.
 *
 * Through the pool, as a mount does it: blocks of 4 MiB are sealed, demoted (checked, written,
 * dropped), and restored (prefetched and pinned in order, each read's checksum compared). The peers
 * move as many bytes on the same filesystem: one thread of 32 MiB O_DIRECT transfers, and fio with
 * 1 MiB requests, 16 at once. All files are preallocated and used again in every run; what is read
 * was just written. The peer of a figure is the one whose median is faster.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "allocator/base/textbuf.h"
#include "allocator/pool.h"
#include "tiers/tier.h"
#include "tools/common/cli.h"
#include "tools/kvbench/kvbench.h"

#define BLOCK_BYTES   ((u32)MIB(4))
#define DEFAULT_BYTES GIB(1)

enum way { RESTORE, DEMOTE, NR_WAYS };

struct nvme {
	char dir[PATH_MAX];
	int dirfd;
	struct tier *tiers[2]; /* dram, nvme */
	struct pool *pool;
	struct block_id *ids;
	u32 nr;
	u8 *bytes; /* a block of random bytes */
	struct disk_file file;
	bool no_fio;
	struct figure direct[NR_WAYS], fio[NR_WAYS];
};

/* ---- setting up ---- */

static int open_tiers(struct nvme *n, u64 bytes)
{
	/* more than the data, so that nothing is evicted behind our back */
	u64 size = round_up_pow2(bytes + bytes / 2 + MIB(64), KVC_HUGE_SIZE);
	struct tier_opts opts = {.size_bytes = size,
				 .dirfd = n->dirfd,
				 .create = true,
				 .hugepages = "auto",
				 .numa_node = -1};
	struct textbuf why = TEXTBUF_INIT;
	int err = tier_open(&n->tiers[0], &tier_dram_ops, "dram", &opts, &why);

	if (!err)
		err = tier_open(&n->tiers[1], &tier_nvme_ops, "nvme", &opts, &why);
	if (err)
		cli_error("%s", why.text ? why.text : strerror(-err));
	textbuf_free(&why);
	return err;
}

static int nvme_open(struct nvme *n, const struct bench *bench)
{
	u64 bytes = max(bench->size_bytes ? bench->size_bytes : DEFAULT_BYTES, (u64)DISK_UNIT);
	struct pool_opts popts = {.high_pct = 100, .low_pct = 95};
	int err = scratch_make(bench, n->dir);

	if (err)
		return err;
	n->dirfd = open(n->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	err = disk_file_open(&n->file, n->dir, bytes);
	if (err)
		return err;
	n->nr = (u32)(n->file.bytes / BLOCK_BYTES);
	n->ids = kvc_alloc_array(n->nr, sizeof(*n->ids));
	n->bytes = malloc(BLOCK_BYTES);
	if (n->dirfd < 0 || !n->ids || !n->bytes)
		return -ENOMEM;
	fill_random(n->bytes, BLOCK_BYTES, 2);
	err = open_tiers(n, n->file.bytes);
	popts.dram = n->tiers[0];
	popts.nvme = n->tiers[1];
	if (!err)
		err = pool_create(&n->pool, &popts);
	return err ? err : pool_start(n->pool);
}

static void nvme_close(struct nvme *n)
{
	if (n->pool)
		pool_destroy(n->pool);
	tier_close(n->tiers[1]);
	tier_close(n->tiers[0]);
	if (n->file.buf)
		disk_file_close(&n->file);
	if (n->dirfd >= 0)
		close(n->dirfd);
	free(n->ids);
	free(n->bytes);
}

/* ---- ours ---- */

/* The sequence as a commit leaves it: in DRAM, sealed. */
static int make_sequence(struct nvme *n)
{
	struct pool_want want = {.bytes = BLOCK_BYTES, .space = 1, .near = BLOCK_NONE};
	int err = pool_alloc(n->pool, &want, n->nr, n->ids);
	void *addr;

	for (u32 i = 0; i < n->nr && !err; i++) {
		err = pool_begin_write(n->pool, n->ids[i], true, &addr);
		if (err)
			break;
		memcpy(addr, n->bytes, BLOCK_BYTES);
		memcpy(addr, &i, sizeof(i));
		pool_end_write(n->pool, n->ids[i]);
	}
	return err ? err : pool_seal(n->pool, n->ids, n->nr);
}

/* Return: bytes per second, or a negative errno. */
static double demote(struct nvme *n)
{
	struct pool_residency res;
	u64 start = clock_mono_ns();
	int err = pool_demote(n->pool, n->ids, n->nr);
	double rate = (double)n->nr * BLOCK_BYTES / seconds_since(start);

	if (err)
		return err;
	pool_residency(n->pool, n->ids, n->nr, &res);
	return res.dram ? -EBUSY : rate;
}

static double restore(struct nvme *n)
{
	u64 start = clock_mono_ns();
	const void *addr;
	double rate;
	int err = 0;

	pool_prefetch(n->pool, n->ids, n->nr);
	for (u32 i = 0; i < n->nr && !err; i++) {
		err = pool_pin(n->pool, n->ids[i], &addr);
		if (err)
			break;
		if (memcmp(addr, &i, sizeof(i)))
			err = -EIO;
		pool_unpin(n->pool, &n->ids[i], 1);
	}
	rate = (double)n->nr * BLOCK_BYTES / seconds_since(start);
	return err ? err : rate;
}

static int run_ours(struct nvme *n, double rate[NR_WAYS])
{
	int err = make_sequence(n);

	if (err)
		return err;
	rate[DEMOTE] = demote(n);
	rate[RESTORE] = rate[DEMOTE] < 0 ? rate[DEMOTE] : restore(n);
	pool_put(n->pool, n->ids, n->nr);
	return rate[RESTORE] < 0 ? (int)rate[RESTORE] : 0;
}

/* ---- one run of all sides ---- */

static int run_once(struct nvme *n)
{
	double ours[NR_WAYS], direct[NR_WAYS], fio[NR_WAYS];
	int err = run_ours(n, ours);

	if (err)
		return err;
	direct[DEMOTE] = disk_file_write(&n->file);
	direct[RESTORE] = disk_file_read(&n->file);
	fio[DEMOTE] = n->no_fio ? -ENOENT : fio_rate(n->dir, n->file.bytes, true);
	fio[RESTORE] = fio[DEMOTE] < 0 ? fio[DEMOTE] : fio_rate(n->dir, n->file.bytes, false);
	n->no_fio |= fio[RESTORE] < 0;
	for (int w = 0; w < NR_WAYS; w++) {
		if (direct[w] < 0)
			return (int)direct[w];
		figure_add(&n->direct[w], ours[w] / 1e9, direct[w] / 1e9);
		figure_add(&n->fio[w], ours[w] / 1e9, n->no_fio ? NAN : fio[w] / 1e9);
	}
	return 0;
}

static void report(const struct bench *bench, struct nvme *n, enum way w)
{
	struct figure *direct = &n->direct[w], *fio = &n->fio[w];
	bool fio_best = !n->no_fio && fio->nr &&
			median(fio->against, fio->nr) > median(direct->against, direct->nr);

	report_figure(bench->report, fio_best ? fio : direct);
	figure_free(fio_best ? direct : fio);
}

int bench_nvme(const struct bench *bench)
{
	static const struct figure_spec specs[NR_WAYS][2] = {
		{{"P3", "restore_cold", "GB/s", "direct_32m", BETTER_HIGH, 0, 0.95},
		 {"P3", "restore_cold", "GB/s", "fio_1m_qd16", BETTER_HIGH, 0, 0.95}},
		{{"P3", "demote", "GB/s", "direct_32m", BETTER_HIGH, 0, 0.95},
		 {"P3", "demote", "GB/s", "fio_1m_qd16", BETTER_HIGH, 0, 0.95}},
	};
	struct nvme n = {.dirfd = -1, .file.fd = -1};
	int err;

	for (int w = 0; w < NR_WAYS; w++) {
		figure_init(&n.direct[w], &specs[w][0]);
		figure_init(&n.fio[w], &specs[w][1]);
	}
	err = nvme_open(&n, bench);
	for (u32 i = 0; i < bench->runs && !err; i++)
		err = run_once(&n);
	nvme_close(&n);
	for (int w = 0; w < NR_WAYS; w++)
		report(bench, &n, w);
	return err;
}
