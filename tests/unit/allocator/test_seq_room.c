/* SPDX-License-Identifier: Apache-2.0 */
/* Appending in place on a stubbed pool: what a room does to the sequence, and what it keeps out. */
#include <errno.h>
#include <string.h>
#include "allocator/base/fault.h"
#include "allocator/base/textbuf.h"
#include "allocator/meta.h"
#include "allocator/seq_room.h"
#include "lib/pool_stub.h"
#include "lib/test.h"

#define BT 16u

static struct geometry geo;
static struct pool *pool;
static u32 root;

static int setup(void **state)
{
	static const char text[] = "layers=2 kv_heads=2 head_dim=8 dtype=f16 block_tokens=16 layout=hnd";
	struct textbuf why = TEXTBUF_INIT;
	bool complete;

	assert_int_equal(geometry_parse(text, strlen(text), &geo, &complete, &why), 0);
	pool = stub_pool_create(MIB(4));
	assert_int_equal(pool_root(pool, 1, "", 0, &root), 0);
	return 0;
}

static int teardown(void **state)
{
	u64 blocks, bytes;

	assert_int_equal(stub_pool_named(pool), 0);
	pool_check(pool);
	pool_drop_cached(pool, 0, NR_BLOCK_TIERS, &blocks, &bytes);
	assert_int_equal(stub_pool_live(pool), 0);
	stub_pool_destroy(pool);
	return 0;
}

static struct sequence *new_seq(u64 id)
{
	struct sequence *seq;

	assert_int_equal(seq_create(&seq, pool, id, 1, &geo), 0);
	seq->root = root;
	return seq;
}

/* What a client does: bytes of token @t, everywhere in its block. */
static void fill_with(struct seq_room *room, u32 t, u8 value)
{
	u32 i = t / BT - room->first;
	const void *addr;
	u64 unit = geometry_unit(&geo);

	assert_true(i < room->nr);
	assert_int_equal(pool_pin(pool, room->ids[i], &addr), 0);
	for (u64 at = t % BT * unit; at < geo.block_bytes; at += unit * BT)
		memset((u8 *)(uintptr_t)addr + at, value, unit);
	pool_unpin(pool, &room->ids[i], 1);
}

static void fill(struct seq_room *room, u32 t)
{
	fill_with(room, t, (u8)(t + 1));
}

/* What is in token @t of a test's first prompt, and of another one. */
static u8 plain_value(u32 prompt, u32 t)
{
	return (u8)(t + 1);
}

static u32 prompt_id(u32 prompt, u32 t)
{
	return t < prompt * 7 ? t : prompt * 1000 + t;
}

static u8 prompt_value(u32 prompt, u32 t)
{
	return (u8)hash_u64(prompt_id(prompt, t));
}

static void check_values(struct sequence *seq, u32 nr, u32 prompt, u8 (*value)(u32 prompt, u32 t))
{
	u64 unit = geometry_unit(&geo);
	u8 *buf = malloc(geo.block_bytes);

	for (u32 t = 0; t < nr; t++) {
		u64 off = t / BT * geo.block_bytes;

		if (t % BT == 0)
			assert_int_equal(seq_read(seq, buf, geo.block_bytes, off), geo.block_bytes);
		for (u64 at = t % BT * unit; at < geo.block_bytes; at += unit * BT)
			assert_int_equal(buf[at], value(prompt, t));
	}
	free(buf);
}

static void check_tokens(struct sequence *seq, u32 nr)
{
	check_values(seq, nr, 0, plain_value);
}

static int commit(struct seq_room *room, u32 tokens)
{
	struct room_commit c = {.tokens = tokens};
	u32 ids[256];

	for (u32 t = room->seq->nr_ids; t < tokens; t++)
		ids[c.nr_ids++] = t;
	c.ids = ids;
	return seq_room_commit(room, &c);
}

