/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefetches of a handle, and how a client hears of their end: its completion word says which and how,
 * then whoever waits for the word is woken, and the event descriptor becomes readable.
 *
 * That is the write end of a pipe and not an eventfd, whose flags both sides would share: a client
 * could let writes to it block, and with them the daemon. A full pipe is readable already: a byte
 * more would say nothing.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "allocator/base/clock.h"
#include "fs/rpc/endpoint.h"

#define NSEC_PER_USEC 1000u

/** struct prefetch - of one handle; freed by it. */
struct prefetch {
	struct pool_load load;
	struct endpoint *ep;
	u64 *word;  /* in the arena; NULL: nobody asked */
	u32 ticket;
};

/* Any thread. The handle, and with it arena and descriptor, waits for this to return. */
static void prefetch_done(struct pool_load *load, int err)
{
	const struct prefetch *p = container_of(load, struct prefetch, load);

	if (!p->word)
		return;
	__atomic_store_n(p->word, (u64)(u32)-err << 32 | p->ticket, __ATOMIC_RELEASE);
	syscall(SYS_futex, p->word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	(void)!write(p->ep->event_fd, "", 1);
}

void handle_end_prefetch(struct handle *h)
{
	if (!h->prefetch)
		return;
	pool_load_cancel(h->ep->fs->pool, &h->prefetch->load);
	free(h->prefetch);
	h->prefetch = NULL;
}

static u64 deadline_ns(u64 us)
{
	u64 now = clock_mono_ns();

	if (!us)
		return 0;
	return us > (UINT64_MAX - now) / NSEC_PER_USEC ? UINT64_MAX : now + us * NSEC_PER_USEC;
}

/* The blocks of @op's range, each named. Return: how many, -EINVAL, -ENOMEM. */
static int64_t name_range(struct blktab *tab, const struct kvc_op_prefetch *op,
			  struct block_id **ids)
{
	u32 nr;

	lock_acquire(&tab->lock);
	nr = tab->nr_blocks;
	lock_release(&tab->lock);
	if (op->first_block > nr)
		return -EINVAL;
	nr = (u32)min(op->nr_blocks, nr - op->first_block);
	*ids = kvc_alloc_array(nr, sizeof(**ids));
	if (!*ids)
		return -ENOMEM;
	blktab_snapshot(tab, (u32)op->first_block, nr, *ids);
	return nr;
}

static struct prefetch *prefetch_new(struct handle *h, const struct kvc_op_prefetch *op)
{
	struct endpoint *ep = h->ep;
	struct prefetch *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->ep = ep;
	p->load.deadline_ns = deadline_ns(op->deadline_us);
	p->load.done = prefetch_done;
	if (op->flags & KVC_PREFETCH_EVENT) {
		p->word = &ep->words[h->nr - 1];
		p->ticket = ep->ticket = ep->ticket == UINT32_MAX ? 1 : ep->ticket + 1;
	}
	return p;
}

int op_rpc_prefetch(struct endpoint *ep, struct handle *h, struct kvc_cmd *cmd)
{
	struct kvc_op_prefetch *op = &cmd->prefetch;
	struct blktab *tab = &h->fseq->seq->tab;
	struct block_id *ids;
	int64_t nr;
	int err;

	if (op->flags & ~(u32)KVC_PREFETCH_EVENT)
		return -EINVAL;
	if (op->flags & KVC_PREFETCH_EVENT && (!ep->words || !h->nr || h->nr > ep->nr_slots))
		return -EOPNOTSUPP;
	nr = name_range(tab, op, &ids);
	if (nr < 0)
		return (int)nr;
	handle_end_prefetch(h);
	h->prefetch = prefetch_new(h, op);
	err = h->prefetch ? pool_load_begin(tab->pool, &h->prefetch->load, ids, (u32)nr) : -ENOMEM;
	if (err) {
		free(h->prefetch);
		h->prefetch = NULL;
	} else {
		op->ticket = h->prefetch->ticket;
	}
	pool_put(tab->pool, ids, (u32)nr);
	free(ids);
	return err;
}
