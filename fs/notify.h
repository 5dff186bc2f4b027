/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Telling the kernel that cached pages are stale. Invalidation takes page locks, which a request
 * that is being served may hold; so it happens on a thread of its own, never on a request's.
 */
#ifndef KVC_FS_NOTIFY_H
#define KVC_FS_NOTIFY_H

#include "allocator/base/compiler.h"

struct fuse_session;

int __must_check notify_start(struct fuse_session *session);
void notify_stop(void);
/** notify_inval_range() - those of [@off, @off + @len); @len 0: to the end. Never blocks. */
void notify_inval_range(u64 ino, u64 off, u64 len);
/** notify_inval() - drop all cached pages of @ino, soon. Never blocks. */
void notify_inval(u64 ino);

#endif
