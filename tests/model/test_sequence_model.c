/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations on several sequences with colliding token streams, against the model in
 * seq_model.c. After every operation each sequence must show the same ids, T, size and bytes.
 *
 * Poison check. The bytes of a token are made from an id, and the test keeps to what well-behaved
 * tools do: it never writes an id over unbound bytes that were made from another one. So every
 * committed token must hold bytes made from the id that it was committed under, above all in blocks
 * that came out of the prefix cache.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "allocator/base/textbuf.h"
#include "allocator/meta.h"
#include "lib/test.h"
#include "model/seq_backend.h"
#include "model/seq_model.h"

#define NR_SLOTS   8u
#define NR_STREAMS 5u

static struct slot {
	struct sequence *seq;
	struct m_seq *model;
	bool opaque;
} slots[NR_SLOTS];

static struct geometry geos[2];
static struct pool *pool;
static struct test_rng rng;
static u64 next_id = 1;
static u32 step;

static u32 below(u32 n)
{
	return (u32)test_rng_below(&rng, n);
}

/* Streams share their front and part at different tokens. */
static u32 stream_id(u32 stream, u32 t)
{
	static const u32 parts_at[NR_STREAMS] = {0, 5, 16, 40, 64};

	return 1 + t * 7 + (t >= parts_at[stream] ? (stream + 1) * 1000 : 0);
}

static u32 root_of(u32 i)
{
	u32 root;

	if (i >= NR_SLOTS - 2) /* a temporary kv file */
		return 0;
	assert_int_equal(pool_root(pool, 1 + i % 2, i < 4 ? "" : "salt", i < 4 ? 0 : 4, &root), 0);
	return root;
}

static void open_slot(u32 i)
{
	struct slot *s = &slots[i];

	s->opaque = i % 2;
	assert_int_equal(seq_create(&s->seq, pool, next_id++, 1 + i % 2, &geos[i % 2]), 0);
	s->seq->root = root_of(i);
	s->model = m_new(s->opaque, s->seq->root);
}

static void close_slot(struct slot *s)
{
	struct meta_txn txn = META_TXN_INIT;

	seq_emit_delete(s->seq, &txn);
	backend_apply(&txn);
	seq_destroy(s->seq);
	free(s->model);
}

/* ---- what every state must satisfy ---- */

static void check_ids(const struct slot *s)
{
	const struct sequence *seq = s->seq;
	const struct m_seq *m = s->model;
	const u32 *cids = seq->cids ? seq->cids : seq->ids;
	u32 ids[M_IDS + 1];

	assert_int_equal(seq->nr_ids, m->nr_ids);
	assert_int_equal(seq->loose, m->loose);
	assert_int_equal(seq->paired, m->paired);
	assert_int_equal(seq->estranged, m->estranged);
	assert_int_equal(seq->T, m->T);
	assert_int_equal(seq->nr_cids, m->nr_cids);
	assert_int_equal(seq->pending_T, m->pending);
	assert_int_equal(seq->cached_tokens, m->cached);
	assert_int_equal(seq->attached_blocks, m->attached);
	assert_int_equal(seq->sealed_blocks, m_sealed(m));
	assert_int_equal(seq_read_ids(s->seq, ids, sizeof(ids), 0), m->nr_ids * sizeof(u32));
	assert_memory_equal(ids, m->ids, m->nr_ids * sizeof(u32));
	if (m->nr_cids)
		assert_memory_equal(cids, m->cids, m->nr_cids * sizeof(u32));
	assert_true(seq->nr_cids <= seq->T);
}

static void check_bytes(const struct slot *s)
{
	const struct m_seq *m = s->model;
	u8 buf[M_BYTES + 8];
	ssize_t n = seq_read(s->seq, buf, sizeof(buf), 0);
	u32 id;

	assert_int_equal(n, (ssize_t)m->size);
	assert_int_equal(seq_size(s->seq), m->size);
	for (u64 off = 0; off < m->size; off++)
		assert_int_equal(buf[off], m_byte(m, off));
	for (u64 off = 0; off + M_CELL <= m->size; off += M_CELL) {
		u32 t = m_token_of(m, off);

		memcpy(&id, buf + off, sizeof(id));
		if (t < m->nr_cids && (id & 0xffffff) != m->cids[t])
			fail_msg("token %u holds bytes of id %u under id %u", t, id & 0xffffff,
				 m->cids[t]);
	}
}

