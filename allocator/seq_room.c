/* SPDX-License-Identifier: Apache-2.0 */
/* Rooms: see seq_room.h. Every function here that is not in that header is called with busy held. */
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/base/fault.h"
#include "allocator/grow.h"
#include "allocator/seq_impl.h"
#include "allocator/seq_room.h"

/* The block in which the committed tokens end, when the table and the room share it. */
static bool shared_tail(const struct sequence *seq, u32 *last)
{
	const struct seq_room *room = seq->room;

	*last = seq->T / seq->geo->block_tokens;
	if (!room || !(seq->T % seq->geo->block_tokens))
		return false;
	kvc_assert(*last >= room->first && *last < room->first + room->nr);
	return *last < seq->tab.nr_blocks &&
	       seq->tab.blocks[*last].v == room->ids[*last - room->first].v;
}

int seq_room_mark(struct sequence *seq)
{
	u32 last;
	int err;

	if (!shared_tail(seq, &last))
		return 0;
	err = written_reserve(seq->written, seq_pieces(seq) + 2);
	if (!err)
		seq_mark_tokens(seq, last, seq->T % seq->geo->block_tokens);
	return err;
}

int seq_room_settle(struct sequence *seq)
{
	struct blktab *tab = &seq->tab;
	struct block_id copy;
	u32 last;
	int err;

	if (!shared_tail(seq, &last))
		return 0;
	err = seq_room_mark(seq);
	if (!err)
		err = pool_copy(tab->pool, tab->blocks[last], tab->block_bytes, &copy);
	if (err)
		return err;
	err = blktab_set(tab, last, copy);
	if (err)
		pool_put(tab->pool, &copy, 1);
	return err;
}

int seq_room_revoke(struct sequence *seq)
{
	int err = seq_room_settle(seq);

	if (err || !seq->room)
		return err;
	seq->room->revoked = true;
	seq->room = NULL;
	return 0;
}

int seq_let_go(struct sequence *seq)
{
	int err;

	blktab_begin(&seq->tab);
	err = seq_room_revoke(seq);
	blktab_end(&seq->tab);
	return err;
}

int seq_begin_change(struct sequence *seq)
{
	blktab_begin(&seq->tab);
	if (!seq->room)
		return 0;
	blktab_end(&seq->tab);
	return kvc_err(-EBUSY, seq_room_live);
}

/* ---- reserving ---- */

static void room_drop(struct seq_room *room, u32 from, u32 nr)
{
	struct pool *pool = room->seq->tab.pool;

	pool_fill_end(pool, room->ids + from, nr);
	pool_unhold(pool, room->ids + from, nr);
	pool_put(pool, room->ids + from, nr);
}

/* Blocks that hold nothing but committed tokens are the room's no more. */
static void room_trim(struct seq_room *room)
{
	u32 nr = room->seq->T / room->seq->geo->block_tokens - room->first;

	if (!nr)
		return;
	room_drop(room, 0, nr);
	room->nr -= nr;
	room->first += nr;
	memmove(room->ids, room->ids + nr, room->nr * sizeof(*room->ids));
	memmove(room->places, room->places + nr, room->nr * sizeof(*room->places));
}

static int room_reserve(struct seq_room *room, u32 nr)
{
	u32 size = max(nr, room->max * 2);
	struct block_id *ids;
	struct pool_place *places;

	if (nr <= room->max)
		return 0;
	ids = fault_point(FAULT_MEMORY) ? NULL : reallocarray(room->ids, size, sizeof(*ids));
	if (!ids)
		return -ENOMEM;
	room->ids = ids;
	places = reallocarray(room->places, size, sizeof(*places));
	if (!places)
		return -ENOMEM;
	room->places = places;
	room->max = size;
	return 0;
}

