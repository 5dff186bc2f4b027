/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences on a stubbed pool: what the model test does not do, one behaviour per test. */
#include <errno.h>
#include <string.h>
#include "allocator/base/fault.h"
#include "allocator/base/textbuf.h"
#include "allocator/meta.h"
#include "allocator/seq_format.h"
#include "allocator/seq_room.h"
#include "allocator/written.h"
#include "lib/pool_stub.h"
#include "lib/test.h"

#define BT 16u

static struct geometry geo;
static struct pool *pool;
static u32 root;
static u8 buf[1 << 20], out[1 << 20];

static void begin(const char *text, u64 capacity)
{
	struct textbuf why = TEXTBUF_INIT;
	bool complete;

	assert_int_equal(geometry_parse(text, strlen(text), &geo, &complete, &why), 0);
	assert_true(complete);
	pool = stub_pool_create(capacity);
	assert_int_equal(pool_root(pool, 1, "", 0, &root), 0);
}

#define HND    "layers=2 kv_heads=2 head_dim=8 dtype=f16 block_tokens=16 layout=hnd"
#define OPAQUE "layers=1 token_bytes=32 block_tokens=16 layout=opaque"

static struct sequence *new_seq(u64 id)
{
	struct sequence *seq;

	assert_int_equal(seq_create(&seq, pool, id, 1, &geo), 0);
	seq->root = root;
	return seq;
}

static void end(void)
{
	u64 blocks, bytes;

	assert_int_equal(stub_pool_named(pool), 0);
	pool_check(pool);
	pool_drop_cached(pool, 0, NR_BLOCK_TIERS, &blocks, &bytes);
	assert_int_equal(stub_pool_live(pool), 0);
	stub_pool_destroy(pool);
}

static void put_ids(struct sequence *seq, u32 first, u32 nr)
{
	u32 ids[1024];

	for (u32 i = 0; i < nr; i++)
		ids[i] = first + i;
	assert_int_equal(seq_write_ids(seq, ids, nr * 4, seq->nr_ids * 4ull), 0);
	assert_int_equal(seq_close_ids(seq), 0);
}

static void put_blocks(struct sequence *seq, u32 nr, u8 value)
{
	memset(buf, value, nr * geo.block_bytes);
	assert_int_equal(seq_write(seq, buf, nr * geo.block_bytes, seq_size(seq)), 0);
}

static void ids_in_odd_pieces(void **state)
{
	struct sequence *seq;
	u32 ids[100], got[100];

	begin(HND, MIB(1));
	seq = new_seq(1);
	for (u32 i = 0; i < 100; i++)
		ids[i] = i * 0x01020304u;
	for (u32 off = 0, len; off < sizeof(ids); off += len) {
		len = min(7u, (u32)sizeof(ids) - off);
		assert_int_equal(seq_write_ids(seq, (u8 *)ids + off, len, off), 0);
		assert_int_equal(seq->nr_ids, (off + len) / 4);
	}
	assert_int_equal(seq_read_ids(seq, got, sizeof(got), 0), sizeof(got));
	assert_memory_equal(ids, got, sizeof(got));
	/* The last part of an id does not count, and is gone when something else is written. */
	assert_int_equal(seq_write_ids(seq, "abc", 3, sizeof(ids)), 0);
	assert_int_equal(seq->nr_ids, 100);
	assert_int_equal(seq_write_ids(seq, "zz", 2, 1), 0);
	assert_int_equal(seq_write_ids(seq, "d", 1, sizeof(ids) + 3), -EINVAL);
	assert_int_equal(seq_read_ids(seq, got, 4, 0), 4);
	assert_int_equal(((u8 *)got)[1], 'z');
	assert_int_equal(seq_write_ids(seq, ids, 4, sizeof(ids) + 4), -EINVAL);
	assert_int_equal(seq_truncate_ids(seq, 6), -EINVAL);
	assert_int_equal(seq_truncate_ids(seq, 404), -EINVAL);
	assert_int_equal(seq_write_ids(seq, ids, 4, 4ull << 28), -EINVAL);
	seq_destroy(seq);
	end();
}

