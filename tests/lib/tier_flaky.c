/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each request from above gets a child request for the tier below. What is to go wrong is decided
 * when it arrives, so "the n-th" counts arrivals; it goes wrong when it is let go.
 */
#include <errno.h>
#include <string.h>
#include "allocator/base/bug.h"
#include "allocator/base/list.h"
#include "allocator/base/lock.h"
#include "lib/tier_flaky.h"
#include "tiers/tier_impl.h"

#define NR_OPS (TIER_FLUSH + 1)

struct flaky {
	struct tier *below;		/* the test's */
	struct tier_ops ops;		/* ours, with the alignment of @below */
	struct lock lock;
	struct waitq changed;		/* nr_held or nr_open */
	/* all below: protected by lock */
	u64 seen[NR_OPS];
	u64 fail_at[NR_OPS];
	int fail_err[NR_OPS];
	u64 tear_at, tear_bytes;
	int tear_err;
	u64 flip_at, flip_byte;
	u64 submits, refuse_at;
	int refuse_err;
	bool hold[NR_OPS], unplugged;
	struct list_head held;
	unsigned int nr_held, nr_open;	/* nr_open: taken, done() not yet returned */
};

struct flaky_opts {
	struct tier_opts opts;
	struct flaky *flaky;
};

/* A request on its way: the one from above, and ours below. */
struct child {
	struct tier_io io;
	struct tier_io *parent;
	struct flaky *flaky;
	struct list_head link;
	int fail_err;		/* complete with this, do nothing */
	int after_err;		/* do it, then complete with this */
	bool flip;
	u64 flip_byte;
	struct iovec *torn;	/* owned: a torn write's vectors */
};

static void child_end(struct child *child, int err)
{
	struct flaky *flaky = child->flaky;
	struct tier_io *parent = child->parent;

	free(child->torn);
	free(child);
	tier_io_done(parent, err);
	lock_acquire(&flaky->lock);
	flaky->nr_open--;
	waitq_wake_all(&flaky->changed);
	lock_release(&flaky->lock);
}

static void flip_bit(struct tier_io *io, u64 at)
{
	for (unsigned int i = 0; i < io->nr_iov; i++) {
		if (at < io->iov[i].iov_len) {
			((u8 *)io->iov[i].iov_base)[at] ^= 1;
			return;
		}
		at -= io->iov[i].iov_len;
	}
}

static void child_done(struct tier_io *io, int err)
{
	struct child *child = io->ctx;

	if (!err && child->flip)
		flip_bit(io, child->flip_byte);
	child_end(child, err ? err : child->after_err);
}

static void child_go(struct child *child)
{
	struct tier_io *io = &child->io;
	int err = child->fail_err;

	if (!err && child->torn && !io->nr_iov) {
		child_end(child, child->after_err); /* torn at its very start */
		return;
	}
	if (!err)
		err = tier_submit(child->flaky->below, &io, 1);
	if (err)
		child_end(child, err);
}

/* Shorten the child's vectors to @bytes. */
static void tear(struct child *child, u64 bytes)
{
	struct tier_io *io = &child->io;
	unsigned int nr = 0;

	child->torn = kvc_alloc_array(io->nr_iov, sizeof(*child->torn));
	KVC_BUG_ON(!child->torn);
	for (; nr < io->nr_iov && bytes; nr++) {
		child->torn[nr] = io->iov[nr];
		child->torn[nr].iov_len = min((u64)io->iov[nr].iov_len, bytes);
		bytes -= child->torn[nr].iov_len;
	}
	io->iov = child->torn;
	io->nr_iov = nr;
}

/* Decide what will go wrong with @child. Returns true when it is held. Caller holds the lock. */
static bool __decide(struct flaky *flaky, struct child *child)
{
	enum tier_op op = child->io.op;
	u64 nth = ++flaky->seen[op];

	flaky->nr_open++;
	if (flaky->unplugged)
		child->fail_err = -EIO;
	else if (flaky->fail_at[op] == nth)
		child->fail_err = flaky->fail_err[op];
	if (op == TIER_WRITE && flaky->tear_at == nth) {
		child->after_err = flaky->tear_err;
		tear(child, flaky->tear_bytes);
	}
	child->flip = op == TIER_READ && flaky->flip_at == nth;
	child->flip_byte = flaky->flip_byte;
	if (!flaky->hold[op])
		return false;
	list_add_tail(&child->link, &flaky->held);
	flaky->nr_held++;
	waitq_wake_all(&flaky->changed);
	return true;
}

static void take(struct flaky *flaky, struct tier_io *parent)
{
	struct child *child = calloc(1, sizeof(*child));
	bool held;

	KVC_BUG_ON(!child);
	child->flaky = flaky;
	child->parent = parent;
	child->io = (struct tier_io){.op = parent->op, .off = parent->off, .iov = parent->iov,
				     .nr_iov = parent->nr_iov, .done = child_done, .ctx = child};
	lock_acquire(&flaky->lock);
	held = __decide(flaky, child);
	lock_release(&flaky->lock);
	if (!held)
		child_go(child);
}

static int flaky_submit(struct tier *tier, struct tier_io **ios, unsigned int nr)
{
	struct flaky *flaky = tier->priv;
	int err = 0;

	lock_acquire(&flaky->lock);
	if (++flaky->submits == flaky->refuse_at)
		err = flaky->refuse_err;
	lock_release(&flaky->lock);
	for (unsigned int i = 0; !err && i < nr; i++)
		take(flaky, ios[i]);
	return err;
}