static void check_all(void)
{
	for (u32 i = 0; i < NR_SLOTS; i++) {
		struct m_seq *m = slots[i].model;

		check_ids(&slots[i]);
		check_bytes(&slots[i]);
		memcpy(m->want, m->cids, m->nr_cids * sizeof(u32));
	}
}

/* ---- operations ---- */

/* From which id the bytes of token @t must be made, if they are to be written now. */
static u32 id_for_bytes(const struct m_seq *m, u32 t, u32 stream)
{
	if (t < m->nr_cids)
		return m->cids[t];
	if (m_has_bytes(m, t))
		return m->want[t];
	return t < m->nr_ids && !m->loose ? m->ids[t] : stream_id(stream, t);
}

/* Which id may be shown for token @t. */
static u32 id_to_show(const struct m_seq *m, u32 t, u32 stream)
{
	return t >= m->nr_cids && m_has_bytes(m, t) ? m->want[t] : stream_id(stream, t);
}

/* Would showing @ids for this sequence's bytes be a lie? */
static bool would_lie(const struct m_seq *m, const u32 *ids, u32 nr)
{
	for (u32 t = m->nr_cids; t < nr; t++)
		if (m_has_bytes(m, t) && m->want[t] != ids[t])
			return true;
	return false;
}

static void op_write(struct slot *s)
{
	u32 off = below(4) ? (u32)s->model->size : below(M_BYTES), len = 1 + below(M_BLOCK * 3);
	u32 stream = below(NR_STREAMS), variant = below(8) ? 0 : 1 + below(3);
	u32 ids[M_IDS];
	u8 buf[M_BYTES];

	if (off >= M_BYTES)
		return;
	if (below(2))
		off -= off % M_BLOCK;
	len = min(len, M_BYTES - off);
	for (u32 t = 0; t < M_IDS; t++)
		ids[t] = id_for_bytes(s->model, t, stream);
	for (u32 i = 0; i < len; i++) {
		u32 t = m_token_of(s->model, off + i), cell = ids[t] | variant << 24;

		buf[i] = (u8)(cell >> (8 * ((off + i) % M_CELL)));
	}
	assert_int_equal(seq_write(s->seq, buf, len, off), m_write(s->model, buf, len, off));
	for (u32 i = 0; i < len; i++) {
		u32 t = m_token_of(s->model, off + i);

		if (m_has_bytes(s->model, t))
			s->model->want[t] = ids[t];
	}
}

static void op_write_ids(struct slot *s)
{
	u32 at = below(3) ? s->model->nr_ids : below(s->model->nr_ids + 2), nr = 1 + below(40);
	u32 stream = below(NR_STREAMS), ids[M_IDS];

	if (!below(3))
		at = 0;
	if (at >= M_IDS)
		return;
	nr = min(nr, M_IDS - at);
	for (u32 i = 0; i < nr; i++)
		ids[i] = id_to_show(s->model, at + i, stream);
	assert_int_equal(seq_write_ids(s->seq, ids, nr * 4, at * 4ull),
			 m_write_ids(s->model, ids, nr, at));
}

static void op_close_ids(struct slot *s)
{
	assert_int_equal(seq_close_ids(s->seq), 0);
	m_match(s->model);
}

static void op_commit(struct slot *s)
{
	assert_int_equal(seq_commit(s->seq), 0);
	m_commit(s->model);
}

static void op_set_tokens(struct slot *s)
{
	u32 nr = below(2) ? below(M_IDS + 1) : below(s->model->T + 2);

	assert_int_equal(seq_set_tokens(s->seq, nr), m_set_tokens(s->model, nr));
}

static void op_truncate(struct slot *s)
{
	u32 size = below(M_BYTES + 1);

	if (below(3))
		size -= size % (s->opaque ? M_TOKEN : M_BLOCK);
	if (!below(4))
		size = 0;
	assert_int_equal(seq_truncate(s->seq, size), m_truncate(s->model, size));
}

