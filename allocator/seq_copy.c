/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies by sharing, and what renames and unlinks do to a sequence.
 *
 * A copy gives names of the sealed blocks away and copies open ones. Committed ids travel with the
 * blocks, so that the copy can't bind them to other ids. That is why a copy that does not begin at
 * block 0 shares only behind an equal committed prefix: elsewhere the caller copies bytes, which is
 * then a plain write.
 */
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/base/fault.h"
#include "allocator/seq_impl.h"

/* What a copy does to its destination; everything that can fail is prepared in here first. */
struct seq_clone {
	struct sequence *src, *dst;
	u32 from, to;		 /* blocks */
	u64 end;		 /* bytes of the source that are copied up to */
	bool full;		 /* up to the source's end: the tail, T and all ids too */
	struct block_id *blocks; /* named for the destination */
	u32 *ids;		 /* new ids for the destination; NULL: it keeps its own */
	u32 nr_ids;
	u32 *cids; /* new committed ids; NULL: they are the ids as shown */
	u32 nr_cids;
};

static int dup_ids(const u32 *ids, u32 nr, u32 **out)
{
	/* One more: a part of an id may follow. */
	*out = fault_point(FAULT_MEMORY) ? NULL : kvc_alloc_array((size_t)nr + 1, sizeof(**out));
	if (!*out)
		return -ENOMEM;
	if (nr)
		memcpy(*out, ids, nr * sizeof(**out));
	return 0;
}

static u32 clone_tokens(const struct seq_clone *c, u32 tokens)
{
	return c->full ? tokens : min(tokens, c->to * c->src->geo->block_tokens);
}

/* Name the sealed blocks, copy the open ones. */
static int clone_blocks(struct seq_clone *c)
{
	struct blktab *tab = &c->src->tab;
	u32 nr = c->to - c->from, sealed, i;
	int err = 0;

	c->blocks = kvc_alloc_array(nr, sizeof(*c->blocks));
	if (!c->blocks)
		return -ENOMEM;
	sealed = min(nr, c->src->sealed_blocks > c->from ? c->src->sealed_blocks - c->from : 0);
	blktab_snapshot(tab, c->from, sealed, c->blocks);
	for (i = sealed; i < nr && !err; i++) {
		u32 k = c->from + i;

		if (k >= tab->nr_blocks || BLOCK_IS_NONE(tab->blocks[k]))
			c->blocks[i] = BLOCK_NONE;
		else
			err = pool_copy(tab->pool, tab->blocks[k], tab->block_bytes, &c->blocks[i]);
	}
	if (err) {
		pool_put(tab->pool, c->blocks, i - 1);
		free(c->blocks);
		c->blocks = NULL;
	}
	return err;
}

/* The destination takes ids where it had none, or loose ones. */
static bool takes_ids(const struct seq_clone *c, u32 nr)
{
	const struct sequence *src = c->src, *dst = c->dst;

	if (src->loose || !nr)
		return false;
	if (dst->loose)
		return true;
	return nr > dst->nr_ids &&
	       (!dst->nr_ids || !memcmp(src->ids, dst->ids, dst->nr_ids * sizeof(*dst->ids)));
}

static int clone_ids(struct seq_clone *c)
{
	u32 nr = clone_tokens(c, c->src->nr_ids), nr_cids = clone_tokens(c, c->src->nr_cids);
	u32 front = min(c->dst->nr_cids, c->from * c->src->geo->block_tokens), shown_nr;
	const u32 *shown, *cids = seq_committed_ids(c->src);
	int err = 0;

	if (takes_ids(c, nr)) {
		err = dup_ids(c->src->ids, nr, &c->ids);
		c->nr_ids = nr;
	}
	c->nr_cids = max(nr_cids, front);
	if (nr_cids < c->nr_cids) /* then both have them, and equal */
		cids = seq_committed_ids(c->dst);
	shown = c->ids ? c->ids : c->dst->ids;
	shown_nr = c->ids ? c->nr_ids : c->dst->nr_ids;
	if (!err && c->nr_cids &&
	    (c->nr_cids > shown_nr || memcmp(shown, cids, c->nr_cids * sizeof(*cids))))
		err = dup_ids(cids, c->nr_cids, &c->cids);
	return err;
}

