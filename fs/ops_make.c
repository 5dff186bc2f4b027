/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that add a name: create, mknod, mkdir, symlink, link. */
#include <errno.h>
#include <string.h>
#include "allocator/base/err.h"
#include "fs/control.h"
#include "fs/fs_format.h"
#include "fs/kvdir.h"
#include "fs/make.h"
#include "fs/ops.h"

/* Directory @ino, its gate taken alone, fit for a new @name; NULL and *err otherwise. Lock held. */
static struct inode *dir_for_name(struct fs *fs, u64 ino, const char *name, struct gates *gates,
				  int *err)
{
	struct inode *dir = gate_by_ino(fs, ino, true, gates);

	*err = 0;
	if (!dir)
		*err = -ESTALE;
	else if (!inode_is_dir(dir))
		*err = -ENOTDIR;
	else if (strlen(name) > NAME_MAX_BYTES)
		*err = -ENAMETOOLONG;
	else if (!dir->links && dir != fs->root)
		*err = -ENOENT;
	else if (tree_find(fs, dir, name))
		*err = -EEXIST;
	else
		*err = log_ready(fs);
	return *err ? NULL : dir;
}

static enum inode_kind kind_for(const struct inode *dir, const struct make *m)
{
	if (S_ISDIR(m->mode))
		return KIND_DIR;
	return S_ISREG(m->mode) ? kind_of_name(dir, m->name) : KIND_PLAIN;
}

/* Only regular files may bear the names of KV and ids files. */
static int check_kind(const struct inode *dir, const struct make *m)
{
	enum inode_kind kind = kind_of_name(dir, m->name);

	if (S_ISDIR(m->mode) || S_ISREG(m->mode))
		return 0;
	return kind == KIND_KV || kind == KIND_IDS ? -EPERM : 0;
}

static void set_owner(struct inode *inode, const struct inode *dir, const struct make *m)
{
	inode->uid = m->uid;
	inode->gid = m->gid;
	if (!(dir->mode & S_ISGID))
		return;
	inode->gid = dir->gid;
	if (inode_is_dir(inode))
		inode->mode |= S_ISGID;
}

static int fill_content(struct fs *fs, struct inode *inode, struct inode *dir, const struct make *m)
{
	if (S_ISLNK(m->mode)) {
		inode->target = strdup(m->target);
		return inode->target ? 0 : -ENOMEM;
	}
	if (inode_is_dir(inode))
		kvdir_enter(dir, inode);
	else if (inode_has_seq(inode))
		return kvdir_new_file(fs, inode, dir, m->name);
	else if (!S_ISREG(m->mode))
		inode->rdev = m->rdev;
	return 0;
}

/* A `kv` made anew, beside ids that are there already, starts without bytes. Lock released inside.
 */
static int restart_kv(struct fs *fs, struct inode *dir, const struct make *m)
{
	struct fseq *fseq = dir->dir->fseq;
	int err;

	if (!fseq || !S_ISREG(m->mode) || strcmp(m->name, "kv") || !(m->flags & (O_EXCL | O_TRUNC)))
		return 0;
	fseq_get(fseq);
	fs_unlock(fs);
	err = seq_restart(fseq->seq);
	fs_lock(fs);
	fseq_mark_dirty(fs, fseq);
	fseq_put(fs, fseq);
	return err;
}

static void unmake(struct fs *fs, struct inode *inode, struct inode *dir)
{
	if (inode_has_seq(inode))
		kvdir_unname(fs, inode, dir);
	inode->nlink = 0;
	inode_drop_if_unused(fs, inode);
}

struct inode *make_inode(struct fs *fs, struct inode *dir, const struct make *m, int *err)
{
	struct inode *inode = inode_new(fs, kind_for(dir, m), m->mode);
	struct dentry *dentry;

	*err = -ENOMEM;
	if (!inode)
		return NULL;
	set_owner(inode, dir, m);
	*err = fill_content(fs, inode, dir, m);
	if (*err) {
		unmake(fs, inode, dir);
		return NULL;
	}
	dentry = tree_add(fs, dir, m->name, inode, 0);
	if (!dentry) {
		*err = -ENOMEM;
		unmake(fs, inode, dir);
		return NULL;
	}
	log_inode(fs, inode);
	*err = log_submit(fs);
	if (*err) {
		tree_del(fs, dentry);
		log_gone(fs, inode);
		unmake(fs, inode, dir);
		return NULL;
	}
	inode_touch_mtime(dir);
	inode_dirty_atime(fs, dir);
	return inode;
}

