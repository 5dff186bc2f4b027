/* SPDX-License-Identifier: Apache-2.0 */
/* copy_file_range by sharing blocks, and fallocate. */
#include <errno.h>
#include "allocator/base/clock.h"
#include "fs/control.h"
#include "fs/kvdir.h"
#include "fs/ops.h"

/* The 32-bit reply of older libfuse caps one answer; cp asks again for the rest. */
#define COPY_MAX ((1ull << 31) - MIB(2))

/** struct copy - one copy_file_range, both inodes with their gates. */
struct copy {
	struct fs *fs;
	struct inode *in, *out;
	struct gates gates;
	u64 off_in, off_out;
	u64 len;
};

static int copy_begin(struct copy *c, u64 ino_in, u64 ino_out)
{
	fs_lock(c->fs);
	do {
		c->gates = GATES_INIT;
		c->in = inode_find(c->fs, ino_in);
		c->out = inode_find(c->fs, ino_out);
		if (!c->in || !c->out) {
			fs_unlock(c->fs);
			return -ESTALE;
		}
		gates_add(&c->gates, c->in, inode_has_body(c->in));
		gates_add(&c->gates, c->out, inode_has_body(c->out));
	} while (!gates_take(c->fs, &c->gates));
	fs_unlock(c->fs);
	return 0;
}

static void copy_end(struct copy *c)
{
	fs_lock(c->fs);
	gates_drop(c->fs, &c->gates);
	fs_unlock(c->fs);
}

static u32 salt_of(const struct inode *inode)
{
	return inode->links ? kvdir_root(inode->links->dir) : 0;
}

static ssize_t copy_kv(struct copy *c)
{
	struct fseq *in = c->in->fseq, *out = c->out->fseq;
	bool same;
	ssize_t n;

	fs_lock(c->fs);
	same = in && out && in->ns == out->ns && c->in->kind == KIND_KV &&
	       c->out->kind == KIND_KV && salt_of(c->in) == salt_of(c->out);
	fs_unlock(c->fs);
	if (!same)
		return -EXDEV;
	n = seq_copy_range(in->seq, c->off_in, out->seq, c->off_out, c->len);
	if (n <= 0)
		return n;
	fs_lock(c->fs);
	inode_touch_mtime(c->out);
	fseq_mark_dirty(c->fs, out);
	if (out->ids)
		kvdir_changed(c->fs, out->ids);
	fs_unlock(c->fs);
	return n;
}

static ssize_t copy_body(struct copy *c)
{
	struct fs *fs = c->fs;
	int err = 0;
	ssize_t n;

	if (!c->in->body)
		return 0;
	fs_lock(fs);
	if (geofile_entry(c->in) || geofile_entry(c->out))
		err = -EXDEV;
	if (!err)
		err = log_ready(fs);
	if (!err && !inode_body(fs, c->out))
		err = -ENOMEM;
	if (!err)
		err = inode_dirty_body(fs, c->out);
	if (!err)
		err = inode_dirty_body(fs, c->in);
	fs_unlock(fs);
	if (err)
		return err;
	n = plain_copy_range(&c->in->body->pf, c->off_in, &c->out->body->pf, c->off_out, c->len);
	fs_lock(fs);
	c->out->body->size = plain_size(&c->out->body->pf);
	c->out->body->allocated_bytes = plain_allocated(&c->out->body->pf);
	if (n > 0)
		inode_touch_mtime(c->out);
	fs_unlock(fs);
	return n;
}

static ssize_t copy_once(struct copy *c, u64 ino_in, u64 ino_out)
{
	ssize_t n = copy_begin(c, ino_in, ino_out);

	if (n)
		return n;
	if (inode_has_body(c->in) && inode_has_body(c->out))
		n = copy_body(c);
	else
		n = copy_kv(c);
	copy_end(c);
	return n;
}

void op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
			struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
			struct fuse_file_info *fi_out, size_t len, int flags)
{
	struct copy c = {.fs = fs_of(req),
			 .off_in = (u64)off_in,
			 .off_out = (u64)off_out,
			 .len = min((u64)len, COPY_MAX)};
	ssize_t n;

	if (flags) {
		fuse_reply_err(req, EINVAL);
		return;
	}
	if (control_owns(ino_in) || control_owns(ino_out)) {
		fuse_reply_err(req, EXDEV);
		return;
	}
	n = copy_once(&c, ino_in, ino_out);
	if (n == -ENOSPC) {
		persist_make_room(c.fs);
		n = copy_once(&c, ino_in, ino_out);
	}
	if (n < 0)
		fuse_reply_err(req, (int)-n);
	else
		fuse_reply_write(req, (size_t)n);
}

static int allocate_body(struct fs *fs, struct inode *inode, const u64 range[2], bool keep_size)
{
	int err;

	fs_lock(fs);
	err = log_ready(fs);
	if (!err && !inode_body(fs, inode))
		err = -ENOMEM;
	if (!err)
		err = inode_dirty_body(fs, inode);
	fs_unlock(fs);
	if (err)
		return err;
	err = plain_fallocate(&inode->body->pf, range[0], range[1], keep_size);
	fs_lock(fs);
	inode->body->size = plain_size(&inode->body->pf);
	inode->body->allocated_bytes = plain_allocated(&inode->body->pf);
	if (!err)
		inode_touch_mtime(inode);
	fs_unlock(fs);
	return err;
}

static int allocate(struct fs *fs, u64 ino, const u64 range[2], bool keep_size)
{
	struct gates gates;
	struct inode *inode;
	int err = -EOPNOTSUPP;

	fs_lock(fs);
	inode = gate_by_ino(fs, ino, ino_kind(ino) <= KIND_PLAIN, &gates);
	fs_unlock(fs);
	if (!inode)
		return -ESTALE;
	if (inode->kind == KIND_KV && inode->fseq)
		err = seq_fallocate(inode->fseq->seq, range[0], range[1], keep_size);
	else if (inode_has_body(inode))
		err = allocate_body(fs, inode, range, keep_size);
	fs_lock(fs);
	if (!err && inode->kind == KIND_KV) {
		inode_touch_mtime(inode);
		fseq_mark_dirty(fs, inode->fseq);
	}
	gates_drop(fs, &gates);
	fs_unlock(fs);
	return err;
}

void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
		  struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	const u64 range[2] = {(u64)off, (u64)len};
	bool keep_size = mode & FALLOC_FL_KEEP_SIZE;
	int err;

	if (control_owns(ino) || mode & ~FALLOC_FL_KEEP_SIZE) {
		fuse_reply_err(req, EOPNOTSUPP);
		return;
	}
	err = allocate(fs, ino, range, keep_size);
	if (err == -ENOSPC) {
		persist_make_room(fs);
		err = allocate(fs, ino, range, keep_size);
	}
	fuse_reply_err(req, -err);
}