static void cached_tokens_end_where_ids_differ(void **state)
{
	struct sequence *a, *b;

	begin(HND, MIB(8));
	a = new_seq(1);
	put_ids(a, 1, 1000);
	put_blocks(a, 62, 7);
	assert_int_equal(seq_commit(a), 0);
	assert_int_equal(a->T, 62 * BT);
	b = new_seq(2);
	put_ids(b, 1, 800);
	assert_int_equal(b->cached_tokens, 800);
	assert_int_equal(seq_read(b, out, sizeof(out), 0), 50 * geo.block_bytes);
	assert_memory_equal(out, buf, 50 * geo.block_bytes);
	seq_destroy(b);
	b = new_seq(3);
	put_ids(b, 1, 500);
	put_ids(b, 9999, 1);
	put_ids(b, 502, 299);
	assert_int_equal(b->cached_tokens, 496);
	seq_destroy(b);
	b = new_seq(4);
	assert_int_equal(pool_root(pool, 1, "tenant", 6, &b->root), 0);
	put_ids(b, 1, 800);
	assert_int_equal(b->cached_tokens, 0);
	seq_destroy(b);
	/* Unlinked, the blocks stay cached. */
	seq_destroy(a);
	b = new_seq(5);
	put_ids(b, 1, 800);
	assert_int_equal(b->cached_tokens, 800);
	assert_int_equal(seq_write(b, buf, 10, 0), -EPERM);
	seq_destroy(b);
	end();
}

static void another_root_is_another_chain(void **state)
{
	struct sequence *a, *b;
	u32 tenant;

	begin(HND, MIB(1));
	assert_int_equal(pool_root(pool, 1, "tenant", 6, &tenant), 0);
	a = new_seq(1);
	put_ids(a, 1, 64);
	put_blocks(a, 2, 1);
	assert_int_equal(seq_commit(a), 0);
	assert_int_equal(a->indexed_blocks, 2);
	a->root = tenant;
	put_blocks(a, 2, 1);
	assert_int_equal(seq_commit(a), 0);
	b = new_seq(2);
	put_ids(b, 1, 64);
	assert_int_equal(b->cached_tokens, 32);
	seq_destroy(b);
	b = new_seq(3);
	b->root = tenant;
	put_ids(b, 1, 64);
	assert_int_equal(b->cached_tokens, 0);
	seq_destroy(a);
	seq_destroy(b);
	end();
}

static void equal_bytes_share_and_different_ones_do_not(void **state)
{
	struct sequence *a, *b, *c;

	begin(HND, MIB(1));
	a = new_seq(1);
	b = new_seq(2);
	c = new_seq(3);
	put_blocks(a, 4, 1);
	put_blocks(b, 4, 1);
	put_blocks(c, 4, 2);
	for (u32 i = 0; i < 3; i++) {
		struct sequence *s[] = {a, b, c};

		put_ids(s[i], 1, 64);
		assert_int_equal(seq_commit(s[i]), 0);
	}
	assert_int_equal(stub_pool_live(pool), 8);
	assert_int_equal(a->tab.blocks[3].v, b->tab.blocks[3].v);
	assert_int_equal(seq_read(c, out, 1, 0), 1);
	assert_int_equal(out[0], 2);
	/* c goes on below a's chain. */
	put_ids(c, 65, 16);
	put_blocks(c, 1, 3);
	assert_int_equal(seq_commit(c), 0);
	seq_destroy(b);
	b = new_seq(4);
	put_ids(b, 1, 80);
	assert_int_equal(b->cached_tokens, 80);
	assert_int_equal(seq_read(b, out, sizeof(out), 0), 5 * geo.block_bytes);
	assert_int_equal(out[0], 1);
	assert_int_equal(out[4 * geo.block_bytes], 3);
	seq_destroy(a);
	seq_destroy(b);
	seq_destroy(c);
	end();
}

