/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool: all blocks and where their copies are.
 *
 * Upper layers (sequences, plain files) hold block ids and never see a tier. They ask the pool to
 * allocate, name, pin, seal, write back and index blocks; the pool moves bytes between tiers on its
 * own, by watermarks and on demand.
 *
 *   capacity: with a store the NVMe tier, else DRAM. pool_alloc() reserves it, so that neither a
 *             later seal, fsync nor demotion can run out.
 *   reading:  pool_pin() brings a block to DRAM and holds it there; pool_unpin() lets go.
 *   writing:  only OPEN blocks that were never recorded; pool_begin_write() ... pool_end_write().
 *             Everything else is copied first (pool_copy()).
 *   durable:  pool_seal() → pool_writeback() → pool_flush() → pool_submit() → pool_commit():
 *             data, then the record, then the name that the caller puts into the same transaction.
 *
 * Context: every function is thread-safe. Functions marked "may block" wait for tiers or reclaim
 * and must be called with no lock held; the others take LOCK_POOL only.
 */
#ifndef KVC_POOL_H
#define KVC_POOL_H

#include "allocator/base/compiler.h"
#include "allocator/base/list.h"
#include "allocator/block.h"

struct idgen;
struct pool;
struct tier;
struct meta;
struct meta_txn;
struct meta_key;
struct textbuf;

struct pool_opts {
	struct tier *dram;	/* owned by the caller, as the others */
	struct tier *nvme;	/* NULL: volatile, capacity is DRAM */
	unsigned int high_pct, low_pct;	/* watermarks of DRAM */
	bool write_through;	/* write.nvme=through */
};

int __must_check pool_create(struct pool **pool, const struct pool_opts *opts);
/** pool_set_meta() - the metadata store, once it is open; NULL in volatile mode. */
void pool_set_meta(struct pool *pool, struct meta *meta);
/** pool_start() - after loading: start the reclaim thread. */
int __must_check pool_start(struct pool *pool);
/**
 * pool_end() - nobody reads or writes any more, names will only go: what lies in DRAM stays as it is, for
 * the daemon after this one. May block.
 */
void pool_end(struct pool *pool);
/** pool_destroy() - stop threads, free. Copies in DRAM are lost: write back first. May block. */
void pool_destroy(struct pool *pool);

/* ---- loading at mount (before pool_start) ---- */

/* Record types of the metadata store, by owner: 1..15 pool, 16..31 tables, 32..63 fs. */
enum { META_BLOCK = 1, META_ROOT = 2 };

/** pool_load() - take one META_BLOCK or META_ROOT record. Return: 0, -EUCLEAN (says why), -ENOMEM. */
int __must_check pool_load(struct pool *pool, const struct meta_key *key, const void *value,
			   u32 bytes, struct textbuf *why);
/**
 * pool_load_ref() - a loaded table names block @id. Called after all records were seen.
 * @bytes: block size the table expects
 * Return: 0, -EUCLEAN (no such block, wrong size).
 */
int __must_check pool_load_ref(struct pool *pool, struct block_id id, u32 bytes);
/** pool_load_finish() - claim extents, build the index, free what nothing names or indexes. */
int __must_check pool_load_finish(struct pool *pool, struct textbuf *why);

/* ---- DRAM that outlives the daemon (warm.c) ---- */

/**
 * pool_warm_begin() - keep an index of what lies in DRAM, in a file beside DRAM's own. Before loading.
 * @fd: the index of the daemon before, whose slab files the dram tier was opened with; -1: begin one.
 *	The pool's from now on
 * Return: descriptor of the index in force, the pool's; or -ENOMEM: there is none, and if @fd is not -1,
 * DRAM must not be used.
 */
int __must_check pool_warm_begin(struct pool *pool, int fd);

