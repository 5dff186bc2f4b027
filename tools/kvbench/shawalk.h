/* SPDX-License-Identifier: Apache-2.0 */
/* The peer of the prefix match: SHA-256 chains of 16-token blocks in a hash table. */
#ifndef KVC_TOOLS_KVBENCH_SHAWALK_H
#define KVC_TOOLS_KVBENCH_SHAWALK_H

#include "allocator/base/compiler.h"

struct shawalk;

/**
 * shawalk_open() - empty, for @nr_tokens in @nr_chains.
 * Return: 0, -ENOMEM, -EOPNOTSUPP (built without OpenSSL; *sw is NULL).
 */
int __must_check shawalk_open(struct shawalk **sw, u32 nr_chains, u64 nr_tokens);
void shawalk_close(struct shawalk *sw);
/** shawalk_grow() - append @nr ids, a multiple of 16, to a chain. Return: 0, -EIO. */
int __must_check shawalk_grow(struct shawalk *sw, u32 chain, const u32 *ids, u32 nr);
/** shawalk_match() - leading tokens of @ids that are there. */
u32 shawalk_match(struct shawalk *sw, const u32 *ids, u32 nr);

#endif
