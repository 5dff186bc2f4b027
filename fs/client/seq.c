/* SPDX-License-Identifier: Apache-2.0 */
/* Handles of sequences, and the calls that concern one sequence and carry little. */
#include <errno.h>
#include <string.h>
#include "fs/client/client.h"

/* ---- turns ---- */

static bool any_busy(struct kvc_seq *const *seqs, u32 nr)
{
	for (u32 i = 0; i < nr; i++)
		if (seqs[i]->busy)
			return true;
	return false;
}

void seqs_take(struct kvc *kvc, struct kvc_seq *const *seqs, u32 nr)
{
	pthread_mutex_lock(&kvc->busy_lock);
	while (any_busy(seqs, nr)) {
		kvc->nr_waiting++;
		pthread_cond_wait(&kvc->idle, &kvc->busy_lock);
		kvc->nr_waiting--;
	}
	for (u32 i = 0; i < nr; i++)
		seqs[i]->busy = true;
	pthread_mutex_unlock(&kvc->busy_lock);
}

void seqs_give(struct kvc *kvc, struct kvc_seq *const *seqs, u32 nr)
{
	pthread_mutex_lock(&kvc->busy_lock);
	for (u32 i = 0; i < nr; i++)
		seqs[i]->busy = false;
	if (kvc->nr_waiting)
		pthread_cond_broadcast(&kvc->idle);
	pthread_mutex_unlock(&kvc->busy_lock);
}

static void seq_take(struct kvc_seq *seq)
{
	seqs_take(seq->kvc, &seq, 1);
}

static void seq_give(struct kvc_seq *seq)
{
	seqs_give(seq->kvc, &seq, 1);
}

/* ---- commands ---- */

struct kvc_cmd seq_cmd(const struct kvc_seq *seq, enum kvc_op op)
{
	return (struct kvc_cmd){.op = (u16)op, .handle = seq->handle};
}

/* Caller made it busy. */
static int __seq_call(struct kvc_seq *seq, struct kvc_cmd *cmd)
{
	int nr = seq->conn ? conn_call(seq->conn, cmd, 1, NULL, 0) : -ESTALE;

	return nr < 0 ? nr : cmd->result;
}

static int seq_call(struct kvc_seq *seq, struct kvc_cmd *cmd)
{
	int err;

	seq_take(seq);
	cmd->handle = seq->handle;
	err = __seq_call(seq, cmd);
	seq_give(seq);
	return err;
}

/* A command with a path, whose reference is @ref in @cmd. */
static int call_with_path(struct conn *conn, struct kvc_cmd *cmd, struct kvc_ref *ref, const char *path)
{
	size_t len = strlen(path);
	struct span span;
	int err;

	if (!len || len >= PATH_MAX)
		return len ? -ENAMETOOLONG : -EINVAL;
	err = arena_get(conn, &span, len);
	if (err)
		return err;
	memcpy(conn->arena.base + span.off, path, len);
	*ref = (struct kvc_ref){span.off, (u32)len};
	err = conn_call(conn, cmd, 1, NULL, 0);
	arena_put(conn, &span);
	return err < 0 ? err : cmd->result;
}

static const char *below_root(const char *path)
{
	while (*path == '/')
		path++;
	return path;
}

/* ---- opening and closing ---- */

static bool opened_good(const struct conn *conn, const struct kvc_op_open *o)
{
	return o->slot < conn->arena.nr_slots && o->layers && o->block_tokens && o->block_bytes &&
	       o->block_stride >= o->block_bytes && o->block_stride % KVC_PAGE_SIZE == 0;
}

/* Open @seq->path on @conn and take over what it is. Caller made it busy or has it alone. */
static int open_on(struct kvc_seq *seq, struct conn *conn, u32 flags)
{
	struct kvc_cmd cmd = {.op = KVC_OP_OPEN, .open = {.flags = flags}};
	int err = call_with_path(conn, &cmd, &cmd.open.path, seq->path);
	const struct kvc_op_open *o = &cmd.open;

	if (!err && !opened_good(conn, o))
		err = -EPROTO;
	if (err)
		return err;
	seq->handle = cmd.handle;
	seq->slot = o->slot;
	seq->generation = o->generation;
	seq->tokens = o->tokens;
	seq->ticket = 0;
	seq->layout = (struct kvc_layout){sizeof(seq->layout), o->layers, o->block_tokens, o->layout,
					  o->token_bytes, o->block_bytes, o->block_stride,
					  o->block_bytes % o->layers ? 0 : o->block_bytes / o->layers};
	seq->conn = conn_get(conn);
	return 0;
}

/* The room stays until the next append: somebody may be writing there, in vain. */
void seq_reopen(struct kvc_seq *seq, struct conn *conn)
{
	struct conn *old;

	seq_take(seq);
	old = seq->conn;
	seq->conn = NULL;
	if (open_on(seq, conn, seq->flags & KVC_SEQ_WRITE))
		seq->conn = NULL;
	else
		views_attach(seq);
	seq_give(seq);
	if (old)
		conn_put(old);
}

static void seq_free(struct kvc_seq *seq)
{
	mapping_drop(&seq->room);
	free(seq->room_runs.run);
	if (seq->conn)
		conn_put(seq->conn);
	free(seq);
}

static struct kvc_seq *seq_new(const char *path, unsigned int flags)
{
	size_t len = strlen(path);
	struct kvc_seq *seq = calloc(1, sizeof(*seq) + len + 1);

	if (!seq)
		return NULL;
	memcpy(seq->path, path, len);
	seq->flags = flags;
	atomic_init(&seq->ref, 1);
	return seq;
}