/** struct pool_warm_stats - what the daemon before left. */
struct pool_warm_stats {
	u64 blocks, bytes;		/* in DRAM again */
	u64 refused;			/* whose bytes were not what their record says */
	u64 held_blocks, held_bytes;	/* memory that its clients still map; those bytes have no block */
};
/**
 * pool_warm_load() - blocks whose bytes the index finds in DRAM have them there again, if they are what
 * their records say. What clients of the daemon before may map stays as it is until
 * pool_warm_release(). After pool_load_finish(), before pool_start(). May block.
 * Return: 0, or -ENOMEM, -errno of tier_renew(): then DRAM must not be used.
 */
int __must_check pool_warm_load(struct pool *pool, struct pool_warm_stats *stats);
/** pool_warm_release() - clients of the daemon before are gone, or use what we gave them. */
void pool_warm_release(struct pool *pool);
/** pool_warm_leave() - what clients map from here on is theirs with the daemon after us too, though we let go. */
void pool_warm_leave(struct pool *pool);

/* ---- names ---- */

/** struct pool_want - what kind of blocks to allocate. */
struct pool_want {
	u32 bytes;	/* payload of each */
	u32 space;	/* namespace id, or 0 (plain) */
	struct block_id near;	/* block behind which they should lie, or BLOCK_NONE */
};

/**
 * pool_alloc() - @nr new open blocks, each with one name (ref 1), EMPTY, room reserved.
 * Return: 0 (all of @ids filled) or, with nothing allocated, -ENOSPC, -ENOMEM. May block (reclaim).
 */
int __must_check pool_alloc(struct pool *pool, const struct pool_want *want, unsigned int nr,
			    struct block_id *ids);

/** pool_get() - one more name for each block; BLOCK_NONE entries are skipped. */
void pool_get(struct pool *pool, const struct block_id *ids, unsigned int nr);
/**
 * pool_put() - drop one name of each; BLOCK_NONE entries are skipped. At ref 0 an indexed block
 * stays cached, any other is freed. A recorded block's record is removed with the next
 * pool_submit(), and its extent is reused only after that is durable: so put the old blocks of a
 * table after the table's new record was submitted.
 */
void pool_put(struct pool *pool, const struct block_id *ids, unsigned int nr);

/* ---- bytes ---- */

/**
 * pool_pin() - bring the block to DRAM and keep it there.
 * @addr: its bytes (read only), NULL when it is EMPTY (reads as zeros)
 * Return: 0, -EIO (checksum or device; counted), -ENOMEM (DRAM full of pinned blocks). May block.
 * Pin one block at a time (or use pool_try_pin()): whoever waits here must hold no other pin.
 */
int __must_check pool_pin(struct pool *pool, struct block_id id, const void **addr);
/** pool_try_pin() - pin all of @ids if all are resident or EMPTY; never blocks. Return: success. */
bool pool_try_pin(struct pool *pool, const struct block_id *ids, unsigned int nr,
		  const void **addrs);
void pool_unpin(struct pool *pool, const struct block_id *ids, unsigned int nr);

/**
 * pool_begin_write() - pin an open, never recorded block for writing. Only the caller's table names it,
 * but for readers in passing; waits for their pins, so the caller must have none on it.
 * @addr: its bytes; EMPTY blocks get zeroed memory
 * @whole: the caller overwrites all of it (no zeroing, no load)
 * Return: 0, -ENOMEM, -EIO. May block.
 */
int __must_check pool_begin_write(struct pool *pool, struct block_id id, bool whole, void **addr);
void pool_end_write(struct pool *pool, struct block_id id);

/** pool_writable() - may it be written in place: open, not recorded, ref 1? */
bool pool_writable(struct pool *pool, struct block_id id);
bool pool_sealed(struct pool *pool, struct block_id id);
/** pool_bytes() - payload size of a block. */
u32 pool_bytes(struct pool *pool, struct block_id id);

/**
 * pool_copy() - a new open block of @bytes with the first min(bytes, source's) bytes of @src, rest
 * zeros. Return: 0, -ENOSPC, -EIO, -ENOMEM. May block.
 */
int __must_check pool_copy(struct pool *pool, struct block_id src, u32 bytes, struct block_id *dst);

/**
 * pool_same_bytes() - compare two sealed blocks, checksums first, then the bytes.
 * Return: 1 equal, 0 not, -EIO. May block.
 */
