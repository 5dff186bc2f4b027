/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fail the n-th: every write, sync, allocation and rename of a metadata store's life fails once.
 * The call that needed it may fail, or the store stop; what was acknowledged before is there at the
 * next open, which succeeds.
 */
#include <errno.h>
#include <dirent.h>
#include <string.h>
#include <unistd.h>
#include "allocator/base/fault.h"
#include "allocator/base/log.h"
#include "allocator/meta_types.h"
#include "lib/metastore.h"
#include "lib/test.h"

#define NR_TXNS 24u

static const struct meta_opts opts = {.create = true, .checkpoint_bytes = KIB(24)};

/* Open, commit NR_TXNS transactions with a checkpoint in their middle, close. */
static u64 life(struct metastore *store, u64 acked)
{
	struct metastore_state state;
	struct meta *meta;
	u64 last = acked + NR_TXNS;
	int err;

	if (metastore_open(store, &opts, &meta, &state, NULL))
		return acked;
	assert_true(metastore_check(&state));
	assert_true(state.last >= acked);
	for (u64 t = state.last + 1; t <= last; t++) {
		err = metastore_run(meta, t, t);
		if (err == -ENOMEM || err == -ENOSPC)
			err = metastore_run(meta, t, t);	/* nothing was taken: again */
		if (err) {
			assert_int_equal(err, -EIO);
			break;
		}
		acked = t;
		if (t == last - NR_TXNS / 2) {
			err = meta_checkpoint(meta);
			assert_true(!err || err == -EIO || err == -ENOSPC || err == -ENOMEM);
		}
	}
	err = meta_close(meta);
	assert_true(!err || err == -EIO);
	return acked;
}

static unsigned int nr_files(struct metastore *store)
{
	struct dirent *entry;
	DIR *dir = opendir(store->path);
	unsigned int nr = 0;

	assert_non_null(dir);
	while ((entry = readdir(dir)))
		nr += entry->d_name[0] != '.';
	closedir(dir);
	return nr;
}

static void check_after(struct metastore *store, u64 acked, u64 nth)
{
	struct metastore_state state;
	struct textbuf why = TEXTBUF_INIT;
	struct meta *meta;
	int err = metastore_open(store, &opts, &meta, &state, &why);

	if (err)
		fail_msg("after failing step %llu: open: %s: %s", (unsigned long long)nth,
			 strerror(-err), why.text ? why.text : "");
	textbuf_free(&why);
	assert_true(metastore_check(&state));
	if (state.last < acked)
		fail_msg("after failing step %llu: %llu acknowledged, %llu there",
			 (unsigned long long)nth, (unsigned long long)acked,
			 (unsigned long long)state.last);
	assert_int_equal(metastore_run(meta, state.last + 1, state.last + 5), 0);
	assert_int_equal(meta_checkpoint(meta), 0);
	assert_int_equal(meta_close(meta), 0);
	assert_int_equal(nr_files(store), 2);
}

/* A fresh store for each n, until a whole life asks fewer than n questions. */
static void fresh(void **unused)
{
	bool fired = true;

	for (u64 nth = 1; fired; nth++) {
		struct metastore store;
		u64 acked;

		metastore_make(&store);
		fault_arm(FAULT_META, nth);
		acked = life(&store, 0);
		fired = fault_asked(FAULT_META) >= nth;
		fault_arm(FAULT_META, 0);
		check_after(&store, acked, nth);
		metastore_remove(&store);
	}
}

/* The same on one store that lives on, so that opens of every kind of leftover fail too. */
static void continued(void **unused)
{
	struct metastore store;
	u64 acked = 0;
	bool fired = true;

	metastore_make(&store);
	for (u64 nth = 1; fired; nth++) {
		fault_arm(FAULT_META, nth);
		acked = life(&store, acked);
		fired = fault_asked(FAULT_META) >= nth;
	}
	fault_arm(FAULT_META, 0);
	check_after(&store, acked, 0);
	metastore_remove(&store);
}

static int setup(void **unused)
{
	log_set_level(LOG_LEVEL_ERROR - 1);	/* the failures are meant */
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fresh),
		cmocka_unit_test(continued),
	};

	return cmocka_run_group_tests_name("meta_fail", tests, setup, NULL);
}
