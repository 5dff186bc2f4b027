/* SPDX-License-Identifier: Apache-2.0 */
/* The kv file's bytes: reads, writes, sizes and cuts. */
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/seq_impl.h"

static bool too_big(const struct sequence *seq, u64 off, u64 len)
{
	u64 end;

	return __builtin_add_overflow(off, len, &end) || end > SEQ_MAX_BYTES ||
	       div_round_up(end, seq->geo->block_bytes) > SEQ_MAX_IDS / seq->geo->block_tokens;
}

static int write_open(struct sequence *seq, const void *buf, size_t len, u64 off)
{
	struct blktab *tab = &seq->tab;
	u32 first = (u32)(off / tab->block_bytes);
	int err;

	if (first < seq->sealed_blocks)
		return kvc_err(-EPERM, seq_write_sealed);
	err = written_reserve(seq->written, 1);
	if (!err)
		err = blktab_write(tab, buf, len, off);
	if (err)
		return err;
	written_add(seq->written, off, off + len);
	lock_acquire(&tab->lock);
	seq->meta_dirty = true;
	pool_touch(tab->pool, tab->blocks + first,
		   (u32)((off + len - 1) / tab->block_bytes) - first + 1, seq_class(seq),
		   seq->priority);
	lock_release(&tab->lock);
	return 0;
}

int seq_write(struct sequence *seq, const void *buf, size_t len, u64 off)
{
	int err;

	if (too_big(seq, off, len))
		return -EFBIG;
	if (!len)
		return 0;
	err = seq_begin_change(seq);
	if (err)
		return err;
	err = write_open(seq, buf, len, off);
	blktab_end(&seq->tab);
	return err;
}

ssize_t seq_read(struct sequence *seq, void *buf, size_t len, u64 off)
{
	return blktab_read(&seq->tab, buf, len, off);
}

int __seq_cut(struct sequence *seq, struct seq_cut to)
{
	int err = blktab_cut(&seq->tab, to.blocks, to.size);

	if (err)
		return err;
	written_remove(seq->written, to.blocks * seq->geo->block_bytes, UINT64_MAX);
	lock_acquire(&seq->tab.lock);
	if (seq->cids && seq->nr_cids > to.tokens)
		seq_dirty_cids(seq, to.tokens);
	if (seq->nr_ids > to.tokens && !to.keep_ids) {
		seq_dirty_ids(seq, to.tokens);
		seq->nr_ids = to.tokens;
		seq->nr_part = 0;
	}
	seq->nr_cids = min(seq->nr_cids, to.tokens);
	seq->paired &= seq->nr_cids > 0;
	seq->T = min(seq->T, to.tokens);
	seq->cached_tokens = min(seq->cached_tokens, to.tokens);
	seq->attached_blocks = min(seq->attached_blocks, to.blocks);
	seq->sealed_blocks = min(seq->sealed_blocks, to.blocks);
	seq->indexed_blocks = min(seq->indexed_blocks, to.blocks);
	seq->meta_dirty = true;
	lock_release(&seq->tab.lock);
	return 0;
}

int seq_drop_bytes(struct sequence *seq)
{
	int err = __seq_cut(seq, (struct seq_cut){.keep_ids = true});

	if (err)
		return err;
	lock_acquire(&seq->tab.lock);
	free(seq->cids);
	seq->cids = NULL;
	lock_release(&seq->tab.lock);
	return 0;
}

/*
 * A sealed block that a cut leaves in part becomes a private open copy, wholly written as yet. What
 * follows cannot run out of memory: reserve_cut().
 */
static int reopen(struct sequence *seq, u32 block)
{
	struct blktab *tab = &seq->tab;
	u64 start = block * seq->geo->block_bytes;
	struct block_id copy;
	int err;

	if (block >= seq->sealed_blocks)
		return 0;
	err = pool_copy(tab->pool, tab->blocks[block], tab->block_bytes, &copy);
	if (!err)
		err = blktab_set(tab, block, copy);
	if (err)
		return err;
	lock_acquire(&tab->lock);
	seq->sealed_blocks = block;
	seq->attached_blocks = min(seq->attached_blocks, block);
	seq->indexed_blocks = min(seq->indexed_blocks, block);
	lock_release(&tab->lock);
	written_add(seq->written, start, start + seq->geo->block_bytes);
	return 0;
}

