/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "allocator/base/err.h"
#include "allocator/base/log.h"
#include "allocator/base/textbuf.h"
#include "lib/test.h"
#include "lib/tier_batch.h"
#include "tiers/dram_pool.h"

#define SIZE MIB(8)

static struct tier_opts opts_for(const char *hugepages)
{
	return (struct tier_opts){
		.size_bytes = SIZE, .dirfd = -1, .hugepages = hugepages, .numa_node = -1};
}

/* NULL where this machine cannot make that kind of pool. */
static struct tier *open_pool(const char *hugepages)
{
	struct tier_opts opts = opts_for(hugepages);
	struct textbuf why = TEXTBUF_INIT;
	struct tier *tier = NULL;
	int err = tier_open(&tier, &tier_dram_ops, "dram", &opts, &why);

	if (err)
		print_message("%s\n", why.text);
	textbuf_free(&why);
	return err ? NULL : tier;
}

/* All files side by side, as a client may. */
static char *map_files(struct tier *tier)
{
	u64 slab_bytes = tier_slab_bytes(tier);
	char *area = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(area, MAP_FAILED);
	for (u64 off = 0; off < SIZE; off += slab_bytes)
		assert_ptr_equal(mmap(area + off, slab_bytes, PROT_READ, MAP_SHARED | MAP_FIXED,
				      tier_dram_file(tier, (u32)(off / slab_bytes)), 0),
				 area + off);
	return area;
}

static u64 committed(struct tier *tier)
{
	u64 bytes = 0;
	struct stat st;

	for (u32 i = 0; i < SIZE / tier_slab_bytes(tier); i++) {
		assert_int_equal(fstat(tier_dram_file(tier, i), &st), 0);
		bytes += (u64)st.st_blocks * 512;
	}
	return bytes;
}

static void pool_works(struct tier *tier)
{
	char *buf = tier_test_alloc(MIB(1));
	char *base = tier_map(tier, 0, SIZE), *client;
	u64 slab_bytes = tier_slab_bytes(tier);
	struct stat st;

	assert_non_null(base);
	assert_int_equal((uintptr_t)base % KVC_HUGE_SIZE, 0);
	for (u32 i = 0; i < SIZE / slab_bytes; i++) {
		assert_int_equal(fstat(tier_dram_file(tier, i), &st), 0);
		assert_int_equal(st.st_mode & 07777, 0600);
		assert_int_equal(st.st_size, slab_bytes);
		assert_int_equal(st.st_blocks, 0); /* nothing is committed before it is touched */
	}
	assert_int_equal(tier_dram_file(tier, (u32)(SIZE / slab_bytes)), -1);
	tier_test_fill(buf, MIB(1), 3, 0);
	assert_int_equal(tier_rw_sync(tier, TIER_WRITE, MIB(3) + 100, buf, MIB(1)), 0);
	assert_int_equal(tier_flush_sync(tier), 0);
	assert_true(tier_test_check(base + MIB(3) + 100, MIB(1), 3, 0));
	client = map_files(tier);
	assert_true(tier_test_check(client + MIB(3) + 100, MIB(1), 3, 0));
	munmap(client, SIZE);
	memset(buf, 0, MIB(1));
	assert_int_equal(tier_rw_sync(tier, TIER_READ, MIB(3) + 100, buf, MIB(1)), 0);
	assert_true(tier_test_check(buf, MIB(1), 3, 0));
	free(buf);
}

static void check_mode(const char *hugepages)
{
	struct tier *tier = open_pool(hugepages);

	if (!tier)
		skip();
	pool_works(tier);
	tier_close(tier);
}

static void auto_always_works(void **state)
{
	struct tier *tier = open_pool("auto");

	assert_non_null(tier);
	pool_works(tier);
	tier_close(tier);
}

static void off_always_works(void **state)
{
	struct tier *tier = open_pool("off");

	assert_non_null(tier);
	pool_works(tier);
	tier_close(tier);
}

static void tmpfs_works(void **state)
{
	check_mode("tmpfs");
}

static void hugetlb_works(void **state)
{
	check_mode("hugetlb");
}

static void whole_pages_are_discarded(void **state)
{
	struct tier *tier = open_pool("auto");
	char *base;

	assert_non_null(tier);
	base = tier_map(tier, 0, SIZE);
	memset(base, 1, SIZE);
	assert_int_equal(committed(tier), SIZE);
	tier_discard(tier, MIB(1), MIB(5) - 1); /* holds pages 1 and, but for a byte, 2 */
	assert_int_equal(committed(tier), SIZE - MIB(2));
	assert_int_equal(base[MIB(2) - 1], 1);
	assert_int_equal(base[MIB(2)], 0);
	assert_int_equal(base[MIB(4) - 1], 0);
	assert_int_equal(base[MIB(4)], 1);
	tier_discard(tier, MIB(1), MIB(2)); /* holds no whole page */
	tier_discard(tier, 4096, 4096);
	assert_int_equal(base[MIB(1)], 1);
	assert_int_equal(base[4096], 1);
	tier_close(tier);
}

