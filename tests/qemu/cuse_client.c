/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of the character device, run in the guest:
 *
 *	cuse_client [-u UID:GID[:GROUP]] CHECK...
 *	cuse_client -u UID:GID[:GROUP] -- COMMAND [ARGUMENT...]
 *
 * Prints a line "kvc: ok CHECK" or "kvc: not ok CHECK" for each, and why; as user UID with -u. Each
 * check runs in a process of its own, so that what it leaves open is closed. The second form runs
 *any command as that user.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "qemu/cuse_client.h"

#define CHECK_SECONDS 60

static bool failed;

void complain(const char *file, int line, const char *fmt, ...)
{
	va_list args;

	failed = true;
	printf("kvc: # %s:%d: ", strrchr(file, '/') ? strrchr(file, '/') + 1 : file, line);
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

/* ---- batches ---- */

void batch_init(struct batch *b, uint32_t nr_cmds)
{
	memset(b, 0, sizeof(*b));
	b->head.magic = KVC_BATCH_MAGIC;
	b->head.abi = KVC_ABI_VERSION;
	b->head.nr_cmds = nr_cmds;
	b->cmds = (struct kvc_cmd *)b->body;
	for (uint32_t i = 0; i < nr_cmds; i++)
		b->cmds[i].cookie = 1000 + i;
}

void *batch_at(struct batch *b, struct kvc_ref ref)
{
	return b->body + b->head.nr_cmds * sizeof(struct kvc_cmd) + ref.off;
}

struct kvc_ref batch_put(struct batch *b, const void *data, uint32_t bytes)
{
	struct kvc_ref ref = {.off = b->used, .bytes = bytes};

	b->used += (bytes + 7) & ~7u;
	if (data)
		memcpy(batch_at(b, ref), data, bytes);
	return ref;
}

int batch_run(struct batch *b, int fd)
{
	size_t bytes = sizeof(b->head) + b->head.nr_cmds * sizeof(struct kvc_cmd) + b->used;

	b->head.bytes = (uint32_t)bytes;
	return ioctl(fd, KVC_IOC_BATCH(bytes), &b->head) ? -errno : 0;
}

int open_device(void)
{
	int fd = open(DEVICE, O_RDWR | O_CLOEXEC);

	if (fd >= 0)
		return fd;
	complain(__FILE__, __LINE__, "open " DEVICE ": %s", strerror(errno));
	exit(1);
}

/* ---- commands ---- */

/* The first command's answer. */
static int run_first(struct batch *b, int fd, struct kvc_cmd *out)
{
	int err = batch_run(b, fd);

	if (err)
		return err;
	check(b->cmds[0].cookie == 1000, "the cookie came back as %llu",
	      (unsigned long long)b->cmds[0].cookie);
	if (out)
		*out = b->cmds[0];
	return b->cmds[0].result;
}

int seq_simple(int fd, struct kvc_cmd *cmd)
{
	struct batch b;

	batch_init(&b, 1);
	cmd->cookie = 1000;
	b.cmds[0] = *cmd;
	return run_first(&b, fd, cmd);
}

int seq_open(int fd, const char *path, uint32_t flags, struct kvc_cmd *out)
{
	struct batch b;

	batch_init(&b, 1);
	b.cmds[0].op = KVC_OP_OPEN;
	b.cmds[0].open.path = batch_put(&b, path, (uint32_t)strlen(path));
	b.cmds[0].open.flags = flags;
	return run_first(&b, fd, out);
}

int seq_query(int fd, uint32_t handle, struct kvc_op_query *out)
{
	struct kvc_cmd cmd = {.op = KVC_OP_QUERY, .handle = handle};
	int err = seq_simple(fd, &cmd);

	*out = cmd.query;
	return err;
}

int seq_map(int fd, uint32_t handle, struct kvc_op_map *out)
{
	uint32_t room = 64 * sizeof(struct kvc_extent), nr = 0;
	struct kvc_extent ext;
	struct kvc_cmd cmd;
	struct batch b;
	int err;

	batch_init(&b, 1);
	b.cmds[0].op = KVC_OP_MAP;
	b.cmds[0].handle = handle;
	b.cmds[0].map.nr_blocks = KVC_ALL;
	b.cmds[0].map.extents = batch_put(&b, NULL, room);
	err = run_first(&b, fd, &cmd);
	if (err)
		return err;
	*out = cmd.map;
	check(out->extents.bytes % sizeof(ext) == 0 && out->extents.bytes <= room,
	      "%u bytes of extents", out->extents.bytes);
	for (uint32_t off = 0; off < out->extents.bytes; off += sizeof(ext)) {
		memcpy(&ext, (uint8_t *)batch_at(&b, out->extents) + off, sizeof(ext));
		check(ext.off % 4096 == 0, "an extent at %llu", (unsigned long long)ext.off);
		nr += ext.nr_blocks;
	}
	check(nr == out->nr_blocks, "extents of %u blocks for %llu", nr,
	      (unsigned long long)out->nr_blocks);
	return 0;
}

int seq_match(int fd, uint32_t handle, uint32_t nr_ids, uint32_t flags, struct kvc_op_match *out)
{
	uint32_t ids[1024];
	struct kvc_cmd cmd;
	struct batch b;
	int err;

	for (uint32_t i = 0; i < nr_ids; i++)
		ids[i] = i * 7 + 1;
	batch_init(&b, 1);
	b.cmds[0].op = KVC_OP_MATCH;
	b.cmds[0].handle = handle;
	b.cmds[0].match.flags = flags;
	b.cmds[0].match.ids = batch_put(&b, ids, nr_ids * 4);
	err = run_first(&b, fd, &cmd);
	if (!err)
		*out = cmd.match;
	return err;
}

int seq_close(int fd, uint32_t handle)
{
	struct kvc_cmd cmd = {.op = KVC_OP_CLOSE, .handle = handle};

	return seq_simple(fd, &cmd);
}

/* ---- through the mount ---- */

uint8_t block_byte(unsigned int nr)
{
	return (uint8_t)(0x41 + nr);
}

int write_kv(const char *path, unsigned int from, unsigned int to)
{
	static uint8_t block[BLOCK_BYTES];
	char name[128];
	int fd, err = 0;

	snprintf(name, sizeof(name), MOUNT "/%s/kv", path);
	fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	for (unsigned int nr = from; nr < to && !err; nr++) {
		memset(block, block_byte(nr), sizeof(block));
		if (pwrite(fd, block, sizeof(block), (off_t)nr * BLOCK_BYTES) != BLOCK_BYTES)
			err = -errno;
	}
	return close(fd) && !err ? -errno : err;
}

bool kv_is(const char *path, unsigned int nr, uint8_t byte)
{
	static uint8_t block[BLOCK_BYTES];
	char name[128];
	ssize_t n = -1;
	int fd;

	snprintf(name, sizeof(name), MOUNT "/%s/kv", path);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = pread(fd, block, sizeof(block), (off_t)nr * BLOCK_BYTES);
		close(fd);
	}
	for (size_t i = 0; i < sizeof(block); i++)
		if (block[i] != byte)
			return false;
	return n == BLOCK_BYTES;
}

