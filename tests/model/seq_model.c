/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "allocator/base/bug.h"
#include "model/seq_model.h"

struct m_entry {
	u32 root;
	struct m_entry *up, *next;
	u32 ids[M_TOKENS];
	struct m_block *block;
};

static struct m_entry *cache, *dropped;
static struct m_block *all_blocks;

static struct m_block *new_block(const struct m_block *from)
{
	struct m_block *b = calloc(1, sizeof(*b));

	KVC_BUG_ON(!b);
	if (from)
		*b = *from;
	b->sealed = false;
	b->entry = NULL;
	b->next = all_blocks;
	all_blocks = b;
	return b;
}

struct m_seq *m_new(bool opaque, u32 root)
{
	struct m_seq *s = calloc(1, sizeof(*s));

	KVC_BUG_ON(!s);
	s->opaque = opaque;
	s->root = root;
	s->pending = M_NONE;
	return s;
}

static void free_entries(struct m_entry **list)
{
	while (*list) {
		struct m_entry *e = *list;

		*list = e->next;
		free(e);
	}
}

void m_free_all(void)
{
	free_entries(&cache);
	free_entries(&dropped);
	while (all_blocks) {
		struct m_block *b = all_blocks;

		all_blocks = b->next;
		free(b);
	}
}

u32 m_sealed(const struct m_seq *s)
{
	u32 n = 0;

	while (n < s->nr_blocks && s->blocks[n] && s->blocks[n]->sealed)
		n++;
	return n;
}

u32 m_token_of(const struct m_seq *s, u64 off)
{
	u32 in = (u32)(off % M_BLOCK);

	return (u32)(off / M_BLOCK) * M_TOKENS +
	       (s->opaque ? in / M_TOKEN : in / M_CELL % M_TOKENS);
}

static bool written(const struct m_seq *s, u64 off)
{
	const struct m_block *b = s->blocks[off / M_BLOCK];

	return off / M_BLOCK < s->nr_blocks && b && (b->sealed || b->written[off % M_BLOCK]);
}

bool m_has_bytes(const struct m_seq *s, u32 t)
{
	for (u64 off = 0; off < M_BYTES; off++)
		if (m_token_of(s, off) == t && written(s, off))
			return true;
	return false;
}

u8 m_byte(const struct m_seq *s, u64 off)
{
	const struct m_block *b = off / M_BLOCK < s->nr_blocks ? s->blocks[off / M_BLOCK] : NULL;

	return b ? b->data[off % M_BLOCK] : 0;
}

static bool own_bytes(const struct m_seq *s)
{
	if (m_sealed(s) > s->attached)
		return true;
	for (u64 off = (u64)s->attached * M_BLOCK; off < M_BYTES; off++)
		if (written(s, off))
			return true;
	return false;
}

static u32 same_ids(const struct m_seq *s, u32 nr)
{
	u32 n = 0;

	while (n < nr && s->ids[n] == s->cids[n])
		n++;
	return n;
}

/* ---- prefix cache ---- */

static struct m_entry *lookup(const struct m_seq *s, struct m_entry *up, u32 block)
{
	struct m_entry *e = cache;

	while (e && (e->root != s->root || e->up != up ||
		     memcmp(e->ids, s->ids + block * M_TOKENS, sizeof(e->ids)) != 0))
		e = e->next;
	return e;
}

static struct m_entry *enter(const struct m_seq *s, struct m_entry *up, u32 block)
{
	struct m_entry *e = calloc(1, sizeof(*e));

	KVC_BUG_ON(!e);
	e->root = s->root;
	e->up = up;
	e->block = s->blocks[block];
	e->block->entry = e;
	memcpy(e->ids, s->ids + block * M_TOKENS, sizeof(e->ids));
	e->next = cache;
	cache = e;
	return e;
}

static void index_blocks(struct m_seq *s)
{
	u32 bound = min(s->T, s->nr_ids), lim;
	struct m_entry *up = NULL, *e;

	if (!s->root || s->loose || s->estranged)
		return;
	if (s->nr_cids < bound)
		s->paired = same_ids(s, s->nr_cids) == s->nr_cids;
	for (; s->nr_cids < bound; s->nr_cids++)
		s->cids[s->nr_cids] = s->ids[s->nr_cids];
	lim = same_ids(s, min(s->nr_cids, s->nr_ids));
	for (u32 i = 0; i < m_sealed(s) && (i + 1) * M_TOKENS <= lim; i++, up = e) {
		e = lookup(s, up, i);
		if (s->blocks[i]->entry && s->blocks[i]->entry != e)
			return;
		if (!e)
			e = enter(s, up, i);
		else if (!memcmp(e->block->data, s->blocks[i]->data, M_BLOCK))
			s->blocks[i] = e->block;
	}
}

