/* SPDX-License-Identifier: Apache-2.0 */
/* Open files: open, read, write, flush, fsync, release. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "allocator/base/clock.h"
#include "allocator/base/err.h"
#include "fs/control.h"
#include "fs/kvdir.h"
#include "fs/ops.h"
#include "fs/rpc/ioctl.h"

struct file *file_open(struct fs *fs, struct inode *inode, int flags)
{
	struct file *file = calloc(1, sizeof(*file));

	if (!file)
		return NULL;
	list_add_tail(&file->link, &fs->files);
	file->inode = inode;
	file->flags = flags;
	inode->nr_open++;
	inode->nr_writers += opened_for_write(flags);
	return file;
}

void file_close(struct fs *fs, struct file *file)
{
	struct inode *inode = file->inode;

	inode->nr_open--;
	inode->nr_writers -= opened_for_write(file->flags);
	list_del(&file->link);
	free(file);
	inode_drop_if_unused(fs, inode);
}

void files_end(struct fs *fs)
{
	while (!list_empty(&fs->files)) {
		struct file *file = list_first_entry(&fs->files, struct file, link);

		file_rpc_free(file->rpc);
		fs_lock(fs);
		file_close(fs, file);
		fs_unlock(fs);
	}
	controls_end(fs);
}

/*
 * Plain files go through the page cache, which every change of theirs passes. A KV or ids file
 * opened for writing is direct, so that a refused write leaves no wrong page behind; ids change by
 * way of kv, so their pages are never kept. `.geometry` shows other text than was written.
 */
void file_info(struct file *file, struct fuse_file_info *fi)
{
	struct inode *inode = file->inode;

	fi->fh = (uintptr_t)file;
	if (inode_has_seq(inode) && opened_for_write(file->flags))
		fi->direct_io = 1;
	else if (inode->kind == KIND_GEOMETRY || geofile_entry(inode))
		fi->direct_io = 1;
	else if (inode->kind != KIND_IDS && !(inode->flags & INODE_STALE_PAGES))
		fi->keep_cache = 1;
	inode->flags &= (u8)~INODE_STALE_PAGES;
}

static void touch_atime(struct fs *fs, struct inode *inode, int flags)
{
	if (fs->opts->noatime || fs->opts->read_only || flags & O_NOATIME)
		return;
	inode->atime_ns = (int64_t)clock_real_ns();
	inode_dirty_atime(fs, inode);
}

/* The parts of open that may wait: O_TRUNC, and .geometry going from shown text to real text. */
static int open_prepare(struct fs *fs, struct inode *inode, int flags)
{
	if (inode_has_body(inode) && geofile_entry(inode) && opened_for_write(flags))
		geofile_settle(fs, inode);
	return flags & O_TRUNC ? inode_truncate(fs, inode, 0) : 0;
}

void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	bool alone = opened_for_write(fi->flags) || fi->flags & O_TRUNC;
	struct file *file = NULL;
	struct gates gates;
	struct inode *inode;
	int err = -ENOMEM;

	if (control_owns(ino)) {
		control_open(req, ino, fi);
		return;
	}
	fs_lock(fs);
	inode = gate_by_ino(fs, ino, alone && ino_kind(ino) <= KIND_PLAIN, &gates);
	if (!inode || inode_is_gone(inode)) {
		gates_drop(fs, &gates);
		fs_unlock(fs);
		fuse_reply_err(req, ESTALE);
		return;
	}
	file = file_open(fs, inode, fi->flags);
	if (file && alone) {
		fs_unlock(fs);
		err = open_prepare(fs, inode, fi->flags);
		fs_lock(fs);
	} else if (file) {
		err = 0;
	}
	if (!err && (fi->flags & O_ACCMODE) != O_WRONLY)
		touch_atime(fs, inode, fi->flags);
	if (!err && fi->flags & O_TRUNC)
		clear_suid(fs, inode, fuse_req_ctx(req)->uid);
	if (!err)
		file_info(file, fi);
	else if (file)
		file_close(fs, file);
	gates_drop(fs, &gates);
	fs_unlock(fs);
	if (err) {
		fuse_reply_err(req, -err);
	} else if (fuse_reply_open(req, fi) == -ENOENT) {
		fs_lock(fs);
		file_close(fs, file);
		fs_unlock(fs);
	}
}