long pins_shown(void)
{
	FILE *f = fopen(MOUNT "/.kvc/sessions", "re");
	long sum = 0, pins;
	char line[256];

	check(f, ".kvc/sessions: %s", strerror(errno));
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "%*d %*u %ld", &pins) == 1)
			sum += pins;
	if (f)
		fclose(f);
	return sum;
}

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

bool wait_until(bool (*what)(void *arg), void *arg)
{
	double end = now() + 30;

	while (!what(arg)) {
		if (now() > end)
			return false;
		poll(NULL, 0, 10);
	}
	return true;
}

void guest(const char *command)
{
	char line[256];
	int status;

	fflush(stdout);
	snprintf(line, sizeof(line), "/init daemon %s", command);
	status = system(line);
	check(status == 0, "%s: status %d", line, status);
}

/* ---- running ---- */

static void become(const char *spec)
{
	unsigned int uid = 0, gid = 0, group = 0;
	int n = sscanf(spec, "%u:%u:%u", &uid, &gid, &group);
	gid_t groups[1] = {group};

	if (n < 2 || setgroups(n == 3, groups) || setgid(gid) || setuid(uid)) {
		perror(spec);
		exit(2);
	}
}

static const struct named_check *find(const char *name)
{
	const struct named_check *const tables[] = {op_checks, way_checks};

	for (size_t t = 0; t < sizeof(tables) / sizeof(tables[0]); t++)
		for (const struct named_check *c = tables[t]; c->name; c++)
			if (!strcmp(c->name, name))
				return c;
	fprintf(stderr, "no check %s\n", name);
	exit(2);
}

static bool passes(const struct named_check *c)
{
	pid_t child = fork();
	int status = -1;

	if (!child) {
		alarm(CHECK_SECONDS);
		c->run();
		fflush(stdout);
		_exit(failed);
	}
	if (waitpid(child, &status, 0) != child)
		return false;
	if (WIFSIGNALED(status))
		printf("kvc: # %s: signal %d\n", c->name, WTERMSIG(status));
	return status == 0;
}

int main(int argc, char **argv)
{
	int first = 1, bad = 0;

	if (argc > 2 && !strcmp(argv[1], "-u")) {
		become(argv[2]);
		first = 3;
	}
	if (first + 1 < argc && !strcmp(argv[first], "--")) {
		execvp(argv[first + 1], argv + first + 1);
		perror(argv[first + 1]);
		return 2;
	}
	for (int i = first; i < argc; i++) {
		const struct named_check *c = find(argv[i]);
		bool good = passes(c);

		printf("kvc: %s %s\n", good ? "ok" : "not ok", c->name);
		fflush(stdout);
		bad += !good;
	}
	return bad ? 1 : 0;
}
