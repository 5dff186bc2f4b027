/* SPDX-License-Identifier: Apache-2.0 */
/* The nvme tier's data files: making, checking, growing, and filesystems that lack something. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "allocator/base/err.h"
#include "allocator/base/fault.h"
#include "allocator/base/textbuf.h"
#include "lib/test.h"
#include "lib/tier_batch.h"
#include "lib/tier_store.h"

#define FILE_BYTES MIB(8)

struct fixture {
	struct tier_store store;
	struct tier_opts opts;
	struct tier *tier;
	struct textbuf why;
};

static void init_opts(struct fixture *f)
{
	f->opts = (struct tier_opts){.size_bytes = MIB(12), .dirfd = f->store.dirfd,
				     .create = true, .file_bytes = FILE_BYTES, .numa_node = -1};
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	if (!f)
		return -1;
	tier_store_dir(&f->store);
	init_opts(f);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	fault_arm(FAULT_SPACE, 0);
	tier_close(f->tier);
	tier_store_close(&f->store);
	textbuf_free(&f->why);
	free(f);
	return 0;
}

static int try_open(struct fixture *f, bool create)
{
	textbuf_free(&f->why);
	f->opts.create = create;
	return tier_open(&f->tier, &tier_nvme_ops, "nvme", &f->opts, &f->why);
}

static void must_open(struct fixture *f, bool create)
{
	if (try_open(f, create))
		fail_msg("%s", f->why.text);
}

static void close_tier(struct fixture *f)
{
	tier_close(f->tier);
	f->tier = NULL;
}

/* -1: there is no such file. */
static long long size_of(struct fixture *f, const char *name)
{
	struct stat st;

	return fstatat(f->store.dirfd, name, &st, 0) ? -1 : st.st_size;
}

static void set_size(struct fixture *f, const char *name, u64 bytes)
{
	int fd = openat(f->store.dirfd, name, O_WRONLY);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, bytes), 0);
	close(fd);
}

static void write_at(struct fixture *f, u64 off, u64 seed)
{
	char *buf = tier_test_alloc(MIB(1));

	tier_test_fill(buf, MIB(1), seed, 0);
	assert_int_equal(tier_rw_sync(f->tier, TIER_WRITE, off, buf, MIB(1)), 0);
	free(buf);
}

static void expect_at(struct fixture *f, u64 off, u64 seed)
{
	char *buf = tier_test_alloc(MIB(1));

	assert_int_equal(tier_rw_sync(f->tier, TIER_READ, off, buf, MIB(1)), 0);
	assert_true(tier_test_check(buf, MIB(1), seed, 0));
	free(buf);
}

static void space_is_reserved_when_made(void **state)
{
	struct fixture *f = *state;
	struct stat st;

	must_open(f, true);
	assert_int_equal(size_of(f, "data.0"), MIB(8));
	assert_int_equal(size_of(f, "data.1"), MIB(4));
	assert_int_equal(size_of(f, "data.2"), -1);
	assert_int_equal(fstatat(f->store.dirfd, "data.1", &st, 0), 0);
	assert_true((u64)st.st_blocks * 512 >= MIB(4));
	assert_int_equal(st.st_mode & 0777, 0600);
}

static void an_old_store_is_not_made_over(void **state)
{
	struct fixture *f = *state;

	must_open(f, true);
	write_at(f, MIB(2), 5);
	close_tier(f);
	assert_int_equal(try_open(f, true), -EEXIST);
	assert_non_null(strstr(f->why.text, "data.0"));
	must_open(f, false);
	expect_at(f, MIB(2), 5);
}

static void a_missing_file_is_named(void **state)
{
	struct fixture *f = *state;

	must_open(f, true);
	close_tier(f);
	assert_int_equal(unlinkat(f->store.dirfd, "data.1", 0), 0);
	assert_int_equal(try_open(f, false), -ENOENT);
	assert_non_null(strstr(f->why.text, "data.1"));
}

static void a_truncated_file_is_refused(void **state)
{
	struct fixture *f = *state;
	u64 before = kvc_err_value(KVC_ERR_nvme_truncated);

	must_open(f, true);
	close_tier(f);
	set_size(f, "data.1", MIB(4) - 4096);
	assert_int_equal(try_open(f, false), -EIO);
	assert_non_null(strstr(f->why.text, "data.1 is truncated"));
	assert_int_equal(kvc_err_value(KVC_ERR_nvme_truncated), before + 1);
	assert_int_equal(size_of(f, "data.1"), MIB(4) - 4096);
}

static void a_longer_file_is_an_interrupted_grow(void **state)
{
	struct fixture *f = *state;

	must_open(f, true);
	close_tier(f);
	set_size(f, "data.1", MIB(6));
	must_open(f, false);
	assert_int_equal(tier_size(f->tier), MIB(12));
	assert_int_equal(tier_grow(f->tier, MIB(14)), 0);
	assert_int_equal(size_of(f, "data.1"), MIB(6));
}

