/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slabs: runs of pages cut into slots of one size.
 *
 * Where a size does not divide its slab, the odd bytes lie at the front of even slabs and at the end
 * of odd ones. So the slots of two neighbours form one run (40 KiB slots: 51 per 2 MiB page, runs of
 * 4080 KiB), and a slot's place still follows from offset and size alone.
 *
 * Placement. An extent that belongs to no run goes to the fullest slab with room: the emptier ones
 * drain, and become pages again. One that continues a run (`near`) wants, in this order:
 *
 *   1. exactly the slot behind the run;
 *   2. when the run fills its slab to the end, the slab behind it, opened if its pages are free;
 *   3. the start of a long gap: in the same slab, then a new slab while pages are plentiful, then
 *      in the emptiest slab. Runs that grow at the same time part ways here and do not
 *      interleave from then on;
 *   4. what is left.
 */
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/extent_types.h"

#define LONG_GAP 4	/* a gap is long from 1/4 slab */
#define PLENTY	 8	/* free pages are plentiful from 1/8 of all */
#define ROAD	 8	/* a run that starts afresh looks for so many free slabs before it */

int extent_slab_order(u32 bytes)
{
	u64 run = round_up_pow2(bytes, KVC_HUGE_SIZE);

	if (bytes >= EXTENT_SLAB_BYTES)
		return -1;
	if (bytes >= KVC_HUGE_SIZE && (run - bytes) * 16 <= run)
		return -1;
	for (int order = 0; order <= EXTENT_SLAB_ORDER; order++) {
		u64 slab = (u64)KVC_HUGE_SIZE << order;

		if (bytes <= slab && slab % bytes * 16 <= slab)
			return order;
	}
	return -1;
}

struct extent_class *extent_class_make(struct extents *ex, u32 bytes)
{
	struct extent_class *cls = extent_class_get(ex, bytes);
	u32 units = bytes / EXTENT_UNIT;
	u64 slab_bytes;

	if (cls)
		return cls;
	cls = calloc(1, sizeof(*cls));
	if (!cls)
		return NULL;
	cls->bytes = bytes;
	cls->order = (u8)extent_slab_order(bytes);
	cls->recip = ((1ull << 32) + units - 1) / units;
	slab_bytes = (u64)KVC_HUGE_SIZE << cls->order;
	cls->nr_slots = (u16)(slab_bytes / bytes);
	cls->waste_bytes = (u32)(slab_bytes % bytes);
	cls->cache_slots = (u8)min(EXTENT_BIN_BYTES / bytes, (u64)EXTENT_BIN_SLOTS);
	cls->cache_slots = max(cls->cache_slots, (u8)2);
	for (u32 i = 0; i < EXTENT_BUCKETS; i++)
		list_init(&cls->partial[i]);
	atomic_store_explicit(&ex->cls[units], cls, memory_order_release);
	return cls;
}

u64 extent_slab_base(const struct extent_class *cls, u32 page)
{
	u64 off = (u64)page << EXTENT_PAGE_SHIFT;

	return page >> cls->order & 1 ? off : off + cls->waste_bytes;
}

struct extent_slab *extent_slab_at(struct extents *ex, struct extent_class *cls, u32 page)
{
	struct extent_page *desc;

	if (page >= ex->nr_pages)
		return NULL;
	desc = extent_page(ex, page);
	return desc->kind == PAGE_SLAB && desc->slab->cls == cls ? desc->slab : NULL;
}

/* Put the slab on the list for its occupancy. */
static void slab_file(struct extent_slab *slab)
{
	struct extent_class *cls = slab->cls;
	u8 bucket = (u8)(slab->live * EXTENT_BUCKETS / cls->nr_slots);

	if (bucket == slab->bucket)
		return;
	list_del(&slab->link);
	if (bucket < EXTENT_BUCKETS)
		list_add(&slab->link, &cls->partial[bucket]);
	slab->bucket = bucket;
}

int extent_slab_open(struct extents *ex, struct extent_class *cls, u32 page,
		     struct extent_slab **slabp)
{
	struct extent_slab *slab;

	slab = calloc(1, sizeof(*slab) + cls->nr_slots * sizeof(slab->owner[0]));
	if (!slab)
		return -ENOMEM;
	list_init(&slab->link);
	slab->cls = cls;
	slab->page = page;
	slab->base = extent_slab_base(cls, page);
	slab->bucket = EXTENT_BUCKETS;
	for (u32 slot = 0; slot < cls->nr_slots; slot++)
		slab->free_map[slot / 64] |= 1ull << (slot % 64);
	extent_pages_take(ex, page, 1u << cls->order);
	for (u32 p = page; p < page + (1u << cls->order); p++) {
		extent_page(ex, p)->kind = PAGE_SLAB;
		extent_page(ex, p)->slab = slab;
	}
	cls->nr_slabs++;
	slab_file(slab);
	*slabp = slab;
	return 0;
}

static void slab_close(struct extents *ex, struct extent_slab *slab)
{
	list_del(&slab->link);
	slab->cls->nr_slabs--;
	extent_pages_free(ex, slab->page, 1u << slab->cls->order);
	free(slab);
}

