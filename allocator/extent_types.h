/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the extent allocator: its structures and what its files offer each other.
 *
 *   extent.c          the public functions: fast path, slow path, claims, text
 *   extent_buddy.c    2 MiB pages: free runs by order, and a bitmap for runs of any length
 *   extent_slab.c     size classes and slabs; placement
 *   extent_cache.c    free slots kept per thread, and the count of used bytes
 *   extent_victims.c  which extents must go to make room for another shape
 *
 * Locks: extents.lock, then the cells' spin locks in rising order. A cell's lock is held for a few
 * instructions, and for a move of at most EXTENT_BIN_SLOTS slots when extents.lock is held too.
 */
#ifndef KVC_EXTENT_TYPES_H
#define KVC_EXTENT_TYPES_H

#include <stdatomic.h>
#include "allocator/base/list.h"
#include "allocator/base/lock.h"
#include "allocator/extent.h"

#define EXTENT_PAGE_SHIFT    21
#define EXTENT_NO_PAGE	     UINT32_MAX
#define EXTENT_MAX_ORDER     9			/* free blocks of up to 1 GiB */
#define EXTENT_SLAB_ORDER    4			/* largest slab: 16 pages, 32 MiB */
#define EXTENT_SLAB_BYTES    MIB(8)		/* sizes below may have slabs */
#define EXTENT_SLAB_SLOTS    512u		/* most slots in a slab: 4 KiB ones in one page */
#define EXTENT_CLASSES	     (EXTENT_SLAB_BYTES / EXTENT_UNIT)
#define EXTENT_BUCKETS	     8u			/* partial slabs by occupancy */
#define EXTENT_CHUNK_SHIFT   15			/* page descriptors are allocated 64 GiB at a time */
#define EXTENT_CHUNKS	     1024u		/* so 64 TiB at most */
#define EXTENT_CELL_BINS     8u
#define EXTENT_BIN_SLOTS     16u
#define EXTENT_BIN_BYTES     KIB(512)		/* a bin holds no more, but always two slots */
#define EXTENT_CACHED	     (UINT32_MAX - 1)	/* owner of a slot that lies in a cell */

enum extent_page_kind {
	PAGE_FREE,	/* free, not the first of its block */
	PAGE_FREE_HEAD, /* first page of a free block, on free_head[order] */
	PAGE_SLAB,
	PAGE_RUN,	/* part of an extent that is a run of pages */
};

/*
 * One per 2 MiB page. Protected by extents.lock; the holder of an extent may read the kind and slab
 * of its pages without, since they cannot change before it frees the extent.
 */
struct extent_page {
	union {
		struct {
			u32 next, prev; /* page numbers of the neighbours on the free list */
		} free;			/* PAGE_FREE_HEAD */
		struct extent_slab *slab; /* PAGE_SLAB: on every page */
		struct {
			u32 bytes, owner;
		} run; /* PAGE_RUN: on the first page */
	};
	u32 head; /* PAGE_RUN: number of the first page */
	u8 kind;
	u8 order; /* PAGE_FREE_HEAD */
};

/* One per size that was ever used; lives as long as the allocator. */
struct extent_class {
	u64 recip;	 /* 2^32 / units of a slot, rounded up: division by multiplication */
	u32 bytes;	 /* of a slot; up to here and to cache_slots: set once before publish */
	u32 waste_bytes; /* of a slab */
	u16 nr_slots;	 /* in a slab */
	u8 order;	 /* a slab has 1 << order pages */
	u8 cache_slots;	 /* most slots in a bin */
	struct list_head partial[EXTENT_BUCKETS]; /* slabs with free slots, by occupancy; extents.lock */
	u64 nr_slabs, nr_taken;			  /* taken slots, cached ones included; extents.lock */
};

