/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assertions are for our own mistakes only, never for input, media or devices. KVC_BUG_ON stays in
 * release builds: it guards what would corrupt data. kvc_assert is for debug builds.
 */
#ifndef KVC_BASE_BUG_H
#define KVC_BASE_BUG_H

#include "allocator/base/compiler.h"

void kvc_bug(const char *file, int line, const char *what) __attribute__((noreturn, cold));

#define KVC_BUG_ON(cond)                                                                           \
	do {                                                                                       \
		if (unlikely(cond))                                                                \
			kvc_bug(__FILE__, __LINE__, #cond);                                        \
	} while (0)

#ifdef KVC_DEBUG
#define kvc_assert(cond) KVC_BUG_ON(!(cond))
#else
#define kvc_assert(cond)                                                                           \
	do {                                                                                       \
		if (0)                                                                             \
			(void)(cond);                                                              \
	} while (0)
#endif

#endif
