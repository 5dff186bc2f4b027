/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mutexes with a rank. A thread takes locks in rising rank only; debug builds check it at run time
 * and also that no lock is held where a thread is about to block on I/O (lock_assert_none()).
 * Two locks of one rank are never held together, except FS_INODE ones taken in address order
 * through lock_nested().
 */
#ifndef KVC_BASE_LOCK_H
#define KVC_BASE_LOCK_H

#include <pthread.h>
#include "allocator/base/compiler.h"

enum lock_rank {
	LOCK_FS_TABLE,	/* the tree of names */
	LOCK_FS_INODE,	/* one file's or sequence's logical state */
	LOCK_POOL,	/* blocks, prefix index, reclaim heaps */
	LOCK_EXTENT,	/* extent allocators */
	LOCK_STORE,	/* journal */
	LOCK_TIER,	/* inside a tier */
	LOCK_LEAF,	/* nothing is taken below it */
};

struct lock {
	pthread_mutex_t mutex;
	enum lock_rank rank;
};

struct waitq {
	pthread_cond_t cond;
};

void lock_init(struct lock *lock, enum lock_rank rank);
void lock_destroy(struct lock *lock);
void lock_acquire(struct lock *lock);
/** lock_nested() - take a second lock of the same rank; the caller guarantees the order. */
void lock_nested(struct lock *lock);
void lock_release(struct lock *lock);
/** lock_assert_held() / lock_assert_none() - checked in debug builds, nothing in release builds. */
void lock_assert_held(struct lock *lock);
void lock_assert_none(void);

void waitq_init(struct waitq *wq);
void waitq_destroy(struct waitq *wq);
/** waitq_wait() - release @lock, sleep until woken, take @lock again. Spurious wake-ups happen. */
void waitq_wait(struct waitq *wq, struct lock *lock);
/** waitq_wait_ms() - as waitq_wait(); returns false when @ms milliseconds (monotonic) went by. */
bool waitq_wait_ms(struct waitq *wq, struct lock *lock, u64 ms);
void waitq_wake_all(struct waitq *wq);

#endif