static void seq_list(struct kvc *kvc, struct kvc_seq *seq)
{
	atomic_fetch_add(&kvc->ref, 1);
	seq->kvc = kvc;
	seq->next = kvc->seqs;
	if (seq->next)
		seq->next->prev = seq;
	kvc->seqs = seq;
}

static void seq_unlist(struct kvc_seq *seq)
{
	*(seq->prev ? &seq->prev->next : &seq->kvc->seqs) = seq->next;
	if (seq->next)
		seq->next->prev = seq->prev;
}

int kvc_seq_open(struct kvc *kvc, struct kvc_seq **out, const char *path, unsigned int flags)
{
	struct kvc_seq *seq = seq_new(below_root(path), flags);
	struct conn *conn;
	int err;

	if (!seq)
		return -ENOMEM;
	conn = kvc_conn(kvc);
	err = open_on(seq, conn, flags);
	conn_put(conn);
	if (err) {
		seq_free(seq);
		return err;
	}
	pthread_mutex_lock(&kvc->lock);
	seq_list(kvc, seq);
	pthread_mutex_unlock(&kvc->lock);
	*out = seq;
	return 0;
}

void seq_get(struct kvc_seq *seq)
{
	atomic_fetch_add(&seq->ref, 1);
}

void seq_put(struct kvc_seq *seq)
{
	struct kvc *kvc = seq->kvc;
	struct kvc_cmd cmd;
	bool last;

	pthread_mutex_lock(&kvc->lock);
	last = atomic_fetch_sub(&seq->ref, 1) == 1;
	if (last)
		seq_unlist(seq);
	pthread_mutex_unlock(&kvc->lock);
	if (!last)
		return;
	cmd = seq_cmd(seq, KVC_OP_CLOSE);
	(void)seq_call(seq, &cmd); /* the daemon may be gone, and the handle with it */
	seq_free(seq);
	kvc_put(kvc);
}

/* Views that are still mapped keep the handle, and so their pins. */
void kvc_seq_close(struct kvc_seq *seq)
{
	if (!seq)
		return;
	seq_take(seq);
	mapping_drop(&seq->room);
	seq->room_runs.nr = 0;
	seq_give(seq);
	seq_put(seq);
}

/* ---- small calls ---- */

int kvc_seq_layout(struct kvc_seq *seq, struct kvc_layout *layout)
{
	size_t size = layout->size;

	if (size < offsetof(struct kvc_layout, slice_bytes))
		return -EINVAL;
	seq_take(seq);
	memcpy(layout, &seq->layout, min(size, sizeof(*layout)));
	seq_give(seq);
	layout->size = size;
	return 0;
}

int kvc_seq_query(struct kvc_seq *seq, struct kvc_info *info)
{
	struct kvc_cmd cmd = {.op = KVC_OP_QUERY};
	const struct kvc_op_query *q = &cmd.query;
	size_t size = info->size;
	int err;

	if (size < sizeof(*info))
		return -EINVAL;
	err = seq_call(seq, &cmd);
	if (!err)
		*info = (struct kvc_info){size, q->tokens, q->ids, q->cached_tokens, q->state,
					  q->blocks, q->dram_blocks, q->nvme_blocks,
					  q->shared_blocks};
	return err;
}

int64_t kvc_seq_tokens(struct kvc_seq *seq)
{
	struct kvc_info info = {.size = sizeof(info)};
	int err = kvc_seq_query(seq, &info);

	return err ? err : (int64_t)info.tokens;
}

int kvc_seq_sync(struct kvc_seq *seq)
{
	struct kvc_cmd cmd;
	int err;

	seq_take(seq);
	cmd = seq_cmd(seq, KVC_OP_COMMIT);
	cmd.commit.tokens = seq->tokens;
	cmd.commit.durable = 1;
	err = __seq_call(seq, &cmd);
	seq_give(seq);
	return err;
}

int kvc_seq_fork(struct kvc_seq *seq, const char *path, uint32_t tokens)
{
	struct kvc_cmd cmd;
	int err = -ESTALE;

	seq_take(seq);
	cmd = seq_cmd(seq, KVC_OP_FORK);
	cmd.fork.tokens = tokens;
	if (seq->conn)
		err = call_with_path(seq->conn, &cmd, &cmd.fork.path, below_root(path));
	seq_give(seq);
	return err;
}

int kvc_seq_truncate(struct kvc_seq *seq, uint32_t tokens)
{
	struct kvc_cmd cmd;
	int err;

	seq_take(seq);
	cmd = seq_cmd(seq, KVC_OP_TRUNCATE);
	cmd.truncate.tokens = tokens;
	err = __seq_call(seq, &cmd);
	if (!err)
		seq->tokens = min(seq->tokens, tokens);
	seq_give(seq);
	return err;
}

int kvc_seq_set_state(struct kvc_seq *seq, enum kvc_state state, uint32_t paused_seconds)
{
	struct kvc_cmd cmd = {.op = KVC_OP_STATE,
			      .state = {.state = (u32)state, .paused_s = paused_seconds}};

	return seq_call(seq, &cmd);
}

int kvc_admit(struct kvc_seq *seq, uint32_t tokens)
{
	struct kvc_cmd cmd = {.op = KVC_OP_ADMIT, .admit = {.tokens = tokens}};
	int err = seq_call(seq, &cmd);

	if (!err && cmd.admit.answer > KVC_ADMIT_RECOMPUTE)
		err = -EPROTO;
	return err ? err : (int)cmd.admit.answer;
}
