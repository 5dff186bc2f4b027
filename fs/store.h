/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store directory: superblock, data files of the NVMe tier, metadata store. Also the volatile
 * mode without one. Whoever opens a store holds a lock on its directory.
 */
#ifndef KVC_FS_STORE_H
#define KVC_FS_STORE_H

#include "fs/fs.h"
#include "fs/fs_format.h"

struct keeper;
struct media;

struct store {
	int dirfd;  /* -1: volatile; its flock is the store's */
	bool fresh; /* being made */
	struct fs_super super;
	struct media *media; /* the tiers, owned */
	struct pool *pool;   /* owned */
	struct meta *meta;   /* owned; NULL when volatile */
	struct keeper *keeper; /* owned; NULL: nothing outlives us */
	bool lessees;	     /* clients of an earlier daemon may have its memory */
	bool served;	     /* the mount was up: closing is a clean end */
};

/**
 * store_open() - lock, check or make the store, open its tiers and the pool.
 * @why: one clear line on failure. A store that does not look right is never changed.
 */
int __must_check store_open(struct store **store, const struct fs_opts *opts, struct textbuf *why);
/** store_load() - read the metadata into @fs and start the pool. */
int __must_check store_load(struct store *store, struct fs *fs, struct textbuf *why);
/** store_tick() - every now and then: who of an earlier daemon's clients is left? */
void store_tick(struct store *store);
/** store_close() - close everything; @fs is destroyed by then. Return: 0 or what failed last. */
int store_close(struct store *store);

/* ---- super.c ---- */
/** super_read() - Return: 0, -ENOENT (none), -EUCLEAN (and says why), -EIO. */
int __must_check super_read(int dirfd, struct fs_super *super, struct textbuf *why);
int __must_check super_write(int dirfd, struct fs_super *super, struct textbuf *why);

#endif