static void persist(struct sequence *seq)
{
	u64 nr;

	assert_int_equal(seq_persist(seq, NULL, NULL, &nr), 0);
}

static void token_by_token(void **state)
{
	struct sequence *seq = new_seq(1);
	struct seq_room *room = NULL;

	for (u32 t = 0; t < 100; t++) {
		assert_int_equal(seq_room_begin(seq, 1 + t % 7, &room), 0);
		fill(room, t);
		assert_int_equal(commit(room, t + 1), 0);
		assert_int_equal(seq->T, t + 1);
		assert_int_equal(seq->sealed_blocks, (t + 1) / BT);
		if (t % 5 == 0)
			persist(seq);
		if (t % 13 == 0) {
			seq_room_end(room);
			room = NULL;
			check_tokens(seq, t + 1);
		}
	}
	check_tokens(seq, 100);
	assert_int_equal(seq->indexed_blocks, 100 / BT);
	seq_room_end(room);
	seq_destroy(seq);
}

/* What was reserved, not what its last block has space for. */
static void no_more_than_reserved(void **state)
{
	struct sequence *seq = new_seq(1);
	struct seq_room *room = NULL;

	assert_int_equal(seq_room_begin(seq, 20, &room), 0);
	for (u32 t = 0; t < 32; t++)
		fill(room, t);
	assert_int_equal(commit(room, 21), -EINVAL);
	assert_int_equal(seq->T + seq->nr_ids, 0);
	assert_int_equal(commit(room, 10), 0);
	assert_int_equal(seq_room_begin(seq, 5, &room), 0); /* less than there is: that stays */
	assert_int_equal(commit(room, 21), -EINVAL);
	assert_int_equal(commit(room, 20), 0);
	assert_int_equal(seq_room_begin(seq, 1, &room), 0);
	assert_int_equal(commit(room, 22), -EINVAL);
	assert_int_equal(seq->T, 20);
	assert_int_equal(commit(room, 21), 0);
	seq_room_end(room);
	check_tokens(seq, 21);
	seq_destroy(seq);
}

/* A prompt's first @nr tokens in @seq: what is cached, and the rest computed as far as it goes. */
static void run_prompt(struct sequence *seq, u32 prompt, u32 nr, struct test_rng *rng)
{
	struct seq_room *room = NULL;
	struct room_commit c;
	u32 ids[200], matched;

	for (u32 t = 0; t < nr; t++)
		ids[t] = prompt_id(prompt, t);
	assert_int_equal(seq_set_ids(seq, ids, nr, &matched), 0);
	assert_int_equal(seq->T, matched);
	assert_in_range(matched, 0, nr);
	check_values(seq, matched, prompt, prompt_value);
	c = (struct room_commit){.tokens = matched + (u32)test_rng_below(rng, nr - matched + 1)};
	if (c.tokens == matched)
		return;
	assert_int_equal(seq_room_begin(seq, c.tokens - matched, &room), 0);
	for (u32 t = matched; t < c.tokens; t++)
		fill_with(room, t, prompt_value(prompt, t));
	assert_int_equal(seq_room_commit(room, &c), 0);
	if (test_rng_below(rng, 4) == 0)
		persist(seq);
	seq_room_end(room);
	check_values(seq, c.tokens, prompt, prompt_value);
}

