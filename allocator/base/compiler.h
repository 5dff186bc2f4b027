/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiler annotations, fixed-width names and the few macros that every file needs.
 */
#ifndef KVC_BASE_COMPILER_H
#define KVC_BASE_COMPILER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define __must_check	 __attribute__((warn_unused_result))
#define __printf(a, b)	 __attribute__((format(printf, a, b)))
#define __cacheline	 __attribute__((aligned(64)))
#define likely(x)	 __builtin_expect(!!(x), 1)
#define unlikely(x)	 __builtin_expect(!!(x), 0)
#define ARRAY_SIZE(a)	 (sizeof(a) / sizeof((a)[0]))
#define KVC_PAGE_SIZE	 4096u
#define KVC_HUGE_SIZE	 (2u << 20)
#define KIB(n)		 ((u64)(n) << 10)
#define MIB(n)		 ((u64)(n) << 20)
#define GIB(n)		 ((u64)(n) << 30)

#define container_of(ptr, type, member) ((type *)((char *)(ptr) - offsetof(type, member)))
/* Their variables have names of their own, so that one may be an argument of the other. */
#define KVC_PASTE_(a, b)  a##b
#define KVC_PASTE(a, b)	  KVC_PASTE_(a, b)
#define KVC_PICK(a, op, b, x, y)                                                                   \
	({                                                                                         \
		__auto_type x = (a);                                                               \
		__auto_type y = (b);                                                               \
		x op y ? x : y;                                                                    \
	})
#define min(a, b) KVC_PICK(a, <, b, KVC_PASTE(a_, __COUNTER__), KVC_PASTE(b_, __COUNTER__))
#define max(a, b) KVC_PICK(a, >, b, KVC_PASTE(a_, __COUNTER__), KVC_PASTE(b_, __COUNTER__))

static inline u64 div_round_up(u64 n, u64 d)
{
	return (n + d - 1) / d;
}

/** round_up_pow2() - round @n up to a multiple of @align, a power of two. */
static inline u64 round_up_pow2(u64 n, u64 align)
{
	return (n + align - 1) & ~(align - 1);
}

/** kvc_alloc_array() - uninitialised array of @nr elements; NULL on overflow or no memory. */
static inline void *kvc_alloc_array(size_t nr, size_t size)
{
	return reallocarray(NULL, nr ? nr : 1, size);
}

#endif
