/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client for the tests of sessions: each command is one thing that an engine does. What it writes can
 * be told from the seed, the block and the place in it, so that whoever maps knows what must be there.
 *
 *	session_client COMMAND MOUNT PATH [ARGUMENT...]
 *
 * Prints one line per fact; exit status 1: something failed, said on stderr; 3: wrong bytes.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "allocator/base/clock.h"
#include "fs/uapi/kvc.h"

#define MAX_TOKENS (1u << 20)
#define MAX_HOARD  256u

static struct kvc *kvc;
static u32 ids[MAX_TOKENS];

static int check(int err, const char *what)
{
	if (err >= 0)
		return err;
	fprintf(stderr, "session_client: %s: %s\n", what, strerror(-err));
	exit(1);
}

static u64 number(char **argv, int i, u64 otherwise)
{
	for (int k = 0; k <= i; k++)
		if (!argv[k])
			return otherwise;
	return strtoull(argv[i], NULL, 0);
}

static u64 mix(u64 x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9ull;
	x ^= x >> 27;
	return x;
}

static void make_ids(u32 seed, u32 nr)
{
	for (u32 i = 0; i < nr; i++)
		ids[i] = (u32)(mix((u64)seed << 32 | i) % 50000);
}

/* Bytes [@from, @to) of block @nr. */
static void fill(u8 *block, u32 seed, u64 nr, u64 from, u64 to)
{
	u64 base = mix((u64)seed << 32 | nr);

	for (u64 i = from; i < to; i++)
		block[i] = (u8)((base + i / 8) >> (i % 8 * 8));
}

static bool block_good(const u8 *block, u32 seed, u64 nr, u64 bytes)
{
	u64 base = mix((u64)seed << 32 | nr), word;

	for (u64 i = 0; i + 8 <= bytes; i += 8) {
		memcpy(&word, block + i, 8);
		if (word != base + i / 8)
			return false;
	}
	return true;
}

static struct kvc_seq *open_seq(const char *path, unsigned int flags)
{
	struct kvc_seq *seq;

	check(kvc_seq_open(kvc, &seq, path, flags), path);
	return seq;
}

static struct kvc_layout layout_of(struct kvc_seq *seq)
{
	struct kvc_layout layout = {.size = sizeof(layout)};

	check(kvc_seq_layout(seq, &layout), "layout");
	return layout;
}

/* Whether whole blocks of the view are what @seed says; tells the first that is not. */
static bool view_good(struct kvc_seq *seq, const struct kvc_view *view, u32 seed)
{
	struct kvc_layout l = layout_of(seq);
	u64 whole = (u64)kvc_seq_tokens(seq) / l.block_tokens;

	for (u64 b = view->first_block; b < view->first_block + view->nr_blocks && b < whole; b++) {
		if (block_good(view->addr + (b - view->first_block) * view->block_stride, seed, b,
			       l.block_bytes))
			continue;
		fprintf(stderr, "session_client: wrong bytes in block %llu\n", (unsigned long long)b);
		return false;
	}
	return true;
}

static void wait_for_input(void)
{
	char c;

	puts("ready");
	fflush(stdout);
	while (read(STDIN_FILENO, &c, 1) < 0)
		;
}

/* ---- commands ---- */

/* Grow the sequence to @tokens of @seed; blocks are whole, or appended by @step tokens at a time. */
static void grow(struct kvc_seq *seq, u32 seed, u32 tokens, u32 step)
{
	struct kvc_layout l = layout_of(seq);
	u32 cached, T;

	make_ids(seed, tokens);
	check(kvc_seq_match(seq, ids, tokens, &cached), "match");
	T = (u32)check((int)kvc_seq_tokens(seq), "tokens");
	printf("cached %u\n", cached);
	while (T < tokens) {
		struct kvc_room room = {.size = sizeof(room)};
		u32 nr = min(step, tokens - T);

		check(kvc_seq_append(seq, nr, &room), "append");
		for (u64 b = 0; b < room.nr_blocks; b++)
			fill(room.addr + b * room.block_stride, seed, room.first_block + b, 0,
			     l.block_bytes);
		T += nr;
		check(kvc_seq_commit(seq, T, NULL, 0), "commit");
	}
}

