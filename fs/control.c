/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes of .kvc: what there is, who may do what with it, open, read, write. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "allocator/base/clock.h"
#include "fs/control.h"
#include "fs/fseq.h"
#include "fs/ops.h"
#include "fs/rpc/rpc.h"

enum { NODE_DIR = 1, NODE_FIRST_FILE = 2 };

static const struct node {
	const char *name;
	u32 mode;
	void (*text)(struct fs *fs, const struct cred *cred, struct textbuf *tb);
} nodes[] = {
	{"version", 0444, text_version},
	{"stat", 0444, text_stat},
	{"metrics", 0444, text_metrics},
	{"tiers", 0444, text_tiers},
	{"sequences", 0444, text_sequences},
	{"sessions", 0444, text_sessions},
	{"config", 0644, text_config},
	{"control", 0666, NULL},
};

/** struct control_file - an open node. */
struct control_file {
	struct list_head link; /* fs->controls */
	u64 ino;
	struct textbuf text;
	struct conversation *talk; /* control */
};

void cred_of(struct cred *cred, fuse_req_t req)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);

	cred->uid = ctx->uid;
	cred->gid = ctx->gid;
	cred->nr_groups = 0;
	if (ctx->uid)
		cred->nr_groups = fuse_req_getgroups(req, ARRAY_SIZE(cred->groups), cred->groups);
	cred->nr_groups = max(min(cred->nr_groups, (int)ARRAY_SIZE(cred->groups)), 0);
}

bool cred_may(const struct cred *cred, const struct inode *inode, int mask)
{
	bool in_group = inode->gid == cred->gid;
	u32 bits;

	if (cred->uid == 0)
		return true;
	for (int i = 0; i < cred->nr_groups; i++)
		in_group |= cred->groups[i] == inode->gid;
	if (inode->uid == cred->uid)
		bits = inode->mode >> 6;
	else
		bits = in_group ? inode->mode >> 3 : inode->mode;
	return ((int)(bits & 7) & mask) == mask;
}

bool cred_reaches(const struct cred *cred, struct inode *inode)
{
	for (struct dentry *d = inode->links; d; d = d->dir->links)
		if (!cred_may(cred, d->dir, X_OK))
			return false;
	return true;
}

static const struct node *node_of(u64 ino)
{
	u64 nr = (ino & ~CONTROL_BIT) - NODE_FIRST_FILE;

	return nr < ARRAY_SIZE(nodes) ? &nodes[nr] : NULL;
}

static u64 status_target(u64 ino)
{
	const u64 bits = CONTROL_BIT | CONTROL_STATUS_BIT | CONTROL_FILE_BIT;

	return ino & CONTROL_STATUS_BIT ? ino & ~bits : 0;
}

/* In .kvc/status a sequence is a file, any other directory a directory. */
static bool is_status_dir(const struct inode *inode)
{
	return inode_is_dir(inode) && !inode->dir->fseq;
}

/* A directory in a namespace that is neither a sequence nor leads to one: no status. */
static bool is_empty_in_ns(const struct inode *inode)
{
	return is_status_dir(inode) && inode->dir->ns && !inode->dir->ns_root &&
	       !inode->dir->nr_subdirs;
}

/* Owner and permissions of what is told about; status is never writable. Lock held. */
static void status_attr(const struct inode *inode, u64 ino, struct stat *st)
{
	u32 mode = ino & CONTROL_FILE_BIT ? S_IFREG | (inode->mode & 0444)
					  : S_IFDIR | (inode->mode & 0555);

	st->st_mode = mode;
	st->st_uid = inode->uid;
	st->st_gid = inode->gid;
}

static int control_attr(struct fs *fs, u64 ino, struct stat *st)
{
	const struct node *node = node_of(ino);
	u64 target = status_target(ino);
	struct inode *inode;

	*st = (struct stat){.st_ino = ino,
			    .st_nlink = 1,
			    .st_uid = geteuid(),
			    .st_gid = getegid(),
			    .st_blksize = KVC_PAGE_SIZE};
	st->st_mtim.tv_sec = st->st_ctim.tv_sec = st->st_atim.tv_sec = time(NULL);
	if (target) {
		fs_lock(fs);
		inode = inode_find(fs, target);
		if (inode)
			status_attr(inode, ino, st);
		fs_unlock(fs);
		return inode ? 0 : -ENOENT;
	}
	if (!node && (ino & ~CONTROL_BIT) != NODE_DIR)
		return -ENOENT;
	st->st_mode = node ? S_IFREG | node->mode : S_IFDIR | 0555;
	return 0;
}