static void sealed_against_shrinking(void **state)
{
	struct tier *tier = open_pool("off");

	assert_non_null(tier);
	assert_int_equal(ftruncate(tier_dram_file(tier, 0), 4096), -1);
	tier_close(tier);
}

/* Who has the old file sees neither what is written from now on, nor can write into it. */
static void check_renew(const char *hugepages)
{
	struct tier *tier = open_pool(hugepages);
	u64 slab = tier ? tier_slab_bytes(tier) : 0;
	char *base, *client;
	int old;

	if (!tier)
		skip();
	base = tier_map(tier, 0, SIZE);
	memset(base, 1, SIZE);
	old = dup(tier_dram_file(tier, 1));
	client = mmap(NULL, slab, PROT_READ | PROT_WRITE, MAP_SHARED, old, 0);
	assert_ptr_not_equal(client, MAP_FAILED);
	assert_int_equal(client[100], 1);
	assert_int_equal(tier_renew(tier, 1, true), 0);
	for (u64 i = 0; i < slab; i += 4096)
		assert_int_equal(base[slab + i], 0);
	assert_int_equal(base[slab - 1], 1);
	assert_int_equal(base[2 * slab], 1);
	base[slab + 100] = 7;
	assert_int_equal(client[100], 0);
	client[200] = 9;
	assert_int_equal(base[slab + 200], 0);
	munmap(client, slab);
	close(old);
	tier_close(tier);
}

static void a_renewed_slab_is_out_of_reach(void **state)
{
	check_renew("auto");
}

static void so_it_is_with_memfds(void **state)
{
	check_renew("off");
}

/* With @empty false, who has the old file keeps what is in it. */
static void a_renewed_slab_may_leave_its_bytes(void **state)
{
	struct tier *tier = open_pool("auto");
	u64 slab = tier_slab_bytes(tier);
	char *base = tier_map(tier, 0, SIZE), *client;

	memset(base, 1, SIZE);
	client = mmap(NULL, slab, PROT_READ, MAP_SHARED, tier_dram_file(tier, 1), 0);
	assert_ptr_not_equal(client, MAP_FAILED);
	assert_int_equal(tier_renew(tier, 1, false), 0);
	assert_int_equal(base[slab + 100], 0);
	memset(base, 2, SIZE);
	for (u64 i = 0; i < slab; i += 4096)
		assert_int_equal(client[i], 1);
	munmap(client, slab);
	tier_close(tier);
}

struct told {
	u32 nr, slab;
	int fd;
};

static void file_made(void *ctx, u32 slab, int fd)
{
	struct told *told = ctx;

	told->nr++;
	told->slab = slab;
	told->fd = fd;
}

/* Files of a tier that is gone: their bytes are there again, but for those that are short or missing. */
static void files_of_another_tier(void **state)
{
	struct tier *tier = open_pool("auto"), *again;
	u32 nr = (u32)(SIZE / tier_slab_bytes(tier));
	u64 slab = tier_slab_bytes(tier);
	struct tier_opts opts = opts_for("auto");
	struct told told = {0};
	int files[SIZE / KVC_HUGE_SIZE];
	char *base = tier_map(tier, 0, SIZE);

	assert_true(nr >= 3 && nr <= ARRAY_SIZE(files));
	memset(base, 1, SIZE);
	for (u32 i = 0; i < nr; i++)
		files[i] = dup(tier_dram_file(tier, i));
	tier_close(tier);
	close(files[1]);
	files[1] = -1;
	close(files[2]);
	files[2] = memfd_create("short", MFD_CLOEXEC);
	opts.files = files;
	opts.file_made = file_made;
	opts.file_ctx = &told;
	assert_int_equal(tier_open(&again, &tier_dram_ops, "dram", &opts, NULL), 0);
	assert_int_equal(told.nr, 2);
	assert_int_equal(told.slab, 2);
	base = tier_map(again, 0, SIZE);
	for (u32 i = 0; i < nr; i++) {
		assert_int_equal(base[i * slab + 5000], i != 1 && i != 2);
		if (files[i] >= 0)
			close(files[i]);
	}
	base[5000] = 3; /* the tier has its own copies of the descriptors */
	assert_int_equal(tier_renew(again, 0, true), 0);
	assert_int_equal(told.nr, 3);
	assert_int_equal(told.slab, 0);
	assert_int_equal(told.fd, tier_dram_file(again, 0));
	assert_int_equal(base[5000], 0);
	tier_close(again);
}

