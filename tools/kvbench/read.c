/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P4: the POSIX path, O_DIRECT reads of 1 MiB of data that lie in the DRAM tier, of a plain file and
 * of a sequence. The peer is a FUSE server that does nothing but answer from memory (nullfs.c) and
 * is read in the same way: what is missing to 1 is what we add to FUSE itself.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "tools/common/cli.h"
#include "tools/kvbench/kvbench.h"

#define DEFAULT_BYTES MIB(512)
#define TOKEN_BYTES   8192u
#define ROUNDS	      3 /* a pass takes a tenth of a second */

enum { PLAIN, KV, NR_FILES };

static int prepare(struct mounts *m, char paths[NR_FILES][PATH_MAX + 64], u64 bytes)
{
	char dir[PATH_MAX + 40];

	snprintf(dir, sizeof(dir), "%s/a", m->ns);
	snprintf(paths[PLAIN], PATH_MAX + 64, "%s/data", m->mnt);
	snprintf(paths[KV], PATH_MAX + 64, "%s/kv", dir);
	if (mkdir(dir, 0700)) {
		cli_error("%s: %s", dir, strerror(errno));
		return -errno;
	}
	for (int f = 0; f < NR_FILES; f++)
		if (file_write(paths[f], bytes) < 0)
			return -EIO;
	return 0;
}

static int measure(const struct bench *bench, const struct figure_spec *spec, const char *ours,
		   const char *null, u64 bytes)
{
	double a = file_read(ours, bytes, true), b = file_read(null, bytes, true); /* warm */
	struct figure fig;

	figure_init(&fig, spec);
	for (u32 i = 0; i < bench->runs * ROUNDS && a >= 0 && b >= 0; i++) {
		if (i % 2)
			b = file_read(null, bytes, true);
		a = file_read(ours, bytes, true);
		if (i % 2 == 0)
			b = file_read(null, bytes, true);
		if (a >= 0 && b >= 0)
			figure_add(&fig, a / 1e9, b / 1e9);
	}
	report_figure(bench->report, &fig);
	return a < 0 || b < 0 ? -EIO : 0;
}

int bench_read(const struct bench *bench)
{
	static const struct figure_spec specs[NR_FILES] = {
		{"P4", "read_direct_plain", "GB/s", "null_fuse", BETTER_HIGH, 0, 0.9},
		{"P4", "read_direct_kv", "GB/s", "null_fuse", BETTER_HIGH, 0, 0.9},
	};
	u64 bytes = round_up_pow2(bench->size_bytes ? bench->size_bytes : DEFAULT_BYTES, MIB(1));
	char paths[NR_FILES][PATH_MAX + 64], null[PATH_MAX + 32];
	struct mounts m;
	int err = mounts_make(&m, bench, 3 * bytes + MIB(256), 0, TOKEN_BYTES);

	if (!err)
		err = mount_null(m.other, bytes);
	if (!err)
		err = prepare(&m, paths, bytes);
	snprintf(null, sizeof(null), "%s/data", m.other);
	for (int f = 0; f < NR_FILES; f++) {
		if (err)
			report_missing(bench->report, &specs[f], strerror(-err));
		else
			err = measure(bench, &specs[f], paths[f], null, bytes);
	}
	return err;
}
