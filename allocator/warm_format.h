/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of what lies in DRAM, in memory that outlives the daemon (warm.c). One machine writes and
 * reads it, and no version but its own: native types.
 *
 *	header | slabs, one each | entries
 */
#ifndef KVC_WARM_FORMAT_H
#define KVC_WARM_FORMAT_H

#include "allocator/base/compiler.h"

#define WARM_MAGIC   0x6d7261774376636bull
#define WARM_VERSION 1u

/** struct warm_header - first page. */
struct warm_header {
	u64 magic;
	u32 version;
	u32 nr_slabs;
	u64 dram_bytes, slab_bytes;
	u32 nr_entries;
	u32 nr_used;	/* entries from here on were never used */
};

enum {
	WARM_SLAB_DOMAIN = 1,	/* of namespaces of this owner; else of plain files */
	WARM_SLAB_TOUCHED = 2,	/* see dram_slab.touched */
};

/** struct warm_slab - a slab's file and whose it is. One that does not check is nobody's. */
struct warm_slab {
	u64 dev, ino;	/* of the file */
	u32 uid, gid, mode;
	u32 flags;
	u64 check;	/* of all before */
};

enum warm_kind {
	WARM_CONTENT,	/* bytes of a block, as its record says */
	WARM_PLACE,	/* clients map it: not to be used otherwise while they live */
	NR_WARM_KINDS
};

/** struct warm_entry - something in DRAM. One that does not check says nothing. */
struct warm_entry {
	u64 off;	/* in DRAM */
	u64 nvme_off;	/* WARM_CONTENT */
	u64 csum;	/* WARM_CONTENT */
	u32 id;		/* block; of a free entry: the next free one, or 0 */
	u32 bytes;	/* payload */
	u32 kind;	/* enum warm_kind */
	u32 reserved;
	u64 check;	/* of all before; written last, cleared first */
};

#endif
