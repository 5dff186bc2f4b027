/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench: the figures that the project promises, each beside its peer.
 *
 * A benchmark group is one file with one function. It makes a few figures; every figure collects one
 * value a run for ours and for the peer, both measured in turn in the same run, since a shared machine
 * drifts by more than what is to be told apart. What is told is the median of each side and the
 * median of the runs' ratios, which is above 1 when ours is better, whatever the unit.
 *
 * What a group makes outside its process (directories, mounts, children) goes on the cleanup stack,
 * so that it goes when the group ends, and when a signal ends the program.
 */
#ifndef KVC_TOOLS_KVBENCH_H
#define KVC_TOOLS_KVBENCH_H

#include <limits.h>
#include "allocator/base/clock.h"
#include "allocator/base/compiler.h"

#define BENCH_MIN_RUNS 5
#define BENCH_MAX_RUNS 999

struct report;

/** struct bench - what was asked for; constant while a group runs. */
struct bench {
	u64 size_bytes;	 /* of the data that a group works on; 0: the group's default */
	u32 runs;
	const char *dir; /* where files, stores and mounts may be put */
	struct report *report;
};

/* ---- figures (figure.c) ---- */

enum better { BETTER_LOW, BETTER_HIGH };

/** struct figure_spec - what a figure is and what it should be. */
struct figure_spec {
	const char *id;	  /* of GOALS.md, or "-" */
	const char *name;
	const char *unit; /* of both sides */
	const char *peer; /* NULL: it has none */
	enum better better;
	double goal;	   /* at most (BETTER_LOW) or at least; 0: no goal for the value itself */
	double goal_ratio; /* at least; 0: none */
};

struct figure {
	const struct figure_spec *spec;
	const char *peer;	 /* the spec's, or the one that was fastest */
	double *value, *against; /* @nr of each, owned; peer values NaN where there are none */
	u32 nr, max;
	int err;	/* latched -ENOMEM */
	char why[200];	/* why it, or its peer, could not be measured */
};

void figure_init(struct figure *fig, const struct figure_spec *spec);
/** figure_add() - the two sides of one run; NAN for a peer that is not there. */
void figure_add(struct figure *fig, double value, double against);
/** figure_why() - why nothing (or no peer) was measured; the first reason stays. */
void figure_why(struct figure *fig, const char *fmt, ...) __printf(2, 3);
void figure_free(struct figure *fig);
/** figure_ratio() - median of the runs' ratios, above 1: ours is better; NAN without a peer. */
double figure_ratio(const struct figure *fig);
bool figure_has_goal(const struct figure *fig);
bool figure_met(const struct figure *fig);
/** median() - of @nr values, any order; NAN of none. */
double median(const double *values, u32 nr);

/* ---- report.c ---- */

struct report *report_open(bool json);
/** report_figure() - print it (or keep it for the JSON array) and free it. */
void report_figure(struct report *report, struct figure *fig);
/** report_missing() - a figure that nothing was tried for. */
void report_missing(struct report *report, const struct figure_spec *spec, const char *why);
/** report_close() - Return: 0, or -EIO when not everything could be written. */
int __must_check report_close(struct report *report);

/* ---- measure.c ---- */

/** evict_caches() - walk more memory than the CPU caches hold. Return: 0, -ENOMEM. */
int __must_check evict_caches(void);
/** fill_random() - bytes that do not compress, the same for the same @seed. */
void fill_random(void *buf, size_t bytes, u64 seed);
double seconds_since(u64 start_ns);

/* ---- cleanup.c ---- */

/** cleanup_start() - take over SIGINT, SIGTERM, SIGHUP: they undo what is on the stack and exit 1. */
int __must_check cleanup_start(void);
/** scratch_make() - a new directory below the one asked for; goes with cleanup_to(). -errno, said. */
int __must_check scratch_make(const struct bench *bench, char path[PATH_MAX]);
/** spawn() - start a program with stdout on @out_fd (-1: /dev/null); a signal ends it. Return: pid or -errno. */
pid_t __must_check spawn(char *const argv[], int out_fd);
/** spawn_wait() - Return: 0 when it exited 0, -ECHILD. */
int __must_check spawn_wait(pid_t pid);
/** cleanup_mount(), cleanup_process() - put it on the stack. */
void cleanup_mount(const char *path);
void cleanup_process(pid_t pid);
/** cleanup_mark() ... cleanup_to() - undo everything pushed since. */
unsigned int cleanup_mark(void);
void cleanup_to(unsigned int mark);

