/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver: takes requests from a trace in order and runs each against a target, a mount or a
 * simulated cache. With one worker requests run one after the other and the hit rate is a function
 * of the trace and the target alone.
 */
#ifndef KVREPLAY_REPLAY_H
#define KVREPLAY_REPLAY_H

#include <signal.h>
#include "tools/kvreplay/content.h"
#include "tools/kvreplay/report.h"
#include "tools/kvreplay/trace.h"

#define REPLAY_MAX_WORKERS 256

/* What one request is run with. Its worker's own. */
struct replay_worker {
	struct trace_request rq;
	struct content content; /* built for @rq when the target sees it */
	u8 *buf;		/* owned; page-aligned, for the target */
	size_t buf_bytes;
};

struct replay_target {
	/*
	 * Run w->rq; fill the rest of @record. Called by workers at the same time. Returns 0, also
	 * when the request failed (record->err), or an errno when going on makes no sense.
	 */
	int (*run)(struct replay_target *target, struct replay_worker *w,
		   struct report_record *record);
};

struct replay_options {
	u64 limit;	 /* requests; 0: all */
	u64 workers;	 /* 1 .. REPLAY_MAX_WORKERS */
	u32 block_tokens;
	bool realtime;	 /* start each request at its time in the trace, not before */
};

/* Set by a signal handler to stop after the requests in flight. */
extern volatile sig_atomic_t replay_stop;

/**
 * replay_run() - the whole trace.
 *
 * Return: 0, or a negative errno with a line in @why: the trace is malformed, memory is short, or the
 * target gave up. What was done until then is in @report.
 */
int __must_check replay_run(struct trace *trace, struct replay_target *target,
			    const struct replay_options *o, struct report *report,
			    struct textbuf *why);

/* A simulated cache with room for everything: the upper bound of any cache. */
struct virtual_target {
	struct replay_target target;
	struct lock lock;  /* protects the set */
	u64 *set;	   /* owned; open addressing over block seeds, 0 empty */
	size_t nr, size;   /* size is a power of two */
};

int __must_check virtual_open(struct virtual_target *v);
void virtual_close(struct virtual_target *v);

/* A namespace on a mount. */
struct mount_options {
	const char *mount;
	const char *name;  /* of the namespace; NULL: one of its own */
	u64 token_bytes;
	u32 block_tokens;
	bool decode;	   /* store outputs too */
	bool keep;	   /* leave the namespace */
};

struct mount_target {
	struct replay_target target;
	struct mount_options o;
	size_t block_bytes;
	char dir[4096];	   /* of the namespace */
	bool made_dir;
};

/** mount_open() - make the namespace; -errno after a message. */
int __must_check mount_open(struct mount_target *m, const struct mount_options *o);
void mount_close(struct mount_target *m);

#endif
