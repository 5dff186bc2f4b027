/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing into a table, whole or not at all.
 *
 *   plan:    each entry of the range is written in place, or gets a new block, or a private copy
 *   prepare: allocate and copy; a failure here gives everything back and nothing has changed
 *   new:     fill the blocks that nobody sees yet
 *   kept:    overwrite blocks in place; old bytes are kept aside while a later one could still fail
 *   install: put the new blocks into their entries
 */
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/base/log.h"
#include "allocator/blktab_impl.h"

#define SMALL_PLAN 64u

struct write_plan {
	struct blktab *tab;
	const u8 *buf;
	size_t len;
	u64 off;
	u32 first, nr;		/* entries */
	struct block_id *new;	/* what an entry gets, BLOCK_NONE: written in place */
	struct block_id *fresh; /* scratch: those that need no copy of old bytes */
	u32 nr_fresh, nr_copies, nr_kept;
	u8 *undo; /* old bytes of the range, valid where written in place */
	struct block_id small[2 * SMALL_PLAN];
};

/* The part of the request that falls into entry @i: where in the block, in the buffer, and length.
 */
static size_t part_of(const struct write_plan *p, u32 i, size_t *at, size_t *src)
{
	u64 start = (u64)(p->first + i) * p->tab->block_bytes;
	u64 from = max(p->off, start), to = min(p->off + p->len, start + p->tab->block_bytes);

	*at = (size_t)(from - start);
	*src = (size_t)(from - p->off);
	return (size_t)(to - from);
}

static struct block_id old_block(const struct write_plan *p, u32 i)
{
	return p->first + i < p->tab->nr_blocks ? p->tab->blocks[p->first + i] : BLOCK_NONE;
}

static bool overwritten(const struct write_plan *p, u32 i)
{
	size_t at, src;

	return part_of(p, i, &at, &src) == p->tab->block_bytes;
}

/* A marker for entries that are to get a copy, before it is made. */
#define WANT_COPY ((struct block_id){UINT32_MAX - 1})
#define WANT_NEW  ((struct block_id){UINT32_MAX - 2})

static int make_plan(struct write_plan *p)
{
	struct block_id old;

	p->new = p->small;
	if (p->nr > SMALL_PLAN) {
		p->new = reallocarray(NULL, p->nr, 2 * sizeof(*p->new));
		if (!p->new)
			return -ENOMEM;
	}
	p->fresh = p->new + p->nr;
	for (u32 i = 0; i < p->nr; i++) {
		old = old_block(p, i);
		if (BLOCK_IS_NONE(old)) {
			p->new[i] = WANT_NEW;
			p->nr_fresh++;
		} else if (pool_writable(p->tab->pool, old)) {
			p->new[i] = BLOCK_NONE;
			p->nr_kept++;
		} else if (overwritten(p, i)) {
			p->new[i] = WANT_NEW;
			p->nr_fresh++;
		} else {
			p->new[i] = WANT_COPY;
			p->nr_copies++;
		}
	}
	return 0;
}

static void forget(struct write_plan *p)
{
	for (u32 i = 0; i < p->nr; i++)
		if (p->new[i].v < WANT_NEW.v)
			pool_put(p->tab->pool, &p->new[i], 1);
}

static int prepare(struct write_plan *p)
{
	struct blktab *tab = p->tab;
	struct pool_want want = {
		.bytes = tab->block_bytes, .space = tab->space, .near = BLOCK_NONE};
	u32 used = 0;
	int err = blktab_reserve(tab, max(tab->nr_blocks, p->first + p->nr),
				 p->nr_fresh + p->nr_copies);

	if (p->first && p->first <= tab->nr_blocks)
		want.near = tab->blocks[p->first - 1];
	if (!err && p->nr_fresh)
		err = pool_alloc(tab->pool, &want, p->nr_fresh, p->fresh);
	if (err)
		return err;
	for (u32 i = 0; i < p->nr; i++)
		if (p->new[i].v == WANT_NEW.v)
			p->new[i] = p->fresh[used++];
	for (u32 i = 0; i < p->nr && !err; i++) {
		struct block_id copy;

		if (p->new[i].v != WANT_COPY.v)
			continue;
		err = pool_copy(tab->pool, old_block(p, i), tab->block_bytes, &copy);
		if (!err)
			p->new[i] = copy;
	}
	return err;
}

