/* SPDX-License-Identifier: Apache-2.0 */
/* The trace reader: both forms, what is wrong with a line and where, gzip whole and cut, and random
 * damage, after which it may refuse but never return a request that breaks its own promises. */
#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <zlib.h>
#include "allocator/base/hash.h"
#include "lib/test.h"
#include "tools/kvreplay/trace.h"

static const char chat_line[] =
	"{\"timestamp\": 3000, \"input_length\": 1100, \"output_length\": 7, \"hash_ids\": [5, 6, 9]}";
static const char agent_line[] =
	"{\"timestamp\":12,\"session\":567,\"input_length\":19105,\"output_length\":297,"
	"\"stop\":\"tool_use\",\"hash_runs\":[[1329968,185],[1890709,113]]}";

struct file {
	char path[PATH_MAX];
};

static struct file put_file(const void *data, size_t bytes)
{
	struct file f;
	int fd;

	test_tmp(f.path, "kvc_test_trace.XXXXXX");
	fd = mkstemp(f.path);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, bytes), bytes);
	close(fd);
	return f;
}

static int parse(const char *text, struct trace_request *rq)
{
	struct textbuf why = TEXTBUF_INIT;
	int err = trace_parse_line(text, strlen(text), rq, &why);

	assert_true(!err || why.len);
	textbuf_free(&why);
	return err;
}

static void test_hash_ids(void **state)
{
	struct trace_request rq = {0};

	assert_int_equal(parse(chat_line, &rq), 0);
	assert_int_equal(rq.timestamp_ms, 3000);
	assert_int_equal(rq.input_tokens, 1100);
	assert_int_equal(rq.known_tokens, 1100);
	assert_int_equal(rq.output_tokens, 7);
	assert_int_equal(rq.unit_tokens, 512);
	assert_false(rq.tool_use);
	assert_int_equal(rq.nr_runs, 2);
	assert_int_equal(rq.runs[0].first, 5);
	assert_int_equal(rq.runs[0].nr, 2);
	assert_int_equal(rq.runs[1].first, 9);
	trace_request_free(&rq);
}

static void test_hash_runs(void **state)
{
	struct trace_request rq = {0};

	assert_int_equal(parse(agent_line, &rq), 0);
	assert_int_equal(rq.session, 567);
	assert_int_equal(rq.known_tokens, 298 * 64);
	assert_int_equal(rq.unit_tokens, 64);
	assert_true(rq.tool_use);
	assert_int_equal(rq.nr_runs, 2);
	assert_int_equal(rq.runs[1].first, 1890709);
	assert_int_equal(rq.runs[1].nr, 113);
	/* The next line starts clean. */
	assert_int_equal(parse(chat_line, &rq), 0);
	assert_int_equal(rq.session, 0);
	assert_int_equal(rq.nr_runs, 2);
	trace_request_free(&rq);
}

static void test_bad_lines(void **state)
{
	static const char *const bad[] = {
		"",
		"{",
		"[]",
		"null",
		"{} x",
		"{\"timestamp\":1,\"input_length\":64,\"output_length\":1}",
		"{\"timestamp\":1,\"input_length\":64,\"output_length\":1,\"hash_ids\":5}",
		"{\"timestamp\":1,\"input_length\":64,\"output_length\":1,\"hash_ids\":[]}",
		"{\"timestamp\":1,\"input_length\":64,\"output_length\":1,\"hash_ids\":[1,2]}",
		"{\"timestamp\":1,\"input_length\":64,\"output_length\":1,\"hash_ids\":[-1]}",
		"{\"timestamp\":1,\"input_length\":64,\"output_length\":1,\"hash_ids\":[1.5]}",
		"{\"timestamp\":1,\"input_length\":64,\"output_length\":1,\"hash_ids\":[1e300]}",
		"{\"timestamp\":1,\"input_length\":64,\"output_length\":1,\"hash_ids\":[\"1\"]}",
		"{\"timestamp\":-1,\"input_length\":64,\"output_length\":1,\"hash_ids\":[1]}",
		"{\"timestamp\":1,\"input_length\":1e12,\"output_length\":1,\"hash_ids\":[1]}",
		"{\"timestamp\":1,\"input_length\":64,\"output_length\":-1,\"hash_ids\":[1]}",
		"{\"timestamp\":1,\"output_length\":1,\"hash_ids\":[1]}",
		"{\"timestamp\":1,\"input_length\":64,\"output_length\":1,\"hash_runs\":[1]}",
		"{\"timestamp\":1,\"input_length\":64,\"output_length\":1,\"hash_runs\":[[1]]}",
		"{\"timestamp\":1,\"input_length\":64,\"output_length\":1,\"hash_runs\":[[1,0]]}",
		"{\"timestamp\":1,\"input_length\":64,\"output_length\":1,\"hash_runs\":[[1,2]]}",
		"{\"timestamp\":1,\"input_length\":64,\"output_length\":1,\"hash_runs\":[[1,1,1]]}",
		"{\"timestamp\":1,\"input_length\":64,\"output_length\":1,\"hash_runs\":"
		"[{\"a\":1,\"b\":1}]}",
		"{\"timestamp\":1,\"session\":\"x\",\"input_length\":64,\"output_length\":1,"
		"\"hash_runs\":[[1,1]]}",
	};
	struct trace_request rq = {0};

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		if (parse(bad[i], &rq) != -EINVAL)
			fail_msg("accepted: %s", bad[i]);
	trace_request_free(&rq);
}