int __must_check pool_same_bytes(struct pool *pool, struct block_id a, struct block_id b);

/** pool_prefetch() - start bringing @ids to DRAM in this order as far as room allows; no wait. */
void pool_prefetch(struct pool *pool, const struct block_id *ids, unsigned int nr);
/**
 * struct pool_load - a prefetch whose end somebody wants to hear of. Its memory is the caller's, who
 * keeps it until @done has been called.
 */
struct pool_load {
	u64 deadline_ns; /* CLOCK_MONOTONIC; 0: none. Earlier ones go first */
	/*
	 * Called once, with no lock held, by any thread. @err: 0 (each block was seen in DRAM, or is gone),
	 * -EIO (one could not be read), -ENOMEM (no room for one), -ECANCELED.
	 */
	void (*done)(struct pool_load *load, int err);

	/* the pool's own; protected by its lock */
	struct list_head link;
	struct idgen *blocks;	/* owned */
	u64 order_ns;
	u64 late_ns;		/* from then on it is as urgent as what readers wait for */
	u32 nr, next;		/* blocks[next] is looked at next */
	u32 again;		/* the first that somebody else was moving; nr: none */
	u32 threads;		/* at it */
	bool ended;
	int err;
};
/**
 * pool_load_begin() - bring @ids to DRAM, in this order. The caller names them until this returns.
 * Return: 0 (@done was called, or will be), -ENOMEM, -EAGAIN (too much is under way). May block.
 */
int __must_check pool_load_begin(struct pool *pool, struct pool_load *load,
				 const struct block_id *ids, unsigned int nr);
/** pool_load_cancel() - end it. When this returns, so has @done. May block. */
void pool_load_cancel(struct pool *pool, struct pool_load *load);
/**
 * pool_fetch() - bring @ids to DRAM in one transfer and wait, for those under way already too, as far
 * as there is room without reclaim. The caller names them.
 * Best effort: whoever needs a block pins it then, and is told there what went wrong. May block.
 */
void pool_fetch(struct pool *pool, const struct block_id *ids, unsigned int nr);
/** pool_demote() - write back and drop the DRAM copies of @ids that nothing pins. May block. */
int __must_check pool_demote(struct pool *pool, const struct block_id *ids, unsigned int nr);

/** pool_touch() - used now by a sequence of class @class and @priority (0..100). */
void pool_touch(struct pool *pool, const struct block_id *ids, unsigned int nr,
		enum block_class class, u8 priority);

/**
 * pool_unkeep() - the named pin (CLASS_PINNED) of @ids is over. Another pinned sequence that shares
 * some of them touches its blocks again to keep them.
 */
void pool_unkeep(struct pool *pool, const struct block_id *ids, unsigned int nr);

/* ---- mappings: DRAM that clients map themselves (pool_map.c) ---- */

/*
 * DRAM consists of pool files. Each belongs to one trust domain: namespaces of one owner with the same
 * permissions, whose memory the same clients may see. A client maps whole files; where a block lies in one, pool_hold()
 * says, and until pool_unhold() it stays there.
 *
 * A file keeps its number and its domain for life. When its memory is needed for another domain, the
 * file is gone: that memory is then another file with a new number, and who still maps the old one
 * sees zeros. No held block is ever in a file that goes.
 */

/** struct pool_place - where a block's bytes are. */
struct pool_place {
	u32 file;
	u64 off;	/* bytes in that file */
};

/**
 * pool_hold() - bring all of @ids to DRAM and pin them for a mapping; EMPTY ones get zeros.
 * The caller names them, at least until this returns; from then on the pins suffice.
 * @places: @nr results
 * Return: 0, or with nothing pinned: -EAGAIN (mappings would have more than 80 % of DRAM, or the
 * namespace changed its owner and somebody still reads there), -EIO, -ENOMEM, -EOPNOTSUPP (a block that
 * does not lie in one file: it is larger, or DRAM is very small). May block.
 */
int __must_check pool_hold(struct pool *pool, const struct block_id *ids, unsigned int nr,
			   struct pool_place *places);