static int cmd_fill(const char *path, char **argv)
{
	u32 seed = (u32)number(argv, 0, 1), tokens = (u32)number(argv, 1, 1024);
	struct kvc_seq *seq = open_seq(path, KVC_SEQ_CREATE | KVC_SEQ_WRITE);

	grow(seq, seed, tokens, (u32)number(argv, 2, tokens));
	printf("tokens %lld\n", (long long)kvc_seq_tokens(seq));
	if (number(argv, 3, 0))
		check(kvc_seq_sync(seq), "sync");
	kvc_seq_close(seq);
	return 0;
}

static int cmd_check(const char *path, char **argv)
{
	u32 seed = (u32)number(argv, 0, 1);
	struct kvc_seq *seq = open_seq(path, 0);
	struct kvc_view view = {.size = sizeof(view)};
	bool good;

	check(kvc_seq_map(seq, &view), "map");
	printf("blocks %llu runs %u\n", (unsigned long long)view.nr_blocks, view.nr_runs);
	good = view_good(seq, &view, seed);
	check(kvc_view_check(&view), "view_check");
	kvc_view_unmap(&view);
	kvc_seq_close(seq);
	return good ? 0 : 3;
}

/* Packed blocks as a reader of the file must see them. */
static int cmd_dump(const char *path, char **argv)
{
	u32 seed = (u32)number(argv, 0, 1);
	struct kvc_seq *seq = open_seq(path, 0);
	struct kvc_layout l = layout_of(seq);
	u64 nr = (u64)kvc_seq_tokens(seq) / l.block_tokens;
	u8 *block = malloc(l.block_bytes);

	for (u64 b = 0; b < nr; b++) {
		fill(block, seed, b, 0, l.block_bytes);
		fwrite(block, l.block_bytes, 1, stdout);
	}
	free(block);
	kvc_seq_close(seq);
	return 0;
}

static int cmd_fork(const char *path, char **argv)
{
	struct kvc_seq *seq = open_seq(path, 0);

	check(kvc_seq_fork(seq, argv[0], (u32)number(argv, 1, UINT32_MAX)), "fork");
	kvc_seq_close(seq);
	return 0;
}

static int cmd_truncate(const char *path, char **argv)
{
	struct kvc_seq *seq = open_seq(path, KVC_SEQ_WRITE);

	check(kvc_seq_truncate(seq, (u32)number(argv, 0, 0)), "truncate");
	printf("tokens %lld\n", (long long)kvc_seq_tokens(seq));
	kvc_seq_close(seq);
	return 0;
}

static int register_buffer(void *addr, size_t bytes)
{
	struct io_uring ring;
	struct iovec iov = {addr, bytes};
	int err = io_uring_queue_init(4, &ring, 0);

	if (err)
		return err;
	err = io_uring_register_buffers(&ring, &iov, 1);
	io_uring_queue_exit(&ring);
	return err;
}

/* Can the kernel pin a writer's view, a reader's view, the mount's mapping? */
static int cmd_register(const char *path, char **argv)
{
	struct kvc_seq *writer = open_seq(path, KVC_SEQ_WRITE), *reader = open_seq(path, 0);
	struct kvc_view w = {.size = sizeof(w)}, r = {.size = sizeof(r)};
	int fd = open(argv[0], O_RDONLY | O_CLOEXEC);
	struct stat st;
	void *plain = MAP_FAILED;

	check(kvc_seq_map(writer, &w), "map");
	check(kvc_seq_map(reader, &r), "map");
	if (fd >= 0 && !fstat(fd, &st))
		plain = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (plain == MAP_FAILED)
		check(-errno, argv[0]);
	printf("writer %d\n", register_buffer((void *)w.addr, w.bytes));
	printf("reader %d\n", register_buffer((void *)r.addr, r.bytes));
	printf("mmap %d\n", register_buffer(plain, (size_t)st.st_size));
	kvc_view_unmap(&w);
	kvc_view_unmap(&r);
	kvc_seq_close(writer);
	kvc_seq_close(reader);
	return 0;
}

