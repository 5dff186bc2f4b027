/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nvme tier: a few large preallocated files, read and written past the page cache.
 *
 *	requests ── cut and merged ──> segments ──> queue ──> engine ──> data.0 data.1 ...
 *
 * What a disk likes is many bytes in flight in large pieces. So the requests of one submit call
 * become segments of up to 4 MiB: small neighbours merge, large ones are cut, none crosses the
 * border of a data file. Depth is counted in bytes: a submitter waits while as many are in flight
 * as the device needs to be busy; more would only lengthen the queue in front of the next reader.
 *
 * Two engines move segments: io_uring, one thread that submits and reaps; or, where the kernel
 * refuses io_uring, a few threads with preadv and pwritev. Both leave short transfers, retries and
 * the blame for errors to nvme_seg.c: a merged segment that fails is done again request by request,
 * so that one bad sector fails one request.
 *
 * An engine that fails (the ring, not a transfer) fails the tier for good: everything that was
 * accepted completes with -EIO, everything that comes is refused.
 *
 * Nothing is done on discard: a hole would give away space that was reserved for this store.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/base/log.h"
#include "allocator/base/textbuf.h"
#include "tiers/nvme_impl.h"
#include "tiers/tier.h"
#include "tiers/tier_impl.h"

static __thread bool on_tier_thread;

int nvme_thread(pthread_t *thread, void *(*fn)(void *), void *arg)
{
	sigset_t all, old;
	int err;

	/* The process's signals are for its other threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(thread, NULL, fn, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!err)
		pthread_setname_np(*thread, "kvc-nvme");
	return -err;
}

void nvme_thread_enter(void)
{
	on_tier_thread = true;
}

void nvme_room(struct nvme *nvme, u64 bytes, unsigned int nr_segs)
{
	lock_acquire(&nvme->lock);
	kvc_assert(nvme->bytes >= bytes && nvme->nr_segs >= nr_segs);
	nvme->bytes -= bytes;
	nvme->nr_segs -= nr_segs;
	waitq_wake_all(&nvme->room);
	lock_release(&nvme->lock);
}

void nvme_fail(struct nvme *nvme, struct list_head *orphans)
{
	lock_acquire(&nvme->lock);
	nvme->failed = true;
	list_splice(&nvme->queue, orphans);
	waitq_wake_all(&nvme->room);
	lock_release(&nvme->lock);
}

static bool has_room(const struct nvme *nvme, const struct nvme_seg *seg)
{
	/* A thread of the tier makes room itself; waiting for it would be for ever. */
	return on_tier_thread || !nvme->bytes || nvme->bytes + seg->bytes <= nvme->depth_bytes;
}

/* Queue the first of @segs that fit, at least one unless the tier has failed (-EIO). */
static int queue_some(struct nvme *nvme, struct list_head *segs)
{
	struct nvme_seg *seg = list_first_entry(segs, struct nvme_seg, link);
	int err = 0;

	lock_acquire(&nvme->lock);
	while (!nvme->failed && !has_room(nvme, seg))
		waitq_wait(&nvme->room, &nvme->lock);
	if (nvme->failed)
		err = -EIO;
	while (!err && !list_empty(segs)) {
		seg = list_first_entry(segs, struct nvme_seg, link);
		if (!has_room(nvme, seg))
			break;
		list_del(&seg->link);
		list_add_tail(&seg->link, &nvme->queue);
		nvme->bytes += seg->bytes;
		nvme->nr_segs++;
	}
	lock_release(&nvme->lock);
	return err;
}

static void fail_segs(struct list_head *segs)
{
	struct nvme_seg *seg, *next;

	list_for_each_entry_safe(seg, next, segs, link) {
		list_del(&seg->link);
		nvme_seg_fail(seg);
	}
}

static bool has_failed(struct nvme *nvme)
{
	bool failed;

	lock_acquire(&nvme->lock);
	failed = nvme->failed;
	lock_release(&nvme->lock);
	return failed;
}

static int nvme_submit(struct tier *tier, struct tier_io **ios, unsigned int nr)
{
	struct nvme *nvme = tier->priv;
	struct list_head segs = LIST_HEAD_INIT(segs);
	int err;

	if (has_failed(nvme))
		return kvc_err(-EIO, nvme_failed);
	err = nvme_segs_build(nvme, ios, nr, &segs);
	if (err)
		return err;
	/* From here on the requests are taken: a failure is theirs, not this call's. */
	while (!list_empty(&segs)) {
		if (queue_some(nvme, &segs)) {
			fail_segs(&segs);
			break;
		}
		nvme->engine->kick(nvme);
	}
	return 0;
}