static int reserve_cut(struct sequence *seq)
{
	int err = blktab_reserve(&seq->tab, seq->tab.nr_blocks, seq->tab.nr_blocks + 2);

	return err ? err : written_reserve(seq->written, seq_pieces(seq) + 3);
}

int seq_cut_to_tokens(struct sequence *seq, u32 nr)
{
	u32 tail = nr % seq->geo->block_tokens, last = nr / seq->geo->block_tokens;
	struct seq_cut to = {
		.blocks = seq_blocks_for(seq, nr), .tokens = nr, .size = seq_bytes_for(seq, nr)};
	int err = reserve_cut(seq);

	if (!err && tail)
		err = reopen(seq, last);
	if (!err)
		err = blktab_zero_from(&seq->tab, to.size);
	if (!err)
		err = __seq_cut(seq, to);
	if (!err && tail)
		seq_mark_tokens(seq, last, tail);
	return err;
}

/* Opaque tokens lie one after the other, so kv may be cut inside a block. */
static int cut_to_bytes(struct sequence *seq, u64 size)
{
	const struct geometry *geo = seq->geo;
	u64 inside = size % geo->block_bytes;
	u32 last = (u32)(size / geo->block_bytes);
	struct seq_cut to = {
		.blocks = last + !!inside,
		.tokens = (u32)(last * (u64)geo->block_tokens + inside / geo->token_bytes),
		.size = size};
	int err;

	if (inside && (geo->layout != LAYOUT_OPAQUE || size % geo->token_bytes))
		return kvc_err(-EINVAL, seq_cut_inside);
	err = reserve_cut(seq);
	if (!err && inside)
		err = reopen(seq, last);
	if (!err)
		err = blktab_zero_from(&seq->tab, size);
	if (!err)
		err = __seq_cut(seq, to);
	if (!err)
		written_remove(seq->written, size, UINT64_MAX);
	return err;
}

/*
 * Whose are the bytes that come next? Ids that belonged to the bytes that go will be replaced as
 * well. But ids that were put there while other bytes were in kv may be those of the bytes to come,
 * or the half of something that was given up: the next ids may be anybody's.
 */
int seq_lose_bytes(struct sequence *seq)
{
	bool known = seq->loose || seq->paired;
	int err = seq_drop_bytes(seq);

	if (err)
		return err;
	lock_acquire(&seq->tab.lock);
	seq->loose = seq->nr_ids > 0;
	seq->estranged = seq->loose && (seq->estranged || !known);
	seq->pending_T = SEQ_NO_TOKENS;
	seq->meta_dirty = true;
	lock_release(&seq->tab.lock);
	return 0;
}

int seq_truncate(struct sequence *seq, u64 size)
{
	int err;

	if (too_big(seq, 0, size))
		return -EFBIG;
	err = seq_begin_change(seq);
	if (err)
		return err;
	if (!size)
		err = seq_lose_bytes(seq);
	else if (size < seq->tab.size)
		err = cut_to_bytes(seq, size);
	else
		blktab_set_size(&seq->tab, size);
	blktab_end(&seq->tab);
	return err;
}

int seq_fallocate(struct sequence *seq, u64 off, u64 len, bool keep_size)
{
	u64 bs = seq->geo->block_bytes, end = off + len;
	int err;

	if (too_big(seq, off, len))
		return -EFBIG;
	err = seq_begin_change(seq);
	if (err)
		return err;
	err = blktab_fill(&seq->tab, (u32)(off / bs), (u32)div_round_up(end, bs));
	if (!err && !keep_size && end > seq->tab.size)
		blktab_set_size(&seq->tab, end);
	blktab_end(&seq->tab);
	return err;
}

int seq_restart(struct sequence *seq)
{
	int err = seq_begin_change(seq);

	if (err)
		return err;
	if (seq->tab.nr_blocks || seq->tab.size) {
		err = seq_drop_bytes(seq);
		if (!err)
			seq->pending_T = SEQ_NO_TOKENS;
	}
	blktab_end(&seq->tab);
	return err;
}