struct extent_slab {
	struct list_head link; /* extent_class.partial, or empty when full */
	struct extent_class *cls;
	u64 base;	/* offset of slot 0, bytes; with page, cls: set once before publish */
	u32 page;	/* first page */
	u16 live;	/* taken slots, cached ones included; extents.lock */
	u8 bucket;	/* of the list that it is on; EXTENT_BUCKETS: on none */
	u32 probe;	/* search number * 2 + "all can move"; extents.lock */
	u64 free_map[EXTENT_SLAB_SLOTS / 64]; /* extents.lock */
	_Atomic u32 owner[];		      /* per slot; the extent's holder writes it */
};

struct extent_cached {
	u64 off; /* bytes */
	_Atomic u32 *owner;
};

/* Free slots of up to EXTENT_CELL_BINS sizes, and a share of the used bytes. All under locked. */
struct extent_cell {
	atomic_uint locked;
	u32 hand;      /* bin to give up next */
	int64_t used_bytes; /* may be negative: extents are freed by other threads than took them */
	struct extent_class *cls[EXTENT_CELL_BINS];
	u8 nr[EXTENT_CELL_BINS];
	struct extent_cached slot[EXTENT_CELL_BINS][EXTENT_BIN_SLOTS];
} __attribute__((aligned(128)));

struct extents {
	struct lock lock; /* LOCK_EXTENT; protects what is not marked otherwise */
	_Atomic u32 nr_pages;
	u32 nr_free_pages;
	u32 low_free;			     /* no page below is free */
	u32 free_head[EXTENT_MAX_ORDER + 1]; /* page numbers */
	u64 *free_map;			     /* a bit per page, set: free */
	u32 wall;			     /* pages; 0: none. Set once before use */
	struct extent_page *chunk[EXTENT_CHUNKS]; /* an entry is set once, before its pages are used */
	struct extent_class *_Atomic cls[EXTENT_CLASSES]; /* by bytes / EXTENT_UNIT; set once */
	struct extent_cell *cell;			  /* nr_cells, a power of two; set once */
	u32 nr_cells;

	/* how the searches for victims of one shape go on where the last one ended */
	u32 search;	    /* number of the current one */
	u32 victim_pages;   /* shape: pages */
	u32 victim_align;   /* pages */
	u32 victim_page;    /* where to go on */
	u64 victim_bytes;   /* a run that costs no more is good enough */
};

/* What an allocation asks for. */
struct extent_want {
	u64 near;		   /* bytes or EXTENT_NONE */
	u32 bytes;
	u32 avoid_page, avoid_end; /* pages that must not be used; equal: none */
};

static inline struct extent_page *extent_page(const struct extents *ex, u32 page)
{
	return &ex->chunk[page >> EXTENT_CHUNK_SHIFT][page & ((1u << EXTENT_CHUNK_SHIFT) - 1)];
}

static inline u32 extent_pages_of(u32 bytes)
{
	return (u32)(((u64)bytes + KVC_HUGE_SIZE - 1) >> EXTENT_PAGE_SHIFT);
}

/** extent_next_bit() - first set bit in [@from, @end), or clear one when @flip is ~0; else @end. */
static inline u32 extent_next_bit(const u64 *map, u32 end, u32 from, u64 flip)
{
	while (from < end) {
		u64 word = (map[from / 64] ^ flip) >> (from % 64);

		if (word)
			return min(from + (u32)__builtin_ctzll(word), end);
		from = (from | 63) + 1;
	}
	return end;
}

static inline bool extent_avoids(const struct extent_want *want, u32 page, u32 nr)
{
	return page >= want->avoid_end || page + nr <= want->avoid_page;
}

/** extent_fit() - first page from @page on where a run of @nr pages may begin. */
static inline u32 extent_fit(const struct extents *ex, u32 page, u32 nr, u32 align)
{
	u32 wall = ex->wall;

	page = (page + align - 1) & ~(align - 1);
	if (wall && nr <= wall && (page & (wall - 1)) + nr > wall)
		page = (page | (wall - 1)) + 1; /* aligned: @align is at most the power of two in @nr */
	return page;
}

static inline u32 extent_slot_of(const struct extent_class *cls, u64 rel_bytes)
{
	return (u32)((rel_bytes / EXTENT_UNIT * cls->recip) >> 32);
}

