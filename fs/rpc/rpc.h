/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of the programming interface (fs/uapi/kvc_ioctl.h), by whatever way they come: a session's
 * socket, an ioctl, the character device.
 *
 * An *endpoint* is the client's end of such a way: who it is, which sequences it has open, what it has
 * pinned, its arena. rpc_run() executes a batch against it. What an endpoint holds dies with it, so
 * whoever owns the way (a connection, an open file) owns the lease.
 *
 *   message ─► rpc_check() ─► rpc_run() ─► one function per op ─► the sequence, the pool
 *                                │
 *                                └─► once per batch: what changed becomes dirty, stale pages go
 *
 * Nothing that comes from a client is believed. Commands lie in private memory. The arena is shared
 * and may change at any time: what is checked is copied first, and what is written to it is never
 * read back.
 *
 * An endpoint serves one batch at a time; its owner sees to that. Two batches of two endpoints run
 * beside each other, and exclude each other only at the sequence that both change.
 */
#ifndef KVC_FS_RPC_H
#define KVC_FS_RPC_H

#include "allocator/base/compiler.h"
#include "fs/uapi/kvc_ioctl.h"

struct cred;
struct endpoint;
struct fs;
struct fseq;
struct textbuf;

#define RPC_MAX_FDS  64 /* descriptors with one reply */
#define RPC_SLOTS    4096 /* handles of a session */

/** struct rpc_msg - a batch being executed. */
struct rpc_msg {
	struct kvc_batch *head; /* private memory, commands behind it */
	int fds[RPC_MAX_FDS];	/* for the reply; the caller closes them */
	unsigned int nr_fds;
};

/** endpoint_new() - for a client @cred; @pid is only shown. NULL: no memory. Lock not held. */
struct endpoint *endpoint_new(struct fs *fs, const struct cred *cred, pid_t pid);
/** endpoint_free() - give back all that it holds. NULL is fine. May block. */
void endpoint_free(struct endpoint *ep);
/**
 * endpoint_leave() - its client has gone, but may still have memory that it mapped or reserved: that stays as
 * it is until endpoint_free(), which alone may follow. Everything else is given back.
 * Return: whether there is such memory. Lock not held, may block.
 */
bool endpoint_leave(struct endpoint *ep);
/** endpoint_set_cred() - another process of the client asks from now on. */
void endpoint_set_cred(struct endpoint *ep, const struct cred *cred);
/** endpoint_set_arena() - where references of the next batch point to; not owned. */
void endpoint_set_arena(struct endpoint *ep, void *arena, u64 bytes);
/** endpoint_set_slots() - generation words of handles, in the arena; not owned. */
void endpoint_set_slots(struct endpoint *ep, u64 *slots, u32 nr);
/** endpoint_set_events() - completion words of as many handles, and where to write a byte; not owned. */
void endpoint_set_events(struct endpoint *ep, u64 *words, int fd);
/**
 * endpoint_set_own() - sequence that commands without a handle are about; NULL: none.
 * @writable: may it be changed that way
 */
int __must_check endpoint_set_own(struct endpoint *ep, struct fseq *fseq, bool writable);

/**
 * rpc_check() - is @msg of @bytes, private memory, a batch? @batch_bytes: what its head must say.
 * Return: 0, -EPROTO.
 */
int __must_check rpc_check(const void *msg, size_t bytes);
/** rpc_run() - execute; results are in the commands. Lock not held, may block. */
void rpc_run(struct endpoint *ep, struct rpc_msg *msg);

/** text_sessions() - .kvc/sessions. */
void text_sessions(struct fs *fs, const struct cred *cred, struct textbuf *tb);

#endif