void extent_slot_take(struct extent_slab *slab, u32 slot)
{
	slab->free_map[slot / 64] &= ~(1ull << (slot % 64));
	slab->live++;
	slab->cls->nr_taken++;
	slab_file(slab);
}

void extent_slot_put(struct extents *ex, struct extent_slab *slab, u32 slot)
{
	KVC_BUG_ON(extent_slot_is_free(slab, slot));
	slab->free_map[slot / 64] |= 1ull << (slot % 64);
	slab->live--;
	slab->cls->nr_taken--;
	if (slab->live)
		slab_file(slab);
	else
		slab_close(ex, slab);
}

/* First slot of the longest gap; its length goes to *len. */
static u32 longest_gap(const struct extent_slab *slab, u32 *len)
{
	u32 end = slab->cls->nr_slots, best = 0, next;

	*len = 0;
	for (u32 slot = 0; slot < end; slot = next) {
		slot = extent_next_bit(slab->free_map, end, slot, 0);
		next = extent_next_bit(slab->free_map, end, slot, ~0ull);
		if (next - slot > *len) {
			*len = next - slot;
			best = slot;
		}
	}
	return best;
}

static bool exact_slot(const struct extent_slab *slab, u64 off, u32 *slot)
{
	if (!slab || off < slab->base)
		return false;
	*slot = extent_slot_of(slab->cls, off - slab->base);
	return *slot < slab->cls->nr_slots && extent_slot_off(slab, *slot) == off &&
	       extent_slot_is_free(slab, *slot);
}

/* The slab behind @home, when it is one of the class with slot 0 free, or can be. */
static struct extent_slab *slab_behind(struct extents *ex, const struct extent_slab *home)
{
	struct extent_class *cls = home->cls;
	u32 nr = 1u << cls->order, page = home->page + nr;
	struct extent_slab *slab = extent_slab_at(ex, cls, page);

	if (slab)
		return extent_slot_is_free(slab, 0) ? slab : NULL;
	if (!extent_pages_are_free(ex, page, nr) || extent_slab_open(ex, cls, page, &slab))
		return NULL;
	return slab;
}

/* A slab with a long gap that is not @home. */
static struct extent_slab *roomy_slab(struct extents *ex, struct extent_class *cls,
				      const struct extent_want *want)
{
	u32 nr = 1u << cls->order, page = EXTENT_NO_PAGE;
	struct extent_slab *slab;

	if ((u64)ex->nr_free_pages * PLENTY >= ex->nr_pages) {
		page = extent_pages_pick(ex, nr * ROAD, nr * ROAD, want);
		if (page == EXTENT_NO_PAGE)
			page = extent_pages_pick(ex, nr, nr, want);
	}
	if (page != EXTENT_NO_PAGE && !extent_slab_open(ex, cls, page, &slab))
		return slab;
	for (u32 bucket = 0; bucket < EXTENT_BUCKETS; bucket++)
		if (!list_empty(&cls->partial[bucket]))
			return list_first_entry(&cls->partial[bucket], struct extent_slab, link);
	return NULL;
}

/* Continue the run that ends at want->near; NULL when no slab of this class ends a run there. */
static struct extent_slab *slab_near(struct extents *ex, struct extent_class *cls,
				     const struct extent_want *want, u32 *slot)
{
	struct extent_slab *home, *slab;
	u64 near = want->near;
	u32 gap;

	if (near == EXTENT_NONE)
		return NULL;
	slab = extent_slab_at(ex, cls, (u32)(near >> EXTENT_PAGE_SHIFT));
	if (exact_slot(slab, near, slot))
		return slab;
	home = near ? extent_slab_at(ex, cls, (u32)((near - 1) >> EXTENT_PAGE_SHIFT)) : slab;
	if (!home)
		return NULL;
	*slot = 0;
	if (near >= extent_slot_off(home, cls->nr_slots)) {
		slab = slab_behind(ex, home);
		if (slab)
			return slab;
	}
	*slot = longest_gap(home, &gap);
	if (gap && gap * LONG_GAP >= cls->nr_slots)
		return home;
	slab = roomy_slab(ex, cls, want);
	if (slab)
		*slot = longest_gap(slab, &gap);
	return slab;
}

static struct extent_slab *fullest_slab(struct extent_class *cls, const struct extent_want *want)
{
	struct extent_slab *slab;

	for (u32 bucket = EXTENT_BUCKETS; bucket--;)
		list_for_each_entry(slab, &cls->partial[bucket], link)
			if (extent_avoids(want, slab->page, 1u << cls->order))
				return slab;
	return NULL;
}

int extent_slab_alloc(struct extents *ex, struct extent_class *cls, const struct extent_want *want,
		      struct extent_slab **slabp, u32 *slot)
{
	u32 nr = 1u << cls->order, page;
	struct extent_slab *slab = slab_near(ex, cls, want, slot);
	int err;

	if (!slab) {
		slab = fullest_slab(cls, want);
		if (!slab) {
			page = extent_pages_pick(ex, nr, nr, want);
			if (page == EXTENT_NO_PAGE)
				return -ENOSPC;
			err = extent_slab_open(ex, cls, page, &slab);
			if (err)
				return err;
		}
		*slot = extent_next_bit(slab->free_map, cls->nr_slots, 0, 0);
	}
	extent_slot_take(slab, *slot);
	*slabp = slab;
	return 0;
}
