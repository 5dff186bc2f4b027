/* SPDX-License-Identifier: Apache-2.0 */
/* Making files: what the kernel's create, mknod, mkdir and symlink share with sessions. */
#ifndef KVC_FS_MAKE_H
#define KVC_FS_MAKE_H

#include "fs/fs.h"

/** struct make - a new file, as the caller of the operation wants it. */
struct make {
	uid_t uid; /* the caller's; a setgid directory gives its group instead */
	gid_t gid;
	const char *name;
	u32 mode;
	int flags; /* open flags of create; O_EXCL for mknod */
	u64 rdev;
	const char *target; /* symlink */
};

/**
 * make_inode() - a new inode, named in @dir and logged. Gate of @dir taken alone, lock held; the name
 * is free and fit for what it names.
 * Return: the inode, or NULL and *err.
 */
struct inode *make_inode(struct fs *fs, struct inode *dir, const struct make *m, int *err);

#endif
