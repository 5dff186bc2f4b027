/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Views: blocks of a sequence pinned, and shown one after the other.
 *
 * A view of a sequence that was opened for writing is mapped writable where the daemon allows it,
 * since the kernel pins only what may be written (io_uring buffers, DMA). Nothing is to be written
 * there all the same: sealed blocks have checksums.
 *
 * The view holds its handle and its connection, so that bytes stay as they are while it is mapped,
 * though the sequence was closed; and when the daemon went. When there is another one that has the same
 * blocks in the same places, they are pinned there as well, as a second view behind the first, which
 * stays for its addresses.
 */
#include <errno.h>
#include <string.h>
#include "fs/client/client.h"

/* Room for extents when nobody knows how many there will be. */
#define EXTENTS_MIN 256u

static int add_pin(struct view *view, u64 first, u64 nr)
{
	struct pin *pins = reallocarray(view->pins, (size_t)view->nr_pins + 1, sizeof(*pins));

	if (!pins)
		return -ENOMEM;
	view->pins = pins;
	pins[view->nr_pins++] = (struct pin){first, nr};
	return 0;
}

/* Give back what was pinned. That the daemon is gone is no matter: then the pins are, too. */
static void unpin(struct conn *conn, u32 handle, const struct pin *pins, u32 nr_pins)
{
	struct kvc_cmd cmds[16];

	for (u32 i = 0; i < nr_pins && !atomic_load(&conn->dead);) {
		u32 nr = 0;

		for (; nr < ARRAY_SIZE(cmds) && i < nr_pins; nr++, i++)
			cmds[nr] = (struct kvc_cmd){
				.op = KVC_OP_UNMAP, .handle = handle,
				.map = {.first_block = pins[i].first, .nr_blocks = pins[i].nr}};
		if (conn_call(conn, cmds, nr, NULL, 0) < 0)
			return;
	}
}

/* Take over the reply to a MAP. Return: 0 or -errno; the blocks are the daemon's to keep until unpin(). */
static int take_extents(struct view *view, const struct kvc_cmd *cmd, u32 room_bytes, const u8 *arena)
{
	const struct kvc_op_map *m = &cmd->map;
	u64 stride = view->seq->layout.block_stride, before = view->runs.bytes;
	struct pin pin = {view->first + view->nr, m->nr_blocks};
	int err = add_pin(view, pin.first, pin.nr);

	if (err) {
		unpin(view->conn, view->handle, &pin, 1);
		return err;
	}
	if (m->extents.bytes > room_bytes || m->extents.bytes % sizeof(struct kvc_extent))
		return -EPROTO;
	err = runs_add(&view->runs, (const struct kvc_extent *)(const void *)arena,
		       m->extents.bytes / sizeof(struct kvc_extent), stride);
	if (!err && (view->runs.bytes - before) / stride != m->nr_blocks)
		err = -EPROTO;
	view->nr += m->nr_blocks;
	return err;
}

/* Most extents that one message may bring; half of the arena, so that others have some. */
static u64 extents_max(const struct view *view)
{
	return arena_room(view->conn) / 2 / sizeof(struct kvc_extent);
}

/* How many extents @left blocks may have, as far as one knows. */
static u64 extents_wanted(const struct kvc_seq *seq, u64 left)
{
	u64 known = div_round_up(seq->tokens, seq->layout.block_tokens);

	return left == KVC_ALL ? max(known + 1, (u64)EXTENTS_MIN) : left;
}

/* One message: pin @nr more blocks with room for @room extents. Return: 0, -errno; *@got: blocks. */
static int pin_once(struct view *view, u64 nr, u64 room, u64 *got)
{
	struct kvc_cmd cmd = {.op = KVC_OP_MAP, .handle = view->handle};
	u32 bytes = (u32)(room * sizeof(struct kvc_extent));
	struct span span;
	int err = arena_get(view->conn, &span, bytes);

	if (err)
		return err;
	cmd.map.first_block = view->first + view->nr;
	cmd.map.nr_blocks = nr;
	cmd.map.flags = view->flags;
	cmd.map.extents = (struct kvc_ref){span.off, bytes};
	err = conn_call(view->conn, &cmd, 1, NULL, 0);
	if (err >= 0)
		err = cmd.result;
	if (!err && cmd.map.nr_blocks > nr)
		err = -EPROTO;
	if (!err && cmd.map.nr_blocks)
		err = take_extents(view, &cmd, bytes, view->conn->arena.base + span.off);
	arena_put(view->conn, &span);
	*got = cmd.map.nr_blocks;
	return err;
}

