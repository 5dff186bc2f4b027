/* SPDX-License-Identifier: Apache-2.0 */
/* libkvc against a daemon that lies in a thread of the test: right and wrong answers, and its death. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "fs/client/client.h"
#include "lib/rpc_fake.h"
#include "lib/test.h"

#define BT FAKE_BLOCK_TOKENS

static struct rpc_fake *fake;
static struct kvc *kvc;

static void open_with(u64 arena_bytes, u64 timeout_ms)
{
	struct kvc_options options = {sizeof(options), arena_bytes, timeout_ms};

	assert_int_equal(kvc_open(&kvc, fake->dir, &options), 0);
}

static int setup(void **state)
{
	fake = rpc_fake_start();
	open_with(0, 0);
	return 0;
}

static int teardown(void **state)
{
	kvc_close(kvc);
	rpc_fake_stop(fake);
	assert_int_equal(fake->pins, 0);
	assert_int_equal(fake->handles, 0);
	rpc_fake_free(fake);
	return 0;
}

static struct kvc_seq *seq_at(const char *path)
{
	struct kvc_seq *seq;

	assert_int_equal(kvc_seq_open(kvc, &seq, path, KVC_SEQ_CREATE | KVC_SEQ_WRITE), 0);
	return seq;
}

static void make_ids(u32 *ids, u32 nr, u32 seed)
{
	for (u32 i = 0; i < nr; i++)
		ids[i] = seed * 1000000 + i;
}

/* Append @nr tokens of whole blocks and fill block b with the byte @seed + b. */
static void grow(struct kvc_seq *seq, u32 nr, u32 seed)
{
	struct kvc_room room = {.size = sizeof(room)};
	u32 first = (u32)kvc_seq_tokens(seq), *ids = calloc(nr, sizeof(*ids));

	make_ids(ids, nr, seed);
	assert_int_equal(kvc_seq_append(seq, nr, &room), 0);
	assert_int_equal(room.first_token, first);
	assert_int_equal(room.first_block, first / BT);
	assert_int_equal(room.block_stride, FAKE_STRIDE);
	assert_int_equal(room.bytes, room.nr_blocks * FAKE_STRIDE);
	for (u64 b = 0; b < room.nr_blocks; b++)
		memset(room.addr + b * FAKE_STRIDE, (int)(seed + room.first_block + b), FAKE_STRIDE);
	assert_int_equal(kvc_seq_commit(seq, first + nr, ids, nr), 0);
	free(ids);
}

static void check_view(const struct kvc_view *view, u64 first, u64 nr, u32 seed)
{
	assert_int_equal(view->first_block, first);
	assert_int_equal(view->nr_blocks, nr);
	assert_int_equal(view->bytes, nr * FAKE_STRIDE);
	for (u64 b = 0; b < nr; b++)
		for (u64 i = 0; i < FAKE_BLOCK_BYTES; i += 511)
			assert_int_equal(view->addr[b * FAKE_STRIDE + i], (u8)(seed + first + b));
	assert_int_equal(kvc_view_check(view), 0);
}

static void map_and_check(struct kvc_seq *seq, u64 nr, u32 seed, u32 runs)
{
	struct kvc_view view = {.size = sizeof(view)};

	assert_int_equal(kvc_seq_map(seq, &view), 0);
	check_view(&view, 0, nr, seed);
	assert_int_equal(view.nr_runs, runs);
	assert_int_equal(fake->pins, nr);
	kvc_view_unmap(&view);
	assert_null(view.addr);
	assert_int_equal(fake->pins, 0);
}

/* ---- what is right ---- */

static void test_one_run_is_not_stitched(void **state)
{
	struct kvc_seq *seq = seq_at("ns/a");
	struct kvc_view a = {.size = sizeof(a)}, b = {.size = sizeof(b)};

	grow(seq, 7 * BT, 3);
	map_and_check(seq, 7, 3, 1);
	assert_int_equal(kvc_seq_map(seq, &a), 0);
	assert_int_equal(kvc_seq_map_range(seq, 2, 3, &b), 0);
	check_view(&b, 2, 3, 3);
	assert_ptr_equal(b.addr, a.addr + 2 * FAKE_STRIDE);
	kvc_view_unmap(&a);
	check_view(&b, 2, 3, 3);
	kvc_view_unmap(&b);
	kvc_seq_close(seq);
}

static void test_many_runs_are_stitched(void **state)
{
	struct kvc_seq *seq = seq_at("ns/a");
	struct kvc_view view = {.size = sizeof(view)};

	fake->scatter = true;
	grow(seq, 40 * BT, 5);
	map_and_check(seq, 40, 5, 40);
	fake->scatter = false;
	grow(seq, 24 * BT, 5);
	map_and_check(seq, 64, 5, 41);
	assert_int_equal(kvc_seq_map_range(seq, 39, 20, &view), 0);
	assert_int_equal(view.nr_runs, 2);
	check_view(&view, 39, 20, 5);
	kvc_view_unmap(&view);
	kvc_seq_close(seq);
}

