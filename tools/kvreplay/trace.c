/* SPDX-License-Identifier: Apache-2.0 */
/* The reader: lines out of a plain or gzip file, or requests out of an array. */
#include <errno.h>
#include <string.h>
#include <zlib.h>
#include "tools/kvreplay/trace.h"

#define TRACE_CHUNK_BYTES (1u << 18)

struct trace {
	gzFile file;	/* NULL: requests come from the array */
	char *path;
	char *buf;	/* unread bytes are buf[start, end) */
	size_t start, end, size;
	bool at_end;
	int failed;	/* errno of the first error, returned ever after */
	u64 line;	/* lines taken so far */
	struct trace_request *requests; /* owned */
	size_t nr, next;
};

int trace_open(const char *path, struct trace **trace, struct textbuf *why)
{
	struct trace *t = calloc(1, sizeof(*t));

	if (t)
		t->path = strdup(path);
	if (!t || !t->path) {
		free(t);
		textbuf_printf(why, "%s: out of memory", path);
		return -ENOMEM;
	}
	errno = 0;
	t->file = gzopen(path, "rb");
	if (!t->file) {
		int err = errno ? -errno : -ENOMEM;

		textbuf_printf(why, "%s: %s", path, strerror(-err));
		trace_close(t);
		return err;
	}
	gzbuffer(t->file, TRACE_CHUNK_BYTES);
	*trace = t;
	return 0;
}

struct trace *trace_from_array(struct trace_request *requests, size_t nr)
{
	struct trace *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->requests = requests;
	t->nr = nr;
	return t;
}

void trace_close(struct trace *t)
{
	if (!t)
		return;
	if (t->file)
		gzclose_r(t->file);
	for (size_t i = 0; i < t->nr; i++)
		trace_request_free(&t->requests[i]);
	free(t->requests);
	free(t->buf);
	free(t->path);
	free(t);
}

static int fail(struct trace *t, int err)
{
	t->failed = err;
	return err;
}

static int stream_error(struct trace *t, struct textbuf *why)
{
	int code;
	const char *text = gzerror(t->file, &code);

	if (code == Z_BUF_ERROR)
		textbuf_printf(why, "%s: the gzip stream ends early, after %llu whole lines (an "
				    "interrupted download?)", t->path, (unsigned long long)t->line);
	else if (code == Z_ERRNO)
		textbuf_printf(why, "%s: %s", t->path, strerror(errno));
	else
		textbuf_printf(why, "%s: damaged after %llu whole lines: %s", t->path,
			       (unsigned long long)t->line, text);
	return fail(t, -EIO);
}

static int make_room(struct trace *t, struct textbuf *why)
{
	size_t size = t->size ? 2 * t->size : 2 * TRACE_CHUNK_BYTES;
	char *buf;

	if (t->start) {
		memmove(t->buf, t->buf + t->start, t->end - t->start);
		t->end -= t->start;
		t->start = 0;
	}
	if (t->size - t->end >= TRACE_CHUNK_BYTES)
		return 0;
	if (t->end > TRACE_MAX_LINE) {
		textbuf_printf(why, "%s:%llu: line longer than %u bytes", t->path,
			       (unsigned long long)t->line + 1, TRACE_MAX_LINE);
		return fail(t, -EINVAL);
	}
	buf = realloc(t->buf, size);
	if (!buf) {
		textbuf_printf(why, "%s: out of memory", t->path);
		return fail(t, -ENOMEM);
	}
	t->buf = buf;
	t->size = size;
	return 0;
}

/* More bytes into the buffer; sets at_end at a proper end of the stream. */
static int fill(struct trace *t, struct textbuf *why)
{
	int err = make_room(t, why);
	int code, n;

	if (err)
		return err;
	n = gzread(t->file, t->buf + t->end, TRACE_CHUNK_BYTES);
	if (n < 0)
		return stream_error(t, why);
	if (!n) {
		gzerror(t->file, &code);
		if (code != Z_OK && code != Z_STREAM_END)
			return stream_error(t, why);
		t->at_end = true;
	}
	t->end += (size_t)n;
	return 0;
}

/* 1 with a line of @len bytes, without its newline; 0 at the end. */
static int next_line(struct trace *t, const char **line, size_t *len, struct textbuf *why)
{
	size_t searched = 0;

	for (;;) {
		char *from = t->buf + t->start;
		char *newline = t->end - t->start > searched ?
				memchr(from + searched, '\n', t->end - t->start - searched) : NULL;
		int err;

		if (newline || (t->at_end && t->end > t->start)) {
			*line = from;
			*len = newline ? (size_t)(newline - from) : t->end - t->start;
			t->start += *len + (newline ? 1 : 0);
			t->line++;
			return 1;
		}
		if (t->at_end)
			return 0;
		searched = t->end - t->start;
		err = fill(t, why);
		if (err)
			return err;
	}
}

static bool blank(const char *line, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
			return false;
	return true;
}

/* Copies, so that the array's requests stay whole until trace_close(). */
static int next_of_array(struct trace *t, struct trace_request *rq)
{
	const struct trace_request *from;
	struct trace_run *runs = rq->runs;
	size_t size = rq->runs_size;

	if (t->next == t->nr)
		return 0;
	from = &t->requests[t->next++];
	if (size < from->nr_runs) {
		runs = reallocarray(rq->runs, from->nr_runs, sizeof(*runs));
		if (!runs)
			return -ENOMEM;
		size = from->nr_runs;
	}
	*rq = *from;
	rq->runs = runs;
	rq->runs_size = size;
	if (from->nr_runs)
		memcpy(runs, from->runs, from->nr_runs * sizeof(*runs));
	return 1;
}

int trace_next(struct trace *t, struct trace_request *rq, struct textbuf *why)
{
	struct textbuf what = TEXTBUF_INIT;
	const char *line = NULL;
	size_t len = 0;
	int ret;

	if (t->failed)
		return t->failed;
	if (!t->file)
		return next_of_array(t, rq);
	do {
		ret = next_line(t, &line, &len, why);
		if (ret <= 0)
			return ret;
	} while (blank(line, len));
	ret = trace_parse_line(line, len, rq, &what);
	rq->line = t->line;
	if (ret) {
		textbuf_printf(why, "%s:%llu: %s", t->path, (unsigned long long)t->line,
			       what.text ? what.text : strerror(-ret));
		fail(t, ret);
	}
	textbuf_free(&what);
	return ret ? ret : 1;
}
