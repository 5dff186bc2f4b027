/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P14: what a program sees that keeps its cache in plain files: a file is written with fsync, dropped
 * from the page cache, and read whole, buffered. Once with a DRAM tier that holds it, once with one
 * that does not. The peer is the filesystem that the store lies on, in the same run.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "tools/kvbench/kvbench.h"

#define DEFAULT_BYTES MIB(512)
#define TOKEN_BYTES   4096u

enum { READ_BACK, WRITE, NR_FIGURES };

/* Write and read @path. Return: 0 and the rates, GB/s; -EIO. */
static int write_and_read(const char *path, u64 bytes, double rates[NR_FIGURES])
{
	rates[WRITE] = file_write(path, bytes) / 1e9;
	if (rates[WRITE] < 0)
		return -EIO;
	rates[READ_BACK] = file_read(path, bytes, false) / 1e9;
	unlink(path);
	return rates[READ_BACK] < 0 ? -EIO : 0;
}

/* @warm: memory that the mount touches for the first time is not the question: nothing is noted. */
static int run_once(const struct mounts *m, u64 bytes, bool warm, struct figure figs[NR_FIGURES])
{
	char ours[PATH_MAX + 32], theirs[PATH_MAX + 32];
	double a[NR_FIGURES], b[NR_FIGURES];
	int err;

	snprintf(ours, sizeof(ours), "%s/file", m->mnt);
	snprintf(theirs, sizeof(theirs), "%s/file", m->other);
	err = write_and_read(ours, bytes, a);
	if (!err)
		err = write_and_read(theirs, bytes, b);
	for (int f = 0; f < NR_FIGURES && !err && !warm; f++)
		figure_add(&figs[f], a[f], b[f]);
	return err;
}

static int measure(const struct bench *bench, const struct figure_spec *specs, u64 bytes,
		   u64 dram_bytes)
{
	struct figure figs[NR_FIGURES];
	unsigned int mark = cleanup_mark();
	struct mounts m;
	int err;

	for (int f = 0; f < NR_FIGURES; f++)
		figure_init(&figs[f], &specs[f]);
	err = mounts_make(&m, bench, dram_bytes, 3 * bytes + MIB(256), TOKEN_BYTES);
	for (u32 i = 0; i <= bench->runs && !err; i++)
		err = run_once(&m, bytes, i == 0, figs);
	cleanup_to(mark);
	for (int f = 0; f < NR_FIGURES; f++) {
		if (err)
			figure_why(&figs[f], "%s", strerror(-err));
		report_figure(bench->report, &figs[f]);
	}
	return err;
}

int bench_write(const struct bench *bench)
{
	static const struct figure_spec in_dram[NR_FIGURES] = {
		{"P14", "read_back_dram", "GB/s", "disk_fs", BETTER_HIGH, 0, 1.5},
		{"P14", "write_fsync_dram", "GB/s", "disk_fs", BETTER_HIGH, 0, 0},
	};
	static const struct figure_spec on_disk[NR_FIGURES] = {
		{"P14", "read_back_nvme", "GB/s", "disk_fs", BETTER_HIGH, 0, 1},
		{"P14", "write_fsync_nvme", "GB/s", "disk_fs", BETTER_HIGH, 0, 0},
	};
	u64 bytes = round_up_pow2(bench->size_bytes ? bench->size_bytes : DEFAULT_BYTES, MIB(2));
	int err = measure(bench, in_dram, bytes, bytes + bytes / 2 + MIB(256));
	int err2 = measure(bench, on_disk, bytes, max(bytes / 4, MIB(64)));

	return err ? err : err2;
}