/* Hold a view and a room until told to end, or killed. */
static int cmd_hold(const char *path, char **argv)
{
	struct kvc_seq *seq = open_seq(path, KVC_SEQ_CREATE | KVC_SEQ_WRITE);
	struct kvc_view view = {.size = sizeof(view)};
	struct kvc_room room = {.size = sizeof(room)};

	check(kvc_seq_map(seq, &view), "map");
	check(kvc_seq_append(seq, (u32)number(argv, 0, 100), &room), "append");
	wait_for_input();
	kvc_view_unmap(&view);
	kvc_seq_close(seq);
	return 0;
}

static u32 next_random(u64 *rng)
{
	*rng = *rng * 6364136223846793005ull + 1442695040888963407ull;
	return (u32)(*rng >> 33);
}

/* A fork of nobody's any more. */
static void remove_seq(const char *mount, const char *path)
{
	static const char *const parts[] = {"/kv", "/tokens", ""};
	char name[2 * PATH_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
		snprintf(name, sizeof(name), "%s/%s%s", mount, path, parts[i]);
		if (remove(name) && errno != ENOENT)
			check(-errno, name);
	}
}

/* From the prompt of PATH/s0 .. s7 on: attach, append, fill a part, commit, fork. */
static void storm_append(const char *path, const char *mount, u64 *rng, u32 slot)
{
	struct kvc_room room = {.size = sizeof(room)};
	u32 nr = next_random(rng), tokens = nr % 300 + 1, cached;
	char name[PATH_MAX], fork[PATH_MAX];
	struct kvc_seq *seq;
	int err;

	snprintf(name, sizeof(name), "%s/mine%u", path, slot);
	snprintf(fork, sizeof(fork), "%s/fork%u", path, slot);
	seq = open_seq(name, KVC_SEQ_CREATE | KVC_SEQ_WRITE);
	do /* until the one before is not only dead but buried */
		err = kvc_seq_truncate(seq, 0);
	while (err == -EBUSY);
	check(err, "truncate");
	make_ids(nr % 8 + 1, 200 + nr / 8 % 200);
	check(kvc_seq_match(seq, ids, 200 + nr / 8 % 200, &cached), "match");
	check(kvc_seq_append(seq, tokens, &room), "append");
	memset(room.addr, (int)nr, room.bytes / (nr % 3 + 1));
	if (next_random(rng) % 4)
		check(kvc_seq_commit(seq, room.first_token + tokens, ids, 0), "commit");
	if (next_random(rng) % 4 == 0)
		check(kvc_seq_sync(seq), "sync");
	if (next_random(rng) % 2) {
		remove_seq(mount, fork);
		check(kvc_seq_fork(seq, fork, UINT32_MAX), "fork");
	}
	kvc_seq_close(seq);
}

/*
 * As an engine that may be killed anywhere: until then, sessions one after the other, and in each
 * what engines do. Argument 1: seed, 2: number of the files that are this client's alone, 3: the mount.
 */
