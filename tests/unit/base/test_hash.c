/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "allocator/base/hash.h"
#include "lib/test.h"

/* Stores keep these values on disk: a change of algorithm must fail here, not in someone's store. */
static void values_are_those_of_xxh3(void **state)
{
	struct hash128 empty = hash128_bytes("", 0, 0);

	assert_true(hash_bytes("", 0) == 0x2d06800538d394c2ull);
	assert_true(empty.hi == 0x99aa06d3014798d8ull);
	assert_true(empty.lo == 0x6001c324468d497full);
}

static void every_byte_counts(void **state)
{
	u8 bytes[300] = {0};
	u64 zero = hash_bytes(bytes, sizeof(bytes));

	for (size_t i = 0; i < sizeof(bytes); i++) {
		bytes[i] = 1;
		assert_true(hash_bytes(bytes, sizeof(bytes)) != zero);
		bytes[i] = 0;
	}
	assert_true(hash_bytes(bytes, sizeof(bytes) - 1) != zero);
}

static void the_seed_counts(void **state)
{
	struct hash128 a = hash128_bytes("abc", 3, 1), b = hash128_bytes("abc", 3, 2);

	assert_false(hash128_eq(a, b));
	assert_true(hash128_eq(a, hash128_bytes("abc", 3, 1)));
}

static void equal_needs_both_halves(void **state)
{
	struct hash128 a = {.lo = 1, .hi = 2}, lo = {.lo = 3, .hi = 2}, hi = {.lo = 1, .hi = 3};

	assert_false(hash128_eq(a, lo));
	assert_false(hash128_eq(a, hi));
}

/* hash_u64() is a bijection; neighbours must spread over the low bits that pick a bucket. */
static void integers_spread(void **state)
{
	unsigned int buckets[256] = {0};

	for (u64 i = 1; i <= 256 * 64; i++)
		buckets[hash_u64(i << 12) % 256]++;
	for (int i = 0; i < 256; i++)
		assert_in_range(buckets[i], 20, 120);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(values_are_those_of_xxh3),
		cmocka_unit_test(every_byte_counts),
		cmocka_unit_test(the_seed_counts),
		cmocka_unit_test(equal_needs_both_halves),
		cmocka_unit_test(integers_spread),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
