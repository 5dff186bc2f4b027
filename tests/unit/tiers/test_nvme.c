/* SPDX-License-Identifier: Apache-2.0 */
/* The nvme tier on a real directory: every test runs on both engines. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include "allocator/base/textbuf.h"
#include "lib/test.h"
#include "lib/tier_batch.h"
#include "lib/tier_store.h"

#define SIZE	   MIB(20)
#define FILE_BYTES MIB(8)	/* three files, the last one half full */

struct fixture {
	struct tier_store store;
	struct tier_opts opts;
	struct tier *tier;
};

static bool no_uring;

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct textbuf why = TEXTBUF_INIT;
	int err;

	if (!f)
		return -1;
	tier_store_dir(&f->store);
	f->opts = (struct tier_opts){.size_bytes = SIZE, .dirfd = f->store.dirfd, .create = true,
				     .file_bytes = FILE_BYTES, .no_uring = no_uring,
				     .numa_node = -1};
	err = tier_open(&f->tier, &tier_nvme_ops, "nvme", &f->opts, &why);
	if (err)
		print_error("%s\n", why.text);
	textbuf_free(&why);
	*state = f;
	return err;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	tier_close(f->tier);
	tier_store_close(&f->store);
	free(f);
	return 0;
}

static void reopen(struct fixture *f)
{
	struct textbuf why = TEXTBUF_INIT;

	tier_close(f->tier);
	f->tier = NULL;
	f->opts.create = false;
	assert_int_equal(tier_open(&f->tier, &tier_nvme_ops, "nvme", &f->opts, &why), 0);
	textbuf_free(&why);
}

static void bytes_survive_close_and_open(void **state)
{
	struct fixture *f = *state;
	char *buf = tier_test_alloc(SIZE);

	tier_test_fill(buf, SIZE, 1, 0);
	assert_int_equal(tier_rw_sync(f->tier, TIER_WRITE, 0, buf, SIZE), 0);
	assert_int_equal(tier_flush_sync(f->tier), 0);
	reopen(f);
	memset(buf, 0, SIZE);
	assert_int_equal(tier_rw_sync(f->tier, TIER_READ, 0, buf, SIZE), 0);
	assert_true(tier_test_check(buf, SIZE, 1, 0));
	assert_null(tier_map(f->tier, 0, 4096));
	assert_int_equal(tier_dram_file(f->tier, 0), -1);
	free(buf);
}

static void discard_keeps_the_space(void **state)
{
	struct fixture *f = *state;
	char *buf = tier_test_alloc(MIB(2));

	tier_test_fill(buf, MIB(2), 1, 0);
	assert_int_equal(tier_rw_sync(f->tier, TIER_WRITE, 0, buf, MIB(2)), 0);
	tier_discard(f->tier, 0, MIB(2));
	assert_int_equal(tier_rw_sync(f->tier, TIER_WRITE, 0, buf, MIB(2)), 0);
	free(buf);
}

static void many_scattered_ones(void **state)
{
	struct fixture *f = *state;
	unsigned int nr = SIZE / 8192;
	char *buf = tier_test_alloc(SIZE);
	struct tier_batch batch;

	tier_test_fill(buf, SIZE, 2, 0);
	tier_batch_init(&batch, nr);
	/* Every other page, so that nothing merges: more transfers than the ring has entries. */
	for (u64 i = 0; i < nr; i++)
		tier_batch_add(&batch, TIER_WRITE, i * 8192, buf + i * 8192, 4096);
	assert_int_equal(tier_batch_submit(&batch, f->tier), 0);
	assert_int_equal(tier_batch_wait(&batch), 0);
	memset(buf, 0, SIZE);
	tier_batch_reset(&batch);
	for (u64 i = nr; i-- > 0;)
		tier_batch_add(&batch, TIER_READ, i * 8192, buf + i * 8192, 4096);
	assert_int_equal(tier_batch_submit(&batch, f->tier), 0);
	assert_int_equal(tier_batch_wait(&batch), 0);
	for (u64 i = 0; i < nr; i++)
		assert_true(tier_test_check(buf + i * 8192, 4096, 2, i * 8192));
	tier_drain(f->tier);
	assert_int_equal(f->tier->writes, nr);
	assert_int_equal(f->tier->reads, nr);
	assert_int_equal(f->tier->in_flight, 0);
	tier_batch_free(&batch);
	free(buf);
}

/* One round: requests of random size over the whole tier, in order, some left out. */
static void random_round(struct tier *tier, struct test_rng *rng, char *model, char *buf)
{
	struct tier_batch batch;

	tier_batch_init(&batch, SIZE / 4096);
	for (u64 off = 0, bytes; off < SIZE; off += bytes) {
		u64 pages = 1 + test_rng_below(rng, test_rng_below(rng, 8) ? 16 : 2048);
		u64 kind = test_rng_below(rng, 3);

		bytes = min(pages * 4096, SIZE - off);
		if (kind == 2)
			continue;
		memset(buf + off, 0xa5, bytes);
		if (kind == TIER_WRITE) {
			tier_test_fill(buf + off, bytes, test_rng_u64(rng), off);
			memcpy(model + off, buf + off, bytes);
		}
		tier_batch_add(&batch, (enum tier_op)kind, off, buf + off, bytes);
	}
	assert_int_equal(tier_batch_submit(&batch, tier), 0);
	assert_int_equal(tier_batch_wait(&batch), 0);
	for (unsigned int i = 0; i < batch.nr; i++)
		assert_memory_equal(buf + batch.ios[i]->off, model + batch.ios[i]->off,
				    batch.reqs[i].iov.iov_len);
	tier_batch_free(&batch);
}

