/* SPDX-License-Identifier: Apache-2.0 */
/* What a replay stores and counts: ids and bytes as functions of the trace, the simulated cache
 * against a naive one, counters and percentiles. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>
#include "tools/kvreplay/replay.h"
#include "tools/kvreplay/synth.h"

static void make_request(struct trace_request *rq, u32 unit, u32 tokens, u64 first, u64 nr)
{
	*rq = (struct trace_request){
		.unit_tokens = unit, .input_tokens = tokens, .known_tokens = tokens};
	assert_int_equal(trace_add_run(rq, first, nr), 0);
}

static void test_ids_are_stable(void **state)
{
	struct content c = {.block_tokens = 64};
	struct trace_request rq;

	make_request(&rq, 512, 700, 41, 1);
	assert_int_equal(trace_add_run(&rq, 99, 1), 0);
	assert_int_equal(content_build(&c, &rq), 0);
	assert_int_equal(c.nr_blocks, 10); /* 700 / 64: the rest is dropped */
	for (u32 i = 0; i < 640; i++) {
		assert_int_equal(c.ids[i], content_id(i < 512 ? 41 : 99, i % 512));
		assert_true(c.ids[i] < 131072);
	}
	assert_int_equal(content_id(0, 0), 55154);
	assert_int_equal(content_id(41, 511), 104427);
	trace_request_free(&rq);
	content_free(&c);
}

/* Equal prefixes have equal seeds; from the first other id on no seed is equal. */
static void test_seeds_chain(void **state)
{
	struct content a = {.block_tokens = 16}, b = {.block_tokens = 16};
	struct trace_request ra, rb;

	make_request(&ra, 64, 640, 1000, 10);
	make_request(&rb, 64, 640, 1000, 5);
	assert_int_equal(trace_add_run(&rb, 7, 1), 0);
	assert_int_equal(trace_add_run(&rb, 1006, 4), 0);
	assert_int_equal(content_build(&a, &ra), 0);
	assert_int_equal(content_build(&b, &rb), 0);
	assert_int_equal(a.nr_blocks, 40);
	for (size_t i = 0; i < 40; i++)
		assert_int_equal(a.seeds[i] == b.seeds[i], i < 20);
	assert_memory_equal(a.ids + 384, b.ids + 384, 256 * sizeof(u32));
	trace_request_free(&ra);
	trace_request_free(&rb);
	content_free(&a);
	content_free(&b);
}

static void test_output_follows(void **state)
{
	struct content c = {.block_tokens = 16};
	struct trace_request rq;
	u64 seed;

	make_request(&rq, 64, 128, 1, 2);
	assert_int_equal(content_build(&c, &rq), 0);
	seed = c.seeds[7];
	assert_int_equal(content_add_output(&c, 3, 20), 0);
	assert_int_equal(c.nr_blocks, 8);
	assert_int_equal(c.seeds[7], seed);
	assert_true(c.seeds[8] != c.seeds[9] && c.seeds[8] != seed);
	assert_true(c.ids[128] != content_id(3, 0)); /* no trace block has these ids */
	trace_request_free(&rq);
	content_free(&c);
}

static void test_bytes(void **state)
{
	u8 whole[997], part[997];

	content_fill(whole, 12345, 0, sizeof(whole));
	for (size_t at = 0; at < 40; at++)
		for (size_t n = 0; n < 40; n++) {
			content_fill(part, 12345, at, n);
			assert_memory_equal(part, whole + at, n);
		}
	assert_true(content_check(whole, 12345, 0, sizeof(whole)));
	assert_true(content_check(whole + 13, 12345, 13, sizeof(whole) - 13));
	assert_false(content_check(whole, 12346, 0, sizeof(whole)));
	assert_false(content_check(whole, 12345, 8, sizeof(whole) - 8));
	for (size_t at = 0; at < sizeof(whole); at++) {
		whole[at] ^= 1;
		assert_false(content_check(whole, 12345, 0, sizeof(whole)));
		whole[at] ^= 1;
	}
}

/* The dumb cache: every block of every request in one list, compared in full. */
#define NAIVE_MAX 20000

