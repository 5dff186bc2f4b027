/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commits: which tokens are wholly written, sealing their blocks, moving T.
 *
 * Tokens interleave inside a block: its planes hold one run of bytes per token each, so the first r
 * tokens of a block are the first r units of every plane (opaque: one run).
 */
#include "allocator/base/err.h"
#include "allocator/seq_impl.h"

u32 seq_pieces(const struct sequence *seq)
{
	const struct geometry *geo = seq->geo;

	return (u32)(geo->block_bytes / (geometry_unit(geo) * geo->block_tokens));
}

static struct written_range piece(const struct sequence *seq, u32 block, u32 i, u32 nr)
{
	const struct geometry *geo = seq->geo;
	u64 unit = geometry_unit(geo);
	u64 from = block * geo->block_bytes + i * unit * geo->block_tokens;

	return (struct written_range){from, from + nr * unit};
}

void seq_mark_tokens(struct sequence *seq, u32 block, u32 nr)
{
	u64 start = block * seq->geo->block_bytes;
	u32 pieces = seq_pieces(seq);

	written_remove(seq->written, start, start + seq->geo->block_bytes);
	for (u32 i = 0; i < pieces; i++) {
		struct written_range r = piece(seq, block, i, nr);

		written_add(seq->written, r.from, r.to);
	}
}

bool seq_tokens_written(const struct sequence *seq, u32 nr)
{
	u64 bs = seq->geo->block_bytes;
	u32 whole = nr / seq->geo->block_tokens, tail = nr % seq->geo->block_tokens;
	u32 pieces = seq_pieces(seq);

	if (!written_covers(seq->written, seq->sealed_blocks * bs, whole * bs))
		return false;
	if (!tail || whole < seq->sealed_blocks)
		return true;
	for (u32 i = 0; i < pieces; i++) {
		struct written_range r = piece(seq, whole, i, tail);

		if (!written_covers(seq->written, r.from, r.to))
			return false;
	}
	return true;
}

int seq_seal(struct sequence *seq, u32 nr)
{
	struct blktab *tab = &seq->tab;
	u32 from = seq->sealed_blocks;
	int err;

	if (nr <= from)
		return 0;
	err = pool_seal(tab->pool, tab->blocks + from, nr - from);
	if (err)
		return err;
	written_remove(seq->written, 0, nr * seq->geo->block_bytes);
	lock_acquire(&tab->lock);
	seq->sealed_blocks = nr;
	seq->meta_dirty = true;
	lock_release(&tab->lock);
	blktab_mark(tab, from, nr);
	return 0;
}

static void set_T(struct sequence *seq, u32 nr)
{
	lock_acquire(&seq->tab.lock);
	seq->meta_dirty |= seq->T != nr;
	seq->T = nr;
	lock_release(&seq->tab.lock);
}

/* What T = @nr says about the last block and the size, when nothing was cut. */
static int settle_tail(struct sequence *seq, u32 nr)
{
	const struct geometry *geo = seq->geo;
	u32 blocks = max(seq->tab.nr_blocks, (u32)div_round_up(seq->tab.size, geo->block_bytes));
	u64 size = seq_bytes_for(seq, nr);
	u32 last = nr / geo->block_tokens, tail = nr % geo->block_tokens;
	int err;

	/* Bytes behind the last token's block stay; they are not committed yet. */
	if (blocks <= seq_blocks_for(seq, nr)) {
		err = seq->tab.size > size ? blktab_zero_from(&seq->tab, size) : 0;
		if (err)
			return err;
		blktab_set_size(&seq->tab, size);
	}
	if (tail && last >= seq->sealed_blocks && last < seq->tab.nr_blocks)
		seq_mark_tokens(seq, last, tail);
	return 0;
}

