/* SPDX-License-Identifier: Apache-2.0 */
/* Appending: reserve, commit, and what takes tokens away again. */
#include <errno.h>
#include "allocator/base/err.h"
#include "fs/persist.h"
#include "fs/rpc/endpoint.h"

static u64 block_start(const struct handle *h, u32 token)
{
	const struct geometry *geo = &h->fseq->ns->geo;

	return token / geo->block_tokens * geo->block_bytes;
}

static u64 block_end(const struct handle *h, u32 token)
{
	const struct geometry *geo = &h->fseq->ns->geo;

	return div_round_up(token, geo->block_tokens) * geo->block_bytes;
}

/* The room as it is now, in the books. */
static void count_room(struct handle *h, u32 nr_before)
{
	u64 bytes = h->room ? h->room->nr * h->fseq->ns->geo.block_stride : 0;

	ep_show_pins(h->ep, (int64_t)(h->room ? h->room->nr : 0) - nr_before,
		     (int64_t)(bytes - h->room_bytes));
	h->ep->room_bytes += bytes - h->room_bytes;
	h->room_bytes = bytes;
}

static int reserve(struct handle *h, u32 tokens)
{
	struct sequence *seq = h->fseq->seq;
	u32 before = h->room ? h->room->nr : 0;
	u64 need = seq_room_need(seq, tokens, h->room);
	int err = need ? ep_may_pin(h->ep, need) : 0;

	if (err)
		return err;
	err = seq_room_begin(seq, tokens, &h->room);
	if (err == -ENOSPC) {
		persist_make_room(h->ep->fs);
		err = seq_room_begin(seq, tokens, &h->room);
	}
	count_room(h, before);
	return err;
}

int op_rpc_append(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd)
{
	struct kvc_op_append *op = &cmd->append;
	bool fresh = !h->room;
	struct placed placed;
	int err;

	if (!ep->nr_slots) /* only a session can map what it is to fill */
		return -EOPNOTSUPP;
	if (op->flags)
		return -EINVAL;
	err = ep_may_see(ep, h->fseq, true);
	if (!err)
		err = reserve(h, op->tokens);
	if (err)
		return err;
	placed = (struct placed){.places = h->room->places,
				 .nr = h->room->nr,
				 .stride = h->fseq->ns->geo.block_stride};
	op->first_block = h->room->first;
	op->nr_blocks = h->room->nr;
	err = put_extents(ep, &placed, &op->extents);
	if (err && fresh)
		handle_end_room(h);
	return err;
}

/* As fsync: everything of the sequence, and its names. */
static int make_durable(struct fs *fs, struct fseq *fseq)
{
	struct gates gates;
	u64 seq = 0;
	int err;

	fs_lock(fs);
	do {
		gates = GATES_INIT;
		gates_add(&gates, fseq->kv, false);
		gates_add(&gates, fseq->ids, false);
	} while (!gates_take(fs, &gates));
	fs_unlock(fs);
	err = persist_fseq(fs, fseq, &seq);
	fs_lock(fs);
	if (!err)
		err = log_submit(fs);
	seq = max(seq, fs->log_seq);
	gates_drop(fs, &gates);
	fs_unlock(fs);
	return err ? err : pool_commit(fs->pool, seq);
}

/* Of bytes that came through `kv`. */
static int commit_written(struct handle *h, const struct room_commit *c)
{
	int err = seq_written_commit(h->fseq->seq, c);

	if (err != -ENOSPC)
		return err;
	persist_make_room(h->ep->fs);
	return seq_written_commit(h->fseq->seq, c);
}

int op_rpc_commit(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd)
{
	struct kvc_op_commit *op = &cmd->commit;
	struct room_commit c = {.tokens = op->tokens, .nr_ids = op->ids.bytes / 4};
	u32 before = fseq_T(h->fseq);
	const void *ids = NULL;
	int err = 0;

	if (op->flags || op->durable > 1 || op->ids.bytes % 4)
		return -EINVAL;
	if (c.nr_ids)
		err = ep_copy_in(ep, &op->ids, &ids);
	c.ids = ids;
	if (!err && h->room)
		err = seq_room_commit(h->room, &c);
	else if (!err && (c.tokens != before || c.nr_ids))
		err = commit_written(h, &c);
	if (!err && (c.tokens != before || c.nr_ids))
		ep_changed(h, block_start(h, before), block_end(h, c.tokens));
	op->committed = fseq_T(h->fseq);
	if (err || !op->durable)
		return err;
	ep_settle(ep);
	return make_durable(ep->fs, h->fseq);
}

int op_rpc_truncate(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd)
{
	struct kvc_op_truncate *op = &cmd->truncate;
	u32 before = fseq_T(h->fseq);
	int err;

	if (op->reserved)
		return -EINVAL;
	if (op->tokens > before)
		return kvc_err(-EINVAL, rpc_truncate_up);
	handle_end_room(h);
	if (op->tokens == before)
		return 0;
	err = seq_set_tokens(h->fseq->seq, op->tokens);
	if (!err)
		ep_changed(h, block_start(h, op->tokens), block_end(h, before));
	return err;
}
