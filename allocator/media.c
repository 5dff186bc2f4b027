/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include "allocator/media.h"
#include "tiers/tier.h"

struct media {
	struct tier *tier[NR_BLOCK_TIERS]; /* owned; NULL: none */
};

int media_open(struct media **media, const struct media_opts *opts, struct textbuf *why)
{
	struct tier_opts dram = {.size_bytes = opts->dram_bytes,
				 .dirfd = -1,
				 .hugepages = opts->hugepages,
				 .numa_node = opts->numa_node,
				 .files = opts->dram_files,
				 .file_made = opts->file_made,
				 .file_ctx = opts->file_ctx};
	struct tier_opts nvme = {.size_bytes = opts->nvme_bytes,
				 .dirfd = opts->dirfd,
				 .create = opts->fresh,
				 .file_bytes = opts->nvme_file_bytes,
				 .numa_node = -1};
	struct media *m = calloc(1, sizeof(*m));
	int err;

	if (!m)
		return -ENOMEM;
	err = tier_open(&m->tier[IN_DRAM], &tier_dram_ops, "dram", &dram, why);
	if (!err && opts->dirfd >= 0)
		err = tier_open(&m->tier[IN_NVME], &tier_nvme_ops, "nvme", &nvme, why);
	if (err) {
		media_close(m);
		return err;
	}
	*media = m;
	return 0;
}

void media_close(struct media *media)
{
	if (!media)
		return;
	tier_close(media->tier[IN_NVME]);
	tier_close(media->tier[IN_DRAM]);
	free(media);
}

struct tier *media_tier(struct media *media, enum block_tier which)
{
	return media->tier[which];
}

int media_grow_nvme(struct media *media, u64 bytes)
{
	return tier_grow(media->tier[IN_NVME], bytes);
}

u32 media_dram_slabs(u64 dram_bytes)
{
	const struct tier dram = {.size_bytes = dram_bytes};

	return (u32)div_round_up(dram_bytes, tier_slab_bytes(&dram));
}

bool media_count(struct media *media, enum block_tier which, struct media_counters *counters)
{
	const struct tier *tier = media->tier[which];

	if (!tier)
		return false;
	*counters = (struct media_counters){
		.name = tier->name,
		.size_bytes = tier_size(tier),
		.reads = atomic_load(&tier->reads),
		.read_bytes = atomic_load(&tier->read_bytes),
		.writes = atomic_load(&tier->writes),
		.write_bytes = atomic_load(&tier->write_bytes),
		.errors = atomic_load(&tier->errors),
	};
	return true;
}
