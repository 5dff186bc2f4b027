/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference tier: zeroed host memory, every request done at once. Tests run against it what
 * runs elsewhere against disks, so it insists on the alignment that a disk insists on.
 */
#include <errno.h>
#include <sys/mman.h>
#include "allocator/base/textbuf.h"
#include "tiers/tier.h"
#include "tiers/tier_impl.h"

static int null_open(struct tier *tier, const struct tier_opts *opts, struct textbuf *why)
{
	void *base = mmap(NULL, opts->size_bytes, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (base == MAP_FAILED)
		return tier_why(why, -ENOMEM, "tier %s: no address space for %llu bytes",
				tier->name, (unsigned long long)opts->size_bytes);
	tier->priv = base;
	return 0;
}

static void null_close(struct tier *tier)
{
	munmap(tier->priv, tier->size_bytes);
}

static int null_submit(struct tier *tier, struct tier_io **ios, unsigned int nr)
{
	return tier_mem_submit(tier->priv, ios, nr);
}

static void null_poll(struct tier *tier)
{
}

static void *null_map(struct tier *tier, u64 off, u64 bytes)
{
	return (char *)tier->priv + off;
}

const struct tier_ops tier_null_ops = {
	.name = "null",
	.align = KVC_PAGE_SIZE,
	.open = null_open,
	.close = null_close,
	.submit = null_submit,
	.poll = null_poll,
	.map = null_map,
};