/* Number of @name in @parent, 0: none. */
static u64 find_node(struct fs *fs, u64 parent, const char *name)
{
	u64 target = status_target(parent);
	struct dentry *d = NULL;
	struct inode *dir;
	u64 ino = 0;

	if (parent == INO_ROOT)
		return CONTROL_BIT | NODE_DIR;
	if (parent == (CONTROL_BIT | NODE_DIR)) {
		if (!strcmp(name, "status"))
			return CONTROL_BIT | CONTROL_STATUS_BIT | INO_ROOT;
		for (unsigned int i = 0; i < ARRAY_SIZE(nodes); i++)
			if (!strcmp(name, nodes[i].name))
				return CONTROL_BIT | (NODE_FIRST_FILE + i);
		return 0;
	}
	if (!target)
		return 0;
	fs_lock(fs);
	dir = inode_find(fs, target);
	if (dir && inode_is_dir(dir))
		d = tree_find(fs, dir, name);
	if (d && !is_empty_in_ns(d->inode))
		ino = CONTROL_BIT | CONTROL_STATUS_BIT | d->inode->ino |
		      (is_status_dir(d->inode) ? 0 : CONTROL_FILE_BIT);
	fs_unlock(fs);
	return ino;
}

void control_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = fs_of(req);
	struct fuse_entry_param e;

	memset(&e, 0, sizeof(e));
	e.ino = find_node(fs, parent, name);
	if (!e.ino || control_attr(fs, e.ino, &e.attr))
		fuse_reply_err(req, ENOENT);
	else
		fuse_reply_entry(req, &e);
}

void control_getattr(fuse_req_t req, fuse_ino_t ino)
{
	struct stat st;

	if (control_attr(fs_of(req), ino, &st))
		fuse_reply_err(req, ESTALE);
	else
		fuse_reply_attr(req, &st, 0);
}

static size_t list_node(fuse_req_t req, char *buf, size_t room, unsigned int i, bool plus)
{
	const char *name = i < ARRAY_SIZE(nodes) ? nodes[i].name : "status";
	struct fuse_entry_param e;

	memset(&e, 0, sizeof(e));
	e.attr.st_ino = CONTROL_BIT | (NODE_FIRST_FILE + i);
	e.attr.st_mode = i < ARRAY_SIZE(nodes) ? S_IFREG : S_IFDIR;
	if (plus)
		return fuse_add_direntry_plus(req, buf, room, name, &e, i + 1);
	return fuse_add_direntry(req, buf, room, name, &e.attr, i + 1);
}

void control_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus)
{
	size_t used = 0, need;
	char buf[4096];

	size = min(size, sizeof(buf));
	for (unsigned int i = (unsigned int)off;
	     ino == (CONTROL_BIT | NODE_DIR) && i <= ARRAY_SIZE(nodes); i++) {
		need = list_node(req, buf + used, size - used, i, plus);
		if (need > size - used)
			break;
		used += need;
	}
	fuse_reply_buf(req, buf, used);
}

static int fill_file(struct control_file *f, fuse_req_t req)
{
	struct fs *fs = fs_of(req);
	const struct node *node = node_of(f->ino);
	struct cred cred;
	int err = 0;

	cred_of(&cred, req);
	if (status_target(f->ino))
		err = text_status(fs, status_target(f->ino), &f->text);
	else if (!node)
		err = -EISDIR;
	else if (node->text)
		node->text(fs, &cred, &f->text);
	else
		f->talk = conversation_new();
	if (!err && node && !node->text && !f->talk)
		err = -ENOMEM;
	return err ? err : f->text.err;
}

static void file_free(struct fs *fs, struct control_file *f)
{
	fs_lock(fs);
	list_del(&f->link);
	fs_unlock(fs);
	conversation_free(f->talk);
	textbuf_free(&f->text);
	free(f);
}

void control_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	const struct node *node = node_of(ino);
	struct fs *fs = fs_of(req);
	struct control_file *f;
	int err;

	if (opened_for_write(fi->flags) && !(node && node->mode & 0222)) {
		fuse_reply_err(req, EPERM);
		return;
	}
	f = calloc(1, sizeof(*f));
	if (!f) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	f->ino = ino;
	fs_lock(fs);
	list_add_tail(&f->link, &fs->controls);
	fs_unlock(fs);
	err = fill_file(f, req);
	if (err) {
		file_free(fs, f);
		fuse_reply_err(req, -err);
		return;
	}
	fi->fh = (uintptr_t)f;
	fi->direct_io = 1;
	fi->nonseekable = f->talk != NULL;
	if (fuse_reply_open(req, fi) == -ENOENT)
		file_free(fs, f);
}

void control_read(fuse_req_t req, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct control_file *f = (struct control_file *)(uintptr_t)fi->fh;

	if (f->talk)
		conversation_read(f->talk, req, size);
	else
		reply_part(req, f->text.text ? f->text.text : "", f->text.len, size, (u64)off);
}

void control_write(fuse_req_t req, const char *buf, size_t size, off_t off,
		   struct fuse_file_info *fi)
{
	struct control_file *f = (struct control_file *)(uintptr_t)fi->fh;
	int err;

	if (f->talk)
		err = conversation_write(f->talk, buf, size);
	else
		err = config_write(fs_of(req), buf, size);
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_write(req, size);
}

void control_release(fuse_req_t req, struct fuse_file_info *fi)
{
	file_free(fs_of(req), (struct control_file *)(uintptr_t)fi->fh);
	fuse_reply_err(req, 0);
}

void controls_end(struct fs *fs)
{
	while (!list_empty(&fs->controls))
		file_free(fs, list_first_entry(&fs->controls, struct control_file, link));
}
