/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the pool, shared by pool.c (names), migrate.c (bytes), reclaim.c (room), prefix.c (index)
 * and pool_meta.c (records). Nobody else includes this.
 */
#ifndef KVC_POOL_TYPES_H
#define KVC_POOL_TYPES_H

#include <pthread.h>
#include <stdatomic.h>
#include "allocator/base/list.h"
#include "allocator/base/lock.h"
#include "allocator/block.h"
#include "allocator/extent.h"
#include "allocator/meta.h"
#include "allocator/pool.h"
#include "allocator/warm.h"
#include "tiers/tier.h"

#define BLOCK_CHUNK	4096	/* block descriptors allocated at once */
#define POOL_WAITQS	64
#define BLOCK_MAX_BYTES EXTENT_MAX_BYTES
#define BLOCK_MAX_ID	(1u << 30)
#define KEPT_MAX_PCT	80	/* of DRAM may be pinned by name */
#define LOADERS		2
#define PREFETCH_QUEUE	65536	/* blocks waiting to be prefetched; beyond, hints are dropped */
#define LOADS_MAX	8192	/* loads under way */
#define LOAD_BLOCKS_MAX (1u << 20) /* blocks of all of them */
#define ROOM_WAIT_MS	10000	/* how long DRAM may stay full of pinned blocks: then -ENOMEM */
#define MOVE_BATCH	512	/* blocks moved together */
#define MOVE_BATCH_BYTES MIB(32)
#define BREATHE		4096	/* blocks that a loop looks at with the lock held */

/** struct heap - binary heap of candidate blocks, coldest first (heap_key()). */
struct heap {
	u32 *ids;
	u32 nr, max;
};

struct prefix_root {
	u32 space;	/* 0: dead */
	u32 salt_bytes;
	u8 *salt;	/* owned */
	struct hash128 chain;
	u32 next;	/* root in the same bucket, or next free one; 0: none */
	bool due;	/* in roots_due */
};

/** struct limbo - an extent whose block's record is to be removed, or is but not durably yet. */
struct limbo {
	u64 off;
	u32 bytes;
	u32 id;		/* the block it was recorded for */
	u64 seq;	/* of the removal; unset before limbo_open */
};

/** struct idgen - a block that may be gone by now. */
struct idgen {
	u32 id, gen;
};

/** struct idvec - growing array of them. */
struct idvec {
	struct idgen *v;
	u32 nr, max;
};

/** struct domain - a trust domain and its room in DRAM (domain.c). */
struct domain {
	struct pool_owner owner; /* of its namespaces; domain 0 has none */
	u32 id;			/* what callers know it by: never used again, as its place here is */
	u32 nr_slabs;
	u32 users;		/* who rely on its place in the table while they drop the lock */
	u64 used;		/* bytes of its blocks */
	bool active;		/* had blocks once */
	struct extents *room;	/* over all of DRAM; the slabs of others are taken. Owned; NULL: unused */
};

struct dram_slab {
	u64 used;	/* bytes of blocks in it */
	u32 file;	/* number of its pool file */
	u16 domain;
	u16 opening;	/* callers that are just getting a descriptor of its file */
	bool touched;	/* since it is its domain's, bytes may have been in it or its file given away */
};

struct space_domain {
	u32 space;
	u16 domain;
};

struct pool {
	/* set once */
	struct tier *tier[NR_BLOCK_TIERS];	/* NVMe NULL: volatile */
	struct extents *nvme_room;		/* NULL: volatile */
	u64 dram_bytes, slab_bytes;
	u32 nr_slabs;
	enum block_tier capacity;		/* where names reserve */
	u8 *dram_base;
	bool write_through;
	struct meta *meta;
	struct warm *warm;	/* NULL: nothing outlives us; set before use, as what is mapped there is protected by lock */

	struct lock lock;	/* LOCK_POOL: everything below, but where said */
	struct waitq io_done[POOL_WAITQS];	/* BLOCK_IO went, by block id */
	struct waitq room_freed;	/* room appeared, a pin or BLOCK_IO went, or pairing ended */
	bool pairing;	/* somebody holds one block's place in DRAM and waits for another's */
	u64 high_bytes, low_bytes;	/* watermarks of DRAM */
	u64 kept_max_bytes;		/* budget of named pins: KEPT_MAX_PCT of DRAM */