static void tokens_end_inside_a_block(void **state)
{
	struct sequence *seq;

	begin(HND, MIB(1));
	seq = new_seq(1);
	put_ids(seq, 1, 40);
	assert_int_equal(seq_set_tokens(seq, 40), 0); /* kept: there are no bytes yet */
	assert_int_equal(seq->T, 0);
	put_blocks(seq, 3, 5);
	assert_int_equal(seq_commit(seq), 0);
	assert_int_equal(seq->T, 40);
	assert_int_equal(seq->sealed_blocks, 2);
	/* Tokens from 40 on count as unwritten until they are written again. */
	assert_int_equal(seq_commit(seq), 0);
	assert_int_equal(seq->T, 40);
	assert_int_equal(seq_set_tokens(seq, 48), -EINVAL);
	assert_int_equal(seq_write(seq, buf, geo.block_bytes, 2 * geo.block_bytes), 0);
	assert_int_equal(seq_commit(seq), 0);
	assert_int_equal(seq->T, 48);
	/* Cut: a private copy of the partial block, ids go. */
	assert_int_equal(seq_set_tokens(seq, 20), 0);
	assert_int_equal(seq->nr_ids, 20);
	assert_int_equal(seq_size(seq), 2 * geo.block_bytes);
	assert_int_equal(seq_truncate(seq, geo.block_bytes / 2), -EINVAL);
	seq_destroy(seq);
	end();
}

static void opaque_tokens_are_counted_by_bytes(void **state)
{
	struct sequence *seq;

	begin(OPAQUE, MIB(1));
	seq = new_seq(1);
	memset(buf, 3, 2000);
	assert_int_equal(seq_write(seq, buf, 1000, 0), 0);
	assert_int_equal(seq_commit(seq), 0);
	assert_int_equal(seq->T, 31);
	assert_int_equal(seq_size(seq), 1000);
	assert_int_equal(seq_set_tokens(seq, 31), 0);
	assert_int_equal(seq_size(seq), 31 * 32);
	assert_int_equal(seq_truncate(seq, 100), -EINVAL);
	assert_int_equal(seq_truncate(seq, 96), 0);
	assert_int_equal(seq->T, 3);
	assert_int_equal(seq_truncate(seq, 2000), 0);
	assert_int_equal(seq_read(seq, out, 2000, 0), 2000);
	for (u32 i = 0; i < 2000; i++)
		assert_int_equal(out[i], i < 96 ? 3 : 0);
	seq_destroy(seq);
	end();
}

static void fallocate_reserves(void **state)
{
	struct sequence *seq, *other;

	begin(HND, 4 * 2048);
	assert_int_equal(geo.block_bytes, 2048);
	seq = new_seq(1);
	other = new_seq(2);
	assert_int_equal(seq_fallocate(seq, 0, 3 * 2048, true), 0);
	assert_int_equal(seq_size(seq), 0);
	put_ids(seq, 1, 10); /* still a sequence without bytes */
	assert_int_equal(seq_write(other, buf, 2 * 2048, 0), -ENOSPC);
	put_blocks(seq, 3, 1);
	assert_int_equal(seq_commit(seq), 0);
	assert_int_equal(seq->T, 48);
	assert_int_equal(seq_fallocate(seq, 0, 5 * 2048, false), -ENOSPC);
	assert_int_equal(seq_size(seq), 3 * 2048);
	seq_destroy(seq);
	seq_destroy(other);
	end();
}

static void a_copy_stores_nothing_but_the_tail(void **state)
{
	struct sequence *a, *b;

	begin(HND, MIB(16));
	a = new_seq(1);
	b = new_seq(2);
	put_blocks(a, 100, 1);
	put_ids(a, 1, 1000);
	assert_int_equal(seq_commit(a), 0);
	assert_int_equal(seq_write(a, buf, 100, seq_size(a)), 0);
	assert_int_equal(seq_copy_range(a, 0, b, 0, UINT64_MAX / 4), seq_size(a));
	assert_int_equal(stub_pool_live(pool), 102);
	assert_int_equal(b->T, a->T);
	assert_int_equal(b->nr_ids, 1000);
	assert_int_equal(seq_copy_range(a, 0, b, 0, UINT64_MAX / 4), -EPERM);
	assert_int_equal(seq_copy_range(a, 0, b, geo.block_bytes, 100), -EXDEV);
	assert_int_equal(seq_copy_range(a, 5, b, 5, 100), -EXDEV);
	assert_int_equal(seq_fork(a, b, SEQ_NO_TOKENS), -ENOTEMPTY);
	seq_destroy(a);
	a = new_seq(3);
	assert_int_equal(seq_fork(b, a, 5000), -EINVAL);
	assert_int_equal(seq_fork(b, a, 25), 0);
	assert_int_equal(a->T, 25);
	assert_int_equal(a->nr_ids, 25);
	assert_int_equal(seq_size(a), 2 * geo.block_bytes);
	seq_destroy(a);
	seq_destroy(b);
	end();
}

