/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From memory to the metadata store and back.
 *
 * Names and attributes: an operation changes memory under the lock, puts the records of the inodes
 * it touched into the filesystem's log (log_inode(), log_gone()) and submits it (log_submit())
 * before it releases the lock, so that the order on disk is the order in memory. A submit that
 * fails keeps its records for the next one: from then on operations that add something are refused
 * (log_ready()), and nothing is lost once there is room again.
 *
 * Bytes: persist_inode() writes a body or a sequence back and submits its records with the inode's.
 * Until then records say what the last such submit said (struct saved_body).
 */
#ifndef KVC_FS_PERSIST_H
#define KVC_FS_PERSIST_H

#include "fs/fseq.h"

/** log_ready() - may an operation add something? 0, -ENOSPC, -EIO. Caller holds the lock, as below.
 */
int __must_check log_ready(struct fs *fs);
/** log_inode() - @inode's record as it is now. */
void log_inode(struct fs *fs, struct inode *inode);
/** log_gone() - @inode has lost its last name: remove its records, its bytes' and its sequence's.
 */
void log_gone(struct fs *fs, struct inode *inode);
/** log_fseq_gone() - remove the records of a sequence that nothing names. */
void log_fseq_gone(struct fs *fs, struct fseq *fseq);
/** log_counters() - a namespace number was taken. */
void log_counters(struct fs *fs);
int log_submit(struct fs *fs);

/** inode_dirty_body() - call before a body changes: keep what the record says, mark it dirty. */
int __must_check inode_dirty_body(struct fs *fs, struct inode *inode);
/** inode_dirty_atime() - only the record is stale, and not urgently. */
void inode_dirty_atime(struct fs *fs, struct inode *inode);

/** persist_body() - gate of @inode taken alone, lock not held. @seq for pool_commit(). May block.
 */
int __must_check persist_body(struct fs *fs, struct inode *inode, u64 *seq);
/** persist_fseq() - gate of one of its inodes taken, lock not held. May block. */
int __must_check persist_fseq(struct fs *fs, struct fseq *fseq, u64 *seq);

/** persist_tick() - write what is dirty when it is called, make all records durable. May block. */
int persist_tick(struct fs *fs);
/** persist_make_room() - what retired blocks hold is free afterwards; called after -ENOSPC. */
void persist_make_room(struct fs *fs);

/* ---- load.c ---- */

struct loader;
struct loader *loader_new(struct fs *fs);
/** loader_record() - take one record (meta_load_fn; ctx: the loader). */
int loader_record(void *loader, const struct meta_key *key, const void *value, u32 bytes);
/** loader_finish() - all records were seen: check, link, name blocks. */
int __must_check loader_finish(struct loader *loader, struct textbuf *why);
void loader_free(struct loader *loader);
/** loader_why() - where loader_record() says what was wrong. */
struct textbuf *loader_why(struct loader *loader);

/* ---- record.c ---- */
void record_put(struct fs *fs, struct meta_txn *txn, struct inode *inode);
/** record_bytes() - size of @inode's record, to be kept below FS_MAX_INODE_RECORD. */
size_t record_bytes(const struct inode *inode);

#endif
