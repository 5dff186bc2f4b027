/* SPDX-License-Identifier: Apache-2.0 */
/* One session. Served by one thread at a time. */
#ifndef KVC_FS_RPC_SESSION_H
#define KVC_FS_RPC_SESSION_H

#include <sys/types.h>
#include "allocator/base/compiler.h"

struct fs;
struct session;

/** session_new() - of connection @fd, which it takes over. NULL: no memory, @fd is as it was. */
struct session *session_new(struct fs *fs, int fd);
/** session_free() - close, give everything back. May block. */
void session_free(struct session *s);
uid_t session_uid(const struct session *s);
/** session_fd() - what to wait at for its next message, or after session_leave() for the end of its lease. */
int session_fd(const struct session *s);
/**
 * session_leave() - hang up, and give back all but what the client may still have mapped.
 * Return: true: it has a lease, wait for that to end and call this again; false: session_free() now.
 * May block.
 */
bool __must_check session_leave(struct session *s);
/** session_refuse() - its HELLO will be answered with @err. */
void session_refuse(struct session *s, int err);
/**
 * session_serve() - take messages, execute, reply: those that are there, and come within @linger_ns of
 * each other, up to a limit. @buf: KVC_MSG_MAX bytes, aligned as malloc()'s.
 * Return: 0, or the session is over: -ENOTCONN (closed), -EPROTO. May block.
 */
int __must_check session_serve(struct session *s, void *buf, u64 linger_ns);

#endif