/* More extents than expected, and more than fit into the arena at once. */
static void test_extents_in_pieces(void **state)
{
	struct kvc_seq *seq = seq_at("ns/a");
	struct kvc_view view = {.size = sizeof(view)};
	u32 before;

	fake->scatter = true;
	grow(seq, 600 * BT, 1);
	seq->tokens = 0; /* as when another handle has appended */
	before = fake->messages;
	map_and_check(seq, 600, 1, 600);
	assert_int_equal(fake->messages - before, 3); /* two to map, one to unmap */
	kvc->conn->arena.bytes = kvc->conn->arena.first + 8192; /* 256 extents, and as much for others */
	map_and_check(seq, 600, 1, 600);
	assert_int_equal(kvc_seq_map_range(seq, 50, 256, &view), 0);
	check_view(&view, 50, 256, 1);
	kvc_view_unmap(&view);
	assert_int_equal(kvc_seq_truncate(seq, 256 * BT), 0); /* all room is taken, and that was all */
	map_and_check(seq, 256, 1, 256);
	kvc->conn->arena.bytes = CLIENT_ARENA_BYTES;
	kvc_seq_close(seq);
}

static void test_empty_sequence(void **state)
{
	struct kvc_seq *seq = seq_at("/ns/a");
	struct kvc_view view = {.size = sizeof(view)};

	assert_int_equal(kvc_seq_map(seq, &view), 0);
	assert_int_equal(view.nr_blocks, 0);
	assert_int_equal(kvc_view_check(&view), 0);
	kvc_view_unmap(&view);
	assert_int_equal(kvc_seq_map_range(seq, 0, 1, &view), 0);
	assert_int_equal(view.nr_blocks, 0);
	kvc_view_unmap(&view);
	assert_int_equal(kvc_seq_map_range(seq, 1, 1, &view), -EINVAL);
	assert_int_equal(kvc_seq_map_range(seq, 0, 0, &view), -EINVAL);
	kvc_seq_close(seq);
}

static void test_room_stays_while_blocks_do(void **state)
{
	struct kvc_seq *seq = seq_at("ns/a");
	struct kvc_room room = {.size = sizeof(room)}, again = {.size = sizeof(again)};
	u32 id = 1;

	for (int scatter = 0; scatter < 2; scatter++) {
		fake->scatter = scatter;
		assert_int_equal(kvc_seq_append(seq, 2 * BT, &room), 0);
		assert_int_equal(room.nr_blocks, 2);
		room.addr[0] = 77;
		assert_int_equal(*rpc_fake_block(fake, "ns/a", (u32)room.first_block), 77);
		assert_int_equal(kvc_seq_commit(seq, room.first_token + 1, &id, 1), 0);
		assert_int_equal(kvc_seq_append(seq, 2 * BT - 1, &again), 0);
		assert_ptr_equal(again.addr, room.addr);
		assert_int_equal(again.first_token, room.first_token + 1);
		assert_int_equal(kvc_seq_commit(seq, room.first_token + 2 * BT, NULL, 0), 0);
	}
	fake->scatter = false;
	kvc_seq_close(seq);
}

static void test_match_attaches_and_maps(void **state)
{
	struct kvc_seq *a = seq_at("ns/a"), *b = seq_at("ns/b"), *reader;
	u32 ids[10 * BT], cached = 0;

	grow(a, 8 * BT, 2);
	make_ids(ids, ARRAY_SIZE(ids), 2);
	assert_int_equal(kvc_seq_match(b, ids, ARRAY_SIZE(ids), &cached), 0);
	assert_int_equal(cached, 8 * BT);
	assert_int_equal(kvc_seq_tokens(b), 8 * BT);
	map_and_check(b, 8, 2, 1);
	assert_int_equal(kvc_seq_open(kvc, &reader, "ns/c", 0), -ENOENT);
	assert_int_equal(kvc_seq_open(kvc, &reader, "ns/a", 0), 0);
	ids[5 * BT]++;
	assert_int_equal(kvc_seq_match(reader, ids, ARRAY_SIZE(ids), &cached), 0);
	assert_int_equal(cached, 5 * BT);
	assert_int_equal(kvc_seq_tokens(reader), 8 * BT); /* a reader only asks */
	assert_int_equal(kvc_seq_match(b, ids, ARRAY_SIZE(ids), &cached), 0);
	assert_int_equal(cached, 5 * BT);
	assert_int_equal(kvc_seq_tokens(b), 5 * BT); /* what others it had is gone */
	kvc_seq_close(reader);
	kvc_seq_close(a);
	kvc_seq_close(b);
}

