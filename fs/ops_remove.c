/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that take a name away or move it: unlink, rmdir, rename. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "fs/control.h"
#include "fs/kvdir.h"
#include "fs/ops.h"

static bool is_root_control(u64 parent, const char *name)
{
	return parent == INO_ROOT && !strcmp(name, CONTROL_NAME);
}

/* Entry @name of directory @ino with every gate that removing it needs. NULL and *err. Lock held.
 */
static struct dentry *entry_to_remove(struct fs *fs, u64 ino, const char *name, struct gates *gates,
				      int *err)
{
	struct dentry *dentry = NULL;
	struct inode *dir;

	do {
		*gates = GATES_INIT;
		dir = inode_find(fs, ino);
		dentry = dir && inode_is_dir(dir) ? tree_find(fs, dir, name) : NULL;
		*err = !dir ? -ESTALE : dentry ? 0 : -ENOENT;
		if (*err)
			return NULL;
		gates_add(gates, dir, true);
		if (inode_is_dir(dentry->inode) || inode_has_seq(dentry->inode))
			gates_add(gates, dentry->inode, true);
		if (name_is_sequence(dir, name))
			kvdir_gates(gates, dir);
	} while (!gates_take(fs, gates));
	return dentry;
}

/* A file other than `kv` and `tokens` loses a name. */
static void unlink_plain(struct fs *fs, struct dentry *dentry)
{
	struct inode *inode = dentry->inode;

	tree_del(fs, dentry);
	if (inode->links)
		log_inode(fs, inode);
	else
		log_gone(fs, inode);
}

static int unlink_entry(struct fs *fs, struct dentry *dentry)
{
	struct inode *inode = dentry->inode, *dir = dentry->dir;
	int err = 0;

	if (inode_is_dir(inode))
		return -EISDIR;
	inode_touch_ctime(inode);
	if (inode_has_seq(inode))
		err = kvdir_unlink(fs, dentry);
	else
		unlink_plain(fs, dentry);
	if (err)
		return err;
	inode_touch_mtime(dir);
	inode_dirty_atime(fs, dir);
	/* when it can not be written now, it is with the next operation; a removal is never refused
	 */
	if (log_submit(fs))
		return 0;
	inode_drop_if_unused(fs, inode);
	return 0;
}

void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = fs_of(req);
	struct dentry *dentry;
	struct gates gates;
	int err;

	if (control_owns(parent) || is_root_control(parent, name)) {
		fuse_reply_err(req, EPERM);
		return;
	}
	fs_lock(fs);
	dentry = entry_to_remove(fs, parent, name, &gates, &err);
	if (dentry)
		err = unlink_entry(fs, dentry);
	gates_drop(fs, &gates);
	fs_unlock(fs);
	fuse_reply_err(req, -err);
}

static void remove_dir(struct fs *fs, struct dentry *dentry)
{
	struct inode *inode = dentry->inode, *dir = dentry->dir;

	tree_del(fs, dentry);
	if (inode->dir->ns_root)
		prefix_drop_space(fs->pool, dir_ns(inode)->space);
	log_gone(fs, inode);
	inode_touch_ctime(inode);
	inode_touch_mtime(dir);
	inode_dirty_atime(fs, dir);
	inode_drop_if_unused(fs, inode);
}

void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = fs_of(req);
	struct dentry *dentry;
	struct gates gates;
	int err;

	if (control_owns(parent) || is_root_control(parent, name)) {
		fuse_reply_err(req, EPERM);
		return;
	}
	fs_lock(fs);
	dentry = entry_to_remove(fs, parent, name, &gates, &err);
	if (dentry && !inode_is_dir(dentry->inode))
		err = -ENOTDIR;
	else if (dentry && !dir_empty(dentry->inode))
		err = -ENOTEMPTY;
	if (!err) {
		remove_dir(fs, dentry);
		if (log_submit(fs))
			err = 0;
	}
	gates_drop(fs, &gates);
	fs_unlock(fs);
	fuse_reply_err(req, -err);
}

/* ---- rename ---- */

struct rename {
	u64 parent, newparent;
	const char *name, *newname;
	bool noreplace, exchange;
	/* resolved, with their gates */
	struct inode *dir, *newdir;
	struct dentry *from, *over;
	struct geo_verdict verdict; /* of what becomes .geometry */
	bool judge;
};