/* One prompt after the other in the same few sequences: none ever has bytes of another one. */
static void prompts_never_mix(void **state)
{
	struct sequence *seqs[3] = {new_seq(1), new_seq(2), new_seq(3)};
	u8 *junk = malloc(geo.block_bytes);
	struct test_rng rng;
	u32 prompt;

	memset(junk, 0xee, geo.block_bytes);
	test_rng_init(&rng);
	for (u32 i = 0; i < 3000; i++) {
		struct sequence *seq = seqs[test_rng_below(&rng, ARRAY_SIZE(seqs))];
		u64 size = seq_size(seq);

		/* somebody's bytes that no commit has seen */
		if (test_rng_below(&rng, 8) == 0)
			assert_int_equal(seq_write(seq, junk, geo.block_bytes, size), 0);
		prompt = (u32)test_rng_below(&rng, 12);
		run_prompt(seq, prompt, (u32)test_rng_below(&rng, 130) + 1, &rng);
		assert_int_equal(seq_commit(seq), 0); /* who wrote them closes kv */
		check_values(seq, seq->T, prompt, prompt_value);
	}
	for (u32 i = 0; i < ARRAY_SIZE(seqs); i++)
		seq_destroy(seqs[i]);
	free(junk);
}

static int load_record(void *ctx, const struct meta_key *key, const void *value, u32 bytes)
{
	struct sequence *seq = ctx;

	return key->id == seq->tab.id ? seq_load(seq, key->type, key->sub, value, bytes) : 0;
}

/* What is persisted while the client goes on writing can be loaded, and holds what was committed. */
static void persisted_with_a_room(void **state)
{
	struct sequence *seq = new_seq(7), *again;
	struct textbuf why = TEXTBUF_INIT;
	struct seq_room *room = NULL;

	assert_int_equal(seq_room_begin(seq, 60, &room), 0);
	for (u32 t = 0; t < 60; t++)
		fill(room, t);
	assert_int_equal(commit(room, 40), 0);
	persist(seq);
	assert_int_not_equal(seq->tab.blocks[2].v, room->ids[2].v);
	assert_int_equal(commit(room, 41), 0);
	assert_int_equal(seq->tab.blocks[2].v, room->ids[2].v);
	again = new_seq(7);
	assert_int_equal(stub_records(pool, load_record, again), 0);
	assert_int_equal(seq_load_finish(again, &why), 0);
	assert_int_equal(again->T, 40);
	check_tokens(again, 40);
	seq_room_end(room);
	assert_int_equal(seq->T, 41);
	assert_int_equal(seq_commit(seq), 0);
	assert_int_equal(seq_set_tokens(seq, 40), 0);
	check_tokens(seq, 40);
	seq_destroy(again);
	seq_destroy(seq);
}

static void others_are_kept_out(void **state)
{
	struct sequence *seq = new_seq(1), *fork = new_seq(2), *gone;
	struct seq_room *room = NULL, *other = NULL;
	u8 byte = 1;

	assert_int_equal(seq_room_begin(seq, 20, &room), 0);
	for (u32 t = 0; t < 20; t++)
		fill(room, t);
	assert_int_equal(commit(room, 20), 0);
	assert_int_equal(seq_room_begin(seq, 1, &other), -EBUSY);
	assert_null(other);
	assert_int_equal(seq_write(seq, &byte, 1, geo.block_bytes), -EBUSY);
	assert_int_equal(seq_truncate(seq, 0), -EBUSY);
	assert_int_equal(seq_set_tokens(seq, 3), -EBUSY);
	assert_int_equal(seq_restart(seq), -EBUSY);
	assert_int_equal(commit(room, 19), -EINVAL);
	assert_int_equal(commit(room, 33), -EINVAL);
	assert_int_equal(seq_fork(seq, fork, SEQ_NO_TOKENS), 0);
	assert_int_equal(fork->T, 20);
	check_tokens(fork, 20);
	assert_int_equal(seq_kv_gone(seq, 3, &gone), 0);
	assert_int_equal(gone->T, 20);
	fill(room, 20);
	assert_int_equal(commit(room, 21), -ESTALE);
	assert_int_equal(seq_room_begin(seq, 1, &room), -ESTALE);
	assert_int_equal(seq_write(seq, &byte, 1, 0), 0);
	check_tokens(gone, 20);
	seq_room_end(room);
	seq_destroy(gone);
	seq_destroy(fork);
	seq_destroy(seq);
}