static void test_small_calls(void **state)
{
	struct kvc_seq *seq = seq_at("ns/a"), *copy;
	struct kvc_layout layout = {.size = sizeof(layout)};
	struct kvc_info info = {.size = sizeof(info)};

	grow(seq, 4 * BT, 9);
	assert_int_equal(kvc_seq_layout(seq, &layout), 0);
	assert_int_equal(layout.block_tokens, BT);
	assert_int_equal(layout.block_stride, FAKE_STRIDE);
	assert_int_equal(layout.layout, KVC_LAYOUT_HND);
	assert_int_equal(layout.slice_bytes, FAKE_BLOCK_BYTES / 2);
	layout.size = offsetof(struct kvc_layout, slice_bytes); /* a caller who does not know it yet */
	layout.slice_bytes = 7;
	assert_int_equal(kvc_seq_layout(seq, &layout), 0);
	assert_int_equal(layout.size, offsetof(struct kvc_layout, slice_bytes));
	assert_int_equal(layout.slice_bytes, 7);
	layout.size--;
	assert_int_equal(kvc_seq_layout(seq, &layout), -EINVAL);
	assert_int_equal(kvc_seq_query(seq, &info), 0);
	assert_int_equal(info.tokens, 4 * BT);
	assert_int_equal(info.state, KVC_QUEUED);
	assert_int_equal(kvc_seq_sync(seq), 0);
	assert_int_equal(kvc_seq_prefetch(seq, 0), 0);
	assert_int_equal(kvc_seq_set_state(seq, KVC_DECODING, 0), 0);
	assert_int_equal(kvc_admit(seq, 3), KVC_RUN);
	assert_int_equal(kvc_admit(seq, 4), KVC_WAIT);
	assert_int_equal(kvc_admit(seq, 5), KVC_RUN_RECOMPUTE);
	assert_int_equal(kvc_seq_fork(seq, "/ns/copy", UINT32_MAX), 0);
	assert_int_equal(kvc_seq_fork(seq, "ns/copy", UINT32_MAX), -EEXIST);
	assert_int_equal(kvc_seq_fork(seq, "", 0), -EINVAL);
	assert_int_equal(kvc_seq_truncate(seq, 2 * BT), 0);
	copy = seq_at("ns/copy");
	assert_int_equal(kvc_seq_tokens(seq), 2 * BT);
	map_and_check(copy, 4, 9, 1);
	kvc_seq_close(copy);
	kvc_seq_close(seq);
}

/* A match cuts what has other ids: the next token is the first behind what is cached. */
static void test_match_cuts(void **state)
{
	struct kvc_seq *seq = seq_at("ns/a"), *reader;
	struct kvc_room room = {.size = sizeof(room)};
	u32 ids[8 * BT], cached = 0;

	grow(seq, 6 * BT, 2);
	make_ids(ids, ARRAY_SIZE(ids), 2);
	assert_int_equal(kvc_seq_open(kvc, &reader, "ns/a", 0), 0);
	ids[3 * BT]++;
	assert_int_equal(kvc_seq_match(reader, ids, ARRAY_SIZE(ids), NULL), 0);
	assert_int_equal(kvc_seq_tokens(reader), 6 * BT);
	assert_int_equal(kvc_seq_match(seq, ids, ARRAY_SIZE(ids), &cached), 0);
	assert_int_equal(cached, 3 * BT);
	assert_int_equal(kvc_seq_tokens(seq), 3 * BT);
	assert_int_equal(kvc_seq_sync(seq), 0);
	assert_int_equal(kvc_seq_append(seq, 0, &room), -EINVAL);
	assert_int_equal(kvc_seq_append(seq, 1, &room), 0);
	assert_int_equal(room.first_token, 3 * BT);
	assert_int_equal(room.first_block, 3);
	kvc_seq_close(reader);
	kvc_seq_close(seq);
}

/* One message, one sequence twice: the second room is the one that is there. */
static void test_append_twice(void **state)
{
	struct kvc_seq *seq = seq_at("ns/a");
	struct kvc_append_entry e[2] = {{.seq = seq, .nr_tokens = BT}, {.seq = seq, .nr_tokens = 3 * BT}};

	assert_int_equal(kvc_append_many(kvc, e, 2), 0);
	assert_int_equal(e[0].result | e[1].result, 0);
	assert_int_equal(e[1].room.size, sizeof(struct kvc_room));
	assert_int_equal(e[1].room.first_token, 0);
	assert_int_equal(e[1].room.bytes, 3 * FAKE_STRIDE);
	memset(e[1].room.addr, 1, e[1].room.bytes);
	assert_int_equal(kvc_seq_commit(seq, 3 * BT, NULL, 0), 0);
	kvc_seq_close(seq);
}

static void test_version(void **state)
{
	char text[32];

	snprintf(text, sizeof(text), "%d.%d.%d", KVC_VERSION_MAJOR, KVC_VERSION_MINOR, KVC_VERSION_PATCH);
	assert_string_equal(text, KVC_VERSION);
	assert_int_equal(KVC_ALL_TOKENS, UINT32_MAX);
}

/* A sequence may be closed before its views: they keep it. */
static void test_view_outlives_sequence(void **state)
{
	struct kvc_seq *seq = seq_at("ns/a");
	struct kvc_view view = {.size = sizeof(view)};

	grow(seq, 4 * BT, 1);
	assert_int_equal(kvc_seq_map(seq, &view), 0);
	kvc_seq_close(seq);
	assert_int_equal(fake->handles, 1);
	check_view(&view, 0, 4, 1);
	kvc_view_unmap(&view);
	assert_int_equal(fake->handles, 0);
}

/* ---- batches ---- */

#define MANY 70

