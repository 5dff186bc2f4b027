/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Namespaces and sequences in the tree: what the names `.geometry`, `kv*` and `tokens*` do (UAPI
 * sections 2 to 4). Functions say whether the lock is held; gates as their callers took them.
 */
#ifndef KVC_FS_KVDIR_H
#define KVC_FS_KVDIR_H

#include "fs/fseq.h"

static inline struct nspace *dir_ns(const struct inode *dir)
{
	return dir->dir->ns;
}

/** kind_of_name() - what a file called @name in @dir is. */
enum inode_kind kind_of_name(const struct inode *dir, const char *name);
/** name_is_special() - would @name be a KV or ids file in a namespace? */
bool name_is_special(const char *name);
/** name_is_sequence() - exactly `kv` or `tokens`, which are the directory's sequence. */
bool name_is_sequence(const struct inode *dir, const char *name);
/** kvdir_root() - chain root in force in @dir (its salt or an ancestor's). Holds the lock. */
u32 kvdir_root(const struct inode *dir);
/** kvdir_priority() - the nearest ancestor's user.kvc.priority, 50 without. Holds the lock. */
u8 kvdir_priority(struct inode *dir);

/** kvdir_enter() - new directory @inode is below @dir now: it is in the same namespace. Lock. */
void kvdir_enter(struct inode *dir, struct inode *inode);

/**
 * kvdir_new_file() - give new KV or ids inode @inode, about to be called @name in @dir, its
 * sequence. Lock held.
 */
int __must_check kvdir_new_file(struct fs *fs, struct inode *inode, struct inode *dir,
				const char *name);
/** kvdir_unname() - a file that kvdir_new_file() made was not entered after all. Lock held. */
void kvdir_unname(struct fs *fs, struct inode *inode, struct inode *dir);

/**
 * kvdir_unlink() - `kv` or `tokens` entry @dentry is going away; remove it, keep what stays of the
 * sequence. Directory's gate and the gates of both files alone; lock held, released in between.
 */
int __must_check kvdir_unlink(struct fs *fs, struct dentry *dentry);

/** struct kv_rename - a rename of a KV or ids file inside a namespace. */
struct kv_rename {
	struct dentry *from;
	struct inode *to_dir;
	const char *to_name;
	struct dentry *over; /* replaced entry, or NULL */
};

/** kvdir_rename() - gates of directories and of all files involved alone; lock as above. */
int __must_check kvdir_rename(struct fs *fs, const struct kv_rename *r);

/** kvdir_gates() - want the gates of @dir's `kv` and `tokens`, alone. Lock held. */
void kvdir_gates(struct gates *gates, struct inode *dir);

/** kvdir_changed_range() - the same for [@off, @off + @len); told to the kernel only where it matters. */
void kvdir_changed_range(struct fs *fs, struct inode *inode, u64 off, u64 len);
/** kvdir_changed() - bytes of these files changed behind the page cache. Lock held. */
void kvdir_changed(struct fs *fs, struct inode *inode);

/* ---- .geometry (geofile.c) ---- */

#define GEOMETRY_NAME ".geometry"

/** geofile_is() - is this the body of a file called .geometry now? Lock held. */
struct dentry *geofile_entry(const struct inode *inode);
/** geofile_write() - a write to it: whole text checked first. Gate alone, lock not held. */
int __must_check geofile_write(struct fs *fs, struct inode *inode, const void *buf, size_t len,
			       u64 off);
/** geofile_judge() - a writer closed it. Gate alone, lock not held. */
int __must_check geofile_judge(struct fs *fs, struct inode *inode);
/** geofile_settle() - it becomes what it shows. Gate alone, lock not held. */
void geofile_settle(struct fs *fs, struct inode *inode);
/** geofile_unshow() - raw text again: it is being changed. Lock held. */
void geofile_unshow(struct inode *inode);

/** struct geo_verdict - what a text would do to a directory. */
struct geo_verdict {
	struct geometry geo;
	bool complete;
};
/** geofile_read() - parse @inode's text. Gate taken, lock not held. -EINVAL (logged). */
int __must_check geofile_read(struct fs *fs, struct inode *inode, struct geo_verdict *v);
/**
 * geofile_apply() - @inode, called or about to be called .geometry in @dir, says @v. Lock held.
 * Return: 0, -EPERM, -ENOTEMPTY, -ENOMEM.
 */
int __must_check geofile_apply(struct fs *fs, struct inode *dir, struct inode *inode,
			       const struct geo_verdict *v);

#endif
