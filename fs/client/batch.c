/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Match, map, append and commit, of one sequence or of many in one message.
 *
 * A batch makes its sequences busy, then sends as many commands at once as fit into a message and the
 * arena. Each entry has its own result; one that cannot be sent (too large for the
 * arena, lost at a reconnect, of another session) keeps nobody else from being sent.
 */
#include <errno.h>
#include <string.h>
#include "fs/client/client.h"

/** struct batch_ops - what differs; entries begin with their struct kvc_seq pointer. */
struct batch_ops {
	enum kvc_op op;
	size_t entry_bytes, result_at;
	u64 (*need)(const void *entry); /* arena bytes */
	void (*fill)(const void *entry, struct kvc_cmd *cmd, struct kvc_ref at, u8 *arena);
	/* For commands that succeeded; @arena is where fill() put things. */
	int (*done)(void *entry, const struct kvc_cmd *cmd, const u8 *arena);
};

/** struct batch - a call under way. */
struct batch {
	const struct batch_ops *ops;
	struct kvc *kvc;
	struct conn *conn;     /* reference; the one in force */
	u8 *entries;
	u32 nr;
	struct kvc_seq **seqs; /* busy with this */
	u32 nr_seqs;
	struct kvc_cmd *cmds;  /* of one message; cookie: index of the entry */
	struct kvc_ref *refs;  /* what each has of the arena */
	u32 nr_cmds, max_cmds;
};

static void *entry_at(const struct batch *b, u32 i)
{
	return b->entries + i * b->ops->entry_bytes;
}

static struct kvc_seq *entry_seq(const struct batch *b, u32 i)
{
	return *(struct kvc_seq **)entry_at(b, i);
}

static void set_result(const struct batch *b, u32 i, int result)
{
	*(int *)(void *)(b->entries + i * b->ops->entry_bytes + b->ops->result_at) = result;
}

/* Those that are the session's own. */
static void list_seqs(struct batch *b, const struct kvc *kvc)
{
	for (u32 i = 0; i < b->nr; i++)
		if (entry_seq(b, i)->kvc == kvc)
			b->seqs[b->nr_seqs++] = entry_seq(b, i);
}

/* ---- messages ---- */

/* Choose commands from entry @i on, until message or arena are full. Return: the entry behind them. */
static u32 choose(struct batch *b, u32 i, u64 *arena_bytes)
{
	u64 room = arena_room(b->conn);

	b->nr_cmds = 0;
	*arena_bytes = 0;
	for (; i < b->nr && b->nr_cmds < b->max_cmds; i++) {
		struct kvc_seq *seq = entry_seq(b, i);
		int err = seq->kvc != b->kvc ? -EINVAL : seq->conn != b->conn ? -ESTALE : 0;
		u64 need = err ? 0 : round_up_pow2(b->ops->need(entry_at(b, i)), sizeof(u64));

		if (err || need > room) {
			set_result(b, i, err ? err : -E2BIG);
			continue;
		}
		if (*arena_bytes + need > room)
			break;
		b->cmds[b->nr_cmds] = seq_cmd(seq, b->ops->op);
		b->cmds[b->nr_cmds].cookie = i;
		b->refs[b->nr_cmds++] = (struct kvc_ref){(u32)*arena_bytes, (u32)need};
		*arena_bytes += need;
	}
	return i;
}

static void results(struct batch *b, u32 first, u32 end, int sent)
{
	for (u32 c = 0; c < b->nr_cmds; c++) {
		const struct kvc_cmd *cmd = &b->cmds[c];
		int err = sent < 0 ? sent : cmd->result;
		u32 i = (u32)cmd->cookie;

		if (i < first || i >= end)
			continue; /* its result stays -EPROTO */
		if (!err)
			err = b->ops->done(entry_at(b, i), cmd,
					   b->conn->arena.base + b->refs[c].off);
		set_result(b, i, err);
	}
}

/* One message, from entry @first on. Return: the entry behind it, or an error that ends all. */
static int64_t send_some(struct batch *b, u32 first)
{
	struct span span;
	u64 bytes;
	u32 end = choose(b, first, &bytes);
	int err;

	if (!b->nr_cmds)
		return end;
	err = arena_get(b->conn, &span, bytes);
	if (err)
		return err;
	for (u32 c = 0; c < b->nr_cmds; c++) {
		u32 i = (u32)b->cmds[c].cookie;

		b->refs[c].off += span.off;
		b->ops->fill(entry_at(b, i), &b->cmds[c], b->refs[c],
			     b->conn->arena.base + b->refs[c].off);
		set_result(b, i, -EPROTO);
	}
	err = conn_call(b->conn, b->cmds, b->nr_cmds, NULL, 0);
	results(b, first, end, err);
	arena_put(b->conn, &span);
	return err < 0 ? err : (int64_t)end;
}

static int send_entries(struct batch *b)
{
	int64_t at = 0;
	u32 done = 0;

	while (at >= 0 && at < b->nr) {
		done = (u32)at;
		at = send_some(b, done);
	}
	for (u32 i = done; at < 0 && i < b->nr; i++)
		set_result(b, i, (int)at);
	return at < 0 ? (int)at : 0;
}

