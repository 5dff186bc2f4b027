/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small mount without FUSE, with one namespace, for tests that throw requests at the dispatcher.
 *
 *	MOUNT/ns	mode 0755, owner 1000: blocks of 16 tokens, 4 KiB
 *	MOUNT/ns/a	64 committed tokens, ids 0..63
 */
#ifndef KVC_TEST_RPC_WORLD_H
#define KVC_TEST_RPC_WORLD_H

#include "fs/control.h"
#include "fs/fs.h"
#include "fs/rpc/rpc.h"

#define WORLD_ARENA 65536u
#define WORLD_SLOTS 64
#define WORLD_UID   1000u
#define WORLD_BT    16u

struct rpc_world;

struct rpc_world *rpc_world_new(void);
/** rpc_world_free() - aborts when something that endpoints held is still held. */
void rpc_world_free(struct rpc_world *w);
struct pool *rpc_world_pool(struct rpc_world *w);
struct fs *rpc_world_fs(struct rpc_world *w);
/** rpc_world_endpoint() - a client's, with an arena of WORLD_ARENA bytes and generation words. */
struct endpoint *rpc_world_endpoint(struct rpc_world *w, uid_t uid, void *arena);
/** rpc_world_send() - @msg of @bytes as it came; rewritten when it is a batch. Return: rpc_check()'s. */
int rpc_world_send(struct endpoint *ep, void *msg, size_t bytes);
/** rpc_world_fuzz() - a whole run: @data is messages of two clients, each behind two bytes of length. */
void rpc_world_fuzz(struct rpc_world *w, const u8 *data, size_t bytes);

#endif