static void no_space_leaves_nothing(void **state)
{
	struct fixture *f = *state;

	for (u64 nth = 1; nth <= 2; nth++) {
		fault_arm(FAULT_SPACE, nth);
		assert_int_equal(try_open(f, true), -ENOSPC);
		assert_non_null(strstr(f->why.text, "12 MiB"));
		assert_non_null(strstr(f->why.text, "free"));
		assert_int_equal(size_of(f, "data.0"), -1);
		assert_int_equal(size_of(f, "data.1"), -1);
	}
}

static void bad_options_are_explained(void **state)
{
	struct fixture *f = *state;

	f->opts.dirfd = -1;
	assert_int_equal(try_open(f, true), -EBADF);
	assert_non_null(f->why.text);
	init_opts(f);
	f->opts.file_bytes = MIB(2) + 4096;
	assert_int_equal(try_open(f, true), -EINVAL);
	f->opts.file_bytes = MIB(2);
	f->opts.size_bytes = GIB(1024);
	assert_int_equal(try_open(f, true), -EINVAL);
}

static void grows_the_last_file_and_adds_more(void **state)
{
	struct fixture *f = *state;

	must_open(f, true);
	write_at(f, MIB(11), 7);
	assert_int_equal(tier_grow(f->tier, MIB(14)), 0);
	assert_int_equal(size_of(f, "data.1"), MIB(6));
	assert_int_equal(tier_grow(f->tier, MIB(26)), 0);
	assert_int_equal(tier_size(f->tier), MIB(26));
	assert_int_equal(size_of(f, "data.1"), MIB(8));
	assert_int_equal(size_of(f, "data.2"), MIB(8));
	assert_int_equal(size_of(f, "data.3"), MIB(2));
	write_at(f, MIB(25), 8);
	assert_int_equal(tier_flush_sync(f->tier), 0);
	close_tier(f);
	f->opts.size_bytes = MIB(26);
	must_open(f, false);
	expect_at(f, MIB(11), 7);
	expect_at(f, MIB(25), 8);
}

static void a_failed_grow_changes_nothing(void **state)
{
	struct fixture *f = *state;

	must_open(f, true);
	write_at(f, MIB(11), 7);
	for (u64 nth = 1; nth <= 3; nth++) {
		fault_arm(FAULT_SPACE, nth);
		assert_int_equal(tier_grow(f->tier, MIB(26)), -ENOSPC);
		assert_int_equal(tier_size(f->tier), MIB(12));
		assert_int_equal(size_of(f, "data.1"), MIB(4));
		assert_int_equal(size_of(f, "data.2"), -1);
		assert_int_equal(size_of(f, "data.3"), -1);
		expect_at(f, MIB(11), 7);
	}
	assert_int_equal(tier_grow(f->tier, MIB(2)), -EINVAL);
	assert_int_equal(tier_grow(f->tier, MIB(13)), -EINVAL);
	assert_int_equal(tier_grow(f->tier, MIB(26)), 0);
}

/* A store on a private mount; skips where this process may not mount. */
static void on_mount(struct fixture *f, const char *fstype, u64 bytes)
{
	tier_store_close(&f->store);
	if (!tier_store_mount(&f->store, fstype, bytes)) {
		tier_store_dir(&f->store);
		skip();
	}
	init_opts(f);
}

static void a_full_filesystem_says_so(void **state)
{
	struct fixture *f = *state;

	on_mount(f, "tmpfs", MIB(10));
	assert_int_equal(try_open(f, true), -ENOSPC);
	assert_non_null(strstr(f->why.text, "has 10 MiB free"));
	assert_int_equal(size_of(f, "data.0"), -1);
}

/* ramfs knows neither O_DIRECT nor fallocate. */
static void works_without_direct_io_and_fallocate(void **state)
{
	struct fixture *f = *state;
	struct textbuf tb = TEXTBUF_INIT;

	on_mount(f, "ramfs", 0);
	must_open(f, true);
	tier_to_text(f->tier, &tb);
	assert_non_null(strstr(tb.text, "io=buffered"));
	textbuf_free(&tb);
	write_at(f, MIB(7) + 8192, 9);
	assert_int_equal(tier_flush_sync(f->tier), 0);
	assert_int_equal(tier_grow(f->tier, MIB(20)), 0);
	write_at(f, MIB(19), 10);
	close_tier(f);
	f->opts.size_bytes = MIB(20);
	must_open(f, false);
	expect_at(f, MIB(7) + 8192, 9);
	expect_at(f, MIB(19), 10);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(space_is_reserved_when_made),
		TEST(an_old_store_is_not_made_over),
		TEST(a_missing_file_is_named),
		TEST(a_truncated_file_is_refused),
		TEST(a_longer_file_is_an_interrupted_grow),
		TEST(no_space_leaves_nothing),
		TEST(bad_options_are_explained),
		TEST(grows_the_last_file_and_adds_more),
		TEST(a_failed_grow_changes_nothing),
		TEST(a_full_filesystem_says_so),
		TEST(works_without_direct_io_and_fallocate),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
