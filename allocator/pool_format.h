/* SPDX-License-Identifier: Apache-2.0 */
/* On-media records of the pool (values in the metadata store), little-endian. */
#ifndef KVC_POOL_FORMAT_H
#define KVC_POOL_FORMAT_H

#include "allocator/base/compiler.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "on-media structs are little-endian: add conversions before building here"
#endif

#define BLOCK_RECORD_VERSION 1

enum { BLOCK_RECORD_SEALED = 1, BLOCK_RECORD_INDEXED = 2, BLOCK_RECORD_LOSSY = 4 };

/** struct block_record - META_BLOCK, key id = block id; nr_ids token ids (u32) follow. */
struct block_record {
	u8 version;
	u8 flags;
	u16 nr_ids;
	u32 bytes;
	u32 space;
	u32 gen;
	u64 off;	/* in the NVMe tier, bytes */
	u64 csum;
	u64 chain_lo, chain_hi;
	u32 parent;	/* block id or PARENT_ROOT */
	u32 parent_gen;	/* or root id */
};

/** struct root_record - META_ROOT, key id = root id; salt_bytes of salt follow. */
struct root_record {
	u32 space;
	u32 salt_bytes;
};

#endif