/* O_NONBLOCK: whether the bytes would have to be waited for; then they are on their way. */
static bool must_wait(struct inode *inode, size_t len, u64 off)
{
	struct blktab *tab = NULL;

	if (inode->kind == KIND_KV && inode->fseq)
		tab = &inode->fseq->seq->tab;
	else if (inode_has_body(inode) && inode->body)
		tab = inode->body->pf.tab;
	if (!tab || blktab_resident(tab, len, off))
		return false;
	tab_prefetch(tab, off, len);
	return true;
}

static void read_geometry(fuse_req_t req, struct fs *fs, struct inode *inode, size_t len, u64 off)
{
	char text[GEOMETRY_MAX_TEXT * 2];
	bool shown;

	fs_lock(fs);
	shown = inode->body && inode->body->shown;
	if (shown)
		snprintf(text, sizeof(text), "%s", inode->body->shown);
	fs_unlock(fs);
	if (shown)
		reply_part(req, text, strlen(text), len, off);
	else
		reply_body(req, inode, len, off);
}

void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct gates gates;
	struct inode *inode;

	if (control_owns(ino)) {
		control_read(req, size, off, fi);
		return;
	}
	fs_lock(fs);
	inode = gate_by_ino(fs, ino, false, &gates);
	if (inode)
		touch_atime(fs, inode, file_of(fi)->flags);
	fs_unlock(fs);
	if (!inode) {
		fuse_reply_err(req, ESTALE);
		return;
	}
	if (fi->flags & O_NONBLOCK && must_wait(inode, size, (u64)off))
		fuse_reply_err(req, EAGAIN);
	else if (inode_has_seq(inode))
		reply_fseq(req, inode, size, (u64)off);
	else if (inode->body && inode->body->shown)
		read_geometry(req, fs, inode, size, (u64)off);
	else
		reply_body(req, inode, size, (u64)off);
	fs_lock(fs);
	gates_drop(fs, &gates);
	fs_unlock(fs);
}

/* A change of a plain file's bytes begins: keep what its record says, make it dirty. */
static int body_begin(struct fs *fs, struct inode *inode)
{
	int err;

	fs_lock(fs);
	err = log_ready(fs);
	if (!err && !inode_body(fs, inode))
		err = -ENOMEM;
	if (!err)
		err = inode_dirty_body(fs, inode);
	if (!err)
		geofile_unshow(inode);
	fs_unlock(fs);
	return err;
}

static void body_end(struct fs *fs, struct inode *inode)
{
	struct body *body = inode->body;
	u64 size = plain_size(&body->pf), allocated = plain_allocated(&body->pf);

	fs_lock(fs);
	body->size = size;
	body->allocated_bytes = allocated;
	inode_touch_mtime(inode);
	fs_unlock(fs);
}

static int truncate_body(struct fs *fs, struct inode *inode, u64 size)
{
	int err = body_begin(fs, inode);

	if (err)
		return err;
	err = plain_truncate(&inode->body->pf, size);
	if (err)
		return err;
	body_end(fs, inode);
	if (size == 0 && inode->body->saved && inode->body->saved->size) {
		fs_lock(fs);
		inode->flags |= INODE_TRUNCATED;
		fs_unlock(fs);
	}
	return 0;
}

/* The sequence behind @inode changed. */
static void fseq_changed(struct fs *fs, struct inode *inode)
{
	fs_lock(fs);
	inode_touch_mtime(inode);
	fseq_mark_dirty(fs, inode->fseq);
	fs_unlock(fs);
}