static bool has_kids(const struct m_entry *e)
{
	for (const struct m_entry *k = cache; k; k = k->next)
		if (k->up == e)
			return true;
	return false;
}

static bool is_named(const struct m_entry *e, struct m_seq *const *seqs, u32 nr)
{
	for (u32 i = 0; i < nr; i++)
		for (u32 b = 0; seqs[i] && b < seqs[i]->nr_blocks; b++)
			if (seqs[i]->blocks[b] == e->block)
				return true;
	return false;
}

void m_drop_cached(struct m_seq *const *seqs, u32 nr, bool leaves_only)
{
	for (struct m_entry **at = &cache; *at;) {
		struct m_entry *e = *at;

		if (is_named(e, seqs, nr) || (leaves_only && has_kids(e))) {
			at = &e->next;
			continue;
		}
		/* Children that stay still have it as their parent: kept, but never found again. */
		*at = e->next;
		e->block->entry = NULL;
		e->next = dropped;
		dropped = e;
		at = &cache; /* its parent may be a leaf now */
	}
}

/* ---- bytes ---- */

static void drop_to(struct m_seq *s, u32 blocks, u64 size, u32 tokens)
{
	s->nr_blocks = min(s->nr_blocks, blocks);
	s->size = size;
	s->T = min(s->T, tokens);
	s->nr_cids = min(s->nr_cids, tokens);
	s->paired &= s->nr_cids > 0;
	s->cached = min(s->cached, tokens);
	s->attached = min(s->attached, blocks);
	for (u64 off = size; off < (u64)s->nr_blocks * M_BLOCK; off++)
		if (s->blocks[off / M_BLOCK]) {
			s->blocks[off / M_BLOCK]->data[off % M_BLOCK] = 0;
			s->blocks[off / M_BLOCK]->written[off % M_BLOCK] = 0;
		}
}

static void grow(struct m_seq *s, u32 blocks)
{
	while (s->nr_blocks < blocks)
		s->blocks[s->nr_blocks++] = NULL;
}

int m_write(struct m_seq *s, const u8 *buf, u32 len, u64 off)
{
	if (off / M_BLOCK < m_sealed(s))
		return -EPERM;
	grow(s, (u32)((off + len - 1) / M_BLOCK + 1));
	for (u64 i = off; i < off + len; i++) {
		struct m_block **b = &s->blocks[i / M_BLOCK];

		if (!*b)
			*b = new_block(NULL);
		(*b)->data[i % M_BLOCK] = buf[i - off];
		(*b)->written[i % M_BLOCK] = 1;
	}
	s->size = max(s->size, off + len);
	return 0;
}

/* A sealed block that stays in part is copied and open again. */
static void reopen(struct m_seq *s, u32 block)
{
	if (block >= m_sealed(s))
		return;
	s->blocks[block] = new_block(s->blocks[block]);
	memset(s->blocks[block]->written, 1, M_BLOCK);
	s->attached = min(s->attached, block);
}

static bool blank(const struct m_seq *s)
{
	return !m_sealed(s) && !s->size && !own_bytes(s);
}

static void lose_bytes(struct m_seq *s)
{
	bool known = s->loose || s->paired;

	drop_to(s, 0, 0, 0);
	s->loose = s->nr_ids > 0;
	s->estranged = s->loose && (s->estranged || !known);
	s->pending = M_NONE;
}

int m_truncate(struct m_seq *s, u64 size)
{
	u32 inside = (u32)(size % M_BLOCK), last = (u32)(size / M_BLOCK), tokens;

	if (!size) {
		lose_bytes(s);
		return 0;
	}
	if (size >= s->size) {
		s->size = size;
		return 0;
	}
	if (inside && (!s->opaque || size % M_TOKEN))
		return -EINVAL;
	tokens = last * M_TOKENS + inside / M_TOKEN;
	if (inside)
		reopen(s, last);
	drop_to(s, last + !!inside, size, tokens);
	s->nr_ids = min(s->nr_ids, tokens);
	return 0;
}

void m_restart(struct m_seq *s)
{
	if (!s->nr_blocks && !s->size)
		return;
	drop_to(s, 0, 0, 0);
	s->pending = M_NONE;
}

/* ---- commits ---- */

static bool tokens_written(const struct m_seq *s, u32 nr)
{
	for (u64 off = 0; off < M_BYTES; off++)
		if (m_token_of(s, off) < nr && !written(s, off))
			return false;
	return nr <= M_IDS;
}

