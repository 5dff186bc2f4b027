/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/base/textbuf.h"
#include "allocator/extent_types.h"

static bool is_size(u64 bytes)
{
	return bytes && bytes % EXTENT_UNIT == 0 && bytes <= EXTENT_MAX_BYTES;
}

/* Descriptors and bitmap for @nr_pages pages; what there was before stays when this fails. */
static int make_pages(struct extents *ex, u32 nr_pages)
{
	size_t old_words = div_round_up(ex->nr_pages, 64), words = div_round_up(nr_pages, 64);
	u64 *map = reallocarray(ex->free_map, words, sizeof(*map));

	if (!map)
		return -ENOMEM;
	memset(map + old_words, 0, (words - old_words) * sizeof(*map));
	ex->free_map = map;
	for (u32 i = 0; i <= (nr_pages - 1) >> EXTENT_CHUNK_SHIFT; i++) {
		if (ex->chunk[i])
			continue;
		ex->chunk[i] = calloc(1u << EXTENT_CHUNK_SHIFT, sizeof(struct extent_page));
		if (!ex->chunk[i])
			return -ENOMEM;
	}
	return 0;
}

int extents_grow(struct extents *ex, u64 size_bytes)
{
	u64 nr_pages = size_bytes >> EXTENT_PAGE_SHIFT;
	u32 old;
	int err = -EINVAL;

	lock_acquire(&ex->lock);
	old = ex->nr_pages;
	if (!nr_pages || nr_pages < old || nr_pages > (u64)EXTENT_CHUNKS << EXTENT_CHUNK_SHIFT)
		goto unlock;
	err = make_pages(ex, (u32)nr_pages);
	if (err)
		goto unlock;
	ex->nr_pages = (u32)nr_pages;
	extent_pages_free(ex, old, (u32)nr_pages - old);
unlock:
	lock_release(&ex->lock);
	return err;
}

int extents_create(struct extents **exp, u64 size_bytes)
{
	struct extents *ex = calloc(1, sizeof(*ex));
	int err;

	if (!ex)
		return -ENOMEM;
	lock_init(&ex->lock, LOCK_EXTENT);
	for (u32 order = 0; order <= EXTENT_MAX_ORDER; order++)
		ex->free_head[order] = EXTENT_NO_PAGE;
	err = extent_cache_init(ex);
	if (!err)
		err = extents_grow(ex, size_bytes);
	if (err) {
		extents_destroy(ex);
		return err;
	}
	*exp = ex;
	return 0;
}

static void destroy_slabs(struct extents *ex)
{
	for (u32 page = 0; page < ex->nr_pages; page++) {
		struct extent_page *desc = extent_page(ex, page);

		if (desc->kind == PAGE_SLAB && desc->slab->page == page) {
			u32 nr = 1u << desc->slab->cls->order;

			free(desc->slab);
			page += nr - 1;
		}
	}
}

void extents_destroy(struct extents *ex)
{
	if (!ex)
		return;
	destroy_slabs(ex);
	for (u32 i = 0; i < EXTENT_CLASSES; i++)
		free(ex->cls[i]);
	for (u32 i = 0; i < EXTENT_CHUNKS; i++)
		free(ex->chunk[i]);
	free(ex->free_map);
	free(ex->cell);
	lock_destroy(&ex->lock);
	free(ex);
}

/* Make free pages an extent. */
static void run_make(struct extents *ex, u32 page, u32 bytes, u32 owner)
{
	u32 nr = extent_pages_of(bytes);

	extent_pages_take(ex, page, nr);
	for (u32 p = page; p < page + nr; p++) {
		extent_page(ex, p)->kind = PAGE_RUN;
		extent_page(ex, p)->head = page;
	}
	extent_page(ex, page)->run.bytes = bytes;
	extent_page(ex, page)->run.owner = owner;
}

static int run_alloc(struct extents *ex, const struct extent_want *want, u32 owner, u64 *off)
{
	u32 page = EXTENT_NO_PAGE, nr = extent_pages_of(want->bytes);
	u64 near = want->near >> EXTENT_PAGE_SHIFT;

	if (near < ex->nr_pages && extent_fit(ex, (u32)near, nr, 1) == near &&
	    extent_pages_are_free(ex, (u32)near, nr))
		page = (u32)near;
	if (page == EXTENT_NO_PAGE)
		page = extent_pages_pick(ex, nr, 1, want);
	if (page == EXTENT_NO_PAGE)
		return -ENOSPC;
	run_make(ex, page, want->bytes, owner);
	*off = (u64)page << EXTENT_PAGE_SHIFT;
	return 0;
}

