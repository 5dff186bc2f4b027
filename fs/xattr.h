/* SPDX-License-Identifier: Apache-2.0 */
/* Stored extended attributes of an inode. Caller holds the filesystem's lock. */
#ifndef KVC_FS_XATTR_H
#define KVC_FS_XATTR_H

#include "fs/fs.h"

#define XATTR_MAX_BYTES 65536u

struct xattr *xattr_find(struct inode *inode, const char *name);
/** xattr_make() - an attribute not yet on an inode; @bytes of @value. NULL: no memory. */
struct xattr *xattr_make(const char *name, const void *value, size_t bytes);
/** xattr_put() - put @x on @inode in place of one of that name, which is returned (or NULL). */
struct xattr *xattr_put(struct inode *inode, struct xattr *x);
/** xattr_remove() - take an attribute off; the caller frees it. NULL when there was none. */
struct xattr *xattr_remove(struct inode *inode, const char *name);

#endif
