/* SPDX-License-Identifier: Apache-2.0 */
/* Making and guarding the dram tier's slab files; inside this folder only. */
#ifndef KVC_DRAM_POOL_H
#define KVC_DRAM_POOL_H

#include "allocator/base/compiler.h"

struct textbuf;
struct tier_opts;

/** struct dram_pool - how the files are made. */
struct dram_pool {
	const char *kind;	/* "tmpfs", "hugetlb", "memfd" */
	int mount;		/* the private tmpfs, owned; -1: memfds */
	unsigned int memfd_flags;
	bool want_huge;		/* ask for huge pages by madvise */
};

/** dram_pool_open() - choose as opts->hugepages asks. Return: 0, else -errno and a line in @why. */
int dram_pool_open(struct dram_pool *pool, const struct tier_opts *opts, u32 nr_slabs,
		   struct textbuf *why);
void dram_pool_close(struct dram_pool *pool);
/** dram_pool_file() - an empty file of @bytes, mode 0600, without a path. Return: descriptor, -errno. */
int dram_pool_file(struct dram_pool *pool, u64 bytes);

/** struct dram_guard - the addresses of a tier whose files clients can shrink. */
struct dram_guard {
	const char *base;
	u64 bytes, slab_bytes;
	const int *fd;	/* a slab's file; read atomically */
};

/** dram_guard_begin() - survive accesses to it beyond the end of a file. @guard stays the caller's. */
void dram_guard_begin(struct dram_guard *guard);
void dram_guard_end(struct dram_guard *guard);

/** dram_memory_available() - bytes this process may still take: free memory and cgroup limits. */
u64 dram_memory_available(void);

#endif