static int clone_prepare(struct seq_clone *c)
{
	u64 bs = c->src->geo->block_bytes;
	u32 nr_written = written_count(c->src->written, c->from * bs, c->to * bs);
	int err = blktab_reserve(&c->dst->tab, max(c->to, c->dst->tab.nr_blocks), c->to - c->from);

	if (!err)
		err = written_reserve(c->dst->written, nr_written + 2);
	if (!err)
		err = clone_ids(c);
	if (!err)
		err = clone_blocks(c);
	if (err) {
		free(c->ids);
		free(c->cids);
	}
	return err;
}

static void clone_apply_ids(struct seq_clone *c)
{
	struct sequence *dst = c->dst;

	if (c->ids) {
		free(dst->ids);
		dst->ids = c->ids;
		dst->nr_ids = c->nr_ids;
		dst->max_ids = c->nr_ids + 1;
		dst->nr_part = 0;
		dst->loose = false;
		seq_dirty_ids(dst, 0);
	}
	free(dst->cids);
	dst->cids = c->cids;
	dst->nr_cids = c->nr_cids;
	if (c->cids)
		seq_dirty_cids(dst, 0);
}

static void clone_written(struct seq_clone *c)
{
	u64 bs = c->src->geo->block_bytes;

	written_remove(c->dst->written, c->from * bs, c->to * bs);
	written_copy(c->dst->written, c->src->written, c->from * bs, c->to * bs);
}

/* Nothing in here can fail: all is reserved. */
static void clone_apply(struct seq_clone *c)
{
	struct sequence *src = c->src, *dst = c->dst;
	u32 sealed = min(c->to, src->sealed_blocks);
	u32 indexed = min(sealed, src->indexed_blocks);

	if (blktab_set_range(&dst->tab, c->from, c->to - c->from, c->blocks))
		KVC_BUG_ON("room was reserved");
	lock_acquire(&dst->tab.lock);
	dst->tab.size = max(dst->tab.size, c->end);
	/* The chain is the source's: what it knows to be indexed is indexed for us too. */
	if (dst->root == src->indexed_root &&
	    (!c->from || (dst->indexed_root == dst->root && dst->indexed_blocks == c->from))) {
		dst->indexed_blocks = max(c->from, indexed);
		dst->indexed_root = dst->root;
	}
	dst->sealed_blocks = max(c->from, sealed);
	dst->T = max(c->from * src->geo->block_tokens, clone_tokens(c, src->T));
	clone_apply_ids(c);
	if (c->full && !c->from)
		dst->pending_T = src->pending_T;
	if (!c->from) {
		dst->paired = c->ids && src->paired;
		dst->estranged = src->estranged || (dst->estranged && c->nr_cids < dst->T);
	}
	dst->meta_dirty = true;
	pool_touch(dst->tab.pool, c->blocks, c->to - c->from, seq_class(dst), dst->priority);
	lock_release(&dst->tab.lock);
	free(c->blocks);
}

static bool same_kind(const struct sequence *a, const struct sequence *b)
{
	return a != b && a->tab.space == b->tab.space &&
	       a->geo->block_bytes == b->geo->block_bytes && a->geo->layout == b->geo->layout &&
	       a->geo->block_tokens == b->geo->block_tokens &&
	       (!a->root || !b->root || a->root == b->root);
}

/* Are both committed up to @tokens, under the same ids? */
static bool same_front(const struct sequence *a, const struct sequence *b, u32 tokens)
{
	u32 nr = min(a->nr_cids, tokens);

	return a->T >= tokens && b->T >= tokens && nr == min(b->nr_cids, tokens) &&
	       (!nr || !memcmp(seq_committed_ids(a), seq_committed_ids(b), nr * sizeof(u32)));
}

