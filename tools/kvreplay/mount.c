/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mount driven the way an engine drives it. Per request: a directory, its token ids, the question
 * how many are cached, a read of those bytes (timed, then checked), a write of the rest, the output
 * when asked for, and the removal of the names; the sealed blocks stay cached.
 *
 * A request that fails is counted and the next one runs, as an engine would go on without its cache;
 * only a mount that is gone ends the replay.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>
#include "allocator/base/clock.h"
#include "tools/common/cli.h"
#include "tools/common/mountroot.h"
#include "tools/kvreplay/replay.h"

#define MOUNT_IO_BYTES	 (1u << 20)
#define MOUNT_MAX_SHOWN	 5 /* failed requests that get a line of their own */

/* One request under way. */
struct mount_job {
	struct mount_target *m;
	struct replay_worker *w;
	struct report_record *record;
	char dir[4096 + 32];
	int kv; /* descriptor, or -1 */
};

static int job_path(const struct mount_job *job, const char *name, char *path, size_t size)
{
	int n = snprintf(path, size, "%s/%s", job->dir, name);

	return n < 0 || (size_t)n >= size ? -ENAMETOOLONG : 0;
}

static int job_open(const struct mount_job *job, const char *name, int flags)
{
	char path[4096 + 64];
	int err = job_path(job, name, path, sizeof(path));
	int fd;

	if (err)
		return err;
	fd = open(path, flags | O_CLOEXEC, 0666);
	return fd < 0 ? -errno : fd;
}