static void persist_keeps_the_old_state_until_submitted(void **state)
{
	struct block_id tail;
	struct sequence *seq;
	u64 nr;

	begin(HND, MIB(1));
	seq = new_seq(1);
	assert_int_equal(seq_write(seq, buf, 100, 0), 0);
	assert_int_equal(seq_persist(seq, NULL, NULL, &nr), 0);
	assert_false(seq_dirty(seq));
	tail = seq->tab.blocks[0];
	assert_int_equal(seq_write(seq, buf, 100, 100), 0);
	assert_true(seq_dirty(seq));
	assert_int_not_equal(seq->tab.blocks[0].v, tail.v);
	assert_int_equal(stub_pool_ref(pool, tail), 1);
	fault_arm(FAULT_META, 1);
	assert_int_equal(seq_persist(seq, NULL, NULL, &nr), -ENOSPC);
	fault_arm(FAULT_META, 0);
	assert_true(seq_dirty(seq));
	assert_int_equal(stub_pool_ref(pool, tail), 1);
	assert_int_equal(seq_persist(seq, NULL, NULL, &nr), 0);
	assert_int_equal(stub_pool_live(pool), 1);
	seq_set_state(seq, SEQ_DECODING);
	assert_true(seq_dirty(seq));
	seq_destroy(seq);
	end();
}

/* ---- records ---- */

struct damage {
	struct sequence *seq;
	u8 type;       /* record to spoil */
	u32 at, value; /* u32 at this offset; at ~0: leave the record out */
	int err;
};

static int load_damaged(void *ctx, const struct meta_key *key, const void *value, u32 bytes)
{
	struct damage *d = ctx;
	u8 copy[8192];

	assert_true(bytes <= sizeof(copy));
	memcpy(copy, value, bytes);
	if (key->type == d->type && d->at == UINT32_MAX)
		return 0;
	if (key->type == d->type)
		memcpy(copy + d->at, &d->value, sizeof(d->value));
	d->err = seq_load(d->seq, key->type, key->sub, copy, bytes);
	return d->err;
}

static int load(u8 type, u32 at, u32 value)
{
	struct damage d = {.seq = new_seq(1), .type = type, .at = at, .value = value};
	struct textbuf why = TEXTBUF_INIT;

	if (!stub_records(pool, load_damaged, &d))
		d.err = seq_load_finish(d.seq, &why);
	assert_true(!d.err || d.err == -EUCLEAN);
	seq_destroy(d.seq);
	textbuf_free(&why);
	return d.err;
}

#define AT(field) offsetof(struct seq_record, field)

static void damaged_records_are_refused(void **state)
{
	static const struct {
		u8 type;
		u32 at, value;
	} bad[] = {
		{META_SEQ, UINT32_MAX, 0},
		{META_SEQ_IDS, UINT32_MAX, 0},
		{META_SEQ_CIDS, UINT32_MAX, 0},
		{META_SEQ_WRITTEN, UINT32_MAX, 0},
		{META_TAB_CHUNK, UINT32_MAX, 0},
		{META_TAB_CHUNK, 0, UINT32_MAX},
		{META_TAB_CHUNK, 0, 77777},
		{META_TAB_CHUNK, 8, UINT32_MAX},
		{META_SEQ, AT(version), 2},
		{META_SEQ, AT(block_bytes), 4096},
		{META_SEQ, AT(size) + 4, 1u << 30},
		{META_SEQ, AT(size), 5},
		{META_SEQ, AT(tokens), 1},
		{META_SEQ, AT(tokens), 1000},
		{META_SEQ, AT(tokens), 47},
		{META_SEQ, AT(nr_ids), 1},
		{META_SEQ, AT(nr_cids), 41},
		{META_SEQ, AT(nr_cids), UINT32_MAX},
		{META_SEQ, AT(nr_blocks), 2},
		{META_SEQ, AT(nr_blocks), UINT32_MAX},
		{META_SEQ, AT(sealed_blocks), 3},
		{META_SEQ, AT(sealed_blocks), UINT32_MAX},
		{META_SEQ, AT(attached_blocks), 3},
		{META_SEQ, AT(cached_tokens), 500},
		{META_SEQ, AT(pending_tokens), 1u << 30},
		{META_SEQ, AT(nr_written), 0},
		{META_SEQ, AT(nr_written), 9},
		{META_SEQ, AT(flags), 4u << 16},
		{META_SEQ, AT(flags), 0},
		{META_SEQ_WRITTEN, 0, 1},
		{META_SEQ_WRITTEN, 8, 1},
		{META_SEQ_WRITTEN, 12, 5},
		{META_SEQ_WRITTEN, 16, 4096},
	};
	struct sequence *seq;
	u64 nr;

	begin(HND, MIB(1));
	seq = new_seq(1);
	put_ids(seq, 1, 40);
	put_blocks(seq, 3, 5);
	assert_int_equal(seq_set_tokens(seq, 40), 0);
	assert_int_equal(seq_write_ids(seq, "abcd", 4, 0), 0); /* other ids than committed */
	assert_int_equal(seq_persist(seq, NULL, NULL, &nr), 0);
	assert_int_equal(load(0, 0, 0), 0);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		if (load(bad[i].type, bad[i].at, bad[i].value) != -EUCLEAN)
			fail_msg("damage %zu was not noticed", i);
	seq_destroy(seq);
	end();
}