static void mark_tokens(struct m_seq *s, u32 nr)
{
	u32 last = nr / M_TOKENS;

	if (nr % M_TOKENS == 0 || last >= s->nr_blocks || s->blocks[last]->sealed)
		return;
	for (u64 off = (u64)last * M_BLOCK; off < (last + 1ull) * M_BLOCK; off++)
		if (m_token_of(s, off) >= nr)
			s->blocks[last]->written[off % M_BLOCK] = 0;
}

int m_set_tokens(struct m_seq *s, u32 nr)
{
	u32 blocks = (nr + M_TOKENS - 1) / M_TOKENS;
	u64 size = s->opaque ? (u64)nr * M_TOKEN : (u64)blocks * M_BLOCK;
	u32 have = max(s->nr_blocks, (u32)((s->size + M_BLOCK - 1) / M_BLOCK));

	if (nr > s->T && !m_sealed(s) && !s->size && !own_bytes(s)) {
		s->pending = nr;
		return 0;
	}
	if (nr < s->T) {
		if (nr % M_TOKENS)
			reopen(s, blocks - 1);
		drop_to(s, blocks, size, nr);
		s->nr_ids = min(s->nr_ids, nr);
		mark_tokens(s, nr);
		s->pending = M_NONE;
		return 0;
	}
	if (!tokens_written(s, nr))
		return -EINVAL;
	for (u32 i = 0; i < nr / M_TOKENS; i++)
		s->blocks[i]->sealed = true;
	if (have <= blocks)
		drop_to(s, blocks, size, nr);
	mark_tokens(s, nr);
	s->T = nr;
	s->pending = M_NONE;
	index_blocks(s);
	return 0;
}

void m_commit(struct m_seq *s)
{
	u64 off = 0;
	u32 tokens;

	if (s->pending != M_NONE && (s->size || s->nr_blocks) && tokens_written(s, s->pending)) {
		m_set_tokens(s, s->pending);
		return;
	}
	while (off < M_BYTES && written(s, off))
		off++;
	for (u32 i = 0; i < off / M_BLOCK; i++)
		s->blocks[i]->sealed = true;
	tokens = (u32)(s->opaque ? off / M_TOKEN : off / M_BLOCK * M_TOKENS);
	s->T = max(s->T, tokens);
	index_blocks(s);
}

/* ---- ids ---- */

int m_write_ids(struct m_seq *s, const u32 *ids, u32 nr, u32 at)
{
	if (at > s->nr_ids)
		return -EINVAL;
	if (!at && s->loose) {
		s->nr_ids = 0;
		s->loose = false;
		s->estranged &= !blank(s);
	}
	s->paired &= at >= s->nr_ids;
	memcpy(s->ids + at, ids, nr * sizeof(*ids));
	s->nr_ids = max(s->nr_ids, at + nr);
	return 0;
}

void m_ids_gone(struct m_seq *s)
{
	if (!own_bytes(s))
		drop_to(s, 0, 0, 0);
	s->nr_ids = 0;
	s->loose = s->paired = false;
	s->estranged &= !blank(s);
}

int m_truncate_ids(struct m_seq *s, u32 nr)
{
	if (nr > s->nr_ids)
		return -EINVAL;
	if (nr == s->nr_ids)
		return 0;
	if (!nr)
		m_ids_gone(s);
	else if (nr < s->T)
		m_set_tokens(s, nr);
	s->nr_ids = min(s->nr_ids, nr);
	return 0;
}

void m_match(struct m_seq *s)
{
	struct m_block *found[M_BLOCKS];
	struct m_entry *up = NULL;
	u32 n = 0, have;

	if (!s->root || s->loose)
		return;
	if (own_bytes(s)) {
		bool paired = s->paired || !s->nr_cids;

		index_blocks(s);
		s->paired &= paired;
		return;
	}
	for (; (n + 1) * M_TOKENS <= s->nr_ids && (up = lookup(s, up, n)); n++)
		found[n] = up->block;
	have = min(s->attached, same_ids(s, min(s->nr_cids, s->nr_ids)) / M_TOKENS);
	if (max(n, have) < s->attached)
		drop_to(s, max(n, have), (u64)max(n, have) * M_BLOCK, max(n, have) * M_TOKENS);
	if (n <= have)
		return;
	grow(s, n);
	memcpy(s->blocks, found, n * sizeof(found[0]));
	memcpy(s->cids, s->ids, n * M_TOKENS * sizeof(u32));
	s->nr_cids = s->T = s->cached = n * M_TOKENS;
	s->attached = n;
	s->size = max(s->size, (u64)n * M_BLOCK);
}

