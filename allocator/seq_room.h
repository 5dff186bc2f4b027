/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Appending in place: blocks reserved behind a sequence's committed tokens, for a client that maps
 * them and fills them itself.
 *
 * A room's blocks are named and pinned by the room, and become the sequence's as tokens in them are
 * committed; until then the table does not know them. So a room that is given up, or whose owner
 * dies, leaves the sequence exactly as the last commit left it.
 *
 *   table:  [sealed]...[sealed][tail]
 *   room:                      [tail][new][new]
 *
 * The tail, the block in which committed tokens end, is in both. Its bytes may change under us at any
 * time, behind the committed tokens; so it is never written back: whoever persists the sequence, or
 * takes its bytes elsewhere, puts a private copy into the table first (seq_room_settle()), and the
 * next commit puts the shared block back. How far the shared tail is written, T says alone;
 * `written` is brought up to date when somebody asks (seq_room_mark()).
 *
 * While there is a room, everything else that would change the sequence's bytes or T gets -EBUSY,
 * but for its end (unlink, rename): that takes the room away from it, and the room's owner finds
 * its calls failing with -ESTALE. One room per sequence.
 */
#ifndef KVC_SEQ_ROOM_H
#define KVC_SEQ_ROOM_H

#include "allocator/sequence.h"

/** struct seq_room - owned by who made it; changed with the sequence's exclusion held. */
struct seq_room {
	struct pool *pool;	/* set once */
	struct sequence *seq;	/* outlives the room; NULL: seq_room_leave() */
	bool revoked;		/* the sequence has let go of it */
	u32 end;		/* tokens, from the sequence's first on, that there may be with it */
	u32 first, nr, max;	/* block number of ids[0], entries, room for entries */
	struct block_id *ids;	/* each named and held by the room */
	struct pool_place *places;
};

/**
 * seq_room_begin() - have room for @tokens beyond the committed ones.
 * @room: NULL: a new one; else the caller's, which loses what is committed and grows at its end
 * Return: 0, or with nothing changed: -EBUSY (somebody else's room), -ESTALE (revoked), -ENOSPC,
 * -EAGAIN (pins), -EFBIG, -ENOMEM, -EIO. May block.
 */
int __must_check seq_room_begin(struct sequence *seq, u32 tokens, struct seq_room **room);
/** seq_room_need() - bytes of DRAM that seq_room_begin() would pin beyond those of @room (or NULL). */
u64 seq_room_need(struct sequence *seq, u32 tokens, const struct seq_room *room);

/** struct room_commit - what is final from now on. */
struct room_commit {
	u32 tokens;	/* committed tokens */
	const u32 *ids;	/* ids of tokens behind those that have one */
	u32 nr_ids;
};
/**
 * seq_room_commit() - tokens up to @commit->tokens are filled.
 * Return: 0, -EINVAL (fewer than are committed, or beyond the room), -ESTALE (revoked), -ENOMEM,
 * -EIO. May block.
 */
int __must_check seq_room_commit(struct seq_room *room, const struct room_commit *commit);
/**
 * seq_room_leave() - the sequence has no room any more, and shares no block with it that may change: its
 * owner does not commit any more, but may still write there. The blocks stay out of use until
 * seq_room_end(), which is all that may be done with it; the sequence may go. Where there is no memory for
 * a copy of the tail, the tail's tokens are given up. May block.
 */
void seq_room_leave(struct seq_room *room);
/**
 * seq_written_commit() - as seq_room_commit(), of tokens that were written by seq_write(), without a room.
 * Return: 0, or with nothing changed: -EINVAL (fewer than are committed, or not all written), -EBUSY (a
 * client appends in place), -EFBIG, -ENOSPC, -ENOMEM, -EIO. May block.
 */
int __must_check seq_written_commit(struct sequence *seq, const struct room_commit *commit);
/** seq_room_end() - give the room back and free it; committed tokens stay. NULL is fine. May block. */
void seq_room_end(struct seq_room *room);

#endif