/* A client that dies leaves what it has committed, and no block of its room. */
static void owner_dies(void **state)
{
	struct sequence *seq = new_seq(1);
	struct seq_room *room = NULL;
	u32 live;

	assert_int_equal(seq_room_begin(seq, 100, &room), 0);
	for (u32 t = 0; t < 50; t++)
		fill(room, t);
	assert_int_equal(commit(room, 33), 0);
	live = stub_pool_live(pool);
	seq_room_end(room);
	assert_int_equal(stub_pool_live(pool), live - (seq_room_need(seq, 67, NULL) / KVC_PAGE_SIZE - 1));
	assert_int_equal(seq->tab.nr_blocks, 3);
	assert_int_equal(seq->T, 33);
	check_tokens(seq, 33);
	persist(seq);
	seq_destroy(seq);
}

/* POSIX bytes first, then a room, then POSIX again. */
static void after_plain_writes(void **state)
{
	struct sequence *seq = new_seq(1);
	struct seq_room *room = NULL;
	u8 *buf = calloc(2, geo.block_bytes);
	u64 unit = geometry_unit(&geo);

	for (u32 t = 0; t < 32; t++)
		for (u64 at = t % BT * unit; at < geo.block_bytes; at += unit * BT)
			memset(buf + t / BT * geo.block_bytes + at, (int)(t + 1), unit);
	assert_int_equal(seq_write(seq, buf, 2 * geo.block_bytes, 0), 0);
	assert_int_equal(seq_set_tokens(seq, 20), 0);
	persist(seq);
	assert_int_equal(seq_room_begin(seq, 1, &room), 0);
	assert_int_not_equal(room->ids[0].v, seq->tab.blocks[1].v);
	fill(room, 20);
	assert_int_equal(commit(room, 21), 0);
	check_tokens(seq, 21);
	seq_room_end(room);
	check_tokens(seq, 21);
	assert_int_equal(seq_write(seq, buf + geo.block_bytes, geo.block_bytes, geo.block_bytes), 0);
	assert_int_equal(seq_commit(seq), 0);
	assert_int_equal(seq->T, 32);
	check_tokens(seq, 32);
	free(buf);
	seq_destroy(seq);
}

/* Whatever fails, begin and commit change nothing, and the sequence can be persisted. */
static void failures(void **state)
{
	for (u32 kind = 0; kind < 2; kind++) {
		for (u32 n = 1; n < 12; n++) {
			struct sequence *seq = new_seq(1);
			struct seq_room *room = NULL;
			int err;

			assert_int_equal(seq_room_begin(seq, 20, &room), 0);
			for (u32 t = 0; t < 20; t++)
				fill(room, t);
			assert_int_equal(commit(room, 20), 0);
			fault_arm(kind ? FAULT_SPACE : FAULT_MEMORY, n);
			err = seq_room_begin(seq, 100, &room);
			if (!err) {
				for (u32 t = 20; t < 120; t++)
					fill(room, t);
				err = commit(room, 120);
			}
			fault_arm(kind ? FAULT_SPACE : FAULT_MEMORY, 0);
			assert_int_equal(seq->T, err ? 20 : 120);
			check_tokens(seq, seq->T);
			persist(seq);
			seq_room_end(room);
			check_tokens(seq, seq->T);
			seq_destroy(seq);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(token_by_token, setup, teardown),
		cmocka_unit_test_setup_teardown(no_more_than_reserved, setup, teardown),
		cmocka_unit_test_setup_teardown(prompts_never_mix, setup, teardown),
		cmocka_unit_test_setup_teardown(persisted_with_a_room, setup, teardown),
		cmocka_unit_test_setup_teardown(others_are_kept_out, setup, teardown),
		cmocka_unit_test_setup_teardown(owner_dies, setup, teardown),
		cmocka_unit_test_setup_teardown(after_plain_writes, setup, teardown),
		cmocka_unit_test_setup_teardown(failures, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
