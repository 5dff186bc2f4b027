/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include "allocator/base/clock.h"
#include "allocator/base/lock.h"
#include "tools/kvreplay/replay.h"

volatile sig_atomic_t replay_stop;

struct replay {
	struct trace *trace;
	struct replay_target *target;
	const struct replay_options *o;
	struct report *report;
	struct lock lock;	/* protects what follows, and the trace */
	struct textbuf *why;
	u64 taken;
	u64 first_ms, start_ns; /* time of the first request, in the trace and here */
	int err;
};

/* Under the lock: requests are numbered in the order of the trace. false at the end. */
static bool take_request(struct replay *r, struct trace_request *rq, u64 *index)
{
	int ret = 0;

	lock_acquire(&r->lock);
	if (!r->err && !replay_stop && (!r->o->limit || r->taken < r->o->limit)) {
		ret = trace_next(r->trace, rq, r->why);
		if (ret < 0)
			r->err = ret;
	}
	if (ret > 0) {
		*index = r->taken++;
		if (!*index) {
			r->first_ms = rq->timestamp_ms;
			r->start_ns = clock_mono_ns();
		}
	}
	lock_release(&r->lock);
	return ret > 0;
}

static void wait_for_time(const struct replay *r, const struct trace_request *rq)
{
	u64 after_ms = rq->timestamp_ms > r->first_ms ? rq->timestamp_ms - r->first_ms : 0;
	u64 at_ns = r->start_ns + after_ms * 1000000;
	struct timespec ts = {.tv_sec = (time_t)(at_ns / NSEC_PER_SEC),
			      .tv_nsec = (long)(at_ns % NSEC_PER_SEC)};

	while (!replay_stop &&
	       clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
		;
}

static void give_up(struct replay *r, int err, const char *what)
{
	lock_acquire(&r->lock);
	if (!r->err) {
		r->err = err;
		textbuf_printf(r->why, "%s: %s", what, strerror(-err));
	}
	lock_release(&r->lock);
}

static void run_request(struct replay *r, struct replay_worker *w, u64 index)
{
	struct report_record record = {
		.index = index,
		.timestamp_ms = w->rq.timestamp_ms,
		.session = w->rq.session,
		.input_tokens = w->rq.input_tokens,
	};
	int err = content_build(&w->content, &w->rq);

	if (err) {
		give_up(r, err, "a request's tokens");
		return;
	}
	record.blocks = (u32)w->content.nr_blocks;
	err = r->target->run(r->target, w, &record);
	report_add(r->report, &record);
	if (err)
		give_up(r, err, "stopped");
}

static void *work(void *arg)
{
	struct replay *r = arg;
	struct replay_worker w = {.content.block_tokens = r->o->block_tokens};
	u64 index;

	while (take_request(r, &w.rq, &index)) {
		if (r->o->realtime)
			wait_for_time(r, &w.rq);
		run_request(r, &w, index);
	}
	content_free(&w.content);
	trace_request_free(&w.rq);
	free(w.buf);
	return NULL;
}

static void run_workers(struct replay *r)
{
	pthread_t thread[REPLAY_MAX_WORKERS];
	u64 nr = 0;

	for (; nr + 1 < r->o->workers; nr++) {
		int err = pthread_create(&thread[nr], NULL, work, r);

		if (err) {
			give_up(r, -err, "a worker thread");
			break;
		}
	}
	work(r);
	while (nr)
		pthread_join(thread[--nr], NULL);
}

int replay_run(struct trace *trace, struct replay_target *target, const struct replay_options *o,
	       struct report *report, struct textbuf *why)
{
	struct replay r = {
		.trace = trace, .target = target, .o = o, .report = report, .why = why};

	lock_init(&r.lock, LOCK_POOL);
	run_workers(&r);
	lock_destroy(&r.lock);
	return r.err;
}