	/* trust domains */
	struct domain *domains;
	struct dram_slab *slabs;
	struct space_domain *spaces;	/* by space */
	u32 nr_domains, nr_active, nr_spaces, max_spaces;
	u32 nr_files;		/* pool file numbers given so far */
	u32 nr_domain_ids;
	u64 dram_used_now;	/* bytes of blocks in DRAM */
	bool taking_over;	/* somebody empties a slab for another domain */

	struct block **chunks;	/* of BLOCK_MAX_ID: never moves, so transfers look without the lock */
	u32 nr_chunks;
	u32 nr_ids;		/* ids handed out so far */
	u32 free_head;		/* free descriptors, through hash_next */
	u64 clock;		/* counts touches */
	struct heap heap[NR_BLOCK_TIERS];

	/* prefix index */
	u32 *buckets;		/* block ids, chained through hash_next */
	u32 nr_buckets, max_buckets;
	u32 bucket_mask;	/* all ones, covers nr_buckets - 1 */
	u32 nr_indexed;
	struct prefix_root *roots;	/* index 0 unused */
	u32 *root_buckets;	/* first root of each, by chain; 0: none */
	u32 *roots_due;		/* whose record is to be written or removed */
	u32 nr_roots, nr_roots_due;
	u32 max_roots;		/* of all three arrays; power of two */
	u32 root_free;		/* unused ones below nr_roots, through next */

	/* records */
	struct limbo *limbo;	/* in the order of their removals */
	u32 limbo_head;		/* those before are done with */
	u32 limbo_open;		/* from here on the removal is still to be submitted */
	u32 nr_limbo, max_limbo;
	bool ticking;		/* one pool_tick() at a time; others wait on flush_wait */
	struct idvec stale;	/* cached blocks without a record: the next tick writes one */
	struct idvec renew;	/* blocks whose record is out of date: the next submit writes it */

	/* reclaim thread */
	pthread_t reclaimer;
	struct waitq reclaim_wait;
	bool started, stop;

	/* prefetch.c: hints and loads, served by the loader threads */
	pthread_t loaders[LOADERS];
	struct waitq load_wait, load_ended;
	struct idgen *hints;	/* ring */
	u32 hint_head, hint_tail;
	struct list_head loads;	/* by deadline */
	u32 nr_loads, load_blocks;
	u32 nr_demand;		/* readers for whom the disk is busy */

	/* flush sharing */
	struct waitq flush_wait;
	u64 flush_started, flush_done;
	bool flushing;
	int flush_err;

	/* counters; gauges end in _now */
	u64 kept_bytes_now;	/* of blocks in CLASS_PINNED, at most kept_max_bytes */
	u64 named_bytes_now, cached_blocks_now, live_blocks_now, pinned_bytes_now;
	u64 copies_now[NR_BLOCK_TIERS];
	u64 limbo_bytes_now;	/* of the capacity tier */
	u64 hit_tokens, lookup_tokens, stall_ns, reads_resident, reads_cold;
	u64 restored, evicted[NR_BLOCK_TIERS], demoted, promoted, moved, checksum_errors;
};

static inline struct block *pool_block(struct pool *pool, u32 id)
{
	return &pool->chunks[id / BLOCK_CHUNK][id % BLOCK_CHUNK];
}

static inline bool pool_volatile(const struct pool *pool)
{
	return !pool->tier[IN_NVME];
}

/** room_size(), room_used() - bytes of a tier, in all and taken. */
static inline u64 room_size(const struct pool *pool, enum block_tier t)
{
	return t == IN_DRAM ? pool->dram_bytes : extents_size(pool->nvme_room);
}

static inline u64 room_used(const struct pool *pool, enum block_tier t)
{
	return t == IN_DRAM ? pool->dram_used_now : extents_used(pool->nvme_room);
}

static inline u8 *block_addr(const struct pool *pool, const struct block *b)
{
	return pool->dram_base + b->ext[IN_DRAM];
}

/** orphan_bytes() - DRAM that is kept for clients of an earlier daemon and has no block. Lock held. */
static inline u64 orphan_bytes(const struct pool *pool)
{
	return pool->warm ? pool->warm->orphan_bytes : 0;
}

/**
 * pool_breathe() - in a long loop with the lock held: let others have it for a moment. What the loop
 * knows of other blocks than those that it names is void afterwards.
 */
