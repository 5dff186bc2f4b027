/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nvme tier's io_uring engine: one thread owns the ring, submits and reaps. It sleeps in one
 * place, waiting for a completion; a submitter wakes it through an eventfd of which a read is
 * always in flight. The kernel is entered once for a batch of submissions and completions together.
 *
 * A failing ring is fatal for the tier. Transfers may still be running then, into and out of memory
 * of their submitters, so the thread waits a while for them before it answers -EIO.
 */
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "allocator/base/clock.h"
#include "allocator/base/log.h"
#include "tiers/nvme_impl.h"

#define RING_ENTRIES	512	/* segments at the kernel; the eventfd's read comes on top */
#define FAILED_WAIT_MS	10000

/* Members belong to the engine's thread unless they say otherwise. */
struct ring {
	struct nvme *nvme;
	struct io_uring uring;
	pthread_t thread;		/* set once at start */
	int eventfd;			/* set once at start */
	atomic_bool kicked;		/* the eventfd was written and not yet read */
	u64 event;			/* where the eventfd is read to */
	bool armed;			/* that read is in flight */
	struct list_head waiting;	/* segments from the queue, not at the kernel */
	struct list_head running;	/* segments at the kernel */
	unsigned int nr_running;
	u64 finished_bytes;		/* not yet told to nvme_room() */
	unsigned int nr_finished;
};

static struct ring *ring_of(struct nvme *nvme)
{
	return nvme->engine_priv;
}

static void ring_kick(struct nvme *nvme)
{
	struct ring *ring = ring_of(nvme);

	/*
	 * Pairs with the exchange in take_queue(): either that sees the queue as it is now, or this
	 * sees kicked false and wakes the thread.
	 */
	if (!atomic_exchange(&ring->kicked, true))
		eventfd_write(ring->eventfd, 1);
}

/* Returns false when the engine is to stop. */
static bool take_queue(struct ring *ring)
{
	struct nvme *nvme = ring->nvme;
	bool stop;

	atomic_exchange(&ring->kicked, false);
	lock_acquire(&nvme->lock);
	list_splice(&nvme->queue, &ring->waiting);
	stop = nvme->stop;
	lock_release(&nvme->lock);
	return !stop;
}

static void arm_event(struct ring *ring)
{
	struct io_uring_sqe *sqe = ring->armed ? NULL : io_uring_get_sqe(&ring->uring);

	if (!sqe)
		return;
	io_uring_prep_read(sqe, ring->eventfd, &ring->event, sizeof(ring->event), 0);
	io_uring_sqe_set_data(sqe, NULL);
	ring->armed = true;
}

static void prepare(struct io_uring_sqe *sqe, struct nvme_seg *seg)
{
	const struct iovec *iov;
	unsigned int nr;
	u64 off;

	if (seg->op == TIER_FLUSH) {
		io_uring_prep_fsync(sqe, seg->fd, IORING_FSYNC_DATASYNC);
	} else {
		nr = nvme_seg_next(seg, &iov, &off);
		if (seg->op == TIER_READ)
			io_uring_prep_readv(sqe, seg->fd, iov, nr, off);
		else
			io_uring_prep_writev(sqe, seg->fd, iov, nr, off);
	}
	io_uring_sqe_set_data(sqe, seg);
}

static void fill_ring(struct ring *ring)
{
	arm_event(ring);
	while (!list_empty(&ring->waiting) && ring->nr_running < RING_ENTRIES) {
		struct nvme_seg *seg = list_first_entry(&ring->waiting, struct nvme_seg, link);
		struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);

		if (!sqe)
			return;
		list_del(&seg->link);
		list_add_tail(&seg->link, &ring->running);
		ring->nr_running++;
		prepare(sqe, seg);
	}
}

static void settle(struct ring *ring, struct nvme_seg *seg, long res)
{
	u64 bytes = seg->bytes;

	list_del(&seg->link);
	ring->nr_running--;
	if (nvme_seg_result(seg, res)) {
		list_add(&seg->link, &ring->waiting);
		return;
	}
	nvme_seg_finish(seg);
	ring->finished_bytes += bytes;
	ring->nr_finished++;
}

static void tell_room(struct ring *ring)
{
	if (!ring->nr_finished)
		return;
	nvme_room(ring->nvme, ring->finished_bytes, ring->nr_finished);
	ring->finished_bytes = 0;
	ring->nr_finished = 0;
}