/* Reads all; returns trace_next()'s last answer and how many requests came. */
static int read_all(const char *path, u64 *nr, char *why, size_t size)
{
	struct textbuf text = TEXTBUF_INIT;
	struct trace_request rq = {0};
	struct trace *t;
	int ret = trace_open(path, &t, &text);

	*nr = 0;
	if (!ret) {
		while ((ret = trace_next(t, &rq, &text)) > 0)
			++*nr;
		if (ret < 0)
			assert_int_equal(trace_next(t, &rq, &text), ret);
		trace_close(t);
	}
	snprintf(why, size, "%s", text.text ? text.text : "");
	textbuf_free(&text);
	trace_request_free(&rq);
	return ret;
}

static void test_line_numbers(void **state)
{
	char text[1024], why[512];
	struct file f;
	u64 nr;
	int n = snprintf(text, sizeof(text), "%s\n\n  \r\n%s\n{\"timestamp\":}\n%s\n", chat_line,
			 agent_line, chat_line);

	f = put_file(text, (size_t)n);
	assert_int_equal(read_all(f.path, &nr, why, sizeof(why)), -EINVAL);
	assert_int_equal(nr, 2);
	assert_non_null(strstr(why, f.path));
	assert_non_null(strstr(why, ":5: not a JSON object"));
	unlink(f.path);
}

static void test_last_line_without_newline(void **state)
{
	char why[512];
	struct file f = put_file(chat_line, strlen(chat_line));
	u64 nr;

	assert_int_equal(read_all(f.path, &nr, why, sizeof(why)), 0);
	assert_int_equal(nr, 1);
	unlink(f.path);
	f = put_file("", 0);
	assert_int_equal(read_all(f.path, &nr, why, sizeof(why)), 0);
	assert_int_equal(nr, 0);
	unlink(f.path);
	assert_int_equal(read_all("/nonexistent/trace", &nr, why, sizeof(why)), -ENOENT);
	assert_non_null(strstr(why, "/nonexistent/trace"));
}

/* A NUL inside a line is malformed, not the end of the line. */
static void test_nul(void **state)
{
	char text[256], why[512];
	struct file f;
	u64 nr;
	size_t len = (size_t)snprintf(text, sizeof(text), "%s\n", chat_line);

	text[20] = '\0';
	f = put_file(text, len);
	assert_int_equal(read_all(f.path, &nr, why, sizeof(why)), -EINVAL);
	assert_non_null(strstr(why, ":1:"));
	unlink(f.path);
}

#define GZ_LINES 40

static struct file put_gzip(u8 *bytes, size_t size, size_t *len)
{
	struct file f = put_file("", 0);
	gzFile gz = gzopen(f.path, "wb");
	FILE *in;

	for (int i = 0; i < GZ_LINES; i++)
		gzprintf(gz, "{\"timestamp\":%d,\"session\":%d,\"input_length\":640,"
			     "\"output_length\":3,\"stop\":\"\",\"hash_runs\":[[%d,10]]}\n",
			 i * 7919, i, i * 104729);
	assert_int_equal(gzclose(gz), Z_OK);
	in = fopen(f.path, "rb");
	*len = fread(bytes, 1, size, in);
	fclose(in);
	return f;
}

