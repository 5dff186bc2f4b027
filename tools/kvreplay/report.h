/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a replay found out: one record per request, summed up, printed as a table or as JSON, and
 * with --report kept as DIR/summary.json and DIR/requests.csv.
 *
 * Token hit rate = cached tokens / all input tokens of the requests (also those that have no whole
 * block). Restore latency = time inside read(2) for a request's cached bytes, checking excluded;
 * requests without a cached token are left out of its percentiles.
 */
#ifndef KVREPLAY_REPORT_H
#define KVREPLAY_REPORT_H

#include <stdio.h>
#include "allocator/base/compiler.h"
#include "allocator/base/lock.h"
#include "tools/kvreplay/trace.h"

struct report_record {
	u64 index, timestamp_ms, session;
	u32 input_tokens, stored_tokens, cached_tokens, output_tokens;
	u32 blocks;	/* whole input blocks */
	u32 bad_blocks; /* cached ones whose bytes were not those of their ids */
	u64 restore_ns, restore_bytes, write_ns, write_bytes;
	int err;	/* 0 or the negative errno that ended the request */
};

/* A counter of .kvc/stat before and after. */
struct report_counter {
	char name[64];
	u64 before, after;
};

#define REPORT_MAX_COUNTERS 32

struct report {
	struct lock lock;	 /* protects what follows, while workers run */
	u64 requests, failed, bad_blocks;
	u64 input_tokens, cached_tokens, output_tokens, blocks, longest_blocks;
	u64 unique_blocks;	 /* 0: not counted */
	u64 restore_bytes, write_bytes;
	u64 *restore_ns;	 /* owned; one per request with cached tokens */
	size_t nr_restores, restores_size;
	u64 start_ns, wall_ns, last_progress_ns;
	bool progress;		 /* a line on the terminal, set once at start */
	u64 expected;		 /* requests, for that line; 0: not known. Set once at start */
	int err;		 /* memory or the CSV file failed */
	FILE *csv;		 /* NULL without --report */
	struct report_counter counter[REPORT_MAX_COUNTERS];
	size_t nr_counters;
	const char *mode;	 /* "mount" or "virtual" */
	char dir[4096];		 /* of --report, or "" */
};

/** report_start() - begin; with @dir make it and open its CSV file. -errno after a message. */
int __must_check report_start(struct report *r, const char *mode, const char *dir);

/** report_add() - one request is over. Any thread. */
void report_add(struct report *r, const struct report_record *record);

/**
 * report_counters() - take the TIER_read_bytes and TIER_write_bytes lines of a .kvc/stat text, as
 * the values before or @after the replay.
 */
void report_counters(struct report *r, const char *stat, bool after);

/** report_end_progress() - leave the progress line; before anything else goes to stderr. */
void report_end_progress(struct report *r);

/** report_finish() - stop the clock, print, write summary.json; -errno after a message. */
int __must_check report_finish(struct report *r, bool json);

void report_free(struct report *r);

/** report_percentile() - nearest rank in a sorted array; 0 when it is empty. */
u64 report_percentile(const u64 *sorted, size_t nr, double percent);

#endif
