/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/hash.h"
#include "lib/tier_batch.h"

void tier_batch_init(struct tier_batch *batch, unsigned int nr_max)
{
	*batch = (struct tier_batch){.nr_max = nr_max};
	batch->reqs = calloc(nr_max, sizeof(*batch->reqs));
	batch->ios = calloc(nr_max, sizeof(*batch->ios));
	KVC_BUG_ON(!batch->reqs || !batch->ios);
	lock_init(&batch->lock, LOCK_LEAF);
	waitq_init(&batch->changed);
}

void tier_batch_free(struct tier_batch *batch)
{
	waitq_destroy(&batch->changed);
	lock_destroy(&batch->lock);
	free(batch->ios);
	free(batch->reqs);
}

static void req_done(struct tier_io *io, int err)
{
	struct tier_req *req = io->ctx;
	struct tier_batch *batch = req->batch;

	lock_acquire(&batch->lock);
	req->result = err;
	req->nr_done++;
	batch->nr_left--;
	waitq_wake_all(&batch->changed);
	lock_release(&batch->lock);
}

struct tier_req *tier_batch_add(struct tier_batch *batch, enum tier_op op, u64 off, void *buf,
				u64 bytes)
{
	struct tier_req *req = &batch->reqs[batch->nr];

	KVC_BUG_ON(batch->nr == batch->nr_max);
	*req = (struct tier_req){.batch = batch, .result = TIER_BATCH_PENDING};
	req->iov = (struct iovec){buf, bytes};
	req->io.op = op;
	req->io.off = off;
	req->io.iov = &req->iov;
	req->io.nr_iov = 1;
	req->io.done = req_done;
	req->io.ctx = req;
	batch->ios[batch->nr++] = &req->io;
	return req;
}

int tier_batch_submit(struct tier_batch *batch, struct tier *tier)
{
	int err;

	batch->nr_left = batch->nr;
	err = tier_submit(tier, batch->ios, batch->nr);
	if (err)
		batch->nr_left = 0;
	return err;
}

unsigned int tier_batch_wait(struct tier_batch *batch)
{
	unsigned int nr_failed = 0;

	lock_acquire(&batch->lock);
	while (batch->nr_left)
		waitq_wait(&batch->changed, &batch->lock);
	for (unsigned int i = 0; i < batch->nr; i++) {
		KVC_BUG_ON(batch->reqs[i].nr_done > 1);
		nr_failed += batch->reqs[i].result != 0;
	}
	lock_release(&batch->lock);
	return nr_failed;
}

int tier_batch_result(struct tier_batch *batch, unsigned int i)
{
	int result;

	lock_acquire(&batch->lock);
	result = batch->reqs[i].result;
	lock_release(&batch->lock);
	return result;
}

void tier_batch_reset(struct tier_batch *batch)
{
	batch->nr = 0;
}

void *tier_test_alloc(u64 bytes)
{
	void *buf = aligned_alloc(KVC_PAGE_SIZE, round_up_pow2(bytes, KVC_PAGE_SIZE));

	KVC_BUG_ON(!buf);
	return buf;
}

static u64 word_at(u64 seed, u64 off)
{
	return hash_u64(seed * 0x9e3779b97f4a7c15ull + off);
}

void tier_test_fill(void *buf, u64 bytes, u64 seed, u64 off)
{
	for (u64 i = 0; i + 8 <= bytes; i += 8) {
		u64 word = word_at(seed, off + i);

		memcpy((char *)buf + i, &word, sizeof(word));
	}
}

bool tier_test_check(const void *buf, u64 bytes, u64 seed, u64 off)
{
	for (u64 i = 0; i + 8 <= bytes; i += 8) {
		u64 word = word_at(seed, off + i);

		if (memcmp((const char *)buf + i, &word, sizeof(word)))
			return false;
	}
	return true;
}
