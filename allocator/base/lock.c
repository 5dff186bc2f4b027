/* SPDX-License-Identifier: Apache-2.0 */
#include <time.h>
#include "allocator/base/bug.h"
#include "allocator/base/clock.h"
#include "allocator/base/lock.h"

#ifdef KVC_DEBUG
#define MAX_HELD 8

/* Locks that this thread holds, outermost first. */
static __thread struct lock *held[MAX_HELD];
static __thread unsigned int nr_held;

static void held_push(struct lock *lock, bool nested)
{
	if (nr_held) {
		enum lock_rank top = held[nr_held - 1]->rank;

		KVC_BUG_ON(nested ? lock->rank < top : lock->rank <= top);
	}
	KVC_BUG_ON(nr_held == MAX_HELD);
	held[nr_held++] = lock;
}

static void held_pop(struct lock *lock)
{
	unsigned int i = nr_held;

	while (i && held[i - 1] != lock)
		i--;
	KVC_BUG_ON(!i);
	for (; i < nr_held; i++)
		held[i - 1] = held[i];
	nr_held--;
}

void lock_assert_held(struct lock *lock)
{
	for (unsigned int i = 0; i < nr_held; i++)
		if (held[i] == lock)
			return;
	KVC_BUG_ON("lock not held");
}

void lock_assert_none(void)
{
	KVC_BUG_ON(nr_held);
}
#else
static void held_push(struct lock *lock, bool nested)
{
}

static void held_pop(struct lock *lock)
{
}

void lock_assert_held(struct lock *lock)
{
}

void lock_assert_none(void)
{
}
#endif

void lock_init(struct lock *lock, enum lock_rank rank)
{
	pthread_mutexattr_t attr;

	/* critical sections are short: spinning a little is cheaper than sleeping */
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
	pthread_mutex_init(&lock->mutex, &attr);
	pthread_mutexattr_destroy(&attr);
	lock->rank = rank;
}

void lock_destroy(struct lock *lock)
{
	pthread_mutex_destroy(&lock->mutex);
}

void lock_acquire(struct lock *lock)
{
	held_push(lock, false);
	pthread_mutex_lock(&lock->mutex);
}

void lock_nested(struct lock *lock)
{
	held_push(lock, true);
	pthread_mutex_lock(&lock->mutex);
}

void lock_release(struct lock *lock)
{
	pthread_mutex_unlock(&lock->mutex);
	held_pop(lock);
}

void waitq_init(struct waitq *wq)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&wq->cond, &attr);
	pthread_condattr_destroy(&attr);
}

void waitq_destroy(struct waitq *wq)
{
	pthread_cond_destroy(&wq->cond);
}

void waitq_wait(struct waitq *wq, struct lock *lock)
{
	pthread_cond_wait(&wq->cond, &lock->mutex);
}

bool waitq_wait_ms(struct waitq *wq, struct lock *lock, u64 ms)
{
	u64 until = clock_mono_ns() + ms * 1000000;
	struct timespec ts = {.tv_sec = until / NSEC_PER_SEC, .tv_nsec = until % NSEC_PER_SEC};

	return pthread_cond_timedwait(&wq->cond, &lock->mutex, &ts) == 0;
}

void waitq_wake_all(struct waitq *wq)
{
	pthread_cond_broadcast(&wq->cond);
}
