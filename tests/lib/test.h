/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every C test starts from: cmocka with the headers it wants, counts that sanitizer runs can
 * reduce, a random generator whose seed is printed, and the proof that something aborts.
 */
#ifndef KVC_TEST_LIB_TEST_H
#define KVC_TEST_LIB_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "allocator/base/compiler.h"

/** test_count() - @full times KVC_TEST_SCALE (a factor such as 0.1, default 1), at least 1. */
u64 test_count(u64 full);

/**
 * test_tmp() - the name of a file or directory to be made: $TMPDIR or /tmp, and @name, which ends in
 * XXXXXX. For @path of at least PATH_MAX bytes.
 */
void test_tmp(char *path, const char *name);

/** struct test_rng - xorshift64*; the same seed gives the same run. */
struct test_rng {
	u64 state;
};

/** test_rng_init() - seed from KVC_TEST_SEED, else from the clock; prints it. Return: the seed. */
u64 test_rng_init(struct test_rng *rng);
u64 test_rng_u64(struct test_rng *rng);
/** test_rng_below() - a number in [0, @n); 0 when @n is 0. */
u64 test_rng_below(struct test_rng *rng, u64 n);

/**
 * test_aborts() - run @fn in a child process. Return: whether it ended with SIGABRT. The child's
 * standard error is dropped.
 */
bool test_aborts(void (*fn)(void *arg), void *arg);

#endif