static u64 naive_hits(const struct synth_options *o, u32 block_tokens)
{
	static u64 seen[NAIVE_MAX];
	struct content c = {.block_tokens = block_tokens};
	struct trace *t = synth_make(o);
	struct textbuf why = TEXTBUF_INIT;
	struct trace_request rq = {0};
	u64 nr = 0, hits = 0;

	while (trace_next(t, &rq, &why) > 0) {
		bool hit = true;

		assert_int_equal(content_build(&c, &rq), 0);
		for (size_t b = 0; b < c.nr_blocks; b++) {
			bool found = false;

			for (u64 i = 0; i < nr && !found; i++)
				found = seen[i] == c.seeds[b];
			hit = hit && found;
			hits += hit;
			if (!found) {
				assert_true(nr < NAIVE_MAX);
				seen[nr++] = c.seeds[b];
			}
		}
	}
	content_free(&c);
	trace_request_free(&rq);
	trace_close(t);
	return hits * block_tokens;
}

static void replay_virtual(const struct synth_options *o, const struct replay_options *ro,
			   struct report *report)
{
	struct textbuf why = TEXTBUF_INIT;
	struct trace *t = synth_make(o);
	struct virtual_target v;

	assert_int_equal(virtual_open(&v), 0);
	assert_int_equal(report_start(report, "virtual", NULL), 0);
	report->progress = false;
	assert_int_equal(replay_run(t, &v.target, ro, report, &why), 0);
	report->unique_blocks = v.nr;
	virtual_close(&v);
	trace_close(t);
	textbuf_free(&why);
}

static void test_virtual_against_naive(void **state)
{
	const struct synth_options o = {.seed = 2, .nr_requests = 60, .agent_percent = 20};
	const struct replay_options ro = {.workers = 1, .block_tokens = 128};
	struct report report;

	replay_virtual(&o, &ro, &report);
	assert_int_equal(report.requests, 60);
	assert_true(report.cached_tokens > 0);
	assert_int_equal(report.cached_tokens, naive_hits(&o, 128));
	report_free(&report);
}

static void test_workers_and_limit(void **state)
{
	const struct synth_options o = {.seed = 4, .nr_requests = 400, .agent_percent = 20};
	const struct replay_options one = {.workers = 1, .block_tokens = 64, .limit = 250};
	const struct replay_options four = {.workers = 4, .block_tokens = 64, .limit = 250};
	struct report a, b;

	replay_virtual(&o, &one, &a);
	replay_virtual(&o, &four, &b);
	assert_int_equal(a.requests, 250);
	assert_int_equal(b.requests, 250);
	assert_int_equal(a.input_tokens, b.input_tokens);
	assert_int_equal(a.blocks, b.blocks);
	assert_int_equal(a.unique_blocks, b.unique_blocks);
	report_free(&a);
	report_free(&b);
}

static void test_counters(void **state)
{
	struct report r;

	assert_int_equal(report_start(&r, "mount", NULL), 0);
	report_counters(&r, "hit_tokens 5\ndram_read_bytes 100\nnvme_write_bytes 7\nx_read_bytes y\n",
			false);
	report_counters(&r, "dram_read_bytes 350\nnvme_write_bytes 7\nhbm0_read_bytes 9", true);
	assert_int_equal(r.nr_counters, 3);
	assert_string_equal(r.counter[0].name, "dram_read_bytes");
	assert_int_equal(r.counter[0].after - r.counter[0].before, 250);
	assert_int_equal(r.counter[1].after - r.counter[1].before, 0);
	assert_string_equal(r.counter[2].name, "hbm0_read_bytes");
	assert_int_equal(r.counter[2].after - r.counter[2].before, 9);
	report_free(&r);
}

static void test_percentiles(void **state)
{
	u64 sorted[100];

	for (u64 i = 0; i < 100; i++)
		sorted[i] = i + 1;
	assert_int_equal(report_percentile(sorted, 100, 50), 50);
	assert_int_equal(report_percentile(sorted, 100, 90), 90);
	assert_int_equal(report_percentile(sorted, 100, 99), 99);
	assert_int_equal(report_percentile(sorted, 100, 100), 100);
	assert_int_equal(report_percentile(sorted, 1, 50), 1);
	assert_int_equal(report_percentile(sorted, 3, 50), 2);
	assert_int_equal(report_percentile(NULL, 0, 50), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ids_are_stable),
		cmocka_unit_test(test_seeds_chain),
		cmocka_unit_test(test_output_follows),
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_virtual_against_naive),
		cmocka_unit_test(test_workers_and_limit),
		cmocka_unit_test(test_counters),
		cmocka_unit_test(test_percentiles),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
