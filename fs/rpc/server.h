/* SPDX-License-Identifier: Apache-2.0 */
/* The session socket: where it is, and its life beside the mount's. */
#ifndef KVC_FS_RPC_SERVER_H
#define KVC_FS_RPC_SERVER_H

#include "allocator/base/compiler.h"

struct fs;
struct rpc_server;
struct textbuf;

/**
 * rpc_server_start() - listen and serve. @why: one clear line on failure.
 * Return: 0 (with *server NULL when there is to be no socket), -errno.
 */
int __must_check rpc_server_start(struct rpc_server **server, struct fs *fs, struct textbuf *why);
/** rpc_server_path() - the socket's, absolute. */
const char *rpc_server_path(const struct rpc_server *server);
/** rpc_server_stop() - end all sessions, remove the socket. NULL is fine. May block. */
void rpc_server_stop(struct rpc_server *server);

#endif
