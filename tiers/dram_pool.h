/* SPDX-License-Identifier: Apache-2.0 */
/* Making the dram tier's pool file; inside this folder only. */
#ifndef KVC_DRAM_POOL_H
#define KVC_DRAM_POOL_H

#include "allocator/base/compiler.h"

struct textbuf;
struct tier_opts;

/** struct dram_pool - the file and how it was made. */
struct dram_pool {
	int fd;			/* owned */
	const char *kind;	/* "tmpfs", "hugetlb", "memfd" */
	bool want_huge;		/* ask for huge pages by madvise */
};

/**
 * dram_pool_create() - an empty pool file of opts->size_bytes, mode 0600, without a path, as
 * opts->hugepages asks. Return: 0, else -errno and a line in @why.
 */
int dram_pool_create(struct dram_pool *pool, const struct tier_opts *opts, struct textbuf *why);

/** dram_memory_available() - bytes this process may still take: free memory and cgroup limits. */
u64 dram_memory_available(void);

#endif
