/* SPDX-License-Identifier: Apache-2.0 */
/* Commands about a sequence that map nothing: match, fork, state, query, admit. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "allocator/base/err.h"
#include "allocator/base/textbuf.h"
#include "fs/rpc/endpoint.h"

static void put_residency(struct kvc_op_match *op, const struct pool_residency *res)
{
	op->dram_blocks = res->dram;
	op->nvme_blocks = res->nr - min(res->dram, res->nr);
}

static u32 root_of(struct sequence *seq)
{
	u32 root;

	lock_acquire(&seq->tab.lock);
	root = seq->root;
	lock_release(&seq->tab.lock);
	return root;
}

/*
 * How much of @ids is cached, pinning and renewing nothing. They lie in the arena: a client that changes
 * them meanwhile gets a count that it can make nothing of. They are compared with what is indexed and
 * decide over nothing else.
 */
static int count(struct handle *h, const u32 *ids, u32 nr_ids, struct kvc_op_match *op)
{
	struct pool *pool = h->ep->fs->pool;
	struct prefix_key key = {.root = root_of(h->fseq->seq),
				 .block_tokens = h->fseq->ns->geo.block_tokens,
				 .ids = ids,
				 .nr_ids = nr_ids};
	struct pool_residency res = {0};
	struct block_id small[256], *found = small;
	unsigned int nr = nr_ids / key.block_tokens;

	if (nr > ARRAY_SIZE(small))
		found = kvc_alloc_array(nr, sizeof(*found));
	if (!found)
		return -ENOMEM;
	nr = key.root ? prefix_match(pool, &key, found, false) : 0;
	pool_residency(pool, found, nr, &res);
	op->matched = nr * key.block_tokens;
	put_residency(op, &res);
	if (found != small)
		free(found);
	return 0;
}

/* Residency of the first @nr blocks. */
static int leading_residency(struct handle *h, u32 nr, struct pool_residency *res)
{
	struct blktab *tab = &h->fseq->seq->tab;

	*res = (struct pool_residency){0};
	lock_acquire(&tab->lock);
	pool_residency(tab->pool, tab->blocks, min(nr, tab->nr_blocks), res);
	lock_release(&tab->lock);
	return 0;
}

static int attach(struct handle *h, const u32 *ids, u32 nr_ids, struct kvc_op_match *op)
{
	struct sequence *seq = h->fseq->seq;
	struct pool_residency res;
	u64 size;
	int err;

	if (!h->writable)
		return -EACCES;
	handle_end_room(h);
	size = seq_size(seq);
	err = seq_set_ids(seq, ids, nr_ids, &op->matched);
	if (err)
		return err;
	ep_changed(h, 0, max(size, seq_size(seq)));
	err = leading_residency(h, div_round_up(op->matched, h->fseq->ns->geo.block_tokens),
				&res);
	put_residency(op, &res);
	return err;
}

int op_rpc_match(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd)
{
	struct kvc_op_match *op = &cmd->match;
	u32 nr = op->ids.bytes / 4;
	const u32 *ids;

	if (op->flags & ~(u32)KVC_MATCH_ATTACH || op->ids.bytes % 4 || op->ids.off % 4)
		return -EINVAL;
	if (nr > SEQ_MAX_IDS)
		return -EFBIG;
	/* Any ids will do, so they are taken where they lie, as they are at that moment. */
	ids = ep_ref(ep, &op->ids);
	if (!ids)
		return kvc_err(-EFAULT, rpc_ids_outside);
	return op->flags & KVC_MATCH_ATTACH ? attach(h, ids, nr, op) : count(h, ids, nr, op);
}

int op_rpc_fork(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd)
{
	struct kvc_op_fork *op = &cmd->fork;
	struct textbuf reply = TEXTBUF_INIT;
	struct request r = {.fs = ep->fs,
			    .cred = &ep->cred,
			    .args = {"fork", "", NULL},
			    .nr_args = 3,
			    .from = h->fseq,
			    .reply = &reply};
	const void *path;
	char tokens[16];
	int err;

	if (op->reserved || op->path.bytes > 4096)
		return -EINVAL;
	if (!op->tokens)
		return kvc_err(-EINVAL, rpc_fork_nothing);
	if (ep->fs->opts->read_only)
		return -EROFS;
	err = ep_copy_in(ep, &op->path, &path);
	if (!err && strlen(path) != op->path.bytes)
		err = -EINVAL;
	if (err)
		return err;
	r.args[2] = ep->scratch;
	if (op->tokens != UINT32_MAX) {
		snprintf(tokens, sizeof(tokens), "%u", op->tokens);
		r.opts[0].key = "tokens";
		r.opts[0].value = tokens;
		r.nr_opts = 1;
	}
	err = request_run(&r);
	textbuf_free(&reply);
	return err;
}

int op_rpc_state(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd)
{
	const struct kvc_op_state *op = &cmd->state;

	if (op->state > SEQ_DECODING)
		return -EINVAL;
	fseq_set_state(ep->fs, h->fseq, (enum seq_state)op->state,
		       op->state == SEQ_PAUSED ? op->paused_s : 0);
	h->state_set = op->state >= SEQ_QUEUED;
	return 0;
}

int op_rpc_query(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd)
{
	struct sequence *seq = h->fseq->seq;
	struct kvc_op_query *op = &cmd->query;
	struct pool_residency res = {0};

	lock_acquire(&seq->tab.lock);
	op->tokens = seq->T;
	op->ids = seq->loose ? 0 : seq->nr_ids;
	op->cached_tokens = seq->cached_tokens;
	op->state = seq->state;
	pool_residency(seq->tab.pool, seq->tab.blocks, seq->tab.nr_blocks, &res);
	lock_release(&seq->tab.lock);
	op->blocks = res.nr;
	op->dram_blocks = res.dram;
	op->nvme_blocks = res.nvme;
	op->shared_blocks = res.shared;
	return 0;
}

/* Nothing is held back yet: whoever asks may run. */
int op_rpc_admit(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd)
{
	cmd->admit.answer = KVC_ADMIT_RUN;
	return 0;
}
