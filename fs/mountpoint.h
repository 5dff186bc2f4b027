/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_FS_MOUNTPOINT_H
#define KVC_FS_MOUNTPOINT_H

#include "fs/opts.h"

/**
 * mountpoint_check() - can there be a mount, or with --cuse is there one? Makes both paths absolute.
 * @why: one line that says what to do
 * Return: 0, -errno.
 */
int __must_check mountpoint_check(struct fs_opts *opts, struct textbuf *why);
/** source_is_mounted() - is there a mount of the store @source (absolute)? Where nobody can tell: yes. */
bool source_is_mounted(const char *source);

#endif