/* The @nr blocks behind the room's, named for it, become the room's; or they lose that name. */
static int hold(struct seq_room *room, u32 nr)
{
	struct pool *pool = room->seq->tab.pool;
	struct block_id *ids = room->ids + room->nr;
	int err = pool_hold(pool, ids, nr, room->places + room->nr);

	if (!err) {
		err = pool_fill_begin(pool, ids, nr);
		if (!err) {
			room->nr += nr;
			return 0;
		}
		pool_fill_end(pool, ids, nr);
		pool_unhold(pool, ids, nr);
	}
	pool_put(pool, ids, nr);
	return err;
}

/* Add @nr new blocks of zeros; memory for the entries is there. */
static int room_grow(struct seq_room *room, u32 nr, struct block_id near)
{
	struct blktab *tab = &room->seq->tab;
	struct pool_want want = {.bytes = tab->block_bytes, .space = tab->space, .near = near};
	struct block_id *ids = room->ids + room->nr;
	int err = pool_alloc(tab->pool, &want, nr, ids);

	if (err)
		return err;
	return hold(room, nr);
}

/* Take the tail in: the table's own block, where that may be written, else a copy. */
static int room_tail(struct seq_room *room, struct block_id tail)
{
	struct pool *pool = room->seq->tab.pool;
	struct block_id *id = &room->ids[room->nr];
	int err = 0;

	*id = tail;
	if (pool_writable(pool, tail))
		pool_get(pool, id, 1);
	else
		err = pool_copy(pool, tail, room->seq->tab.block_bytes, id);
	if (err)
		return err;
	return hold(room, 1);
}

/* Blocks behind the room's that @tokens more need. */
static u32 room_lacks(const struct sequence *seq, u32 tokens, const struct seq_room *room)
{
	u32 to = seq_blocks_for(seq, seq->T + tokens);
	u32 have = room ? room->first + room->nr : seq->T / seq->geo->block_tokens;

	return to > have ? to - have : 0;
}

static int room_new(struct sequence *seq, u32 tokens, struct seq_room **out)
{
	struct seq_room *room = fault_point(FAULT_MEMORY) ? NULL : calloc(1, sizeof(*room));
	u32 nr = room_lacks(seq, tokens, NULL), tail = seq->T % seq->geo->block_tokens != 0;
	struct block_id near = BLOCK_NONE;
	int err;

	if (!room)
		return -ENOMEM;
	room->seq = seq;
	room->first = seq->T / seq->geo->block_tokens;
	err = room_reserve(room, max(nr, tail));
	if (!err && tail)
		err = room_tail(room, seq->tab.blocks[room->first]);
	if (room->nr)
		near = room->ids[0];
	else if (room->first)
		near = seq->tab.blocks[room->first - 1];
	if (!err && nr > tail)
		err = room_grow(room, nr - tail, near);
	if (err) {
		room_drop(room, 0, room->nr);
		free(room->ids);
		free(room->places);
		free(room);
		return err;
	}
	seq->room = *out = room;
	return 0;
}

static int room_more(struct seq_room *room, u32 tokens)
{
	u32 nr = room_lacks(room->seq, tokens, room);
	struct block_id near = room->nr ? room->ids[room->nr - 1] : BLOCK_NONE;
	int err;

	if (nr) {
		err = room_reserve(room, room->nr + nr);
		if (!err)
			err = room_grow(room, nr, near);
		if (err)
			return err;
	}
	room_trim(room);
	return 0;
}

int seq_room_begin(struct sequence *seq, u32 tokens, struct seq_room **room)
{
	int err;

	blktab_begin(&seq->tab);
	if (*room && (*room)->revoked)
		err = kvc_err(-ESTALE, room_revoked);
	else if (seq->room != *room)
		err = kvc_err(-EBUSY, room_taken);
	else if ((u64)seq->T + tokens > SEQ_MAX_IDS)
		err = -EFBIG;
	else
		err = *room ? room_more(*room, tokens) : room_new(seq, tokens, room);
	if (!err)
		(*room)->end = max((*room)->end, seq->T + tokens);
	blktab_end(&seq->tab);
	return err;
}