static void flaky_poll(struct tier *tier)
{
	struct flaky *flaky = tier->priv;

	lock_acquire(&flaky->lock);
	while (flaky->nr_open)
		waitq_wait(&flaky->changed, &flaky->lock);
	lock_release(&flaky->lock);
}

static int flaky_start(struct tier *tier, const struct tier_opts *opts, struct textbuf *why)
{
	tier->priv = container_of(opts, struct flaky_opts, opts)->flaky;
	return 0;
}

static void flaky_close(struct tier *tier)
{
	struct flaky *flaky = tier->priv;

	waitq_destroy(&flaky->changed);
	lock_destroy(&flaky->lock);
	free(flaky);
}

static void *flaky_map(struct tier *tier, u64 off, u64 bytes)
{
	struct flaky *flaky = tier->priv;

	return tier_map(flaky->below, off, bytes);
}

static void flaky_discard(struct tier *tier, u64 off, u64 bytes)
{
	struct flaky *flaky = tier->priv;

	tier_discard(flaky->below, off, bytes);
}

static int flaky_grow(struct tier *tier, u64 size_bytes)
{
	struct flaky *flaky = tier->priv;

	return tier_grow(flaky->below, size_bytes);
}

int tier_flaky_open(struct tier **tier, struct tier *below)
{
	struct flaky *flaky = calloc(1, sizeof(*flaky));
	struct flaky_opts opts = {.opts.size_bytes = tier_size(below), .flaky = flaky};
	int err;

	if (!flaky)
		return -ENOMEM;
	flaky->below = below;
	flaky->ops = (struct tier_ops){
		.name = "flaky", .align = below->ops->align, .open = flaky_start,
		.close = flaky_close, .submit = flaky_submit, .poll = flaky_poll,
		.map = flaky_map, .discard = flaky_discard, .grow = flaky_grow,
	};
	list_init(&flaky->held);
	lock_init(&flaky->lock, LOCK_TIER);
	waitq_init(&flaky->changed);
	err = tier_open(tier, &flaky->ops, below->name, &opts.opts, NULL);
	if (err)
		free(flaky);
	return err;
}

void tier_flaky_fail(struct tier *tier, enum tier_op op, u64 nth, int err)
{
	struct flaky *flaky = tier->priv;

	lock_acquire(&flaky->lock);
	flaky->fail_at[op] = nth ? flaky->seen[op] + nth : 0;
	flaky->fail_err[op] = err;
	lock_release(&flaky->lock);
}

void tier_flaky_tear(struct tier *tier, u64 nth, u64 bytes, int err)
{
	struct flaky *flaky = tier->priv;

	lock_acquire(&flaky->lock);
	flaky->tear_at = nth ? flaky->seen[TIER_WRITE] + nth : 0;
	flaky->tear_bytes = bytes;
	flaky->tear_err = err;
	lock_release(&flaky->lock);
}

void tier_flaky_flip(struct tier *tier, u64 nth, u64 at)
{
	struct flaky *flaky = tier->priv;

	lock_acquire(&flaky->lock);
	flaky->flip_at = nth ? flaky->seen[TIER_READ] + nth : 0;
	flaky->flip_byte = at;
	lock_release(&flaky->lock);
}

void tier_flaky_refuse(struct tier *tier, u64 nth, int err)
{
	struct flaky *flaky = tier->priv;

	lock_acquire(&flaky->lock);
	flaky->refuse_at = nth ? flaky->submits + nth : 0;
	flaky->refuse_err = err;
	lock_release(&flaky->lock);
}

void tier_flaky_unplug(struct tier *tier, bool unplugged)
{
	struct flaky *flaky = tier->priv;

	lock_acquire(&flaky->lock);
	flaky->unplugged = unplugged;
	lock_release(&flaky->lock);
}

void tier_flaky_hold(struct tier *tier, enum tier_op op, bool hold)
{
	struct flaky *flaky = tier->priv;

	lock_acquire(&flaky->lock);
	flaky->hold[op] = hold;
	lock_release(&flaky->lock);
}

void tier_flaky_wait_held(struct tier *tier, unsigned int nr)
{
	struct flaky *flaky = tier->priv;

	lock_acquire(&flaky->lock);
	while (flaky->nr_held < nr)
		waitq_wait(&flaky->changed, &flaky->lock);
	lock_release(&flaky->lock);
}

unsigned int tier_flaky_release(struct tier *tier, unsigned int nr)
{
	struct flaky *flaky = tier->priv;
	struct list_head going = LIST_HEAD_INIT(going);
	struct child *child, *next;
	unsigned int n = 0;

	lock_acquire(&flaky->lock);
	for (; n < nr && !list_empty(&flaky->held); n++) {
		child = list_first_entry(&flaky->held, struct child, link);
		list_del(&child->link);
		list_add_tail(&child->link, &going);
		flaky->nr_held--;
	}
	lock_release(&flaky->lock);
	list_for_each_entry_safe(child, next, &going, link) {
		list_del(&child->link);
		child_go(child);
	}
	return n;
}

u64 tier_flaky_seen(struct tier *tier, enum tier_op op)
{
	struct flaky *flaky = tier->priv;
	u64 seen;

	lock_acquire(&flaky->lock);
	seen = flaky->seen[op];
	lock_release(&flaky->lock);
	return seen;
}