/** pool_try_hold() - the same for blocks that are all resident; never blocks. -EAGAIN: they are not. */
int __must_check pool_try_hold(struct pool *pool, const struct block_id *ids, unsigned int nr,
			       struct pool_place *places);
/** pool_unhold() - give pins of pool_hold() back, whole or in part. */
void pool_unhold(struct pool *pool, const struct block_id *ids, unsigned int nr);
/**
 * pool_fill_begin() - clients write to these open, held blocks from now on, at any time: they have no
 * copy in NVMe any more and are not written back. Sealing ends it, or pool_fill_end(). Until that, one
 * name of each is the client's, which pool_residency() does not count. May block.
 */
int __must_check pool_fill_begin(struct pool *pool, const struct block_id *ids, unsigned int nr);
void pool_fill_end(struct pool *pool, const struct block_id *ids, unsigned int nr);
/** pool_block_limit() - the largest block that DRAM can hold next to others. */
u64 pool_block_limit(struct pool *pool);
/** pool_hold_limit() - bytes of DRAM that mappings may pin in all. */
u64 pool_hold_limit(struct pool *pool);

/** pool_nr_files() - file numbers given so far, from 0; those of files that are gone included. */
unsigned int pool_nr_files(struct pool *pool);
/** pool_file_bytes() - size of every pool file. */
u64 pool_file_bytes(struct pool *pool);
/** pool_file_domain() - whose @file is; 0: it is gone, or no namespace's. */
u32 pool_file_domain(struct pool *pool, unsigned int file);
/** pool_space_domain() - trust domain of namespace @space; 0 (never given to clients): it has no owner. */
u32 pool_space_domain(struct pool *pool, u32 space);
/** struct pool_owner - of a namespace's directory. Namespaces that agree in it are one trust domain. */
struct pool_owner {
	u32 uid, gid;
	u32 mode;	/* permission bits */
};
/**
 * pool_set_space_owner() - a namespace was made, loaded, or given to another owner.
 * Return: 0, -ENOMEM, -ENOSPC (too many owners): then it has none.
 */
int __must_check pool_set_space_owner(struct pool *pool, u32 space, const struct pool_owner *owner);
/**
 * pool_bring_home() - after a namespace changed its owner: move its blocks out of the memory that others
 * may see. What is pinned stays where it is, until it is held again or leaves DRAM. May block.
 */
void pool_bring_home(struct pool *pool, u32 space);
/**
 * pool_file_fd() - a new descriptor of @file, the caller's to close; a read-only one cannot be
 * mapped for writing, nor be opened for it by another uid.
 * Return: descriptor, -ENOENT (gone, or no namespace's), -EOPNOTSUPP (DRAM is not in files), -errno.
 * May block.
 */
int __must_check pool_file_fd(struct pool *pool, unsigned int file, bool writable);

/* ---- sealing and durability ---- */

/** pool_seal() - make @ids immutable and checksummed; sealed ones are skipped. -EIO, -ENOMEM. May block. */
int __must_check pool_seal(struct pool *pool, const struct block_id *ids, unsigned int nr);
/**
 * pool_writeback() - every block gets a valid copy in NVMe, EMPTY ones zeros (no-op in volatile mode).
 * Return: 0, -EIO (also for a damaged block), -ENOMEM. May block.
 */
int __must_check pool_writeback(struct pool *pool, const struct block_id *ids, unsigned int nr);
/** pool_flush() - fdatasync of the NVMe tier; concurrent callers share one. May block. */
int __must_check pool_flush(struct pool *pool);
/**
 * pool_submit() - submit the removals and renewals that are due, the BLOCK records that @ids still
 * lack (all written back and flushed), then @txn.
 * @txn: may be NULL; emptied on success, else as it was
 * Return: 0 and @seq, -ENOSPC, -ENOMEM, -EIO (store has stopped, or a block has no bytes). Volatile mode: 0, nothing done but freeing.
 */
int __must_check pool_submit(struct pool *pool, const struct block_id *ids, unsigned int nr,
			     struct meta_txn *txn, u64 *seq);
