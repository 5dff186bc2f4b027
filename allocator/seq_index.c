/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences and the prefix cache.
 *
 * Indexing goes down the chain of sealed blocks while the ids agree with those that the tokens were
 * committed under. Where the index has another block for the chain already, ours gives way to it if
 * the bytes are the same; else each keeps its own, and the chain goes on below the one that was
 * first. Blocks before `indexed_blocks` are ours and known to be in the index, so a commit looks at
 * new blocks only; behind a foreign block every commit asks again.
 */
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/seq_impl.h"

u32 seq_agreeing_ids(const struct sequence *seq, u32 nr)
{
	u32 i = 0;

	if (!seq->cids || !nr || !memcmp(seq->ids, seq->cids, nr * sizeof(*seq->ids)))
		return nr;
	while (seq->ids[i] == seq->cids[i])
		i++;
	return i;
}

/* Committed ids are the shown ones again: they need no array. */
static void share_cids(struct sequence *seq)
{
	lock_acquire(&seq->tab.lock);
	free(seq->cids);
	seq->cids = NULL;
	seq->meta_dirty = true;
	lock_release(&seq->tab.lock);
}

static int append_cids(struct sequence *seq, u32 nr)
{
	u32 *cids = reallocarray(NULL, nr, sizeof(*cids));

	if (!cids)
		return -ENOMEM;
	memcpy(cids, seq->cids, seq->nr_cids * sizeof(*cids));
	memcpy(cids + seq->nr_cids, seq->ids + seq->nr_cids, (nr - seq->nr_cids) * sizeof(*cids));
	lock_acquire(&seq->tab.lock);
	free(seq->cids);
	seq->cids = cids;
	seq_dirty_cids(seq, seq->nr_cids);
	lock_release(&seq->tab.lock);
	return 0;
}

/*
 * Tokens that are committed and have an id now keep it. This holds behind a place where ids differ
 * as well, lest somebody repairs the front later and the rest is bound to other ids than its own.
 */
static int bind(struct sequence *seq)
{
	u32 nr = min(seq->T, seq->nr_ids);
	bool paired;
	int err;

	if (nr <= seq->nr_cids)
		return 0;
	paired = seq_agreeing_ids(seq, seq->nr_cids) == seq->nr_cids;
	err = seq->cids ? append_cids(seq, nr) : 0;
	if (err)
		return err;
	lock_acquire(&seq->tab.lock);
	seq->nr_cids = nr;
	seq->paired = paired;
	seq->meta_dirty = true;
	lock_release(&seq->tab.lock);
	return 0;
}

/* Whole blocks, at most @limit, whose ids may be indexed. */
static u32 agreeing_blocks(struct sequence *seq, u32 limit)
{
	u32 nr = min(seq->nr_cids, seq->nr_ids), same = seq_agreeing_ids(seq, nr);

	if (same == nr && seq->cids && seq->nr_cids <= seq->nr_ids)
		share_cids(seq);
	return min(limit, same / seq->geo->block_tokens);
}

struct walk {
	struct sequence *seq;
	struct block_id parent; /* indexed: ours, or another that is held by name */
	struct block_id held;	/* the name that `parent` is held by, or BLOCK_NONE */
	bool own;		/* every block so far is the sequence's own */
};

/* The chain goes on below @id; @held is a name of it that the walk drops, or BLOCK_NONE. */
static void go_below(struct walk *w, struct block_id id, struct block_id held)
{
	pool_put(w->seq->tab.pool, &w->held, 1);
	w->parent = id;
	w->held = held;
}

/* The index holds @found, named for us, where our block @i would go. */
static void meet_other(struct walk *w, u32 i, struct block_id found)
{
	struct blktab *tab = &w->seq->tab;
	int same = pool_same_bytes(tab->pool, tab->blocks[i], found);

	/* Bytes that cannot be compared now are not the same for now. */
	if (same == 1 && !blktab_set(tab, i, found)) {
		go_below(w, found, BLOCK_NONE);
		return;
	}
	go_below(w, found, found);
	w->own = false;
}

static int index_block(struct walk *w, u32 i)
{
	struct sequence *seq = w->seq;
	struct prefix_key key = {.root = seq->root,
				 .block_tokens = seq->geo->block_tokens,
				 .ids = seq->ids + (size_t)i * seq->geo->block_tokens,
				 .nr_ids = seq->geo->block_tokens};
	struct block_id ours = seq->tab.blocks[i], found;
	int err = prefix_insert(seq->tab.pool, &key, w->parent, ours, &found);

	if (err)
		return err;
	if (found.v != ours.v)
		meet_other(w, i, found);
	else
		go_below(w, ours, BLOCK_NONE);
	return 0;
}

int seq_index(struct sequence *seq)
{
	struct walk w = {.seq = seq, .parent = BLOCK_NONE, .held = BLOCK_NONE, .own = true};
	u32 i, nr;
	int err;

	if (!seq->root || seq->loose || seq->estranged)
		return 0;
	err = bind(seq);
	if (err)
		return err;
	nr = agreeing_blocks(seq, seq->sealed_blocks);
	/* A parent under another root would carry our new blocks into a chain of other readers. */
	if (seq->indexed_root != seq->root)
		seq->indexed_blocks = 0;
	seq->indexed_root = seq->root;
	i = min(seq->indexed_blocks, nr);
	if (i)
		w.parent = seq->tab.blocks[i - 1];
	for (; i < nr && !index_block(&w, i); i++)
		if (w.own)
			seq->indexed_blocks = i + 1;
	/* What is not indexed now may be later; a commit does not fail for it. */
	pool_put(seq->tab.pool, &w.held, 1);
	return 0;
}

