/* SPDX-License-Identifier: Apache-2.0 */
/* The FUSE session: everything that depends on the version of libfuse. */
#ifndef KVC_FS_SESSION_H
#define KVC_FS_SESSION_H

#include "fs/fs.h"

struct textbuf;

/**
 * session_mount() - mount at opts->mountpoint (absolute).
 * @why: one clear line on failure
 */
int __must_check session_mount(struct fs *fs, struct textbuf *why);
/**
 * session_run() - serve until the mount goes or session_stop(). @ready is called once, on a thread
 * of its own, when the mount answers. Return: 0 or -errno.
 */
int __must_check session_run(struct fs *fs, void (*ready)(void *ctx), void *ctx);
/**
 * session_from_outside() - let a child ask something of our own mount: @ask is called there, without any
 * of our descriptors, and only with what is safe behind a fork of threads. Waits for it.
 * Return: 0, -EIO when @ask did not return 0, -errno.
 */
int __must_check session_from_outside(int (*ask)(const char *mountpoint), const char *mountpoint);
/** session_stop() - make session_run() return; from any thread. */
void session_stop(struct fs *fs);
/** session_end() - unmount and free. */
void session_end(struct fs *fs);

#endif