static int rename_resolve(struct fs *fs, struct rename *r, struct gates *gates)
{
	do {
		*gates = GATES_INIT;
		r->dir = inode_find(fs, r->parent);
		r->newdir = inode_find(fs, r->newparent);
		if (!r->dir || !r->newdir)
			return -ESTALE;
		if (!inode_is_dir(r->dir) || !inode_is_dir(r->newdir))
			return -ENOTDIR;
		if (!r->newdir->links && r->newdir != fs->root)
			return -ENOENT;
		r->from = tree_find(fs, r->dir, r->name);
		r->over = tree_find(fs, r->newdir, r->newname);
		if (!r->from)
			return -ENOENT;
		gates_add(gates, r->dir, true);
		gates_add(gates, r->newdir, true);
		gates_add(gates, r->from->inode, true);
		if (r->over)
			gates_add(gates, r->over->inode, true);
		if (inode_has_seq(r->from->inode)) {
			kvdir_gates(gates, r->dir);
			kvdir_gates(gates, r->newdir);
		}
	} while (!gates_take(fs, gates));
	return 0;
}

/* The salt under which things below @inode are found once it lies in @dir. */
static bool same_salt(const struct inode *inode, const struct inode *dir, const struct inode *to)
{
	if (inode_is_dir(inode) && (inode->dir->salt_root || inode->dir->ns_root))
		return true;
	if (!inode_is_dir(inode) && !inode_has_seq(inode))
		return true;
	return kvdir_root(dir) == kvdir_root(to);
}

/* May @inode, called @name in @dir, be called @newname in @to? Borders of namespaces and kinds. */
static int check_borders(const struct dentry *d, const struct inode *to, const char *newname)
{
	const struct inode *inode = d->inode;
	bool ns_root = inode_is_dir(inode) && inode->dir->ns_root;
	enum inode_kind kind = kind_of_name(to, newname);

	if (ns_root)
		return dir_ns(to) ? -EXDEV : 0;
	if (dir_ns(d->dir) != dir_ns(to) || !same_salt(inode, d->dir, to))
		return -EXDEV;
	if (inode_is_dir(inode))
		return 0;
	if (inode_has_seq(inode))
		return kind == inode->kind ? 0 : -EXDEV;
	if (kind == KIND_GEOMETRY || kind == KIND_PLAIN)
		return kind == KIND_GEOMETRY && !S_ISREG(inode->mode) ? -EPERM : 0;
	return -EXDEV;
}

static int check_replace(const struct rename *r)
{
	struct inode *inode = r->from->inode, *over = r->over->inode;

	if (r->noreplace)
		return -EEXIST;
	if (inode_is_dir(inode) && !inode_is_dir(over))
		return -ENOTDIR;
	if (!inode_is_dir(inode) && inode_is_dir(over))
		return -EISDIR;
	return inode_is_dir(over) && !dir_empty(over) ? -ENOTEMPTY : 0;
}

static int check_exchange(const struct rename *r)
{
	struct inode *a = r->from->inode, *b = r->over->inode;
	int err;

	if (inode_has_seq(a) || inode_has_seq(b) || a->kind == KIND_GEOMETRY ||
	    b->kind == KIND_GEOMETRY)
		return -EINVAL;
	if (inode_is_dir(b) && tree_is_below(r->dir, b))
		return -EINVAL;
	err = check_borders(r->over, r->dir, r->name);
	return err;
}

static int rename_check(struct fs *fs, const struct rename *r)
{
	int err;

	if (strlen(r->newname) > NAME_MAX_BYTES)
		return -ENAMETOOLONG;
	if (r->exchange && !r->over)
		return -ENOENT;
	if (inode_is_dir(r->from->inode) && tree_is_below(r->newdir, r->from->inode))
		return -EINVAL;
	err = check_borders(r->from, r->newdir, r->newname);
	if (!err && r->exchange)
		err = check_exchange(r);
	else if (!err && r->over)
		err = check_replace(r);
	return err ? err : log_ready(fs);
}