static void nvme_poll(struct tier *tier)
{
	struct nvme *nvme = tier->priv;

	lock_acquire(&nvme->lock);
	while (nvme->nr_segs)
		waitq_wait(&nvme->room, &nvme->lock);
	lock_release(&nvme->lock);
}

static int start_engine(struct nvme *nvme, const struct tier_opts *opts, struct textbuf *why)
{
	int err = opts->no_uring ? -EOPNOTSUPP : 0;

	nvme->engine = &nvme_uring;
	if (!err)
		err = nvme->engine->start(nvme);
	if (!err)
		return 0;
	if (!opts->no_uring)
		log_warn("tier %s: no io_uring here (%s), using threads", nvme->tier->name,
			 strerror(-err));
	nvme->engine = &nvme_threads;
	err = nvme->engine->start(nvme);
	if (err)
		return tier_why(why, err, "tier %s: cannot start its threads: %s",
				nvme->tier->name, strerror(-err));
	return 0;
}

static void nvme_free(struct nvme *nvme)
{
	waitq_destroy(&nvme->work);
	waitq_destroy(&nvme->room);
	lock_destroy(&nvme->lock);
	free(nvme);
}

static struct nvme *nvme_alloc(struct tier *tier, const struct tier_opts *opts)
{
	struct nvme *nvme = calloc(1, sizeof(*nvme));

	if (!nvme)
		return NULL;
	nvme->tier = tier;
	nvme->file_bytes = opts->file_bytes ? opts->file_bytes : NVME_FILE_BYTES;
	nvme->depth_bytes = opts->depth_bytes ? opts->depth_bytes : NVME_DEPTH_BYTES;
	lock_init(&nvme->lock, LOCK_TIER);
	waitq_init(&nvme->work);
	waitq_init(&nvme->room);
	list_init(&nvme->queue);
	return nvme;
}

static int nvme_open(struct tier *tier, const struct tier_opts *opts, struct textbuf *why)
{
	struct nvme *nvme = nvme_alloc(tier, opts);
	int err;

	if (!nvme)
		return -ENOMEM;
	err = nvme_files_open(nvme, opts, why);
	if (err)
		goto free_nvme;
	err = start_engine(nvme, opts, why);
	if (err)
		goto close_files;
	tier->priv = nvme;
	log_info("tier %s: %" PRIu64 " MiB in %u file(s), %s, %s", tier->name,
		 opts->size_bytes >> 20, nvme->nr_files, nvme->engine->name,
		 nvme->direct ? "O_DIRECT" : "buffered");
	return 0;
close_files:
	nvme_files_close(nvme);
free_nvme:
	nvme_free(nvme);
	return err;
}

static void nvme_close(struct tier *tier)
{
	struct nvme *nvme = tier->priv;

	lock_acquire(&nvme->lock);
	nvme->stop = true;
	lock_release(&nvme->lock);
	nvme->engine->stop(nvme);
	nvme_files_close(nvme);
	nvme_free(nvme);
}

static int nvme_grow(struct tier *tier, u64 size_bytes)
{
	return nvme_files_grow(tier->priv, size_bytes);
}

static void nvme_to_text(struct tier *tier, struct textbuf *tb)
{
	struct nvme *nvme = tier->priv;

	lock_acquire(&nvme->lock);
	textbuf_printf(tb, "engine=%s io=%s files=%u depth_bytes=%" PRIu64 " busy_bytes=%" PRIu64,
		       nvme->engine->name, nvme->direct ? "direct" : "buffered", nvme->nr_files,
		       nvme->depth_bytes, nvme->bytes);
	textbuf_printf(tb, " failed=%d", nvme->failed);
	lock_release(&nvme->lock);
}

const struct tier_ops tier_nvme_ops = {
	.name = "nvme",
	.align = KVC_PAGE_SIZE,
	.open = nvme_open,
	.close = nvme_close,
	.submit = nvme_submit,
	.poll = nvme_poll,
	.grow = nvme_grow,
	.to_text = nvme_to_text,
};
