/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "allocator/base/clock.h"
#include "lib/test.h"

u64 test_count(u64 full)
{
	const char *scale = getenv("KVC_TEST_SCALE");
	double factor = scale ? strtod(scale, NULL) : 1.0;
	u64 count = factor > 0 ? (u64)((double)full * factor) : full;

	return count ? count : 1;
}

void test_tmp(char *path, const char *name)
{
	const char *tmp = getenv("TMPDIR");

	assert_in_range(snprintf(path, PATH_MAX, "%s/%s", tmp && *tmp ? tmp : "/tmp", name), 1, PATH_MAX - 1);
}

u64 test_rng_init(struct test_rng *rng)
{
	const char *text = getenv("KVC_TEST_SEED");
	u64 seed = text ? strtoull(text, NULL, 0) : clock_mono_ns();

	rng->state = seed ? seed : 1;
	printf("seed: KVC_TEST_SEED=%llu\n", (unsigned long long)rng->state);
	return rng->state;
}

u64 test_rng_u64(struct test_rng *rng)
{
	rng->state ^= rng->state >> 12;
	rng->state ^= rng->state << 25;
	rng->state ^= rng->state >> 27;
	return rng->state * 0x2545f4914f6cdd1dull;
}

u64 test_rng_below(struct test_rng *rng, u64 n)
{
	return n ? test_rng_u64(rng) % n : 0;
}

static void run_in_child(void (*fn)(void *arg), void *arg)
{
	struct rlimit no_core = {0};
	int null = open("/dev/null", O_WRONLY);

	setrlimit(RLIMIT_CORE, &no_core);
	dup2(null, STDERR_FILENO);
	signal(SIGABRT, SIG_DFL);
	fn(arg);
	_exit(0);
}

bool test_aborts(void (*fn)(void *arg), void *arg)
{
	int status = 0;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (!pid)
		run_in_child(fn, arg);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return false;
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}
