/* SPDX-License-Identifier: Apache-2.0 */
/* The nvme tier when transfers fail, and when its ring does; on both engines. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "allocator/base/clock.h"
#include "allocator/base/fault.h"
#include "allocator/base/textbuf.h"
#include "lib/test.h"
#include "lib/tier_batch.h"
#include "lib/tier_store.h"

#define SIZE MIB(8)

struct fixture {
	struct tier_store store;
	struct tier *tier;
	struct tier_batch batch;
	char *buf;	/* SIZE */
};

static bool no_uring;

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct tier_opts opts = {.size_bytes = SIZE, .create = true, .file_bytes = MIB(4),
				 .no_uring = no_uring, .numa_node = -1};

	if (!f)
		return -1;
	tier_store_dir(&f->store);
	opts.dirfd = f->store.dirfd;
	tier_batch_init(&f->batch, 64);
	f->buf = tier_test_alloc(SIZE);
	tier_test_fill(f->buf, SIZE, 1, 0);
	*state = f;
	return tier_open(&f->tier, &tier_nvme_ops, "nvme", &opts, NULL);
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	for (int site = 0; site < NR_FAULT_SITES; site++)
		fault_arm(site, 0);
	tier_close(f->tier);
	tier_store_close(&f->store);
	tier_batch_free(&f->batch);
	free(f->buf);
	free(f);
	return 0;
}

static void a_file_that_lost_its_end_fails_only_its_reads(void **state)
{
	struct fixture *f = *state;
	int fd = openat(f->store.dirfd, "data.0", O_WRONLY);

	assert_int_equal(tier_rw_sync(f->tier, TIER_WRITE, 0, f->buf, SIZE), 0);
	assert_int_equal(ftruncate(fd, MIB(2) + 4096), 0);
	close(fd);
	memset(f->buf, 0, SIZE);
	/* Eight neighbours of 512 KiB travel as one; the fifth meets the end of the file. */
	for (u64 i = 0; i < 8; i++)
		tier_batch_add(&f->batch, TIER_READ, i * KIB(512), f->buf + i * KIB(512), KIB(512));
	tier_batch_add(&f->batch, TIER_READ, MIB(4), f->buf + MIB(4), KIB(512));
	assert_int_equal(tier_batch_submit(&f->batch, f->tier), 0);
	assert_int_equal(tier_batch_wait(&f->batch), 4);
	for (unsigned int i = 0; i < 9; i++)
		assert_int_equal(tier_batch_result(&f->batch, i), i >= 4 && i < 8 ? -EIO : 0);
	assert_true(tier_test_check(f->buf, MIB(2), 1, 0));
	assert_int_equal(f->tier->errors, 4);
	assert_int_equal(f->tier->reads, 5);
}

static void a_bad_buffer_fails_only_its_request(void **state)
{
	struct fixture *f = *state;
	char *bad = mmap(NULL, KIB(64), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(bad, MAP_FAILED);
	assert_int_equal(tier_rw_sync(f->tier, TIER_WRITE, 0, f->buf, SIZE), 0);
	memset(f->buf, 0, SIZE);
	for (u64 i = 0; i < 16; i++)
		tier_batch_add(&f->batch, TIER_READ, i * KIB(64),
			       i == 5 ? bad : f->buf + i * KIB(64), KIB(64));
	assert_int_equal(tier_batch_submit(&f->batch, f->tier), 0);
	assert_int_equal(tier_batch_wait(&f->batch), 1);
	assert_int_equal(tier_batch_result(&f->batch, 5), -EFAULT);
	assert_true(tier_test_check(f->buf, 5 * KIB(64), 1, 0));
	assert_true(tier_test_check(f->buf + 6 * KIB(64), 10 * KIB(64), 1, 6 * KIB(64)));
	munmap(bad, KIB(64));
}

static void injected_errors_reach_their_request(void **state)
{
	struct fixture *f = *state;

	fault_arm(FAULT_READ, 2);
	assert_int_equal(tier_rw_sync(f->tier, TIER_READ, 0, f->buf, KIB(64)), 0);
	assert_int_equal(tier_rw_sync(f->tier, TIER_READ, 0, f->buf, KIB(64)), -EIO);
	assert_int_equal(tier_rw_sync(f->tier, TIER_READ, 0, f->buf, KIB(64)), 0);
	fault_arm(FAULT_WRITE, 2);
	assert_int_equal(tier_rw_sync(f->tier, TIER_WRITE, 0, f->buf, KIB(64)), 0);
	assert_int_equal(tier_flush_sync(f->tier), -EIO);
	assert_int_equal(tier_flush_sync(f->tier), 0);
}

static void no_memory_is_refused_whole(void **state)
{
	struct fixture *f = *state;

	tier_batch_add(&f->batch, TIER_READ, 0, f->buf, KIB(64));
	tier_batch_add(&f->batch, TIER_READ, MIB(1), f->buf + MIB(1), KIB(64));
	fault_arm(FAULT_MEMORY, 2);
	assert_int_equal(tier_batch_submit(&f->batch, f->tier), -ENOMEM);
	tier_drain(f->tier);
	assert_int_equal(f->batch.reqs[0].nr_done + f->batch.reqs[1].nr_done, 0);
	assert_int_equal(tier_batch_submit(&f->batch, f->tier), 0);
	assert_int_equal(tier_batch_wait(&f->batch), 0);
}

/* The descriptor of this process's only io_uring, -1 for none. */
static int ring_fd(void)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	int fd = -1;

	while (dir && (entry = readdir(dir))) {
		char target[64] = {0};

		if (readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1) > 0 &&
		    strstr(target, "[io_uring]"))
			fd = (int)strtol(entry->d_name, NULL, 10);
	}
	if (dir)
		closedir(dir);
	return fd;
}