static void op_truncate_ids(struct slot *s)
{
	u32 nr = below(3) ? below(s->model->nr_ids + 2) : 0;

	assert_int_equal(seq_truncate_ids(s->seq, nr * 4ull), m_truncate_ids(s->model, nr));
}

static void op_restart(struct slot *s)
{
	assert_int_equal(seq_restart(s->seq), 0);
	m_restart(s->model);
}

static bool copy_would_lie(const struct m_seq *src, const struct m_seq *dst, u64 off, u64 end)
{
	u32 from = (u32)(off / M_BLOCK * M_TOKENS);
	u32 to = (u32)((end + M_BLOCK - 1) / M_BLOCK * M_TOKENS);

	for (u32 t = to; t < M_IDS; t++)
		if (m_has_bytes(dst, t))
			return true;
	for (u32 t = max(from, src->nr_cids); t < min(to, dst->nr_ids); t++)
		if (!dst->loose && m_has_bytes(src, t) && src->want[t] != dst->ids[t])
			return true;
	return false;
}

static void op_copy(struct slot *src, struct slot *dst)
{
	u64 off = below(2) ? 0 : dst->model->size, len = below(2) ? UINT64_MAX / 4 : below(M_BYTES);

	if (src->opaque != dst->opaque || src == dst ||
	    copy_would_lie(src->model, dst->model, off, min(off + len, src->model->size)))
		return;
	assert_int_equal(seq_copy_range(src->seq, off, dst->seq, off, len),
			 m_copy_range(src->model, dst->model, off, len));
}

/* As cp does for a file over 2 GiB: several requests, the last one with the tail. */
static void op_copy_in_parts(struct slot *src, struct slot *dst)
{
	u32 part = 1 + below(3);

	if (src->opaque != dst->opaque || src == dst)
		return;
	close_slot(dst);
	open_slot((u32)(dst - slots));
	for (u64 off = 0; off < src->model->size; off += part * M_BLOCK) {
		if (copy_would_lie(src->model, dst->model, off, off + part * M_BLOCK))
			return;
		assert_int_equal(seq_copy_range(src->seq, off, dst->seq, off, part * M_BLOCK),
				 m_copy_range(src->model, dst->model, off, part * M_BLOCK));
		if (!below(4))
			op_commit(dst);
		if (!below(8))
			op_write_ids(dst);
	}
}

static void op_fork(struct slot *src, struct slot *dst)
{
	u32 nr = below(2) ? M_NONE : below(src->model->T + 2), i = (u32)(dst - slots);

	if (src->opaque != dst->opaque || src == dst)
		return;
	if (below(4)) {
		close_slot(dst);
		open_slot(i);
	}
	assert_int_equal(seq_fork(src->seq, dst->seq, nr), m_fork(src->model, dst->model, nr));
}

/* kv leaves the directory: unlinked, or to become the temporary kv of another slot. */
static void op_kv_gone(struct slot *s)
{
	struct slot *to = &slots[NR_SLOTS - 2 + s->opaque];
	struct sequence *kv;
	struct m_seq *model;

	if (s == to)
		return;
	assert_int_equal(seq_kv_gone(s->seq, next_id++, &kv), 0);
	model = m_kv_gone(s->model);
	close_slot(to);
	to->seq = kv;
	to->model = model;
}

/* The temporary kv is renamed over the directory's. */
static void op_kv_arrived(struct slot *s)
{
	struct slot *tmp = &slots[NR_SLOTS - 2 + s->opaque];
	struct sequence *gone;
	struct m_seq *m = tmp->model;
	bool lies;

	lies = (!m->nr_ids || !s->model->loose) && s->model->size == 0 && !s->model->nr_blocks &&
	       !s->model->loose && would_lie(m, s->model->ids, s->model->nr_ids);
	if (s == tmp || lies)
		return;
	if (s->model->size || s->model->nr_blocks) {
		assert_int_equal(seq_kv_gone(s->seq, next_id++, &gone), 0);
		free(m_kv_gone(s->model));
		seq_destroy(gone);
	}
	tmp->seq->root = tmp->model->root = s->model->root;
	assert_int_equal(seq_kv_arrived(tmp->seq, s->seq), 0);
	m_kv_arrived(m, s->model);
	close_slot(s);
	*s = *tmp;
	open_slot((u32)(tmp - slots));
}

