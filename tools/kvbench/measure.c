/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "tools/kvbench/kvbench.h"

#define WALK_MIN_BYTES MIB(64)
#define CACHE_LINE     64

double seconds_since(u64 start_ns)
{
	return (double)(clock_mono_ns() - start_ns) / 1e9;
}

static size_t walk_bytes(void)
{
	long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);

	return max((size_t)WALK_MIN_BYTES, l3 > 0 ? 4 * (size_t)l3 : 0);
}

int evict_caches(void)
{
	static volatile u8 *walk; /* kept: its pages need to be touched once only */
	static size_t bytes;

	if (!walk) {
		bytes = walk_bytes();
		walk = malloc(bytes);
		if (!walk)
			return -ENOMEM;
	}
	for (size_t i = 0; i < bytes; i += CACHE_LINE)
		walk[i]++;
	return 0;
}

void fill_random(void *buf, size_t bytes, u64 seed)
{
	u64 x = seed * 0x9e3779b97f4a7c15ull + 1;
	u8 *p = buf;

	for (; bytes >= sizeof(x); p += sizeof(x), bytes -= sizeof(x)) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy(p, &x, sizeof(x));
	}
	memcpy(p, &x, bytes);
}
