/* SPDX-License-Identifier: Apache-2.0 */
/* Extended attributes: user.kvc.* through kvxattr.c, all others stored as given. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>
#include "allocator/base/textbuf.h"
#include "fs/control.h"
#include "fs/fs_format.h"
#include "fs/kvxattr.h"
#include "fs/ops.h"
#include "fs/xattr.h"

#define KVXATTR_PREFIX "user.kvc."

/* POSIX ACLs (system.*) would need the kernel's help to be enforced: refused, not pretended. */
static bool storable(const char *name)
{
	return !strncmp(name, "user.", 5) || !strncmp(name, "trusted.", 8) ||
	       !strncmp(name, "security.", 9);
}

static bool is_kvxattr(const char *name)
{
	return !strncmp(name, KVXATTR_PREFIX, strlen(KVXATTR_PREFIX));
}

/* Lock held. */
static int store_locked(struct fs *fs, struct inode *inode, struct xattr **x, int flags)
{
	struct xattr *old = xattr_find(inode, (*x)->data);
	int err = log_ready(fs);

	if (err)
		return err;
	if (old && flags & XATTR_CREATE)
		return -EEXIST;
	if (!old && flags & XATTR_REPLACE)
		return -ENODATA;
	if (record_bytes(inode) + (*x)->bytes + (*x)->name_len > FS_MAX_INODE_RECORD)
		return -ENOSPC;
	*x = xattr_put(inode, *x);
	inode_touch_ctime(inode);
	log_inode(fs, inode);
	return log_submit(fs);
}

static int store(struct fs *fs, u64 ino, struct xattr *x, int flags)
{
	struct inode *inode;
	char name[256];
	int err;

	snprintf(name, sizeof(name), "%s", x->data);
	fs_lock(fs);
	inode = inode_find(fs, ino);
	err = inode ? store_locked(fs, inode, &x, flags) : -ESTALE;
	if (!err)
		kvxattr_stored(fs, inode, name);
	fs_unlock(fs);
	free(x);
	return err;
}

void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size,
		 int flags)
{
	struct fs *fs = fs_of(req);
	struct xattr *x;
	int ret = KVXATTR_PLAIN;

	if (control_owns(ino))
		ret = -EPERM;
	else if (!storable(name))
		ret = -EOPNOTSUPP;
	else if (size > XATTR_MAX_BYTES)
		ret = -E2BIG;
	else if (strlen(name) > NAME_MAX_BYTES)
		ret = -ERANGE;
	else if (is_kvxattr(name))
		ret = kvxattr_set(req, ino, name, value, size);
	if (ret == KVXATTR_PLAIN) {
		x = xattr_make(name, value, size);
		ret = x ? store(fs, ino, x, flags) : -ENOMEM;
	}
	fuse_reply_err(req, -ret);
}

/* As getxattr(2) wants it: size asked for, too small, or the value. */
static void reply_value(fuse_req_t req, const void *value, size_t bytes, size_t size)
{
	if (!size)
		fuse_reply_xattr(req, bytes);
	else if (bytes > size)
		fuse_reply_err(req, ERANGE);
	else
		fuse_reply_buf(req, value, bytes);
}

static int stored_value(struct fs *fs, u64 ino, const char *name, struct textbuf *tb)
{
	struct inode *inode;
	struct xattr *x;
	int err = 0;

	fs_lock(fs);
	inode = inode_find(fs, ino);
	x = inode ? xattr_find(inode, name) : NULL;
	if (!inode)
		err = -ESTALE;
	else if (!x || x->hidden)
		err = -ENODATA;
	else
		textbuf_add(tb, xattr_value(x), x->bytes);
	fs_unlock(fs);
	return err;
}

void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	struct fs *fs = fs_of(req);
	struct textbuf tb = TEXTBUF_INIT;
	int ret = KVXATTR_PLAIN;

	if (control_owns(ino))
		ret = -ENODATA;
	else if (!storable(name))
		ret = -EOPNOTSUPP;
	else if (is_kvxattr(name))
		ret = kvxattr_get(fs, ino, name, &tb);
	if (ret == KVXATTR_PLAIN)
		ret = stored_value(fs, ino, name, &tb);
	if (!ret)
		ret = tb.err;
	if (ret)
		fuse_reply_err(req, -ret);
	else
		reply_value(req, tb.text, tb.len, size);
	textbuf_free(&tb);
}

void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	struct fs *fs = fs_of(req);
	struct textbuf tb = TEXTBUF_INIT;
	struct inode *inode = NULL;

	fs_lock(fs);
	if (!control_owns(ino))
		inode = inode_find(fs, ino);
	if (inode && inode->kind == KIND_KV)
		textbuf_add(&tb, "user.kvc.tokens", sizeof("user.kvc.tokens"));
	for (struct xattr *x = inode ? inode->xattrs : NULL; x; x = x->next)
		if (!x->hidden)
			textbuf_add(&tb, x->data, x->name_len + 1);
	fs_unlock(fs);
	if (tb.err)
		fuse_reply_err(req, ENOMEM);
	else
		reply_value(req, tb.text, tb.len, size);
	textbuf_free(&tb);
}

static int remove_stored(struct fs *fs, u64 ino, const char *name)
{
	struct inode *inode;
	struct xattr *x;
	int err;

	fs_lock(fs);
	inode = inode_find(fs, ino);
	err = inode ? log_ready(fs) : -ESTALE;
	x = err ? NULL : xattr_find(inode, name);
	if (!err && (!x || x->hidden))
		err = -ENODATA;
	if (!err) {
		free(xattr_remove(inode, name));
		kvxattr_stored(fs, inode, name);
		inode_touch_ctime(inode);
		log_inode(fs, inode);
		err = log_submit(fs);
	}
	fs_unlock(fs);
	return err;
}

void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	struct fs *fs = fs_of(req);
	int err;

	if (control_owns(ino))
		err = -EPERM;
	else if (!storable(name))
		err = -EOPNOTSUPP;
	else
		err = remove_stored(fs, ino, name);
	fuse_reply_err(req, -err);
}
