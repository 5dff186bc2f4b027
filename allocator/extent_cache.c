/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Free slots kept per thread.
 *
 * There are a few cells, each for the threads whose number maps to it. A cell keeps up to
 * EXTENT_BIN_SLOTS free slots (and about EXTENT_BIN_BYTES) of each of EXTENT_CELL_BINS sizes. To its
 * slab a cached slot is taken, so neither extents.lock nor the slab is touched by an allocation that
 * a cell can serve. Slots lie in a bin such that the next to go out is at the end.
 *
 * A cell also holds its share of the count of used bytes. All cells are locked to sum it up: the sum
 * is what was true at one moment, and so never exceeds the size of the space.
 */
#include <sched.h>
#include <string.h>
#include <unistd.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/extent_types.h"

#define SPINS	  200
#define MAX_CELLS 64u

static void cell_lock(struct extent_cell *cell)
{
	unsigned int spins = 0;

	while (unlikely(atomic_exchange_explicit(&cell->locked, 1, memory_order_acquire)))
		while (atomic_load_explicit(&cell->locked, memory_order_relaxed))
			if (++spins % SPINS == 0)
				sched_yield();
}

static void cell_unlock(struct extent_cell *cell)
{
	/* pairs with the exchange in cell_lock() */
	atomic_store_explicit(&cell->locked, 0, memory_order_release);
}

static struct extent_cell *cell_of_thread(struct extents *ex)
{
	static atomic_uint nr_threads;
	static __thread u32 number;

	if (unlikely(!number))
		number = atomic_fetch_add_explicit(&nr_threads, 1, memory_order_relaxed) | 1u << 31;
	return &ex->cell[number & (ex->nr_cells - 1)];
}

int extent_cache_init(struct extents *ex)
{
	long nr_cpus = sysconf(_SC_NPROCESSORS_ONLN);
	u32 nr = 2;

	while (nr < MAX_CELLS && nr < 2 * nr_cpus)
		nr *= 2;
	ex->cell = aligned_alloc(_Alignof(struct extent_cell), nr * sizeof(struct extent_cell));
	if (!ex->cell)
		return -ENOMEM;
	memset(ex->cell, 0, nr * sizeof(struct extent_cell));
	ex->nr_cells = nr;
	return 0;
}

/* The bin of @cls, or EXTENT_CELL_BINS. */
static u32 bin_find(const struct extent_cell *cell, const struct extent_class *cls)
{
	u32 first = cls->bytes / EXTENT_UNIT;

	for (u32 i = 0; i < EXTENT_CELL_BINS; i++) {
		u32 bin = (first + i) % EXTENT_CELL_BINS;

		if (cell->cls[bin] == cls)
			return bin;
	}
	return EXTENT_CELL_BINS;
}

static struct extent_cached bin_remove(struct extent_cell *cell, u32 bin, u32 i)
{
	struct extent_cached *slot = cell->slot[bin], found = slot[i];

	for (u32 last = --cell->nr[bin]; i < last; i++)
		slot[i] = slot[i + 1];
	return found;
}

bool extent_cache_alloc(struct extents *ex, struct extent_class *cls, u64 near, u32 owner, u64 *off)
{
	struct extent_cell *cell = cell_of_thread(ex);
	struct extent_cached found;
	u32 bin, i = 0;

	cell_lock(cell);
	bin = bin_find(cell, cls);
	if (bin < EXTENT_CELL_BINS)
		i = cell->nr[bin];
	if (near != EXTENT_NONE)
		while (i && cell->slot[bin][i - 1].off != near)
			i--;
	if (!i) {
		cell_unlock(cell);
		return false;
	}
	found = bin_remove(cell, bin, i - 1);
	cell->used_bytes += cls->bytes;
	atomic_store_explicit(found.owner, owner, memory_order_relaxed);
	cell_unlock(cell);
	*off = found.off;
	return true;
}

bool extent_cache_free(struct extents *ex, struct extent_class *cls, u64 off, _Atomic u32 *owner)
{
	struct extent_cell *cell = cell_of_thread(ex);
	bool kept = false;
	u32 bin;

	KVC_BUG_ON(atomic_load_explicit(owner, memory_order_relaxed) == EXTENT_CACHED);
	cell_lock(cell);
	bin = bin_find(cell, cls);
	if (likely(bin < EXTENT_CELL_BINS) && cell->nr[bin] < cls->cache_slots) {
		atomic_store_explicit(owner, EXTENT_CACHED, memory_order_relaxed);
		cell->slot[bin][cell->nr[bin]++] = (struct extent_cached){off, owner};
		cell->used_bytes -= cls->bytes;
		kept = true;
	}
	cell_unlock(cell);
	return kept;
}

