/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tiers below a pool, as the mount and the tools open, enlarge and count them: who owns the
 * `struct tier`s that pool_create() is given. Nobody above the allocator calls a tier.
 */
#ifndef KVC_MEDIA_H
#define KVC_MEDIA_H

#include "allocator/base/compiler.h"
#include "allocator/block.h"

struct media;
struct tier;
struct textbuf;

struct media_opts {
	u64 dram_bytes;
	const char *hugepages; /* "auto", "tmpfs", "hugetlb", "off" */
	int numa_node;	       /* -1: none */
	int dirfd;	       /* store directory of the NVMe tier, -1: volatile */
	bool fresh;	       /* make the data files */
	u64 nvme_bytes, nvme_file_bytes;
	/* DRAM's slab files, as in struct tier_opts: those that there are, and who is told of new ones */
	const int *dram_files;
	void (*file_made)(void *ctx, u32 slab, int fd);
	void *file_ctx;
};

/** media_open() - open the tiers. @why: one clear line on failure. Return: 0 or -errno. */
int __must_check media_open(struct media **media, const struct media_opts *opts,
			    struct textbuf *why);
/** media_close() - wait for all transfers, close. After pool_destroy(). NULL is ignored. */
void media_close(struct media *media);
/** media_tier() - for pool_create(); NULL where there is none. */
struct tier *media_tier(struct media *media, enum block_tier which);
/** media_grow_nvme() - enlarge to @bytes; unchanged on error. */
int __must_check media_grow_nvme(struct media *media, u64 bytes);

/** media_dram_slabs() - slab files of a DRAM of that size. */
u32 media_dram_slabs(u64 dram_bytes);

/** struct media_counters - of one tier, since it was opened. */
struct media_counters {
	const char *name;
	u64 size_bytes, reads, read_bytes, writes, write_bytes, errors;
};
/** media_count() - Return: false when there is no such tier. */
bool media_count(struct media *media, enum block_tier which, struct media_counters *counters);

#endif
