/* SPDX-License-Identifier: Apache-2.0 */
/* lookup, forget, and listing directories. */
#include <errno.h>
#include <string.h>
#include "fs/control.h"
#include "fs/ops.h"
#include "fs/rpc/ioctl.h"

/* "." and ".." are asked for by those who hold a file handle only (export). */
static struct inode *lookup(struct fs *fs, u64 parent, const char *name)
{
	struct inode *dir = inode_find(fs, parent), *up;
	struct dentry *d;

	if (!dir)
		return NULL;
	if (!strcmp(name, "."))
		return dir;
	if (!inode_is_dir(dir))
		return NULL;
	if (!strcmp(name, "..")) {
		up = dir_parent(dir);
		return up ? up : fs->root;
	}
	d = tree_find(fs, dir, name);
	return d ? d->inode : NULL;
}

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = fs_of(req);
	struct fuse_entry_param entry;
	struct inode *inode;

	if (control_owns(parent) || (parent == INO_ROOT && !strcmp(name, CONTROL_NAME))) {
		control_lookup(req, parent, name);
		return;
	}
	if (strlen(name) > NAME_MAX_BYTES) {
		fuse_reply_err(req, ENAMETOOLONG);
		return;
	}
	fs_lock(fs);
	inode = lookup(fs, parent, name);
	if (inode)
		entry_fill(fs, inode, &entry);
	fs_unlock(fs);
	if (!inode) {
		fuse_reply_err(req, ENOENT);
	} else if (fuse_reply_entry(req, &entry) == -ENOENT) {
		fs_lock(fs);
		inode_forget(fs, entry.ino, 1);
		fs_unlock(fs);
	}
}

void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
	struct fs *fs = fs_of(req);

	if (!control_owns(ino)) {
		fs_lock(fs);
		inode_forget(fs, ino, nlookup);
		fs_unlock(fs);
	}
	fuse_reply_none(req);
}

void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	struct fs *fs = fs_of(req);

	fs_lock(fs);
	for (size_t i = 0; i < count; i++)
		if (!control_owns(forgets[i].ino))
			inode_forget(fs, forgets[i].ino, forgets[i].nlookup);
	fs_unlock(fs);
	fuse_reply_none(req);
}

/* An open directory is counted, so that one which is removed can still be read to its end. */
void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct inode *inode;
	struct file *file = NULL;

	if (control_owns(ino)) {
		fuse_reply_open(req, fi);
		return;
	}
	fs_lock(fs);
	inode = inode_find(fs, ino);
	if (inode)
		file = file_open(fs, inode, O_RDONLY);
	fs_unlock(fs);
	fi->fh = (uintptr_t)file;
	if (!file) {
		fuse_reply_err(req, inode ? ENOMEM : ESTALE);
	} else if (fuse_reply_open(req, fi) == -ENOENT) {
		fs_lock(fs);
		file_close(fs, file);
		fs_unlock(fs);
	}
}

void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);

	if (!control_owns(ino)) {
		file_rpc_free(file_of(fi)->rpc);
		fs_lock(fs);
		file_close(fs, file_of(fi));
		fs_unlock(fs);
	}
	fuse_reply_err(req, 0);
}

void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	u64 seq;
	int err;

	fs_lock(fs);
	err = log_submit(fs);
	seq = fs->log_seq;
	fs_unlock(fs);
	if (!err)
		err = pool_commit(fs->pool, seq);
	fuse_reply_err(req, -err);
}

/** struct listing - a readdir reply being filled. */
struct listing {
	fuse_req_t req;
	char *buf;
	size_t used, size;
	bool plus;
};

static bool list_one(struct listing *l, struct fs *fs, struct inode *inode, const char *name,
		     u64 cookie)
{
	size_t room = l->size - l->used, need;
	struct fuse_entry_param entry;
	struct stat st = {.st_ino = inode->ino, .st_mode = inode->mode};
	bool count = l->plus && cookie > COOKIE_DOTDOT;

	if (!l->plus) {
		need = fuse_add_direntry(l->req, l->buf + l->used, room, name, &st, (off_t)cookie);
	} else {
		memset(&entry, 0, sizeof(entry));
		if (count)
			entry_fill(fs, inode, &entry);
		else
			entry.attr = st;
		need = fuse_add_direntry_plus(l->req, l->buf + l->used, room, name, &entry,
					      (off_t)cookie);
	}
	if (need > room) {
		if (count)
			inode->nlookup--;
		return false;
	}
	l->used += need;
	return true;
}

/* Lock held: as many entries as fit in one reply. */
static void list_dir(struct listing *l, struct fs *fs, struct inode *dir, u64 cookie)
{
	struct inode *up = dir_parent(dir);
	struct dentry *d;

	if (cookie < COOKIE_DOT && !list_one(l, fs, dir, ".", COOKIE_DOT))
		return;
	if (cookie < COOKIE_DOTDOT && !list_one(l, fs, up ? up : dir, "..", COOKIE_DOTDOT))
		return;
	for (cookie = max(cookie, (u64)COOKIE_DOTDOT); (d = dir_next(dir, cookie));
	     cookie = d->cookie)
		if (!list_one(l, fs, d->inode, d->name, d->cookie))
			return;
}

static void readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus)
{
	struct listing l = {.req = req, .size = size, .plus = plus};
	struct fs *fs = fs_of(req);
	struct inode *dir;

	if (control_owns(ino)) {
		control_readdir(req, ino, size, off, plus);
		return;
	}
	l.buf = malloc(size ? size : 1);
	if (!l.buf) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	fs_lock(fs);
	dir = inode_find(fs, ino);
	if (dir && inode_is_dir(dir))
		list_dir(&l, fs, dir, (u64)off);
	fs_unlock(fs);
	if (!dir)
		fuse_reply_err(req, ESTALE);
	else
		fuse_reply_buf(req, l.buf, l.used);
	free(l.buf);
}

void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	readdir(req, ino, size, off, false);
}

void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	readdir(req, ino, size, off, true);
}