/* What may wait: the source's bytes are durable before the old ones lose their name. */
static int rename_prepare(struct fs *fs, struct rename *r)
{
	struct inode *inode = r->from->inode;
	int err = 0;
	u64 seq;

	r->judge = inode_has_body(inode) && !strcmp(r->newname, GEOMETRY_NAME) && !r->exchange;
	if (!inode_has_body(inode) || (!r->judge && !r->over))
		return 0;
	fs_unlock(fs);
	if (r->over)
		err = persist_body(fs, inode, &seq);
	if (!err && r->judge)
		err = geofile_read(fs, inode, &r->verdict);
	fs_lock(fs);
	return err;
}

static void exchange(struct fs *fs, const struct rename *r)
{
	tree_swap(r->from, r->over);
	inode_touch_ctime(r->from->inode);
	inode_touch_ctime(r->over->inode);
	log_inode(fs, r->from->inode);
	log_inode(fs, r->over->inode);
}

static int move_plain(struct fs *fs, struct rename *r)
{
	struct inode *inode = r->from->inode, *over = r->over ? r->over->inode : NULL;

	if (over && inode_is_dir(over))
		remove_dir(fs, r->over);
	else if (over)
		unlink_plain(fs, r->over);
	if (!tree_move(fs, r->from, r->newdir, r->newname))
		return -ENOMEM;
	if (over && !inode_is_dir(over)) {
		if (!over->links)
			over->flags |= INODE_REPLACED;
		inode_touch_ctime(over);
		inode_drop_if_unused(fs, over);
	}
	log_inode(fs, inode);
	return 0;
}

static int rename_apply(struct fs *fs, struct rename *r)
{
	struct kv_rename kv = {
		.from = r->from, .to_dir = r->newdir, .to_name = r->newname, .over = r->over};
	struct inode *inode = r->from->inode;
	int err = 0;

	if (r->judge)
		err = geofile_apply(fs, r->newdir, inode, &r->verdict);
	if (err)
		return err;
	inode_touch_ctime(inode);
	if (r->exchange)
		exchange(fs, r);
	else if (inode_has_seq(inode))
		err = kvdir_rename(fs, &kv);
	else
		err = move_plain(fs, r);
	inode_touch_mtime(r->dir);
	inode_touch_mtime(r->newdir);
	inode_dirty_atime(fs, r->dir);
	inode_dirty_atime(fs, r->newdir);
	if (!err && log_submit(fs))
		return 0;
	return err;
}

/* A file that has just become .geometry shows the namespace's text at once. */
static void rename_judged(struct fs *fs, u64 ino)
{
	struct gates gates;
	struct inode *inode;

	fs_lock(fs);
	inode = gate_by_ino(fs, ino, true, &gates);
	fs_unlock(fs);
	if (!inode)
		return;
	if (geofile_judge(fs, inode) == 0)
		geofile_settle(fs, inode);
	fs_lock(fs);
	gates_drop(fs, &gates);
	fs_unlock(fs);
}

static bool rename_is_noop(const struct rename *r)
{
	return r->over && r->over->inode == r->from->inode && !r->noreplace;
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent,
	       const char *newname, unsigned int flags)
{
	struct rename r = {.parent = parent,
			   .newparent = newparent,
			   .name = name,
			   .newname = newname,
			   .noreplace = flags & RENAME_NOREPLACE,
			   .exchange = flags & RENAME_EXCHANGE};
	struct fs *fs = fs_of(req);
	struct gates gates;
	u64 judged = 0;
	int err;

	if (control_owns(parent) || control_owns(newparent) || is_root_control(parent, name) ||
	    is_root_control(newparent, newname)) {
		fuse_reply_err(req, EPERM);
		return;
	}
	if (flags & ~(unsigned int)(RENAME_NOREPLACE | RENAME_EXCHANGE)) {
		fuse_reply_err(req, EINVAL);
		return;
	}
	fs_lock(fs);
	err = rename_resolve(fs, &r, &gates);
	if (!err && !rename_is_noop(&r)) {
		err = rename_check(fs, &r);
		if (!err)
			err = rename_prepare(fs, &r);
		if (!err && r.judge)
			judged = r.from->inode->ino;
		if (!err)
			err = rename_apply(fs, &r);
	}
	gates_drop(fs, &gates);
	fs_unlock(fs);
	if (!err && judged)
		rename_judged(fs, judged);
	fuse_reply_err(req, -err);
}
