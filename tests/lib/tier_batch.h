/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A batch of tier requests and how each of them ended, for tests: fill, submit, wait, look.
 */
#ifndef KVC_TEST_TIER_BATCH_H
#define KVC_TEST_TIER_BATCH_H

#include "allocator/base/lock.h"
#include "tiers/tier.h"

#define TIER_BATCH_PENDING 1	/* no errno has this value's sign */

/** struct tier_req - one request of a batch. */
struct tier_req {
	struct tier_io io;
	struct iovec iov;
	struct tier_batch *batch;
	int result;		/* TIER_BATCH_PENDING, 0 or -errno; protected by batch->lock */
	unsigned int nr_done;	/* times that done() was called; protected by batch->lock */
};

struct tier_batch {
	struct lock lock;
	struct waitq changed;
	unsigned int nr, nr_left;	/* nr_left: protected by lock */
	unsigned int nr_max;
	struct tier_req *reqs;		/* owned */
	struct tier_io **ios;		/* owned */
};

void tier_batch_init(struct tier_batch *batch, unsigned int nr_max);
void tier_batch_free(struct tier_batch *batch);
/** tier_batch_add() - append one request of one vector. Return: it, for what it does not set. */
struct tier_req *tier_batch_add(struct tier_batch *batch, enum tier_op op, u64 off, void *buf,
				u64 bytes);
/** tier_batch_submit() - all requests in one tier_submit(); its return value. */
int __must_check tier_batch_submit(struct tier_batch *batch, struct tier *tier);
/** tier_batch_wait() - until every request is done. Return: how many failed. */
unsigned int tier_batch_wait(struct tier_batch *batch);
/** tier_batch_result() - of request @i. */
int tier_batch_result(struct tier_batch *batch, unsigned int i);
/** tier_batch_reset() - empty again. */
void tier_batch_reset(struct tier_batch *batch);

/** tier_test_alloc() - page-aligned memory; exits when there is none. Freed by free(). */
void *tier_test_alloc(u64 bytes);
/** tier_test_fill() - bytes that differ for each (@seed, @off, byte). */
void tier_test_fill(void *buf, u64 bytes, u64 seed, u64 off);
/** tier_test_check() - whether @buf holds what tier_test_fill() puts there. */
bool tier_test_check(const void *buf, u64 bytes, u64 seed, u64 off);

#endif