/* Give the oldest slots of a bin back to their slabs until @keep are left. */
static void bin_flush(struct extents *ex, struct extent_cell *cell, u32 bin, u32 keep)
{
	struct extent_cached *slot = cell->slot[bin];
	u32 nr = cell->nr[bin], gone = nr > keep ? nr - keep : 0;

	for (u32 i = 0; i < gone; i++) {
		u32 page = (u32)(slot[i].off >> EXTENT_PAGE_SHIFT);
		struct extent_slab *slab = extent_page(ex, page)->slab;

		extent_slot_put(ex, slab, (u32)(slot[i].owner - slab->owner));
	}
	for (u32 i = gone; i < nr; i++)
		slot[i - gone] = slot[i];
	cell->nr[bin] = (u8)(nr - gone);
}

/* The bin of @cls, made from an empty one or in place of another. */
static u32 bin_get(struct extents *ex, struct extent_cell *cell, struct extent_class *cls)
{
	u32 bin = bin_find(cell, cls);

	if (bin < EXTENT_CELL_BINS)
		return bin;
	for (bin = 0; bin < EXTENT_CELL_BINS && cell->nr[bin]; bin++)
		;
	if (bin == EXTENT_CELL_BINS)
		bin = cell->hand++ % EXTENT_CELL_BINS;
	bin_flush(ex, cell, bin, 0);
	cell->cls[bin] = cls;
	return bin;
}

void extent_cache_refill(struct extents *ex, struct extent_slab *slab)
{
	struct extent_cell *cell = cell_of_thread(ex);
	struct extent_class *cls = slab->cls;
	u32 bin, nr, slot = 0;

	cell_lock(cell);
	bin = bin_get(ex, cell, cls);
	nr = min((u32)cls->cache_slots / 2, (u32)(cls->nr_slots - slab->live));
	if (cell->nr[bin])
		nr = 0; /* another thread of the cell was here first */
	cell->nr[bin] += nr;
	/* lowest slot last: it goes out first */
	for (u32 i = nr; i--; slot++) {
		slot = extent_next_bit(slab->free_map, cls->nr_slots, slot, 0);
		extent_slot_take(slab, slot);
		atomic_store_explicit(&slab->owner[slot], EXTENT_CACHED, memory_order_relaxed);
		cell->slot[bin][i] =
			(struct extent_cached){extent_slot_off(slab, slot), &slab->owner[slot]};
	}
	cell_unlock(cell);
}

void extent_cache_drain(struct extents *ex, struct extent_class *cls)
{
	struct extent_cell *cell = cell_of_thread(ex);

	cell_lock(cell);
	bin_flush(ex, cell, bin_get(ex, cell, cls), cls->cache_slots / 2);
	cell_unlock(cell);
}

bool extent_cache_flush(struct extents *ex)
{
	bool any = false;

	for (u32 i = 0; i < ex->nr_cells; i++) {
		struct extent_cell *cell = &ex->cell[i];

		cell_lock(cell);
		for (u32 bin = 0; bin < EXTENT_CELL_BINS; bin++) {
			any |= cell->nr[bin];
			bin_flush(ex, cell, bin, 0);
		}
		cell_unlock(cell);
	}
	return any;
}

void extent_cache_account(struct extents *ex, int64_t bytes)
{
	struct extent_cell *cell = cell_of_thread(ex);

	cell_lock(cell);
	cell->used_bytes += bytes;
	cell_unlock(cell);
}

u64 extent_cache_used(const struct extents *ex)
{
	int64_t bytes = 0;

	for (u32 i = 0; i < ex->nr_cells; i++)
		cell_lock(&ex->cell[i]);
	for (u32 i = 0; i < ex->nr_cells; i++)
		bytes += ex->cell[i].used_bytes;
	for (u32 i = 0; i < ex->nr_cells; i++)
		cell_unlock(&ex->cell[i]);
	return (u64)bytes;
}
