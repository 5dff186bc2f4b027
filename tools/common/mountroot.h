/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a path lies: the root of its kvcachefs mount and its name below that root, and the files
 * that the daemon computes in `.kvc/` there.
 */
#ifndef KVC_TOOLS_MOUNTROOT_H
#define KVC_TOOLS_MOUNTROOT_H

#include <limits.h>
#include "allocator/base/compiler.h"
#include "allocator/base/textbuf.h"

struct mountroot {
	char root[PATH_MAX]; /* absolute, no trailing slash (but "/" itself) */
	char rel[PATH_MAX];  /* below the root, "." for the root */
};

/**
 * mountroot_find() - resolve @path (symbolic links followed) and climb to the root of its mount.
 *
 * The last component of @path may be missing, for names that are about to be made.
 * Return: 0; -ENODEV when the path is on no kvcachefs mount (no `.kvc/version` at the root), with
 * @mr filled; or the errno of the path itself.
 */
int __must_check mountroot_find(const char *path, struct mountroot *mr);

/**
 * mountroot_read() - the whole of `.kvc/NAME`, appended to @text.
 *
 * Return: 0 or a negative errno; -EFBIG beyond 1 GiB.
 */
int __must_check mountroot_read(const struct mountroot *mr, const char *name,
				struct textbuf *text);

/** mountroot_read_file() - the whole of any file, as mountroot_read(). */
int __must_check mountroot_read_file(const char *path, struct textbuf *text);

#endif
