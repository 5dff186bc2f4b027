/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kill -9 at random moments. A child opens the store, says which transaction it found, commits the
 * following ones and acknowledges each through a pipe; checkpoints are small, so that kills fall
 * into them too. What the next child finds must be exactly the state after a transaction that is
 * not older than the last one acknowledged.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "allocator/meta_types.h"
#include "lib/metastore.h"
#include "lib/test.h"

#define CYCLES 100u

/** struct report - child to parent; written whole, as it is shorter than PIPE_BUF. */
struct report {
	enum { FOUND, ACKED, FAILED } what;
	u64 t;
	u64 checkpoints;
	char text[160];
};

static void tell(int fd, struct report *report)
{
	if (write(fd, report, sizeof(*report)) != sizeof(*report))
		_exit(2);
}

static void tell_failed(int fd, int err, const char *text)
{
	struct report report = {.what = FAILED, .t = (u64)-err};

	snprintf(report.text, sizeof(report.text), "%s", text ? text : "");
	tell(fd, &report);
	_exit(1);
}

/* Commit for ever, in groups of one to a few transactions. */
static void child_commits(struct meta *meta, u64 t, int fd, struct test_rng *rng)
{
	struct meta_txn txn = META_TXN_INIT;

	for (;;) {
		u64 nr = 1 + test_rng_below(rng, 4);
		struct report report = {.what = ACKED};
		struct meta_stats stats;
		u64 seq = 0;
		int err = 0;

		while (nr-- && !err) {
			metastore_txn(&txn, ++t);
			err = meta_submit(meta, &txn, &seq);
		}
		if (!err)
			err = meta_commit(meta, seq);
		if (err)
			tell_failed(fd, err, "commit");
		meta_get_stats(meta, &stats);
		report.t = t;
		report.checkpoints = stats.checkpoints;
		tell(fd, &report);
	}
}

static void child(struct metastore *store, int fd, struct test_rng rng)
{
	struct meta_opts opts = {.create = true, .checkpoint_bytes = KIB(32)};
	struct report report = {.what = FOUND};
	struct metastore_state state;
	struct textbuf why = TEXTBUF_INIT;
	struct meta *meta;
	int err;

	err = metastore_open(store, &opts, &meta, &state, &why);
	if (err)
		tell_failed(fd, err, why.text);
	if (!metastore_check(&state))
		tell_failed(fd, 0, "the state after no transaction");
	report.t = state.last;
	tell(fd, &report);
	child_commits(meta, state.last, fd, &rng);
}

/* Read reports up to the @nr_acks'th, then until @ms have passed or the pipe is empty. */
static void watch(int fd, u64 nr_acks, int ms, u64 *acked, u64 *checkpoints)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	struct report report;

	while (poll(&pfd, 1, nr_acks ? -1 : ms) > 0) {
		if (read(fd, &report, sizeof(report)) != sizeof(report))
			return;		/* killed */
		if (report.what == FAILED)
			fail_msg("child: error %llu: %s", (unsigned long long)report.t,
				 report.text);
		if (report.what == FOUND && report.t < *acked)
			fail_msg("transaction %llu was acknowledged, %llu is the last one there",
				 (unsigned long long)*acked, (unsigned long long)report.t);
		*acked = report.t;
		*checkpoints = report.what == ACKED ? report.checkpoints : 0;
		if (!nr_acks)
			return;
		nr_acks--;
	}
}

static u64 cycle(struct metastore *store, struct test_rng *rng, u64 *acked)
{
	u64 nr_acks = test_rng_below(rng, 60);
	int ms = (int)test_rng_below(rng, 3);
	u64 checkpoints = 0;
	int fds[2];
	pid_t pid;

	test_rng_u64(rng);
	assert_int_equal(pipe(fds), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		close(fds[0]);
		child(store, fds[1], *rng);
	}
	close(fds[1]);
	watch(fds[0], nr_acks, ms, acked, &checkpoints);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	watch(fds[0], UINT64_MAX, 0, acked, &checkpoints);	/* what it still said */
	close(fds[0]);
	return checkpoints;
}

static void kills(void **unused)
{
	struct metastore store;
	struct metastore_state state;
	struct test_rng rng;
	struct meta *meta;
	u64 checkpoints = 0;
	u64 acked = 0;

	test_rng_init(&rng);
	metastore_make_in(&store, "/tmp");	/* a disk, so that kills fall into syncs */
	for (u64 i = 0; i < test_count(CYCLES); i++)
		checkpoints += cycle(&store, &rng, &acked);
	assert_int_equal(metastore_open(&store, NULL, &meta, &state, NULL), 0);
	assert_true(metastore_check(&state));
	assert_true(state.last >= acked);
	assert_int_equal(meta_close(meta), 0);
	print_message("%llu transactions, %llu checkpoints\n", (unsigned long long)state.last,
		      (unsigned long long)checkpoints);
	assert_true(checkpoints);
	metastore_remove(&store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(kills)};

	return cmocka_run_group_tests_name("meta_kill", tests, NULL, NULL);
}
