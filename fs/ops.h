/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FUSE operations: what they share. Each operation finds its inodes under the lock, enters the
 * gates that it needs, does its work, drops everything and replies; after the reply it touches
 * nothing of the request.
 */
#ifndef KVC_FS_OPS_H
#define KVC_FS_OPS_H

#include <sys/stat.h>
#include "fs/fuse.h"
#include "fs/persist.h"

struct file_rpc;

/** struct file - an open file (fi->fh), or the mount's root opened as a directory. */
struct file {
	struct list_head link; /* fs->files */
	struct inode *inode; /* counted in nr_open */
	int flags;	     /* as opened */
	bool settled;	     /* ids: closed once, and not written through it since */
	struct file_rpc *rpc; /* owned; its ioctls so far, or NULL; set once, under the lock */
};

static inline struct file *file_of(const struct fuse_file_info *fi)
{
	return (struct file *)(uintptr_t)fi->fh;
}

static inline struct fs *fs_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

static inline bool opened_for_write(int flags)
{
	return (flags & O_ACCMODE) != O_RDONLY;
}

/* ---- attr.c; caller holds the lock ---- */
void attr_fill(struct fs *fs, struct inode *inode, struct stat *st);
/** attr_timeout() - seconds for which the kernel may keep names and attributes. */
double attr_timeout(const struct inode *inode);
/** entry_fill() - the reply to a lookup; counts the kernel's reference. */
void entry_fill(struct fs *fs, struct inode *inode, struct fuse_entry_param *e);
/** inode_forget() - the kernel drops @n references. */
void inode_forget(struct fs *fs, u64 ino, u64 n);
/** clear_suid() - a write by @uid takes setuid and setgid away. */
void clear_suid(struct fs *fs, struct inode *inode, uid_t uid);
/** late_error() - an error that was accepted as success earlier: told once. 0: none. */
int late_error_take(struct inode *inode);

/** gate_by_ino() - find @ino and enter its gate. NULL: no such inode (-ESTALE). Holds the lock. */
struct inode *gate_by_ino(struct fs *fs, u64 ino, bool alone, struct gates *gates);

/** inode_truncate() - gate taken alone (plain) or shared, lock not held. May block. */
int __must_check inode_truncate(struct fs *fs, struct inode *inode, u64 size);

/* ---- reply.c ---- */
void reply_body(fuse_req_t req, struct inode *inode, size_t len, u64 off);
void reply_fseq(fuse_req_t req, struct inode *inode, size_t len, u64 off);
/** reply_part() - the part of @data that a read asks for. */
void reply_part(fuse_req_t req, const void *data, size_t bytes, size_t len, u64 off);

/* ---- operations ---- */
void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup);
void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets);
void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi);
void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);

void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
		struct fuse_file_info *fi);
void op_statfs(fuse_req_t req, fuse_ino_t ino);
void op_readlink(fuse_req_t req, fuse_ino_t ino);

void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	       struct fuse_file_info *fi);
void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev);
void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name);
void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name);
void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent,
	       const char *newname, unsigned int flags);

void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off,
	      struct fuse_file_info *fi);
void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);
void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
			struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
			struct fuse_file_info *fi_out, size_t len, int flags);
void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
		  struct fuse_file_info *fi);

void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned int cmd, void *arg,
	      struct fuse_file_info *fi, unsigned int flags, const void *in, size_t in_bytes,
	      size_t out_bytes);

void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size,
		 int flags);
void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size);
void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size);
void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);

/* ---- open files (ops_file.c) ---- */
/** file_open() - count an open of @inode. NULL: no memory. Caller holds the lock. */
struct file *file_open(struct fs *fs, struct inode *inode, int flags);
void file_close(struct fs *fs, struct file *file);
/**
 * files_end() - close what the kernel did not: a connection that was cut, or a mount that went while
 * files were open, brings no release. No request runs any more; lock not held.
 */
void files_end(struct fs *fs);
/** file_info() - how the kernel is to treat this open. Caller holds the lock. */
void file_info(struct file *file, struct fuse_file_info *fi);

#endif
