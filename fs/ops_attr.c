/* SPDX-License-Identifier: Apache-2.0 */
/* getattr, setattr, statfs, readlink. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include "allocator/base/clock.h"
#include "fs/control.h"
#include "fs/kvdir.h"
#include "fs/ops.h"

void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct inode *inode;
	double timeout = 0;
	struct stat st;

	if (control_owns(ino)) {
		control_getattr(req, ino);
		return;
	}
	fs_lock(fs);
	inode = inode_find(fs, ino);
	if (inode && inode_is_gone(inode))
		inode = NULL;
	if (inode) {
		attr_fill(fs, inode, &st);
		timeout = attr_timeout(inode);
	}
	fs_unlock(fs);
	if (inode)
		fuse_reply_attr(req, &st, timeout);
	else
		fuse_reply_err(req, ESTALE);
}

static int64_t from_timespec(struct timespec ts)
{
	const int64_t most = INT64_MAX / (int64_t)NSEC_PER_SEC - 1;
	int64_t sec = max(min((int64_t)ts.tv_sec, most), -most);

	return sec * (int64_t)NSEC_PER_SEC + ts.tv_nsec;
}

static void set_times(struct inode *inode, const struct stat *attr, int to_set)
{
	int64_t now = (int64_t)clock_real_ns();

	if (to_set & FUSE_SET_ATTR_ATIME)
		inode->atime_ns =
			to_set & FUSE_SET_ATTR_ATIME_NOW ? now : from_timespec(attr->st_atim);
	if (to_set & FUSE_SET_ATTR_MTIME)
		inode->mtime_ns =
			to_set & FUSE_SET_ATTR_MTIME_NOW ? now : from_timespec(attr->st_mtim);
	inode->ctime_ns = now;
}

/* Lock held. Undone when the record is refused. */
static int set_attributes(struct fs *fs, struct inode *inode, const struct stat *attr, int to_set)
{
	struct inode was = *inode;
	int err = log_ready(fs);

	if (err)
		return err;
	if (to_set & FUSE_SET_ATTR_MODE)
		inode->mode = (inode->mode & S_IFMT) | (attr->st_mode & 07777);
	if (to_set & FUSE_SET_ATTR_UID)
		inode->uid = attr->st_uid;
	if (to_set & FUSE_SET_ATTR_GID)
		inode->gid = attr->st_gid;
	set_times(inode, attr, to_set);
	log_inode(fs, inode);
	err = log_submit(fs);
	if (!err) {
		if (inode_is_dir(inode) && inode->dir->ns_root)
			nspace_set_owner(fs, inode);
		return 0;
	}
	inode->mode = was.mode;
	inode->uid = was.uid;
	inode->gid = was.gid;
	inode->atime_ns = was.atime_ns;
	inode->mtime_ns = was.mtime_ns;
	inode->ctime_ns = was.ctime_ns;
	log_inode(fs, inode);
	return err;
}

static int set_size(fuse_req_t req, struct fs *fs, u64 ino, u64 size)
{
	struct gates gates;
	struct inode *inode;
	int err;

	fs_lock(fs);
	inode = gate_by_ino(fs, ino, ino_kind(ino) <= KIND_PLAIN, &gates);
	fs_unlock(fs);
	if (!inode)
		return -ESTALE;
	err = inode_truncate(fs, inode, size);
	fs_lock(fs);
	if (!err)
		clear_suid(fs, inode, fuse_req_ctx(req)->uid);
	gates_drop(fs, &gates);
	fs_unlock(fs);
	return err;
}

void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
		struct fuse_file_info *fi)
{
	const int rights = FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID;
	const int others = rights | FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME;
	struct fs *fs = fs_of(req);
	struct inode *inode;
	double timeout = 0;
	u32 space = 0;
	struct stat st;
	int err = 0;

	if (control_owns(ino)) {
		fuse_reply_err(req, EPERM);
		return;
	}
	if (to_set & FUSE_SET_ATTR_SIZE) {
		err = set_size(req, fs, ino, (u64)attr->st_size);
		if (err == -ENOSPC) {
			persist_make_room(fs);
			err = set_size(req, fs, ino, (u64)attr->st_size);
		}
	}
	fs_lock(fs);
	inode = inode_find(fs, ino);
	if (!err && !inode)
		err = -ESTALE;
	if (!err && (to_set & others || !(to_set & FUSE_SET_ATTR_SIZE)))
		err = set_attributes(fs, inode, attr, to_set);
	if (!err && to_set & rights && inode_is_dir(inode) && inode->dir->ns_root)
		space = inode->dir->ns->space;
	if (!err) {
		attr_fill(fs, inode, &st);
		timeout = attr_timeout(inode);
	}
	fs_unlock(fs);
	if (space)
		pool_bring_home(fs->pool, space);
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_attr(req, &st, timeout);
}

void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct fs *fs = fs_of(req);
	struct pool_stats stats;
	struct statvfs st;
	u32 files;

	pool_get_stats(fs->pool, &stats);
	fs_lock(fs);
	files = fs->inodes.nr;
	fs_unlock(fs);
	st = (struct statvfs){
		.f_bsize = KVC_PAGE_SIZE,
		.f_frsize = KVC_PAGE_SIZE,
		.f_blocks = stats.capacity / KVC_PAGE_SIZE,
		.f_bfree = stats.free_bytes / KVC_PAGE_SIZE,
		.f_bavail = stats.free_bytes / KVC_PAGE_SIZE,
		.f_files = (fsfilcnt_t)files + (1u << 30),
		.f_ffree = 1u << 30,
		.f_favail = 1u << 30,
		.f_namemax = NAME_MAX_BYTES,
	};
	fuse_reply_statfs(req, &st);
}

void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	struct fs *fs = fs_of(req);
	struct inode *inode;
	char target[4096];

	fs_lock(fs);
	inode = inode_find(fs, ino);
	if (inode && S_ISLNK(inode->mode))
		snprintf(target, sizeof(target), "%s", inode->target);
	else
		inode = NULL;
	fs_unlock(fs);
	if (inode)
		fuse_reply_readlink(req, target);
	else
		fuse_reply_err(req, EINVAL);
}
