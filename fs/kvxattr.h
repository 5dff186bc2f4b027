/* SPDX-License-Identifier: Apache-2.0 */
/* The attributes user.kvc.* (UAPI section 5). */
#ifndef KVC_FS_KVXATTR_H
#define KVC_FS_KVXATTR_H

#include "fs/fs.h"
#include "fs/fuse.h"

struct textbuf;

/* What the functions below answer for an attribute that is stored like any other here. */
#define KVXATTR_PLAIN 1

/** kvxattr_set() - for the caller of @req; lock not held, may block. Return: 0, -errno, KVXATTR_PLAIN. */
int __must_check kvxattr_set(fuse_req_t req, u64 ino, const char *name, const void *value,
			     size_t bytes);
/** kvxattr_get() - value into @tb; as kvxattr_set(). */
int __must_check kvxattr_get(struct fs *fs, u64 ino, const char *name, struct textbuf *tb);
/** kvxattr_removed() - a stored attribute is gone or changed: what follows from it. Lock held. */
void kvxattr_stored(struct fs *fs, struct inode *inode, const char *name);

/** seq_state_name() - "idle", "paused", "queued", "decoding". */
const char *seq_state_name(unsigned int state);
/** residency_of() - of any file or sequence; lock not held. */
struct pool_residency;
int __must_check residency_of(struct fs *fs, u64 ino, struct pool_residency *res);

#endif