static inline u64 extent_slot_off(const struct extent_slab *slab, u32 slot)
{
	return slab->base + (u64)slot * slab->cls->bytes;
}

/** extent_class_get() - the class of @bytes; NULL when it has none or none was made yet. */
static inline struct extent_class *extent_class_get(struct extents *ex, u32 bytes)
{
	if (bytes >= EXTENT_SLAB_BYTES)
		return NULL;
	return atomic_load_explicit(&ex->cls[bytes / EXTENT_UNIT], memory_order_acquire);
}

/* extent_buddy.c; all with extents.lock held */
void extent_pages_free(struct extents *ex, u32 page, u32 nr);
/** extent_pages_take() - make free pages used; the caller sets their kind. */
void extent_pages_take(struct extents *ex, u32 page, u32 nr);
bool extent_pages_are_free(struct extents *ex, u32 page, u32 nr);
/** extent_pages_pick() - @nr free pages, the first a multiple of @align, or EXTENT_NO_PAGE. */
u32 extent_pages_pick(struct extents *ex, u32 nr, u32 align, const struct extent_want *want);
/** extent_free_block() - first page of the free block that free @page is part of. */
u32 extent_free_block(struct extents *ex, u32 page);

/* extent_slab.c; all but extent_slab_order() with extents.lock held */
/** extent_slab_order() - log2 of the pages of a slab for @bytes; -1 when such extents are runs. */
int extent_slab_order(u32 bytes);
/** extent_class_make() - as extent_class_get(), makes it; NULL: no memory. @bytes has slabs. */
struct extent_class *extent_class_make(struct extents *ex, u32 bytes);
int extent_slab_open(struct extents *ex, struct extent_class *cls, u32 page,
		     struct extent_slab **slab);
/** extent_slab_alloc() - choose and take a slot. Return: 0, -ENOSPC, -ENOMEM. */
int extent_slab_alloc(struct extents *ex, struct extent_class *cls, const struct extent_want *want,
		      struct extent_slab **slab, u32 *slot);
void extent_slot_take(struct extent_slab *slab, u32 slot);
/** extent_slot_put() - give a slot back; an empty slab's pages are freed. */
void extent_slot_put(struct extents *ex, struct extent_slab *slab, u32 slot);
static inline bool extent_slot_is_free(const struct extent_slab *slab, u32 slot)
{
	return slab->free_map[slot / 64] >> (slot % 64) & 1;
}
/** extent_slab_at() - the slab of class @cls that has @page, or NULL. */
struct extent_slab *extent_slab_at(struct extents *ex, struct extent_class *cls, u32 page);
/** extent_slab_page() - first page of the slab of @cls that has @page. */
static inline u32 extent_slab_page(const struct extent_class *cls, u32 page)
{
	return page & ~((1u << cls->order) - 1);
}
u64 extent_slab_base(const struct extent_class *cls, u32 page);

/* extent_cache.c */
int extent_cache_init(struct extents *ex);
/** extent_cache_alloc() - take a cached slot (@near: exactly that one unless EXTENT_NONE). */
bool extent_cache_alloc(struct extents *ex, struct extent_class *cls, u64 near, u32 owner,
			u64 *off);
/** extent_cache_free() - keep a slot; false when its bin is full or there is none for it. */
bool extent_cache_free(struct extents *ex, struct extent_class *cls, u64 off, _Atomic u32 *owner);
/** extent_cache_refill() - move some free slots of @slab in; extents.lock held. */
void extent_cache_refill(struct extents *ex, struct extent_slab *slab);
/** extent_cache_drain() - make room for another free of @cls; extents.lock held. */
void extent_cache_drain(struct extents *ex, struct extent_class *cls);
/** extent_cache_flush() - all slots of all cells back to their slabs; extents.lock held. */
bool extent_cache_flush(struct extents *ex);
void extent_cache_account(struct extents *ex, int64_t bytes);
u64 extent_cache_used(const struct extents *ex);

#endif