/* Make a file for the caller and reply. @fi: also open it (create). */
static void make(fuse_req_t req, fuse_ino_t parent, struct make *m, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct fuse_entry_param entry;
	struct inode *dir, *inode = NULL;
	struct file *file = NULL;
	struct gates gates;
	int err, sent;

	m->uid = fuse_req_ctx(req)->uid;
	m->gid = fuse_req_ctx(req)->gid;
	if (control_owns(parent)) {
		fuse_reply_err(req, EPERM);
		return;
	}
	fs_lock(fs);
	dir = dir_for_name(fs, parent, m->name, &gates, &err);
	if (dir)
		err = check_kind(dir, m);
	if (!err)
		err = restart_kv(fs, dir, m);
	if (!err)
		inode = make_inode(fs, dir, m, &err);
	if (inode && fi) {
		file = file_open(fs, inode, fi->flags);
		if (file)
			file_info(file, fi);
	}
	if (inode)
		entry_fill(fs, inode, &entry);
	gates_drop(fs, &gates);
	fs_unlock(fs);
	if (err)
		sent = fuse_reply_err(req, -err);
	else if (fi && !file)
		sent = fuse_reply_err(req, ENOMEM);
	else
		sent = fi ? fuse_reply_create(req, &entry, fi)
			  : fuse_reply_entry(req, &entry);
	if (err || (sent == 0 && (!fi || file)))
		return;
	fs_lock(fs);
	if (file)
		file_close(fs, file);
	inode_forget(fs, entry.ino, 1);
	fs_unlock(fs);
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	       struct fuse_file_info *fi)
{
	struct make m = {.name = name,
			 .mode = S_IFREG | (mode & 07777),
			 .flags = fi->flags};

	make(req, parent, &m, fi);
}

void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	struct make m = {.name = name,
			 .mode = mode & S_IFMT ? mode : S_IFREG | mode,
			 .flags = O_EXCL,
			 .rdev = rdev};

	make(req, parent, &m, NULL);
}

void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct make m = {
		.name = name, .mode = S_IFDIR | (mode & 07777)};

	make(req, parent, &m, NULL);
}

void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
	struct make m = {.name = name,
			 .mode = S_IFLNK | 0777,
			 .target = target};

	if (strlen(target) > 4095)
		fuse_reply_err(req, ENAMETOOLONG);
	else
		make(req, parent, &m, NULL);
}

static int check_link(struct inode *inode, struct inode *dir, const char *name)
{
	enum inode_kind kind = kind_of_name(dir, name);

	if (inode_is_dir(inode) || inode_has_seq(inode) || inode->kind == KIND_GEOMETRY ||
	    kind == KIND_GEOMETRY)
		return -EPERM;
	if (kind != KIND_PLAIN || !inode->links || dir_ns(inode->links->dir) != dir_ns(dir))
		return -EXDEV;
	return record_bytes(inode) > FS_MAX_INODE_RECORD ? -EMLINK : 0;
}

void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
	struct fs *fs = fs_of(req);
	struct fuse_entry_param entry;
	struct inode *dir, *inode;
	struct gates gates;
	int err;

	if (control_owns(parent) || control_owns(ino)) {
		fuse_reply_err(req, EPERM);
		return;
	}
	fs_lock(fs);
	dir = dir_for_name(fs, parent, name, &gates, &err);
	inode = inode_find(fs, ino);
	if (!err)
		err = inode ? check_link(inode, dir, name) : -ESTALE;
	if (!err && !tree_add(fs, dir, name, inode, 0))
		err = -ENOMEM;
	if (!err) {
		inode_touch_ctime(inode);
		inode_touch_mtime(dir);
		inode_dirty_atime(fs, dir);
		log_inode(fs, inode);
		err = log_submit(fs);
		if (err) {
			tree_del(fs, tree_find(fs, dir, name));
			log_inode(fs, inode);
		}
	}
	if (!err)
		entry_fill(fs, inode, &entry);
	gates_drop(fs, &gates);
	fs_unlock(fs);
	if (err) {
		fuse_reply_err(req, -err);
	} else if (fuse_reply_entry(req, &entry) == -ENOENT) {
		fs_lock(fs);
		inode_forget(fs, ino, 1);
		fs_unlock(fs);
	}
}
