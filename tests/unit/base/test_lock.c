/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong lock orders must abort in the child that tries them; right ones must not. */
#include "allocator/base/clock.h"
#include "allocator/base/lock.h"
#include "lib/test.h"

struct locks {
	struct lock inode, inode2, pool, leaf;
};

static void locks_init(struct locks *l)
{
	lock_init(&l->inode, LOCK_FS_INODE);
	lock_init(&l->inode2, LOCK_FS_INODE);
	lock_init(&l->pool, LOCK_POOL);
	lock_init(&l->leaf, LOCK_LEAF);
}

static void rising(void *arg)
{
	struct locks *l = arg;

	lock_acquire(&l->inode);
	lock_nested(&l->inode2);
	lock_acquire(&l->pool);
	lock_acquire(&l->leaf);
	lock_assert_held(&l->pool);
	lock_release(&l->pool); /* out of order is fine */
	lock_release(&l->leaf);
	lock_acquire(&l->pool);
	lock_release(&l->pool);
	lock_release(&l->inode2);
	lock_release(&l->inode);
	lock_assert_none();
}

static void falling(void *arg)
{
	struct locks *l = arg;

	lock_acquire(&l->pool);
	lock_acquire(&l->inode);
}

static void falling_nested(void *arg)
{
	struct locks *l = arg;

	lock_acquire(&l->pool);
	lock_nested(&l->inode);
}

static void same_rank(void *arg)
{
	struct locks *l = arg;

	lock_acquire(&l->inode);
	lock_acquire(&l->inode2);
}

static void release_not_held(void *arg)
{
	struct locks *l = arg;

	pthread_mutex_lock(&l->pool.mutex);
	lock_release(&l->pool);
}

static void assert_not_held(void *arg)
{
	struct locks *l = arg;

	lock_acquire(&l->inode);
	lock_assert_held(&l->pool);
}

static void held_across_io(void *arg)
{
	struct locks *l = arg;

	lock_acquire(&l->leaf);
	lock_assert_none();
}

static void right_orders_pass(void **state)
{
	struct locks l;

	locks_init(&l);
	rising(&l);
	assert_false(test_aborts(rising, &l));
}

static void wrong_orders_abort(void **state)
{
	static void (*const wrong[])(void *) = {
		falling, falling_nested, same_rank, release_not_held, assert_not_held, held_across_io,
	};
	struct locks l;

	locks_init(&l);
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
		assert_true(test_aborts(wrong[i], &l));
}

struct wait_test {
	struct lock lock;
	struct waitq wq;
	bool go, done;
};

static void *wait_thread(void *arg)
{
	struct wait_test *t = arg;

	lock_acquire(&t->lock);
	while (!t->go)
		waitq_wait(&t->wq, &t->lock);
	lock_assert_held(&t->lock);
	t->done = true;
	waitq_wake_all(&t->wq);
	lock_release(&t->lock);
	return NULL;
}

static void waiting_gives_the_lock_away_and_back(void **state)
{
	struct wait_test t = {0};
	pthread_t thread;

	lock_init(&t.lock, LOCK_LEAF);
	waitq_init(&t.wq);
	assert_int_equal(pthread_create(&thread, NULL, wait_thread, &t), 0);
	lock_acquire(&t.lock);
	t.go = true;
	waitq_wake_all(&t.wq);
	while (!t.done)
		assert_true(waitq_wait_ms(&t.wq, &t.lock, 60000));
	lock_release(&t.lock);
	pthread_join(thread, NULL);
	waitq_destroy(&t.wq);
	lock_destroy(&t.lock);
}

static void a_timed_wait_ends(void **state)
{
	struct wait_test t = {0};
	u64 start = clock_mono_ns();

	lock_init(&t.lock, LOCK_LEAF);
	waitq_init(&t.wq);
	lock_acquire(&t.lock);
	while (waitq_wait_ms(&t.wq, &t.lock, 5))
		;
	assert_true(clock_mono_ns() - start >= 5 * 1000000ull);
	lock_release(&t.lock);
	waitq_destroy(&t.wq);
	lock_destroy(&t.lock);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(right_orders_pass),
		cmocka_unit_test(wrong_orders_abort),
		cmocka_unit_test(waiting_gives_the_lock_away_and_back),
		cmocka_unit_test(a_timed_wait_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
