/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block: the unit of naming, hashing, checksum and placement.
 *
 *            pool_alloc                 pool_seal                prefix_insert
 *   (free) ─────────────► OPEN ───────────────────► SEALED ─────────────────► INDEXED
 *                          │ ▲                        │  ref 0: stays, cached, evictable │
 *              write ──────┘ └── spilled to NVMe      └──── ref 0, not indexed: freed ◄──┘ evicted
 *
 * A block has at most one copy per tier. Where its bytes are is the pool's business alone (pool.h);
 * nobody outside pool*.c, prefix.c, migrate.c and reclaim.c touches these fields.
 *
 * Numbered invariants (block_check() asserts them in debug builds):
 *  B1 SEALED never goes back to OPEN, and a sealed block's bytes and checksum never change.
 *  B2 INDEXED implies SEALED, ids != NULL, and parent valid (same generation) or a root.
 *  B3 pin > 0 implies that its DRAM copy, once there, stays where it is.
 *  B4 NVME_VALID implies ext[NVME] != NONE and csum is the checksum of those bytes.
 *  B5 ref > 0 and a store exists implies ext[NVME] != NONE (its room is reserved), volatile mode:
 *     ext[DRAM] != NONE.
 *  B6 RECORDED implies NVME_VALID: the bytes were durable before the record, and an extent of a
 *     recorded block is reused only after the removal of the record is durable.
 *  B7 heap_pos[t] != NONE iff the block is a candidate in tier t: it has a copy there, no pin, no I/O
 *     and no indexed child with a copy in t (leaf first). Only a block with I/O may still be in the
 *     heap: it is taken out when it is met there, and comes back when its I/O ends.
 *  B8 warm[WARM_CONTENT] implies RECORDED and DRAM_VALID; warm[WARM_PLACE] implies held > 0.
 */
#ifndef KVC_BLOCK_H
#define KVC_BLOCK_H

#include "allocator/base/compiler.h"
#include "allocator/base/hash.h"

/** struct block_id - index into the pool's block array; ids are reused, generations tell. */
struct block_id {
	u32 v;
};

#define BLOCK_NONE    ((struct block_id){UINT32_MAX})
#define BLOCK_IS_NONE(id) ((id).v == UINT32_MAX)

enum block_tier { IN_DRAM, IN_NVME, NR_BLOCK_TIERS };

/* Who needs it, as reclaim sees it: victims are taken from the lowest class first. */
enum block_class {
	CLASS_CACHED,	/* named by nobody */
	CLASS_IDLE,	/* named; also plain files */
	CLASS_PAUSED,
	CLASS_QUEUED,
	CLASS_DECODING,
	CLASS_PINNED,	/* user.kvc.pin: never leaves DRAM */
};

enum block_flags {
	BLOCK_LIVE = 1 << 0,	   /* allocated */
	BLOCK_SEALED = 1 << 1,
	BLOCK_INDEXED = 1 << 2,
	BLOCK_EMPTY = 1 << 3,	   /* no bytes yet: reads as zeros, has no copy */
	BLOCK_DRAM_VALID = 1 << 4, /* ext[IN_DRAM] holds its bytes */
	BLOCK_NVME_VALID = 1 << 5, /* ext[IN_NVME] holds its bytes, csum is theirs */
	BLOCK_RECORDED = 1 << 6,   /* a BLOCK record was submitted to the metadata store */
	BLOCK_IO = 1 << 7,	   /* a transfer is under way: wait */
	BLOCK_BAD = 1 << 8,	   /* its only copy failed its checksum or device: reads are -EIO */
	BLOCK_LOSSY = 1 << 9,	   /* its bytes went through a lossy codec */
	BLOCK_KV = 1 << 10,	   /* a sequence's, not a plain file's */
	BLOCK_FLUSHING = 1 << 11,  /* its NVMe copy was there when the tick's flush began */
	BLOCK_FILLING = 1 << 12,   /* open, held, and a client writes to it: never written back */
	BLOCK_ROOM = 1 << 13,	   /* one of its names is that of who appends in place, no file's */
};

/** struct block - all fields protected by the pool's lock, but where said. 128 bytes. */
struct block {
	u32 ref;	/* names */
	u32 pin;	/* who depends on its place; I/O has BLOCK_IO instead */
	u32 held;	/* of these, clients' mappings: they last, and no write waits for them */
	u32 gen;	/* bumped when the id is freed; set once before publish */
	u32 flags;	/* enum block_flags */
	u32 bytes;	/* payload, set once before publish; in memory and on media rounded up to 4096 */
	u32 space;	/* namespace id, 0 for plain files; set once before publish */
	u8 class;	/* enum block_class of its most demanding name */
	u8 priority;	/* 0..100 */
	u16 nr_ids;	/* entries in ids: tokens of one block */
	u32 hash_next;	/* next block id in its prefix bucket */
	u64 last_use;	/* pool clock at the last touch */
	u64 ext[NR_BLOCK_TIERS]; /* offset in the tier, EXTENT_NONE: no room there */
	u64 csum;	/* XXH3-64 of the stride; valid when SEALED or NVME_VALID */
	struct hash128 chain; /* of the prefix that ends with this block; valid when INDEXED */
	u32 parent;	/* block id, or PARENT_ROOT; valid when INDEXED */
	u32 parent_gen; /* its generation, or the root's id */
	u32 *ids;	/* token ids, owned; NULL unless INDEXED */
	u32 kids[NR_BLOCK_TIERS];     /* indexed children with a copy in the tier */
	u32 heap_pos[NR_BLOCK_TIERS]; /* place in the tier's reclaim heap, or NONE */
	u32 warm[2];	/* entries in the warm index, by enum warm_kind; 0: none */
};

#define PARENT_ROOT UINT32_MAX
#define HEAP_NONE   UINT32_MAX

static inline u32 block_stride(const struct block *b)
{
	return (u32)round_up_pow2(b->bytes, KVC_PAGE_SIZE);
}

#endif
