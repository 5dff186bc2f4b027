/* SPDX-License-Identifier: Apache-2.0 */
/* The checked wrappers, and the tier that misbehaves on demand, over the null tier. */
#include <errno.h>
#include <string.h>
#include "allocator/base/err.h"
#include "allocator/base/textbuf.h"
#include "lib/test.h"
#include "lib/tier_batch.h"
#include "lib/tier_flaky.h"
#include "tiers/tier_impl.h"

#define SIZE MIB(4)

struct fixture {
	struct tier *null, *flaky;
	struct tier_batch batch;
	char *buf;	/* 1 MiB */
};

static int setup(void **state)
{
	static const struct tier_opts opts = {.size_bytes = SIZE, .dirfd = -1, .numa_node = -1};
	struct fixture *f = calloc(1, sizeof(*f));

	if (!f || tier_open(&f->null, &tier_null_ops, "t", &opts, NULL) ||
	    tier_flaky_open(&f->flaky, f->null))
		return -1;
	tier_batch_init(&f->batch, 16);
	f->buf = tier_test_alloc(MIB(1));
	tier_test_fill(f->buf, MIB(1), 1, 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	tier_close(f->flaky);
	tier_close(f->null);
	tier_batch_free(&f->batch);
	free(f->buf);
	free(f);
	return 0;
}

static int rw(struct fixture *f, enum tier_op op, u64 off, void *buf, u64 bytes)
{
	return tier_rw_sync(f->null, op, off, buf, bytes);
}

static void misaligned_is_refused(void **state)
{
	struct fixture *f = *state;
	u64 before = kvc_err_value(KVC_ERR_tier_misaligned);

	assert_int_equal(rw(f, TIER_READ, 512, f->buf, 4096), -EINVAL);
	assert_int_equal(rw(f, TIER_READ, 0, f->buf + 8, 4096), -EINVAL);
	assert_int_equal(rw(f, TIER_WRITE, 0, f->buf, 4097), -EINVAL);
	assert_int_equal(rw(f, TIER_WRITE, 0, f->buf, 0), -EINVAL);
	assert_int_equal(rw(f, TIER_WRITE, 0, NULL, 4096), -EINVAL);
	assert_int_equal(kvc_err_value(KVC_ERR_tier_misaligned), before + 5);
}

static void beyond_the_end_is_refused(void **state)
{
	struct fixture *f = *state;
	u64 before = kvc_err_value(KVC_ERR_tier_out_of_bounds);

	assert_int_equal(rw(f, TIER_READ, SIZE - 4096, f->buf, 4096), 0);
	assert_int_equal(rw(f, TIER_READ, SIZE, f->buf, 4096), -EINVAL);
	assert_int_equal(rw(f, TIER_READ, SIZE - 4096, f->buf, 8192), -EINVAL);
	assert_int_equal(rw(f, TIER_READ, UINT64_MAX - 4095, f->buf, 4096), -EINVAL);
	assert_int_equal(rw(f, TIER_READ, UINT64_MAX - 4095, f->buf, 8192), -EINVAL);
	assert_int_equal(rw(f, TIER_READ, 0, f->buf, SIZE + 4096), -EINVAL);
	assert_int_equal(kvc_err_value(KVC_ERR_tier_out_of_bounds), before + 5);
	assert_null(tier_map(f->null, SIZE, 1));
	assert_null(tier_map(f->null, UINT64_MAX, 2));
	assert_non_null(tier_map(f->null, SIZE - 1, 1));
}

static void lengths_that_wrap_around_are_refused(void **state)
{
	struct fixture *f = *state;
	struct iovec iov[] = {{f->buf, 4096}, {f->buf, SIZE_MAX - 4095}, {f->buf, 4096}};
	struct tier_req *req = tier_batch_add(&f->batch, TIER_READ, 0, NULL, 0);

	req->io.iov = iov;
	req->io.nr_iov = 3;
	assert_int_equal(tier_batch_submit(&f->batch, f->null), -EINVAL);
	assert_int_equal(req->nr_done, 0);
}

static void malformed_is_refused(void **state)
{
	struct fixture *f = *state;
	struct tier_req *req = tier_batch_add(&f->batch, TIER_READ, 0, f->buf, 4096);

	req->io.nr_iov = 0;
	assert_int_equal(tier_batch_submit(&f->batch, f->null), -EINVAL);
	req->io.nr_iov = 1;
	req->io.op = (enum tier_op)17;
	assert_int_equal(tier_batch_submit(&f->batch, f->null), -EINVAL);
	req->io.op = TIER_READ;
	req->io.done = NULL;
	assert_int_equal(tier_batch_submit(&f->batch, f->null), -EINVAL);
}

static void one_bad_request_stops_the_whole_call(void **state)
{
	struct fixture *f = *state;
	struct tier_req *good = tier_batch_add(&f->batch, TIER_WRITE, 0, f->buf, 4096);

	tier_batch_add(&f->batch, TIER_WRITE, 1, f->buf, 4096);
	assert_int_equal(tier_batch_submit(&f->batch, f->null), -EINVAL);
	assert_int_equal(good->nr_done, 0);
	assert_int_equal(f->null->in_flight, 0);
	assert_int_equal(f->null->errors, 0);
	assert_int_equal(*(char *)tier_map(f->null, 0, 1), 0);
}

static void size_must_be_whole_pages(void **state)
{
	struct tier_opts opts = {.size_bytes = MIB(3)};
	struct textbuf why = TEXTBUF_INIT;
	struct tier *tier;

	assert_int_equal(tier_open(&tier, &tier_null_ops, "odd", &opts, &why), -EINVAL);
	assert_non_null(strstr(why.text, "odd"));
	opts.size_bytes = 0;
	assert_int_equal(tier_open(&tier, &tier_null_ops, "none", &opts, NULL), -EINVAL);
	textbuf_free(&why);
}

static void counts_each_request_once(void **state)
{
	struct fixture *f = *state;

	tier_batch_add(&f->batch, TIER_WRITE, 0, f->buf, 8192);
	tier_batch_add(&f->batch, TIER_READ, 0, f->buf, 4096);
	tier_batch_add(&f->batch, TIER_READ, 4096, f->buf, 4096);
	tier_batch_add(&f->batch, TIER_FLUSH, 0, NULL, 0);
	tier_flaky_fail(f->flaky, TIER_READ, 2, -EIO);
	assert_int_equal(tier_batch_submit(&f->batch, f->flaky), 0);
	assert_int_equal(tier_batch_wait(&f->batch), 1);
	assert_int_equal(tier_batch_result(&f->batch, 2), -EIO);
	assert_int_equal(f->flaky->writes, 1);
	assert_int_equal(f->flaky->write_bytes, 8192);
	assert_int_equal(f->flaky->reads, 1);
	assert_int_equal(f->flaky->read_bytes, 4096);
	assert_int_equal(f->flaky->errors, 1);
	assert_int_equal(f->flaky->in_flight, 0);
	assert_int_equal(f->null->reads, 1);
}

static void in_flight_until_done(void **state)
{
	struct fixture *f = *state;

	tier_batch_add(&f->batch, TIER_READ, 0, f->buf, 4096);
	tier_batch_add(&f->batch, TIER_READ, 4096, f->buf, 4096);
	tier_flaky_hold(f->flaky, TIER_READ, true);
	assert_int_equal(tier_batch_submit(&f->batch, f->flaky), 0);
	tier_flaky_wait_held(f->flaky, 2);
	assert_int_equal(f->flaky->in_flight, 2);
	assert_int_equal(tier_batch_result(&f->batch, 0), TIER_BATCH_PENDING);
	assert_int_equal(tier_flaky_release(f->flaky, 1), 1);
	assert_int_equal(tier_batch_result(&f->batch, 0), 0);
	assert_int_equal(f->flaky->in_flight, 1);
	assert_int_equal(tier_flaky_release(f->flaky, 5), 1);
	assert_int_equal(tier_batch_wait(&f->batch), 0);
	tier_drain(f->flaky);
	assert_int_equal(f->flaky->in_flight, 0);
}

static void refused_submit_takes_nothing(void **state)
{
	struct fixture *f = *state;
	struct tier_req *req = tier_batch_add(&f->batch, TIER_READ, 0, f->buf, 4096);

	tier_flaky_refuse(f->flaky, 1, -ENOMEM);
	assert_int_equal(tier_batch_submit(&f->batch, f->flaky), -ENOMEM);
	assert_int_equal(req->nr_done, 0);
	assert_int_equal(f->flaky->in_flight, 0);
	assert_int_equal(tier_batch_submit(&f->batch, f->flaky), 0);
	assert_int_equal(tier_batch_wait(&f->batch), 0);
}

static void torn_write_stops_where_told(void **state)
{
	struct fixture *f = *state;
	const char *bytes = tier_map(f->null, 0, 16384);

	tier_flaky_tear(f->flaky, 1, 4096, 0);
	assert_int_equal(tier_rw_sync(f->flaky, TIER_WRITE, 0, f->buf, 16384), 0);
	assert_true(tier_test_check(bytes, 4096, 1, 0));
	assert_int_equal(bytes[4096], 0);
	tier_flaky_tear(f->flaky, 1, 0, -EIO);
	assert_int_equal(tier_rw_sync(f->flaky, TIER_WRITE, 8192, f->buf, 4096), -EIO);
	assert_int_equal(bytes[8192], 0);
}

static void flipped_read_leaves_the_medium_alone(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(tier_rw_sync(f->flaky, TIER_WRITE, 0, f->buf, 8192), 0);
	tier_flaky_flip(f->flaky, 1, 5000);
	assert_int_equal(tier_rw_sync(f->flaky, TIER_READ, 0, f->buf, 8192), 0);
	assert_false(tier_test_check(f->buf, 8192, 1, 0));
	f->buf[5000] ^= 1;
	assert_true(tier_test_check(f->buf, 8192, 1, 0));
	assert_true(tier_test_check(tier_map(f->null, 0, 8192), 8192, 1, 0));
}

static void unplugged_fails_all(void **state)
{
	struct fixture *f = *state;

	tier_flaky_unplug(f->flaky, true);
	assert_int_equal(tier_rw_sync(f->flaky, TIER_WRITE, 0, f->buf, 4096), -EIO);
	assert_int_equal(tier_flush_sync(f->flaky), -EIO);
	assert_int_equal(f->null->writes, 0);
	tier_flaky_unplug(f->flaky, false);
	assert_int_equal(tier_rw_sync(f->flaky, TIER_WRITE, 0, f->buf, 4096), 0);
	assert_int_equal(tier_flaky_seen(f->flaky, TIER_WRITE), 2);
}

static void nothing_done(struct tier_io *io, int err)
{
}

static void complete_twice(void *arg)
{
	struct fixture *f = arg;
	struct iovec iov = {f->buf, 4096};
	struct tier_io io = {.op = TIER_READ, .iov = &iov, .nr_iov = 1, .done = nothing_done};
	struct tier_io *ios[] = {&io};

	if (!tier_submit(f->null, ios, 1))
		tier_io_done(&io, 0);
}

static void submit_with_a_lock_held(void *arg)
{
	struct fixture *f = arg;
	struct lock lock;

	lock_init(&lock, LOCK_POOL);
	lock_acquire(&lock);
	if (tier_rw_sync(f->null, TIER_READ, 0, f->buf, 4096))
		return;
	lock_release(&lock);
}

static void our_own_mistakes_abort(void **state)
{
#ifdef KVC_DEBUG
	assert_true(test_aborts(complete_twice, *state));
	assert_true(test_aborts(submit_with_a_lock_held, *state));
#else
	(void)complete_twice;
	(void)submit_with_a_lock_held;
	skip();
#endif
}

static void text_names_the_counters(void **state)
{
	struct fixture *f = *state;
	struct textbuf tb = TEXTBUF_INIT;

	assert_int_equal(rw(f, TIER_WRITE, 0, f->buf, 4096), 0);
	tier_to_text(f->null, &tb);
	assert_non_null(strstr(tb.text, "t kind=null size_bytes=4194304"));
	assert_non_null(strstr(tb.text, "writes=1 write_bytes=4096"));
	textbuf_free(&tb);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(misaligned_is_refused),
		TEST(beyond_the_end_is_refused),
		TEST(lengths_that_wrap_around_are_refused),
		TEST(malformed_is_refused),
		TEST(one_bad_request_stops_the_whole_call),
		TEST(size_must_be_whole_pages),
		TEST(counts_each_request_once),
		TEST(in_flight_until_done),
		TEST(refused_submit_takes_nothing),
		TEST(torn_write_stops_where_told),
		TEST(flipped_read_leaves_the_medium_alone),
		TEST(unplugged_fails_all),
		TEST(our_own_mistakes_abort),
		TEST(text_names_the_counters),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