static int cmd_storm(const char *path, char **argv)
{
	u64 rng = number(argv, 0, 1);
	u32 slot = (u32)number(argv, 1, 0), nr;
	char name[PATH_MAX];

	for (;;) {
		struct kvc_view view = {.size = sizeof(view)};
		struct kvc_seq *seq;

		nr = next_random(&rng) % 8;
		snprintf(name, sizeof(name), "%s/s%u", path, nr);
		seq = open_seq(name, 0);
		if (next_random(&rng) % 2)
			check(kvc_seq_prefetch(seq, next_random(&rng) % 1000), "prefetch");
		check(kvc_seq_map(seq, &view), "map");
		if (!view_good(seq, &view, nr + 1))
			return 3;
		storm_append(path, argv[2], &rng, slot);
		if (next_random(&rng) % 2)
			check(kvc_seq_wait(seq, 10000), "wait");
		kvc_view_unmap(&view);
		kvc_seq_close(seq);
		if (next_random(&rng) % 3)
			continue;
		kvc_close(kvc);
		check(kvc_open(&kvc, argv[2], NULL), "kvc_open");
	}
}

/* Map, verify every byte, unmap random ones of PATH/s0 .. s(N-1) until input ends; a read of the longest time. */
static int cmd_readers(const char *path, char **argv)
{
	u64 rng = (u64)getpid(), longest = 0, rounds = 0;
	u32 nr_seqs = (u32)number(argv, 0, 8);
	struct pollfd input = {STDIN_FILENO, POLLIN, 0};
	char name[PATH_MAX];

	puts("ready");
	fflush(stdout);
	while (poll(&input, 1, 0) == 0) {
		struct kvc_view view = {.size = sizeof(view)};
		struct kvc_seq *seq;
		u64 start = clock_mono_ns();
		bool good;

		rng = rng * 6364136223846793005ull + 1442695040888963407ull;
		snprintf(name, sizeof(name), "%s/s%u", path, (u32)(rng >> 33) % nr_seqs);
		seq = open_seq(name, 0);
		check(kvc_seq_map(seq, &view), "map");
		longest = max(longest, clock_mono_ns() - start);
		good = view_good(seq, &view, (u32)(rng >> 33) % nr_seqs + 1);
		check(kvc_view_check(&view), "view_check");
		kvc_view_unmap(&view);
		kvc_seq_close(seq);
		if (!good)
			return 3;
		rounds++;
	}
	printf("rounds %llu longest_ms %llu\n", (unsigned long long)rounds,
	       (unsigned long long)(longest / 1000000));
	return 0;
}

/* Keep views of PATH/s0 .. s(N-1) and verify them until input ends. */
static int cmd_keep(const char *path, char **argv)
{
	static struct kvc_view view[MAX_HOARD];
	static struct kvc_seq *seq[MAX_HOARD];
	u32 nr = (u32)min(number(argv, 0, 8), (u64)MAX_HOARD);
	struct pollfd input = {STDIN_FILENO, POLLIN, 0};
	char name[PATH_MAX];
	u64 rounds = 0;
	bool good = true;

	for (u32 i = 0; i < nr; i++) {
		view[i].size = sizeof(view[i]);
		snprintf(name, sizeof(name), "%s/s%u", path, i);
		seq[i] = open_seq(name, 0);
		check(kvc_seq_map(seq[i], &view[i]), "map");
	}
	puts("ready");
	fflush(stdout);
	for (; good && !poll(&input, 1, 0); rounds++)
		for (u32 i = 0; i < nr && good; i++) {
			check(kvc_view_check(&view[i]), "view_check");
			good = view_good(seq[i], &view[i], i + 1);
		}
	printf("rounds %llu\n", (unsigned long long)rounds);
	return good ? 0 : 3;
}

