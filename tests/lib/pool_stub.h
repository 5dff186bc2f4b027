/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layer below tables and sequences, stubbed: pool.h and the meta_txn calls in plain memory. All
 * blocks are always resident, nothing is ever written anywhere, and submitted records go to a map
 * that a test can read back. Compile pool_stub.c into the test itself, so that it wins over the
 * library's objects.
 */
#ifndef KVC_TEST_POOL_STUB_H
#define KVC_TEST_POOL_STUB_H

#include "allocator/meta.h"
#include "allocator/pool.h"

/** stub_pool_create() - room for @capacity bytes of block payload. */
struct pool *stub_pool_create(u64 capacity);
void stub_pool_destroy(struct pool *pool);
/** stub_pool_named() - live blocks with ref > 0; stub_pool_live() also counts cached ones. */
u32 stub_pool_named(struct pool *pool);
u32 stub_pool_live(struct pool *pool);
u32 stub_pool_ref(struct pool *pool, struct block_id id);
u64 stub_pool_used(struct pool *pool);
/** stub_pool_absent() - make blocks look not resident to pool_try_pin(). */
void stub_pool_absent(struct pool *pool, bool absent);
/** stub_pool_prefetched() - blocks that pool_prefetch() was asked for. */
u64 stub_pool_prefetched(struct pool *pool);

/** stub_records() - call @fn for every record submitted and not removed since. */
int stub_records(struct pool *pool,
		 int (*fn)(void *ctx, const struct meta_key *key, const void *value, u32 bytes),
		 void *ctx);
/** stub_apply() - take the records of @txn into the map by hand; empties @txn. */
void stub_apply(struct pool *pool, struct meta_txn *txn);

#endif
