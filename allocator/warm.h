/* SPDX-License-Identifier: Apache-2.0 */
/* The index of what lies in DRAM, inside of the pool. All with the pool's lock held, but where said. */
#ifndef KVC_WARM_H
#define KVC_WARM_H

#include "allocator/block.h"
#include "allocator/warm_format.h"

struct pool;

/** struct orphan - memory of no block that an earlier daemon's clients still map. */
struct orphan {
	u64 off;
	u32 bytes;
	u32 slot;
};

/** struct warm_file - identity of a slab's file. */
struct warm_file {
	u64 dev, ino;
};

struct warm {
	int fd;		/* owned */
	bool taken;	/* an earlier daemon's, until it is loaded */
	u64 bytes;
	struct warm_header *header; /* mapping of fd; with the next two set once */
	struct warm_slab *slabs;
	struct warm_entry *entries; /* by slot - 1 */
	struct warm_file *files;    /* of the slabs; set by who has the slab alone */
	u32 free;	/* slot, linked through id; 0: none */
	u32 nr_content, max_content;
	bool leaving;	/* what is mapped is not taken back any more */
	bool ended;	/* stays as it is: blocks go, but their bytes stay */
	/* held for clients of an earlier daemon */
	struct block_id *legacy; /* blocks, each held once */
	struct orphan *orphans;
	u32 nr_legacy, max_legacy, nr_orphans, max_orphans;
	u64 orphan_bytes;
};

/* ---- warm.c ---- */
/** warm_free() - NULL is ignored; the index itself stays as it is. */
void warm_free(struct warm *warm);
/** warm_content() - the block's bytes are in DRAM and its record submitted, perhaps: then say so. */
void warm_content(struct pool *pool, u32 id);
/** warm_forget() - its bytes are about to move or to go, or its record. */
void warm_forget(struct pool *pool, u32 id);
/** warm_place() - say whether clients map it. */
void warm_place(struct pool *pool, u32 id);
/** warm_file() - the slab has its file from now on. No lock held. */
void warm_file(struct pool *pool, u32 slab);
/** warm_slab() - say whose the slab is. */
void warm_slab(struct pool *pool, u32 slab);
/** warm_slab_drop() - it is nobody's for the moment. */
void warm_slab_drop(struct pool *pool, u32 slab);
/** warm_slab_good() - is the slab's file the one that the index speaks of? */
bool warm_slab_good(const struct warm *warm, u32 slab);
bool warm_entry_good(const struct warm_entry *entry);
/** warm_slot_put() - the entry says nothing any more, and may be used again. */
void warm_slot_put(struct warm *warm, u32 slot);

#endif
