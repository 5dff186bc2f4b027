/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include "lib/test.h"
#include "lib/tier_batch.h"

static const struct tier_opts opts = {.size_bytes = MIB(4), .dirfd = -1, .numa_node = -1};

static void keeps_bytes_and_starts_as_zeros(void **state)
{
	struct tier *tier;
	char *buf = tier_test_alloc(MIB(1));

	assert_int_equal(tier_open(&tier, &tier_null_ops, "null", &opts, NULL), 0);
	assert_int_equal(tier_rw_sync(tier, TIER_READ, MIB(3), buf, MIB(1)), 0);
	for (u64 i = 0; i < MIB(1); i++)
		if (buf[i])
			fail_msg("byte %llu is not zero", (unsigned long long)i);
	tier_test_fill(buf, MIB(1), 7, 0);
	assert_int_equal(tier_rw_sync(tier, TIER_WRITE, MIB(3), buf, MIB(1)), 0);
	assert_int_equal(tier_flush_sync(tier), 0);
	assert_true(tier_test_check(tier_map(tier, MIB(3), MIB(1)), MIB(1), 7, 0));
	tier_test_fill(buf, MIB(1), 8, 0);
	assert_int_equal(tier_rw_sync(tier, TIER_READ, MIB(3), buf, MIB(1)), 0);
	assert_true(tier_test_check(buf, MIB(1), 7, 0));
	tier_close(tier);
	free(buf);
}

static void scatters_over_vectors(void **state)
{
	struct tier *tier;
	char *buf = tier_test_alloc(MIB(1));
	struct iovec iov[] = {{buf + KIB(512), KIB(8)}, {buf, KIB(4)}, {buf + KIB(64), KIB(64)}};
	struct tier_batch batch;
	struct tier_req *req;

	assert_int_equal(tier_open(&tier, &tier_null_ops, "null", &opts, NULL), 0);
	tier_test_fill(tier_map(tier, 0, MIB(1)), MIB(1), 1, 0);
	tier_batch_init(&batch, 1);
	req = tier_batch_add(&batch, TIER_READ, KIB(16), NULL, 0);
	req->io.iov = iov;
	req->io.nr_iov = 3;
	assert_int_equal(tier_batch_submit(&batch, tier), 0);
	assert_int_equal(tier_batch_wait(&batch), 0);
	assert_true(tier_test_check(buf + KIB(512), KIB(8), 1, KIB(16)));
	assert_true(tier_test_check(buf, KIB(4), 1, KIB(24)));
	assert_true(tier_test_check(buf + KIB(64), KIB(64), 1, KIB(28)));
	tier_batch_free(&batch);
	tier_close(tier);
	free(buf);
}

static void cannot_grow(void **state)
{
	struct tier *tier;

	assert_int_equal(tier_open(&tier, &tier_null_ops, "null", &opts, NULL), 0);
	assert_int_equal(tier_grow(tier, MIB(8)), -EOPNOTSUPP);
	assert_int_equal(tier_dram_file(tier, 0), -1);
	tier_close(tier);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keeps_bytes_and_starts_as_zeros),
		cmocka_unit_test(scatters_over_vectors),
		cmocka_unit_test(cannot_grow),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
