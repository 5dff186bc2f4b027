/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a table. Under the lock a reader pins the blocks if all are resident; else it takes
 * names, lets go of the lock and pins one at a time, since a reader that waits may hold no other
 * pin. Either way what it reads stays alive whatever changes the table meanwhile. Pins are
 * preferred because a passing name makes a writer of an open block copy it.
 */
#include <string.h>
#include "allocator/base/err.h"
#include "allocator/blktab_impl.h"

#define BATCH		 64u
#define READ_AHEAD_BYTES MIB(8)
#define MAX_READ_AHEAD	 128u /* blocks */

static const u8 zeros[65536];

/* A piece of a file: blocks [first, first + nr) as they were under the lock, pinned or named. */
struct piece {
	u64 off;
	size_t len;
	u32 first, nr; /* entries, holes included */
	struct block_id ids[BATCH];
	struct block_id real[BATCH]; /* those that are not holes */
	u32 nr_real;
	bool pinned;
	const void *addrs[BATCH]; /* of the real ones, when pinned */
};

static u32 window_blocks(const struct blktab *tab)
{
	u64 blocks = max(READ_AHEAD_BYTES / tab->block_bytes, (u64)2);

	return (u32)min(blocks, (u64)MAX_READ_AHEAD);
}

/* Start bringing blocks [@from, @to). Lock held. */
static void read_ahead(struct blktab *tab, u32 from, u32 to)
{
	struct block_id ids[MAX_READ_AHEAD];
	unsigned int nr = 0;

	for (u32 i = from; i < min(to, tab->nr_blocks) && nr < MAX_READ_AHEAD; i++)
		if (!BLOCK_IS_NONE(tab->blocks[i]))
			ids[nr++] = tab->blocks[i];
	if (nr)
		pool_prefetch(tab->pool, ids, nr);
}

/*
 * Note where the next sequential read would begin, and ask for what lies ahead: half a window at a
 * time. A stream begins with a read where the last one ended. Once it runs its reads may come out
 * of order, since the kernel sends several at once and they are served by several threads.
 */
static void note_access(struct blktab *tab, const struct piece *p)
{
	u32 window = window_blocks(tab), next = (u32)((p->off + p->len) / tab->block_bytes);
	u32 slack, from;

	lock_acquire(&tab->lock);
	slack = tab->ahead > tab->seq_hint ? window : 1;
	if (p->first + slack < tab->seq_hint || p->first > tab->seq_hint + slack - 1) {
		tab->seq_hint = next;
		tab->ahead = 0;
	} else {
		tab->seq_hint = max(tab->seq_hint, next);
		from = max(tab->ahead, p->first + p->nr);
		if (from <= tab->seq_hint + window / 2) {
			tab->ahead = tab->seq_hint + window;
			read_ahead(tab, from, tab->ahead);
		}
	}
	lock_release(&tab->lock);
}

/* Take the first blocks of a range, up to BATCH; nothing (len 0) at or behind the end. */
static void take_piece(struct blktab *tab, size_t len, u64 off, struct piece *p)
{
	u64 bs = tab->block_bytes;

	p->off = off;
	p->len = 0;
	p->first = (u32)(off / bs);
	p->nr = p->nr_real = 0;
	lock_acquire(&tab->lock);
	if (off < tab->size) {
		p->len = (size_t)min((u64)len, tab->size - off);
		p->len = (size_t)min((u64)p->len, (off / bs + BATCH) * bs - off);
		p->nr = (u32)((off + p->len - 1) / bs - off / bs + 1);
	}
	for (u32 i = 0; i < p->nr; i++) {
		bool have = off / bs + i < tab->nr_blocks;

		p->ids[i] = have ? tab->blocks[p->first + i] : BLOCK_NONE;
		if (!BLOCK_IS_NONE(p->ids[i]))
			p->real[p->nr_real++] = p->ids[i];
	}
	p->pinned = pool_try_pin(tab->pool, p->real, p->nr_real, p->addrs);
	if (!p->pinned)
		pool_get(tab->pool, p->real, p->nr_real);
	lock_release(&tab->lock);
}

static void put_piece(struct blktab *tab, const struct piece *p)
{
	if (p->pinned)
		pool_unpin(tab->pool, p->real, p->nr_real);
	else
		pool_put(tab->pool, p->real, p->nr_real);
}

/* The part of entry @i that a piece covers: where in the block, and how many bytes. */
static size_t part_of(const struct blktab *tab, const struct piece *p, u32 i, size_t *at)
{
	u64 start = (u64)(p->first + i) * tab->block_bytes;
	u64 from = max(p->off, start), to = min(p->off + p->len, start + tab->block_bytes);

	*at = (size_t)(from - start);
	return (size_t)(to - from);
}

/* Bytes of a plain file's block may be fewer than a block: the rest are zeros. */
static size_t valid_bytes(const struct blktab *tab, struct block_id id, size_t at, size_t len)
{
	size_t have;

	if (tab->space)
		return len;
	have = pool_bytes(tab->pool, id);
	return at < have ? min(len, have - at) : 0;
}

