/* SPDX-License-Identifier: Apache-2.0 */
/* The dispatcher: what every batch and every command is checked for before its function sees it. */
#include <errno.h>
#include "allocator/base/err.h"
#include "fs/rpc/endpoint.h"

enum op_needs {
	NEEDS_HANDLE = 1,
	NEEDS_WRITE = 2, /* the handle was opened for it */
	NEEDS_LIFE = 4,	 /* the sequence is still there */
};

static const struct {
	int (*run)(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd);
	unsigned int needs;
} ops[KVC_NR_OPS] = {
	[KVC_OP_OPEN] = {op_rpc_open, 0},
	[KVC_OP_CLOSE] = {op_rpc_close, NEEDS_HANDLE},
	[KVC_OP_MATCH] = {op_rpc_match, NEEDS_HANDLE | NEEDS_LIFE},
	[KVC_OP_MAP] = {op_rpc_map, NEEDS_HANDLE | NEEDS_LIFE},
	[KVC_OP_UNMAP] = {op_rpc_unmap, NEEDS_HANDLE},
	[KVC_OP_APPEND] = {op_rpc_append, NEEDS_HANDLE | NEEDS_WRITE | NEEDS_LIFE},
	[KVC_OP_COMMIT] = {op_rpc_commit, NEEDS_HANDLE | NEEDS_WRITE | NEEDS_LIFE},
	[KVC_OP_FORK] = {op_rpc_fork, NEEDS_HANDLE | NEEDS_LIFE},
	[KVC_OP_TRUNCATE] = {op_rpc_truncate, NEEDS_HANDLE | NEEDS_WRITE | NEEDS_LIFE},
	[KVC_OP_PREFETCH] = {op_rpc_prefetch, NEEDS_HANDLE | NEEDS_LIFE},
	[KVC_OP_STATE] = {op_rpc_state, NEEDS_HANDLE | NEEDS_WRITE | NEEDS_LIFE},
	[KVC_OP_QUERY] = {op_rpc_query, NEEDS_HANDLE | NEEDS_LIFE},
	[KVC_OP_ADMIT] = {op_rpc_admit, NEEDS_HANDLE | NEEDS_LIFE},
	[KVC_OP_POOL] = {op_rpc_pool, 0},
};

int rpc_check(const void *msg, size_t bytes)
{
	const struct kvc_batch *head = msg;

	if (bytes < sizeof(*head) || head->magic != KVC_BATCH_MAGIC ||
	    head->abi != KVC_ABI_VERSION || head->flags & ~KVC_BATCH_STOP ||
	    head->bytes != bytes || !head->nr_cmds ||
	    head->nr_cmds > (bytes - sizeof(*head)) / sizeof(struct kvc_cmd))
		return kvc_err(-EPROTO, rpc_malformed);
	return 0;
}

static struct handle *handle_of(struct endpoint *ep, u32 nr)
{
	if (!nr)
		return ep->own;
	return nr <= ep->nr_handles ? ep->handles[nr - 1] : NULL;
}

static int run(struct endpoint *ep, struct kvc_cmd *cmd)
{
	struct handle *h = NULL;
	unsigned int needs;

	if (cmd->op >= KVC_NR_OPS || !ops[cmd->op].run)
		return cmd->op == KVC_OP_HELLO ? -EINVAL : -EOPNOTSUPP;
	if (cmd->flags || cmd->reserved)
		return -EINVAL;
	needs = ops[cmd->op].needs;
	if (needs & NEEDS_HANDLE) {
		h = handle_of(ep, cmd->handle);
		if (!h)
			return -EBADF;
	}
	if (needs & NEEDS_LIFE && atomic_load(&h->stale))
		return -ESTALE;
	if (needs & NEEDS_WRITE && !h->writable)
		return -EACCES;
	return ops[cmd->op].run(ep, h, cmd);
}

void rpc_run(struct endpoint *ep, struct rpc_msg *msg)
{
	struct kvc_cmd *cmds = (struct kvc_cmd *)(msg->head + 1);
	bool stopped = false;

	ep->msg = msg;
	msg->nr_fds = 0;
	for (u32 i = 0; i < msg->head->nr_cmds; i++) {
		cmds[i].result = stopped ? -ECANCELED : run(ep, &cmds[i]);
		stopped |= cmds[i].result && msg->head->flags & KVC_BATCH_STOP;
	}
	ep_settle(ep);
	ep_trim(ep);
	ep->msg = NULL;
}
