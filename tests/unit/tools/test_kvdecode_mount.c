/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The decoder on a libkvc that lies in this file and keeps no more of its promises than kvc.h makes: a
 * room is overwritten as soon as the next append comes or its last token is committed, a view shows
 * what was sealed when it was mapped, a fork has memory of its own. Logits must equal plain memory's.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "fs/uapi/kvc.h"
#include "lib/test.h"
#include "lib/tiny_model.h"
#include "tools/kvdecode/kvdecode.h"

#define RANDOM	    ((struct tiny_shape){64, 192, 3, 8, 2, 300, MAX_BLOCKS * 16})
#define BLOCK_BYTES (16u * 3 * 2 * 16 * 4) /* tokens, layers, K and V, elements, f32 */
#define STRIDE	    round_up_pow2(BLOCK_BYTES, 4096)
#define MAX_BLOCKS  16
#define MAX_SEQS    16
#define STEPS	    40u

struct kvc {
	int unused;
};

struct kvc_seq { /* content of the sequence, whether it is open or not */
	char path[64];
	u32 tokens, nr_ids, reserved, ids[MAX_BLOCKS * 16];
	u8 *room; /* from the block of the first uncommitted token at the append */
	u32 room_first;
	u8 bytes[MAX_BLOCKS][BLOCK_BYTES];
};

static struct kvc session;
static struct kvc_seq seqs[MAX_SEQS];
static u32 nr_seqs, nr_views, nr_open;
static bool no_space;

int kvc_open(struct kvc **kvc, const char *mount, const struct kvc_options *options)
{
	*kvc = &session;
	return 0;
}

void kvc_close(struct kvc *kvc)
{
	assert_int_equal(nr_open, 0);
	assert_int_equal(nr_views, 0);
}

static struct kvc_seq *look_up(const char *path)
{
	for (u32 i = 0; i < nr_seqs; i++)
		if (!strcmp(seqs[i].path, path))
			return &seqs[i];
	return NULL;
}

int kvc_seq_open(struct kvc *kvc, struct kvc_seq **seq, const char *path, unsigned int flags)
{
	struct kvc_seq *s = look_up(path);

	if (!s && !(flags & KVC_SEQ_CREATE))
		return -ENOENT;
	if (!s) {
		assert_true(nr_seqs < MAX_SEQS);
		s = &seqs[nr_seqs++];
		*s = (struct kvc_seq){0};
		snprintf(s->path, sizeof(s->path), "%s", path);
	}
	nr_open++;
	*seq = s;
	return 0;
}

static void drop_room(struct kvc_seq *seq)
{
	if (seq->room)
		memset(seq->room, 0xee, STRIDE * 2);
	free(seq->room);
	seq->room = NULL;
	seq->reserved = seq->tokens;
}

void kvc_seq_close(struct kvc_seq *seq)
{
	drop_room(seq);
	nr_open--;
}

/* The longest chain of whole blocks with these ids that any sequence has. */
int kvc_seq_match(struct kvc_seq *seq, const uint32_t *ids, uint32_t nr_ids, uint32_t *cached)
{
	assert_int_equal(seq->tokens, 0);
	for (u32 i = 0; i < nr_seqs; i++) {
		u32 n = 0;

		while (n < nr_ids && n < seqs[i].tokens && seqs[i].ids[n] == ids[n])
			n++;
		n -= n % 16;
		if (n <= seq->tokens)
			continue;
		seq->tokens = n;
		memcpy(seq->bytes, seqs[i].bytes, n / 16 * BLOCK_BYTES);
	}
	memcpy(seq->ids, ids, nr_ids * sizeof(*ids));
	seq->nr_ids = nr_ids;
	seq->reserved = *cached = seq->tokens;
	return 0;
}

int kvc_seq_map_range(struct kvc_seq *seq, uint64_t first, uint64_t nr, struct kvc_view *view)
{
	u8 *copy = calloc(nr, STRIDE);

	assert_int_equal(view->size, sizeof(*view));
	assert_true(nr && (first + nr) * 16 <= seq->tokens);
	for (u64 i = 0; i < nr; i++)
		memcpy(copy + i * STRIDE, seq->bytes[first + i], BLOCK_BYTES);
	*view = (struct kvc_view){sizeof(*view), copy, nr * STRIDE, first, nr, STRIDE, 1, copy};
	nr_views++;
	return 0;
}

