/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain file: bytes without token semantics, in the same blocks and tiers as sequences.
 *
 * Files up to PLAIN_INLINE bytes are kept inline (in the inode's record); larger ones in a table of
 * 64 KiB blocks, the last rounded up to 4 KiB when it seals. A write into a sealed or recorded block
 * makes a private open copy, which seals into a new extent when the file is persisted.
 */
#ifndef KVC_PLAINFILE_H
#define KVC_PLAINFILE_H

#include "allocator/blktab.h"

#define PLAIN_BLOCK  65536u
#define PLAIN_INLINE 512u
#define PLAIN_MAX_BYTES GIB(16384) /* as ext4 with 4 KiB blocks */

struct plainfile {
	struct pool *pool;	/* set once */
	u64 id;			/* table id, set once */
	/* inline bytes: protected by a lock of plainfile.c, valid while tab is NULL */
	u8 *inline_data;	/* min(inline_size, PLAIN_INLINE) bytes, NULL for none */
	u64 inline_size;	/* bytes, may exceed PLAIN_INLINE when truncated up: zeros beyond */
	struct blktab *tab;	/* owned; NULL while inline, then set once */
};

void plain_init(struct plainfile *pf, struct pool *pool, u64 id);
void plain_destroy(struct plainfile *pf);
u64 plain_size(struct plainfile *pf);
/** plain_table() - the file's table; NULL while inline. Once set it stays. */
struct blktab *plain_table(struct plainfile *pf);
/** plain_allocated() - bytes of blocks, for st_blocks. */
u64 plain_allocated(struct plainfile *pf);

ssize_t plain_read(struct plainfile *pf, void *buf, size_t len, u64 off);
/** plain_write() - whole or nothing. -ENOSPC, -EIO, -ENOMEM, -EFBIG. May block. */
int __must_check plain_write(struct plainfile *pf, const void *buf, size_t len, u64 off);
int __must_check plain_truncate(struct plainfile *pf, u64 size);
/** plain_fallocate() - reserve [@off, @off + @len); @keep_size as FALLOC_FL_KEEP_SIZE. */
int __must_check plain_fallocate(struct plainfile *pf, u64 off, u64 len, bool keep_size);
/**
 * plain_copy_range() - share whole sealed blocks, copy the rest. The source is sealed first.
 * Return: bytes copied (as copy_file_range), -errno. Capped below 2 GiB. May block.
 */
ssize_t plain_copy_range(struct plainfile *src, u64 src_off, struct plainfile *dst, u64 dst_off,
			 u64 len);

/**
 * plain_persist() - seal, write back and flush; then call @emit with a transaction that holds the
 * table's records so that the caller adds the inode's record, submit it, drop retired blocks.
 * @seq: to be handed to pool_commit()
 * Return: 0, -EIO, -ENOSPC. May block.
 */
int __must_check plain_persist(struct plainfile *pf, void (*emit)(void *ctx, struct meta_txn *txn),
			       void *ctx, u64 *seq);
/** plain_dirty() - does the table need plain_persist()? Inline bytes are the inode record's. */
bool plain_dirty(struct plainfile *pf);
/** plain_emit_delete() - put the removal of the table's records into @txn. */
void plain_emit_delete(struct plainfile *pf, struct meta_txn *txn);

/** plain_load_chunk() - a META_TAB_CHUNK record of this file, any order. -EUCLEAN, -ENOMEM. */
int __must_check plain_load_chunk(struct plainfile *pf, u32 chunk, const void *value, u32 bytes);
/**
 * plain_load_finish() - all records were seen: set the size, name the blocks.
 * @data: inline bytes from the inode's record; @bytes of them, 0 for a file with a table
 * Return: 0, -EUCLEAN, -ENOMEM.
 */
int __must_check plain_load_finish(struct plainfile *pf, u64 size, const void *data, u32 bytes);

#endif
