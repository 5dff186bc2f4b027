/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "allocator/base/err.h"
#include "lib/test.h"

static void counts_and_passes_the_errno_on(void **state)
{
	for (int r = 0; r < KVC_NR_ERR_REASONS; r++) {
		u64 before = kvc_err_value(r);

		assert_int_equal(kvc_err_count(-ENOSPC, r), -ENOSPC);
		assert_int_equal(kvc_err_count(-EIO, r), -EIO);
		assert_int_equal(kvc_err_value(r), before + 2);
	}
}

static void every_reason_has_its_own_name_and_a_text(void **state)
{
	for (int r = 0; r < KVC_NR_ERR_REASONS; r++) {
		assert_true(strlen(kvc_err_name(r)) > 0);
		assert_true(strlen(kvc_err_text(r)) > 0);
		for (int s = 0; s < r; s++)
			assert_string_not_equal(kvc_err_name(r), kvc_err_name(s));
	}
}

static void one_past_the_end_is_none(void **state)
{
	assert_string_equal(kvc_err_name(KVC_NR_ERR_REASONS), "none");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(counts_and_passes_the_errno_on),
		cmocka_unit_test(every_reason_has_its_own_name_and_a_text),
		cmocka_unit_test(one_past_the_end_is_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
