/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy_file_range between plain files: whole blocks at equal alignment are shared, which costs
 * nothing per byte; what is left at both ends, or all of it, is copied.
 */
#include <string.h>
#include "allocator/base/err.h"
#include "allocator/plainfile_impl.h"

#define COPY_PIECE KIB(256)
#define COPY_MAX   (GIB(2) - MIB(1))

struct copy {
	struct plainfile *src, *dst;
	u64 from, to; /* offsets */
	u64 len;
};

/* Blocks that can be shared at the front of what is left; 0: bytes must be copied. */
static u32 shareable(const struct copy *c)
{
	if (c->from % PLAIN_BLOCK || c->to % PLAIN_BLOCK || !plain_table(c->src))
		return 0;
	return (u32)(c->len / PLAIN_BLOCK);
}

/* Seal and name the source's blocks; both tables are busy, the range lies within the source. */
static int take_blocks(struct blktab *src, u32 first, u32 nr, struct block_id *ids)
{
	int err;

	blktab_snapshot(src, first, nr, ids);
	err = pool_seal(src->pool, ids, nr);
	if (err)
		pool_put(src->pool, ids, nr);
	return err;
}

/*
 * A short block may only be the last entry, and it is none: the caller shares whole 64 KiB within
 * the source's size. But a source that was truncated up has one whose rest is a hole.
 */
static u32 without_short(struct blktab *src, u32 first, u32 nr)
{
	u32 last = src->nr_blocks - 1;

	if (src->nr_blocks && first <= last && last < first + nr &&
	    !BLOCK_IS_NONE(src->blocks[last]) &&
	    pool_bytes(src->pool, src->blocks[last]) < PLAIN_BLOCK)
		return last - first;
	return nr;
}

static ssize_t share(const struct copy *c, u32 nr)
{
	struct blktab *src = plain_table(c->src), *dst = c->dst->tab;
	u32 first = (u32)(c->from / PLAIN_BLOCK), at = (u32)(c->to / PLAIN_BLOCK);
	struct block_id *ids = kvc_alloc_array(nr, sizeof(*ids));
	ssize_t done = 0;
	int err = 0;

	if (!ids)
		return -ENOMEM;
	blktab_begin2(src, dst);
	if (c->from + c->len > src->size) /* it was cut meanwhile */
		nr = 0;
	nr = without_short(src, first, nr);
	if (nr)
		err = plain_grow_tail(dst, c->to + (u64)nr * PLAIN_BLOCK);
	if (!err && nr)
		err = take_blocks(src, first, nr, ids);
	if (!err && nr) {
		err = blktab_set_range(dst, at, nr, ids);
		if (err)
			pool_put(src->pool, ids, nr);
	}
	if (!err && nr) {
		done = (ssize_t)nr * PLAIN_BLOCK;
		blktab_set_size(dst, max(dst->size, c->to + (u64)done));
	}
	blktab_end2(src, dst);
	free(ids);
	return err ? err : done;
}

static ssize_t copy_bytes(const struct copy *c, u8 *buf)
{
	u64 room = PLAIN_BLOCK - c->from % PLAIN_BLOCK;
	size_t len = (size_t)min(c->len, COPY_PIECE);
	ssize_t n;
	int err;

	/* Up to where blocks can be shared, when they ever can. */
	if (c->from % PLAIN_BLOCK == c->to % PLAIN_BLOCK)
		len = (size_t)min((u64)len, room);
	n = plain_read(c->src, buf, len, c->from);
	if (n <= 0)
		return n;
	err = plain_write(c->dst, buf, (size_t)n, c->to);
	return err ? err : n;
}

static ssize_t copy_step(const struct copy *c, u8 *buf)
{
	u32 nr = shareable(c);
	ssize_t n = 0;

	if (nr) {
		int err = plain_to_table(c->dst);

		n = err ? err : share(c, nr);
	}
	return n ? n : copy_bytes(c, buf);
}

ssize_t plain_copy_range(struct plainfile *src, u64 src_off, struct plainfile *dst, u64 dst_off,
			 u64 len)
{
	struct copy c = {.src = src, .dst = dst, .from = src_off, .to = dst_off};
	u64 size = plain_size(src);
	ssize_t n, done = 0;
	u8 *buf;

	if (src_off >= size)
		return 0;
	c.len = min(min(len, COPY_MAX), size - src_off);
	if (dst_off > PLAIN_MAX_BYTES - c.len)
		return -EFBIG;
	buf = malloc(COPY_PIECE);
	if (!buf)
		return -ENOMEM;
	do {
		n = copy_step(&c, buf);
		if (n > 0) {
			done += n;
			c.from += (u64)n;
			c.to += (u64)n;
			c.len -= (u64)n;
		}
	} while (n > 0 && c.len);
	free(buf);
	return n < 0 && !done ? n : done;
}