/* ---- mount.c ---- */

/**
 * mount_kvcachefs() - a throw-away mount, by the kvcachefs beside this program.
 * @source: store directory or "none"
 * @options: for -o
 * Return: 0; -ENOENT (no kvcachefs here), -ETIMEDOUT, -ECHILD (it ended), said on stderr.
 */
int __must_check mount_kvcachefs(const char *source, const char *mountpoint, const char *options);
/** mount_null() - the null server: one file `data` of @bytes. Errors as above. */
int __must_check mount_null(const char *mountpoint, u64 bytes);
/** struct mounts - a scratch directory with a kvcachefs mount, a namespace in it, and room beside. */
struct mounts {
	char dir[PATH_MAX];	   /* scratch */
	char mnt[PATH_MAX + 16];   /* the mount */
	char ns[PATH_MAX + 24];	   /* a namespace in it: blocks of 64 tokens */
	char other[PATH_MAX + 16]; /* an empty directory on the disk's filesystem */
};

#define MOUNTS_BLOCK_TOKENS 64

/**
 * mounts_make() - all of struct mounts.
 * @dram_bytes, @nvme_bytes: tiers; @nvme_bytes 0: a volatile mount
 * @token_bytes: of the namespace
 */
int __must_check mounts_make(struct mounts *m, const struct bench *bench, u64 dram_bytes,
			     u64 nvme_bytes, u32 token_bytes);
/** nullfs_main() - the null server itself, "kvbench --null-server MOUNTPOINT BYTES". */
int nullfs_main(const char *mountpoint, const char *bytes);

/* ---- disk.c: what the disk gives without us ---- */

#define DISK_UNIT MIB(32)	/* bytes of one transfer */

/** struct disk_file - a preallocated file, opened O_DIRECT. */
struct disk_file {
	char path[PATH_MAX];
	int fd;
	u64 bytes;	/* a multiple of DISK_UNIT */
	void *buf;	/* DISK_UNIT bytes, aligned */
};

int __must_check disk_file_open(struct disk_file *file, const char *dir, u64 bytes);
void disk_file_close(struct disk_file *file);
/** disk_file_write(), disk_file_read() - all of it. Return: bytes per second, or negative errno. */
double disk_file_write(struct disk_file *file);
double disk_file_read(struct disk_file *file);
/** fio_rate() - the same by fio, 1 MiB requests, 16 at once. Return: bytes per second; -ENOENT: no fio. */
double fio_rate(const char *dir, u64 bytes, bool write);

/* ---- fileio.c: files as a program sees them; errors are said on stderr ---- */

#define FILE_CHUNK MIB(1) /* each chunk begins with its offset, so that a reader knows it */

/** file_write() - a new file, by write(2) of 1 MiB, and fsync. Return: bytes per second, or -errno. */
double file_write(const char *path, u64 bytes);
/** file_read() - all of it, by read(2) of 1 MiB: @direct (O_DIRECT), or buffered after DONTNEED. */
double file_read(const char *path, u64 bytes, bool direct);
/** file_put() - make a small file. */
int __must_check file_put(const char *path, const void *bytes, size_t len);

/* ---- groups: 0, or -errno after a line on stderr when the run itself failed ---- */

int bench_alloc(const struct bench *bench);
int bench_lookup(const struct bench *bench);
int bench_fork(const struct bench *bench);
int bench_read(const struct bench *bench);
int bench_write(const struct bench *bench);
int bench_nvme(const struct bench *bench);
int bench_map(const struct bench *bench);
int bench_session(const struct bench *bench);

/** alloc_prepare() - before any thread starts: make jemalloc loadable; may start the program anew. */
void alloc_prepare(char **argv);

#endif
