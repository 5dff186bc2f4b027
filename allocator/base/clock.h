/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_BASE_CLOCK_H
#define KVC_BASE_CLOCK_H

#include <time.h>
#include "allocator/base/compiler.h"

#define NSEC_PER_SEC 1000000000ull

static inline u64 clock_ns(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (u64)ts.tv_sec * NSEC_PER_SEC + (u64)ts.tv_nsec;
}

static inline u64 clock_mono_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

/** clock_real_ns() - nanoseconds since 1970; what file times are made of. */
static inline u64 clock_real_ns(void)
{
	return clock_ns(CLOCK_REALTIME);
}

#endif
