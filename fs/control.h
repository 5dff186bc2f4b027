/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MOUNT/.kvc: files that the daemon computes. They have no inodes in the table; their numbers say
 * what they are: a fixed node, or the status of an inode of the tree. Text is made at open and kept
 * with the open file, so that one reader sees one moment.
 */
#ifndef KVC_FS_CONTROL_H
#define KVC_FS_CONTROL_H

#include "allocator/base/textbuf.h"
#include "fs/fuse.h"
#include "fs/fs.h"

struct fseq;

#define CONTROL_NAME	   ".kvc"
#define CONTROL_BIT	   (1ull << 62)
#define CONTROL_STATUS_BIT (1ull << 61) /* status of the inode in the bits below */
#define CONTROL_FILE_BIT                                                                           \
	(1ull << 60) /* a status that is a file: the same inode may be both in turn */

static inline bool control_owns(u64 ino)
{
	return ino & CONTROL_BIT;
}

void control_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void control_getattr(fuse_req_t req, fuse_ino_t ino);
void control_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus);
void control_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void control_read(fuse_req_t req, size_t size, off_t off, struct fuse_file_info *fi);
void control_write(fuse_req_t req, const char *buf, size_t size, off_t off,
		   struct fuse_file_info *fi);
void control_release(fuse_req_t req, struct fuse_file_info *fi);
/** controls_end() - close those that are still open; no request runs any more. */
void controls_end(struct fs *fs);

/** struct cred - who asks. */
struct cred {
	uid_t uid;
	gid_t gid;
	int nr_groups; /* supplementary ones in @groups */
	gid_t groups[64];
};
void cred_of(struct cred *cred, fuse_req_t req);
/** cred_may() - @mask as access(2): R_OK, W_OK, X_OK on @inode. Lock held. */
bool cred_may(const struct cred *cred, const struct inode *inode, int mask);
/** cred_reaches() - may the caller search every directory above @inode? Lock held. */
bool cred_reaches(const struct cred *cred, struct inode *inode);

/* ---- texts (control_text.c, control_seq.c); lock not held ---- */
void text_version(struct fs *fs, const struct cred *cred, struct textbuf *tb);
void text_stat(struct fs *fs, const struct cred *cred, struct textbuf *tb);
void text_metrics(struct fs *fs, const struct cred *cred, struct textbuf *tb);
void text_tiers(struct fs *fs, const struct cred *cred, struct textbuf *tb);
void text_config(struct fs *fs, const struct cred *cred, struct textbuf *tb);
void text_sequences(struct fs *fs, const struct cred *cred, struct textbuf *tb);
/** text_status() - of the inode @ino. Return: 0 or -ESTALE. */
int __must_check text_status(struct fs *fs, u64 ino, struct textbuf *tb);
/** config_write() - one "key=value" line. Return: 0, -EINVAL, -EPERM (not a live one). */
int __must_check config_write(struct fs *fs, const char *line, size_t len);

/* ---- .kvc/control (control_cmd.c) ---- */
struct conversation;
struct conversation *conversation_new(void);
void conversation_free(struct conversation *c);
/** conversation_write() - -EMSGSIZE, -EFBIG, -EBUSY, -ENOMEM. */
int __must_check conversation_write(struct conversation *c, const char *buf, size_t len);
/** conversation_read() - run a complete request; then the next part of the reply. */
void conversation_read(struct conversation *c, fuse_req_t req, size_t size);

/* ---- requests (control_verbs.c) ---- */
struct request {
	struct fs *fs;
	fuse_req_t req; /* for interruption only */
	const struct cred *cred;
	char *args[4]; /* unescaped; args[0] the verb */
	unsigned int nr_args;
	struct fseq *from; /* fork: the source, instead of args[1]; NULL: by its path */
	struct {
		char *key, *value;
	} opts[4];
	unsigned int nr_opts;
	const u32 *ids; /* match */
	u32 nr_ids;
	struct textbuf *reply; /* "key=value ..." behind "ok", or the reason of an error */
};
/**
 * request_walk() - follow @path from the root with the caller's permissions.
 * @at: where it leads; with @name the directory of its last part, which @name then is
 * Return: 0, -ENOENT, -ENOTDIR, -EACCES, -ENAMETOOLONG, with a reason in @reply. Lock held.
 */
int __must_check request_walk(struct request *r, const char *path, struct inode **at,
			      const char **name);
/** request_run() - Return: 0 or -errno with a reason in @reply. May block. */
int __must_check request_run(struct request *r);

#endif
