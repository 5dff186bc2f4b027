/* SPDX-License-Identifier: Apache-2.0 */
/* How requests become segments, and what results mean; without a disk. */
#include <errno.h>
#include <string.h>
#include "allocator/base/fault.h"
#include "lib/test.h"
#include "lib/tier_batch.h"
#include "tiers/nvme_impl.h"
#include "tiers/tier_impl.h"

#define FILE_BYTES MIB(16)
#define NR_REQS	   4096

struct fixture {
	struct tier tier;
	struct nvme nvme;
	struct tier_batch batch;
	struct list_head segs;
	char *buf;	/* 64 MiB, never touched */
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	if (!f)
		return -1;
	f->nvme.tier = &f->tier;
	f->nvme.file_bytes = FILE_BYTES;
	f->nvme.nr_files = 4;
	for (int i = 0; i < 4; i++)
		f->nvme.fds[i] = 100 + i;
	lock_init(&f->nvme.lock, LOCK_TIER);
	tier_batch_init(&f->batch, NR_REQS);
	list_init(&f->segs);
	f->buf = tier_test_alloc(MIB(64));
	*state = f;
	return 0;
}

static struct nvme_seg *first_seg(struct fixture *f)
{
	return list_empty(&f->segs) ? NULL : list_first_entry(&f->segs, struct nvme_seg, link);
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	struct nvme_seg *seg;

	while ((seg = first_seg(f))) {
		list_del(&seg->link);
		free(seg);
	}
	lock_destroy(&f->nvme.lock);
	tier_batch_free(&f->batch);
	free(f->buf);
	free(f);
	return 0;
}

static void build(struct fixture *f)
{
	for (unsigned int i = 0; i < f->batch.nr; i++) {
		f->batch.reqs[i].io.tier = &f->tier;
		f->batch.reqs[i].io.bytes = f->batch.reqs[i].iov.iov_len;
		atomic_store(&f->batch.reqs[i].io.state, TIER_IO_SUBMITTED);
	}
	f->tier.in_flight = f->batch.nr;
	f->batch.nr_left = f->batch.nr;
	assert_int_equal(nvme_segs_build(&f->nvme, f->batch.ios, f->batch.nr, &f->segs), 0);
}

/* Take the first segment and check its shape. */
static struct nvme_seg *expect(struct fixture *f, int fd, u64 off, u64 bytes)
{
	struct nvme_seg *seg = first_seg(f);
	u64 sum = 0;

	assert_non_null(seg);
	list_del(&seg->link);
	assert_int_equal(seg->fd, fd);
	assert_int_equal(seg->file_off, off);
	assert_int_equal(seg->bytes, bytes);
	assert_true(seg->nr_iov <= NVME_SEG_IOV);
	for (unsigned int i = 0; i < seg->nr_iov; i++)
		sum += seg->iov[i].iov_len;
	assert_int_equal(sum, bytes);
	return seg;
}

static void neighbours_merge(void **state)
{
	struct fixture *f = *state;

	/* Every other buffer, so that they are no neighbours in memory. */
	for (u64 i = 0; i < 150; i++)
		tier_batch_add(&f->batch, TIER_READ, i * KIB(40), f->buf + i * KIB(80), KIB(40));
	build(f);
	/* 102 requests of 40 KiB fit into 4 MiB; none is torn for the rest. */
	nvme_seg_finish(expect(f, 100, 0, 102 * KIB(40)));
	nvme_seg_finish(expect(f, 100, 102 * KIB(40), 48 * KIB(40)));
	assert_null(first_seg(f));
	assert_int_equal(tier_batch_wait(&f->batch), 0);
}

static void neighbours_in_memory_share_a_vector(void **state)
{
	struct fixture *f = *state;
	struct nvme_seg *seg;

	for (u64 i = 0; i < 4; i++)
		tier_batch_add(&f->batch, TIER_WRITE, i * 4096, f->buf + i * 4096, 4096);
	tier_batch_add(&f->batch, TIER_WRITE, 4 * 4096, f->buf + MIB(1), 4096);
	build(f);
	seg = expect(f, 100, 0, 5 * 4096);
	assert_int_equal(seg->nr_iov, 2);
	assert_int_equal(seg->nr_parts, 5);
	nvme_seg_finish(seg);
}

static void gaps_and_kinds_keep_apart(void **state)
{
	struct fixture *f = *state;

	tier_batch_add(&f->batch, TIER_READ, 0, f->buf, 4096);
	tier_batch_add(&f->batch, TIER_READ, 8192, f->buf + 4096, 4096);
	tier_batch_add(&f->batch, TIER_WRITE, 12288, f->buf + 8192, 4096);
	tier_batch_add(&f->batch, TIER_WRITE, 4096, f->buf + 8192, 4096);
	build(f);
	nvme_seg_finish(expect(f, 100, 0, 4096));
	nvme_seg_finish(expect(f, 100, 8192, 4096));
	nvme_seg_finish(expect(f, 100, 12288, 4096));
	nvme_seg_finish(expect(f, 100, 4096, 4096));
	assert_int_equal(tier_batch_wait(&f->batch), 0);
}

