/* SPDX-License-Identifier: Apache-2.0 */
/* What stat says, and how long the kernel may believe it. */
#include <string.h>
#include "allocator/base/clock.h"
#include "fs/kvdir.h"
#include "fs/ops.h"

static struct timespec to_timespec(int64_t ns)
{
	int64_t sec = ns / (int64_t)NSEC_PER_SEC, rest = ns % (int64_t)NSEC_PER_SEC;

	if (rest < 0) {
		rest += (int64_t)NSEC_PER_SEC;
		sec--;
	}
	return (struct timespec){.tv_sec = sec, .tv_nsec = rest};
}

static void fill_sizes(struct inode *inode, struct stat *st)
{
	if (inode_is_dir(inode)) {
		st->st_size = 4096;
	} else if (inode->kind == KIND_KV && inode->fseq) {
		st->st_size = (off_t)seq_size(inode->fseq->seq);
		st->st_blocks = (blkcnt_t)(seq_allocated(inode->fseq->seq) / 512);
	} else if (inode->kind == KIND_IDS && inode->fseq) {
		st->st_size = (off_t)fseq_nr_ids(inode->fseq) * 4;
		st->st_blocks = (blkcnt_t)div_round_up((u64)st->st_size, 512);
	} else if (S_ISLNK(inode->mode)) {
		st->st_size = (off_t)strlen(inode->target);
	} else if (inode_has_body(inode) && inode->body) {
		u64 size = inode->body->shown ? strlen(inode->body->shown) : inode->body->size;

		st->st_size = (off_t)size;
		st->st_blocks = (blkcnt_t)div_round_up(inode->body->allocated_bytes, 512);
		if (!plain_table(&inode->body->pf))
			st->st_blocks = (blkcnt_t)div_round_up(min(size, (u64)PLAIN_INLINE), 512);
	} else if (S_ISCHR(inode->mode) || S_ISBLK(inode->mode)) {
		st->st_rdev = (dev_t)inode->rdev;
	}
}

void attr_fill(struct fs *fs, struct inode *inode, struct stat *st)
{
	*st = (struct stat){
		.st_ino = inode->ino,
		.st_mode = inode->mode,
		.st_nlink = inode->nlink,
		.st_uid = inode->uid,
		.st_gid = inode->gid,
		.st_blksize = KVC_PAGE_SIZE,
		.st_atim = to_timespec(inode->atime_ns),
		.st_mtim = to_timespec(inode->mtime_ns),
		.st_ctim = to_timespec(inode->ctime_ns),
	};
	fill_sizes(inode, st);
}

/* In a namespace names come and go by other ways than the kernel's own: never kept. */
static double entry_timeout(const struct inode *inode)
{
	const struct inode *dir = inode_is_dir(inode) ? inode
				  : inode->links      ? inode->links->dir
						      : NULL;

	return dir && dir_ns(dir) ? 0 : 1;
}

/* Times of files move at an open, which the kernel does not see. */
double attr_timeout(const struct inode *inode)
{
	return inode_is_dir(inode) || S_ISLNK(inode->mode) ? entry_timeout(inode) : 0;
}

void entry_fill(struct fs *fs, struct inode *inode, struct fuse_entry_param *e)
{
	memset(e, 0, sizeof(*e));
	e->ino = inode->ino;
	e->attr_timeout = attr_timeout(inode);
	e->entry_timeout = entry_timeout(inode);
	attr_fill(fs, inode, &e->attr);
	inode->nlookup++;
}

void inode_forget(struct fs *fs, u64 ino, u64 n)
{
	struct inode *inode = inode_find(fs, ino);

	if (!inode)
		return;
	inode->nlookup -= min(n, inode->nlookup);
	inode_drop_if_unused(fs, inode);
}

void clear_suid(struct fs *fs, struct inode *inode, uid_t uid)
{
	u32 gone = S_ISUID | (inode->mode & S_IXGRP ? S_ISGID : 0);

	if (uid == 0 || !(inode->mode & gone))
		return;
	inode->mode &= ~gone;
	inode_dirty_atime(fs, inode);
}

int late_error_take(struct inode *inode)
{
	int err = -inode->late_err;

	inode->late_err = 0;
	return err;
}

struct inode *gate_by_ino(struct fs *fs, u64 ino, bool alone, struct gates *gates)
{
	struct inode *inode;

	do {
		*gates = GATES_INIT;
		inode = inode_find(fs, ino);
		gates_add(gates, inode, alone);
	} while (inode && !gates_take(fs, gates));
	return inode;
}
