/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of libkvcmap: which file a descriptor is, and which blocks a mapping wants. */
#ifndef KVC_CLIENT_KVCMAP_H
#define KVC_CLIENT_KVCMAP_H

#include <sys/stat.h>
#include "fs/client/client.h"

/** struct kvfile - a `kv` file on a mount of kvcachefs. */
struct kvfile {
	char root[PATH_MAX]; /* a mount point that shows all of the mount */
	char seq[PATH_MAX];  /* the sequence's directory, from the mount's root */
};

/** kvfile_find() - what @fd, whose stat is @st, is. Return: 0, -ENOENT (nothing of ours). */
int __must_check kvfile_find(int fd, const struct stat *st, struct kvfile *file);
/** kvfile_reopen() - open it again. Return: a descriptor; -ESTALE: another file is there now. */
int __must_check kvfile_reopen(const struct kvfile *file, const struct stat *st);

#endif