static void a_dead_ring_fails_everything_at_once(void **state)
{
	struct fixture *f = *state;
	u64 start = clock_mono_ns();
	int ring = ring_fd(), null;

	if (ring < 0)
		skip();
	assert_int_equal(tier_rw_sync(f->tier, TIER_WRITE, 0, f->buf, MIB(1)), 0);
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	assert_int_equal(dup2(null, ring), ring);
	close(null);
	for (u64 i = 0; i < 8; i++)
		tier_batch_add(&f->batch, TIER_READ, i * MIB(1), f->buf + i * MIB(1), KIB(64));
	/* The ring's thread sits in the old ring still: it may take this call, or refuse it. */
	if (!tier_batch_submit(&f->batch, f->tier))
		tier_batch_wait(&f->batch);
	assert_int_equal(tier_rw_sync(f->tier, TIER_READ, 0, f->buf, KIB(64)), -EIO);
	assert_int_equal(tier_flush_sync(f->tier), -EIO);
	tier_drain(f->tier);
	assert_int_equal(f->tier->in_flight, 0);
	/* Nothing was at the kernel, so nothing may have been waited for. */
	assert_true(clock_mono_ns() - start < 8 * NSEC_PER_SEC);
}

/* From here on this process has no io_uring, as in many containers. */
static bool forbid_uring(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {.len = ARRAY_SIZE(filter), .filter = filter};

	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
	       !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog);
}

/* In a child: 0 when a tier works on threads there, 77 when io_uring cannot be forbidden. */
static int use_without_uring(int dirfd)
{
	struct tier_opts opts = {.size_bytes = SIZE, .dirfd = dirfd, .create = true,
				 .numa_node = -1};
	struct textbuf tb = TEXTBUF_INIT;
	struct tier *tier;
	char *buf = tier_test_alloc(MIB(1));

	if (!forbid_uring())
		return 77;
	tier_test_fill(buf, MIB(1), 4, 0);
	if (tier_open(&tier, &tier_nvme_ops, "nvme", &opts, &tb))
		return 1;
	tier_to_text(tier, &tb);
	if (!strstr(tb.text, "engine=threads"))
		return 2;
	if (tier_rw_sync(tier, TIER_WRITE, 0, buf, MIB(1)))
		return 3;
	memset(buf, 0, MIB(1));
	if (tier_rw_sync(tier, TIER_READ, 0, buf, MIB(1)) || !tier_test_check(buf, MIB(1), 4, 0))
		return 4;
	tier_close(tier);
	return 0;
}

static void a_process_without_uring_gets_threads(void **state)
{
	struct tier_store store;
	int status = 0;
	pid_t pid;

	tier_store_dir(&store);
	fflush(NULL);
	pid = fork();
	if (!pid)
		_exit(use_without_uring(store.dirfd));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	tier_store_close(&store);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77)
		skip();
	assert_int_equal(WEXITSTATUS(status), 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_file_that_lost_its_end_fails_only_its_reads),
		TEST(a_bad_buffer_fails_only_its_request),
		TEST(injected_errors_reach_their_request),
		TEST(no_memory_is_refused_whole),
		TEST(a_dead_ring_fails_everything_at_once),
	};
	const struct CMUnitTest alone[] = {
		cmocka_unit_test(a_process_without_uring_gets_threads),
	};
	int failed = cmocka_run_group_tests_name("no io_uring", alone, NULL, NULL);

	failed += cmocka_run_group_tests_name("io_uring where it is", tests, NULL, NULL);

	no_uring = true;
	return failed + cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}