/* The daemon dies while a view is mapped; then, when ARGUMENT 2 is given, comes back. */
static int cmd_stale(const char *path, char **argv)
{
	u32 seed = (u32)number(argv, 0, 1);
	struct kvc_seq *seq = open_seq(path, KVC_SEQ_WRITE);
	struct kvc_view view = {.size = sizeof(view)};
	struct kvc_layout l = layout_of(seq);

	check(kvc_seq_map(seq, &view), "map");
	wait_for_input();
	printf("check %d\n", kvc_view_check(&view));
	printf("tokens %lld\n", (long long)kvc_seq_tokens(seq));
	printf("bytes %s\n", block_good(view.addr, seed, 0, l.block_bytes) ? "right" : "wrong");
	if (argv[1]) {
		wait_for_input();
		check(kvc_reconnect(kvc), "reconnect");
		printf("old %d\n", kvc_view_check(&view));
		kvc_view_unmap(&view);
		check(kvc_seq_map(seq, &view), "map again");
		printf("new %s\n", view_good(seq, &view, seed) ? "right" : "wrong");
	}
	kvc_view_unmap(&view);
	kvc_seq_close(seq);
	return 0;
}

#define MAX_KEPT 64u

/** struct kept - sequences PATH/s0, s1, ... mapped, and PATH/own with a room, over the life of daemons. */
struct kept {
	struct kvc_seq *seq[MAX_KEPT], *own;
	struct kvc_view view[MAX_KEPT];
	struct kvc_room room;
	u32 nr;
};

/* What was read when the daemon was there must be there for good: nothing here asks it. */
static bool kept_good(const struct kept *k)
{
	for (u32 i = 0; i < k->nr; i++)
		for (u64 b = 0; b < k->view[i].nr_blocks; b++)
			if (!block_good(k->view[i].addr + b * k->view[i].block_stride, i + 1, b, 65536))
				return false;
	for (u64 b = 0; b < k->room.nr_blocks; b++)
		if (!block_good(k->room.addr + b * k->room.block_stride, 99, b, 65536))
			return false;
	return true;
}

static void keep(struct kept *k, const char *path)
{
	char name[PATH_MAX];

	for (u32 i = 0; i < k->nr; i++) {
		snprintf(name, sizeof(name), "%s/s%u", path, i);
		k->seq[i] = open_seq(name, i % 2 ? KVC_SEQ_WRITE : 0);
		k->view[i].size = sizeof(k->view[i]);
		check(kvc_seq_map(k->seq[i], &k->view[i]), "map");
	}
	snprintf(name, sizeof(name), "%s/own%d", path, (int)getpid());
	k->own = open_seq(name, KVC_SEQ_CREATE | KVC_SEQ_WRITE);
	check(kvc_seq_sync(k->own), "sync");
	k->room.size = sizeof(k->room);
	check(kvc_seq_append(k->own, 256, &k->room), "append");
	for (u64 b = 0; b < k->room.nr_blocks; b++)
		fill(k->room.addr + b * k->room.block_stride, 99, b, 0, 65536);
}

static void kept_say(struct kept *k)
{
	u32 stale = 0, gone = 0;

	for (u32 i = 0; i < k->nr; i++) {
		stale += kvc_view_check(&k->view[i]) == -ESTALE;
		gone += kvc_seq_tokens(k->seq[i]) == -ESTALE;
	}
	printf("stale views %u calls %u of %u\n", stale, gone, k->nr);
	fflush(stdout);
}

static void kept_drop(struct kept *k)
{
	for (u32 i = 0; i < k->nr; i++) {
		kvc_view_unmap(&k->view[i]);
		kvc_seq_close(k->seq[i]);
	}
	kvc_seq_close(k->own);
}

/* Verify all the time; input: s: say how views and calls are, r: reconnect, a: append anew, e: the end. */
static int cmd_outlive(const char *path, char **argv)
{
	static struct kept k;
	struct pollfd input = {STDIN_FILENO, POLLIN, 0};
	char word = 's';

	k.nr = (u32)min(number(argv, 0, 8), (u64)MAX_KEPT);
	keep(&k, path);
	for (;;) {
		if (!kept_good(&k))
			return 3;
		if (word == 's')
			kept_say(&k);
		if (word == 'e')
			break;
		word = 0;
		if (poll(&input, 1, 0) == 1 && read(STDIN_FILENO, &word, 1) != 1)
			break;
		if (word == 'r') {
			printf("reconnect %d\n", kvc_reconnect(kvc));
			fflush(stdout);
		}
		if (word == 'a') {
			check(kvc_seq_append(k.own, 32, &k.room), "append anew");
			k.room.nr_blocks = 0;
			puts("appended");
			fflush(stdout);
		}
	}
	kept_drop(&k);
	puts("right");
	return 0;
}