static inline void pool_breathe(struct pool *pool)
{
	lock_release(&pool->lock);
	lock_acquire(&pool->lock);
}

/* ---- pool.c: descriptors and names; all with the lock held ---- */
/** block_chunk_add() - BLOCK_CHUNK more descriptors. */
int __must_check block_chunk_add(struct pool *pool);
u32 __must_check block_new(struct pool *pool, u32 bytes, u32 space);
/** block_named() - ref went from 0 to 1; reserves room. Return: 0, -ENOSPC (nothing changed). */
int __must_check block_named(struct pool *pool, u32 id);
void block_unnamed(struct pool *pool, u32 id);
/** block_maybe_free() - free it if nothing names, indexes, pins or moves it. Return: freed. */
bool block_maybe_free(struct pool *pool, u32 id);
void block_set_ext(struct pool *pool, u32 id, enum block_tier tier, u64 off);
/** block_release_ext() - give back its room in @tier; through limbo when recorded. */
void block_release_ext(struct pool *pool, u32 id, enum block_tier tier);
/** pool_pin_locked() - one more pin. */
void pool_pin_locked(struct pool *pool, u32 id);
void block_wait_io(struct pool *pool, u32 id);
void block_io_begin(struct pool *pool, u32 id);
void block_io_end(struct pool *pool, u32 id);
/** block_materialise() - an EMPTY block gets its zeros. Lock held, dropped meanwhile. */
int __must_check block_materialise(struct pool *pool, u32 id);
int __must_check idvec_push(struct idvec *vec, u32 id, u32 gen);
/** block_stale() - its record is missing or out of date. Return: 0, -ENOMEM (it stays so). */
int block_stale(struct pool *pool, u32 id);
void block_check(struct pool *pool, u32 id);

/* ---- domain.c; all with the lock held, which only domain_takeover() drops ---- */
int __must_check domains_create(struct pool *pool);
void domains_free(struct pool *pool);
/** domain_of_space() - the domain whose slabs a namespace's blocks belong into. */
u16 domain_of_space(const struct pool *pool, u32 space);
/** domain_use() - the same, and it stays that domain's number until domain_unuse(). */
u16 domain_use(struct pool *pool, u32 space);
void domain_unuse(struct pool *pool, u16 domain);
/** domain_has_spaces() - is there a namespace whose domain it is? */
bool domain_has_spaces(const struct pool *pool, u16 domain);
/** domain_at() - the domain that has the slab at @off. */
u16 domain_at(const struct pool *pool, u64 off);
void domain_forget_space(struct pool *pool, u32 space);
/** dram_alloc() - room for block @id in its domain's slabs. Return: 0, -ENOSPC, -ENOMEM. */
int __must_check dram_alloc(struct pool *pool, u32 id, u64 near, u64 *off);
/** dram_alloc_guest() - the same in the slabs that no client is given. Return: 0, -ENOSPC, -ENOMEM. */
int __must_check dram_alloc_guest(struct pool *pool, u32 id, u64 *off);
/** dram_alloc_outside() - a second room for @id in the domain where it is, not in @run. */
int __must_check dram_alloc_outside(struct pool *pool, u32 id, const struct extent_run *run,
				    u64 *off);
void dram_free(struct pool *pool, u64 off, u32 bytes);
u64 domain_free_bytes(const struct pool *pool, u16 domain);
/** domain_reclaim_bytes() - how much to evict at once so that @bytes come to be free for @domain. */
u32 domain_reclaim_bytes(const struct pool *pool, u16 domain, u32 bytes);
/** domain_takeover() - another domain's slab for @domain, which lacks room for @bytes. Lock held,
 * dropped meanwhile. Return: whether to try again. */
bool domain_takeover(struct pool *pool, u16 domain, u32 bytes);
/** domain_adopt() - an empty slab of domain 0 is @owner's, as it is. Return: 0, -ENOENT, -ENOMEM. */
int __must_check domain_adopt(struct pool *pool, u32 slab, const struct pool_owner *owner);
/** dram_claim() - @off is @id's, or for EXTENT_NO_OWNER taken. Return: 0, -EINVAL, -EEXIST, -ENOMEM. */
int __must_check dram_claim(struct pool *pool, u32 id, u64 off, u32 bytes);
void domains_check(struct pool *pool);