/*
 * Pin @left more blocks, or as many as the arena has room for. Where there are more extents than
 * expected (-E2BIG), ask again with more room, and when there is no more, for fewer blocks.
 * Return: > 0 when there is more, 0 at the end, -errno.
 */
static int pin_some(struct view *view, u64 left)
{
	u64 most = extents_max(view), room = min(extents_wanted(view->seq, left), most);
	u64 nr = left, got;
	int err = pin_once(view, nr, room, &got);

	if (err == -E2BIG && room < most)
		err = pin_once(view, nr, most, &got);
	if (err == -E2BIG && nr > most) {
		nr = most;
		err = pin_once(view, nr, most, &got);
	}
	if (err || !got)
		return err;
	return nr == KVC_ALL ? 0 : got < left;
}

static struct view *last_of(const struct view *view)
{
	const struct view *again;

	while ((again = atomic_load_explicit(&view->again, memory_order_acquire)))
		view = again;
	return (struct view *)(uintptr_t)view;
}

static void unuse(struct view *view)
{
	if (view->used)
		conn_unuse(view->conn);
	view->used = false;
}

/* What it has of its daemon, and itself. */
static void view_drop(struct view *view)
{
	unpin(view->conn, view->handle, view->pins, view->nr_pins);
	unuse(view);
	conn_put(view->conn);
	free(view->pins);
	free(view->runs.run);
	free(view);
}

/* Nobody attaches it now, nor finds it later. */
static void unlist(struct view *view)
{
	struct kvc *kvc = view->seq->kvc;
	struct view **link;

	pthread_mutex_lock(&kvc->busy_lock);
	while (view->busy) {
		kvc->nr_waiting++;
		pthread_cond_wait(&kvc->idle, &kvc->busy_lock);
		kvc->nr_waiting--;
	}
	for (link = &view->seq->views; *link != view; link = &(*link)->next)
		;
	*link = view->next;
	pthread_mutex_unlock(&kvc->busy_lock);
}

void view_free(struct view *view)
{
	struct kvc_seq *seq = view->seq;

	unlist(view);
	mapping_drop(&view->map);
	while (view) {
		struct view *again = view->again;

		view_drop(view);
		view = again;
	}
	seq_put(seq);
}

/* On the sequence's connection, not listed yet. */
static struct view *view_make(struct kvc_seq *seq, u64 first)
{
	struct view *view = calloc(1, sizeof(*view));

	if (!view)
		return NULL;
	view->seq = seq;
	view->conn = conn_get(seq->conn);
	view->handle = seq->handle;
	view->slot = seq->slot;
	view->generation = seq->generation;
	view->first = first;
	view->used = true;
	conn_use(view->conn);
	return view;
}

static struct view *view_new(struct kvc_seq *seq, u64 first)
{
	struct view *view = view_make(seq, first);

	if (!view)
		return NULL;
	seq_get(seq);
	pthread_mutex_lock(&seq->kvc->busy_lock);
	view->next = seq->views;
	seq->views = view;
	pthread_mutex_unlock(&seq->kvc->busy_lock);
	return view;
}

/* ---- another daemon ---- */

/* The same blocks, pinned with the daemon that @seq is open with now. Return: 0 or why they are not. */
static int pin_again(const struct view *view, struct view *again)
{
	int more = 1;

	while (more > 0 && again->nr < view->nr)
		more = pin_some(again, view->nr - again->nr);
	if (more < 0)
		return more;
	if (again->nr != view->nr)
		return -ESTALE;
	more = pools_fetch(again->conn, &again->runs, false);
	if (more)
		return more;
	return runs_same_memory(view->conn, &view->runs, again->conn, &again->runs) ? 0 : -ESTALE;
}

static void attach(struct view *view)
{
	struct view *before = last_of(view), *again = view_make(view->seq, view->first);

	if (!again)
		return;
	if (pin_again(view, again)) {
		view_drop(again);
		return;
	}
	atomic_store_explicit(&before->again, again, memory_order_release);
	unuse(before);
}

