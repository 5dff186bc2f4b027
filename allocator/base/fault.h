/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault injection by "fail the n-th": code asks fault_point(site) wherever the world may say no
 * (memory, space, I/O). Off, it costs one relaxed load. On, the n-th question answers true, once.
 */
#ifndef KVC_BASE_FAULT_H
#define KVC_BASE_FAULT_H

#include <stdatomic.h>
#include "allocator/base/compiler.h"

enum fault_site { FAULT_MEMORY, FAULT_SPACE, FAULT_READ, FAULT_WRITE, FAULT_META, NR_FAULT_SITES };

extern atomic_bool fault_on;

/** fault_arm() - the @nth question (from 1) at @site from now on fails; 0 disarms. */
void fault_arm(enum fault_site site, u64 nth);
/** fault_asked() - questions at @site since fault_arm(). */
u64 fault_asked(enum fault_site site);
bool __fault_point(enum fault_site site);

static inline bool fault_point(enum fault_site site)
{
	return unlikely(atomic_load_explicit(&fault_on, memory_order_relaxed)) &&
	       __fault_point(site);
}

#endif