static void test_gzip_cut_anywhere(void **state)
{
	char why[512];
	u8 bytes[16384];
	size_t len;
	struct file f = put_gzip(bytes, sizeof(bytes), &len);
	u64 nr;

	assert_int_equal(read_all(f.path, &nr, why, sizeof(why)), 0);
	assert_int_equal(nr, GZ_LINES);
	unlink(f.path);
	for (size_t cut = 2; cut < len; cut++) {
		f = put_file(bytes, cut);
		if (read_all(f.path, &nr, why, sizeof(why)) != -EIO || !strstr(why, "ends early"))
			fail_msg("cut at %zu of %zu: %s", cut, len, why);
		unlink(f.path);
	}
}

static void test_gzip_damaged(void **state)
{
	char why[512];
	u8 bytes[16384];
	size_t len;
	struct file f = put_gzip(bytes, sizeof(bytes), &len);
	u64 nr;

	unlink(f.path);
	for (size_t at = 10; at < len; at++) {
		bytes[at] ^= 0x10;
		f = put_file(bytes, len);
		if (read_all(f.path, &nr, why, sizeof(why)) >= 0 || !*why)
			fail_msg("flip at %zu of %zu went unnoticed", at, len);
		unlink(f.path);
		bytes[at] ^= 0x10;
	}
}

static void check_promises(const struct trace_request *rq)
{
	u64 ids = 0;

	for (size_t i = 0; i < rq->nr_runs; i++) {
		assert_true(rq->runs[i].nr > 0);
		ids += rq->runs[i].nr;
	}
	assert_true(rq->unit_tokens == 64 || rq->unit_tokens == 512);
	assert_true(rq->input_tokens <= TRACE_MAX_TOKENS);
	assert_true(rq->known_tokens <= rq->input_tokens);
	assert_true(ids * rq->unit_tokens >= rq->known_tokens);
}

/* Mutations that stay near JSON: a byte replaced, one of JSON's own characters put in, a piece cut
 * out or doubled. */
static size_t mutate(char *text, size_t len, size_t size, u64 *random)
{
	static const char own[] = "{}[],:\"0123456789-.eE \\tn";
	u64 r = *random = hash_u64(*random + 0x9e3779b97f4a7c15ull);
	size_t at = (r >> 8) % len, piece = (r >> 32) % 12 + 1;

	switch (r & 3) {
	case 0:
		text[at] = (char)(r >> 40);
		return len;
	case 1:
		text[at] = own[(r >> 40) % (sizeof(own) - 1)];
		return len;
	case 2:
		piece = min(piece, len - at);
		if (piece == len)
			return len;
		memmove(text + at, text + at + piece, len - at - piece);
		return len - piece;
	default:
		piece = min(piece, len - at);
		piece = min(piece, size - len);
		memmove(text + at + piece, text + at, len - at);
		return len + piece;
	}
}

static void test_random_damage(void **state)
{
	struct trace_request rq = {0};
	u64 random = 42, accepted = 0;

	for (int round = 0; round < 40000; round++) {
		const char *line = round & 1 ? chat_line : agent_line;
		struct textbuf why = TEXTBUF_INIT;
		size_t len = strlen(line);
		char text[512];
		char *exact;
		int ret;

		memcpy(text, line, len);
		for (int i = 0; i <= round % 4; i++)
			len = mutate(text, len, sizeof(text), &random);
		/* In memory of exactly its size, so that a sanitizer sees a read behind it. */
		exact = malloc(len);
		memcpy(exact, text, len);
		ret = trace_parse_line(exact, len, &rq, &why);
		free(exact);
		assert_true(ret == 0 || (ret == -EINVAL && why.len));
		if (!ret) {
			accepted++;
			check_promises(&rq);
		}
		textbuf_free(&why);
	}
	assert_true(accepted > 1000);
	trace_request_free(&rq);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hash_ids),
		cmocka_unit_test(test_hash_runs),
		cmocka_unit_test(test_bad_lines),
		cmocka_unit_test(test_line_numbers),
		cmocka_unit_test(test_last_line_without_newline),
		cmocka_unit_test(test_nul),
		cmocka_unit_test(test_gzip_cut_anywhere),
		cmocka_unit_test(test_gzip_damaged),
		cmocka_unit_test(test_random_damage),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
