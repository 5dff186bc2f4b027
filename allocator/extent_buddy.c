/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Free pages, twice: as naturally aligned power-of-two blocks on a list per order (slabs want
 * those, and neighbours merge in constant time), and as a bitmap (runs of any other length are
 * packed first fit; 1 TiB is 64 KiB of bitmap). Both always say the same.
 */
#include "allocator/base/bug.h"
#include "allocator/extent_types.h"

static void block_link(struct extents *ex, u32 page, u32 order)
{
	struct extent_page *desc = extent_page(ex, page);
	u32 next = ex->free_head[order];

	desc->kind = PAGE_FREE_HEAD;
	desc->order = (u8)order;
	desc->free.next = next;
	desc->free.prev = EXTENT_NO_PAGE;
	if (next != EXTENT_NO_PAGE)
		extent_page(ex, next)->free.prev = page;
	ex->free_head[order] = page;
}

static void block_unlink(struct extents *ex, u32 page)
{
	struct extent_page *desc = extent_page(ex, page);

	if (desc->free.prev == EXTENT_NO_PAGE)
		ex->free_head[desc->order] = desc->free.next;
	else
		extent_page(ex, desc->free.prev)->free.next = desc->free.next;
	if (desc->free.next != EXTENT_NO_PAGE)
		extent_page(ex, desc->free.next)->free.prev = desc->free.prev;
	desc->kind = PAGE_FREE;
}

static void block_insert(struct extents *ex, u32 page, u32 order)
{
	for (; order < EXTENT_MAX_ORDER; order++) {
		u32 buddy = page ^ (1u << order);
		struct extent_page *desc;

		if (buddy >= ex->nr_pages)
			break;
		desc = extent_page(ex, buddy);
		if (desc->kind != PAGE_FREE_HEAD || desc->order != order)
			break;
		block_unlink(ex, buddy);
		page = min(page, buddy);
	}
	block_link(ex, page, order);
}

/* From the top down, so that the lowest block of an order is the next to be used. */
static void range_insert(struct extents *ex, u32 page, u32 nr)
{
	while (nr) {
		u32 end = page + nr;
		u32 order = min((u32)__builtin_ctz(end), 31 - (u32)__builtin_clz(nr));

		order = min(order, (u32)EXTENT_MAX_ORDER);
		nr -= 1u << order;
		block_insert(ex, page + nr, order);
	}
}

void extent_pages_free(struct extents *ex, u32 page, u32 nr)
{
	for (u32 p = page; p < page + nr; p++) {
		extent_page(ex, p)->kind = PAGE_FREE;
		ex->free_map[p / 64] |= 1ull << (p % 64);
	}
	ex->nr_free_pages += nr;
	ex->low_free = min(ex->low_free, page);
	range_insert(ex, page, nr);
}

u32 extent_free_block(struct extents *ex, u32 page)
{
	for (u32 order = 0; order <= EXTENT_MAX_ORDER; order++) {
		u32 head = page & ~((1u << order) - 1);
		struct extent_page *desc = extent_page(ex, head);

		if (desc->kind == PAGE_FREE_HEAD && page - head < 1u << desc->order)
			return head;
	}
	KVC_BUG_ON("page is in no free block");
	return EXTENT_NO_PAGE;
}

void extent_pages_take(struct extents *ex, u32 page, u32 nr)
{
	u32 end = page + nr, next;

	for (u32 p = page; p < end; p = next) {
		u32 head = extent_free_block(ex, p);

		next = head + (1u << extent_page(ex, head)->order);
		block_unlink(ex, head);
		if (next > end)
			range_insert(ex, end, next - end);
		if (head < page)
			range_insert(ex, head, page - head);
	}
	for (u32 p = page; p < end; p++)
		ex->free_map[p / 64] &= ~(1ull << (p % 64));
	ex->nr_free_pages -= nr;
}

bool extent_pages_are_free(struct extents *ex, u32 page, u32 nr)
{
	return page + nr <= ex->nr_pages &&
	       extent_next_bit(ex->free_map, page + nr, page, ~0ull) == page + nr;
}

/* First fit in [@page, @end). */
static u32 find_pages(struct extents *ex, u32 page, u32 end, u32 nr, u32 align)
{
	while (page + nr <= end) {
		u32 used;

		page = extent_next_bit(ex->free_map, end, page, 0);
		page = extent_fit(ex, page, nr, align);
		if (page + nr > end)
			break;
		used = extent_next_bit(ex->free_map, page + nr, page, ~0ull);
		if (used == page + nr)
			return page;
		page = used;
	}
	return EXTENT_NO_PAGE;
}

static u32 smallest_block(struct extents *ex, u32 nr)
{
	for (u32 order = (u32)__builtin_ctz(nr); order <= EXTENT_MAX_ORDER; order++)
		if (ex->free_head[order] != EXTENT_NO_PAGE)
			return ex->free_head[order];
	return EXTENT_NO_PAGE;
}

static u32 find_outside(struct extents *ex, u32 nr, u32 align, const struct extent_want *want)
{
	u32 page;

	ex->low_free = extent_next_bit(ex->free_map, ex->nr_pages, ex->low_free, 0);
	if (want->avoid_page == want->avoid_end)
		return find_pages(ex, ex->low_free, ex->nr_pages, nr, align);
	page = find_pages(ex, ex->low_free, want->avoid_page, nr, align);
	if (page != EXTENT_NO_PAGE)
		return page;
	return find_pages(ex, max(ex->low_free, want->avoid_end), ex->nr_pages, nr, align);
}

u32 extent_pages_pick(struct extents *ex, u32 nr, u32 align, const struct extent_want *want)
{
	bool pow2 = !(nr & (nr - 1));
	u32 page = pow2 ? smallest_block(ex, nr) : EXTENT_NO_PAGE;

	if (nr > ex->nr_free_pages)
		return EXTENT_NO_PAGE;
	if (page != EXTENT_NO_PAGE && extent_avoids(want, page, nr))
		return page;
	/* aligned runs are blocks: no block, no run */
	if (page == EXTENT_NO_PAGE && align == nr)
		return EXTENT_NO_PAGE;
	return find_outside(ex, nr, align, want);
}