static int pwrite_all(int fd, const void *data, size_t bytes, off_t offset)
{
	const u8 *at = data;

	while (bytes) {
		ssize_t n = pwrite(fd, at, min(bytes, (size_t)MOUNT_IO_BYTES), offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		at += n;
		offset += n;
		bytes -= (size_t)n;
	}
	return 0;
}

static int pread_all(int fd, void *data, size_t bytes, off_t offset)
{
	u8 *at = data;

	while (bytes) {
		ssize_t n = pread(fd, at, bytes, offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -ENODATA;
		at += n;
		offset += n;
		bytes -= (size_t)n;
	}
	return 0;
}

/* Ids from token @from on, and the close that makes them count. */
static int put_tokens(struct mount_job *job, int flags, size_t from, size_t nr)
{
	int fd = job_open(job, "tokens", O_WRONLY | flags);
	int err;

	if (fd < 0)
		return fd;
	err = pwrite_all(fd, job->w->content.ids + from, nr * sizeof(u32),
			 (off_t)(from * sizeof(u32)));
	if (close(fd) && !err)
		err = -errno;
	return err;
}

static int ask_cached(struct mount_job *job)
{
	const struct content *c = &job->w->content;
	char text[24];
	ssize_t n = getxattr(job->dir, "user.kvc.cached_tokens", text, sizeof(text) - 1);
	u64 cached;

	if (n < 0)
		return -errno;
	text[n] = '\0';
	if (cli_parse_u64(text, &cached) || cached > c->nr_blocks * c->block_tokens ||
	    cached % c->block_tokens)
		return -EPROTO;
	job->record->cached_tokens = (u32)cached;
	return 0;
}

/* Blocks that fit into the worker's buffer, at least one. */
static size_t blocks_at_once(const struct mount_target *m)
{
	return max((size_t)MOUNT_IO_BYTES / m->block_bytes, (size_t)1);
}

static int need_buffer(struct mount_job *job)
{
	size_t bytes = blocks_at_once(job->m) * job->m->block_bytes;
	void *buf;

	if (job->w->buf)
		return 0;
	if (posix_memalign(&buf, KVC_PAGE_SIZE, bytes))
		return -ENOMEM;
	job->w->buf = buf;
	job->w->buf_bytes = bytes;
	return 0;
}

static int restore(struct mount_job *job)
{
	const struct content *c = &job->w->content;
	size_t block_bytes = job->m->block_bytes, step = blocks_at_once(job->m);
	size_t cached = job->record->cached_tokens / c->block_tokens;

	for (size_t b = 0; b < cached; b += step) {
		size_t nr = min(step, cached - b);
		u64 start = clock_mono_ns();
		int err = pread_all(job->kv, job->w->buf, nr * block_bytes, (off_t)(b * block_bytes));

		job->record->restore_ns += clock_mono_ns() - start;
		if (err)
			return err;
		job->record->restore_bytes += nr * block_bytes;
		for (size_t i = 0; i < nr; i++)
			if (!content_check(job->w->buf + i * block_bytes, c->seeds[b + i], 0,
					   block_bytes))
				job->record->bad_blocks++;
	}
	return 0;
}

/* Bytes of tokens [@from, @to), block by block, several blocks a write. */
static int store(struct mount_job *job, u64 from, u64 to)
{
	const struct content *c = &job->w->content;
	u64 token_bytes = job->m->o.token_bytes;

	while (from < to) {
		u64 end = min(to, (from / c->block_tokens + blocks_at_once(job->m)) *
					  c->block_tokens);
		u8 *at = job->w->buf;
		u64 start;
		int err;

		for (u64 t = from; t < end;) {
			u64 in_block = t % c->block_tokens;
			u64 n = min(end - t, c->block_tokens - in_block);

			content_fill(at, c->seeds[t / c->block_tokens], in_block * token_bytes,
				     n * token_bytes);
			at += n * token_bytes;
			t += n;
		}
		start = clock_mono_ns();
		err = pwrite_all(job->kv, job->w->buf, (end - from) * token_bytes,
				 (off_t)(from * token_bytes));
		job->record->write_ns += clock_mono_ns() - start;
		if (err)
			return err;
		job->record->write_bytes += (end - from) * token_bytes;
		from = end;
	}
	return 0;
}

/* The output as it comes: bytes block by block, then the ids behind those of the input. */
static int decode(struct mount_job *job)
{
	struct content *c = &job->w->content;
	size_t input = c->nr_blocks * c->block_tokens;
	u32 output = job->w->rq.output_tokens;
	int err;

	if (!output)
		return 0;
	if (setxattr(job->dir, "user.kvc.state", "decoding", 8, 0) && errno != EOPNOTSUPP)
		return -errno;
	err = content_add_output(c, job->record->index, output);
	for (size_t at = input; !err && at < input + output; at += c->block_tokens)
		err = store(job, at, min(at + c->block_tokens, input + output));
	if (err)
		return err;
	job->record->output_tokens = output;
	return put_tokens(job, 0, input, output);
}

static int use_kv(struct mount_job *job)
{
	const struct content *c = &job->w->content;
	size_t tokens = c->nr_blocks * c->block_tokens;
	int err;

	/* Not O_EXCL: a kv that is created so starts empty, this one shows what was attached. */
	job->kv = job_open(job, "kv", O_RDWR | O_CREAT);
	if (job->kv < 0)
		return job->kv;
	err = restore(job) ?: store(job, job->record->cached_tokens, tokens);
	if (!err)
		job->record->stored_tokens = (u32)tokens;
	if (!err && job->m->o.decode)
		err = decode(job);
	if (close(job->kv) && !err)
		err = -errno;
	return err;
}

static int run_job(struct mount_job *job)
{
	const struct content *c = &job->w->content;

	return put_tokens(job, O_CREAT | O_EXCL, 0, c->nr_blocks * c->block_tokens) ?:
	       ask_cached(job) ?: use_kv(job);
}

static int remove_sequence(struct mount_job *job)
{
	static const char *const names[] = {"kv", "tokens"};
	char path[4096 + 64];
	int err = 0;

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (!job_path(job, names[i], path, sizeof(path)) && unlink(path) &&
		    errno != ENOENT)
			err = -errno;
	if (rmdir(job->dir) && !err)
		err = -errno;
	return err;
}

static void tell_failure(const struct mount_job *job, int err)
{
	static atomic_int shown;
	int before = atomic_fetch_add(&shown, 1);
	const char *why = strerror(-err);

	if (before > MOUNT_MAX_SHOWN)
		return;
	if (before == MOUNT_MAX_SHOWN) {
		cli_error("more requests failed; the count is in the report");
		return;
	}
	if (err == -EPROTO)
		why = "user.kvc.cached_tokens is no number of whole blocks of the prompt";
	else if (err == -ENODATA)
		why = "no user.kvc attribute, or kv is shorter than its cached tokens";
	cli_error("request %llu (line %llu of the trace): %s: %s",
		  (unsigned long long)job->record->index, (unsigned long long)job->w->rq.line,
		  job->dir, why);
}

/* Nothing that comes can succeed: the daemon died, or the namespace went away under us. */
static bool mount_gone(const struct mount_target *m, int err)
{
	return err == -ENOTCONN || err == -ECONNABORTED || (err && access(m->dir, F_OK));
}

static int mount_run(struct replay_target *target, struct replay_worker *w,
		     struct report_record *record)
{
	struct mount_target *m = container_of(target, struct mount_target, target);
	struct mount_job job = {.m = m, .w = w, .record = record, .kv = -1};
	int err = need_buffer(&job), late;

	if (err || !w->content.nr_blocks)
		return err;
	snprintf(job.dir, sizeof(job.dir), "%s/r%07llu", m->dir,
		 (unsigned long long)record->index);
	if (mkdir(job.dir, 0777)) {
		err = -errno;
	} else {
		err = run_job(&job);
		late = remove_sequence(&job);
		err = err ? err : late;
	}
	record->err = err;
	if (err)
		tell_failure(&job, err);
	return mount_gone(m, err) ? err : 0;
}

static int write_geometry(const struct mount_target *m)
{
	struct textbuf text = TEXTBUF_INIT;
	char path[4096 + 16], geometry[128];
	int fd, n, err;

	snprintf(path, sizeof(path), "%s/.geometry", m->dir);
	n = snprintf(geometry, sizeof(geometry),
		     "layers=1 token_bytes=%llu block_tokens=%u layout=opaque\n",
		     (unsigned long long)m->o.token_bytes, m->o.block_tokens);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0)
		return -errno;
	err = pwrite_all(fd, geometry, (size_t)n, 0);
	if (close(fd) && !err)
		err = -errno;
	if (!err)
		err = mountroot_read_file(path, &text);
	/* The daemon adds computed lines to a geometry that it took; nobody else does. */
	if (!err && !strstr(text.text ? text.text : "", "block_bytes="))
		err = -ENODEV;
	textbuf_free(&text);
	return err;
}

int mount_open(struct mount_target *m, const struct mount_options *o)
{
	int n, err;

	*m = (struct mount_target){.target.run = mount_run, .o = *o};
	m->block_bytes = o->token_bytes * o->block_tokens;
	n = o->name ? snprintf(m->dir, sizeof(m->dir), "%s/%s", o->mount, o->name)
		    : snprintf(m->dir, sizeof(m->dir), "%s/kvreplay-%d", o->mount, getpid());
	if (n < 0 || (size_t)n >= sizeof(m->dir)) {
		cli_error("%s: name too long", o->mount);
		return -ENAMETOOLONG;
	}
	m->made_dir = !mkdir(m->dir, 0777);
	if (!m->made_dir && (errno != EEXIST || !o->name)) {
		err = -errno;
		cli_error("%s: the namespace can not be made: %s", m->dir, strerror(-err));
		return err;
	}
	err = write_geometry(m);
	if (!err)
		return 0;
	cli_error("%s: %s", m->dir,
		  err == -ENODEV ? "not on a kvcachefs mount (its .geometry was not taken)" :
		  err == -EPERM	 ? "is a namespace with another geometry; choose another --namespace"
				 : strerror(-err));
	mount_close(m);
	return err;
}

void mount_close(struct mount_target *m)
{
	char path[4096 + 16];

	if (m->o.keep || !m->made_dir)
		return;
	snprintf(path, sizeof(path), "%s/.geometry", m->dir);
	unlink(path);
	if (rmdir(m->dir) && errno != ENOTCONN && errno != ENOENT)
		cli_error("%s: the namespace can not be removed: %s", m->dir, strerror(errno));
}
