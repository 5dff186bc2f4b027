/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nvme tier's engine for kernels and containers without io_uring: a few threads, each taking
 * the oldest segment and carrying it out. Eight of them keep a disk busy with segments of 4 MiB.
 */
#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>
#include "allocator/base/lock.h"
#include "tiers/nvme_impl.h"

#define NR_THREADS 8

struct nvme_pool {
	pthread_t threads[NR_THREADS];
	unsigned int nr;
};

static struct nvme_seg *take_seg(struct nvme *nvme)
{
	struct nvme_seg *seg = NULL;

	lock_acquire(&nvme->lock);
	while (list_empty(&nvme->queue) && !nvme->stop)
		waitq_wait(&nvme->work, &nvme->lock);
	if (!list_empty(&nvme->queue)) {
		seg = list_first_entry(&nvme->queue, struct nvme_seg, link);
		list_del(&seg->link);
	}
	lock_release(&nvme->lock);
	return seg;
}

static long transfer(struct nvme_seg *seg)
{
	const struct iovec *iov;
	unsigned int nr;
	ssize_t res;
	u64 off;

	if (seg->op == TIER_FLUSH) {
		res = fdatasync(seg->fd);
		return res < 0 ? -errno : 0;
	}
	nr = nvme_seg_next(seg, &iov, &off);
	res = seg->op == TIER_READ ? preadv(seg->fd, iov, nr, off)
				   : pwritev(seg->fd, iov, nr, off);
	return res < 0 ? -errno : res;
}

static void *pool_thread(void *arg)
{
	struct nvme *nvme = arg;
	struct nvme_seg *seg;

	nvme_thread_enter();
	while ((seg = take_seg(nvme))) {
		u64 bytes = seg->bytes;

		while (nvme_seg_result(seg, transfer(seg)))
			;
		nvme_seg_finish(seg);
		nvme_room(nvme, bytes, 1);
	}
	return NULL;
}

static void pool_kick(struct nvme *nvme)
{
	lock_acquire(&nvme->lock);
	waitq_wake_all(&nvme->work);
	lock_release(&nvme->lock);
}

static void pool_stop(struct nvme *nvme)
{
	struct nvme_pool *pool = nvme->engine_priv;

	pool_kick(nvme);
	for (unsigned int i = 0; i < pool->nr; i++)
		pthread_join(pool->threads[i], NULL);
	free(pool);
}

static int pool_start(struct nvme *nvme)
{
	struct nvme_pool *pool = calloc(1, sizeof(*pool));
	int err = 0;

	if (!pool)
		return -ENOMEM;
	nvme->engine_priv = pool;
	while (pool->nr < NR_THREADS && !err) {
		err = nvme_thread(&pool->threads[pool->nr], pool_thread, nvme);
		if (!err)
			pool->nr++;
	}
	if (pool->nr)
		return 0; /* fewer are slower, and enough */
	free(pool);
	return err;
}

const struct nvme_engine nvme_threads = {
	.name = "threads",
	.start = pool_start,
	.stop = pool_stop,
	.kick = pool_kick,
};