/* How far one request goes: whole blocks below 2 GiB, or to the end. */
static int clone_extent(struct seq_clone *c, u64 off, u64 len)
{
	u64 bs = c->src->geo->block_bytes, size = c->src->tab.size;
	u64 cap = GIB(2) / bs * bs - bs;

	c->end = off + min(min(len, cap), size - off);
	c->full = c->end == size;
	if (!c->full)
		c->end -= c->end % bs;
	if (c->end <= off)
		return -EXDEV;
	c->from = (u32)(off / bs);
	c->to = (u32)div_round_up(c->end, bs);
	return 0;
}

static ssize_t copy_range(struct sequence *src, struct sequence *dst, u64 off, u64 len)
{
	struct seq_clone c = {.src = src, .dst = dst};
	int err;

	if (off >= src->tab.size || !len)
		return 0;
	err = dst->room ? kvc_err(-EBUSY, seq_copy_room) : seq_room_mark(src);
	if (!err)
		err = clone_extent(&c, off, len);
	if (err)
		return err;
	if (dst->sealed_blocks > c.from)
		return kvc_err(-EPERM, seq_copy_sealed);
	if (c.from && !same_front(src, dst, c.from * src->geo->block_tokens))
		return -EXDEV;
	err = clone_prepare(&c);
	if (err)
		return err;
	clone_written(&c);
	clone_apply(&c);
	return (ssize_t)(c.end - off);
}

ssize_t seq_copy_range(struct sequence *src, u64 off_in, struct sequence *dst, u64 off_out, u64 len)
{
	ssize_t n;

	if (off_in != off_out || off_in % src->geo->block_bytes || !same_kind(src, dst))
		return -EXDEV;
	blktab_begin2(&src->tab, &dst->tab);
	n = copy_range(src, dst, off_in, len);
	blktab_end2(&src->tab, &dst->tab);
	return n;
}

/* Bring a clone of whole blocks down to @nr tokens. */
static int trim_fork(struct sequence *dst, u32 nr)
{
	int err = __seq_set_tokens(dst, nr);

	if (!err && dst->nr_ids > nr)
		seq_set_nr_ids(dst, nr);
	return err;
}

static int fork_tokens(struct sequence *src, struct sequence *dst, u32 nr)
{
	struct seq_clone c = {.src = src, .dst = dst, .full = true, .end = src->tab.size};
	int err;

	if (!seq_is_blank(dst) || dst->nr_ids || dst->room)
		return -ENOTEMPTY;
	if (nr != SEQ_NO_TOKENS && nr > src->T)
		return kvc_err(-EINVAL, seq_fork_beyond);
	if (nr != SEQ_NO_TOKENS) {
		c.full = false;
		c.end = min(c.end, seq_blocks_for(src, nr) * src->geo->block_bytes);
	}
	c.to = (u32)div_round_up(c.end, src->geo->block_bytes);
	err = seq_room_mark(src);
	if (err)
		return err;
	err = clone_prepare(&c);
	if (err)
		return err;
	clone_written(&c);
	clone_apply(&c);
	if (nr == SEQ_NO_TOKENS)
		return 0;
	err = trim_fork(dst, nr);
	if (err) {
		/* Less than before cannot fail for room: the reservation is still there. */
		if (!seq_drop_bytes(dst))
			seq_set_nr_ids(dst, 0);
	}
	return err;
}

static int fork_loose_ids(struct sequence *src, struct sequence *dst, u32 nr)
{
	u32 want = min(src->nr_ids, nr);
	int err = seq_reserve_ids(dst, want);

	if (err || !want)
		return err;
	lock_acquire(&dst->tab.lock);
	memcpy(dst->ids, src->ids, want * sizeof(*dst->ids));
	dst->nr_ids = want;
	dst->loose = true;
	seq_dirty_ids(dst, 0);
	lock_release(&dst->tab.lock);
	return 0;
}