static void failures_leave_everything_as_it_was(void **state)
{
	static const enum fault_site sites[] = {FAULT_MEMORY, FAULT_SPACE, FAULT_WRITE};

	begin(HND, MIB(4));
	for (u32 s = 0; s < ARRAY_SIZE(sites); s++) {
		for (u64 nth = 1, done = 0; !done; nth++) {
			struct sequence *a = new_seq(1), *b = new_seq(2), *kv = NULL;
			u32 ids[64] = {0}, failed = 0;

			put_ids(a, 1, 64);
			put_blocks(a, 4, 1);
			assert_int_equal(seq_commit(a), 0);
			fault_arm(sites[s], nth);
			failed |= seq_write_ids(a, ids, 256, 256) ? 1 : 0;
			if (seq_write(a, buf, 3 * geo.block_bytes + 5, seq_size(a))) {
				failed |= 2;
				assert_int_equal(seq_size(a), 4 * geo.block_bytes);
			}
			failed |= seq_commit(a) ? 4 : 0;
			failed |= seq_copy_range(a, 0, b, 0, MIB(1)) < 0 ? 8 : 0;
			if (failed & 8)
				assert_int_equal(seq_size(b) + b->nr_ids + b->T, 0);
			failed |= seq_set_tokens(a, 24) ? 16 : 0;
			assert_true(a->T == 24 || (failed & 16 && a->T >= 64));
			failed |= seq_write_ids(a, "abcd", 4, 0) ? 32 : 0;
			failed |= seq_kv_gone(a, 9, &kv) ? 64 : 0;
			assert_int_equal(seq_size(a) == 0, !(failed & 64));
			done = fault_asked(sites[s]) < nth;
			assert_true(!failed || !done); /* index failures are no failures */
			fault_arm(sites[s], 0);
			seq_destroy(a);
			seq_destroy(b);
			seq_destroy(kv);
			assert_int_equal(stub_pool_named(pool), 0);
			pool_drop_cached(pool, 0, NR_BLOCK_TIERS, &(u64){0}, &(u64){0});
		}
	}
	end();
}

/* ---- ids that replace all others, and what they leave ---- */

/* Ids @first and on, but those from token @odd on of another prompt. Return: leading tokens cached. */
static u32 set_ids(struct sequence *seq, u32 first, u32 nr, u32 odd)
{
	u32 ids[1024], matched = UINT32_MAX;

	for (u32 i = 0; i < nr; i++)
		ids[i] = first + i + (i < odd ? 0 : 500000);
	assert_int_equal(seq_set_ids(seq, ids, nr, &matched), 0);
	assert_int_equal(seq->nr_ids, nr);
	assert_int_equal(seq_read_ids(seq, out, sizeof(out), 0), nr * 4);
	assert_memory_equal(out, ids, nr * 4);
	assert_int_equal(seq->T, matched);
	assert_int_equal(seq->nr_cids, matched);
	assert_null(seq->cids);
	assert_true(!seq->written->nr ||
		    seq->written->ranges[0].from >= seq->sealed_blocks * geo.block_bytes);
	return matched;
}

static struct sequence *committed(u64 id, u32 first, u32 tokens, u8 value)
{
	struct sequence *seq = new_seq(id);

