/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Synthetic traces, for machines without a recorded one: a mix of people who chat (minutes between
 * turns) and agents (seconds between tool calls, long prompts, now and then a compacted context),
 * each session behind one of a few shared system prompts whose popularity falls off as 1/rank.
 * The shape (medians of gaps and lengths) follows the two recorded kinds; it is no model of either.
 */
#ifndef KVREPLAY_SYNTH_H
#define KVREPLAY_SYNTH_H

#include "tools/kvreplay/trace.h"

#define SYNTH_DEFAULT_REQUESTS 1000u
#define SYNTH_MAX_REQUESTS     10000000u

struct synth_options {
	u64 seed;
	u64 nr_requests;   /* 1 .. SYNTH_MAX_REQUESTS */
	u32 agent_percent; /* of sessions, 0..100 */
};

/**
 * synth_make() - @o->nr_requests requests in order of time; the same for the same options, always.
 *
 * Return: a trace to be closed, or NULL when memory is short.
 */
struct trace *synth_make(const struct synth_options *o);

#endif