static void random_requests_against_a_model(void **state)
{
	struct fixture *f = *state;
	char *model = calloc(1, SIZE), *buf = tier_test_alloc(SIZE);
	u64 rounds = test_count(10);
	struct test_rng rng;

	assert_non_null(model);
	test_rng_init(&rng);
	for (u64 i = 0; i < rounds; i++)
		random_round(f->tier, &rng, model, buf);
	free(buf);
	free(model);
}

static void more_than_the_depth(void **state)
{
	struct fixture *f = *state;
	char *buf = tier_test_alloc(SIZE);

	/* Less than one transfer: each goes alone. */
	f->opts.depth_bytes = MIB(1);
	reopen(f);
	tier_test_fill(buf, SIZE, 3, 0);
	assert_int_equal(tier_rw_sync(f->tier, TIER_WRITE, 0, buf, SIZE), 0);
	memset(buf, 0, SIZE);
	assert_int_equal(tier_rw_sync(f->tier, TIER_READ, 0, buf, SIZE), 0);
	assert_true(tier_test_check(buf, SIZE, 3, 0));
	free(buf);
}

struct worker {
	pthread_t thread;
	struct tier *tier;
	u64 off, bytes, rounds;
	bool ok;
};

static void *work(void *arg)
{
	struct worker *w = arg;
	char *buf = tier_test_alloc(w->bytes);

	w->ok = true;
	for (u64 i = 0; i < w->rounds && w->ok; i++) {
		tier_test_fill(buf, w->bytes, i, w->off);
		w->ok = !tier_rw_sync(w->tier, TIER_WRITE, w->off, buf, w->bytes);
		memset(buf, 0, w->bytes);
		w->ok = w->ok && !tier_rw_sync(w->tier, TIER_READ, w->off, buf, w->bytes) &&
			tier_test_check(buf, w->bytes, i, w->off);
		if (i % 8 == 0)
			w->ok = w->ok && !tier_flush_sync(w->tier);
	}
	free(buf);
	return NULL;
}

static void many_submitters(void **state)
{
	struct fixture *f = *state;
	struct worker workers[8];

	f->opts.depth_bytes = MIB(2);
	reopen(f);
	for (u64 i = 0; i < ARRAY_SIZE(workers); i++) {
		workers[i] = (struct worker){.tier = f->tier, .off = i * MIB(2) + KIB(64),
					     .bytes = MIB(1) + KIB(32) * i,
					     .rounds = test_count(16)};
		assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
	}
	for (u64 i = 0; i < ARRAY_SIZE(workers); i++)
		pthread_join(workers[i].thread, NULL);
	for (u64 i = 0; i < ARRAY_SIZE(workers); i++)
		assert_true(workers[i].ok);
}

/* A read that starts the next one from its done(), until the tier was read. */
struct chain {
	struct tier_io io;
	struct iovec iov;
	struct tier *tier;
	struct lock lock;
	struct waitq wq;
	bool ended;	/* protected by lock */
	int err;	/* protected by lock */
};

static void chain_done(struct tier_io *io, int err)
{
	struct chain *chain = io->ctx;
	struct tier_io *next = io;

	io->off += chain->iov.iov_len;
	if (!err && io->off < SIZE)
		err = tier_submit(chain->tier, &next, 1);
	else if (!err)
		err = 1; /* the end */
	if (!err)
		return;
	lock_acquire(&chain->lock);
	chain->err = err;
	chain->ended = true;
	waitq_wake_all(&chain->wq);
	lock_release(&chain->lock);
}

static void done_may_submit(void **state)
{
	struct fixture *f = *state;
	struct chain chain = {0};
	struct tier_io *io = &chain.io;

	/* Room for one read only, and that one is given back after its done(). */
	f->opts.depth_bytes = MIB(1);
	reopen(f);
	chain.tier = f->tier;
	lock_init(&chain.lock, LOCK_LEAF);
	waitq_init(&chain.wq);
	chain.iov = (struct iovec){tier_test_alloc(MIB(1)), MIB(1)};
	chain.io = (struct tier_io){.op = TIER_READ, .iov = &chain.iov, .nr_iov = 1,
				    .done = chain_done, .ctx = &chain};
	assert_int_equal(tier_submit(f->tier, &io, 1), 0);
	lock_acquire(&chain.lock);
	while (!chain.ended)
		waitq_wait(&chain.wq, &chain.lock);
	assert_int_equal(chain.err, 1);
	lock_release(&chain.lock);
	assert_int_equal(f->tier->reads, SIZE / MIB(1));
	tier_drain(f->tier); /* the last done() may not have returned yet */
	free(chain.iov.iov_base);
	waitq_destroy(&chain.wq);
	lock_destroy(&chain.lock);
}

static void text_tells_the_engine(void **state)
{
	struct fixture *f = *state;
	struct textbuf tb = TEXTBUF_INIT;

	tier_to_text(f->tier, &tb);
	assert_non_null(strstr(tb.text, "kind=nvme"));
	assert_non_null(strstr(tb.text, "files=3"));
	assert_non_null(strstr(tb.text, "failed=0"));
	if (no_uring)
		assert_non_null(strstr(tb.text, "engine=threads"));
	print_message("%s\n", tb.text);
	textbuf_free(&tb);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(bytes_survive_close_and_open),
		TEST(discard_keeps_the_space),
		TEST(many_scattered_ones),
		TEST(random_requests_against_a_model),
		TEST(more_than_the_depth),
		TEST(many_submitters),
		TEST(done_may_submit),
		TEST(text_tells_the_engine),
	};
	int failed = cmocka_run_group_tests_name("io_uring where it is", tests, NULL, NULL);

	no_uring = true;
	return failed + cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}