static int slot_alloc(struct extents *ex, const struct extent_want *want, u32 owner, u64 *off)
{
	struct extent_class *cls = extent_class_make(ex, want->bytes);
	struct extent_slab *slab;
	u32 slot;
	int err;

	if (!cls)
		return -ENOMEM;
	err = extent_slab_alloc(ex, cls, want, &slab, &slot);
	if (err)
		return err;
	atomic_store_explicit(&slab->owner[slot], owner, memory_order_relaxed);
	*off = extent_slot_off(slab, slot);
	if (want->near == EXTENT_NONE && want->avoid_page == want->avoid_end)
		extent_cache_refill(ex, slab);
	return 0;
}

static int alloc_slow(struct extents *ex, const struct extent_want *want, u32 owner, u64 *off)
{
	bool slots = extent_slab_order(want->bytes) >= 0;
	int err;

	lock_acquire(&ex->lock);
	do
		err = slots ? slot_alloc(ex, want, owner, off) : run_alloc(ex, want, owner, off);
	while (err == -ENOSPC && extent_cache_flush(ex));
	lock_release(&ex->lock);
	if (err == -ENOSPC)
		return kvc_err(err, extent_no_room);
	/* counted after it is taken and (when freed) before it is given back: never above the size */
	if (!err)
		extent_cache_account(ex, want->bytes);
	return err;
}

int extents_alloc(struct extents *ex, u32 bytes, u64 near, u32 owner, u64 *off)
{
	struct extent_want want = {.near = near, .bytes = bytes};
	struct extent_class *cls;

	KVC_BUG_ON(!is_size(bytes));
	cls = extent_class_get(ex, bytes);
	if (cls && extent_cache_alloc(ex, cls, near, owner, off))
		return 0;
	return alloc_slow(ex, &want, owner, off);
}

int extents_alloc_outside(struct extents *ex, u32 bytes, u32 owner, const struct extent_run *run,
			  u64 *off)
{
	struct extent_want want = {
		.near = EXTENT_NONE,
		.bytes = bytes,
		.avoid_page = (u32)(run->off >> EXTENT_PAGE_SHIFT),
		.avoid_end = (u32)(div_round_up(run->off + run->bytes, KVC_HUGE_SIZE)),
	};

	KVC_BUG_ON(!is_size(bytes));
	return alloc_slow(ex, &want, owner, off);
}

/* The slot of an extent in use. */
static struct extent_slab *slab_of(struct extents *ex, struct extent_class *cls, u64 off, u32 *slot)
{
	struct extent_page *desc = extent_page(ex, (u32)(off >> EXTENT_PAGE_SHIFT));

	KVC_BUG_ON(desc->kind != PAGE_SLAB || desc->slab->cls != cls || off < desc->slab->base);
	*slot = extent_slot_of(cls, off - desc->slab->base);
	KVC_BUG_ON(*slot >= cls->nr_slots || extent_slot_off(desc->slab, *slot) != off);
	return desc->slab;
}

static void run_free(struct extents *ex, u64 off, u32 bytes)
{
	u32 page = (u32)(off >> EXTENT_PAGE_SHIFT);

	extent_cache_account(ex, -(int64_t)bytes);
	lock_acquire(&ex->lock);
	KVC_BUG_ON(page >= ex->nr_pages || extent_page(ex, page)->kind != PAGE_RUN);
	KVC_BUG_ON(extent_page(ex, page)->head != page);
	KVC_BUG_ON(extent_page(ex, page)->run.bytes != bytes);
	extent_pages_free(ex, page, extent_pages_of(bytes));
	lock_release(&ex->lock);
}

void extents_free(struct extents *ex, u64 off, u32 bytes)
{
	struct extent_class *cls = extent_class_get(ex, bytes);
	struct extent_slab *slab;
	u32 slot;

	if (!cls) {
		run_free(ex, off, bytes);
		return;
	}
	slab = slab_of(ex, cls, off, &slot);
	if (extent_cache_free(ex, cls, off, &slab->owner[slot]))
		return;
	extent_cache_account(ex, -(int64_t)bytes);
	lock_acquire(&ex->lock);
	extent_slot_put(ex, slab, slot);
	extent_cache_drain(ex, cls);
	lock_release(&ex->lock);
}

static int run_claim(struct extents *ex, u64 off, u32 bytes, u32 owner)
{
	u32 page = (u32)(off >> EXTENT_PAGE_SHIFT);

	if (off % KVC_HUGE_SIZE)
		return -EINVAL;
	if (!extent_pages_are_free(ex, page, extent_pages_of(bytes)))
		return -EEXIST;
	run_make(ex, page, bytes, owner);
	return 0;
}

