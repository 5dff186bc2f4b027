/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a replayed sequence holds.
 *
 * Ids: token p of a request is a function of (id of its trace block, offset in that block), so that
 * equal prefixes of the trace are equal prefixes of tokens in every run on every machine.
 * Bytes: a block's are a function of a seed that chains over the ids of the block and all before
 * it, as real KV does. So a block that was cached under another prefix, at another position, or
 * whose bytes moved is noticed when it is read.
 */
#ifndef KVREPLAY_CONTENT_H
#define KVREPLAY_CONTENT_H

#include "allocator/base/compiler.h"
#include "tools/kvreplay/trace.h"

/* The tokens of one request, in whole blocks, and the seed of each block. Reused over requests. */
struct content {
	u32 block_tokens;
	u32 *ids;	  /* owned; nr_blocks * block_tokens, then any output */
	u64 *seeds;	  /* owned; per block */
	size_t nr_blocks; /* whole input blocks; tokens behind them are dropped */
	size_t ids_size, seeds_size;
};

/** content_build() - fill @c for @rq; -ENOMEM. */
int __must_check content_build(struct content *c, const struct trace_request *rq);

/**
 * content_add_output() - ids behind the input blocks for @tokens generated ones, unique to
 * @unique, and the seeds of the blocks that they touch; nr_blocks stays. -ENOMEM.
 */
int __must_check content_add_output(struct content *c, u64 unique, u32 tokens);

/** content_fill() - the @bytes bytes from offset @offset of the block with @seed. */
void content_fill(void *buf, u64 seed, size_t offset, size_t bytes);

/** content_check() - does @buf hold what content_fill() would have put there? */
bool content_check(const void *buf, u64 seed, size_t offset, size_t bytes);

/** content_id() - the token at @offset of the trace block @id. */
u32 content_id(u64 id, u32 offset);

void content_free(struct content *c);

#endif