/** pool_commit() - wait until @seq is durable. May block. */
int __must_check pool_commit(struct pool *pool, u64 seq);
/** pool_tick() - commit interval: record cached blocks that were written back, removals. May block. */
int pool_tick(struct pool *pool);
/** pool_save_cached() - before a clean end: write back cached blocks that DRAM alone has. May block. */
int __must_check pool_save_cached(struct pool *pool);
/** pool_meta_durable() - the metadata store's durable callback: frees what waited for @seq. */
void pool_meta_durable(void *pool, u64 seq);

/* ---- prefix index (prefix.c) ---- */

/** pool_root() - id of the chain root for namespace @space under @salt; made when new. */
int __must_check pool_root(struct pool *pool, u32 space, const void *salt, u32 salt_bytes,
			   u32 *root);

/** struct prefix_key - token ids under a root, in blocks of block_tokens. */
struct prefix_key {
	u32 root;
	u32 block_tokens;
	const u32 *ids;
	u32 nr_ids;	/* only whole blocks match */
};

/**
 * prefix_match() - longest chain of indexed blocks for @key.
 * @out: result array of nr_ids / block_tokens entries, or NULL to count only
 * @take: name (ref) and touch each matched block for the caller. A lookup without @take pins and
 *	renews nothing.
 * Return: number of blocks matched (with @take fewer where room cannot be reserved).
 */
unsigned int prefix_match(struct pool *pool, const struct prefix_key *key, struct block_id *out,
			  bool take);

/**
 * prefix_insert() - index sealed block @id under @parent (BLOCK_NONE: the root).
 * @key: root and exactly the block_tokens ids of this block
 * @found: the block that the index holds for this chain now: @id itself, or the one that was
 *	there first (kept; then named for the caller, who drops it with pool_put() or keeps it)
 * Return: 0, -ENOMEM. No-op when @id is indexed at this very place already; -EEXIST when @id is
 * indexed elsewhere (other ids) or @parent is not indexed, -EINVAL when @id is not sealed or the root
 * unknown: which leave all as it is.
 */
int __must_check prefix_insert(struct pool *pool, const struct prefix_key *key,
			       struct block_id parent, struct block_id id, struct block_id *found);
/** prefix_drop_space() - forget every indexed block of a namespace that goes; unnamed are freed. */
void prefix_drop_space(struct pool *pool, u32 space);

/* ---- state ---- */

/** struct pool_residency - of a list of blocks, in blocks. */
struct pool_residency {
	u32 nr, dram, nvme, lossy, shared;	/* shared: by another file's name */
	u64 exclusive_bytes;			/* bytes that freeing the list would give back */
	u64 bytes;				/* allocated, st_blocks' sense */
};
void pool_residency(struct pool *pool, const struct block_id *ids, unsigned int nr,
		    struct pool_residency *res);

struct pool_tier_stats {
	u64 size, used, pinned, blocks, cached_bytes;	/* bytes but for blocks */
};
struct pool_stats {
	struct pool_tier_stats tier[NR_BLOCK_TIERS];
	u64 capacity, named_bytes, free_bytes;	/* what statfs says: free counts cached as free */
	u64 blocks, cached_blocks, indexed_blocks;
	u64 hit_tokens, lookup_tokens, stall_us;
	u64 first_reads_resident, first_reads_cold;	/* pins that found / loaded the bytes */
	u64 restored, evicted_dram, evicted_nvme, demoted, promoted, moved, checksum_errors;
};
void pool_get_stats(struct pool *pool, struct pool_stats *stats);
/**
 * pool_drop_cached() - empty the unnamed prefix cache. @space: 0 all. @tier: NR_BLOCK_TIERS all.
 * May block.
 */
void pool_drop_cached(struct pool *pool, u32 space, enum block_tier tier, u64 *blocks, u64 *bytes);
void pool_set_watermarks(struct pool *pool, unsigned int high_pct, unsigned int low_pct);
void pool_block_to_text(struct pool *pool, struct block_id id, struct textbuf *tb);
/** pool_check() - assert every invariant of block.h over all blocks (debug, tests). */
void pool_check(struct pool *pool);

#endif
