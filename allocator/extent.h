/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extent allocator: which bytes of a tier are in use, and by which block.
 *
 * One allocator serves every tier. It hands out extents of a tier's linear address space and never
 * touches the bytes themselves. Space is cut into 2 MiB pages:
 *
 *   page runs (buddy) ── extents of about a multiple of 2 MiB: just the pages needed
 *                    └── slabs: a run cut into equal slots of one size class
 *
 * Every slab is a naturally aligned power-of-two run of pages, sized so that at most 1/16 of it is
 * waste. So an extent's slab and slot follow from (offset, size) alone, which lets a mount rebuild
 * the whole state from its block records (extents_claim()). Sizes of 2 MiB and up use a slab too
 * where whole pages would waste more than 1/16 (2.5 MiB: six in 16 MiB) and a slab does not. Each slot remembers its owner (a block
 * id), so that reclaim can empty a whole slab by moving or evicting who lives there: scattered free
 * slots of one size never starve another size.
 *
 * A sequence's blocks lie in adjacent runs where possible: extents_alloc() takes the offset that the
 * caller would like best (right behind the sequence's previous block).
 *
 * Small caches of free slots per thread keep allocate + free of one size at tens of nanoseconds.
 * They hold a bounded number of slots (told by extents_used() as free) and are flushed when an
 * allocation would fail otherwise.
 *
 * Context: all functions are thread-safe, never block on I/O. Lock rank: LOCK_EXTENT.
 */
#ifndef KVC_EXTENT_H
#define KVC_EXTENT_H

#include "allocator/base/compiler.h"

#define EXTENT_NONE	 UINT64_MAX
#define EXTENT_NO_OWNER	 UINT32_MAX	/* block ids are below UINT32_MAX - 1 */
#define EXTENT_UNIT	 KVC_PAGE_SIZE	/* sizes and offsets are multiples of this */
#define EXTENT_MAX_BYTES GIB(1)

struct extents;

/** struct extent_ref - an extent in use and who owns it. */
struct extent_ref {
	u64 off;	/* bytes */
	u32 bytes;
	u32 owner;	/* block id */
};

/**
 * extents_create() - an allocator over @size_bytes (rounded down to 2 MiB), all free.
 * Return: 0, -EINVAL (less than one page), -ENOMEM.
 */
int __must_check extents_create(struct extents **ex, u64 size_bytes);
void extents_destroy(struct extents *ex);

/** extents_grow() - extend to @size_bytes; existing extents stay. Return: 0, -EINVAL, -ENOMEM. */
int __must_check extents_grow(struct extents *ex, u64 size_bytes);

/**
 * extents_alloc() - take an extent.
 * @bytes: size, a multiple of EXTENT_UNIT, up to EXTENT_MAX_BYTES
 * @near: offset the extent should start at if that is free, or EXTENT_NONE
 * @owner: block id stored with it
 * @off: result, bytes
 * Return: 0, -ENOSPC (no room of that shape: reclaim, then see extents_find_victims()), -ENOMEM.
 */
int __must_check extents_alloc(struct extents *ex, u32 bytes, u64 near, u32 owner, u64 *off);

/** extents_free() - give back what extents_alloc() or extents_claim() took; @bytes as given there. */
void extents_free(struct extents *ex, u64 off, u32 bytes);

/**
 * extents_claim() - mark [@off, @off + @bytes) used by @owner: rebuilding at mount.
 * Return: 0, -EINVAL (outside, not a size, misaligned for its class), -EEXIST (overlaps another
 * extent or a slab of another size), -ENOMEM.
 */
int __must_check extents_claim(struct extents *ex, u64 off, u32 bytes, u32 owner);

/** extents_set_owner() - hand an extent to another block. */
void extents_set_owner(struct extents *ex, u64 off, u32 bytes, u32 owner);

/** struct extent_run - a range of whole pages. */
struct extent_run {
	u64 off, bytes;
};

/**
 * struct extent_victims - the question to extents_find_victims() and its answer.
 * @movable: asked for each candidate, may say no (pinned); called with LOCK_EXTENT held, so it must
 *	not take locks; NULL: all are movable. Extents without an owner never are
 * @ctx: handed to @movable
 * @refs: result array of @max entries
 * @run: out: the pages that become free when all victims are gone
 */
struct extent_victims {
	bool (*movable)(void *ctx, u32 owner);
	void *ctx;
	struct extent_ref *refs;
	unsigned int max;
	struct extent_run run;
};

/**
 * extents_find_victims() - which extents must go so that @bytes can be allocated.
 *
 * Picks the page run (or slab) of the needed shape that costs the fewest live bytes to empty, give
 * or take a quarter, and in which everything is movable. The answer is a snapshot: by the time the
 * caller acts, an extent may be gone or have another owner. Return: number of extents in
 * @victims->refs, 0 when nothing needs to move (an allocation would succeed), -ENOSPC when no run
 * qualifies, -E2BIG when the chosen one has more than @victims->max extents.
 */
int __must_check extents_find_victims(struct extents *ex, u32 bytes,
				      struct extent_victims *victims);

/**
 * extents_alloc_outside() - as extents_alloc(), but never inside @run: where the victims of
 * extents_find_victims() move to. Does not open a new slab or run inside it either.
 */
int __must_check extents_alloc_outside(struct extents *ex, u32 bytes, u32 owner,
				       const struct extent_run *run, u64 *off);

/**
 * extents_set_wall() - from now on no extent crosses a multiple of @bytes, a power of two, unless it
 * is larger, or its slab is. Before the first allocation.
 */
void extents_set_wall(struct extents *ex, u64 bytes);

/** extents_shape() - bytes of the page run that an extent of @bytes needs to begin; @align: its. */
u64 extents_shape(u32 bytes, u64 *align);

/**
 * extents_list() - the extents that lie in @victims->run, whole or in part, into @victims->refs;
 * @movable is asked for each. Return: their number, -EBUSY (one cannot move), -E2BIG (more than max).
 */
int __must_check extents_list(struct extents *ex, struct extent_victims *victims);

/** extents_slot_bytes() - bytes that an extent of @bytes really takes, its share of waste included. */
u64 extents_slot_bytes(u32 bytes);

u64 extents_size(const struct extents *ex);
/** extents_used() - bytes of live extents, @bytes summed as asked for. Free: size - used. */
u64 extents_used(const struct extents *ex);
/**
 * extents_free_pages() - whole free 2 MiB pages. Empties the thread caches to know: for status and
 * tests, not for every allocation.
 */
u64 extents_free_pages(struct extents *ex);

struct textbuf;
/** extents_to_text() - a line per size class: size slabs slots used; then free runs by order. */
void extents_to_text(struct extents *ex, struct textbuf *tb);

#endif
