/* SPDX-License-Identifier: Apache-2.0 */
/* Synthetic traces: reproducible, in order, of the promised shape, and the same when written out and
 * read back. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>
#include "allocator/base/hash.h"
#include "tools/kvreplay/synth.h"

static struct textbuf text_of(const struct synth_options *o, u64 *nr)
{
	struct textbuf text = TEXTBUF_INIT, why = TEXTBUF_INIT;
	struct trace_request rq = {0};
	struct trace *t = synth_make(o);

	assert_non_null(t);
	for (*nr = 0; trace_next(t, &rq, &why) > 0; ++*nr)
		trace_write_line(&rq, &text);
	assert_int_equal(text.err, 0);
	trace_request_free(&rq);
	textbuf_free(&why);
	trace_close(t);
	return text;
}

static void test_same_seed_same_trace(void **state)
{
	struct synth_options o = {.seed = 9, .nr_requests = 500, .agent_percent = 30};
	u64 nr;
	struct textbuf a = text_of(&o, &nr);
	struct textbuf b = text_of(&o, &nr), c;

	assert_int_equal(nr, 500);
	assert_int_equal(a.len, b.len);
	assert_memory_equal(a.text, b.text, a.len);
	/* Stable over machines and versions: whoever changes the generator changes this on purpose. */
	assert_int_equal(hash_bytes(a.text, a.len), 0x66bc8289e1862279ull);
	o.seed = 10;
	c = text_of(&o, &nr);
	assert_true(c.len != a.len || memcmp(c.text, a.text, a.len));
	textbuf_free(&a);
	textbuf_free(&b);
	textbuf_free(&c);
}

static void test_shape(void **state)
{
	const struct synth_options o = {.seed = 1, .nr_requests = 2000, .agent_percent = 50};
	struct textbuf why = TEXTBUF_INIT;
	struct trace_request rq = {0};
	struct trace *t = synth_make(&o);
	u64 last_ms = 0, tool_use = 0, shared = 0;

	while (trace_next(t, &rq, &why) > 0) {
		u64 ids = 0;

		assert_true(rq.timestamp_ms >= last_ms);
		last_ms = rq.timestamp_ms;
		for (size_t i = 0; i < rq.nr_runs; i++)
			ids += rq.runs[i].nr;
		assert_int_equal(rq.unit_tokens, 64);
		assert_int_equal(ids, rq.input_tokens / 64);
		assert_int_equal(rq.known_tokens, ids * 64);
		assert_true(rq.output_tokens > 0 && rq.session > 0);
		tool_use += rq.tool_use;
		shared += rq.nr_runs == 2;
	}
	assert_true(tool_use > 200 && tool_use < 1990);
	assert_true(shared > 1500);
	trace_request_free(&rq);
	textbuf_free(&why);
	trace_close(t);
}

/* A later turn of a session begins with the earlier one's blocks, unless its context was compacted. */
static void test_turns_extend_each_other(void **state)
{
	const struct synth_options o = {.seed = 3, .nr_requests = 300, .agent_percent = 0};
	struct trace_request first[64] = {0};
	struct textbuf why = TEXTBUF_INIT;
	struct trace_request rq = {0};
	struct trace *t = synth_make(&o);
	u64 followed = 0;

	while (trace_next(t, &rq, &why) > 0) {
		struct trace_request *f;

		if (rq.session >= ARRAY_SIZE(first))
			continue;
		f = &first[rq.session];
		if (f->nr_runs) {
			assert_int_equal(rq.runs[0].first, f->runs[0].first);
			assert_true(rq.known_tokens >= f->known_tokens);
			followed++;
			continue;
		}
		for (size_t i = 0; i < rq.nr_runs; i++)
			assert_int_equal(trace_add_run(f, rq.runs[i].first, rq.runs[i].nr), 0);
		f->known_tokens = rq.known_tokens;
	}
	assert_true(followed > 50);
	for (size_t i = 0; i < ARRAY_SIZE(first); i++)
		trace_request_free(&first[i]);
	trace_request_free(&rq);
	textbuf_free(&why);
	trace_close(t);
}

static void test_written_lines_read_back(void **state)
{
	const struct synth_options o = {.seed = 5, .nr_requests = 300, .agent_percent = 40};
	struct textbuf why = TEXTBUF_INIT, line = TEXTBUF_INIT, again = TEXTBUF_INIT;
	struct trace_request rq = {0}, back = {0};
	struct trace *t = synth_make(&o);

	while (trace_next(t, &rq, &why) > 0) {
		line.len = again.len = 0;
		trace_write_line(&rq, &line);
		assert_int_equal(trace_parse_line(line.text, line.len - 1, &back, &why), 0);
		trace_write_line(&back, &again);
		assert_string_equal(line.text, again.text);
	}
	trace_request_free(&rq);
	trace_request_free(&back);
	textbuf_free(&line);
	textbuf_free(&again);
	textbuf_free(&why);
	trace_close(t);
}

static void test_extremes(void **state)
{
	u64 nr;

	for (u32 percent = 0; percent <= 100; percent += 100) {
		struct synth_options o = {.seed = 0, .nr_requests = 1, .agent_percent = percent};
		struct textbuf text = text_of(&o, &nr);

		assert_int_equal(nr, 1);
		textbuf_free(&text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_seed_same_trace),
		cmocka_unit_test(test_shape),
		cmocka_unit_test(test_turns_extend_each_other),
		cmocka_unit_test(test_written_lines_read_back),
		cmocka_unit_test(test_extremes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