void m_ids_arrived(struct m_seq *s, const struct m_seq *from)
{
	m_ids_gone(s);
	m_write_ids(s, from->ids, from->nr_ids, 0);
	m_match(s);
}

/* ---- copies ---- */

static void clone(struct m_seq *src, struct m_seq *dst, u32 from, u64 end)
{
	bool full = end == src->size;
	u32 to = (u32)((end + M_BLOCK - 1) / M_BLOCK), cap = full ? M_IDS : to * M_TOKENS;
	u32 nr = min(src->nr_ids, cap), front = min(dst->nr_cids, from * M_TOKENS);
	bool taken = false;

	grow(dst, to);
	for (u32 i = from; i < to; i++) {
		struct m_block *b = i < src->nr_blocks ? src->blocks[i] : NULL;

		dst->blocks[i] = b && !b->sealed ? new_block(b) : b;
	}
	dst->size = max(dst->size, end);
	if (nr && !src->loose &&
	    (dst->loose ||
	     (nr > dst->nr_ids && !memcmp(src->ids, dst->ids, dst->nr_ids * sizeof(u32))))) {
		memcpy(dst->ids, src->ids, nr * sizeof(u32));
		dst->nr_ids = nr;
		dst->loose = false;
		taken = true;
	}
	dst->nr_cids = max(front, min(src->nr_cids, cap));
	for (u32 i = front; i < dst->nr_cids; i++)
		dst->cids[i] = src->cids[i];
	dst->T = max(from * M_TOKENS, min(src->T, cap));
	if (full && !from)
		dst->pending = src->pending;
	if (!from) {
		dst->paired = taken && src->paired;
		dst->estranged = src->estranged || (dst->estranged && dst->nr_cids < dst->T);
	}
	for (u32 i = from * M_TOKENS; i < to * M_TOKENS; i++)
		dst->want[i] = src->want[i];
}

long m_copy_range(struct m_seq *src, struct m_seq *dst, u64 off, u64 len)
{
	u64 end = min(off + len, src->size);
	u32 from = (u32)(off / M_BLOCK), nr = min(src->nr_cids, from * M_TOKENS);

	if (off % M_BLOCK || src == dst || src->opaque != dst->opaque ||
	    (src->root && dst->root && src->root != dst->root))
		return -EXDEV;
	if (off >= src->size || !len)
		return 0;
	if (end < src->size)
		end -= end % M_BLOCK;
	if (end <= off)
		return -EXDEV;
	if (m_sealed(dst) > from)
		return -EPERM;
	if (from && (src->T < from * M_TOKENS || dst->T < from * M_TOKENS ||
		     nr != min(dst->nr_cids, from * M_TOKENS) ||
		     memcmp(src->cids, dst->cids, nr * sizeof(u32)) != 0))
		return -EXDEV;
	clone(src, dst, from, end);
	return (long)(end - off);
}

int m_fork(struct m_seq *src, struct m_seq *dst, u32 nr)
{
	u32 blocks = (nr + M_TOKENS - 1) / M_TOKENS;
	bool loose = src->loose;

	if (src == dst || src->opaque != dst->opaque ||
	    (src->root && dst->root && src->root != dst->root))
		return -EXDEV;
	if (m_sealed(dst) || dst->size || own_bytes(dst) || dst->nr_ids)
		return -ENOTEMPTY;
	if (nr != M_NONE && nr > src->T)
		return -EINVAL;
	clone(src, dst, 0, nr == M_NONE ? src->size : min(src->size, (u64)blocks * M_BLOCK));
	if (nr != M_NONE) {
		m_set_tokens(dst, nr);
		dst->nr_ids = min(dst->nr_ids, nr);
	}
	if (loose) {
		dst->nr_ids = min(src->nr_ids, nr);
		memcpy(dst->ids, src->ids, dst->nr_ids * sizeof(u32));
		dst->loose = dst->nr_ids > 0;
	}
	return 0;
}

struct m_seq *m_kv_gone(struct m_seq *s)
{
	struct m_seq *kv = m_new(s->opaque, 0);

	*kv = *s;
	kv->root = 0;
	lose_bytes(s);
	return kv;
}

void m_kv_arrived(struct m_seq *from, struct m_seq *old)
{
	if (old && old->nr_ids && (!from->nr_ids || !old->loose)) {
		memcpy(from->ids, old->ids, sizeof(from->ids));
		from->nr_ids = old->nr_ids;
		from->loose = old->loose;
		from->paired = false;
		from->estranged = old->estranged && from->nr_cids < from->T;
	}
	index_blocks(from);
}