/* One of a sequence's two files was truncated; when that cut the other, its times move too. */
static int truncate_fseq(struct fs *fs, struct inode *inode, u64 size)
{
	struct fseq *fseq = inode->fseq;
	struct inode *other = inode->kind == KIND_KV ? fseq->ids : fseq->kv;
	u64 kv_size = seq_size(fseq->seq);
	u32 nr_ids = fseq_nr_ids(fseq), T = fseq_T(fseq);
	bool cut;
	int err;

	if (inode->kind == KIND_KV)
		err = seq_truncate(fseq->seq, size);
	else
		err = seq_truncate_ids(fseq->seq, size);
	if (err)
		return err;
	if (inode->kind == KIND_KV)
		cut = fseq_nr_ids(fseq) < nr_ids;
	else
		cut = seq_size(fseq->seq) < kv_size || fseq_T(fseq) < T;
	fseq_changed(fs, inode);
	fs_lock(fs);
	if (other && cut)
		inode_touch_mtime(other);
	if (other)
		kvdir_changed(fs, other);
	fs_unlock(fs);
	return 0;
}

int inode_truncate(struct fs *fs, struct inode *inode, u64 size)
{
	if (inode_has_body(inode))
		return truncate_body(fs, inode, size);
	if (!inode_has_seq(inode) || !inode->fseq)
		return -EINVAL;
	return truncate_fseq(fs, inode, size);
}

static int write_body(struct fs *fs, struct inode *inode, const void *buf, size_t len, u64 off)
{
	bool geometry;
	int err;

	fs_lock(fs);
	geometry = geofile_entry(inode);
	fs_unlock(fs);
	if (geometry)
		err = geofile_write(fs, inode, buf, len, off);
	else
		err = 0;
	if (!err)
		err = body_begin(fs, inode);
	if (!err)
		err = plain_write(&inode->body->pf, buf, len, off);
	if (!err)
		body_end(fs, inode);
	return err;
}

static int write_fseq(struct fs *fs, struct inode *inode, const void *buf, size_t len, u64 off)
{
	int err;

	if (!inode->fseq)
		return -ESTALE;
	if (inode->kind == KIND_KV)
		err = seq_write(inode->fseq->seq, buf, len, off);
	else
		err = seq_write_ids(inode->fseq->seq, buf, len, off);
	if (!err)
		fseq_changed(fs, inode);
	return err;
}

static int write_once(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off)
{
	struct fs *fs = fs_of(req);
	struct gates gates;
	struct inode *inode;
	int err;

	fs_lock(fs);
	inode = gate_by_ino(fs, ino, ino_kind(ino) <= KIND_PLAIN, &gates);
	fs_unlock(fs);
	if (!inode)
		return -ESTALE;
	if (inode_has_seq(inode))
		err = write_fseq(fs, inode, buf, size, (u64)off);
	else
		err = write_body(fs, inode, buf, size, (u64)off);
	fs_lock(fs);
	if (!err)
		clear_suid(fs, inode, fuse_req_ctx(req)->uid);
	gates_drop(fs, &gates);
	fs_unlock(fs);
	return err;
}

/* A page of a mapping could not be written: who mapped it has been told nothing. */
static void writepage_failed(struct fs *fs, fuse_ino_t ino, int err)
{
	struct inode *inode;

	fs_lock(fs);
	inode = inode_find(fs, ino);
	if (inode) {
		inode->late_err = (u8)-err;
		kvdir_changed(fs, inode);
	}
	fs_unlock(fs);
}

void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off,
	      struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	int err;

	if (control_owns(ino)) {
		control_write(req, buf, size, off, fi);
		return;
	}
	err = write_once(req, ino, buf, size, off);
	if (err == -ENOSPC) {
		persist_make_room(fs);
		err = write_once(req, ino, buf, size, off);
	}
	if (err && fi->writepage)
		writepage_failed(fs, ino, err);
	else if (!fi->writepage)
		file_of(fi)->settled = false;
	if (err) {
		fuse_reply_err(req, -err);
		return;
	}
	atomic_fetch_add(&fs->write_bytes, size);
	fuse_reply_write(req, size);
}

