/* SPDX-License-Identifier: Apache-2.0 */
#include "allocator/base/fault.h"
#include "lib/test.h"

static int disarm(void **state)
{
	for (int i = 0; i < NR_FAULT_SITES; i++)
		fault_arm(i, 0);
	return 0;
}

static void off_never_fails(void **state)
{
	for (int i = 0; i < 1000; i++)
		assert_false(fault_point(FAULT_MEMORY));
	assert_int_equal(fault_asked(FAULT_MEMORY), 0);
}

static void the_nth_fails_once(void **state)
{
	fault_arm(FAULT_WRITE, 3);
	for (int i = 1; i <= 10; i++)
		assert_int_equal(fault_point(FAULT_WRITE), i == 3);
	assert_int_equal(fault_asked(FAULT_WRITE), 10);
}

static void sites_are_apart(void **state)
{
	fault_arm(FAULT_READ, 1);
	assert_false(fault_point(FAULT_WRITE));
	assert_int_equal(fault_asked(FAULT_WRITE), 0);
	assert_true(fault_point(FAULT_READ));
}

static void disarming_one_leaves_the_other(void **state)
{
	fault_arm(FAULT_READ, 1);
	fault_arm(FAULT_META, 2);
	fault_arm(FAULT_READ, 0);
	assert_false(fault_point(FAULT_READ));
	assert_false(fault_point(FAULT_META));
	assert_true(fault_point(FAULT_META));
	fault_arm(FAULT_META, 0);
	assert_false(fault_on);
}

static void arming_again_counts_from_one(void **state)
{
	fault_arm(FAULT_SPACE, 2);
	assert_false(fault_point(FAULT_SPACE));
	fault_arm(FAULT_SPACE, 2);
	assert_false(fault_point(FAULT_SPACE));
	assert_true(fault_point(FAULT_SPACE));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(off_never_fails, disarm),
		cmocka_unit_test_teardown(the_nth_fails_once, disarm),
		cmocka_unit_test_teardown(sites_are_apart, disarm),
		cmocka_unit_test_teardown(disarming_one_leaves_the_other, disarm),
		cmocka_unit_test_teardown(arming_again_counts_from_one, disarm),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
