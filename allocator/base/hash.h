/* SPDX-License-Identifier: Apache-2.0 */
/* The two hashes of the project: XXH3-64 for payload checksums, XXH3-128 for prefix chains. */
#ifndef KVC_BASE_HASH_H
#define KVC_BASE_HASH_H

#include <xxhash.h>
#include "allocator/base/compiler.h"

struct hash128 {
	u64 lo, hi;
};

static inline u64 hash_bytes(const void *data, size_t bytes)
{
	return XXH3_64bits(data, bytes);
}

static inline u64 hash_bytes_seed(const void *data, size_t bytes, u64 seed)
{
	return XXH3_64bits_withSeed(data, bytes, seed);
}

static inline struct hash128 hash128_bytes(const void *data, size_t bytes, u64 seed)
{
	XXH128_hash_t h = XXH3_128bits_withSeed(data, bytes, seed);

	return (struct hash128){.lo = h.low64, .hi = h.high64};
}

static inline bool hash128_eq(struct hash128 a, struct hash128 b)
{
	return a.lo == b.lo && a.hi == b.hi;
}

/** hash_u64() - mix an integer key (splitmix64 finaliser) for use in a hash table. */
static inline u64 hash_u64(u64 x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9ull;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

#endif
