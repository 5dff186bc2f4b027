/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checked wrappers: every call into a tier passes here once on the way in, where the request is
 * checked against the tier's alignment and size, and once on the way out, where it is counted.
 * So a back end may trust what it gets, and the figures mean the same for each of them.
 *
 * in_flight counts requests between a successful tier_submit() and their done(); it is raised
 * before the back end sees them, since they may complete before submit returns.
 */
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/err.h"
#include "allocator/base/lock.h"
#include "allocator/base/textbuf.h"
#include "tiers/tier.h"
#include "tiers/tier_impl.h"

#define SLAB_BYTES  MIB(64)	/* at least, but in small tiers */
#define SLABS_MAX   1024u	/* each may be an open file here and in every client */
#define SLABS_AIM   256u
#define SLABS_MIN   4u

#define count(counter, n) atomic_fetch_add_explicit(&(counter), (n), memory_order_relaxed)

int tier_open(struct tier **out, const struct tier_ops *ops, const char *name,
	      const struct tier_opts *opts, struct textbuf *why)
{
	struct tier *tier;
	int err;

	if (!opts->size_bytes || opts->size_bytes % KVC_HUGE_SIZE)
		return tier_why(why, -EINVAL,
				"tier %s: its size, %llu bytes, is no multiple of 2 MiB", name,
				(unsigned long long)opts->size_bytes);
	tier = calloc(1, sizeof(*tier));
	if (!tier)
		return -ENOMEM;
	tier->ops = ops;
	tier->name = strdup(name);
	tier->size_bytes = opts->size_bytes;
	err = tier->name ? ops->open(tier, opts, why) : -ENOMEM;
	if (err) {
		free((char *)tier->name);
		free(tier);
		return err;
	}
	*out = tier;
	return 0;
}

void tier_close(struct tier *tier)
{
	if (!tier)
		return;
	tier_drain(tier);
	kvc_assert(tier->in_flight == 0);
	tier->ops->close(tier);
	free((char *)tier->name);
	free(tier);
}

void tier_drain(struct tier *tier)
{
	lock_assert_none();
	tier->ops->poll(tier);
}

static bool range_ok(const struct tier *tier, u64 off, u64 bytes)
{
	u64 size = tier_size(tier);

	return bytes <= size && off <= size - bytes;
}

static int check_vector(struct tier_io *io, u32 align)
{
	uintptr_t bad = 0;

	if (!io->iov || !io->nr_iov)
		return -EINVAL;
	for (unsigned int i = 0; i < io->nr_iov; i++) {
		const struct iovec *v = &io->iov[i];

		if (!v->iov_base || !v->iov_len ||
		    __builtin_add_overflow(io->bytes, v->iov_len, &io->bytes))
			return -EINVAL;
		bad |= (uintptr_t)v->iov_base % align | v->iov_len % align;
	}
	return bad ? -EINVAL : 0;
}

static int check_io(struct tier *tier, struct tier_io *io)
{
	u32 align = tier->ops->align;

	io->bytes = 0;
	if (!io->done || io->op < TIER_READ || io->op > TIER_FLUSH)
		return kvc_err(-EINVAL, tier_bad_request);
	if (io->op == TIER_FLUSH)
		return 0;
	if (check_vector(io, align) || io->off % align)
		return kvc_err(-EINVAL, tier_misaligned);
	if (!range_ok(tier, io->off, io->bytes))
		return kvc_err(-EINVAL, tier_out_of_bounds);
	return 0;
}

static void prepare_io(struct tier *tier, struct tier_io *io)
{
	/* A request in flight twice would complete twice. */
	kvc_assert(atomic_load(&io->state) != TIER_IO_SUBMITTED || io->tier != tier);
	io->tier = tier;
	atomic_store(&io->state, TIER_IO_SUBMITTED);
	atomic_store(&io->nr_parts, 0);
	atomic_store(&io->err, 0);
	list_init(&io->link);
	io->priv = NULL;
}

int tier_submit(struct tier *tier, struct tier_io **ios, unsigned int nr)
{
	int err;

	lock_assert_none();
	for (unsigned int i = 0; i < nr; i++) {
		err = check_io(tier, ios[i]);
		if (err)
			return err;
	}
	if (!nr)
		return 0;
	for (unsigned int i = 0; i < nr; i++)
		prepare_io(tier, ios[i]);
	count(tier->in_flight, nr);
	err = tier->ops->submit(tier, ios, nr);
	if (!err)
		return 0; /* the requests may be gone already */
	for (unsigned int i = 0; i < nr; i++)
		atomic_store(&ios[i]->state, TIER_IO_DONE);
	atomic_fetch_sub(&tier->in_flight, nr);
	return err;
}

void tier_io_done(struct tier_io *io, int err)
{
	struct tier *tier = io->tier;
	unsigned int was = atomic_exchange(&io->state, TIER_IO_DONE);

	kvc_assert(was == TIER_IO_SUBMITTED);
	kvc_assert(err <= 0);
	if (err) {
		count(tier->errors, 1);
	} else if (io->op == TIER_READ) {
		count(tier->reads, 1);
		count(tier->read_bytes, io->bytes);
	} else if (io->op == TIER_WRITE) {
		count(tier->writes, 1);
		count(tier->write_bytes, io->bytes);
	}
	atomic_fetch_sub(&tier->in_flight, 1);
	io->done(io, err);
}