u64 seq_room_need(struct sequence *seq, u32 tokens, const struct seq_room *room)
{
	u32 nr = 0;

	lock_acquire(&seq->tab.lock);
	if ((u64)seq->T + tokens <= SEQ_MAX_IDS)
		nr = room_lacks(seq, tokens, room);
	lock_release(&seq->tab.lock);
	return nr * seq->geo->block_stride;
}

/* ---- committing ---- */

/* The room's blocks that now hold committed tokens are the table's. */
static int install(struct seq_room *room, u32 from, u32 to)
{
	struct blktab *tab = &room->seq->tab;
	int err;

	for (u32 i = from; i < to; i++) {
		struct block_id id = room->ids[i - room->first];

		if (i < tab->nr_blocks && tab->blocks[i].v == id.v)
			continue;
		pool_get(tab->pool, &id, 1);
		err = blktab_set(tab, i, id);
		if (err) {
			pool_put(tab->pool, &id, 1);
			return err;
		}
		pool_touch(tab->pool, &id, 1, seq_class(room->seq), room->seq->priority);
	}
	return 0;
}

static void settle_state(struct seq_room *room, const struct room_commit *c, u32 ids_from)
{
	struct sequence *seq = room->seq;
	u64 size = seq_bytes_for(seq, c->tokens);

	lock_acquire(&seq->tab.lock);
	seq_take_more_ids(seq, c, ids_from);
	if (size > seq->tab.size) {
		seq->tab.size = size;
		seq->tab.dirty = true;
	}
	seq->T = c->tokens;
	seq->pending_T = SEQ_NO_TOKENS;
	seq->meta_dirty = true;
	lock_release(&seq->tab.lock);
}

static int room_commit(struct seq_room *room, const struct room_commit *c)
{
	struct sequence *seq = room->seq;
	u32 bt = seq->geo->block_tokens, from;
	int err;

	if (c->tokens < seq->T || c->tokens > room->end)
		return kvc_err(-EINVAL, room_outside);
	err = seq_reserve_more_ids(seq, c, &from);
	if (!err)
		err = install(room, seq->T / bt, seq_blocks_for(seq, c->tokens));
	if (!err)
		err = seq_seal(seq, c->tokens / bt);
	if (err)
		return err;
	settle_state(room, c, from);
	return seq_index(seq);
}

int seq_room_commit(struct seq_room *room, const struct room_commit *commit)
{
	struct sequence *seq = room->seq;
	int err;

	blktab_begin(&seq->tab);
	err = room->revoked ? kvc_err(-ESTALE, room_gone) : room_commit(room, commit);
	blktab_end(&seq->tab);
	return err;
}

/* ---- the end ---- */

/*
 * The table keeps the shared tail, now its own. When there is no memory to say how far it is written,
 * the tail's tokens are given up: the client was told that they are committed, but a table that
 * contradicts itself could not be loaded.
 */
static void leave(struct sequence *seq)
{
	u32 last = seq->T / seq->geo->block_tokens;
	int err = seq_room_mark(seq);

	seq->room = NULL;
	if (!err)
		return;
	lock_acquire(&seq->tab.lock);
	seq->T = last * seq->geo->block_tokens;
	if (seq->cids && seq->nr_cids > seq->T)
		seq_dirty_cids(seq, seq->T);
	seq->nr_cids = min(seq->nr_cids, seq->T);
	seq->meta_dirty = true;
	lock_release(&seq->tab.lock);
	kvc_err(err, room_tail_lost);
}

void seq_room_end(struct seq_room *room)
{
	if (!room)
		return;
	blktab_begin(&room->seq->tab);
	if (!room->revoked)
		leave(room->seq);
	blktab_end(&room->seq->tab);
	room_drop(room, 0, room->nr);
	free(room->ids);
	free(room->places);
	free(room);
}