static void reap(struct ring *ring)
{
	struct io_uring_cqe *cqe;

	while (!io_uring_peek_cqe(&ring->uring, &cqe)) {
		struct nvme_seg *seg = io_uring_cqe_get_data(cqe);
		int res = cqe->res;

		/* Free the entry first: what follows calls done(). */
		io_uring_cqe_seen(&ring->uring, cqe);
		if (seg)
			settle(ring, seg, res);
		else
			ring->armed = false;
	}
	tell_room(ring);
}

/* Move what was prepared and never handed over back to the waiting ones. */
static void take_back(struct ring *ring)
{
	struct io_uring_sq *sq = &ring->uring.sq;
	unsigned int head = __atomic_load_n(sq->khead, __ATOMIC_ACQUIRE);

	for (; head != sq->sqe_tail; head++) {
		u64 data = sq->sqes[head & *sq->kring_mask].user_data;
		struct nvme_seg *seg = (struct nvme_seg *)(uintptr_t)data;

		if (!seg)
			continue;
		list_del(&seg->link);
		list_add_tail(&seg->link, &ring->waiting);
		ring->nr_running--;
	}
}

/*
 * Transfers that the kernel still holds: their completions appear in the ring's memory, without the
 * calls that fail now.
 */
static void reap_failed(struct ring *ring)
{
	u64 end = clock_mono_ns() + FAILED_WAIT_MS * (NSEC_PER_SEC / 1000);

	while (ring->nr_running && clock_mono_ns() < end) {
		reap(ring);
		if (ring->nr_running)
			poll(NULL, 0, 10);
	}
	if (ring->nr_running)
		log_error("tier %s: %u transfers never came back", ring->nvme->tier->name,
			  ring->nr_running);
}

static void fail_list(struct ring *ring, struct list_head *segs)
{
	struct nvme_seg *seg, *next;

	list_for_each_entry_safe(seg, next, segs, link) {
		list_del(&seg->link);
		ring->finished_bytes += seg->bytes;
		ring->nr_finished++;
		nvme_seg_fail(seg);
	}
}

static void ring_failed(struct ring *ring, int err)
{
	log_error("tier %s: io_uring failed (%s); the tier is out of service",
		  ring->nvme->tier->name, strerror(-err));
	nvme_fail(ring->nvme, &ring->waiting);
	take_back(ring);
	reap_failed(ring);
	fail_list(ring, &ring->waiting);
	fail_list(ring, &ring->running);
	ring->nr_running = 0;
	tell_room(ring);
}

static bool is_transient(int err)
{
	return err == -EINTR || err == -EAGAIN || err == -EBUSY || err == -ETIME;
}

static void *ring_thread(void *arg)
{
	struct ring *ring = arg;
	bool run = true;

	nvme_thread_enter();
	while (run || ring->nr_running || !list_empty(&ring->waiting)) {
		int err;

		fill_ring(ring);
		err = io_uring_submit_and_wait(&ring->uring, 1);
		if (err < 0 && !is_transient(err)) {
			ring_failed(ring, err);
			break;
		}
		reap(ring);
		run = take_queue(ring) && run;
	}
	return NULL;
}

static void ring_free(struct ring *ring)
{
	io_uring_queue_exit(&ring->uring);
	close(ring->eventfd);
	free(ring);
}

static void ring_stop(struct nvme *nvme)
{
	struct ring *ring = ring_of(nvme);

	ring_kick(nvme);
	pthread_join(ring->thread, NULL);
	ring_free(ring);
}

static int ring_start(struct nvme *nvme)
{
	struct ring *ring = calloc(1, sizeof(*ring));
	int err;

	if (!ring)
		return -ENOMEM;
	ring->nvme = nvme;
	list_init(&ring->waiting);
	list_init(&ring->running);
	ring->eventfd = eventfd(0, EFD_CLOEXEC);
	err = ring->eventfd < 0 ? -errno : 0;
	if (err)
		goto free_ring;
	/* Twice as many completions as submissions fit: nothing overflows. */
	err = io_uring_queue_init(2 * RING_ENTRIES, &ring->uring, 0);
	if (err)
		goto close_event;
	nvme->engine_priv = ring;
	err = nvme_thread(&ring->thread, ring_thread, ring);
	if (!err)
		return 0;
	io_uring_queue_exit(&ring->uring);
close_event:
	close(ring->eventfd);
free_ring:
	free(ring);
	return err;
}

const struct nvme_engine nvme_uring = {
	.name = "io_uring",
	.start = ring_start,
	.stop = ring_stop,
	.kick = ring_kick,
};