void kvc_view_unmap(struct kvc_view *view)
{
	nr_views -= !!view->priv;
	free(view->priv);
	*view = (struct kvc_view){.size = sizeof(*view)};
}

int kvc_seq_truncate(struct kvc_seq *seq, uint32_t tokens)
{
	assert_int_equal(tokens, 0);
	drop_room(seq);
	seq->tokens = seq->reserved = seq->nr_ids = 0;
	return 0;
}

int kvc_seq_append(struct kvc_seq *seq, uint32_t nr_tokens, struct kvc_room *room)
{
	u32 first = seq->tokens / 16;
	u64 nr = div_round_up(seq->tokens + nr_tokens, 16) - first;

	assert_int_equal(room->size, sizeof(*room));
	assert_true(nr_tokens && seq->tokens + nr_tokens <= MAX_BLOCKS * 16);
	if (no_space)
		return -ENOSPC;
	drop_room(seq);
	seq->room = malloc(max(nr, 2u) * STRIDE);
	seq->room_first = first;
	memset(seq->room, 0xdd, nr * STRIDE);
	/* The open block's committed tokens are there, in every plane; the rest of it is not. */
	for (u32 plane = 0; plane < 6; plane++)
		memcpy(seq->room + plane * 1024, seq->bytes[first] + plane * 1024, seq->tokens % 16 * 64);
	seq->reserved = seq->tokens + nr_tokens;
	*room = (struct kvc_room){sizeof(*room), seq->room, nr * STRIDE, first, nr, STRIDE, seq->tokens};
	return 0;
}

int kvc_seq_commit(struct kvc_seq *seq, uint32_t tokens, const uint32_t *ids, uint32_t nr_ids)
{
	assert_true(tokens > seq->tokens && tokens <= seq->reserved);
	assert_int_equal(max(tokens, seq->nr_ids), seq->nr_ids + nr_ids);
	if (nr_ids)
		memcpy(seq->ids + seq->nr_ids, ids, nr_ids * sizeof(*ids));
	seq->nr_ids += nr_ids;
	for (u32 b = seq->room_first; b < div_round_up(tokens, 16); b++)
		memcpy(seq->bytes[b], seq->room + (b - seq->room_first) * STRIDE, BLOCK_BYTES);
	seq->tokens = tokens;
	if (tokens == seq->reserved && tokens % 16 == 0)
		drop_room(seq);
	return 0;
}

int kvc_seq_fork(struct kvc_seq *seq, const char *path, uint32_t tokens)
{
	struct kvc_seq *child;

	assert_null(look_up(path));
	assert_int_equal(tokens, seq->tokens);
	assert_int_equal(kvc_seq_open(&session, &child, path, KVC_SEQ_CREATE), 0);
	nr_open--;
	memcpy(child->bytes, seq->bytes, sizeof(child->bytes));
	memcpy(child->ids, seq->ids, tokens * sizeof(*seq->ids));
	child->tokens = child->nr_ids = child->reserved = tokens;
	return 0;
}

/* ---- runs ---- */

struct fixture {
	struct model m;
	struct decoder d;
	struct kv_store mem, mount;
	char dir[PATH_MAX];
	u32 ids[1024];
};

/* The answer to @nr ids on @kv, or on a fork of it after the prompt; its logits, to be freed. */
static char *run(struct fixture *f, struct kv *kv, u32 nr, const char *fork)
{
	char *logits = NULL;
	size_t bytes;
	struct stream s = {.d = &f->d, .kv = kv, .ids = f->ids, .nr_ids = nr, .steps = STEPS};

	s.logits = open_memstream(&logits, &bytes);
	assert_int_equal(stream_prompt(&s), 0);
	if (fork)
		s.kv = kv_open(kv->store, fork, kv, NULL, nr);
	assert_non_null(s.kv);
	assert_int_equal(stream_generate(&s), 0);
	assert_int_equal(s.kv->tokens, nr + STEPS - 1);
	fclose(s.logits);
	assert_int_equal(bytes, STEPS * 300 * sizeof(float));
	if (fork)
		kv_close(s.kv);
	/* All of the prompt is there now: its last token once more, whatever became of the room. */
	decoder_step(&f->d, kv, f->ids[nr - 1], nr - 1);
	assert_memory_equal(f->d.logits, logits, 300 * sizeof(float));
	return logits;
}