static void large_ones_are_cut(void **state)
{
	struct fixture *f = *state;

	tier_batch_add(&f->batch, TIER_READ, MIB(1), f->buf, MIB(9));
	build(f);
	nvme_seg_finish(expect(f, 100, MIB(1), MIB(4)));
	nvme_seg_finish(expect(f, 100, MIB(5), MIB(4)));
	assert_int_equal(tier_batch_result(&f->batch, 0), TIER_BATCH_PENDING);
	nvme_seg_finish(expect(f, 100, MIB(9), MIB(1)));
	assert_int_equal(tier_batch_wait(&f->batch), 0);
}

static void files_are_never_crossed(void **state)
{
	struct fixture *f = *state;

	tier_batch_add(&f->batch, TIER_READ, FILE_BYTES - MIB(1), f->buf, MIB(2));
	tier_batch_add(&f->batch, TIER_READ, 2 * FILE_BYTES - 4096, f->buf, 4096);
	tier_batch_add(&f->batch, TIER_READ, 2 * FILE_BYTES, f->buf + 4096, 4096);
	build(f);
	nvme_seg_finish(expect(f, 100, FILE_BYTES - MIB(1), MIB(1)));
	nvme_seg_finish(expect(f, 101, 0, MIB(1)));
	nvme_seg_finish(expect(f, 101, FILE_BYTES - 4096, 4096));
	nvme_seg_finish(expect(f, 102, 0, 4096));
	assert_int_equal(tier_batch_wait(&f->batch), 0);
}

static void vectors_stay_below_the_limit(void **state)
{
	struct fixture *f = *state;
	struct iovec *iov = calloc(2000, sizeof(*iov));
	struct tier_req *req = tier_batch_add(&f->batch, TIER_READ, 0, f->buf, 0);

	assert_non_null(iov);
	for (u64 i = 0; i < 2000; i++)
		iov[i] = (struct iovec){f->buf + i * 8192, 512};
	req->io.iov = iov;
	req->io.nr_iov = 2000;
	req->iov.iov_len = 2000 * 512; /* what build() takes for the request's bytes */
	build(f);
	nvme_seg_finish(expect(f, 100, 0, 1024 * 512));
	nvme_seg_finish(expect(f, 100, 1024 * 512, 976 * 512));
	assert_int_equal(tier_batch_wait(&f->batch), 0);
	free(iov);
}

static void short_transfers_go_on_where_they_stopped(void **state)
{
	struct fixture *f = *state;
	struct nvme_seg *seg;
	const struct iovec *iov;
	u64 off;

	tier_batch_add(&f->batch, TIER_READ, MIB(1), f->buf, 8192);
	tier_batch_add(&f->batch, TIER_READ, MIB(1) + 8192, f->buf + MIB(1), 8192);
	build(f);
	seg = expect(f, 100, MIB(1), 16384);
	assert_int_equal(nvme_seg_next(seg, &iov, &off), 2);
	assert_int_equal(off, MIB(1));
	assert_true(nvme_seg_result(seg, 4096));
	assert_int_equal(nvme_seg_next(seg, &iov, &off), 2);
	assert_int_equal(off, MIB(1) + 4096);
	assert_ptr_equal(iov[0].iov_base, f->buf + 4096);
	assert_int_equal(iov[0].iov_len, 4096);
	assert_true(nvme_seg_result(seg, -EINTR));
	assert_true(nvme_seg_result(seg, -EAGAIN));
	assert_true(nvme_seg_result(seg, 8192));
	assert_int_equal(nvme_seg_next(seg, &iov, &off), 1);
	assert_ptr_equal(iov[0].iov_base, f->buf + MIB(1) + 4096);
	assert_false(nvme_seg_result(seg, 4096));
	nvme_seg_finish(seg);
	assert_int_equal(tier_batch_wait(&f->batch), 0);
}