static void test_batches(void **state)
{
	static u32 ids[MANY][2 * BT];
	struct kvc_match_entry m[MANY] = {0};
	struct kvc_append_entry a[MANY] = {0};
	struct kvc_commit_entry c[MANY] = {0};
	struct kvc_seq *seq[MANY];
	char path[16];
	u32 before;

	for (u32 i = 0; i < MANY; i++) {
		snprintf(path, sizeof(path), "ns/%u", i);
		seq[i] = seq_at(path);
		make_ids(ids[i], 2 * BT, i);
		m[i] = (struct kvc_match_entry){.seq = seq[i], .ids = ids[i], .nr_ids = 2 * BT};
		a[i] = (struct kvc_append_entry){.seq = seq[i], .nr_tokens = i == 3 ? 1u << 20 : BT};
		c[i] = (struct kvc_commit_entry){.seq = seq[i], .tokens = BT, .ids = ids[i], .nr_ids = BT};
	}
	before = fake->messages;
	assert_int_equal(kvc_match_many(kvc, m, MANY), 0);
	assert_int_equal(kvc_append_many(kvc, a, MANY), 0);
	assert_int_equal(fake->messages - before, 3); /* and one for the pool files */
	for (u32 i = 0; i < MANY; i++) {
		assert_int_equal(m[i].result, 0);
		assert_int_equal(a[i].result, i == 3 ? -ENOSPC : 0);
		if (i != 3)
			memset(a[i].room.addr, (int)i, FAKE_STRIDE);
	}
	assert_int_equal(kvc_commit_many(kvc, c, MANY), 0);
	for (u32 i = 0; i < MANY; i++) {
		assert_int_equal(c[i].result, i == 3 ? -EINVAL : 0);
		if (i != 3)
			map_and_check(seq[i], 1, i, 1);
		kvc_seq_close(seq[i]);
	}
	assert_int_equal(kvc_match_many(kvc, m, 0), 0);
}

static void test_maps(void **state)
{
	struct kvc_map_entry m[MANY] = {0};
	struct kvc_seq *seq[MANY];
	char path[16];
	u32 before;

	fake->scatter = true;
	for (u32 i = 0; i < MANY; i++) {
		snprintf(path, sizeof(path), "ns/%u", i);
		seq[i] = seq_at(path);
		grow(seq[i], (1 + i % 4) * BT, i);
		m[i] = (struct kvc_map_entry){.seq = seq[i], .nr_blocks = i == 5 ? 0 : UINT64_MAX};
	}
	m[6].first_block = 1;
	m[6].nr_blocks = 1;
	m[7].nr_blocks = 100;
	before = fake->messages;
	assert_int_equal(kvc_map_many(kvc, m, MANY), 0);
	assert_int_equal(fake->messages - before, 1);
	assert_int_equal(m[5].result, -EINVAL);
	assert_null(m[5].view.priv);
	for (u32 i = 0; i < MANY; i++) {
		if (i == 5)
			continue;
		assert_int_equal(m[i].result, 0);
		check_view(&m[i].view, m[i].first_block, i == 6 ? 1 : 1 + i % 4, i);
		kvc_view_unmap(&m[i].view);
	}
	assert_int_equal(fake->pins, 0);
	for (u32 i = 0; i < MANY; i++)
		kvc_seq_close(seq[i]);
}

/* An entry of which more came than expected is asked for again; death leaves no view. */
static void test_maps_in_pieces(void **state)
{
	struct kvc_seq *seq = seq_at("ns/a"), *other = seq_at("ns/b");
	struct kvc_map_entry m[2] = {{.seq = seq, .nr_blocks = UINT64_MAX},
				     {.seq = other, .nr_blocks = UINT64_MAX}};
	u32 before;

	fake->scatter = true;
	grow(seq, 600 * BT, 2);
	grow(other, 3 * BT, 3);
	seq->tokens = 0; /* as when another handle has appended */
	before = fake->messages;
	assert_int_equal(kvc_map_many(kvc, m, 2), 0);
	assert_in_range(fake->messages - before, 2, 3);
	check_view(&m[0].view, 0, 600, 2);
	check_view(&m[1].view, 0, 3, 3);
	kvc_view_unmap(&m[0].view);
	kvc_view_unmap(&m[1].view);
	rpc_fake_stop(fake);
	assert_int_equal(kvc_map_many(kvc, m, 2), -ESTALE);
	assert_int_equal(m[0].result, -ESTALE);
	assert_null(m[0].view.priv);
	assert_int_equal(m[1].result, -ESTALE);
	rpc_fake_restart(fake);
	kvc_seq_close(seq);
	kvc_seq_close(other);
}

/* More commands than a message takes, the same sequences again and again, ids beyond the arena. */
static void test_batch_in_pieces(void **state)
{
	static u32 ids[KVC_ARENA_MIN / 4 + 1];
	u32 nr = 3 * (u32)CLIENT_MAX_CMDS / 2;
	struct kvc_match_entry *m = calloc(nr, sizeof(*m));
	struct kvc_seq *a, *b, *cache;
	u32 before;

	kvc_close(kvc);
	open_with(KVC_ARENA_MIN, 0);
	a = seq_at("ns/a");
	b = seq_at("ns/b");
	cache = seq_at("ns/c");
	grow(cache, 4 * BT, 1);
	kvc_seq_close(cache);
	make_ids(ids, ARRAY_SIZE(ids), 1);
	for (u32 i = 0; i < nr; i++)
		m[i] = (struct kvc_match_entry){.seq = i % 2 ? a : b, .ids = ids, .nr_ids = i % (6 * BT)};
	m[7].nr_ids = ARRAY_SIZE(ids);
	before = fake->messages;
	assert_int_equal(kvc_match_many(kvc, m, nr), 0);
	assert_in_range(fake->messages - before, 2, 8);
	for (u32 i = 0; i < nr; i++) {
		assert_int_equal(m[i].result, i == 7 ? -E2BIG : 0);
		if (i != 7)
			assert_int_equal(m[i].cached, min(m[i].nr_ids / BT * BT, 4 * BT));
	}
	assert_int_equal(kvc_seq_match(a, ids, ARRAY_SIZE(ids), NULL), -E2BIG);
	kvc_seq_close(a);
	kvc_seq_close(b);
	free(m);
}

