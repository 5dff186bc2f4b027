/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block table: a file's bytes as an ordered list of blocks. Sequences and plain files are built on
 * it; it knows block size, holes, open and sealed, copy on write, and how to persist itself, but
 * neither tokens nor names.
 *
 * Locking. Two things protect a table:
 *  - `lock` (LOCK_FS_INODE), short, guards the fields;
 *  - `busy`, a sleeping exclusion for operations that change the table and may wait for tiers in
 *    between (write, truncate, commit, persist, copy into it). It is not a lock: readers and stat
 *    never wait for it. blktab_begin() / blktab_end(). Who holds it may read the fields without the
 *    lock, since nobody else changes them.
 *
 * Persistence. The durable state of a table is what its last submitted records say. Blocks that the
 * table has dropped since are *retired*: they keep their name until the new records are submitted, so
 * that a crash finds the old state whole; `recorded` tells which ones that concerns. Dirty entries
 * form one range [dirty_from, dirty_to).
 */
#ifndef KVC_BLKTAB_H
#define KVC_BLKTAB_H

#include <sys/uio.h>
#include "allocator/base/lock.h"
#include "allocator/pool.h"

struct meta_txn;

struct blktab {
	struct pool *pool;	/* set once */
	u64 id;			/* key of its records, unique in the store, set once */
	u32 space;		/* namespace id, 0 plain; set once */
	u32 block_bytes;	/* of every block but perhaps a plain file's last; set once */
	struct lock lock;
	bool busy;		/* protected by a lock of blktab.c */
	/* protected by lock */
	bool unnamed;		/* loaded, and its blocks not named yet */
	struct block_id *blocks;
	u64 *recorded;		/* a bit per entry: the durable record names blocks[i]; max_blocks bits */
	u32 nr_blocks, max_blocks;
	u32 nr_real;		/* entries that are not holes */
	u64 size;		/* bytes: end of the highest byte written, attached or truncated up */
	struct block_id *retired;
	u32 nr_retired, max_retired;
	u32 dirty_from, dirty_to;	/* block entries whose records are stale; from >= to: none */
	u32 recorded_chunks;		/* chunk records that exist in the store */
	bool dirty;			/* size or anything else needs a record */
	u32 seq_hint;	/* next block that a sequential reader would want (read-ahead) */
	u32 ahead;	/* blocks before this one were asked for on its behalf */
};

int __must_check blktab_init(struct blktab *tab, struct pool *pool, u64 id, u32 space,
			     u32 block_bytes);
/** blktab_destroy() - drop all names. Records are not touched: see blktab_emit_delete(). */
void blktab_destroy(struct blktab *tab);

/** blktab_begin() - wait for and take the exclusion; no lock held. */
void blktab_begin(struct blktab *tab);
void blktab_end(struct blktab *tab);
/** blktab_begin2() - both, in an order that cannot deadlock; they may be the same. */
void blktab_begin2(struct blktab *a, struct blktab *b);
void blktab_end2(struct blktab *a, struct blktab *b);

/**
 * blktab_read() - copy [@off, @off + @len) to @buf; holes and EMPTY blocks are zeros; stops at size.
 * Return: bytes, -EIO. May block.
 */
ssize_t blktab_read(struct blktab *tab, void *buf, size_t len, u64 off);

/**
 * struct blktab_view - resident bytes of a range, pinned, as an iovec for a reply without a copy.
 */
struct blktab_view {
	struct block_id ids[64];
	struct iovec iov[64];
	unsigned int nr;	/* entries of iov */
	unsigned int nr_ids;	/* pinned blocks */
	size_t bytes;
};
/**
 * blktab_view() - pin a range that is wholly resident. Return: false when it is not (use
 * blktab_read()) or takes more than 64 pieces. Never blocks.
 */