/*
 * What fsync and close of a writer mean for a sequence: a commit. A shell closes one redirection
 * several times: ids are matched once for what was written.
 */
static int commit_fseq(struct fs *fs, struct inode *inode, struct file *file)
{
	int err;

	if (!inode->fseq || file->settled)
		return 0;
	if (inode->kind == KIND_KV)
		err = seq_commit(inode->fseq->seq);
	else
		err = seq_close_ids(inode->fseq->seq);
	file->settled = inode->kind == KIND_IDS && !err;
	fs_lock(fs);
	fseq_mark_dirty(fs, inode->fseq);
	if (inode->kind == KIND_IDS && inode->fseq->kv)
		kvdir_changed(fs, inode->fseq->kv);
	fs_unlock(fs);
	return err;
}

static int flush_body(struct fs *fs, struct inode *inode)
{
	bool geometry;

	fs_lock(fs);
	inode->flags &= (u8)~INODE_TRUNCATED;
	geometry = inode->flags & INODE_GEO_WRITTEN && geofile_entry(inode);
	fs_unlock(fs);
	return geometry ? geofile_judge(fs, inode) : 0;
}

void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct gates gates;
	struct inode *inode;
	int err, late;

	if (control_owns(ino) || !opened_for_write(file_of(fi)->flags)) {
		fuse_reply_err(req, 0);
		return;
	}
	fs_lock(fs);
	inode = gate_by_ino(fs, ino, ino_kind(ino) <= KIND_PLAIN, &gates);
	fs_unlock(fs);
	if (!inode) {
		fuse_reply_err(req, ESTALE);
		return;
	}
	if (inode_has_seq(inode))
		err = commit_fseq(fs, inode, file_of(fi));
	else
		err = flush_body(fs, inode);
	fs_lock(fs);
	late = late_error_take(inode);
	gates_drop(fs, &gates);
	fs_unlock(fs);
	fuse_reply_err(req, err ? -err : -late);
}

static int fsync_inode(struct fs *fs, struct inode *inode, struct file *file)
{
	int err = 0;
	u64 seq = 0;

	if (inode_has_seq(inode)) {
		if (opened_for_write(file->flags))
			err = commit_fseq(fs, inode, file);
		if (!err && inode->fseq)
			err = persist_fseq(fs, inode->fseq, &seq);
	} else if (inode_has_body(inode)) {
		err = persist_body(fs, inode, &seq);
	}
	if (!err) {
		fs_lock(fs);
		err = log_submit(fs);
		seq = max(seq, fs->log_seq);
		fs_unlock(fs);
	}
	return err ? err : pool_commit(fs->pool, seq);
}

void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct gates gates;
	struct inode *inode;
	int err, late;

	if (control_owns(ino)) {
		fuse_reply_err(req, 0);
		return;
	}
	fs_lock(fs);
	inode = gate_by_ino(fs, ino, ino_kind(ino) <= KIND_PLAIN, &gates);
	fs_unlock(fs);
	if (!inode) {
		fuse_reply_err(req, ESTALE);
		return;
	}
	err = fsync_inode(fs, inode, file_of(fi));
	fs_lock(fs);
	late = late_error_take(inode);
	gates_drop(fs, &gates);
	fs_unlock(fs);
	fuse_reply_err(req, err ? -err : -late);
}

void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct file *file = file_of(fi);
	struct gates gates;
	struct inode *inode;

	if (control_owns(ino)) {
		control_release(req, fi);
		return;
	}
	file_rpc_free(file->rpc);
	fs_lock(fs);
	inode = file->inode;
	if (inode->body && inode_has_body(inode) && inode->body->shown && inode->nr_writers == 1 &&
	    opened_for_write(file->flags)) {
		inode = gate_by_ino(fs, ino, true, &gates);
		fs_unlock(fs);
		geofile_settle(fs, inode);
		fs_lock(fs);
		gates_drop(fs, &gates);
	}
	file_close(fs, file);
	fs_unlock(fs);
	fuse_reply_err(req, 0);
}