/* All of a commit of @nr tokens that can fail. */
static int seal_exactly(struct sequence *seq, u32 nr)
{
	int err;

	if (!seq_tokens_written(seq, nr))
		return kvc_err(-EINVAL, seq_tokens_unwritten);
	err = written_reserve(seq->written, seq_pieces(seq) + 2);
	if (!err)
		err = blktab_reserve(&seq->tab, seq->tab.nr_blocks, 1);
	if (!err)
		err = seq_seal(seq, nr / seq->geo->block_tokens);
	return err ? err : settle_tail(seq, nr);
}

static int commit_exactly(struct sequence *seq, u32 nr)
{
	int err = seal_exactly(seq, nr);

	if (err)
		return err;
	set_T(seq, nr);
	return seq_index(seq);
}

static void set_pending(struct sequence *seq, u32 nr)
{
	lock_acquire(&seq->tab.lock);
	seq->meta_dirty |= seq->pending_T != nr;
	seq->pending_T = nr;
	lock_release(&seq->tab.lock);
}

int __seq_set_tokens(struct sequence *seq, u32 nr)
{
	int err;

	if (nr > seq->T && seq_is_blank(seq)) {
		set_pending(seq, nr);
		return 0;
	}
	err = nr < seq->T ? seq_cut_to_tokens(seq, nr) : commit_exactly(seq, nr);
	if (!err)
		set_pending(seq, SEQ_NO_TOKENS);
	return err;
}

int seq_set_tokens(struct sequence *seq, u32 nr)
{
	int err;

	if (nr > SEQ_MAX_IDS)
		return -EFBIG;
	err = seq_begin_change(seq);
	if (err)
		return err;
	err = __seq_set_tokens(seq, nr);
	blktab_end(&seq->tab);
	return err;
}

static int written_commit(struct sequence *seq, const struct room_commit *c)
{
	u32 from;
	int err;

	if (c->tokens < seq->T)
		return kvc_err(-EINVAL, seq_commit_fewer);
	err = seq_reserve_more_ids(seq, c, &from);
	if (!err)
		err = seal_exactly(seq, c->tokens);
	if (err)
		return err;
	lock_acquire(&seq->tab.lock);
	seq_take_more_ids(seq, c, from);
	lock_release(&seq->tab.lock);
	set_T(seq, c->tokens);
	set_pending(seq, SEQ_NO_TOKENS);
	return seq_index(seq);
}

int seq_written_commit(struct sequence *seq, const struct room_commit *commit)
{
	int err;

	if (commit->tokens > SEQ_MAX_IDS)
		return -EFBIG;
	err = seq_begin_change(seq);
	if (err)
		return err;
	err = written_commit(seq, commit);
	blktab_end(&seq->tab);
	return err;
}

/* Leading tokens that are wholly written, in whole blocks but for opaque ones. */
static u32 leading_tokens(const struct sequence *seq, u32 *blocks)
{
	const struct geometry *geo = seq->geo;
	u64 start = seq->sealed_blocks * geo->block_bytes;
	u64 run = written_run(seq->written, start);

	*blocks = (u32)(run / geo->block_bytes);
	if (geo->layout == LAYOUT_OPAQUE)
		return (u32)(run / geo->token_bytes);
	return *blocks * geo->block_tokens;
}

int __seq_commit(struct sequence *seq)
{
	u32 blocks, tokens;
	int err;

	if (seq->pending_T != SEQ_NO_TOKENS && !seq_is_blank(seq) &&
	    seq_tokens_written(seq, seq->pending_T))
		return __seq_set_tokens(seq, seq->pending_T);
	tokens = leading_tokens(seq, &blocks);
	err = seq_seal(seq, blocks);
	if (err)
		return err;
	set_T(seq, max(seq->T, tokens));
	return seq_index(seq);
}

int seq_commit(struct sequence *seq)
{
	int err = 0;

	blktab_begin(&seq->tab);
	/* With a room, whoever fills it says what is committed. */
	if (!seq->room)
		err = __seq_commit(seq);
	blktab_end(&seq->tab);
	return err;
}