static int run(const struct batch_ops *ops, struct kvc *kvc, void *entries, u32 nr)
{
	struct batch b = {.ops = ops, .kvc = kvc, .entries = entries, .nr = nr,
			  .max_cmds = (u32)min((size_t)nr, CLIENT_MAX_CMDS)};
	int err = -ENOMEM;

	if (!nr)
		return 0;
	b.seqs = kvc_alloc_array(nr, sizeof(struct kvc_seq *));
	b.cmds = kvc_alloc_array(b.max_cmds, sizeof(*b.cmds));
	b.refs = kvc_alloc_array(b.max_cmds, sizeof(*b.refs));
	if (b.seqs && b.cmds && b.refs) {
		list_seqs(&b, kvc);
		b.conn = kvc_conn(kvc); /* kvc->lock may be held by one who waits for a sequence */
		seqs_take(kvc, b.seqs, b.nr_seqs);
		err = send_entries(&b);
		seqs_give(kvc, b.seqs, b.nr_seqs);
		conn_put(b.conn);
	}
	free(b.seqs);
	free(b.cmds);
	free(b.refs);
	return err;
}

/* ---- match ---- */

static u64 match_need(const void *entry)
{
	return (u64)((const struct kvc_match_entry *)entry)->nr_ids * sizeof(u32);
}

static void match_fill(const void *entry, struct kvc_cmd *cmd, struct kvc_ref at, u8 *arena)
{
	const struct kvc_match_entry *e = entry;
	u32 bytes = (u32)match_need(e);

	if (bytes)
		memcpy(arena, e->ids, bytes);
	cmd->match.ids = (struct kvc_ref){at.off, bytes};
	cmd->match.flags = e->seq->flags & KVC_SEQ_WRITE ? KVC_MATCH_ATTACH : 0;
}

static int match_done(void *entry, const struct kvc_cmd *cmd, const u8 *arena)
{
	struct kvc_match_entry *e = entry;

	if (cmd->match.matched > e->nr_ids)
		return -EPROTO;
	e->cached = cmd->match.matched;
	if (e->seq->flags & KVC_SEQ_WRITE) /* what it had beyond was cut; a reader only asked */
		e->seq->tokens = e->cached;
	return 0;
}

int kvc_match_many(struct kvc *kvc, struct kvc_match_entry *entries, unsigned int nr)
{
	static const struct batch_ops ops = {
		KVC_OP_MATCH, sizeof(*entries), offsetof(struct kvc_match_entry, result),
		match_need, match_fill, match_done};

	return run(&ops, kvc, entries, nr);
}

int kvc_seq_match(struct kvc_seq *seq, const uint32_t *ids, uint32_t nr_ids, uint32_t *cached)
{
	struct kvc_match_entry e = {.seq = seq, .ids = ids, .nr_ids = nr_ids};
	int err = kvc_match_many(seq->kvc, &e, 1);

	if (!err)
		err = e.result;
	if (!err && cached)
		*cached = e.cached;
	return err;
}

/* ---- map ---- */

static u64 map_need(const void *entry)
{
	const struct kvc_map_entry *e = entry;

	return view_room(e->seq, e->nr_blocks);
}

static void map_fill(const void *entry, struct kvc_cmd *cmd, struct kvc_ref at, u8 *arena)
{
	const struct kvc_map_entry *e = entry;

	cmd->map.first_block = e->first_block;
	cmd->map.nr_blocks = e->nr_blocks;
	cmd->map.extents = (struct kvc_ref){at.off, (u32)map_need(e)};
}

/* Mapped later, when the arena is free again: files of the pool may have to be asked for. */
static int map_done(void *entry, const struct kvc_cmd *cmd, const u8 *arena)
{
	struct kvc_map_entry *e = entry;
	struct view *view;
	int err;

	if (!e->nr_blocks)
		return -EINVAL;
	if (cmd->map.nr_blocks > e->nr_blocks || cmd->map.extents.bytes > map_need(e))
		return -EPROTO;
	err = view_of_map(e->seq, e->first_block, cmd, arena, &view);
	if (!err)
		e->view.priv = view;
	return err;
}

/* What was pinned becomes a view; what had more extents than there was room for is asked for alone. */
static void map_show(struct kvc_map_entry *e)
{
	void *view = e->view.priv;

	e->view = (struct kvc_view){.size = sizeof(e->view)};
	if (!e->result)
		e->result = view_show(view, &e->view);
	else if (e->result == -E2BIG)
		e->result = kvc_seq_map_range(e->seq, e->first_block, e->nr_blocks, &e->view);
}

int kvc_map_many(struct kvc *kvc, struct kvc_map_entry *entries, unsigned int nr)
{
	static const struct batch_ops ops = {
		KVC_OP_MAP, sizeof(*entries), offsetof(struct kvc_map_entry, result),
		map_need, map_fill, map_done};
	int err;

	for (unsigned int i = 0; i < nr; i++)
		entries[i].result = -ENOMEM;
	err = run(&ops, kvc, entries, nr);
	for (unsigned int i = 0; i < nr; i++)
		map_show(&entries[i]);
	return err;
}