/* The chain that matched, @nr blocks named for us, becomes the sequence's leading blocks. */
static int attach(struct sequence *seq, const struct block_id *ids, u32 nr)
{
	struct blktab *tab = &seq->tab;
	u32 tokens = nr * seq->geo->block_tokens;
	u64 size = nr * seq->geo->block_bytes;
	int err = blktab_set_range(tab, 0, nr, ids);

	if (err)
		return err;
	lock_acquire(&tab->lock);
	tab->size = max(tab->size, size);
	seq->T = tokens;
	seq->nr_cids = tokens;
	free(seq->cids);
	seq->cids = NULL;
	seq->sealed_blocks = seq->attached_blocks = seq->indexed_blocks = nr;
	seq->indexed_root = seq->root;
	seq->cached_tokens = tokens;
	seq->meta_dirty = true;
	lock_release(&tab->lock);
	return 0;
}

/* Attached blocks whose ids are still the ones shown; they may not be in the index any more. */
static u32 attached_and_agreeing(struct sequence *seq)
{
	u32 same = seq_agreeing_ids(seq, min(seq->nr_cids, seq->nr_ids));

	return min(seq->attached_blocks, same / seq->geo->block_tokens);
}

/* Detach blocks that the shown ids have left. Nothing but attached blocks is here. */
static int detach_from(struct sequence *seq, u32 nr)
{
	struct seq_cut to = {.blocks = nr,
			     .tokens = nr * seq->geo->block_tokens,
			     .size = nr * seq->geo->block_bytes,
			     .keep_ids = true};

	return nr < seq->attached_blocks ? __seq_cut(seq, to) : 0;
}

static int match_new(struct sequence *seq)
{
	struct prefix_key key = {.root = seq->root,
				 .block_tokens = seq->geo->block_tokens,
				 .ids = seq->ids,
				 .nr_ids = seq->nr_ids};
	u32 have = attached_and_agreeing(seq), nr;
	struct block_id *ids = kvc_alloc_array(seq->nr_ids / key.block_tokens, sizeof(*ids));
	int err;

	if (!ids)
		return -ENOMEM;
	nr = prefix_match(seq->tab.pool, &key, ids, true);
	err = blktab_reserve(&seq->tab, max(seq->tab.nr_blocks, nr), seq->tab.nr_blocks + nr);
	if (!err)
		err = detach_from(seq, max(have, nr));
	if (!err && nr > have)
		err = attach(seq, ids, nr);
	if (err || nr <= have)
		pool_put(seq->tab.pool, ids, nr);
	free(ids);
	return err;
}

/* Leading committed tokens that have these ids. Those that have none yet may have any. */
static u32 shared_tokens(const struct sequence *seq, const u32 *ids, u32 nr)
{
	const u32 *have = seq_committed_ids(seq);
	u32 most = min(seq->nr_cids, nr), i = 0;

	if (!most || !memcmp(have, ids, most * sizeof(*ids)))
		return most;
	while (have[i] == ids[i])
		i++;
	return i;
}

/* The chain, @nr blocks named for us, takes the place of all that is here. */
static int replace(struct sequence *seq, const struct block_id *chain, u32 nr)
{
	struct seq_cut to = {.blocks = min(nr, seq->tab.nr_blocks),
			     .tokens = nr * seq->geo->block_tokens,
			     .size = nr * seq->geo->block_bytes,
			     .keep_ids = true};
	int err = blktab_reserve(&seq->tab, max(seq->tab.nr_blocks, nr), seq->tab.nr_blocks + nr);

	if (!err)
		err = __seq_cut(seq, to);
	if (err)
		return err;
	written_remove(seq->written, 0, UINT64_MAX);
	return attach(seq, chain, nr);
}

int seq_become(struct sequence *seq, const u32 *ids, u32 nr_ids, u32 *tokens)
{
	struct prefix_key key = {.root = seq->root,
				 .block_tokens = seq->geo->block_tokens,
				 .ids = ids,
				 .nr_ids = nr_ids};
	struct block_id *chain = kvc_alloc_array(nr_ids / key.block_tokens, sizeof(*chain));
	u32 shared = shared_tokens(seq, ids, nr_ids), nr = 0;
	bool longer;
	int err = 0;

	if (!chain)
		return -ENOMEM;
	if (seq->root)
		nr = prefix_match(seq->tab.pool, &key, chain, true);
	longer = nr * key.block_tokens > shared;
	if (longer)
		err = replace(seq, chain, nr);
	else if (!seq_is_blank(seq))
		err = seq_cut_to_tokens(seq, shared);
	if (err || !longer)
		pool_put(seq->tab.pool, chain, nr);
	free(chain);
	*tokens = longer ? nr * key.block_tokens : shared;
	return err;
}

/* New ids that bind a rest do not show that they are those of what was bound before. */
static int index_old_bytes(struct sequence *seq)
{
	bool paired = seq->paired || !seq->nr_cids;
	int err = seq_index(seq);

	lock_acquire(&seq->tab.lock);
	seq->paired &= paired;
	lock_release(&seq->tab.lock);
	return err;
}

int seq_match(struct sequence *seq)
{
	if (!seq->root || seq->loose)
		return 0;
	if (seq->room)
		return seq_index(seq);
	if (seq_has_own_bytes(seq))
		return index_old_bytes(seq);
	return match_new(seq);
}