/* ---- threads ---- */

static void *held_prefetch(void *arg)
{
	return (void *)(intptr_t)kvc_seq_prefetch(arg, FAKE_HOLD);
}

/* The daemon answers the second call first. */
static void test_replies_out_of_order(void **state)
{
	struct kvc_seq *a = seq_at("ns/a"), *b = seq_at("ns/b");
	u32 before = fake->messages;
	pthread_t thread;
	void *result;

	pthread_create(&thread, NULL, held_prefetch, a);
	while (fake->messages == before)
		sched_yield();
	assert_int_equal(kvc_seq_tokens(b), 0);
	pthread_join(thread, &result);
	assert_null(result);
	kvc_seq_close(a);
	kvc_seq_close(b);
}

static void *work(void *arg)
{
	u32 nr = (u32)(uintptr_t)arg, rounds = (u32)test_count(60);
	char path[16];

	snprintf(path, sizeof(path), "ns/%u", nr % 2);
	for (u32 i = 0; i < rounds; i++) {
		struct kvc_view view = {.size = sizeof(view)};
		struct kvc_seq *seq;

		assert_int_equal(kvc_seq_open(kvc, &seq, path, 0), 0);
		assert_int_equal(kvc_seq_map(seq, &view), 0);
		check_view(&view, 0, 20, nr % 2);
		kvc_view_unmap(&view);
		assert_int_equal(kvc_seq_tokens(seq), 20 * BT);
		kvc_seq_close(seq);
	}
	return NULL;
}

static void test_threads(void **state)
{
	struct kvc_seq *seq[2] = {seq_at("ns/0"), seq_at("ns/1")};
	pthread_t thread[6];

	fake->scatter = true;
	grow(seq[0], 20 * BT, 0);
	grow(seq[1], 20 * BT, 1);
	for (uintptr_t i = 0; i < ARRAY_SIZE(thread); i++)
		pthread_create(&thread[i], NULL, work, (void *)i);
	for (size_t i = 0; i < ARRAY_SIZE(thread); i++)
		pthread_join(thread[i], NULL);
	kvc_seq_close(seq[0]);
	kvc_seq_close(seq[1]);
}

/* ---- prefetch ---- */

static bool event_told(void)
{
	struct pollfd p = {.fd = kvc_event_fd(kvc), .events = POLLIN};
	char bytes[64];
	bool told = poll(&p, 1, 0) == 1 && p.revents & POLLIN;

	while (told && read(p.fd, bytes, sizeof(bytes)) > 0)
		;
	return told;
}

/** struct waiter - a thread in kvc_seq_wait(). */
struct waiter {
	struct kvc_seq *seq;
	pthread_t thread;
	int err;
};

static void *wait_for_end(void *arg)
{
	struct waiter *w = arg;

	w->err = kvc_seq_wait(w->seq, -1);
	return NULL;
}

static void waiter_start(struct waiter *w, struct kvc_seq *seq)
{
	*w = (struct waiter){.seq = seq, .err = 1};
	assert_int_equal(pthread_create(&w->thread, NULL, wait_for_end, w), 0);
}

static int waiter_end(struct waiter *w)
{
	assert_int_equal(pthread_join(w->thread, NULL), 0);
	return w->err;
}

static void test_prefetch_is_waited_for(void **state)
{
	static const int errs[] = {0, -EIO, -ENOMEM};
	struct kvc_seq *seq = seq_at("ns/a");
	struct waiter w[2];

	assert_int_equal(kvc_seq_wait(seq, -1), 0);
	fake->slow = true;
	for (size_t i = 0; i < ARRAY_SIZE(errs); i++) {
		assert_int_equal(kvc_seq_prefetch(seq, 100), 0);
		assert_int_equal(kvc_seq_wait(seq, 0), -ETIMEDOUT);
		assert_int_equal(kvc_seq_wait(seq, 1), -ETIMEDOUT);
		assert_false(event_told());
		waiter_start(&w[0], seq);
		waiter_start(&w[1], seq);
		assert_int_equal(kvc_seq_tokens(seq), 0); /* other calls go on */
		rpc_fake_prefetched(fake, errs[i]);
		assert_int_equal(waiter_end(&w[0]), errs[i]);
		assert_int_equal(waiter_end(&w[1]), errs[i]);
		assert_true(event_told());
		assert_int_equal(kvc_seq_wait(seq, 0), errs[i]);
	}
	kvc_seq_close(seq);
}

/* Who waits for a prefetch is not told of the one that took its place. */
static void test_prefetch_anew(void **state)
{
	struct kvc_seq *seq = seq_at("ns/a");
	struct waiter w;

	fake->slow = true;
	assert_int_equal(kvc_seq_prefetch(seq, 0), 0);
	waiter_start(&w, seq);
	while (atomic_load(&seq->ref) < 2)
		sched_yield();
	seqs_take(kvc, &seq, 1); /* it knows what it waits for */
	seqs_give(kvc, &seq, 1);
	assert_int_equal(kvc_seq_prefetch(seq, 0), 0);
	assert_int_equal(kvc_seq_wait(seq, 0), -ETIMEDOUT);
	rpc_fake_prefetched(fake, 0);
	assert_int_equal(waiter_end(&w), -ECANCELED);
	assert_int_equal(kvc_seq_wait(seq, 0), 0);
	kvc_seq_close(seq);
}