int seq_fork(struct sequence *src, struct sequence *dst, u32 nr)
{
	int err;

	if (!same_kind(src, dst))
		return -EXDEV;
	blktab_begin2(&src->tab, &dst->tab);
	err = fork_tokens(src, dst, nr);
	if (!err && src->loose)
		err = fork_loose_ids(src, dst, nr);
	blktab_end2(&src->tab, &dst->tab);
	return err;
}

/* ---- names that go and come ---- */

/* Everything that @seq holds, named once more, into a new sequence; written ranges move. */
static int split_off(struct sequence *seq, struct sequence *out)
{
	u32 nr = seq->tab.nr_blocks;
	struct seq_clone c = {.src = seq, .dst = out, .to = nr, .full = true, .end = seq->tab.size};
	int err = blktab_reserve(&out->tab, nr, nr);

	if (!err)
		err = blktab_reserve(&seq->tab, nr, nr);
	if (!err)
		err = dup_ids(seq->ids, seq->nr_ids, &c.ids);
	c.nr_ids = seq->nr_ids;
	c.nr_cids = seq->nr_cids;
	if (!err && seq->cids)
		err = dup_ids(seq->cids, seq->nr_cids, &c.cids);
	c.blocks = err ? NULL : kvc_alloc_array(nr, sizeof(*c.blocks));
	if (!c.blocks) {
		free(c.ids);
		free(c.cids);
		return -ENOMEM;
	}
	blktab_snapshot(&seq->tab, 0, nr, c.blocks);
	clone_apply(&c);
	/* The clone shared open blocks: they are the new one's alone, as are the written ranges. */
	written_free(out->written);
	*out->written = *seq->written;
	*seq->written = WRITTEN_INIT;
	out->loose = seq->loose;
	out->paired = seq->paired;
	out->estranged = seq->estranged;
	out->attached_blocks = seq->attached_blocks;
	out->cached_tokens = seq->cached_tokens;
	out->indexed_blocks = 0;
	out->state = seq->state;
	out->priority = seq->priority;
	out->pinned = seq->pinned;
	return seq_lose_bytes(seq);
}

int seq_kv_gone(struct sequence *seq, u64 new_id, struct sequence **out)
{
	struct sequence *kv;
	int err = seq_create(&kv, seq->tab.pool, new_id, seq->tab.space, seq->geo);

	if (err)
		return err;
	blktab_begin2(&seq->tab, &kv->tab);
	err = seq_room_revoke(seq);
	if (!err)
		err = split_off(seq, kv);
	blktab_end2(&seq->tab, &kv->tab);
	if (err)
		seq_destroy(kv);
	else
		*out = kv;
	return err;
}

/* The ids that the directory has become those of the kv file that arrives. */
static int adopt_ids(struct sequence *seq, const struct sequence *old)
{
	u32 *ids;
	int err = dup_ids(old->ids, old->nr_ids, &ids);

	if (err)
		return err;
	err = seq_own_cids(seq);
	if (err) {
		free(ids);
		return err;
	}
	lock_acquire(&seq->tab.lock);
	free(seq->ids);
	seq->ids = ids;
	seq->nr_ids = old->nr_ids;
	seq->max_ids = old->nr_ids + 1;
	seq->nr_part = 0;
	seq->loose = old->loose;
	seq->paired = false;
	seq->estranged = old->estranged && seq->nr_cids < seq->T;
	seq_dirty_ids(seq, 0);
	lock_release(&seq->tab.lock);
	return 0;
}

int seq_kv_arrived(struct sequence *from, struct sequence *old)
{
	int err = 0;

	if (!old)
		old = from;
	blktab_begin2(&from->tab, &old->tab);
	if (old != from && old->nr_ids && (!from->nr_ids || !old->loose))
		err = adopt_ids(from, old);
	if (!err) {
		lock_acquire(&from->tab.lock);
		from->indexed_blocks = 0;
		from->meta_dirty = true;
		lock_release(&from->tab.lock);
		if (seq_index(from))
			kvc_err(-ENOMEM, seq_index_skipped);
	}
	blktab_end2(&from->tab, &old->tab);
	return err;
}