/* The next one to attach after @view (NULL: the first), which is let go. */
static struct view *next_busy(struct kvc_seq *seq, struct view *view)
{
	struct kvc *kvc = seq->kvc;
	struct view *next;

	pthread_mutex_lock(&kvc->busy_lock);
	next = view ? view->next : seq->views;
	if (view)
		view->busy = false;
	if (next)
		next->busy = true;
	if (kvc->nr_waiting)
		pthread_cond_broadcast(&kvc->idle);
	pthread_mutex_unlock(&kvc->busy_lock);
	return next;
}

void views_attach(struct kvc_seq *seq)
{
	for (struct view *view = next_busy(seq, NULL); view; view = next_busy(seq, view))
		attach(view);
}

/* ---- mapping ---- */

int view_pin(struct kvc_seq *seq, const struct pin *range, u32 flags, struct view **out)
{
	struct view *view = NULL;
	u64 nr = range->nr;
	int more = -ESTALE;

	seqs_take(seq->kvc, &seq, 1);
	if (seq->conn) {
		view = view_new(seq, range->first);
		more = view ? 1 : -ENOMEM;
	}
	if (view)
		view->flags = flags;
	while (more > 0)
		more = pin_some(view, nr == KVC_ALL ? nr : nr - view->nr);
	seqs_give(seq->kvc, &seq, 1);
	if (more < 0 && view)
		view_free(view);
	else
		*out = view;
	return more;
}

u64 view_room(const struct kvc_seq *seq, u64 nr)
{
	u64 known = extents_wanted(seq, KVC_ALL);

	return min(nr, known) * sizeof(struct kvc_extent);
}

int view_of_map(struct kvc_seq *seq, u64 first, const struct kvc_cmd *cmd, const u8 *arena,
		struct view **out)
{
	struct view *view = view_new(seq, first);
	int err = 0;

	if (!view) {
		struct pin pin = {first, cmd->map.nr_blocks};

		unpin(seq->conn, seq->handle, &pin, 1);
		return -ENOMEM;
	}
	if (cmd->map.nr_blocks)
		err = take_extents(view, cmd, (u32)view_room(seq, KVC_ALL), arena);
	if (err)
		view_free(view);
	else
		*out = view;
	return err;
}

int view_show(struct view *view, struct kvc_view *out)
{
	bool write = view->seq->flags & KVC_SEQ_WRITE;
	int err = mapping_make(view->conn, &view->runs, write, &view->map);

	if (err == -EACCES)
		err = mapping_make(view->conn, &view->runs, false, &view->map);
	if (err) {
		view_free(view);
		return err;
	}
	*out = (struct kvc_view){out->size, view->map.addr, view->map.bytes, view->first, view->nr,
				 view->seq->layout.block_stride, view->map.nr_runs, view};
	return 0;
}

static int map_range(struct kvc_seq *seq, struct pin range, u32 flags, struct kvc_view *out)
{
	struct view *view;
	int err;

	if (out->size < sizeof(*out) || !range.nr)
		return -EINVAL;
	err = view_pin(seq, &range, flags, &view);
	return err ? err : view_show(view, out);
}

int kvc_seq_map_range(struct kvc_seq *seq, uint64_t first_block, uint64_t nr_blocks,
		      struct kvc_view *view)
{
	return map_range(seq, (struct pin){first_block, nr_blocks}, 0, view);
}

int kvc_seq_map_resident(struct kvc_seq *seq, uint64_t first_block, uint64_t nr_blocks,
			 struct kvc_view *view)
{
	return map_range(seq, (struct pin){first_block, nr_blocks}, KVC_MAP_NOWAIT, view);
}

int kvc_seq_map(struct kvc_seq *seq, struct kvc_view *view)
{
	return kvc_seq_map_range(seq, 0, KVC_ALL, view);
}

int kvc_view_check(const struct kvc_view *kview)
{
	const struct view *view = kview->priv;
	const _Atomic u64 *word;

	if (!view)
		return -EINVAL;
	view = last_of(view);
	word = (const _Atomic u64 *)(const void *)view->conn->arena.base + view->slot;
	if (atomic_load_explicit(word, memory_order_acquire) != view->generation)
		return -ESTALE;
	return conn_alive(view->conn) ? 0 : -ESTALE;
}

void kvc_view_unmap(struct kvc_view *view)
{
	if (view->priv)
		view_free(view->priv);
	*view = (struct kvc_view){.size = view->size};
}
