/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include "allocator/base/bug.h"
#include "allocator/base/hash.h"
#include "tools/kvreplay/synth.h"

#define UNIT		   TRACE_UNIT_HASH_RUNS
#define NR_SYSTEM_PROMPTS  8
#define SYSTEM_IDS	   (1ull << 16) /* first id of prompt k: (k + 1) * SYSTEM_IDS */
#define PRIVATE_IDS	   (1ull << 24) /* first private id of all sessions */
#define MAX_CONTEXT_TOKENS 200000u
#define SESSION_EVERY_MS   4000u	/* mean time between new sessions */

/* How a kind of session behaves. Medians of long-tailed draws. */
struct synth_kind {
	u32 turns, first_tokens, added_tokens, output_tokens;
	u32 gap_ms, long_gap_ms, long_gap_percent, compact_percent;
	u32 system_tokens; /* of the kind's smallest system prompt */
};

static const struct synth_kind chat_kind = {
	.turns = 6, .first_tokens = 800, .added_tokens = 150, .output_tokens = 300,
	.gap_ms = 60000, .long_gap_ms = 600000, .long_gap_percent = 20, .compact_percent = 0,
	.system_tokens = 512,
};

static const struct synth_kind agent_kind = {
	.turns = 24, .first_tokens = 3000, .added_tokens = 700, .output_tokens = 250,
	.gap_ms = 9000, .long_gap_ms = 210000, .long_gap_percent = 8, .compact_percent = 2,
	.system_tokens = 8192,
};

struct synth {
	u64 state;	  /* of the generator of random numbers */
	u64 next_private; /* id */
	struct trace_request *rq;
	u64 nr, wanted;
};

static u64 draw(struct synth *s)
{
	s->state += 0x9e3779b97f4a7c15ull;
	return hash_u64(s->state);
}

static u32 draw_below(struct synth *s, u32 n)
{
	return (u32)((draw(s) >> 32) * n >> 32);
}

/* Long tail around @median, in integers so that every machine draws the same: 2^(-2 .. +3). */
static u32 draw_tail(struct synth *s, u32 median)
{
	u32 n = median / 2 + draw_below(s, median);
	u32 shape = draw_below(s, 16);

	if (shape < 2)
		return n / 4 + 1;
	if (shape < 13)
		return n + 1;
	return (n << (shape - 12)) + 1;
}

/* Popularity 1/rank by rejection. */
static u32 draw_system(struct synth *s)
{
	for (;;) {
		u32 k = draw_below(s, NR_SYSTEM_PROMPTS);

		if (draw_below(s, k + 1) == 0)
			return k;
	}
}

/* The prompt of one turn: the system prompt's whole blocks, then the session's own. */
static int emit(struct synth *s, const struct trace_request *turn, u32 system_blocks, u64 system_id,
		u64 private_id)
{
	struct trace_request *rq = &s->rq[s->nr];
	u32 blocks = turn->input_tokens / UNIT;
	u32 shared = min(blocks, system_blocks);

	*rq = *turn;
	rq->unit_tokens = UNIT;
	rq->known_tokens = blocks * UNIT;
	rq->runs = NULL;
	if (shared && trace_add_run(rq, system_id, shared))
		return -1;
	if (blocks > shared && trace_add_run(rq, private_id, blocks - shared))
		return -1;
	s->nr++;
	return 0;
}

static u32 draw_gap(struct synth *s, const struct synth_kind *kind)
{
	bool lull = draw_below(s, 100) < kind->long_gap_percent;

	return draw_tail(s, lull ? kind->long_gap_ms : kind->gap_ms);
}

/*
 * All turns of one session. A turn's prompt is the last one's with its output and something new
 * behind it; a compacted context keeps the system prompt only and gets fresh private ids.
 */
static int add_session(struct synth *s, u64 session, u64 start_ms, const struct synth_kind *kind)
{
	u32 k = draw_system(s);
	u32 system_blocks = (kind->system_tokens << (k % 3)) / UNIT;
	u64 system_id = (kind == &agent_kind ? NR_SYSTEM_PROMPTS + k + 1 : k + 1) * SYSTEM_IDS;
	u32 turns = draw_tail(s, kind->turns);
	struct trace_request turn = {.session = session, .timestamp_ms = start_ms};
	u64 private_id = s->next_private;

	turn.input_tokens = system_blocks * UNIT + draw_tail(s, kind->first_tokens);
	for (u32 t = 0; t < turns && s->nr < s->wanted; t++) {
		turn.output_tokens = draw_tail(s, kind->output_tokens);
		turn.tool_use = kind == &agent_kind && t + 1 < turns;
		if (turn.input_tokens > MAX_CONTEXT_TOKENS ||
		    draw_below(s, 100) < kind->compact_percent) {
			private_id += MAX_CONTEXT_TOKENS / UNIT * 2;
			turn.input_tokens = system_blocks * UNIT + draw_tail(s, kind->first_tokens);
		}
		if (emit(s, &turn, system_blocks, system_id, private_id))
			return -1;
		turn.timestamp_ms += draw_gap(s, kind);
		turn.input_tokens += turn.output_tokens + draw_tail(s, kind->added_tokens);
	}
	s->next_private = private_id + MAX_CONTEXT_TOKENS / UNIT * 2;
	return 0;
}

/* Sessions number in order of their start, so this is a total order and qsort() is stable enough. */
static int by_time(const void *a, const void *b)
{
	const struct trace_request *x = a, *y = b;

	if (x->timestamp_ms != y->timestamp_ms)
		return x->timestamp_ms < y->timestamp_ms ? -1 : 1;
	if (x->session != y->session)
		return x->session < y->session ? -1 : 1;
	return x->input_tokens < y->input_tokens ? -1 : x->input_tokens > y->input_tokens;
}

static void number_lines(struct synth *s)
{
	qsort(s->rq, s->nr, sizeof(*s->rq), by_time);
	for (u64 i = 0; i < s->nr; i++)
		s->rq[i].line = i + 1;
}

struct trace *synth_make(const struct synth_options *o)
{
	struct synth s = {.state = o->seed, .next_private = PRIVATE_IDS, .wanted = o->nr_requests};
	struct trace *trace = NULL;
	u64 start_ms = 0;

	kvc_assert(o->nr_requests && o->nr_requests <= SYNTH_MAX_REQUESTS);
	s.rq = calloc(o->nr_requests, sizeof(*s.rq));
	if (!s.rq)
		return NULL;
	for (u64 session = 1; s.nr < s.wanted; session++) {
		bool agent = draw_below(&s, 100) < o->agent_percent;

		if (add_session(&s, session, start_ms, agent ? &agent_kind : &chat_kind))
			goto fail;
		start_ms += draw_below(&s, 2 * SESSION_EVERY_MS);
	}
	number_lines(&s);
	trace = trace_from_array(s.rq, s.nr);
	if (trace)
		return trace;
fail:
	for (u64 i = 0; i < s.nr; i++)
		trace_request_free(&s.rq[i]);
	free(s.rq);
	return NULL;
}
