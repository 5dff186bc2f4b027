/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mounted filesystem: what all of fs/ shares.
 *
 * How one read travels: ops_file.c op_read() finds the open file, enters the inode's gate shared
 * and calls reply_plain() or reply_kv() (reply.c). Resident blocks are pinned (blktab_view()) and
 * sent from the pool without a copy. Otherwise blktab_read() copies block by block: pool_pin()
 * brings a block up from NVMe, verifies its checksum and keeps it in DRAM while the bytes are
 * copied. No lock is held anywhere on that way.
 */
#ifndef KVC_FS_FS_H
#define KVC_FS_FS_H

#include <stdatomic.h>
#include "allocator/base/lock.h"
#include "allocator/meta.h"
#include "allocator/pool.h"
#include "fs/inode.h"
#include "fs/opts.h"
#include "fs/tree.h"

struct store;
struct fuse_session;

struct fs {
	struct lock lock; /* LOCK_FS_TABLE: all that follows but where said */
	struct waitq gate_wake;
	struct fs_opts *opts;	      /* set once; live ones under the lock */
	struct pool *pool;	      /* set once */
	struct store *store;	      /* set once; NULL before it is open */
	struct meta *meta;	      /* set once; NULL in volatile mode */
	struct fuse_session *session; /* set once, for invalidations */
	u64 start_ns;		      /* set once: clock_real_ns() at mount */

	struct htab inodes, names;
	struct inode *root;
	u64 next_ino[NR_KINDS];
	u64 next_seq_id;
	u32 next_space;

	/* what the tick has to write */
	struct list_head dirty_inodes; /* through inode.dirty */
	struct list_head dirty_seqs;   /* through fseq.dirty */
	struct list_head seqs;	       /* every fseq that is a directory's sequence */
	struct list_head active_seqs;  /* those told to be decoding or queued */
	u32 tick;
	struct meta_txn log; /* records of finished operations, not yet submitted */
	u64 log_seq;	     /* newest submitted sequence number */

	struct list_head files;	    /* open ones, through file.link */
	struct list_head controls;  /* open ones of .kvc, through control_file.link */
	struct list_head endpoints; /* of the programming interface (fs/rpc) */
	u64 generation;		    /* of the handle opened last; begins with the time of the mount */

	/* destroyed by the next fs_unlock(), outside the lock */
	struct list_head dead_seqs;
	struct body *dead_bodies;

	atomic_uint_fast64_t read_bytes, write_bytes; /* of blocks, by way of the mount */
};

/** fs_init() - an empty filesystem with a root directory, in memory only. */
int __must_check fs_init(struct fs *fs, struct fs_opts *opts, struct pool *pool);
/** fs_destroy() - free everything; called with no threads left. */
void fs_destroy(struct fs *fs);

void fs_lock(struct fs *fs);
/** fs_unlock() - release the lock, then free what died while it was held. */
void fs_unlock(struct fs *fs);

#endif
