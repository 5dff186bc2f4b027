/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of a sequence in the metadata store, all little-endian.
 *
 *   META_SEQ           sub 0: struct seq_record
 *   META_SEQ_IDS       sub c: u32 ids [c * SEQ_ID_CHUNK ...)
 *   META_SEQ_CIDS      sub c: the same for committed ids, where they differ from the ids shown
 *   META_SEQ_WRITTEN   sub c: struct written_range [c * SEQ_WRITTEN_CHUNK ...) of open blocks
 *   META_TAB_CHUNK     its blocks (blktab)
 */
#ifndef KVC_SEQ_FORMAT_H
#define KVC_SEQ_FORMAT_H

#include "allocator/sequence.h"
#include "allocator/written.h"

#define SEQ_FORMAT_VERSION 1u
#define SEQ_WRITTEN_CHUNK  1024u

enum seq_record_flags {
	SEQ_RECORD_LOOSE = 1,
	SEQ_RECORD_CIDS = 2,
	SEQ_RECORD_PINNED = 4,
	SEQ_RECORD_PAIRED = 8,
	SEQ_RECORD_ESTRANGED = 16,
};

struct seq_record {
	u32 version;
	u32 block_bytes; /* must be the geometry's */
	u64 size;	 /* st_size of kv */
	u64 last_use_ns;
	u32 tokens; /* T */
	u32 nr_ids, nr_cids;
	u32 nr_blocks;
	u32 sealed_blocks, attached_blocks;
	u32 cached_tokens;
	u32 pending_tokens; /* UINT32_MAX: none */
	u32 nr_written;	    /* ranges */
	u16 flags;	    /* enum seq_record_flags */
	u8 state;	    /* enum seq_state */
	u8 priority;
};

_Static_assert(sizeof(struct seq_record) == 64, "no padding on media");
_Static_assert(sizeof(struct written_range) == 16, "written as it is");

#endif