static int slot_claim(struct extents *ex, u64 off, u32 bytes, u32 owner)
{
	struct extent_class *cls = extent_class_make(ex, bytes);
	struct extent_slab *slab;
	u32 page, slot;
	u64 base;
	int err;

	if (!cls)
		return -ENOMEM;
	page = extent_slab_page(cls, (u32)(off >> EXTENT_PAGE_SHIFT));
	base = extent_slab_base(cls, page);
	if (page + (1u << cls->order) > ex->nr_pages || off < base || (off - base) % bytes)
		return -EINVAL;
	slot = extent_slot_of(cls, off - base);
	if (slot >= cls->nr_slots)
		return -EINVAL;
	slab = extent_slab_at(ex, cls, page);
	if (!slab) {
		if (!extent_pages_are_free(ex, page, 1u << cls->order))
			return -EEXIST;
		err = extent_slab_open(ex, cls, page, &slab);
		if (err)
			return err;
	}
	if (!extent_slot_is_free(slab, slot))
		return -EEXIST;
	extent_slot_take(slab, slot);
	atomic_store_explicit(&slab->owner[slot], owner, memory_order_relaxed);
	return 0;
}

int extents_claim(struct extents *ex, u64 off, u32 bytes, u32 owner)
{
	u64 size = extents_size(ex);
	bool slots;
	int err;

	if (!is_size(bytes) || off % EXTENT_UNIT || off >= size || bytes > size - off)
		return kvc_err(-EINVAL, extent_claim_outside);
	slots = extent_slab_order(bytes) >= 0;
	lock_acquire(&ex->lock);
	do
		err = slots ? slot_claim(ex, off, bytes, owner) : run_claim(ex, off, bytes, owner);
	while (err == -EEXIST && extent_cache_flush(ex));
	lock_release(&ex->lock);
	if (err == -EINVAL)
		return kvc_err(err, extent_claim_misfit);
	if (err == -EEXIST)
		return kvc_err(err, extent_claim_overlap);
	if (!err)
		extent_cache_account(ex, bytes);
	return err;
}

void extents_set_owner(struct extents *ex, u64 off, u32 bytes, u32 owner)
{
	struct extent_class *cls = extent_class_get(ex, bytes);
	struct extent_page *desc = extent_page(ex, (u32)(off >> EXTENT_PAGE_SHIFT));
	u32 slot;

	if (cls) {
		struct extent_slab *slab = slab_of(ex, cls, off, &slot);

		atomic_store_explicit(&slab->owner[slot], owner, memory_order_relaxed);
		return;
	}
	lock_acquire(&ex->lock);
	KVC_BUG_ON(desc->kind != PAGE_RUN || desc->run.bytes != bytes);
	desc->run.owner = owner;
	lock_release(&ex->lock);
}

void extents_set_wall(struct extents *ex, u64 bytes)
{
	KVC_BUG_ON(bytes & (bytes - 1));
	ex->wall = (u32)(bytes >> EXTENT_PAGE_SHIFT);
}

u64 extents_shape(u32 bytes, u64 *align)
{
	int order = extent_slab_order(bytes);

	*align = (u64)KVC_HUGE_SIZE << max(order, 0);
	return order < 0 ? round_up_pow2(bytes, KVC_HUGE_SIZE) : *align;
}

u64 extents_slot_bytes(u32 bytes)
{
	int order = extent_slab_order(bytes);
	u64 slab = (u64)KVC_HUGE_SIZE << max(order, 0);

	if (order < 0)
		return round_up_pow2(bytes, KVC_HUGE_SIZE);
	return slab / (slab / bytes);
}

u64 extents_size(const struct extents *ex)
{
	return (u64)ex->nr_pages << EXTENT_PAGE_SHIFT;
}

u64 extents_used(const struct extents *ex)
{
	return extent_cache_used(ex);
}

u64 extents_free_pages(struct extents *ex)
{
	u64 nr;

	lock_acquire(&ex->lock);
	extent_cache_flush(ex);
	nr = ex->nr_free_pages;
	lock_release(&ex->lock);
	return nr;
}

void extents_to_text(struct extents *ex, struct textbuf *tb)
{
	lock_acquire(&ex->lock);
	extent_cache_flush(ex);
	for (u32 i = 0; i < EXTENT_CLASSES; i++) {
		struct extent_class *cls = ex->cls[i];

		if (cls && cls->nr_slabs)
			textbuf_printf(tb, "size %u slabs %llu slots %llu used %llu\n", cls->bytes,
				       (unsigned long long)cls->nr_slabs,
				       (unsigned long long)cls->nr_slabs * cls->nr_slots,
				       (unsigned long long)cls->nr_taken);
	}
	for (u32 order = 0; order <= EXTENT_MAX_ORDER; order++) {
		u32 nr = 0;

		for (u32 page = ex->free_head[order]; page != EXTENT_NO_PAGE;
		     page = extent_page(ex, page)->free.next)
			nr++;
		textbuf_printf(tb, "free %u pages %u\n", 1u << order, nr);
	}
	lock_release(&ex->lock);
}