/* ---- append ---- */

/* The room begins and ends inside a block: two more than its tokens would fill. */
static u64 append_need(const void *entry)
{
	const struct kvc_append_entry *e = entry;

	return ((u64)e->nr_tokens / e->seq->layout.block_tokens + 2) * sizeof(struct kvc_extent);
}

static void append_fill(const void *entry, struct kvc_cmd *cmd, struct kvc_ref at, u8 *arena)
{
	const struct kvc_append_entry *e = entry;

	cmd->append.tokens = e->nr_tokens;
	cmd->append.extents = (struct kvc_ref){at.off, (u32)append_need(e)};
}

/* Map the room, unless it is where the last one was. */
static int show_room(struct kvc_seq *seq, struct runs *runs)
{
	struct mapping map;
	int err;

	if (seq->room_runs.nr && seq->room.conn == seq->conn && runs_equal(&seq->room_runs, runs))
		return 0;
	err = mapping_make(seq->conn, runs, true, &map);
	if (err)
		return err;
	if (map.conn)
		conn_use(map.conn);
	map.used = map.conn;
	mapping_drop(&seq->room);
	free(seq->room_runs.run);
	seq->room = map;
	seq->room_runs = *runs;
	*runs = (struct runs){0};
	return 0;
}

static int append_done(void *entry, const struct kvc_cmd *cmd, const u8 *arena)
{
	struct kvc_append_entry *e = entry;
	const struct kvc_op_append *a = &cmd->append;
	u64 stride = e->seq->layout.block_stride;
	struct runs runs = {0};
	int err = -EPROTO;

	if (!e->nr_tokens)
		return -EINVAL;
	if (a->extents.bytes <= append_need(e) && a->extents.bytes % sizeof(struct kvc_extent) == 0)
		err = runs_add(&runs, (const struct kvc_extent *)(const void *)arena,
			       a->extents.bytes / sizeof(struct kvc_extent), stride);
	if (!err && (!runs.nr || runs.bytes / stride != a->nr_blocks))
		err = -EPROTO;
	if (!err)
		err = show_room(e->seq, &runs);
	free(runs.run);
	if (err)
		return err;
	e->room = (struct kvc_room){sizeof(e->room), e->seq->room.addr, e->seq->room.bytes,
				    a->first_block, a->nr_blocks, stride, e->seq->tokens};
	return 0;
}

int kvc_append_many(struct kvc *kvc, struct kvc_append_entry *entries, unsigned int nr)
{
	static const struct batch_ops ops = {
		KVC_OP_APPEND, sizeof(*entries), offsetof(struct kvc_append_entry, result),
		append_need, append_fill, append_done};

	return run(&ops, kvc, entries, nr);
}

int kvc_seq_append(struct kvc_seq *seq, uint32_t nr_tokens, struct kvc_room *room)
{
	struct kvc_append_entry e = {.seq = seq, .nr_tokens = nr_tokens};
	size_t size = room->size;
	int err;

	if (size < sizeof(*room))
		return -EINVAL;
	err = kvc_append_many(seq->kvc, &e, 1);
	if (!err)
		err = e.result;
	if (!err) {
		*room = e.room;
		room->size = size;
	}
	return err;
}

/* ---- commit ---- */

static u64 commit_need(const void *entry)
{
	return (u64)((const struct kvc_commit_entry *)entry)->nr_ids * sizeof(u32);
}

static void commit_fill(const void *entry, struct kvc_cmd *cmd, struct kvc_ref at, u8 *arena)
{
	const struct kvc_commit_entry *e = entry;
	u32 bytes = (u32)commit_need(e);

	if (bytes)
		memcpy(arena, e->ids, bytes);
	cmd->commit.tokens = e->tokens;
	if (bytes)
		cmd->commit.ids = (struct kvc_ref){at.off, bytes};
}

static int commit_done(void *entry, const struct kvc_cmd *cmd, const u8 *arena)
{
	((struct kvc_commit_entry *)entry)->seq->tokens = cmd->commit.committed;
	return 0;
}

int kvc_commit_many(struct kvc *kvc, struct kvc_commit_entry *entries, unsigned int nr)
{
	static const struct batch_ops ops = {
		KVC_OP_COMMIT, sizeof(*entries), offsetof(struct kvc_commit_entry, result),
		commit_need, commit_fill, commit_done};

	return run(&ops, kvc, entries, nr);
}

int kvc_seq_commit(struct kvc_seq *seq, uint32_t tokens, const uint32_t *ids, uint32_t nr_ids)
{
	struct kvc_commit_entry e = {.seq = seq, .tokens = tokens, .ids = ids,
				     .nr_ids = ids ? nr_ids : 0};
	int err = kvc_commit_many(seq->kvc, &e, 1);

	return err ? err : e.result;
}
