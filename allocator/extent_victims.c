/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Victims: the extents that must go so that a run of pages becomes free.
 *
 * The space is a row of items: free blocks, slabs, extents that are runs. A window is a row of
 * neighbouring items that is long enough for the wanted shape; its cost is the live bytes in it. A
 * sweep moves a minimal window along the row, an item at a time, and keeps the cheapest one in which
 * everything can move. @movable is asked about an item only when it lies in a window that would be
 * the cheapest so far, and once.
 *
 * Reclaim asks again and again, for one shape. So a search goes on where the last one ended, and
 * takes the first window that costs hardly more than the cheapest of the last whole sweep. Only when
 * it comes to the end of the space without one, the whole row is swept. Then each call costs a few
 * steps, and a sweep is paid for by the many windows of about that cost.
 */
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/extent_types.h"

struct sweep {
	struct extents *ex;
	const struct extent_victims *victims;
	u32 nr, align;	/* wanted: pages; first one's multiple */
	u32 lo, hi;	/* the window: pages */
	u64 bytes;	/* live in it */
	u32 best_lo, best_hi;
	u64 best_bytes; /* UINT64_MAX: none found */
};

static u32 item_start(struct extents *ex, u32 page)
{
	struct extent_page *desc = extent_page(ex, page);

	if (desc->kind == PAGE_SLAB)
		return desc->slab->page;
	return desc->kind == PAGE_RUN ? desc->head : extent_free_block(ex, page);
}

static u32 item_end(struct extents *ex, u32 page)
{
	struct extent_page *desc = extent_page(ex, page);

	if (desc->kind == PAGE_SLAB)
		return page + (1u << desc->slab->cls->order);
	if (desc->kind == PAGE_RUN)
		return page + extent_pages_of(desc->run.bytes);
	return page + (1u << desc->order);
}

static u64 item_bytes(struct extents *ex, u32 page)
{
	struct extent_page *desc = extent_page(ex, page);

	if (desc->kind == PAGE_SLAB)
		return (u64)desc->slab->live * desc->slab->cls->bytes;
	return desc->kind == PAGE_RUN ? desc->run.bytes : 0;
}

static bool owner_movable(const struct extent_victims *victims, u32 owner)
{
	if (owner == EXTENT_NO_OWNER || owner == EXTENT_CACHED)
		return false;
	return !victims->movable || victims->movable(victims->ctx, owner);
}

static u32 slot_owner(struct extent_slab *slab, u32 slot)
{
	return atomic_load_explicit(&slab->owner[slot], memory_order_relaxed);
}

static u32 next_taken(const struct extent_slab *slab, u32 slot)
{
	return extent_next_bit(slab->free_map, slab->cls->nr_slots, slot, ~0ull);
}

static bool slab_movable(struct sweep *s, struct extent_slab *slab)
{
	u32 slot;

	if (slab->probe >> 1 == s->ex->search)
		return slab->probe & 1;
	for (slot = next_taken(slab, 0); slot < slab->cls->nr_slots; slot = next_taken(slab, slot + 1))
		if (!owner_movable(s->victims, slot_owner(slab, slot)))
			break;
	slab->probe = s->ex->search << 1 | (slot == slab->cls->nr_slots);
	return slab->probe & 1;
}

static bool item_movable(struct sweep *s, u32 page)
{
	struct extent_page *desc = extent_page(s->ex, page);

	if (desc->kind == PAGE_SLAB)
		return slab_movable(s, desc->slab);
	return desc->kind != PAGE_RUN || owner_movable(s->victims, desc->run.owner);
}

static bool fits(const struct sweep *s, u32 lo)
{
	return extent_fit(s->ex, lo, s->nr, s->align) + s->nr <= s->hi;
}

/* False when something in the window must stay; the window then begins behind it. */
static bool window_movable(struct sweep *s)
{
	u32 lo = s->lo, next;

	for (u32 page = s->lo; page < s->hi; page = next) {
		next = item_end(s->ex, page);
		if (!item_movable(s, page))
			lo = next;
	}
	if (lo == s->lo)
		return true;
	for (; s->lo < lo; s->lo = item_end(s->ex, s->lo))
		s->bytes -= item_bytes(s->ex, s->lo);
	return false;
}

/* Sweep from @page to the end, or to the first window of at most @enough bytes: then true. */
static bool sweep(struct sweep *s, u32 page, u64 enough)
{
	struct extents *ex = s->ex;

	s->lo = page;
	s->hi = page;
	s->bytes = 0;
	while (s->hi < ex->nr_pages) {
		s->bytes += item_bytes(ex, s->hi);
		s->hi = item_end(ex, s->hi);
		while (fits(s, item_end(ex, s->lo))) {
			s->bytes -= item_bytes(ex, s->lo);
			s->lo = item_end(ex, s->lo);
		}
		if (s->bytes >= s->best_bytes || !fits(s, s->lo) || !window_movable(s))
			continue;
		s->best_lo = s->lo;
		s->best_hi = s->hi;
		s->best_bytes = s->bytes;
		if (s->bytes <= enough)
			return true;
	}
	return false;
}