bool blktab_view(struct blktab *tab, size_t len, u64 off, struct blktab_view *view);
void blktab_view_put(struct blktab *tab, struct blktab_view *view);
/** blktab_fetch() - bring a range to DRAM as far as there is room, in one go: then try blktab_view()
 * again. Errors show when it is read. May block. */
void blktab_fetch(struct blktab *tab, size_t len, u64 off);
/** blktab_resident() - is all of [@off, @off + @len) in DRAM (or zeros)? O_NONBLOCK reads ask. */
bool blktab_resident(struct blktab *tab, size_t len, u64 off);

/**
 * blktab_write() - write whole or not at all, copying sealed, shared or recorded blocks first.
 * Caller holds busy. Return: 0, -ENOSPC, -EIO, -ENOMEM, -EFBIG. May block.
 */
int __must_check blktab_write(struct blktab *tab, const void *buf, size_t len, u64 off);
/** blktab_cut() - drop blocks from @nr_blocks on (retire them) and set size. Caller holds busy. */
int __must_check blktab_cut(struct blktab *tab, u32 nr_blocks, u64 size);
/** blktab_set() - entry @index becomes @id (name taken over from the caller), the old is retired. */
int __must_check blktab_set(struct blktab *tab, u32 index, struct block_id id);
/** blktab_set_range() - as blktab_set() for @nr entries from @index on; whole or nothing. */
int __must_check blktab_set_range(struct blktab *tab, u32 index, u32 nr,
				  const struct block_id *ids);
/**
 * blktab_reserve() - make the next calls that change up to @nr_blocks entries in all, and drop up to
 * @nr_retire, unable to fail for memory. Caller holds busy.
 */
int __must_check blktab_reserve(struct blktab *tab, u32 nr_blocks, u32 nr_retire);
/** blktab_fill() - put empty blocks (reserved room) where entries [@from, @to) have none. Busy. */
int __must_check blktab_fill(struct blktab *tab, u32 from, u32 to);
/** blktab_zero_from() - bytes from @off to the end of its block become zeros. Busy. May block. */
int __must_check blktab_zero_from(struct blktab *tab, u64 off);
/** blktab_set_size() - set size alone. Caller holds busy. */
void blktab_set_size(struct blktab *tab, u64 size);
/** blktab_mark() - entries [@from, @to) need a new record. Caller holds busy. */
void blktab_mark(struct blktab *tab, u32 from, u32 to);
/** blktab_snapshot() - copy entries [@from, @from + @nr) out, each named for the caller. */
void blktab_snapshot(struct blktab *tab, u32 from, u32 nr, struct block_id *out);

/* Records: chunks of 512 entries. */
enum { META_TAB_CHUNK = 16 };
#define BLKTAB_CHUNK 512

/** blktab_emit() - put the records of changed entries into @txn. Caller holds busy. */
void blktab_emit(struct blktab *tab, struct meta_txn *txn);
/** blktab_emitted() - @txn was submitted: entries are clean, retired names are dropped. */
void blktab_emitted(struct blktab *tab);
/** blktab_emit_delete() - put the removal of all its records into @txn. */
void blktab_emit_delete(struct blktab *tab, struct meta_txn *txn);
/**
 * blktab_dirty_blocks() - the blocks of the dirty range, without holes: what must be written back
 * and go to pool_submit() with the records. Caller holds busy and frees @ids.
 */
int __must_check blktab_dirty_blocks(struct blktab *tab, struct block_id **ids, u32 *nr);
/** blktab_load_chunk() - a record seen at mount, any order. Return: 0, -EUCLEAN, -ENOMEM. */
int __must_check blktab_load_chunk(struct blktab *tab, u32 chunk, const void *value, u32 bytes);
/**
 * blktab_load_names() - all records were seen: name every block.
 * @any_tail: the last block may be any multiple of 4096 up to block_bytes
 * Return: 0, -EUCLEAN (the table is empty then).
 */
int __must_check blktab_load_names(struct blktab *tab, bool any_tail);

#endif