static void op_ids_gone(struct slot *s)
{
	assert_int_equal(seq_ids_gone(s->seq), 0);
	m_ids_gone(s->model);
}

static void op_ids_arrived(struct slot *s, struct slot *from)
{
	if (s == from || would_lie(s->model, from->model->ids, from->model->nr_ids))
		return;
	assert_int_equal(seq_ids_arrived(s->seq, from->seq), 0);
	m_ids_arrived(s->model, from->model);
}

static void persist(struct slot *s)
{
	u64 nr;

	assert_int_equal(seq_persist(s->seq, NULL, NULL, &nr), 0);
	assert_false(seq_dirty(s->seq));
}

static void op_reload(struct slot *s)
{
	struct textbuf why = TEXTBUF_INIT;
	struct sequence *old = s->seq, *again;

	persist(s);
	assert_int_equal(seq_create(&again, pool, old->tab.id, old->tab.space, old->geo), 0);
	if (!backend_feed(old->tab.id, again)) {
		seq_destroy(again);
		return;
	}
	if (seq_load_finish(again, &why))
		fail_msg("step %u: %s", step, why.text);
	again->root = old->root;
	seq_destroy(old);
	s->seq = again;
	textbuf_free(&why);
}

static void op_drop(void)
{
	struct m_seq *models[NR_SLOTS];
	u64 blocks, bytes;

	/* Retired blocks are named until their table is recorded; the model knows none. */
	for (u32 i = 0; i < NR_SLOTS; i++) {
		persist(&slots[i]);
		models[i] = slots[i].model;
	}
	pool_drop_cached(pool, 0, NR_BLOCK_TIERS, &blocks, &bytes);
	m_drop_cached(models, NR_SLOTS, backend_drops_leaves_only());
}

static void random_op(void)
{
	struct slot *s = &slots[below(NR_SLOTS)], *other = &slots[below(NR_SLOTS)];
	u32 op = below(100);

	if (op < 26)
		op_write(s);
	else if (op < 42)
		op_write_ids(s);
	else if (op < 54)
		op_close_ids(s);
	else if (op < 66)
		op_commit(s);
	else if (op < 72)
		op_set_tokens(s);
	else if (op < 77)
		op_truncate(s);
	else if (op < 80)
		op_truncate_ids(s);
	else if (op < 81)
		op_restart(s);
	else if (op < 85)
		op_copy(s, other);
	else if (op < 86)
		op_copy_in_parts(s, other);
	else if (op < 88)
		op_fork(s, other);
	else if (op < 90)
		op_kv_gone(s);
	else if (op < 93)
		op_kv_arrived(s);
	else if (op < 94)
		op_ids_gone(s);
	else if (op < 95)
		op_ids_arrived(s, other);
	else if (op < 96)
		op_drop();
	else
		op_reload(s);
}

static void make_geometries(void)
{
	static const char *const texts[] = {
		"layers=1 kv_heads=1 head_dim=4 dtype=fp8_e4m3 block_tokens=16 layout=hnd",
		"layers=1 token_bytes=8 block_tokens=16 layout=opaque"};
	struct textbuf why = TEXTBUF_INIT;
	bool complete;

	for (u32 i = 0; i < 2; i++) {
		assert_int_equal(
			geometry_parse(texts[i], strlen(texts[i]), &geos[i], &complete, &why), 0);
		assert_true(complete);
		assert_int_equal(geos[i].block_bytes, M_BLOCK);
	}
}

static void sequences_behave_as_the_model(void **state)
{
	u64 nr = test_count(20000);

	test_rng_init(&rng);
	make_geometries();
	pool = backend_open(MIB(1));
	for (u32 i = 0; i < NR_SLOTS; i++)
		open_slot(i);
	for (step = 0; step < nr; step++) {
		random_op();
		check_all();
	}
	pool_check(pool);
	for (u32 i = 0; i < NR_SLOTS; i++)
		close_slot(&slots[i]);
	m_free_all();
	backend_close();
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(sequences_behave_as_the_model)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