/* Write one block's part from @from (the request, or the undo buffer: both laid out alike). */
static int write_part(struct write_plan *p, u32 i, struct block_id id, const u8 *from)
{
	size_t at, src, len = part_of(p, i, &at, &src);
	void *addr;
	int err = pool_begin_write(p->tab->pool, id, len == p->tab->block_bytes, &addr);

	if (err)
		return err;
	if (p->undo && from == p->buf)
		memcpy(p->undo + src, (u8 *)addr + at, len);
	memcpy((u8 *)addr + at, from + src, len);
	pool_end_write(p->tab->pool, id);
	return 0;
}

static int write_new(struct write_plan *p)
{
	int err = 0;

	for (u32 i = 0; i < p->nr && !err; i++)
		if (!BLOCK_IS_NONE(p->new[i]))
			err = write_part(p, i, p->new[i], p->buf);
	return err;
}

/* Only one block can fail before anything has changed; with more, remember what was there. */
static int write_kept(struct write_plan *p)
{
	int err = 0, failed = 0;
	u32 i;

	if (p->nr_kept > 1) {
		p->undo = malloc(p->len);
		if (!p->undo)
			return -ENOMEM;
	}
	for (i = 0; i < p->nr; i++) {
		if (!BLOCK_IS_NONE(p->new[i]))
			continue;
		err = write_part(p, i, old_block(p, i), p->buf);
		if (err)
			break;
	}
	while (err && i-- > 0)
		if (BLOCK_IS_NONE(p->new[i]))
			failed |= write_part(p, i, old_block(p, i), p->undo);
	if (failed)
		log_error("table %llu: a failed write could not be undone",
			  (unsigned long long)p->tab->id);
	free(p->undo);
	return err;
}

static void install(struct write_plan *p)
{
	struct blktab *tab = p->tab;
	u32 nr_dropped = 0;

	lock_acquire(&tab->lock);
	__blktab_extend(tab, p->first + p->nr);
	for (u32 i = 0; i < p->nr; i++) {
		if (BLOCK_IS_NONE(p->new[i]))
			continue;
		p->fresh[nr_dropped] = __blktab_replace(tab, p->first + i, p->new[i]);
		nr_dropped += !BLOCK_IS_NONE(p->fresh[nr_dropped]);
	}
	__blktab_mark(tab, p->first, p->first + p->nr);
	tab->size = max(tab->size, p->off + p->len);
	lock_release(&tab->lock);
	if (nr_dropped)
		pool_put(tab->pool, p->fresh, nr_dropped);
}

int blktab_write(struct blktab *tab, const void *buf, size_t len, u64 off)
{
	struct write_plan p = {.tab = tab, .buf = buf, .len = len, .off = off};
	u64 end;
	int err;

	kvc_assert(tab->busy);
	if (!len)
		return 0;
	if (__builtin_add_overflow(off, len, &end) ||
	    (end - 1) / tab->block_bytes >= BLKTAB_MAX_BLOCKS)
		return -EFBIG;
	p.first = (u32)(off / tab->block_bytes);
	p.nr = (u32)((end - 1) / tab->block_bytes) - p.first + 1;
	err = make_plan(&p);
	if (err)
		return err;
	err = prepare(&p);
	if (!err)
		err = write_new(&p);
	if (!err)
		err = write_kept(&p);
	if (err)
		forget(&p);
	else
		install(&p);
	if (p.new != p.small)
		free(p.new);
	return err;
}

int blktab_zero_from(struct blktab *tab, u64 off)
{
	u32 i = (u32)(off / tab->block_bytes);
	size_t at = (size_t)(off % tab->block_bytes);
	struct block_id id;
	bool private;
	void *addr;
	int err;

	if (!at || off / tab->block_bytes >= tab->nr_blocks || BLOCK_IS_NONE(tab->blocks[i]))
		return 0;
	err = blktab_reserve(tab, tab->nr_blocks, 1);
	if (err)
		return err;
	id = tab->blocks[i];
	private = !pool_writable(tab->pool, id);
	if (private)
		err = pool_copy(tab->pool, id, tab->block_bytes, &id);
	if (err)
		return err;
	err = pool_begin_write(tab->pool, id, false, &addr);
	if (err) {
		if (private)
			pool_put(tab->pool, &id, 1);
		return err;
	}
	memset((u8 *)addr + at, 0, tab->block_bytes - at);
	pool_end_write(tab->pool, id);
	if (private)
		return blktab_set(tab, i, id);
	blktab_mark(tab, i, i + 1);
	return 0;
}
