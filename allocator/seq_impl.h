/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of sequences, for sequence.c and seq_*.c only. The caller of every function holds busy. */
#ifndef KVC_SEQ_IMPL_H
#define KVC_SEQ_IMPL_H

#include "allocator/seq_room.h"
#include "allocator/written.h"

/** seq_has_own_bytes() - does it hold bytes that did not come from the prefix cache? */
bool seq_has_own_bytes(const struct sequence *seq);
/** seq_is_blank() - neither bytes nor a size: a T that is set now is kept for later. */
bool seq_is_blank(const struct sequence *seq);
/** seq_blocks_for() - blocks that @tokens take. */
u32 seq_blocks_for(const struct sequence *seq, u32 tokens);
/** seq_bytes_for() - st_size after user.kvc.tokens = @tokens. */
u64 seq_bytes_for(const struct sequence *seq, u32 tokens);
/** seq_class() - of its blocks, as reclaim sees them. */
enum block_class seq_class(const struct sequence *seq);

/** struct seq_cut - what is left after a cut. */
struct seq_cut {
	u32 blocks, tokens;
	u64 size;
	bool keep_ids;
};
/**
 * __seq_cut() - drop blocks, ids and committed tokens from there on; a sealed block that is to stay
 * in part (tokens end inside it) must have been reopened. -ENOMEM changes nothing.
 */
int __must_check __seq_cut(struct sequence *seq, struct seq_cut to);
/** seq_cut_to_tokens() - cut kv, ids and T to @nr < T tokens. */
int __must_check seq_cut_to_tokens(struct sequence *seq, u32 nr);
/** seq_drop_bytes() - kv to zero; ids stay as they are. */
int __must_check seq_drop_bytes(struct sequence *seq);
/** seq_lose_bytes() - as seq_drop_bytes(), and the ids that stay are loose from now on. */
int __must_check seq_lose_bytes(struct sequence *seq);

/** seq_pieces() - pieces that the first tokens of a block lie in (planes; opaque: 1). */
u32 seq_pieces(const struct sequence *seq);
/** seq_mark_tokens() - of block @block exactly the first @nr tokens count as written (reserved). */
void seq_mark_tokens(struct sequence *seq, u32 block, u32 nr);

/** seq_tokens_written() - is every byte of the first @nr tokens written? */
bool seq_tokens_written(const struct sequence *seq, u32 nr);

/** seq_seal() - seal the blocks before @nr; all of them are wholly written. */
int __must_check seq_seal(struct sequence *seq, u32 nr);

int __must_check __seq_set_tokens(struct sequence *seq, u32 nr);
int __must_check __seq_commit(struct sequence *seq);

/* ids */
/** seq_own_cids() - give committed ids their own array, before ids change below nr_cids. */
int __must_check seq_own_cids(struct sequence *seq);
/** seq_reserve_ids() - room for @nr ids in all. */
int __must_check seq_reserve_ids(struct sequence *seq, u64 nr);
/** seq_set_nr_ids() - cut ids; committed ids must not hang on them (seq_own_cids()). */
void seq_set_nr_ids(struct sequence *seq, u32 nr);
/** seq_dirty_ids() - ids from @from on need records. */
void seq_dirty_ids(struct sequence *seq, u32 from);
void seq_dirty_cids(struct sequence *seq, u32 from);
/** seq_committed_ids() - the ids under which its first nr_cids tokens were committed. */
static inline const u32 *seq_committed_ids(const struct sequence *seq)
{
	return seq->cids ? seq->cids : seq->ids;
}
/** seq_drop_ids() - ids go, blocks that were only attached too. */
int __must_check seq_drop_ids(struct sequence *seq);
/** seq_agreeing_ids() - leading ids, up to @nr, that equal those of their tokens' commit. */
u32 seq_agreeing_ids(const struct sequence *seq, u32 nr);
/**
 * seq_become() - have the committed tokens that @ids are cached for and nothing else: its own leading
 * ones, or the chain that the index has when that is longer. The shown ids are the caller's to set then.
 * @tokens: how many. On failure nothing changed. May block.
 */
int __must_check seq_become(struct sequence *seq, const u32 *ids, u32 nr_ids, u32 *tokens);
/** seq_reserve_more_ids() - have room for a commit's ids, which nothing can refuse then. @from: where they begin. */
int __must_check seq_reserve_more_ids(struct sequence *seq, const struct room_commit *c, u32 *from);
/** seq_take_more_ids() - they are shown. Lock held; room was reserved. */
void seq_take_more_ids(struct sequence *seq, const struct room_commit *c, u32 from);
/** seq_match() - tokens closed: attach what is cached, or index what is here. */
int __must_check seq_match(struct sequence *seq);
/** seq_index() - bind newly committed tokens to their ids, index sealed blocks that agree. */
int __must_check seq_index(struct sequence *seq);

/* rooms (seq_room.c) */
/** seq_begin_change() - take busy to change bytes or T. -EBUSY: there is a room, busy is not held. */
int __must_check seq_begin_change(struct sequence *seq);
/** seq_room_mark() - written ranges say how far a tail that is shared with a room is written. */
int __must_check seq_room_mark(struct sequence *seq);
/** seq_room_settle() - the table shares no block with a room any more. May block. */
int __must_check seq_room_settle(struct sequence *seq);
/** seq_room_revoke() - the sequence has no room any more. May block. */
int __must_check seq_room_revoke(struct sequence *seq);

/* persistence */
void seq_loading_free(struct seq_loading *loading);

#endif