static void compare(struct fixture *f, u32 nr, const char *name, u32 cached, const char *fork)
{
	struct kv *a = kv_open(&f->mem, name, NULL, f->ids, nr);
	struct kv *b = kv_open(&f->mount, name, NULL, f->ids, nr);
	char *want, *got;

	assert_true(a && b);
	assert_int_equal(a->tokens, 0);
	assert_int_equal(b->tokens, cached);
	want = run(f, a, nr, NULL);
	got = run(f, b, nr, fork);
	assert_memory_equal(want, got, STEPS * 300 * sizeof(float));
	free(want);
	free(got);
	kv_close(a);
	kv_close(b);
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	nr_seqs = 0;
	test_tmp(f->dir, "kvdecode-mount.XXXXXX");
	tiny_model(&f->m, 7, RANDOM);
	if (!mkdtemp(f->dir) || decoder_init(&f->d, &f->m))
		return -1;
	f->m.fingerprint = 0x123;
	for (u32 i = 0; i < 1024; i++)
		f->ids[i] = (i * 37 + 5) % f->m.vocab;
	*state = f;
	f->mem = (struct kv_store){.m = &f->m, .ns = "ns"};
	f->mount = (struct kv_store){.m = &f->m, .mount = f->dir, .ns = "ns"};
	return kv_store_open(&f->mount);
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	char path[PATH_MAX + 16];

	kvc_close(f->mount.kvc);
	free(f->d.x);
	model_free(&f->m);
	snprintf(path, sizeof(path), "%s/ns/.geometry", f->dir);
	unlink(path);
	snprintf(path, sizeof(path), "%s/ns", f->dir);
	rmdir(path);
	rmdir(f->dir);
	free(f);
	return 0;
}

static void test_equal_bits_at_prompt_lengths(void **state)
{
	static const u32 lengths[] = {1, 15, 16, 17, 31, 32, 33, 48};

	for (size_t i = 0; i < ARRAY_SIZE(lengths); i++) {
		u32 nr = lengths[i];

		nr_seqs = 0;
		compare(*state, nr, "first", 0, NULL);
		compare(*state, nr, "again", nr / 16 * 16, NULL);
		compare(*state, nr, "parent", nr / 16 * 16, "child");
		nr_seqs = 0;
		compare(*state, nr, "parent", 0, "child");
	}
}

static void test_answer_continues_as_prompt(void **state)
{
	struct fixture *f = *state;

	compare(f, 20, "first", 0, NULL);
	compare(f, 55, "second", 48, "fork");
	f->ids[18]++;
	compare(f, 40, "third", 16, NULL);
}

static void test_no_space(void **state)
{
	struct fixture *f = *state;
	struct stream s = {.d = &f->d, .ids = f->ids, .nr_ids = 20, .steps = STEPS};

	s.kv = kv_open(&f->mount, "a", NULL, f->ids, 20);
	assert_non_null(s.kv);
	no_space = true;
	assert_int_equal(stream_prompt(&s), -ENOSPC);
	no_space = false;
	assert_int_equal(stream_prompt(&s), 0);
	no_space = true;
	assert_int_equal(stream_generate(&s), -ENOSPC);
	no_space = false;
	kv_close(s.kv);
}

static void test_geometry(void **state)
{
	struct fixture *f = *state;
	struct kv_store other = {.m = &f->m, .mount = "/nonexistent", .ns = "ns"};
	char path[PATH_MAX + 16], text[256] = "";
	FILE *file;

	snprintf(path, sizeof(path), "%s/ns/.geometry", f->dir);
	file = fopen(path, "re");
	assert_non_null(file);
	assert_non_null(fgets(text, sizeof(text), file));
	fclose(file);
	assert_string_equal(text, "layers=3 kv_heads=2 head_dim=8 dtype=f32 block_tokens=16 layout=nhd "
				  "fingerprint=kvdecode-0000000000000123\n");
	assert_int_equal(kv_store_open(&other), -ENOENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_equal_bits_at_prompt_lengths, setup, teardown),
		cmocka_unit_test_setup_teardown(test_answer_continues_as_prompt, setup, teardown),
		cmocka_unit_test_setup_teardown(test_no_space, setup, teardown),
		cmocka_unit_test_setup_teardown(test_geometry, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
