/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metadata store: a transactional map from keys to small records, kept in a journal and a
 * checkpoint next to the data files.
 *
 * Memory elsewhere holds the working copy of all metadata; this store is written in operation and
 * read once, at mount. Its index keeps only where the latest record of each key lies on disk (about
 * 32 bytes a key), so that a checkpoint copies live records from file to file, checksums verified,
 * without touching the working copy or its locks: what it writes is exactly what was committed.
 *
 *   submit ──► group in memory ──► frame(s) in the journal: pwrite, fdatasync ──► seal slot ──► ack
 *   journal long enough ──► checkpoint.G+1 (live records) ──► fdatasync, rename, dirsync ──► journal.G+1
 *
 * What must hold (asserted or tested):
 *  - a transaction is all there or not at all after any crash; transactions come back in order;
 *  - an acknowledged transaction (meta_commit() said 0) is never lost: two alternating seal slots
 *    remember the acknowledged sequence number, written before the acknowledgement, so that a
 *    journal that ends earlier is an error (-EUCLEAN) and not a torn tail;
 *  - every byte read back is covered by a checksum (header and payload apart); generation and
 *    consecutive sequence numbers find stale, repeated and missing frames; a flipped bit anywhere in
 *    live bytes is an error with a message, never a wrong record and never a crash;
 *  - space for frames is preallocated ahead: -ENOSPC comes before anything is written;
 *  - any write or sync error stops the store for good (fail-stop): later calls give -EIO;
 *  - the previous checkpoint and its journal stay until the new one is proven (read back).
 *
 * Context: thread-safe. meta_submit() never waits for I/O; meta_commit() and meta_close() do and are
 * called with no lock held. Lock rank: LOCK_STORE.
 */
#ifndef KVC_META_H
#define KVC_META_H

#include <sys/uio.h>
#include "allocator/base/compiler.h"

#define META_MAX_RECORD MIB(2)	/* bytes of one record's value */

struct meta;
struct textbuf;

/** struct meta_key - what a record is about; @type is the caller's (1..255). */
struct meta_key {
	u64 id;
	u32 sub;
	u8 type;
};

/** meta_load_fn - called at open for each live record, in no particular order; !0 stops the open. */
typedef int (*meta_load_fn)(void *ctx, const struct meta_key *key, const void *value, u32 bytes);

struct meta_opts {
	bool create;		/* make an empty store when there is none; else -ENOENT */
	u64 checkpoint_bytes;	/* journal length that starts a checkpoint; 0: default 64 MiB, also
				 * paced by live size: never before the journal is half of it */
	/* called from the commit thread, no lock held, after everything up to @seq is durable */
	void (*durable)(void *ctx, u64 seq);
	void *ctx;
};

/** struct meta_loader - who gets the live records while a store is opened; fn NULL: nobody. */
struct meta_loader {
	meta_load_fn fn;
	void *ctx;
};

/**
 * meta_open() - open or create the store in directory @dirfd and load it.
 * @loader: gets every live record
 * @why: gets one clear line when the open fails (file, offset, what was wrong, what to do)
 * Return: 0, -ENOENT, -EUCLEAN (damaged: nothing was changed on disk), -ENOSPC, -EIO, -ENOMEM, or
 * what @loader returned.
 */
int __must_check meta_open(struct meta **meta, int dirfd, const struct meta_opts *opts,
			   const struct meta_loader *loader, struct textbuf *why);
/** meta_close() - commit what was submitted, write a checkpoint when worth it, close. */
int meta_close(struct meta *meta);

/** struct meta_txn - records that become durable together. Built by one thread, without locks. */
struct meta_txn {
	u8 *buf;
	size_t len, size;	/* bytes */
	u32 nr_records;
	int err;		/* latched -ENOMEM or -E2BIG, told by meta_submit() */
};

#define META_TXN_INIT ((struct meta_txn){0})

void meta_txn_put(struct meta_txn *txn, struct meta_key key, const void *value, u32 bytes);
/** meta_txn_putv() - as meta_txn_put(), value in @nr parts. */
void meta_txn_putv(struct meta_txn *txn, struct meta_key key, const struct iovec *parts,
		   unsigned int nr);
/** meta_txn_del() - remove a key; removing one that does not exist is no error. */
void meta_txn_del(struct meta_txn *txn, struct meta_key key);
void meta_txn_free(struct meta_txn *txn);

/**
 * meta_submit() - append @txn to the open group. Order of submits is order on disk.
 * @txn: emptied (ready for use again) on success
 * @seq: number to hand to meta_commit(); may be NULL
 * Return: 0, the txn's latched error, -ENOSPC (nothing was taken), -EIO (store has stopped).
 */
int __must_check meta_submit(struct meta *meta, struct meta_txn *txn, u64 *seq);

/** meta_commit() - wait until everything up to @seq is durable; starts the group's write. */
int __must_check meta_commit(struct meta *meta, u64 seq);
/** meta_kick() - start writing the open group without waiting. */
void meta_kick(struct meta *meta);
/** meta_durable_seq() - newest durable sequence number. */
u64 meta_durable_seq(struct meta *meta);
/** meta_checkpoint() - write a checkpoint now and wait for it (tests, clean shutdown). */
int __must_check meta_checkpoint(struct meta *meta);

struct meta_stats {
	u64 keys, live_bytes, journal_bytes, written_bytes, commits, groups, checkpoints;
};
void meta_get_stats(struct meta *meta, struct meta_stats *stats);

#endif