static void test_prefetch_of_a_dead_daemon(void **state)
{
	struct kvc_seq *seq = seq_at("ns/a");
	struct pollfd p = {.fd = kvc_event_fd(kvc), .events = POLLIN};
	struct waiter w;

	fake->slow = true;
	assert_int_equal(kvc_seq_prefetch(seq, 0), 0);
	waiter_start(&w, seq);
	rpc_fake_stop(fake);
	assert_int_equal(waiter_end(&w), -ESTALE);
	assert_int_equal(kvc_seq_wait(seq, 0), -ESTALE);
	assert_int_equal(poll(&p, 1, -1), 1);
	assert_true(p.revents & POLLHUP);
	rpc_fake_restart(fake);
	assert_int_equal(kvc_reconnect(kvc), 0);
	assert_int_equal(kvc_seq_wait(seq, 0), 0); /* none on the new one */
	fake->slow = false;
	assert_int_equal(kvc_seq_prefetch(seq, 0), 0);
	assert_int_equal(kvc_seq_wait(seq, -1), 0);
	assert_true(event_told());
	kvc_seq_close(seq);
}

static void test_map_that_does_not_wait(void **state)
{
	struct kvc_seq *seq = seq_at("ns/a");
	struct kvc_view view = {.size = sizeof(view)};

	grow(seq, 4 * BT, 1);
	fake->cold = true;
	assert_int_equal(kvc_seq_map_resident(seq, 0, KVC_ALL, &view), -EAGAIN);
	assert_int_equal(fake->pins, 0);
	map_and_check(seq, 4, 1, 1); /* this one waits */
	fake->cold = false;
	assert_int_equal(kvc_seq_map_resident(seq, 1, 2, &view), 0);
	check_view(&view, 1, 2, 1);
	kvc_view_unmap(&view);
	kvc_seq_close(seq);
}

/* ---- what is wrong ---- */

static void test_no_mount(void **state)
{
	struct kvc *other;
	struct kvc_options bad = {.size = 3};
	char path[PATH_MAX + 32];

	assert_int_equal(kvc_open(&other, "/proc", NULL), -ENOENT);
	assert_int_equal(kvc_open(&other, "/nowhere/at/all", NULL), -ENOENT);
	assert_int_equal(kvc_open(&other, fake->dir, &bad), -EINVAL);
	snprintf(path, sizeof(path), "%s/.kvc/../.kvc", fake->dir);
	kvc_close(kvc);
	assert_int_equal(kvc_open(&kvc, path, NULL), 0); /* any path on it will do */
	kvc_close(kvc);
	fake->fault = FAKE_OLD_ABI;
	assert_int_equal(kvc_open(&other, fake->dir, NULL), -EPROTO);
	open_with(0, 0);
}

static void test_read_only_descriptors(void **state)
{
	struct kvc_seq *seq = seq_at("ns/a");
	struct kvc_room room = {.size = sizeof(room)};

	grow(seq, 2 * BT, 1);
	kvc_seq_close(seq);
	kvc_close(kvc);
	fake->read_only = true;
	open_with(0, 0);
	seq = seq_at("ns/a");
	map_and_check(seq, 2, 1, 1); /* for reading, then */
	assert_int_equal(kvc_seq_append(seq, 1, &room), -EACCES);
	fake->read_only = false; /* as when the client was given a namespace that it may write */
	assert_int_equal(kvc_seq_append(seq, 1, &room), 0);
	room.addr[0] = 1;
	kvc_seq_close(seq);
}

/* Pool files appear while the session runs. */
static void test_new_pool_files(void **state)
{
	struct kvc_seq *seq = seq_at("ns/a");

	fake->nr_pools = 1;
	grow(seq, 2 * BT, 1);
	map_and_check(seq, 2, 1, 1);
	fake->scatter = true;
	fake->nr_pools = 2;
	grow(seq, 4 * BT, 1);
	map_and_check(seq, 6, 1, 5);
	kvc_seq_close(seq);
}

static void test_unknown_pool_file(void **state)
{
	struct kvc_seq *seq = seq_at("ns/a");
	struct kvc_room room = {.size = sizeof(room)};

	fake->nr_pools = 1;
	fake->scatter = true;
	assert_int_equal(kvc_seq_append(seq, 2 * BT, &room), -EPROTO);
	kvc_seq_close(seq);
}

/* What the client has no descriptor of yet and is gone keeps it from nothing else. */
static void test_pool_file_that_is_gone(void **state)
{
	struct kvc_seq *seq = seq_at("ns/a");
	struct kvc_view view = {.size = sizeof(view)};

	fake->scatter = true; /* blocks 0, 2 and 1, 3 */
	fake->gone = 1;
	rpc_fake_grow(fake, "ns/a", 4);
	assert_int_equal(kvc_seq_map_range(seq, 1, 1, &view), 0);
	kvc_view_unmap(&view);
	assert_int_equal(kvc_seq_map_range(seq, 2, 1, &view), -EACCES);
	assert_int_equal(kvc_seq_tokens(seq), 4 * BT); /* the session goes on */
	fake->gone = 0;
	assert_int_equal(kvc_seq_map_range(seq, 2, 1, &view), 0);
	kvc_view_unmap(&view);
	kvc_seq_close(seq);
}

