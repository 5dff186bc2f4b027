/* SPDX-License-Identifier: Apache-2.0 */
/* The character device /dev/kvcache: a process of its own beside the mount's daemon. */
#ifndef KVC_FS_CUSE_CUSE_H
#define KVC_FS_CUSE_CUSE_H

#include "allocator/base/compiler.h"

struct textbuf;

/** struct cuse_args - what to serve, and whom to tell. */
struct cuse_args {
	const char *mountpoint;	  /* absolute */
	bool debug;		  /* every request on stderr */
	void (*ready)(void *ctx); /* called once, when the device is there */
	void *ctx;
};

/**
 * cuse_serve() - serve /dev/kvcache until SIGTERM or SIGINT, which the caller has blocked.
 * @why: gets one clear line when it could not begin, or did not end by itself
 * Return: 0, -errno. May block; once in a process.
 */
int __must_check cuse_serve(const struct cuse_args *args, struct textbuf *why);

#endif