/* A client that may write shrinks the file under us: we see zeros, and go on. */
static void shrinking_does_not_end_us(void **state)
{
	struct tier *tier = open_pool("tmpfs");
	u64 slab;
	char *base;
	int client;

	if (!tier)
		skip();
	slab = tier_slab_bytes(tier);
	base = tier_map(tier, 0, SIZE);
	memset(base, 1, SIZE);
	client = dup(tier_dram_file(tier, 1));
	for (int i = 0; i < 3; i++) {
		assert_int_equal(ftruncate(client, i * 4096), 0);
		base[2 * slab - 1] = 7;
		assert_int_equal(base[2 * slab - 1], 7);
		assert_int_equal(base[2 * slab - 2], 0);
	}
	assert_int_equal(base[slab - 1], 1);
	assert_int_equal(base[2 * slab], 1);
	close(client);
	tier_close(tier);
}

static int bus_error_elsewhere(void)
{
	int fd = memfd_create("test", MFD_CLOEXEC);
	volatile char *past = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);

	signal(SIGBUS, SIG_DFL);
	if (past == MAP_FAILED || !open_pool("tmpfs"))
		return 2;
	return past[0];
}

/* It is for slabs only: a bus error elsewhere ends the process as ever. */
static void other_bus_errors_stay_what_they_are(void **state)
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (!pid)
		_exit(bus_error_elsewhere());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
		skip();
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGBUS);
}

static void slabs_fit_the_pool(void **state)
{
	struct tier tier = {.size_bytes = MIB(2)};

	assert_int_equal(tier_slab_bytes(&tier), MIB(2));
	tier.size_bytes = MIB(64);
	assert_int_equal(tier_slab_bytes(&tier), MIB(16));
	tier.size_bytes = GIB(1);
	assert_int_equal(tier_slab_bytes(&tier), MIB(64));
	tier.size_bytes = GIB(16);
	assert_int_equal(tier_slab_bytes(&tier), MIB(64));
	tier.size_bytes = GIB(16) + MIB(2);
	assert_int_equal(tier_slab_bytes(&tier), MIB(128));
	tier.size_bytes = GIB(1024ull);
	assert_int_equal(tier_slab_bytes(&tier), GIB(1));
	tier.size_bytes = GIB(2048ull);
	assert_int_equal(tier_slab_bytes(&tier), GIB(2));
}

static void more_than_the_machine_has_is_refused(void **state)
{
	struct tier_opts opts = opts_for("auto");
	u64 before = kvc_err_value(KVC_ERR_dram_no_memory);
	struct textbuf why = TEXTBUF_INIT;
	struct tier *tier;

	assert_true(dram_memory_available() > SIZE);
	opts.size_bytes = round_up_pow2(dram_memory_available(), MIB(2)) + GIB(8);
	assert_int_equal(tier_open(&tier, &tier_dram_ops, "dram", &opts, &why), -ENOMEM);
	assert_non_null(strstr(why.text, "available"));
	assert_int_equal(kvc_err_value(KVC_ERR_dram_no_memory), before + 1);
	textbuf_free(&why);
}

static void bad_options_are_explained(void **state)
{
	struct tier_opts opts = opts_for("gigantic");
	struct textbuf why = TEXTBUF_INIT;
	struct tier *tier;

	assert_int_equal(tier_open(&tier, &tier_dram_ops, "dram", &opts, &why), -EINVAL);
	assert_non_null(strstr(why.text, "hugepages=gigantic"));
	opts = opts_for("off");
	opts.numa_node = 999;
	assert_int_equal(tier_open(&tier, &tier_dram_ops, "dram", &opts, &why), -EINVAL);
	assert_non_null(strstr(why.text, "numa=999"));
	textbuf_free(&why);
}

static void a_node_that_exists_is_taken(void **state)
{
	struct tier_opts opts = opts_for("auto");
	struct textbuf why = TEXTBUF_INIT;
	struct tier *tier;
	int err;

	opts.numa_node = 0;
	err = tier_open(&tier, &tier_dram_ops, "dram", &opts, &why);
	if (err) {
		print_message("%s\n", why.text);
		textbuf_free(&why);
		skip();
	}
	pool_works(tier);
	tier_close(tier);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(auto_always_works),
		cmocka_unit_test(off_always_works),
		cmocka_unit_test(tmpfs_works),
		cmocka_unit_test(hugetlb_works),
		cmocka_unit_test(whole_pages_are_discarded),
		cmocka_unit_test(sealed_against_shrinking),
		cmocka_unit_test(a_renewed_slab_is_out_of_reach),
		cmocka_unit_test(so_it_is_with_memfds),
		cmocka_unit_test(a_renewed_slab_may_leave_its_bytes),
		cmocka_unit_test(files_of_another_tier),
		cmocka_unit_test(shrinking_does_not_end_us),
		cmocka_unit_test(other_bus_errors_stay_what_they_are),
		cmocka_unit_test(slabs_fit_the_pool),
		cmocka_unit_test(more_than_the_machine_has_is_refused),
		cmocka_unit_test(bad_options_are_explained),
		cmocka_unit_test(a_node_that_exists_is_taken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