/* Until the session tells that a prefetch has ended. */
static void wait_event(void)
{
	struct pollfd p = {kvc_event_fd(kvc), POLLIN, 0};
	char bytes[64];

	check(poll(&p, 1, -1) == 1 && p.revents == POLLIN ? 0 : -EIO, "event descriptor");
	while (read(p.fd, bytes, sizeof(bytes)) > 0)
		;
}

/* Bring it to memory, hear of it, and map it without waiting. */
static int cmd_prefetch(const char *path, char **argv)
{
	u32 seed = (u32)number(argv, 0, 1);
	struct kvc_seq *seq = open_seq(path, 0);
	struct kvc_view view = {.size = sizeof(view)};

	printf("before %d\n", kvc_seq_map_resident(seq, 0, UINT64_MAX, &view));
	check(kvc_seq_prefetch(seq, 1000000), "prefetch");
	wait_event();
	printf("wait %d\n", kvc_seq_wait(seq, 0));
	if (!kvc_seq_map_resident(seq, 0, UINT64_MAX, &view))
		printf("bytes %s\n", view_good(seq, &view, seed) ? "right" : "wrong");
	kvc_view_unmap(&view);
	kvc_seq_close(seq);
	return 0;
}

/* PATH/s0 .. s(N-1) have time, PATH/urgent, asked for last, has none: how many are there before it? */
static int cmd_overtake(const char *path, char **argv)
{
	static struct kvc_seq *seq[MAX_HOARD];
	u32 nr = (u32)min(number(argv, 0, 8), (u64)MAX_HOARD), before = 0;
	struct kvc_seq *urgent;
	char name[PATH_MAX];

	snprintf(name, sizeof(name), "%s/urgent", path);
	urgent = open_seq(name, 0);
	for (u32 i = 0; i < nr; i++) {
		snprintf(name, sizeof(name), "%s/s%u", path, i);
		seq[i] = open_seq(name, 0);
		check(kvc_seq_prefetch(seq[i], 3600000000u), "prefetch");
	}
	check(kvc_seq_prefetch(urgent, 1), "prefetch");
	check(kvc_seq_wait(urgent, -1), "wait");
	for (u32 i = 0; i < nr; i++)
		before += !kvc_seq_wait(seq[i], 0);
	for (u32 i = 0; i < nr; i++)
		check(kvc_seq_wait(seq[i], -1), "wait");
	printf("before %u\n", before);
	for (u32 i = 0; i < nr; i++)
		kvc_seq_close(seq[i]);
	kvc_seq_close(urgent);
	return 0;
}

/* What a reader can do to pool memory: every descriptor that came is tried, also through /proc. */
static int cmd_attack(const char *path, char **argv)
{
	struct kvc_seq *seq = open_seq(path, 0), *writer;
	struct kvc_view view = {.size = sizeof(view)};
	char name[64], target[PATH_MAX];
	int opened = 0, mapped = 0, tried = 0;

	check(kvc_seq_map(seq, &view), "map");
	printf("write_open %d\n", kvc_seq_open(kvc, &writer, path, KVC_SEQ_WRITE));
	printf("mprotect %d\n", mprotect((void *)view.addr, 4096, PROT_READ | PROT_WRITE) ? -errno : 0);
	for (int fd = 3; fd < 256; fd++) {
		int again;
		ssize_t n;

		snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
		n = readlink(name, target, sizeof(target) - 1);
		if (n < 0 || (target[n] = '\0', !strstr(target, argv[0])))
			continue;
		tried++;
		again = open(name, O_RDWR | O_CLOEXEC);
		opened += again >= 0;
		mapped += mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED;
		mapped += pwrite(fd, "x", 1, 0) == 1;
	}
	printf("tried %d opened %d mapped %d\n", tried, opened, mapped);
	kvc_view_unmap(&view);
	kvc_seq_close(seq);
	return 0;
}