/* Find the window, or best_bytes stays UINT64_MAX. */
static void search(struct sweep *s)
{
	struct extents *ex = s->ex;

	ex->search++;
	if (ex->victim_pages == s->nr && ex->victim_align == s->align &&
	    ex->victim_page < ex->nr_pages) {
		s->best_bytes = ex->victim_bytes + 1;
		if (sweep(s, item_start(ex, ex->victim_page), ex->victim_bytes)) {
			ex->victim_page = s->best_hi;
			return;
		}
	}
	s->best_bytes = UINT64_MAX;
	sweep(s, 0, 0);
	ex->victim_pages = s->nr;
	ex->victim_align = s->align;
	ex->victim_page = 0;
	ex->victim_bytes = s->best_bytes == UINT64_MAX ? 0 : s->best_bytes + s->best_bytes / 4;
}

/* Free blocks at its ends may be longer than needed: leave the rest to those who move. */
static void trim(struct sweep *s)
{
	u32 start, kind = extent_page(s->ex, s->best_lo)->kind;

	if (kind == PAGE_FREE_HEAD) {
		start = (s->best_hi - s->nr) & ~(s->align - 1);
		if (extent_fit(s->ex, start, s->nr, s->align) == start)
			s->best_lo = max(s->best_lo, start);
	}
	start = extent_fit(s->ex, s->best_lo, s->nr, s->align);
	if (extent_page(s->ex, start + s->nr - 1)->kind <= PAGE_FREE_HEAD)
		s->best_hi = min(s->best_hi, start + s->nr);
}

struct victim_list {
	struct extent_victims *victims;
	unsigned int nr; /* found; those from max on are only counted */
};

static void gather_one(struct victim_list *g, u64 off, u32 bytes, u32 owner)
{
	if (g->nr < g->victims->max)
		g->victims->refs[g->nr] = (struct extent_ref){off, bytes, owner};
	g->nr++;
}

static void gather_slab(struct victim_list *g, struct extent_slab *slab)
{
	u32 slot;

	for (slot = next_taken(slab, 0); slot < slab->cls->nr_slots; slot = next_taken(slab, slot + 1))
		gather_one(g, extent_slot_off(slab, slot), slab->cls->bytes, slot_owner(slab, slot));
}

/* Tell what lives in the window. */
static int gather(struct sweep *s, struct extent_victims *victims)
{
	struct victim_list g = {.victims = victims};
	struct extents *ex = s->ex;
	u32 next;

	for (u32 page = item_start(ex, s->best_lo); page < s->best_hi; page = next) {
		struct extent_page *desc = extent_page(ex, page);

		next = item_end(ex, page);
		if (desc->kind == PAGE_SLAB)
			gather_slab(&g, desc->slab);
		else if (desc->kind == PAGE_RUN)
			gather_one(&g, (u64)page << EXTENT_PAGE_SHIFT, desc->run.bytes,
				   desc->run.owner);
	}
	victims->run.off = (u64)s->best_lo << EXTENT_PAGE_SHIFT;
	victims->run.bytes = (u64)(s->best_hi - s->best_lo) << EXTENT_PAGE_SHIFT;
	return g.nr > victims->max ? kvc_err(-E2BIG, extent_victims_many) : (int)g.nr;
}

int extents_list(struct extents *ex, struct extent_victims *victims)
{
	u64 end = victims->run.off + victims->run.bytes;
	struct extent_run run = victims->run;
	struct sweep s = {.ex = ex, .victims = victims};
	int nr = -EBUSY;
	u32 page;

	s.best_lo = (u32)(victims->run.off >> EXTENT_PAGE_SHIFT);
	s.best_hi = (u32)(end >> EXTENT_PAGE_SHIFT);
	lock_acquire(&ex->lock);
	extent_cache_flush(ex);
	ex->search++;
	for (page = item_start(ex, s.best_lo); page < s.best_hi; page = item_end(ex, page))
		if (!item_movable(&s, page))
			break;
	if (page >= s.best_hi)
		nr = gather(&s, victims);
	lock_release(&ex->lock);
	victims->run = run;
	return nr;
}

static bool has_room(struct extents *ex, u32 bytes, u32 nr, u32 align)
{
	struct extent_want none = {.near = EXTENT_NONE};
	struct extent_class *cls = extent_class_get(ex, bytes);

	if (cls)
		for (u32 bucket = 0; bucket < EXTENT_BUCKETS; bucket++)
			if (!list_empty(&cls->partial[bucket]))
				return true;
	return extent_pages_pick(ex, nr, align, &none) != EXTENT_NO_PAGE;
}

int extents_find_victims(struct extents *ex, u32 bytes, struct extent_victims *victims)
{
	int order = extent_slab_order(bytes), err = 0;
	struct sweep s = {
		.ex = ex,
		.victims = victims,
		.nr = order < 0 ? extent_pages_of(bytes) : 1u << order,
	};

	/* runs need no alignment, but without it the gaps between them would be lost to others */
	s.align = s.nr & -s.nr;

	lock_acquire(&ex->lock);
	extent_cache_flush(ex);
	victims->run = (struct extent_run){0};
	if (has_room(ex, bytes, s.nr, order < 0 ? 1 : s.align))
		goto unlock;
	search(&s);
	if (s.best_bytes == UINT64_MAX && order < 0 && s.align > 1) {
		s.align = 1;
		search(&s);
	}
	if (s.best_bytes == UINT64_MAX) {
		err = kvc_err(-ENOSPC, extent_no_victims);
		goto unlock;
	}
	trim(&s);
	err = gather(&s, victims);
unlock:
	lock_release(&ex->lock);
	return err;
}