/* Replies that end the session, one after the other: no crash, -EPROTO or the like, then -ESTALE. */
static void test_bad_replies(void **state)
{
	static const int errs[FAKE_TOO_FAR] = {0, -ETIMEDOUT, -ESTALE, -EPROTO, -EPROTO, -EPROTO, -EPROTO};
	struct kvc_view view = {.size = sizeof(view)};
	struct kvc_seq *seq = seq_at("ns/a");

	grow(seq, 2 * BT, 1);
	kvc_seq_close(seq);
	for (int fault = FAKE_MUTE; fault < FAKE_TOO_FAR; fault++) {
		kvc_close(kvc);
		open_with(0, 50);
		seq = seq_at("ns/a");
		assert_int_equal(kvc_seq_map(seq, &view), 0);
		fake->fault = fault;
		assert_int_equal(kvc_seq_tokens(seq), errs[fault]);
		assert_int_equal(kvc_seq_tokens(seq), -ESTALE);
		assert_int_equal(kvc_view_check(&view), -ESTALE);
		assert_int_equal(view.addr[FAKE_STRIDE], 2); /* readable all the same */
		kvc_view_unmap(&view);
		kvc_seq_close(seq);
	}
}

/* Extents that are nonsense are refused; the session goes on. */
static void test_bad_extents(void **state)
{
	struct kvc_seq *seq = seq_at("ns/a");
	struct kvc_view view = {.size = sizeof(view)};
	struct kvc_room room = {.size = sizeof(room)};

	grow(seq, 2 * BT, 1);
	for (int fault = FAKE_TOO_FAR; fault <= FAKE_TOO_MANY; fault++) {
		fake->fault = fault;
		assert_int_equal(kvc_seq_map(seq, &view), -EPROTO);
		fake->fault = fault;
		assert_int_equal(kvc_seq_append(seq, 1, &room), -EPROTO);
		map_and_check(seq, 2, 1, 1);
	}
	kvc_seq_close(seq);
}

static void test_death_and_reconnect(void **state)
{
	struct kvc_seq *seq = seq_at("ns/a"), *lost = seq_at("ns/b");
	struct kvc_view view = {.size = sizeof(view)};
	struct kvc_match_entry m[2] = {{.seq = seq}, {.seq = lost}};
	u32 id = 1;

	grow(seq, 3 * BT, 4);
	assert_int_equal(kvc_seq_map(seq, &view), 0);
	assert_int_equal(kvc_reconnect(kvc), 0); /* nothing to do */
	rpc_fake_stop(fake);
	assert_int_equal(kvc_view_check(&view), -ESTALE);
	assert_int_equal(kvc_seq_tokens(seq), -ESTALE);
	assert_true(kvc_reconnect(kvc) < 0);
	fake->seq[1].path[0] = '?'; /* ns/b is gone */
	rpc_fake_restart(fake);
	assert_int_equal(kvc_reconnect(kvc), 0);
	assert_int_equal(kvc_view_check(&view), 0);
	assert_int_equal(view.addr[0], 4);
	assert_int_equal(fake->pins, 3);
	kvc_view_unmap(&view);
	assert_int_equal(fake->pins, 0);
	assert_int_equal(kvc_seq_tokens(seq), 3 * BT);
	map_and_check(seq, 3, 4, 1);
	m[0].ids = m[1].ids = &id;
	m[0].nr_ids = m[1].nr_ids = 1;
	assert_int_equal(kvc_match_many(kvc, m, 2), 0);
	assert_int_equal(m[0].result, 0);
	assert_int_equal(m[1].result, -ESTALE);
	assert_int_equal(kvc_seq_tokens(lost), -ESTALE);
	assert_int_equal(kvc_seq_truncate(lost, 0), -ESTALE);
	kvc_seq_close(lost);
	kvc_seq_close(seq);
}

static void restart_fake(bool reconnect)
{
	rpc_fake_stop(fake);
	rpc_fake_restart(fake);
	if (reconnect)
		assert_int_equal(kvc_reconnect(kvc), 0);
}

/* Views come back to the blocks that are where they were, one by one; the rest stay as they are. */
static void test_views_come_back(void **state)
{
	struct kvc_seq *a = seq_at("ns/a"), *b = seq_at("ns/b");
	struct kvc_view stays = {.size = sizeof(stays)}, part = {.size = sizeof(part)},
			moves = {.size = sizeof(moves)};
	const u8 *addr;

	grow(a, 40 * BT, 1);
	grow(b, 2 * BT, 2);
	assert_int_equal(kvc_seq_map(a, &stays), 0);
	assert_int_equal(kvc_seq_map_range(a, 3, 2, &part), 0);
	assert_int_equal(kvc_seq_map(b, &moves), 0);
	addr = stays.addr;
	restart_fake(true);
	restart_fake(false); /* not seen by us */
	fake->seq[1].block[1] = fake->seq[0].block[7];
	restart_fake(true);
	assert_int_equal(kvc_view_check(&stays), 0);
	assert_int_equal(kvc_view_check(&part), 0);
	assert_int_equal(kvc_view_check(&moves), -ESTALE);
	assert_int_equal(fake->pins, 42);
	assert_ptr_equal(stays.addr, addr);
	assert_int_equal(moves.addr[FAKE_STRIDE], 3);
	kvc_view_unmap(&moves);
	assert_int_equal(fake->pins, 42);
	restart_fake(true);
	assert_int_equal(kvc_view_check(&stays), 0);
	kvc_view_unmap(&stays);
	assert_int_equal(fake->pins, 2);
	kvc_seq_close(a); /* the view keeps it open */
	restart_fake(true);
	assert_int_equal(kvc_view_check(&part), 0);
	assert_int_equal(fake->pins, 2);
	kvc_view_unmap(&part);
	assert_int_equal(fake->pins, 0);
	kvc_seq_close(b);
}