	put_ids(seq, first, tokens);
	put_blocks(seq, tokens / BT, value);
	assert_int_equal(seq_set_tokens(seq, tokens), 0);
	return seq;
}

static void other_ids_leave_only_what_they_share(void **state)
{
	struct sequence *seq;

	begin(HND, MIB(1));
	seq = committed(1, 1, 12 * BT, 7);
	assert_int_equal(set_ids(seq, 1, 14 * BT, 50), 50);
	assert_int_equal(seq_size(seq), 4 * geo.block_bytes);
	assert_int_equal(seq_allocated(seq), 4 * geo.block_stride);
	/* What comes behind them is nobody's but the new ids'. */
	put_blocks(seq, 10, 8);
	assert_int_equal(seq_set_tokens(seq, 50), 0);
	assert_int_equal(seq_set_tokens(seq, 51), -EINVAL);
	/* The old prompt is cached as ever: more of it than is here. */
	assert_int_equal(set_ids(seq, 1, 12 * BT, 1000), 12 * BT);
	assert_int_equal(seq->cached_tokens, 12 * BT);
	assert_int_equal(seq_size(seq), 12 * geo.block_bytes);
	memset(out, 0, geo.block_bytes);
	memset(buf, 7, geo.block_bytes);
	assert_int_equal(seq_read(seq, out, geo.block_bytes, 11 * geo.block_bytes), geo.block_bytes);
	assert_memory_equal(out, buf, geo.block_bytes);
	/* So it is where they were attached and not written here. */
	assert_int_equal(set_ids(seq, 1, 12 * BT, 50), 50);
	assert_int_equal(set_ids(seq, 900, 20, 1000), 0);
	assert_int_equal(seq_size(seq) + seq_allocated(seq), 0);
	seq_destroy(seq);
	end();
}

static void tokens_without_ids_are_shared_with_nobody(void **state)
{
	struct sequence *seq;

	begin(HND, MIB(1));
	seq = committed(1, 1, 2 * BT, 7);
	put_blocks(seq, 2, 8);
	assert_int_equal(seq_set_tokens(seq, 4 * BT), 0);
	assert_int_equal(set_ids(seq, 1, 4 * BT, 1000), 2 * BT);
	/* Nor are bytes that nobody has committed. */
	put_blocks(seq, 1, 9);
	assert_int_equal(set_ids(seq, 1, 3 * BT, 1000), 2 * BT);
	assert_int_equal(seq_size(seq), 2 * geo.block_bytes);
	assert_int_equal(seq_commit(seq), 0);
	assert_int_equal(seq->T, 2 * BT);
	/* Shown again at once: nothing to do. */
	assert_int_equal(set_ids(seq, 1, 3 * BT, 1000), 2 * BT);
	assert_int_equal(set_ids(seq, 1, 0, 0), 0);
	seq_destroy(seq);
	end();
}

/* All of a match or nothing of it, wherever it fails. */
static void failed_matches_change_nothing(void **state)
{
	static const enum fault_site sites[] = {FAULT_MEMORY, FAULT_SPACE};
	u32 other[6 * BT], matched, failures = 0;

	begin(HND, MIB(4));
	for (u32 round = 0; round < 2 * ARRAY_SIZE(sites); round++) {
		for (u64 nth = 1, done = 0; !done; nth++) {
			struct sequence *cache = committed(2, 1000, 6 * BT, 3);
			struct sequence *seq = committed(1, 1, 5 * BT, 7);
			bool longer = round % 2;
			int err;

			for (u32 i = 0; i < ARRAY_SIZE(other); i++)
				other[i] = longer ? 1000 + i : i < 24 ? 1 + i : 7000;
			fault_arm(sites[round / 2], nth);
			err = seq_set_ids(seq, other, ARRAY_SIZE(other), &matched);
			done = fault_asked(sites[round / 2]) < nth;
			fault_arm(sites[round / 2], 0);
			failures += !!err;
			if (!err)
				assert_int_equal(matched, longer ? 6 * BT : 24);
			assert_int_equal(seq->T, err ? 5 * BT : matched);
			assert_int_equal(seq->nr_ids, err ? 5 * BT : 6 * BT);
			assert_int_equal(seq->ids[4 * BT], err ? 1 + 4 * BT : other[4 * BT]);
			seq_destroy(seq);
			seq_destroy(cache);
			pool_drop_cached(pool, 0, NR_BLOCK_TIERS, &(u64){0}, &(u64){0});
		}
	}
	assert_true(failures > 2);
	end();
}