static void copy_part(const struct blktab *tab, const struct piece *p, u32 i, const void *addr,
		      u8 *buf)
{
	size_t at, len = part_of(tab, p, i, &at), valid = 0;
	u8 *to = buf + (i ? (u64)(p->first + i) * tab->block_bytes - p->off : 0);

	if (addr) {
		valid = valid_bytes(tab, p->ids[i], at, len);
		memcpy(to, (const u8 *)addr + at, valid);
	}
	memset(to + valid, 0, len - valid);
}

static int copy_one_by_one(struct blktab *tab, const struct piece *p, u8 *buf)
{
	const void *addr;
	int err;

	for (u32 i = 0; i < p->nr; i++) {
		if (BLOCK_IS_NONE(p->ids[i])) {
			copy_part(tab, p, i, NULL, buf);
			continue;
		}
		err = pool_pin(tab->pool, p->ids[i], &addr);
		if (err)
			return err;
		copy_part(tab, p, i, addr, buf);
		pool_unpin(tab->pool, &p->ids[i], 1);
	}
	return 0;
}

static int copy_piece(struct blktab *tab, const struct piece *p, u8 *buf)
{
	note_access(tab, p);
	if (!p->pinned) {
		if (p->nr_real > 1)
			pool_fetch(tab->pool, p->real, p->nr_real);
		return copy_one_by_one(tab, p, buf);
	}
	for (u32 i = 0, n = 0; i < p->nr; i++)
		copy_part(tab, p, i, BLOCK_IS_NONE(p->ids[i]) ? NULL : p->addrs[n++], buf);
	return 0;
}

ssize_t blktab_read(struct blktab *tab, void *buf, size_t len, u64 off)
{
	size_t done = 0;
	struct piece p;
	int err;

	while (done < len) {
		take_piece(tab, len - done, off + done, &p);
		if (!p.len)
			break;
		err = copy_piece(tab, &p, (u8 *)buf + done);
		put_piece(tab, &p);
		if (err)
			return err;
		done += p.len;
	}
	return (ssize_t)done;
}

/* Add a piece of memory to a view, joined to the last one where they touch. */
static bool view_add(struct blktab_view *view, const void *addr, size_t len)
{
	struct iovec *last = view->nr ? &view->iov[view->nr - 1] : NULL;

	if (!len)
		return true;
	if (last && (const u8 *)last->iov_base + last->iov_len == addr) {
		last->iov_len += len;
	} else {
		if (view->nr == ARRAY_SIZE(view->iov))
			return false;
		view->iov[view->nr++] = (struct iovec){.iov_base = (void *)addr, .iov_len = len};
	}
	view->bytes += len;
	return true;
}

static bool view_add_zeros(struct blktab_view *view, size_t len)
{
	bool fits = true;

	for (size_t n; len && fits; len -= n) {
		n = min(len, sizeof(zeros));
		fits = view_add(view, zeros, n);
	}
	return fits;
}

static bool view_fill(struct blktab *tab, const struct piece *p, struct blktab_view *view)
{
	bool fits = true;

	for (u32 i = 0, n = 0; i < p->nr && fits; i++) {
		size_t at, len = part_of(tab, p, i, &at), valid = 0;
		const u8 *addr = BLOCK_IS_NONE(p->ids[i]) ? NULL : p->addrs[n++];

		if (addr) {
			valid = valid_bytes(tab, p->ids[i], at, len);
			fits = view_add(view, addr + at, valid);
		}
		fits = fits && view_add_zeros(view, len - valid);
	}
	return fits;
}

bool blktab_view(struct blktab *tab, size_t len, u64 off, struct blktab_view *view)
{
	struct piece p;

	view->nr = view->nr_ids = 0;
	view->bytes = 0;
	take_piece(tab, len, off, &p);
	note_access(tab, &p);
	/* All of it: a full batch may be the first part of something longer. */
	if (p.pinned && (p.len == len || p.nr < BATCH) && view_fill(tab, &p, view)) {
		memcpy(view->ids, p.real, p.nr_real * sizeof(p.real[0]));
		view->nr_ids = p.nr_real;
		return true;
	}
	put_piece(tab, &p);
	return false;
}

void blktab_view_put(struct blktab *tab, struct blktab_view *view)
{
	pool_unpin(tab->pool, view->ids, view->nr_ids);
	view->nr = view->nr_ids = 0;
	view->bytes = 0;
}

void blktab_fetch(struct blktab *tab, size_t len, u64 off)
{
	struct piece p;

	take_piece(tab, len, off, &p);
	if (!p.pinned)
		pool_fetch(tab->pool, p.real, p.nr_real);
	put_piece(tab, &p);
}

bool blktab_resident(struct blktab *tab, size_t len, u64 off)
{
	bool resident = true;
	size_t done = 0;
	struct piece p;

	while (done < len && resident) {
		take_piece(tab, len - done, off + done, &p);
		if (!p.len)
			break;
		resident = p.pinned;
		put_piece(tab, &p);
		done += p.len;
	}
	return resident;
}
