/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Request traces: which blocks of tokens each request's prompt consists of, and when it came.
 *
 * Two forms, one JSON object per line, plain or gzip, told apart by their keys:
 *
 *   {"timestamp": MS, "input_length": N, "output_length": N, "hash_ids": [ID, ...]}
 *	an id per 512 tokens; the last one is partial unless input_length is a multiple
 *   {"timestamp": MS, "session": S, "input_length": N, "output_length": N, "stop": "tool_use",
 *    "hash_runs": [[FIRST, COUNT], ...]}
 *	an id per 64 tokens, run-length coded; tokens behind the last full one have no id
 *
 * Ids are of chained prefix blocks: one id stands for the tokens of its block and all before it.
 * A trace is input: whatever is wrong with it is an error with the line's number, never a crash.
 */
#ifndef KVREPLAY_TRACE_H
#define KVREPLAY_TRACE_H

#include "allocator/base/compiler.h"
#include "allocator/base/textbuf.h"

#define TRACE_UNIT_HASH_IDS  512u	  /* tokens per id of hash_ids */
#define TRACE_UNIT_HASH_RUNS 64u	  /* tokens per id of hash_runs */
#define TRACE_MAX_TOKENS     (1u << 26)	  /* input or output of one request */
#define TRACE_MAX_LINE	     (64u << 20)  /* bytes */
#define TRACE_MAX_ID	     (1ull << 53) /* beyond it JSON numbers are not exact */

/* Ids first, first + 1, ... first + nr - 1. */
struct trace_run {
	u64 first, nr;
};

struct trace_request {
	u64 line;		/* of the trace, from 1; of the synthesis, its index */
	u64 timestamp_ms;
	u64 session;		/* 0 where the trace has none */
	u32 input_tokens;	/* all of the prompt */
	u32 known_tokens;	/* leading ones that have ids */
	u32 output_tokens;
	u32 unit_tokens;	/* tokens per id */
	bool tool_use;		/* stopped for a tool call */
	struct trace_run *runs; /* owned */
	size_t nr_runs, runs_size;
};

struct trace;

/** trace_open() - a reader of @path; -errno with a line in @why. */
int __must_check trace_open(const char *path, struct trace **trace, struct textbuf *why);

/**
 * trace_from_array() - a "reader" of @nr requests that takes ownership of them and of the array.
 */
struct trace *trace_from_array(struct trace_request *requests, size_t nr);

/**
 * trace_next() - the next request into @rq, whose previous runs are reused.
 *
 * Return: 1 with a request, 0 at the end, or -EINVAL (malformed line), -EIO (damaged or shortened
 * gzip stream, read error), -ENOMEM with a line in @why that names the file and the line. After an
 * error nothing more comes.
 */
int __must_check trace_next(struct trace *trace, struct trace_request *rq, struct textbuf *why);

void trace_close(struct trace *trace);

/** trace_request_free() - free what @rq owns, not @rq. */
void trace_request_free(struct trace_request *rq);

/** trace_add_run() - append ids to @rq, merged with the last run where adjacent; -ENOMEM. */
int __must_check trace_add_run(struct trace_request *rq, u64 first, u64 nr);

/**
 * trace_parse_line() - one JSON object (@len bytes, without the newline) into @rq.
 *
 * Return: 0, -EINVAL with what is wrong in @why (no file or line number), -ENOMEM.
 */
int __must_check trace_parse_line(const char *text, size_t len, struct trace_request *rq,
				  struct textbuf *why);

/** trace_write_line() - @rq in the run-length form (its unit must be TRACE_UNIT_HASH_RUNS). */
void trace_write_line(const struct trace_request *rq, struct textbuf *text);

#endif