static int written_commit(struct sequence *seq, u32 tokens, u32 nr_ids)
{
	static u32 ids[64];
	struct room_commit c = {.tokens = tokens, .ids = ids, .nr_ids = nr_ids};

	for (u32 i = 0; i < nr_ids; i++)
		ids[i] = 1 + seq->nr_ids + i;
	return seq_written_commit(seq, &c);
}

/* Bytes by way of kv, T and ids in one call. */
static void commits_of_what_was_written(void **state)
{
	struct sequence *seq, *again;
	struct seq_room *room = NULL;

	begin(HND, MIB(1));
	seq = new_seq(1);
	assert_int_equal(written_commit(seq, 1, 1), -EINVAL); /* not even kept for later */
	assert_int_equal(seq->nr_ids, 0);
	assert_int_equal(seq->pending_T, SEQ_NO_TOKENS);
	put_blocks(seq, 3, 7);
	assert_int_equal(written_commit(seq, 3 * BT + 1, 8), -EINVAL);
	assert_int_equal(seq->nr_ids + seq->T, 0);
	assert_int_equal(written_commit(seq, 2 * BT + 3, 2 * BT + 3), 0);
	assert_int_equal(seq->T, 2 * BT + 3);
	assert_int_equal(seq->nr_cids, 2 * BT + 3);
	assert_int_equal(seq->indexed_blocks, 2);
	assert_int_equal(written_commit(seq, 2 * BT + 2, 0), -EINVAL);
	assert_int_equal(written_commit(seq, 2 * BT + 4, 0), -EINVAL); /* behind the end of tokens */
	assert_int_equal(written_commit(seq, 2 * BT + 3, 5), 0);
	assert_int_equal(seq->nr_ids, 2 * BT + 8);
	again = new_seq(2);
	put_ids(again, 1, 2 * BT);
	assert_int_equal(again->T, 2 * BT);
	assert_int_equal(seq_room_begin(seq, 1, &room), 0);
	assert_int_equal(written_commit(seq, 2 * BT + 3, 1), -EBUSY);
	seq_room_end(room);
	seq_destroy(again);
	seq_destroy(seq);
	end();
}

static int load_one(void *ctx, const struct meta_key *key, const void *value, u32 bytes)
{
	return seq_load(ctx, key->type, key->sub, value, bytes);
}

/* Who was decoding, or waiting to, is gone when a sequence is loaded; who paused it may come back. */
static void states_after_loading(void **state)
{
	struct textbuf why = TEXTBUF_INIT;

	for (enum seq_state s = SEQ_IDLE; s <= SEQ_DECODING; s++) {
		struct sequence *seq, *again;
		u64 nr;

		begin(HND, MIB(1));
		seq = committed(1, 1, BT, 7);
		again = new_seq(1);
		seq_set_state(seq, s);
		assert_int_equal(seq_persist(seq, NULL, NULL, &nr), 0);
		assert_int_equal(stub_records(pool, load_one, again), 0);
		assert_int_equal(seq_load_finish(again, &why), 0);
		assert_int_equal(again->state, s == SEQ_PAUSED ? s : SEQ_IDLE);
		seq_destroy(again);
		seq_destroy(seq);
		end();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ids_in_odd_pieces),
		cmocka_unit_test(cached_tokens_end_where_ids_differ),
		cmocka_unit_test(another_root_is_another_chain),
		cmocka_unit_test(equal_bytes_share_and_different_ones_do_not),
		cmocka_unit_test(tokens_end_inside_a_block),
		cmocka_unit_test(opaque_tokens_are_counted_by_bytes),
		cmocka_unit_test(fallocate_reserves),
		cmocka_unit_test(a_copy_stores_nothing_but_the_tail),
		cmocka_unit_test(persist_keeps_the_old_state_until_submitted),
		cmocka_unit_test(damaged_records_are_refused),
		cmocka_unit_test(failures_leave_everything_as_it_was),
		cmocka_unit_test(other_ids_leave_only_what_they_share),
		cmocka_unit_test(tokens_without_ids_are_shared_with_nobody),
		cmocka_unit_test(failed_matches_change_nothing),
		cmocka_unit_test(commits_of_what_was_written),
		cmocka_unit_test(states_after_loading),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
