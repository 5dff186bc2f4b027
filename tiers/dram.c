/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dram tier: one pool file, mapped once, so that its bytes are reached by address. Clients map
 * the same file; a GPU driver may pin parts of it. Transfers are memcpy, done at once, on the
 * submitter's thread: code that moves blocks need not know which side is memory.
 *
 * The mapping is aligned to a huge page, for a file offset and its address must agree modulo 2 MiB
 * before the kernel maps a huge page by one entry.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "allocator/base/err.h"
#include "allocator/base/log.h"
#include "allocator/base/textbuf.h"
#include "tiers/dram_pool.h"
#include "tiers/tier.h"
#include "tiers/tier_impl.h"

#define MAX_NODES 1024

/* All members are set once, at open. */
struct dram {
	struct dram_pool pool;
	char *base;	/* the pool, mapped shared */
	u64 size_bytes;
};

/* Map @fd at a huge-page boundary: reserve more than needed, then map over the aligned middle. */
static void *map_aligned(int fd, u64 bytes)
{
	u64 reserved = bytes + KVC_HUGE_SIZE;
	char *area = mmap(NULL, reserved, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *base, *end;

	if (area == MAP_FAILED)
		return NULL;
	base = (char *)round_up_pow2((uintptr_t)area, KVC_HUGE_SIZE);
	if (mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
	    MAP_FAILED) {
		int err = errno;

		munmap(area, reserved);
		errno = err;
		return NULL;
	}
	end = base + bytes;
	if (base > area)
		munmap(area, base - area);
	if (area + reserved > end)
		munmap(end, area + reserved - end);
	return base;
}

/*
 * Prefer the node, not insist on it: with MPOL_BIND a full node would kill us at a page fault while
 * the next node has memory.
 */
static int bind_node(struct dram *dram, int node, struct textbuf *why)
{
	unsigned long mask[MAX_NODES / (8 * sizeof(long))] = {0};
	char path[64];

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d", node);
	if (node < 0 || node >= MAX_NODES || access(path, F_OK))
		return tier_why(why, -EINVAL, "numa=%d: there is no such memory node", node);
	mask[node / (8 * sizeof(long))] = 1ul << (node % (8 * sizeof(long)));
	if (syscall(SYS_mbind, dram->base, dram->size_bytes, MPOL_PREFERRED, mask,
		    (unsigned long)MAX_NODES, 0)) {
		int err = -errno;

		return tier_why(why, err, "numa=%d: the kernel refused to bind the pool: %s", node,
				strerror(-err));
	}
	return 0;
}

static int map_pool(struct dram *dram, const struct tier_opts *opts, struct textbuf *why)
{
	int err;

	dram->base = map_aligned(dram->pool.fd, dram->size_bytes);
	if (!dram->base) {
		err = -errno;
		return tier_why(why, err, "cannot map the %s pool of %" PRIu64 " MiB: %s%s",
				dram->pool.kind, dram->size_bytes >> 20, strerror(-err),
				strcmp(dram->pool.kind, "hugetlb")
					? ""
					: " (are enough huge pages reserved, vm.nr_hugepages?)");
	}
	/* Neither is needed for correctness. */
	madvise(dram->base, dram->size_bytes, MADV_DONTDUMP);
	if (dram->pool.want_huge)
		madvise(dram->base, dram->size_bytes, MADV_HUGEPAGE);
	if (opts->numa_node == -1)
		return 0;
	err = bind_node(dram, opts->numa_node, why);
	if (err)
		munmap(dram->base, dram->size_bytes);
	return err;
}

static int dram_open(struct tier *tier, const struct tier_opts *opts, struct textbuf *why)
{
	struct dram *dram = calloc(1, sizeof(*dram));
	int err;

	if (!dram)
		return -ENOMEM;
	dram->size_bytes = opts->size_bytes;
	err = dram_pool_create(&dram->pool, opts, why);
	if (err)
		goto free_dram;
	err = map_pool(dram, opts, why);
	if (err)
		goto close_pool;
	tier->priv = dram;
	log_info("tier %s: %" PRIu64 " MiB on %s", tier->name, dram->size_bytes >> 20,
		 dram->pool.kind);
	return 0;
close_pool:
	close(dram->pool.fd);
free_dram:
	free(dram);
	return err;
}

static void dram_close(struct tier *tier)
{
	struct dram *dram = tier->priv;

	munmap(dram->base, dram->size_bytes);
	close(dram->pool.fd);
	free(dram);
}

static int dram_submit(struct tier *tier, struct tier_io **ios, unsigned int nr)
{
	struct dram *dram = tier->priv;

	return tier_mem_submit(dram->base, ios, nr);
}

static void dram_poll(struct tier *tier)
{
}

static void *dram_map(struct tier *tier, u64 off, u64 bytes)
{
	struct dram *dram = tier->priv;

	return dram->base + off;
}

/* Whole huge pages only: punching a part would split the page and free nothing. */
static void dram_discard(struct tier *tier, u64 off, u64 bytes)
{
	struct dram *dram = tier->priv;
	u64 start = round_up_pow2(off, KVC_HUGE_SIZE);
	u64 end = (off + bytes) & ~(u64)(KVC_HUGE_SIZE - 1);

	if (start < end)
		fallocate(dram->pool.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start,
			  end - start);
}

static void dram_to_text(struct tier *tier, struct textbuf *tb)
{
	struct dram *dram = tier->priv;

	textbuf_printf(tb, "pool=%s", dram->pool.kind);
}

const struct tier_ops tier_dram_ops = {
	.name = "dram",
	.align = 1,
	.open = dram_open,
	.close = dram_close,
	.submit = dram_submit,
	.poll = dram_poll,
	.map = dram_map,
	.discard = dram_discard,
	.to_text = dram_to_text,
};

int tier_dram_fd(struct tier *tier)
{
	struct dram *dram = tier->priv;

	return tier->ops == &tier_dram_ops ? dram->pool.fd : -1;
}
