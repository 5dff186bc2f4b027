/* SPDX-License-Identifier: Apache-2.0 */
/* A sequence's life, its questions, and what every other part of it needs. */
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/clock.h"
#include "allocator/base/err.h"
#include "allocator/base/fault.h"
#include "allocator/seq_impl.h"

int seq_create(struct sequence **out, struct pool *pool, u64 id, u32 space,
	       const struct geometry *geo)
{
	struct sequence *seq = fault_point(FAULT_MEMORY) ? NULL : calloc(1, sizeof(*seq));
	int err;

	if (!seq)
		return -ENOMEM;
	seq->written = calloc(1, sizeof(*seq->written));
	if (!seq->written) {
		free(seq);
		return -ENOMEM;
	}
	err = blktab_init(&seq->tab, pool, id, space, (u32)geo->block_bytes);
	if (err) {
		free(seq->written);
		free(seq);
		return err;
	}
	seq->geo = geo;
	seq->pending_T = SEQ_NO_TOKENS;
	seq->ids_dirty_from = seq->cids_dirty_from = UINT32_MAX;
	seq->priority = 50;
	seq->meta_dirty = true;
	seq->last_use_ns = clock_real_ns();
	*out = seq;
	return 0;
}

void seq_destroy(struct sequence *seq)
{
	if (!seq)
		return;
	if (seq->pinned)
		pool_unkeep(seq->tab.pool, seq->tab.blocks, seq->tab.nr_blocks);
	kvc_assert(!seq->room);
	blktab_destroy(&seq->tab);
	seq_loading_free(seq->loading);
	written_free(seq->written);
	free(seq->written);
	free(seq->ids);
	free(seq->cids);
	free(seq);
}

bool seq_has_own_bytes(const struct sequence *seq)
{
	return seq->sealed_blocks > seq->attached_blocks || seq->written->nr;
}

bool seq_is_blank(const struct sequence *seq)
{
	return !seq->sealed_blocks && !seq->written->nr && !seq->tab.size;
}

u32 seq_blocks_for(const struct sequence *seq, u32 tokens)
{
	return (u32)div_round_up(tokens, seq->geo->block_tokens);
}

u64 seq_bytes_for(const struct sequence *seq, u32 tokens)
{
	if (seq->geo->layout == LAYOUT_OPAQUE)
		return tokens * seq->geo->token_bytes;
	return seq_blocks_for(seq, tokens) * seq->geo->block_bytes;
}

enum block_class seq_class(const struct sequence *seq)
{
	static const enum block_class classes[] = {
		[SEQ_IDLE] = CLASS_IDLE,
		[SEQ_PAUSED] = CLASS_PAUSED,
		[SEQ_QUEUED] = CLASS_QUEUED,
		[SEQ_DECODING] = CLASS_DECODING,
	};

	return seq->pinned ? CLASS_PINNED : classes[seq->state];
}

u64 seq_size(struct sequence *seq)
{
	u64 size;

	lock_acquire(&seq->tab.lock);
	size = seq->tab.size;
	lock_release(&seq->tab.lock);
	return size;
}

void seq_residency(struct sequence *seq, struct pool_residency *res)
{
	lock_acquire(&seq->tab.lock);
	pool_residency(seq->tab.pool, seq->tab.blocks, seq->tab.nr_blocks, res);
	lock_release(&seq->tab.lock);
}

u64 seq_allocated(struct sequence *seq)
{
	u64 bytes;

	lock_acquire(&seq->tab.lock);
	bytes = seq->tab.nr_real * seq->geo->block_stride;
	lock_release(&seq->tab.lock);
	return bytes;
}

/* Tell the pool whose blocks these are; lock held. */
static void __touch(struct sequence *seq)
{
	seq->last_use_ns = clock_real_ns();
	if (seq->tab.nr_blocks)
		pool_touch(seq->tab.pool, seq->tab.blocks, seq->tab.nr_blocks, seq_class(seq),
			   seq->priority);
}

void seq_touch(struct sequence *seq)
{
	lock_acquire(&seq->tab.lock);
	__touch(seq);
	lock_release(&seq->tab.lock);
}

void seq_set_state(struct sequence *seq, enum seq_state state)
{
	lock_acquire(&seq->tab.lock);
	seq->changes++;
	seq->meta_dirty = true;
	seq->state = state;
	__touch(seq);
	lock_release(&seq->tab.lock);
}

void seq_set_pinned(struct sequence *seq, bool pinned)
{
	lock_acquire(&seq->tab.lock);
	seq->changes++;
	seq->meta_dirty = true;
	if (seq->pinned && !pinned)
		pool_unkeep(seq->tab.pool, seq->tab.blocks, seq->tab.nr_blocks);
	seq->pinned = pinned;
	__touch(seq);
	lock_release(&seq->tab.lock);
}

/* Its blocks now, each named for the caller, holes left out. */
static int named_blocks(struct sequence *seq, struct block_id **ids, u32 *nr)
{
	u32 want;

	lock_acquire(&seq->tab.lock);
	want = seq->tab.nr_blocks;
	lock_release(&seq->tab.lock);
	*ids = kvc_alloc_array(want, sizeof(**ids));
	if (!*ids)
		return -ENOMEM;
	blktab_snapshot(&seq->tab, 0, want, *ids);
	*nr = 0;
	for (u32 i = 0; i < want; i++)
		if (!BLOCK_IS_NONE((*ids)[i]))
			(*ids)[(*nr)++] = (*ids)[i];
	return 0;
}

void seq_prefetch(struct sequence *seq)
{
	struct block_id *ids;
	u32 nr;

	if (named_blocks(seq, &ids, &nr))
		return;
	pool_prefetch(seq->tab.pool, ids, nr);
	pool_put(seq->tab.pool, ids, nr);
	free(ids);
}