/* Sequences are opened only. Prints the error. */
static int cmd_open(const char *path, char **argv)
{
	struct kvc_seq *seq;
	int err = kvc_seq_open(kvc, &seq, path, (unsigned int)number(argv, 0, 0));

	printf("open %d\n", err);
	if (!err)
		kvc_seq_close(seq);
	return 0;
}

#define MAX_MANY 256u

/* Map PATH/s0 .. s(N-1), of seeds 1 .. N, in one batch and verify them all. */
static int cmd_many(const char *path, char **argv)
{
	static struct kvc_map_entry m[MAX_MANY];
	u32 nr = (u32)min(number(argv, 0, 64), (u64)MAX_MANY);
	char name[PATH_MAX];
	u64 blocks = 0;
	bool good = true;

	for (u32 i = 0; i < nr; i++) {
		snprintf(name, sizeof(name), "%s/s%u", path, i);
		m[i].seq = open_seq(name, 0);
		m[i].nr_blocks = UINT64_MAX;
	}
	check(kvc_map_many(kvc, m, nr), "map_many");
	for (u32 i = 0; i < nr; i++) {
		check(m[i].result, "map");
		good &= view_good(m[i].seq, &m[i].view, i + 1);
		check(kvc_view_check(&m[i].view), "view_check");
		blocks += m[i].view.nr_blocks;
		kvc_view_unmap(&m[i].view);
		kvc_seq_close(m[i].seq);
	}
	printf("blocks %llu\n", (unsigned long long)blocks);
	return good ? 0 : 3;
}

/* Map as many times as it takes to hit the budget: PATH/s0, s1, ... */
static int cmd_hoard(const char *path, char **argv)
{
	static struct kvc_view view[MAX_HOARD];
	static struct kvc_seq *seq[MAX_HOARD];
	u32 nr = (u32)min(number(argv, 0, 64), (u64)MAX_HOARD), i;
	char name[PATH_MAX];
	u64 bytes = 0;
	int err = 0;

	for (i = 0; i < nr && !err; i++) {
		view[i].size = sizeof(view[i]);
		snprintf(name, sizeof(name), "%s/s%u", path, i);
		seq[i] = open_seq(name, 0);
		err = kvc_seq_map(seq[i], &view[i]);
		bytes += err ? 0 : view[i].bytes;
	}
	printf("mapped %llu error %d\n", (unsigned long long)bytes, err);
	while (i--) {
		kvc_view_unmap(&view[i]);
		kvc_seq_close(seq[i]);
	}
	return 0;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(const char *path, char **argv);
	} commands[] = {
		{"fill", cmd_fill},	    {"check", cmd_check},     {"dump", cmd_dump},
		{"many", cmd_many},
		{"fork", cmd_fork},	    {"truncate", cmd_truncate}, {"register", cmd_register},
		{"hold", cmd_hold},	    {"readers", cmd_readers},
		{"stale", cmd_stale},	    {"attack", cmd_attack},   {"open", cmd_open},
		{"hoard", cmd_hoard},	    {"prefetch", cmd_prefetch}, {"overtake", cmd_overtake},
		{"outlive", cmd_outlive},
		{"storm", cmd_storm},	    {"keep", cmd_keep},
	};
	int status = 2;

	if (argc < 4)
		return 2;
	check(kvc_open(&kvc, argv[2], NULL), "kvc_open");
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
		if (!strcmp(argv[1], commands[i].name))
			status = commands[i].run(argv[3], argv + 4);
	kvc_close(kvc);
	return status;
}