/* ---- reclaim.c ---- */
/** dram_movable() - for extents_find_victims(): may block @owner's DRAM copy be moved? */
bool dram_movable(void *pool, u32 owner);
/** dram_vacate() - move or evict the block at @ref, out of @run. Lock held, dropped meanwhile.
 * Return: whether it is gone. */
bool dram_vacate(struct pool *pool, const struct extent_ref *ref, const struct extent_run *run);
void heap_free(struct heap *heap);
/** block_requeue() - recompute whether and where the block is a candidate in both heaps. Lock held. */
void block_requeue(struct pool *pool, u32 id);
/**
 * dram_room() - take room in DRAM for block @id, reclaiming as needed. Lock held, dropped meanwhile;
 * the block has BLOCK_IO. Return: 0, -ENOMEM.
 */
int __must_check dram_room(struct pool *pool, u32 id, u64 near);
/** dram_room_nowait() - the same without reclaim. */
int __must_check dram_room_nowait(struct pool *pool, u32 id, u64 near);
/** dram_room_easy() - for what can wait: without reclaim, and not far above the high mark. -ENOSPC. */
int __must_check dram_room_easy(struct pool *pool, u32 id);
/**
 * capacity_room() - make @bytes available to @domain in the capacity tier, or progress to it. Lock held, dropped
 * meanwhile. @deadline: 0 at the first call of an allocation. Return: 0 (try now), -ENOSPC, -EIO.
 */
int __must_check capacity_room(struct pool *pool, u16 domain, u32 bytes, u64 total_bytes,
			       u64 *deadline);
void reclaim_kick(struct pool *pool);
void *reclaim_thread(void *pool);

/* ---- migrate.c: the only code that moves bytes ---- */
/** struct move - one block's transfer in a batch; the block has BLOCK_IO. */
struct move {
	u32 id;
	int err;
	bool sealed, named;	/* when the transfer began */
	u64 csum;	/* of what is written */
	struct tier_io io;
	struct iovec iov;
	struct move_batch *batch;
};
/** migrate_out() - write @nr blocks (BLOCK_IO set by the caller) to NVMe; ends their I/O. Lock held,
 * dropped meanwhile. Return: first error. */
int __must_check migrate_out(struct pool *pool, const u32 *ids, unsigned int nr);
/** migrate_in() - read @nr blocks (BLOCK_IO set, DRAM room taken); ends their I/O. Lock held,
 * dropped meanwhile. Each block's flags tell the result. */
void migrate_in(struct pool *pool, const u32 *ids, unsigned int nr);
/** migrate_shift() - move a block's DRAM copy to @to. Lock held, dropped meanwhile. */
void migrate_shift(struct pool *pool, u32 id, u64 to);

/* ---- prefetch.c ---- */
void *loader_thread(void *pool);
/** demand_begin(), demand_end() - a reader waits for the disk in between: prefetches that can wait do. Lock held. */
void demand_begin(struct pool *pool);
void demand_end(struct pool *pool);

/* ---- prefix.c ---- */
void prefix_remove(struct pool *pool, u32 id);
/** prefix_parent() - the parent block while it is still the one the child was indexed under. */
struct block *prefix_parent(struct pool *pool, const struct block *b);
/** prefix_kids() - @delta to its parent's count of children in @tier. */
void prefix_kids(struct pool *pool, const struct block *b, enum block_tier tier, int delta);
struct hash128 prefix_chain(struct hash128 parent, const u32 *ids, unsigned int nr);
int __must_check prefix_link(struct pool *pool, u32 id);
void prefix_free(struct pool *pool);
int __must_check root_set(struct pool *pool, u32 root, u32 space, const void *salt, u32 salt_bytes);
/** roots_loaded() - all roots on record are set: what lies between them is free. */
void roots_loaded(struct pool *pool);

/* ---- pool_meta.c ---- */
/** limbo_add() - block @id's record is to be removed, then its extent freed. */
void limbo_add(struct pool *pool, u32 id, u64 off, u32 bytes);
/** submit_locked() - see pool_submit(). Lock held, dropped meanwhile. */
int __must_check submit_locked(struct pool *pool, const struct block_id *ids, unsigned int nr,
			       struct meta_txn *txn, u64 *seq);

#endif