int tier_mem_submit(char *base, struct tier_io **ios, unsigned int nr)
{
	for (unsigned int i = 0; i < nr; i++) {
		struct tier_io *io = ios[i];
		char *at = base + io->off;

		for (unsigned int v = 0; io->op != TIER_FLUSH && v < io->nr_iov; v++) {
			const struct iovec *iov = &io->iov[v];

			if (io->op == TIER_READ)
				memcpy(iov->iov_base, at, iov->iov_len);
			else
				memcpy(at, iov->iov_base, iov->iov_len);
			at += iov->iov_len;
		}
		tier_io_done(io, 0);
	}
	return 0;
}

/* One request that its submitter waits for; lives on the submitter's stack. */
struct sync_wait {
	struct lock lock;
	struct waitq wq;
	bool done;	/* protected by lock */
	int err;	/* protected by lock */
};

static void sync_done(struct tier_io *io, int err)
{
	struct sync_wait *wait = io->ctx;

	lock_acquire(&wait->lock);
	wait->err = err;
	wait->done = true;
	waitq_wake_all(&wait->wq); /* under the lock: the waiter destroys it next */
	lock_release(&wait->lock);
}

static int submit_and_wait(struct tier *tier, struct tier_io *io)
{
	struct sync_wait wait = {0};
	int err;

	lock_init(&wait.lock, LOCK_LEAF);
	waitq_init(&wait.wq);
	io->done = sync_done;
	io->ctx = &wait;
	err = tier_submit(tier, &io, 1);
	if (!err) {
		lock_acquire(&wait.lock);
		while (!wait.done)
			waitq_wait(&wait.wq, &wait.lock);
		err = wait.err;
		lock_release(&wait.lock);
	}
	waitq_destroy(&wait.wq);
	lock_destroy(&wait.lock);
	return err;
}

int tier_rw_sync(struct tier *tier, enum tier_op op, u64 off, void *buf, u64 bytes)
{
	struct iovec iov = {.iov_base = buf, .iov_len = bytes};
	struct tier_io io = {.op = op, .off = off, .iov = &iov, .nr_iov = 1};

	return submit_and_wait(tier, &io);
}

int tier_flush_sync(struct tier *tier)
{
	struct tier_io io = {.op = TIER_FLUSH};

	return submit_and_wait(tier, &io);
}

void *tier_map(struct tier *tier, u64 off, u64 bytes)
{
	if (!tier->ops->map || !range_ok(tier, off, bytes))
		return NULL;
	return tier->ops->map(tier, off, bytes);
}

void tier_discard(struct tier *tier, u64 off, u64 bytes)
{
	kvc_assert(range_ok(tier, off, bytes));
	if (tier->ops->discard && range_ok(tier, off, bytes))
		tier->ops->discard(tier, off, bytes);
}

int tier_grow(struct tier *tier, u64 size_bytes)
{
	int err;

	if (!tier->ops->grow)
		return -EOPNOTSUPP;
	if (size_bytes % KVC_HUGE_SIZE || size_bytes < tier_size(tier))
		return kvc_err(-EINVAL, tier_bad_grow);
	lock_assert_none();
	err = tier->ops->grow(tier, size_bytes);
	/* Pairs with tier_size(): who sees the new size sees what the back end set up for it. */
	if (!err)
		__atomic_store_n(&tier->size_bytes, size_bytes, __ATOMIC_RELEASE);
	return err;
}

u64 tier_slab_bytes(const struct tier *tier)
{
	u64 size = tier_size(tier), slab = SLAB_BYTES;

	while (div_round_up(size, slab) > (slab < GIB(1) ? SLABS_AIM : SLABS_MAX))
		slab *= 2;
	while (slab > KVC_HUGE_SIZE && size / slab < SLABS_MIN)
		slab /= 2;
	return slab;
}

int tier_renew(struct tier *tier, u32 slab, bool empty)
{
	u64 slab_bytes = tier_slab_bytes(tier), off = slab * slab_bytes;
	u64 bytes = min(slab_bytes, tier_size(tier) - off);
	void *addr;

	lock_assert_none();
	kvc_assert(range_ok(tier, off, bytes));
	if (tier->ops->renew)
		return tier->ops->renew(tier, slab, empty);
	addr = tier_map(tier, off, bytes);
	if (!addr)
		return -EOPNOTSUPP;
	memset(addr, 0, bytes);
	return 0;
}

void tier_to_text(struct tier *tier, struct textbuf *tb)
{
	textbuf_printf(tb, "%s kind=%s size_bytes=%llu", tier->name, tier->ops->name,
		       (unsigned long long)tier_size(tier));
	textbuf_printf(tb, " reads=%llu read_bytes=%llu writes=%llu write_bytes=%llu",
		       (unsigned long long)tier->reads, (unsigned long long)tier->read_bytes,
		       (unsigned long long)tier->writes, (unsigned long long)tier->write_bytes);
	textbuf_printf(tb, " errors=%llu in_flight=%llu", (unsigned long long)tier->errors,
		       (unsigned long long)tier->in_flight);
	if (tier->ops->to_text) {
		textbuf_printf(tb, " ");
		tier->ops->to_text(tier, tb);
	}
}