/* A dead daemon's memory is given back when nobody looks at it through that daemon any more. */
static void test_leases(void **state)
{
	struct kvc_seq *a = seq_at("ns/a"), *b = seq_at("ns/b");
	struct kvc_view stays = {.size = sizeof(stays)}, moves = {.size = sizeof(moves)};
	struct kvc_room room = {.size = sizeof(room)};

	grow(a, 2 * BT, 1);
	grow(b, 2 * BT, 2);
	assert_int_equal(kvc_seq_map(a, &stays), 0);
	assert_int_equal(kvc_seq_map(b, &moves), 0);
	assert_true(rpc_fake_leased(fake, 0));
	rpc_fake_stop(fake);
	assert_int_equal(kvc_view_check(&stays), -ESTALE);
	assert_true(rpc_fake_leased(fake, 0));
	rpc_fake_restart(fake);
	fake->seq[1].block[0] = fake->seq[0].block[1];
	assert_int_equal(kvc_reconnect(kvc), 0);
	assert_true(rpc_fake_leased(fake, 0)); /* one view stays, and rooms */
	assert_true(rpc_fake_leased(fake, 1));
	kvc_view_unmap(&moves);
	assert_true(rpc_fake_leased(fake, 0));
	assert_int_equal(kvc_seq_append(a, 1, &room), 0);
	assert_true(rpc_fake_leased(fake, 0));
	assert_int_equal(kvc_seq_append(b, 1, &room), 0);
	assert_false(rpc_fake_leased(fake, 0));
	assert_int_equal(kvc_view_check(&stays), 0);
	kvc_view_unmap(&stays);
	assert_true(rpc_fake_leased(fake, 1)); /* as long as the daemon lives */
	kvc_seq_close(a);
	kvc_seq_close(b);
	restart_fake(true);
	assert_false(rpc_fake_leased(fake, 1));
}

/* A child reads what its parent mapped; the lease is the parent's to give back. */
static void test_fork(void **state)
{
	struct kvc_seq *seq = seq_at("ns/a");
	struct kvc_view view = {.size = sizeof(view)};
	int status;
	pid_t pid;

	fake->scatter = true;
	grow(seq, 5 * BT, 4);
	assert_int_equal(kvc_seq_map(seq, &view), 0);
	pid = fork();
	if (!pid)
		_exit(view.addr[4 * FAKE_STRIDE] != 8);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	kvc_view_unmap(&view);
	kvc_seq_close(seq);
}

static void test_arena_is_shared(void **state)
{
	struct span a, b, c;
	struct conn *conn = kvc->conn;
	u64 room = arena_room(conn);

	assert_int_equal(arena_get(conn, &a, room + 1), -E2BIG);
	assert_int_equal(arena_get(conn, &a, 100), 0);
	assert_int_equal(arena_get(conn, &b, 1), 0);
	assert_int_equal(arena_get(conn, &c, room - 192), 0);
	assert_int_equal(b.off, a.off + 128);
	arena_put(conn, &a);
	assert_int_equal(arena_get(conn, &a, 128), 0);
	assert_int_equal(a.off, conn->arena.first);
	conn->timeout_ns = 1000000;
	assert_int_equal(arena_get(conn, &(struct span){0}, 1), -ETIMEDOUT);
	conn->timeout_ns = CLIENT_TIMEOUT_MS * 1000000ull;
	arena_put(conn, &b);
	arena_put(conn, &c);
	arena_put(conn, &a);
	assert_null(conn->arena.spans);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(test_one_run_is_not_stitched), T(test_many_runs_are_stitched),
		T(test_extents_in_pieces),	 T(test_empty_sequence),
		T(test_room_stays_while_blocks_do), T(test_match_attaches_and_maps),
		T(test_match_cuts),		 T(test_append_twice),
		T(test_version),
		T(test_small_calls),		 T(test_view_outlives_sequence),
		T(test_batches),		 T(test_batch_in_pieces),
		T(test_maps),			 T(test_maps_in_pieces),
		T(test_replies_out_of_order),	 T(test_threads),
		T(test_prefetch_is_waited_for),	 T(test_prefetch_anew),
		T(test_prefetch_of_a_dead_daemon), T(test_map_that_does_not_wait),
		T(test_no_mount),		 T(test_read_only_descriptors),
		T(test_new_pool_files),		 T(test_unknown_pool_file),
		T(test_pool_file_that_is_gone),
		T(test_bad_replies),		 T(test_bad_extents),
		T(test_death_and_reconnect),	 T(test_views_come_back),
		T(test_leases),			 T(test_fork),
		T(test_arena_is_shared),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