static void an_error_is_its_own_requests(void **state)
{
	struct fixture *f = *state;
	struct nvme_seg *seg;
	const struct iovec *iov;
	u64 off;

	for (u64 i = 0; i < 3; i++)
		tier_batch_add(&f->batch, TIER_READ, i * 8192, f->buf + i * 8192, 8192);
	build(f);
	seg = expect(f, 100, 0, 3 * 8192);
	assert_int_equal(seg->nr_iov, 1);
	assert_true(nvme_seg_result(seg, -EIO)); /* whose? */
	assert_int_equal(nvme_seg_next(seg, &iov, &off), 1);
	assert_int_equal(iov->iov_len, 8192);
	assert_true(nvme_seg_result(seg, 8192));
	assert_int_equal(nvme_seg_next(seg, &iov, &off), 1);
	assert_int_equal(off, 8192);
	assert_true(nvme_seg_result(seg, -EREMOTEIO));
	assert_int_equal(nvme_seg_next(seg, &iov, &off), 1);
	assert_int_equal(off, 16384);
	assert_ptr_equal(iov->iov_base, f->buf + 16384);
	assert_false(nvme_seg_result(seg, 8192));
	nvme_seg_finish(seg);
	assert_int_equal(tier_batch_wait(&f->batch), 1);
	assert_int_equal(tier_batch_result(&f->batch, 0), 0);
	assert_int_equal(tier_batch_result(&f->batch, 1), -EREMOTEIO);
	assert_int_equal(tier_batch_result(&f->batch, 2), 0);
}

static void nothing_more_is_an_error(void **state)
{
	struct fixture *f = *state;
	struct nvme_seg *seg;

	tier_batch_add(&f->batch, TIER_READ, 0, f->buf, 8192);
	build(f);
	seg = expect(f, 100, 0, 8192);
	assert_true(nvme_seg_result(seg, 4096));
	assert_false(nvme_seg_result(seg, 0));
	nvme_seg_finish(seg);
	assert_int_equal(tier_batch_wait(&f->batch), 1);
	assert_int_equal(tier_batch_result(&f->batch, 0), -EIO);
}

static void endless_retries_end(void **state)
{
	struct fixture *f = *state;
	struct nvme_seg *seg;
	int n = 0;

	tier_batch_add(&f->batch, TIER_READ, 0, f->buf, 8192);
	build(f);
	seg = expect(f, 100, 0, 8192);
	while (nvme_seg_result(seg, -EAGAIN))
		assert_true(++n < 100000);
	nvme_seg_finish(seg);
	assert_int_equal(tier_batch_wait(&f->batch), 1);
	assert_int_equal(tier_batch_result(&f->batch, 0), -EAGAIN);
}

static void given_up_fails_what_is_left(void **state)
{
	struct fixture *f = *state;
	struct nvme_seg *seg;

	for (u64 i = 0; i < 3; i++)
		tier_batch_add(&f->batch, TIER_READ, i * 8192, f->buf + i * 8192, 8192);
	build(f);
	seg = expect(f, 100, 0, 3 * 8192);
	assert_true(nvme_seg_result(seg, 8192 + 4096));
	nvme_seg_fail(seg);
	assert_int_equal(tier_batch_wait(&f->batch), 2);
	assert_int_equal(tier_batch_result(&f->batch, 0), 0);
}

static void a_flush_is_one_per_file(void **state)
{
	struct fixture *f = *state;

	tier_batch_add(&f->batch, TIER_FLUSH, 0, NULL, 0);
	build(f);
	for (int i = 0; i < 4; i++) {
		struct nvme_seg *seg = expect(f, 100 + i, 0, 0);

		assert_int_equal(tier_batch_result(&f->batch, 0), TIER_BATCH_PENDING);
		assert_false(nvme_seg_result(seg, i == 2 ? -ENOSPC : 0));
		nvme_seg_finish(seg);
	}
	assert_int_equal(tier_batch_wait(&f->batch), 1);
	assert_int_equal(tier_batch_result(&f->batch, 0), -ENOSPC);
}

static void no_memory_takes_nothing(void **state)
{
	struct fixture *f = *state;

	tier_batch_add(&f->batch, TIER_READ, 0, f->buf, MIB(12));
	for (u64 nth = 1; nth <= 3; nth++) {
		f->batch.reqs[0].io.bytes = MIB(12);
		fault_arm(FAULT_MEMORY, nth);
		assert_int_equal(nvme_segs_build(&f->nvme, f->batch.ios, 1, &f->segs), -ENOMEM);
		assert_null(first_seg(f));
	}
	fault_arm(FAULT_MEMORY, 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(neighbours_merge),
		TEST(neighbours_in_memory_share_a_vector),
		TEST(gaps_and_kinds_keep_apart),
		TEST(large_ones_are_cut),
		TEST(files_are_never_crossed),
		TEST(vectors_stay_below_the_limit),
		TEST(short_transfers_go_on_where_they_stopped),
		TEST(an_error_is_its_own_requests),
		TEST(nothing_more_is_an_error),
		TEST(endless_retries_end),
		TEST(given_up_fails_what_is_left),
		TEST(a_flush_is_one_per_file),
		TEST(no_memory_takes_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
